//! Workloads that speak through a target's dialect: what the protocol asks of them stands here, so that each says only
//! what it sends and whether the answer is right.

use crate::fault::Result;
use crate::lane::{Issued, Judged, Numbered, Workload};
use crate::targets::Dialect;
use bson::Doc;

pub trait Spoken: Send {
    /// Names of the kinds of requests, for the result.
    fn kinds(&self) -> &'static [&'static str];

    fn dialect(&self) -> &dyn Dialect;

    /// As [`Workload::next`].
    fn request(&mut self, out: &mut Vec<u8>) -> Option<Issued>;

    /// Judges a whole reply. A further request of the same operation may be appended to `out`.
    fn judge(&mut self, issued: &Issued, reply: Numbered<'_>, out: &mut Vec<u8>) -> Judged;
}

impl<S: Spoken> Workload for S {
    fn kinds(&self) -> &'static [&'static str] {
        Spoken::kinds(self)
    }

    #[inline]
    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        self.request(out)
    }

    fn reply(&mut self, _: &Issued, _: Doc<'_>, _: &mut Vec<u8>) -> Judged {
        unreachable!("replies are read through the dialect")
    }

    #[inline]
    fn stamp(&self, request: &mut [u8], id: i32, connection: u32) {
        self.dialect().stamp(request, id, connection);
    }

    #[inline]
    fn frame(&self, input: &[u8]) -> Result<wire::Frame> {
        self.dialect().frame(input)
    }

    #[inline]
    fn message(&mut self, issued: &Issued, reply: Numbered<'_>, out: &mut Vec<u8>) -> Judged {
        self.judge(issued, reply, out)
    }
}
