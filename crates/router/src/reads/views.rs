//! Reads of views. A shard that is asked for a view says what it is made of, because what lies
//! below may be on other shards; the router reads that.
//!
//! Invariant: a cursor over a view bears the view's name.

use crate::reads::aggregate;
use crate::request::{RoutedCommand, finish, own};
use crate::state::{Router, cursors};
use crate::targeting::pipeline::{fuses, stage_of};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::reply::sound;
use errors::{Code, err};

/// A view as its shard tells of it.
pub(crate) struct View {
    /// The collection, or the view, below it.
    on: String,
    pipeline: DocBuf,
    collation: DocBuf,
}

/// The view that a shard's reply tells of.
pub(crate) fn resolved_view(reply: &DocBuf) -> Option<View> {
    let code = reply.get("code")?.to_i64_exact()?;
    let refused = code == i64::from(Code::CommandOnShardedViewNotSupportedOnMongod.0);
    let view = reply.get("resolvedView").filter(|_| refused)?.as_doc()?;
    let ns = view.get("ns")?.as_str()?;
    let collation = view.get("collation").and_then(Val::as_doc);
    Some(View {
        on: ns.split_once('.')?.1.into(),
        pipeline: view.get("pipeline")?.as_array()?.to_buf(),
        collation: collation.map(Doc::to_buf).unwrap_or_default(),
    })
}

/// The view of that name, as the shard has it where the database is.
fn defined(router: &Router, db: &str, name: &str) -> Outcome<Option<View>> {
    let asked =
        doc! {"listCollections": 1, "filter": doc! {"name": name, "type": "view"}, "$db": db};
    let reply = router.cluster.agree_database(db, |primary| {
        let Some(primary) = primary else {
            return Ok(None);
        };
        let placement = Placement::Unsharded(Unsharded::on_primary(primary));
        let sent = router
            .cluster
            .send(&placement, &primary.shard, asked.as_doc(), &[]);
        sent.map(Some)
    })?;
    let reply = reply.map(sound).transpose()?;
    let found = reply
        .as_ref()
        .and_then(|r| cluster_view::reply::batch_of(r).next());
    let Some(options) = found.and_then(|d| d.get("options")?.as_doc()) else {
        return Ok(None);
    };
    let on = options.get("viewOn").and_then(Val::as_str);
    let part = |name: &str| options.get(name).and_then(Val::as_container);
    Ok(on.map(|on| View {
        on: on.into(),
        pipeline: part("pipeline").map(Doc::to_buf).unwrap_or_default(),
        collation: part("collation").map(Doc::to_buf).unwrap_or_default(),
    }))
}

/// The pipeline below the view that a command reads, without having its shard begin to read; `None` if
/// it reads no view.
pub(crate) fn below_defined(
    router: &Router,
    command: &RoutedCommand<'_>,
) -> Outcome<Option<DocBuf>> {
    let stages = command.field("pipeline").and_then(Val::as_array);
    // A pipeline that ranks what others find asks the view itself.
    if !matches!(command.name, "find" | "aggregate" | "count" | "distinct")
        || command.collection().is_empty()
        || fuses(stages.unwrap_or(Doc::EMPTY))
    {
        return Ok(None);
    }
    let placement = router.cluster.placement(&command.namespace()?)?;
    if !matches!(placement, Some(Placement::Unsharded(_))) {
        return Ok(None);
    }
    match defined(router, command.db, command.collection())? {
        Some(view) => below(command, &view),
        None => Ok(None),
    }
}

/// What of a command stays as it is when it becomes a pipeline.
const KEPT: [&str; 13] = [
    "let",
    "hint",
    "allowDiskUse",
    "maxTimeMS",
    "comment",
    "lsid",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "readConcern",
    "writeConcern",
    "$readPreference",
    "bypassDocumentValidation",
];

/// The pipeline of a view, then `write`'s stages.
fn over(
    command: &RoutedCommand<'_>,
    view: &View,
    batch: Option<i64>,
    write: impl Fn(&mut Writer),
) -> Outcome<DocBuf> {
    over_pipeline(command, view, batch, |w| {
        view.pipeline.as_doc().values().for_each(|s| {
            w.push(s);
        });
        write(w);
    })
}

/// The pipeline of a view with these stages alone.
fn over_pipeline(
    command: &RoutedCommand<'_>,
    view: &View,
    batch: Option<i64>,
    write: impl Fn(&mut Writer),
) -> Outcome<DocBuf> {
    check_collation(command, view)?;
    let mut w = Writer::new();
    w.str("aggregate", &view.on).open_array("pipeline");
    write(&mut w);
    w.close().open_doc("cursor");
    if let Some(n) = batch {
        w.i64("batchSize", n);
    }
    w.close();
    for name in KEPT {
        if let Some(v) = command.field(name) {
            w.val(name, v);
        }
    }
    // A find's sort by the natural order.
    let natural = command.document("sort").filter(|d| d.contains("$natural"));
    if let Some(sort) = natural.filter(|_| command.field("hint").is_none()) {
        w.doc("hint", sort);
    }
    match view.collation.as_doc().is_empty() {
        true => w.open_doc("collation").str("locale", "simple").close(),
        false => w.doc("collation", view.collation.as_doc()),
    };
    w.str("$db", command.db);
    Ok(w.finish())
}

/// A view is read by its own collation.
fn check_collation(command: &RoutedCommand<'_>, view: &View) -> Outcome<()> {
    let given = commands::given_collation(command.own_collation())?;
    let own = commands::given_collation(Some(view.collation.as_doc()))?;
    match given {
        Some(given) if given != own.flatten() => Err(err!(
            OptionNotSupportedOnView,
            "Cannot override a view's default collation: {}",
            command.namespace()?
        )
        .into()),
        _ => Ok(()),
    }
}

fn stage(w: &mut Writer, name: &str, v: Val<'_>) {
    w.open_doc("").val(name, v).close();
}

fn non_empty<'a>(command: &RoutedCommand<'a>, name: &str) -> Option<Doc<'a>> {
    command.document(name).filter(|d| !d.is_empty())
}

fn skip_and_limit(w: &mut Writer, command: &RoutedCommand<'_>) {
    for (name, field) in [("$skip", "skip"), ("$limit", "limit")] {
        let n = command.int(field).unwrap_or(0).saturating_abs();
        if n > 0 {
            stage(w, name, bson::Value::from(n).as_val());
        }
    }
}

/// A find of a collection that is sorted by how well documents match, which only their shards know:
/// as a pipeline.
pub(crate) fn find_by_score(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let collation = command.own_collation().map(Doc::to_buf);
    let itself = View {
        on: command.collection().into(),
        pipeline: DocBuf::new(),
        collation: collation.unwrap_or_default(),
    };
    find(router, command, &itself)
}

/// A find's projection as stages: there scores are fields beside all others.
fn project(w: &mut Writer, projection: Doc<'_>) {
    let is_meta = |v: Val<'_>| v.as_doc().is_some_and(|d| d.contains("$meta"));
    let is_exclusion = |v: Val<'_>| (v.is_number() || v.as_bool().is_some()) && !v.truthy();
    let metas = || projection.iter().filter(|e| is_meta(e.val));
    let others = || projection.iter().filter(|e| !is_meta(e.val));
    if metas().next().is_none() || !others().all(|e| is_exclusion(e.val)) {
        return stage(w, "$project", projection.as_val());
    }
    let mut fields = Writer::new();
    metas().for_each(|e| {
        fields.val(e.name, e.val);
    });
    stage(w, "$addFields", fields.finish().as_doc().as_val());
    if others().next().is_some() {
        let mut fields = Writer::new();
        others().for_each(|e| {
            fields.val(e.name, e.val);
        });
        stage(w, "$project", fields.finish().as_doc().as_val());
    }
}

/// The pipeline that a read of a view stands for; `None` for any other command.
fn below(command: &RoutedCommand<'_>, view: &View) -> Outcome<Option<DocBuf>> {
    let body = match command.name {
        "find" => {
            commands::check_find_of_view(command.body)?;
            over_find(command, view)
        }
        "aggregate" => over_aggregate(command, view),
        "count" => over_count(command, view),
        "distinct" => over_distinct(command, view),
        _ => return Ok(None),
    };
    body.map(Some)
}

fn over_find(command: &RoutedCommand<'_>, view: &View) -> Outcome<DocBuf> {
    over(command, view, command.int("batchSize"), |w| {
        if let Some(d) = non_empty(command, "filter") {
            stage(w, "$match", d.as_val());
        }
        if let Some(d) = non_empty(command, "sort").filter(|d| !d.contains("$natural")) {
            stage(w, "$sort", d.as_val());
        }
        skip_and_limit(w, command);
        if let Some(d) = non_empty(command, "projection") {
            project(w, d);
        }
    })
}

pub(crate) fn find(router: &Router, command: &RoutedCommand<'_>, view: &View) -> Outcome<DocBuf> {
    let single = command.is("singleBatch") || command.int("limit").is_some_and(|n| n < 0);
    let body = over_find(command, view)?;
    let reply = named(router, command, own(router, &body, aggregate::run)?)?;
    let id = cluster_view::reply::cursor_id(&reply);
    if single && id != 0 {
        cursors::end(router, &command.namespace()?, id);
        return Ok(cursors::renumber(reply, 0));
    }
    Ok(reply)
}

fn over_aggregate(command: &RoutedCommand<'_>, view: &View) -> Outcome<DocBuf> {
    let batch = command.document("cursor").and_then(|c| c.get("batchSize"));
    let batch = batch.and_then(Val::to_i64_exact);
    let stages = command.field("pipeline").and_then(Val::as_array);
    let stages = stages.unwrap_or(Doc::EMPTY);
    let first = stages.values().next().and_then(stage_of);
    // A search finds documents below the view, which then makes of them what it shows.
    let searches = match first.map(|(name, _)| name) {
        Some("$search" | "$vectorSearch") => true,
        Some("$searchMeta") => {
            return over_pipeline(command, view, batch, |w| push_all(w, stages, 0));
        }
        _ => false,
    };
    if !searches {
        return over(command, view, batch, |w| push_all(w, stages, 0));
    }
    over_pipeline(command, view, batch, |w| {
        stages.values().take(1).for_each(|s| {
            w.push(s);
        });
        push_all(w, view.pipeline.as_doc(), 0);
        push_all(w, stages, 1);
    })
}

/// Appends stages from a number on.
fn push_all(w: &mut Writer, stages: Doc<'_>, from: usize) {
    stages.values().skip(from).for_each(|s| {
        w.push(s);
    });
}

pub(crate) fn aggregate(
    router: &Router,
    command: &RoutedCommand<'_>,
    view: &View,
) -> Outcome<DocBuf> {
    let body = over_aggregate(command, view)?;
    named(router, command, own(router, &body, aggregate::run)?)
}

/// The reply, and its cursor, under the name of the view.
fn named(router: &Router, command: &RoutedCommand<'_>, reply: DocBuf) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    router
        .cursors
        .rename(cluster_view::reply::cursor_id(&reply), &ns);
    Ok(cursors::with_ns(reply, &ns))
}

/// The one document that a pipeline gives.
fn single(router: &Router, body: &DocBuf) -> Outcome<(DocBuf, Option<DocBuf>)> {
    let reply = own(router, body, aggregate::run)?;
    let found = cluster_view::reply::batch_of(&reply)
        .next()
        .map(Doc::to_buf);
    Ok((reply, found))
}

fn over_count(command: &RoutedCommand<'_>, view: &View) -> Outcome<DocBuf> {
    over(command, view, None, |w| {
        if let Some(d) = non_empty(command, "query") {
            stage(w, "$match", d.as_val());
        }
        skip_and_limit(w, command);
        stage(w, "$count", bson::Value::from("n").as_val());
    })
}

pub(crate) fn count(router: &Router, command: &RoutedCommand<'_>, view: &View) -> Outcome<DocBuf> {
    let body = over_count(command, view)?;
    let (reply, found) = single(router, &body)?;
    let mut w = Writer::new();
    match found.as_ref().and_then(|d| d.get("n")) {
        Some(n) => w.val("n", n),
        None => w.i32("n", 0),
    };
    Ok(finish(w, &[reply]))
}

fn over_distinct(command: &RoutedCommand<'_>, view: &View) -> Outcome<DocBuf> {
    let key = command.field("key").and_then(Val::as_str);
    let Some(key) = key.filter(|k| !k.is_empty()) else {
        return Err(err!(BadValue, "distinct needs a key").into());
    };
    over(command, view, None, |w| {
        if let Some(d) = non_empty(command, "query") {
            stage(w, "$match", d.as_val());
        }
        let path = format!("${key}");
        let whole = bson::doc! {"values": bson::doc! {"$addToSet": "$v"}, "_id": bson::Value::NULL};
        // As distinct does: an array counts as its elements.
        stage(
            w,
            "$project",
            bson::doc! {"_id": 0, "v": path.as_str()}.as_doc().as_val(),
        );
        stage(w, "$unwind", bson::Value::from("$v").as_val());
        stage(w, "$group", whole.as_doc().as_val());
    })
}

/// The values come through a pipeline over the documents of the view.
pub(crate) fn distinct(
    router: &Router,
    command: &RoutedCommand<'_>,
    view: &View,
) -> Outcome<DocBuf> {
    let body = over_distinct(command, view)?;
    let (reply, found) = single(router, &body)?;
    let mut w = Writer::new();
    match found.as_ref().and_then(|d| d.get("values")) {
        Some(values) => w.val("values", values),
        None => w.value("values", bson::array![]),
    };
    // As MongoDB's reply: here it is a whole number.
    let reply = finish(w, &[reply]);
    let mut w = Writer::with_capacity(reply.as_bytes().len());
    for e in reply.as_doc() {
        match e.name {
            "ok" => w.i32("ok", 1),
            name => w.val(name, e.val),
        };
    }
    Ok(w.finish())
}
