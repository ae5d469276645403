//! What a comparison can see on this machine: one build with itself, and with itself slowed down on purpose, many times.
//! Both are measured with the same settings as any comparison, in turn, so that the machine is the same to both.

use super::{Args, Duel};
use crate::fault::{Fault, Result};
use crate::fleet::interrupted;
use crate::measure::median;
use crate::output::Journal;
use crate::report::{CheckedFigure, Draft, SideComparison};
use crate::verdict::compared;
use crate::ycsb::Spec;
use std::time::Duration;

/// Share of the verdicts that must be right.
const BAR: f64 = 0.9;
const HANDICAP: f64 = 5.0;
const LONGEST: Duration = Duration::from_secs(600);

/// Refuses what cannot be tried.
pub fn check(args: &Args) -> Result<()> {
    match args.trials {
        Some(0) => Err(Fault::Usage("--trials must be at least 1".into())),
        Some(_) if args.a != args.b || args.a.contains("://") => Err(Fault::Usage(
            "--trials compares one build with itself: give the same program, or null, twice".into(),
        )),
        _ => Ok(()),
    }
}

/// Describes the trial in the draft of its result.
pub fn describe(args: &Args, trials: usize, draft: &mut Draft) {
    let handicap = args.handicap.unwrap_or(HANDICAP);
    draft.set("trials", trials);
    draft.set("handicap_percent", handicap);
    draft.note(format!(
        "The handicap: a thread of the server spends {handicap}% of what its other threads do once more in vain."
    ));
}

pub fn run(
    duel: &mut Duel<'_>,
    specs: &[(String, Spec)],
    trials: usize,
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    let handicap = duel.args.handicap.unwrap_or(HANDICAP);
    for (workload, spec) in specs {
        let kinds = [
            (0.0, format!("{workload}, with itself"), "inconclusive"),
            (
                handicap,
                format!("{workload}, slowed by {handicap}%"),
                "slower",
            ),
        ];
        for i in 1..=trials {
            for (percent, what, _) in &kinds {
                let name = format!("{what}, {i}");
                if interrupted() || draft.has_comparison(&name) {
                    continue;
                }
                let mut c = duel.fight(workload, spec, *percent)?;
                c.title.clone_from(&name);
                c.name = name;
                println!("{}, {:.0} s", compared(&c).text, c.took_seconds);
                draft.push_comparison(c);
                journal.save(draft);
            }
        }
        for (_, what, right) in kinds {
            let all = draft.report.comparisons.iter();
            let of_kind = |c: &&SideComparison| c.name.starts_with(&format!("{what}, "));
            let list: Vec<&SideComparison> = all.filter(of_kind).collect();
            let check = judge(&what, &list, right);
            draft.check(check);
        }
    }
    let times = draft.report.comparisons.iter().map(|c| c.took_seconds);
    let longest = times.fold(0.0, f64::max);
    let bar = LONGEST.as_secs_f64();
    draft.check(CheckedFigure::at_most(
        "longest comparison",
        longest,
        "s",
        bar,
    ));
    Ok(())
}

/// How often the verdict was the right one. That of a ratio within the margin is always 'inconclusive'.
fn judge(what: &str, list: &[&SideComparison], right: &str) -> CheckedFigure {
    let hits = list.iter().filter(|c| c.verdict == right).count();
    let bar = (list.len() as f64 * BAR).ceil();
    let costs: Vec<f64> = list.iter().filter_map(|c| c.cpu_ratio).collect();
    let rates: Vec<f64> = list.iter().map(|c| c.share).collect();
    let range = |v: &[f64]| {
        let low = v.iter().copied().fold(f64::INFINITY, f64::min);
        let high = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        format!("{:.3} ({low:.3}–{high:.3})", median(v))
    };
    let mut note = format!("median and range of rate {}", range(&rates));
    if !costs.is_empty() {
        note = format!("{note}, CPU {}", range(&costs));
    }
    let name = format!("{what}: {right}");
    CheckedFigure::at_least(&name, hits as f64, &format!("of {}", list.len()), bar).note(note)
}
