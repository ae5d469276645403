//! `bulkWrite`: sent to shards as the commands `insert`, `update` and `delete` of which it consists.
//!
//! Invariant: operations run in the order given, each under its own statement number, so that a
//! retry is known at the shards.

use crate::collection_uuid;
use crate::databases::make_database;
use crate::merge::Merge;
use crate::reads::cursors::first_batch;
use crate::request::{RoutedCommand, finish, own};
use crate::state::Router;
use crate::writes::write;
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::{Failure, Outcome, write_concern};
use errors::{Error, err};

const CURSOR_NS: &str = "admin.$cmd.bulkWrite";
/// Error messages are told up to this many bytes in all.
const MESSAGE_BYTES: usize = 1 << 20;
/// What a command takes over from the bulkWrite of which it is a part.
const SHARED: [&str; 9] = [
    "let",
    "bypassDocumentValidation",
    "comment",
    "maxTimeMS",
    "writeConcern",
    "readConcern",
    "lsid",
    "txnNumber",
    "autocommit",
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    fn command(self) -> (&'static str, &'static str) {
        match self {
            Kind::Insert => ("insert", "documents"),
            Kind::Update => ("update", "updates"),
            Kind::Delete => ("delete", "deletes"),
        }
    }
}

/// One of `nsInfo`.
struct Target<'a> {
    ns: &'a str,
    /// That the collection is to have.
    uuid: Option<Val<'a>>,
}

/// One of `ops`: what it does to which of `nsInfo`, and the statement that says so.
struct Operation {
    kind: Kind,
    target: usize,
    statement: DocBuf,
    multi: bool,
}

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    commands::check_bulk_write(command.request)?;
    let mut namespaces = Vec::new();
    for info in command.documents("nsInfo") {
        let ns = info.get("ns").and_then(Val::as_str).unwrap_or_default();
        let Some((db, _)) = ns
            .split_once('.')
            .filter(|(d, c)| !d.is_empty() && !c.is_empty() && !ns.contains('\0'))
        else {
            return Err(err!(
                InvalidNamespace,
                "Invalid namespace specified for bulkWrite: '{ns}'"
            )
            .into());
        };
        if router.cluster.placement(ns)?.is_none() {
            make_database(&router.cluster, db, None)?;
        }
        namespaces.push(Target {
            ns,
            uuid: info.get("collectionUUID"),
        });
    }
    if namespaces.is_empty() {
        return Err(err!(BadValue, "nsInfo names no collection").into());
    }
    let operations = command.documents("ops");
    let operations = operations.iter().map(|d| operation(*d, namespaces.len()));
    let operations: Vec<Operation> = operations.collect::<Result<_, Error>>()?;
    if operations.is_empty() || operations.len() > write::MAX_STATEMENTS {
        return Err(err!(
            InvalidLength,
            "Write batch sizes must be between 1 and {}. Got {} operations.",
            write::MAX_STATEMENTS,
            operations.len()
        )
        .into());
    }
    let retryable = command.is_retryable();
    if retryable && operations.iter().any(|o| o.multi) {
        return Err(err!(
            InvalidOptions,
            "Cannot use retryable writes with multi=true"
        )
        .into());
    }
    Run {
        router,
        command,
        namespaces,
        operations,
        ordered: command.field("ordered").is_none_or(Val::truthy),
        report: Report {
            errors_only: command.is("errorsOnly"),
            ..Report::default()
        },
    }
    .all()
}

fn operation(d: Doc<'_>, targets: usize) -> Result<Operation, Error> {
    let Some(first) = d.first() else {
        return Err(err!(
            IDLFailedToParse,
            "BSON field 'bulkWrite.ops' has an operation without insert, update or delete"
        ));
    };
    let kind = match first.name {
        "insert" => Kind::Insert,
        "update" => Kind::Update,
        "delete" => Kind::Delete,
        other => {
            return Err(err!(
                IDLUnknownField,
                "Unrecognized BulkWrite operation '{other}': it must be 'insert', 'update' or 'delete'"
            ));
        }
    };
    let at = first.val.to_i64_exact().unwrap_or(-1);
    let Some(target) = usize::try_from(at).ok().filter(|at| *at < targets) else {
        return Err(err!(
            BadValue,
            "BulkWrite ops entry has an invalid nsInfo index {at}: there are {targets}"
        ));
    };
    let multi = d.get("multi").is_some_and(Val::truthy);
    Ok(Operation {
        kind,
        target,
        statement: statement(kind, d, multi)?,
        multi,
    })
}

/// An operation as the statement of a command.
fn statement(kind: Kind, d: Doc<'_>, multi: bool) -> Result<DocBuf, Error> {
    let (within, _) = kind.command();
    let needed = |name: &str| {
        let value = d.get(name);
        value.ok_or_else(|| {
            err!(
                IDLFailedToParse,
                "BSON field 'bulkWrite.{within}.{name}' is missing but a required field"
            )
        })
    };
    if kind == Kind::Insert {
        let document = needed("document")?;
        return document.as_doc().map(|d| d.to_buf()).ok_or_else(|| {
            err!(
                TypeMismatch,
                "BSON field 'bulkWrite.insert.document' is the wrong type '{}', expected type 'object'",
                document.type_name()
            )
        });
    }
    let mut w = Writer::with_capacity(d.len() + 16);
    w.val("q", needed("filter")?);
    if kind == Kind::Update {
        w.val("u", needed("updateMods")?);
    } else {
        w.i32("limit", i32::from(!multi));
    }
    for e in d.iter().skip(1) {
        match (e.name, kind) {
            ("filter" | "updateMods" | "sampleId", _) | ("multi", Kind::Delete) => {}
            ("constants", Kind::Update) => {
                w.val("c", e.val);
            }
            ("hint" | "collation", _) => {
                w.val(e.name, e.val);
            }
            ("multi" | "upsert" | "sort" | "arrayFilters", Kind::Update) => {
                w.val(e.name, e.val);
            }
            ("upsertSupplied" | "allowShardKeyUpdatesWithoutFullShardKeyInQuery", Kind::Update) => {
            }
            _ => {
                return Err(err!(
                    IDLUnknownField,
                    "BSON field 'bulkWrite.{within}.{}' is an unknown field.",
                    e.name
                ));
            }
        }
    }
    Ok(w.finish())
}

struct Run<'a> {
    router: &'a Router,
    command: &'a RoutedCommand<'a>,
    namespaces: Vec<Target<'a>>,
    operations: Vec<Operation>,
    ordered: bool,
    report: Report,
}

impl Run<'_> {
    fn all(mut self) -> Outcome<DocBuf> {
        let mut at = 0;
        while at < self.operations.len() {
            let end = self.end_of_part(at);
            let target = &self.namespaces[self.operations[at].target];
            let is_meant = collection_uuid::check(&self.router.cluster, target.ns, target.uuid);
            let ran = is_meant.and_then(|()| own(self.router, &self.part(at, end), write::run));
            match ran {
                Ok(reply) => {
                    self.add(at, end, &reply);
                    self.report.replies.push(reply);
                }
                // An error of one collection fails its operations only.
                Err(Failure::Client(e)) if !self.ends_all(&e) => {
                    let many = if self.ordered { 1 } else { end - at };
                    for at in at..at + many {
                        let mut w = Writer::new();
                        w.i32("code", e.code.0).str("errmsg", &e.message);
                        if let Some(more) = e.extra.as_deref().and_then(Doc::new) {
                            w.extend(more);
                        }
                        let kind = self.operations[at].kind;
                        self.report.failed(at, kind, w.finish().as_doc());
                    }
                }
                Err(failure) => return Err(failure),
            }
            if self.ordered && self.report.errors > 0 {
                break;
            }
            at = end;
        }
        let Run {
            router,
            command,
            report,
            ..
        } = self;
        report.reply(router, command)
    }

    /// Whether an error of a part is the whole command's.
    fn ends_all(&self, e: &Error) -> bool {
        e.is_interruption() || self.command.in_transaction() || !e.labels.is_empty()
    }

    /// Where the operations end that go with the one at `at` into one command. A reply tells what
    /// single statements did only of inserts.
    fn end_of_part(&self, at: usize) -> usize {
        let first = &self.operations[at];
        if first.kind != Kind::Insert && !self.report.errors_only {
            return at + 1;
        }
        let same = |o: &&Operation| o.kind == first.kind && o.target == first.target;
        at + self.operations[at..].iter().take_while(same).count()
    }

    /// The command of these operations.
    fn part(&self, at: usize, end: usize) -> DocBuf {
        let first = &self.operations[at];
        let ns = self.namespaces[first.target].ns;
        let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
        let (name, field) = first.kind.command();
        let mut w = Writer::new();
        w.str(name, collection);
        w.open_array(field);
        for o in &self.operations[at..end] {
            w.push(o.statement.as_doc().as_val());
        }
        w.close().bool("ordered", self.ordered);
        for name in SHARED {
            if let Some(v) = self.command.field(name) {
                // The `let` of an insert says nothing.
                if name != "let" || first.kind != Kind::Insert {
                    w.val(name, v);
                }
            }
        }
        if at == 0 && self.command.generic.start_transaction {
            w.bool("startTransaction", true);
        }
        if self.command.is_retryable() {
            w.open_array("stmtIds");
            for at in at..end {
                w.push_value(write::statement_number(self.command, at));
            }
            w.close();
        }
        w.str("$db", db);
        w.finish()
    }

    /// What a part has done.
    fn add(&mut self, at: usize, end: usize, reply: &DocBuf) {
        let kind = self.operations[at].kind;
        let number = |name: &str| reply.get(name).and_then(Val::to_i64_exact).unwrap_or(0);
        let list = |name: &str| {
            let found = reply.get(name).and_then(Val::as_array);
            found.unwrap_or(Doc::EMPTY).values().filter_map(Val::as_doc)
        };
        let upserted = list("upserted").count() as i64;
        let report = &mut self.report;
        match kind {
            Kind::Insert => report.inserted += number("n"),
            Kind::Delete => report.deleted += number("n"),
            Kind::Update => {
                report.matched += number("n") - upserted;
                report.modified += number("nModified");
                report.upserted += upserted;
            }
        }
        let mut errors = list("writeErrors").peekable();
        for (position, at) in (at..end).enumerate() {
            let of_this =
                |e: &Doc<'_>| e.get("index").and_then(Val::to_i64_exact) == Some(position as i64);
            if let Some(error) = errors.next_if(of_this) {
                report.failed(at, kind, error);
                if self.ordered {
                    break;
                }
                continue;
            }
            let id = list("upserted").find(of_this).and_then(|d| d.get("_id"));
            let n = if kind == Kind::Insert { 1 } else { number("n") };
            let modified = (kind == Kind::Update).then(|| number("nModified"));
            report.item(at, n, modified, id);
        }
    }
}

/// The results of the operations, and the totals.
#[derive(Default)]
struct Report {
    errors_only: bool,
    items: Vec<DocBuf>,
    message_bytes: usize,
    errors: i64,
    inserted: i64,
    matched: i64,
    modified: i64,
    upserted: i64,
    deleted: i64,
    replies: Vec<DocBuf>,
}

impl Report {
    fn item(&mut self, at: usize, n: i64, modified: Option<i64>, upserted: Option<Val<'_>>) {
        if self.errors_only {
            return;
        }
        let mut w = Writer::with_capacity(64);
        w.f64("ok", 1.0).i32("idx", at as i32).i32("n", n as i32);
        if let Some(m) = modified {
            w.i32("nModified", m as i32);
        }
        if let Some(id) = upserted {
            w.open_doc("upserted").val("_id", id).close();
        }
        self.items.push(w.finish());
    }

    fn failed(&mut self, at: usize, kind: Kind, error: Doc<'_>) {
        self.errors += 1;
        let mut w = Writer::with_capacity(128);
        w.f64("ok", 0.0).i32("idx", at as i32);
        for e in error.iter().filter(|e| e.name != "index") {
            match e.val.as_str() {
                Some(message) if e.name == "errmsg" => {
                    self.message_bytes += message.len();
                    let told = self.message_bytes < MESSAGE_BYTES;
                    w.str("errmsg", if told { message } else { "" });
                }
                _ => {
                    w.val(e.name, e.val);
                }
            }
        }
        w.i32("n", 0);
        if kind == Kind::Update {
            w.i32("nModified", 0);
        }
        self.items.push(w.finish());
    }

    fn reply(self, router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
        let cursor = cursor_of(router, command, self.items)?;
        let mut w = Writer::new();
        if let Some(v) = cursor.get("cursor") {
            w.val("cursor", v);
        }
        for (name, n) in [
            ("nErrors", self.errors),
            ("nInserted", self.inserted),
            ("nMatched", self.matched),
            ("nModified", self.modified),
            ("nUpserted", self.upserted),
            ("nDeleted", self.deleted),
        ] {
            w.i32(name, n as i32);
        }
        write_concern::append(&mut w, &self.replies);
        Ok(finish(w, &self.replies))
    }
}

/// A cursor over the results, as the client asked for it.
fn cursor_of(router: &Router, command: &RoutedCommand<'_>, items: Vec<DocBuf>) -> Outcome<DocBuf> {
    let most = command.batch_size().unwrap_or(i64::MAX);
    let results = Merge::of_documents(CURSOR_NS, items);
    first_batch(router, results, CURSOR_NS, Some(most), false, &[])
}
