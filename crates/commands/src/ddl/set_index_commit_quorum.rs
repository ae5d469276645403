//! `setIndexCommitQuorum`: how many members an index build awaits. With one member there is nothing
//! to change while it runs, but the build must be there.

use super::create_indexes::check_quorum;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "setIndexCommitQuorum";
    let ns = cx.args.namespace()?;
    let (mut names, mut quorum) = (None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "indexNames" => names = idl::array(AT, e)?,
            "commitQuorum" => {
                check_quorum(e.val)?;
                quorum = Some(e.val).filter(|v| !v.is_nullish());
            }
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let names = idl::required(AT, "indexNames", names)?;
    idl::required(AT, "commitQuorum", quorum)?;
    let mut wanted = Vec::new();
    for v in names.values() {
        match v.as_str() {
            Some(n) => wanted.push(n),
            None => return Err(idl::mismatch(AT, "indexNames", v, &["string"])),
        }
    }
    let coll = cx.app.engine.catalog.get(&ns);
    let builds = coll.is_some_and(|c| {
        let mut named = c.indexes.iter().filter(|i| wanted.contains(&i.name()));
        !wanted.is_empty() && named.clone().count() == wanted.len() && named.all(|i| !i.info.ready)
    });
    if !builds {
        bail!(
            IndexNotFound,
            "Cannot find an index build on collection '{ns}' with the provided index names"
        );
    }
    Ok(Done::Reply)
}
