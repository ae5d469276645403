//! Change streams: a cursor over the log, as its events.
//!
//! Between batches a stream holds its position, and nothing of the log. A batch reads on from there
//! up to the durable index; on one node that is the majority.
//!
//! Invariant: `token` says what the stream has seen. A stream that resumes after it sees exactly
//! what this one would see next.

use super::log_tail::{LogFollower, LogTail, Wake};
use crate::op::OpCtx;
use crate::records;
use bson::{Doc, DocBuf, MAX_DOC_BYTES, Writer};
use changes::event::{self, EventKind, Images, Scope, StreamOptions};
use changes::{Change, ChangeKind, EntryStamp, ResumeToken, TokenPlace, changes, token_not_found};
use errors::{Error, Result, bail, err};
use query::expr::Vars;
use query::filter::Filter;
use query::pipeline::per_document::PerDocument;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::{Entry, EntryGlance, LogMark, Record, Store};

/// The largest event: a document, and MongoDB's allowance for what the server adds.
const EVENT_BYTES: usize = MAX_DOC_BYTES + 16 * 1024;

/// Pending events up to this size in bytes are kept between batches.
const READY_BYTES: usize = 16 << 10;

/// Which whole documents an event shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ShowImage {
    #[default]
    Off,
    /// The document as it is now (of `fullDocument` only).
    UpdateLookup,
    WhenAvailable,
    Required,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug)]
pub enum StreamStart {
    Now,
    /// At the first entry whose timestamp is at least this.
    At(u64),
    /// After a token.
    After(ResumeToken),
}

pub struct ChangeStreamRequest {
    pub shown: StreamOptions,
    pub full: ShowImage,
    pub before: ShowImage,
    pub start: StreamStart,
    /// What the stages after it let through, as far as that can be told before an event is made.
    pub wanted: WantedEvents,
    /// The stages after `$changeStream`.
    pub pipeline: PerDocument,
    pub vars: Arc<Vars>,
    /// Events that are too large come in fragments.
    pub split: bool,
}

/// Conditions that an event meets, or the stages drop it: on its namespace alone, for changes of documents; and on
/// [`event::summary`]. `None`: there are none.
#[derive(Default)]
pub struct WantedEvents {
    pub ns: Option<Filter>,
    pub summary: Option<Filter>,
}

pub struct ChangeStream {
    tail: Arc<LogTail>,
    follower: LogFollower,
    request: ChangeStreamRequest,
    /// Before the next entry to read.
    mark: LogMark,
    /// Before the entry that was read last.
    last: LogMark,
    /// The stream has seen everything up to this token.
    seen: ResumeToken,
    /// Whether the stream's own filters show the event that it resumes after. If not, the stream
    /// fails at the first event.
    is_there: bool,
    /// Events that are ready to be returned.
    ready: VecDeque<(ResumeToken, DocBuf)>,
    /// Whether the stream has read up to the durable index.
    caught_up: bool,
    invalidated: bool,
    token: ResumeToken,
}

fn fatal(message: String) -> Error {
    Error::coded(280, message).with_label("NonResumableChangeStreamError")
}

fn history_lost() -> Error {
    err!(
        ChangeStreamHistoryLost,
        "Resume of change stream was not possible, as the resume point may no longer be in the oplog."
    )
    .with_label("NonResumableChangeStreamError")
}

fn stamp_of(record: &Record<'_>) -> EntryStamp {
    EntryStamp {
        ts: record.ts,
        term: record.term,
        wall_millis: record.wall_millis,
    }
}

fn decode(record: &Record<'_>) -> Result<Entry> {
    Entry::decode(record.payload).ok_or_else(|| {
        Error::internal(format!("entry {} of the log is damaged", record.index)).into()
    })
}

/// The position before the first entry whose timestamp is at least `ts`. Fails when entries from
/// there on may have been trimmed.
fn seek(store: &Store, ts: u64) -> Result<LogMark> {
    let first = store.first_log_index();
    let oldest = store.read_log(first)?.next()?.map(|r| r.ts);
    if first > 1 && oldest.is_some_and(|oldest| oldest > ts) {
        return Err(history_lost().into());
    }
    Ok(store.seek_log(ts)?.mark())
}

impl ChangeStream {
    pub fn open(tail: &Arc<LogTail>, request: ChangeStreamRequest) -> Result<ChangeStream> {
        let name = match &request.shown.scope {
            Scope::Collection(ns) => ns.as_str(),
            Scope::Database(db) => db,
            Scope::Deployment => "",
        };
        // The follower is registered first, then the durable index is read, so no entry is missed
        // in between.
        let follower = tail.follow(name);
        let store = tail.store();
        let mut is_there = true;
        let (mark, token) = match request.start {
            StreamStart::Now => {
                let ts = store.last_ts();
                (seek(store, ts + 1)?, ResumeToken::mark(ts + 1))
            }
            StreamStart::At(ts) => (seek(store, ts)?, ResumeToken::mark(ts)),
            StreamStart::After(token) => {
                let mark = seek(store, token.ts)?;
                is_there =
                    token.place == TokenPlace::Mark || shows(store, mark, &token, &request.shown)?;
                (mark, token)
            }
        };
        Ok(ChangeStream {
            tail: tail.clone(),
            follower,
            request,
            mark,
            last: mark,
            seen: token,
            is_there,
            ready: VecDeque::new(),
            caught_up: false,
            invalidated: false,
            token,
        })
    }

    /// Whether there is nothing to read: asked often, of many.
    pub fn is_quiet(&self) -> bool {
        self.caught_up && self.ready.is_empty() && !self.invalidated && !self.follower.has_news()
    }

    /// Has `wake` called when it is quiet no longer; to be called before that is asked.
    pub fn on_news(&self, wake: Wake) {
        self.follower.on_news(wake);
    }

    /// What the stream has seen: `postBatchResumeToken`.
    pub fn token(&self) -> DocBuf {
        self.token.to_doc()
    }

    /// Appends events, within limits as [`crate::FindCursor::fill`]; true: there will be no more.
    pub fn fill(
        &mut self,
        ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        if max_docs == 0 {
            return Ok(false);
        }
        let mut batch = Batch {
            start: w.len(),
            n: 0,
            max_docs,
            max_bytes,
        };
        if !self.give(w, &mut batch) {
            return Ok(false);
        }
        if self.invalidated {
            return Ok(true);
        }
        self.read_on(ctx, w, &mut batch)?;
        Ok(self.invalidated && self.ready.is_empty())
    }

    /// Between batches: drops large pending events. They will be made again.
    pub fn release(&mut self) {
        let bytes = |(_, doc): &(ResumeToken, DocBuf)| doc.as_bytes().len();
        if self.ready.iter().map(bytes).sum::<usize>() > READY_BYTES {
            self.ready = VecDeque::new();
            self.mark = self.last;
            self.seen = self.token;
            self.invalidated = false;
        }
    }

    /// Appends the ready events; false when the batch is full.
    fn give(&mut self, w: &mut Writer, batch: &mut Batch) -> bool {
        while let Some((token, doc)) = self.ready.front() {
            if !batch.takes(w, doc) {
                return false;
            }
            w.push(doc.as_doc().as_val());
            batch.n += 1;
            self.token = *token;
            self.ready.pop_front();
        }
        true
    }

    fn read_on(&mut self, ctx: &mut OpCtx, w: &mut Writer, batch: &mut Batch) -> Result<()> {
        let store = self.tail.store().clone();
        // The order matters: see the invariant of [`LogTail`].
        let (scanned, scanned_ts) = self.tail.scanned();
        let news = self.follower.take_news();
        let durable = store.durable_index();
        if self.caught_up {
            match news {
                Some(news) if news.index > self.mark.index => self.mark = news,
                Some(_) => {}
                None => {
                    if scanned >= self.mark.index && scanned_ts > 0 {
                        self.passed(scanned_ts);
                    }
                    return Ok(());
                }
            }
        }
        if self.mark.index < store.first_log_index() {
            return Err(history_lost().into());
        }
        self.caught_up = false;
        let mut reader = store.read_log_at(self.mark)?;
        loop {
            self.mark = reader.mark();
            if self.mark.index > durable {
                self.caught_up = true;
                return Ok(());
            }
            ctx.check()?;
            self.last = self.mark;
            let Some(record) = reader.next()? else {
                return Ok(());
            };
            self.read(ctx, &record)?;
            let ts = record.ts;
            self.mark = reader.mark();
            if !self.give(w, batch) || self.invalidated {
                return Ok(());
            }
            // Behind its last event a batch tells the token of that: clients compare the two.
            if self.token.place == TokenPlace::Mark || self.token.ts != ts {
                self.passed(ts);
            }
        }
    }

    /// Everything up to a timestamp was seen.
    fn passed(&mut self, ts: u64) {
        let mark = ResumeToken::mark(ts + 1);
        if mark > self.token {
            self.token = mark;
        }
    }

    /// Makes the events of an entry ready.
    fn read(&mut self, ctx: &mut OpCtx, record: &Record<'_>) -> Result<()> {
        let shown = &self.request.shown;
        if let Some(EntryGlance::Documents(ns)) = EntryGlance::at(record.payload) {
            let sees = match &shown.scope {
                Scope::Collection(own) => ns == own,
                Scope::Database(db) => ns.split_once('.').is_some_and(|(d, _)| d == db),
                Scope::Deployment => true,
            };
            if !sees || !self.wants_ns(ctx, ns)? {
                return Ok(());
            }
        }
        let stamp = stamp_of(record);
        let entry = decode(record)?;
        for change in changes(&entry) {
            let Some(kind) = self.request.shown.kind(&change) else {
                continue;
            };
            let token = event::token(&stamp, &change);
            let part_left = self.request.split && token.last_of() > self.seen;
            if token > self.seen || part_left {
                if !self.is_there {
                    return Err(token_not_found(self.seen.to_doc().as_doc()).into());
                }
                if self.wants(ctx, &stamp, &change, kind)? {
                    let event = self.event(ctx, &stamp, &change, kind)?;
                    self.offer(ctx, token, event)?;
                }
            }
            if self.request.shown.ends(&change, kind) {
                let (token, event) = event::invalidate(&stamp, &change);
                if token > self.seen {
                    self.offer(ctx, token, event)?;
                    self.invalidated = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether events of changes to documents of a collection may be given. A stream that looks for the event that it resumes
    /// behind has to see them all.
    fn wants_ns(&self, ctx: &OpCtx, ns: &str) -> Result<bool> {
        match &self.request.wanted.ns {
            Some(filter) if self.is_there => {
                let vars = ctx.interruptible(&self.request.vars);
                filter.matches_with(event::ns_only(ns).as_doc(), &vars)
            }
            _ => Ok(true),
        }
    }

    fn wants(
        &self,
        ctx: &OpCtx,
        stamp: &EntryStamp,
        change: &Change<'_>,
        kind: EventKind,
    ) -> Result<bool> {
        match &self.request.wanted.summary {
            Some(filter) => {
                let vars = ctx.interruptible(&self.request.vars);
                let shard_key = ctx.engine.shard_key_of(change.ns);
                let summary = event::summary(stamp, change, kind, &shard_key);
                filter.matches_with(summary.as_doc(), &vars)
            }
            None => Ok(true),
        }
    }

    fn event(
        &self,
        ctx: &OpCtx,
        stamp: &EntryStamp,
        change: &Change<'_>,
        kind: EventKind,
    ) -> Result<DocBuf> {
        let now;
        let mut images = Images::default();
        let seconds = ctx.engine.image_expiry_seconds.load(Ordering::Relaxed);
        let expiry = i64::try_from(seconds)
            .unwrap_or(i64::MAX)
            .saturating_mul(1000);
        let age = ctx.engine.now_millis().saturating_sub(stamp.wall_millis);
        let pre_image = change.pre_image.filter(|_| seconds == 0 || age < expiry);
        if let ChangeKind::Update(_, new) = change.what {
            // A collection that keeps pre-images also has post-images: they are in the entry.
            let after = pre_image.map(|_| new);
            images.full = match self.request.full {
                ShowImage::Off => None,
                ShowImage::UpdateLookup => {
                    now = look_up(ctx, change, new)?;
                    Some(now.as_ref().map(|d| d.as_doc()))
                }
                ShowImage::WhenAvailable => Some(after),
                ShowImage::Required => match after {
                    Some(_) => Some(after),
                    None => return Err(missing_image("post", "update", stamp, change).into()),
                },
            };
        }
        images.before = match self.request.before {
            ShowImage::Off | ShowImage::UpdateLookup => None,
            ShowImage::Required
                if pre_image.is_none()
                    && matches!(
                        kind,
                        EventKind::Update | EventKind::Replace | EventKind::Delete
                    ) =>
            {
                return Err(
                    missing_image("pre", "update, delete and replace", stamp, change).into(),
                );
            }
            _ => Some(pre_image),
        };
        let shard_key = ctx.engine.shard_key_of(change.ns);
        let extent = event::Extent {
            expanded: self.request.shown.expanded,
            shard_key: &shard_key,
        };
        Ok(event::write(stamp, change, kind, extent, images))
    }

    /// Puts an event through the pipeline.
    fn offer(&mut self, ctx: &OpCtx, token: ResumeToken, event: DocBuf) -> Result<()> {
        let given = match self.request.pipeline.is_empty() {
            true => Some(event),
            false => {
                let vars = ctx.interruptible(&self.request.vars);
                let given = self.request.pipeline.apply(event, &vars)?;
                if let Some(event) = &given {
                    keeps_id(event.as_doc(), &token)?;
                }
                given
            }
        };
        let Some(event) = given else { return Ok(()) };
        if self.request.split && event.as_bytes().len() > MAX_DOC_BYTES {
            for (token, fragment) in fragments(&token, event.as_doc())? {
                if token > self.seen {
                    self.ready.push_back((token, fragment));
                }
            }
        } else if event.as_bytes().len() > EVENT_BYTES {
            let n = event.as_bytes().len();
            bail!(
                BSONObjectTooLarge,
                "BSONObj size: {n} (0x{n:X}) is invalid. Size must be between 0 and {EVENT_BYTES}(16MB) First element: _id: {}",
                token.to_doc().as_doc()
            );
        } else if token > self.seen {
            self.ready.push_back((token, event));
        }
        Ok(())
    }
}

/// Refuses an event whose resume token the stages of the pipeline have changed.
fn keeps_id(event: Doc<'_>, token: &ResumeToken) -> Result<()> {
    let (id, found) = (token.to_doc(), event.get("_id"));
    if found == Some(id.as_doc().as_val()) {
        return Ok(());
    }
    let found = found.map_or("(Missing)".to_string(), |v| format!("{{ _id: {v} }}"));
    Err(fatal(format!(
        "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed. Expected: {{ _id: {} }} but found: {found}",
        id.as_doc()
    )).into())
}

/// The place of a batch's events in a reply.
struct Batch {
    start: usize,
    n: u64,
    max_docs: u64,
    max_bytes: usize,
}

impl Batch {
    fn takes(&self, w: &Writer, doc: &DocBuf) -> bool {
        let bytes = w.len() - self.start + doc.as_bytes().len() + 16;
        self.n < self.max_docs && (self.n == 0 || bytes <= self.max_bytes)
    }
}

/// The current version of a document; `None` when it or its collection no longer exists.
fn look_up(ctx: &OpCtx, change: &Change<'_>, new: Doc<'_>) -> Result<Option<DocBuf>> {
    let store = &ctx.engine.store;
    let catalog = &ctx.engine.catalog;
    let (view, coll) = catalog.consistent(change.ns, || store.view());
    let Some(coll) = coll.filter(|c| c.uuid == change.uuid) else {
        return Ok(None);
    };
    let Some(key) = records::locate(&view, &coll, records::id_of(new)?)? else {
        return Ok(None);
    };
    match view.get(&key)? {
        Some(record) => Ok(Some(records::stored(&coll, &key, &record)?.to_buf())),
        None => Ok(None),
    }
}

fn missing_image(which: &str, of: &str, stamp: &EntryStamp, change: &Change<'_>) -> Error {
    err!(
        NoMatchingDocument,
        "Change stream was configured to require a {which}-image for all {of} events, but the {which}-image was not found for event: {{ _id: {}, ns: \"{}\" }}",
        event::token(stamp, change).to_doc().as_doc(),
        change.ns
    )
    .with_label("NonResumableChangeStreamError")
}

/// Whether the stream shows the change of this token.
fn shows(store: &Store, mark: LogMark, token: &ResumeToken, shown: &StreamOptions) -> Result<bool> {
    let mut reader = store.read_log_at(mark)?;
    let Some(record) = reader.next()?.filter(|r| r.ts == token.ts) else {
        return Ok(false);
    };
    let entry = decode(&record)?;
    let (TokenPlace::Event { at, .. } | TokenPlace::Invalidate { at }) = token.place else {
        return Ok(true);
    };
    let all = changes(&entry);
    let change = all.iter().find(|c| c.at == at && c.uuid == token.uuid);
    Ok(change.and_then(|c| shown.kind(c)).is_some())
}

/// An event in parts of whole fields, each with `splitEvent`.
fn fragments(token: &ResumeToken, event: Doc<'_>) -> Result<Vec<(ResumeToken, DocBuf)>> {
    /// What `_id`, `splitEvent` and the document itself take, at most.
    const HEAD_BYTES: usize = 1024;
    let mut parts: Vec<(usize, Vec<bson::Elem<'_>>)> = Vec::new();
    for e in event.iter().filter(|e| e.name != "_id") {
        let bytes = e.name.len() + e.val.bytes.len() + 2;
        if bytes + HEAD_BYTES > EVENT_BYTES {
            return Err(fatal(format!(
                "Splitting change event failed: field '{}' is too large",
                e.name
            ))
            .into());
        }
        match parts.last_mut() {
            Some((sum, part)) if *sum + bytes + HEAD_BYTES <= MAX_DOC_BYTES => {
                *sum += bytes;
                part.push(e);
            }
            _ => parts.push((bytes, vec![e])),
        }
    }
    let of = parts.len() as i32;
    let mut out = Vec::new();
    for (i, (_, part)) in parts.into_iter().enumerate() {
        let token = token.fragment(i as u32);
        let mut w = Writer::new();
        w.doc("_id", token.to_doc().as_doc());
        w.open_doc("splitEvent")
            .i32("fragment", i as i32 + 1)
            .i32("of", of)
            .close();
        part.iter().for_each(|e| {
            w.val(e.name, e.val);
        });
        out.push((token, w.finish()));
    }
    Ok(out)
}
