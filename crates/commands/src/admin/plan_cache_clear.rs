//! `planCacheClear` and its kin: plans are made anew for every query, so there is no cache to clear.

use crate::cx::{Cx, Done};
use errors::Result;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    cx.args.namespace()?;
    for e in &cx.args.fields {
        if !matches!(e.name, "query" | "sort" | "projection" | "collation") {
            return Err(cx.args.unknown(*e));
        }
    }
    Ok(Done::Reply)
}
