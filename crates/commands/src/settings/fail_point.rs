//! Fail points: commands that are made to fail, for tests of clients. `failCommand`,
//! `maxTimeAlwaysTimeOut` and `stopReplProducer` are those that drivers use.

use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// When a fail point is hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    Always,
    /// That many more times.
    Times(u64),
    /// Always, after that many times were let through.
    Skip(u64),
    /// With this probability.
    Chance(f64),
}

impl When {
    /// Whether this time is one of them. Counts.
    fn is_now(&mut self) -> bool {
        match self {
            When::Always | When::Skip(0) => true,
            When::Times(0) => false,
            When::Times(n) => {
                *n -= 1;
                true
            }
            When::Skip(n) => {
                *n -= 1;
                false
            }
            When::Chance(p) => rand::random::<f64>() < *p,
        }
    }
}

#[derive(Debug)]
struct Point {
    when: When,
    data: DocBuf,
    entered: u64,
}

/// All fail points that are on.
#[derive(Default)]
pub struct FailPoints {
    any: AtomicBool,
    points: Mutex<HashMap<String, Point>>,
}

/// What `failCommand` does to one command.
#[derive(Debug, Default, PartialEq)]
pub struct CommandFailure {
    pub close_connection: bool,
    pub block_millis: u64,
    pub error_code: Option<i32>,
    /// Labels that stand in for those the server would give.
    pub labels: Option<Vec<String>>,
    /// Appended to the reply of the command, which runs.
    pub write_concern_error: Option<DocBuf>,
}

impl CommandFailure {
    /// The fields that it appends to the reply of a command that runs elsewhere.
    pub fn fields(&self) -> DocBuf {
        let mut w = Writer::new();
        if let Some(concern) = &self.write_concern_error {
            w.doc("writeConcernError", concern.as_doc());
        }
        if let Some(labels) = &self.labels {
            w.open_array("errorLabels");
            for label in labels {
                w.push_value(label.as_str());
            }
            w.close();
        }
        w.finish()
    }
}

/// What `onPrimaryTransactionalWrite` does to a retryable write.
#[derive(Debug, PartialEq)]
pub struct LostWrite {
    /// The client gets no answer.
    pub close_connection: bool,
    /// It is not made.
    pub code: Option<i32>,
}

impl Point {
    /// Whether its time has come. Counts.
    fn is_due(&mut self) -> bool {
        let due = self.when.is_now();
        self.entered += u64::from(due);
        due
    }

    /// What it does to this command, if it is meant. Counts.
    fn hit(
        &mut self,
        command: &str,
        aliases: &[&str],
        app_name: &str,
        ns: Option<&str>,
    ) -> Option<CommandFailure> {
        let data = self.data.as_doc();
        let commands = data.get("failCommands")?.as_array()?;
        let mut named = commands.values().filter_map(|v| v.as_str());
        if !named.any(|n| n == command || aliases.contains(&n)) {
            return None;
        }
        if data
            .get("appName")
            .and_then(|v| v.as_str())
            .is_some_and(|a| a != app_name)
        {
            return None;
        }
        if let (Some(want), Some(ns)) = (data.get("namespace").and_then(|v| v.as_str()), ns)
            && want != ns
        {
            return None;
        }
        if !self.when.is_now() {
            return None;
        }
        self.entered += 1;
        let flag = |name: &str| data.get(name).is_some_and(|v| v.truthy());
        Some(CommandFailure {
            close_connection: flag("closeConnection"),
            block_millis: if flag("blockConnection") {
                data.get("blockTimeMS")
                    .and_then(|v| v.to_i64_truncated())
                    .unwrap_or(0)
                    .unsigned_abs()
            } else {
                0
            },
            error_code: data
                .get("errorCode")
                .and_then(|v| v.to_i64_exact())
                .and_then(|n| i32::try_from(n).ok()),
            labels: data.get("errorLabels").and_then(|v| v.as_array()).map(|a| {
                a.values()
                    .filter_map(|v| v.as_str())
                    .map(str::to_string)
                    .collect()
            }),
            write_concern_error: data
                .get("writeConcernError")
                .and_then(|v| v.as_doc())
                .map(|d| d.to_buf()),
        })
    }
}

impl FailPoints {
    /// Whether any is on: what every command asks.
    pub fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Turns a point on or off as `configureFailPoint` says; how often it was entered before.
    pub fn configure(&self, name: &str, when: Option<When>, data: DocBuf) -> u64 {
        let mut points = self.points.lock();
        let entered = points.remove(name).map_or(0, |p| p.entered);
        if let Some(when) = when {
            points.insert(
                name.to_string(),
                Point {
                    when,
                    data,
                    entered: 0,
                },
            );
        }
        self.any.store(!points.is_empty(), Relaxed);
        entered
    }

    /// When an operation that began at `start` and may take `allowed` must stop: at once under
    /// `maxTimeAlwaysTimeOut`, never under `maxTimeNeverTimeOut`.
    pub fn deadline(&self, start: Instant, allowed: Duration) -> Option<Instant> {
        if self.any() {
            let mut points = self.points.lock();
            let mut due = |name: &str| points.get_mut(name).is_some_and(Point::is_due);
            if due("maxTimeAlwaysTimeOut") {
                return Some(start);
            }
            if due("maxTimeNeverTimeOut") {
                return None;
            }
        }
        Some(start + allowed)
    }

    /// `onPrimaryTransactionalWrite`, asked before a retryable write with `made: false` and after
    /// it with `true`: the first counts only where the write is to fail, the second where it is
    /// not; each statement counts.
    pub fn retryable_write(&self, made: bool, statements: usize) -> Option<LostWrite> {
        let mut points = self.points.lock();
        let point = points.get_mut("onPrimaryTransactionalWrite")?;
        let data = point.data.as_doc();
        let code = data
            .get("failBeforeCommitExceptionCode")
            .and_then(|v| v.to_i64_exact())
            .and_then(|n| i32::try_from(n).ok());
        let close_connection = data.get("closeConnection").is_none_or(|v| v.truthy());
        if code.is_some() == made || !(0..statements).any(|_| point.is_due()) {
            return None;
        }
        Some(LostWrite {
            close_connection,
            code,
        })
    }

    /// `failGetMoreAfterCursorCheckout`: the code that a getMore fails with. Counts.
    pub fn get_more(&self) -> Option<i32> {
        if !self.any() {
            return None;
        }
        let mut points = self.points.lock();
        let point = points.get_mut("failGetMoreAfterCursorCheckout")?;
        let code = point.data.as_doc().get("errorCode")?.to_i64_exact()?;
        point.is_due().then(|| i32::try_from(code).ok()).flatten()
    }

    /// `stopReplProducer`: whether a member is to take no entries of others. Counts.
    pub fn stops_entries(&self) -> bool {
        if !self.any() {
            return false;
        }
        let mut points = self.points.lock();
        let point = points.get_mut("stopReplProducer");
        point.is_some_and(Point::is_due)
    }

    /// What happens to this command of this application, if anything. Counts.
    pub fn fail_command(
        &self,
        command: &str,
        aliases: &[&str],
        app_name: &str,
        ns: Option<&str>,
    ) -> Option<CommandFailure> {
        let mut points = self.points.lock();
        let point = points.get_mut("failCommand")?;
        let failure = point.hit(command, aliases, app_name, ns)?;
        if point.when == When::Times(0) {
            points.remove("failCommand");
            self.any.store(!points.is_empty(), Relaxed);
        }
        Some(failure)
    }
}

/// Reads `mode`: `None` is off.
pub fn mode(v: bson::Val<'_>) -> Result<Option<When>> {
    match v.as_str() {
        Some("off") => return Ok(None),
        Some("alwaysOn") => return Ok(Some(When::Always)),
        Some(other) => bail!(BadValue, "unknown mode: {other}"),
        None => {}
    }
    let Some(d) = v.as_doc() else {
        bail!(TypeMismatch, "'mode' must be a string or JSON object")
    };
    let count = |e: Doc<'_>, name: &str| -> Result<Option<u64>> {
        match e.get(name) {
            None => Ok(None),
            Some(v) => match v.to_i64_truncated() {
                Some(n) if n >= 0 => Ok(Some(n.unsigned_abs())),
                Some(_) => bail!(BadValue, "'{name}' option to 'mode' must not be negative"),
                None => bail!(TypeMismatch, "'{name}' option to 'mode' must be a number"),
            },
        }
    };
    if let Some(n) = count(d, "times")? {
        return Ok(Some(When::Times(n)));
    }
    if let Some(n) = count(d, "skip")? {
        return Ok(Some(When::Skip(n)));
    }
    if let Some(p) = d.get("activationProbability").and_then(|v| v.to_f64()) {
        if !(0.0..=1.0).contains(&p) {
            bail!(
                BadValue,
                "activationProbability must be between 0.0 and 1.0; found {p}"
            );
        }
        return Ok(Some(When::Chance(p)));
    }
    bail!(
        BadValue,
        "'mode' must be one of 'off', 'alwaysOn', 'times', 'skip', and 'activationProbability'"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    #[test]
    fn fails_so_many_times() {
        let f = FailPoints::default();
        let data = doc! { "failCommands": array!["insert", "find"], "errorCode": 91, "appName": "app", "blockConnection": true, "blockTimeMS": 7 };
        f.configure(
            "failCommand",
            mode(doc! { "times": 2 }.as_doc().as_val()).unwrap(),
            data,
        );
        assert_eq!(f.fail_command("insert", &[], "other", None), None);
        assert_eq!(f.fail_command("update", &[], "app", None), None);
        let hit = f.fail_command("insert", &[], "app", None).unwrap();
        assert_eq!(
            (hit.error_code, hit.block_millis, hit.close_connection),
            (Some(91), 7, false)
        );
        assert!(f.any());
        assert!(f.fail_command("find", &[], "app", None).is_some());
        assert!(!f.any());
        assert_eq!(f.fail_command("insert", &[], "app", None), None);
    }

    #[test]
    fn modes() {
        assert_eq!(
            mode(doc! { "skip": 1 }.as_doc().as_val()).unwrap(),
            Some(When::Skip(1))
        );
        assert_eq!(mode(bson::Value::from("off").as_val()).unwrap(), None);
        assert_eq!(
            mode(bson::Value::from("on").as_val())
                .unwrap_err()
                .into_error()
                .code
                .0,
            2
        );
        assert_eq!(
            mode(bson::Value::from(1).as_val())
                .unwrap_err()
                .into_error()
                .code
                .0,
            14
        );
        assert_eq!(
            mode(doc! { "times": -1 }.as_doc().as_val())
                .unwrap_err()
                .into_error()
                .code
                .0,
            2
        );
    }
}
