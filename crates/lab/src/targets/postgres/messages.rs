//! Messages of PostgreSQL's protocol: made, cut and read.

use crate::fault::{Fault, Result};

pub(super) fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Kind and end of the message at `at`, when its header is there.
pub(super) fn header(input: &[u8], at: usize) -> Result<Option<(u8, usize)>> {
    let Some(&[kind, a, b, c, d]) = input.get(at..at + 5) else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if !(4..1 << 28).contains(&length) {
        return Err(Fault::Target(
            "the reply is not a PostgreSQL message".into(),
        ));
    }
    Ok(Some((kind, at + 1 + length)))
}

pub(super) struct Messages<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.0);
        match header(all, 0) {
            Err(e) => Some(Err(e)),
            Ok(Some((kind, end))) if end <= all.len() => {
                self.0 = &all[end..];
                Some(Ok((kind, &all[5..end])))
            }
            Ok(_) => Some(Err(Fault::Target("a reply cut short".into()))),
        }
    }
}

pub(super) fn last_number(tag: &[u8]) -> u64 {
    let tag = tag.strip_suffix(&[0]).unwrap_or(tag);
    let digits = tag.rsplit(|b| *b == b' ').next().unwrap_or_default();
    std::str::from_utf8(digits)
        .ok()
        .and_then(|d| d.parse().ok())
        .unwrap_or(0)
}

/// The columns of a DataRow; NULL is empty.
pub(super) fn cells(body: &[u8]) -> Vec<&[u8]> {
    let mut rest = body.get(2..).unwrap_or_default();
    let mut all = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length);
        let Some((cell, next)) = after.split_at_checked(usize::try_from(length).unwrap_or(0))
        else {
            break;
        };
        all.push(cell);
        rest = next;
    }
    all
}

/// An ErrorResponse as one line: message and SQLSTATE.
pub(super) fn refused(body: &[u8]) -> Fault {
    let part = |kind: u8| {
        let mut fields = body.split(|b| *b == 0);
        let found = fields.find(|f| f.first() == Some(&kind));
        String::from_utf8_lossy(found.and_then(|f| f.get(1..)).unwrap_or_default()).into_owned()
    };
    let code = part(b'C');
    let said = format!("PostgreSQL answered: {} ({code})", part(b'M'));
    match CONFLICTS.contains(&&*code) {
        true => Fault::Conflict(said),
        false => Fault::Target(said),
    }
}

/// serialization_failure, deadlock_detected: this statement was rolled back for another.
const CONFLICTS: [&str; 2] = ["40001", "40P01"];
