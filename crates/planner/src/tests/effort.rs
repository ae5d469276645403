//! The cost of planning, in steps, and choices without counts of the store.

use super::*;
use crate::choose::plan_counted;
use errors::operation;
use std::cell::Cell;
use std::time::Instant;

fn request<'a>(f: &'a Filter, infos: &'a [IndexInfo]) -> PlanRequest<'a> {
    PlanRequest {
        vars: None,
        filter: f,
        sort: None,
        projection: None,
        limit: None,
        hint: None,
        min: None,
        max: None,
        indexes: infos,
        count: false,
        distinct: None,
        clustered: true,
        ns: "t.c",
        fewest: None,
        estimate: None,
    }
}

/// `$and` of so many `$or`s of so many branches each, over fields `f0`, `f1`, ….
fn product(clauses: usize, branches: usize, fields: usize) -> Filter {
    let or = |c: usize| {
        let branch = |b: usize| format!(r#"{{"f{}":{b}}}"#, (c * branches + b) % fields);
        let all: Vec<String> = (0..branches).map(branch).collect();
        format!(r#"{{"$or":[{}]}}"#, all.join(","))
    };
    let all: Vec<String> = (0..clauses).map(or).collect();
    filter(&format!(r#"{{"$and":[{}]}}"#, all.join(",")))
}

fn indexes(n: u32) -> Vec<IndexInfo> {
    (0..n)
        .map(|i| index(i + 1, &format!(r#"{{"f{i}":1}}"#), ""))
        .collect()
}

#[test]
fn products_of_disjunctions_take_bounded_steps() {
    for (clauses, branches, fields) in [(12, 2, 24), (7, 3, 9), (40, 5, 24), (3, 400, 24)] {
        let f = product(clauses, branches, fields);
        let infos = indexes(fields as u32);
        let (plan, steps) = plan_counted(&request(&f, &infos)).unwrap();
        assert!(
            matches!(plan.access, Access::Or(_)),
            "{clauses} {branches}: {:?}",
            plan.access
        );
        let nodes = (clauses * (branches + 1)) as u64;
        let most = 20_000 + nodes * 4 * (fields as u64 + 8) * 2;
        assert!(steps <= most, "{clauses} {branches}: {steps} of {most}");
    }
}

/// However long the filter is: `killOp` and `maxTimeMS` end planning after the next steps.
#[test]
fn planning_ends_when_it_is_interrupted() {
    let infos = indexes(24);
    for f in [product(2, 20_000, 24), product(40_000, 1, 24)] {
        let asked = Cell::new(0);
        let stop = |_: Option<Instant>| match asked.replace(asked.get() + 1) {
            2 => Err(errors::err!(Interrupted, "enough")),
            _ => Ok(()),
        };
        let interrupted = operation::asking(None, &stop, || plan(&request(&f, &infos)));
        let Err(error) = interrupted else {
            panic!("planned to the end");
        };
        assert!(error.is(errors::Code::Interrupted), "{error:?}");
        assert!(asked.get() <= 5, "asked {} times", asked.get());
    }
    // So does one of lists, whose values are gone over for each index.
    let list = format!(
        "[{}]",
        (0..100_000)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",")
    );
    let f = filter(&format!(
        r#"{{"f1":{{"$in":{list}}},"f2":{{"$in":{list}}}}}"#
    ));
    let asked = Cell::new(0);
    let stop = |_: Option<Instant>| match asked.replace(asked.get() + 1) {
        ..20 => Ok(()),
        n => {
            assert!(n < 100, "it goes on");
            Err(errors::err!(Interrupted, "enough"))
        }
    };
    let interrupted = operation::asking(None, &stop, || plan(&request(&f, &infos)));
    assert!(interrupted.is_err_and(|e| e.is(errors::Code::Interrupted)));
    // Short planning never asks.
    let f = filter(r#"{"f1":1,"f2":2,"$or":[{"f3":1},{"f4":1}]}"#);
    let never = |_: Option<Instant>| panic!("was asked");
    let short = operation::asking(None, &never, || plan(&request(&f, &infos)));
    assert!(short.is_ok());
}

#[test]
fn the_index_that_bounds_more_wins_in_any_order() {
    let all = [r#"{"k":1}"#, r#"{"k":1,"v":1}"#, r#"{"k":1,"w":1}"#];
    for turn in 0..all.len() {
        let infos: Vec<IndexInfo> = (0..all.len())
            .map(|i| index(i as u32 + 1, all[(i + turn) % all.len()], ""))
            .collect();
        let name = |f: &str| {
            let f = filter(f);
            // No counts are needed if two accesses read the same.
            let never = |_: &[&Access]| -> Vec<Reads> { panic!("was asked") };
            let plan = plan(&PlanRequest {
                estimate: Some(&never),
                ..request(&f, &infos)
            });
            match plan.unwrap().access {
                Access::Index(a) => infos.iter().find(|i| i.id == a.index).unwrap().name.clone(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(name(r#"{"k":1,"v":5}"#), "k_1_v_1");
        assert_eq!(name(r#"{"k":1,"w":{"$gt":5}}"#), "k_1_w_1");
        assert_eq!(name(r#"{"k":1}"#), "k_1");
    }
}

#[test]
fn a_unique_index_given_whole_is_one() {
    let infos = [
        index(1, r#"{"s":1}"#, ""),
        index(2, r#"{"t":1,"e":1}"#, "unique"),
    ];
    let f = filter(r#"{"t":1,"e":7,"s":2}"#);
    let never = |_: &[&Access]| -> Vec<Reads> { panic!("was asked") };
    let chosen = plan(&PlanRequest {
        estimate: Some(&never),
        ..request(&f, &infos)
    });
    assert!(matches!(chosen.unwrap().access, Access::Index(a) if a.index == 2));
}

#[test]
fn a_collection_scan_shares_the_filter_of_its_query() {
    let f = product(3, 400, 24);
    let (plan, _) = plan_counted(&request(&f, &[])).unwrap();
    assert!(plan.access.is_scan());
    assert!(
        std::ptr::eq(plan.residual.root(), f.root()),
        "a filter may be of megabytes"
    );
}
