//! `validateDBMetadata`: what of the collections and indexes a version of the API does not allow.

use crate::request::{CommandContext, Done};
use bson::{Doc, Elem};
use catalog::Index;
use errors::{Code, Error, Result, bail};
use front::{Args, idl};

const AT: &str = "validateDBMetadata";

/// What is looked at, and whether the rules of version 1 are asked for.
struct Scope<'a> {
    strict: bool,
    db: Option<&'a str>,
    coll: Option<&'a str>,
}

impl<'a> Scope<'a> {
    fn of(args: &Args<'a>) -> Result<Scope<'a>> {
        let (mut api, mut db, mut coll) = (None, None, None);
        for e in &args.fields {
            match e.name {
                "apiParameters" => api = idl::doc(AT, *e)?,
                "db" => db = idl::string(AT, *e)?,
                "collection" => coll = idl::string(AT, *e)?,
                _ => return Err(args.unknown(*e)),
            }
        }
        let strict = parameters(idl::required(AT, "apiParameters", api)?)?;
        if let Some(db) = db {
            check_db(db)?;
        }
        if let Some(c) = coll
            && (c.is_empty() || c.starts_with('.') || c.contains('\0'))
        {
            bail!(InvalidNamespace, "Invalid collection name: '{c}'");
        }
        Ok(Scope { strict, db, coll })
    }
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    Scope::of(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Scope { strict, db, coll } = Scope::of(&cx.args)?;
    cx.w.open_array("apiVersionErrors");
    if strict {
        let snapshot = cx.app.engine.catalog.snapshot();
        let chosen = snapshot.all().filter(|c| {
            db.is_none_or(|db| c.db() == db) && coll.is_none_or(|name| c.name() == name)
        });
        for c in chosen {
            for i in c.indexes.iter().filter(|i| !allowed(i)) {
                cx.w.open_doc("")
                    .str("ns", &c.ns)
                    .i32("code", Code::APIStrictError.0)
                    .str("codeName", "APIStrictError")
                    .str(
                        "errmsg",
                        &format!(
                            "The index with name {} is not allowed in API version 1.",
                            i.name()
                        ),
                    )
                    .close();
            }
        }
    }
    cx.w.close();
    Ok(Done::Reply)
}

/// Whether the rules of version 1 are asked for.
fn parameters(d: Doc<'_>) -> Result<bool> {
    let at = format!("{AT}.apiParameters");
    // Here null is not left out, it is a wrong type.
    let flag = |e: Elem<'_>| {
        e.val
            .as_bool()
            .ok_or_else(|| idl::mismatch(&at, e.name, e.val, &["bool"]))
    };
    let (mut version, mut strict) = (None, false);
    for e in idl::unique(&at, d)? {
        match e.name {
            "version" => version = idl::string(&at, e)?,
            "strict" => strict = flag(e)?,
            "deprecationErrors" => {
                flag(e)?;
            }
            name => return Err(idl::unknown(&at, name)),
        }
    }
    Ok(strict && idl::required(&at, "version", version)? == "1")
}

fn check_db(db: &str) -> Result<()> {
    if db.is_empty() {
        return Err(Error::coded(28539, "'db' must not be empty").into());
    }
    if db.contains(['.', '\0']) || db.len() > 63 {
        bail!(InvalidNamespace, "Invalid database name: '{db}'");
    }
    if db.contains([' ', '/', '\\', '"']) {
        return Err(Error::coded(13280, format!("Invalid db name: {db}")).into());
    }
    Ok(())
}

fn allowed(i: &Index) -> bool {
    let flag = |name: &str| i.spec.get(name).is_some_and(|v| v.truthy());
    let text = i
        .spec
        .get("key")
        .and_then(|k| k.as_doc())
        .is_some_and(|k| k.iter().any(|f| f.val.as_str() == Some("text")));
    !flag("sparse") && !text
}
