//! Which handler a command goes to, and its checks before and after: access, audit, read preference,
//! snapshots, transactions. It may wait, so it runs on a worker.

use crate::ddl::rename;
use crate::listing::{lists, operations, stats};
use crate::reads::{cursors, explain, file_md5, find, map_reduce, schema, search};
use crate::request::{RoutedCommand, ShardHints};
use crate::state::{Handler, Router};
use crate::transactions::snapshot;
use crate::transactions::snapshot::Snapshots;
use crate::writes::{bulk_write, find_and_modify, write};
use crate::{access, admin, backup, ddl, fsync, transactions};
use bson::{DocBuf, Elem, doc};
use cluster_view::read_preference;
use cluster_view::read_preference::ReadPreference;
use cluster_view::reply::cursor_id;
use cluster_view::upstream::{error_of, with_fields};
use cluster_view::{Failure, Outcome as Routed, operation_time};
use commands::{Connection, LoggedIn};
use errors::{Code, bail, err};
use front::ParsedCommand;
use front::args::Generic;
use service::{Client, Request};
use std::sync::Arc;
use std::time::Instant;

/// How often a state of all shards is read before the client hears that it is gone.
const SNAPSHOT_TRIES: u32 = 3;

/// Commands that the router does not answer alone.
pub(crate) fn handler(name: &str) -> Option<Handler> {
    Some(match name {
        "find" => find::find,
        "insert" | "update" | "delete" => write::run,
        "getMore" => cursors::get_more,
        "findAndModify" | "findandmodify" => find_and_modify::find_and_modify,
        "aggregate" => explain::aggregate,
        "count" => find::count,
        "distinct" => find::distinct,
        "killCursors" => cursors::kill,
        "listCollections" => lists::list_collections,
        "listIndexes" => lists::list_indexes,
        "listDatabases" => lists::list_databases,
        "dbStats" | "dbstats" => stats::db_stats,
        "collStats" | "collstats" | "dataSize" | "datasize" | "validate" => stats::of_collection,
        "explain" => explain::explain,
        "currentOp" => operations::current,
        "killOp" => operations::kill,
        "killSessions" | "killAllSessions" | "killAllSessionsByPattern" => {
            operations::kill_sessions
        }
        "endSessions" => operations::end_sessions,
        "mapReduce" | "mapreduce" => map_reduce::run,
        "convertToCapped" | "cloneCollectionAsCapped" => ddl::capped,
        "validateDBMetadata" => stats::validate_metadata,
        "planCacheClear"
        | "planCacheClearFilters"
        | "planCacheListFilters"
        | "planCacheSetFilter"
        | "setIndexCommitQuorum"
        | "compactStructuredEncryptionData"
        | "cleanupStructuredEncryptionData" => ddl::where_it_is,
        "pandoSchema" => schema::run,
        "filemd5" => file_md5::run,
        "fsync" => fsync::run,
        "fsyncUnlock" => fsync::unlock,
        "pandoBackup" => backup::run,
        // A router has none of these.
        "compact" | "reIndex" | "applyOps" | "dbCheck" | "pandoCheckBatch" | "dbHash"
        | "dbhash" | "top" | "shardingState" | "splitVector" => unknown,
        "create" => ddl::create,
        "createIndexes" | "dropIndexes" | "deleteIndexes" | "collMod" => ddl::on_all_shards,
        "createSearchIndexes" | "updateSearchIndex" | "dropSearchIndex" => search::change,
        "listSearchIndexes" => search::list,
        "drop" => ddl::drop_collection,
        "dropDatabase" => ddl::drop_database,
        "renameCollection" => rename::run,
        "bulkWrite" => bulk_write::run,
        "commitTransaction" => transactions::commit,
        "abortTransaction" => transactions::abort,
        "createUser"
        | "updateUser"
        | "dropUser"
        | "dropAllUsersFromDatabase"
        | "grantRolesToUser"
        | "revokeRolesFromUser"
        | "createRole"
        | "updateRole"
        | "dropRole"
        | "dropAllRolesFromDatabase"
        | "grantPrivilegesToRole"
        | "revokePrivilegesFromRole"
        | "grantRolesToRole"
        | "revokeRolesFromRole"
        | "usersInfo"
        | "rolesInfo"
        | "_mergeAuthzCollections" => access::on_users,
        name => return admin::handler(name),
    })
}

fn unknown(_: &Router, command: &RoutedCommand<'_>) -> Routed<DocBuf> {
    Err(err!(CommandNotFound, "no such command: '{}'", command.name).into())
}

impl Router {
    /// Sends a command on, if its client may have it run.
    pub(crate) fn route<'r>(
        &self,
        handler: Handler,
        client: &Client<Connection>,
        request: &Request<'r>,
        parsed: &ParsedCommand<'r>,
    ) -> Routed<DocBuf> {
        let admitted = self.local.admit_routed(client, request, parsed, true);
        let outcome = match admitted {
            Ok(user) => self.route_for(user, handler, client, request, parsed),
            Err(e) => Err(e.into()),
        };
        self.ended(client, request, outcome)
    }

    /// Tells the audit log what came of a command.
    pub(crate) fn ended(
        &self,
        client: &Client<Connection>,
        request: &Request<'_>,
        outcome: Routed<DocBuf>,
    ) -> Routed<DocBuf> {
        if let Err(not_yet @ Failure::NotYet(_)) = outcome {
            return Err(not_yet);
        }
        let outcome = outcome.map_err(Failure::into_error);
        let failure = match &outcome {
            Ok(reply) => error_of(reply.as_doc()),
            Err(e) => Some(e.clone()),
        };
        self.local.audit_routed(client, request, failure.as_ref());
        outcome.map_err(Failure::from)
    }

    /// Sends a user's command on.
    fn route_for(
        &self,
        user: Option<Arc<LoggedIn>>,
        handler: Handler,
        client: &Client<Connection>,
        request: &Request<'_>,
        parsed: &ParsedCommand<'_>,
    ) -> Routed<DocBuf> {
        let body = self
            .local
            .for_shards(user.as_deref(), parsed, request.body)?;
        let request = Request {
            body: body.as_ref().map_or(request.body, DocBuf::as_doc),
            ..*request
        };
        let command =
            RoutedCommand::of_client(user, parsed.from_client(), &request, body.is_some());
        let since = request.resumed.map_or_else(Instant::now, |r| r.since);
        let most = parsed.args.generic.max_time_ms;
        let end = operation_time::end_of(request.command(), most, since);
        let stops = operation_time::may_stop(request.command());
        let asked = |_: Option<Instant>| {
            let check = || {
                if stops && client.is_cancelled() {
                    bail!(Interrupted, "the client has left");
                }
                operation_time::check().map_err(Failure::into_error)
            };
            check()?;
            self.local.weigh(&check)
        };
        let handle = || self.handle(handler, &command, parsed);
        let reply = operation_time::within(end, || {
            let asking = || errors::operation::asking(end, &asked, handle);
            self.local.within_memory(asking)
        })?;
        self.cursors
            .keep(&self.local, cursor_id(&reply), &command)?;
        Ok(reply)
    }

    fn handle(
        &self,
        handler: Handler,
        command: &RoutedCommand<'_>,
        parsed: &ParsedCommand<'_>,
    ) -> Routed<DocBuf> {
        self.local.check_routed(parsed)?;
        admin::check_fields(self, parsed)?;
        access::check_database(command)?;
        let ruled = match self.local.has_rules() {
            true => Some(self.heed_rules(command, parsed)?),
            false => None,
        };
        let command = ruled.as_ref().unwrap_or(command);
        if command.db == "local" {
            return Err(err!(InvalidNamespace, "a router has no database local").into());
        }
        let named = command.body.first().and_then(|e| e.val.as_str());
        if named.is_some_and(|name| name.contains('\0')) {
            return Err(err!(
                InvalidNamespace,
                "namespaces cannot have embedded null characters"
            )
            .into());
        }
        if let Some(given) = command.generic.read_preference {
            let preference = ReadPreference::parse(given)?;
            if command.in_transaction() && preference.mode != read_preference::ReadMode::Primary {
                return Err(err!(
                    InvalidOptions,
                    "Read preference in a transaction must be primary"
                )
                .into());
            }
        }
        self.cluster.hear_time(command.body);
        self.local.samplers.see(command.request);
        if !snapshot::wants_snapshot(command) {
            return self.dispatch(handler, command);
        }
        match snapshot::given_time(command) {
            Some(at) => {
                snapshot::check_time(at, self.cluster.time())?;
                self.read_at(handler, command, at)
            }
            None => self.read_snapshot(handler, command),
        }
    }

    /// Reads a new state of all shards. One that a shard's primary has taken with it when it failed
    /// is replaced by another, where that is the client's first word.
    fn read_snapshot(&self, handler: Handler, command: &RoutedCommand<'_>) -> Routed<DocBuf> {
        let mut tries = 0;
        loop {
            let pinned = self.cluster.pin_snapshot();
            let at = pinned.map_err(|failure| transactions::labelled(command, failure))?;
            let outcome = self.read_at(handler, command, at);
            let error = match &outcome {
                Ok(reply) => error_of(reply.as_doc()),
                Err(Failure::Client(e)) => Some(e.clone()),
                Err(_) => None,
            };
            tries += 1;
            let gone = error.is_some_and(|e| e.code == Code::SnapshotTooOld);
            if !gone || tries == SNAPSHOT_TRIES || command.in_transaction() {
                return outcome;
            }
        }
    }

    /// Reads the state of all shards at a time at which they have kept it.
    fn read_at(&self, handler: Handler, command: &RoutedCommand<'_>, at: u64) -> Routed<DocBuf> {
        // It is kept by primaries.
        let mut body = command.without(&["readConcern", "$readPreference"]);
        body.doc("readConcern", snapshot::concern_at(command, at).as_doc());
        let body = body.finish();
        let request = Request {
            body: body.as_doc(),
            ..*command.request
        };
        let generic = Generic {
            read_concern: request.body.get("readConcern"),
            read_preference: None,
            ..command.generic
        };
        let command = RoutedCommand {
            body: request.body,
            request: &request,
            generic,
            user: command.user.clone(),
            hints: command.hints.clone(),
            ..*command
        };
        let reply = self.dispatch(handler, &command)?;
        let failed = error_of(reply.as_doc()).is_some();
        Ok(match command.in_transaction() || failed {
            true => reply,
            false => snapshot::tell_time(reply, at),
        })
    }

    /// Applies the cluster's write block and the query settings of this query's shape.
    fn heed_rules<'a>(
        &self,
        command: &RoutedCommand<'a>,
        parsed: &ParsedCommand<'_>,
    ) -> Routed<RoutedCommand<'a>> {
        let user = command.user.as_deref();
        let bypasses = self.local.passes_write_block(
            user,
            parsed.from_client(),
            parsed.args.field("pipeline"),
        )?;
        let explained = command.document("explain");
        let query = explained.unwrap_or(command.body);
        let is_query = |e: Elem<'_>| matches!(e.name, "find" | "aggregate" | "distinct");
        let mut shape = None;
        if query.first().is_some_and(is_query) {
            let db = match query.contains("$db") {
                true => doc! {},
                false => doc! {"$db": command.db},
            };
            let query = with_fields(query, db.as_doc());
            shape = self.local.shape_setting(query.as_doc())?;
        }
        if shape.as_ref().is_some_and(|s| s.rejects) && explained.is_none() {
            return Err(err!(
                QueryRejectedBySettings,
                "Query rejected by admin query settings"
            )
            .into());
        }
        let hints = ShardHints {
            bypasses,
            shape: shape.map(|s| s.hash),
        };
        Ok(RoutedCommand {
            user: command.user.clone(),
            hints,
            ..*command
        })
    }

    fn dispatch(&self, handler: Handler, command: &RoutedCommand<'_>) -> Routed<DocBuf> {
        let ends = matches!(command.name, "commitTransaction" | "abortTransaction");
        if ends || !command.in_transaction() {
            return handler(self, command);
        }
        self.transactions.begin_statement(command)?;
        let outcome = handler(self, command);
        operation_time::putting_away(|| self.after_statement(command, outcome))
    }
}
