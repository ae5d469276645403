//! `filemd5`: the digest of a file of GridFS, by which old drivers and mongofiles compare what they
//! sent.

use crate::request::{CommandContext, Done};
use bson::{Doc, Writer, doc};
use errors::{Error, Result, bail, err};
use executor::{ReadRequest, RecordStream};
use front::{Args, idl};
use query::expr::ParseEnv;
use query::filter::Filter;
use query::sort::SortPattern;

/// The collection of the chunks, and whether some may be missing.
fn arguments(args: &Args<'_>) -> Result<(String, bool)> {
    const AT: &str = "filemd5";
    let (mut root, mut partial) = ("fs", false);
    for e in &args.fields {
        match e.name {
            "root" => root = idl::string(AT, *e)?.unwrap_or(root),
            "partialOk" => partial = idl::safe_bool(AT, *e)?.unwrap_or(false),
            "md5state" => return crate::ddl::unsupported("going on with a digest"),
            _ => return Err(args.unknown(*e)),
        }
    }
    Ok((args.namespace_of(&format!("{root}.chunks"))?, partial))
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, partial) = arguments(&cx.args)?;
    let id = cx.args.first.to_value();
    let filter = doc! { "files_id": doc! { "$eq": id } };
    let filter = Filter::parse(filter.as_doc(), &ParseEnv::new())?;
    let sort = SortPattern::parse(doc! { "files_id": 1, "n": 1 }.as_doc())?;
    let mut request = ReadRequest::new(&filter);
    request.sort = Some(&sort);
    let mut digest = FileDigest::new(partial);
    let (view, coll) = cx.op.view(&ns);
    if let Some(coll) = coll {
        if coll.is_view() {
            return Err(of_view(&ns).into());
        }
        let mut rows = RecordStream::open(&mut cx.op, view, coll, &request)?;
        while rows.next(&mut cx.op)? {
            if !digest.add(rows.doc())? {
                break;
            }
        }
    }
    digest.write(&mut cx.w);
    Ok(Done::Reply)
}

/// The error of chunks that are no collection's.
pub fn of_view(ns: &str) -> Error {
    err!(
        CommandNotSupportedOnView,
        "{ns} is a view, not a collection"
    )
}

/// The digest of a file, of its chunks in their order.
pub struct FileDigest {
    chunks: i64,
    sum: md5::Context,
    /// Chunks may be missing: it ends before the first that is.
    partial: bool,
}

impl FileDigest {
    pub fn new(partial: bool) -> FileDigest {
        FileDigest {
            chunks: 0,
            sum: md5::Context::new(),
            partial,
        }
    }

    /// Adds a chunk; false where it and what follows are not a part of the digest.
    pub fn add(&mut self, chunk: Doc<'_>) -> Result<bool> {
        let number = chunk.get("n").and_then(|v| v.to_i64_truncated());
        if number != Some(self.chunks) {
            if self.partial {
                return Ok(false);
            }
            bail!(
                50846,
                "chunks out of order: should have chunk {}, found {}",
                self.chunks,
                number.unwrap_or(-1)
            );
        }
        self.sum.consume(data(chunk)?);
        self.chunks += 1;
        Ok(true)
    }

    pub fn write(self, w: &mut Writer) {
        w.int("numChunks", self.chunks)
            .str("md5", &format!("{:x}", self.sum.finalize()));
    }
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
