//! The one schema of results, versioned: measurements, machine, conditions, with whole histograms.
//!
//! ```text
//! Report  schema, kind, name, started, seconds, lab, host, conditions, target, settings, interrupted
//!   steps[]        one measured run: rate, CPU of both sides, latency by kind of operation, series by second, sizes
//!   comparisons[]  two sides in interleaved slices: shares, CPU ratio, the bar for each
//!   checks[]       one figure against one bar
//!   statements[]   of a seed: what its author saw, and whether it holds
//!   choices[]      of each target, what every query read by the chosen plan and by the best
//! ```
//! A reader refuses another schema version: figures are compared only when they mean the same.

mod choices;
mod draft;
mod figures;
mod step;
mod target;

use crate::fault::{Fault, Result, local};
use crate::host::{Conditions, MachineDescription};
pub use choices::{Choices, FETCH, QueryChoice, SHARES, times};
pub use draft::Draft;
pub use figures::{CheckedFigure, Side, SideComparison, Statement};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::path::{Path, PathBuf};
pub use step::{CLIENT_BAR, CollectionSizes, Limit, MeasuredStep, ShardPart, sizes_of};
pub use target::TargetInfo;

pub const SCHEMA: &str = "pando-lab/1";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// `run`, `study`, `bench` or `calibrate`.
    pub kind: String,
    pub name: String,
    /// How the laboratory was called, without passwords.
    #[serde(default)]
    pub command: Vec<String>,
    /// UTC.
    pub started: String,
    pub seconds: f64,
    pub lab_version: String,
    pub host: MachineDescription,
    pub conditions: Conditions,
    pub target: Option<TargetInfo>,
    /// All targets, where there are several.
    #[serde(default)]
    pub targets: Vec<TargetInfo>,
    /// The shards of a cluster at the end.
    #[serde(default)]
    pub shards: Vec<ShardPart>,
    /// Facts that a reader must know: definitions that we chose, skipped steps and why.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What the user or the study set: records, durability, payload, seeds …
    pub settings: Map<String, Json>,
    pub steps: Vec<MeasuredStep>,
    /// Repeats of steps that are not whole yet, for a run that is resumed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<MeasuredStep>,
    pub comparisons: Vec<SideComparison>,
    pub checks: Vec<CheckedFigure>,
    /// What query planners chose, of each target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choices>,
    /// Of a seed: the author's statements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<Statement>,
    /// Ended by Ctrl-C: the measurements until then.
    pub interrupted: bool,
}

/// Writes a text so that the file is whole or not there. A device or a pipe (`/dev/null`) is written to
/// as it is: renaming would put a file in its place.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    if path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return std::fs::write(path, text).map_err(local(path.display()));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        Fault::Local(format!("{}: {e}", path.display()))
    })
}

impl Report {
    /// Writes a file beside the place and renames it, so that a file is whole or not there.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Fault::Local(format!("writing {}: {e}", path.display())))?;
        write_whole(path, &(text + "\n"))
    }

    pub fn read(path: &Path) -> Result<Report> {
        let text = std::fs::read_to_string(path).map_err(local(path.display()))?;
        let not = |why: String| Fault::Usage(format!("{}: {why}", path.display()));
        let json: Json =
            serde_json::from_str(&text).map_err(|e| not(format!("not a result file ({e})")))?;
        match json.get("schema").and_then(Json::as_str) {
            Some(SCHEMA) => {}
            Some(other) => {
                return Err(not(format!(
                    "written in schema {other}; this program reads {SCHEMA}"
                )));
            }
            None => return Err(not("not a result file of this laboratory".into())),
        }
        serde_json::from_value(json).map_err(|e| not(format!("damaged ({e})")))
    }

    /// The command as a shell takes it; nothing for results that have none.
    pub fn command_line(&self) -> Option<String> {
        let word = |w: &String| match w.as_str() {
            "pando lab" => w.clone(),
            plain
                if plain
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c)) =>
            {
                w.clone()
            }
            odd => format!("'{}'", odd.replace('\'', "'\\''")),
        };
        let words: Vec<String> = self.command.iter().map(word).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// Whether everything that has a bar reached it.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.pass) && self.comparisons.iter().all(|c| c.pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back_and_other_schemas_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.json");
        let mut draft = Draft::new("run", "C.S5");
        draft.set("records", 1000);
        let check = CheckedFigure::at_most("ready", 200.0, "ms", 300.0);
        draft.report.checks.push(check);
        let report = draft.end().unwrap();
        report.write(&path).unwrap();
        assert!(report.passed());
        let words = ["pando lab", "run", "--url", "mongodb://h/?w=1", "it's"];
        let called = Report {
            command: words.map(String::from).to_vec(),
            ..report.clone()
        };
        let line = called.command_line().unwrap();
        assert_eq!(line, r"pando lab run --url 'mongodb://h/?w=1' 'it'\''s'");
        let again = Report::read(&path).unwrap();
        assert_eq!(again.settings["records"], 1000);
        assert_eq!(again.checks[0].at_most, Some(300.0));

        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(SCHEMA, "pando-lab/99")).unwrap();
        let fault = Report::read(&path).unwrap_err();
        assert!(fault.to_string().contains("schema pando-lab/99"));
        std::fs::write(&path, "{}").unwrap();
        assert!(Report::read(&path).is_err());
        std::fs::write(&path, "[").unwrap();
        assert!(Report::read(&path).is_err());
    }

    #[test]
    fn what_is_no_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        write_whole(&link, "text").unwrap();
        assert!(link.is_symlink() && !link.is_file());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn bars_are_inclusive() {
        assert!(CheckedFigure::at_least("a", 0.95, "", 0.95).pass);
        assert!(!CheckedFigure::at_least("a", 0.94, "", 0.95).pass);
        assert!(!CheckedFigure::at_most("a", f64::NAN, "", 1.0).pass);
    }
}
