//! The progress of a tool: a bar on a terminal, nothing otherwise.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Read};
use std::time::Duration;

/// A bar on standard error, gone when it is dropped.
pub struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// Of bytes, where their number is known.
    pub fn of_bytes(what: &str, bytes: u64) -> ProgressLine {
        let form = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        ProgressLine::with(what, bytes, form)
    }

    /// Of things that are counted.
    pub fn of_steps(what: &str, steps: u64) -> ProgressLine {
        ProgressLine::with(what, steps, "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    /// Progress without a known length.
    pub fn of_time(what: &str) -> ProgressLine {
        ProgressLine::with(what, 0, "{spinner} {msg} {elapsed}")
    }

    fn with(what: &str, length: u64, form: &str) -> ProgressLine {
        if !std::io::stderr().is_terminal() {
            return ProgressLine(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        bar.set_message(what.to_string());
        bar.enable_steady_tick(Duration::from_millis(200));
        ProgressLine(bar)
    }

    pub fn add(&self, done: u64) {
        self.0.inc(done);
    }

    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        !self.0.is_hidden()
    }

    pub fn say(&self, what: &str) {
        self.0.set_message(what.to_string());
    }

    /// Counts the bytes read.
    pub fn counting<'p, R: Read>(&'p self, from: R) -> Counting<'p, R> {
        Counting {
            from,
            progress: self,
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub struct Counting<'p, R> {
    from: R,
    progress: &'p ProgressLine,
}

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = self.from.read(to)?;
        self.progress.add(n as u64);
        Ok(n)
    }
}
