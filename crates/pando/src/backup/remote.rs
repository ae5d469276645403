//! The server or the cluster that is backed up: what `pandoBackup` says, step by step.

use crate::client::{Conversation, ServerAddress, refusal};
use archive::{At, KeptFile};
use bson::{Doc, DocBuf, Val, Writer};
use std::io::{self, Read};

/// How much of a file is asked for at once.
const PIECE: u64 = 4 << 20;
/// CappedPositionLost: the log does not go on where the archive ends.
const LOG_IS_ANOTHER: i64 = 136;

/// A copy that a server has made beside its data.
#[derive(Clone)]
pub(super) struct StagedSet {
    /// Empty for a server alone.
    pub name: String,
    pub members: String,
    id: String,
}

/// The same, read whole.
pub(super) struct Described {
    pub staged: StagedSet,
    pub from: At,
    pub complete: At,
    pub fingerprint: u64,
    pub collections: u64,
    pub files: Vec<KeptFile>,
}

/// Why entries of the log were not told.
pub(super) enum LogFailure {
    /// It does not go on where it was read to.
    Another(String),
    Failed(String),
}

/// Entries of a log.
pub(super) struct LogEntries {
    pub packed: Vec<u8>,
    pub last: At,
    pub more: bool,
}

/// A command for one set, whose fields `fill` adds.
fn command(set: &str, step: &str, fill: impl FnOnce(&mut Writer)) -> DocBuf {
    let mut w = Writer::new();
    w.int("pandoBackup", 1).str("step", step);
    if !set.is_empty() {
        w.str("set", set);
    }
    fill(&mut w);
    w.finish()
}

fn reply_to(c: &mut Conversation, command: &DocBuf) -> Result<DocBuf, String> {
    let reply = c.run("admin", command.as_doc())?;
    match refusal(reply.as_doc()) {
        Some(why) => Err(why),
        None => Ok(reply),
    }
}

fn number(d: Doc<'_>, field: &str) -> Option<u64> {
    let n = d.get(field).and_then(Val::to_i64_exact)?;
    u64::try_from(n).ok()
}

fn at(d: Doc<'_>, field: &str) -> Option<At> {
    let d = d.get(field)?.as_doc()?;
    Some(At {
        index: number(d, "index")?,
        ts: d.get("timestamp")?.as_timestamp()?,
    })
}

/// Has all sets make their copies, as of one moment.
pub(super) fn stage(c: &mut Conversation) -> Result<(bool, Vec<StagedSet>), String> {
    let reply = reply_to(c, &command("", "stage", |_| {}))?;
    let reply = reply.as_doc();
    let word = |d: Doc<'_>, name: &str| d.get(name).and_then(|v| v.as_str()).map(String::from);
    let staged = |name: &str, d: Doc<'_>| {
        Some(StagedSet {
            name: name.into(),
            members: word(d, "members").unwrap_or_default(),
            id: word(d, "id")?,
        })
    };
    let sets = match reply.get("sets").and_then(|v| v.as_doc()) {
        None => staged("", reply).map(|one| (false, vec![one])),
        Some(sets) => {
            let each = sets.into_iter();
            let all: Option<_> = each.map(|e| staged(e.name, e.val.as_doc()?)).collect();
            all.map(|all| (true, all))
        }
    };
    sets.ok_or_else(|| "the server does not say what it has copied (its release is too old)".into())
}

/// Has the servers know that the backup is in its archive.
pub(super) fn note(c: &mut Conversation, backup: &str, to: &str) -> Result<(), String> {
    let ask = command("", "kept", |w| {
        w.str("backup", backup).str("to", to);
    });
    reply_to(c, &ask).map(drop)
}

/// Has a set read its copy whole, and describe it.
pub(super) fn describe(address: &ServerAddress, staged: StagedSet) -> Result<Described, String> {
    let mut c = address.open()?;
    let ask = command(&staged.name, "describe", |w| {
        w.str("id", &staged.id);
    });
    let reply = reply_to(&mut c, &ask)?;
    let reply = reply.as_doc();
    let file = |v: Val<'_>| {
        let d = v.as_doc()?;
        Some(KeptFile {
            name: d.get("name")?.as_str()?.into(),
            bytes: number(d, "bytes")?,
            sha256: d.get("sha256")?.as_binary()?.1.try_into().ok()?,
        })
    };
    let read = || {
        let complete = reply.get("complete")?.as_doc()?;
        let files = reply.get("files")?.as_array()?;
        Some((
            at(reply, "from")?,
            at(reply, "complete")?,
            complete.get("fingerprint")?.as_i64()?.cast_unsigned(),
            number(reply, "collections")?,
            files.values().map(file).collect::<Option<Vec<_>>>()?,
        ))
    };
    if reply.get("verified").and_then(|v| v.as_bool()) != Some(true) {
        return Err("the server does not say that it has read its copy".into());
    }
    let read = read().ok_or("the server does not say what is in its copy")?;
    let (from, complete, fingerprint, collections, files) = read;
    Ok(Described {
        staged,
        from,
        complete,
        fingerprint,
        collections,
        files,
    })
}

pub(super) fn release(c: &mut Conversation, staged: &StagedSet) {
    let ask = command(&staged.name, "release", |w| {
        w.str("id", &staged.id);
    });
    // What stays goes with the next backup.
    let _ = reply_to(c, &ask);
}

/// Entries of a set's log behind `after`; where `reach` is a time, the set writes one past it.
pub(super) fn log(
    c: &mut Conversation,
    set: &str,
    after: At,
    print: Option<u64>,
    reach: u64,
) -> Result<LogEntries, LogFailure> {
    let ask = command(set, "log", |w| {
        w.open_doc("after").i64("index", after.index.cast_signed());
        if after.ts > 0 {
            w.timestamp("timestamp", after.ts);
        }
        if let Some(print) = print {
            w.i64("fingerprint", print.cast_signed());
        }
        w.close();
        if reach > 0 {
            w.timestamp("reach", reach);
        }
    });
    let reply = c.run("admin", ask.as_doc()).map_err(LogFailure::Failed)?;
    let reply = reply.as_doc();
    if let Some(why) = refusal(reply) {
        let code = reply.get("code").and_then(Val::to_i64_exact);
        return Err(match code {
            Some(LOG_IS_ANOTHER) => LogFailure::Another(why),
            _ => LogFailure::Failed(why),
        });
    }
    let read = || {
        Some(LogEntries {
            packed: reply.get("data")?.as_binary()?.1.to_vec(),
            last: At {
                index: number(reply, "index")?,
                ts: reply.get("timestamp")?.as_timestamp()?,
            },
            more: reply.get("more")?.as_bool()?,
        })
    };
    read().ok_or_else(|| LogFailure::Failed("the server does not tell its log".into()))
}

/// The content of a file of a copy.
pub(super) struct RemoteFile<'c> {
    pub conversation: &'c mut Conversation,
    pub staged: &'c StagedSet,
    pub file: &'c KeptFile,
    offset: u64,
    buffer: Vec<u8>,
    piece: Vec<u8>,
    at: usize,
}

impl<'c> RemoteFile<'c> {
    pub fn new(
        conversation: &'c mut Conversation,
        staged: &'c StagedSet,
        file: &'c KeptFile,
    ) -> RemoteFile<'c> {
        RemoteFile {
            conversation,
            staged,
            file,
            offset: 0,
            buffer: Vec::new(),
            piece: Vec::new(),
            at: 0,
        }
    }

    fn fetch(&mut self) -> Result<(), String> {
        let ask = command(&self.staged.name, "read", |w| {
            w.str("id", &self.staged.id)
                .str("file", &self.file.name)
                .i64("offset", self.offset.cast_signed())
                .i64("length", PIECE.cast_signed());
        });
        let c = &mut *self.conversation;
        let reply = c.run_into("admin", ask.as_doc(), &mut self.buffer)?;
        if let Some(why) = refusal(reply) {
            return Err(why);
        }
        let data = reply.get("data").and_then(|v| v.as_binary());
        let data = data.ok_or("the server does not tell the file")?.1;
        if data.is_empty() {
            return Err("the file has become shorter".into());
        }
        self.piece.clear();
        self.piece.extend_from_slice(data);
        self.offset += data.len() as u64;
        self.at = 0;
        Ok(())
    }
}

impl Read for RemoteFile<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() && self.offset < self.file.bytes {
            self.fetch().map_err(io::Error::other)?;
        }
        let rest = self.piece.get(self.at..).unwrap_or_default();
        let n = rest.len().min(to.len());
        if let (Some(to), Some(rest)) = (to.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(rest);
        }
        self.at += n;
        Ok(n)
    }
}
