//! `killCursors`.

use crate::request::{CommandContext, Done};
use crate::security::authorize;
use auth::{Action, Target};
use bson::Doc;
use errors::{Result, bail};
use front::{Args, idl};

/// The cursors that are to end. All are read before any is killed.
fn wanted(args: &Args<'_>) -> Result<Vec<i64>> {
    if args.first.as_str().is_none() {
        bail!(
            InvalidNamespace,
            "collection name has invalid type {}",
            args.first.type_name()
        );
    }
    args.namespace()?;
    let mut ids = None;
    for e in &args.fields {
        match e.name {
            "cursors" => ids = idl::array("killCursors", *e)?,
            _ => return Err(args.unknown(*e)),
        }
    }
    let ids: Doc = idl::required("killCursors", "cursors", ids)?;
    let mut wanted = Vec::new();
    for (i, v) in ids.values().enumerate().filter(|(_, v)| !v.is_nullish()) {
        let Some(id) = v.as_i64() else {
            bail!(
                TypeMismatch,
                "BSON field 'killCursors.cursors.{i}' is the wrong type '{}', expected type 'long'",
                v.type_name()
            );
        };
        wanted.push(id);
    }
    Ok(wanted)
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    wanted(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let wanted = wanted(&cx.args)?;
    check_owners(cx, &wanted)?;
    let (killed, missing): (Vec<i64>, Vec<i64>) =
        wanted.into_iter().partition(|id| cx.app.cursors.kill(*id));
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

/// Every user may end its own cursors; others' with the privilege on their collection or the server.
fn check_owners(cx: &CommandContext<'_, '_>, ids: &[i64]) -> Result<()> {
    let target = Target::Collection(cx.args.db, cx.args.first.as_str().unwrap_or(""));
    if [target, Target::Cluster]
        .into_iter()
        .any(|t| authorize::may(cx, Action::KillAnyCursor, t))
    {
        return Ok(());
    }
    let owners = ids
        .iter()
        .filter_map(|id| Some((id, cx.app.cursors.owner(*id)?)));
    for (id, owner) in owners {
        authorize::check_owner(cx, owner.as_deref(), *id)?;
    }
    Ok(())
}
