//! `insert`, `update`, `delete`: each statement to the shard that has its documents.
//!
//! Invariant: a statement that a shard has run is not sent again, whatever the next shard says.
//! Statements keep their numbers, so that a retry of the client's is known at the shard.

use crate::databases::{made_for, make_database};
use crate::request::{RoutedCommand, finish, ranges};
use crate::state::Router;
use crate::targeting::key_effect::{effect_on_key, kept_place, place_of_upsert};
use crate::targeting::{at_least_one, shard_at};
use crate::writes::key_change;
use crate::writes::key_change::Changed;
use crate::writes::upsert::{new_document, nothing};
use bson::{Doc, DocBuf, ObjectId, Val, Writer};
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::upstream::error_of;
use cluster_view::{Failure, Outcome, write_concern};
use commands::Commands;
use std::sync::Arc;

/// As MongoDB's.
pub(crate) const MAX_STATEMENTS: usize = 100_000;

/// The shards of a statement.
enum Target {
    /// All of these.
    All(Vec<Arc<str>>),
    /// The first that has a document for it.
    First(Vec<Arc<str>>),
    /// As `First`; where none has one, the shard where the upsert's new document belongs.
    Upsert(Vec<Arc<str>>),
    /// The shard of the document, which may lie on another one afterwards.
    MayMove,
}

struct Statement {
    /// Its place among the client's.
    index: usize,
    doc: DocBuf,
    /// Shards that have run it.
    done: Vec<Arc<str>>,
}

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    if router.cluster.placement(&ns)?.is_none() {
        make_database(&router.cluster, command.db, None)?;
    }
    if let Some(Placement::Unsharded(_)) = router.cluster.placement(&ns)? {
        let whole = router.cluster.agree(&ns, |placement| {
            let Some(placement @ Placement::Unsharded(Unsharded { shard, .. })) = placement else {
                return Ok(None);
            };
            let sequences = command.request.sequences;
            router
                .send(command, placement, shard, &command.whole(), sequences)
                .map(Some)
        })?;
        // It was sharded meanwhile where there is none.
        if let Some(reply) = whole {
            return Ok(reply);
        }
    }
    let mut batch = Batch::of(router, command)?;
    router.cluster.agree(&ns, |placement| match placement {
        Some(placement) => batch.proceed(placement),
        // It was dropped meanwhile, or before, which the router did not know.
        None => batch.proceed(&made_for(&router.cluster, command.db, &ns)?),
    })?;
    Ok(batch.tally.reply(command.name))
}

/// A write of which one shard runs all statements.
pub(crate) struct ForOneShard {
    pub shard: Arc<str>,
    pub body: DocBuf,
    pub statements: usize,
}

impl ForOneShard {
    /// `None`: several shards have a part in it, or it is not to be sent as it is.
    pub fn of(
        router: &Router,
        command: &RoutedCommand<'_>,
        placement: &Placement,
    ) -> Option<ForOneShard> {
        let batch = Batch::of(router, command).ok()?;
        let mut shard = None;
        for statement in &batch.pending {
            let Ok(Target::All(mut shards)) = batch.target(placement, statement.doc.as_doc())
            else {
                return None;
            };
            let one = shards.pop().filter(|_| shards.is_empty())?;
            if shard.get_or_insert_with(|| one.clone()) != &one {
                return None;
            }
        }
        Some(ForOneShard {
            shard: shard?,
            body: batch.body(batch.pending.iter()),
            statements: batch.pending.len(),
        })
    }

    /// The client's reply.
    pub fn reply(statements: usize, command: &str, reply: &DocBuf) -> Outcome<DocBuf> {
        let mut tally = Tally::default();
        let indexes: Vec<usize> = (0..statements).collect();
        tally.add(reply, &indexes)?;
        Ok(tally.reply(command))
    }
}

fn with_id(d: Doc<'_>) -> DocBuf {
    let mut w = Writer::with_capacity(d.len() + 20);
    w.oid("_id", ObjectId::generate()).extend(d);
    w.finish()
}

struct Batch<'a> {
    router: &'a Router,
    command: &'a RoutedCommand<'a>,
    field: &'static str,
    ordered: bool,
    pending: std::collections::VecDeque<Statement>,
    tally: Tally,
}

impl<'a> Batch<'a> {
    fn of(router: &'a Router, command: &'a RoutedCommand<'a>) -> Outcome<Batch<'a>> {
        let field = match command.name {
            "insert" => "documents",
            "update" => "updates",
            _ => "deletes",
        };
        let docs = Commands::statements(command.request, &command.args()?, field)?;
        let statements = docs.iter().enumerate().map(|(index, d)| Statement {
            index,
            doc: match field == "documents" && !d.contains("_id") {
                true => with_id(*d),
                false => d.to_buf(),
            },
            done: Vec::new(),
        });
        Ok(Batch {
            router,
            command,
            field,
            ordered: command.field("ordered").is_none_or(Val::truthy),
            pending: statements.collect(),
            tally: Tally::default(),
        })
    }

    /// Runs the pending statements, as far as possible.
    fn proceed(&mut self, placement: &Placement) -> Outcome<()> {
        while let Some(first) = self.pending.front() {
            match self.target(placement, first.doc.as_doc()) {
                Err(e) => {
                    let index = first.index;
                    let e = e.into_error();
                    self.tally.refuse(index, &e);
                    self.pending.pop_front();
                }
                Ok(Target::All(shards)) if shards.len() == 1 => {
                    self.run_group(placement, &shards[0])?;
                }
                Ok(target) => self.run_one(placement, target)?,
            }
            if self.ordered && self.tally.failed() {
                self.pending.clear();
            }
        }
        Ok(())
    }

    fn target(&self, placement: &Placement, statement: Doc<'_>) -> Outcome<Target> {
        let table = match placement {
            Placement::Unsharded(Unsharded { shard, .. }) => {
                return Ok(Target::All(vec![shard.clone()]));
            }
            Placement::Sharded(table) => table,
        };
        if self.field == "documents" {
            return Ok(Target::All(vec![shard_at(
                table,
                &table.entry.place_of(statement)?,
            )?]));
        }
        let filter = statement
            .get("q")
            .and_then(Val::as_doc)
            .unwrap_or(Doc::EMPTY);
        let part = |name: &str| statement.get(name).and_then(Val::as_doc);
        let variables = part("c").or(self.command.variables());
        let found = ranges(filter, variables, part("collation"), table)?;
        let many = match self.field {
            "updates" => statement.get("multi").is_some_and(Val::truthy),
            _ => statement.get("limit").and_then(Val::to_i64_exact) != Some(1),
        };
        if self.field == "updates" {
            let update = statement.get("u").unwrap_or(Val::NULL);
            let effect = effect_on_key(table, filter, &found, update, many)?;
            let Some(place) = kept_place(self.command, effect, many)? else {
                return Ok(Target::MayMove);
            };
            if statement.get("upsert").is_some_and(Val::truthy) {
                return match place_of_upsert(table, &found, place) {
                    Ok(place) => Ok(Target::All(vec![shard_at(table, &place)?])),
                    Err(e) if many => Err(e),
                    Err(_) => Ok(Target::Upsert(at_least_one(table, &found))),
                };
            }
            if let Some(place) = place {
                return Ok(Target::All(vec![shard_at(table, &place)?]));
            }
        }
        let shards = at_least_one(table, &found);
        Ok(match many || shards.len() == 1 {
            true => Target::All(shards),
            false => Target::First(shards),
        })
    }

    /// Runs the first statement and those after it that are for the same shard alone.
    fn run_group(&mut self, placement: &Placement, shard: &Arc<str>) -> Outcome<()> {
        let is_for_it = |statement: &Statement| {
            matches!(
                self.target(placement, statement.doc.as_doc()),
                Ok(Target::All(shards)) if shards.len() == 1 && shards[0] == *shard
            )
        };
        let taken: Vec<Statement> = if self.ordered {
            let run = self.pending.iter().take_while(|s| is_for_it(s)).count();
            self.pending.drain(..run).collect()
        } else {
            let which: Vec<bool> = self.pending.iter().map(is_for_it).collect();
            let all = std::mem::take(&mut self.pending).into_iter().zip(which);
            let (taken, kept): (Vec<_>, Vec<_>) = all.partition(|(_, is_for_it)| *is_for_it);
            self.pending = kept.into_iter().map(|(statement, _)| statement).collect();
            taken.into_iter().map(|(statement, _)| statement).collect()
        };
        match self.send(placement, shard, &taken) {
            Ok(reply) => {
                let indexes: Vec<usize> = taken.iter().map(|s| s.index).collect();
                self.tally.add(&reply, &indexes)?;
                Ok(())
            }
            Err(e) => {
                // Nothing was done: all of them are still to be run.
                for statement in taken.into_iter().rev() {
                    self.pending.push_front(statement);
                }
                Err(e)
            }
        }
    }

    /// Runs the first statement on several shards.
    fn run_one(&mut self, placement: &Placement, target: Target) -> Outcome<()> {
        let Some(mut statement) = self.pending.pop_front() else {
            return Ok(());
        };
        let ran = match target {
            Target::All(shards) => self.run_on_all(placement, shards, &mut statement),
            Target::First(shards) => self.run_first(placement, &shards, &statement, false),
            Target::Upsert(shards) => self.run_first(placement, &shards, &statement, true),
            Target::MayMove => self.run_moving(placement, &statement),
        };
        if ran.is_err() {
            self.pending.push_front(statement);
        }
        ran
    }

    fn run_on_all(
        &mut self,
        placement: &Placement,
        shards: Vec<Arc<str>>,
        statement: &mut Statement,
    ) -> Outcome<()> {
        for shard in shards {
            if statement.done.contains(&shard) {
                continue;
            }
            let reply = self.send(placement, &shard, std::slice::from_ref(statement))?;
            self.tally.add(&reply, &[statement.index])?;
            statement.done.push(shard);
            if self.tally.failed() {
                break;
            }
        }
        Ok(())
    }

    /// Runs a statement on the first shard that has a document for it.
    fn run_first(
        &mut self,
        placement: &Placement,
        shards: &[Arc<str>],
        statement: &Statement,
        upsert: bool,
    ) -> Outcome<()> {
        if let Some(reply) = self.ran_before(placement, statement)? {
            return self.tally.add(&reply, &[statement.index]);
        }
        let plain = not_upserting(statement);
        let mut last = None;
        for shard in shards {
            let reply = self.send(placement, shard, std::slice::from_ref(&plain))?;
            let n = reply.get("n").and_then(Val::to_i64_exact).unwrap_or(0);
            if n > 0 || error_of(reply.as_doc()).is_some() || reply.get("writeErrors").is_some() {
                return self.tally.add(&reply, &[statement.index]);
            }
            last = Some(reply);
        }
        if upsert {
            return self.insert_new(placement, statement);
        }
        match last {
            Some(reply) => self.tally.add(&reply, &[statement.index]),
            None => Ok(()),
        }
    }

    /// Runs an update that may move its document. An invalid update is that statement's error.
    fn run_moving(&mut self, placement: &Placement, statement: &Statement) -> Outcome<()> {
        let ns = self.command.namespace()?;
        let d = statement.doc.as_doc();
        let moving = key_change::Statement {
            command: self.command,
            ns: &ns,
            filter: d.get("q").and_then(Val::as_doc).unwrap_or(Doc::EMPTY),
            update: d.get("u").unwrap_or(Val::NULL),
            options: d,
            variables: d.get("c").or_else(|| self.command.field("let")),
            sort: d.get("sort").and_then(Val::as_doc),
            number: statement_number(self.command, statement.index),
        };
        let here = |this: &DocBuf| self.body([&of_this(statement, this)].into_iter());
        let ran = key_change::run(self.router, &moving, here, || {
            self.ran_before(placement, statement)
        });
        match ran {
            Ok(Changed::Nothing) if d.get("upsert").is_some_and(Val::truthy) => {
                self.insert_new(placement, statement)
            }
            Ok(Changed::Nothing) => {
                let none = key_change::update_reply(0, None);
                self.tally.add(&none, &[statement.index])
            }
            Ok(Changed::Here(reply)) => self.tally.add(&reply, &[statement.index]),
            Ok(Changed::Moved { concern, .. }) => {
                let one = key_change::update_reply(1, concern.as_ref());
                self.tally.add(&one, &[statement.index])
            }
            Err(Failure::Client(e)) if e.labels.is_empty() => {
                self.tally.refuse(statement.index, &e);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Inserts what an upsert makes that has found nothing.
    fn insert_new(&mut self, placement: &Placement, statement: &Statement) -> Outcome<()> {
        let Placement::Sharded(table) = placement else {
            return Err(cluster_view::routing::no_database(self.command.db));
        };
        let d = statement.doc.as_doc();
        let variables = d.get("c").or_else(|| self.command.field("let"));
        let made = new_document(self.router, d, "q", "u", variables);
        let placed = made.and_then(|new| {
            let shard = shard_at(table, &table.key().place_of(new.as_doc())?)?;
            Ok((new, shard))
        });
        let (new, shard) = match placed {
            Ok(placed) => placed,
            Err(e) => {
                self.tally.refuse(statement.index, &e.into_error());
                return Ok(());
            }
        };
        let insert = inserting(statement, new.as_doc());
        let reply = self.send(placement, &shard, &[insert])?;
        self.tally.add(&reply, &[statement.index])
    }

    /// What a retryable statement did when it ran before, on whichever shard that was: with a filter
    /// that finds nothing a shard answers only what it has recorded.
    fn ran_before(&self, placement: &Placement, statement: &Statement) -> Outcome<Option<DocBuf>> {
        let retryable = self.command.is_retryable();
        let (Placement::Sharded(table), true) = (placement, retryable) else {
            return Ok(None);
        };
        let mut w = Writer::new();
        w.value("q", nothing());
        for e in statement.doc.as_doc() {
            if !matches!(e.name, "q" | "upsert" | "sort" | "hint") {
                w.val(e.name, e.val);
            }
        }
        let probe = Statement {
            index: statement.index,
            doc: w.finish(),
            done: Vec::new(),
        };
        let body = self.body([&probe].into_iter());
        let all: Vec<_> = table.shards().map(|s| (s.clone(), body.clone())).collect();
        let replies = self.router.cluster.scatter(placement, &all)?;
        let ran = |r: &DocBuf| r.get("n").and_then(Val::to_i64_exact) > Some(0);
        Ok(replies.into_iter().find(ran))
    }

    fn send(&self, placement: &Placement, shard: &Arc<str>, all: &[Statement]) -> Outcome<DocBuf> {
        let body = self.body(all.iter());
        let reply = self
            .router
            .send(self.command, placement, shard, &body, &[])?;
        Ok(write_concern::at_shard(reply, shard))
    }

    /// The command with these statements only.
    fn body<'s>(&self, all: impl Iterator<Item = &'s Statement> + Clone) -> DocBuf {
        let mut w = self.command.without(&[self.field, "stmtIds", "stmtId"]);
        w.open_array(self.field);
        for statement in all.clone() {
            w.push(statement.doc.as_doc().as_val());
        }
        w.close();
        if self.command.is_retryable() {
            w.open_array("stmtIds");
            for statement in all {
                w.push_value(statement_number(self.command, statement.index));
            }
            w.close();
        }
        w.finish()
    }
}

/// The number under which shards record the statement at this place: the client's, if it gave one.
pub(crate) fn statement_number(command: &RoutedCommand<'_>, index: usize) -> i32 {
    let given = command.field("stmtIds").and_then(Val::as_array);
    let given = given.and_then(|ids| ids.values().nth(index)?.to_i64_exact());
    let first = command.int("stmtId").unwrap_or(0);
    let number = given.unwrap_or_else(|| first.saturating_add(index as i64));
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The same statement, about this document only.
fn of_this(statement: &Statement, this: &DocBuf) -> Statement {
    let mut w = Writer::with_capacity(statement.doc.as_bytes().len() + this.as_bytes().len());
    w.doc("q", this.as_doc());
    let other = |name: &str| !matches!(name, "q" | "upsert" | "sort");
    for e in statement.doc.as_doc().iter().filter(|e| other(e.name)) {
        w.val(e.name, e.val);
    }
    Statement {
        index: statement.index,
        doc: w.finish(),
        done: Vec::new(),
    }
}

/// The same statement, which only changes what there is.
fn not_upserting(statement: &Statement) -> Statement {
    let mut w = Writer::with_capacity(statement.doc.as_bytes().len());
    for e in statement.doc.as_doc().iter().filter(|e| e.name != "upsert") {
        w.val(e.name, e.val);
    }
    Statement {
        index: statement.index,
        doc: w.finish(),
        done: Vec::new(),
    }
}

/// An upsert of the same number that finds nothing, and so inserts this document.
fn inserting(statement: &Statement, new: Doc<'_>) -> Statement {
    let mut w = Writer::with_capacity(new.len() + 64);
    w.value("q", nothing()).doc("u", new).bool("upsert", true);
    Statement {
        index: statement.index,
        doc: w.finish(),
        done: Vec::new(),
    }
}

/// What has become of the statements so far.
#[derive(Default)]
struct Tally {
    n: i64,
    modified: i64,
    upserted: Vec<(usize, DocBuf)>,
    errors: Vec<(usize, DocBuf)>,
    replies: Vec<DocBuf>,
}

impl Tally {
    fn failed(&self) -> bool {
        !self.errors.is_empty()
    }

    fn refuse(&mut self, index: usize, e: &errors::Error) {
        let mut w = Writer::new();
        w.i32("code", e.code.0).str("errmsg", &e.message);
        self.errors.push((index, w.finish()));
    }

    /// A shard's reply to statements of these numbers.
    fn add(&mut self, reply: &DocBuf, indexes: &[usize]) -> Outcome<()> {
        if let Some(e) = error_of(reply.as_doc()) {
            if self.replies.is_empty() {
                return Err(Failure::Client(e));
            }
            self.refuse(indexes.first().copied().unwrap_or(0), &e);
            return Ok(());
        }
        let number = |name: &str| reply.get(name).and_then(Val::to_i64_exact).unwrap_or(0);
        self.n += number("n");
        self.modified += number("nModified");
        for (field, list) in [
            ("upserted", &mut self.upserted),
            ("writeErrors", &mut self.errors),
        ] {
            let found = reply
                .get(field)
                .and_then(Val::as_array)
                .unwrap_or(Doc::EMPTY);
            for d in found.values().filter_map(Val::as_doc) {
                let at = d.get("index").and_then(Val::to_i64_exact).unwrap_or(0);
                let index = usize::try_from(at).ok().and_then(|at| indexes.get(at));
                let mut w = Writer::new();
                for e in d.iter().filter(|e| e.name != "index") {
                    w.val(e.name, e.val);
                }
                list.push((index.copied().unwrap_or(0), w.finish()));
            }
        }
        self.replies.push(reply.clone());
        Ok(())
    }

    fn reply(mut self, command: &str) -> DocBuf {
        let mut w = Writer::new();
        w.int("n", self.n);
        if command == "update" {
            w.int("nModified", self.modified);
        }
        for (field, list) in [
            ("upserted", &mut self.upserted),
            ("writeErrors", &mut self.errors),
        ] {
            if list.is_empty() {
                continue;
            }
            list.sort_by_key(|(index, _)| *index);
            w.open_array(field);
            for (index, d) in list.iter() {
                let mut one = Writer::new();
                one.i32("index", *index as i32).extend(d.as_doc());
                w.push(one.finish().as_doc().as_val());
            }
            w.close();
        }
        write_concern::append(&mut w, &self.replies);
        let times: Vec<DocBuf> = std::mem::take(&mut self.replies);
        finish(w, &times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{json, shell};

    fn parsed(text: &str) -> DocBuf {
        json::parse(text).unwrap()
    }

    /// The client's reply to what shards say of the statements of these numbers.
    fn reply_to(command: &str, shards: &[(&str, &[usize])]) -> String {
        let mut tally = Tally::default();
        for (reply, indexes) in shards {
            tally.add(&parsed(reply), indexes).unwrap();
        }
        shell::doc(tally.reply(command).as_doc())
    }

    #[test]
    fn replies_become_one() {
        let wrote = r#"{"n":2,"ok":1}"#;
        let one_failed =
            r#"{"n":1,"writeErrors":[{"index":1,"code":11000,"errmsg":"twice"}],"ok":1}"#;
        let upserted = r#"{"n":1,"nModified":0,"upserted":[{"index":0,"_id":7}],"ok":1}"#;
        let modified = r#"{"n":3,"nModified":2,"ok":1}"#;
        let lost = r#"{"ok":0,"code":189,"errmsg":"gone"}"#;
        for (command, shards, wanted) in [
            (
                "insert",
                vec![(wrote, &[0, 1][..]), (wrote, &[2, 3])],
                "{ n: 4, ok: 1.0 }",
            ),
            (
                "insert",
                vec![(one_failed, &[4, 6][..]), (one_failed, &[1, 2])],
                "{ n: 2, writeErrors: [ { index: 2, code: 11000, errmsg: \"twice\" }, { index: 6, code: 11000, errmsg: \"twice\" } ], ok: 1.0 }",
            ),
            (
                "update",
                vec![(modified, &[0][..]), (modified, &[0])],
                "{ n: 6, nModified: 4, ok: 1.0 }",
            ),
            (
                "update",
                vec![(upserted, &[5][..]), (upserted, &[3])],
                "{ n: 2, nModified: 0, upserted: [ { index: 3, _id: 7 }, { index: 5, _id: 7 } ], ok: 1.0 }",
            ),
            // What has been written is told, with what one shard could not do.
            (
                "insert",
                vec![(wrote, &[0, 1][..]), (lost, &[2])],
                "{ n: 2, writeErrors: [ { index: 2, code: 189, errmsg: \"gone\" } ], ok: 1.0 }",
            ),
            ("delete", vec![], "{ n: 0, ok: 1.0 }"),
        ] {
            assert_eq!(reply_to(command, &shards), wanted);
        }
    }

    #[test]
    fn before_anything_is_written_an_error_is_the_commands() {
        let mut tally = Tally::default();
        let failed = parsed(r#"{"ok":0,"code":2,"errmsg":"no"}"#);
        let e = tally.add(&failed, &[3]).unwrap_err();
        assert_eq!(e.into_error().code.0, 2);
        assert!(!tally.failed());
    }

    #[test]
    fn concerns_of_several_shards_are_told_as_one() {
        let unmet = r#"{"n":1,"writeConcernError":{"code":64,"errmsg":"late"},"ok":1}"#;
        let reply = reply_to("insert", &[(unmet, &[0]), (unmet, &[1])]);
        assert!(reply.contains("writeConcernError: { code: 64"), "{reply}");
        assert!(reply.starts_with("{ n: 2, "), "{reply}");
    }

    #[test]
    fn statements_are_recorded_under_the_clients_numbers() {
        use crate::targeting::testing::with_command;
        for (more, wanted) in [
            ("", [0, 1, 2]),
            (r#","stmtId":5"#, [5, 6, 7]),
            (r#","stmtIds":[4,2,9]"#, [4, 2, 9]),
            (r#","stmtIds":[4],"stmtId":5"#, [4, 6, 7]),
        ] {
            with_command(&format!(r#"{{"insert":"c"{more}}}"#), |command| {
                let numbers = [0, 1, 2].map(|n| statement_number(command, n));
                assert_eq!(numbers, wanted, "{more}");
            });
        }
    }
}
