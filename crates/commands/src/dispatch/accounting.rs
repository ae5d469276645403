//! After a command has run: the counters, `top`, the log of slow commands and the profiler.

use crate::Commands;
use crate::monitoring::command_counts;
use crate::monitoring::latency::class_of;
use crate::monitoring::metrics::{DocumentWork, OperationKind, Top, Usage, kind_of};
use crate::profiler::Observed;
use crate::request::Call;
use crate::security::audit::EndedCommand;
use bson::{Doc, DocBuf};
use errors::Error;
use executor::Examined;
use front::Args;
use parking_lot::Mutex;
use planner::Plan;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What a command did, for the counters.
pub(crate) struct Account<'a, 'r> {
    pub args: &'a Args<'r>,
    pub failure: Option<&'a Error>,
    /// The reply document.
    pub reply: &'a [u8],
    /// The duration, without the time spent waiting for other operations.
    pub elapsed: Duration,
    pub statements: u64,
    pub work: DocumentWork,
    /// By collection, of a command on several.
    pub spent: Vec<(String, OperationKind, Usage)>,
    pub plan: Option<Arc<Plan>>,
    pub examined: Examined,
    /// Of what the planner looked at, and of the query's shape; only where the command may be told of.
    pub hashes: Option<(String, Option<String>)>,
    /// Collections that it made because something was written to them.
    pub made: SmallVec<[String; 1]>,
    /// The command that made the cursor of a getMore.
    pub originating: Option<DocBuf>,
}

impl Commands {
    /// Counts a finished command in the counters of its thread (`top`) and of the server, and
    /// passes it to the profiler.
    pub(crate) fn account(&self, call: &Call<'_, '_>, top: &Mutex<Top>, account: Account<'_, '_>) {
        self.samplers.see(call.request);
        if let Some(audit) = &self.security.audit {
            audit.observe(&EndedCommand {
                client: call.client,
                command: call.command.name,
                db: account.args.db,
                request: call.request,
                failure: account.failure,
                made: &account.made,
            });
        }
        self.count(call, top, account);
    }

    /// The same without samples and the audit log: of a step of a router's command, which heeds these
    /// itself.
    pub(crate) fn count(&self, call: &Call<'_, '_>, top: &Mutex<Top>, account: Account<'_, '_>) {
        command_counts::of(call.command).total.fetch_add(1, Relaxed);
        if account.failure.is_none() {
            self.operators.see(call.command.name, call.request);
        }
        self.counters
            .add(kind_of(call.command.name), account.statements);
        count_in_top(call, &mut top.lock(), &account);
        if self.profiler.wants(account.elapsed) {
            self.observe(&Observed {
                client: call.client,
                command: call.command,
                request: call.request,
                db: account.args.db,
                first: account.args.first,
                reply: Doc::new(account.reply).unwrap_or(Doc::EMPTY),
                failure: account.failure,
                plan: account.plan,
                examined: account.examined,
                hashes: account.hashes,
                elapsed: account.elapsed,
                originating: account.originating,
            });
        }
    }
}

fn count_in_top(call: &Call<'_, '_>, top: &mut Top, account: &Account<'_, '_>) {
    let name = call.command.name;
    let (kind, class) = (kind_of(name), class_of(name));
    let micros = account.elapsed.as_micros() as u64;
    let mut work = account.work;
    work.keys_examined = account.examined.keys;
    work.docs_examined = account.examined.docs;
    work.hidden_keys = account.examined.hidden;
    if let Some(plan) = &account.plan {
        work.scans = u64::from(plan.access.is_scan());
        work.sorts = u64::from(plan.sort.is_some());
    }
    top.ran(class, micros, &work);
    for (ns, kind, usage) in &account.spent {
        let (db, coll) = (catalog::db_of(ns), catalog::collection_of(ns));
        top.used(db, coll, *kind, class, *usage);
    }
    // What it dropped is not to be counted again.
    let drops = matches!(name, "drop" | "renameCollection") && account.failure.is_none();
    if let Some((db, coll)) = target(call, account.args).filter(|_| !drops) {
        top.used(db, coll, kind, class, Usage { micros, count: 1 });
        if work.scans > 0 {
            top.scanned(db, coll);
        }
    }
}

/// The database and the collection that a command was about.
fn target<'a>(call: &Call<'_, '_>, args: &Args<'a>) -> Option<(&'a str, &'a str)> {
    match call.command.name {
        "getMore" => Some((args.db, args.field("collection")?.as_str()?)),
        _ => call.command.target(args.db, args.first),
    }
}
