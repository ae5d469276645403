//! The copy of documents: collections in pieces by `_id`, several pieces at a time.
//!
//! The copy is not of one time: the changes of the source are followed from before the first document
//! was read, and mend that. Invariant: a document is read and written as the bytes that it is.

use super::inventory::{Namespace, NamespaceKind};
use super::server::{DUPLICATE_KEY, Failure, Kind, Result, Server, command, opened, write_errors};
use super::state::{Piece, State};
use crate::client::DocumentSequence;
use crate::progress::ProgressLine;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use parking_lot::Mutex;
use std::collections::VecDeque;

const MOST_PIECES: u64 = 64;
/// Samples for each bound between two pieces: the more, the more equal they are.
const SAMPLES_A_BOUND: u64 = 20;

pub(super) struct Copying<'c> {
    pub from: &'c Server,
    pub to: &'c Server,
    pub source: Kind,
    pub state: &'c State,
    pub workers: usize,
    pub progress: &'c ProgressLine,
}

/// Cuts a collection into pieces of about `piece_bytes`, which begin and end where samples of it do.
pub(super) fn pieces(
    from: &mut Server,
    ns: &Namespace,
    bytes: u64,
    piece_bytes: u64,
) -> Result<Vec<Piece>> {
    let many = (bytes / piece_bytes + 1).min(MOST_PIECES);
    if many == 1 || ns.kind != NamespaceKind::Collection {
        return Ok(vec![Piece::default()]);
    }
    let size = i64::try_from(many * SAMPLES_A_BOUND).unwrap_or(i64::MAX);
    let pipeline = bson::array![
        doc! { "$sample": doc! { "size": size } },
        doc! { "$project": doc! { "_id": 1 } },
        doc! { "$sort": doc! { "_id": 1 } }
    ];
    let ask = command("aggregate", &ns.coll, |w| {
        w.value("pipeline", pipeline).doc("cursor", Doc::EMPTY);
    });
    let sampled = from.list(&ns.db, &ask)?;
    let mut bounds: Vec<Value> = Vec::new();
    for n in 1..many {
        let at = sampled.len() * n as usize / many as usize;
        let Some(id) = sampled.get(at).and_then(|d| d.get("_id")) else {
            continue;
        };
        if bounds.last().is_none_or(|last| last.as_val() != id) {
            bounds.push(id.to_value());
        }
    }
    let from_each = std::iter::once(None).chain(bounds.iter().cloned().map(Some));
    let to_each = bounds.iter().cloned().map(Some).chain([None]);
    let both = from_each.zip(to_each);
    Ok(both
        .map(|(min, max)| Piece {
            min,
            max,
            ..Piece::default()
        })
        .collect())
}

impl Copying<'_> {
    /// Copies all pieces that are not done.
    pub fn run(&self, namespaces: &[Namespace]) -> Result<()> {
        let waiting: VecDeque<(&Namespace, usize)> = self.state.look(|p| {
            let of = |ns: &Namespace| p.pieces.get(&ns.full()).cloned().unwrap_or_default();
            let open = namespaces.iter().flat_map(|ns| {
                let pieces = of(ns).into_iter().enumerate();
                pieces.filter(|(_, p)| !p.done).map(move |(n, _)| (ns, n))
            });
            open.collect()
        });
        let waiting = Mutex::new(waiting);
        let work = || {
            let (mut from, mut to) = (self.from.another(), self.to.another());
            loop {
                let Some((ns, n)) = waiting.lock().pop_front() else {
                    return Ok(());
                };
                if let Err(e) = self.piece(&mut from, &mut to, ns, n) {
                    // The others need not go on.
                    waiting.lock().clear();
                    return Err(Failure {
                        text: format!("{}: {e}", ns.full()),
                        ..e
                    });
                }
            }
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..self.workers).map(|_| scope.spawn(work)).collect();
            let ended = all.into_iter().map(|one| {
                one.join()
                    .unwrap_or_else(|_| Err(Failure::lasting("a worker has panicked")))
            });
            // All are waited for before the first failure is told.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn piece(&self, from: &mut Server, to: &mut Server, ns: &Namespace, n: usize) -> Result<()> {
        let mut tries = 0;
        loop {
            let Some(piece) = self
                .state
                .look(|p| p.pieces.get(&ns.full())?.get(n).cloned())
            else {
                return Ok(());
            };
            match self.read(from, to, ns, (n, &piece)) {
                // A cursor that was lost: the rest is read by another.
                Err(e) if (e.passes() || e.is(43)) && tries < 20 && is_by_id(ns) => tries += 1,
                ended => return ended,
            }
        }
    }

    fn read(
        &self,
        from: &mut Server,
        to: &mut Server,
        ns: &Namespace,
        (n, piece): (usize, &Piece),
    ) -> Result<()> {
        let mut reply = from.run(&ns.db, &self.find(ns, piece))?;
        loop {
            let (cursor, coll, batch) = opened(reply.as_doc())?;
            let mut bytes = Vec::with_capacity(batch.len());
            let (mut many, mut last) = (0, None);
            for document in batch.values().filter_map(Val::as_doc) {
                bytes.extend_from_slice(document.as_bytes());
                (many, last) = (many + 1, document.get("_id"));
            }
            if many > 0 {
                insert(to, ns, &bytes)?;
            }
            let after = last.map(Val::to_value);
            self.progress.add(bytes.len() as u64);
            self.state.note(|p| {
                let place = p.pieces.get_mut(&ns.full()).and_then(|all| all.get_mut(n));
                if let Some(place) = place {
                    place.documents += many;
                    place.after = after.or(place.after.take());
                }
            })?;
            if cursor == 0 {
                return self.finish(ns, n);
            }
            reply = from.try_run(&ns.db, &doc! { "getMore": cursor, "collection": coll })?;
        }
    }

    fn finish(&self, ns: &Namespace, n: usize) -> Result<()> {
        self.state.change(|p| {
            let place = p.pieces.get_mut(&ns.full()).and_then(|all| all.get_mut(n));
            if let Some(place) = place {
                place.done = true;
            }
        })?;
        Ok(())
    }

    fn find(&self, ns: &Namespace, piece: &Piece) -> DocBuf {
        command("find", &ns.coll, |w| {
            if is_by_id(ns) {
                // Bounds of an index go over all types of values; conditions would not.
                w.doc("hint", doc! { "_id": 1 }.as_doc());
                w.doc("sort", doc! { "_id": 1 }.as_doc());
                for (name, bound) in [
                    ("min", piece.after.as_ref().or(piece.min.as_ref())),
                    ("max", piece.max.as_ref()),
                ] {
                    if let Some(bound) = bound {
                        w.open_doc(name).val("_id", bound.as_val()).close();
                    }
                }
            }
            if self.source.has_log {
                // Writes that could be rolled back are not copied.
                w.doc("readConcern", doc! { "level": "majority" }.as_doc());
            }
        })
    }
}

/// Whether a piece of it goes on where it was left.
pub(super) fn is_by_id(ns: &Namespace) -> bool {
    ns.kind == NamespaceKind::Collection
}

/// Writes documents; those that are there already, from a run before, stay.
fn insert(to: &mut Server, ns: &Namespace, bytes: &[u8]) -> Result<()> {
    let into = command("insert", &ns.coll, |w: &mut Writer| {
        w.bool("ordered", false);
        w.bool("bypassDocumentValidation", true);
        w.doc("writeConcern", doc! { "w": "majority" }.as_doc());
    });
    let documents = DocumentSequence {
        field: "documents",
        bytes,
    };
    let reply = to.run_with(&ns.db, &into, &documents)?;
    let errors = write_errors(reply.as_doc());
    match errors
        .into_iter()
        .find(|(_, code, _)| *code != DUPLICATE_KEY)
    {
        Some((_, code, text)) => Err(Failure {
            code: Some(code),
            text,
        }),
        None => Ok(()),
    }
}
