//! What a query of measurements says of buckets: a range of times, and a filter of bucket documents.

use crate::{TimeSeriesOptions, measured};
use bson::{Doc, DocBuf, Elem, Val, Value, Writer, order, tag};

/// The buckets that may hold what a query matches, and the times that it may match.
#[derive(Clone, Debug)]
pub struct Selection {
    /// A query over bucket documents.
    pub filter: DocBuf,
    /// Both included.
    pub times: (i64, i64),
}

/// What the conjuncts of a query say.
struct Found {
    times: (i64, i64),
    /// Conjuncts on the meta field, with the name that buckets have for it.
    meta: Vec<DocBuf>,
    /// What measured fields ask of the bounds that buckets state.
    measured: Vec<DocBuf>,
    collated: bool,
    /// The one value that the whole meta field must equal.
    equal: Option<Value>,
    /// Between which values the whole meta field must lie, both included.
    least: Option<Value>,
    most: Option<Value>,
}

impl Selection {
    /// `queries` are all to match. With a collation strings are not in the order of their bytes.
    pub fn of(options: &TimeSeriesOptions, queries: &[Doc<'_>], collated: bool) -> Selection {
        let mut found = Found {
            times: (i64::MIN, i64::MAX),
            meta: Vec::new(),
            measured: Vec::new(),
            collated,
            equal: None,
            least: None,
            most: None,
        };
        for q in queries {
            found.conjuncts(options, *q, 0);
        }
        found.selection(options)
    }

    pub fn everything() -> Selection {
        Selection {
            filter: DocBuf::new(),
            times: (i64::MIN, i64::MAX),
        }
    }
}

/// The rest of a path that is the field or begins in it.
pub(crate) fn below<'n>(name: &'n str, field: &str) -> Option<&'n str> {
    let rest = name.strip_prefix(field)?;
    (rest.is_empty() || rest.starts_with('.')).then_some(rest)
}

/// A value that only equal values match, or those on one side of it.
fn is_plain(v: &Val<'_>) -> bool {
    !v.is_nullish() && !matches!(v.tag, tag::ARRAY | tag::REGEX | tag::UNDEFINED)
}

/// Operators that mean something else behind another stage, or that say nothing of a whole bucket.
fn stays_behind(v: Val<'_>) -> bool {
    let Some(d) = v.as_container() else {
        return false;
    };
    d.iter().any(|e| {
        matches!(
            e.name,
            "$near" | "$nearSphere" | "$text" | "$where" | "$expr"
        ) || stays_behind(e.val)
    })
}

impl Found {
    fn conjuncts(&mut self, options: &TimeSeriesOptions, query: Doc<'_>, depth: usize) {
        for e in query {
            if e.name == "$and" && depth < 20 {
                let list = e.val.as_array().unwrap_or(Doc::EMPTY);
                for q in list.values().filter_map(|v| v.as_doc()) {
                    self.conjuncts(options, q, depth + 1);
                }
            } else if e.name == options.time {
                self.time(e.val);
            } else if let Some(below) = options.meta.as_deref().and_then(|m| below(e.name, m)) {
                self.meta(below, e);
            } else {
                measured::bucket_queries(e, self.collated, &mut self.measured);
            }
        }
    }

    fn time(&mut self, v: Val<'_>) {
        if let Some(t) = v.as_date() {
            self.within(t, t);
            return;
        }
        for e in v.as_doc().unwrap_or(Doc::EMPTY) {
            let Some(t) = e.val.as_date() else { continue };
            match e.name {
                "$eq" => self.within(t, t),
                "$gt" | "$gte" => self.within(t, i64::MAX),
                "$lt" | "$lte" => self.within(i64::MIN, t),
                _ => {}
            }
        }
    }

    fn within(&mut self, low: i64, high: i64) {
        self.times = (self.times.0.max(low), self.times.1.min(high));
    }

    /// `below`: the path within the meta value.
    fn meta(&mut self, below: &str, e: Elem<'_>) {
        if stays_behind(e.val) {
            return;
        }
        let mut w = Writer::new();
        w.val(&format!("meta{below}"), e.val);
        self.meta.push(w.finish());
        let equal = match e.val.as_doc() {
            Some(d) if d.first().is_some_and(|f| f.name == "$eq") && d.count() == 1 => d.get("$eq"),
            Some(d) if d.first().is_some_and(|f| f.name.starts_with('$')) => None,
            _ => Some(e.val),
        };
        if !below.is_empty() {
            return;
        }
        if let Some(v) = equal.filter(is_plain) {
            self.equal = Some(v.to_value());
        }
        for e in e.val.as_doc().unwrap_or(Doc::EMPTY) {
            self.meta_between(e);
        }
    }

    /// `e`: an operator on the meta field, and what it compares with.
    fn meta_between(&mut self, e: Elem<'_>) {
        let (least, most) = match e.name {
            "$gt" | "$gte" => (Some(e.val), None),
            "$lt" | "$lte" => (None, Some(e.val)),
            "$in" => {
                let all = || e.val.as_array().unwrap_or(Doc::EMPTY).values();
                if !all().all(|v| is_plain(&v)) {
                    return;
                }
                let by = |a: &Val<'_>, b: &Val<'_>| order::compare(*a, *b);
                (all().min_by(by), all().max_by(by))
            }
            _ => return,
        };
        let higher = |v: &Val<'_>, than: &Option<Value>| {
            let than = than.as_ref().map(Value::as_val);
            than.is_none_or(|t| order::compare(*v, t).is_gt())
        };
        let lower = |v: &Val<'_>, than: &Option<Value>| {
            let than = than.as_ref().map(Value::as_val);
            than.is_none_or(|t| order::compare(*v, t).is_lt())
        };
        if let Some(v) = least.filter(|v| is_plain(v) && higher(v, &self.least)) {
            self.least = Some(v.to_value());
        }
        if let Some(v) = most.filter(|v| is_plain(v) && lower(v, &self.most)) {
            self.most = Some(v.to_value());
        }
    }

    fn selection(self, options: &TimeSeriesOptions) -> Selection {
        let (low, high) = self.times;
        let mut w = Writer::new();
        let ordered = !self.collated && !options.array_metas;
        let meta = match (&self.equal, &options.meta) {
            (Some(v), _) if ordered => Some(v.as_val()),
            (_, None) => Some(Val::NULL),
            _ => None,
        };
        let bounded = self.least.is_some() || self.most.is_some();
        if meta.is_none() && ordered && bounded {
            w.open_doc("_id");
            if let Some(least) = &self.least {
                w.open_doc("$gte").val("m", least.as_val()).close();
            }
            if let Some(most) = &self.most {
                w.open_doc("$lte").val("m", most.as_val());
                w.val("t", Val::MAX_KEY).close();
            }
            w.close();
        }
        if let Some(m) = meta {
            // A bucket may begin up to its span before the first of its measurements that counts.
            w.open_doc("_id").open_doc("$gte").val("m", m);
            if low > i64::MIN {
                w.date("t", low.saturating_sub(options.span_millis()));
            }
            w.close().open_doc("$lte").val("m", m);
            match high < i64::MAX {
                true => w.date("t", high).val("o", Val::MAX_KEY),
                false => w.val("t", Val::MAX_KEY),
            };
            w.close().close();
        }
        if low > i64::MIN {
            w.open_doc(&format!("control.max.{}", options.time))
                .date("$gte", low)
                .close();
        }
        if high < i64::MAX {
            w.open_doc(&format!("control.min.{}", options.time))
                .date("$lte", high)
                .close();
        }
        if !self.meta.is_empty() || !self.measured.is_empty() {
            w.open_array("$and");
            for d in self.meta.iter().chain(&self.measured) {
                w.push(d.as_doc().as_val());
            }
            w.close();
        }
        Selection {
            filter: w.finish(),
            times: self.times,
        }
    }
}
