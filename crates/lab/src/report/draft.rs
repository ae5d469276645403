//! A report in the making.

use super::{CheckedFigure, MeasuredStep, Report, SCHEMA, SideComparison, TargetInfo};
use crate::fault::Result;
use crate::fleet;
use crate::host::{Conditions, MachineDescription, MachineWatch, timestamp};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

fn turn_key(key: &str, turn: usize) -> String {
    format!("{key}{TURN}{}", turn + 1)
}

const TURN: &str = " / turn ";

/// A report in the making: it watches the machine from here on.
pub struct Draft {
    pub report: Report,
    watch: MachineWatch,
    began: Instant,
    stamp: String,
    /// Targets of the run that this one goes on with.
    before: Vec<TargetInfo>,
    /// How many times everything is measured, and which of them is under way.
    repeats: usize,
    repeat: usize,
}

impl Draft {
    pub fn new(kind: &str, name: &str) -> Draft {
        let started = timestamp(SystemTime::now());
        Draft {
            stamp: started.replace([':', '-'], ""),
            report: Report {
                schema: SCHEMA.into(),
                kind: kind.into(),
                name: name.into(),
                command: crate::command(),
                started,
                seconds: 0.0,
                lab_version: env!("CARGO_PKG_VERSION").into(),
                host: MachineDescription::current(),
                conditions: Conditions::default(),
                target: None,
                targets: Vec::new(),
                shards: Vec::new(),
                notes: Vec::new(),
                settings: Map::new(),
                steps: Vec::new(),
                turns: Vec::new(),
                comparisons: Vec::new(),
                checks: Vec::new(),
                choices: Vec::new(),
                statements: Vec::new(),
                interrupted: false,
            },
            watch: MachineWatch::start(),
            began: Instant::now(),
            before: Vec::new(),
            repeats: 1,
            repeat: 0,
        }
    }

    /// Everything is to be measured so many times. Until all repeats of a step are there it is none, but turns.
    pub fn repeated(&mut self, times: usize) {
        self.repeats = times.max(1);
        if self.repeats > 1 {
            self.set("repeats", self.repeats);
        }
    }

    /// What follows belongs to this repeat.
    pub fn begin(&mut self, repeat: usize) {
        self.repeat = repeat;
        crate::floor::begin(repeat);
    }

    /// Goes on with what another run has measured whole.
    pub fn take_over(&mut self, before: Report) {
        let report = &mut self.report;
        if !before.command.is_empty() {
            report.command = before.command;
        }
        report.steps = before.steps;
        report.steps.retain(|s| !s.interrupted);
        report.turns = before.turns;
        report.turns.retain(|s| !s.interrupted);
        report.comparisons = before.comparisons;
        report.comparisons.retain(|c| !c.interrupted);
        report.checks = before.checks;
        report.choices = before.choices;
        report.shards = before.shards;
        let asked = report.choices.iter().map(|c| c.schemas as usize);
        let done = report.steps.len() + report.comparisons.len() + asked.sum::<usize>();
        before.notes.into_iter().for_each(|n| self.note(n));
        self.note(format!(
            "Resumed with {done} step(s) of {}.",
            before.started
        ));
        self.before = before.targets;
        if self.before.is_empty() {
            self.before.extend(before.target);
        }
    }

    /// The load average when it began.
    pub fn load(&self) -> f64 {
        self.watch.load()
    }

    pub fn set(&mut self, name: &str, value: impl Into<Json>) {
        self.report.settings.insert(name.into(), value.into());
    }

    /// One more target; the first is *the* target of the report. One that comes again is known.
    pub fn add_target(&mut self, info: TargetInfo) {
        let label = info.label();
        if self.repeat > 0 && self.report.targets.iter().any(|t| t.label() == label) {
            return;
        }
        self.report.target.get_or_insert_with(|| info.clone());
        self.report.targets.push(info);
    }

    /// Names a target that is to be added so that its steps are told from those of the others.
    pub fn tell_apart(&self, info: &mut TargetInfo) {
        let label = info.label();
        let others = &self.report.targets;
        if others
            .iter()
            .any(|t| t.url != info.url && t.label() == label)
        {
            let place = info.url.split_once("://").map_or(&*info.url, |(_, p)| p);
            let place = place.split('?').next().unwrap_or_default();
            info.place = Some(place.trim_end_matches('/').to_string());
        }
    }

    /// The repeat under way, from 0.
    pub fn repeat(&self) -> usize {
        self.repeat
    }

    /// Whether the step of this key is done, in the repeat under way.
    pub fn has(&self, key: &str) -> bool {
        let turn = turn_key(key, self.repeat);
        let turns = || self.report.turns.iter();
        self.report.steps.iter().any(|s| s.key == key)
            || (self.repeats > 1 && turns().any(|s| s.key == turn))
    }

    /// The step of this key as the repeat under way has it.
    pub fn step(&self, key: &str) -> Option<&MeasuredStep> {
        let turn = turn_key(key, self.repeat);
        let turns = self.report.turns.iter();
        let mut all = turns.chain(&self.report.steps);
        all.find(|s| s.key == turn || s.key == key)
    }

    /// How many steps are done, each repeat by itself.
    pub fn done(&self) -> usize {
        let whole = |s: &MeasuredStep| s.repeats.len().max(1);
        self.report.turns.len() + self.report.steps.iter().map(whole).sum::<usize>()
    }

    /// Makes steps of the turns that are all there. A run that goes on may have some of others: they stay turns, so that the rest
    /// is measured yet.
    pub fn gather(&mut self) -> Result<()> {
        self.gather_turns(false)
    }

    /// `end`: of a run that ended early, steps are made of those turns that it came to, which a run that goes on needs too.
    fn gather_turns(&mut self, end: bool) -> Result<()> {
        let mut keys: Vec<String> = Vec::new();
        for turn in &self.report.turns {
            let key = turn.key.rsplit_once(TURN).map_or(&*turn.key, |(k, _)| k);
            if !keys.iter().any(|k| k == key) {
                keys.push(key.to_string());
            }
        }
        for key in keys {
            let own = |turn| {
                let name = turn_key(&key, turn);
                self.report.turns.iter().find(|s| s.key == name).cloned()
            };
            let turns: Vec<MeasuredStep> = (0..self.repeats).filter_map(own).collect();
            let whole = turns.len() == self.repeats;
            if !whole && !end {
                continue;
            }
            let Some(mut step) = MeasuredStep::merged(turns)? else {
                continue;
            };
            step.interrupted |= !whole && fleet::interrupted();
            if !step.interrupted {
                let names: Vec<String> = (0..self.repeats).map(|t| turn_key(&key, t)).collect();
                self.report.turns.retain(|s| !names.contains(&s.key));
            }
            self.report.steps.retain(|s| s.key != key);
            step.key = key;
            self.report.steps.push(step);
        }
        Ok(())
    }

    /// Whether the comparison of this name is done.
    pub fn has_comparison(&self, name: &str) -> bool {
        self.report.comparisons.iter().any(|c| c.name == name)
    }

    pub fn push_comparison(&mut self, mut comparison: SideComparison) {
        comparison.interrupted = fleet::interrupted();
        self.report.comparisons.push(comparison);
    }

    /// Whether there are figures whose names begin so, of the repeat under way.
    pub fn has_check(&self, prefix: &str) -> bool {
        let here = |c: &CheckedFigure| c.repeats.len() > self.repeat || self.repeats == 1;
        let mut checks = self.report.checks.iter();
        checks.any(|c| c.name.starts_with(prefix) && here(c))
    }

    pub fn push(&mut self, key: &str, mut step: MeasuredStep) {
        if self.repeats > 1 {
            step.key = turn_key(key, self.repeat);
            self.report.turns.push(step);
            return;
        }
        step.key = key.to_string();
        self.report.steps.push(step);
    }

    /// Takes a step back that has to be done again.
    pub fn forget(&mut self, key: &str) {
        let turn = turn_key(key, self.repeat);
        self.report.turns.retain(|s| s.key != turn);
        self.report.steps.retain(|s| s.key != key);
    }

    /// What a reader must know.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        // A run that is resumed says it once.
        if !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    /// A figure; one of that name from before is replaced. Of several repeats it is the median.
    pub fn check(&mut self, mut check: CheckedFigure) {
        let before = self.report.checks.iter().position(|c| c.name == check.name);
        if self.repeats > 1 {
            let values = before.map(|i| self.report.checks[i].repeats.clone());
            check.repeats = values.unwrap_or_default();
            check.repeats.truncate(self.repeat);
            check.repeats.push(check.value);
            check.value = crate::measure::median(&check.repeats);
            check.pass = check.at_least.is_none_or(|b| check.value >= b)
                && check.at_most.is_none_or(|b| check.value <= b);
        }
        // A figure stays in its place.
        match before {
            Some(i) => self.report.checks[i] = check,
            None => self.report.checks.push(check),
        }
    }

    /// Where the result goes when the user names no place.
    pub fn default_path(&self) -> PathBuf {
        crate::terms::default_result_path(&self.report.kind, &self.report.name, &self.stamp)
    }

    /// Ends the watch.
    pub fn end(mut self) -> Result<Report> {
        self.gather_turns(true)?;
        // Targets whose steps were all done have not been asked again.
        let report = &mut self.report;
        let now = report.targets.iter().chain(&report.target);
        let now: Vec<String> = now.map(TargetInfo::label).collect();
        let mut all = self.before;
        all.retain(|t| !now.contains(&t.label()));
        all.append(&mut report.targets);
        report.targets = all;
        if self.report.target.is_none() {
            self.report.target = self.report.targets.first().cloned();
        }
        self.report.conditions = self.watch.end();
        self.report.seconds = self.began.elapsed().as_secs_f64();
        self.report.interrupted = fleet::interrupted();
        Ok(self.report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_goes_on_measures_the_repeats_that_are_missing() {
        let mut killed = Draft::new("sweep", "x");
        killed.repeated(2);
        for repeat in [0, 1] {
            killed.begin(repeat);
            killed.push("closed", MeasuredStep::example("closed", "t", 1, 10.0));
        }
        killed.gather().unwrap();
        killed.begin(0);
        killed.push("open", MeasuredStep::example("open", "t", 1, 10.0));
        let mut again = Draft::new("sweep", "x");
        again.repeated(2);
        again.take_over(killed.report);
        // As a sweep does between its closed loops and its open ones.
        again.gather().unwrap();
        again.begin(1);
        assert!(again.has("closed") && !again.has("open"));
        again.push("open", MeasuredStep::example("open", "t", 1, 30.0));
        let report = again.end().unwrap();
        assert!(report.steps.iter().all(|s| s.repeats.len() == 2));
        assert_eq!(report.steps[1].per_second, 20.0);
    }

    #[test]
    fn repeats_are_gathered_and_figures_are_medians() {
        let mut d = Draft::new("run", "x");
        d.repeated(3);
        for (repeat, rate) in [(0, 10.0), (1, 30.0), (2, 20.0)] {
            d.begin(repeat);
            assert!(!d.has("a"));
            d.push("a", MeasuredStep::example("a", "t", 1, rate));
            assert!(d.has("a") && !d.has("b"));
            assert_eq!(d.step("a").unwrap().per_second, rate);
            d.check(CheckedFigure::at_most("ready", rate, "ms", 25.0));
            assert!(d.has_check("rea") && d.report.checks.len() == 1);
        }
        assert_eq!(d.done(), 3);
        // One that the limit cut short in the other repeats stands by itself.
        d.push("b", MeasuredStep::example("b", "t", 1, 5.0));
        let report = d.end().unwrap();
        let rates: Vec<f64> = report.steps.iter().map(|s| s.per_second).collect();
        assert_eq!(rates, [20.0, 5.0]);
        assert_eq!(report.steps[0].repeats.len(), 3);
        assert!(report.turns.is_empty() && report.steps.iter().all(|s| !s.interrupted));
        assert!(report.checks[0].pass && report.checks[0].value == 20.0);
    }
}
