//! `configureFailPoint`.

use crate::request::{CommandContext, Done};
use crate::settings::fail_point::mode;
use bson::Doc;
use errors::{Result, bail};
use front::idl;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(name) = cx.args.first.as_str() else {
        bail!(
            TypeMismatch,
            "BSON field 'configureFailPoint.configureFailPoint' is the wrong type '{}', expected type 'string'",
            cx.args.first.type_name()
        );
    };
    let (mut when, mut data) = (None, Doc::EMPTY);
    for e in cx.args.fields.clone() {
        match e.name {
            "mode" => when = Some(mode(e.val)?),
            "data" => data = idl::doc("configureFailPoint", e)?.unwrap_or(Doc::EMPTY),
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let when = idl::required("configureFailPoint", "mode", when)?;
    let entered = cx.app.fail_points.configure(name, when, data.to_buf());
    cx.w.int("count", entered as i64);
    Ok(Done::Reply)
}
