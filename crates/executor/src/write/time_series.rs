//! Writes to time series. A write to a collection of measurements goes to its buckets.
//!
//! Measurements that come are laid into new buckets, those of one meta value together. When enough of
//! one value lie as they came, they are packed: one write takes those buckets out, and puts the same
//! measurements in by column. Deletes and updates replace a bucket in the same way.
//!
//! Invariant: a bucket never changes under its key. It is replaced by others, in one entry of the
//! log, with its key latched from the read that decides it; so readers see each measurement once.

use crate::op::OpCtx;
use crate::read::request::ReadRequest;
use crate::read::step::test;
use crate::records::{self, latch_hash};
use crate::write::candidate::CandidateBatches;
use crate::write::delete::{DeleteRequest, Deleted};
use crate::write::index_changes::Versions;
use crate::write::insert::Inserted;
use crate::write::locked::LockedCollection;
use crate::write::new_records::{NewRecord, insert_chunk};
use crate::write::record_write::RecordWrite;
use crate::write::retry::{Retry, StmtResult};
use crate::write::update::{UpdateRequest, Updated, update_ctx};
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, key, tag};
use catalog::Collection;
use catalog::time_series::BucketFigures;
use errors::{Error, Result, Stop, bail};
use foldhash::HashMap;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::pipeline::filter_paths;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use storage::{Direction, Effect};
use time_series::{Measurement, Selection, TimeSeriesOptions};

/// A chunk ends when it holds this many measurements or bytes.
const CHUNK_ROWS: usize = 2000;
const CHUNK_BYTES: usize = 4 << 20;
/// The most buckets that are packed at once.
const MOST_PACKED: usize = 2000;
const ALL_TIMES: (i64, i64) = (i64::MIN, i64::MAX);

/// A time series: the view that shows its measurements, and the collection of its buckets.
pub(crate) struct Series {
    shown: Arc<Collection>,
    options: Arc<TimeSeriesOptions>,
    buckets: String,
}

/// The time series of that name, if it is one.
pub(crate) fn of(ctx: &OpCtx, ns: &str) -> Option<Series> {
    let shown = ctx.engine.catalog.get(ns)?;
    let options = shown.measurements()?.clone();
    Some(Series {
        buckets: time_series::buckets_of(ns),
        options,
        shown,
    })
}

/// Refuses to change buckets under their names: users do not write their content.
pub(crate) fn refuse_buckets(ctx: &OpCtx, ns: &str) -> Result<()> {
    if !ns.contains(time_series::BUCKETS) {
        return Ok(());
    }
    let coll = ctx.engine.catalog.get(ns);
    if coll.is_some_and(|c| c.time_series.is_some() && !c.is_view()) {
        bail!(
            IllegalOperation,
            "Cannot update {ns}: it holds the buckets of a time-series collection"
        );
    }
    Ok(())
}

impl Series {
    fn check(&self, ctx: &mut OpCtx, what: &str) -> Result<()> {
        if ctx.transaction.is_some() {
            bail!(
                OperationNotSupportedInTransaction,
                "Cannot {what} a time-series collection in a multi-document transaction: {}",
                self.shown.ns
            );
        }
        ctx.need_worker()
    }

    fn locked(&self, ctx: &mut OpCtx) -> Result<Option<LockedCollection>> {
        LockedCollection::existing(ctx, &self.buckets)
    }

    /// From now on readers know that some meta value is an array; before such a one is written.
    fn note_arrays(&mut self, ctx: &mut OpCtx) -> Result<()> {
        if self.options.array_metas {
            return Ok(());
        }
        let options = TimeSeriesOptions {
            array_metas: true,
            ..TimeSeriesOptions::clone(&self.options)
        };
        let own = self.shown.options.as_doc();
        let stored = catalog::time_series::options_of_measurements(
            &self.shown.ns,
            &options,
            own.get("expireAfterSeconds").and_then(|v| v.to_i64_exact()),
            own.get("collation").and_then(|v| v.as_doc()),
        );
        (ctx.engine.catalog).change_options(&self.shown.ns, stored, &|| ctx.check())?;
        self.options = Arc::new(options);
        Ok(())
    }

    /// The buckets that may hold what a query of measurements matches.
    fn candidates(&self, ctx: &mut OpCtx, query: &Filter) -> Result<Option<CandidateBatches>> {
        let collation = query.root().collation();
        let asked = query.to_doc();
        let selected = Selection::of(&self.options, &[asked.as_doc()], collation.is_some());
        let env = ParseEnv::new().collated(collation);
        let filter =
            Filter::parse(selected.filter.as_doc(), &env).unwrap_or_else(|_| Filter::all());
        CandidateBatches::open(ctx, &self.buckets, &ReadRequest::new(&filter))
    }
}

fn damaged(coll: &Collection) -> Stop {
    Error::internal(format!("a bucket of {} is damaged", coll.ns)).into()
}

/// The measurements of a bucket.
fn measurements_of(
    coll: &Collection,
    options: &TimeSeriesOptions,
    bucket: Doc<'_>,
) -> Result<Vec<DocBuf>> {
    let rows = time_series::rows(options, bucket, None, ALL_TIMES);
    rows.and_then(time_series::Rows::all)
        .ok_or_else(|| damaged(coll))
}

/// Refuses a document that is no bucket: what a tool that restores a dump writes is read like any
/// other.
pub(crate) fn check_bucket(coll: &Collection, doc: Doc<'_>) -> Result<()> {
    let Some(options) = coll.time_series.as_deref().filter(|_| !coll.is_view()) else {
        return Ok(());
    };
    let rows = time_series::rows(options, doc, None, ALL_TIMES).and_then(time_series::Rows::all);
    let bounds = time_series::bounds(options, doc);
    let sound = |rows: &Vec<DocBuf>| {
        rows.iter().all(|d| {
            let time = d.get(&options.time).and_then(|v| v.as_date());
            let inside = |t: i64| bounds.is_some_and(|(low, high)| low <= t && t <= high);
            bson::validate(d.as_bytes()).is_ok() && time.is_some_and(inside)
        })
    };
    let stated = |rows: &Vec<DocBuf>| time_series::bounds_hold(options, doc, rows);
    if !rows
        .as_ref()
        .is_some_and(|rows| sound(rows) && stated(rows))
    {
        bail!(
            DocumentValidationFailure,
            "Document failed validation: {} holds buckets as this server makes them",
            coll.ns
        );
    }
    Ok(())
}

/// Buckets that come as they are, from another shard or a dump: what their meta values are is noted
/// as it is of measurements.
pub(crate) fn note_buckets(ctx: &mut OpCtx, ns: &str, docs: &[Doc<'_>]) -> Result<()> {
    if !ns.contains(time_series::BUCKETS) {
        return Ok(());
    }
    let is_array = |d: &Doc<'_>| d.get("meta").is_some_and(|v| v.tag == tag::ARRAY);
    let Some(mut series) = of(ctx, &ns.replacen(time_series::BUCKETS, "", 1)) else {
        return Ok(());
    };
    if docs.iter().any(is_array) && !series.options.array_metas {
        ctx.need_worker()?;
        series.note_arrays(ctx)?;
    }
    Ok(())
}

/// A measurement that is to be inserted, and its position in the command.
struct New {
    at: usize,
    doc: DocBuf,
    time: i64,
}

impl New {
    fn meta(&self, options: &TimeSeriesOptions) -> Option<Val<'_>> {
        self.doc.get(options.meta.as_ref()?)
    }
}

pub(crate) fn insert(
    ctx: &mut OpCtx,
    series: &Series,
    docs: &[Doc<'_>],
    ordered: bool,
    mut retry: Option<&mut dyn Retry>,
) -> Result<Inserted> {
    series.check(ctx, "insert into")?;
    let mut series = Series {
        shown: series.shown.clone(),
        options: series.options.clone(),
        buckets: series.buckets.clone(),
    };
    let mut out = Inserted::default();
    let mut at = 0;
    while at < docs.len() {
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while at < docs.len() && chunk.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            match prepare(ctx, &series, at, docs[at]) {
                Ok(new) => {
                    bytes += new.doc.as_bytes().len();
                    chunk.push(new);
                }
                Err(Stop::Failed(e)) if !e.is_interruption() => out.errors.push((at, e)),
                Err(stop) => return Err(stop),
            }
            at += 1;
            if ordered && !out.errors.is_empty() {
                break;
            }
        }
        out.n += insert_rows(ctx, &mut series, chunk, retry.as_deref_mut())?;
        if ordered && !out.errors.is_empty() {
            break;
        }
    }
    Ok(out)
}

fn prepare(ctx: &OpCtx, series: &Series, at: usize, doc: Doc<'_>) -> Result<New> {
    let time = Measurement::read(&series.options, doc)?.time;
    let doc = records::prepare(doc, || ctx.engine.next_stamp())?;
    Ok(New { at, doc, time })
}

/// Measurements by their meta value.
struct Grouped {
    /// Positions in the chunk: those of one value together, in the order of their times.
    rows: Vec<usize>,
    /// Where each group ends.
    ends: Vec<usize>,
}

impl Grouped {
    fn of(options: &TimeSeriesOptions, chunk: &[New]) -> Grouped {
        let mut places: HashMap<Option<(u8, &[u8])>, usize> = HashMap::default();
        let mut group_of = Vec::with_capacity(chunk.len());
        let mut ends: Vec<usize> = Vec::new();
        for new in chunk {
            let meta = new.meta(options);
            let place = *places
                .entry(meta.map(|v| (v.tag, v.bytes)))
                .or_insert_with(|| {
                    ends.push(0);
                    ends.len() - 1
                });
            ends[place] += 1;
            group_of.push(place);
        }
        // From lengths to where each begins, then, as they are filled, to where each ends.
        let mut before = 0;
        for end in &mut ends {
            before += std::mem::replace(end, before);
        }
        let mut rows = vec![0; chunk.len()];
        for (i, place) in group_of.into_iter().enumerate() {
            rows[ends[place]] = i;
            ends[place] += 1;
        }
        let mut first = 0;
        for end in &ends {
            rows[first..*end].sort_by_key(|i| chunk[*i].time);
            first = *end;
        }
        Grouped { rows, ends }
    }

    fn iter(&self) -> impl Iterator<Item = &[usize]> {
        let mut first = 0;
        self.ends.iter().map(move |end| {
            let rows = self.rows.get(first..*end).unwrap_or_default();
            first = *end;
            rows
        })
    }
}

/// Inserts one chunk as one entry; returns how many measurements it had.
fn insert_rows(
    ctx: &mut OpCtx,
    series: &mut Series,
    chunk: Vec<New>,
    retry: Option<&mut (dyn Retry + '_)>,
) -> Result<usize> {
    if chunk.is_empty() {
        return Ok(0);
    }
    let grouped = Grouped::of(&series.options, &chunk);
    let is_array = |new: &New| (new.meta(&series.options)).is_some_and(|v| v.tag == tag::ARRAY);
    if !series.options.array_metas && chunk.iter().any(is_array) {
        series.note_arrays(ctx)?;
    }
    let Some(target) = series.locked(ctx)? else {
        bail!(
            NamespaceNotFound,
            "{} has lost its buckets",
            series.shown.ns
        );
    };
    let young = target.coll.young.clone();
    let mut records = Vec::with_capacity(grouped.ends.len());
    let (mut ripe, mut sorted, mut name) = (Vec::new(), Vec::new(), Vec::new());
    for rows in grouped.iter() {
        sorted.clear();
        sorted.extend(rows.iter().map(|i| Measurement {
            doc: chunk[*i].doc.as_doc(),
            time: chunk[*i].time,
        }));
        let meta = rows.first().and_then(|i| chunk[*i].meta(&series.options));
        let mut few = 0;
        let mut rest = rows;
        for packed in time_series::pack(&series.options, meta, &sorted) {
            if packed.rows < time_series::PACKED_ROWS {
                few += packed.rows;
            }
            let (these, more) = rest.split_at(packed.rows.min(rest.len()));
            rest = more;
            count_end(&young.figures, &series.options, &chunk, these, more);
            records.extend(bucket_record(&target, &chunk, these, packed.doc)?);
        }
        let times = (sorted.first(), sorted.last());
        if few > 0
            && let (Some(first), Some(last)) = times
        {
            name_bucket(&mut name, meta);
            let span = series.options.span_millis();
            let enough = young.add(&name, few, (first.time, last.time), span);
            ripe.extend(enough.map(|times| (meta.map(Val::to_value), times)));
        }
    }
    let result = |at| StmtResult {
        at,
        n: 1,
        ..StmtResult::default()
    };
    let made = records.len() as u64;
    let done = insert_chunk(ctx, target, records, true, retry, result)?;
    young.figures.made.fetch_add(made, Relaxed);
    young.figures.measurements.fetch_add(done.n as u64, Relaxed);
    if let Some((_, e)) = done.errors.into_iter().next() {
        return Err(e.into());
    }
    pack_ripe(ctx, series, ripe);
    Ok(done.n)
}

/// The record of a bucket that has `these` of the chunk's measurements.
fn bucket_record(
    target: &LockedCollection,
    chunk: &[New],
    these: &[usize],
    doc: DocBuf,
) -> Result<Option<NewRecord>> {
    let Some((first, with)) = these.split_first() else {
        return Ok(None);
    };
    let with = with.iter().map(|i| chunk[*i].at).collect();
    let new = NewRecord::new(target, chunk[*first].at, doc)?;
    Ok(Some(new.holding(with)))
}

/// By its bytes: what lies in one bucket has one and the same value.
fn name_bucket(name: &mut Vec<u8>, meta: Option<Val<'_>>) {
    name.clear();
    if let Some(v) = meta {
        name.push(v.tag);
        name.extend_from_slice(v.bytes);
    }
}

/// Buckets that are not packed now stay readable as they are.
fn pack_ripe(ctx: &mut OpCtx, series: &Series, ripe: Vec<(Option<Value>, (i64, i64))>) {
    for (meta, times) in ripe {
        if let Err(e) = pack(ctx, series, meta.as_ref().map(Value::as_val), times) {
            tracing::debug!(namespace = &*series.shown.ns, error = %e, "buckets were not packed");
        }
    }
}

/// Counts why a bucket with `these` of the chunk's measurements has not those behind it too.
fn count_end(
    figures: &BucketFigures,
    options: &TimeSeriesOptions,
    chunk: &[New],
    these: &[usize],
    behind: &[usize],
) {
    if let (Some(first), Some(next)) = (these.first(), behind.first()) {
        let end = chunk[*first].time.saturating_add(options.span_millis());
        count_full(figures, these.len(), chunk[*next].time >= end);
    }
}

/// Packs the measurements of one meta value that lie as they came, between two times.
fn pack(ctx: &mut OpCtx, series: &Series, meta: Option<Val<'_>>, times: (i64, i64)) -> Result<()> {
    ctx.flush_own();
    let Some(target) = series.locked(ctx)? else {
        return Ok(());
    };
    let coll = target.coll.clone();
    let seen = ctx.engine.store.sequence();
    let mut gone = young_between(ctx, &coll, meta, times)?;
    if gone.len() < 2 {
        return Ok(());
    }
    let mut write = RecordWrite::new(target);
    let hashes: Vec<u64> = gone.iter().map(|(key, _)| latch_hash(key)).collect();
    write.latch(ctx, &hashes)?;
    if ctx.engine.store.sequence() != seen {
        gone = read_again(ctx, &coll, gone)?;
    }
    let mut rows = Vec::new();
    for (_, bucket) in &gone {
        let young = time_series::young_rows(&series.options, bucket.as_doc());
        rows.extend(young.ok_or_else(|| damaged(&coll))?);
    }
    rows.sort_by_key(|m| m.time);
    let new = time_series::pack(&series.options, meta, &rows);
    let new: Vec<DocBuf> = new.map(|p| p.doc).collect();
    if new.len() >= gone.len() {
        return Ok(());
    }
    let packed = new.len() as u64;
    replace(ctx, &mut write, &gone, new)?;
    write.commit_unrecorded(ctx)?;
    coll.young.figures.packed.fetch_add(packed, Relaxed);
    Ok(())
}

/// Counts a bucket that the measurement behind it did not fit into.
fn count_full(figures: &BucketFigures, rows: usize, by_time: bool) {
    let figure = match rows >= time_series::MAX_ROWS {
        true => &figures.full_by_count,
        false if by_time => &figures.full_by_time,
        false => &figures.full_by_size,
    };
    figure.fetch_add(1, Relaxed);
}

/// The buckets under latched keys, which are in order, as they are now. One scan costs less than a
/// look for each.
fn read_again(
    ctx: &mut OpCtx,
    coll: &Collection,
    before: Vec<(Vec<u8>, DocBuf)>,
) -> Result<Vec<(Vec<u8>, DocBuf)>> {
    let (Some((low, _)), Some((high, _))) = (before.first(), before.last()) else {
        return Ok(Vec::new());
    };
    let end = [high.as_slice(), &[0]].concat();
    let view = ctx.latest();
    let mut scan = view.scan(low, &end, Direction::Forward);
    let mut wanted = before.into_iter().map(|(key, _)| key).peekable();
    let mut found = Vec::new();
    while scan.next()? {
        ctx.tick(1)?;
        while wanted.next_if(|k| k.as_slice() < scan.key()).is_some() {}
        if let Some(key) = wanted.next_if(|k| k == scan.key()) {
            let bucket = records::stored(coll, &key, scan.value())?.to_buf();
            found.push((key, bucket));
        }
    }
    Ok(found)
}

/// The buckets that lie as they came, under their keys in the store, in order.
fn young_between(
    ctx: &mut OpCtx,
    coll: &Collection,
    meta: Option<Val<'_>>,
    (from, to): (i64, i64),
) -> Result<Vec<(Vec<u8>, DocBuf)>> {
    let bound = |time: i64, end: bool| {
        let mut w = Writer::new();
        w.val("m", meta.unwrap_or(Val::NULL)).date("t", time);
        if end {
            w.val("o", Val::MAX_KEY);
        }
        coll.record_key(&key::of(w.finish().as_doc().as_val()))
    };
    let view = ctx.latest();
    let mut scan = view.scan(&bound(from, false), &bound(to, true), Direction::Forward);
    let mut found = Vec::new();
    while found.len() < MOST_PACKED && scan.next()? {
        ctx.tick(1)?;
        let same = |d: Doc<'_>| match (d.get("meta"), meta) {
            (None, None) => true,
            (Some(a), Some(b)) => a.tag == b.tag && a.bytes == b.bytes,
            _ => false,
        };
        let young = |d: &Doc<'_>| time_series::is_young(*d) && same(*d);
        if let Some(bucket) = Doc::new(scan.value()).filter(young) {
            found.push((scan.key().to_vec(), bucket.to_buf()));
        }
    }
    Ok(found)
}

/// Buckets of these measurements, which have the meta value.
fn buckets_of(
    options: &TimeSeriesOptions,
    meta: Option<Val<'_>>,
    docs: &[DocBuf],
) -> Result<Vec<DocBuf>> {
    let mut sorted = Vec::with_capacity(docs.len());
    for d in docs {
        sorted.push(Measurement::read(options, d.as_doc())?);
    }
    sorted.sort_by_key(|m| m.time);
    let packed = time_series::pack(options, meta, &sorted);
    Ok(packed.map(|p| p.doc).collect())
}

/// Stages one entry that takes latched buckets out and puts others in.
fn replace(
    ctx: &mut OpCtx,
    write: &mut RecordWrite,
    gone: &[(Vec<u8>, DocBuf)],
    new: Vec<DocBuf>,
) -> Result<()> {
    let coll = write.coll().clone();
    let (mut effects, mut bytes) = (Vec::new(), 0);
    let records = new.len() as i64 - gone.len() as i64;
    for (key, bucket) in gone {
        let versions = Versions {
            before: Some(bucket.as_doc()),
            after: None,
            update: None,
        };
        write.changes.clear();
        let changed = write.changes.add(&coll, versions)?;
        write.changes.effects(&coll, changed, key, &mut effects);
        effects.push(Effect::Delete(key.clone()));
        bytes -= bucket.as_bytes().len() as i64;
    }
    for bucket in new {
        let versions = Versions {
            before: None,
            after: Some(bucket.as_doc()),
            update: None,
        };
        write.changes.clear();
        let changed = write.changes.add(&coll, versions)?;
        write.mark_multikey(ctx)?;
        let key = records::record_key(&coll, records::id_of(bucket.as_doc())?);
        // A new key, which no other write has; caches go by the latch all the same.
        let _ = ctx.latch_keys(&mut write.latches, &[latch_hash(&key)])?;
        write.changes.effects(&coll, changed, &key, &mut effects);
        bytes += bucket.as_bytes().len() as i64;
        effects.push(Effect::Put(key, bucket.into_vec()));
    }
    write.stage_insert(effects, records, bytes);
    Ok(())
}

/// Deletes measurements: all that match, or the first.
pub(crate) fn delete(
    ctx: &mut OpCtx,
    series: &Series,
    req: &DeleteRequest,
    at: usize,
    mut retry: Option<&mut (dyn Retry + '_)>,
) -> Result<Deleted> {
    series.check(ctx, "delete from")?;
    if req.sort.is_some() {
        bail!(
            InvalidOptions,
            "Cannot perform a findAndModify with a sort on a time-series collection"
        );
    }
    let mut out = Deleted::default();
    let Some(mut batches) = series.candidates(ctx, req.filter)? else {
        return Ok(out);
    };
    loop {
        let keys = batches.next(ctx)?;
        if keys.is_empty() {
            return Ok(out);
        }
        for key in keys {
            delete_in(ctx, series, key, req, at, retry.as_deref_mut(), &mut out)?;
            if !req.multi && out.n > 0 {
                return Ok(out);
            }
        }
    }
}

/// Deletes in one bucket.
fn delete_in(
    ctx: &mut OpCtx,
    series: &Series,
    key: Vec<u8>,
    req: &DeleteRequest,
    at: usize,
    retry: Option<&mut (dyn Retry + '_)>,
    out: &mut Deleted,
) -> Result<()> {
    let Some(target) = series.locked(ctx)? else {
        return Ok(());
    };
    let mut write = RecordWrite::of_records(ctx, target, std::slice::from_ref(&key))?;
    let coll = write.coll().clone();
    let Some(record) = ctx.latest().get(&key)? else {
        return Ok(());
    };
    let bucket = records::stored(&coll, &key, &record)?.to_buf();
    let (mut kept, mut n) = (Vec::new(), 0);
    for d in measurements_of(&coll, &series.options, bucket.as_doc())? {
        ctx.tick(1)?;
        let wanted = req.multi || n == 0;
        if wanted && test(req.filter, d.as_doc(), req.vars.as_deref())? {
            n += 1;
            if req.images {
                out.before = Some(d);
            }
        } else {
            kept.push(d);
        }
    }
    if n == 0 {
        return Ok(());
    }
    let new = buckets_of(&series.options, bucket.get("meta"), &kept)?;
    replace(ctx, &mut write, &[(key, bucket)], new)?;
    let image = out.before.clone();
    write.commit(ctx, retry, || {
        vec![StmtResult {
            at,
            n,
            image,
            ..Default::default()
        }]
    })?;
    out.n += n;
    Ok(())
}

/// Changes the meta value of the measurements that match: nothing else of them can be asked or
/// changed, as in MongoDB.
pub(crate) fn update(ctx: &mut OpCtx, series: &Series, req: &UpdateRequest) -> Result<Updated> {
    series.check(ctx, "update")?;
    check_update(series, req)?;
    let mut series = Series {
        shown: series.shown.clone(),
        options: series.options.clone(),
        buckets: series.buckets.clone(),
    };
    let mut out = Updated::default();
    let Some(mut batches) = series.candidates(ctx, req.filter)? else {
        return Ok(out);
    };
    loop {
        let keys = batches.next(ctx)?;
        if keys.is_empty() {
            return Ok(out);
        }
        for key in keys {
            update_bucket(ctx, &mut series, key, req, &mut out)?;
        }
    }
}

fn check_update(series: &Series, req: &UpdateRequest) -> Result<()> {
    let refuse = |what: &str| -> Result<()> {
        bail!(
            InvalidOptions,
            "Cannot perform {what} on a time-series collection: {}",
            series.shown.ns
        )
    };
    if req.images {
        return refuse("a findAndModify with an update");
    }
    if !req.multi {
        return refuse("a non-multi update");
    }
    if req.upsert {
        return refuse("an upsert");
    }
    if req.update.is_pipeline() || req.update.is_replacement() {
        return refuse("an update with a pipeline or a replacement");
    }
    let Some(meta) = &series.options.meta else {
        return refuse("an update without a metaField");
    };
    let of_meta = |p: &str| {
        let rest = p.strip_prefix(meta.as_str());
        rest.is_some_and(|r| r.is_empty() || r.starts_with('.'))
    };
    let asked = filter_paths(req.filter.root());
    if !req.filter.is_trivial() && !asked.is_some_and(|all| all.iter().all(|p| of_meta(p))) {
        return refuse("an update when querying on a field that is not the metaField");
    }
    let touched = req.update.touched_paths();
    if !touched.is_some_and(|all| all.iter().all(|p| of_meta(p))) {
        return refuse("an update of a field that is not the metaField");
    }
    Ok(())
}

fn update_bucket(
    ctx: &mut OpCtx,
    series: &mut Series,
    key: Vec<u8>,
    req: &UpdateRequest,
    out: &mut Updated,
) -> Result<()> {
    let meta_field = series.options.meta.clone().unwrap_or_default();
    let shown = |bucket: Doc<'_>| {
        let mut w = Writer::new();
        w.val("_id", bucket.get("_id").unwrap_or(Val::NULL));
        if let Some(v) = bucket.get("meta") {
            w.val(&meta_field, v);
        }
        w.finish()
    };
    for _ in 0..2 {
        let Some(target) = series.locked(ctx)? else {
            return Ok(());
        };
        let mut write = RecordWrite::of_records(ctx, target, std::slice::from_ref(&key))?;
        let coll = write.coll().clone();
        let Some(record) = ctx.latest().get(&key)? else {
            return Ok(());
        };
        let bucket = records::stored(&coll, &key, &record)?.to_buf();
        let before = shown(bucket.as_doc());
        if !req.filter.matches_with(before.as_doc(), req.vars)? {
            return Ok(());
        }
        let control = bucket.get("control").and_then(|v| v.as_doc());
        let count = control.and_then(|d| d.get("count")?.to_i64_exact());
        let count = count.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        let applied = (req.update).apply(before.as_doc(), req.filter, &update_ctx(ctx, req))?;
        let Some(applied) = applied else {
            out.matched += count;
            return Ok(());
        };
        let meta = applied.doc.get(&meta_field);
        if meta.is_some_and(|v| v.tag == tag::ARRAY) && !series.options.array_metas {
            drop(write);
            series.note_arrays(ctx)?;
            continue;
        }
        let new = with_meta(bucket.as_doc(), meta);
        replace(ctx, &mut write, &[(key, bucket)], vec![new])?;
        write.commit_unrecorded(ctx)?;
        out.matched += count;
        out.modified += count;
        return Ok(());
    }
    Ok(())
}

/// The bucket with another meta value, under a key of its own.
fn with_meta(bucket: Doc<'_>, meta: Option<Val<'_>>) -> DocBuf {
    let time = bucket.get("_id").and_then(|v| v.as_doc()?.get("t"));
    let mut w = Writer::with_capacity(bucket.len() + 64);
    w.open_doc("_id")
        .val("m", meta.unwrap_or(Val::NULL))
        .val("t", time.unwrap_or(Val::NULL))
        .oid("o", ObjectId::generate())
        .close();
    for e in bucket {
        match e.name {
            "_id" | "meta" => {}
            "data" => {
                if let Some(m) = meta {
                    w.val("meta", m);
                }
                w.val("data", e.val);
            }
            _ => {
                w.val(e.name, e.val);
            }
        }
    }
    w.finish()
}

/// Deletes up to `most` buckets whose span has ended before a moment, as MongoDB does: what they hold
/// is older then. Returns how many, and whether none is left.
pub fn expire_measurements(
    ctx: &mut OpCtx,
    shown: &Collection,
    before_millis: i64,
    most: usize,
) -> Result<(u64, bool)> {
    let Some(series) = of(ctx, &shown.ns) else {
        return Ok((0, true));
    };
    ctx.flush_own();
    let mut w = Writer::new();
    let begun = before_millis.saturating_sub(series.options.span_millis());
    w.open_doc(&format!("control.min.{}", series.options.time))
        .date("$lt", begun)
        .close();
    let filter = Filter::parse(w.finish().as_doc(), &ParseEnv::new())?;
    let read = ReadRequest {
        limit: Some(most as u64),
        ..ReadRequest::new(&filter)
    };
    let Some(mut batches) = CandidateBatches::open(ctx, &series.buckets, &read)? else {
        return Ok((0, true));
    };
    let mut deleted = 0;
    loop {
        let keys = batches.next(ctx)?;
        if keys.is_empty() {
            return Ok((deleted, deleted < most as u64));
        }
        let Some(target) = series.locked(ctx)? else {
            return Ok((deleted, true));
        };
        let mut write = RecordWrite::of_records(ctx, target, &keys)?;
        let coll = write.coll().clone();
        let mut gone = Vec::new();
        for key in keys {
            if let Some(record) = ctx.latest().get(&key)? {
                let bucket = records::stored(&coll, &key, &record)?.to_buf();
                gone.push((key, bucket));
            }
        }
        deleted += gone.len() as u64;
        replace(ctx, &mut write, &gone, Vec::new())?;
        write.commit_unrecorded(ctx)?;
    }
}
