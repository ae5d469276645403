//! `bulkWrite`: inserts, updates and deletes on several collections in one command.
//!
//! An error in the command or in the shape of an operation fails the whole before anything is done; an
//! error while an operation runs is that operation's own, in the cursor of results. Operations run in
//! the order given; inserts that follow each other into one collection are one batch.

use super::batch::{self, Common, Statements};
use super::cursor::{self, Keep};
use super::{delete, update, variables};
use crate::ddl::create::check_uuid;
use crate::monitoring::metrics::{OperationKind, Usage};
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem, Val, Value, Writer};
use errors::{Error, Result, Stop, bail};
use executor::{OpCtx, Retry};
use front::Args;
use front::bulk_write::{kind, target_of};
use front::idl;
use planner::Hint;
use service::Request;
use session::Results;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const AT: &str = "bulkWrite";
/// The collection that the cursor of results is read by.
const CURSOR_NS: &str = "admin.$cmd.bulkWrite";

/// One of `nsInfo`.
struct Target {
    ns: String,
    uuid: Option<[u8; 16]>,
}

enum BulkStatement<'a> {
    Insert(Doc<'a>),
    Update(update::Written<'a>),
    Delete(delete::Written<'a>),
}

struct Operation<'a> {
    /// Position in `nsInfo`.
    target: usize,
    what: BulkStatement<'a>,
}

idl::arguments! {
    struct TargetArguments<'a> {
        "ns" => ns: Option<&'a str> = idl::string,
        "collectionUUID" => uuid: Option<[u8; 16]> = idl::uuid,
    }
    checked: "encryptionInformation" => idl::no_encryption;
    ignored: "isTimeseriesNamespace";
}

fn target(d: Doc<'_>) -> Result<Target> {
    const AT: &str = "bulkWrite.nsInfo";
    let a = TargetArguments::parse_document(AT, d)?;
    let ns = idl::required(AT, "ns", a.ns)?;
    match ns.split_once('.') {
        Some((db, coll))
            if !db.is_empty()
                && !coll.is_empty()
                && !coll.starts_with('.')
                && !ns.contains('\0') =>
        {
            catalog::check_db_name(db)?
        }
        _ => bail!(
            InvalidNamespace,
            "Invalid namespace specified for bulkWrite: '{ns}'"
        ),
    }
    Ok(Target {
        ns: ns.to_string(),
        uuid: a.uuid,
    })
}

idl::arguments! {
    struct InsertArguments<'a> {
        "document" => document: Option<Doc<'a>> = idl::doc,
    }
}

idl::arguments! {
    struct UpdateArguments<'a> {
        "filter" => filter: Option<Doc<'a>> = idl::doc,
        "updateMods" => update: Option<Val<'a>> = idl::value,
        "multi" => multi: bool = idl::strict_flag,
        "upsert" => upsert: bool = idl::strict_flag,
        "sort" => sort: Option<Doc<'a>> = idl::non_empty_doc,
        "constants" => constants: Option<Doc<'a>> = idl::doc,
        "arrayFilters" => array_filters: Option<Doc<'a>> = idl::array,
        "hint" => hint: Option<Hint> = variables::read_hint_not_null,
        "collation" => collation: CollationArgument = collation::read,
    }
    ignored: "sampleId" | "upsertSupplied" | "allowShardKeyUpdatesWithoutFullShardKeyInQuery";
}

idl::arguments! {
    struct DeleteArguments<'a> {
        "filter" => filter: Option<Doc<'a>> = idl::doc,
        "multi" => multi: bool = idl::strict_flag,
        "hint" => hint: Option<Hint> = variables::read_hint_not_null,
        "collation" => collation: CollationArgument = collation::read,
    }
    ignored: "sampleId";
}

fn operation<'a>(d: Doc<'a>) -> Result<Operation<'a>> {
    let (within, first) = kind(d)?;
    let target = target_of(within, first)?;
    idl::unique(within, d)?;
    let what = match first.name {
        "insert" => insert(within, d)?,
        "delete" => delete(within, d)?,
        _ => update(within, d)?,
    };
    Ok(Operation { target, what })
}

fn insert<'a>(within: &str, d: Doc<'a>) -> Result<BulkStatement<'a>> {
    let a = InsertArguments::parse(within, d.iter().skip(1))?;
    idl::required(within, "document", a.document).map(BulkStatement::Insert)
}

fn update<'a>(within: &str, d: Doc<'a>) -> Result<BulkStatement<'a>> {
    let a = UpdateArguments::parse(within, d.iter().skip(1))?;
    let q = idl::required(within, "filter", a.filter)?;
    let u = idl::required(within, "updateMods", a.update)?;
    if u.as_doc().is_none() && u.as_array().is_none() {
        bail!(
            FailedToParse,
            "Update argument must be either an object or an array"
        );
    }
    Ok(BulkStatement::Update(update::Written {
        q,
        u,
        array_filters: update::array_filters(within, a.array_filters)?,
        constants: a.constants,
        sort: a.sort,
        multi: a.multi,
        upsert: a.upsert,
        hint: a.hint,
        collation: a.collation,
    }))
}

fn delete<'a>(within: &str, d: Doc<'a>) -> Result<BulkStatement<'a>> {
    let a = DeleteArguments::parse(within, d.iter().skip(1))?;
    Ok(BulkStatement::Delete(delete::Written {
        q: idl::required(within, "filter", a.filter)?,
        multi: a.multi,
        hint: a.hint,
        collation: a.collation,
    }))
}

/// The results of the operations, and the totals.
#[derive(Default)]
struct Report {
    errors_only: bool,
    items: VecDeque<DocBuf>,
    /// Bytes of error messages so far: as in writeErrors, they are left out past a megabyte.
    message_bytes: usize,
    errors: i32,
    inserted: i32,
    matched: i32,
    modified: i32,
    upserted: i32,
    deleted: i32,
    again: Vec<i32>,
}

impl Report {
    fn item(&mut self, at: usize, n: u64, modified: Option<u64>, upserted: Option<&Value>) {
        if self.errors_only {
            return;
        }
        let mut w = Writer::with_capacity(64);
        w.f64("ok", 1.0).i32("idx", at as i32).i32("n", n as i32);
        if let Some(m) = modified {
            w.i32("nModified", m as i32);
        }
        if let Some(id) = upserted {
            w.open_doc("upserted").val("_id", id.as_val()).close();
        }
        self.items.push_back(w.finish());
    }

    fn updated(&mut self, at: usize, u: &executor::Updated) {
        self.matched += u.matched as i32;
        self.modified += u.modified as i32;
        self.upserted += i32::from(u.upserted.is_some());
        let n = u.matched + u64::from(u.upserted.is_some());
        self.item(at, n, Some(u.modified), u.upserted.as_ref());
    }

    fn failed(&mut self, at: usize, e: &Error, update: bool) {
        self.errors += 1;
        self.message_bytes += e.message.len();
        let mut w = Writer::with_capacity(128);
        w.f64("ok", 0.0).i32("idx", at as i32).i32("code", e.code.0);
        if let Some(extra) = e.extra.as_deref().and_then(Doc::new) {
            w.extend(extra);
        }
        w.str(
            "errmsg",
            if self.message_bytes < 1 << 20 {
                &e.message
            } else {
                ""
            },
        );
        w.i32("n", 0);
        if update {
            w.i32("nModified", 0);
        }
        self.items.push_back(w.finish());
    }
}

/// The results as a cursor reads them.
struct Items(VecDeque<DocBuf>);

impl Results for Items {
    fn fill(
        &mut self,
        _ctx: &mut OpCtx,
        w: &mut Writer,
        max_docs: u64,
        max_bytes: usize,
    ) -> Result<bool> {
        let (mut n, mut bytes) = (0, 0);
        while n < max_docs {
            let Some(d) = self.0.front() else { break };
            bytes += d.as_bytes().len() + 12;
            if n > 0 && bytes > max_bytes {
                break;
            }
            w.push(d.as_doc().as_val());
            self.0.pop_front();
            n += 1;
        }
        Ok(self.0.is_empty())
    }

    fn release(&mut self, _ctx: &mut OpCtx) -> Result<()> {
        Ok(())
    }
}

struct Run<'a> {
    targets: Vec<Target>,
    operations: Vec<Operation<'a>>,
    ordered: bool,
    shared: Statements,
    report: Report,
}

impl Run<'_> {
    fn all(&mut self, cx: &mut CommandContext<'_, '_>) -> Result<()> {
        let mut at = 0;
        while at < self.operations.len() {
            let end = match &self.operations[at].what {
                BulkStatement::Insert(_) => self.run_of_inserts(at),
                _ => at + 1,
            };
            let errors = self.report.errors;
            let began = Instant::now();
            let target = &self.targets[self.operations[at].target];
            match check_uuid(&cx.app.engine.catalog, &target.ns, target.uuid) {
                Ok(()) if end > at + 1 || self.is_insert(at) => self.insert(cx, at, end)?,
                Ok(()) => self.one(cx, at)?,
                Err(Stop::Failed(e)) => self.fail_all(at, end, &e),
                Err(suspended) => return Err(suspended),
            }
            let kind = match self.operations[at].what {
                BulkStatement::Insert(_) => OperationKind::Insert,
                BulkStatement::Update(_) => OperationKind::Update,
                BulkStatement::Delete(_) => OperationKind::Delete,
            };
            self.count(cx, self.operations[at].target, kind, began.elapsed());
            if self.ordered && self.report.errors > errors {
                break;
            }
            at = end;
        }
        Ok(())
    }

    /// Counts one operation, or one batch of inserts, for `top`.
    fn count(
        &self,
        cx: &mut CommandContext<'_, '_>,
        target: usize,
        kind: OperationKind,
        elapsed: Duration,
    ) {
        let ns = &self.targets[target].ns;
        let row = cx.spent.iter().position(|s| s.1 == kind && s.0 == *ns);
        let row = row.unwrap_or_else(|| {
            cx.spent.push((ns.clone(), kind, Usage::default()));
            cx.spent.len() - 1
        });
        cx.spent[row].2.micros += elapsed.as_micros() as u64;
        cx.spent[row].2.count += 1;
    }

    fn is_insert(&self, at: usize) -> bool {
        matches!(self.operations[at].what, BulkStatement::Insert(_))
    }

    /// Where the inserts into one collection that begin at `at` end.
    fn run_of_inserts(&self, at: usize) -> usize {
        let target = self.operations[at].target;
        let same = |o: &Operation| o.target == target && matches!(o.what, BulkStatement::Insert(_));
        let more = self.operations[at..].iter().take_while(|o| same(o)).count();
        at + more
    }

    fn fail_all(&mut self, from: usize, to: usize, e: &Error) {
        for at in from..to {
            let update = matches!(self.operations[at].what, BulkStatement::Update(_));
            self.report.failed(at, e, update);
            if self.ordered {
                break;
            }
        }
    }

    fn executed(&mut self, cx: &mut CommandContext<'_, '_>, at: usize) -> bool {
        let Some(done) = self.shared.executed(at).cloned() else {
            return false;
        };
        cx.after_commit = true;
        self.report.again.push(self.shared.id(at));
        match self.operations[at].what {
            BulkStatement::Insert(_) => {
                self.report.inserted += 1;
                self.report.item(at, 1, None, None);
            }
            BulkStatement::Update(_) => self.report.updated(at, &update::done_before(&done)),
            BulkStatement::Delete(_) => {
                self.report.deleted += done.n as i32;
                self.report.item(at, done.n, None, None);
            }
        }
        true
    }

    fn insert(&mut self, cx: &mut CommandContext<'_, '_>, from: usize, to: usize) -> Result<()> {
        let new: Vec<usize> = (from..to)
            .filter(|at| self.shared.executed(*at).is_none())
            .collect();
        let docs: Vec<Doc> = new
            .iter()
            .filter_map(|at| match self.operations[*at].what {
                BulkStatement::Insert(d) => Some(d),
                _ => None,
            })
            .collect();
        cx.app
            .counters
            .add(OperationKind::Insert, docs.len() as u64);
        let ids: Vec<i32> = new.iter().map(|at| self.shared.id(*at)).collect();
        let ns = self.targets[self.operations[from].target].ns.clone();
        let mut statements = self.shared.hold.as_mut().map(|h| h.statements(&ids));
        let retry = statements.as_mut().map(|s| s as &mut dyn Retry);
        let result = match docs.is_empty() {
            true => Ok(executor::Inserted::default()),
            false => executor::insert(&mut cx.op, &ns, &docs, self.ordered, retry),
        };
        let mut errors = match result {
            Ok(r) => r.errors.into_iter().peekable(),
            Err(Stop::Failed(e)) if !e.is_interruption() => {
                self.fail_all(from, to, &e);
                return Ok(());
            }
            Err(stop) => return Err(stop),
        };
        let mut position = 0;
        for at in from..to {
            if new.get(position) != Some(&at) {
                self.executed(cx, at);
                continue;
            }
            let failed = errors.next_if(|(n, _)| *n == position);
            position += 1;
            match failed {
                Some((_, e)) if e.is_interruption() => return Err(e.into()),
                Some((_, e)) => {
                    self.report.failed(at, &e, false);
                    if self.ordered {
                        break;
                    }
                }
                None => {
                    cx.work.inserted += 1;
                    self.report.inserted += 1;
                    self.report.item(at, 1, None, None);
                }
            }
        }
        Ok(())
    }

    /// One update or delete.
    fn one(&mut self, cx: &mut CommandContext<'_, '_>, at: usize) -> Result<()> {
        if self.executed(cx, at) {
            return Ok(());
        }
        let Run {
            targets,
            operations,
            shared,
            report,
            ..
        } = self;
        let operation = &operations[at];
        let ns = &targets[operation.target].ns;
        let (failed, update) = match &operation.what {
            BulkStatement::Update(s) => {
                cx.app.counters.add(OperationKind::Update, 1);
                match update::execute(cx, ns, s, shared, at) {
                    Ok(u) => {
                        cx.work.wrote(&u);
                        report.updated(at, &u);
                        return Ok(());
                    }
                    Err(e) => (e, true),
                }
            }
            BulkStatement::Delete(s) => {
                cx.app.counters.add(OperationKind::Delete, 1);
                match delete::execute(cx, ns, s, shared, at) {
                    Ok(d) => {
                        cx.work.deleted += d.n;
                        report.deleted += d.n as i32;
                        report.item(at, d.n, None, None);
                        return Ok(());
                    }
                    Err(e) => (e, false),
                }
            }
            BulkStatement::Insert(_) => {
                return Err(Error::internal("an insert outside of its batch").into());
            }
        };
        match failed {
            Stop::Failed(e) if !e.is_interruption() => report.failed(at, &e, update),
            // An interruption or a suspension is the whole command's.
            stop => return Err(stop),
        }
        Ok(())
    }
}

idl::arguments! {
    /// The arguments of bulkWrite, beside those that all writing commands have.
    struct Arguments<'a> {
        "errorsOnly" => errors_only: bool = idl::strict_flag,
        "cursor" => cursor: Option<Doc<'a>> = read_cursor,
    }
    ignored: "ops" | "nsInfo";
}

/// The argument `cursor`, checked.
fn read_cursor<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    let d = idl::doc(within, e)?;
    batch_size(d)?;
    Ok(d)
}

fn batch_size(cursor: Option<Doc<'_>>) -> Result<Option<u64>> {
    match cursor {
        Some(d) => cursor::read_batch_size("bulkWrite.cursor", d),
        None => Ok(None),
    }
}

/// Arguments of other writing commands that this one does not have.
const UNKNOWN: [&str; 3] = [
    "collectionUUID",
    "isTimeseriesNamespace",
    "encryptionInformation",
];

/// What a command says.
struct Parsed<'a> {
    arguments: Arguments<'a>,
    common: Common<'a>,
    targets: Vec<Target>,
    operations: Vec<Operation<'a>>,
    /// The operations' numbers among the session's statements.
    ids: Vec<i32>,
}

impl<'a> Parsed<'a> {
    fn of(request: &Request<'a>, args: &Args<'a>) -> Result<Parsed<'a>> {
        let docs = batch::documents(request, args, AT, "ops")?;
        let infos = batch::sequence(request, args, AT, "nsInfo")?;
        let (mut arguments, mut common) = (Arguments::default(), Common::default());
        for e in args.fields.iter().copied() {
            if UNKNOWN.contains(&e.name) || !arguments.read(AT, e)? && !common.read(AT, e)? {
                return Err(args.unknown(e));
            }
        }
        let targets = infos.into_iter().map(target).collect::<Result<Vec<_>>>()?;
        let operations = docs.into_iter().map(operation);
        let operations = operations.collect::<Result<Vec<_>>>()?;
        check_targets(&operations, &targets)?;
        let ids = common.ids(operations.len());
        if ids.len() != operations.len() {
            bail!(
                InvalidOptions,
                "Number of statement ids must match the number of batch entries. Got {} statement ids but {} operations.",
                ids.len(),
                operations.len()
            );
        }
        Ok(Parsed {
            arguments,
            common,
            targets,
            operations,
            ids,
        })
    }
}

/// Fails where a server would refuse a command's arguments.
pub fn check(request: &Request<'_>) -> Result<(), Error> {
    let args = Args::parse(AT, request.body, request.legacy_db);
    let parsed = args.and_then(|args| Parsed::of(request, &args).map(drop));
    parsed.map_err(|stop| stop.into_error())
}

fn check_targets(operations: &[Operation<'_>], targets: &[Target]) -> Result<()> {
    if let Some(o) = operations.iter().find(|o| o.target >= targets.len()) {
        bail!(
            BadValue,
            "BulkWrite ops entry has an invalid nsInfo index {}: there are {}",
            o.target,
            targets.len()
        );
    }
    Ok(())
}

/// Gives operations that say nothing of a collation that of their collection.
fn collate(cx: &CommandContext<'_, '_>, operations: &mut [Operation<'_>], targets: &[Target]) {
    for o in operations {
        let collation = match &mut o.what {
            BulkStatement::Insert(_) => continue,
            BulkStatement::Update(s) => &mut s.collation,
            BulkStatement::Delete(s) => &mut s.collation,
        };
        if collation.is_none() {
            let ns = &targets[o.target].ns;
            *collation = cx.app.engine.catalog.collation_of(ns).map(Some);
        }
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Parsed {
        arguments,
        common,
        targets,
        mut operations,
        ids,
    } = Parsed::of(cx.request, &cx.args)?;
    if operations.len() > 1 {
        // A later one may have to wait for a transaction, and could not be handed over after the first.
        cx.op.need_worker()?;
    }
    collate(cx, &mut operations, &targets);
    cx.op.bypass_validation = common.bypass_validation;
    let (env, vars) = variables::variables(cx, "", &None, common.let_)?;
    let hold = batch::retryable(cx)?;
    let is_multi = |o: &Operation| match &o.what {
        BulkStatement::Insert(_) => false,
        BulkStatement::Update(s) => s.multi,
        BulkStatement::Delete(s) => s.multi,
    };
    if hold.is_some() && operations.iter().any(is_multi) {
        bail!(
            InvalidOptions,
            "Cannot use retryable writes with multi=true"
        );
    }
    let mut run = Run {
        targets,
        operations,
        ordered: common.is_ordered(),
        shared: Statements {
            env,
            vars,
            hold,
            ids,
        },
        report: Report {
            errors_only: arguments.errors_only,
            ..Report::default()
        },
    };
    run.all(cx)?;
    let Run { report, .. } = run;
    let batch = batch_size(arguments.cursor)?.unwrap_or(u64::MAX);
    let items = Box::new(Items(report.items));
    cursor::first_batch(cx, CURSOR_NS, items, batch, Keep::default())?;
    cx.w.i32("nErrors", report.errors)
        .i32("nInserted", report.inserted)
        .i32("nMatched", report.matched)
        .i32("nModified", report.modified)
        .i32("nUpserted", report.upserted)
        .i32("nDeleted", report.deleted);
    batch::retried(&mut cx.w, &report.again);
    Ok(Done::Reply)
}
