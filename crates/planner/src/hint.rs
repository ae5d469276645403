//! The index that a client insists on.

use crate::plan::{Hint, IndexInfo, PlanRequest};
use bson::Doc;
use errors::{Error, Result, bail, err};

/// What a hint stands for.
pub(crate) enum Hinted<'a> {
    Nothing,
    Natural { reverse: bool },
    Id,
    Index(&'a IndexInfo),
}

pub(crate) fn resolve<'a>(req: &PlanRequest<'a>) -> Result<Hinted<'a>> {
    let Some(hint) = req.hint else {
        return Ok(Hinted::Nothing);
    };
    let visible = || req.indexes.iter().filter(|i| i.ready && !i.hidden);
    match hint {
        // A caller that restricts the indexes passes only the allowed ones.
        Hint::Among(_) => Ok(Hinted::Nothing),
        Hint::Natural { reverse } => Ok(Hinted::Natural { reverse: *reverse }),
        Hint::Name(n) if n == "_id_" && req.clustered => Ok(Hinted::Id),
        Hint::Name(n) => visible()
            .find(|i| i.name == *n)
            .map(Hinted::Index)
            .ok_or_else(|| unknown(req).into()),
        Hint::Key(k) => {
            let k = k.as_doc();
            if k.is_empty() {
                return Ok(Hinted::Nothing);
            }
            if let Some(n) = k.get("$natural") {
                let reverse = n.to_f64().is_some_and(|f| f < 0.0);
                return Ok(Hinted::Natural { reverse });
            }
            if is_id_pattern(k) && req.clustered {
                return Ok(Hinted::Id);
            }
            visible()
                .find(|i| same_pattern(i.key.as_doc(), k))
                .map(Hinted::Index)
                .ok_or_else(|| unknown(req).into())
        }
    }
}

pub(crate) fn is_id_pattern(k: Doc<'_>) -> bool {
    k.count() == 1 && k.get("_id").is_some_and(|v| v.to_f64() == Some(1.0))
}

pub(crate) fn same_pattern(a: Doc<'_>, b: Doc<'_>) -> bool {
    a.count() == b.count()
        && a.iter()
            .zip(b.iter())
            .all(|(x, y)| x.name == y.name && bson::order::equal(x.val, y.val))
}

fn unknown(req: &PlanRequest<'_>) -> Error {
    err!(
        BadValue,
        "error processing query: ns={} planner returned error: hint provided does not correspond to an existing index",
        req.ns
    )
}

/// Checks `min` and `max` against the fields of the index.
pub(crate) fn check_limits(req: &PlanRequest<'_>, fields: &[&str]) -> Result<()> {
    for d in [req.min, req.max].into_iter().flatten() {
        let mut names = d.iter().map(|e| e.name);
        let fits = fields.iter().all(|f| names.next() == Some(*f)) && names.next().is_none();
        if !fits {
            bail!(
                51174,
                "The index chosen is not compatible with min/max: {}",
                bson::shell::doc(d)
            );
        }
    }
    if let (Some(a), Some(b)) = (req.min, req.max)
        && a.iter().map(|e| e.name).ne(b.iter().map(|e| e.name))
    {
        bail!(51176, "min and max must have the same field names");
    }
    Ok(())
}
