//! A client's command on its way to shards: its parts, and what of it is sent on.
//!
//! Invariant: what the router has no opinion of is sent on as it came.

use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::metadata::Placement;
use cluster_view::{Outcome, operation_time};
use commands::{LoggedIn, RouterPipeline, Step};
use errors::err;
use front::FromClient;
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
    /// What the client said of it; `None`: it is the router's own.
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
        Ok(RoutedCommand {
            name: request.command(),
            db,
            body: request.body,
            request,
            user: None,
            from_client: None,
            hints: ShardHints::default(),
        })
    }

    /// A client's, as shards are to have it: `request` is completed.
    pub fn of_client(
        user: Option<Arc<LoggedIn>>,
        from_client: FromClient<'a>,
        request: &'a Request<'a>,
    ) -> RoutedCommand<'a> {
        RoutedCommand {
            name: request.command(),
            db: from_client.db,
            body: request.body,
            request,
            user,
            from_client: Some(from_client),
            hints: ShardHints::default(),
        }
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

    /// The same as a step that this process runs.
    pub fn step(&self) -> Step<'a> {
        let time = self.int("maxTimeMS").filter(|ms| *ms > 0);
        let time = time.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        Step {
            request: self.request,
            user: self.user.clone(),
            time: time.map(operation_time::at_most),
        }
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
            variables: self.document("let"),
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
            if !fields.contains(&e.name) && !OURS.contains(&e.name) {
                w.val(e.name, e.val);
            }
        }
        if !self.body.contains("$db") {
            w.str("$db", self.db);
        }
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
        match &self.from_client {
            Some(command) => command.in_transaction(),
            None => self.field("autocommit").and_then(Val::as_bool) == Some(false),
        }
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
        ranges(
            filter,
            self.document("let"),
            self.document("collation"),
            table,
        )
    }

    /// The collation that holds: the command's own, otherwise the collection's.
    pub fn collation<'p>(&self, placement: &'p Placement) -> Option<Doc<'p>>
    where
        'a: 'p,
    {
        let table = placement.table().map(|table| &**table);
        collation_of(self.document("collation"), table)
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
    let concern = command.document("readConcern");
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
