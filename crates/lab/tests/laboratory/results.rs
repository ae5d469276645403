//! Results shown, compared, and as a page in a real browser.

use super::{Lab, STUDY_B, run};
use crate::fake::Honesty;
use std::path::Path;

#[test]
fn replies_are_recorded_and_results_shown() {
    let lab = Lab::new(Honesty::Honest);
    let file = lab.dir.path().join("replies.bson");
    let file = file.to_str().unwrap();
    assert!(run(&[
        "record",
        "--url",
        &lab.url,
        "--records",
        "1k",
        "--out",
        file
    ]));
    let recorded = lab::null::read_recorded(Path::new(file)).unwrap();
    assert_eq!(recorded.len(), 8);
    let first100 = recorded.iter().find(|r| r.operation == "test7").unwrap();
    assert!(first100.message.len() > 100 * 1024);
    assert!(lab::null::Replies::read(Path::new(file), Some("test4")).is_ok());
    assert!(lab::null::Replies::read(Path::new(file), Some("test9")).is_err());

    let args = ["run", "C", "--records", "100", "--operations", "100"];
    assert!(lab.run(&args));
    let out = lab.out();
    let out = out.to_str().unwrap();
    assert!(run(&["show", out]));
    assert!(run(&["diff", out, out]));
    assert!(run(&["list"]));
    assert!(!run(&["show", file]));
    assert!(!run(&["show"]));
    // A result is never taken for the place of its page.
    assert!(!run(&["report", out, "--out", out]));
}

#[test]
fn several_results_are_one_table_and_one_page() {
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let first = lab.dir.path().join("b.json");
    std::fs::rename(lab.out(), &first).unwrap();
    assert!(lab.run(&["run", "C", "--records", "100", "--operations", "100"]));
    let (first, second) = (first.to_str().unwrap().to_string(), lab.out());
    let second = second.to_str().unwrap();
    assert!(run(&["show", &first, second]));
    assert!(run(&["report", &first, second, "--svg", "-"]));
    let page = std::fs::read_to_string(lab.dir.path().join("report.html")).unwrap();
    assert!(page.contains("All steps, all targets"));
    for study in ["B-keys", "run C"] {
        let cell = format!("class=\"words\">{study}</td>");
        assert!(page.contains(&cell), "{study}");
    }
    assert!(page.contains(">insert, key given, 1 connection</td>"));
    // What a plot is called is said once.
    let ids: Vec<&str> = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|p| p.split('"').next())
        .collect();
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(ids.len(), once.len(), "{ids:?}");
}
