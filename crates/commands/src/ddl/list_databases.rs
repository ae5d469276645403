//! `listDatabases`.

use crate::clock::now_millis;
use crate::request::{CommandContext, Done};
use crate::security::authorize;
use crate::stats::sizes;
use auth::{Action, Target};
use bson::{Doc, Elem, Writer};
use errors::Result;
use front::{Args, idl};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;

const AT: &str = "listDatabases";

idl::arguments! {
    struct Written<'a> {
        "filter" => filter: Option<Doc<'a>> = read_filter,
        "nameOnly" => name_only: bool = idl::flag,
        "authorizedDatabases" => only_own: Option<bool> = idl::boolean,
    }
}

fn read_filter<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    let filter = idl::doc(within, e)?;
    if let Some(d) = filter {
        super::validator::check_operators(d, 0)?;
    }
    Ok(filter)
}

/// The arguments, with the filter parsed.
fn arguments<'a>(args: &Args<'a>) -> Result<(Filter, Written<'a>)> {
    let written = Written::parse(AT, args.fields.iter().copied())?;
    let filter = match written.filter {
        Some(d) => Filter::parse(d, &ParseEnv::new())?,
        None => Filter::all(),
    };
    Ok((filter, written))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (filter, written) = arguments(&cx.args)?;
    let (name_only, only_own) = (written.name_only, written.only_own);
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
