//! `setQuerySettings` and `removeQuerySettings`: what holds for queries of one shape, which is
//! given by a query or by its hash.

use crate::crud::query_settings::{Setting, is_id_lookup};
use crate::crud::{aggregate, distinct, find, shape, variables};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail};
use front::Args;
use front::idl;
use std::sync::Arc;

/// A shape, as a client names it.
enum Shape<'a> {
    Hash(String),
    Query { query: Doc<'a>, shape: DocBuf },
}

impl Shape<'_> {
    fn hash(&self) -> String {
        match self {
            Shape::Hash(h) => h.clone(),
            Shape::Query { shape, .. } => shape::query_shape_hash(shape.as_doc()),
        }
    }
}

/// What the command's first field names.
fn named<'a>(cx: &mut CommandContext<'_, 'a>) -> Result<Shape<'a>> {
    let (at, first) = (cx.command.name, cx.args.first);
    if let Some(h) = first.as_str() {
        if let Some(c) = h.chars().find(|c| !c.is_ascii_hexdigit()) {
            bail!(BadValue, "The character '{c}' is not a hexadecimal digit");
        }
        if h.len() != 64 {
            bail!(
                InvalidLength,
                "A hash of a query shape has 64 hexadecimal digits, not {}",
                h.len()
            );
        }
        return Ok(Shape::Hash(h.to_ascii_uppercase()));
    }
    let Some(query) = first.as_doc() else {
        return Err(idl::mismatch(at, at, first, &["object", "string"]));
    };
    let command: &'static str = match query.first().map(|e| e.name) {
        Some("find") => "find",
        Some("distinct") => "distinct",
        Some("aggregate") => "aggregate",
        _ => bail!(
            7746402,
            "QueryShape can not be computed for command: {}",
            bson::shell::doc(query)
        ),
    };
    let db = query.iter().find(|e| e.name == "$db");
    let db = db.map(|e| idl::string(at, e)).transpose()?.flatten();
    let db = idl::required(at, "$db", db)?;
    catalog::check_db_name(db)?;
    let args = Args::parse(command, query, Some(db))?;
    let outer = std::mem::replace(&mut cx.args, args);
    let shape = match command {
        "find" => find::parse(cx).map(|f| f.shape()),
        "distinct" => distinct::query_shape(cx),
        _ => aggregate::query_shape(cx),
    };
    cx.args = outer;
    let shape = shape?;
    Ok(Shape::Query { query, shape })
}

/// Queries that nothing can be set for.
fn check(query: Doc<'_>, shape: Doc<'_>) -> Result<()> {
    let ns = |name: &str| shape.get("cmdNs")?.as_doc()?.get(name)?.as_str();
    if matches!(ns("db"), Some("admin" | "config" | "local")) {
        bail!(
            8584900,
            "setQuerySettings command cannot be used on internal databases"
        );
    }
    if ns("coll").is_some_and(|c| c.starts_with("system.")) {
        bail!(
            8584901,
            "setQuerySettings command cannot be used on system collections"
        );
    }
    let alone = query.iter().all(|e| {
        matches!(
            e.name,
            "find" | "filter" | "$db" | "projection" | "sort" | "limit"
        )
    });
    if alone && query.get("filter").is_some_and(is_id_lookup) {
        bail!(
            7746606,
            "setQuerySettings command cannot be used on find queries whose filter asks for one _id"
        );
    }
    Ok(())
}

pub fn set(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "setQuerySettings";
    let mut given = None;
    for e in &cx.args.fields {
        match e.name {
            "settings" => given = idl::doc(AT, *e)?,
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    let shape = named(cx)?;
    let given = idl::required(AT, "settings", given)?;
    if given.is_empty() {
        bail!(
            8727502,
            "settings field in setQuerySettings command cannot be empty"
        );
    }
    let given = settings(given)?;
    if let Shape::Query { query, shape } = &shape {
        check(*query, shape.as_doc())?;
    }
    let hash = shape.hash();
    let app = cx.app;
    let set = app.query_settings.change(&mut cx.op, |all| {
        let old = all.iter().position(|s| s.hash == hash);
        let merged = merged(
            given.as_doc(),
            old.and_then(|i| all.get(i))
                .map_or(Doc::EMPTY, |s| s.settings.as_doc()),
        );
        if is_default(merged.as_doc()) {
            bail!(
                7746604,
                "the resulting settings cannot be empty or contain only default values"
            );
        }
        let (query, shape) = match (&shape, old.and_then(|i| all.get(i))) {
            (Shape::Query { query, shape }, _) => (query.to_buf(), shape.clone()),
            (_, Some(s)) => (s.query.clone(), s.shape.clone()),
            (_, None) => bail!(
                7746401,
                "New query settings can only be created with a query instance, but a query hash was given."
            ),
        };
        let new = Arc::new(Setting {
            hash: hash.clone(),
            shape,
            query,
            settings: merged,
        });
        match old.and_then(|i| all.get_mut(i)) {
            Some(place) => *place = new.clone(),
            None => all.push(new.clone()),
        }
        Ok(new)
    })?;
    cx.w.str("queryShapeHash", &set.hash)
        .doc("representativeQuery", set.query.as_doc())
        .doc("settings", set.settings.as_doc());
    Ok(Done::Reply)
}

pub fn remove(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let hash = named(cx)?.hash();
    if cx.app.query_settings.find(&hash).is_some() {
        cx.app.query_settings.change(&mut cx.op, |all| {
            all.retain(|s| s.hash != hash);
            Ok(())
        })?;
    }
    Ok(Done::Reply)
}

/// `_pandoQueryShape`: the hash of a query's shape where anything is set for it, and whether it is
/// rejected.
///
/// ```text
/// {_pandoQueryShape: <command with its $db>}      → {queryShapeHash?: <string>, reject?: <bool>}
/// ```
pub fn shape(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.args.no_fields()?;
    let hash = named(cx)?.hash();
    if let Some(setting) = cx.app.query_settings.find(&hash) {
        let rejects = setting.rejects();
        cx.w.str("queryShapeHash", &hash).bool("reject", rejects);
    }
    Ok(Done::Reply)
}

/// The settings that a client gives, checked; hints of no index are left out.
fn settings(d: Doc<'_>) -> Result<DocBuf> {
    const AT: &str = "setQuerySettings.settings";
    let mut w = Writer::new();
    for e in idl::unique(AT, d)? {
        match e.name {
            "indexHints" => {
                let one = e.val.as_doc();
                let list = match e.val.as_array() {
                    _ if e.val.is_nullish() => continue,
                    Some(a) => a.values().collect(),
                    None if one.is_some() => vec![e.val],
                    None => return Err(idl::mismatch(AT, e.name, e.val, &["array", "object"])),
                };
                index_hints(&list, &mut w)?;
            }
            "queryFramework" => match idl::string(AT, e)? {
                None => {}
                Some(f @ ("classic" | "sbe")) => {
                    w.str(e.name, f);
                }
                Some(f) => bail!(
                    BadValue,
                    "Enumeration value '{f}' for field '{AT}.queryFramework' is not a valid value."
                ),
            },
            "reject" => match e.val.as_bool() {
                Some(b) => {
                    w.bool(e.name, b);
                }
                None => return Err(idl::mismatch(AT, e.name, e.val, &["bool"])),
            },
            "comment" => {
                w.val(e.name, e.val);
            }
            name => return Err(idl::unknown(AT, name)),
        }
    }
    Ok(w.finish())
}

fn index_hints(list: &[Val<'_>], w: &mut Writer) -> Result<()> {
    const AT: &str = "setQuerySettings.settings.indexHints";
    let mut seen = Vec::new();
    w.open_array("indexHints");
    for v in list {
        let Some(d) = v.as_doc() else {
            return Err(idl::mismatch(AT, "indexHints", *v, &["object"]));
        };
        let (mut ns, mut allowed) = (None, None);
        for e in idl::unique(AT, d)? {
            match e.name {
                "ns" => ns = idl::doc(AT, e)?,
                "allowedIndexes" => allowed = idl::array(AT, e)?,
                name => return Err(idl::unknown(AT, name)),
            }
        }
        let (db, coll) = namespace(idl::required(AT, "ns", ns)?)?;
        let allowed = idl::required(AT, "allowedIndexes", allowed)?;
        for v in allowed.values() {
            if v.is_nullish() || variables::hint(v)?.is_none() {
                bail!(FailedToParse, "Hint must be a string or an object");
            }
        }
        if seen.contains(&(db, coll)) {
            bail!(
                7746608,
                "Collection '{db}.{coll}' has already been specified in the index hints"
            );
        }
        seen.push((db, coll));
        if allowed.is_empty() {
            continue;
        }
        w.open_doc("");
        w.open_doc("ns").str("db", db).str("coll", coll).close();
        w.open_array("allowedIndexes");
        for v in allowed.values() {
            w.push(v);
        }
        w.close().close();
    }
    w.close();
    Ok(())
}

fn namespace(d: Doc<'_>) -> Result<(&str, &str)> {
    const AT: &str = "setQuerySettings.settings.indexHints.ns";
    let (mut db, mut coll) = (None, None);
    for e in idl::unique(AT, d)? {
        match e.name {
            "db" => db = idl::string(AT, e)?,
            "coll" => coll = idl::string(AT, e)?,
            name => return Err(idl::unknown(AT, name)),
        }
    }
    let Some(db) = db else {
        bail!(8727500, "invalid NamespaceSpec must contain 'db' field")
    };
    let Some(coll) = coll else {
        bail!(8727501, "invalid NamespaceSpec must contain 'coll' field")
    };
    Ok((db, coll))
}

/// The given settings over the old ones; a missing field stays.
fn merged(given: Doc<'_>, old: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    for name in ["indexHints", "queryFramework", "reject", "comment"] {
        if let Some(v) = given.get(name).or_else(|| old.get(name)) {
            w.val(name, v);
        }
    }
    w.finish()
}

/// Whether settings change nothing: a comment alone does not count.
fn is_default(d: Doc<'_>) -> bool {
    let hints = d.get("indexHints").and_then(|v| v.as_array());
    hints.is_none_or(|a| a.is_empty())
        && d.get("queryFramework").is_none()
        && !d.get("reject").is_some_and(|v| v.truthy())
}
