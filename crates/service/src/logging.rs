//! The server's log: one JSON line an event in the shape of MongoDB's log format, to a file or a
//! standard stream, and the last lines in memory for `getLog`.
//!
//! Any crate writes with `tracing`'s macros. The target is the component, and three fields are
//! taken out of `attr`: `id` (MongoDB's log id, where the event is one of its), `ctx` (otherwise
//! the thread's name) and `startup_warning`. A field `name.json` is JSON text, and goes into `attr`
//! as the object that it is; the fields of `attr.json` go there themselves.
//!
//! ```text
//! tracing::info!(target: "NETWORK", id = 22943, remote = %peer, "Connection accepted");
//! {"t":{"$date":"…"},"s":"I","c":"NETWORK","id":22943,"ctx":"listener","msg":"Connection accepted","attr":{"remote":"…"}}
//! ```
//! Invariant: a line is written whole, and logging never fails or panics; a line that cannot be
//! written is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

/// Lines kept in memory, and the longest that one may be there (`getLog`'s figures).
const KEPT_LINES: usize = 1024;
const KEPT_LINE_BYTES: usize = 16 * 1024;

/// Where lines go besides memory.
pub enum Sink {
    None,
    Stdout,
    Stderr,
    File(PathBuf),
}

enum Out {
    None,
    Stdout,
    Stderr,
    File(PathBuf, File),
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<String>,
    total: u64,
}

impl Ring {
    fn push(&mut self, line: &str) {
        if self.lines.len() == KEPT_LINES {
            self.lines.pop_front();
        }
        let end = (0..=KEPT_LINE_BYTES.min(line.len()))
            .rev()
            .find(|&i| line.is_char_boundary(i))
            .unwrap_or(0);
        self.lines.push_back(line[..end].to_string());
        self.total += 1;
    }
}

struct Log {
    out: Mutex<Out>,
    global: Mutex<Ring>,
    warnings: Mutex<Ring>,
    /// Highest level that is logged at all, and that reaches the sink: 0 errors, 1 warnings, 2
    /// information, 3…7 debugging.
    level: AtomicU8,
    sink_level: AtomicU8,
    reopen: AtomicBool,
}

static LOG: LazyLock<Log> = LazyLock::new(|| Log {
    out: Mutex::new(Out::None),
    global: Mutex::default(),
    warnings: Mutex::default(),
    level: AtomicU8::new(2),
    sink_level: AtomicU8::new(2),
    reopen: AtomicBool::new(false),
});

/// Starts logging. A log file that is there already is appended to, or moved aside. `verbosity` 0
/// is information; `sink_warnings_only` keeps information out of the sink, not of memory. A second
/// call changes sink and level.
pub fn init(sink: Sink, append: bool, verbosity: u8, sink_warnings_only: bool) -> io::Result<()> {
    let out = match sink {
        Sink::None => Out::None,
        Sink::Stdout => Out::Stdout,
        Sink::Stderr => Out::Stderr,
        Sink::File(path) => {
            if !append && path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
                move_aside(&path)?;
            }
            let file = open(&path)?;
            Out::File(path, file)
        }
    };
    *LOG.out.lock() = out;
    set_verbosity(verbosity);
    LOG.sink_level
        .store(if sink_warnings_only { 1 } else { u8::MAX }, Relaxed);
    // A second subscriber is refused: the first is this same log.
    let _ = tracing::subscriber::set_global_default(JsonLines);
    Ok(())
}

/// `logComponentVerbosity`'s default: 0 to 5.
pub fn set_verbosity(verbosity: u8) {
    LOG.level.store(2 + verbosity.min(5), Relaxed);
}

pub fn verbosity() -> u8 {
    LOG.level.load(Relaxed).saturating_sub(2)
}

/// Whether a rotation only opens the log file anew (`--logRotate reopen`).
pub fn set_reopen(reopen: bool) {
    LOG.reopen.store(reopen, Relaxed);
}

/// Begins a new log file (`logRotate`, SIGUSR1). The old one is moved aside under a name with the time
/// in it, unless another program does that, or has done it already.
pub fn rotate() -> io::Result<()> {
    let mut out = LOG.out.lock();
    if let Out::File(path, file) = &mut *out {
        // A device (`/dev/null`, a terminal) is not moved: it would not come back.
        if !LOG.reopen.load(Relaxed) && !path.metadata().is_ok_and(|m| !m.is_file()) {
            match move_aside(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                moved => moved?,
            }
        }
        *file = open(path)?;
    }
    Ok(())
}

fn move_aside(path: &Path) -> io::Result<()> {
    let stamp = timestamp(SystemTime::now()).replace(':', "-");
    let mut name = path.to_path_buf().into_os_string();
    name.push(format!(".{}", stamp.get(..19).unwrap_or(&stamp)));
    // A second one within a second does not take the place of the first.
    let mut aside = PathBuf::from(&name);
    for n in 1u32.. {
        if !aside.exists() {
            break;
        }
        let mut numbered = name.clone();
        numbered.push(format!(".{n}"));
        aside = PathBuf::from(numbered);
    }
    std::fs::rename(path, aside)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The last lines of the log `name` (`global` or `startupWarnings`) and how many there were in all.
pub fn lines(name: &str) -> Option<(Vec<String>, u64)> {
    let ring = match name {
        "global" => &LOG.global,
        "startupWarnings" => &LOG.warnings,
        _ => return None,
    };
    let ring = ring.lock();
    Some((ring.lines.iter().cloned().collect(), ring.total))
}

/// The lines of the global log that are newer than the first `seen`, as far as they are kept, and how many there were in all.
pub fn lines_after(seen: u64) -> (Vec<String>, u64) {
    let ring = LOG.global.lock();
    let newer = usize::try_from(ring.total.saturating_sub(seen)).unwrap_or(usize::MAX);
    let older = ring.lines.len().saturating_sub(newer);
    (ring.lines.iter().skip(older).cloned().collect(), ring.total)
}

/// Forgets the lines of `name` (`clearLog`).
pub fn clear(name: &str) -> bool {
    match name {
        "global" => *LOG.global.lock() = Ring::default(),
        "startupWarnings" => *LOG.warnings.lock() = Ring::default(),
        _ => return false,
    }
    true
}

/// `2026-11-21T05:30:22.123+00:00`
pub fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days since 1970-01-01 to a Gregorian date; a year here begins in March, so that the leap day
    // is its last.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}+00:00",
        since.subsec_millis()
    )
}

struct JsonLines;

fn rank(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 2,
        Level::DEBUG => 3,
        Level::TRACE => 4,
    }
}

impl tracing::Subscriber for JsonLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && rank(metadata.level()) <= LOG.level.load(Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = rank(event.metadata().level());
        let severity = ["E", "W", "I", "D1", "D2"]
            .get(usize::from(level))
            .copied()
            .unwrap_or("D2");
        let ctx = fields
            .ctx
            .unwrap_or_else(|| std::thread::current().name().unwrap_or("-").to_string());
        let mut line = json!({
            "t": { "$date": timestamp(SystemTime::now()) },
            "s": severity,
            "c": event.metadata().target(),
            "id": fields.id,
            "ctx": ctx,
            "msg": fields.message,
        });
        if let Some(object) = line.as_object_mut() {
            if !fields.attr.is_empty() {
                object.insert("attr".into(), Value::Object(fields.attr));
            }
            if fields.startup_warning {
                object.insert("tags".into(), json!(["startupWarnings"]));
            }
        }
        let mut line = line.to_string();
        LOG.global.lock().push(&line);
        if fields.startup_warning {
            LOG.warnings.lock().push(&line);
        }
        if level > LOG.sink_level.load(Relaxed) {
            return;
        }
        line.push('\n');
        let _ = match &mut *LOG.out.lock() {
            Out::None => Ok(()),
            Out::Stdout => io::stdout().lock().write_all(line.as_bytes()),
            Out::Stderr => io::stderr().lock().write_all(line.as_bytes()),
            Out::File(_, file) => file.write_all(line.as_bytes()),
        };
    }

    // Spans are not used.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields {
    id: i64,
    ctx: Option<String>,
    startup_warning: bool,
    message: String,
    attr: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => self.message = value.as_str().unwrap_or_default().to_string(),
            "id" => self.id = value.as_i64().unwrap_or(0),
            "ctx" => self.ctx = value.as_str().map(str::to_string),
            "startup_warning" => self.startup_warning = value.as_bool().unwrap_or(false),
            name => {
                let parsed = name
                    .strip_suffix(".json")
                    .and_then(|short| Some((short, serde_json::from_str(value.as_str()?).ok()?)));
                let (name, value) = match parsed {
                    Some(("attr", Value::Object(fields))) => return self.attr.extend(fields),
                    Some(other) => other,
                    None => (name, value),
                };
                self.attr.insert(name.to_string(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::String(format!("{value:?}")));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timestamps() {
        let at = |s: u64| timestamp(UNIX_EPOCH + Duration::from_millis(s));
        assert_eq!(at(0), "1970-01-01T00:00:00.000+00:00");
        assert_eq!(at(951_782_400_001), "2000-02-29T00:00:00.001+00:00");
        assert_eq!(at(1_704_067_199_999), "2023-12-31T23:59:59.999+00:00");
        assert_eq!(at(4_107_542_400_000), "2100-03-01T00:00:00.000+00:00");
    }

    #[test]
    fn lines_are_json_and_kept() {
        let dir = std::env::temp_dir().join(format!("pando-log-{}", std::process::id()));
        init(Sink::File(dir.clone()), false, 0, false).unwrap();
        tracing::info!(target: "NETWORK", id = 22943, ctx = "conn1", remote = %"1.2.3.4:5", n = 7, o.json = "{\"a\":[1]}", attr.json = "{\"m\":8}", "Connection \"accepted\"");
        tracing::warn!(target: "CONTROL", startup_warning = true, "Access control is not enabled");
        tracing::debug!(target: "CONTROL", "not at this verbosity");
        let written = std::fs::read_to_string(&dir).unwrap();
        std::fs::remove_file(&dir).unwrap();
        let (kept, total) = lines("global").unwrap();
        assert_eq!((kept.len(), total), (2, 2));
        assert_eq!(written.lines().collect::<Vec<_>>(), kept);
        assert_eq!(lines_after(0), (kept.clone(), 2));
        assert_eq!(lines_after(1), (kept[1..].to_vec(), 2));
        assert_eq!(lines_after(2), (Vec::new(), 2));
        let first: Value = serde_json::from_str(&kept[0]).unwrap();
        assert_eq!(first["c"], "NETWORK");
        assert_eq!(first["s"], "I");
        assert_eq!(first["id"], 22943);
        assert_eq!(first["ctx"], "conn1");
        assert_eq!(first["msg"], "Connection \"accepted\"");
        assert_eq!(
            first["attr"],
            json!({ "remote": "1.2.3.4:5", "n": 7, "o": { "a": [1] }, "m": 8 })
        );
        assert_eq!(lines("startupWarnings").unwrap().0.len(), 1);
        assert!(lines("rs").is_none());

        // Only this test logs to a place.
        std::os::unix::fs::symlink("/dev/null", &dir).unwrap();
        init(Sink::File(dir.clone()), false, 0, false).unwrap();
        rotate().unwrap();
        assert!(dir.is_symlink(), "what is no file is not moved");
        std::fs::remove_file(&dir).unwrap();
    }
}
