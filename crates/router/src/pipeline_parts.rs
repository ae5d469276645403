//! How a pipeline is divided between the shards and the router.
//!
//! ```text
//! $match … $project   each shard            │ rest here
//! $sort ($skip) $limit                      │ merged in that order, rest here
//! $group of sums                            │ grouped once more, rest here
//! $sample             wrapped, random order │ the first of all, unwrapped, rest here
//! $geoNear $match …   wrapped               │ merged by distance, unwrapped, rest here
//! $match of $text …   wrapped if asked for  │ rest here, which knows the scores
//! ```
//!
//! Invariant: a stage that needs all documents sees all of them, with what was known of them.

use crate::Outcome;
use crate::aggregate::stage_of;
use crate::merge::Order;
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use query::collation::Collation;
use query::metadata::asks_for;
use query::pipeline::merged::Found;
use query::sort::SortPattern;

/// Stages that look at one document at a time, and need nothing else.
const STREAMING: [&str; 9] = [
    "$match",
    "$project",
    "$addFields",
    "$set",
    "$unset",
    "$unwind",
    "$replaceRoot",
    "$replaceWith",
    "$redact",
];

/// A divided pipeline.
#[derive(Default)]
pub(crate) struct Parts {
    pub on_shards: Vec<Value>,
    /// In which the shards give their documents.
    pub order: Order,
    /// Passed over here, and then given at the most.
    pub skip: u64,
    pub limit: Option<u64>,
    /// The shards wrap their documents.
    pub wrapped: bool,
    /// The stages for here.
    pub here: Vec<Value>,
}

impl Parts {
    /// `collation` is what holds for the whole pipeline.
    pub fn of(collation: Option<&Collation>, stages: Doc<'_>) -> Outcome<Parts> {
        let all: Vec<Val<'_>> = stages.values().collect();
        let found = all.first().map_or(Found::default(), |s| Found::by(*s));
        if found.any() && is_wrapped(&all, found) {
            return Ok(Parts::wrapped_already(&all, found));
        }
        if found.near {
            return Ok(Parts::near(&all, found));
        }
        let streams = |s: &&Val<'_>| stage_of(**s).is_some_and(|s| STREAMING.contains(&s.0));
        let many = all.iter().take_while(streams).count();
        let (shards, rest) = all.split_at(many);
        let mut parts = Parts {
            on_shards: owned(shards),
            here: owned(rest),
            ..Parts::default()
        };
        if parts.push_down(rest) {
            return Ok(parts);
        }
        let score = |s: &Val<'_>| asks_for(*s, "textScore") || asks_for(*s, "score");
        if found.text && rest.iter().any(score) {
            parts.on_shards.push(found.wrapping().into());
            parts.here.insert(0, found.merged().into());
            parts.wrapped = true;
            return Ok(parts);
        }
        if parts.push_sample(rest)? {
            return Ok(parts);
        }
        parts.push_order(collation, rest)?;
        Ok(parts)
    }

    /// Gives the shards a sample that the rest begins with: each document gets a random number, and
    /// those with the least ones of all are the sample.
    fn push_sample(&mut self, rest: &[Val<'_>]) -> Outcome<bool> {
        let Some(("$sample", spec)) = rest.first().and_then(|s| stage_of(*s)) else {
            return Ok(false);
        };
        let size = spec.as_doc().and_then(|d| d.get("size")?.to_i64_exact());
        let Some(size) = size.filter(|n| *n > 0) else {
            return Ok(false);
        };
        let number = doc! {"d": "$$ROOT", "r": doc! {"$rand": doc! {}}};
        let order = doc! {"r": 1};
        self.on_shards.push(doc! {"$replaceWith": number}.into());
        self.on_shards.push(doc! {"$sort": &order}.into());
        self.on_shards.push(doc! {"$limit": size}.into());
        self.order = Order::By(SortPattern::parse_found(order.as_doc())?);
        self.limit = Some(size.unsigned_abs());
        self.wrapped = true;
        self.here.remove(0);
        if !self.here.is_empty() {
            self.here.insert(0, Found::default().merged().into());
        }
        Ok(true)
    }

    /// Who asks wants the documents as they are wrapped.
    fn wrapped_already(all: &[Val<'_>], found: Found) -> Parts {
        let limits = all.iter().filter_map(|s| number(*s, "$limit"));
        Parts {
            on_shards: owned(all),
            order: order_of(found),
            limit: limits.min(),
            ..Parts::default()
        }
    }

    /// The nearest documents of each shard. Stages that make other documents would lose their
    /// distances.
    fn near(all: &[Val<'_>], found: Found) -> Parts {
        let selects =
            |s: &&Val<'_>| stage_of(**s).is_some_and(|s| matches!(s.0, "$match" | "$limit"));
        let many = 1 + all.iter().skip(1).take_while(selects).count();
        let mut on_shards = owned(&all[..many]);
        on_shards.push(found.wrapping().into());
        let mut here = owned(&all[1..]);
        if !here.is_empty() {
            here.insert(0, found.merged().into());
        }
        Parts {
            on_shards,
            order: order_of(found),
            wrapped: true,
            here,
            ..Parts::default()
        }
    }

    /// Gives the shards the first stage of the rest, where it can be done in two steps.
    fn push_down(&mut self, rest: &[Val<'_>]) -> bool {
        let Some(first) = rest.first() else {
            return false;
        };
        let about = stage_of(*first)
            .is_some_and(|s| matches!(s.0, "$collStats" | "$indexStats" | "$planCacheStats"));
        let again = regroup(*first);
        if !about && again.is_none() {
            return false;
        }
        self.on_shards.push(first.to_value());
        self.here.remove(0);
        if let Some(again) = again {
            self.here.insert(0, again.into());
        }
        true
    }

    /// Gives the shards a sort, or a limit, that the rest begins with.
    fn push_order(&mut self, collation: Option<&Collation>, rest: &[Val<'_>]) -> Outcome<()> {
        let mut left = rest;
        if let Some(("$sort", spec)) = left.first().and_then(|s| stage_of(*s))
            && let Some(sort) = spec.as_doc().filter(|d| !d.is_empty())
        {
            let sort = SortPattern::parse_found(sort)?.collated(collation);
            if sort.has_meta() {
                return Ok(());
            }
            self.order = Order::By(sort);
            self.on_shards.push(left[0].to_value());
            left = &left[1..];
        }
        if let Some(skip) = left.first().and_then(|s| number(*s, "$skip")) {
            self.skip = skip;
            left = &left[1..];
        }
        let limit = left.first().and_then(|s| number(*s, "$limit"));
        if let Some(limit) = limit.filter(|n| *n > 0) {
            self.limit = Some(limit);
            let most = i64::try_from(limit.saturating_add(self.skip)).unwrap_or(i64::MAX);
            self.on_shards.push(doc! {"$limit": most}.into());
            left = &left[1..];
        }
        self.here = owned(left);
        Ok(())
    }

    /// The two parts, for people.
    pub fn shown(&self) -> (Value, Value) {
        let list = |stages: &[Value]| {
            let mut w = Writer::new_array();
            stages.iter().for_each(|s| {
                w.push(s.as_val());
            });
            w.finish_array()
        };
        (list(&self.on_shards), list(&self.here))
    }
}

fn owned(stages: &[Val<'_>]) -> Vec<Value> {
    stages.iter().map(|s| s.to_value()).collect()
}

fn order_of(found: Found) -> Order {
    match found.near {
        true => Order::Distance,
        false => Order::None,
    }
}

fn is_wrapped(all: &[Val<'_>], found: Found) -> bool {
    let last = all.last().and_then(|s| s.as_doc());
    last.is_some_and(|d| d.as_bytes() == found.wrapping().as_bytes())
}

/// The whole number that the stage `name` has.
fn number(stage: Val<'_>, name: &str) -> Option<u64> {
    let (_, n) = stage_of(stage).filter(|s| s.0 == name)?;
    n.to_i64_exact()?.try_into().ok()
}

/// A `$group` whose results can be grouped once more: that second group.
fn regroup(stage: Val<'_>) -> Option<DocBuf> {
    let ("$group", spec) = stage_of(stage)? else {
        return None;
    };
    let mut w = Writer::new();
    w.open_doc("$group").str("_id", "$_id");
    for f in spec.as_doc()?.iter().filter(|f| f.name != "_id") {
        let operator = f.val.as_doc()?.first()?.name;
        if !matches!(operator, "$sum" | "$min" | "$max") || f.name.contains('.') {
            return None;
        }
        w.open_doc(f.name)
            .str(operator, &format!("${}", f.name))
            .close();
    }
    Some(w.finish())
}
