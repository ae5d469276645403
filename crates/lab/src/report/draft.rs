//! A report in the making.

use super::{Check, Comparison, Report, SCHEMA, Step, TargetInfo};
use crate::fleet;
use crate::host::{Conditions, Host, Watch, timestamp};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

fn turn_key(key: &str, turn: usize) -> String {
    format!("{key} / turn {}", turn + 1)
}

/// A report in the making: it watches the machine from here on.
pub struct Draft {
    pub report: Report,
    watch: Watch,
    began: Instant,
    stamp: String,
    /// Targets of the run that this one goes on with.
    before: Vec<TargetInfo>,
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
                host: Host::current(),
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
                interrupted: false,
            },
            watch: Watch::start(),
            began: Instant::now(),
            before: Vec::new(),
        }
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
        report.shards = before.shards;
        let done = report.steps.len() + report.comparisons.len();
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

    /// One more target; the first is *the* target of the report.
    pub fn add_target(&mut self, info: TargetInfo) {
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

    /// Whether the step of this key is done.
    pub fn has(&self, key: &str) -> bool {
        self.report.steps.iter().any(|s| s.key == key)
    }

    /// Whether this turn of a step is done.
    pub fn has_turn(&self, key: &str, turn: usize) -> bool {
        let key = turn_key(key, turn);
        self.report.turns.iter().any(|s| s.key == key)
    }

    pub fn push_turn(&mut self, key: &str, turn: usize, mut step: Step) {
        step.key = turn_key(key, turn);
        self.report.turns.push(step);
    }

    /// The turns of a step, in order.
    pub fn turns(&self, key: &str, of: usize) -> Vec<Step> {
        let one = |turn| {
            self.report
                .turns
                .iter()
                .find(|s| s.key == turn_key(key, turn))
        };
        (0..of).filter_map(one).cloned().collect()
    }

    /// The step is whole: its turns have been merged.
    pub fn forget_turns(&mut self, key: &str, of: usize) {
        let keys: Vec<String> = (0..of).map(|turn| turn_key(key, turn)).collect();
        self.report.turns.retain(|s| !keys.contains(&s.key));
    }

    /// Whether the comparison of this name is done.
    pub fn has_comparison(&self, name: &str) -> bool {
        self.report.comparisons.iter().any(|c| c.name == name)
    }

    pub fn push_comparison(&mut self, mut comparison: Comparison) {
        comparison.interrupted = fleet::interrupted();
        self.report.comparisons.push(comparison);
    }

    /// Whether there are figures whose names begin so.
    pub fn has_check(&self, prefix: &str) -> bool {
        self.report
            .checks
            .iter()
            .any(|c| c.name.starts_with(prefix))
    }

    pub fn push(&mut self, key: &str, mut step: Step) {
        step.key = key.to_string();
        self.report.steps.push(step);
    }

    /// Takes a step back that has to be done again.
    pub fn forget(&mut self, key: &str) {
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

    /// A figure; one of that name from before is replaced.
    pub fn check(&mut self, check: Check) {
        self.report.checks.retain(|c| c.name != check.name);
        self.report.checks.push(check);
    }

    /// Where the result goes when the user names no place.
    pub fn default_path(&self) -> PathBuf {
        crate::terms::default_result_path(&self.report.kind, &self.report.name, &self.stamp)
    }

    /// Ends the watch.
    pub fn end(mut self) -> Report {
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
        self.report
    }
}
