//! A long run's steps as they are done, beside the result to come: what died is gone on with at its next step.
//!
//! Invariant: the journal (`<result>.unfinished`) is a whole report after each step; it goes when the result is written.

use crate::fault::{Fault, Result};
use crate::report::{Draft, Report};
use std::path::{Path, PathBuf};

pub struct Journal {
    path: Option<PathBuf>,
}

impl Journal {
    /// With `resume`, the steps of the unfinished run come into the draft.
    pub fn open(draft: &mut Draft, out: Option<&Path>, resume: bool) -> Result<Journal> {
        let Some(out) = out.filter(|p| *p != Path::new("-")) else {
            if resume {
                return Err(Fault::Usage(
                    "--resume needs the --out of the run that died".into(),
                ));
            }
            return Ok(Journal { path: None });
        };
        let mut path = out.as_os_str().to_owned();
        path.push(".unfinished");
        let path = PathBuf::from(path);
        if resume {
            // An interrupted run has written its result, one that died has left its journal.
            let from = if path.is_file() { path.as_path() } else { out };
            if !from.is_file() {
                return Err(Fault::Usage(format!(
                    "{}: nothing to resume",
                    out.display()
                )));
            }
            let before = Report::read(from)?;
            let same = before.kind == draft.report.kind
                && before.name == draft.report.name
                && before.settings == draft.report.settings;
            if !same {
                return Err(Fault::Usage(format!(
                    "{}: was run with other settings; resume with the same ones",
                    from.display()
                )));
            }
            draft.report.steps = before.steps;
            draft.note(format!(
                "Resumed with {} step(s) of {}.",
                draft.report.steps.len(),
                before.started
            ));
        }
        Ok(Journal { path: Some(path) })
    }

    /// Keeps what is measured so far.
    pub fn save(&self, draft: &Draft) -> Result<()> {
        match &self.path {
            Some(path) => draft.report.write(path),
            None => Ok(()),
        }
    }

    pub fn close(self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}
