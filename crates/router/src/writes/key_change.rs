//! Updates of one document that may change its shard key, and so its shard.
//!
//! ```text
//! which document? ─► what does the update make of it? ─► the same shard: the update itself, of that document
//!                                                     └► another: removed there, inserted here, in one transaction
//! ```
//! In a client's transaction all of it are statements of that. A retryable write that moves a document is
//! a transaction of the router's own; the shard that the document leaves decides it, and records in
//! the same entry that the client's statement was executed. So a retry is answered from the record.
//!
//! Source: MongoDB's manual, "Change a Document's Shard Key Value".

use crate::post_merge_projection::PostMergeProjection;
use crate::reads::find;
use crate::request::{RoutedCommand, own};
use crate::state::Router;
use crate::targeting::shard_at;
use crate::transactions;
use crate::transactions::failed;
use crate::writes::write;
use auth::session_id::Lsid;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::metadata::Placement;
use cluster_view::upstream::error_of;
use cluster_view::{Failure, Outcome, operation_time, write_concern};
use commands::OneUpdate;
use errors::{Code, Error, err};
use std::sync::Arc;
use std::time::Duration;

/// How often the whole is tried where others are at the same document.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_millis(3);

/// A statement that may move a document.
pub(crate) struct Statement<'a> {
    pub command: &'a RoutedCommand<'a>,
    pub ns: &'a str,
    pub filter: Doc<'a>,
    pub update: Val<'a>,
    /// Where `arrayFilters`, `collation` and `hint` are.
    pub options: Doc<'a>,
    pub variables: Option<Val<'a>>,
    pub sort: Option<Doc<'a>>,
    /// Under which number it is recorded.
    pub number: i32,
}

/// What became of it.
pub(crate) enum Changed {
    /// No document matches.
    Nothing,
    /// The shard's own reply to the statement.
    Here(DocBuf),
    /// It lies on another shard. `concern`: the `writeConcernError` of that.
    Moved {
        before: DocBuf,
        after: DocBuf,
        concern: Option<DocBuf>,
    },
}

/// What the statement makes of the document that it finds.
struct Change {
    before: DocBuf,
    after: DocBuf,
    from: Arc<str>,
    to: Arc<str>,
}

/// Runs the statement. `here`: the statement as a command for the shard of the document that the given
/// filter finds. `ran_before`: the reply to a retryable statement that was executed.
pub(crate) fn run(
    router: &Router,
    statement: &Statement<'_>,
    here: impl Fn(&DocBuf) -> DocBuf,
    ran_before: impl Fn() -> Outcome<Option<DocBuf>>,
) -> Outcome<Changed> {
    let within = statement.command.session_fields();
    for n in 0..TRIES {
        if n > 0 {
            std::thread::sleep(PAUSE * n);
        }
        if !statement.command.in_transaction()
            && let Some(reply) = ran_before()?
        {
            return Ok(Changed::Here(reply));
        }
        let Some(change) = statement.look(router, &within)? else {
            return Ok(Changed::Nothing);
        };
        if change.from == change.to {
            let command = here(&statement.this(&change.before, statement.table(router)?.key())?);
            let reply = statement.send(router, &change.from, &command)?;
            if statement.command.in_transaction() || failed(&reply) || has_changed(&reply) {
                return Ok(Changed::Here(reply));
            }
            continue;
        }
        if statement.command.in_transaction() {
            statement.replace(router, &within, &change)?;
            return Ok(Changed::Moved {
                before: change.before,
                after: change.after,
                concern: None,
            });
        }
        match statement.in_own_transaction(router) {
            Ok(Some(moved)) => return Ok(moved),
            Ok(None) => {}
            Err(Failure::Client(e)) if is_transient(&e) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(err!(
        WriteConflict,
        "the document was changed each time by others while its shard key was to be changed"
    )
    .into())
}

fn is_transient(e: &Error) -> bool {
    e.code == Code::WriteConflict || e.labels.contains(&"TransientTransactionError")
}

/// Whether an update or a findAndModify has found its document.
fn has_changed(reply: &DocBuf) -> bool {
    let last = reply.get("lastErrorObject").and_then(Val::as_doc);
    let n = last.and_then(|l| l.get("n")).or(reply.get("n"));
    n.and_then(Val::to_i64_exact) > Some(0)
}

/// A transaction of the router's own, in a session of its own.
struct OwnTransaction<'r> {
    router: &'r Router,
    id: [u8; 16],
    session: DocBuf,
}

impl Drop for OwnTransaction<'_> {
    fn drop(&mut self) {
        self.router.transactions.forget(Lsid::unowned(self.id));
    }
}

impl OwnTransaction<'_> {
    fn begin(router: &Router) -> Outcome<OwnTransaction<'_>> {
        let id = commands::new_uuid();
        let lsid = doc! {"id": bson::Value::binary(4, &id)};
        let this = OwnTransaction {
            router,
            id,
            session: doc! {"lsid": lsid, "txnNumber": 1i64, "autocommit": false},
        };
        let mut w = Writer::new();
        w.i32("begin", 1).extend(this.session.as_doc());
        w.bool("startTransaction", true).str("$db", "admin");
        own(router, &w.finish(), |router, command| {
            router.transactions.begin_statement(command)?;
            Ok(crate::request::done())
        })?;
        Ok(this)
    }

    /// `commitTransaction` or `abortTransaction`.
    fn end(&self, name: &str, concern: Option<Doc<'_>>) -> DocBuf {
        let mut w = Writer::new();
        w.i32(name, 1).extend(self.session.as_doc());
        if let Some(concern) = concern {
            w.doc("writeConcern", concern);
        }
        w.str("$db", "admin");
        w.finish()
    }

    fn abort(&self, router: &Router) {
        let abort = self.end("abortTransaction", None);
        let _ = operation_time::putting_away(|| own(router, &abort, transactions::abort));
    }
}

impl Statement<'_> {
    fn collection(&self) -> (&str, &str) {
        self.ns.split_once('.').unwrap_or((self.ns, ""))
    }

    fn table(&self, router: &Router) -> Outcome<Arc<sharding::RoutingTable>> {
        match router.cluster.placement(self.ns)? {
            Some(Placement::Sharded(table)) => Ok(table),
            _ => Err(cluster_view::routing::no_database(self.collection().0)),
        }
    }

    /// The document that it finds, and what becomes of it.
    fn look(&self, router: &Router, within: &DocBuf) -> Outcome<Option<Change>> {
        let mut w = Writer::new();
        w.str("find", self.collection().1)
            .doc("filter", self.filter)
            .i32("limit", 1)
            .bool("singleBatch", true);
        if let Some(sort) = self.sort {
            w.doc("sort", sort);
        }
        if let Some(v) = self.variables {
            w.val("let", v);
        }
        if let Some(v) = self.options.get("collation") {
            w.val("collation", v);
        }
        w.str("$db", self.collection().0).extend(within.as_doc());
        let reply = own(router, &w.finish(), find::find)?;
        let cursor = reply.get("cursor").and_then(Val::as_doc);
        let batch = cursor.and_then(|c| c.get("firstBatch")?.as_array());
        let Some(before) = batch.and_then(|b| b.values().next()?.as_doc()) else {
            return Ok(None);
        };
        let after = self.updated(router, before)?;
        let table = self.table(router)?;
        let shard = |d: Doc<'_>| shard_at(&table, &table.key().place_of(d)?);
        Ok(Some(Change {
            from: shard(before)?,
            to: shard(after.as_doc())?,
            before: before.to_buf(),
            after,
        }))
    }

    /// What the update makes of a document.
    fn updated(&self, router: &Router, before: Doc<'_>) -> Outcome<DocBuf> {
        let table = self.table(router)?;
        let own = table.entry.collation.as_ref().map(DocBuf::as_doc);
        let given = self.options.get("collation").and_then(Val::as_doc);
        let update = OneUpdate {
            // Positional operators go by what it has found.
            filter: self.filter,
            update: self.update,
            array_filters: self.options.get("arrayFilters"),
            collation: given.or(own),
            variables: self.variables.and_then(Val::as_doc),
            cluster_time: router.cluster.time(),
            scripting: router.local.config.scripting,
        };
        Ok(update.of(before)?)
    }

    /// A filter that finds this document, as long as it has its place and still matches.
    fn this(&self, before: &DocBuf, key: &sharding::ShardKey) -> Outcome<DocBuf> {
        let mut this = Writer::new();
        if let Some(id) = before.get("_id") {
            this.open_doc("_id").val("$eq", id).close();
        }
        let fields = key.fields_of(before.as_doc())?;
        for e in fields.as_doc().iter().filter(|e| e.name != "_id") {
            this.val(e.name, e.val);
        }
        let mut w = Writer::new();
        w.open_array("$and");
        w.push(this.finish().as_doc().as_val());
        if !self.filter.is_empty() {
            w.push(self.filter.as_val());
        }
        w.close();
        Ok(w.finish())
    }

    fn send(&self, router: &Router, shard: &Arc<str>, command: &DocBuf) -> Outcome<DocBuf> {
        router.cluster.agree(self.ns, |placement| match placement {
            Some(placement) => router.send(self.command, placement, shard, command, &[]),
            None => Err(cluster_view::routing::no_database(self.collection().0)),
        })
    }

    /// Removes the document where it is and inserts it where it belongs, in the transaction that
    /// `within` names.
    fn replace(&self, router: &Router, within: &DocBuf, change: &Change) -> Outcome<()> {
        let (db, collection) = self.collection();
        let this = self.this(&change.before, self.table(router)?.key())?;
        let delete = doc! {"q": this, "limit": 1};
        let mut w = Writer::new();
        w.str("delete", collection)
            .value("deletes", bson::array![delete])
            .extend(within.as_doc())
            .str("$db", db);
        let removed = own(router, &w.finish(), write::run)?;
        if let Some(e) = first_error(&removed) {
            return Err(e.into());
        }
        if !has_changed(&removed) {
            return Err(err!(WriteConflict, "the document was changed by another")
                .with_label("TransientTransactionError")
                .into());
        }
        let mut w = Writer::new();
        w.str("insert", collection)
            .value("documents", bson::array![change.after.clone()])
            .extend(within.as_doc())
            .str("$db", db);
        if self.command.is("bypassDocumentValidation") {
            w.bool("bypassDocumentValidation", true);
        }
        let inserted = own(router, &w.finish(), write::run)?;
        match first_error(&inserted) {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    /// Moves the document in a transaction of its own. `None`: it need not move any more.
    fn in_own_transaction(&self, router: &Router) -> Outcome<Option<Changed>> {
        let own_one = OwnTransaction::begin(router)?;
        let within = &own_one.session;
        let moved = self.look(router, within).and_then(|change| match change {
            Some(change) if change.from != change.to => {
                self.replace(router, within, &change)?;
                Ok(Some(change))
            }
            _ => Ok(None),
        });
        let change = match moved {
            Ok(Some(change)) => change,
            Ok(None) => {
                own_one.abort(router);
                return Ok(None);
            }
            Err(failure) => {
                own_one.abort(router);
                return Err(failure);
            }
        };
        let executed = self.executed(&change);
        let commit = own_one.end(
            "commitTransaction",
            crate::transactions::client_concern::beyond_majority(self.command),
        );
        let commit_it = |router: &Router, c: &RoutedCommand<'_>| {
            transactions::commit_with(router, c, Some(&executed))
        };
        let committed = operation_time::to_its_end(|| own(router, &commit, commit_it))?;
        Ok(Some(Changed::Moved {
            before: change.before,
            after: change.after,
            concern: write_concern::merged(&[committed]),
        }))
    }

    /// What the deciding shard records of the client's statement.
    fn executed(&self, change: &Change) -> DocBuf {
        let mut w = Writer::new();
        let session = self.command.session_document();
        w.doc("session", session.unwrap_or(Doc::EMPTY))
            .i64("number", self.command.txn_number())
            .i32("statement", self.number);
        if self.command.name.eq_ignore_ascii_case("findAndModify") {
            w.open_doc("image")
                .doc("before", change.before.as_doc())
                .doc("after", change.after.as_doc())
                .close();
        }
        w.finish()
    }
}

fn first_error(reply: &DocBuf) -> Option<Error> {
    if let Some(e) = error_of(reply.as_doc()) {
        return Some(e);
    }
    let errors = reply.get("writeErrors").and_then(Val::as_array)?;
    let first = errors.values().next()?.as_doc()?;
    let code = first.get("code").and_then(Val::to_i64_exact).unwrap_or(8);
    let says = first.get("errmsg").and_then(Val::as_str).unwrap_or("");
    Some(Error::coded(i32::try_from(code).unwrap_or(8), says))
}

/// The reply to an update that has moved so many documents, one or none.
pub(crate) fn update_reply(n: i32, concern: Option<&DocBuf>) -> DocBuf {
    let mut w = Writer::new();
    w.i32("n", n).i32("nModified", n);
    if let Some(concern) = concern {
        w.doc("writeConcernError", concern.as_doc());
    }
    w.f64("ok", 1.0);
    w.finish()
}

/// The reply to a findAndModify that has moved a document.
pub(crate) fn found_reply(
    command: &RoutedCommand<'_>,
    before: &DocBuf,
    after: &DocBuf,
    concern: Option<&DocBuf>,
) -> Outcome<DocBuf> {
    let shown = match command.is("new") {
        true => after,
        false => before,
    };
    let fields = command
        .document("fields")
        .or(command.document("projection"));
    let value = match fields.filter(|f| !f.is_empty()) {
        None => shown.clone(),
        Some(fields) => {
            let filter = command.document("query").unwrap_or(Doc::EMPTY);
            let collation = commands::given_collation(command.own_collation())?;
            let variables = command.variables();
            let projection =
                PostMergeProjection::parse(fields, filter, collation.flatten(), variables)?;
            projection.apply(shown.as_doc())?
        }
    };
    let last = doc! {"n": 1, "updatedExisting": true};
    let mut w = Writer::new();
    w.doc("lastErrorObject", last.as_doc())
        .doc("value", value.as_doc());
    if let Some(concern) = concern {
        w.doc("writeConcernError", concern.as_doc());
    }
    w.f64("ok", 1.0);
    Ok(w.finish())
}
