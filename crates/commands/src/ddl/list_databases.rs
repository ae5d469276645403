//! `listDatabases`.

use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use crate::security::authorize;
use crate::stats::sizes;
use auth::{Action, Target};
use bson::Writer;
use errors::Result;
use front::idl;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut filter, mut name_only) = (Filter::all(), false);
    let mut only_own = None;
    for e in cx.args.fields.clone() {
        match e.name {
            "filter" => {
                if let Some(d) = idl::doc("listDatabases", e)? {
                    super::validator::check_operators(d, 0)?;
                    filter = Filter::parse(d, &ParseEnv::new())?;
                }
            }
            "nameOnly" => name_only = idl::safe_bool("listDatabases", e)?.unwrap_or(false),
            "authorizedDatabases" => only_own = idl::boolean("listDatabases", e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let vars = Vars::new(now_millis());
    let snapshot = cx.app.engine.catalog.snapshot();
    let mut names = snapshot.databases();
    // What every MongoDB has, though nothing is in them here.
    for system in ["admin", "config", "local"] {
        if !names.iter().any(|n| n == system) {
            names.push(system.to_string());
        }
    }
    names.sort();
    // A user that may not list all databases sees those on which it has any privilege.
    let sees_all = authorize::may(cx, Action::ListDatabases, Target::Cluster);
    if only_own.unwrap_or(!sees_all) {
        names.retain(|db| authorize::may_anything(cx, db));
    }
    let mut total = 0;
    cx.w.open_array("databases");
    for name in names {
        let mut w = Writer::new();
        w.str("name", &name);
        let mut size = 0;
        if !name_only {
            for c in snapshot.of_db(&name) {
                let s = sizes(&cx.app.engine, c);
                size += s.storage + s.index_total();
            }
            // MongoDB has something in each of its own databases from the start.
            w.i64("sizeOnDisk", size as i64).bool("empty", false);
        }
        let d = w.finish();
        if filter.matches_with(d.as_doc(), &vars)? {
            total += size;
            cx.w.push(d.as_doc().as_val());
        }
    }
    cx.w.close();
    if !name_only {
        cx.w.i64("totalSize", total as i64)
            .i64("totalSizeMb", (total >> 20) as i64);
    }
    Ok(Done::Reply)
}
