//! Pipelines over documents in memory: input, stages, output (or `#code`).

use super::*;
use crate::collation::Collation;
use crate::expr::ParseEnv;
use bson::json;
use std::collections::BTreeMap;

pub(super) fn docs(text: &str) -> Vec<DocBuf> {
    let v = json::parse_value(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let list = v.as_val().as_array().unwrap();
    list.values()
        .map(|d| d.as_doc().unwrap().to_buf())
        .collect()
}

/// Collections in memory. Every `offload_every`-th check fails as on an event loop.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) collections: BTreeMap<String, Vec<DocBuf>>,
    pub(super) offload_every: Option<u32>,
    pub(super) checks: u32,
    pub(super) limit: Option<usize>,
    /// The sizes of collections are known.
    pub(super) sizes: bool,
    /// They are on another server.
    pub(super) remote: bool,
    pub(super) opened: u32,
    pub(super) disk: bool,
    pub(super) spilled: u32,
    pub(super) shared: Option<Arc<StageMemory>>,
    /// The most that was held of that at any check.
    pub(super) most: usize,
    pub(super) watch: Option<StageProfiler>,
    pub(super) under_way: usize,
}

impl PipelineHost for Memory {
    fn check(&mut self) -> Result<()> {
        self.checks += 1;
        let held = self.shared.as_ref().map_or(0, |s| s.used());
        self.most = self.most.max(held);
        match self.offload_every {
            Some(n) if self.checks.is_multiple_of(n) => Err(errors::Suspension::Worker.into()),
            _ => Ok(()),
        }
    }

    fn advance_rows(&mut self, _rows: &mut dyn DocumentSource) -> Result<bool> {
        Ok(false)
    }

    fn open(
        &mut self,
        ns: &Namespace,
        pipeline: &Pipeline,
        vars: &Arc<Vars>,
    ) -> Result<Box<dyn Source>> {
        self.check()?;
        self.opened += 1;
        let docs = self.collections.get(&ns.coll).cloned().unwrap_or_default();
        Ok(pipeline.attach(0, over_docs(docs), vars))
    }

    fn joined_collection(&mut self, ns: &Namespace, _: &FieldPath) -> Option<JoinedCollection> {
        let docs = self.collections.get(&ns.coll).filter(|_| self.sizes)?;
        Some(JoinedCollection {
            documents: docs.len() as u64,
            bytes: docs.iter().map(|d| d.as_bytes().len() as u64).sum(),
            indexed: self.remote,
            remote: self.remote,
        })
    }

    fn out(&mut self, spec: &OutSpec, input: &mut dyn Source) -> Result<()> {
        let mut all = Vec::new();
        while input.advance(self)? {
            all.push(input.doc().to_buf());
        }
        self.collections.insert(spec.target.coll.clone(), all);
        Ok(())
    }

    fn merge(&mut self, spec: &MergeSpec, input: &mut dyn Source, vars: &Arc<Vars>) -> Result<()> {
        while input.advance(self)? {
            spec.bind(input.doc(), vars)?;
            let d = input.doc().to_buf();
            self.collections
                .entry(spec.target.coll.clone())
                .or_default()
                .push(d);
        }
        Ok(())
    }

    fn rows(&mut self, stage: &RowsStage) -> Result<Vec<DocBuf>> {
        Ok(vec![bson::doc! { "kind": format!("{:?}", stage.kind) }])
    }

    fn memory_limit(&self) -> usize {
        self.limit.unwrap_or(100 << 20)
    }

    fn allow_disk_use(&self) -> bool {
        self.disk
    }

    fn share(&self) -> Share {
        self.shared
            .as_ref()
            .map(StageMemory::share)
            .unwrap_or_default()
    }

    fn spill(&mut self) -> Result<Box<dyn SpillFile>> {
        self.check()?;
        self.spilled += 1;
        Ok(Box::new(std::io::Cursor::new(Vec::new())))
    }

    fn under_way(&mut self) -> &mut usize {
        &mut self.under_way
    }

    fn watch(&mut self) -> Option<&mut StageProfiler> {
        self.watch.as_mut()
    }
}

pub(super) fn parse(stages: &str) -> Result<Pipeline> {
    parse_under(stages, "")
}

pub(super) fn parse_under(stages: &str, collation: &str) -> Result<Pipeline> {
    let v = json::parse_value(stages).unwrap_or_else(|e| panic!("{stages}: {e}"));
    parse_value_under(v.as_val(), collation)
}

pub(super) fn parse_value_under(stages: Val<'_>, collation: &str) -> Result<Pipeline> {
    let collation = match collation {
        "" => None,
        c => Collation::new(json::parse(c).unwrap().as_doc())?,
    };
    let ctx = ParseCtx::new("test", Some("c"), ParseEnv::new().collated(collation));
    Pipeline::parse(stages, &ctx)
}

pub(super) fn run_on(host: &mut Memory, input: &str, stages: &str) -> Result<Vec<DocBuf>> {
    run_under(host, input, stages, "")
}

pub(super) fn run_under(
    host: &mut Memory,
    input: &str,
    stages: &str,
    collation: &str,
) -> Result<Vec<DocBuf>> {
    let pipeline = parse_under(stages, collation)?;
    let vars = Arc::new(Vars::new(0));
    let mut source = pipeline.attach(0, over_docs(docs(input)), &vars);
    let mut out = Vec::new();
    loop {
        match source.advance(host) {
            Ok(true) => {
                bson::validate(source.doc().as_bytes()).unwrap();
                out.push(source.doc().to_buf());
            }
            Ok(false) => return Ok(out),
            Err(e) if e.is_suspension() => {}
            Err(e) => return Err(e),
        }
    }
}

/// A stage with `limit` bytes gives from files what it gives in memory, however often it is
/// interrupted; without leave for files it is refused. Gives the results.
pub(super) fn outside_memory(input: &str, stage: &str, collation: &str, limit: usize) -> String {
    let stages = format!("[{stage}]");
    let want = run_under(&mut Memory::default(), input, &stages, collation);
    let want = show(want);
    for offload_every in [None, Some(2), Some(3), Some(7)] {
        let mut host = Memory {
            limit: Some(limit),
            disk: true,
            offload_every,
            ..Memory::default()
        };
        let found = show(run_under(&mut host, input, &stages, collation));
        assert_eq!(found, want, "{stage} {collation} {offload_every:?}");
        assert!(host.spilled > 0, "{stage}");
    }
    let mut host = Memory {
        limit: Some(limit),
        ..Memory::default()
    };
    let refused = show(run_under(&mut host, input, &stages, collation));
    assert_eq!(refused, "#292", "{stage}");
    want
}

pub(super) fn show(r: Result<Vec<DocBuf>>) -> String {
    match r {
        Ok(docs) => format!("{docs:?}"),
        Err(e) => format!("#{}", e.into_error().code.0),
    }
}

pub(super) fn joined_host() -> Memory {
    let mut host = Memory::default();
    host.collections.insert(
        "other".into(),
        docs(r#"[{"_id":10,"k":"a","n":1},{"_id":11,"k":null},{"_id":12},{"_id":13,"k":["b","c"]},{"_id":14,"k":"b"}]"#),
    );
    host.collections.insert(
        "people".into(),
        docs(
            r#"[{"_id":1,"name":"A"},{"_id":2,"name":"B","boss":"A"},{"_id":3,"name":"C","boss":"B"},{"_id":4,"name":"D","boss":"C"}]"#,
        ),
    );
    host
}

/// Input, stages, output; each also run on a host that interrupts at every third check.
fn check(cases: &[(&str, &str, &str)]) {
    for (input, stages, want) in cases {
        let want = if want.starts_with('#') {
            want.to_string()
        } else {
            format!("{:?}", docs(want))
        };
        assert_eq!(
            show(run_on(&mut joined_host(), input, stages)),
            want,
            "{stages} on {input}"
        );
        let mut interrupted = joined_host();
        interrupted.offload_every = Some(3);
        assert_eq!(
            show(run_on(&mut interrupted, input, stages)),
            want,
            "interrupted: {stages}"
        );
    }
}

/// Long windows ask whether they may go on, and can be taken up again where they could not.
#[test]
fn windows_are_interrupted() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let input: Vec<String> = (0..600).map(|i| format!(r#"{{"_id":{i}}}"#)).collect();
    let input = format!("[{}]", input.join(","));
    for function in [
        r#"{"$push":"$_id","window":{"documents":[-400,0]}}"#,
        r#"{"$sum":"$_id","window":{"documents":["unbounded","unbounded"]}}"#,
        r#"{"$covariancePop":["$_id","$_id"],"window":{"documents":[-400,0]}}"#,
        r#"{"$stdDevPop":"$_id","window":{"documents":[-400,0]}}"#,
        r#"{"$integral":{"input":"$_id"},"window":{"documents":[-400,0]}}"#,
        r#"{"$push":"$_id","window":{"range":[-400,0]}}"#,
        r#"{"$linearFill":{"$cond":[{"$in":["$_id",[1,590]]},"$_id",null]}}"#,
    ] {
        let stages = format!(
            r#"[{{"$setWindowFields":{{"sortBy":{{"_id":1}},"output":{{"r":{{"$rank":{{}}}},"w":{function}}}}}}}]"#
        );
        let want = run_on(&mut Memory::default(), &input, &stages).unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let mut vars = Vars::new(0);
        let count = asked.clone();
        vars.set_watchdog(Arc::new(move || {
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => Err(errors::Suspension::Worker.into()),
                _ => Ok(()),
            }
        }));
        let mut source =
            parse(&stages)
                .unwrap()
                .attach(0, over_docs(docs(&input)), &Arc::new(vars));
        let (mut host, mut found, mut refused) = (Memory::default(), Vec::new(), 0);
        loop {
            match source.advance(&mut host) {
                Ok(true) => found.push(source.doc().to_buf()),
                Ok(false) => break,
                Err(e) if e.is_suspension() => refused += 1,
                Err(e) => panic!("{function}: {e:?}"),
            }
        }
        assert_eq!(refused, 1, "{function}");
        assert!(found == want, "{function}");
    }
}

/// A partition that is too much for memory gives what it would give there, and holds little of it.
#[test]
fn windows_outside_memory() {
    let input: Vec<String> = (0..900)
        .map(|i| {
            let v = if i % 4 == 0 {
                "null".into()
            } else {
                (i * 7 % 31).to_string()
            };
            format!(r#"{{"_id":{i},"p":{},"t":{},"v":{v}}}"#, i % 2, i / 2)
        })
        .collect();
    let input = format!("[{}]", input.join(","));
    let mut host = Memory {
        limit: Some(5000),
        disk: true,
        offload_every: Some(3),
        ..Memory::default()
    };
    for function in [
        r#"{"$push":"$v","window":{"documents":[-3,2]}}"#,
        r#"{"$push":"$_id","window":{"range":[-3,5]}}"#,
        r#"{"$sum":"$v","window":{"documents":["unbounded","current"]}}"#,
        r#"{"$avg":"$v","window":{"range":["current","unbounded"]}}"#,
        r#"{"$min":"$v"}"#,
        r#"{"$stdDevSamp":"$v","window":{"documents":[-5,5]}}"#,
        r#"{"$documentNumber":{}}"#,
        r#"{"$denseRank":{}}"#,
        r#"{"$shift":{"output":"$_id","by":-300,"default":"none"}}"#,
        r#"{"$expMovingAvg":{"input":"$v","N":5}}"#,
        r#"{"$derivative":{"input":"$_id"},"window":{"documents":[-9,0]}}"#,
        r#"{"$integral":{"input":"$v"},"window":{"range":[-9,9]}}"#,
        r#"{"$covarianceSamp":["$t","$v"],"window":{"documents":["unbounded",3]}}"#,
        r#"{"$linearFill":"$v"}"#,
        r#"{"$locf":"$v"}"#,
    ] {
        let stages = format!(
            r#"[{{"$setWindowFields":{{"partitionBy":"$p","sortBy":{{"t":1}},"output":{{"w":{function}}}}}}}]"#
        );
        let want = run_on(&mut Memory::default(), &input, &stages).unwrap();
        assert_eq!(want.len(), 900);
        host.spilled = 0;
        assert!(
            run_on(&mut host, &input, &stages).unwrap() == want,
            "{function}"
        );
        assert!(host.spilled > 2, "{function}");
    }
    // What one function gathers can go nowhere.
    let all = r#"[{"$setWindowFields":{"sortBy":{"t":1},"output":{"w":{"$push":"$$ROOT"}}}}]"#;
    assert_eq!(
        run_on(&mut host, &input, all)
            .unwrap_err()
            .into_error()
            .code
            .0,
        5414201
    );
}

const NUMBERS: &str = r#"[{"_id":1,"a":3},{"_id":2,"a":1},{"_id":3,"a":2},{"_id":4,"a":1}]"#;

#[test]
fn streaming_stages() {
    check(&[
        (
            NUMBERS,
            r#"[{"$match":{"a":1}}]"#,
            r#"[{"_id":2,"a":1},{"_id":4,"a":1}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$skip":1},{"$limit":2}]"#,
            r#"[{"_id":2,"a":1},{"_id":3,"a":2}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$project":{"a":1,"_id":0}},{"$limit":1}]"#,
            r#"[{"a":3}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$limit":1},{"$set":{"b":{"$add":["$a",1]}}},{"$unset":"a"}]"#,
            r#"[{"_id":1,"b":4}]"#,
        ),
        (NUMBERS, r#"[{"$count":"n"}]"#, r#"[{"n":4}]"#),
        ("[]", r#"[{"$count":"n"}]"#, "[]"),
        (
            NUMBERS,
            r#"[{"$limit":1},{"$replaceRoot":{"newRoot":{"x":"$a"}}}]"#,
            r#"[{"x":3}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$sort":{"a":1,"_id":-1}}]"#,
            r#"[{"_id":4,"a":1},{"_id":2,"a":1},{"_id":3,"a":2},{"_id":1,"a":3}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$sort":{"a":-1}},{"$skip":1},{"$limit":2}]"#,
            r#"[{"_id":3,"a":2},{"_id":2,"a":1}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$sample":{"size":9}},{"$count":"n"}]"#,
            r#"[{"n":4}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$sample":{"size":3}},{"$count":"n"}]"#,
            r#"[{"n":3}]"#,
        ),
    ]);
}

#[test]
fn unwind() {
    let input = r#"[{"_id":1,"a":[7,8]},{"_id":2,"a":[]},{"_id":3},{"_id":4,"a":null},{"_id":5,"a":9},{"_id":6,"a":[null]}]"#;
    check(&[
        (
            input,
            r#"[{"$unwind":"$a"}]"#,
            r#"[{"_id":1,"a":7},{"_id":1,"a":8},{"_id":5,"a":9},{"_id":6,"a":null}]"#,
        ),
        (
            input,
            r#"[{"$unwind":{"path":"$a","preserveNullAndEmptyArrays":true,"includeArrayIndex":"i"}}]"#,
            r#"[{"_id":1,"a":7,"i":{"$numberLong":"0"}},{"_id":1,"a":8,"i":{"$numberLong":"1"}},{"_id":2,"i":null},{"_id":3,"i":null},
                {"_id":4,"a":null,"i":null},{"_id":5,"a":9,"i":null},{"_id":6,"a":null,"i":{"$numberLong":"0"}}]"#,
        ),
        (
            r#"[{"a":{"b":[1,2],"c":3}}]"#,
            r#"[{"$unwind":"$a.b"}]"#,
            r#"[{"a":{"b":1,"c":3}},{"a":{"b":2,"c":3}}]"#,
        ),
        (r#"[{"a":[{"b":[1]}]}]"#, r#"[{"$unwind":"$a.b"}]"#, "[]"),
    ]);
}

#[test]
fn groups() {
    check(&[
        (
            NUMBERS,
            r#"[{"$group":{"_id":"$a","n":{"$sum":1},"ids":{"$push":"$_id"}}}]"#,
            r#"[{"_id":3,"n":1,"ids":[1]},{"_id":1,"n":2,"ids":[2,4]},{"_id":2,"n":1,"ids":[3]}]"#,
        ),
        (
            r#"[{"a":1},{"a":1.0},{"a":null},{}]"#,
            r#"[{"$group":{"_id":"$a","n":{"$sum":1}}}]"#,
            r#"[{"_id":1,"n":2},{"_id":null,"n":2}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$group":{"_id":null,"m":{"$max":"$a"}}}]"#,
            r#"[{"_id":null,"m":3}]"#,
        ),
        ("[]", r#"[{"$group":{"_id":null,"m":{"$max":"$a"}}}]"#, "[]"),
        (
            NUMBERS,
            r#"[{"$sortByCount":"$a"},{"$limit":1}]"#,
            r#"[{"_id":1,"count":2}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$bucket":{"groupBy":"$a","boundaries":[0,2,3],"default":"more"}}]"#,
            r#"[{"_id":0,"count":2},{"_id":2,"count":1},{"_id":"more","count":1}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$bucket":{"groupBy":"$a","boundaries":[0,2]}}]"#,
            "#40069",
        ),
        (
            NUMBERS,
            r#"[{"$bucketAuto":{"groupBy":"$a","buckets":2}}]"#,
            r#"[{"_id":{"min":1,"max":2},"count":2},{"_id":{"min":2,"max":3},"count":2}]"#,
        ),
        (
            r#"[{"x":1},{"x":10},{"x":100},{"x":1000}]"#,
            r#"[{"$bucketAuto":{"groupBy":"$x","buckets":3,"granularity":"R5"}}]"#,
            r#"[{"_id":{"min":0.63,"max":1.6},"count":1},{"_id":{"min":1.6,"max":16.0},"count":1},{"_id":{"min":16.0,"max":1600.0},"count":2}]"#,
        ),
        (
            r#"[{"x":1},{"x":10},{"x":100},{"x":1000}]"#,
            r#"[{"$bucketAuto":{"groupBy":"$x","buckets":3,"granularity":"POWERSOF2"}}]"#,
            r#"[{"_id":{"min":0.5,"max":2},"count":1},{"_id":{"min":2,"max":16},"count":1},{"_id":{"min":16,"max":1024},"count":2}]"#,
        ),
    ]);
}

#[test]
fn joins() {
    let by_field = |rest: &str| {
        format!(
            r#"[{{"$lookup":{{"from":"other","localField":"l","foreignField":"k","as":"j"{rest}}}}},{{"$project":{{"j._id":1,"_id":0}}}}]"#
        )
    };
    let plain = by_field("");
    let with_pipeline =
        by_field(r#","let":{"v":"$l"},"pipeline":[{"$match":{"$expr":{"$eq":["$k","$$v"]}}}]"#);
    check(&[
        (r#"[{"l":"a"}]"#, &plain, r#"[{"j":[{"_id":10}]}]"#),
        (
            r#"[{"l":"b"}]"#,
            &plain,
            r#"[{"j":[{"_id":13},{"_id":14}]}]"#,
        ),
        (
            r#"[{"l":["a","b"]}]"#,
            &plain,
            r#"[{"j":[{"_id":10},{"_id":13},{"_id":14}]}]"#,
        ),
        (r#"[{}]"#, &plain, r#"[{"j":[{"_id":11},{"_id":12}]}]"#),
        (
            r#"[{"l":[]}]"#,
            &plain,
            r#"[{"j":[{"_id":11},{"_id":12}]}]"#,
        ),
        (r#"[{"l":"b"}]"#, &with_pipeline, r#"[{"j":[{"_id":14}]}]"#),
        (
            r#"[{"x":1},{"x":2}]"#,
            r#"[{"$lookup":{"from":"other","pipeline":[{"$count":"n"}],"as":"a.b"}}]"#,
            r#"[{"x":1,"a":{"b":[{"n":5}]}},{"x":2,"a":{"b":[{"n":5}]}}]"#,
        ),
        (
            r#"[{"x":1}]"#,
            r#"[{"$lookup":{"from":"other","let":{"v":"$x"},"pipeline":[{"$limit":1},{"$project":{"_id":0,"s":{"$add":["$n","$$v"]}}}],"as":"x"}}]"#,
            r#"[{"x":[{"s":2}]}]"#,
        ),
        (
            r#"[{"v":2}]"#,
            r#"[{"$lookup":{"localField":"v","foreignField":"w","pipeline":[{"$documents":[{"w":1},{"w":2}]}],"as":"j"}}]"#,
            r#"[{"v":2,"j":[{"w":2}]}]"#,
        ),
        (
            r#"[{"x":1}]"#,
            r#"[{"$unionWith":{"coll":"other","pipeline":[{"$match":{"k":"a"}}]}}]"#,
            r#"[{"x":1},{"_id":10,"k":"a","n":1}]"#,
        ),
        (
            r#"[{"_id":4}]"#,
            r#"[{"$graphLookup":{"from":"people","startWith":"C","connectFromField":"boss","connectToField":"name","as":"up","depthField":"d"}},
                {"$project":{"up.name":1,"up.d":1}}]"#,
            r#"[{"_id":4,"up":[{"name":"C","d":{"$numberLong":"0"}},{"name":"B","d":{"$numberLong":"1"}},{"name":"A","d":{"$numberLong":"2"}}]}]"#,
        ),
        (
            r#"[{"_id":4}]"#,
            r#"[{"$graphLookup":{"from":"people","startWith":"C","connectFromField":"boss","connectToField":"name","as":"up","maxDepth":0}},
                {"$project":{"up.name":1}}]"#,
            r#"[{"_id":4,"up":[{"name":"C"}]}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$facet":{"few":[{"$limit":1}],"n":[{"$count":"c"}],"none":[{"$match":{"a":9}}]}}]"#,
            r#"[{"few":[{"_id":1,"a":3}],"n":[{"c":4}],"none":[]}]"#,
        ),
    ]);
}

#[test]
fn redact() {
    check(&[
        (
            r#"[{"_id":1,"t":1,"s":{"t":1,"x":2,"u":{"t":9}},"l":[{"t":9},{"t":1},3]}]"#,
            r#"[{"$redact":{"$cond":[{"$eq":["$t",1]},"$$DESCEND","$$PRUNE"]}}]"#,
            r#"[{"_id":1,"t":1,"s":{"t":1,"x":2},"l":[{"t":1},3]}]"#,
        ),
        (
            r#"[{"_id":1},{"_id":2}]"#,
            r#"[{"$redact":{"$cond":[{"$eq":["$_id",1]},"$$KEEP","$$PRUNE"]}}]"#,
            r#"[{"_id":1}]"#,
        ),
        (r#"[{"_id":1}]"#, r#"[{"$redact":"DESCEND"}]"#, "#17053"),
    ]);
}

#[test]
fn writing() {
    let mut host = joined_host();
    assert_eq!(
        show(run_on(
            &mut host,
            NUMBERS,
            r#"[{"$match":{"a":2}},{"$out":"copy"}]"#
        )),
        "[]"
    );
    assert_eq!(
        format!("{:?}", host.collections["copy"]),
        format!("{:?}", docs(r#"[{"_id":3,"a":2}]"#))
    );
    let p = parse(r#"[{"$merge":{"into":{"db":"d","coll":"x"}}}]"#).unwrap();
    assert_eq!(
        (p.writes(), p.target().unwrap().to_string()),
        (true, "d.x".to_string())
    );
}

#[test]
fn memory_limits() {
    for stages in [
        r#"[{"$sort":{"a":1}}]"#,
        r#"[{"$group":{"_id":"$_id","all":{"$push":"$$ROOT"}}}]"#,
    ] {
        let mut host = Memory {
            limit: Some(100),
            ..Memory::default()
        };
        assert_eq!(show(run_on(&mut host, NUMBERS, stages)), "#292", "{stages}");
    }
    let mut host = Memory {
        limit: Some(150),
        ..Memory::default()
    };
    assert_eq!(
        show(run_on(
            &mut host,
            NUMBERS,
            r#"[{"$sort":{"a":1}},{"$limit":1},{"$project":{"_id":1}}]"#
        )),
        r#"[{"_id": 2}]"#
    );
}

#[test]
fn spilling() {
    let input: Vec<String> = (0..200)
        .map(|i| format!(r#"{{"_id":{i},"k":{},"v":{i}}}"#, i * 7 % 10))
        .collect();
    let input = format!("[{}]", input.join(","));
    for stages in [
        r#"[{"$sort":{"k":1}}]"#,
        r#"[{"$sort":{"k":-1,"v":1}},{"$limit":60}]"#,
        r#"[{"$group":{"_id":"$k","n":{"$sum":"$v"},"first":{"$first":"$v"},"all":{"$push":"$v"},"avg":{"$avg":"$v"}}},{"$sort":{"_id":1}}]"#,
    ] {
        let want = show(run_on(&mut Memory::default(), &input, stages));
        let mut host = Memory {
            limit: Some(2000),
            disk: true,
            offload_every: Some(7),
            ..Memory::default()
        };
        assert_eq!(show(run_on(&mut host, &input, stages)), want, "{stages}");
        assert!(host.spilled > 0, "{stages}");
    }
}

#[test]
fn what_does_not_parse() {
    let cases = [
        ("5", 14),
        ("[5]", 14),
        ("[{}]", 40323),
        (r#"[{"$limit":5,"$skip":2}]"#, 40323),
        (r#"[{"$foo":{}}]"#, 40324),
        (r#"[{"match":{}}]"#, 40324),
        (r#"[{"$match":5}]"#, 15959),
        (r#"[{"$match":{"$where":"true"}}]"#, 2),
        (r#"[{"$match":{"l":{"$near":[0,0]}}}]"#, 5626500),
        (r#"[{"$limit":0}]"#, 15958),
        (r#"[{"$limit":-1}]"#, 5107201),
        (r#"[{"$limit":1.5}]"#, 5107201),
        (r#"[{"$skip":"x"}]"#, 5107200),
        (r#"[{"$sort":{}}]"#, 15976),
        (r#"[{"$sort":[]}]"#, 15973),
        (r#"[{"$sort":{"a":2}}]"#, 15975),
        (r#"[{"$sort":{"a":"x"}}]"#, 15974),
        (r#"[{"$count":""}]"#, 40157),
        (r#"[{"$count":"a.b"}]"#, 40160),
        (r#"[{"$count":"_id"}]"#, 9039800),
        (r#"[{"$unwind":"a"}]"#, 28818),
        (r#"[{"$unwind":5}]"#, 15981),
        (
            r#"[{"$unwind":{"path":"$a","includeArrayIndex":""}}]"#,
            28810,
        ),
        (r#"[{"$unwind":{"path":"$a","x":1}}]"#, 28811),
        (r#"[{"$sample":{"size":0}}]"#, 28747),
        (r#"[{"$sample":{}}]"#, 28749),
        (r#"[{"$group":{"n":{"$sum":1}}}]"#, 15955),
        (r#"[{"$group":{"_id":{"a":1}}}]"#, 17390),
        (r#"[{"$group":{"_id":1,"n":1}}]"#, 40234),
        (r#"[{"$sortByCount":"a"}]"#, 40148),
        (r#"[{"$set":5}]"#, 40272),
        (r#"[{"$out":"x"},{"$match":{}}]"#, 40601),
        (r#"[{"$out":5}]"#, 16990),
        (r#"[{"$out":"system.x"}]"#, 17385),
        (r#"[{"$out":{"db":"admin","coll":"x"}}]"#, 31321),
        (r#"[{"$match":{}},{"$indexStats":{}}]"#, 40602),
        (r#"[{"$indexStats":{"a":1}}]"#, 28803),
        (r#"[{"$collStats":{"x":{}}}]"#, 40415),
        (r#"[{"$currentOp":{}}]"#, 73),
        (r#"[{"$documents":[]}]"#, 73),
        (r#"[{"$facet":{}}]"#, 40169),
        (r#"[{"$facet":{"a":5}}]"#, 40170),
        (r#"[{"$facet":{"a":[5]}}]"#, 40171),
        (r#"[{"$facet":{"a":[{"$out":"x"}]}}]"#, 40600),
        (r#"[{"$facet":{"a":[{"$facet":{"b":[]}}]}}]"#, 40600),
        (r#"[{"$lookup":5}]"#, 9),
        (r#"[{"$lookup":{"from":"x","as":"y"}}]"#, 9),
        (
            r#"[{"$lookup":{"from":"x","localField":"a","foreignField":"b"}}]"#,
            40414,
        ),
        (
            r#"[{"$lookup":{"from":"x","localField":"a","foreignField":"b","as":5}}]"#,
            14,
        ),
        (
            r#"[{"$lookup":{"from":"x","localField":"a","foreignField":"b","as":"y","z":1}}]"#,
            40415,
        ),
        (
            r#"[{"$lookup":{"from":"x","let":{"X":1},"pipeline":[],"as":"y"}}]"#,
            9,
        ),
        (
            r#"[{"$lookup":{"from":"x","let":{"a":"$$b"},"pipeline":[],"as":"y"}}]"#,
            17276,
        ),
        (
            r#"[{"$lookup":{"from":"x","pipeline":[{"$out":"z"}],"as":"y"}}]"#,
            51047,
        ),
        (
            r#"[{"$unionWith":{"coll":"x","pipeline":[{"$out":"z"}]}}]"#,
            31441,
        ),
        (r#"[{"$merge":{"into":5}}]"#, 51178),
        (
            r#"[{"$merge":{"into":"x","whenMatched":"fail","whenNotMatched":"fail"}}]"#,
            51181,
        ),
        (r#"[{"$merge":{"into":"x","on":[]}}]"#, 51187),
        (
            r#"[{"$merge":{"into":"x","whenMatched":[{"$match":{}}]}}]"#,
            72,
        ),
        (
            r#"[{"$bucket":{"groupBy":"$x","boundaries":[2,1]}}]"#,
            40194,
        ),
        (r#"[{"$bucketAuto":{"groupBy":"$x","buckets":0}}]"#, 40243),
    ];
    for (stages, code) in cases {
        match parse(stages) {
            Ok(_) => panic!("{stages} parses"),
            Err(e) => assert_eq!(e.failure().unwrap().code.0, code, "{stages}: {e}"),
        }
    }
    let nested = (0..22).fold("[]".to_string(), |p, _| {
        format!(r#"[{{"$lookup":{{"from":"x","as":"y","pipeline":{p}}}}}]"#)
    });
    assert_eq!(parse(&nested).unwrap_err().into_error().code.0, 232);
}

/// The stages behind those that others have run: they may begin with any but one that has to be first.
#[test]
fn the_rest_of_a_pipeline_is_behind_others() {
    let many = |n: usize| format!("[{}]", vec![r#"{"$skip":1}"#; n].join(","));
    for (stages, code) in [
        ("[]".to_string(), 0),
        (r#"[{"$match":{"a":1}}]"#.into(), 0),
        (
            r#"[{"$_pandoMerged":{"near":true}},{"$sort":{"a":1}}]"#.into(),
            0,
        ),
        (r#"[{"$documents":[]}]"#.into(), 40602),
        (r#"[{"$collStats":{}}]"#.into(), 40602),
        (r#"[{"$match":{"$text":{"$search":"a"}}}]"#.into(), 17313),
        (
            r#"[{"$match":{}},{"$geoNear":{"near":[0,0]}}]"#.into(),
            40603,
        ),
        (many(1000), 0),
        (many(1002), 7749501),
    ] {
        let parsed = json::parse_value(&stages).unwrap();
        let ctx = ParseCtx::new("test", None, ParseEnv::new()).of_rest();
        let found = Pipeline::parse(parsed.as_val(), &ctx).map_err(|e| e.into_error().code.0);
        let found = found.map_or_else(|code| code, |_| 0);
        assert_eq!(found, code, "{stages}");
    }
}

#[test]
fn pushdown() {
    let p = |s: &str| parse(s).unwrap().pushdown();
    let d = p(
        r#"[{"$match":{"a":1}},{"$match":{"b":2}},{"$sort":{"c":1}},{"$skip":2},{"$limit":5},{"$limit":9},{"$skip":1},{"$project":{"x":1}}]"#,
    );
    assert_eq!((d.consumed, d.skip, d.limit), (7, 3, Some(4)));
    assert!(d.sort.is_some());
    let d = p(r#"[{"$limit":5},{"$match":{"a":1}}]"#);
    assert_eq!(
        (d.consumed, d.limit, d.filter.is_trivial(), d.needed),
        (1, Some(5), true, None)
    );
    let d = p(r#"[{"$match":{"a":1}},{"$count":"n"}]"#);
    assert!(d.count_only && d.needed.is_some_and(|n| n.is_empty()));
    for (stage, counts) in [
        (r#"{"$group":{"_id":1,"n":{"$sum":1}}}"#, true),
        (
            r#"{"$group":{"_id":null,"n":{"$count":{}},"m":{"$sum":1}}}"#,
            true,
        ),
        (r#"{"$group":{"_id":"$a","n":{"$sum":1}}}"#, false),
        (r#"{"$group":{"_id":null,"n":{"$sum":2}}}"#, false),
        (r#"{"$group":{"_id":null,"n":{"$sum":"$a"}}}"#, false),
        (r#"{"$group":{"_id":null,"n":{"$avg":1}}}"#, false),
        (
            r#"{"$group":{"_id":null,"n":{"$sum":1},"m":{"$max":"$a"}}}"#,
            false,
        ),
    ] {
        assert_eq!(p(&format!("[{stage}]")).count_only, counts, "{stage}");
    }
    let d = p(
        r#"[{"$match":{"a":1}},{"$unwind":"$t"},{"$match":{"t.x":2}},{"$group":{"_id":"$t.y","n":{"$sum":"$v"}}}]"#,
    );
    let needed: Vec<_> = d.needed.unwrap().into_iter().collect();
    assert_eq!(
        (needed, d.consumed),
        (
            vec!["t".into(), "t.x".into(), "t.y".into(), "v".to_string()],
            1
        )
    );
    let d = p(r#"[{"$sort":{"a":1}},{"$group":{"_id":"$b"}},{"$limit":1}]"#);
    assert_eq!((d.consumed, d.limit), (1, None));
}

#[test]
fn windows() {
    let input = r#"[{"_id":1,"p":"a","t":1,"v":10},{"_id":2,"p":"b","t":1,"v":5},{"_id":3,"p":"a","t":3,"v":20},{"_id":4,"p":"a","t":2,"v":null}]"#;
    let with = |output: &str| {
        format!(
            r#"[{{"$setWindowFields":{{"partitionBy":"$p","sortBy":{{"t":1}},"output":{output}}}}},{{"$project":{{"_id":1,"r":1,"s":1}}}}]"#
        )
    };
    let sums = with(
        r#"{"r":{"$sum":"$v","window":{"documents":["unbounded","current"]}},"s":{"$push":"$_id","window":{"documents":[-1,0]}}}"#,
    );
    let ranks = with(
        r#"{"r":{"$documentNumber":{}},"s":{"$shift":{"output":"$_id","by":1,"default":"end"}}}"#,
    );
    let ranges = with(r#"{"r":{"$count":{},"window":{"range":[-1,0]}},"s":{"$max":"$v"}}"#);
    let fills = with(r#"{"r":{"$linearFill":"$v"},"s":{"$locf":"$v"}}"#);
    let curves = with(
        r#"{"r":{"$derivative":{"input":"$t"},"window":{"documents":[-1,0]}},"s":{"$integral":{"input":"$t"},"window":{"documents":["unbounded","current"]}}}"#,
    );
    check(&[
        (
            input,
            &sums,
            r#"[{"_id":1,"r":10,"s":[1]},{"_id":4,"r":10,"s":[1,4]},{"_id":3,"r":30,"s":[4,3]},{"_id":2,"r":5,"s":[2]}]"#,
        ),
        (
            input,
            &ranks,
            r#"[{"_id":1,"r":1,"s":4},{"_id":4,"r":2,"s":3},{"_id":3,"r":3,"s":"end"},{"_id":2,"r":1,"s":"end"}]"#,
        ),
        (
            input,
            &ranges,
            r#"[{"_id":1,"r":1,"s":20},{"_id":4,"r":2,"s":20},{"_id":3,"r":2,"s":20},{"_id":2,"r":1,"s":5}]"#,
        ),
        (
            input,
            &fills,
            r#"[{"_id":1,"r":10,"s":10},{"_id":4,"r":15.0,"s":10},{"_id":3,"r":20,"s":20},{"_id":2,"r":5,"s":5}]"#,
        ),
        (
            input,
            &curves,
            r#"[{"_id":1,"r":null,"s":0.0},{"_id":4,"r":1.0,"s":1.5},{"_id":3,"r":1.0,"s":4.0},{"_id":2,"r":null,"s":0.0}]"#,
        ),
        (
            NUMBERS,
            r#"[{"$setWindowFields":{"sortBy":{"a":1},"output":{"r":{"$rank":{}},"d":{"$denseRank":{}}}}}]"#,
            r#"[{"_id":2,"a":1,"r":1,"d":1},{"_id":4,"a":1,"r":1,"d":1},{"_id":3,"a":2,"r":3,"d":2},{"_id":1,"a":3,"r":4,"d":3}]"#,
        ),
        (
            r#"[{"_id":1,"v":1},{"_id":2,"v":null},{"_id":3,"v":3}]"#,
            r#"[{"$fill":{"sortBy":{"_id":1},"output":{"v":{"method":"linear"},"w":{"value":7}}}}]"#,
            r#"[{"_id":1,"v":1,"w":7},{"_id":2,"v":2.0,"w":7},{"_id":3,"v":3,"w":7}]"#,
        ),
        (
            r#"[{"_id":1,"v":1}]"#,
            r#"[{"$fill":{"output":{"w":{"value":{"$add":["$v",1]}}}}}]"#,
            r#"[{"_id":1,"v":1,"w":2}]"#,
        ),
        (
            r#"[{"_id":1,"t":1},{"_id":2,"t":4},{"_id":3}]"#,
            r#"[{"$densify":{"field":"t","range":{"step":1,"bounds":"full"}}}]"#,
            r#"[{"_id":3},{"_id":1,"t":1},{"t":2},{"t":3},{"_id":2,"t":4}]"#,
        ),
        (
            r#"[{"p":1,"t":1},{"p":2,"t":2}]"#,
            r#"[{"$densify":{"field":"t","partitionByFields":["p"],"range":{"step":1,"bounds":[0,3]}}}]"#,
            r#"[{"p":1,"t":0},{"p":1,"t":1},{"p":1,"t":2},{"p":2,"t":0},{"p":2,"t":1},{"p":2,"t":2}]"#,
        ),
    ]);
    for (stage, code) in [
        (
            r#"{"$setWindowFields":{"output":{"r":{"$rank":{}}}}}"#,
            5371602,
        ),
        (
            r#"{"$setWindowFields":{"sortBy":{"a":1},"output":{"r":{"$rank":{},"window":{}}}}}"#,
            5371601,
        ),
        (
            r#"{"$setWindowFields":{"sortBy":{"a":1},"output":{"r":{"$rank":1}}}}"#,
            5371603,
        ),
        (r#"{"$setWindowFields":{"sortBy":5,"output":{}}}"#, 14),
        (r#"{"$setWindowFields":{}}"#, 40414),
        (
            r#"{"$setWindowFields":{"output":{"r":{"$sum":1,"x":1}}}}"#,
            9,
        ),
        (
            r#"{"$setWindowFields":{"output":{"r":{"$sum":1,"window":{"documents":[1]}}}}}"#,
            9,
        ),
        (r#"{"$setWindowFields":{"output":{"r":{"$foo":1}}}}"#, 9),
    ] {
        assert_eq!(
            parse(&format!("[{stage}]"))
                .unwrap_err()
                .into_error()
                .code
                .0,
            code,
            "{stage}"
        );
    }
}

#[test]
fn what_leaves_a_pipeline_is_no_deeper_than_what_comes_in() {
    let group = r#"{"$group": {"_id": null, "a": {"$push": "$$ROOT"}}}"#;
    let times = |n: usize, last: &str| format!("[{}{last}]", vec![group; n].join(","));
    let input = r#"[{"_id": 1}]"#;
    for last in ["", r#",{"$out": "o"}"#, r#",{"$merge": "o"}"#] {
        assert!(run_on(&mut joined_host(), input, &times(40, last)).is_ok());
        let deep = run_on(&mut joined_host(), input, &times(200, last));
        assert_eq!(show(deep), "#15", "{last}");
    }
    // On the way it may be deeper.
    let counted = times(200, r#",{"$count": "n"}"#);
    assert_eq!(
        show(run_on(&mut joined_host(), input, &counted)),
        r#"[{"n": 1}]"#
    );
}

#[test]
fn too_many_stages_inside_of_one_another() {
    let of = |n: usize| vec![r#"{"$limit": 1}"#; n].join(",");
    let nested = move |levels: usize, n: usize| {
        (0..levels).fold(of(n), |inner, _| {
            let lookup = format!(r#"{{"from": "people", "pipeline": [{inner}], "as": "r"}}"#);
            format!(r#"{{"$lookup": {lookup}}},{}"#, of(n))
        })
    };
    let run = |stages: &str| {
        run_on(
            &mut joined_host(),
            r#"[{"_id": 1}]"#,
            &format!("[{stages}]"),
        )
    };
    // On a stack such as the server's threads have.
    let thread = std::thread::Builder::new().stack_size(8 << 20);
    let checks = thread.spawn(move || {
        assert!(run(&nested(0, 1000)).is_ok());
        assert!(run(&nested(1, 900)).is_ok());
        assert_eq!(show(run(&nested(3, 900))), "#232");
        assert!(run(&nested(15, 40)).is_ok());
    });
    checks.unwrap().join().unwrap();
}
