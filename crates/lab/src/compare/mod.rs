//! `pando lab compare A B`: two targets, or two builds of a server, in alternating slices of one run on the same records,
//! and a verdict on B against A: faster, slower or inconclusive.
//!
//! ```text
//! round  fresh processes of both, where they are ours: one build's processes differ by their places in memory
//!   pair   one slice of each, cut into turns that alternate (A B, B A …): what the machine does meets both; one ratio
//! ```
//! The estimate is the Hodges-Lehmann median of the ratios, its interval that of Wilcoxon's signed ranks: near as sharp as
//! a mean where nothing disturbs, and not moved by the few slices that something did. A comparison ends when the interval
//! is narrow, or the pairs are used up. To stop when a verdict appears would find differences where there are none; the
//! width knows nothing of the verdict.

mod ranks;
mod side;
mod trials;

use crate::bench::slices::{Contender, comparison, pair};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::process::CorePlacement;
use crate::progress::say;
use crate::report::{Draft, SideComparison};
use crate::targets;
use crate::terms::{WriteDurability, count, duration};
use crate::ycsb::{Spec, YcsbClient, scenario};
use ranks::{MARGIN, NONE, decide, half_width, signed_ranks};
use side::Side;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// The baseline: a target's URL, a program that is started with `serve --dbpath … --port …`, or null (a server that
    /// only answers).
    pub a: String,
    /// The other side.
    pub b: String,
    /// Scenarios that read or update (see `pando lab list`) [default: C.S5,C.S4; with --trials C.S5].
    #[arg(long, value_delimiter = ',')]
    pub workload: Vec<String>,
    /// Records: 1000, 50k, 5m …
    #[arg(long, default_value = "50k", value_parser = count)]
    pub records: u64,
    /// Connections to each side.
    #[arg(long, alias = "threads", default_value_t = 16)]
    pub connections: usize,
    /// Length of a slice.
    #[arg(long, default_value = "500ms", value_parser = duration)]
    pub slice: Duration,
    /// Most pairs of slices; fewer when the interval is narrow before.
    #[arg(long, default_value_t = 60)]
    pub pairs: usize,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    /// Shows what a comparison can see on this machine: so many times A with itself, and as often A with A slowed down by
    /// --handicap percent. Fails when fewer than nine of ten verdicts are right. A and B are the same program, or null.
    #[arg(long)]
    pub trials: Option<usize>,
    /// With a program or null as B: percent of its CPU time that it spends once more in vain.
    #[arg(long)]
    pub handicap: Option<f64>,
    /// Where servers keep their data meanwhile (default: a folder in the temporary directory).
    #[arg(long)]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub to: Output,
}

/// Slices are cut into turns of about this length.
const TURN: Duration = Duration::from_millis(25);
/// Pairs of a round.
const ROUND: usize = 6;
/// No comparison ends with fewer pairs, however narrow the interval is.
const FEWEST: usize = 24;
/// Half an interval that is narrow enough, as a share of the ratio.
const NARROW: f64 = 0.012;

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let specs = workloads(&args)?;
    trials::check(&args)?;
    let placement = CorePlacement::new(None, None)?;
    let mut duel = Duel {
        a: Side::new(&args.a, "compare_a", &args, &placement)?,
        b: Side::new(&args.b, "compare_b", &args, &placement)?,
        args: &args,
    };
    if args.handicap.is_some() && !duel.b.ours() {
        return Err(Fault::Usage(
            "--handicap is for a B that is started here: a program, or null".into(),
        ));
    }
    if duel.a.ours() && duel.b.ours() {
        placement.pin_client()?;
    }
    let mut draft = described(&args);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    match args.trials {
        Some(trials) => trials::run(&mut duel, &specs, trials, &mut draft, &mut journal)?,
        None => duel.all(&specs, &mut draft, &mut journal)?,
    }
    for side in [&duel.a, &duel.b] {
        draft.report.targets.extend(side.info());
        side.clear()?;
    }
    draft.report.target = draft.report.targets.first().cloned();
    drop(duel);
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

/// The workloads of both sides; refuses those that change their own records.
fn workloads(args: &Args) -> Result<Vec<(String, Spec)>> {
    if args.pairs < 6 || args.slice.is_zero() || args.records == 0 || args.connections == 0 {
        return Err(Fault::Usage(
            "--pairs is at least 6, --slice, --records and --connections more than nothing".into(),
        ));
    }
    let names = match (args.workload.as_slice(), args.trials) {
        ([], None) => vec!["C.S5".to_string(), "C.S4".into()],
        ([], Some(_)) => vec!["C.S5".into()],
        (given, _) => given.to_vec(),
    };
    let mut specs = Vec::new();
    for w in &names {
        let spec = scenario::spec(w, args.records)?;
        if spec.insert > 0.0 || spec.delete > 0.0 {
            return Err(Fault::Usage(format!(
                "{w} changes how many records there are: slices of it are not alike"
            )));
        }
        specs.push((w.to_ascii_uppercase(), spec));
    }
    Ok(specs)
}

/// A result with all settings in it.
fn described(args: &Args) -> Draft {
    let name = match args.trials {
        Some(_) => "trials",
        None => "A-B",
    };
    let mut draft = Draft::new("compare", name);
    draft.set("records", args.records);
    draft.set("connections", args.connections);
    draft.set("durability", args.durability.name());
    draft.set("most_pairs", args.pairs);
    draft.set("slice_seconds", args.slice.as_secs_f64());
    draft.set("a", targets::without_password(&args.a));
    draft.set("b", targets::without_password(&args.b));
    draft.note(format!(
        "Ratios are B against A, with 99% intervals; a difference below {:.0}%, or an interval that reaches within {:.0}%, \
         is called none. A comparison ends when half its interval is below {:.1}%, or with the last pair.",
        MARGIN * 100.0,
        NONE * 100.0,
        NARROW * 100.0
    ));
    if let Some(trials) = args.trials {
        trials::describe(args, trials, &mut draft);
    }
    draft
}

struct Duel<'a> {
    a: Side,
    b: Side,
    args: &'a Args,
}

impl Duel<'_> {
    /// All workloads, one after the other.
    fn all(
        &mut self,
        specs: &[(String, Spec)],
        draft: &mut Draft,
        journal: &mut Journal,
    ) -> Result<()> {
        let handicap = self.args.handicap.unwrap_or(0.0);
        for (name, spec) in specs {
            if draft.has_comparison(name) {
                continue;
            }
            let c = match self.fight(name, spec, handicap) {
                Ok(c) => c,
                // Earlier comparisons stand.
                Err(_) if interrupted() && !draft.report.comparisons.is_empty() => break,
                Err(fault) => return Err(fault),
            };
            println!("{}", crate::verdict::compared(&c).text);
            draft.push_comparison(c);
            journal.save(draft);
        }
        Ok(())
    }

    /// One workload on both sides, B with a handicap.
    fn fight(&mut self, name: &str, spec: &Spec, handicap: f64) -> Result<SideComparison> {
        let args = self.args;
        let began = Instant::now();
        say(
            args.to.quiet,
            format_args!("{name}: up to {} pairs of slices", args.pairs),
        );
        let mut both: Option<[Contender<YcsbClient>; 2]> = None;
        let mut done = 0;
        loop {
            let (a, pid_a) = self.a.open(name, spec, 0.0, args)?;
            let (b, pid_b) = self.b.open(name, spec, handicap, args)?;
            // One server for both sides: its CPU says nothing of either.
            let known = self.a.url() != self.b.url();
            let (pid_a, pid_b) = (pid_a.filter(|_| known), pid_b.filter(|_| known));
            let [a, b] = match both.as_mut() {
                Some([old_a, old_b]) => {
                    old_a.go_on(a, pid_a);
                    old_b.go_on(b, pid_b);
                    [old_a, old_b]
                }
                None => both
                    .insert([Contender::new(a, pid_a), Contender::new(b, pid_b)])
                    .each_mut(),
            };
            a.warm_up(args.slice / 2)?;
            b.warm_up(args.slice / 2)?;
            for _ in 0..ROUND.min(args.pairs - done) {
                pair(a, b, args.slice, TURN)?;
                done += 1;
                if interrupted() {
                    break;
                }
            }
            let c = judged(comparison(b, a, args.slice));
            if interrupted() || enough(&c, done, args.pairs) {
                return Ok(SideComparison {
                    name: name.into(),
                    title: name.into(),
                    connections: args.connections,
                    durability: Some(args.durability.name().into()),
                    reference_is: "A".into(),
                    pass: true,
                    took_seconds: began.elapsed().as_secs_f64(),
                    ..c
                });
            }
        }
    }
}

/// Whether a comparison has come to its end after so many pairs: its interval is narrow, whatever the verdict is, or these
/// were the last.
fn enough(c: &SideComparison, done: usize, most: usize) -> bool {
    let width = half_width(c.cpu_interval.unwrap_or(c.share_interval));
    done >= most || (done >= FEWEST && width < NARROW)
}

/// The ratios of a comparison, their intervals, and the verdict.
fn judged(mut c: SideComparison) -> SideComparison {
    let ratios =
        |b: &[f64], a: &[f64]| -> Vec<f64> { b.iter().zip(a).map(|(b, a)| b / a).collect() };
    let (b, a) = (&c.subject, &c.reference);
    let rates = ratios(&b.slices_per_second, &a.slices_per_second);
    let costs = ratios(&b.slices_cpu_us, &a.slices_cpu_us);
    (c.share, c.share_interval) = signed_ranks(&rates);
    c.cpu_ratio = None;
    if costs.len() == rates.len() {
        let (cost, interval) = signed_ranks(&costs);
        c.cpu_ratio = Some(cost);
        c.cpu_interval = Some(interval);
    }
    let (word, by) = decide((c.share, c.share_interval), c.cpu_ratio.zip(c.cpu_interval));
    c.verdict = word.into();
    c.decided_by = by.into();
    c
}

/// The whole rule (rounds, the end of a comparison, both measures, the verdict) on slices that are made up, and on slices that
/// were recorded: what a busy machine does to a run cannot make these tests fail.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;
    use crate::report::Side as Slices;

    /// Gives the next pair of slices: rate and CPU of A, rate and CPU of B.
    type Pairs<'a> = dyn FnMut(usize) -> [(f64, f64); 2] + 'a;

    /// A comparison as `fight` runs it, its slices from elsewhere.
    fn simulated(pairs: &mut Pairs<'_>, most: usize) -> SideComparison {
        let (mut a, mut b) = (Slices::default(), Slices::default());
        let push = |side: &mut Slices, (rate, cpu): (f64, f64)| {
            side.slices_per_second.push(rate);
            side.slices_cpu_us.push(cpu);
        };
        loop {
            for _ in 0..ROUND {
                let [of_a, of_b] = pairs(a.slices_per_second.len());
                push(&mut a, of_a);
                push(&mut b, of_b);
            }
            let done = a.slices_per_second.len();
            let c = judged(SideComparison {
                subject: b.clone(),
                reference: a.clone(),
                ..SideComparison::default()
            });
            if enough(&c, done, most) {
                return c;
            }
        }
    }

    fn normal(rng: &mut Rng) -> f64 {
        (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
    }

    /// Slices of a machine with other work: the level wanders and both sides go with it, each slice has noise of its own, a
    /// process has its luck with memory for a round, and now and then something takes the core from one side.
    fn made_up(seed: u64, slower: f64) -> impl FnMut(usize) -> [(f64, f64); 2] {
        let mut rng = Rng::new(seed);
        let (mut level, mut luck) = (1.0, [1.0; 2]);
        move |n| {
            if n.is_multiple_of(ROUND) {
                luck = [0, 1].map(|_| 1.0 + 0.003 * normal(&mut rng));
            }
            level = (level * (1.0 + 0.05 * normal(&mut rng))).clamp(0.4, 1.6);
            [(1.0, luck[0]), (1.0 + slower, luck[1])].map(|(cost, luck)| {
                let stolen = if rng.unit() < 0.08 {
                    0.5 + 0.4 * rng.unit()
                } else {
                    1.0
                };
                let cost = cost * luck;
                let rate = level / cost * (1.0 + 0.03 * normal(&mut rng)) * stolen;
                (
                    rate * 20_000.0,
                    cost * 15.0 * (1.0 + 0.012 * normal(&mut rng)),
                )
            })
        }
    }

    fn hits(want: &str, runs: u64, mut pairs: impl FnMut(u64) -> SideComparison) -> u64 {
        (0..runs)
            .filter(|&seed| pairs(seed).verdict == want)
            .count() as u64
    }

    #[test]
    fn nine_of_ten_verdicts_are_right_on_a_machine_with_other_work() {
        let runs = 100;
        let of = |slower: f64| move |seed| simulated(&mut made_up(seed + 1, slower), 60);
        let same = hits("inconclusive", runs, of(0.0));
        assert!(same >= runs * 9 / 10, "with itself {same} of {runs}");
        let slow = hits("slower", runs, of(0.05));
        assert!(slow >= runs * 95 / 100, "slowed by 5% {slow} of {runs}");
        let fast = hits("faster", runs, of(-0.05));
        assert!(fast >= runs * 9 / 10, "made faster by 5% {fast} of {runs}");
    }

    /// The slices of a build compared with itself on a real machine, drawn anew: as they were, and with B's made slower.
    #[test]
    fn nine_of_ten_verdicts_are_right_on_recorded_slices() {
        let recorded: Vec<_> = crate::recorded::trials()
            .concat()
            .into_iter()
            .map(|pair| pair.map(|s| (s.per_second, s.cpu_us)))
            .collect();
        let of = |slower: f64| {
            let recorded = &recorded;
            move |seed| {
                let mut rng = Rng::new(seed + 1);
                let mut pairs = |_| {
                    let [a, b] = recorded[rng.below(recorded.len() as u64) as usize];
                    // Either may have been the one or the other.
                    let (a, b) = if rng.unit() < 0.5 { (a, b) } else { (b, a) };
                    [a, (b.0 / (1.0 + slower), b.1 * (1.0 + slower))]
                };
                simulated(&mut pairs, 36)
            }
        };
        let runs = 100;
        let same = hits("inconclusive", runs, of(0.0));
        assert!(same >= runs * 9 / 10, "with itself {same} of {runs}");
        let slow = hits("slower", runs, of(0.05));
        assert!(slow >= runs * 95 / 100, "slowed by 5% {slow} of {runs}");
    }
}
