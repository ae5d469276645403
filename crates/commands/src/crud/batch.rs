//! What the writing commands share: statements out of body or sequence, their ids, write errors,
//! retries.

use crate::clock::now_millis;
use crate::request::CommandContext;
use crate::request::collation::{self, CollationArgument};
use crate::request::transaction;
use bson::{Doc, Writer};
use errors::{Error, Result, bail};
use executor::StmtResult;
use front::Args;
use front::idl;
use query::expr::{ParseEnv, Vars};
use service::Request;
use session::Retryable;
use std::borrow::Cow;
use std::sync::Arc;

const MAX_STATEMENTS: usize = 100_000;

/// The statements in `field`, as many as a batch may have.
pub fn documents<'a>(
    request: &Request<'a>,
    args: &Args<'a>,
    command: &str,
    field: &str,
) -> Result<Vec<Doc<'a>>> {
    let docs = sequence(request, args, command, field)?;
    if docs.is_empty() || docs.len() > MAX_STATEMENTS {
        bail!(
            InvalidLength,
            "Write batch sizes must be between 1 and {MAX_STATEMENTS}. Got {} operations.",
            docs.len()
        );
    }
    Ok(docs)
}

/// The documents of `field`, from the body or from a document sequence.
pub fn sequence<'a>(
    request: &Request<'a>,
    args: &Args<'a>,
    command: &str,
    field: &str,
) -> Result<Vec<Doc<'a>>> {
    let mut docs: Vec<Doc<'a>> = match request.sequence(field) {
        Some(s) => s.collect(),
        None => Vec::new(),
    };
    let from_sequence = request.sequences.iter().any(|s| s.name == field);
    for e in args.fields.iter().filter(|e| e.name == field) {
        if from_sequence {
            return Err(idl::duplicate(command, field));
        }
        let Some(a) = idl::array(command, *e)? else {
            continue;
        };
        for (i, v) in a.values().enumerate() {
            let Some(d) = v.as_doc() else {
                bail!(
                    TypeMismatch,
                    "BSON field '{command}.{field}.{i}' is the wrong type '{}', expected type 'object'",
                    v.type_name()
                );
            };
            docs.push(d);
        }
    }
    if !from_sequence
        && !args
            .fields
            .iter()
            .any(|e| e.name == field && !e.val.is_nullish())
    {
        return Err(idl::missing(command, field));
    }
    Ok(docs)
}

idl::arguments! {
    /// Arguments that all writing commands have.
    pub struct Common<'a> {
        "ordered" => ordered: Option<bool> = idl::boolean,
        "let" => let_: Option<Doc<'a>> = idl::doc,
        "bypassDocumentValidation" => bypass_validation: bool = idl::flag,
        "stmtIds" => stmt_ids: Option<Doc<'a>> = idl::array,
        "stmtId" => stmt_id: Option<i64> = idl::int,
    }
    checked: "encryptionInformation" => idl::no_encryption;
    ignored: "isTimeseriesNamespace" | "collectionUUID" | "bypassEmptyTsReplacement";
}

impl Common<'_> {
    pub fn is_ordered(&self) -> bool {
        self.ordered.unwrap_or(true)
    }

    /// The ids of `n` statements.
    pub fn ids(&self, n: usize) -> Vec<i32> {
        match self.stmt_ids {
            Some(ids) => ids
                .values()
                .map(|v| v.to_i64_truncated().unwrap_or(0) as i32)
                .collect(),
            None => {
                let first = self.stmt_id.unwrap_or(0) as i32;
                (0..n as i32).map(|i| first.wrapping_add(i)).collect()
            }
        }
    }
}

/// What the statements of one command share: their surroundings, and if the command is a retryable
/// write, its hold on the session and the id of each statement.
pub struct Statements {
    pub env: ParseEnv,
    pub vars: Arc<Vars>,
    pub hold: Option<Retryable>,
    pub ids: Vec<i32>,
}

impl Statements {
    /// What a statement did when it ran before: it is not run again.
    pub fn executed(&self, at: usize) -> Option<&StmtResult> {
        self.hold.as_ref()?.executed(self.id(at))
    }

    pub fn id(&self, at: usize) -> i32 {
        self.ids.get(at).copied().unwrap_or(0)
    }

    /// The surroundings of a statement with a collation of its own.
    pub fn env_of(
        &self,
        cx: &CommandContext<'_, '_>,
        ns: &str,
        given: &CollationArgument,
    ) -> Result<Cow<'_, ParseEnv>> {
        Ok(match given {
            None => Cow::Borrowed(&self.env),
            given => {
                let collation = collation::effective(cx, ns, given)?;
                Cow::Owned(self.env.clone().collated(collation))
            }
        })
    }
}

/// The hold on the session of a retryable write, when this is one.
pub fn retryable(cx: &CommandContext) -> Result<Option<Retryable>> {
    let g = &cx.args.generic;
    if transaction::is_statement(&cx.args) {
        return Ok(None);
    }
    match (g.lsid, g.txn_number) {
        (Some(lsid), Some(txn)) => cx
            .app
            .session_table
            .begin(&cx.op, lsid, txn, now_millis())
            .map(Some),
        (None, Some(_)) => bail!(
            InvalidOptions,
            "Transaction number requires a session ID to also be specified"
        ),
        _ => Ok(None),
    }
}

/// Writes which statements were not run again, when there are any.
pub fn retried(w: &mut Writer, ids: &[i32]) {
    if ids.is_empty() {
        return;
    }
    w.open_array("retriedStmtIds");
    for id in ids {
        w.i32("", *id);
    }
    w.close();
}

/// Writes `writeErrors`, when there are any.
pub fn write_errors(w: &mut Writer, errors: &[(usize, Error)]) {
    if errors.is_empty() {
        return;
    }
    w.open_array("writeErrors");
    let mut bytes = 0;
    for (at, e) in errors {
        w.open_doc("")
            .i32("index", *at as i32)
            .i32("code", e.code.0);
        if let Some(extra) = e.extra.as_deref().and_then(Doc::new) {
            w.extend(extra);
        }
        // As MongoDB: past a megabyte the messages are left out.
        bytes += e.message.len();
        w.str("errmsg", if bytes < 1 << 20 { &e.message } else { "" });
        w.close();
    }
    w.close();
}

/// An error that is the whole command's, not one statement's.
pub fn is_fatal(e: &Error) -> bool {
    use errors::Code;
    matches!(
        e.code,
        Code::Interrupted
            | Code::MaxTimeMSExpired
            | Code::CommandNotSupportedOnView
            | Code::InvalidNamespace
            | Code::WriteConflict
            | Code::LockTimeout
            | Code::SnapshotUnavailable
            | Code::TransactionTooLargeForCache
            | Code::OperationNotSupportedInTransaction
            // A driver looks for them in the reply, not in its statements.
            | Code::NotWritablePrimary
            | Code::PrimarySteppedDown
            | Code::InterruptedDueToReplStateChange
    )
}
