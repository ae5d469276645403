//! `reIndex`: the indexes of a collection built anew, on a standalone server only, as in MongoDB.
//!
//! One index after the other: the old entries are given up as the building begins, so that each is
//! there whole or in a state that a restart goes on building from.

use super::changed;
use crate::request::{CommandContext, Done};
use errors::{Result, bail};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    if let Some(e) = cx.args.fields.first() {
        return Err(cx.args.unknown(*e));
    }
    if cx.app.config.topology.set_name().is_some() {
        bail!(
            IllegalOperation,
            "reIndex is only allowed on a standalone mongod instance."
        );
    }
    let catalog = &cx.app.engine.catalog;
    let Some(coll) = catalog.get(&ns) else {
        bail!(NamespaceNotFound, "collection does not exist")
    };
    if coll.is_view() {
        bail!(CommandNotSupportedOnView, "can't re-index a view");
    }
    let names: Vec<String> = coll.secondary().map(|i| i.name().to_string()).collect();
    let was = coll.index_specs().len();
    for name in &names {
        executor::build::rebuild_index(&mut cx.op, &ns, name)?;
    }
    let specs = cx
        .app
        .engine
        .catalog
        .get(&ns)
        .map_or_else(Vec::new, |c| c.index_specs());
    cx.w.i32("nIndexesWas", was as i32)
        .i32("nIndexes", specs.len() as i32)
        .open_array("indexes");
    for spec in &specs {
        cx.w.push(spec.as_doc().as_val());
    }
    cx.w.close();
    if !names.is_empty() {
        changed(cx);
    }
    Ok(Done::Reply)
}
