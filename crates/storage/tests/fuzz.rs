//! Bent log entries: what a damaged log may hand to recovery.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/entries.rs"]
mod targets;

use storage::{Entry, Op};

/// Bytes with their length before them.
fn bytes(b: &[u8]) -> Vec<u8> {
    assert!(b.len() < 0x80, "one byte of length");
    [&[b.len() as u8], b].concat()
}

/// Entries of each kind, laid out by hand as `entry.rs` draws them.
fn seeds() -> Vec<Vec<u8>> {
    let namespace = [&[7u8; 16][..], &bytes(b"db.coll")].concat();
    let session = [&[9u8; 16][..], &5i64.to_le_bytes(), &3i32.to_le_bytes()].concat();
    let count = [
        &12u64.to_le_bytes()[..],
        &1i64.to_le_bytes(),
        &40i64.to_le_bytes(),
    ]
    .concat();
    let put = [&[1][..], &bytes(b"a key of a record"), &bytes(&[8; 60])].concat();
    let delete = [&[0][..], &bytes(b"another key")].concat();
    let range = [&[2][..], &bytes(b"from"), &bytes(b"to")].concat();
    let entry = |head: u8, parts: &[&[u8]]| {
        let mut e = vec![head];
        e.extend_from_slice(&namespace);
        parts.iter().for_each(|p| e.extend_from_slice(p));
        e
    };
    vec![
        entry(0, &[&[0]]),
        entry(1, &[&[1], &put]),
        entry(0x41, &[&count, &[2], &put, &put]),
        entry(
            0xc2,
            &[
                &session,
                &count,
                &bytes(b"diff"),
                &bytes(b"id"),
                &[2],
                &put,
                &delete,
            ],
        ),
        entry(0x83, &[&session, &bytes(b"id"), &[1], &delete]),
        entry(
            4,
            &[&bytes(b"what was changed"), &[3], &put, &range, &delete],
        ),
        entry(
            0xa3,
            &[&session, &bytes(b"before"), &bytes(b"id"), &[1], &delete],
        ),
        entry(
            0x85,
            &[
                &session,
                &[2],
                &bytes(&entry(3, &[&bytes(b"id"), &[1], &delete])),
                &bytes(&entry(1, &[&[1], &[1], &bytes(b"key"), &bytes(b"doc")])),
                &[0],
            ],
        ),
    ]
}

#[test]
fn the_seeds_are_entries() {
    for seed in seeds() {
        assert!(Entry::decode(&seed).is_some(), "{seed:02x?}");
    }
    let whole = Entry::decode(&seeds()[3]).unwrap();
    assert_eq!(
        whole.session.map(|s| (s.txn_number, s.stmt_id)),
        Some((5, 3))
    );
    assert_eq!(whole.count.map(|c| (c.tablet, c.records)), Some((12, 1)));
    assert!(matches!(whole.op, Op::Update { .. }));
    assert_eq!(whole.effects.len(), 2);
    assert_eq!(&*whole.ns, "db.coll");
    let transaction = Entry::decode(&seeds()[7]).unwrap();
    assert_eq!(transaction.plain().count(), 3);
}

#[test]
fn entries() {
    mutate::fuzz("entries", &seeds(), targets::entries);
}
