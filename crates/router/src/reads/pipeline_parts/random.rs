//! Random pipelines over documents of two shards: divided, they give what they give in one place. A
//! division that does not heed one of its conditions is found.
//!
//! `PANDO_PIPELINES` says how many (2,000), `PANDO_SEED` which ones.

use super::{Condition, Parts, PipelineContext, list};
use bson::{Doc, DocBuf, Val, Value, json};
use errors::{Error, Result};
use query::expr::{ParseEnv, Vars};
use query::pipeline::{
    DocumentSource, MergeSpec, Namespace, OutSpec, ParseCtx, Pipeline, PipelineHost, RowsStage,
    Source, SpillFile, over_docs,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static DROPPED: Cell<Option<Condition>> = const { Cell::new(None) };
}

pub(super) fn is_dropped(condition: Condition) -> bool {
    DROPPED.get() == Some(condition)
}

/// One other collection, and nothing else.
struct Memory {
    other: Vec<DocBuf>,
    under_way: usize,
}

impl PipelineHost for Memory {
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    fn advance_rows(&mut self, _: &mut dyn DocumentSource) -> Result<bool> {
        Ok(false)
    }

    fn open(&mut self, _: &Namespace, p: &Pipeline, vars: &Arc<Vars>) -> Result<Box<dyn Source>> {
        Ok(p.attach(0, over_docs(self.other.clone()), vars))
    }

    fn out(&mut self, _: &OutSpec, _: &mut dyn Source) -> Result<()> {
        Ok(())
    }

    fn merge(&mut self, _: &MergeSpec, _: &mut dyn Source, _: &Arc<Vars>) -> Result<()> {
        Ok(())
    }

    fn rows(&mut self, _: &RowsStage) -> Result<Vec<DocBuf>> {
        Ok(Vec::new())
    }

    fn spill(&mut self) -> Result<Box<dyn SpillFile>> {
        Err(Error::internal("no pipeline here is that large").into())
    }

    fn under_way(&mut self) -> &mut usize {
        &mut self.under_way
    }
}

fn run(stages: Val<'_>, input: &[DocBuf], other: &[DocBuf]) -> Option<Vec<DocBuf>> {
    let context = ParseCtx::new("test", Some("c"), ParseEnv::new());
    let pipeline = Pipeline::parse(stages, &context).ok()?;
    let mut host = Memory {
        other: other.to_vec(),
        under_way: 0,
    };
    let vars = Arc::new(Vars::new(0));
    let mut source = pipeline.attach(0, over_docs(input.to_vec()), &vars);
    let mut out = Vec::new();
    while source.advance(&mut host).ok()? {
        out.push(source.doc().to_buf());
    }
    Some(out)
}

fn documents(r: &mut StdRng, many: i32) -> Vec<DocBuf> {
    let text = |id: i32, r: &mut StdRng| {
        let a = ["1", "2", "[1,2]", r#"{"x":1}"#, "null"].choose(r).unwrap();
        let (b, c) = (r.random_range(0..4), r.random_range(0..9));
        format!(
            r#"{{"_id":{id},"a":{a},"b":{b},"c":{c},"d":{{"e":{}}}}}"#,
            id % 3
        )
    };
    let one = |id| json::parse(&text(id, r)).unwrap();
    (0..many).map(one).collect()
}

fn alone(r: &mut StdRng) -> &'static str {
    const STAGES: [&str; 7] = [
        r#"{"$match":{"b":{"$gte":1}}}"#,
        r#"{"$addFields":{"w":{"$add":["$b","$c"]}}}"#,
        r#"{"$project":{"b":1,"c":1,"d":1}}"#,
        r#"{"$unset":"a"}"#,
        r#"{"$addFields":{"a":"$d.e"}}"#,
        r#"{"$match":{"a":1}}"#,
        r#"{"$redact":{"$cond":[{"$eq":["$b",3]},"$$PRUNE","$$KEEP"]}}"#,
    ];
    STAGES.choose(r).unwrap()
}

/// Stages that make less of all documents.
fn reduced(r: &mut StdRng) -> String {
    let of = |r: &mut StdRng| *["$a", "$b", "$c", "$_id", "$d.e"].choose(r).unwrap();
    let by = *[r#""$b""#, r#""$d.e""#, "null", r#"{"x":"$b"}"#]
        .choose(r)
        .unwrap();
    let order = if r.random() { 1 } else { -1 };
    match r.random_range(0..8) {
        0 => r#"{"$count":"n"}"#.into(),
        1 => format!(
            r#"{{"$group":{{"_id":{by},"n":{{"$sum":"$c"}},"avg":{{"$avg":"{}"}},"m":{{"$max":"{}"}}}}}}"#,
            of(r),
            of(r)
        ),
        2 => format!(
            r#"{{"$sort":{{"c":{order},"_id":1}}}},{{"$group":{{"_id":{by},"f":{{"$first":"{}"}},"l":{{"$lastN":{{"n":2,"input":"{}"}}}},"n":{{"$sum":1}}}}}}"#,
            of(r),
            of(r)
        ),
        3 => format!(
            r#"{{"$sort":{{"c":{order},"_id":1}}}},{{"$group":{{"_id":{by},"all":{{"$push":"{}"}},"one":{{"$mergeObjects":"$d"}}}}}}"#,
            of(r)
        ),
        4 => format!(
            r#"{{"$sort":{{"c":{order},"_id":1}}}},{{"$limit":{}}}"#,
            r.random_range(1..6)
        ),
        5 => format!(
            r#"{{"$sort":{{"b":{order},"_id":1}}}},{{"$skip":{}}},{{"$limit":{}}}"#,
            r.random_range(1..6),
            r.random_range(1..6)
        ),
        6 => r#"{"$sortByCount":"$b"}"#.into(),
        _ => r#"{"$bucket":{"groupBy":"$b","boundaries":[0,2,4],"output":{"s":{"$sum":"$c"}}}}"#
            .into(),
    }
}

fn pipeline(r: &mut StdRng) -> String {
    let mut stages: Vec<String> = (0..r.random_range(0..3)).map(|_| alone(r).into()).collect();
    stages.push(match r.random_range(0..8) {
        0 => format!(r#"{{"$facet":{{"x":[{}],"y":[{}]}}}}"#, reduced(r), reduced(r)),
        1 => r#"{"$setWindowFields":{"partitionBy":"$b","sortBy":{"_id":1},"output":{"s":{"$sum":"$c"}}}},{"$group":{"_id":"$d.e","m":{"$max":"$s"}}}"#.into(),
        2 => r#"{"$lookup":{"from":"other","localField":"b","foreignField":"_id","as":"j"}},{"$group":{"_id":{"$size":"$j"},"n":{"$sum":"$c"}}}"#.into(),
        3 => r#"{"$bucketAuto":{"groupBy":"$c","buckets":2,"output":{"m":{"$max":"$b"}}}}"#.into(),
        _ => reduced(r),
    });
    if r.random_range(0..4) == 0 {
        stages.push(r#"{"$addFields":{"z":1}}"#.into());
    }
    format!("[{}]", stages.join(","))
}

/// A document, where the order of several is not promised.
fn shown(docs: &[DocBuf], ordered: bool) -> Vec<String> {
    let mut all: Vec<String> = docs.iter().map(|d| normal(d.as_doc().as_val())).collect();
    if !ordered {
        all.sort();
    }
    all
}

/// The results of a `$facet` are in no order but that of a sort, which `_id`s tell.
fn normal(v: Val<'_>) -> String {
    match v.as_doc().filter(|d| d.contains("x") && d.contains("y")) {
        Some(facet) => {
            let each = facet.iter().map(|e| {
                let list = e.val.as_array().unwrap_or(Doc::EMPTY);
                let mut list: Vec<String> = list.values().map(|v| v.to_string()).collect();
                list.sort();
                list.join(",")
            });
            each.collect::<Vec<_>>().join(";")
        }
        None => v.to_string(),
    }
}

/// The difference that a divided pipeline makes, if any.
fn differs(seed: u64) -> Option<String> {
    let r = &mut StdRng::seed_from_u64(seed);
    let (all, other) = (documents(r, 24), documents(r, 4));
    let (one, two): (Vec<DocBuf>, Vec<DocBuf>) = all.iter().cloned().partition(|_| r.random());
    let text = pipeline(r);
    let stages = json::parse_value(&text).unwrap();
    let want = run(stages.as_val(), &all, &other)?;
    let context = PipelineContext {
        db: "test",
        collection: Some("c"),
        collation: None,
        variables: Doc::EMPTY,
    };
    let parts = Parts::of(&context, stages.as_val().as_array()?, &|_, _| Ok(None)).ok()?;
    let each = list(&parts.on_shards);
    let mut here: Vec<Value> = parts.chosen_again();
    here.extend(parts.here.iter().cloned());
    let found = [one, two].iter().try_fold(Vec::new(), |mut found, docs| {
        found.extend(run(each.as_val(), docs, &other)?);
        Some(found)
    });
    let found = found.and_then(|found| run(list(&here).as_val(), &found, &other));
    let ordered = text.contains(r#""$limit""#) && !text.contains("$facet");
    let same = found.as_ref().map(|f| shown(f, ordered)) == Some(shown(&want, ordered));
    let (each, here) = (each.as_val(), list(&here));
    (!same).then(|| {
        format!(
            "PANDO_SEED={seed}: {text}\nas {each}\nand {}\ngave {found:?}\nnot {want:?}",
            here.as_val()
        )
    })
}

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn divided_and_not_are_the_same() {
    let seed = number("PANDO_SEED", 42);
    for i in 0..number("PANDO_PIPELINES", 2000) {
        if let Some(what) = differs(seed.wrapping_add(i)) {
            panic!("{what}");
        }
    }
}

#[test]
fn a_division_that_does_not_heed_a_condition_is_found() {
    for condition in [
        Condition::Alone,
        Condition::Merged,
        Condition::NoOrder,
        Condition::SortKeys,
        Condition::OwnResults,
        Condition::InOrder,
        Condition::LimitOfAll,
        Condition::WithSkipped,
        Condition::AllThatIsRead,
    ] {
        DROPPED.set(Some(condition));
        let found = (0..5000).find(|seed| differs(*seed).is_some());
        DROPPED.set(None);
        assert!(found.is_some(), "{condition:?} was not found");
        println!("{condition:?}: found by pipeline {}", found.unwrap_or(0));
    }
}
