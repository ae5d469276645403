//! Collections, views, indexes and shard keys made at the target as they are at the source.
//!
//! Invariant: what the target refuses is noted for the user and stops nothing else: a collection without one of its indexes is
//! better than none.

use super::inventory::{self, Namespace, NamespaceKind, Selection, array_of};
use super::server::{Kind, NAMESPACE_EXISTS, NO_SUCH_NAMESPACE, Result, Server, command};
use bson::{Doc, DocBuf, Val, doc};
use std::collections::BTreeMap;

/// What the user has to look at, one sentence each.
#[derive(Default)]
pub(super) struct Notes(Vec<String>);

impl Notes {
    pub fn add(&mut self, note: String) {
        if !self.0.contains(&note) {
            eprintln!("pando migrate: {note}");
            self.0.push(note);
        }
    }

    pub fn all(&self) -> &[String] {
        &self.0
    }
}

/// Makes a collection or a view; whether it is new.
pub(super) fn create(to: &mut Server, ns: &Namespace) -> Result<bool> {
    let create = command("create", &ns.coll, |w| {
        w.extend(ns.options.as_doc());
    });
    match to.run(&ns.db, &create) {
        Ok(_) => Ok(true),
        Err(e) if e.is(NAMESPACE_EXISTS) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives collections the shard keys that they have at the source, where both are routers.
pub(super) fn shard(
    (from, source): (&mut Server, Kind),
    (to, target): (&mut Server, Kind),
    namespaces: &[Namespace],
    notes: &mut Notes,
) -> Result<()> {
    if !(source.is_router && target.is_router) {
        return Ok(());
    }
    let keys = inventory::shard_keys(from, source)?;
    for ns in namespaces {
        let Some((key, unique)) = keys.get(&ns.full()) else {
            continue;
        };
        let ask = command("shardCollection", &ns.full(), |w| {
            w.doc("key", key.as_doc()).bool("unique", *unique);
        });
        if let Err(e) = to.run("admin", &ask) {
            notes.add(format!("{} is not sharded: {e}", ns.full()));
        }
    }
    Ok(())
}

/// Makes the indexes that are missing, and drops those that the source has no more.
pub(super) fn equalize_indexes(
    from: &mut Server,
    to: &mut Server,
    ns: &Namespace,
    notes: &mut Notes,
) -> Result<()> {
    let wanted = inventory::indexes(from, &ns.db, &ns.coll)?;
    let there = inventory::indexes(to, &ns.db, &ns.coll)?;
    let gone = there.keys().filter(|name| !wanted.contains_key(*name));
    for name in gone {
        // An index that a shard key needs stays.
        let _ = drop_index(to, &ns.db, &ns.coll, name);
    }
    let missing: BTreeMap<_, _> = wanted
        .into_iter()
        .filter(|(name, _)| !there.contains_key(name))
        .collect();
    make_indexes(to, ns, &missing, notes)
}

/// All at once, which reads the documents once; where one of them is refused, each for itself.
fn make_indexes(
    to: &mut Server,
    ns: &Namespace,
    specs: &BTreeMap<String, DocBuf>,
    notes: &mut Notes,
) -> Result<()> {
    if specs.is_empty() || build(to, &ns.db, &ns.coll, specs.values()).is_ok() {
        return Ok(());
    }
    for (name, spec) in specs {
        match build(to, &ns.db, &ns.coll, std::iter::once(spec)) {
            Err(e) if e.passes() => return Err(e),
            Err(e) => notes.add(format!("{} has no index {name}: {e}", ns.full())),
            Ok(()) => {}
        }
    }
    Ok(())
}

pub(super) fn build<'s>(
    to: &mut Server,
    db: &str,
    coll: &str,
    specs: impl Iterator<Item = &'s DocBuf>,
) -> Result<()> {
    let ask = command("createIndexes", coll, |w| {
        w.value("indexes", array_of(specs));
    });
    to.run(db, &ask).map(drop)
}

pub(super) fn drop_index(to: &mut Server, db: &str, coll: &str, name: &str) -> Result<()> {
    let ask = command("dropIndexes", coll, |w| {
        w.str("index", name);
    });
    ignoring(to.run(db, &ask), &[NO_SUCH_NAMESPACE, 27])
}

pub(super) fn drop_collection(to: &mut Server, db: &str, coll: &str) -> Result<()> {
    ignoring(
        to.run(db, &command("drop", coll, |_| {})),
        &[NO_SUCH_NAMESPACE],
    )
}

/// Success also where the server says that it is so already.
pub(super) fn ignoring(done: Result<DocBuf>, codes: &[i64]) -> Result<()> {
    match done {
        Err(e) if !e.code.is_some_and(|code| codes.contains(&code)) => Err(e),
        _ => Ok(()),
    }
}

/// At the end: what change streams do not tell of, or tell of in newer releases only.
pub(super) fn equalize(
    from: &mut Server,
    to: &mut Server,
    only: &Selection,
    notes: &mut Notes,
) -> Result<Vec<Namespace>> {
    let wanted = inventory::namespaces(from, only)?;
    let there = inventory::namespaces(to, only)?;
    let there: BTreeMap<String, &Namespace> = there.iter().map(|ns| (ns.full(), ns)).collect();
    for ns in &wanted {
        match there.get(&ns.full()) {
            None => {
                create(to, ns)?;
            }
            Some(is)
                if ns.kind == NamespaceKind::View
                    && is.options.as_bytes() != ns.options.as_bytes() =>
            {
                drop_collection(to, &ns.db, &ns.coll)?;
                create(to, ns)?;
            }
            Some(is) => equalize_options(to, ns, is, notes)?,
        }
        if ns.kind != NamespaceKind::View {
            equalize_indexes(from, to, ns, notes)?;
        }
    }
    let names: Vec<String> = wanted.iter().map(Namespace::full).collect();
    for (name, _) in there.iter().filter(|(name, _)| !names.contains(name)) {
        notes.add(format!("{name} is at the target only"));
    }
    Ok(wanted)
}

/// Validators are what `collMod` changes most.
fn equalize_options(
    to: &mut Server,
    wanted: &Namespace,
    is: &Namespace,
    notes: &mut Notes,
) -> Result<()> {
    let differs = |name: &str| option(wanted, name) != option(is, name);
    let changed: Vec<_> = [
        "validator",
        "validationLevel",
        "validationAction",
        "changeStreamPreAndPostImages",
    ]
    .into_iter()
    .filter(|name| differs(name))
    .collect();
    if changed.is_empty() {
        return Ok(());
    }
    let ask = command("collMod", &wanted.coll, |w| {
        for name in &changed {
            match (wanted.options.get(name), *name) {
                (Some(v), _) => {
                    w.val(name, v);
                }
                (None, "validator") => {
                    w.doc(name, Doc::EMPTY);
                }
                (None, "validationLevel") => {
                    w.str(name, "strict");
                }
                (None, "validationAction") => {
                    w.str(name, "error");
                }
                (None, _) => {
                    w.doc(name, doc! { "enabled": false }.as_doc());
                }
            }
        }
    });
    if let Err(e) = to.run(&wanted.db, &ask) {
        notes.add(format!(
            "{}: its options are not as at the source: {e}",
            wanted.full()
        ));
    }
    Ok(())
}

/// The bytes of an option; what stands for nothing is none.
fn option<'n>(ns: &'n Namespace, name: &str) -> Option<&'n [u8]> {
    let found = ns.options.get(name)?;
    let says_nothing = match name {
        "validator" => found.as_doc().is_some_and(Doc::is_empty),
        "validationLevel" => found.as_str() == Some("strict"),
        "validationAction" => found.as_str() == Some("error"),
        _ => {
            found
                .as_doc()
                .and_then(|d| d.get("enabled"))
                .and_then(Val::as_bool)
                == Some(false)
        }
    };
    (!says_nothing).then_some(found.bytes)
}
