//! What the settings of the whole cluster ask of a router: what it adds to the commands that it sends
//! on, and what it refuses.
//!
//! Invariant: while nothing is set, a command asks two flags and nothing else.

use crate::Commands;
use crate::LoggedIn;
use crate::settings::parameters;
use auth::{Action, Target};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Error, Fallible, err};
use front::{Args, FromClient, ParsedCommand, flag};
use std::time::Duration;

/// The settings of a query's shape.
pub struct ShapeSettings {
    pub hash: String,
    pub rejects: bool,
}

impl Commands {
    /// The command as shards are to have it: with the session as its user's own, and with the concerns
    /// that hold where it says none. `None`: it is sent on as it came.
    pub fn for_shards(
        &self,
        user: Option<&LoggedIn>,
        parsed: &ParsedCommand<'_>,
        body: Doc<'_>,
    ) -> Result<Option<DocBuf>, Error> {
        let own = self.with_own_session(user, body)?;
        if !self.rw_defaults.are_set() {
            return Ok(own);
        }
        let completed = self.with_concerns(parsed, own.as_ref().map_or(body, DocBuf::as_doc));
        Ok(completed.or(own))
    }

    fn with_concerns(&self, parsed: &ParsedCommand<'_>, body: Doc<'_>) -> Option<DocBuf> {
        let (read, write) = self.rw_defaults.given();
        let level = read.as_ref().and_then(|d| d.get("level"));
        let level = level.filter(|_| takes_read_concern(parsed));
        let write = write.filter(|_| takes_write_concern(parsed));
        if level.is_none() && write.is_none() {
            return None;
        }
        let mut w = Writer::with_capacity(body.len() + 128);
        for e in body {
            if e.name != "readConcern" || level.is_none() {
                w.val(e.name, e.val);
            }
        }
        if let Some(write) = &write {
            w.doc("writeConcern", write.as_doc());
        }
        if let Some(level) = level {
            w.open_doc("readConcern");
            let given = body.get("readConcern").and_then(Val::as_doc);
            w.extend(given.unwrap_or(Doc::EMPTY));
            w.val("level", level).close();
        }
        Some(w.finish())
    }

    /// Whether a worker has to check commands, because a rule is set for some of them.
    #[inline]
    pub fn has_rules(&self) -> bool {
        self.write_block.is_on() || !self.query_settings.is_empty()
    }

    /// Refuses a write to users' databases while these are blocked. True: they are, and this user may
    /// write nevertheless.
    pub fn passes_write_block(
        &self,
        user: Option<&LoggedIn>,
        command: FromClient<'_>,
        pipeline: Option<Val<'_>>,
    ) -> Result<bool, Error> {
        if !self.write_block.is_on() {
            return Ok(false);
        }
        let may = |user: &LoggedIn| {
            let bypass = Action::BypassWriteBlockingMode;
            user.privileges.allows(bypass, Target::Cluster)
        };
        if self.checks_access() && user.is_some_and(may) {
            return Ok(true);
        }
        let refused = (self.write_block).refuse(command.specification, command.db, pipeline);
        refused.map_err(|stop| stop.into_error())?;
        Ok(false)
    }

    /// The settings of a query's shape, for a command with its `$db`; `None` also for an invalid one,
    /// which shards report better.
    pub fn shape_setting(&self, command: Doc<'_>) -> Fallible<Option<ShapeSettings>> {
        if self.query_settings.is_empty() {
            return Ok(None);
        }
        let ask = bson::doc! {"_pandoQueryShape": command.to_buf(), "$db": "admin"};
        let told = self.run_own(self.own_user()?, ask.as_doc())?;
        let hash = told.get("queryShapeHash").and_then(Val::as_str);
        Ok(hash.map(|hash| ShapeSettings {
            hash: hash.to_string(),
            rejects: told.get("reject").is_some_and(Val::truthy),
        }))
    }

    /// Takes over what the configuration set has: `{_pandoSettings, at, settings}`.
    pub fn take_settings(&self, told: Doc<'_>) -> Fallible<()> {
        let reply = self.run_own(self.own_user()?, told)?;
        match reply.get("ok").and_then(Val::to_f64) {
            Some(ok) if ok > 0.0 => Ok(()),
            _ => Err(err!(
                InternalError,
                "settings were not taken: {}",
                reply.as_doc()
            )),
        }
    }

    /// How often the configuration set is asked for them.
    pub fn settings_interval(&self) -> Duration {
        let seconds = self.parameters.int(parameters::SETTINGS_INTERVAL);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(30).max(1))
    }
}

/// Stages of a pipeline by name; none where it is none.
fn stages<'a>(args: &Args<'a>) -> impl Iterator<Item = &'a str> {
    let pipeline = args.field("pipeline").and_then(|v: Val<'a>| v.as_array());
    let stages = pipeline.into_iter().flat_map(|p| p.values());
    stages.filter_map(|stage| Some(stage.as_doc()?.first()?.name))
}

fn takes_write_concern(parsed: &ParsedCommand<'_>) -> bool {
    let (command, args) = (parsed.specification, &parsed.args);
    if args.generic.write_concern.is_some() {
        return false;
    }
    let writes = match command.name {
        "commitTransaction" | "abortTransaction" => return true,
        "aggregate" => matches!(stages(args).last(), Some("$out" | "$merge")),
        "mapReduce" => !args.field("out").is_some_and(|out| {
            let out = out.as_doc();
            out.is_some_and(|out| out.contains("inline"))
        }),
        "bulkWrite" | "dropDatabase" => true,
        _ => command.is(flag::WRITE) && command.is(flag::OF_COLLECTION | flag::OF_NAMESPACE),
    };
    writes && args.generic.autocommit.is_none()
}

fn takes_read_concern(parsed: &ParsedCommand<'_>) -> bool {
    let (command, args) = (parsed.specification, &parsed.args);
    let given = args.generic.read_concern.and_then(Val::as_doc);
    if given.is_some_and(|d| d.contains("level")) || args.generic.autocommit.is_some() {
        return false;
    }
    match command.name {
        "find" | "count" | "distinct" => true,
        // Without a collection it reports on the server.
        "aggregate" => {
            args.first.as_str().is_some() && stages(args).next() != Some("$changeStream")
        }
        _ => false,
    }
}
