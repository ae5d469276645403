//! `$geoNear` over a collection: which field it searches, where it does not say so itself.

use crate::op::OpCtx;
use catalog::Collection;
use errors::{Result, bail};
use query::expr::Vars;
use query::index_keys::{FieldKind, Geospatial};
use query::path::FieldPath;
use query::pipeline::Pipeline;
use std::borrow::Cow;

/// The pipeline with its `$geoNear` resolved, if it begins with one.
pub(crate) fn resolved<'p>(
    ctx: &OpCtx,
    ns: &str,
    pipeline: &'p Pipeline,
    vars: &Vars,
) -> Result<Cow<'p, Pipeline>> {
    if pipeline.misplaces_geo_near() {
        bail!(40603, "$geoNear was not the first stage in the pipeline.");
    }
    let Some(stage) = pipeline.geo_near() else {
        return Ok(Cow::Borrowed(pipeline));
    };
    let (_, Some(coll)) = ctx.view(ns) else {
        bail!(
            NamespaceNotFound,
            "$geoNear requires a collection to exist, but {ns} does not"
        );
    };
    let key = match &stage.key {
        Some(key) => key.clone(),
        None => the_field(&coll, ns)?,
    };
    Ok(Cow::Owned(
        pipeline.with_geo_near(stage.resolve(key, vars)?),
    ))
}

/// The only field of the only index of shapes: of those on the plane, or else of those on the sphere.
fn the_field(coll: &Collection, ns: &str) -> Result<FieldPath> {
    let fields = |plane: bool| {
        let of_kind = coll.usable.iter().filter(move |i| {
            i.ready
                && !i.hidden
                && i.key
                    .geospatial()
                    .is_some_and(|k| matches!(k, Geospatial::Plane(_)) == plane)
        });
        let cells = of_kind.flat_map(|i| i.key.fields.iter());
        let cells = cells.filter(|f| f.kind == FieldKind::Cells);
        cells.map(|f| f.path.clone()).collect::<Vec<_>>()
    };
    for (plane, name) in [(true, "2d"), (false, "2dsphere")] {
        match &fields(plane)[..] {
            [] => {}
            [one] => return Ok(one.clone()),
            _ => bail!(
                IndexNotFound,
                "There is more than one {name} index on {ns}; unsure which to use for $geoNear"
            ),
        }
    }
    bail!(
        IndexNotFound,
        "$geoNear requires a 2d or 2dsphere index, but none were found"
    )
}
