//! What the authors saw, in their statements, and whether it holds for a product by what a seed measured.
//!
//! Invariant: a statement whose condition was not reached (memory never full, too few records) is not shown here, whatever the
//! figures are.

use crate::lang::tr;
use crate::measure::median;
use crate::report::{MeasuredStep, Report, Statement};
use crate::terms::{bytes, counted, grouped, span};
use crate::text;

/// What was measured of one product.
struct Seen<'a> {
    reports: &'a [Report],
    product: &'a str,
}

/// Whether a statement holds, and by which figure; or why it is not shown.
type Shown = Result<(bool, String), String>;
type Rule = fn(&Seen<'_>) -> Shown;

pub fn of(seed: u8, reports: &[Report]) -> Vec<Statement> {
    let rules: &[(&'static str, Rule)] = match seed {
        1 => &SINGLE_AND_SHARDED,
        2 => &INSERT_MODES,
        3 => &BIG_MACHINE,
        4 => &MICRO_SHARDS,
        _ => &COMPLAINTS,
    };
    let products = products(reports);
    let noisy = is_noisy(reports);
    let mut all = Vec::new();
    for (author, rule) in rules {
        for product in &products {
            let (verdict, figure) = match rule(&Seen { reports, product }) {
                Ok((true, figure)) => ("holds", doubted(figure, noisy)),
                Ok((false, figure)) => ("does not hold", doubted(figure, noisy)),
                Err(why) => ("not shown here", why),
            };
            all.push(Statement {
                author: (*author).to_string(),
                product: product.clone(),
                verdict: verdict.into(),
                figure,
            });
        }
    }
    all
}

/// Whether other work disturbed most of what was measured.
fn is_noisy(reports: &[Report]) -> bool {
    let steps = || reports.iter().flat_map(|r| &r.steps);
    steps().filter(|s| s.noise.reasons().is_some()).count() * 2 > steps().count()
}

fn doubted(figure: String, noisy: bool) -> String {
    match noisy {
        true => text!("{0}; the machine was not quiet", figure),
        false => figure,
    }
}

/// Labels of all targets that are one process.
fn products(reports: &[Report]) -> Vec<String> {
    let mut all = Vec::new();
    for info in reports
        .iter()
        .flat_map(|r| r.targets.iter().chain(&r.target))
    {
        let label = info.label();
        if !label.contains(" shards of ") && !label.contains(" × ") && !all.contains(&label) {
            all.push(label);
        }
    }
    all
}

fn not_measured<T>() -> Result<T, String> {
    Err(tr("not measured").into())
}

/// `1.32`, `12`.
fn times(v: f64) -> String {
    if v >= 9.95 {
        format!("{v:.0}")
    } else {
        format!("{v:.2}")
    }
}

/// The mean of the last tenth over that of the first; none of a course that is too short.
fn last_over_first(values: &[f64]) -> Option<f64> {
    let tenth = values.len() / 10;
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let ratio = mean(values.get(values.len() - tenth..)?) / mean(values.get(..tenth)?);
    (tenth > 0 && ratio.is_finite()).then_some(ratio)
}

impl<'a> Seen<'a> {
    /// Steps of the product, or of the shards of it, whose names begin so.
    fn steps(&self, sharded: bool, name: &str) -> Vec<&'a MeasuredStep> {
        let mut all = Vec::new();
        for r in self.reports {
            let own = r.target.as_ref().map(|t| t.label());
            for s in r.steps.iter().filter(|s| s.name.starts_with(name)) {
                let label = s.target.clone().or(own.clone()).unwrap_or_default();
                let is_own = match sharded {
                    true => label.ends_with(&format!(" of {}", self.product)),
                    false => label == self.product,
                };
                if is_own {
                    all.push(s);
                }
            }
        }
        all
    }

    fn first(&self, name: &str) -> Result<&'a MeasuredStep, String> {
        let found = self.steps(false, name).into_iter().next();
        found.map_or_else(not_measured, Ok)
    }

    fn check(&self, name: &str) -> Option<f64> {
        let checks = self.reports.iter().flat_map(|r| &r.checks);
        let mut own = checks.filter(|c| c.name.ends_with(name));
        own.next().map(|c| c.value)
    }

    fn figure(&self, name: &str) -> Result<f64, String> {
        self.check(name).map_or_else(not_measured, Ok)
    }

    /// Refuses to judge as long as what grew is within the cache.
    fn beyond_memory(&self, grown: u64) -> Result<(), String> {
        let infos = self
            .reports
            .iter()
            .flat_map(|r| r.targets.iter().chain(&r.target));
        let own = infos.filter(|t| t.label() == self.product);
        let cache = own.filter_map(|t| t.cache_bytes).min();
        match cache {
            Some(cache) if grown > cache => Ok(()),
            Some(cache) => Err(text!(
                "memory was not full: {0} in a cache of {1}",
                bytes(grown),
                bytes(cache)
            )),
            None => Err(tr("the size of its cache is not known").into()),
        }
    }

    /// The rate of inserts over the records that were there, last tenth over first.
    fn insert_course(&self, name: &str) -> Result<f64, String> {
        let steps = self.steps(false, name);
        let points = steps.iter().flat_map(|s| s.by_records());
        let rates: Vec<f64> = points.map(|p| p.1).collect();
        last_over_first(&rates).map_or_else(not_measured, Ok)
    }

    /// Rates of a read test after each step of the load, in order.
    fn read_course(&self, sharded: bool, name: &str) -> Result<Vec<f64>, String> {
        let mut steps = self.steps(sharded, name);
        steps.sort_by(|a, b| a.at.unwrap_or(0.0).total_cmp(&b.at.unwrap_or(0.0)));
        let rates: Vec<f64> = steps.iter().map(|s| s.per_second).collect();
        if rates.len() < 3 {
            not_measured()
        } else {
            Ok(rates)
        }
    }

    fn data(&self, name: &str) -> (u64, u64) {
        let steps = self.steps(false, name);
        let sizes = steps.iter().filter_map(|s| s.sizes.last());
        sizes.fold((0, 0), |(d, i), z| {
            (d.max(z.data_bytes), i.max(z.index_bytes))
        })
    }

    /// Sharded against one process, medians over all steps.
    fn shards_over_one(&self, name: &str) -> Result<f64, String> {
        let rate = |sharded: bool| {
            let rates = self
                .steps(sharded, name)
                .iter()
                .map(|s| s.per_second)
                .collect::<Vec<f64>>();
            median(&rates)
        };
        let ratio = rate(true) / rate(false);
        if ratio.is_finite() {
            Ok(ratio)
        } else {
            not_measured()
        }
    }
}

/// A ratio that must lie within bounds for the statement to hold.
fn within(ratio: f64, low: f64, high: f64, of: &'static str) -> Shown {
    Ok((
        (low..=high).contains(&ratio),
        format!("{} {}", times(ratio), tr(of)),
    ))
}

const FALLS: f64 = 0.5;
const STEADY: f64 = 0.8;
const OF_FIRST: &str = "of the first tenth";
const OF_ONE: &str = "of one process";

const SINGLE_AND_SHARDED: [(&str, Rule); 18] = [
    (
        "Inserts fall once memory is full (25 MB/s, then 2 MB/s).",
        |s| {
            s.beyond_memory(s.data("test 2").0)?;
            within(s.insert_course("test 2")?, 0.0, FALLS, OF_FIRST)
        },
    ),
    ("Batch insert is hardly faster than single inserts.", |s| {
        let (batch, single) = (s.first("test 2")?, s.first("test 1")?);
        within(
            batch.per_second / single.per_second,
            0.0,
            1.5,
            "of single inserts",
        )
    }),
    ("Safe insert is steady.", |s| {
        within(s.insert_course("test 3")?, STEADY, 9.0, OF_FIRST)
    }),
    ("One indexed number: steady to 200 million records.", |s| {
        let rates = s.read_course(false, "test 4")?;
        within(
            rates[rates.len() - 1] / rates[0],
            STEADY,
            9.0,
            "of the first step",
        )
    }),
    (
        "Two indexed numbers: a little better, swinging more.",
        |s| {
            let (four, five) = (
                s.read_course(false, "test 4")?,
                s.read_course(false, "test 5")?,
            );
            let swing = |rates: &[f64]| {
                let most = rates.iter().copied().fold(0.0, f64::max);
                most / rates.iter().copied().fold(f64::INFINITY, f64::min)
            };
            let ratio = median(&five) / median(&four);
            let (a, b) = (times(swing(&five)), times(swing(&four)));
            Ok((
                ratio > 1.0 && swing(&five) > swing(&four),
                text!(
                    "{0} times test 4; greatest over least {1} against {2}",
                    times(ratio),
                    a,
                    b
                ),
            ))
        },
    ),
    (
        "Sorted by the date index: falls once the indexes outgrow memory.",
        |s| {
            s.beyond_memory(s.data("test 2").1)?;
            let rates = s.read_course(false, "test 6")?;
            within(
                rates[rates.len() - 1] / rates[0],
                0.0,
                FALLS,
                "of the first step",
            )
        },
    ),
    (
        "The first hundred documents: as many bytes a second as test 4.",
        |s| {
            let mb = |name: &str| -> Result<f64, String> {
                s.first(name)?.megabytes().map_or_else(not_measured, Ok)
            };
            within(mb("test 7")? / mb("test 4")?, 0.75, 1.33, "of test 4")
        },
    ),
    (
        "Past 200 million records tests 6 and 7 swing by 30%.",
        |s| {
            let most = s
                .steps(false, "test 7")
                .iter()
                .filter_map(|s| s.at)
                .fold(0.0, f64::max);
            match most > 2e8 {
                true => {
                    let late = s
                        .steps(false, "test 7")
                        .into_iter()
                        .filter(|s| s.at.is_some_and(|n| n > 2e8));
                    let rates: Vec<f64> = late.map(|s| s.per_second).collect();
                    let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
                    let swing = 1.0 - low / rates.iter().copied().fold(0.0, f64::max);
                    Ok((swing >= 0.3, format!("{:.0}%", swing * 100.0)))
                }
                false => Err(text!("{0} records at most", counted(most as u64))),
            }
        },
    ),
    ("Over shards safe insert is slower.", |s| {
        within(
            s.shards_over_one("test 3: safe insert, w:1")?,
            0.0,
            0.95,
            OF_ONE,
        )
    }),
    ("Over shards test 4 is half of one process.", |s| {
        within(s.shards_over_one("test 4")?, 0.35, 0.65, OF_ONE)
    }),
    ("Over shards test 5 is sometimes better.", |s| {
        let (many, one) = (
            s.read_course(true, "test 5")?,
            s.read_course(false, "test 5")?,
        );
        let better = many.iter().zip(&one).filter(|(m, o)| m > o).count();
        Ok((better > 0, text!("in {0} of {1} steps", better, many.len())))
    }),
    ("Over shards test 6 is clearly worse.", |s| {
        within(s.shards_over_one("test 6")?, 0.0, 0.8, OF_ONE)
    }),
    ("Over shards test 7 is about the same.", |s| {
        within(s.shards_over_one("test 7")?, 0.8, 1.25, OF_ONE)
    }),
    ("Over shards the disk is about the same.", |s| {
        let of = |sharded: bool| {
            let steps = s.steps(sharded, "test 2");
            let all = steps.iter().filter_map(|s| s.sizes.last());
            all.map(|z| z.storage_bytes + z.index_bytes)
                .max()
                .unwrap_or(0)
        };
        match (of(true), of(false)) {
            (0, _) | (_, 0) => not_measured(),
            (many, one) => within(many as f64 / one as f64, 0.8, 1.25, OF_ONE),
        }
    }),
    ("The documents lie evenly on the shards.", |s| {
        let shards = s
            .reports
            .iter()
            .flat_map(|r| &r.shards)
            .map(|s| s.documents as f64);
        let all: Vec<f64> = shards.collect();
        let (low, high) = all
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(l, h), n| (l.min(*n), h.max(*n)));
        if high == 0.0 {
            return not_measured();
        }
        Ok((
            low / high > 0.95,
            text!("{0} to {1}", grouped(low), grouped(high)),
        ))
    }),
    (
        "While chunks move inserts fall to hundreds a second.",
        |s| {
            let share = s.figure("slowest second with moves to the rate without")?;
            within(
                share,
                0.0,
                0.1,
                "of the rate without moves, in the slowest second",
            )
        },
    ),
    ("More insert threads make inserts slower.", more_threads),
    (
        "A restart is slow and cold; repair after a crash is very long.",
        restart_and_repair,
    ),
];

fn more_threads(s: &Seen<'_>) -> Shown {
    let share = s.figure("threads: most connections against the peak")?;
    within(share, 0.0, 0.8, "of the peak, with the most connections")
}

fn restart_and_repair(s: &Seen<'_>) -> Shown {
    let (first, crash) = (
        s.figure("restart: first second against before")?,
        s.figure("recovery: ready after")?,
    );
    let ready = span((crash * 1e6) as u64);
    Ok((
        first < 0.5 || crash > 60_000.0,
        text!(
            "{0} of the rate in the first second; ready {1} after kill -9",
            times(first),
            ready
        ),
    ))
}

/// The insert rate of a mode of study B.
fn mode<'a>(s: &Seen<'a>, mode: &str) -> Result<&'a MeasuredStep, String> {
    let mut steps = s.steps(false, "insert").into_iter();
    steps
        .find(|s| s.mode.as_deref() == Some(mode))
        .map_or_else(not_measured, Ok)
}

/// The relational database that was measured beside this one.
fn relational<'a>(s: &Seen<'a>, all: &'a [String]) -> Result<Seen<'a>, String> {
    let is_one = |p: &&String| p.contains("MariaDB") || p.contains("MySQL");
    match all.iter().find(is_one) {
        Some(other) if other != s.product => Ok(Seen {
            reports: s.reports,
            product: other,
        }),
        _ => Err(tr("nothing to compare with").into()),
    }
}

fn against(s: &Seen<'_>, of: &str) -> Result<f64, String> {
    let all = products(s.reports);
    Ok(mode(s, of)?.per_second / mode(&relational(s, &all)?, of)?.per_second)
}

/// The share of groups of a thousand that took more than twice the median.
fn spikes(s: &MeasuredStep) -> f64 {
    let middle = median(&s.group_seconds);
    let slow = s
        .group_seconds
        .iter()
        .filter(|t| **t > middle * 2.0)
        .count();
    slow as f64 / s.group_seconds.len().max(1) as f64
}

fn reads<'a>(s: &Seen<'a>) -> Result<Vec<&'a MeasuredStep>, String> {
    let mut steps = s.steps(false, "read of ");
    steps.retain(|s| s.mode.as_deref() == Some("key given"));
    steps.sort_by(|a, b| a.at.unwrap_or(0.0).total_cmp(&b.at.unwrap_or(0.0)));
    if steps.len() < 2 {
        not_measured()
    } else {
        Ok(steps)
    }
}

const INSERT_MODES: [(&str, Rule); 8] = [
    ("Without an id inserts are faster than with one.", |s| {
        let ratio = mode(s, "no key")?.per_second / mode(s, "key given")?.per_second;
        within(ratio, 1.05, 1e9, "of the rate with a key")
    }),
    (
        "MongoDB without id is faster than MySQL without key.",
        |s| within(against(s, "no key")?, 1.0, 1e9, "of MySQL's rate"),
    ),
    ("MySQL with key is faster than MongoDB with id.", |s| {
        within(against(s, "key given")?, 0.0, 1.0, "of MySQL's rate")
    }),
    (
        "The keyed modes spike regularly, the others are mostly even.",
        |s| {
            let (keyed, none) = (spikes(mode(s, "key given")?), spikes(mode(s, "no key")?));
            let percent = |v: f64| format!("{:.2}%", v * 100.0);
            Ok((
                keyed > 0.01 && keyed > none * 2.0,
                text!(
                    "{0} of the thousands took twice the median, without a key {1}",
                    percent(keyed),
                    percent(none)
                ),
            ))
        },
    ),
    ("With id inserts decline markedly.", |s| {
        let step = mode(s, "key given")?;
        let rates: Vec<f64> = step
            .group_seconds
            .iter()
            .map(|t| 1.0 / t.max(1e-9))
            .collect();
        within(
            last_over_first(&rates).map_or_else(not_measured, Ok)?,
            0.0,
            0.7,
            OF_FIRST,
        )
    }),
    (
        "No id given and the md5 indexed, as recommended: faster than with id.",
        |s| {
            let ratio =
                mode(s, "no key given, md5 indexed")?.per_second / mode(s, "key given")?.per_second;
            within(ratio, 1.05, 1e9, "of the rate with a key")
        },
    ),
    ("Reads are far ahead of MySQL while keys are few.", |s| {
        let all = products(s.reports);
        let ratio = reads(s)?[0].per_second / reads(&relational(s, &all)?)?[0].per_second;
        within(ratio, 2.0, 1e9, "of MySQL's rate")
    }),
    ("Reads grow uneven when keys are many.", |s| {
        let steps = reads(s)?;
        let spread = |s: &MeasuredStep| s.spread().map_or_else(not_measured, Ok);
        let (few, many) = (spread(steps[0])?, spread(steps[steps.len() - 1])?);
        Ok((
            many > few * 1.5 && many > 0.1,
            text!(
                "spread {0}% of the few, {1}% of the many",
                format!("{:.0}", few * 100.0),
                format!("{:.0}", many * 100.0)
            ),
        ))
    }),
];

/// The best step of a scenario at its smallest or largest size.
fn best<'a>(s: &Seen<'a>, scenario: &str, largest: bool) -> Result<&'a MeasuredStep, String> {
    let steps = s.steps(false, scenario);
    let sizes = steps.iter().filter_map(|s| s.at);
    let size = match largest {
        true => sizes.fold(0.0, f64::max),
        false => sizes.fold(f64::INFINITY, f64::min),
    };
    let at = steps.into_iter().filter(|s| s.at == Some(size));
    at.max_by(|a, b| a.per_second.total_cmp(&b.per_second))
        .map_or_else(not_measured, Ok)
}

fn kept(s: &Seen<'_>, scenario: &str) -> Result<f64, String> {
    Ok(best(s, scenario, true)?.per_second / best(s, scenario, false)?.per_second)
}

/// The fall of a scenario from the smallest data to the largest, as published or near it.
fn falls(s: &Seen<'_>, scenario: &str, published: f64) -> Shown {
    let largest = best(s, scenario, true)?;
    s.beyond_memory(largest.sizes.last().map_or(0, |z| z.data_bytes))?;
    let kept = kept(s, scenario)?;
    let figure = text!(
        "{0} of the smallest size (published: {1})",
        times(kept),
        times(published)
    );
    Ok((kept < published * 1.5, figure))
}

const BIG_MACHINE: [(&str, Rule); 9] = [
    ("Inserts peak at 128 threads and fall beyond.", |s| {
        let peak = best(s, "C.S1", true)?;
        let rate = |n: usize| {
            let mut steps = s.steps(false, "C.S1").into_iter();
            steps
                .find(|s| s.connections == n && s.at == peak.at)
                .map(|s| s.per_second)
        };
        let Some(most) = rate(256) else {
            return not_measured();
        };
        let after = most / peak.per_second;
        Ok((
            peak.connections == 128 && after < 0.95,
            text!(
                "peak at {0}, with 256 {1} of it",
                peak.connections,
                times(after)
            ),
        ))
    }),
    ("The more updates, the fewer operations.", |s| {
        let rates =
            ["C.S5", "C.S2", "C.S3", "C.S4"].map(|n| best(s, n, false).map(|s| s.per_second));
        let [a, b, c, d] = rates;
        let all = [a?, b?, c?, d?];
        let figure = all.map(grouped).join(", ");
        Ok((all.windows(2).all(|w| w[0] > w[1]), figure))
    }),
    ("Reads fall to 0.30 from 5 to 100 million records.", |s| {
        falls(s, "C.S5", 0.30)
    }),
    ("With 10% updates they fall to 0.20.", |s| {
        falls(s, "C.S2", 0.20)
    }),
    ("With 50% updates they fall to 0.16.", |s| {
        falls(s, "C.S3", 0.16)
    }),
    ("With 90% updates they fall to 0.14.", |s| {
        falls(s, "C.S4", 0.14)
    }),
    ("The more writes, the steeper the fall.", |s| {
        let largest = best(s, "C.S4", true)?;
        s.beyond_memory(largest.sizes.last().map_or(0, |z| z.data_bytes))?;
        let (reads, writes) = (kept(s, "C.S5")?, kept(s, "C.S4")?);
        Ok((
            writes < reads * 0.95,
            text!(
                "{0} of the rate is kept with reads, {1} with 90% updates",
                times(reads),
                times(writes)
            ),
        ))
    }),
    ("The rate grows most from 1 to 64 threads.", |s| {
        let size = best(s, "C.S5", false)?.at;
        let rate = |n: usize| {
            let mut steps = s.steps(false, "C.S5").into_iter();
            let found = steps.find(|s| s.connections == n && s.at == size);
            found.map(|s| s.per_second).map_or_else(not_measured, Ok)
        };
        let (low, high) = (rate(64)? / rate(1)?, rate(256)? / rate(64)?);
        Ok((
            low > high,
            text!(
                "{0} times from 1 to 64, {1} times to 256",
                times(low),
                times(high)
            ),
        ))
    }),
    ("More writes, more latency.", |s| {
        let p99 = |n: &str| best(s, n, true)?.worst_p99().map_or_else(not_measured, Ok);
        let (reads, writes): (f64, f64) = (p99("C.S5")?, p99("C.S4")?);
        let times_of = |us: f64| span((us * 1e3) as u64);
        Ok((
            writes > reads,
            text!(
                "p99 {0} with reads, {1} with 90% updates",
                times_of(reads),
                times_of(writes)
            ),
        ))
    }),
];

/// The rate of a scenario with so many shards, of all targets of the seed.
fn with_shards(s: &Seen<'_>, scenario: &str) -> Result<Vec<(f64, f64)>, String> {
    let steps = s.reports.iter().flat_map(|r| &r.steps);
    let own = steps.filter(|x| x.name.starts_with(scenario));
    let own = own.filter(|x| x.target.as_deref().is_some_and(|t| t.ends_with(s.product)));
    let mut all: Vec<(f64, f64)> = own.filter_map(|s| Some((s.at?, s.per_second))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    if all.len() < 2 || all[0].0 != 1.0 {
        not_measured()
    } else {
        Ok(all)
    }
}

/// The most that shards give, over one process, and with how many.
fn gain(s: &Seen<'_>, scenario: &str) -> Result<(f64, f64), String> {
    let all = with_shards(s, scenario)?;
    let best = all.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    let (shards, rate) = best.unwrap_or(all[0]);
    Ok((rate / all[0].1, shards))
}

const MICRO_SHARDS: [(&str, Rule); 4] = [
    ("Mixed work gains 275% with shards.", |s| {
        let (gain, shards) = gain(s, "D.S3")?;
        Ok((
            gain >= 2.0,
            text!("{0} times one process, with {1}", times(gain), shards),
        ))
    }),
    ("Reads alone gain nothing.", |s| {
        let (gain, shards) = gain(s, "D.S5")?;
        Ok((
            gain < 1.1,
            text!("{0} times one process, with {1}", times(gain), shards),
        ))
    }),
    ("Six shards saturate the machine.", |s| {
        let all = with_shards(s, "D.S3")?;
        let rate = |n: f64| all.iter().find(|a| a.0 == n).map(|a| a.1);
        let (Some(four), Some(six), Some(eight)) = (rate(4.0), rate(6.0), rate(8.0)) else {
            return not_measured();
        };
        Ok((
            six > four * 1.05 && eight < six * 1.05,
            text!(
                "six give {0} of four, eight {1} of six",
                times(six / four),
                times(eight / six)
            ),
        ))
    }),
    (
        "One process: load < write-mostly < mixed < read-mostly < read-only.",
        |s| {
            let rates = ["D.S1", "D.S2", "D.S3", "D.S4", "D.S5"]
                .map(|n| with_shards(s, n).map(|all| all[0].1));
            let rates = rates.into_iter().collect::<Result<Vec<f64>, String>>()?;
            let figure = rates
                .iter()
                .map(|r| grouped(*r))
                .collect::<Vec<_>>()
                .join(", ");
            Ok((rates.windows(2).all(|w| w[0] < w[1]), figure))
        },
    ),
];

const COMPLAINTS: [(&str, Rule); 6] = [
    ("A long load grows slower and slower.", |s| {
        within(
            s.figure("flatness: last tenth of the inserts against the first")?,
            0.0,
            STEADY,
            OF_FIRST,
        )
    }),
    ("Inserts have spikes.", |s| {
        let worst = s.figure("spikes: worst second against the median")?;
        within(worst, 0.0, 0.5, "of the median, in the worst second")
    }),
    ("An own _id in random order costs inserts.", |s| {
        within(
            s.figure("ids: own key against generated")?,
            0.0,
            0.8,
            "of the rate with a generated one",
        )
    }),
    ("More insert threads make inserts slower.", more_threads),
    (
        "A restart is slow and cold; repair after a crash is very long.",
        restart_and_repair,
    ),
    ("The journal costs inserts.", |s| {
        let rate = |mode: &str| {
            let mut steps = s.steps(false, "insert by journal mode").into_iter();
            let found = steps.find(|s| s.mode.as_deref() == Some(mode));
            found.map(|s| s.per_second).map_or_else(not_measured, Ok)
        };
        within(
            rate("journaled")? / rate("w1")?,
            0.0,
            0.8,
            "of the rate without waiting for it",
        )
    }),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CheckedFigure, CollectionSizes, Draft, TargetInfo};

    fn report(name: &str, steps: Vec<MeasuredStep>) -> Report {
        let mut d = Draft::new("study", name);
        d.add_target(TargetInfo {
            product: "P".into(),
            cache_bytes: Some(1000),
            ..TargetInfo::default()
        });
        d.report.steps = steps;
        d.report
    }

    fn statement<'a>(all: &'a [Statement], begins: &str) -> &'a Statement {
        let found = all.iter().find(|s| s.author.starts_with(begins));
        found.unwrap_or_else(|| panic!("{begins}"))
    }

    #[test]
    fn a_statement_holds_or_not_by_its_figure_or_is_not_shown() {
        let at = |records: f64, rate: f64, data: u64| MeasuredStep {
            at: Some(records),
            sizes: vec![CollectionSizes {
                data_bytes: data,
                ..CollectionSizes::default()
            }],
            ..MeasuredStep::example("C.S5", "P", 64, rate)
        };
        let all = of(
            3,
            &[report(
                "C-sizes",
                vec![at(5.0, 100.0, 10), at(100.0, 30.0, 2000)],
            )],
        );
        let fall = statement(&all, "Reads fall");
        assert_eq!(
            (fall.verdict.as_str(), fall.product.as_str()),
            ("holds", "P")
        );
        assert_eq!(fall.figure, "0.30 of the smallest size (published: 0.30)");
        assert_eq!(statement(&all, "With 10%").verdict, "not shown here");
        let steady = of(
            3,
            &[report(
                "C-sizes",
                vec![at(5.0, 100.0, 10), at(100.0, 90.0, 2000)],
            )],
        );
        assert_eq!(statement(&steady, "Reads fall").verdict, "does not hold");
        let mut noisy = report("C-sizes", vec![at(5.0, 100.0, 10), at(100.0, 90.0, 2000)]);
        for s in &mut noisy.steps {
            s.noise.others_percent = Some(60.0);
        }
        let doubted = of(3, &[noisy]);
        let figure = &statement(&doubted, "Reads fall").figure;
        assert!(figure.ends_with("; the machine was not quiet"), "{figure}");
        // All of it in the cache: that it does not fall says nothing.
        let small = of(
            3,
            &[report(
                "C-sizes",
                vec![at(5.0, 100.0, 10), at(100.0, 90.0, 900)],
            )],
        );
        let told = statement(&small, "Reads fall");
        assert_eq!(told.verdict, "not shown here");
        assert_eq!(
            statement(&small, "The more writes, the").verdict,
            "not shown here"
        );
        assert!(
            told.figure.contains("memory was not full: 900 B"),
            "{}",
            told.figure
        );
    }

    #[test]
    fn single_figures_and_shards_are_found() {
        let mut r = report("E-pains", Vec::new());
        r.checks.push(CheckedFigure::figure(
            "flatness: last tenth of the inserts against the first",
            0.4,
            "",
        ));
        let all = of(5, &[r]);
        assert_eq!(statement(&all, "A long load").verdict, "holds");
        let shard = |n: f64, target: &str, rate: f64| MeasuredStep {
            at: Some(n),
            ..MeasuredStep::example("D.S3 mixed", target, 32, rate)
        };
        let steps = vec![shard(1.0, "P", 100.0), shard(6.0, "6 shards of P", 250.0)];
        let all = of(4, &[report("D-shards", steps)]);
        assert_eq!(
            statement(&all, "Mixed work").figure,
            "2.50 times one process, with 6"
        );
        assert_eq!(statement(&all, "Reads alone").verdict, "not shown here");
    }
}
