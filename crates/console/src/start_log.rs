//! What the log said while the server started: its own lines are gone after a while.
//!
//! Invariant: at most [`MOST`] lines, of at most [`MOST_BYTES`] each.

use std::sync::OnceLock;

const MOST: usize = 200;
/// A longer line is cut off.
const MOST_BYTES: usize = 2048;

#[derive(Default)]
pub struct StartLog(OnceLock<Vec<String>>);

impl StartLog {
    /// The start is over: what the log has now is kept.
    pub fn keep(&self) {
        self.0.get_or_init(first);
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.get().cloned().unwrap_or_else(first)
    }
}

fn first() -> Vec<String> {
    let (lines, _) = service::logging::lines_after(0);
    lines.into_iter().take(MOST).map(cut).collect()
}

fn cut(mut line: String) -> String {
    let end = (0..=MOST_BYTES.min(line.len())).rev();
    let end = end.into_iter().find(|n| line.is_char_boundary(*n));
    line.truncate(end.unwrap_or(0));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(cut("short".into()), "short");
        let long = cut(format!("x{}", "é".repeat(MOST_BYTES)));
        assert_eq!(long.len(), MOST_BYTES - 1);
    }
}
