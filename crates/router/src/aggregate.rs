//! `aggregate`: the whole pipeline on one shard where all of its documents are there. Otherwise the
//! stages that look at one document at a time run on the shards, and the rest here, on a scratch
//! collection.
//!
//! Invariant: a stage that needs all documents sees all of them.

use crate::cluster_stages::{self, naming};
use crate::cursors::{self, Source};
use crate::find::{first_batch, several_shards, targets};
use crate::merge::Merge;
use crate::metadata::{Placement, Whole};
use crate::request::{Command, finish};
use crate::service_impl::{Router, compute};
use crate::{Failure, Outcome, change_stream, ddl, merge_into, views};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use errors::err;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Documents put into a scratch collection at a time, in bytes.
const PUT_BYTES: usize = 8 << 20;
const SHARD_BATCH: i64 = 1000;

/// Stages that look at one document at a time, and need nothing else.
const STREAMING: [&str; 9] = [
    "$match",
    "$project",
    "$addFields",
    "$set",
    "$unset",
    "$unwind",
    "$replaceRoot",
    "$replaceWith",
    "$redact",
];

pub(crate) fn stage_of(stage: Val<'_>) -> Option<(&str, Val<'_>)> {
    let e = stage.as_doc()?.first()?;
    Some((e.name, e.val))
}

/// The other collections that a pipeline reads or writes, by full name.
fn foreign(db: &str, stages: Doc<'_>, found: &mut Vec<String>) {
    for (name, v) in stages.values().filter_map(stage_of) {
        let spec = v.as_doc().unwrap_or(Doc::EMPTY);
        let mut add = |v: Option<Val<'_>>| {
            let (at, coll) = match v.map(|v| (v.as_str(), v.as_doc())) {
                Some((Some(coll), _)) => (db, coll),
                Some((_, Some(d))) => {
                    let text = |name: &str| d.get(name).and_then(Val::as_str);
                    (text("db").unwrap_or(db), text("coll").unwrap_or(""))
                }
                _ => return,
            };
            if !coll.is_empty() {
                found.push(format!("{at}.{coll}"));
            }
        };
        match name {
            "$lookup" | "$graphLookup" => add(spec.get("from")),
            "$unionWith" if v.as_str().is_some() => add(Some(v)),
            "$unionWith" => add(spec.get("coll")),
            "$out" => add(Some(v)),
            "$merge" if v.as_str().is_some() => add(Some(v)),
            "$merge" => add(spec.get("into")),
            "$facet" => {
                for f in spec {
                    foreign(db, f.val.as_array().unwrap_or(Doc::EMPTY), found);
                }
            }
            _ => {}
        }
        if let Some(inner) = spec.get("pipeline").and_then(Val::as_array) {
            foreign(db, inner, found);
        }
    }
}

/// The filter of the documents that a pipeline begins with.
fn first_filter(stages: Doc<'_>) -> Doc<'_> {
    match stages.values().next().and_then(stage_of) {
        Some(("$match", filter)) => filter.as_doc().unwrap_or(Doc::EMPTY),
        _ => Doc::EMPTY,
    }
}

pub(crate) fn run(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let stages = command
        .field("pipeline")
        .and_then(Val::as_array)
        .unwrap_or(Doc::EMPTY);
    let first = stages.values().next().and_then(stage_of);
    if let Some(("$changeStream", spec)) = first {
        return change_stream::open(router, command, stages, spec);
    }
    if command.collection().is_empty() {
        let told = match first {
            Some(stage) => cluster_stages::documents(router, command, stage)?,
            None => None,
        };
        return match told {
            Some(documents) => of_the_cluster(router, command, &documents, stages),
            None => without_collection(router, command),
        };
    }
    let ns = command.namespace()?;
    let mut others = Vec::new();
    foreign(command.db, stages, &mut others);
    let written = Written::of(command.db, stages);
    if let Some(written) = &written {
        ddl::make_database(&router.cluster, &written.db, None)?;
        router.cluster.refresh(&written.ns())?;
    }
    let outcome = read(router, command, stages, &ns, &others, written.is_some())?;
    match (outcome, written) {
        (Some(reply), _) => match views::told(&reply) {
            Some(view) => views::aggregate(router, command, &view),
            None => Ok(reply),
        },
        (None, Some(written)) => merge_into::run(router, command, stages, &written),
        (None, None) => Err(err!(InternalError, "a pipeline was not run").into()),
    }
}

/// Runs a pipeline; `None`: it writes, and not all of it is on one shard.
fn read(
    router: &Router,
    command: &Command<'_>,
    stages: Doc<'_>,
    ns: &str,
    others: &[String],
    writes: bool,
) -> Outcome<Option<DocBuf>> {
    router.cluster.agree(ns, |placement| {
        let Some(placement) = placement else {
            if writes || others.is_empty() {
                ddl::make_database(&router.cluster, command.db, None)?;
                router.cluster.refresh(ns)?;
            }
            let Some(home) = router.cluster.home(command.db)? else {
                return Err(crate::routing::no_database(command.db));
            };
            let shard = home.shard.clone();
            let whole = Placement::Whole(Whole::at_home(&home));
            let body = naming(command.whole(), &shard);
            let reply = router.send(command, &whole, &shard, &body, &[])?;
            return Ok(Some(cursors::adopt(router, ns, &shard, reply)));
        };
        let mut shards = targets(command, placement, first_filter(stages))?;
        let foreign_here = others.iter().try_fold(true, |all, other| {
            let here = match router.cluster.placement(other)? {
                None => true,
                Some(Placement::Whole(Whole { shard, .. })) => shards.as_slice() == [shard],
                Some(Placement::Sharded(_)) => false,
            };
            Ok::<bool, Failure>(all && here)
        })?;
        if shards.len() == 1 && foreign_here {
            let body = naming(command.whole(), &shards[0]);
            let reply = router.send(command, placement, &shards[0], &body, &[])?;
            return Ok(Some(cursors::adopt(router, ns, &shards[0], reply)));
        }
        if command.in_transaction() && !others.is_empty() {
            return Err(several_shards());
        }
        if writes {
            return Ok(None);
        }
        shards.dedup();
        split(router, command, placement, ns, &shards, stages).map(Some)
    })
}

/// The rest of a pipeline that begins with what is told of the cluster.
fn of_the_cluster(
    router: &Router,
    command: &Command<'_>,
    documents: &[DocBuf],
    stages: Doc<'_>,
) -> Outcome<DocBuf> {
    let scratch = Scratch::new(router, command.db);
    for some in documents.chunks(SHARD_BATCH as usize) {
        let mut w = Writer::new_array();
        some.iter().for_each(|d| {
            w.push(d.as_doc().as_val());
        });
        let batch = w.finish_array();
        scratch.put(batch.as_val().as_array().unwrap_or(Doc::EMPTY))?;
    }
    let rest: Vec<Value> = stages.values().skip(1).map(|s| s.to_value()).collect();
    let ns = format!("{}.$cmd.aggregate", command.db);
    ended(router, command, &ns, scratch, &rest, &[])
}

/// Where a pipeline writes.
pub(crate) struct Written {
    pub db: String,
    pub coll: String,
    /// `$out`, and not `$merge`.
    pub replaces: bool,
}

impl Written {
    fn of(db: &str, stages: Doc<'_>) -> Option<Written> {
        let (name, spec) = stages.values().last().and_then(stage_of)?;
        let replaces = match name {
            "$out" => true,
            "$merge" => false,
            _ => return None,
        };
        let target = match (replaces, spec.as_doc()) {
            (false, Some(d)) => d.get("into")?,
            _ => spec,
        };
        let (db, coll) = match target.as_doc() {
            Some(d) => (
                d.get("db").and_then(Val::as_str).unwrap_or(db),
                d.get("coll")?.as_str()?,
            ),
            None => (db, target.as_str()?),
        };
        Some(Written {
            db: db.into(),
            coll: coll.into(),
            replaces,
        })
    }

    pub fn ns(&self) -> String {
        format!("{}.{}", self.db, self.coll)
    }
}

/// `aggregate: 1`: about the server itself, or of documents that come with it.
fn without_collection(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let reply = compute(router, &command.whole())?;
    let id = cursors::cursor_id(&reply);
    if id == 0 {
        return Ok(reply);
    }
    let ns = format!("{}.$cmd.aggregate", command.db);
    let source = Source::Scratch {
        id,
        db: command.db.into(),
        collection: "$cmd.aggregate".into(),
    };
    Ok(cursors::renumber(reply, router.cursors.add(&ns, source)))
}

/// The stages for the shards, and those for here.
fn parts<'a>(stages: Doc<'a>) -> (Vec<Val<'a>>, Vec<Val<'a>>) {
    let all: Vec<Val<'a>> = stages.values().collect();
    let streams = |stage: &&Val<'a>| stage_of(**stage).is_some_and(|s| STREAMING.contains(&s.0));
    let many = all.iter().take_while(streams).count();
    let (shards, here) = all.split_at(many);
    (shards.to_vec(), here.to_vec())
}

/// The stages for the shards and those for here, as they are run.
pub(crate) fn divided(stages: Doc<'_>) -> (Value, Value) {
    let (mut on_shards, here) = parts(stages);
    let mut rest: Vec<Value> = here.iter().map(|s| s.to_value()).collect();
    push_down(&mut on_shards, &here, &mut rest);
    let mut each = Writer::new_array();
    on_shards.iter().for_each(|s| {
        each.push(*s);
    });
    let mut left = Writer::new_array();
    rest.iter().for_each(|s| {
        left.push(s.as_val());
    });
    (each.finish_array(), left.finish_array())
}

/// Gives the shards the first stage of the rest, where it can be done in two steps.
fn push_down<'a>(on_shards: &mut Vec<Val<'a>>, here: &[Val<'a>], rest: &mut Vec<Value>) {
    let about = |s: &Val<'_>| {
        stage_of(*s)
            .is_some_and(|s| matches!(s.0, "$collStats" | "$indexStats" | "$planCacheStats"))
    };
    let Some(first) = here.first() else { return };
    if about(first) {
        on_shards.push(*first);
        rest.remove(0);
    } else if let Some(second) = regroup(*first) {
        on_shards.push(*first);
        rest[0] = second.into();
    }
}

/// A `$group` whose results can be grouped once more: that second group.
fn regroup(stage: Val<'_>) -> Option<DocBuf> {
    let ("$group", spec) = stage_of(stage)? else {
        return None;
    };
    let mut w = Writer::new();
    w.open_doc("$group").str("_id", "$_id");
    for f in spec.as_doc()?.iter().filter(|f| f.name != "_id") {
        let operator = f.val.as_doc()?.first()?.name;
        if !matches!(operator, "$sum" | "$min" | "$max") || f.name.contains('.') {
            return None;
        }
        w.open_doc(f.name)
            .str(operator, &format!("${}", f.name))
            .close();
    }
    Some(w.finish())
}

fn split(
    router: &Router,
    command: &Command<'_>,
    placement: &Placement,
    ns: &str,
    shards: &[Arc<str>],
    stages: Doc<'_>,
) -> Outcome<DocBuf> {
    let (mut on_shards, here) = parts(stages);
    if let Some((name, _)) = here.first().and_then(|s| stage_of(*s))
        && matches!(
            name,
            "$changeStream" | "$geoNear" | "$search" | "$vectorSearch"
        )
    {
        return Err(err!(
            NotImplemented,
            "{name} over several shards is not supported by the router yet"
        )
        .into());
    }
    let mut rest: Vec<Value> = here.iter().map(|s| s.to_value()).collect();
    push_down(&mut on_shards, &here, &mut rest);
    let mut w = command.without(&["pipeline", "cursor"]);
    w.open_array("pipeline");
    on_shards.iter().for_each(|s| {
        w.push(*s);
    });
    w.close()
        .open_doc("cursor")
        .i64("batchSize", SHARD_BATCH)
        .close();
    let each = w.finish();
    let to = shards.iter();
    let commands: Vec<_> = to.map(|s| (s.clone(), naming(each.clone(), s))).collect();
    let replies = router.scatter(command, placement, &commands)?;
    if let Some(view) = replies.iter().find(|r| views::told(r).is_some()) {
        return Ok(view.clone());
    }
    let mut merge = Merge {
        ns: ns.into(),
        parts: Vec::new(),
        sort: None,
        skip: 0,
        left: None,
        batch: SHARD_BATCH,
        projection: None,
        session: command.session_fields(),
    };
    merge.begin(shards, &replies)?;
    let most = command
        .document("cursor")
        .and_then(|c| c.get("batchSize")?.to_i64_exact());
    if rest.is_empty() {
        return first_batch(router, merge, ns, most, false, &replies);
    }
    here_on(router, command, ns, merge, &rest, &replies)
}

/// Runs the rest of a pipeline here, over what the shards give.
fn here_on(
    router: &Router,
    command: &Command<'_>,
    ns: &str,
    mut merge: Merge,
    rest: &[Value],
    replies: &[DocBuf],
) -> Outcome<DocBuf> {
    let scratch = Scratch::new(router, command.db);
    let mut w = Writer::new_array();
    loop {
        let done = merge.fill(&router.cluster, &mut w, Some(SHARD_BATCH))?;
        if done || w.len() > PUT_BYTES {
            let batch = std::mem::replace(&mut w, Writer::new_array()).finish_array();
            scratch.put(batch.as_val().as_array().unwrap_or(Doc::EMPTY))?;
        }
        if done {
            break;
        }
    }
    ended(router, command, ns, scratch, rest, replies)
}

/// The last stages of a pipeline, over what lies in a scratch collection.
fn ended(
    router: &Router,
    command: &Command<'_>,
    ns: &str,
    scratch: Scratch<'_>,
    rest: &[Value],
    replies: &[DocBuf],
) -> Outcome<DocBuf> {
    let mut stages = Writer::new_array();
    stages.push(
        doc! {"$replaceRoot": doc! {"newRoot": "$d"}}
            .as_doc()
            .as_val(),
    );
    for stage in rest {
        stages.push(stage.as_val());
    }
    let mut w = Writer::new();
    w.str("aggregate", &scratch.name)
        .val("pipeline", stages.finish_array().as_val());
    for name in ["cursor", "collation", "let", "allowDiskUse", "maxTimeMS"] {
        if let Some(v) = command.field(name) {
            w.val(name, v);
        }
    }
    w.str("$db", command.db);
    let reply = compute(router, &w.finish())?;
    let id = cursors::cursor_id(&reply);
    let reply = cursors::with_ns(reply, ns);
    let reply = match id {
        0 => reply,
        id => {
            let source = Source::Scratch {
                id,
                db: command.db.into(),
                collection: scratch.keep(),
            };
            cursors::renumber(reply, router.cursors.add(ns, source))
        }
    };
    let mut w = Writer::new();
    for e in reply.as_doc().iter().filter(|e| e.name != "ok") {
        w.val(e.name, e.val);
    }
    Ok(finish(w, replies))
}

/// A collection of the scratch server, which goes with this.
pub(crate) struct Scratch<'r> {
    router: &'r Router,
    /// That of the command: names in its stages are of that database.
    db: &'r str,
    name: String,
    next: std::cell::Cell<i64>,
    kept: bool,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

impl<'r> Scratch<'r> {
    pub fn new(router: &'r Router, db: &'r str) -> Scratch<'r> {
        Scratch {
            router,
            db,
            name: format!("merge{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
            next: std::cell::Cell::new(0),
            kept: false,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts documents at its end. They may lack an `_id`, or share one.
    fn put(&self, docs: Doc<'_>) -> Outcome<()> {
        let mut w = Writer::new();
        w.str("insert", &self.name).open_array("documents");
        let mut any = false;
        for d in docs.values() {
            let mut one = Writer::new();
            one.i64("_id", self.next.get()).val("d", d);
            self.next.set(self.next.get() + 1);
            w.push(one.finish().as_doc().as_val());
            any = true;
        }
        w.close().str("$db", self.db);
        if any {
            let reply = compute(self.router, &w.finish())?;
            if let Some(errors) = reply.get("writeErrors") {
                return Err(err!(InternalError, "merging: {errors}").into());
            }
        }
        Ok(())
    }

    fn keep(mut self) -> String {
        self.kept = true;
        self.name.clone()
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let _ = compute(self.router, &doc! {"drop": &self.name, "$db": self.db});
        }
    }
}
