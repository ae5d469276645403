//! What stages hold: that it counts, is bounded, and can be left between two batches of a cursor.

use super::tests::{Memory, docs as documents, joined_host, parse, run_on, show};
use super::*;
use std::collections::VecDeque;

#[test]
fn what_a_group_holds_is_what_counts() {
    let pad = "p".repeat(150);
    let docs: Vec<String> = (0..100)
        .map(|i| {
            format!(
                r#"{{"_id":{i},"v":{}}}"#,
                [format!("\"{pad}\""), "0".into()][i % 2]
            )
        })
        .collect();
    let input = format!("[{}]", docs.join(","));
    let run = |disk, fields: &str| {
        let mut host = Memory {
            limit: Some(5000),
            disk,
            ..Memory::default()
        };
        let stages =
            format!(r#"[{{"$group":{{"_id":null,{fields}}}}},{{"$project":{{"_id":1}}}}]"#);
        (show(run_on(&mut host, &input, &stages)), host.spilled)
    };
    // Long and short values in turn do not add up.
    let one = r#"[{"_id": null}]"#.to_string();
    assert_eq!(run(false, r#""l":{"$last":"$v"}"#), (one.clone(), 0));
    // Arrays of which each would do: written out they would only come back.
    let half = r#""a":{"$firstN":{"input":"$v","n":38}}"#;
    assert_eq!(run(true, half), (one, 0));
    let halves = format!("{half},{}", half.replace("\"a\"", "\"b\""));
    assert_eq!(run(true, &halves).0, "#146");
}

/// What cannot be spilled counts while it is held, is refused past the limit, and leaves nothing.
#[test]
fn what_stages_hold_counts() {
    let pad = "p".repeat(10_000);
    let docs: Vec<String> = (0..60)
        .map(|i| format!(r#"{{"_id":{i},"k":{},"pad":"{pad}"}}"#, i + 1))
        .collect();
    let input = format!("[{}]", docs.join(","));
    let window = |output: &str| {
        format!(r#"{{"$setWindowFields":{{"sortBy":{{"_id":1}},"output":{{{output}}}}}}}"#)
    };
    let all = r#"{"$push":"$pad"}"#;
    let twice = window(&format!(r#""a":{all},"b":{all}"#));
    let graph = r#"{"$graphLookup":{"from":"f","startWith":{"$range":[0,20000]},"connectFromField":"k","connectToField":"_id","as":"r"}}"#;
    let chain = r#"{"$graphLookup":{"from":"f","startWith":0,"connectFromField":"k","connectToField":"_id","as":"r"}}"#;
    let facet = r#"{"$facet":{"a":[],"b":[]}}"#;
    let made = r#"{"$unionWith":{"pipeline":[{"$documents":{"$map":{"input":{"$range":[0,20000]},"in":{"i":"$$this"}}}}]}}"#;
    for (stage, least, limit, code) in [
        (
            window(&format!(r#""a":{all}"#)),
            1_100_000,
            500_000,
            "#5414201",
        ),
        // Each alone would do.
        (twice, 2_200_000, 1_000_000, "#5414201"),
        (
            window(r#""a":{"$push":"$pad","window":{"documents":["unbounded","current"]}}"#),
            1_100_000,
            500_000,
            "#5414201",
        ),
        (graph.into(), 2_000_000, 1_000_000, "#40099"),
        (chain.into(), 1_200_000, 500_000, "#40099"),
        (facet.into(), 1_800_000, 0, ""),
        (made.into(), 300_000, 0, ""),
    ] {
        let first = if stage.contains("graph") {
            r#"{"$limit":1},"#
        } else {
            ""
        };
        let stages = format!(r#"[{first}{stage},{{"$project":{{"_id":1}}}}]"#);
        let memory = Arc::new(StageMemory::default());
        for offload_every in [None, Some(3)] {
            let mut host = Memory {
                shared: Some(memory.clone()),
                offload_every,
                ..Memory::default()
            };
            host.collections.insert("f".into(), documents(&input));
            run_on(&mut host, &input, &stages).unwrap();
            assert!(host.most >= least, "{stage}: {}", host.most);
            assert_eq!(memory.used(), 0, "{stage}");
        }
        if limit > 0 {
            let mut host = Memory {
                limit: Some(limit),
                disk: true,
                ..Memory::default()
            };
            host.collections.insert("f".into(), documents(&input));
            assert_eq!(show(run_on(&mut host, &input, &stages)), code, "{stage}");
        }
    }
}

/// Takes all documents away that it is shown, and gives back those that are wanted.
#[derive(Default)]
struct Away {
    docs: VecDeque<Vec<u8>>,
    back: bool,
}

impl IdleVisitor for Away {
    fn rows(&mut self, _rows: &mut dyn DocumentSource, _wanted: bool) -> Result<()> {
        Ok(())
    }

    fn doc(&mut self, doc: &mut Vec<u8>, wanted: bool) -> Result<()> {
        match (wanted, self.back) {
            (true, false) => self.docs.push_back(std::mem::take(doc)),
            (true, true) => *doc = self.docs.pop_front().unwrap(),
            (false, _) => *doc = Vec::new(),
        }
        Ok(())
    }
}

/// Between any two documents a pipeline may be left without those that it shows.
#[test]
fn what_is_left_is_taken_up_again() {
    let input: Vec<String> = (0..40)
        .map(|i| {
            format!(
                r#"{{"_id":{i},"p":{},"t":{},"a":[1,2],"l":"{}"}}"#,
                i % 3,
                i * 7 % 40,
                ["a", "b"][i % 2]
            )
        })
        .collect();
    let input = format!("[{}]", input.join(","));
    for stage in [
        r#"{"$bucketAuto":{"groupBy":"$t","buckets":7,"output":{"all":{"$push":"$$ROOT"}}}}"#,
        r#"{"$densify":{"field":"t","partitionByFields":["p"],"range":{"step":0.5,"bounds":"full"}}}"#,
        r#"{"$setWindowFields":{"partitionBy":"$p","sortBy":{"t":1},"output":{"w":{"$push":"$_id","window":{"documents":[-1,1]}}}}}"#,
        r#"{"$unwind":"$a"}"#,
        r#"{"$sort":{"t":1}}"#,
        r#"{"$group":{"_id":"$p","all":{"$push":"$$ROOT"}}}"#,
        r#"{"$lookup":{"from":"other","localField":"l","foreignField":"k","as":"j"}}"#,
        r#"{"$lookup":{"from":"other","localField":"l","foreignField":"k","as":"j"}},{"$unwind":"$j"}"#,
        r#"{"$unionWith":{"pipeline":[{"$documents":[{"x":1},{"x":2},{"x":3}]}]}}"#,
        r#"{"$set":{"z":{"$concat":["$l","z"]}}},{"$match":{"p":{"$gt":0}}}"#,
    ] {
        let stages = format!("[{stage}]");
        let want = run_on(&mut joined_host(), &input, &stages).unwrap();
        let vars = Arc::new(Vars::new(0));
        let mut source = parse(&stages)
            .unwrap()
            .attach(0, over_docs(documents(&input)), &vars);
        let (mut host, mut found) = (joined_host(), Vec::new());
        while source.advance(&mut host).unwrap() {
            let pending = found.len() % 2 == 0;
            if !pending {
                found.push(source.doc().to_buf());
            }
            let mut away = Away::default();
            source.parts(pending, &mut away).unwrap();
            away.back = true;
            source.parts(pending, &mut away).unwrap();
            assert!(away.docs.is_empty(), "{stage}");
            if pending {
                found.push(source.doc().to_buf());
            }
        }
        assert!(found == want && want.len() > 2, "{stage}");
    }
}
