//! `$changeStream`: the aggregate whose cursor follows the log.
//!
//! Source: MongoDB 8 manual, "$changeStream (aggregation stage)" and "Change Streams".

use super::cursor::{self, FIRST_BATCH, Keep};
use super::variables;
use crate::request::collation::{self, CollationArgument};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem, Val, Writer, tag};
use changes::ResumeToken;
use changes::event::{SUMMARY_FIELDS, Scope, StreamOptions};
use errors::{Result, bail};
use executor::{ChangeStream, ChangeStreamRequest, ShowImage, StreamStart, WantedEvents};
use front::Args;
use front::idl;
use query::expr::ParseEnv;
use query::filter::{Filter, part_on};
use query::pipeline::per_document::PerDocument;

pub(super) const STAGE: &str = "$changeStream";
const SPLIT: &str = "$changeStreamSplitLargeEvent";

/// Whether the aggregate's pipeline begins with the stage; it can be nowhere else.
pub fn is_one(cx: &CommandContext<'_, '_>) -> Result<bool> {
    let stages = cx.args.field("pipeline").and_then(|v| v.as_array());
    let named = |v: Val<'_>, name: &str| {
        let first = v.as_doc().and_then(|d| d.first());
        first.is_some_and(|e| e.name == name)
    };
    let mut stages = stages.unwrap_or(Doc::EMPTY).values();
    if stages.next().is_some_and(|v| named(v, STAGE)) {
        return Ok(true);
    }
    if stages.any(|v| named(v, STAGE)) {
        bail!(
            40602,
            "{STAGE} is only valid as the first stage in a pipeline"
        );
    }
    Ok(false)
}

/// The specification of the stage.
#[derive(Default)]
struct Spec {
    full: ShowImage,
    before: ShowImage,
    resume_after: Option<ResumeToken>,
    start_after: Option<ResumeToken>,
    at: Option<u64>,
    deployment: bool,
    expanded: bool,
}

fn image(e: Elem<'_>, before: bool) -> Result<ShowImage> {
    let name = idl::string(STAGE, e)?.unwrap_or("");
    Ok(match name {
        "default" if !before => ShowImage::Off,
        "updateLookup" if !before => ShowImage::UpdateLookup,
        "off" if before => ShowImage::Off,
        "whenAvailable" => ShowImage::WhenAvailable,
        "required" => ShowImage::Required,
        _ => bail!(
            BadValue,
            "Enumeration value '{name}' for field '{STAGE}.{}' is not a valid value.",
            e.name
        ),
    })
}

fn token(e: Elem<'_>) -> Result<ResumeToken> {
    match e.val.as_doc() {
        Some(_) => ResumeToken::parse(e.val),
        None => Err(idl::mismatch(STAGE, e.name, e.val, &["object"])),
    }
}

/// Here null is not left out, it is a wrong type.
fn flag(e: Elem<'_>) -> Result<bool> {
    match e.val.as_bool() {
        Some(b) => Ok(b),
        None => Err(idl::mismatch(STAGE, e.name, e.val, &["bool"])),
    }
}

impl Spec {
    fn parse(v: Val<'_>) -> Result<Spec> {
        let Some(d) = v.as_doc() else {
            bail!(
                6188500,
                "{STAGE} must take a nested object but found: {}",
                v.type_name()
            );
        };
        let mut spec = Spec::default();
        for e in idl::unique(STAGE, d)? {
            match e.name {
                "fullDocument"
                | "fullDocumentBeforeChange"
                | "resumeAfter"
                | "startAfter"
                | "startAtOperationTime"
                    if e.val.is_nullish() => {}
                "fullDocument" => spec.full = image(e, false)?,
                "fullDocumentBeforeChange" => spec.before = image(e, true)?,
                "resumeAfter" => spec.resume_after = Some(token(e)?),
                "startAfter" => spec.start_after = Some(token(e)?),
                "startAtOperationTime" => {
                    if e.val.tag != tag::TIMESTAMP {
                        return Err(idl::mismatch(STAGE, e.name, e.val, &["timestamp"]));
                    }
                    spec.at = e.val.as_timestamp();
                }
                "allChangesForCluster" => spec.deployment = flag(e)?,
                "showExpandedEvents" => spec.expanded = flag(e)?,
                "showSystemEvents"
                | "showRawUpdateDescription"
                | "showMigrationEvents"
                | "showCommitTimestamp" => {
                    idl::boolean(STAGE, e)?;
                }
                name => return Err(idl::unknown(STAGE, name)),
            }
        }
        check_one_start(
            spec.resume_after.is_some(),
            spec.start_after.is_some(),
            spec.at.is_some(),
        )?;
        if let Some(token) = spec.resume_after
            && matches!(token.place, changes::TokenPlace::Invalidate { .. })
        {
            bail!(
                InvalidResumeToken,
                "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification."
            );
        }
        Ok(spec)
    }

    fn start(&self) -> StreamStart {
        match (self.resume_after.or(self.start_after), self.at) {
            (Some(token), _) => StreamStart::After(token),
            (None, Some(ts)) => StreamStart::At(ts),
            (None, None) => StreamStart::Now,
        }
    }
}

/// A stream begins in one way: after one token or another, or at a time.
fn check_one_start(resume_after: bool, start_after: bool, at: bool) -> Result<()> {
    if resume_after && start_after {
        bail!(
            50865,
            "Do not specify both 'resumeAfter' and 'startAfter' in a {STAGE} stage"
        );
    }
    if at && (resume_after || start_after) {
        bail!(
            40674,
            "Only one type of resume option is allowed, but multiple were found."
        );
    }
    Ok(())
}

/// What the stream is opened on; refuses where none can be.
fn scope(cx: &CommandContext<'_, '_>, coll: Option<&str>, spec: &Spec) -> Result<Scope> {
    if cx.app.config.topology.set_name().is_none() {
        bail!(40573, "The {STAGE} stage is only supported on replica sets");
    }
    let scope = named_scope(&cx.args, coll, spec)?;
    if let Scope::Collection(ns) = &scope
        && cx.app.engine.catalog.get(ns).is_some_and(|c| c.is_view())
    {
        bail!(
            CommandNotSupportedOnView,
            "{ns} is a view, not a collection. {STAGE} is not supported on views"
        );
    }
    Ok(scope)
}

/// What the stream is to be opened on, by the names alone.
fn named_scope(args: &Args<'_>, coll: Option<&str>, spec: &Spec) -> Result<Scope> {
    let db = args.db;
    if spec.deployment {
        if db != "admin" || coll.is_some() {
            bail!(
                InvalidOptions,
                "A {STAGE} with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no collection name; found {db}.{}",
                coll.unwrap_or("$cmd.aggregate")
            );
        }
        return Ok(Scope::Deployment);
    }
    if matches!(db, "admin" | "config" | "local") {
        bail!(
            InvalidNamespace,
            "{STAGE} may not be opened on the internal {db} database"
        );
    }
    let Some(coll) = coll else {
        return Ok(Scope::Database(db.to_string()));
    };
    let ns = args.namespace_of(coll)?;
    if coll.starts_with("system.") {
        bail!(
            InvalidNamespace,
            "{STAGE} may not be opened on the internal {ns} collection"
        );
    }
    Ok(Scope::Collection(ns))
}

/// What filters say of these fields alone; `None` where that is nothing.
fn wanted(filters: &[Doc<'_>], fields: &[&str], env: &ParseEnv) -> Result<Option<Filter>> {
    let parts = filters.iter().map(|f| part_on(*f, fields));
    let parts: Vec<DocBuf> = parts.filter(|p| !p.as_doc().is_empty()).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    let mut w = Writer::new();
    w.open_array("$and");
    parts.iter().for_each(|p| {
        w.push(p.as_doc().as_val());
    });
    w.close();
    Filter::parse(w.finish().as_doc(), env).map(Some)
}

idl::arguments! {
    /// The arguments of an aggregate that opens a change stream.
    struct Arguments<'a> {
        "cursor" => cursor: Option<Option<i64>> = read_cursor,
        "let" => let_: Option<Doc<'a>> = idl::doc,
        "collation" => collation: CollationArgument = collation::read,
    }
}

/// The argument `cursor`: the size of the first batch, if it tells one.
fn read_cursor(_within: &str, e: Elem<'_>) -> Result<Option<Option<i64>>> {
    let mut batch = None;
    for c in idl::unique("cursor", e.val.as_doc().unwrap_or(Doc::EMPTY))? {
        match c.name {
            "batchSize" => batch = idl::int_from("cursor", c, 0)?,
            name => return Err(idl::unknown("cursor", name)),
        }
    }
    Ok(Some(batch))
}

/// Reads the arguments that a change stream heeds; of the others of aggregate it heeds none.
fn arguments<'a>(args: &Args<'a>) -> Result<Arguments<'a>> {
    let mut a = Arguments::default();
    for e in args.fields.iter().copied() {
        a.read("aggregate", e)?;
    }
    if a.cursor.is_none() {
        bail!(
            FailedToParse,
            "The 'cursor' option is required, except for aggregate with the explain argument"
        );
    }
    Ok(a)
}

fn check_read_concern(args: &Args<'_>) -> Result<()> {
    let concern = args.generic.read_concern.and_then(|v| v.as_doc());
    match concern.and_then(|d| d.get("level")?.as_str()) {
        None | Some("majority") => Ok(()),
        Some(level) => bail!(
            InvalidOptions,
            "{STAGE} cannot run with a readConcern other than 'majority'. Current readConcern: {level}"
        ),
    }
}

/// Parses `$changeStream` itself.
fn spec(args: &Args<'_>, given: Val<'_>) -> Result<Spec> {
    let spec = Spec::parse(given)?;
    let expands = (given.as_doc()).is_some_and(|d| d.contains("showExpandedEvents"));
    if args.generic.api.strict && expands {
        bail!(
            APIStrictError,
            "BSON field '{STAGE}.showExpandedEvents' is not allowed with apiStrict:true."
        );
    }
    Ok(spec)
}

/// Checks the arguments of a stream that a router opens, whose tokens are its own.
pub fn check(args: &Args<'_>, given: Val<'_>) -> Result<()> {
    arguments(args)?;
    check_read_concern(args)?;
    let is_token = |name: &str| matches!(name, "resumeAfter" | "startAfter");
    let (mut tokens, mut others) = (Vec::new(), Writer::new());
    for e in given.as_doc().unwrap_or(Doc::EMPTY) {
        if !is_token(e.name) {
            others.val(e.name, e.val);
        } else if e.val.as_doc().is_some() {
            tokens.push(e.name);
        } else if !e.val.is_nullish() {
            return Err(idl::mismatch(STAGE, e.name, e.val, &["object"]));
        }
    }
    let others = others.finish();
    let spec = match given.as_doc() {
        Some(_) => spec(args, others.as_doc().as_val())?,
        None => spec(args, given)?,
    };
    check_one_start(
        tokens.contains(&"resumeAfter"),
        tokens.contains(&"startAfter"),
        spec.at.is_some(),
    )?;
    named_scope(args, args.first.as_str(), &spec).map(drop)
}

/// The stages after `$changeStream`.
#[derive(Default)]
struct Stages<'a> {
    pipeline: PerDocument,
    /// The conditions of the matches that come first.
    matches: Vec<Doc<'a>>,
    /// `$changeStreamSplitLargeEvent` is the last one.
    split: bool,
}

impl<'a> Stages<'a> {
    fn parse(stages: impl Iterator<Item = Val<'a>>, env: &ParseEnv) -> Result<Stages<'a>> {
        let mut parsed = Stages::default();
        let mut leading = true;
        for stage in stages {
            let stage = stage.as_doc().filter(|d| d.count() == 1);
            let Some(e) = stage.and_then(|d| d.first()) else {
                bail!(
                    40323,
                    "A pipeline stage specification object must contain exactly one field."
                );
            };
            if parsed.split {
                bail!(7182802, "{SPLIT} must be the last stage in the pipeline");
            }
            leading &= e.name == "$match";
            parsed.matches.extend(e.val.as_doc().filter(|_| leading));
            parsed.add(e, env)?;
        }
        Ok(parsed)
    }

    fn add(&mut self, e: Elem<'a>, env: &ParseEnv) -> Result<()> {
        if e.name == SPLIT {
            self.split = true;
        } else if !self.pipeline.add(e.name, e.val, env)? {
            // An unknown stage is refused as such.
            query::pipeline::check_stage(e.name)?;
            bail!(
                IllegalOperation,
                "{} is not permitted in a {STAGE} pipeline",
                e.name
            );
        }
        Ok(())
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    cx.op.need_worker()?;
    let coll = cx.args.first.as_str();
    let a = arguments(&cx.args)?;
    check_read_concern(&cx.args)?;
    let stages = cx.args.field("pipeline").and_then(|v| v.as_array());
    let mut stages = stages.into_iter().flat_map(|s| s.values());
    let first = stages.next().and_then(|v| v.as_doc()?.first());
    let spec = spec(&cx.args, first.map_or(Val::NULL, |e| e.val))?;
    let scope = scope(cx, coll, &spec)?;
    let ns = cx.args.namespace_of(coll.unwrap_or("$cmd.aggregate"))?;
    let (env, vars) = variables::variables(cx, &ns, &a.collation, a.let_)?;
    let stages = Stages::parse(stages, &env)?;
    let request = ChangeStreamRequest {
        shown: StreamOptions {
            scope,
            expanded: spec.expanded,
        },
        full: spec.full,
        before: spec.before,
        start: match (spec.start(), cx.first_run) {
            // It was read from its socket before it came to this thread.
            (StreamStart::Now, Some(ts)) => StreamStart::At(ts + 1),
            (start, _) => start,
        },
        wanted: WantedEvents {
            ns: wanted(&stages.matches, &["ns"], &env)?,
            summary: wanted(&stages.matches, &SUMMARY_FIELDS, &env)?,
        },
        pipeline: stages.pipeline,
        vars,
        split: stages.split,
    };
    let stream = ChangeStream::open(&cx.app.engine.log_tail, request)?;
    let batch = a.cursor.flatten().map_or(FIRST_BATCH, |b| b.unsigned_abs());
    cursor::first_batch(cx, &ns, Box::new(stream), batch, Keep::default())?;
    Ok(Done::Reply)
}
