//! Access control of what a router sends on: the same checks, and the same lines of the audit log,
//! as of a command that this server runs itself.
//!
//! Invariant: a command is parsed before anything is asked here, and once.

use super::checks;
use crate::Commands;
use crate::connection::Connection;
use crate::connection::login::LoggedIn;
use crate::crud::find::Paging;
use crate::crud::{batch, count, distinct, find, find_and_modify, get_more};
use crate::request::concern;
use crate::security::audit::EndedCommand;
use crate::security::authorize::{Asking, check_client};
use crate::security::{UserDirectory, member_name};
use crate::settings::parameters;
use auth::session_id::NOBODY;
use bson::{Doc, DocBuf, Val, Value, Writer};
use errors::{Error, Fallible, bail, err};
use front::{Args, ParsedCommand, specification};
use service::{Client, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a fail point does to a command.
pub enum FailPoint {
    Nothing,
    /// The connection is closed.
    Close,
    /// The command runs, and its reply has these fields besides.
    Append(DocBuf),
}

impl Commands {
    /// Has users and roles read from another server.
    pub fn read_users_from(&self, directory: Arc<dyn UserDirectory>) {
        self.security.read_from(directory);
    }

    /// Cached users and roles are read anew.
    pub fn forget_users(&self) {
        self.security.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// How long cached users and roles are valid, in seconds.
    pub fn user_cache_interval_secs(&self) -> u64 {
        let seconds = self.parameters.int(parameters::USER_CACHE_INTERVAL);
        u64::try_from(seconds).unwrap_or(30).max(1)
    }

    /// Whether commands are checked.
    pub fn checks_access(&self) -> bool {
        self.security.enabled
    }

    /// The user of the server itself; `None` without access control.
    pub fn own_user(&self) -> Fallible<Option<Arc<LoggedIn>>> {
        if !self.security.enabled {
            return Ok(None);
        }
        let user = self
            .read_user(&member_name(), &[])
            .map_err(|stop| stop.into_error())?;
        let user = user.ok_or_else(|| err!(InternalError, "the server's own user is missing"))?;
        Ok(Some(Arc::new(user.0)))
    }

    /// Fails if a client may not run the command that the router sends on. What has to be read is waited
    /// for if `may_wait`, and is an error otherwise. Gives the logged-in user, if any.
    pub fn admit_routed<'r>(
        &self,
        client: &Client<Connection>,
        request: &Request<'r>,
        parsed: &ParsedCommand<'r>,
        may_wait: bool,
    ) -> Result<Option<Arc<LoggedIn>>, Error> {
        if !self.security.enabled {
            return Ok(None);
        }
        let asking = Asking {
            app: self,
            client,
            request,
            command: parsed.specification.name,
            needs: &parsed.specification.needs,
            args: &parsed.args,
        };
        let checked = check_client(&asking, || match may_wait {
            true => Ok(()),
            false => Err(err!(InternalError, "who the client is has to be read").into()),
        });
        checked.map_err(|stop| stop.into_error())?;
        Ok(client.state.login.user())
    }

    /// The command with the session as its user's own: another user's of the same id is another
    /// session. `None`: it is sent on as it came.
    pub fn with_own_session(
        &self,
        user: Option<&LoggedIn>,
        body: Doc<'_>,
    ) -> Result<Option<DocBuf>, Error> {
        let Some(lsid) = body.get("lsid").and_then(Val::as_doc) else {
            return Ok(None);
        };
        let uid = user.map_or(NOBODY, |user| user.uid);
        if !self.security.enabled {
            return Ok(None);
        }
        let named = lsid.get("uid").and_then(Val::as_binary);
        if named.is_some_and(|(_, named)| named != uid) {
            return Err(err!(
                Unauthorized,
                "Unauthorized to set user digest in LogicalSessionId"
            ));
        }
        let mut w = Writer::with_capacity(body.len() + 64);
        for e in body {
            if e.name != "lsid" {
                w.val(e.name, e.val);
                continue;
            }
            w.open_doc("lsid");
            for part in lsid.iter().filter(|part| part.name != "uid") {
                w.val(part.name, part.val);
            }
            w.val("uid", Value::binary(0, &uid).as_val()).close();
        }
        Ok(Some(w.finish()))
    }

    /// Fails where the arguments are wrong that all commands have, or those of a command that no
    /// shard sees as it came, and where a command may not be a statement of a transaction.
    pub fn check_routed(&self, parsed: &ParsedCommand<'_>) -> Result<(), Error> {
        let command = parsed.specification;
        if command.is_of_servers() {
            let checked = checks::check(command, &parsed.args, &self.config);
            return checked.map_err(|stop| stop.into_error());
        }
        match parsed.from_client().in_transaction() {
            true => Err(err!(
                OperationNotSupportedInTransaction,
                "Cannot run '{}' in a multi-document transaction.",
                command.name
            )),
            false => Ok(()),
        }
    }

    /// Fails where a `find`, `count` or `distinct` fails over a collection that is not there.
    pub fn check_over_nothing(&self, args: &Args<'_>) -> Fallible<()> {
        checks::check_over_nothing(self, args).map_err(|stop| stop.into_error())
    }

    /// Which documents a `find` gives. Fails where its arguments are wrong.
    pub fn paging_of_find(args: &Args<'_>) -> Fallible<Paging> {
        find::paging(args).map_err(|stop| stop.into_error())
    }

    /// How many documents a `count` passes over, and how many it counts at the most. Fails where its
    /// arguments are wrong.
    pub fn bounds_of_count(args: &Args<'_>) -> Fallible<(u64, u64)> {
        count::bounds(args).map_err(|stop| stop.into_error())
    }

    /// Fails where the arguments are wrong of a `distinct` or a `findAndModify`.
    pub fn check_arguments(args: &Args<'_>) -> Fallible<()> {
        let checked = match args.command {
            "distinct" => distinct::check(args),
            _ => find_and_modify::check(args),
        };
        checked.map_err(|stop| stop.into_error())
    }

    /// The statements of a write: in `field`, or beside the body.
    pub fn statements<'a>(
        request: &Request<'a>,
        args: &Args<'a>,
        field: &str,
    ) -> Fallible<Vec<Doc<'a>>> {
        let found = batch::documents(request, args, args.command, field);
        found.map_err(|stop| stop.into_error())
    }

    /// What is replied to a command about a collection that is not there.
    pub fn reply_about_nothing(&self, args: &Args<'_>) -> Fallible<DocBuf> {
        let mut w = Writer::new();
        let written = checks::write_absent(args, &self.config, &mut w);
        written.map_err(|stop| stop.into_error())?;
        w.f64("ok", 1.0);
        Ok(w.finish())
    }

    /// Fails where a command that only routers have is given a field that is neither one of `fields`
    /// nor one that all commands have, or its write concern is wrong.
    pub fn check_router_command(
        &self,
        parsed: &ParsedCommand<'_>,
        fields: &[&str],
    ) -> Result<(), Error> {
        let args = &parsed.args;
        let read = || {
            if let Some(e) = args.fields.iter().find(|e| !fields.contains(&e.name)) {
                return Err(args.unknown(*e));
            }
            match args.generic.write_concern {
                Some(v) => concern::write_concern(v, &self.config.topology).map(drop),
                None => Ok(()),
            }
        };
        read().map_err(|stop| stop.into_error())
    }

    /// What the fail point `failCommand` does to a command that a router would send on.
    pub fn fail_routed(
        &self,
        client: &Client<Connection>,
        request: &Request<'_>,
        parsed: &ParsedCommand<'_>,
    ) -> Result<FailPoint, Error> {
        if !self.fail_points.any() {
            return Ok(FailPoint::Nothing);
        }
        let (command, args) = (parsed.specification, &parsed.args);
        let hit = self
            .check_time(command.name, args)
            .and_then(|()| self.fail(command, client, request, args));
        Ok(match hit.map_err(|stop| stop.into_error())? {
            None => FailPoint::Nothing,
            Some(failure) if failure.close_connection => FailPoint::Close,
            Some(failure) => FailPoint::Append(failure.fields()),
        })
    }

    /// Fails where a fail point has the time be over that a command may take.
    fn check_time(&self, name: &str, args: &Args<'_>) -> errors::Result<()> {
        const LONG: Duration = Duration::from_secs(3600);
        // What a getMore may take is of waiting for news.
        if args.generic.max_time_ms == 0 || name == "getMore" {
            return Ok(());
        }
        let now = Instant::now();
        match self.fail_points.deadline(now, LONG) {
            Some(deadline) if deadline <= now => {
                bail!(MaxTimeMSExpired, "operation exceeded time limit")
            }
            _ => Ok(()),
        }
    }

    /// What a fail point has a getMore of a router fail with.
    pub fn fail_routed_get_more(&self) -> Option<Error> {
        get_more::failed(&self.fail_points)
    }

    /// Whether a fail point is set.
    pub fn has_fail_points(&self) -> bool {
        self.fail_points.any()
    }

    /// Tells the audit log of what a router has sent on.
    pub fn audit_routed(
        &self,
        client: &Client<Connection>,
        request: &Request<'_>,
        failure: Option<&Error>,
    ) {
        let Some(audit) = &self.security.audit else {
            return;
        };
        let command = specification::lookup(request.command()).map(|command| command.name);
        audit.observe(&EndedCommand {
            client,
            command: command.unwrap_or(request.command()),
            db: request.db().unwrap_or(""),
            request,
            failure,
            made: &[],
        });
    }
}
