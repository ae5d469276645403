//! Whether both sides have the same documents: each collection is read whole at both, counted, and hashed.
//!
//! Invariant: the hash of a collection is a sum over its documents, so their order does not matter; each document counts with
//! all of its bytes, so the order of its fields does.

use super::inventory::{self, Namespace, NamespaceKind};
use super::server::{Failure, Result, Server, command};
use crate::progress::ProgressLine;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    documents: u64,
    bytes: u64,
    hash: u64,
}

/// A collection that is not the same at both sides, and how not.
pub(super) struct Difference {
    pub ns: String,
    pub says: String,
}

/// Compares all collections, `workers` at a time; the documents that were compared, and what differs.
pub(super) fn compare(
    from: &Server,
    to: &Server,
    namespaces: &[Namespace],
    workers: usize,
) -> Result<(u64, Vec<Difference>)> {
    let progress = ProgressLine::of_steps("verifying", namespaces.len() as u64);
    let with_documents = namespaces
        .iter()
        .filter(|ns| ns.kind != NamespaceKind::View);
    let waiting: Mutex<VecDeque<&Namespace>> = Mutex::new(with_documents.collect());
    let found = Mutex::new((0, Vec::new()));
    let work = || -> Result<()> {
        let (mut from, mut to) = (from.another(), to.another());
        loop {
            let Some(ns) = waiting.lock().pop_front() else {
                return Ok(());
            };
            let (documents, difference) = compare_one(&mut from, &mut to, ns)?;
            progress.add(1);
            let mut found = found.lock();
            found.0 += documents;
            found.1.extend(difference);
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let ended = all.into_iter().map(|one| {
            one.join()
                .unwrap_or_else(|_| Err(Failure::lasting("a worker has panicked")))
        });
        ended
            .collect::<Vec<_>>()
            .into_iter()
            .collect::<Result<()>>()
    })?;
    Ok(found.into_inner())
}

fn compare_one(
    from: &mut Server,
    to: &mut Server,
    ns: &Namespace,
) -> Result<(u64, Option<Difference>)> {
    let (theirs, ours) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| read(from, ns));
        let ours = read(to, ns);
        let theirs = theirs.join();
        (
            theirs.unwrap_or_else(|_| Err(Failure::lasting("a reader has panicked"))),
            ours,
        )
    });
    let (theirs, ours) = (theirs?, ours?);
    let says = if theirs != ours {
        format!(
            "{} documents of {} bytes at the source, {} of {} at the target{}",
            theirs.documents,
            theirs.bytes,
            ours.documents,
            ours.bytes,
            match theirs.documents == ours.documents && theirs.bytes == ours.bytes {
                true => ", and other hashes",
                false => "",
            }
        )
    } else {
        let wanted = inventory::indexes(from, &ns.db, &ns.coll)?;
        let there = inventory::indexes(to, &ns.db, &ns.coll)?;
        let missing: Vec<&str> = wanted
            .keys()
            .filter(|n| !there.contains_key(*n))
            .map(String::as_str)
            .collect();
        match missing.is_empty() {
            true => return Ok((theirs.documents, None)),
            false => format!("the target lacks the indexes {}", missing.join(", ")),
        }
    };
    let difference = Difference {
        ns: ns.full(),
        says,
    };
    Ok((theirs.documents, Some(difference)))
}

/// Reads a collection whole; once more from its begin where a cursor was lost.
fn read(server: &mut Server, ns: &Namespace) -> Result<Content> {
    let mut tries = 0;
    loop {
        let mut content = Content::default();
        let taken = server.read_all(&ns.db, &command("find", &ns.coll, |_| {}), |document| {
            let mut hasher = DefaultHasher::new();
            hasher.write(document.as_bytes());
            content.documents += 1;
            content.bytes += document.len() as u64;
            content.hash = content.hash.wrapping_add(hasher.finish());
            Ok(())
        });
        match taken {
            Err(e) if e.passes() && tries < 3 => tries += 1,
            taken => return taken.map(|()| content),
        }
    }
}
