//! Listings that are computed at once and given in batches like a query's results.

use crate::request::CommandContext;
use crate::security::authorize;
use bson::{Doc, DocBuf, Elem, Writer};
use errors::Result;
use executor::OpCtx;
use front::idl;
use session::{Cursor, Results};

/// Documents held in memory.
struct Docs(std::vec::IntoIter<DocBuf>);

impl Results for Docs {
    fn fill(
        &mut self,
        _ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        let (start, mut n) = (w.len(), 0);
        while n < max_docs {
            let Some(next) = self.0.as_slice().first() else {
                return Ok(true);
            };
            if n > 0 && w.len() - start + next.as_bytes().len() + 16 > max_bytes {
                return Ok(false);
            }
            w.push(next.as_doc().as_val());
            self.0.next();
            n += 1;
        }
        Ok(self.0.as_slice().is_empty())
    }

    fn release(&mut self, _ctx: &mut OpCtx) -> Result<()> {
        Ok(())
    }

    fn own_bytes(&self) -> usize {
        let left = self.0.as_slice().iter();
        left.map(|d| size_of::<DocBuf>() + d.as_bytes().len()).sum()
    }
}

/// `batchSize` of a `cursor` argument.
pub fn batch_size(command: &str, e: Elem<'_>) -> Result<Option<u64>> {
    let within = format!("{command}.cursor");
    let mut size = None;
    for e in idl::unique(&within, idl::doc(command, e)?.unwrap_or(Doc::EMPTY))? {
        match e.name {
            "batchSize" => size = idl::int_from(&within, e, 0)?.map(i64::unsigned_abs),
            name => return Err(idl::unknown(&within, name)),
        }
    }
    Ok(size)
}

/// Writes `cursor: {id, ns, firstBatch}` and keeps the rest.
pub fn reply(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    docs: Vec<DocBuf>,
    batch_size: Option<u64>,
) -> Result<()> {
    let mut docs = Docs(docs.into_iter());
    cx.w.open_doc("cursor").open_array("firstBatch");
    let done = match batch_size {
        Some(0) => docs.0.as_slice().is_empty(),
        n => docs.fill(
            &mut cx.op,
            &mut cx.w,
            n.unwrap_or(u64::MAX),
            bson::MAX_DOC_BYTES,
        )?,
    };
    cx.w.close();
    let id = if done {
        0
    } else {
        let share = (cx.app.engine).share_for_cursor(docs.own_bytes(), cx.request.body)?;
        let mut cursor = Cursor::new(ns, Box::new(docs));
        cursor.share = share;
        cursor.lsid = cx.args.generic.lsid;
        cursor.owner = authorize::name(cx);
        cx.app.cursors.insert(cursor)
    };
    cx.w.i64("id", id).str("ns", ns).close();
    Ok(())
}
