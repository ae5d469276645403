//! `filemd5`: the digest of a file of GridFS, by which old drivers and mongofiles compare what they
//! sent.

use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::{Doc, doc};
use errors::{Result, bail};
use executor::{ReadRequest, RecordStream};
use query::expr::ParseEnv;
use query::filter::Filter;
use query::sort::SortPattern;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "filemd5";
    let (mut root, mut partial) = ("fs", false);
    for e in &cx.args.fields {
        match e.name {
            "root" => root = idl::string(AT, *e)?.unwrap_or(root),
            "partialOk" => partial = idl::safe_bool(AT, *e)?.unwrap_or(false),
            "md5state" => return crate::ddl::unsupported("going on with a digest"),
            _ => return Err(cx.args.unknown(*e)),
        }
    }
    let ns = cx.args.namespace_of(&format!("{root}.chunks"))?;
    let id = cx.args.first.to_value();
    let filter = doc! { "files_id": doc! { "$eq": id } };
    let filter = Filter::parse(filter.as_doc(), &ParseEnv::new())?;
    let sort = SortPattern::parse(doc! { "files_id": 1, "n": 1 }.as_doc())?;
    let mut request = ReadRequest::new(&filter);
    request.sort = Some(&sort);
    let (mut n, mut sum) = (0i64, md5::Context::new());
    let (view, coll) = cx.op.view(&ns);
    if let Some(coll) = coll {
        if coll.is_view() {
            bail!(
                CommandNotSupportedOnView,
                "{ns} is a view, not a collection"
            );
        }
        let mut rows = RecordStream::open(&mut cx.op, view, coll, &request)?;
        while rows.next(&mut cx.op)? {
            let chunk = rows.doc();
            let number = chunk.get("n").and_then(|v| v.to_i64_truncated());
            if number != Some(n) {
                if partial {
                    break;
                }
                bail!(
                    50846,
                    "chunks out of order: should have chunk {n}, found {}",
                    number.unwrap_or(-1)
                );
            }
            sum.consume(data(chunk)?);
            n += 1;
        }
    }
    cx.w.int("numChunks", n)
        .str("md5", &format!("{:x}", sum.finalize()));
    Ok(Done::Reply)
}

/// The bytes of a chunk.
fn data(chunk: Doc<'_>) -> Result<&[u8]> {
    let v = chunk.get("data");
    match v.and_then(|v| v.as_binary()) {
        Some((_, bytes)) => Ok(bytes),
        None => bail!(
            50847,
            "The element that calls binDataClean() must be type of BinData, found {}",
            v.map_or("missing", |v| v.type_name())
        ),
    }
}
