//! Entries of the log: what a damaged log may hand to recovery.

use storage::{Effect, Entry, Op};

fn size(effect: &Effect) -> usize {
    match effect {
        Effect::Put(a, b) | Effect::DeleteRange(a, b) => a.len() + b.len(),
        Effect::Delete(a) => a.len(),
    }
}

/// What one entry holds, without the parts of a transaction.
fn held(entry: &Entry) -> usize {
    let meant = match &entry.op {
        Op::Noop | Op::Insert | Op::Transaction(_) => 0,
        Op::Update { diff, record_key } => diff.len() + record_key.len(),
        Op::Delete { record_key } => record_key.len(),
        Op::Ddl(what) | Op::Note(what) => what.len(),
        Op::Membership { config, change } => config.len() + change.len(),
    };
    let pre_image = entry.pre_image.as_ref().map_or(0, Vec::len);
    let effects = entry.effects.iter().map(size).sum::<usize>();
    17 + entry.ns.len() + pre_image + meant + effects + entry.effects.len()
}

pub fn entries(input: &[u8]) {
    let Some(entry) = Entry::decode(input) else {
        return;
    };
    // Nothing comes out that was not in: no length or count is believed.
    assert!(entry.plain().map(held).sum::<usize>() <= input.len());
    // An entry is whole or none: neither a part of it nor more than it is one.
    assert_eq!(Entry::decode(&input[..input.len() - 1]), None);
    let longer = [input, &[0]].concat();
    assert_eq!(Entry::decode(&longer), None);
    assert_eq!(Entry::decode(input), Some(entry));
}
