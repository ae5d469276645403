//! `compactStructuredEncryptionData` and `cleanupStructuredEncryptionData`: there is no state of
//! Queryable Encryption that could be compacted or cleaned up, so what the client asks is checked and
//! answered with empty figures.

use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Error, Result, bail, err};
use front::{Args, idl};

/// What the two differ in.
struct Kind {
    command: &'static str,
    /// In messages.
    verb: &'static str,
    tokens: &'static str,
    token: &'static str,
}

const COMPACT: Kind = Kind {
    command: "compactStructuredEncryptionData",
    verb: "compact",
    tokens: "compactionTokens",
    token: "Compaction",
};

const CLEANUP: Kind = Kind {
    command: "cleanupStructuredEncryptionData",
    verb: "cleanup",
    tokens: "cleanupTokens",
    token: "Cleanup",
};

pub fn compact(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    run(cx, &COMPACT)
}

pub fn cleanup(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    run(cx, &CLEANUP)
}

/// Checks the arguments of either.
pub fn check(args: &Args<'_>) -> Result<()> {
    let both = [COMPACT, CLEANUP];
    match both.iter().find(|k| k.command == args.command) {
        Some(kind) => arguments(args, kind).map(drop),
        None => Ok(()),
    }
}

/// The collection, and the tokens.
fn arguments<'a>(args: &Args<'a>, kind: &Kind) -> Result<(String, Doc<'a>)> {
    let at = kind.command;
    let ns = args.namespace()?;
    let mut tokens = None;
    for e in &args.fields {
        match e.name {
            name if name == kind.tokens => tokens = idl::doc(at, *e)?,
            "encryptionInformation" if kind.verb == "compact" => {
                idl::doc(at, *e)?;
            }
            "anchorPaddingFactor" if kind.verb == "compact" => {
                idl::int(at, *e)?;
            }
            _ => return Err(args.unknown(*e)),
        }
    }
    Ok((ns, idl::required(at, kind.tokens, tokens)?))
}

fn absent(ns: &str) -> Error {
    err!(NamespaceNotFound, "Collection '{ns}' does not exist")
}

/// Of a collection that is not there either says only that.
pub fn check_absent(args: &Args<'_>) -> Result<()> {
    check(args)?;
    Err(absent(&args.namespace()?).into())
}

fn run(cx: &mut CommandContext<'_, '_>, kind: &Kind) -> Result<Done> {
    let (ns, tokens) = arguments(&cx.args, kind)?;
    let Some(coll) = cx.app.engine.catalog.get(&ns) else {
        return Err(absent(&ns).into());
    };
    if coll.is_view() {
        bail!(
            CommandNotSupportedOnView,
            "Cannot {} structured encryption data on a view",
            kind.verb
        );
    }
    let Some(encrypted) = coll.option("encryptedFields").and_then(|v| v.as_doc()) else {
        bail!(
            6346807,
            "Target namespace is not an encrypted collection: {ns}"
        )
    };
    let fields = encrypted.get("fields").and_then(|v| v.as_array());
    for f in fields
        .unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|v| v.as_doc())
    {
        let path = f.get("path").and_then(|v| v.as_str()).unwrap_or("");
        if tokens.get(path).is_none() {
            bail!(
                7294900,
                "{} token missing for encrypted path: {path}",
                kind.token
            );
        }
    }
    cx.w.open_doc("stats");
    for (name, figures) in [
        ("ecoc", &["read", "deleted"][..]),
        ("esc", &["read", "inserted", "updated", "deleted"][..]),
    ] {
        cx.w.open_doc(name);
        for f in figures {
            cx.w.i64(f, 0);
        }
        cx.w.close();
    }
    cx.w.close();
    Ok(Done::Reply)
}
