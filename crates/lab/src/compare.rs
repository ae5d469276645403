//! `pando lab compare A B`: two targets, or two builds of a server, in alternating slices of one run (A B, B A …) on the same
//! records, and a verdict on B against A: faster, slower or inconclusive.
//!
//! Each pair of neighbouring slices gives one ratio, so that what the machine does to both cancels. The estimate is the
//! Hodges-Lehmann median of the ratios, its interval that of Wilcoxon's signed ranks: near as sharp as a mean where nothing
//! disturbs, and not moved by the few slices that something did. The number of pairs is fixed before the run: to stop when
//! a verdict appears would find differences where there are none. Below one percent nothing is called a difference.

use crate::bench::place::{NullProcess, Room, Server};
use crate::bench::slices::{Contender, alternate};
use crate::fault::{Fault, Result};
use crate::fleet::catch_interrupts;
use crate::null::Form;
use crate::process::Placement;
use crate::progress::say;
use crate::report::Draft;
use crate::resume::Journal;
use crate::sweep::{finish, spec};
use crate::targets;
use crate::terms::{Durability, count, duration};
use crate::ycsb::{Phase, Session};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// The baseline: a target's URL, or a program that is started with `serve --dbpath … --port …`.
    pub a: String,
    /// What is compared with it.
    pub b: String,
    /// Scenarios that read or update (see `pando lab list`).
    #[arg(long, value_delimiter = ',', default_value = "C.S5,C.S4")]
    pub workload: Vec<String>,
    #[arg(long, default_value = "50k", value_parser = count)]
    pub records: u64,
    #[arg(long, alias = "threads", default_value_t = 16)]
    pub connections: usize,
    /// Length of a slice.
    #[arg(long, default_value = "500ms", value_parser = duration)]
    pub slice: Duration,
    /// Pairs of slices.
    #[arg(long, default_value_t = 60)]
    pub pairs: usize,
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: Durability,
    /// With `null` as B: percent of its CPU that it spends once more in vain.
    #[arg(long, hide = true, default_value_t = 0.0)]
    pub handicap: f64,
    /// Where servers keep their data meanwhile (default: a folder in the temporary directory).
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Result file (default: a new one in lab-results/; - for none).
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// A difference smaller than this is called none.
const MARGIN: f64 = 0.01;

/// The server's CPU is sharper than its rate, and two processes of one build differ by their places in memory.
const CPU_MARGIN: f64 = 0.02;

/// A side: its address, and the server when it is ours.
struct Side {
    url: String,
    _server: Option<(Server, Room)>,
    _null: Option<NullProcess>,
}

/// `null` is a server that only answers: compared with itself, and with a handicap, it tells what a comparison can see.
fn side(word: &str, args: &Args, handicap: f64) -> Result<Side> {
    if word == "null" {
        let placement = Placement::new(None, None)?;
        let null = NullProcess::with_records(args.records, handicap, &placement)?;
        return Ok(Side {
            url: format!("mongodb://127.0.0.1:{}", null.port),
            _server: None,
            _null: Some(null),
        });
    }
    if handicap > 0.0 {
        return Err(Fault::Usage("--handicap is for a B that is null".into()));
    }
    if word.contains("://") {
        return Ok(Side {
            url: word.to_string(),
            _server: None,
            _null: None,
        });
    }
    let program = Path::new(word);
    if !program.is_file() {
        return Err(Fault::Usage(format!(
            "{word} is neither a target's URL nor a program"
        )));
    }
    let program = program.canonicalize().map_err(crate::fault::local(word))?;
    let launch = format!(
        "{} serve --dbpath {{dbpath}} --port {{port}}",
        program.display()
    );
    let placement = Placement::new(None, None)?;
    let cores: Vec<usize> = placement.server.into_iter().collect();
    let room = Room::open(
        None,
        Some(&launch),
        args.dir.as_deref(),
        placement,
        Form::Threads,
    )?;
    let server = room.start(&room.fresh_dbpath()?, &cores)?;
    Ok(Side {
        url: server.target.url.clone(),
        _server: Some((server, room)),
        _null: None,
    })
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    if args.pairs < 6 || args.slice.is_zero() || args.records == 0 || args.connections == 0 {
        return Err(Fault::Usage(
            "--pairs is at least 6, --slice, --records and --connections more than nothing".into(),
        ));
    }
    let mut specs = Vec::new();
    for w in &args.workload {
        let spec = spec(w, args.records)?;
        if spec.insert > 0.0 || spec.delete > 0.0 {
            return Err(Fault::Usage(format!(
                "{w} changes how many records there are: slices of it are not alike"
            )));
        }
        specs.push((w.to_ascii_uppercase(), spec));
    }
    let (a, b) = (
        side(&args.a, &args, 0.0)?,
        side(&args.b, &args, args.handicap)?,
    );
    let mut draft = Draft::new("compare", "A-B");
    draft.set("records", args.records);
    draft.set("connections", args.connections);
    draft.set("durability", args.durability.name());
    draft.set("pairs", args.pairs);
    draft.set("slice_seconds", args.slice.as_secs_f64());
    draft.set("a", targets::without_password(&args.a));
    draft.set("b", targets::without_password(&args.b));
    draft.note(format!(
        "Ratios are B against A; below {:.0}% nothing is called a difference.",
        MARGIN * 100.0
    ));
    let (name, first) = specs[0].clone();
    let open = |side: &Side, table: &str| -> Result<Session> {
        let mut spec = first.clone();
        spec.table = table.into();
        let mut session = Session::open(targets::open(&side.url)?, &name, spec, args.durability)?;
        session.quiet = args.quiet;
        Ok(session)
    };
    // One server may be both sides; then each has a table of its own.
    let (mut sa, mut sb) = (open(&a, "compare_a")?, open(&b, "compare_b")?);
    draft.add_target(sa.info.clone());
    draft.add_target(sb.info.clone());
    for (name, spec) in specs {
        for (session, table) in [(&mut sa, "compare_a"), (&mut sb, "compare_b")] {
            let mut spec = spec.clone();
            spec.table = table.into();
            spec.operations = spec.records;
            session.set_spec(&name, spec);
            if !session.prepare(false)? {
                return Err(Fault::Local("interrupted before the first slice".into()));
            }
        }
        say(
            args.quiet,
            format_args!("{name}: {} pairs of slices", args.pairs),
        );
        let contender = |s: &Session| -> Result<Contender<_>> {
            let shared = s.shared(Phase::Run, s.spec.clone(), u64::MAX);
            Ok(Contender::new(
                s.fleet(&shared, args.connections)?,
                s.info.pid.filter(|_| s.info.more_pids.is_empty()),
            ))
        };
        let mut c = alternate(
            &mut contender(&sb)?,
            &mut contender(&sa)?,
            args.slice,
            args.pairs,
        )?;
        let ratios: Vec<f64> = c
            .subject
            .slices_per_second
            .iter()
            .zip(&c.reference.slices_per_second)
            .map(|(b, a)| b / a)
            .collect();
        let (ratio, interval) = signed_ranks(&ratios);
        c.share = ratio;
        c.share_interval = interval;
        let (a_costs, b_costs) = (&c.reference.slices_cpu_us, &c.subject.slices_cpu_us);
        // On one server for both sides the CPU says nothing of either.
        if a.url != b.url && a_costs.len() == ratios.len() && b_costs.len() == ratios.len() {
            let costs: Vec<f64> = b_costs.iter().zip(a_costs).map(|(b, a)| b / a).collect();
            let (cost, interval) = signed_ranks(&costs);
            c.cpu_ratio = Some(cost);
            c.cpu_interval = Some(interval);
        }
        let (word, by) = decide((ratio, interval), c.cpu_ratio.zip(c.cpu_interval));
        c.verdict = word.into();
        c.decided_by = by.into();
        c.name = name.clone();
        c.title = name.clone();
        c.connections = args.connections;
        c.durability = Some(args.durability.name().into());
        c.reference_is = "A".into();
        c.pass = true;
        let cpu = match (c.cpu_ratio, c.cpu_interval) {
            (Some(cpu), Some([low, high])) => {
                format!("; CPU {cpu:.3} times A's, {low:.3}–{high:.3}")
            }
            _ => String::new(),
        };
        println!(
            "{name}: B is {} by {by} ({ratio:.3} times A, {:.3}–{:.3}{cpu})",
            c.verdict, interval[0], interval[1]
        );
        draft.report.comparisons.push(c);
    }
    for s in [&sa, &sb] {
        s.drop_table()?;
    }
    let journal = Journal::open(&mut draft, None, false)?;
    finish(draft, journal, args.out.as_deref())
}

/// The rate decides; where it cannot, what the servers spent on an operation does: who needs more CPU for the same is
/// slower wherever CPU is the limit.
fn decide(rate: (f64, [f64; 2]), cost: Option<(f64, [f64; 2])>) -> (&'static str, &'static str) {
    let word = verdict(rate.0, rate.1, MARGIN);
    if let ("inconclusive", Some((ratio, [low, high]))) = (word, cost) {
        let speed = verdict(1.0 / ratio, [1.0 / high, 1.0 / low], CPU_MARGIN);
        return (speed, if speed == word { "rate and CPU" } else { "CPU" });
    }
    (word, "rate")
}

fn verdict(ratio: f64, interval: [f64; 2], margin: f64) -> &'static str {
    if interval[0] > 1.0 && ratio > 1.0 + margin {
        "faster"
    } else if interval[1] < 1.0 && ratio < 1.0 - margin {
        "slower"
    } else {
        "inconclusive"
    }
}

/// The Hodges-Lehmann estimate and its 95% interval, on logarithms, so that twice and half weigh the same.
pub fn signed_ranks(ratios: &[f64]) -> (f64, [f64; 2]) {
    let logs: Vec<f64> = ratios
        .iter()
        .filter(|r| r.is_finite() && **r > 0.0)
        .map(|r| r.ln())
        .collect();
    let n = logs.len();
    if n == 0 {
        return (f64::NAN, [f64::NAN; 2]);
    }
    let mut means = Vec::with_capacity(n * (n + 1) / 2);
    for (i, a) in logs.iter().enumerate() {
        means.extend(logs[i..].iter().map(|b| f64::midpoint(*a, *b)));
    }
    means.sort_by(f64::total_cmp);
    let count = n as f64;
    let spread = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    let low = (count * (count + 1.0) / 4.0 - 1.96 * spread)
        .floor()
        .max(0.0) as usize;
    let low = low.min((means.len() - 1) / 2);
    let high = means.len() - 1 - low;
    (
        crate::measure::median(&means).exp(),
        [means[low].exp(), means[high].exp()],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    /// Ratios of slices that each have 10% of noise, and now and then a disturbed one.
    fn noisy(seed: u64, ratio: f64, pairs: usize) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        let mut noise = || (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        (0..pairs)
            .map(|i| {
                ratio
                    * (1.0 + 0.1 * noise())
                    * if i % 13 == 0 { 0.5 } else { 1.0 }
                    * if i % 17 == 0 { 2.0 } else { 1.0 }
            })
            .collect()
    }

    #[test]
    fn the_same_build_is_inconclusive_and_a_slower_one_slower_nine_times_of_ten() {
        let count = |ratio: f64, want: &str| {
            (0..100)
                .filter(|&seed| {
                    let (r, interval) = signed_ranks(&noisy(seed, ratio, 60));
                    verdict(r, interval, MARGIN) == want
                })
                .count()
        };
        assert!(count(1.0, "inconclusive") >= 90);
        assert!(count(0.95, "slower") >= 80, "{}", count(0.95, "slower"));
        assert!(count(1.1, "faster") >= 95);
    }

    #[test]
    fn the_cpu_decides_where_the_rate_cannot() {
        let unclear = (0.98, [0.9, 1.05]);
        assert_eq!(decide(unclear, None), ("inconclusive", "rate"));
        assert_eq!(
            decide(unclear, Some((1.05, [1.04, 1.06]))),
            ("slower", "CPU")
        );
        assert_eq!(
            decide(unclear, Some((0.9, [0.88, 0.93]))),
            ("faster", "CPU")
        );
        let same = Some((1.01, [1.005, 1.015]));
        assert_eq!(decide(unclear, same), ("inconclusive", "rate and CPU"));
        let clear = (0.9, [0.88, 0.92]);
        assert_eq!(decide(clear, Some((0.9, [0.88, 0.93]))), ("slower", "rate"));
    }

    #[test]
    fn few_or_no_values() {
        assert!(signed_ranks(&[]).0.is_nan());
        assert_eq!(signed_ranks(&[2.0]).0, 2.0);
        let (r, [low, high]) = signed_ranks(&[1.0, 1.1, 0.9, 1.0, 1.05, 0.95]);
        assert!(low < r && r < high);
    }
}
