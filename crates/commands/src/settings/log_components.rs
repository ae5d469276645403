//! `logComponentVerbosity`: how much each component of the log tells, as the document that the
//! parameter's value is.
//!
//! A level of -1 is that of the component above; the outermost is the parameter `logLevel`. What
//! follows from levels here: at `command` 1 and more, every command is logged as a slow one is. The
//! other components log nothing above level 0.

use bson::{Doc, DocBuf, Elem, Val, Writer, tag};
use errors::{Result, bail};

/// MongoDB's components, with the names of those above them.
const COMPONENTS: &[&str] = &[
    "",
    "accessControl",
    "assert",
    "command",
    "control",
    "deprecation",
    "executor",
    "ftdc",
    "geo",
    "globalIndex",
    "index",
    "network",
    "network.asio",
    "network.bridge",
    "network.connectionPool",
    "processHealth",
    "query",
    "query.optimizer",
    "query.optimizer.ce",
    "query.rejected",
    "queryStats",
    "replication",
    "replication.election",
    "replication.heartbeats",
    "replication.initialSync",
    "replication.rollback",
    "sharding",
    "sharding.migration",
    "sharding.migrationPerf",
    "sharding.rangeDeleter",
    "sharding.shardingCatalogRefresh",
    "storage",
    "storage.journal",
    "storage.recovery",
    "storage.wt",
    "storage.wt.wtBackup",
    "storage.wt.wtCheckpoint",
    "storage.wt.wtCompact",
    "storage.wt.wtEviction",
    "storage.wt.wtHS",
    "storage.wt.wtRTS",
    "storage.wt.wtRecovery",
    "storage.wt.wtSalvage",
    "storage.wt.wtTiered",
    "storage.wt.wtTimestamp",
    "storage.wt.wtTransaction",
    "storage.wt.wtVerify",
    "storage.wt.wtWriteLog",
    "tenantMigration",
    "test",
    "tracking",
    "transaction",
    "write",
];

const INHERIT: i64 = -1;
const MOST: i64 = 5;

/// Every component at the level of the one above.
pub fn defaults() -> DocBuf {
    document(&vec![INHERIT; COMPONENTS.len()], 0)
}

/// The value with the levels in it that `given` names. None is changed when one of them is wrong.
pub fn changed(now: Doc<'_>, given: Val<'_>) -> Result<DocBuf> {
    let Some(given) = given.as_doc() else {
        bail!(
            TypeMismatch,
            "log component verbosity is not a BSON object: {}",
            given.type_name()
        );
    };
    let mut levels: Vec<i64> = COMPONENTS.iter().map(|c| level(now, c)).collect();
    read("", given, &mut levels)?;
    let top = levels.first().copied().unwrap_or(0).max(0);
    Ok(document(&levels, top))
}

/// The value with another outermost level.
pub fn with_top(now: Doc<'_>, top: i64) -> DocBuf {
    let levels: Vec<i64> = COMPONENTS.iter().map(|c| level(now, c)).collect();
    document(&levels, top)
}

/// The level of a component in a value, -1 where it is that of the one above.
pub fn level(value: Doc<'_>, component: &str) -> i64 {
    let mut at = Some(value);
    for name in component.split('.').filter(|n| !n.is_empty()) {
        at = at.and_then(|d| d.get(name)).and_then(|v| v.as_doc());
    }
    at.and_then(|d| d.get("verbosity"))
        .and_then(|v| v.to_i64_truncated())
        .unwrap_or(INHERIT)
}

/// Whether every command is to be logged.
pub fn tells_commands(value: Doc<'_>) -> bool {
    match level(value, "command") {
        INHERIT => level(value, "") > 0,
        own => own > 0,
    }
}

fn read(within: &str, given: Doc<'_>, levels: &mut [i64]) -> Result<()> {
    for e in given {
        if e.name == "verbosity" {
            put(within, e, levels)?;
            continue;
        }
        let path = match within {
            "" => e.name.to_string(),
            _ => format!("{within}.{}", e.name),
        };
        if !COMPONENTS.contains(&path.as_str()) || path.is_empty() {
            bail!(BadValue, "Invalid component name {path}");
        }
        match e.val.tag {
            tag::DOCUMENT => read(&path, e.val.as_doc().unwrap_or(Doc::EMPTY), levels)?,
            _ => put(&path, e, levels)?,
        }
    }
    Ok(())
}

fn put(component: &str, e: Elem<'_>, levels: &mut [i64]) -> Result<()> {
    let n = e.val.to_f64().filter(|f| {
        let f = f.trunc();
        f >= f64::from(i32::MIN) && f <= f64::from(i32::MAX)
    });
    let Some(n) = n else {
        bail!(
            BadValue,
            "Expected {component}.verbosity to be a number of 32 bits, but found {}",
            e.val
        );
    };
    let at = COMPONENTS.iter().position(|c| *c == component);
    if let Some(slot) = at.and_then(|i| levels.get_mut(i)) {
        *slot = (n as i64).clamp(INHERIT, MOST);
    }
    Ok(())
}

fn document(levels: &[i64], top: i64) -> DocBuf {
    let mut w = Writer::new();
    w.i32("verbosity", top as i32);
    let mut open: Vec<&str> = Vec::new();
    for (path, level) in COMPONENTS.iter().zip(levels).skip(1) {
        let mut names: Vec<&str> = path.split('.').collect();
        let name = names.pop().unwrap_or("");
        while open != names {
            open.pop();
            w.close();
        }
        w.open_doc(name).i32("verbosity", *level as i32);
        open.push(name);
    }
    for _ in open {
        w.close();
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn every_component_stands_below_one_that_is_there() {
        let value = defaults();
        for c in COMPONENTS {
            let parent = c.rsplit_once('.').map_or("", |(p, _)| p);
            assert!(COMPONENTS.contains(&parent), "{c}");
            let expected = if c.is_empty() { 0 } else { INHERIT };
            assert_eq!(level(value.as_doc(), c), expected, "{c}");
        }
        let network = value.get("network").unwrap().as_doc().unwrap();
        assert!(network.get("asio").is_some());
    }

    #[test]
    fn changes_what_is_named() {
        let given = doc! {
            "command": 2,
            "storage": doc! { "verbosity": 9, "wt": doc! { "wtCheckpoint": 1.9 } },
        };
        let v = changed(defaults().as_doc(), given.as_doc().as_val()).unwrap();
        for (c, n) in [
            ("command", 2),
            ("storage", 5),
            ("storage.wt", -1),
            ("storage.wt.wtCheckpoint", 1),
            ("", 0),
        ] {
            assert_eq!(level(v.as_doc(), c), n, "{c}");
        }
        assert!(tells_commands(v.as_doc()));
        let v = changed(v.as_doc(), doc! { "command": -7 }.as_doc().as_val()).unwrap();
        assert_eq!(level(v.as_doc(), "command"), -1);
        assert!(!tells_commands(v.as_doc()));
        assert!(tells_commands(with_top(v.as_doc(), 1).as_doc()));
    }

    #[test]
    fn refuses() {
        for (given, code) in [
            (bson::Value::from("x"), 14),
            (bson::Value::from(doc! { "nope": 1 }), 2),
            (bson::Value::from(doc! { "network": doc! { "wt": 1 } }), 2),
            (bson::Value::from(doc! { "": 1 }), 2),
            (bson::Value::from(doc! { "command": "x" }), 2),
            (
                bson::Value::from(doc! { "command": doc! { "verbosity": f64::NAN } }),
                2,
            ),
            (bson::Value::from(doc! { "command": 2_147_483_648i64 }), 2),
        ] {
            let r = changed(defaults().as_doc(), given.as_val());
            assert_eq!(r.unwrap_err().into_error().code.0, code, "{given:?}");
        }
    }
}
