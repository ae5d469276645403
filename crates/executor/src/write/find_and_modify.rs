//! findAndModify: updates or deletes one document, and returns it as before or after the change.

use crate::op::OpCtx;
use crate::write::delete::{DeleteRequest, delete};
use crate::write::retry::Retry;
use crate::write::update::{UpdateRequest, Updated, update};
use bson::{DocBuf, Value};
use errors::Result;

pub enum FindAndModify<'a> {
    Update {
        request: UpdateRequest<'a>,
        return_new: bool,
    },
    Remove(DeleteRequest<'a>),
}

#[derive(Debug, Default)]
pub struct FoundAndModified {
    /// The document asked for (whole: the projection is the command's).
    pub value: Option<DocBuf>,
    pub n: u64,
    pub updated_existing: bool,
    pub upserted: Option<Value>,
}

pub fn find_and_modify(
    ctx: &mut OpCtx,
    ns: &str,
    what: &FindAndModify,
    retry: Option<&mut dyn Retry>,
) -> Result<FoundAndModified> {
    match what {
        FindAndModify::Update {
            request,
            return_new,
        } => {
            let u = update(ctx, ns, request, 0, retry)?;
            let n = if u.upserted.is_some() { 1 } else { u.matched };
            Ok(FoundAndModified {
                value: if *return_new { u.after } else { u.before },
                n,
                updated_existing: u.matched > 0,
                upserted: u.upserted,
            })
        }
        FindAndModify::Remove(request) => {
            let d = delete(ctx, ns, request, 0, retry)?;
            Ok(FoundAndModified {
                value: d.before,
                n: d.n,
                ..Default::default()
            })
        }
    }
}

/// The retry record's image of findAndModify: `{before?, after?}`.
pub(crate) fn retry_image(req: &UpdateRequest, u: &Updated) -> Option<DocBuf> {
    if !req.images {
        return None;
    }
    let mut w = bson::Writer::new();
    if let Some(d) = &u.before {
        w.doc("before", d.as_doc());
    }
    if let Some(d) = &u.after {
        w.doc("after", d.as_doc());
    }
    Some(w.finish())
}
