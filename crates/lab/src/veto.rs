//! What forbids to believe that one target is faster than another in a step, each with its word.

use crate::overview::Class;
use crate::report::{MeasuredStep, TargetInfo};
use crate::stall::{self, Stall};

/// Data of two targets that differ by more than this share are not the same data. Some servers only estimate how many records
/// they have.
const ALIKE: f64 = 0.3;
/// The same of operations, which are counted.
const AS_MUCH: f64 = 0.05;

/// Why a difference between two steps says nothing; nothing where it may be believed.
pub fn of(
    a: &MeasuredStep,
    b: &MeasuredStep,
    info: impl Fn(&MeasuredStep) -> Option<TargetInfo>,
) -> Vec<&'static str> {
    let either = |of: fn(&MeasuredStep) -> bool| of(a) || of(b);
    let mut all = Vec::new();
    if either(|s| s.noise.reasons().is_some()) {
        all.push("the machine was not quiet");
    }
    if either(|s| Stall::of(s).is_some()) {
        all.push("a server stood still");
    }
    if limited(a, b) || either(|s| stall::lag(s).is_some()) {
        all.push("the client was at its limit");
    }
    if either(|s| s.interrupted) {
        all.push("the run was cut short");
    }
    if !alike(documents(a), documents(b)) || !as_much(a, b) {
        all.push("the data were not equal");
    }
    let weak = |s: &MeasuredStep| info(s).is_some_and(|t| loses(&t, s.durability.as_deref()));
    if Class::of(a) != Class::Reads && (a.durability != b.durability || weak(a) != weak(b)) {
        all.push("the durability was not equal");
    }
    all
}

/// Whether the client's limit hides a difference. One that held up the faster of two only makes it too small.
fn limited(a: &MeasuredStep, b: &MeasuredStep) -> bool {
    let slower = if a.per_second < b.per_second { a } else { b };
    slower.client_bound
}

/// Whether steps that a limit of time may end came as far: a mean over more data is of other data.
fn as_much(a: &MeasuredStep, b: &MeasuredStep) -> bool {
    let done = |s: &MeasuredStep| s.operations as f64 / s.repeats.len().max(1) as f64;
    let planned = a.planned.is_some() && a.planned == b.planned;
    let (a, b) = (done(a), done(b));
    !planned || (a - b).abs() <= a.max(b) * AS_MUCH
}

/// How many documents a step found, where that was looked at: what it inserted itself is its rate.
fn documents(s: &MeasuredStep) -> Option<u64> {
    let own = ["INSERT", "insert"]
        .iter()
        .filter_map(|k| s.latency.get(*k));
    let own: u64 = own.map(|l| l.count).sum();
    Some(s.sizes.last()?.documents.saturating_sub(own))
}

fn alike(a: Option<u64>, b: Option<u64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) as f64 <= a.max(b) as f64 * ALIKE,
        _ => true,
    }
}

/// Whether what a target acknowledges can be lost: with the machine's power always, or although the client waits for the disk.
fn loses(t: &TargetInfo, durability: Option<&str>) -> bool {
    let set = |name: &str, value: &str| t.settings.get(name).is_some_and(|v| v == value);
    let waits = matches!(durability, Some("majority" | "journaled"));
    let never = set("fsync", "off") || set("innodb_flush_log_at_trx_commit", "0");
    // PostgreSQL's clients say for themselves whether they wait.
    let later = set("innodb_flush_log_at_trx_commit", "2");
    // Tables of other engines of MySQL take every durability and keep none.
    let engine = t.settings.get("engine");
    let keeps_none = engine.is_some_and(|engine| engine != "InnoDB");
    never || waits && (later || keeps_none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CollectionSizes;

    fn step(name: &str) -> MeasuredStep {
        MeasuredStep::repeated(name, "P", 8, &[100.0, 101.0, 99.0])
    }

    #[test]
    fn each_reason_has_its_word_and_equals_have_none() {
        let said = |change: fn(&mut MeasuredStep)| {
            let (a, mut b) = (step("C.S1"), step("C.S1"));
            change(&mut b);
            of(&a, &b, |_| None)
        };
        assert!(said(|_| {}).is_empty());
        assert_eq!(
            said(|s| s.noise.others_percent = Some(40.0)),
            ["the machine was not quiet"]
        );
        let bound = |rates: [f64; 2]| {
            let mut a = MeasuredStep::repeated("C.S1", "P", 8, &[rates[0]; 3]);
            let b = MeasuredStep::repeated("C.S1", "Q", 8, &[rates[1]; 3]);
            a.client_bound = true;
            of(&a, &b, |_| None)
        };
        assert_eq!(bound([90.0, 100.0]), ["the client was at its limit"]);
        // The faster one would be faster still.
        assert!(bound([110.0, 100.0]).is_empty());
        let cut = |operations: u64| MeasuredStep {
            planned: Some(1000),
            operations,
            ..step("load")
        };
        assert_eq!(
            of(&cut(1000), &cut(900), |_| None),
            ["the data were not equal"]
        );
        assert!(of(&cut(1000), &cut(990), |_| None).is_empty());
        assert_eq!(said(|s| s.interrupted = true), ["the run was cut short"]);
        assert_eq!(
            said(|s| s.durability = Some("journaled".into())),
            ["the durability was not equal"]
        );
        let sized = |n: u64| {
            let mut s = step("load");
            s.sizes = vec![CollectionSizes {
                documents: n,
                ..CollectionSizes::default()
            }];
            s
        };
        let half = of(&sized(1000), &sized(500), |_| None);
        assert_eq!(half, ["the data were not equal"]);
        assert!(of(&sized(1000), &sized(850), |_| None).is_empty());
    }

    #[test]
    fn a_target_that_loses_what_it_acknowledges_is_not_compared_in_writes() {
        let info = |name: &str, value: &str| {
            let mut t = TargetInfo::default();
            t.settings.insert(name.into(), value.into());
            t
        };
        for (name, value, durability, loses_it) in [
            ("fsync", "off", "w1", true),
            ("fsync", "on", "w1", false),
            ("innodb_flush_log_at_trx_commit", "2", "w1", false),
            ("innodb_flush_log_at_trx_commit", "2", "journaled", true),
            ("innodb_flush_log_at_trx_commit", "1", "journaled", false),
            ("engine", "InnoDB", "journaled", false),
            ("engine", "MyISAM", "journaled", true),
        ] {
            let t = info(name, value);
            assert_eq!(loses(&t, Some(durability)), loses_it, "{name} {value}");
        }
        let (a, mut b) = (step("C.S1"), step("C.S1"));
        b.target = Some("Q".into());
        let of_b =
            |s: &MeasuredStep| (s.target.as_deref() == Some("Q")).then(|| info("fsync", "off"));
        assert_eq!(of(&a, &b, of_b), ["the durability was not equal"]);
        // Reads wait for no disk.
        let (mut a, mut b) = (a, b);
        for s in [&mut a, &mut b] {
            s.latency.insert("READ".into(), Default::default());
        }
        assert!(of(&a, &b, of_b).is_empty());
    }
}
