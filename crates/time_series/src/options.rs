//! The option `timeseries` of a collection.

use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail};

/// How the collection begins its name that holds the buckets of another.
pub const BUCKETS: &str = "system.buckets.";
pub const MAX_SPAN_SECONDS: i64 = 31_536_000;

/// The collection that holds the buckets of the time-series collection `ns`.
pub fn buckets_of(ns: &str) -> String {
    match ns.split_once('.') {
        Some((db, coll)) => format!("{db}.{BUCKETS}{coll}"),
        None => format!("{ns}.{BUCKETS}"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Granularity {
    Seconds,
    Minutes,
    Hours,
}

impl Granularity {
    pub fn parse(name: &str) -> Option<Granularity> {
        match name {
            "seconds" => Some(Granularity::Seconds),
            "minutes" => Some(Granularity::Minutes),
            "hours" => Some(Granularity::Hours),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Granularity::Seconds => "seconds",
            Granularity::Minutes => "minutes",
            Granularity::Hours => "hours",
        }
    }

    /// The longest time between two measurements of a bucket, in seconds.
    pub fn span_seconds(self) -> i64 {
        match self {
            Granularity::Seconds => 3_600,
            Granularity::Minutes => 86_400,
            Granularity::Hours => 2_592_000,
        }
    }
}

/// The completed option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSeriesOptions {
    pub time: String,
    pub meta: Option<String>,
    /// None where the two numbers were given instead.
    pub granularity: Option<Granularity>,
    pub span_seconds: i64,
    pub rounding_seconds: Option<i64>,
    /// Some measurement has an array as its meta value: then an equality of the meta field may
    /// match an element, and says nothing of the order of buckets.
    pub array_metas: bool,
}

impl TimeSeriesOptions {
    /// From fields whose types were checked; `span` and `rounding` within their range.
    pub fn new(
        time: &str,
        meta: Option<&str>,
        granularity: Option<Granularity>,
        span: Option<i64>,
        rounding: Option<i64>,
    ) -> Result<TimeSeriesOptions> {
        for (name, field) in [("timeField", Some(time)), ("metaField", meta)] {
            let Some(field) = field else { continue };
            if field.contains('\0') {
                bail!(BadValue, "'{name}' must not contain a null byte");
            }
            if field.contains('.') {
                bail!(InvalidOptions, "'{name}' cannot contain '.'");
            }
        }
        let numbers = match (span, rounding, granularity) {
            (None, None, _) => None,
            (Some(a), Some(b), None) if a == b => Some(a),
            (Some(a), None, Some(g)) if a == g.span_seconds() => None,
            (_, _, Some(g)) => bail!(
                InvalidOptions,
                "Timeseries 'bucketMaxSpanSeconds' needs to be unset or equal to {} with the granularity given, and \
                 'bucketRoundingSeconds' needs to be unset",
                g.span_seconds()
            ),
            _ => bail!(
                InvalidOptions,
                "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' need to be set together and to the same \
                 value"
            ),
        };
        let granularity = match numbers {
            Some(_) => None,
            None => Some(granularity.unwrap_or(Granularity::Seconds)),
        };
        let span = granularity.map_or(numbers.unwrap_or(1), Granularity::span_seconds);
        Ok(TimeSeriesOptions {
            time: time.to_string(),
            meta: meta.map(str::to_string),
            granularity,
            span_seconds: span,
            rounding_seconds: numbers,
            array_metas: false,
        })
    }

    /// What MongoDB checks of the meta field where a collection is created by name.
    pub fn check_meta(&self) -> Result<()> {
        match &self.meta {
            Some(m) if m == "_id" || *m == self.time => bail!(
                InvalidOptions,
                "The metaField field name must not be the same as the timeField field, or \"_id\""
            ),
            _ => Ok(()),
        }
    }

    /// From a collection's stored options; `None` where they are not those of a time series.
    pub fn of_collection(options: Doc<'_>) -> Option<TimeSeriesOptions> {
        let d = options.get("timeseries")?.as_doc()?;
        let text = |name: &str| d.get(name).and_then(|v| v.as_str());
        let number = |name: &str| d.get(name).and_then(|v| v.to_i64_exact());
        Some(TimeSeriesOptions {
            time: text("timeField")?.to_string(),
            meta: text("metaField").map(str::to_string),
            granularity: text("granularity").and_then(Granularity::parse),
            span_seconds: number("bucketMaxSpanSeconds")?,
            rounding_seconds: number("bucketRoundingSeconds"),
            array_metas: options.get("arrayMetas").is_some_and(Val::truthy),
        })
    }

    /// As listCollections shows it, and as it is stored.
    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("timeField", &self.time);
        if let Some(m) = &self.meta {
            w.str("metaField", m);
        }
        if let Some(g) = self.granularity {
            w.str("granularity", g.name());
        }
        if let Some(n) = self.rounding_seconds {
            w.int("bucketRoundingSeconds", n);
        }
        w.int("bucketMaxSpanSeconds", self.span_seconds);
        w.finish()
    }

    pub fn span_millis(&self) -> i64 {
        self.span_seconds.saturating_mul(1000)
    }

    /// With another granularity or other numbers, which may only grow.
    pub fn changed(
        &self,
        granularity: Option<Granularity>,
        span: Option<i64>,
        rounding: Option<i64>,
    ) -> Result<TimeSeriesOptions> {
        if granularity.is_none() && span.is_none() && rounding.is_none() {
            return Ok(self.clone());
        }
        let meta = self.meta.as_deref();
        let mut next = TimeSeriesOptions::new(&self.time, meta, granularity, span, rounding)?;
        let shrinks = match (granularity, self.granularity) {
            (Some(new), Some(old)) => new < old,
            _ => next.span_seconds < self.span_seconds,
        };
        if shrinks {
            bail!(
                InvalidOptions,
                "Invalid transition for timeseries.granularity or bucketing: the span of a bucket can only be increased"
            );
        }
        next.array_metas = self.array_metas;
        Ok(next)
    }
}
