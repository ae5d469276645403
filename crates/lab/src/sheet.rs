//! Tables as data, which the terminal and the page show alike.
//!
//! Invariant: on the terminal no line is wider than it. What does not fit is left out by rank, and stands on the page.

use crate::lang::tr;
use std::fmt::Write as _;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// What a row is about.
    Label,
    Figure,
    /// A figure that a narrow terminal leaves out, the highest rank first.
    Less(u8),
    /// Words, which may take several lines.
    Words,
}

pub struct Column {
    pub head: String,
    pub kind: ColumnKind,
}

/// A column with a head of our own.
pub fn column(head: &'static str, kind: ColumnKind) -> Column {
    named(tr(head), kind)
}

/// A column whose head comes from a result.
pub fn named(head: &str, kind: ColumnKind) -> Column {
    Column {
        head: head.to_string(),
        kind,
    }
}

pub struct Sheet {
    pub title: String,
    /// Whether the page shows it unfolded.
    pub open: bool,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<String>>,
}

/// Columns of the terminal: its own, or what `COLUMNS` says, or 80.
pub fn width() -> usize {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is a valid place for the answer.
    let known = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    let own = Some(usize::from(size.ws_col)).filter(|n| known && *n > 0);
    let told = || std::env::var("COLUMNS").ok()?.parse().ok();
    own.or_else(told).unwrap_or(80).max(40)
}

/// Cells of the terminal that a text takes: Chinese characters take two.
pub fn cells(text: &str) -> usize {
    let of = |c: char| match u32::from(c) {
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe30..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff => 2,
        _ => 1,
    };
    text.chars().map(of).sum()
}

/// A text filled up to a width, from the left or from the right.
pub fn padded(text: &str, width: usize, right: bool) -> String {
    let fill = " ".repeat(width.saturating_sub(cells(text)));
    match right {
        true => fill + text,
        false => text.to_string() + &fill,
    }
}

/// As much of a text as has room.
pub fn clipped(text: &str, width: usize) -> String {
    if cells(text) <= width {
        return text.to_string();
    }
    let mut out = String::new();
    for c in text.chars() {
        if cells(&out) + cells(c.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        out.push(c);
    }
    out + "…"
}

/// A text in lines of at most so many cells, all but the first indented by two; what has no blanks is cut.
pub fn wrapped(text: &str, columns: usize) -> String {
    let room = columns.max(10);
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let size = cells(word);
        if used > 0 && used + 1 + size <= room {
            out.push(' ');
            used += 1;
        } else if used > 0 && (size + 2 <= room || used + 1 >= room) {
            out.push_str("\n  ");
            used = 2;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        for c in word.chars() {
            let size = cells(c.encode_utf8(&mut [0; 4]));
            if used + size > room {
                out.push_str("\n  ");
                used = 2;
            }
            out.push(c);
            used += size;
        }
    }
    out
}

impl Sheet {
    /// Columns in which something stands.
    pub fn used(&self) -> Vec<usize> {
        let says = |i: &usize| {
            let mut rows = self.rows.iter();
            rows.any(|r| r.get(*i).is_some_and(|c| !c.is_empty()))
        };
        (0..self.columns.len()).filter(says).collect()
    }

    pub fn cell(&self, row: usize, column: usize) -> &str {
        let cell = self.rows.get(row).and_then(|r| r.get(column));
        cell.map_or("", String::as_str)
    }

    fn of(&self, used: &[usize], wanted: impl Fn(ColumnKind) -> bool) -> Vec<usize> {
        let is = |i: &&usize| wanted(self.columns[**i].kind);
        used.iter().filter(is).copied().collect()
    }

    /// The columns of words that say what a row is about, as one text.
    fn label(&self, row: usize, labels: &[usize]) -> String {
        let own = labels.iter().map(|i| self.cell(row, *i));
        own.filter(|c| !c.is_empty())
            .collect::<Vec<_>>()
            .join(" · ")
    }

    fn widths(&self, columns: &[usize]) -> Vec<usize> {
        let of = |i: &usize| {
            let rows = (0..self.rows.len()).map(|r| cells(self.cell(r, *i)));
            rows.max().unwrap_or(0).max(cells(&self.columns[*i].head))
        };
        columns.iter().map(of).collect()
    }

    /// Each cell in a line of its own, where not even the least figures fit beside each other.
    fn list(&self, columns: usize) -> String {
        let used = self.used();
        let labels = self.of(&used, |k| k == ColumnKind::Label);
        let mut lines = vec![wrapped(&self.title, columns)];
        for row in 0..self.rows.len() {
            lines.push(wrapped(&self.label(row, &labels), columns));
            for i in used.iter().filter(|i| !labels.contains(i)) {
                let cell = self.cell(row, *i);
                if !cell.is_empty() {
                    let said = wrapped(&format!("{}: {cell}", self.columns[*i].head), columns - 4);
                    lines.push(format!("    {}", said.replace('\n', "\n    ")));
                }
            }
        }
        lines.retain(|l| !l.is_empty());
        lines.join("\n")
    }

    /// Which of the figures goes first where there is no room; none where all must be there.
    fn least(&self, figures: &[usize]) -> Option<usize> {
        let rank = |i: &usize| match self.columns[*i].kind {
            ColumnKind::Less(n) => Some(n),
            _ => None,
        };
        let least = figures.iter().filter_map(rank).max()?;
        figures.iter().rposition(|i| rank(i) == Some(least))
    }

    /// What a row says in words, below its figures.
    fn write_words(&self, out: &mut String, row: usize, words: &[usize], columns: usize) {
        for i in words.iter().filter(|i| !self.cell(row, **i).is_empty()) {
            let mut said = self.cell(row, *i).to_string();
            if words.len() > 1 {
                said = format!("{}: {said}", self.columns[*i].head);
            }
            let said = wrapped(&said, columns - 4).replace('\n', "\n    ");
            let _ = writeln!(out, "    {said}");
        }
    }

    /// The table for a terminal.
    pub fn text(&self, columns: usize) -> String {
        let used = self.used();
        let labels = self.of(&used, |k| k == ColumnKind::Label);
        let words = self.of(&used, |k| k == ColumnKind::Words);
        let mut figures = self.of(&used, |k| {
            matches!(k, ColumnKind::Figure | ColumnKind::Less(_))
        });
        let all: Vec<String> = (0..self.rows.len())
            .map(|r| self.label(r, &labels))
            .collect();
        let longest = all.iter().map(|l| cells(l)).max().unwrap_or(0);
        let needs = |f: &[usize]| self.widths(f).iter().map(|w| w + 2).sum::<usize>();
        let least = self.of(&figures, |k| k == ColumnKind::Figure);
        // Beside its figures where all that must be there fits, else above them.
        let beside = longest + needs(&least) <= columns;
        let room = if beside { columns - longest } else { columns };
        while needs(&figures) > room {
            let Some(least) = self.least(&figures) else {
                return self.list(columns);
            };
            figures.remove(least);
        }
        let widths = self.widths(&figures);
        let line = |cell: &dyn Fn(usize) -> String| {
            let all = figures.iter().zip(&widths);
            let all = all.map(|(i, w)| format!("  {}", padded(&cell(*i), *w, true)));
            all.collect::<String>()
        };
        let indent = if beside { longest } else { 0 };
        let mut out = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(out, "{}", self.title);
        }
        let head = line(&|i| self.columns[i].head.clone());
        let head = " ".repeat(indent) + &head;
        if !figures.is_empty() {
            let _ = writeln!(out, "{head}\n{}", "─".repeat(cells(&head).min(columns)));
        }
        let mut last = None;
        for (r, label) in all.iter().enumerate() {
            if beside {
                out.push_str(&padded(label, indent, false));
            } else if last != Some(label) {
                let _ = writeln!(out, "{}", wrapped(label, columns));
            }
            last = Some(label);
            let figures = line(&|i| self.cell(r, i).to_string());
            let _ = writeln!(out, "{}", figures.trim_end());
            self.write_words(&mut out, r, &words, columns);
        }
        // A line without figures is none.
        out.lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(label: &str) -> Sheet {
        let figures = ["conns", "ops/s", "p50", "p99", "p99.9", "max"];
        let mut columns = vec![
            named("step", ColumnKind::Label),
            named("target", ColumnKind::Label),
        ];
        for (n, name) in (0..).zip(figures) {
            let kind = if n < 3 {
                ColumnKind::Figure
            } else {
                ColumnKind::Less(n)
            };
            columns.push(named(name, kind));
        }
        columns.push(named("note", ColumnKind::Words));
        let mut row = vec![label.to_string(), "PandoDB 0.1.0".into()];
        row.extend(figures.map(|_| "1,234,567 ±3.0%".to_string()));
        row.push("words ".repeat(30));
        Sheet {
            title: "Steps".into(),
            open: true,
            columns,
            rows: vec![row.clone(), row],
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_the_least_is_left_out_first() {
        for label in [
            "C.S5",
            "a step with a long name, in many words, 读写混合 and more of it",
        ] {
            for columns in [40, 60, 80, 200] {
                let text = sheet(label).text(columns);
                assert!(
                    text.lines().all(|l| cells(l) <= columns),
                    "{columns}:\n{text}"
                );
                assert!(text.contains("p50"), "{text}");
            }
        }
        let narrow = sheet("C.S5").text(80);
        assert!(!narrow.contains("max") && sheet("C.S5").text(200).contains("max"));
    }

    #[test]
    fn texts_are_wrapped_clipped_and_padded_by_what_they_take() {
        let long = "x".repeat(200);
        for text in [
            "a b c",
            &format!("some {long} words {long}"),
            "",
            "每秒操作数 越高越好 越高越好",
        ] {
            let lines = wrapped(text, 40);
            assert!(lines.lines().all(|l| cells(l) <= 40), "{lines}");
            let bare = |t: &str| t.replace([' ', '\n'], "");
            assert_eq!(bare(&lines), bare(text));
        }
        assert_eq!((cells("每秒"), cells(&clipped("每秒操作", 5))), (4, 5));
        assert_eq!(padded("每", 4, true), "  每");
    }
}
