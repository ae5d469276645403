//! What a result says in a few sentences, and whether to believe it: what the page opens with and the terminal ends with.
//!
//! Invariant: a target is called ahead or behind only where one test over all rows decides it ([`Overview`]); kinds of work are
//! never mixed in one sentence.

use crate::lang::{known, tr};
use crate::measure::median;
use crate::overview::{Class, Overview, Row};
use crate::rates::{Ratio, RatioWord};
use crate::report::{CheckedFigure, Limit, MeasuredStep, Report, SideComparison};
use crate::stall;
use crate::study::plans::findings;
use crate::terms::{grouped, span};
use crate::text;

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
    all.extend(
        stall::sentences(r)
            .into_iter()
            .map(|text| say(Tone::Behind, text)),
    );
    all.extend(limits(r));
    // Of several targets the scorecard has it.
    if overview.targets.len() < 2 {
        all.extend(offered(r));
    }
    all.extend(
        findings::sentences(r)
            .into_iter()
            .map(|s| say(Tone::Plain, s)),
    );
    if let ([only], true) = (overview.targets.as_slice(), all.is_empty()) {
        let text = text!(
            "Only {0} was measured; there is nothing to compare it with.",
            only
        );
        all.push(say(Tone::Plain, text));
    }
    all
}

/// Who limited the closed loops of a result, in one sentence.
fn limits(r: &Report) -> Option<Sentence> {
    let of = |limit: Limit| r.steps.iter().filter(move |s| s.limit() == Some(limit));
    let (client, cores) = (of(Limit::Client).count(), of(Limit::Cores).count());
    let server = of(Limit::Server).count();
    if client + cores == 0 {
        return None;
    }
    // Of full cores it matters how much of them the client took.
    let shares = of(Limit::Cores).filter_map(|s| {
        let all = s.client_cpu_us + s.server_cpu_us?;
        Some(s.client_cpu_us / all)
    });
    let share = median(&shares.collect::<Vec<f64>>());
    let mut text = text!("Who limited: the client in {0} steps", client);
    text.push_str(&text!(", the machine's cores in {0}", cores));
    if share.is_finite() {
        text.push_str(&text!(
            " (of which the client took {0}%)",
            format!("{:.0}", share * 100.0)
        ));
    }
    text.push_str(&text!(", what the server waits for in {0}", server));
    let closed = r.steps.iter().filter(|s| s.offered.is_none());
    let unknown = closed.filter(|s| s.limit().is_none()).count();
    if unknown > 0 {
        text.push_str(&text!("; not known in {0}", unknown));
    }
    text.push_str(tr("."));
    Some(say(Tone::Plain, text))
}

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
    let of = |s: &&MeasuredStep| s.offered.unwrap_or(0.0);
    let told = names.into_iter().map(|(name, target)| {
        let own = || open().filter(move |s| s.name == name && s.target.as_deref() == target);
        let best = own().filter(|s| !s.overloaded);
        let best = best.max_by(|a, b| of(a).total_cmp(&of(b)));
        let who = target.map_or(String::new(), |t| format!("{t}, "));
        match best {
            Some(s) => {
                let p99 = s.worst_p99().map_or("–".into(), |us| span((us * 1e3) as u64));
                let load = grouped(of(&s));
                let text = text!("{0}{1}: keeps up with {2} operations a second that were offered, p99 {3} from when each was due.", who, name, load, p99);
                say(Tone::Plain, text)
            }
            None => {
                let least = own().map(|s| of(&s)).fold(f64::INFINITY, f64::min);
                let text = text!("{0}{1}: overloaded by {2} operations a second, the fewest that were offered.", who, name, grouped(least));
                say(Tone::Behind, text)
            }
        }
    });
    told.collect()
}

/// A comparison in the words of the terminal: what costs more CPU while its rate is higher is not called slower.
pub fn compared(c: &SideComparison) -> Sentence {
    let (tone, word) = match c.verdict.as_str() {
        "faster" => (Tone::Ahead, c.words()),
        "slower" => (Tone::Behind, c.words()),
        _ => (Tone::Open, c.words()),
    };
    let interval = |[low, high]: [f64; 2]| format!("{low:.3}–{high:.3}");
    let (share, reach) = (format!("{:.3}", c.share), interval(c.share_interval));
    let mut text = text!(
        "{0}: {1}: B's rate is {2} times A's ({3})",
        c.title,
        known(word),
        share,
        reach
    );
    if let (Some(cpu), Some(reach)) = (c.cpu_ratio, c.cpu_interval) {
        let cpu = format!("{cpu:.3}");
        text.push_str(&text!(
            ", its CPU an operation {0} times ({1})",
            cpu,
            interval(reach)
        ));
    }
    text.push_str(&text!("; {0} pairs.", c.subject.slices_per_second.len()));
    say(tone, text)
}

/// How the bars were held.
fn bars(checks: &[CheckedFigure], comparisons: &[SideComparison]) -> Option<Sentence> {
    let barred = |c: &&CheckedFigure| c.at_least.or(c.at_most).is_some();
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
            let text = text!("All {0} bars were held: {1}.", all.len(), some(&held));
            say(Tone::Ahead, text)
        }
        n => {
            let text = text!(
                "{0} of {1} bars were missed: {2}.",
                n,
                all.len(),
                some(&below)
            );
            say(Tone::Behind, text)
        }
    })
}

/// The first few names.
fn some(names: &[&str]) -> String {
    let more = if names.len() > 4 {
        tr(" and others")
    } else {
        ""
    };
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
        let ratios: Vec<(Ratio, RatioWord)> = own.iter().filter_map(word).collect();
        if !ratios.is_empty() {
            kinds.push((class.plural(), ratios));
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let once = kinds
        .iter()
        .all(|k| k.1.iter().all(|r| r.0.interval.is_none()));
    let open = kinds
        .iter()
        .all(|k| k.1.iter().all(|r| r.1 == RatioWord::Open));
    let together = all.together.get(i).copied().flatten().filter(|_| open);
    let (tone, head) = together
        .and_then(|decided| over_all_rows(first, other, decided))
        .unwrap_or_else(|| headline(first, other, &kinds, once));
    let head = vetoed(all, i, head);
    let parts = kinds.iter().map(|(what, ratios)| {
        let values: Vec<f64> = ratios.iter().map(|r| r.0.value).collect();
        match doubt(ratios) {
            // The figure of what chance explains would be read as one.
            Some(doubt) if !once && ratios.iter().all(|r| r.1 == RatioWord::Open) => {
                format!("{what} {doubt}")
            }
            Some(doubt) if !once => text!("{0} {1} times ({2})", what, times(&values), doubt),
            _ => text!("{0} {1} times", what, times(&values)),
        }
    });
    let mut text = format!(
        "{head}{}{}",
        tr(": "),
        parts.collect::<Vec<_>>().join(tr(", "))
    );
    if !cpu.is_empty() {
        text.push_str(&text!("; server CPU an operation {0} times", times(&cpu)));
    }
    Some(say(tone, text + tr(".")))
}

/// What all rows decide together, where none does by itself.
fn over_all_rows(
    first: &str,
    other: &str,
    (ratio, word): (Ratio, RatioWord),
) -> Option<(Tone, String)> {
    let ratio = times(&[ratio.value]);
    match word {
        RatioWord::Open => None,
        RatioWord::Faster => {
            let text = text!(
                "{0} is faster than {1} over all rows together ({2} times), in none for certain",
                first,
                other,
                ratio
            );
            Some((Tone::Ahead, text))
        }
        RatioWord::Slower => {
            let text = text!(
                "{0} is slower than {1} over all rows together ({2} times), in none for certain",
                first,
                other,
                ratio
            );
            Some((Tone::Behind, text))
        }
    }
}

/// The ratios of a kind of work, each with what the test of all rows together decides of it.
type Decided<'a> = (&'a str, Vec<(Ratio, RatioWord)>);

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
    let why: Vec<&str> = reasons.iter().map(|r| known(r)).collect();
    match (rows, why.join(tr(", "))) {
        (0, _) => head,
        (n, why) if n == compared => {
            text!(
                "Nothing is decided between {0} and {1} ({2})",
                first,
                other,
                why
            )
        }
        (n, why) => text!(
            "{0} ({1} of {2} steps do not count: {3})",
            head,
            n,
            compared,
            why
        ),
    }
}

fn has(ratios: &[(Ratio, RatioWord)], word: RatioWord) -> bool {
    ratios.iter().any(|r| r.1 == word)
}

/// The faster target, and the kinds of work, unless it is all of them.
fn headline(first: &str, other: &str, kinds: &[Decided<'_>], once: bool) -> (Tone, String) {
    if once {
        let text = text!(
            "{0} against {1}, measured once, so this may be chance (--repeat 3)",
            first,
            other
        );
        return (Tone::Open, text);
    }
    let within = |word: RatioWord| -> Vec<&str> {
        let own = kinds.iter().filter(|k| has(&k.1, word));
        own.map(|k| k.0).collect()
    };
    let (up, down) = (within(RatioWord::Faster), within(RatioWord::Slower));
    let of = |some: &[&str]| match some.len() == kinds.len() {
        true => String::new(),
        false => text!(" in {0}", some.join(tr(" and "))),
    };
    match (up.is_empty(), down.is_empty()) {
        (false, true) => {
            let text = text!("{0} is faster than {1}{2}", first, other, of(&up));
            (Tone::Ahead, text)
        }
        (true, false) => {
            let text = text!("{0} is slower than {1}{2}", first, other, of(&down));
            (Tone::Behind, text)
        }
        (false, false) => {
            let text = text!(
                "{0} is faster than {1} in some steps and slower in others",
                first,
                other
            );
            (Tone::Open, text)
        }
        (true, true) => {
            let text = text!(
                "Undecided between {0} and {1}, chance explains all differences",
                first,
                other
            );
            (Tone::Open, text)
        }
    }
}

/// What of one kind of work is not faster, where that is not what the sentence says already.
fn doubt(ratios: &[(Ratio, RatioWord)]) -> Option<&'static str> {
    let any = |word: RatioWord| has(ratios, word);
    match (
        any(RatioWord::Faster),
        any(RatioWord::Slower),
        any(RatioWord::Open),
    ) {
        (false, false, _) => any(RatioWord::Open).then_some(tr("undecided")),
        (true, true, _) => Some(tr("faster in some, slower in others")),
        (true, false, true) => Some(tr("faster or undecided")),
        (false, true, true) => Some(tr("slower or undecided")),
        (true, false, false) => None,
        (false, true, false) => Some(tr("slower")),
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
        let own = |s: &&MeasuredStep| s.target.as_ref() == Some(label);
        r.steps
            .iter()
            .filter(own)
            .cloned()
            .collect::<Vec<MeasuredStep>>()
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
            *name = tr("one process").into();
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
            let own = |s: &&MeasuredStep| s.name == name && s.target.as_deref() == Some(target);
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
            let text = text!(
                "{0}: its best rate at {1} records, as a share of that at {2}: {3}.",
                target,
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
                1.0 => text!("{0} gains nothing", name),
                n => {
                    let gain = format!("{:+.0}%", (rate / one - 1.0) * 100.0);
                    text!("{0} {1} with {2}", name, gain, n)
                }
            });
        }
    }
    match parts.is_empty() {
        true => Vec::new(),
        false => {
            let text = text!(
                "Gain where the shards saturate, so that more of them add less than 5%: {0}.",
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
        n if n >= 2.0 && several => text!("{0} repeats, targets in turn", n),
        n if n >= 2.0 => text!("{0} repeats", n),
        _ if !r.choices.is_empty() => tr("counts").into(),
        _ if r.steps.is_empty() => tr("alternating slices").into(),
        _ => tr("measured once").into(),
    };
    if !doubts.is_empty() {
        return Trust {
            doubtful: true,
            text: text!("With care ({0}): {1}.", measured, doubts.join(tr("; "))),
        };
    }
    let watched = r.steps.iter().any(|s| s.noise.others_percent.is_some());
    Trust {
        doubtful: false,
        text: match () {
            _ if !r.choices.is_empty() => tr("What was read is counted, not timed; a planner that samples may still choose otherwise next time.").into(),
            _ if watched => text!("The machine was quiet; {0}.", measured),
            _ => text!("Nothing speaks against it, and the cores were not watched (short steps, or a server elsewhere); {0}.", measured),
        },
    }
}

/// What speaks against it.
fn doubts(r: &Report, once: bool) -> Vec<String> {
    let mut doubts = Vec::new();
    let all = r.steps.len();
    let count = |of: &dyn Fn(&&MeasuredStep) -> bool| r.steps.iter().filter(of).count();
    doubt_machine(r, &mut doubts);
    if once {
        doubts.push(
            tr("each step was measured once, so it is not known what the next run gives").into(),
        );
    }
    // Of a run that ended early, or that a limit cut short.
    let wanted = r
        .settings
        .get("repeats")
        .and_then(serde_json::Value::as_u64);
    let fewer = wanted.map_or(0, |n| count(&|s| (s.repeats.len().max(1) as u64) < n));
    if let (n @ 1.., Some(wanted)) = (fewer, wanted) {
        doubts.push(text!(
            "{0} of {1} steps were measured fewer than {2} times",
            n,
            all,
            wanted
        ));
    }
    if let n @ 1.. = count(&|s| s.client_bound) {
        doubts.push(text!(
            "{0} of {1} steps were limited by the client (marked {2})",
            n,
            all,
            crate::sheets::CLIENTS
        ));
    }
    if let n @ 1.. = count(&|s| stall::Stall::of(s).is_some()) {
        doubts.push(text!(
            "in {0} of {1} steps a server stood still, which averages and percentiles hide",
            n,
            all
        ));
    }
    doubts.extend(r.steps.iter().find_map(stall::lag));
    if r.interrupted {
        doubts.push(tr("the run was interrupted").into());
    }
    doubts
}

/// What the machine did beside the run.
fn doubt_machine(r: &Report, doubts: &mut Vec<String>) {
    let all = r.steps.len();
    let is_noisy = |s: &&MeasuredStep| s.noise.reasons().is_some();
    let noisy = r.steps.iter().filter(is_noisy).count();
    let worst = r.steps.iter();
    let worst = worst.max_by(|a, b| loudness(a).total_cmp(&loudness(b)));
    if let Some(why) = worst.and_then(|s| s.noise.reasons()) {
        doubts.push(text!(
            "in {0} of {1} steps the machine was not quiet (at worst {2}; marked {3})",
            noisy,
            all,
            why,
            crate::sheets::NOISY
        ));
    }
    let cores = r.host.cores.max(1) as f64;
    let before = r.conditions.load_before;
    // Counts are the same on a busy machine.
    let timed = r.choices.is_empty();
    if timed && noisy == 0 && before > cores {
        doubts.push(text!(
            "the load average was {0} on {1} cores before it began",
            format!("{before:.1}"),
            r.host.cores
        ));
    }
    if timed && r.conditions.steal_percent > 3.0 {
        doubts.push(text!(
            "{0}% of the CPU time was stolen by the hypervisor",
            format!("{:.0}", r.conditions.steal_percent)
        ));
    }
}

fn loudness(s: &MeasuredStep) -> f64 {
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

    fn report(name: &str, steps: Vec<MeasuredStep>) -> Report {
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

    fn step(kind: &str, name: &str, target: &str, rates: &[f64]) -> MeasuredStep {
        let mut s = MeasuredStep::repeated(name, target, 8, rates);
        if rates.len() == 1 {
            s = MeasuredStep::example(name, target, 8, rates[0]);
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
            "P is faster than Q in reads: reads 2.0 times, writes undecided; server CPU an operation 0.50–0.90 times."
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
            all[0].text.starts_with("Only P was measured"),
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
        let c = SideComparison {
            title: "C.S5".into(),
            verdict: "slower".into(),
            decided_by: "CPU".into(),
            share: 1.005,
            share_interval: [0.98, 1.03],
            cpu_ratio: Some(1.05),
            cpu_interval: Some([1.04, 1.06]),
            ..SideComparison::default()
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
        let of_size = |at: f64, rate: f64| MeasuredStep {
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
        let shard = |n: f64, rate: f64| MeasuredStep {
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
