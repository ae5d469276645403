//! What a result says of the plans that were chosen: sentences, and tables for the terminal and the page.

use crate::lang::tr;
use crate::report::{Choices, QueryChoice, Report, SHARES, times};
use crate::terms::counted;
use crate::text;

/// A quotient: `1.04`, `12.3`, `3,031`.
pub fn shown(times: f64) -> String {
    match times {
        t if !t.is_finite() => "–".into(),
        t if t < 10.0 => format!("{t:.2}"),
        t if t < 100.0 => format!("{t:.1}"),
        t => counted(t.round() as u64),
    }
}

/// `95%`, `99.5%`.
fn percent(share: f64) -> String {
    format!("{}%", (share * 1000.0).round() / 10.0)
}

/// What each target's planner is worth, and whose reads less.
pub fn sentences(r: &Report) -> Vec<String> {
    let asked = || r.choices.iter().filter(|c| c.queries() > 0);
    let mut all: Vec<String> = asked().map(alone).collect();
    if let Some(first) = asked().next() {
        all.extend(asked().skip(1).filter_map(|other| against(first, other)));
    }
    all
}

fn alone(c: &Choices) -> String {
    let beyond = match c.beyond() {
        0 => tr("no query reads more than ten times that and 200").into(),
        1 => tr("one query reads more than ten times that and 200").into(),
        n => text!("{0} queries read more than ten times that and 200", n),
    };
    text!(
        "{0}: of {1} queries 95% read at most {2} times what the best index reads, 99.5% at most {3} times, the worst {4} times; {5}.",
        c.target,
        counted(c.queries() as u64),
        shown(c.at(0.95)),
        shown(c.at(0.995)),
        shown(c.at(1.0)),
        beyond
    )
}

/// Of the same queries, whose plan reads less; nothing where they are not the same.
fn against(first: &Choices, other: &Choices) -> Option<String> {
    if first.queries() != other.queries() {
        return None;
    }
    let pairs = || first.chosen.iter().zip(&other.chosen);
    let less = pairs().filter(|(a, b)| a < b).count();
    let more = pairs().filter(|(a, b)| a > b).count();
    let sum = |c: &Choices| c.chosen.iter().sum::<u64>();
    Some(text!(
        "{0} reads less than {1} in {2} of {3} queries and more in {4}; in all {5} times as much.",
        first.target,
        other.target,
        counted(less as u64),
        counted(first.queries() as u64),
        counted(more as u64),
        shown(times(sum(first), sum(other))),
    ))
}

/// The head of the table of percentiles: what a row is, and the targets.
pub fn heads(r: &Report) -> Vec<String> {
    let targets = r.choices.iter().map(|c| c.target.clone());
    std::iter::once("chosen over best".to_string())
        .chain(targets)
        .collect()
}

/// Its rows.
pub fn rows(r: &Report) -> Vec<Vec<String>> {
    let row = |name: String, of: &dyn Fn(&Choices) -> String| {
        let cells = r.choices.iter().map(of);
        std::iter::once(name).chain(cells).collect::<Vec<String>>()
    };
    let part = |n: usize, c: &Choices| {
        let share = 100.0 * n as f64 / c.queries().max(1) as f64;
        format!("{n} ({share:.2}%)")
    };
    let mut rows: Vec<Vec<String>> = SHARES
        .iter()
        .map(|s| row(percent(*s), &|c| shown(c.at(*s))))
        .collect();
    rows.push(row("max".into(), &|c| shown(c.at(1.0))));
    rows.push(row("above 2".into(), &|c| part(c.above(2.0), c)));
    rows.push(row("above 10".into(), &|c| part(c.above(10.0), c)));
    rows.push(row("above 10 and 200 reads".into(), &|c| {
        part(c.beyond(), c)
    }));
    rows.push(row("queries".into(), &|c| counted(c.queries() as u64)));
    rows
}

/// The worst of all targets for the page, in rows as [`WORST`] heads them.
pub fn worst(r: &Report) -> Vec<Vec<String>> {
    let row = |target: &str, c: &QueryChoice| {
        vec![
            shown(c.times()),
            target.to_string(),
            counted(c.chosen),
            c.chosen_by.clone(),
            counted(c.best),
            c.best_by.clone(),
            c.query.clone(),
            c.indexes.join(", "),
            counted(c.documents),
            format!("{}, {}", c.schema, c.number),
        ]
    };
    let several = r.choices.len() > 1;
    let of = |c: &Choices| {
        let target = c.target.as_str();
        let rows = c
            .worst
            .iter()
            .map(|w| row(if several { target } else { "" }, w));
        rows.collect::<Vec<_>>()
    };
    r.choices.iter().flat_map(of).collect()
}

pub const WORST: [&str; 10] = [
    "times",
    "target",
    "reads",
    "chosen plan",
    "least reads",
    "best plan",
    "query",
    "indexes",
    "documents",
    "collection, query",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Draft;

    fn report() -> Report {
        let mut r = Draft::new("study", "K-plans").report;
        let choice = |chosen: u64| QueryChoice {
            chosen,
            best: 95,
            chosen_by: "a_1".into(),
            best_by: "b_1, sorted".into(),
            query: "{ a: 1 }".into(),
            documents: 1234,
            indexes: vec!["a_1".into(), "b_1".into()],
            ..QueryChoice::default()
        };
        for (target, reads) in [("P 1", [95, 95, 1_995]), ("Q 2", [95, 195, 395])] {
            let mut c = Choices {
                target: target.into(),
                ..Choices::default()
            };
            c.add(reads.map(choice).to_vec());
            r.choices.push(c);
        }
        r
    }

    #[test]
    fn sentences_say_what_a_planner_is_worth() {
        let all = sentences(&report());
        assert_eq!(
            all[0],
            "P 1: of 3 queries 95% read at most 1.00 times what the best index reads, 99.5% at most 1.00 times, the worst 20.0 times; one query reads more than ten times that and 200."
        );
        assert!(
            all[1].ends_with(
                "the worst 4.00 times; no query reads more than ten times that and 200."
            )
        );
        assert_eq!(
            all[2],
            "P 1 reads less than Q 2 in 1 of 3 queries and more in 1; in all 3.17 times as much."
        );
        assert!(sentences(&Draft::new("study", "K-plans").report).is_empty());
    }

    #[test]
    fn tables_have_a_column_for_each_target() {
        let r = report();
        assert_eq!(heads(&r), ["chosen over best", "P 1", "Q 2"]);
        let rows = rows(&r);
        let of = |name: &str| rows.iter().find(|r| r[0] == name).unwrap()[1..].to_vec();
        assert_eq!(of("max"), ["20.0", "4.00"]);
        assert_eq!(of("above 2"), ["1 (33.33%)", "1 (33.33%)"]);
        assert_eq!(of("99.5%"), ["1.00", "2.00"]);
        let worst = worst(&r);
        assert_eq!((worst.len(), worst[0].len()), (3, WORST.len()));
        assert_eq!(worst[0][..4], ["20.0", "P 1", "1,995", "a_1"]);
    }
}
