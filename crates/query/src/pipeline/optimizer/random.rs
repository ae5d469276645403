//! Random pipelines over random documents: as they are written and optimized they give the same
//! documents in the same order. A rule whose condition is dropped is found.
//!
//! `PANDO_PIPELINES` says how many (3,000), `PANDO_SEED` which ones.

use super::super::tests::{Memory, docs, parse_under, parse_value_under};
use super::super::{Op, Pipeline, Stage, over_docs, union_with::UnionWith};
use super::predicate::{Split, StageEffect};
use super::semi_join::JoinedValues;
use super::{Place, RULES, Rule};
use crate::expr::Vars;
use crate::filter::{Filter, Node};
use bson::{DocBuf, Writer};
use std::sync::Arc;

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const PATHS: [&str; 14] = [
    "a", "b", "c", "d", "a", "b", "a.a", "a.b", "b.a", "b.b", "a.0", "a.0.b", "_id", "_id.a",
];

fn value(r: &mut Random, depth: usize) -> String {
    match r.below(if depth == 0 { 7 } else { 11 }) {
        0..=2 => r.below(3).to_string(),
        3 => format!("{}.0", r.below(2)),
        4 => "null".to_string(),
        5 => r#""x""#.to_string(),
        6 => r#""X""#.to_string(),
        7 | 8 => {
            let n = r.below(3);
            let items: Vec<String> = (0..n).map(|_| value(r, depth - 1)).collect();
            format!("[{}]", items.join(","))
        }
        _ => document(r, depth - 1, ""),
    }
}

fn document(r: &mut Random, depth: usize, first: &str) -> String {
    let mut fields: Vec<String> = match first {
        "" => vec![],
        f => vec![f.to_string()],
    };
    let names = if first.is_empty() {
        &NAMES[..2]
    } else {
        &NAMES[..]
    };
    for name in names {
        if r.below(4) > 0 {
            fields.push(format!(r#""{name}":{}"#, value(r, depth)));
        }
    }
    format!("{{{}}}", fields.join(","))
}

fn collection(r: &mut Random) -> String {
    let n = r.below(7);
    let all: Vec<String> = (0..n)
        .map(|i| document(r, 2, &format!(r#""_id":{i}"#)))
        .collect();
    format!("[{}]", all.join(","))
}

fn test(r: &mut Random) -> String {
    let v = value(r, 1);
    match r.below(12) {
        0..=3 => v,
        4 => format!(r#"{{"$ne":{v}}}"#),
        5 => format!(r#"{{"$gt":{v}}}"#),
        6 => format!(r#"{{"$lte":{v}}}"#),
        7 => format!(r#"{{"$in":[{v},{}]}}"#, value(r, 0)),
        8 => format!(r#"{{"$exists":{}}}"#, r.below(2) == 0),
        9 => r
            .of(&[
                r#"{"$type":"int"}"#,
                r#"{"$type":"array"}"#,
                r#"{"$size":1}"#,
                r#"{"$regex":"x"}"#,
            ])
            .to_string(),
        10 => format!(r#"{{"$not":{{"$gte":{v}}}}}"#),
        _ => format!(r#"{{"$elemMatch":{{"$gte":{}}}}}"#, r.below(3)),
    }
}

fn query(r: &mut Random, depth: usize) -> String {
    let mut parts = Vec::new();
    for _ in 0..1 + r.below(2) {
        let part = match r.below(if depth == 0 { 8 } else { 11 }) {
            8 => format!(r#""$or":[{},{}]"#, query(r, depth - 1), query(r, depth - 1)),
            9 => format!(r#""$nor":[{}]"#, query(r, depth - 1)),
            10 => format!(
                r#""$expr":{{"$eq":["${}",{}]}}"#,
                r.of(&["a", "b", "a.b", "$ROOT", "w"]),
                r.below(3)
            ),
            _ => format!(r#""{}":{}"#, r.of(&PATHS), test(r)),
        };
        let name = part.split(':').next().unwrap_or("").to_string();
        if !parts.iter().any(|p: &String| p.starts_with(&name)) {
            parts.push(part);
        }
    }
    format!("{{{}}}", parts.join(","))
}

fn expression(r: &mut Random) -> String {
    match r.below(7) {
        0..=2 => format!(r#""${}""#, r.of(&["a", "b", "c", "a.b", "b.a", "_id"])),
        3 => format!(r#"{{"a":"${}","b":"$c"}}"#, r.of(&["a", "b", "a.b"])),
        4 => r#""$$REMOVE""#.to_string(),
        5 => format!(r#"{{"$ifNull":["${}",1]}}"#, r.of(&NAMES)),
        _ => format!(r#"{{"$literal":{}}}"#, value(r, 1)),
    }
}

fn transform(r: &mut Random) -> String {
    let (x, y) = (
        r.of(&["a", "b", "c", "a.a", "a.b"]),
        r.of(&["d", "c.a", "_id", "w"]),
    );
    match r.below(8) {
        0 => format!(r#"{{"$project":{{"{x}":1,"d":{}}}}}"#, expression(r)),
        1 => format!(r#"{{"$project":{{"{x}":1,"b.b":1}}}}"#).replace(r#""b":1,"#, ""),
        2 => format!(r#"{{"$unset":"{x}"}}"#),
        3 | 4 => format!(r#"{{"$addFields":{{"{x}":{}}}}}"#, expression(r)),
        5 => format!(
            r#"{{"$addFields":{{"{x}":{},"{y}":{}}}}}"#,
            expression(r),
            expression(r)
        ),
        6 => format!(
            r#"{{"$replaceWith":{{"a":"${}","_id":"$_id","b":{}}}}}"#,
            r.of(&NAMES),
            expression(r)
        ),
        _ => r
            .of(&[
                r#"{"$replaceRoot":{"newRoot":"$a"}}"#,
                r#"{"$replaceRoot":{"newRoot":{"$ifNull":["$a",{}]}}}"#,
            ])
            .to_string(),
    }
}

const REDACT: [&str; 3] = [
    r#"{"$redact":{"$cond":[{"$eq":["$a",1]},"$$PRUNE","$$DESCEND"]}}"#,
    r#"{"$redact":{"$cond":[{"$eq":["$b",1]},"$$KEEP","$$DESCEND"]}}"#,
    r#"{"$redact":{"$cond":[{"$gt":["$b",1]},"$$PRUNE","$$KEEP"]}}"#,
];

fn stage(r: &mut Random, depth: usize) -> String {
    match r.below(if depth == 0 { 26 } else { 30 }) {
        0..=5 => format!(r#"{{"$match":{}}}"#, query(r, 1)),
        6..=9 => transform(r),
        10 => {
            let path = r.of(&["a", "b", "a.b"]);
            let more = r.of(&["", r#","preserveNullAndEmptyArrays":true"#, r#","includeArrayIndex":"c""#]);
            format!(r#"{{"$unwind":{{"path":"${path}"{more}}}}}"#)
        }
        11 => format!(r#"{{"$sort":{{"{}":{},"_id":1}}}}"#, r.of(&["a", "b", "a.b", "c"]), 1 - 2 * r.below(2) as i32),
        12 => format!(r#"{{"${}":{}}}"#, r.of(&["limit", "skip"]), 1 + r.below(3)),
        13 => {
            let key = expression(r);
            let filter = format!(r#"{{"$match":{{"{}":{}}}}}"#, r.of(&["_id", "_id", "_id.a"]), test(r));
            let group = format!(r#"{{"$group":{{"_id":{key},"a":{{"$first":"$a"}},"b":{{"$sum":1}}}}}}"#);
            format!("{group},{filter}")
        }
        14 => {
            let lacks = r.of(&[r#"{"$exists":false}"#, "null", r#"{"$ne":1}"#, r#"{"$gte":1}"#]);
            let path = r.of(&["a", "b", "a.a", "a.b", "b.a", "b.b"]);
            format!(r#"{},{{"$match":{{"{path}":{lacks}}}}}"#, r.of(&REDACT))
        }
        15 => format!(
            r#"{{"$lookup":{{"from":"other","localField":"{}","foreignField":"{}","as":"{}"}}}}"#,
            r.of(&["a", "b", "a.b"]), r.of(&["a", "b", "_id"]), r.of(&["c", "d", "a.a"])
        ),
        16 => {
            let (key, made) = (expression(r), r.of(&["c", "d", "a.a"]));
            let filter = format!(r#"{{"$match":{{"{}":{}}}}}"#, r.of(&["a", "b", "c", "a.b"]), test(r));
            format!(
                r#"{{"$setWindowFields":{{"partitionBy":{key},"sortBy":{{"_id":1}},"output":{{"{made}":{{"$sum":1}}}}}}}},{filter}"#
            )
        }
        17 => r#"{"$graphLookup":{"from":"other","startWith":"$a","connectFromField":"b","connectToField":"a","as":"c"}}"#.to_string(),
        18 => {
            let bounds = r.of(&[r#""full""#, r#""partition""#, "[0,3]"]);
            let by = r.of(&["a", "b", "c"]);
            let filter = format!(r#"{{"$match":{{"{}":{}}}}}"#, r.of(&[by, "_id"]), test(r));
            format!(
                r#"{{"$densify":{{"field":"_id","partitionByFields":["{by}"],"range":{{"step":1,"bounds":{bounds}}}}}}},{filter}"#
            )
        }
        19 => {
            let default = r.of(&["", r#","default":"x""#, r#","default":7"#]);
            let filter = format!(r#"{{"$match":{{"_id":{}}}}}"#, test(r));
            format!(
                r#"{{"$match":{{"a":{{"$in":[0,1,2]}}}}}},{{"$bucket":{{"groupBy":"${}","boundaries":[0,1,2,5]{default}}}}},{filter}"#,
                r.of(&["a", "a", "a.b"])
            )
        }
        20 => {
            let made = r.of(&["c", "d"]);
            let join = format!(r#"{{"$lookup":{{"from":"other","localField":"a","foreignField":"b","as":"{made}"}}}}"#);
            format!(r#"{join},{{"$group":{{"_id":"${}","b":{{"$sum":1}}}}}}"#, r.of(&["a", "b", "c", "d"]))
        }
        21 => r#"{"$count":"a"}"#.to_string(),
        22 => {
            // Of one order, so that the same ones are the first.
            let chosen = r.of(&[r#"{"$limit":2}"#, r#"{"$sort":{"a":1,"_id":1,"b":1,"c":1,"d":1}},{"$limit":3}"#, r#"{"$sort":{"b":-1,"_id":1,"a":1,"c":1,"d":1}},{"$skip":1},{"$limit":2}"#]);
            let more = r.of(&["", r#"{"$unionWith":"other"},"#]);
            format!(r#"{more}{{"$unionWith":"other"}},{chosen}"#)
        }
        23 => {
            let (x, y) = (r.of(&["a", "c", "d"]), r.of(&["b", "c", "d"]));
            let join = |to: &str, by: &str| format!(r#"{{"$lookup":{{"from":"other","localField":"{by}","foreignField":"b","as":"{to}"}}}}"#);
            let by = r.of(&["a", "b", "a.b"]);
            let between = if r.below(2) == 0 { format!("{},", transform(r)) } else { String::new() };
            format!("{},{between}{}", join(x, by), join(y, by))
        }
        24 => {
            let made = r.of(&["c", "d"]);
            let join = format!(r#"{{"$lookup":{{"from":"other","localField":"{}","foreignField":"{}","as":"{made}"}}}}"#, r.of(&["a", "b", "a.b"]), r.of(&["a", "b", "_id"]));
            let unwind = r.of(&["", "{}", r#","preserveNullAndEmptyArrays":true"#]);
            let unwind = match unwind {
                "" => String::new(),
                "{}" => format!(r#",{{"$unwind":"${made}"}}"#),
                more => format!(r#",{{"$unwind":{{"path":"${made}"{more}}}}}"#),
            };
            format!(r#"{join}{unwind},{{"$match":{{"{made}.{}":{}}}}}"#, r.of(&["a", "b", "a.b", "_id"]), test(r))
        }
        25 => {
            let both: Vec<String> = (0..2 + r.below(2)).map(|_| format!(r#"{{"$gte":["${}",{}]}}"#, r.of(&NAMES), r.below(3))).collect();
            format!(r#"{{"$match":{{"$expr":{{"${}":[{}]}}}}}}"#, r.of(&["and", "and", "or"]), both.join(","))
        }
        26 | 27 => format!(
            r#"{{"$facet":{{"a":[{{"$match":{}}},{}],"b":[{{"$match":{}}},{{"$limit":2}}]}}}}"#,
            query(r, 1), stage(r, 0), query(r, 1)
        ),
        28 => format!(r#"{{"$unionWith":{{"coll":"other","pipeline":{}}}}}"#, stages(r, depth - 1)),
        29 => {
            let a = stages(r, depth - 1);
            let b = if r.below(3) == 0 { a.clone() } else { r#"[{"$limit":2}]"#.to_string() };
            format!(r#"{{"$facet":{{"a":{a},"b":{b}}}}}"#)
        }
        _ => format!(r#"{{"$lookup":{{"from":"other","pipeline":{},"as":"d"}}}}"#, stages(r, depth - 1)),
    }
}

fn stages(r: &mut Random, depth: usize) -> String {
    let n = 1 + r.below(4);
    let all: Vec<String> = (0..n).map(|_| stage(r, depth)).collect();
    format!("[{}]", all.join(","))
}

/// A pipeline, what it runs over, and under which collation.
struct Case {
    stages: String,
    input: String,
    other: String,
    collation: &'static str,
}

impl Case {
    fn of(r: &mut Random) -> Case {
        Case {
            stages: stages(r, 1),
            input: collection(r),
            other: collection(r),
            collation: r.of(&["", "", r#"{"locale":"en","strength":2}"#]),
        }
    }

    fn run(&self, pipeline: &Pipeline) -> Result<Vec<DocBuf>, i32> {
        self.run_over(pipeline, &self.input)
    }

    fn run_over(&self, pipeline: &Pipeline, input: &str) -> Result<Vec<DocBuf>, i32> {
        let mut host = Memory::default();
        host.collections.insert("other".into(), docs(&self.other));
        let input = over_docs(docs(input));
        let mut source = pipeline.attach(0, input, &Arc::new(Vars::new(0)));
        let mut out = Vec::new();
        loop {
            match source.advance(&mut host) {
                Ok(true) => out.push(source.doc().to_buf()),
                Ok(false) => return Ok(out),
                Err(e) => return Err(e.into_error().code.0),
            }
        }
    }

    /// The pipeline with its first join turned round that may be. `heeds`: values that are no filter
    /// are heeded.
    fn turned_round(&self, pipeline: &Pipeline, heeds: bool) -> Option<(Pipeline, String)> {
        let join = pipeline.semi_joins().into_iter().next()?;
        let wanted = self.run_over(&join.wanted, &self.other).ok()?;
        let mut values = JoinedValues::default();
        for d in wanted {
            if !values.add(d.as_doc(), &join.foreign) && heeds {
                return None;
            }
        }
        let turned = pipeline.joined_with(&join, values);
        let by = turned.first_filter()?.as_doc().to_string();
        Some((turned, by))
    }

    /// How a pipeline differs after the rules. An error may be missing then.
    fn differs(&self, rules: &[(&str, Rule)]) -> Option<String> {
        let pipeline = parse_under(&self.stages, self.collation).ok()?;
        let want = self.run(&pipeline).ok()?;
        let optimized = pipeline.optimized_by(rules);
        let found = self.run(&optimized);
        if let Some((turned, by)) = self.turned_round(&optimized, true)
            && self.run(&turned) != Ok(want.clone())
        {
            return Some(format!("turned round by {by}: {}", self.stages));
        }
        let mut written = Writer::new_array();
        for stage in optimized.written() {
            written.push(stage.as_doc().as_val());
        }
        let written = written.finish_array();
        // What a router sends to its shards.
        let again = match parse_value_under(written.as_val(), self.collation) {
            Ok(again) => self.run(&again),
            Err(e) => Err(e.into_error().code.0),
        };
        if found == Ok(want.clone()) && again != found {
            return Some(format!(
                "{}\nunder {} over {}\nwritten as {}\ngave {again:?}\nnot {want:?}",
                self.stages,
                self.collation,
                self.input,
                written.as_val()
            ));
        }
        let names: Vec<&str> = optimized.stages.iter().map(|s| s.name).collect();
        (found != Ok(want.clone())).then(|| {
            let Case { stages, input, other, collation } = self;
            format!("{stages}\nunder {collation} over {input}\nand {other}\nas {names:?}\ngave {found:?}\nnot {want:?}")
        })
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn optimized_and_not_are_the_same() {
    let seed = number("PANDO_SEED", 42);
    let (mut compared, mut changed) = (0u64, 0u64);
    for i in 0..number("PANDO_PIPELINES", 3000) {
        let case = Case::of(&mut Random(seed.wrapping_add(i)));
        if let Some(what) = case.differs(&RULES) {
            panic!(
                "PANDO_SEED={} PANDO_PIPELINES=1: {what}",
                seed.wrapping_add(i)
            );
        }
        if let Ok(p) = parse_under(&case.stages, case.collation) {
            let names = |p: &Pipeline| p.stages.iter().map(|s| s.name).collect::<Vec<_>>();
            compared += u64::from(case.run(&p).is_ok());
            changed += u64::from(names(&p) != names(&p.optimized()));
        }
    }
    // A generator of refused pipelines, or of pipelines to which no rule applies, would find nothing.
    let all = number("PANDO_PIPELINES", 3000);
    assert!(all < 100 || compared > all / 2, "{compared} of {all}");
    assert!(all < 100 || changed > all / 10, "{changed} of {all}");
}

/// The whole filter of the second stage before the first.
fn all_before(place: &Place<'_>) -> Option<Vec<Stage>> {
    match &place.second.op {
        Op::Match(_) => Some(vec![place.second.clone(), place.first.clone()]),
        _ => None,
    }
}

/// What of the filter speaks of fields under `name`, as if it were `to`.
fn renamed(place: &Place<'_>, name: &str, to: &crate::path::FieldPath) -> Option<Vec<Stage>> {
    let Op::Match(f) = &place.second.op else {
        return None;
    };
    let passage = StageEffect {
        path: &|p, _| (p.first() == name).then(|| to.join(&p.tail(1))),
        expr: &|_| false,
        whole: false,
    };
    let split = Split::of(f, &passage).filter(|_| !f.is_trivial())?;
    let stage = |nodes: Vec<Node>| {
        let f = Filter::from_node(Node::and(nodes));
        Stage::new(
            "$match",
            f.to_doc().as_doc().as_val(),
            Op::Match(Arc::new(f)),
        )
    };
    let mut out = vec![stage(split.moved), place.first.clone()];
    if !split.rest.is_empty() {
        out.push(stage(split.rest));
    }
    Some(out)
}

/// Rules without their conditions, named by the missing one.
const CARELESS: [(&str, Rule); 18] = [
    ("$project: a field that is made", |p| {
        match (&p.first.op, p.first.name) {
            (Op::Transform(_), "$project") => all_before(p),
            _ => None,
        }
    }),
    ("$addFields: a field that is made", |p| {
        match (&p.first.op, p.first.name) {
            (Op::Transform(_), "$addFields") => all_before(p),
            _ => None,
        }
    }),
    ("$unset: a field that is left out", |p| match p.first.name {
        "$unset" => all_before(p),
        _ => None,
    }),
    ("$replaceRoot: a field of the root", |p| {
        match p.first.name {
            "$replaceRoot" | "$replaceWith" => all_before(p),
            _ => None,
        }
    }),
    ("$unwind: the field that is unwound", |p| {
        match &p.first.op {
            Op::Unwind(_) => all_before(p),
            _ => None,
        }
    }),
    ("$lookup: the field that is joined", |p| match &p.first.op {
        Op::Lookup(_) => all_before(p),
        _ => None,
    }),
    ("$sort: one with a limit", |p| match &p.first.op {
        Op::Sort(..) | Op::Limit(_) => all_before(p),
        _ => None,
    }),
    (
        "$group: arrays on the way, missing and null, types",
        |p| match &p.first.op {
            Op::Group(g) => renamed(p, "_id", &crate::path::FieldPath::new(&g.id.as_path()?)),
            _ => None,
        },
    ),
    ("$setWindowFields: not the partition", |p| {
        match &p.first.op {
            Op::Window(_) => all_before(p),
            _ => None,
        }
    }),
    ("$unionWith: one side", |p| {
        match (&p.first.op, &p.second.op) {
            (Op::UnionWith(u), Op::Match(_)) => {
                let u = UnionWith {
                    from: u.from.clone(),
                    pipeline: u.pipeline.clone(),
                };
                let spec = bson::doc! {};
                let union = Stage::new(
                    "$unionWith",
                    spec.as_doc().as_val(),
                    Op::UnionWith(Arc::new(u)),
                );
                Some(vec![p.second.clone(), union])
            }
            _ => None,
        }
    }),
    ("$redact: what is missing behind it", |p| {
        match &p.first.op {
            Op::Redact(_) => all_before(p),
            _ => None,
        }
    }),
    ("$densify: all partitions together", |p| match &p.first.op {
        Op::Densify(_) => all_before(p),
        _ => None,
    }),
    ("$bucket: what falls into no bucket", |p| {
        match (&p.first.op, &p.second.op) {
            (Op::Group(_), Op::Match(_)) if !p.first.copied => {
                let mut first = p.first.clone();
                first.copied = true;
                let within = super::buckets::Buckets::of(&first, false)?.all();
                let filter = super::matches::stage(Filter::from_node(within));
                Some(vec![filter, first, p.second.clone()])
            }
            _ => None,
        }
    }),
    ("$lookup: its result is used", |p| {
        match (&p.first.op, &p.second.op) {
            (Op::Lookup(_), Op::Group(_)) => Some(vec![p.second.clone()]),
            _ => None,
        }
    }),
    ("$facet: the filter of one pipeline", |p| {
        match &p.second.op {
            Op::Facet(f) if !p.second.copied => {
                let filter = f.parts.first()?.1.stages.first()?.clone();
                let mut second = p.second.clone();
                second.copied = true;
                let filters = matches!(filter.op, Op::Match(_));
                filters.then(|| vec![p.first.clone(), filter, second])
            }
            _ => None,
        }
    }),
    ("$unionWith: only its sides are cut short", |p| {
        match (&p.first.op, &p.second.op) {
            (Op::UnionWith(_), Op::Limit(_)) => Some(vec![p.second.clone(), p.first.clone()]),
            _ => None,
        }
    }),
    (
        "$lookup of one text: what it reads is written",
        |p| match (&p.first.op, &p.second.op) {
            (Op::Lookup(first), Op::Lookup(second)) if first.fields == second.fields => {
                let copy = super::whole::copy_of(first.as_.as_str(), second.as_.as_str())?;
                Some(vec![p.first.clone(), copy])
            }
            _ => None,
        },
    ),
    ("$limit: what changes the number", |p| {
        match (&p.first.op, &p.second.op) {
            (Op::Unwind(_) | Op::Redact(_) | Op::Match(_), Op::Limit(_) | Op::Skip(_)) => {
                Some(vec![p.second.clone(), p.first.clone()])
            }
            _ => None,
        }
    }),
];

#[test]
fn a_rule_without_its_condition_is_found() {
    let seed = number("PANDO_SEED", 42);
    for (what, rule) in CARELESS {
        let mut rules = vec![(what, rule)];
        rules.extend(RULES);
        let found = (0..20_000u64).find(|i| {
            Case::of(&mut Random(seed.wrapping_add(*i)))
                .differs(&rules)
                .is_some()
        });
        assert!(found.is_some(), "{what} was not found");
        println!("{what}: found by pipeline {}", found.unwrap_or(0));
    }
}

#[test]
fn a_join_that_is_turned_round_without_care_is_found() {
    let seed = number("PANDO_SEED", 42);
    let found = (0..50_000u64).find(|i| {
        let case = Case::of(&mut Random(seed.wrapping_add(*i)));
        let differs = || {
            let pipeline = parse_under(&case.stages, case.collation).ok()?.optimized();
            let want = case.run(&pipeline).ok()?;
            let (turned, _) = case.turned_round(&pipeline, false)?;
            (case.run(&turned) != Ok(want)).then_some(())
        };
        differs().is_some()
    });
    assert!(found.is_some());
}
