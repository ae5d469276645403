//! `dbHash`: digests of the collections of a database, by which two servers' data are compared.

use crate::process;
use crate::request::{CommandContext, Done};
use bson::Writer;
use catalog::Collection;
use errors::{Result, bail};
use executor::{ReadRequest, RecordStream};
use query::filter::Filter;
use query::sort::SortPattern;
use std::sync::Arc;
use std::time::Instant;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut wanted: Vec<&str> = Vec::new();
    if let Some(list) = cx.args.field("collections").and_then(|v| v.as_array()) {
        for v in list.values() {
            let Some(name) = v.as_str() else {
                bail!(BadValue, "collections entries have to be strings")
            };
            wanted.push(name);
        }
    }
    let started = Instant::now();
    let mut collections: Vec<Arc<Collection>> = cx
        .app
        .engine
        .catalog
        .snapshot()
        .of_db(cx.args.db)
        .filter(|c| !c.is_view() && c.name() != "system.profile")
        .filter(|c| wanted.is_empty() || wanted.contains(&c.name()))
        .cloned()
        .collect();
    collections.sort_by(|a, b| a.name().cmp(b.name()));
    let mut all = md5::Context::new();
    let mut hashes = Writer::new();
    for c in &collections {
        let digest = format!("{:x}", digest(cx, c)?);
        all.consume(digest.as_bytes());
        hashes.str(c.name(), &digest);
    }
    let host = format!("{}:{}", process::host_name(), cx.app.config.port);
    cx.w.str("host", &host)
        .doc("collections", hashes.finish().as_doc())
        .open_array("capped");
    for c in &collections {
        if c.option("capped").is_some_and(|v| v.truthy()) {
            cx.w.push_value(c.name());
        }
    }
    cx.w.close().open_doc("uuids");
    for c in &collections {
        cx.w.binary(c.name(), 4, &c.uuid);
    }
    cx.w.close()
        .str("md5", &format!("{:x}", all.finalize()))
        .int("timeMillis", started.elapsed().as_millis() as i64);
    Ok(Done::Reply)
}

/// The digest of all documents of a collection in the order of `_id`; in a capped one in that of
/// their insertion.
fn digest(cx: &mut CommandContext<'_, '_>, c: &Arc<Collection>) -> Result<md5::Digest> {
    let all = Filter::all();
    let (view, Some(now)) = cx.op.view(&c.ns) else {
        return Ok(md5::compute([]));
    };
    let by_id = SortPattern::parse(bson::doc! { "_id": 1 }.as_doc())?;
    let read = ReadRequest {
        sort: now.capped.is_none().then_some(&by_id),
        ..ReadRequest::new(&all)
    };
    let mut rows = RecordStream::open(&mut cx.op, view, now, &read)?;
    let mut sum = md5::Context::new();
    while rows.next(&mut cx.op)? {
        sum.consume(rows.doc().as_bytes());
    }
    Ok(sum.finalize())
}
