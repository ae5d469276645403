//! `killCursors`.

use crate::cx::{Cx, Done};
use crate::idl;
use bson::Doc;
use errors::{Result, bail};

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let mut ids = None;
    for e in &cx.args.fields {
        match e.name {
            "cursors" => ids = idl::array("killCursors", *e)?,
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    let ids: Doc = idl::required("killCursors", "cursors", ids)?;
    let (mut killed, mut missing) = (Vec::new(), Vec::new());
    for (i, v) in ids.values().enumerate() {
        let Some(id) = v.as_i64() else {
            bail!(
                TypeMismatch,
                "BSON field 'killCursors.cursors.{i}' is the wrong type '{}', expected type 'long'",
                v.type_name()
            );
        };
        if cx.app.cursors.kill(id, &ns) { killed.push(id) } else { missing.push(id) }
    }
    let mut list = |name: &str, ids: &[i64]| {
        cx.w.open_array(name);
        ids.iter().for_each(|id| {
            cx.w.push_value(*id);
        });
        cx.w.close();
    };
    list("cursorsKilled", &killed);
    list("cursorsNotFound", &missing);
    list("cursorsAlive", &[]);
    list("cursorsUnknown", &[]);
    Ok(Done::Reply)
}
