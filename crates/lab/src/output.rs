//! The place of a run's result, alike for every command that measures, and of an unfinished run: its
//! steps stand beside the result to come, and `--resume` goes on after the last of them.
//!
//! Invariants: a place that cannot be written is a fault before anything is measured. A result or a journal that is there is
//! replaced only with `--force`, and gone on with only with `--resume`; a folder is made only for default names. The journal
//! (`<result>.unfinished`) is a whole report after each step; it goes when the result is written. Tables are printed even
//! where the result cannot be written in the end.

use crate::fault::{Fault, Result, local};
use crate::html;
use crate::report::{Draft, Report};
use crate::show;
use crate::threshold::{self, Threshold, threshold};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Output {
    /// Result file (default: a new one in lab-results/; - for none).
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// Replace a result that is there.
    #[arg(long)]
    pub force: bool,
    /// A bar such as "p99<5ms", "READ p99.9<20ms", "C.S5: rate>10000" or "cpu<30" (server µs an operation); a step that
    /// misses it makes the exit code 1.
    #[arg(long, value_name = "BAR", value_parser = threshold)]
    pub threshold: Vec<Threshold>,
    /// Go on after the last step that a run with the same --out finished.
    #[arg(long)]
    pub resume: bool,
}

/// The end of a run: whether its plots are worth a page of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Page {
    None,
    Beside,
}

/// The place of a result, and the steps on the way to it.
pub struct Journal {
    /// `None`: no file is wanted.
    result: Option<PathBuf>,
    /// Steps that the journal's file holds.
    kept: usize,
    told: bool,
    finished: bool,
    thresholds: Vec<Threshold>,
}

impl Journal {
    /// To be opened when all settings are known and nothing is measured. With `--resume`, what the unfinished run has
    /// measured comes into the draft.
    pub fn open(draft: &mut Draft, to: &Output) -> Result<Journal> {
        if to.resume {
            let Some(out) = to.out.as_deref().filter(|p| *p != Path::new("-")) else {
                return Err(Fault::Usage(
                    "--resume needs the --out of the run that died".into(),
                ));
            };
            take_over(draft, out)?;
        }
        let result = match &to.out {
            Some(out) if out == Path::new("-") => None,
            Some(out) => {
                fresh_place(out, to.force || to.resume)?;
                fresh_place(&unfinished(out), to.force || to.resume)?;
                Some(out.clone())
            }
            None => Some(unused(draft.default_path())?),
        };
        let mut journal = Journal {
            result,
            kept: 0,
            told: false,
            finished: false,
            thresholds: to.threshold.clone(),
        };
        journal.probe(draft)?;
        Ok(journal)
    }

    fn path(&self) -> Option<PathBuf> {
        self.result.as_deref().map(unfinished)
    }

    /// Writes the journal as it begins, so that a bad place is known before the measurement.
    fn probe(&mut self, draft: &Draft) -> Result<()> {
        let Some(result) = &self.result else {
            return Ok(());
        };
        let no = |why: &str| Err(Fault::Usage(format!("{}: {why}", result.display())));
        if result.is_dir() {
            return no("is a folder; --out names the result file");
        }
        if result.extension().is_some_and(|e| e == "html") {
            return no("--out names the result file (JSON); the page goes beside it");
        }
        if let Err(fault) = draft.report.write(&unfinished(result)) {
            // Nothing was begun, so there is nothing to be told of.
            self.finished = true;
            self.sweep_up();
            return Err(fault);
        }
        self.kept = measured(&draft.report);
        Ok(())
    }

    /// Saves the steps so far. A disk that is full now may have room at the end: it is told of once.
    pub fn save(&mut self, draft: &Draft) {
        let Some(path) = self.path() else { return };
        match draft.report.write(&path) {
            Ok(()) => self.kept = measured(&draft.report),
            Err(fault) if !self.told => {
                self.told = true;
                eprintln!("warning: steps are not kept meanwhile: {fault}");
            }
            Err(_) => {}
        }
    }

    /// Writes the result and prints it as tables, and says where it is.
    pub fn finish(mut self, draft: Draft, page: Page) -> Result<Report> {
        let mut report = draft.end()?;
        let bars = threshold::checks(&self.thresholds, &report);
        report
            .checks
            .retain(|c| bars.iter().all(|b| b.name != c.name));
        report.checks.extend(bars);
        self.finished = true;
        show::report(&report);
        let Some(path) = self.result.clone() else {
            return Ok(report);
        };
        report.write(&path).inspect_err(|_| self.sweep_up())?;
        let _ = std::fs::remove_file(unfinished(&path));
        println!("\nresult: {}", path.display());
        if page == Page::Beside {
            println!("page: {}", html::beside(&report, &path)?.display());
        }
        if report.interrupted {
            println!(
                "interrupted; to go on: the same with --out {} --resume",
                path.display()
            );
        }
        Ok(report)
    }

    /// An empty journal is of no use.
    fn sweep_up(&self) {
        if self.kept == 0
            && let Some(path) = self.path()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Journal {
    /// A fault ended the run.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.sweep_up();
        let (Some(path), Some(result)) = (self.path(), &self.result) else {
            return;
        };
        if self.kept > 0 {
            eprintln!(
                "{} step(s) kept in {}; to go on: the same with --out {} --resume",
                self.kept,
                path.display(),
                result.display()
            );
        }
    }
}

/// Refuses the place of a file that is there, and a folder that is not.
pub fn fresh_place(path: &Path, force: bool) -> Result<()> {
    let refuse = |why: &str| Err(Fault::Usage(format!("{}: {why}", path.display())));
    let folder = path.parent().filter(|d| !d.as_os_str().is_empty());
    if folder.is_some_and(|d| !d.is_dir()) {
        return refuse("there is no such folder");
    }
    // A pipe or a terminal takes any number of results.
    let there = path.symlink_metadata().is_ok_and(|m| m.is_file());
    match there && !force {
        true => refuse("is there already; --force replaces it, --resume goes on with a run"),
        false => Ok(()),
    }
}

/// A name of this run's own in the folder of default names, which is made. The journal's file holds the name: two runs that
/// begin in one second, or in two processes, get two.
fn unused(wanted: PathBuf) -> Result<PathBuf> {
    if let Some(folder) = wanted.parent() {
        std::fs::create_dir_all(folder).map_err(local(folder.display()))?;
    }
    let stem = wanted
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for n in 1..=10_000 {
        let name = match n {
            1 => wanted.clone(),
            n => wanted.with_file_name(format!("{stem}-{n}.json")),
        };
        let journal = unfinished(&name);
        match std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&journal)
        {
            Ok(_) if name.exists() => {
                let _ = std::fs::remove_file(&journal);
            }
            Ok(_) => return Ok(name),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(local(journal.display())(e)),
        }
    }
    Err(Fault::Local(format!(
        "{}: too many of that name",
        wanted.display()
    )))
}

/// Steps, or what stands for them.
fn measured(report: &Report) -> usize {
    let asked = report.choices.iter().map(|c| c.schemas as usize);
    report.steps.len() + report.turns.len() + report.comparisons.len() + asked.sum::<usize>()
}

pub fn unfinished(result: &Path) -> PathBuf {
    let mut path = result.as_os_str().to_owned();
    path.push(".unfinished");
    PathBuf::from(path)
}

/// The steps of a run that died, or that was interrupted and has written its result.
fn take_over(draft: &mut Draft, out: &Path) -> Result<()> {
    let journal = unfinished(out);
    let from = if journal.is_file() {
        journal.as_path()
    } else {
        out
    };
    if !from.is_file() {
        return Err(Fault::Usage(format!(
            "{}: nothing to resume",
            out.display()
        )));
    }
    let before = Report::read(from)?;
    let now = &draft.report;
    let refuse = |why: String| Err(Fault::Usage(format!("{}: {why}", from.display())));
    let same = (&before.kind, &before.name, &before.settings);
    if same != (&now.kind, &now.name, &now.settings) {
        return refuse("was run with other settings; resume with the same ones".into());
    }
    // Where there is one target it is known by now.
    if let (Some(then), Some(now)) = (&before.target, &now.target)
        && then.label() != now.label()
    {
        return refuse(format!(
            "was measured on {}, this is {}",
            then.label(),
            now.label()
        ));
    }
    draft.take_over(before);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CheckedFigure, MeasuredStep};

    fn to(out: &Path) -> Output {
        Output {
            out: Some(out.to_path_buf()),
            quiet: true,
            ..Output::default()
        }
    }

    fn draft() -> Draft {
        Draft::new("sweep", "C.S5")
    }

    #[test]
    fn a_run_that_died_leaves_its_steps_and_one_that_never_began_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("result.json");
        drop(Journal::open(&mut draft(), &to(&out)).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

        let mut d = draft();
        let mut journal = Journal::open(&mut d, &to(&out)).unwrap();
        d.push("first", MeasuredStep::default());
        journal.save(&d);
        // The step that Ctrl-C cut short is done again.
        d.push("second", MeasuredStep::default());
        d.report.steps[1].interrupted = true;
        journal.save(&d);
        drop(journal);
        assert!(unfinished(&out).is_file() && !out.exists());

        let mut again = draft();
        let resume = Output {
            resume: true,
            ..to(&out)
        };
        let journal = Journal::open(&mut again, &resume).unwrap();
        assert!(again.has("first") && !again.has("second"));
        again
            .report
            .checks
            .push(CheckedFigure::at_most("x", 1.0, "", 2.0));
        let report = journal.finish(again, Page::Beside).unwrap();
        assert!(report.passed() && !unfinished(&out).exists());
        assert!(out.with_extension("html").is_file());
        let mut other = Draft::new("sweep", "C.S4");
        let fault = Journal::open(&mut other, &resume).err().unwrap();
        assert!(fault.to_string().contains("other settings"), "{fault}");
    }

    #[test]
    fn a_bad_place_is_told_of_before_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for bad in [
            dir.path().join("none/result.json"),
            dir.path().to_path_buf(),
            dir.path().join("page.html"),
            file.join("below.json"),
        ] {
            assert!(Journal::open(&mut draft(), &to(&bad)).is_err(), "{bad:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let nowhere = Output {
            resume: true,
            ..to(&dir.path().join("none.json"))
        };
        assert!(Journal::open(&mut draft(), &nowhere).is_err());
    }

    #[test]
    fn a_result_that_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("result.json");
        for place in [out.clone(), unfinished(&out)] {
            std::fs::write(&place, "mine").unwrap();
            let fault = Journal::open(&mut draft(), &to(&out)).err().unwrap();
            assert!(fault.to_string().contains("--force"), "{fault}");
            assert_eq!(std::fs::read_to_string(&place).unwrap(), "mine");
            let force = Output {
                force: true,
                ..to(&out)
            };
            drop(Journal::open(&mut draft(), &force).unwrap());
            let _ = std::fs::remove_file(&place);
        }
    }

    #[test]
    fn default_names_do_not_collide() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("lab-results/run-x.json");
        let mut names: Vec<PathBuf> = (0..3).map(|_| unused(wanted.clone()).unwrap()).collect();
        std::fs::write(dir.path().join("lab-results/run-x-4.json"), "").unwrap();
        names.push(unused(wanted).unwrap());
        let names = names
            .iter()
            .map(|n| n.file_name().unwrap().to_str().unwrap());
        let names: Vec<&str> = names.collect();
        assert_eq!(
            names,
            ["run-x.json", "run-x-2.json", "run-x-3.json", "run-x-5.json"]
        );
    }
}
