//! `listCollections`.

use super::listing;
use crate::clock::now_millis;
use crate::oplog_view;
use crate::request::{CommandContext, Done};
use crate::security::authorize;
use bson::{Doc, DocBuf, Writer, doc};
use catalog::Collection;
use errors::Result;
use front::{Args, idl};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;

const AT: &str = "listCollections";

idl::arguments! {
    struct Written<'a> {
        "filter" => filter: Option<Doc<'a>> = idl::doc,
        "nameOnly" => name_only: bool = idl::strict_flag,
        "authorizedCollections" => only_own: bool = idl::strict_flag,
        "cursor" => batch_size: Option<u64> = listing::batch_size,
    }
    checked: "includePendingDrops" => idl::boolean;
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
    let mut docs = Vec::new();
    let shown = |name: &str| !only_own || authorize::may_any(cx, cx.args.db, name);
    for c in cx.app.engine.catalog.snapshot().of_db(cx.args.db) {
        if !shown(c.name()) {
            continue;
        }
        let d = describe(c, name_only);
        if filter.matches_with(d.as_doc(), &vars)? {
            docs.push(d);
        }
    }
    if oplog_view::is_it(cx, &format!("{}.oplog.rs", cx.args.db)) {
        let d = oplog_view::describe(&cx.app.store, name_only);
        if filter.matches_with(d.as_doc(), &vars)? {
            docs.push(d);
        }
    }
    let ns = format!("{}.$cmd.listCollections", cx.args.db);
    listing::reply(cx, &ns, docs, written.batch_size)?;
    Ok(Done::Reply)
}

/// A collection as this command shows it.
pub fn describe(c: &Collection, name_only: bool) -> DocBuf {
    let mut w = Writer::with_capacity(200);
    let series = c.measurements().is_some();
    let kind = match c.is_view() {
        _ if series => "timeseries",
        true => "view",
        false => "collection",
    };
    w.str("name", c.name()).str("type", kind);
    if !name_only {
        match series {
            true => w.doc("options", super::time_series::shown_options(c).as_doc()),
            false => w.doc("options", c.options.as_doc()),
        };
        w.open_doc("info").bool("readOnly", c.is_view() && !series);
        if !c.is_view() {
            w.binary("uuid", 4, &c.uuid);
        }
        w.close();
        if !c.is_view() && c.option("clusteredIndex").is_none() {
            w.doc(
                "idIndex",
                doc! { "v": 2, "key": doc! { "_id": 1 }, "name": "_id_" }.as_doc(),
            );
        }
    }
    w.finish()
}
