//! How far a migration is, in a directory of its own: what a run that was killed goes on from.
//!
//! Invariant: the file never says more than was acknowledged by a majority of the target; it may say less. Whatever is
//! done twice for that makes no difference.

use super::inventory::Selection;
use bson::{Doc, DocBuf, Val, Value, Writer};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const FILE: &str = "state.bson";
const CUT_OVER: &str = "cut-over";
/// How often the file is written while documents are copied.
const SAVED_EACH: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Copying,
    /// All documents were read; the changes made meanwhile are not all there.
    CatchingUp,
    Following,
    Done,
}

const PHASES: [(Phase, &str); 4] = [
    (Phase::Copying, "copying"),
    (Phase::CatchingUp, "catching up"),
    (Phase::Following, "following"),
    (Phase::Done, "done"),
];

impl Phase {
    pub fn name(self) -> &'static str {
        let found = PHASES.iter().find(|(phase, _)| *phase == self);
        found.map_or("", |(_, name)| name)
    }
}

/// A range of a collection in order of `_id`, or all of it in the order in which it lies.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    /// The first `_id` that is in it; of the first piece none.
    pub min: Option<Value>,
    /// The first that is not.
    pub max: Option<Value>,
    /// The last that was written.
    pub after: Option<Value>,
    pub done: bool,
    pub documents: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub phase: Phase,
    /// The source's time from which changes are followed.
    pub start: Option<u64>,
    /// The source's time at which all had been read.
    pub copied: Option<u64>,
    pub token: Option<DocBuf>,
    pub changes: i64,
    pub pieces: BTreeMap<String, Vec<Piece>>,
}

pub(super) struct State {
    dir: PathBuf,
    /// The connection strings without passwords, and the options: another migration has another
    /// directory.
    about: DocBuf,
    progress: Mutex<(Progress, Instant)>,
}

impl State {
    /// Opens the state in `dir`, or makes it; the second part says whether it was there.
    pub fn open(
        dir: &Path,
        from: &str,
        to: &str,
        only: &Selection,
    ) -> Result<(State, bool), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut about = Writer::new();
        about.str("from", from).str("to", to).open_array("only");
        only.0.iter().for_each(|one| {
            about.push_value(one.as_str());
        });
        about.close();
        let about = about.finish();
        let found = read(dir)?;
        if let Some(found) = &found
            && found.get("about").and_then(Val::as_doc).map(Doc::as_bytes) != Some(about.as_bytes())
        {
            return Err(format!(
                "{} is of another migration: {}",
                dir.display(),
                described(found.as_doc())
            ));
        }
        let progress = match &found {
            Some(found) => parsed(found.as_doc())
                .ok_or_else(|| format!("{} cannot be read", dir.join(FILE).display()))?,
            None => Progress {
                phase: Phase::Copying,
                start: None,
                copied: None,
                token: None,
                changes: 0,
                pieces: BTreeMap::new(),
            },
        };
        let state = State {
            dir: dir.to_path_buf(),
            about,
            progress: Mutex::new((progress, Instant::now())),
        };
        Ok((state, found.is_some()))
    }

    pub fn look<T>(&self, look: impl FnOnce(&Progress) -> T) -> T {
        look(&self.progress.lock().0)
    }

    /// Changes it, and has it on the disk before this returns.
    pub fn change(&self, change: impl FnOnce(&mut Progress)) -> Result<(), String> {
        let mut held = self.progress.lock();
        change(&mut held.0);
        held.1 = Instant::now();
        self.save(&held.0)
    }

    /// Changes it, and has it on the disk within a while.
    pub fn note(&self, change: impl FnOnce(&mut Progress)) -> Result<(), String> {
        let mut held = self.progress.lock();
        change(&mut held.0);
        if held.1.elapsed() < SAVED_EACH {
            return Ok(());
        }
        held.1 = Instant::now();
        self.save(&held.0)
    }

    fn save(&self, progress: &Progress) -> Result<(), String> {
        let path = self.dir.join(FILE);
        let new = self.dir.join("state.new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(written(&self.about, progress).as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Whether the cut-over to the target was requested.
    pub fn is_cut_over_asked(&self) -> bool {
        self.dir.join(CUT_OVER).exists()
    }
}

/// Asks the migration of this directory to finish.
pub(super) fn ask_for_cut_over(dir: &Path) -> Result<(), String> {
    if read(dir)?.is_none() {
        return Err(format!("{} is of no migration", dir.display()));
    }
    let asked = File::create(dir.join(CUT_OVER));
    asked
        .map(drop)
        .map_err(|e| format!("{}: {e}", dir.display()))
}

/// What the directory says of its migration, for people.
pub(super) fn status(dir: &Path) -> Result<String, String> {
    let found = read(dir)?.ok_or_else(|| format!("{} is of no migration", dir.display()))?;
    let p = parsed(found.as_doc()).ok_or("the state cannot be read")?;
    let pieces = p.pieces.values().flatten();
    let documents: i64 = pieces.clone().map(|piece| piece.documents).sum();
    let done = pieces.clone().filter(|piece| piece.done).count();
    Ok(format!(
        "{}\n{}: {documents} documents of {} collections copied, {done} of {} pieces; {} changes applied",
        described(found.as_doc()),
        p.phase.name(),
        p.pieces.len(),
        pieces.count(),
        p.changes,
    ))
}

fn described(state: Doc<'_>) -> String {
    let about = state.get("about").and_then(Val::as_doc);
    let word = |name| about.and_then(|d| d.get(name)).and_then(Val::as_str);
    let (from, to) = (word("from").unwrap_or("?"), word("to").unwrap_or("?"));
    format!("from {from} to {to}")
}

fn read(dir: &Path) -> Result<Option<DocBuf>, String> {
    let path = dir.join(FILE);
    match std::fs::read(&path) {
        Ok(bytes) if bson::validate(&bytes).is_ok() => Ok(DocBuf::from_vec(bytes)),
        Ok(_) => Err(format!("{} is damaged", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn written(about: &DocBuf, p: &Progress) -> DocBuf {
    let mut w = Writer::new();
    w.doc("about", about.as_doc()).str("phase", p.phase.name());
    for (name, time) in [("start", p.start), ("copied", p.copied)] {
        if let Some(time) = time {
            w.timestamp(name, time);
        }
    }
    if let Some(token) = &p.token {
        w.doc("token", token.as_doc());
    }
    w.i64("changes", p.changes).open_doc("pieces");
    for (ns, pieces) in &p.pieces {
        w.open_array(ns);
        for piece in pieces {
            w.open_doc(&w.items().to_string());
            for (name, value) in [
                ("min", &piece.min),
                ("max", &piece.max),
                ("after", &piece.after),
            ] {
                if let Some(value) = value {
                    w.val(name, value.as_val());
                }
            }
            w.bool("done", piece.done)
                .i64("documents", piece.documents)
                .close();
        }
        w.close();
    }
    w.close();
    w.finish()
}

fn parsed(state: Doc<'_>) -> Option<Progress> {
    let name = state.get("phase")?.as_str()?;
    let piece = |d: Doc<'_>| Piece {
        min: d.get("min").map(Val::to_value),
        max: d.get("max").map(Val::to_value),
        after: d.get("after").map(Val::to_value),
        done: d.get("done").is_some_and(Val::truthy),
        documents: super::server::number(d, "documents"),
    };
    let pieces = state.get("pieces")?.as_doc()?.iter().map(|e| {
        let list = e.val.as_array().unwrap_or(Doc::EMPTY);
        let all = list.values().filter_map(Val::as_doc).map(piece);
        (e.name.to_string(), all.collect())
    });
    Some(Progress {
        phase: PHASES.iter().find(|(_, n)| *n == name)?.0,
        start: state.get("start").and_then(Val::as_timestamp),
        copied: state.get("copied").and_then(Val::as_timestamp),
        token: state.get("token").and_then(Val::as_doc).map(Doc::to_buf),
        changes: super::server::number(state, "changes"),
        pieces: pieces.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let only = Selection(vec!["shop".into()]);
        let (state, found) = State::open(dir.path(), "a", "b", &only).unwrap();
        assert!(!found);
        let piece = Piece {
            after: Some(Value::from(7)),
            documents: 3,
            ..Piece::default()
        };
        let done = Piece {
            done: true,
            ..Piece::default()
        };
        state
            .change(|p| {
                p.start = Some(5);
                p.pieces.insert("shop.a".into(), vec![piece, done]);
            })
            .unwrap();
        let (again, found) = State::open(dir.path(), "a", "b", &only).unwrap();
        assert!(found && !again.is_cut_over_asked());
        again.look(|p| {
            let pieces = &p.pieces["shop.a"];
            assert_eq!(
                (p.start, p.phase, pieces.len()),
                (Some(5), Phase::Copying, 2)
            );
            assert_eq!(
                pieces[0].after.as_ref().and_then(|v| v.as_val().as_i32()),
                Some(7)
            );
            assert!(pieces[1].done && pieces[1].after.is_none());
        });
        assert!(
            State::open(dir.path(), "a", "c", &only).is_err(),
            "another target"
        );
        assert!(
            status(dir.path())
                .unwrap()
                .contains("copying: 3 documents of 1 collections")
        );
        ask_for_cut_over(dir.path()).unwrap();
        assert!(again.is_cut_over_asked());
    }
}
