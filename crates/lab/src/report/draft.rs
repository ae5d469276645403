//! A report in the making.

use super::{Check, Report, SCHEMA, Step, TargetInfo};
use crate::fleet;
use crate::host::{Conditions, Host, Watch, timestamp};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

/// A report in the making: it watches the machine from here on.
pub struct Draft {
    pub report: Report,
    watch: Watch,
    began: Instant,
    stamp: String,
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
                comparisons: Vec::new(),
                checks: Vec::new(),
                interrupted: false,
            },
            watch: Watch::start(),
            began: Instant::now(),
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

    /// Whether the step of this key is done.
    pub fn has(&self, key: &str) -> bool {
        self.report.steps.iter().any(|s| s.key == key)
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
        self.report.notes.push(note.into());
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
        self.report.conditions = self.watch.end();
        self.report.seconds = self.began.elapsed().as_secs_f64();
        self.report.interrupted = fleet::interrupted();
        self.report
    }
}
