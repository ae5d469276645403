//! Studies A to F and K to M, the bars and the short study.

use super::{Lab, STUDY_B, run};
use crate::fake::Honesty;

#[test]
fn study_a_runs_all_tests() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "single",
        "--records",
        "4000",
        "--connections",
        "4",
        "--duration",
        "300ms",
        "--steps",
        "2",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    let names: Vec<&str> = report.steps.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names.len(), 13, "{names:?}");
    let inserted: u64 = report.steps[..2].iter().map(|s| s.operations).sum();
    assert_eq!(inserted, 4000 + 2000);
    let last = report.steps.last().unwrap();
    assert_eq!(last.durability.as_deref(), Some("journaled"));
    assert_eq!(last.sizes.last().unwrap().documents, last.operations);
    assert!(report.steps.iter().all(|s| s.operations > 0));
}

#[test]
fn the_bench_compares_with_the_null_server() {
    let lab = Lab::new(Honesty::Honest);
    for form in [&[][..], &["--event-loop"]] {
        let mut args = vec!["bench", "--records", "1000", "--pairs", "2"];
        args.extend(["--slice", "50ms", "--connections", "4"]);
        args.extend(["--sweep", "1,8", "--in-process-null"]);
        args.extend(form);
        // It cannot pass all bars: the null server's CPU is not known here.
        assert!(!lab.run(&args));
        let report = lab.report();
        assert_eq!(report.comparisons.len(), 12);
        for c in &report.comparisons {
            assert!(c.share > 0.0 && c.share.is_finite(), "{}", c.name);
            assert_eq!(c.subject.slices_per_second.len(), 2);
            assert!(c.subject.operations > 0 && c.reference.operations > 0);
        }
        assert_eq!(report.steps.len(), 4);
        assert!(
            report
                .checks
                .iter()
                .any(|c| c.name.starts_with("count-range") && c.pass)
        );
    }
}

#[test]
fn study_b_keeps_the_time_of_every_thousand() {
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let report = lab.report();
    let names: Vec<&str> = report.steps.iter().map(|s| s.name.as_str()).collect();
    let reads = ["read of 1000 keys", "read of 2000 keys"];
    let keyed = ["insert", reads[0], reads[1]];
    assert_eq!(names, [&keyed[..], &["insert"], &keyed].concat());
    for s in &report.steps {
        assert_eq!(s.group_seconds.len() as u64, s.operations / s.group);
        assert!(s.group_seconds.iter().all(|t| *t > 0.0));
    }
    assert!(!lab.dir.path().join("result.json.unfinished").exists());
    // Finished steps are not done again; with other settings it is not the same run.
    let again = [&STUDY_B[..], &["--resume"]].concat();
    assert!(lab.run(&again));
    assert_eq!(lab.report().steps.len(), 7);
    let other = [&again[..], &["--durability", "journaled"]].concat();
    assert!(!lab.run(&other));

    // A limit that cuts the inserts short leaves keys to read all the same.
    let cut = [
        "--limit",
        "100ms",
        "--records",
        "100m",
        "--keys",
        "1",
        "--modes",
        "id",
    ];
    assert!(lab.run(&[&["study", "keys"][..], &cut].concat()));
    let names: Vec<String> = lab.report().steps.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["insert", "read of 1 keys"]);

    let liar = Lab::new(Honesty::LosesInserts);
    assert!(!liar.run(&STUDY_B), "lost inserts");
    let liar = Lab::new(Honesty::MixesUp);
    assert!(
        !liar.run(&[&STUDY_B[..], &["--modes", "id"]].concat()),
        "another record"
    );
}

#[test]
fn study_c_sweeps_connections_over_data_sizes() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "sizes",
        "--records",
        "200,400",
        "--connections",
        "1,3",
        "--duration",
        "120ms",
        "--warmup",
        "0s",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    assert_eq!(report.steps.len(), 2 * 5 * 2);
    assert!(
        report
            .steps
            .iter()
            .all(|s| s.at.is_some() && s.operations > 0)
    );
    assert!(!lab.run(&["study", "sizes", "--scenarios", "C.S9"]));
    assert!(!lab.run(&["study", "sizes", "--scale", "0"]));
}

#[test]
fn study_d_takes_what_has_shards() {
    let lab = Lab::new(Honesty::Honest);
    let shards = format!("1={0},2={0}", lab.url);
    let out = lab.out();
    let out = out.to_str().unwrap();
    let args = [
        "study",
        "shards",
        "--records",
        "300",
        "--duration",
        "50ms",
        "--connections",
        "3",
    ];
    let tail = ["--quiet", "--force", "--out", out];
    assert!(run(&[&args[..], &["--shards", &shards], &tail].concat()));
    let report = lab.report();
    // The server is no router: the second setup is left out, and the result says so.
    assert_eq!(report.steps.len(), 5);
    assert!(report.notes.iter().any(|n| n.contains("no sharding")));
    assert!(!run(&[
        &args[..],
        &["--shards", "2=mongodb://127.0.0.1:1"],
        &tail
    ]
    .concat()));
    assert!(!run(&[&args[..], &["--shards", "two"], &tail].concat()));
    // Of several numbers of connections the best, by trial.
    let one = &shards[..shards.find(',').unwrap()];
    let tried = [
        "--duration",
        "50ms",
        "--connections",
        "1,4",
        "--shards",
        one,
    ];
    assert!(run(&[&args[..4], &tried, &tail].concat()));
    let report = lab.report();
    let mut checks = report.checks.iter();
    let found = checks.find(|c| c.name.starts_with("connections that gave"));
    let found = found.unwrap().value as usize;
    assert!(found == 1 || found == 4);
    assert!(report.steps.iter().all(|s| s.connections == found));
}

#[test]
fn study_e_runs_what_needs_no_server_of_its_own() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "pains",
        "--records",
        "2000",
        "--threads",
        "1,3",
        "--duration",
        "40ms",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    // The load, two ways of keys, two numbers of threads, four journal modes.
    assert_eq!(report.steps.len(), 1 + 2 + 2 + 4);
    assert!(
        report
            .notes
            .iter()
            .any(|n| n.starts_with("recovery: skipped"))
    );
    assert!(
        report
            .checks
            .iter()
            .any(|c| c.name.starts_with("ids:") && c.value > 0.0)
    );
    assert!(!lab.run(&["study", "pains", "--only", "headache"]));
}

#[test]
fn study_f_stores_files_and_reads_them_back() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "study",
        "files",
        "--files",
        "3",
        "--size",
        "600k",
        "--connections",
        "1,2",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    assert_eq!(report.steps.len(), 4);
    for s in &report.steps {
        assert_eq!(s.operations, 3);
        assert!(s.megabytes_per_second.is_some_and(|m| m > 0.0));
    }
    assert_eq!(report.steps[0].latency["CHUNK-WRITE"].count, 3 * 3 + 3);
    assert_eq!(report.steps[1].latency["CHUNK-READ"].count, 3 * 3);
    // Every fiftieth insert is lost: of files of one chunk always the file's own document.
    for (size, connections) in [("600k", "2"), ("1k", "1")] {
        let liar = Lab::new(Honesty::LosesInserts);
        let args = ["study", "files", "--files", "30", "--size", size];
        let lost = liar.run(&[&args[..], &["--connections", connections]].concat());
        assert!(!lost, "lost inserts, files of {size}");
    }
}

#[test]
fn the_short_study_ends_with_a_page() {
    let lab = Lab::new(Honesty::Honest);
    let args = [
        "short",
        "--records",
        "300",
        "--connections",
        "1,2,4",
        "--duration",
        "60ms",
    ];
    assert!(lab.run(&args));
    let report = lab.report();
    // A load, three workloads at three numbers of connections, response times at three loads of two.
    assert_eq!(report.steps.len(), 1 + 9 + 6);
    let open: Vec<_> = report
        .steps
        .iter()
        .filter(|s| s.offered.is_some())
        .collect();
    assert_eq!(open.len(), 6);
    assert!(open.iter().all(|s| s.lag.is_some()));
    let page = std::fs::read_to_string(lab.out().with_extension("html")).unwrap();
    assert!(page.contains("Throughput by connections") && page.contains("Response time by load"));
    // The page can be made again, and every plot as a file.
    let out = lab.out();
    let again = lab.dir.path().join("again.html");
    assert!(run(&[
        "report",
        out.to_str().unwrap(),
        "--out",
        again.to_str().unwrap()
    ]));
    assert!(
        std::fs::read_dir(lab.dir.path().join("again.plots"))
            .unwrap()
            .count()
            >= 3
    );
    assert!(!run(&["report", "/nowhere.json"]));
    assert!(!lab.run(&["short", "--duration", "0s"]));
}

#[test]
fn study_k_tells_what_the_planner_chose() {
    let lab = Lab::new(Honesty::Honest);
    let words = ["study", "plans", "--schemas", "2", "--queries", "20"];
    let words = [&words[..], &["--docs", "150", "--seed", "7"]].concat();
    assert!(lab.run(&words));
    let report = lab.report();
    let [of] = &report.choices[..] else {
        panic!("{:?}", report.choices);
    };
    assert_eq!((of.target.as_str(), of.schemas), ("MongoDB 0.0-fake", 2));
    assert!((10..40).contains(&of.queries()), "{}", of.queries());
    assert!(of.chosen.iter().all(|c| *c == 190));
    // An `$or` by itself has a plan by branches too, which is no better here.
    assert!(of.best.iter().filter(|b| **b == 90).count() * 10 >= of.queries() * 9);
    let worst = &of.worst[0];
    assert_eq!((of.worst.len(), worst.chosen_by.as_str()), (10, "own_1"));
    assert_eq!(worst.best_by, "told_1");
    assert!(worst.indexes.len() >= 2 && !worst.query.is_empty());
    let page = std::fs::read_to_string(lab.out().with_extension("html")).unwrap();
    assert!(page.contains("at most 2.05 times what the best index reads"));
    assert!(page.contains("id=\"plans-reached\"") && page.contains("told_1"));
    // The same seed asks the same, and finished queries are not asked again.
    assert!(lab.run(&words));
    assert_eq!(lab.report().choices[0].worst, of.worst);
    assert!(lab.run(&[&words[..], &["--resume"]].concat()));
    assert_eq!(lab.report().choices[0].queries(), of.queries());
    // Twice as much as the best misses the bar; a program that knows no hints cannot be asked.
    assert!(!lab.run(&[&words[..], &["--bars"]].concat()));
    assert!(lab.report().checks.iter().any(|c| !c.pass));
    assert!(!run(&[
        "study", "plans", "--launch", "postgres", "--out", "-"
    ]));
    assert!(!lab.run(&["study", "plans", "--docs", "50"]));
}

#[test]
fn study_k_ends_where_two_plans_give_different_documents() {
    for (honesty, ends) in [
        (Honesty::MixesUp, true),
        (Honesty::LosesInserts, true),
        (Honesty::Honest, false),
    ] {
        let lab = Lab::new(honesty);
        let words = ["study", "plans", "--schemas", "1", "--queries", "9"];
        assert_eq!(!lab.run(&[&words[..], &["--docs", "150"]].concat()), ends);
    }
}

/// A study of 1,500 rows on installed products, those that can search.
fn searched_study(words: &[&str]) -> Option<lab::report::Report> {
    let installed = |p: &&str| lab::targets::local::installed(p);
    let products: Vec<&str> = ["pando", "postgres"]
        .into_iter()
        .filter(installed)
        .collect();
    if products.is_empty() {
        eprintln!("skipped: neither pando nor postgres on this machine");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result.json");
    let own = ["--records", "1500", "--connections", "2", "--repeat", "2"];
    let short = ["--duration", "100ms", "--warmup", "0s", "--memory", "64m"];
    let launch = products.join(",");
    let tail = [
        "--launch",
        &launch,
        "--quiet",
        "--out",
        out.to_str().unwrap(),
    ];
    // A bar may be missed at this size.
    run(&[words, &own, &short, &tail].concat());
    let report = out
        .is_file()
        .then(|| lab::report::Report::read(&out).unwrap());
    assert!(out.with_extension("html").is_file() || report.is_none());
    report
}

#[test]
fn study_l_searches_texts() {
    let lab = Lab::new(Honesty::Honest);
    // A server without searches is left out, and none is left then.
    assert!(!lab.run(&["study", "search", "--records", "900", "--duration", "50ms"]));
    assert!(!lab.run(&["study", "search", "--records", "0"]));
    assert!(!lab.run(&["study", "search", "--texts", "/nowhere"]));
    let Some(report) = searched_study(&["study", "search"]) else {
        return;
    };
    let sides = report.targets.len();
    // The index, four kinds of searches, two kinds of inserts.
    assert_eq!(report.steps.len(), sides * (1 + 4 + 2));
    assert!(
        report
            .steps
            .iter()
            .all(|s| s.operations > 0 && s.per_second > 0.0)
    );
    assert_eq!(report.checks.len(), sides * 2);
    assert!(
        report
            .checks
            .iter()
            .all(|c| c.value >= 0.0 && c.repeats.len() == 2)
    );
}

#[test]
fn study_m_searches_vectors() {
    let lab = Lab::new(Honesty::Honest);
    let small = ["--records", "900", "--dimensions", "8"];
    assert!(!lab.run(&[&["study", "vectors"][..], &small].concat()));
    assert!(!lab.run(&["study", "vectors", "--dimensions", "0"]));
    assert!(!lab.run(&[
        "study",
        "vectors",
        "--records",
        "5",
        "--vectors",
        "/nowhere"
    ]));
    let Some(report) = searched_study(&["study", "vectors", "--dimensions", "16"]) else {
        return;
    };
    // PostgreSQL may have no pgvector.
    let sides = report
        .steps
        .iter()
        .filter(|s| s.name == "index build")
        .count();
    assert_eq!(report.steps.len(), sides * (1 + 4));
    assert_eq!(report.checks.len(), sides * 4);
    let ours = report.checks.iter().filter(|c| c.at_least.is_some());
    assert!(
        ours.clone().all(|c| c.pass && c.value > 0.95),
        "{:?}",
        report.checks
    );
    assert_eq!(sides + report.notes.len(), report.targets.len());
}
