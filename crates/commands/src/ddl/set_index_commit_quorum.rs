//! `setIndexCommitQuorum`: how many members an index build awaits. With one member there is nothing
//! to change while it runs, but the build must be there.

use super::create_indexes::check_quorum;
use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Error, Result, err};
use front::{Args, idl};

/// The collection, and the names of the indexes.
fn arguments<'a>(args: &Args<'a>) -> Result<(String, Vec<&'a str>)> {
    const AT: &str = "setIndexCommitQuorum";
    let ns = args.namespace()?;
    let (mut names, mut quorum) = (None, None);
    for e in args.fields.iter().copied() {
        match e.name {
            "indexNames" => names = idl::array(AT, e)?,
            "commitQuorum" => {
                check_quorum(e.val)?;
                quorum = Some(e.val).filter(|v| !v.is_nullish());
            }
            _ => return Err(args.unknown(e)),
        }
    }
    let names: Doc<'a> = idl::required(AT, "indexNames", names)?;
    idl::required(AT, "commitQuorum", quorum)?;
    let mut wanted = Vec::new();
    for v in names.values() {
        match v.as_str() {
            Some(n) => wanted.push(n),
            None => return Err(idl::mismatch(AT, "indexNames", v, &["string"])),
        }
    }
    Ok((ns, wanted))
}

fn no_build(ns: &str) -> Error {
    err!(
        IndexNotFound,
        "Cannot find an index build on collection '{ns}' with the provided index names"
    )
}

/// In a collection that is not there no index is built.
pub fn check_absent(args: &Args<'_>) -> Result<()> {
    let (ns, _) = arguments(args)?;
    Err(no_build(&ns).into())
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, wanted) = arguments(&cx.args)?;
    let coll = cx.app.engine.catalog.get(&ns);
    let builds = coll.is_some_and(|c| {
        let mut named = c.indexes.iter().filter(|i| wanted.contains(&i.name()));
        !wanted.is_empty() && named.clone().count() == wanted.len() && named.all(|i| !i.info.ready)
    });
    if !builds {
        return Err(no_build(&ns).into());
    }
    Ok(Done::Reply)
}
