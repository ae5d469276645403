//! What a result says in a few sentences, and whether to believe it: what the page opens with and the terminal ends with.
//!
//! Invariant: a target is called ahead or behind only where one test over all rows decides it ([`Overview`]); kinds of work are
//! never mixed in one sentence.

use crate::measure::median;
use crate::overview::{Class, Overview, Row};
use crate::rates::{Ratio, Word};
use crate::report::{Check, Comparison, Report, Step};
use crate::stall;
use crate::study::plans::told;
use crate::terms::{grouped, span};
use std::fmt::Write as _;

/// Which way a sentence goes, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Ahead,
    Behind,
    Open,
    Plain,
}

#[derive(Clone, Debug)]
pub struct Sentence {
    pub tone: Tone,
    pub text: String,
}

/// Whether the figures are to be believed, and why not.
#[derive(Clone, Debug)]
pub struct Trust {
    pub doubtful: bool,
    pub text: String,
}

fn say(tone: Tone, text: impl Into<String>) -> Sentence {
    Sentence {
        tone,
        text: text.into(),
    }
}

/// The sentences of one result, and of results that were merged into it.
pub fn of(r: &Report) -> Vec<Sentence> {
    let overview = Overview::of(std::slice::from_ref(r));
    let mut all = Vec::new();
    if r.kind == "compare" {
        all.extend(r.comparisons.iter().map(compared));
    } else if sharded(r) {
        all.extend(shards_against_one(r, &overview));
    } else {
        for i in 1..overview.targets.len() {
            all.extend(against(&overview, i));
        }
    }
    if let Some(bars) = bars(&r.checks, &r.comparisons) {
        all.push(bars);
    }
    all.extend(shapes(r));
    let stalls = r.steps.iter().filter_map(stall::sentence);
    all.extend(stalls.take(MOST_STALLS).map(|text| say(Tone::Behind, text)));
    // Of several targets the scorecard has it.
    if overview.targets.len() < 2 {
        all.extend(offered(r));
    }
    all.extend(told::sentences(r).into_iter().map(|s| say(Tone::Plain, s)));
    if overview.targets.len() < 2 {
        all.extend(alone(r));
    }
    all
}

/// More of them are told of in the tables only.
const MOST_STALLS: usize = 6;

/// What an open loop offered, the most that was kept up with, and how long operations took there.
fn offered(r: &Report) -> Vec<Sentence> {
    let open = || r.steps.iter().filter(|s| s.offered.is_some());
    let mut names: Vec<(&str, Option<&str>)> = Vec::new();
    for s in open() {
        let name = (s.name.as_str(), s.target.as_deref());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |s: &&Step| s.offered.unwrap_or(0.0);
    let told = names.into_iter().map(|(name, target)| {
        let own = || open().filter(move |s| s.name == name && s.target.as_deref() == target);
        let best = own().filter(|s| !s.overloaded);
        let best = best.max_by(|a, b| of(a).total_cmp(&of(b)));
        let who = target.map_or(String::new(), |t| format!("{t}, "));
        match best {
            Some(s) => {
                let p99 = s.latency.values().map(|l| l.p99_us).fold(0.0, f64::max);
                say(
                    Tone::Plain,
                    format!(
                        "{who}{name}: keeps up with {} operations a second that were offered, p99 {} from when each was due.",
                        grouped(of(&s)),
                        span((p99 * 1e3) as u64)
                    ),
                )
            }
            None => {
                let least = own().map(|s| of(&s)).fold(f64::INFINITY, f64::min);
                let text = format!("{who}{name}: overloaded by {} operations a second, the fewest that were offered.", grouped(least));
                say(Tone::Behind, text)
            }
        }
    });
    told.collect()
}

/// A comparison in the words of the terminal: what costs more CPU while its rate is higher is not called slower.
pub fn compared(c: &Comparison) -> Sentence {
    let (tone, word) = match c.verdict.as_str() {
        "faster" => (Tone::Ahead, c.words()),
        "slower" => (Tone::Behind, c.words()),
        _ => (Tone::Open, c.words()),
    };
    let mut text = format!(
        "{}: {word}: B's rate is {:.3} times A's ({:.3}–{:.3})",
        c.title, c.share, c.share_interval[0], c.share_interval[1]
    );
    if let (Some(cpu), Some([low, high])) = (c.cpu_ratio, c.cpu_interval) {
        let _ = write!(
            text,
            ", its CPU an operation {cpu:.3} times ({low:.3}–{high:.3})"
        );
    }
    let _ = write!(text, "; {} pairs.", c.subject.slices_per_second.len());
    say(tone, text)
}

/// How the bars were held.
fn bars(checks: &[Check], comparisons: &[Comparison]) -> Option<Sentence> {
    let barred = |c: &&Check| c.at_least.or(c.at_most).is_some();
    let checked = checks.iter().filter(barred);
    let mut all: Vec<(&str, bool)> = checked.map(|c| (c.name.as_str(), c.pass)).collect();
    let shares = comparisons.iter().filter(|c| c.bar_share.is_some());
    all.extend(shares.map(|c| (c.title.as_str(), c.pass)));
    if all.is_empty() {
        return None;
    }
    let below: Vec<&str> = all.iter().filter(|b| !b.1).map(|b| b.0).collect();
    Some(match below.len() {
        0 => {
            let held: Vec<&str> = all.iter().map(|b| b.0).collect();
            let text = format!("All {} bars were held: {}.", all.len(), some(&held));
            say(Tone::Ahead, text)
        }
        n => {
            let text = format!("{n} of {} bars were missed: {}.", all.len(), some(&below));
            say(Tone::Behind, text)
        }
    })
}

/// The first few names.
fn some(names: &[&str]) -> String {
    let more = if names.len() > 4 { " and others" } else { "" };
    let few = names.iter().take(4).copied().collect::<Vec<_>>();
    few.join(", ") + more
}

/// The first target against another in one sentence: the faster one, then each kind of work by itself.
fn against(all: &Overview, i: usize) -> Option<Sentence> {
    let (first, other) = (all.targets.first()?, all.targets.get(i)?);
    let (mut kinds, mut cpu) = (Vec::new(), Vec::new());
    for class in [Class::Reads, Class::Writes, Class::Mixed, Class::Own] {
        let rows = all.rows.iter().filter(|r| r.class == class);
        let own: Vec<&Row> = rows.filter(|r| r.ratio(i).is_some()).collect();
        cpu.extend(own.iter().filter_map(|r| r.cpu_ratio(i)));
        let word = |r: &&Row| Some((r.ratio(i)?, r.words.get(i).copied()?));
        let ratios: Vec<(Ratio, Word)> = own.iter().filter_map(word).collect();
        if !ratios.is_empty() {
            kinds.push((class.plural(), ratios));
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let (tone, head) = headline(first, other, &kinds);
    let head = vetoed(all, i, head);
    let decided = tone != Tone::Open || kinds.iter().any(|k| has(&k.1, Word::Faster));
    let parts = kinds.iter().map(|(what, ratios)| {
        let values: Vec<f64> = ratios.iter().map(|r| r.0.value).collect();
        let doubt = doubt(ratios).filter(|_| decided);
        let doubt = doubt.map_or(String::new(), |d| format!(" ({d})"));
        format!("{what} {} times{doubt}", times(&values))
    });
    let mut text = format!("{head}: {}", parts.collect::<Vec<_>>().join(", "));
    if !cpu.is_empty() {
        let _ = write!(text, "; server CPU an operation {} times", times(&cpu));
    }
    Some(say(tone, text + "."))
}

/// The ratios of a kind of work, each with what the test of all rows together decides of it.
type Decided<'a> = (&'a str, Vec<(Ratio, Word)>);

/// The headline with the number of rows in which something forbids to decide, and what; that alone where it is all of them.
fn vetoed(all: &Overview, i: usize, head: String) -> String {
    let compared = all.rows.iter().filter(|r| r.ratio(i).is_some());
    let compared: Vec<&[&str]> = compared
        .map(|r| r.vetoes.get(i).map_or(&[][..], Vec::as_slice))
        .collect();
    let mut reasons: Vec<&str> = compared.iter().flat_map(|v| v.iter().copied()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let rows = compared.iter().filter(|v| !v.is_empty()).count();
    let compared = compared.len();
    let (first, other) = (&all.targets[0], &all.targets[i]);
    match (rows, reasons.join(", ")) {
        (0, _) => head,
        (n, why) if n == compared => {
            format!("Nothing is decided between {first} and {other}, because {why}")
        }
        (n, why) => format!("{head} ({n} of {compared} steps do not count: {why})"),
    }
}

fn has(ratios: &[(Ratio, Word)], word: Word) -> bool {
    ratios.iter().any(|r| r.1 == word)
}

/// The faster target, and the kinds of work, unless it is all of them.
fn headline(first: &str, other: &str, kinds: &[Decided<'_>]) -> (Tone, String) {
    let once = kinds
        .iter()
        .all(|k| k.1.iter().all(|r| r.0.interval.is_none()));
    if once {
        let text = "measured once, so this may be chance (--repeat 3)";
        return (Tone::Open, format!("{first} against {other}, {text}"));
    }
    let within = |word: Word| -> Vec<&str> {
        let own = kinds.iter().filter(|k| has(&k.1, word));
        own.map(|k| k.0).collect()
    };
    let (up, down) = (within(Word::Faster), within(Word::Slower));
    let of = |some: &[&str]| match some.len() == kinds.len() {
        true => String::new(),
        false => format!(" in {}", some.join(" and ")),
    };
    match (up.is_empty(), down.is_empty()) {
        (false, true) => (
            Tone::Ahead,
            format!("{first} is faster than {other}{}", of(&up)),
        ),
        (true, false) => (
            Tone::Behind,
            format!("{first} is slower than {other}{}", of(&down)),
        ),
        (false, false) => (
            Tone::Open,
            format!("{first} is faster than {other} in some steps and slower in others"),
        ),
        (true, true) => (
            Tone::Open,
            format!("Undecided between {first} and {other}, chance explains all differences"),
        ),
    }
}

/// What of one kind of work is not faster, where that is not what the sentence says already.
fn doubt(ratios: &[(Ratio, Word)]) -> Option<&'static str> {
    let any = |word: Word| has(ratios, word);
    match (any(Word::Faster), any(Word::Slower), any(Word::Open)) {
        (false, false, _) => any(Word::Open).then_some("undecided"),
        (true, true, _) => Some("faster in some, slower in others"),
        (true, false, true) => Some("faster or undecided"),
        (false, true, true) => Some("slower or undecided"),
        (true, false, false) => None,
        (false, true, false) => Some("slower"),
    }
}

/// Whether one process is compared with shards.
fn sharded(r: &Report) -> bool {
    matches!(r.name.as_str(), "D-shards" | "A-both")
}

/// Shards against one process, the first target: a sentence for each number of shards, which is about the shards.
fn shards_against_one(r: &Report, overview: &Overview) -> Vec<Sentence> {
    let Some((one, others)) = overview.targets.split_first() else {
        return Vec::new();
    };
    let of = |label: &String| {
        let own = |s: &&Step| s.target.as_ref() == Some(label);
        r.steps.iter().filter(own).cloned().collect::<Vec<Step>>()
    };
    let sentence = |shards: &String| {
        let pair = Report {
            steps: [of(shards), of(one)].concat(),
            checks: Vec::new(),
            comparisons: Vec::new(),
            ..r.clone()
        };
        let mut pair = Overview::of(std::slice::from_ref(&pair));
        if let Some(name) = pair.targets.get_mut(1) {
            *name = "one process".into();
        }
        against(&pair, 1)
    };
    others.iter().filter_map(sentence).collect()
}

/// `2.3` or `2.3–2.6`.
fn times(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let shown = |v: f64| match v {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.95 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    match (shown(low), shown(high)) {
        (a, b) if a == b => a,
        (a, b) => format!("{a}–{b}"),
    }
}

/// One target by itself: what each workload came to at its best.
fn alone(r: &Report) -> Vec<Sentence> {
    // Of a study that grows its data the last size tells: modes are sizes there.
    let name_of = |s: &Step| {
        let sized = s.at.is_some();
        let parts = s.name.rsplit_once(", of ").or(s.name.rsplit_once(", to "));
        let name = parts.filter(|_| sized).map_or(&*s.name, |p| p.0);
        (name.to_string(), s.mode.clone().filter(|_| !sized))
    };
    let mut names: Vec<(String, Option<String>)> = Vec::new();
    let closed = || r.steps.iter().filter(|s| s.offered.is_none());
    for s in closed() {
        let name = name_of(s);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // More would be a table.
    let few = names.iter().take(6).map(|name| {
        let own = closed().filter(|s| name_of(s) == *name);
        let size = |s: &Step| s.at.unwrap_or(0.0);
        let best = own.max_by(|a, b| {
            let sizes = size(a).total_cmp(&size(b));
            sizes.then(a.per_second.total_cmp(&b.per_second))
        })?;
        Some(best_of(best))
    });
    few.flatten().collect()
}

fn best_of(s: &Step) -> Sentence {
    let mut text = s.name.clone();
    if let Some(mode) = s.mode.as_ref().filter(|m| **m != s.name) {
        let _ = write!(text, ", {mode}");
    }
    let at = match s.connections {
        1 => "1 connection".into(),
        n => format!("{n} connections"),
    };
    let _ = match s.megabytes_per_second {
        Some(mb) => write!(text, ": {} MB/s at {at}", grouped(mb)),
        None => write!(text, ": {}/s at {at}", grouped(s.per_second)),
    };
    let files = ["UPLOAD", "DOWNLOAD"];
    let whole = s.latency.iter().find(|(k, _)| files.contains(&k.as_str()));
    let most = || s.latency.iter().max_by_key(|(_, l)| l.count);
    if let Some((kind, l)) = whole.or_else(most) {
        let of = match s.latency.len() {
            1 => String::new(),
            _ => format!("{kind} "),
        };
        let _ = write!(text, ", {of}p99 {}", span((l.p99_us * 1e3) as u64));
    }
    let each = if whole.is_some() {
        "a file"
    } else {
        "an operation"
    };
    if let Some(cpu) = s.server_cpu_us {
        let _ = write!(text, ", {cpu:.0} µs of server CPU {each}");
    }
    say(Tone::Plain, text + ".")
}

/// What the published studies were about: the fall with data size, the gain of shards, how even a load was.
fn shapes(r: &Report) -> Vec<Sentence> {
    match r.name.as_str() {
        "C-sizes" => falls(r),
        "D-shards" => gains(r),
        _ => Vec::new(),
    }
}

/// The best rate of a scenario at its smallest and its largest data size.
fn falls(r: &Report) -> Vec<Sentence> {
    let mut targets: Vec<&str> = r.steps.iter().filter_map(|s| s.target.as_deref()).collect();
    targets.dedup();
    let mut out = Vec::new();
    for target in targets {
        let mut parts = Vec::new();
        let mut span = None;
        for name in ["C.S5", "C.S2", "C.S3", "C.S4", "C.S1"] {
            let own = |s: &&Step| s.name == name && s.target.as_deref() == Some(target);
            let sizes = r.steps.iter().filter(own).filter_map(|s| s.at);
            let (low, high) = sizes.fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), n| {
                (l.min(n), h.max(n))
            });
            let best = |size: f64| {
                let at = r.steps.iter().filter(own).filter(|s| s.at == Some(size));
                at.map(|s| s.per_second).fold(f64::NAN, f64::max)
            };
            let kept = best(high) / best(low);
            if high > low && kept.is_finite() {
                parts.push(format!("{name} {kept:.2}"));
                span = Some((low, high));
            }
        }
        if let Some((low, high)) = span {
            let text = format!(
                "{target}: its best rate at {} records, as a share of that at {}: {}.",
                grouped(high),
                grouped(low),
                parts.join(", ")
            );
            out.push(say(Tone::Plain, text));
        }
    }
    out
}

/// Each scenario's rate with shards against one process, and where more shards stop to help.
fn gains(r: &Report) -> Vec<Sentence> {
    let mut names: Vec<&str> = r.steps.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut parts = Vec::new();
    for name in names {
        let mut own: Vec<(f64, f64)> = r
            .steps
            .iter()
            .filter(|s| s.name == name)
            .filter_map(|s| Some((s.at?, s.per_second)))
            .collect();
        own.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, one)) = own.first().copied().filter(|(n, _)| *n == 1.0) else {
            continue;
        };
        let most = own.iter().map(|o| o.1).fold(0.0, f64::max);
        // The fewest that come within a twentieth of the most.
        let enough = own.iter().find(|o| o.1 >= most * 0.95);
        if let Some((shards, rate)) = enough.filter(|_| own.len() > 1) {
            parts.push(match *shards {
                1.0 => format!("{name} gains nothing"),
                n => format!("{name} {:+.0}% with {n:.0}", (rate / one - 1.0) * 100.0),
            });
        }
    }
    match parts.is_empty() {
        true => Vec::new(),
        false => {
            let text = format!(
                "Gain where the shards saturate, so that more of them add less than 5%: {}.",
                parts.join(", ")
            );
            vec![say(Tone::Plain, text)]
        }
    }
}

/// Whether to believe it.
pub fn trust(r: &Report) -> Trust {
    let repeats = r.steps.iter().map(|s| s.repeats.len().max(1) as f64);
    let repeats = median(&repeats.collect::<Vec<f64>>());
    let several = r.targets.len() > 1 && r.kind != "compare";
    let doubts = doubts(r, several && repeats < 2.0 && r.choices.is_empty());
    let measured = match repeats {
        n if n >= 2.0 && several => format!("{n:.0} repeats, targets in turn"),
        n if n >= 2.0 => format!("{n:.0} repeats"),
        _ if !r.choices.is_empty() => "counts".into(),
        _ if r.steps.is_empty() => "alternating slices".into(),
        _ => "measured once".into(),
    };
    if !doubts.is_empty() {
        return Trust {
            doubtful: true,
            text: format!("With care ({measured}): {}.", doubts.join("; ")),
        };
    }
    if !r.choices.is_empty() {
        return Trust {
            doubtful: false,
            text: "What was read is counted, not timed; a planner that samples may still choose otherwise next time.".into(),
        };
    }
    Trust {
        doubtful: false,
        text: match r.steps.iter().any(|s| s.noise.others_percent.is_some()) {
            true => format!("The machine was quiet; {measured}."),
            false => format!(
                "Nothing speaks against it, and nobody watched the cores (short steps, or a server elsewhere); {measured}."
            ),
        },
    }
}

/// What speaks against it.
fn doubts(r: &Report, once: bool) -> Vec<String> {
    let mut doubts = Vec::new();
    let noisy = r.steps.iter().filter(|s| s.noise.said().is_some()).count();
    let worst = r.steps.iter();
    let worst = worst.max_by(|a, b| loudness(a).total_cmp(&loudness(b)));
    if let Some(why) = worst.and_then(|s| s.noise.said()) {
        doubts.push(format!(
            "in {noisy} of {} step(s) the machine was not quiet (at worst {why}; marked {})",
            r.steps.len(),
            crate::show::NOISY
        ));
    }
    let cores = r.host.cores.max(1) as f64;
    let before = r.conditions.load_before;
    // Counts are the same on a busy machine.
    let timed = r.choices.is_empty();
    if timed && noisy == 0 && before > cores {
        doubts.push(format!(
            "the load average was {before:.1} on {} cores before it began",
            r.host.cores
        ));
    }
    if timed && r.conditions.steal_percent > 3.0 {
        doubts.push(format!(
            "{:.0}% of the CPU time was stolen by the hypervisor",
            r.conditions.steal_percent
        ));
    }
    if once {
        doubts
            .push("each step was measured once, so nobody can say what the next run gives".into());
    }
    let bound = r.steps.iter().filter(|s| s.client_bound).count();
    if bound > 0 {
        doubts.push(format!(
            "{bound} step(s) were limited by the client (marked *)"
        ));
    }
    let stalls = r.steps.iter().filter(|s| stall::Stall::of(s).is_some());
    if let n @ 1.. = stalls.count() {
        doubts.push(format!(
            "in {n} step(s) a server stood still, which averages and percentiles hide"
        ));
    }
    doubts.extend(r.steps.iter().find_map(stall::lag));
    if r.interrupted {
        doubts.push("the run was interrupted".into());
    }
    doubts
}

fn loudness(s: &Step) -> f64 {
    let n = &s.noise;
    let all = [
        n.others_percent,
        Some(n.steal_percent),
        n.null_behind_percent,
    ];
    all.into_iter().flatten().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Draft, TargetInfo};

    fn report(name: &str, steps: Vec<Step>) -> Report {
        let mut d = Draft::new("study", name);
        d.report.host.cores = 2;
        for s in &steps {
            let label = s.target.clone().unwrap_or_default();
            if d.report.targets.iter().all(|t| t.label() != label) {
                d.add_target(TargetInfo {
                    product: label,
                    ..TargetInfo::default()
                });
            }
        }
        d.report.steps = steps;
        d.report
    }

    fn step(kind: &str, name: &str, target: &str, rates: &[f64]) -> Step {
        let mut s = Step::repeated(name, target, 8, rates);
        if rates.len() == 1 {
            s = Step::example(name, target, 8, rates[0]);
        }
        s.latency.insert(kind.into(), Default::default());
        s.server_cpu_us = Some(1000.0 / rates[0]);
        s
    }

    #[test]
    fn a_target_is_called_ahead_only_where_the_interval_says_so() {
        let r = report(
            "canonical",
            vec![
                step("READ", "C.S5", "P", &[200.0, 202.0, 198.0]),
                step("READ", "C.S5", "Q", &[100.0, 101.0, 99.0]),
                step("INSERT", "C.S1", "P", &[100.0, 150.0, 50.0]),
                step("INSERT", "C.S1", "Q", &[90.0, 120.0, 80.0]),
            ],
        );
        let all = of(&r);
        assert_eq!(all[0].tone, Tone::Ahead);
        assert_eq!(
            all[0].text,
            "P is faster than Q in reads: reads 2.0 times, writes 1.11 times (undecided); server CPU an operation 0.50–0.90 times."
        );
        assert_eq!(all.len(), 1);
        assert!(!trust(&r).doubtful, "{}", trust(&r).text);
        // Writes alone are undecided, and reads alone the other way round.
        let mut writes = r.clone();
        writes.steps.drain(..2);
        let said = of(&writes);
        assert!(
            said[0].tone == Tone::Open && said[0].text.starts_with("Undecided between P and Q")
        );
        let mut reads = r.clone();
        reads.steps.truncate(2);
        reads.steps.reverse();
        let said = of(&reads);
        assert!(said[0].tone == Tone::Behind && said[0].text.starts_with("Q is slower than P"));
        assert!(
            said[0].text.contains("reads 0.50 times (slower)"),
            "{}",
            said[0].text
        );
        // The same measured once.
        let once = report(
            "canonical",
            vec![
                step("READ", "C.S5", "P", &[200.0]),
                step("READ", "C.S5", "Q", &[1.0]),
            ],
        );
        let said = of(&once);
        assert!(said[0].tone == Tone::Open && said[0].text.contains("measured once"));
        assert!(trust(&once).doubtful && trust(&once).text.contains("measured once"));
    }

    #[test]
    fn one_target_is_told_by_its_workloads_and_noise_is_told_of() {
        let mut s = step("READ", "C.S5", "P", &[200.0]);
        s.noise.others_percent = Some(43.0);
        let r = report("canonical", vec![s]);
        let all = of(&r);
        assert!(
            all[0].text.starts_with("C.S5: 200/s at 8 connections"),
            "{}",
            all[0].text
        );
        let trust = trust(&r);
        assert!(
            trust.doubtful && trust.text.contains("other processes took 43%"),
            "{}",
            trust.text
        );
    }

    #[test]
    fn a_dearer_build_is_not_called_slower() {
        let c = Comparison {
            title: "C.S5".into(),
            verdict: "slower".into(),
            decided_by: "CPU".into(),
            share: 1.005,
            share_interval: [0.98, 1.03],
            cpu_ratio: Some(1.05),
            cpu_interval: Some([1.04, 1.06]),
            ..Comparison::default()
        };
        let s = compared(&c);
        assert!(
            s.text.contains("costs more CPU") && !s.text.contains("slower"),
            "{}",
            s.text
        );
    }

    #[test]
    fn the_gain_of_shards_and_the_fall_with_size() {
        let of_size = |at: f64, rate: f64| Step {
            at: Some(at),
            mode: Some(format!("{at}")),
            ..step("READ", "C.S5", "P", &[rate])
        };
        let r = report(
            "C-sizes",
            vec![of_size(1000.0, 100.0), of_size(5000.0, 40.0)],
        );
        let fall = falls(&r).remove(0).text;
        assert!(
            fall.contains("5,000 records, as a share of that at 1,000: C.S5 0.40"),
            "{fall}"
        );
        let shard = |n: f64, rate: f64| Step {
            at: Some(n),
            ..step("READ", "D.S5", &format!("{n}"), &[rate])
        };
        let r = report(
            "D-shards",
            vec![shard(1.0, 100.0), shard(2.0, 190.0), shard(4.0, 195.0)],
        );
        let gain = gains(&r).remove(0).text;
        assert!(gain.contains("D.S5 +90% with 2"), "{gain}");
        // Shards are told of against one process, not one process against shards.
        let all = of(&r);
        let (two, four) = (&all[0].text, &all[1].text);
        assert!(
            two.starts_with("2 against one process, measured once"),
            "{two}"
        );
        assert!(four.contains("reads 1.9 times"), "{four}");
    }
}
