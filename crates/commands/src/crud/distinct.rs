//! `distinct`.

use super::{on_view, variables};
use crate::cx::{Cx, Done};
use crate::idl;
use bson::Doc;
use errors::Result;
use executor::ReadRequest;
use query::filter::Filter;
use query::path::FieldPath;

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    const AT: &str = "distinct";
    let ns = cx.args.namespace()?;
    let (mut key, mut query, mut hint) = (None, Doc::EMPTY, None);
    let mut collation = None;
    for e in &cx.args.fields {
        match e.name {
            "key" => key = idl::string(AT, *e)?,
            "query" => query = idl::doc(AT, *e)?.unwrap_or(Doc::EMPTY),
            "hint" => hint = variables::hint(e.val)?,
            "collation" => collation = crate::collation::given(idl::doc(AT, *e)?)?,
            "collectionUUID" | "includeQueryStatsMetrics" => {}
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    let key = idl::required(AT, "key", key)?;
    let (env, vars) = variables::variables(cx, &ns, &collation, None)?;
    let filter = Filter::parse(query, &env)?;
    let vars = filter.has_expr().then(|| cx.op.interruptible(&vars));
    let req = ReadRequest {
        hint,
        vars,
        ..ReadRequest::new(&filter)
    };
    let path = FieldPath::new(key);
    let values = match executor::distinct(&mut cx.op, &ns, &path, &req, env.collation()) {
        Err(e) if on_view::wanted(&e) => return on_view::distinct(cx, key),
        values => values?,
    };
    cx.w.open_array("values");
    for v in &values {
        cx.w.push(v.as_val());
    }
    cx.w.close();
    Ok(Done::Reply)
}
