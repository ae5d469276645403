//! Messages between members as bytes.
//!
//! ```text
//! message = type u8 | reject u8 | to, from, term, log term, index, commit, commit term, reject hint, priority u64 LE each
//!           | context bytes | number of entries u32 LE | entry*
//! entry   = type u8 | term u64 LE | index u64 LE | context bytes | data bytes
//! bytes   = length u32 LE | that many bytes
//! ```
//!
//! Invariants:
//! - Reading never panics and reserves nothing by a number in the bytes.
//! - A proposal is never read. Only the primary proposes, to itself; of another member's raft-rs would parse the change of
//!   voters by a parser that recurses as deep as the bytes ask it to (RUSTSEC-2024-0437).

use protobuf::ProtobufEnum;
use raft::eraftpb::EntryType;
pub use raft::eraftpb::{Entry, Message, MessageType};

/// The newest version of what members send each other that this program understands. Each batch says
/// in which it is written (`docs/decisions/2026-11-25-rolling-upgrades.md`).
pub const VERSION: i32 = 1;

/// Whether a message may arrive before those that were sent before it. One that continues a log may
/// not: the member would refuse it, and be sent the entries between once more.
pub fn may_overtake(message: &Message) -> bool {
    !matches!(
        message.get_msg_type(),
        MessageType::MsgAppend | MessageType::MsgSnapshot
    )
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a message's bytes.
pub fn write(message: &Message, out: &mut Vec<u8>) {
    out.push(message.get_msg_type().value() as u8);
    out.push(u8::from(message.reject));
    let numbers = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.priority as u64,
    ];
    for n in numbers {
        out.extend_from_slice(&n.to_le_bytes());
    }
    put_bytes(out, &message.context);
    out.extend_from_slice(&(message.entries.len() as u32).to_le_bytes());
    for entry in message.entries.iter() {
        out.push(entry.get_entry_type().value() as u8);
        out.extend_from_slice(&entry.term.to_le_bytes());
        out.extend_from_slice(&entry.index.to_le_bytes());
        put_bytes(out, &entry.context);
        put_bytes(out, &entry.data);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.take(len)
    }
}

fn read_entry(r: &mut Reader<'_>) -> Option<Entry> {
    let mut entry = Entry::default();
    entry.set_entry_type(EntryType::from_i32(i32::from(r.byte()?))?);
    entry.term = r.u64()?;
    entry.index = r.u64()?;
    entry.context = r.bytes()?.to_vec().into();
    entry.data = r.bytes()?.to_vec().into();
    Some(entry)
}

fn read_one(r: &mut Reader<'_>) -> Option<Message> {
    let mut m = Message::default();
    let kind = MessageType::from_i32(i32::from(r.byte()?))?;
    if kind == MessageType::MsgPropose {
        return None;
    }
    m.set_msg_type(kind);
    m.reject = r.byte()? != 0;
    m.to = r.u64()?;
    m.from = r.u64()?;
    m.term = r.u64()?;
    m.log_term = r.u64()?;
    m.index = r.u64()?;
    m.commit = r.u64()?;
    m.commit_term = r.u64()?;
    m.reject_hint = r.u64()?;
    m.priority = r.u64()? as i64;
    m.context = r.bytes()?.to_vec().into();
    for _ in 0..r.u32()? {
        m.entries.push(read_entry(r)?);
    }
    Some(m)
}

/// All messages in the bytes; `None` when they are anything else.
pub fn read(bytes: &[u8]) -> Option<Vec<Message>> {
    let mut reader = Reader(bytes);
    let mut messages = Vec::new();
    while !reader.0.is_empty() {
        messages.push(read_one(&mut reader)?);
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_cut_ones_do_not() {
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgAppend);
        (m.to, m.from, m.term, m.index, m.commit) = (2, 1, 9, 100, 99);
        m.priority = -1;
        let mut entry = Entry::default();
        entry.set_entry_type(EntryType::EntryConfChange);
        (entry.term, entry.index) = (9, 101);
        entry.data = vec![1, 2, 3].into();
        entry.context = vec![7; 20].into();
        m.entries.push(entry);
        let mut bytes = Vec::new();
        write(&m, &mut bytes);
        write(&m, &mut bytes);
        assert_eq!(read(&bytes).unwrap(), vec![m.clone(), m]);
        for len in 0..bytes.len() {
            if len != 0 && len != bytes.len() / 2 {
                assert!(read(&bytes[..len]).is_none(), "{len}");
            }
        }
        assert!(read(&[0xff; 200]).is_none());
    }

    #[test]
    fn no_member_proposes_for_another() {
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgAppend);
        let mut bytes = Vec::new();
        write(&m, &mut bytes);
        assert!(read(&bytes).is_some());
        m.set_msg_type(MessageType::MsgPropose);
        let mut bytes = Vec::new();
        write(&m, &mut bytes);
        assert!(read(&bytes).is_none());
    }
}
