//! A client's command on its way to shards: its parts, and what of it is sent on.
//!
//! Invariant: what the router has no opinion of is sent on as it came.

use bson::{Doc, DocBuf, Val, Writer, tag};
use cluster_view::metadata::Placement;
use cluster_view::{Outcome, operation_time};
use commands::{LoggedIn, RouterPipeline, Step, Whose};
use errors::{Stop, err};
use front::args::Generic;
use front::{Args, FromClient, specification};
use query::collation::Collation;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use service::Request;
use sharding::{PlaceRange, RoutingTable, targeting};
use std::sync::Arc;
use std::time::Duration;

/// A command that is routed.
pub(crate) struct RoutedCommand<'a> {
    pub name: &'a str,
    pub db: &'a str,
    pub body: Doc<'a>,
    pub request: &'a Request<'a>,
    /// The logged-in user; `None` without access control.
    pub user: Option<Arc<LoggedIn>>,
    /// What all commands have, as shards are to have it: the session as its user's own, the concerns with
    /// the cluster's defaults.
    pub generic: Generic<'a>,
    /// The command as the door has parsed it; `None`: it is the router's own.
    pub from_client: Option<FromClient<'a>>,
    pub hints: ShardHints,
}

/// What only the router itself may say to a shard.
const OURS: [&str; 12] = [
    "shardVersion",
    "databaseVersion",
    "writesTo",
    "$clusterTime",
    "moveTurn",
    "fromMigrate",
    "mergeTarget",
    "mergeKeyChecked",
    "mergesApart",
    "joinsElsewhere",
    BYPASSES,
    SHAPE,
];

/// Whether only the router itself may say it to a shard.
pub(crate) fn is_ours(field: &str) -> bool {
    OURS.contains(&field)
}

/// Writes the command that a client wants explained, without what only the router may say.
fn write_as_client(w: &mut Writer, explained: Doc<'_>) {
    w.open_doc("explain");
    for e in explained.iter().filter(|e| !is_ours(e.name)) {
        w.val(e.name, e.val);
    }
    w.close();
}

const BYPASSES: &str = "mayBypassWriteBlocking";
const SHAPE: &str = "originalQueryShapeHash";

/// What the router says to shards of a client's command besides.
#[derive(Clone, Default)]
pub(crate) struct ShardHints {
    /// The client may write while users' writes are blocked.
    pub bypasses: bool,
    /// The hash of the query's shape, where something is set for it.
    pub shape: Option<String>,
}

impl<'a> RoutedCommand<'a> {
    pub fn of(request: &'a Request<'a>) -> Outcome<RoutedCommand<'a>> {
        let db = request
            .db()
            .ok_or_else(|| err!(40571, "OP_MSG requests require a $db argument"))?;
        let name = request.command();
        let generic = Generic::parse(name, request.body).map_err(Stop::into_error)?;
        Ok(RoutedCommand {
            name,
            db,
            body: request.body,
            request,
            user: None,
            generic,
            from_client: None,
            hints: ShardHints::default(),
        })
    }

    /// The same, as a part of what a user has sent.
    pub fn by(mut self, user: Option<Arc<LoggedIn>>) -> RoutedCommand<'a> {
        if let (Some(lsid), Some(user)) = (&mut self.generic.lsid, &user) {
            lsid.uid = user.uid;
        }
        self.user = user;
        self
    }

    /// A client's, as shards are to have it. `is_completed`: more stands in `request` than its client has
    /// said.
    pub fn of_client(
        user: Option<Arc<LoggedIn>>,
        from_client: FromClient<'a>,
        request: &'a Request<'a>,
        is_completed: bool,
    ) -> RoutedCommand<'a> {
        let mut generic = from_client.generic;
        if is_completed {
            generic.read_concern = request.body.get("readConcern");
            generic.write_concern = request.body.get("writeConcern");
        }
        let command = RoutedCommand {
            name: request.command(),
            db: from_client.db,
            body: request.body,
            request,
            user: None,
            generic,
            from_client: Some(from_client),
            hints: ShardHints::default(),
        };
        command.by(user)
    }

    /// `db.collection` by the first field.
    pub fn namespace(&self) -> Outcome<String> {
        let first = self.body.first().map_or(Val::NULL, |e| e.val);
        match first.as_str().filter(|name| !name.is_empty()) {
            Some(name) => Ok(format!("{}.{name}", self.db)),
            None => Err(err!(
                InvalidNamespace,
                "collection name has invalid type {}",
                first.type_name()
            )
            .into()),
        }
    }

    /// What a cursor of it is known by.
    pub fn cursor_ns(&self) -> String {
        match self.collection() {
            "" => format!("{}.$cmd.aggregate", self.db),
            name => format!("{}.{name}", self.db),
        }
    }

    /// How many documents it wants of the first batch.
    pub fn batch_size(&self) -> Option<i64> {
        self.document("cursor")?.get("batchSize")?.to_i64_exact()
    }

    /// How many documents a `getMore` wants, if it says so.
    pub fn more(&self) -> Option<i64> {
        self.int("batchSize").filter(|n| *n > 0)
    }

    /// What time its client allows it.
    pub fn time(&self) -> Option<Duration> {
        let ms = Some(self.generic.max_time_ms).filter(|ms| *ms > 0);
        ms.map(Duration::from_millis)
    }

    pub fn read_concern(&self) -> Option<Doc<'a>> {
        self.generic.read_concern?.as_doc()
    }

    pub fn read_level(&self) -> Option<&'a str> {
        self.read_concern()?.get("level")?.as_str()
    }

    pub fn write_concern(&self) -> Option<Doc<'a>> {
        self.generic.write_concern?.as_doc()
    }

    /// A write of its own that its client may send again under the same number.
    pub fn is_retryable(&self) -> bool {
        self.generic.txn_number.is_some() && !self.in_transaction()
    }

    /// The number of its transaction, or of the write that may be sent again.
    pub fn txn_number(&self) -> i64 {
        self.generic.txn_number.unwrap_or(-1)
    }

    /// The session as shards are told it.
    pub fn session_document(&self) -> Option<Doc<'a>> {
        self.document("lsid")
    }

    /// The variables of its own: `let`.
    pub fn variables(&self) -> Option<Doc<'a>> {
        self.document("let")
    }

    /// Its own `collation`, also where that is empty.
    pub fn own_collation(&self) -> Option<Doc<'a>> {
        self.document("collation")
    }

    /// The stages of a pipeline, where it is one.
    pub fn stages(&self) -> Doc<'a> {
        let stages = self.field("pipeline").and_then(Val::as_array);
        stages.unwrap_or(Doc::EMPTY)
    }

    /// Its arguments: a client's are those that the door has parsed.
    pub fn args(&self) -> Outcome<Args<'a>> {
        if let Some(from_client) = &self.from_client {
            return Ok(from_client.args());
        }
        let known = specification::lookup(self.name)
            .ok_or_else(|| err!(InternalError, "{} is no command", self.name))?;
        let parsed = Args::parse(known.name, self.body, Some(self.db));
        Ok(parsed.map_err(Stop::into_error)?)
    }

    /// The same as a step that this process runs.
    pub fn step(&self) -> Outcome<Step<'a>> {
        let args = self.args()?;
        let time = self.time().map(operation_time::at_most);
        let by = match (&self.user, &self.from_client) {
            (None, None) => Whose::Router,
            // Also where the client is not logged in.
            (user, _) => Whose::Client(user.clone()),
        };
        Ok(Step {
            request: self.request,
            args,
            by,
            time,
        })
    }

    /// Stages that this process runs for it. `collation`: what holds for the whole pipeline.
    pub fn here<'p>(&self, stages: Val<'p>, collation: Option<Doc<'p>>) -> RouterPipeline<'p>
    where
        'a: 'p,
    {
        RouterPipeline {
            db: self.db,
            collection: None,
            stages,
            collation,
            variables: self.variables(),
            allow_disk_use: self.field("allowDiskUse").and_then(Val::as_bool),
            within: within(self),
            batch: self.batch_size().and_then(|n| u64::try_from(n).ok()),
        }
    }

    pub fn collection(&self) -> &'a str {
        let first = self.body.first().map_or(Val::NULL, |e| e.val);
        first.as_str().unwrap_or_default()
    }

    pub fn field(&self, name: &str) -> Option<Val<'a>> {
        self.body.get(name)
    }

    pub fn document(&self, name: &str) -> Option<Doc<'a>> {
        self.field(name)?.as_doc()
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.field(name)?.to_i64_exact()
    }

    pub fn is(&self, name: &str) -> bool {
        self.field(name).is_some_and(Val::truthy)
    }

    /// The documents of a field that may travel beside the body.
    pub fn documents(&self, name: &str) -> Vec<Doc<'a>> {
        if let Some(docs) = self.request.sequence(name) {
            return docs.collect();
        }
        let list = self.field(name).and_then(Val::as_array);
        list.map_or(Vec::new(), |l| l.values().filter_map(Val::as_doc).collect())
    }

    /// The command without some of its fields, and without those that are the router's.
    pub fn without(&self, fields: &[&str]) -> Writer {
        let mut w = Writer::with_capacity(self.body.len() + 128);
        for e in self.body {
            if fields.contains(&e.name) || is_ours(e.name) || e.name == "$db" {
                continue;
            }
            let is_explained = e.name == "explain" && e.val.tag == tag::DOCUMENT;
            match e.val.as_doc().filter(|_| is_explained) {
                Some(explained) => write_as_client(&mut w, explained),
                None => _ = w.val(e.name, e.val),
            }
        }
        // That for which it was checked, whatever its body says.
        w.str("$db", self.db);
        if self.hints.bypasses {
            w.bool(BYPASSES, true);
        }
        if let Some(hash) = &self.hints.shape {
            w.str(SHAPE, hash);
        }
        w
    }

    /// As it came.
    pub fn whole(&self) -> DocBuf {
        self.without(&[]).finish()
    }

    pub fn in_transaction(&self) -> bool {
        self.generic.autocommit == Some(false)
    }

    /// What says whose session it is, and which transaction of it.
    pub fn session_fields(&self) -> DocBuf {
        let mut w = Writer::new();
        for name in ["lsid", "txnNumber", "autocommit"] {
            if let Some(v) = self
                .field(name)
                .filter(|_| name == "lsid" || self.in_transaction())
            {
                w.val(name, v);
            }
        }
        w.finish()
    }

    /// What says, beside its filter, which documents it finds.
    pub fn conditions(&self) -> DocBuf {
        let mut w = Writer::new();
        for name in ["collation", "let"] {
            if let Some(v) = self.field(name) {
                w.val(name, v);
            }
        }
        w.finish()
    }

    /// Where the documents that a filter finds can be.
    pub fn ranges(&self, filter: Doc<'_>, table: &RoutingTable) -> Outcome<Vec<PlaceRange>> {
        ranges(filter, self.variables(), self.own_collation(), table)
    }

    /// The collation that holds: the command's own, otherwise the collection's.
    pub fn collation<'p>(&self, placement: &'p Placement) -> Option<Doc<'p>>
    where
        'a: 'p,
    {
        let table = placement.table().map(|table| &**table);
        collation_of(self.own_collation(), table)
    }
}

fn collation_of<'p>(given: Option<Doc<'p>>, table: Option<&'p RoutingTable>) -> Option<Doc<'p>> {
    let own = || Some(table?.entry.collation.as_ref()?.as_doc());
    given.filter(|c| !c.is_empty()).or_else(own)
}

/// Whether strings compare in another way than by their bytes.
pub(crate) fn has_collation(collation: Option<Doc<'_>>) -> bool {
    let locale = collation.and_then(|c| c.get("locale")?.as_str());
    locale.is_some_and(|l| l != "simple")
}

/// A filter that the router cannot parse may match anything: the shards report what is wrong with it.
/// Under a collation a string may equal others, which lie elsewhere; `collation` is the client's.
pub(crate) fn ranges(
    filter: Doc<'_>,
    variables: Option<Doc<'_>>,
    collation: Option<Doc<'_>>,
    table: &RoutingTable,
) -> Outcome<Vec<PlaceRange>> {
    let collated = has_collation(collation_of(collation, Some(table)));
    if variables.is_some_and(|v| !v.is_empty()) || collated && Collation::affects(filter.as_val()) {
        return Ok(vec![PlaceRange::all()]);
    }
    Ok(match Filter::parse(filter, &ParseEnv::new()) {
        Ok(filter) => targeting::ranges(&filter, table.entry.asked_key(), &Vars::new(0)),
        Err(_) => vec![PlaceRange::all()],
    })
}

/// The end of a reply that several shards had a part in: `ok`, and the latest of their times.
pub(crate) fn finish(mut w: Writer, replies: &[DocBuf]) -> DocBuf {
    w.f64("ok", 1.0);
    let time = |d: &&DocBuf| d.get("operationTime").and_then(Val::as_timestamp);
    if let Some(latest) = replies.iter().max_by_key(time) {
        for name in ["$clusterTime", "operationTime"] {
            if let Some(v) = latest.get(name) {
                w.val(name, v);
            }
        }
    }
    w.finish()
}

/// The reply that says no more than that it was done.
pub(crate) fn done() -> DocBuf {
    finish(Writer::new(), &[])
}

/// The fields that each read of a pipeline carries: those of its transaction, or its snapshot.
pub(crate) fn within(command: &RoutedCommand<'_>) -> DocBuf {
    let mut w = Writer::new();
    let concern = command.read_concern();
    if command.in_transaction() {
        w.extend(command.session_fields().as_doc());
    } else if let Some(concern) = concern.filter(|c| c.contains("atClusterTime")) {
        w.doc("readConcern", concern);
    }
    w.finish()
}

/// Runs a command of the router's own as a client's, with the router `R`.
pub(crate) fn own<R>(
    router: &R,
    body: &DocBuf,
    run: impl FnOnce(&R, &RoutedCommand<'_>) -> Outcome<DocBuf>,
) -> Outcome<DocBuf> {
    let request = Request::own(body.as_doc());
    let reply = run(router, &RoutedCommand::of(&request)?)?;
    cluster_view::reply::sound(reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::{with_command, with_command_of};
    use bson::{doc, json, shell};
    use front::ParsedCommand;

    #[test]
    fn what_is_sent_on() {
        for (command, without, wanted) in [
            (r#"{"find":"c"}"#, &[][..], r#"{ find: "c", $db: "d" }"#),
            (
                r#"{"find":"c","filter":{"a":1},"limit":2}"#,
                &["limit"],
                r#"{ find: "c", filter: { a: 1 }, $db: "d" }"#,
            ),
            // What only a router may say.
            (
                r#"{"insert":"c","shardVersion":1,"databaseVersion":1,"writesTo":1,"fromMigrate":true,"mayBypassWriteBlocking":true,"originalQueryShapeHash":"x","mergesApart":true,"joinsElsewhere":[]}"#,
                &[],
                r#"{ insert: "c", $db: "d" }"#,
            ),
            (
                r#"{"explain":{"aggregate":"c","joinsElsewhere":[],"shardVersion":1}}"#,
                &[],
                r#"{ explain: { aggregate: "c" }, $db: "d" }"#,
            ),
        ] {
            let sent = with_command(command, |c| c.without(without).finish());
            assert_eq!(shell::doc(sent.as_doc()), wanted);
        }
    }

    /// Old drivers name the database beside the command, and what was checked is checked for that.
    #[test]
    fn it_goes_to_the_database_that_it_was_checked_for() {
        let body = json::parse(r#"{"find":"c","$db":"other"}"#).unwrap();
        let request = Request {
            legacy_db: Some("d"),
            ..Request::own(body.as_doc())
        };
        let command = RoutedCommand::of(&request).unwrap();
        let sent = command.whole();
        assert_eq!(shell::doc(sent.as_doc()), r#"{ find: "c", $db: "d" }"#);
        let find = specification::lookup("find").unwrap();
        let refused = ParsedCommand::of(find, &request).err().unwrap();
        assert_eq!(refused.into_error().code.0, 73);
    }

    #[test]
    fn what_a_client_has_said_is_read_once() {
        let numbered = r#"{"insert":"c","txnNumber":{"$numberLong":"4"}}"#;
        let statement = r#"{"insert":"c","txnNumber":{"$numberLong":"4"},"autocommit":false}"#;
        for (command, retryable, within, number) in [
            (r#"{"insert":"c"}"#, false, false, -1),
            (numbered, true, false, 4),
            (statement, false, true, 4),
        ] {
            with_command(command, |c| {
                let told = (c.is_retryable(), c.in_transaction(), c.txn_number());
                assert_eq!(told, (retryable, within, number), "{command}");
            });
        }
        let more = r#"{"find":"c","maxTimeMS":7,"readConcern":{"level":"majority"},"writeConcern":{"w":2},"let":{"x":1},"collation":{}}"#;
        with_command(more, |c| {
            assert_eq!(c.time(), Some(Duration::from_millis(7)));
            assert_eq!(c.read_level(), Some("majority"));
            assert!(c.write_concern().is_some() && c.variables().is_some());
            assert!(c.own_collation().is_some_and(Doc::is_empty));
            let args = c.args().unwrap();
            let names: Vec<&str> = args.fields.iter().map(|e| e.name).collect();
            assert_eq!((args.command, names), ("find", vec!["let", "collation"]));
        });
        with_command(r#"{"find":"c","maxTimeMS":0}"#, |c| {
            assert_eq!(c.time(), None)
        });
    }

    /// Whose a step is decides what it may do: only the router's own has the rights of the process.
    #[test]
    fn a_client_that_is_not_logged_in_is_not_the_router() {
        let is_routers = |c: &RoutedCommand<'_>| matches!(c.step().unwrap().by, Whose::Router);
        assert!(with_command(r#"{"endSessions":[]}"#, is_routers));
        let asked = with_command_of(r#"{"endSessions":[]}"#, is_routers);
        assert!(!asked, "a client's");
    }

    #[test]
    fn replies_end_with_the_latest_time() {
        let reply = |time: u64| doc! {"operationTime": bson::Value::timestamp(time), "ok": 1.0};
        for (times, wanted) in [(&[][..], None), (&[3], Some(3)), (&[3, 9, 5], Some(9))] {
            let replies: Vec<DocBuf> = times.iter().map(|t| reply(*t)).collect();
            let ended = finish(Writer::new(), &replies);
            let told = ended.get("operationTime").and_then(Val::as_timestamp);
            assert_eq!(told, wanted);
        }
    }

    #[test]
    fn reads_of_a_pipeline_carry_their_transaction_or_snapshot() {
        for (command, wanted) in [
            (r#"{"aggregate":"c"}"#, "{}"),
            (
                r#"{"aggregate":"c","readConcern":{"level":"majority"}}"#,
                "{}",
            ),
            (
                r#"{"aggregate":"c","readConcern":{"level":"snapshot","atClusterTime":{"$timestamp":{"t":1,"i":2}}}}"#,
                "{ readConcern: { level: \"snapshot\", atClusterTime: Timestamp(1, 2) } }",
            ),
            (
                r#"{"aggregate":"c","txnNumber":{"$numberLong":"4"},"autocommit":false,"readConcern":{"level":"snapshot"}}"#,
                "{ txnNumber: 4, autocommit: false }",
            ),
        ] {
            let fields = with_command(command, within);
            assert_eq!(shell::doc(fields.as_doc()), wanted, "{command}");
        }
    }
}
