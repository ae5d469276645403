//! Packets of MySQL's protocol: made, cut and read. A reply is whole only at the end of its last packet.

use crate::fault::Fault;

/// The longest payload of one packet; a longer one goes on in the next.
pub(super) const PACKET_BYTES: usize = 0xff_ffff;

/// Appends `body` as packets numbered from 0.
pub(super) fn packet(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    numbered(out, 0, body);
}

pub(super) fn numbered(out: &mut Vec<u8>, first: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let mut at = start;
    let mut number = first;
    loop {
        let length = (out.len() - at - 4).min(PACKET_BYTES);
        out[at..at + 3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
        out[at + 3] = number;
        if length < PACKET_BYTES {
            return;
        }
        at += 4 + length;
        number = number.wrapping_add(1);
        out.splice(at..at, [0; 4]);
    }
}

pub(super) fn length_encoded(out: &mut Vec<u8>, bytes: &[u8]) {
    let n = bytes.len() as u64;
    match n {
        0..251 => out.push(n as u8),
        251..0x1_0000 => {
            out.push(0xfc);
            out.extend_from_slice(&n.to_le_bytes()[..2]);
        }
        0x1_0000..0x100_0000 => {
            out.push(0xfd);
            out.extend_from_slice(&n.to_le_bytes()[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&n.to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// The payload of the packet at `at`, and the packet's end. Replies here have no packet of 16 MB.
pub(super) fn payload(input: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let header = input.get(at..at + 4)?;
    let length =
        usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
    let end = at + 4 + length;
    Some((input.get(at + 4..end)?, end))
}

/// A length-encoded number and what follows.
pub(super) fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let size = match first {
        0..=250 => return Some((u64::from(first), rest)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let (low, rest) = rest.split_at_checked(size)?;
    let mut all = [0; 8];
    all[..size].copy_from_slice(low);
    Some((u64::from_le_bytes(all), rest))
}

pub(super) fn ends_rows(row: &[u8]) -> bool {
    matches!(row.first(), Some(0xfe) if row.len() < PACKET_BYTES) || row.first() == Some(&0xff)
}

pub(super) struct Whole {
    pub(super) end: usize,
    pub(super) rows: u64,
}

/// The bounds of a whole reply, or how many bytes are needed at least.
pub(super) fn whole(input: &[u8]) -> std::result::Result<Whole, usize> {
    let next = |at: usize| {
        payload(input, at).ok_or_else(|| match input.get(at..at + 4) {
            None => at + 4,
            Some(h) => {
                at + 4 + (usize::from(h[0]) | usize::from(h[1]) << 8 | usize::from(h[2]) << 16)
            }
        })
    };
    let (first, mut at) = next(0)?;
    if matches!(first.first(), None | Some(0 | 0xff)) {
        return Ok(Whole { end: at, rows: 0 });
    }
    let columns = number(first).map_or(0, |(n, _)| n);
    for _ in 0..columns {
        at = next(at)?.1;
    }
    let mut rows = 0;
    loop {
        let (row, end) = next(at)?;
        at = end;
        if ends_rows(row) {
            return Ok(Whole { end: at, rows });
        }
        rows += 1;
    }
}

pub(super) fn refused(payload: &[u8]) -> Fault {
    let code = payload
        .get(1..3)
        .map_or(0, |c| u16::from_le_bytes([c[0], c[1]]));
    // A '#' and five characters of SQLSTATE before the sentence.
    let text = payload.get(3..).unwrap_or_default();
    let text = if text.first() == Some(&b'#') {
        text.get(6..).unwrap_or_default()
    } else {
        text
    };
    let said = format!("MySQL answered: {} ({code})", String::from_utf8_lossy(text));
    match code {
        DEADLOCK => Fault::Conflict(said),
        _ => Fault::Target(said),
    }
}

/// ER_LOCK_DEADLOCK: another statement went on, and this one was rolled back.
const DEADLOCK: u16 = 1213;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_is_a_conflict() {
        let answer = |code: u16| {
            let code = code.to_le_bytes();
            refused(&[&[0xff], &code[..], b"#40001Deadlock found"].concat())
        };
        let deadlock = answer(DEADLOCK);
        assert!(
            matches!(&deadlock, Fault::Conflict(said) if said.contains("Deadlock found (1213)"))
        );
        assert!(matches!(answer(1064), Fault::Target(_)));
    }

    #[test]
    fn long_requests_go_on_in_the_next_packet() {
        let mut out = Vec::new();
        packet(&mut out, |o| o.resize(o.len() + PACKET_BYTES + 5, 7));
        assert_eq!(&out[..4], &[0xff, 0xff, 0xff, 0]);
        assert_eq!(&out[PACKET_BYTES + 4..PACKET_BYTES + 8], &[5, 0, 0, 1]);
        assert_eq!(out.len(), PACKET_BYTES + 5 + 8);
    }
}
