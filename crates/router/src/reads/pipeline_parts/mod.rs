//! How a pipeline is divided between the shards and the router: as it runs, not as it is written, so
//! what a filter at its end says reaches the shards.
//!
//! ```text
//! $match … $project   each shard              │ rest here
//! $lookup of little   with what it looks up   │ as one of these, where the rest reduces documents
//! $lookup of much     read of other shards    │ so, too
//! $graphLookup        as $lookup
//! $sort ($skip) $limit                        │ merged in that order, rest here
//! $group              states of its groups    │ merged, rest here
//! $sort $group        states with sort keys   │ where what heeds the order can be merged by them
//! $count              of each shard           │ summed, rest here
//! $facet of these     numbered results        │ each pipeline goes on with its own, rest here
//! $sample             wrapped, random order   │ the first of all, unwrapped, rest here
//! $geoNear $match …   wrapped                 │ merged by distance, unwrapped, rest here
//! $match of $text …   wrapped if asked for    │ rest here, which knows the scores
//! $search $match …    wrapped                 │ merged by score or in its order, unwrapped, rest here
//! $vectorSearch …     wrapped                 │ merged by score, as many as it wants, rest here
//! anything else       fields that it needs    │ all of it here
//! ```
//!
//! Invariant: a stage that needs all documents sees all of them, with their metadata, in the order in
//! which it is promised them.

#[cfg(test)]
mod random;

use crate::merge::Order;
use crate::targeting::pipeline::stage_of;
use crate::targeting::pipeline_context::{PipelineContext, list};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::Outcome;
use query::collation::Collation;
use query::metadata::asks_for;
use query::pipeline::merged::{Found, TOKEN};
use query::pipeline::search::SearchMetaFields;
use query::sort::SortPattern;

/// Stages that look at one document at a time, and need nothing else.
pub(crate) const STREAMING: [&str; 9] = [
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

/// Stages that shards do with what they join sent along, or read of each other.
const JOINS: [&str; 2] = ["$lookup", "$graphLookup"];

/// Stages that make less of their documents on the shards already.
const REDUCING: [&str; 4] = ["$group", "$count", "$limit", "$sort"];

/// Accumulators whose results do not depend on the order of what they take.
const HEED_NO_ORDER: [&str; 17] = [
    "$sum",
    "$avg",
    "$min",
    "$max",
    "$count",
    "$addToSet",
    "$setUnion",
    "$stdDevPop",
    "$stdDevSamp",
    "$minN",
    "$maxN",
    "$top",
    "$topN",
    "$bottom",
    "$bottomN",
    "$median",
    "$percentile",
];

/// A `$lookup` or `$graphLookup`, by name and specification, as any shard can do it; `None`: it is for
/// the router.
pub(crate) type Join<'a> = dyn Fn(&str, Doc<'_>) -> Outcome<Option<DocBuf>> + 'a;

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
    /// Shards give what they have found of a whole stage, and not documents.
    pub states: bool,
    /// What the shards have to be told of collections that they join and read of each other.
    pub joins_elsewhere: Option<Value>,
    /// The stages for here read `$$SEARCH_META`, which the first of them is to know.
    pub asks_meta: bool,
}

impl Parts {
    pub fn of(context: &PipelineContext<'_>, stages: Doc<'_>, join: &Join<'_>) -> Outcome<Parts> {
        let found = Found::of(stages.values());
        // Search results keep their metadata only in the order in which the stages are written.
        let in_order = match found.any() {
            true => None,
            false => context.in_order(stages),
        };
        let list = in_order.as_ref().and_then(|v| v.as_val().as_array());
        let all: Vec<Val<'_>> = list.unwrap_or(stages).values().collect();
        if found.any() && is_wrapped(&all, found) {
            return Parts::wrapped_already(&all, found);
        }
        if found.search || found.vector {
            return Parts::searched(&all, found);
        }
        if found.near {
            return Ok(Parts::near(&all, found));
        }
        let (on_shards, rest) = streamed(&all, found, join)?;
        let mut parts = Parts {
            on_shards,
            here: owned(rest),
            ..Parts::default()
        };
        if parts.push_down(context, rest)? {
            return Ok(parts);
        }
        let score = |s: &Val<'_>| asks_for(*s, "textScore") || asks_for(*s, "score");
        if found.text && rest.iter().any(score) {
            parts.on_shards.push(found.wrapping().into());
            parts.here.insert(0, found.merged().into());
            parts.wrapped = true;
            return Ok(parts);
        }
        let projection = match found.any() {
            true => None,
            false => projection(context, rest),
        };
        if let Some(size) = sample_size(rest) {
            parts.on_shards.extend(projection);
            parts.push_sample(size)?;
            return Ok(parts);
        }
        parts.push_order(context.collation.as_ref(), rest)?;
        parts.on_shards.extend(projection);
        Ok(parts)
    }

    /// The same without partial states.
    pub fn of_documents(context: &PipelineContext<'_>, stages: Doc<'_>) -> Outcome<Parts> {
        let all: Vec<Val<'_>> = stages.values().collect();
        let found = Found::of(stages.values());
        let (on_shards, rest) = streamed(&all, found, &|_, _| Ok(None))?;
        let mut parts = Parts {
            on_shards,
            here: owned(rest),
            ..Parts::default()
        };
        parts.push_order(context.collation.as_ref(), rest)?;
        if !found.any() {
            parts.on_shards.extend(projection(context, rest));
        }
        Ok(parts)
    }

    /// Gives the shards a sample that the rest begins with: each document gets a random number, and
    /// those with the least ones of all are the sample.
    fn push_sample(&mut self, size: i64) -> Outcome<()> {
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
        Ok(())
    }

    /// The client asked for documents in their wrapped form.
    fn wrapped_already(all: &[Val<'_>], found: Found) -> Outcome<Parts> {
        let limits = all.iter().filter_map(|s| number(*s, "$limit"));
        Ok(Parts {
            on_shards: owned(all),
            order: order_of(all, found)?,
            limit: limits.chain(nearest_wanted(all)).min(),
            ..Parts::default()
        })
    }

    /// The best documents of each shard, with their scores.
    fn searched(all: &[Val<'_>], found: Found) -> Outcome<Parts> {
        let nearest = nearest_wanted(all);
        let matches = |s: &&Val<'_>| {
            // What all have found a shard does not know.
            stage_of(**s).is_some_and(|s| s.0 == "$match") && !SearchMetaFields::of([**s]).meta
        };
        let many = match nearest {
            // A filter is for the nearest of all shards together.
            Some(_) => 1,
            None => 1 + all.iter().skip(1).take_while(matches).count(),
        };
        let (first, behind) = all.split_at(many.min(all.len()));
        let mut on_shards = owned(first);
        let wanted = wanted_of(behind);
        if let Some(most) = wanted {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            on_shards.push(doc! {"$limit": most}.into());
        }
        on_shards.push(found.wrapping().into());
        let mut here = owned(behind);
        if !here.is_empty() {
            here.insert(0, found.merged().into());
        }
        Ok(Parts {
            on_shards,
            order: order_of(all, found)?,
            limit: nearest.into_iter().chain(wanted).min(),
            wrapped: true,
            asks_meta: found.search && SearchMetaFields::of(behind.iter().copied()).meta,
            here,
            ..Parts::default()
        })
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
            order: Order::Distance,
            wrapped: true,
            here,
            ..Parts::default()
        }
    }

    /// Has the stages for here know what a search has found on all shards.
    pub fn know(&mut self, found: Found, search_meta: Doc<'_>) {
        if let Some(first) = self.here.first_mut() {
            *first = found.merged_with(Some(search_meta)).into();
        }
    }

    /// Gives the shards the first stage of the rest, where it can be done in two steps.
    fn push_down(&mut self, context: &PipelineContext<'_>, rest: &[Val<'_>]) -> Outcome<bool> {
        let Some((name, spec)) = rest.first().and_then(|s| stage_of(*s)) else {
            return Ok(false);
        };
        let spec = spec.as_doc().unwrap_or(Doc::EMPTY);
        match name {
            "$collStats" | "$indexStats" | "$planCacheStats" => {
                self.on_shards.push(rest[0].to_value());
                self.here.remove(0);
            }
            "$count" => self.push_count(rest[0]),
            "$group" => self.push_group(spec, None),
            "$sort" => match rest.get(1).and_then(|s| stage_of(*s)) {
                Some(("$group", group)) => {
                    let group = group.as_doc().unwrap_or(Doc::EMPTY);
                    return Ok(self.push_sorted_group(rest[0], spec, group));
                }
                _ => return Ok(false),
            },
            "$facet" => return self.push_facet(context, spec),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Each shard counts; here the numbers are summed.
    fn push_count(&mut self, stage: Val<'_>) {
        let Some(("$count", name)) = stage_of(stage) else {
            return;
        };
        let name = name.as_str().unwrap_or_default();
        self.on_shards.push(stage.to_value());
        if !heeded(Condition::Merged) {
            self.here.remove(0);
            return;
        }
        let (mut sum, field) = (Writer::new(), format!("${name}"));
        sum.null("_id").value(name, doc! {"$sum": field.as_str()});
        self.here.remove(0);
        self.here
            .insert(0, doc! {"$project": doc! {"_id": 0}}.into());
        self.here.insert(0, doc! {"$group": sum.finish()}.into());
        self.states = true;
    }

    /// Each shard gives the states of its groups; here they are merged. `sort`: the order of what
    /// comes to the groups.
    fn push_group(&mut self, group: Doc<'_>, sort: Option<Doc<'_>>) {
        let part = |option: &str| {
            let mut w = Writer::new();
            w.open_doc("$group").extend(group);
            if let Some(sort) = sort {
                w.doc("$_pandoSortedBy", sort);
            }
            w.bool(option, true).close();
            w.finish()
        };
        self.on_shards.push(part("$willBeMerged").into());
        self.here.remove(0);
        if heeded(Condition::Merged) {
            self.here.insert(0, part("$doingMerge").into());
        }
        self.states = true;
    }

    /// A `$group` behind a `$sort`: where no accumulator heeds the order, or those that do can
    /// keep the sort keys of what they have.
    fn push_sorted_group(&mut self, stage: Val<'_>, sort: Doc<'_>, group: Doc<'_>) -> bool {
        let accumulators = || {
            let fields = group.iter().filter(|f| f.name != "_id");
            fields.filter_map(|f| Some(f.val.as_doc()?.first()?.name))
        };
        let keeps_keys = |name: &str| matches!(name, "$first" | "$last" | "$firstN" | "$lastN");
        let heeds_no_order =
            |name: &str| HEED_NO_ORDER.contains(&name) || !heeded(Condition::NoOrder);
        let plain = sort.iter().all(|f| f.val.is_number());
        if !plain || !accumulators().all(|name| keeps_keys(name) || heeds_no_order(name)) {
            return false;
        }
        self.here.remove(0);
        match accumulators().any(keeps_keys) {
            true => {
                // In that order an index may give the first of each group.
                self.on_shards.push(stage.to_value());
                self.push_group(group, Some(sort).filter(|_| heeded(Condition::SortKeys)));
            }
            false => self.push_group(group, None),
        }
        true
    }

    /// A `$facet` each of whose pipelines reduces its documents on the shards.
    fn push_facet(&mut self, context: &PipelineContext<'_>, facet: Doc<'_>) -> Outcome<bool> {
        let (mut each, mut here) = (Writer::new(), Writer::new());
        each.open_doc("$facet");
        here.open_doc("$facet");
        for (n, e) in facet.iter().enumerate() {
            let stages = e.val.as_array().unwrap_or(Doc::EMPTY);
            let parts = Parts::of(context, stages, &|_, _| Ok(None))?;
            let reduces = parts.states || parts.limit.is_some();
            if !reduces || parts.wrapped {
                return Ok(false);
            }
            each.val(e.name, list(&parts.on_shards).as_val());
            here.open_array(e.name);
            if heeded(Condition::OwnResults) {
                here.push(doc! {"$match": doc! {"f": n as i64}}.as_doc().as_val());
            }
            here.push(doc! {"$replaceWith": "$d"}.as_doc().as_val());
            for stage in parts.chosen_again().iter().chain(&parts.here) {
                here.push(stage.as_val());
            }
            here.close();
        }
        each.bool("$willBeMerged", true).close();
        here.close();
        self.on_shards.push(each.finish().into());
        self.here.remove(0);
        self.here.insert(0, here.finish().into());
        self.states = true;
        Ok(true)
    }

    /// The stages that merging repeats.
    fn chosen_again(&self) -> Vec<Value> {
        let mut out = Vec::new();
        if let Order::By(sort) = &self.order
            && heeded(Condition::InOrder)
        {
            out.push(doc! {"$sort": sort.to_doc()}.into());
        }
        if self.skip > 0 {
            let skip = i64::try_from(self.skip).unwrap_or(i64::MAX);
            out.push(doc! {"$skip": skip}.into());
        }
        if let Some(limit) = self.limit
            && heeded(Condition::LimitOfAll)
        {
            out.push(doc! {"$limit": i64::try_from(limit).unwrap_or(i64::MAX)}.into());
        }
        out
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
            let passed_over = match heeded(Condition::WithSkipped) {
                true => self.skip,
                false => 0,
            };
            let most = i64::try_from(limit.saturating_add(passed_over)).unwrap_or(i64::MAX);
            self.on_shards.push(doc! {"$limit": most}.into());
            left = &left[1..];
        }
        self.here = owned(left);
        Ok(())
    }

    /// Shards do all of it, each document by itself.
    pub fn looks_at_each(&self) -> bool {
        let chooses = self.skip > 0 || self.limit.is_some();
        let plain = !self.wrapped && !self.states && matches!(self.order, Order::None);
        self.here.is_empty() && plain && !chooses
    }

    /// The two parts, for people.
    pub fn shown(&self) -> (Value, Value) {
        (list(&self.on_shards), list(&self.here))
    }
}

/// What the division heeds. Tests drop one at a time, and look whether that is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// A stage that shards do whole looks at one document at a time.
    Alone,
    /// What shards give of a stage is merged.
    Merged,
    /// An accumulator behind a `$sort` depends on no order.
    NoOrder,
    /// Or it has the sort keys of what it keeps.
    SortKeys,
    /// Of a `$facet` each pipeline goes on with its own results.
    OwnResults,
    /// Documents are merged in the order of the sort.
    InOrder,
    /// A limit holds for the documents of all shards.
    LimitOfAll,
    /// A shard gives the skipped documents as well.
    WithSkipped,
    /// All fields travel that any stage of the rest reads.
    AllThatIsRead,
}

#[inline]
fn heeded(_condition: Condition) -> bool {
    #[cfg(test)]
    return !random::is_dropped(_condition);
    #[cfg(not(test))]
    true
}

fn owned(stages: &[Val<'_>]) -> Vec<Value> {
    stages.iter().map(|s| s.to_value()).collect()
}

/// The order of wrapped documents.
fn order_of(all: &[Val<'_>], found: Found) -> Outcome<Order> {
    if found.near {
        return Ok(Order::Distance);
    }
    if !found.search && !found.vector {
        return Ok(Order::None);
    }
    let spec = all.first().and_then(|s| stage_of(*s)?.1.as_doc());
    if found.token {
        let backwards = spec.and_then(|d| d.get("searchBefore")?.as_str()).is_some();
        let mut by = Writer::new();
        by.i32(&format!("m.{TOKEN}"), if backwards { -1 } else { 1 });
        let by = by.finish();
        return Ok(Order::By(SortPattern::parse_found(by.as_doc())?));
    }
    let Some(sort) = spec.and_then(|d| d.get("sort")?.as_doc()) else {
        return Ok(Order::Score);
    };
    let mut wrapped = Writer::new();
    for e in sort {
        let given = e.val.as_doc();
        let by_score = given.is_some_and(|d| d.contains("$meta"));
        let order = match given {
            Some(d) => d.get("order").and_then(Val::to_i64_exact),
            None => e.val.to_i64_exact(),
        };
        match by_score {
            true => wrapped.i32("m.searchScore", -1),
            false => wrapped.i32(
                &format!("d.{}", e.name),
                if order == Some(-1) { -1 } else { 1 },
            ),
        };
    }
    Ok(Order::By(SortPattern::parse_found(
        wrapped.finish().as_doc(),
    )?))
}

/// How many documents a `$vectorSearch` gives.
fn nearest_wanted(all: &[Val<'_>]) -> Option<u64> {
    let (_, spec) = stage_of(*all.first()?).filter(|s| s.0 == "$vectorSearch")?;
    let limit = spec.as_doc()?.get("limit")?.to_i64_exact()?;
    u64::try_from(limit).ok().filter(|n| *n > 0)
}

/// How many documents stages want, at most, of what comes to them.
fn wanted_of(stages: &[Val<'_>]) -> Option<u64> {
    let mut skipped = 0u64;
    for stage in stages {
        match stage_of(*stage)?.0 {
            "$skip" => skipped = skipped.saturating_add(number(*stage, "$skip")?),
            "$limit" => return Some(skipped.saturating_add(number(*stage, "$limit")?)),
            "$project" | "$addFields" | "$set" | "$unset" | "$replaceRoot" | "$replaceWith" => {}
            _ => return None,
        }
    }
    None
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

/// What has the shards send only the fields that the rest reads, where it does not give them all.
fn projection(context: &PipelineContext<'_>, rest: &[Val<'_>]) -> Option<Value> {
    let only_chosen = |s: &Val<'_>| {
        stage_of(*s).is_some_and(|(name, _)| matches!(name, "$sort" | "$skip" | "$limit"))
    };
    if rest.iter().all(only_chosen) {
        return None;
    }
    let read = match heeded(Condition::AllThatIsRead) {
        true => rest,
        false => rest.split_at(1).1,
    };
    let fields = context.needed(read)?;
    let mut w = Writer::new();
    w.open_doc("$project");
    for field in fields.iter().filter(|f| *f != "_id") {
        w.i32(field, 1);
    }
    // Of no fields there is no projection: then it is the shortest that is kept.
    let id = fields.is_empty() || fields.iter().any(|f| f == "_id");
    w.i32("_id", i32::from(id)).close();
    Some(w.finish().into())
}

/// How large the sample is that the rest begins with.
fn sample_size(rest: &[Val<'_>]) -> Option<i64> {
    let (_, spec) = stage_of(*rest.first()?).filter(|s| s.0 == "$sample")?;
    spec.as_doc()?
        .get("size")?
        .to_i64_exact()
        .filter(|n| *n > 0)
}

/// The stages from the first on that each shard does for itself, and the rest.
fn streamed<'v, 'a>(
    all: &'v [Val<'a>],
    found: Found,
    join: &Join<'_>,
) -> Outcome<(Vec<Value>, &'v [Val<'a>])> {
    let name = |s: &Val<'_>| stage_of(*s).map_or(String::new(), |s| s.0.to_string());
    let alone = |name: &str| STREAMING.contains(&name) || !heeded(Condition::Alone);
    let streams = |name: &str| STREAMING.contains(&name) || JOINS.contains(&name);
    let end = all.iter().find(|s| !streams(&name(s)));
    let reduces = end.is_some_and(|s| REDUCING.contains(&name(s).as_str()));
    let mut out = Vec::new();
    for (n, stage) in all.iter().enumerate() {
        let joined = match stage_of(*stage) {
            Some((name, _)) if alone(name) => Some(stage.to_value()),
            Some((name, spec)) if JOINS.contains(&name) && reduces && !found.any() => {
                join(name, spec.as_doc().unwrap_or(Doc::EMPTY))?.map(Value::from)
            }
            _ => None,
        };
        match joined {
            Some(stage) => out.push(stage),
            None => return Ok((out, all.split_at(n).1)),
        }
    }
    Ok((out, &[]))
}
