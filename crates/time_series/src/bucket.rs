//! Buckets: measurements of one meta value and a bounded time, as one document.
//!
//! ```text
//! { _id: { m: meta or null, t: earliest time, o: ObjectId },
//!   control: { version, min: { TIME, measured field* }, max: { TIME, measured field* }, count },
//!   meta: value, where there is one,
//!   data: binary }
//!
//! data = 0 (measurement as BSON, without its meta field)*                 as they came
//!      | 1 rows varint | columns varint | name* | shapes | runs | column*  by column, sorted by time
//! name   = length varint | bytes          the first is the time field
//! shapes = number varint | (fields varint | column varint*)*               the fields of a measurement, in order
//! runs   = (shape varint | measurements varint)*, until there are `rows`
//! column = values varint | length varint | bytes                           see `columns`
//! ```
//!
//! Records lie in the order of `_id`, so the buckets of one meta value lie together, by time: a query
//! of one device's hour reads one range, and no index. Times that a bucket holds are not before
//! `_id.t`, and not later than that plus the collection's span.

use crate::columns::{self, Bytes, ValuePlace, put_varint};
use crate::measured;
use crate::{MAX_BYTES, MAX_ROWS, PACKED_ROWS, TimeSeriesOptions};
use bson::{Doc, DocBuf, ObjectId, Val, Writer, tag};
use errors::{Result, bail};
use std::collections::{BTreeSet, HashMap};

const AS_THEY_CAME: u8 = 0;
const BY_COLUMN: u8 = 1;
/// A bucket that says it holds more is damaged.
const MOST_ROWS: usize = 100_000;

/// A measurement, complete with `_id`.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    pub doc: Doc<'a>,
    pub time: i64,
}

impl<'a> Measurement<'a> {
    pub fn read(options: &TimeSeriesOptions, doc: Doc<'a>) -> Result<Measurement<'a>> {
        match doc.get(&options.time).and_then(|v| v.as_date()) {
            Some(time) => Ok(Measurement { doc, time }),
            None => bail!(
                BadValue,
                "'{}' must be present and contain a valid BSON UTC datetime value",
                options.time
            ),
        }
    }

    pub fn meta(&self, options: &TimeSeriesOptions) -> Option<Val<'a>> {
        self.doc.get(options.meta.as_ref()?)
    }
}

/// A bucket, and how many of the measurements it took.
pub struct Packed {
    pub doc: DocBuf,
    pub rows: usize,
}

/// Buckets of measurements that have this meta value. The measurements are sorted by time.
pub fn pack<'m>(
    options: &'m TimeSeriesOptions,
    meta: Option<Val<'m>>,
    sorted: &'m [Measurement<'m>],
) -> impl Iterator<Item = Packed> + 'm {
    let mut rest = sorted;
    std::iter::from_fn(move || {
        let end = rest.first()?.time.saturating_add(options.span_millis());
        let mut bytes = 0;
        let fits = |m: &&Measurement<'_>| {
            let before = bytes;
            bytes += m.doc.len();
            m.time < end && (bytes <= MAX_BYTES || before == 0)
        };
        let n = rest.iter().take(MAX_ROWS).take_while(fits).count().max(1);
        let (rows, more) = rest.split_at(n);
        rest = more;
        Some(Packed {
            doc: bucket(options, meta, rows),
            rows: n,
        })
    })
}

fn bucket(options: &TimeSeriesOptions, meta: Option<Val<'_>>, rows: &[Measurement<'_>]) -> DocBuf {
    let (first, last) = (
        rows.first().map_or(0, |m| m.time),
        rows.last().map_or(0, |m| m.time),
    );
    let columns = (rows.len() >= PACKED_ROWS).then(|| Columns::of(options, rows));
    let data = match &columns {
        Some(columns) => columns.to_bytes(rows.len()),
        None => as_they_came(options, rows),
    };
    let bounds = columns.iter().flat_map(Columns::bounds).collect::<Vec<_>>();
    let mut w = Writer::with_capacity(data.len() + 256);
    w.open_doc("_id")
        .val("m", meta.unwrap_or(Val::NULL))
        .date("t", first)
        .oid("o", ObjectId::generate())
        .close();
    w.open_doc("control")
        .i32("version", if data[0] == BY_COLUMN { 2 } else { 1 });
    w.open_doc("min").date(&options.time, first);
    for (name, least, _) in &bounds {
        w.val(name, *least);
    }
    w.close().open_doc("max").date(&options.time, last);
    for (name, _, greatest) in &bounds {
        w.val(name, *greatest);
    }
    w.close();
    w.i32("count", rows.len() as i32).close();
    if let Some(m) = meta {
        w.val("meta", m);
    }
    w.binary("data", 0, &data);
    w.finish()
}

fn as_they_came(options: &TimeSeriesOptions, rows: &[Measurement<'_>]) -> Vec<u8> {
    let mut data = Vec::with_capacity(1 + rows.iter().map(|m| m.doc.len()).sum::<usize>());
    data.push(AS_THEY_CAME);
    for m in rows {
        match &options.meta {
            Some(meta) => push_without(m.doc, meta, &mut data),
            None => data.extend_from_slice(m.doc.as_bytes()),
        }
    }
    data
}

/// Appends a document without the fields of that name.
fn push_without(doc: Doc<'_>, name: &str, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let (bytes, end) = (doc.as_bytes(), doc.len() - 1);
    let (mut fields, mut copied) = (doc.iter(), 4);
    loop {
        let before = end - fields.rest().len();
        let Some((this, _)) = fields.next_raw() else {
            break;
        };
        if bson::same_name(this, name) {
            out.extend_from_slice(bytes.get(copied..before).unwrap_or(&[]));
            copied = end - fields.rest().len();
        }
    }
    out.extend_from_slice(bytes.get(copied..).unwrap_or(&[0]));
    let len = i32::try_from(out.len() - start).unwrap_or(i32::MAX);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&len.to_le_bytes());
    }
}

/// The fields of some measurements by column, without the meta field.
struct Columns<'a> {
    /// The time field is the first.
    names: Vec<&'a str>,
    at: HashMap<&'a str, usize>,
    values: Vec<Vec<Val<'a>>>,
    /// The columns of a measurement's fields, in order.
    shapes: Vec<Vec<usize>>,
    /// A shape, and how many measurements in a row have it.
    runs: Vec<(usize, usize)>,
}

impl<'a> Columns<'a> {
    fn of(options: &'a TimeSeriesOptions, rows: &[Measurement<'a>]) -> Columns<'a> {
        let mut columns = Columns {
            names: vec![&options.time],
            at: HashMap::from([(options.time.as_str(), 0)]),
            values: vec![Vec::with_capacity(rows.len())],
            shapes: Vec::new(),
            runs: Vec::new(),
        };
        let mut shape = Vec::new();
        for m in rows {
            shape.clear();
            for e in m.doc {
                // A name that comes twice is read by its first value; the others are lost to queries.
                if options.meta.as_deref() != Some(e.name) {
                    let likely = columns.before(shape.len());
                    shape.push(columns.push(e.name, e.val, likely));
                }
            }
            columns.end_row(&shape);
        }
        columns
    }

    /// The column where the measurement before has its field of that place.
    fn before(&self, place: usize) -> Option<usize> {
        let (shape, _) = self.runs.last()?;
        self.shapes.get(*shape)?.get(place).copied()
    }

    fn push(&mut self, name: &'a str, v: Val<'a>, likely: Option<usize>) -> usize {
        let known = likely.filter(|at| self.names.get(*at) == Some(&name));
        let at = known.unwrap_or_else(|| {
            *self.at.entry(name).or_insert_with(|| {
                self.names.push(name);
                self.values.push(Vec::new());
                self.names.len() - 1
            })
        });
        self.values[at].push(v);
        at
    }

    fn end_row(&mut self, shape: &[usize]) {
        let at = match self.runs.last() {
            Some((at, _)) if self.shapes[*at] == shape => *at,
            _ => (self.shapes.iter().position(|s| s == shape)).unwrap_or_else(|| {
                self.shapes.push(shape.to_vec());
                self.shapes.len() - 1
            }),
        };
        match self.runs.last_mut() {
            Some((last, n)) if *last == at => *n += 1,
            _ => self.runs.push((at, 1)),
        }
    }

    /// The names of measured fields that have bounds, with these.
    fn bounds(&self) -> impl Iterator<Item = (&'a str, Val<'a>, Val<'a>)> {
        let fields = self.names.iter().zip(&self.values).skip(1);
        fields.filter_map(|(name, values)| {
            let (least, greatest) = measured::of_values(name, values)?;
            Some((*name, least, greatest))
        })
    }

    fn to_bytes(&self, rows: usize) -> Vec<u8> {
        let mut data = vec![BY_COLUMN];
        put_varint(&mut data, rows as u64);
        put_varint(&mut data, self.names.len() as u64);
        for name in &self.names {
            put_varint(&mut data, name.len() as u64);
            data.extend_from_slice(name.as_bytes());
        }
        put_varint(&mut data, self.shapes.len() as u64);
        for shape in &self.shapes {
            put_varint(&mut data, shape.len() as u64);
            shape.iter().for_each(|c| put_varint(&mut data, *c as u64));
        }
        for (shape, n) in &self.runs {
            put_varint(&mut data, *shape as u64);
            put_varint(&mut data, *n as u64);
        }
        let mut column = Vec::new();
        for values in &self.values {
            column.clear();
            columns::encode(values, &mut column);
            put_varint(&mut data, values.len() as u64);
            put_varint(&mut data, column.len() as u64);
            data.extend_from_slice(&column);
        }
        data
    }
}

/// The earliest and the latest time in a bucket, by what it says of itself.
pub fn bounds(options: &TimeSeriesOptions, bucket: Doc<'_>) -> Option<(i64, i64)> {
    let control = bucket.get("control")?.as_doc()?;
    let time = |name: &str| control.get(name)?.as_doc()?.get(&options.time)?.as_date();
    Some((time("min")?, time("max")?))
}

fn data(bucket: Doc<'_>) -> Option<&[u8]> {
    Some(bucket.get("data")?.as_binary()?.1)
}

/// Whether its measurements lie as they came.
pub fn is_young(bucket: Doc<'_>) -> bool {
    data(bucket).and_then(|d| d.first()) == Some(&AS_THEY_CAME)
}

/// The measurements of a bucket whose measurements lie as they came, without their meta field; `None`
/// for any other.
pub fn young_rows<'a>(
    options: &TimeSeriesOptions,
    bucket: Doc<'a>,
) -> Option<Vec<Measurement<'a>>> {
    let (&AS_THEY_CAME, mut rest) = data(bucket)?.split_first()? else {
        return None;
    };
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let len = i32::from_le_bytes(rest.first_chunk::<4>().copied()?);
        let (doc, more) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        rows.push(Measurement::read(options, Doc::new(doc)?).ok()?);
        rest = more;
    }
    Some(rows)
}

/// The measurements of a bucket, one after the other, each with the fields that are wanted (`None`:
/// all), the time field first, then the meta field. Of those outside of `times` some may be left out.
///
/// `None`: no bucket, or a damaged one.
pub fn rows(
    options: &TimeSeriesOptions,
    bucket: Doc<'_>,
    wanted: Option<&BTreeSet<String>>,
    times: (i64, i64),
) -> Option<Rows> {
    let wants = |name: &str| wanted.is_none_or(|w| w.contains(name));
    let meta = match &options.meta {
        Some(name) if wants(name) => bucket.get("meta").map(|v| {
            let mut w = Writer::new();
            w.val(name, v);
            w.finish()
        }),
        _ => None,
    };
    let (kind, body) = data(bucket)?.split_first()?;
    let rows = match *kind {
        AS_THEY_CAME => Held::AsTheyCame {
            bytes: body.to_vec(),
            at: 0,
            time: options.time.clone(),
        },
        BY_COLUMN => Held::ByColumn(Table::read(body, &wants, times)?),
        _ => return None,
    };
    Some(Rows {
        meta: meta.unwrap_or_default(),
        rows,
    })
}

pub struct Rows {
    /// The meta field as a document of its own.
    meta: DocBuf,
    rows: Held,
}

enum Held {
    AsTheyCame {
        bytes: Vec<u8>,
        at: usize,
        time: String,
    },
    ByColumn(Table),
}

struct Table {
    names: Vec<String>,
    /// `None`: not wanted.
    columns: Vec<Option<Vec<ValuePlace>>>,
    arena: Vec<u8>,
    shapes: Vec<Vec<usize>>,
    /// The shape of each run of rows, and how many of the run are left.
    runs: Vec<(usize, usize)>,
    run: usize,
    /// The number of values of each column that were passed.
    passed: Vec<usize>,
    /// The time of each row.
    times: Vec<i64>,
    row: usize,
    range: (i64, i64),
    wants_time: bool,
}

impl Table {
    fn read(body: &[u8], wants: &impl Fn(&str) -> bool, range: (i64, i64)) -> Option<Table> {
        let mut b = Bytes(body);
        let rows = b.len().filter(|n| *n <= MOST_ROWS)?;
        let many = b.len()?;
        let mut names = Vec::new();
        for _ in 0..many {
            let n = b.len()?;
            names.push(std::str::from_utf8(b.take(n)?).ok()?.to_string());
        }
        let many_shapes = b.len()?;
        let mut shapes = Vec::new();
        for _ in 0..many_shapes {
            let n = b.len()?;
            let mut shape = Vec::new();
            for _ in 0..n {
                shape.push(b.len().filter(|c| *c < names.len())?);
            }
            shapes.push(shape);
        }
        let (mut runs, mut seen) = (Vec::new(), 0);
        while seen < rows {
            let (shape, n) = (b.len()?, b.len()?);
            if shape >= shapes.len() || n == 0 || n > rows - seen {
                return None;
            }
            seen += n;
            runs.push((shape, n));
        }
        let mut uses = vec![0usize; names.len()];
        for (shape, n) in &runs {
            shapes[*shape].iter().for_each(|c| uses[*c] += n);
        }
        let (mut arena, mut columns, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for (i, name) in names.iter().enumerate() {
            let (values, n) = (b.len()?, b.len()?);
            let bytes = b.take(n)?;
            if values != uses[i] || values > MOST_ROWS {
                return None;
            }
            if i > 0 && !wants(name) {
                columns.push(None);
                continue;
            }
            let pieces = columns::decode(bytes, values, &mut arena)?;
            if i == 0 {
                for p in &pieces {
                    let v = arena.get(p.start as usize..p.end as usize)?;
                    let v: [u8; 8] = v.try_into().ok().filter(|_| p.tag == tag::DATE)?;
                    times.push(i64::from_le_bytes(v));
                }
            }
            columns.push(Some(pieces));
        }
        if times.len() != rows || !b.0.is_empty() {
            return None;
        }
        Some(Table {
            passed: vec![0; names.len()],
            wants_time: names.first().is_some_and(|n| wants(n)),
            names,
            columns,
            arena,
            shapes,
            runs,
            run: 0,
            times,
            row: 0,
            range,
        })
    }

    fn value(&self, column: usize, at: usize) -> Option<Val<'_>> {
        let p = self.columns.get(column)?.as_ref()?.get(at)?;
        let bytes = self.arena.get(p.start as usize..p.end as usize)?;
        Some(Val { tag: p.tag, bytes })
    }

    /// Writes the next row; `false` at the end.
    fn next(&mut self, meta: Doc<'_>, w: &mut Writer) -> bool {
        while let Some(time) = self.times.get(self.row).copied() {
            while self.runs.get(self.run).is_some_and(|r| r.1 == 0) {
                self.run += 1;
            }
            let Some((shape, left)) = self.runs.get_mut(self.run) else {
                return false;
            };
            *left -= 1;
            let shape = *shape;
            self.row += 1;
            let shown = time >= self.range.0 && time <= self.range.1;
            if shown {
                if self.wants_time
                    && let Some(name) = self.names.first()
                {
                    w.date(name, time);
                }
                w.extend(meta);
                for c in self.shapes[shape].iter().filter(|c| **c > 0) {
                    if let Some(v) = self.value(*c, self.passed[*c]) {
                        w.val(&self.names[*c], v);
                    }
                }
            }
            for c in &self.shapes[shape] {
                self.passed[*c] += 1;
            }
            if shown {
                return true;
            }
        }
        false
    }
}

impl Rows {
    /// Writes the next measurement into `out`, replacing its content; `Some(false)` at the end, `None`
    /// where the bucket is damaged.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Option<bool> {
        out.clear();
        let mut w = Writer::on(std::mem::take(out));
        let more = match &mut self.rows {
            Held::ByColumn(table) => table.next(self.meta.as_doc(), &mut w),
            Held::AsTheyCame { bytes, at, time } => {
                let rest = bytes.get(*at..)?;
                match rest.is_empty() {
                    true => false,
                    false => {
                        let len: [u8; 4] = rest.get(..4)?.try_into().ok()?;
                        let len = usize::try_from(i32::from_le_bytes(len)).ok()?;
                        let doc = Doc::new(rest.get(..len)?)?;
                        *at += len;
                        let first = doc.get(time)?;
                        w.val(time, first).extend(self.meta.as_doc());
                        doc.iter().filter(|e| e.name != time).for_each(|e| {
                            w.val(e.name, e.val);
                        });
                        true
                    }
                }
            }
        };
        *out = w.finish_into();
        Some(more)
    }

    /// All that are left.
    pub fn all(mut self) -> Option<Vec<DocBuf>> {
        let mut docs = Vec::new();
        let mut out = Vec::new();
        while self.next(&mut out)? {
            docs.push(DocBuf::from_vec(std::mem::take(&mut out))?);
        }
        Some(docs)
    }
}
