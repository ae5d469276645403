//! What a page sees, tried on runs of which the truth is known: a build against itself, and planted faults. Rates are those of a
//! build that was compared with itself on a real machine (`recorded`: slices of half a second), drawn anew. The faults are planted
//! in them.

use crate::fleet::RunOutcome;
use crate::host::Ticks;
use crate::measure::{Latency, Sample, histogram};
use crate::overview::Overview;
use crate::random::Rng;
use crate::rates::RatioWord;
use crate::recorded;
use crate::report::{CollectionSizes, Draft, MeasuredStep, Report, TargetInfo};
use crate::stall::Stall;
use crate::verdict;
use std::time::Duration;

/// Rates of both sides of pairs of slices, as shares of the median of their trial.
fn recorded_rates() -> Vec<[f64; 2]> {
    let mut all = Vec::new();
    for trial in recorded::trials() {
        let rates: Vec<[f64; 2]> = trial
            .iter()
            .map(|pair| pair.map(|s| s.per_second))
            .collect();
        let firsts: Vec<f64> = rates.iter().map(|[a, _]| *a).collect();
        let middle = crate::measure::median(&firsts);
        all.extend(rates.iter().map(|pair| pair.map(|r| r / middle)));
    }
    all
}

/// Seconds of a step, and rows and repeats of a page, as `sweep --repeat 5` has them.
const SECONDS: usize = 3;
const ROWS: usize = 16;
const REPEATS: usize = 5;

struct Machine {
    pairs: Vec<[f64; 2]>,
    rng: Rng,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine {
            pairs: recorded_rates(),
            rng: Rng::new(seed),
        }
    }

    /// The rate of both sides in one turn: slices that were measured together stay together. What the second side does is
    /// multiplied.
    fn turn(&mut self, factor: f64) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for _ in 0..SECONDS * 2 {
            let pair = self.pairs[self.rng.below(self.pairs.len() as u64) as usize];
            // Neither side is always the first.
            let [a, b] = if self.rng.below(2) == 0 {
                pair
            } else {
                [pair[1], pair[0]]
            };
            sums[0] += a;
            sums[1] += b * factor;
        }
        sums.map(|s| s / (SECONDS * 2) as f64 * 10_000.0)
    }

    /// A page of two targets, the second one changed.
    fn page(&mut self, factor: f64, change: impl Fn(&mut MeasuredStep)) -> Report {
        let mut d = Draft::new("sweep", "planted");
        d.repeated(REPEATS);
        for name in ["A", "B"] {
            d.add_target(TargetInfo {
                product: name.into(),
                ..TargetInfo::default()
            });
        }
        for row in 0..ROWS {
            let turns: Vec<[f64; 2]> = (0..REPEATS).map(|_| self.turn(factor)).collect();
            for (i, name) in ["A", "B"].iter().enumerate() {
                let rates: Vec<f64> = turns.iter().map(|t| t[i]).collect();
                let mut s = MeasuredStep::repeated(&format!("row {row}"), name, 8, &rates);
                let kind = if row % 2 == 0 { "READ" } else { "INSERT" };
                s.latency.insert(kind.into(), Latency::default());
                s.durability = Some("w1".into());
                if i == 1 {
                    change(&mut s);
                }
                d.report.steps.push(s);
            }
        }
        d.report.host.cores = 2;
        d.report
    }
}

/// Whether anything is called faster or slower.
fn named(r: &Report) -> (bool, bool) {
    let all = Overview::of(std::slice::from_ref(r));
    let rows = all.rows.iter().flat_map(|r| &r.words).copied();
    let together = all.together.iter().flatten().map(|t| t.1);
    let words: Vec<RatioWord> = rows.chain(together).collect();
    (
        words.contains(&RatioWord::Faster),
        words.contains(&RatioWord::Slower),
    )
}

/// All that a page says in words.
fn words(r: &Report) -> String {
    let mut all: Vec<String> = verdict::of(r).into_iter().map(|s| s.text).collect();
    all.push(verdict::trust(r).text);
    all.join("\n")
}

#[test]
fn a_build_against_itself_has_a_winner_on_five_of_a_hundred_pages_at_most() {
    let mut machine = Machine::new(5);
    let pages = 200;
    let winners = (0..pages).filter(|_| named(&machine.page(1.0, |_| {})) != (false, false));
    let winners = winners.count();
    eprintln!("{winners} of {pages} pages of a build against itself name a winner");
    assert!(winners <= pages / 20, "{winners} of {pages}");
}

#[test]
fn five_percent_are_found_on_ninety_five_of_a_hundred_pages() {
    let mut machine = Machine::new(6);
    // The first target is the faster one where the second does less.
    let found = (0..100)
        .filter(|_| named(&machine.page(0.95, |_| {})) == (true, false))
        .count();
    eprintln!("5% slower: found on {found} of 100");
    assert!(found >= 95, "{found} of 100");
}

#[test]
fn what_forbids_a_decision_is_said_on_every_page() {
    let mut machine = Machine::new(7);
    type Change = fn(&mut MeasuredStep);
    let faults: [(&str, Change); 3] = [
        ("the client was at its limit", |s| s.client_bound = true),
        ("the data were not equal", |s| {
            s.planned = Some(1000);
            s.operations = 500 * s.repeats.len() as u64;
        }),
        ("the machine was not quiet", |s| {
            s.noise.others_percent = Some(30.0)
        }),
    ];
    for (word, change) in faults {
        let found = (0..100).filter(|_| {
            // The changed side is slower, so that its client hides how much.
            let mut r = machine.page(0.9, change);
            for s in r
                .steps
                .iter_mut()
                .filter(|s| s.planned.is_none() && s.target.as_deref() == Some("A"))
            {
                s.planned = Some(1000).filter(|_| word.contains("data"));
                s.operations = 1000 * s.repeats.len() as u64;
            }
            words(&r).contains(word)
        });
        let found = found.count();
        eprintln!("{word}: {found} of 100");
        assert!(found >= 95, "{word}: {found} of 100");
    }
    // A target that waits for no disk.
    let lossy = (0..100).filter(|_| {
        let mut r = machine.page(0.9, |_| {});
        let settings = &mut r.targets[1].settings;
        settings.insert("fsync".into(), "off".into());
        words(&r).contains("the durability was not equal")
    });
    let lossy = lossy.count();
    eprintln!("a target that waits for no disk: {lossy} of 100");
    assert!(lossy >= 95);
    // Half the data under the same operations.
    let halved = (0..100).filter(|_| {
        let mut r = machine.page(1.0, |_| {});
        for s in &mut r.steps {
            let documents = if s.target.as_deref() == Some("A") {
                1000
            } else {
                500
            };
            s.sizes = vec![CollectionSizes {
                documents,
                ..CollectionSizes::default()
            }];
        }
        let said = words(&r);
        said.contains("the data were not equal") && named(&r) == (false, false)
    });
    let halved = halved.count();
    eprintln!("half the data: {halved} of 100");
    assert!(halved >= 95);
    let nothing = words(&machine.page(1.0, |_| {}));
    for (word, _) in faults {
        assert!(!nothing.contains(word), "{nothing}");
    }
}

#[test]
fn a_stall_of_a_second_in_thirty_is_found_and_nothing_else_is() {
    let mut machine = Machine::new(8);
    let mut step = |stall: Option<f64>| {
        let mut h = histogram();
        let mut s = MeasuredStep::example("C.S5", "B", 8, 10_000.0);
        s.seconds = 30.0;
        s.series.clear();
        for second in 0..30 {
            let [rate, _] = machine.turn(1.0);
            // The part of this second in which nothing ended.
            let still = stall.map_or(0.0, |at| {
                let (from, to) = (f64::from(second), f64::from(second) + 1.0);
                ((at + 1.0).min(to) - at.max(from)).max(0.0)
            });
            let operations = (rate * (1.0 - still)) as u64;
            h.record_n(800_000, operations).unwrap();
            s.series.push(Sample {
                at: f64::from(second) + 1.0,
                seconds: 1.0,
                operations,
                ..Sample::default()
            });
        }
        if stall.is_some() {
            // Each of eight connections waited once.
            h.record_n(1_000_000_000, 8).unwrap();
        }
        s.latency.insert("READ".into(), Latency::of(&h));
        s
    };
    let mut rng = Rng::new(9);
    let found = (0..100).filter(|_| Stall::of(&step(Some(rng.unit() * 29.0))).is_some());
    let found = found.count();
    eprintln!("a stall of one second in thirty: {found} of 100");
    assert!(found >= 95, "{found} of 100");
    let invented = (0..100)
        .filter(|_| Stall::of(&step(None)).is_some())
        .count();
    assert_eq!(invented, 0);
}

#[test]
fn a_client_at_its_limit_is_told_from_a_server_at_its_own() {
    let mut rng = Rng::new(10);
    // Ten seconds of two client threads on four cores.
    let mut bound = |idle: f64, client: f64, server: f64| {
        let noise = |rng: &mut Rng, v: f64| Duration::from_secs_f64(v * (0.99 + 0.02 * rng.unit()));
        let (client, server) = (noise(&mut rng, client), noise(&mut rng, server));
        let outcome = RunOutcome {
            operations: 100_000,
            requests: 100_000,
            elapsed: Duration::from_secs(10),
            kinds: Vec::new(),
            samples: Vec::new(),
            client_cpu: client,
            client_idle: noise(&mut rng, idle),
            bytes: [0; 2],
            lag: None,
            machine: Ticks {
                busy: ((client + server).as_secs_f64() * 100.0) as u64,
                steal: 0,
                all: 4000,
            },
            counters: None,
            served: Vec::new(),
            singles: Vec::new(),
        };
        MeasuredStep::new("C.S5", 64, 2, &outcome, Some(server)).client_bound
    };
    let mut found = |idle: f64, client: f64, server: f64| {
        (0..100).filter(|_| bound(idle, client, server)).count()
    };
    // Never idle while the server had cores to spare.
    assert!(found(0.2, 19.7, 9.0) >= 95);
    // Never idle on full cores of which it took more than the server.
    assert!(found(0.1, 22.0, 17.9) >= 95);
    // Never idle, but on full cores the server took more; or half idle.
    assert_eq!(found(0.1, 14.0, 25.9), 0);
    assert_eq!(found(9.0, 10.0, 12.0), 0);
}
