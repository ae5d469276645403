//! `collMod`: changes options of a collection or of one of its indexes.

use super::create::{
    MAX_CAPPED_BYTES, check_uuid, images, rounded_up, validation_action, validation_level,
};
use super::{changed, view};
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem, Val, Writer, shell};
use catalog::{Collection, Index};
use errors::{Error, Result, bail, err};
use front::idl;
use std::sync::Arc;

const AT: &str = "collMod";

idl::arguments! {
    struct Arguments<'a> {
        "index" => index: Option<IndexChange<'a>> = read_index,
        "dryRun" => dry_run: bool = idl::flag,
        "validator" => validator: Option<Doc<'a>> = idl::doc,
        "validationLevel" => level: Option<&'a str> = validation_level,
        "validationAction" => action: Option<&'a str> = validation_action,
        "viewOn" => view_on: Option<&'a str> = read_view_on,
        "pipeline" => pipeline: Option<Doc<'a>> = idl::array,
        "cappedSize" => capped_size: Option<i64> = read_capped_size,
        "cappedMax" => capped_max: Option<i64> = read_capped_max,
        "expireAfterSeconds" => expire: Option<Val<'a>> = read_expire,
        "timeseries" => timeseries: Option<Doc<'a>> = idl::doc,
        "changeStreamPreAndPostImages" => images: Option<bool> = images,
        "collectionUUID" => uuid: Option<[u8; 16]> = idl::uuid,
    }
    checked: "recordPreImages" => idl::safe_bool;
    ignored: "isTimeseriesNamespace";
}

idl::arguments! {
    /// The argument `index`: which one, and what of it changes.
    struct IndexChange<'a> {
        "name" => name: Option<&'a str> = idl::string,
        "keyPattern" => key: Option<Doc<'a>> = idl::doc,
        "expireAfterSeconds" => expire: Option<i64> = idl::int,
        "hidden" => hidden: Option<bool> = idl::safe_bool,
        "unique" => unique: Option<bool> = idl::safe_bool,
        "prepareUnique" => prepare_unique: Option<bool> = idl::safe_bool,
    }
}

fn read_index<'a>(within: &str, e: Elem<'a>) -> Result<Option<IndexChange<'a>>> {
    match idl::doc(within, e)? {
        Some(d) => IndexChange::parse_document("collMod.index", d).map(Some),
        None => Ok(None),
    }
}

fn read_view_on<'a>(within: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    let on = idl::string(within, e)?;
    if let Some(on) = on {
        view::check_source(on)?;
    }
    Ok(on)
}

fn read_capped_size(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    let size = idl::int(within, e)?;
    if let Some(n) = size.filter(|n| !(1..=MAX_CAPPED_BYTES).contains(n)) {
        bail!(
            BadValue,
            "BSON field 'cappedSize' value must be >= 1 and <= {MAX_CAPPED_BYTES}, actual value '{n}'"
        );
    }
    Ok(size.map(rounded_up))
}

fn read_capped_max(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    let max = idl::int(within, e)?;
    if let Some(n) = max.filter(|n| *n >= 1 << 31) {
        bail!(
            BadValue,
            "BSON field 'cappedMax' value must be < 2147483648, actual value '{n}'"
        );
    }
    Ok(max.map(|n| n.max(0)))
}

fn read_expire<'a>(within: &str, e: Elem<'a>) -> Result<Option<Val<'a>>> {
    if e.val.is_nullish() {
        return Ok(None);
    }
    if !e.val.is_number() && e.val.as_str().is_none() {
        return Err(idl::mismatch(within, e.name, e.val, &["string", "long"]));
    }
    Ok(Some(e.val))
}

impl Arguments<'_> {
    fn is_of_capped(&self) -> bool {
        self.capped_size.is_some() || self.capped_max.is_some()
    }

    fn is_of_view(&self) -> bool {
        self.view_on.is_some() || self.pipeline.is_some()
    }

    /// Whether it changes options that are documents or words, which are written as one.
    fn changes_options(&self) -> bool {
        self.level.is_some()
            || self.action.is_some()
            || self.images.is_some()
            || self.validator.is_some()
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    catalog::check_collection_name(&ns)?;
    let a = Arguments::parse(AT, cx.args.fields.iter().copied())?;
    let catalog = &cx.app.engine.catalog;
    check_uuid(catalog, &ns, a.uuid)?;
    if a.is_of_capped() && ns == "local.oplog.rs" {
        bail!(
            InvalidOptions,
            "The oplog cannot be resized by collMod: use replSetResizeOplog"
        );
    }
    let Some(coll) = catalog.get(&ns) else {
        bail!(NamespaceNotFound, "ns does not exist: {ns}")
    };
    match &coll.view {
        _ if let Some(series) = coll.measurements() => change_series(cx, &coll, series, &a)?,
        Some(old) => change_view(cx, &coll, &old.on, &a)?,
        None => change_collection(cx, &coll, &a)?,
    }
    let catalog = &cx.app.engine.catalog;
    if catalog.get(&ns).is_some_and(|c| Arc::ptr_eq(&c, &coll)) {
        catalog.note_coll_mod(&ns, &|| cx.op.check())?;
    }
    changed(cx);
    Ok(Done::Reply)
}

/// Changes a time series.
fn change_series(
    cx: &mut CommandContext<'_, '_>,
    coll: &Collection,
    series: &Arc<time_series::TimeSeriesOptions>,
    a: &Arguments<'_>,
) -> Result<()> {
    let ns = &coll.ns;
    if a.dry_run || a.changes_options() || a.is_of_view() {
        bail!(
            InvalidOptions,
            "option is not supported on a time-series collection: {ns}"
        );
    }
    let expire = match a.expire {
        None => None,
        Some(v) => Some(clustered_expiry(v)?),
    };
    let catalog = &cx.app.engine.catalog;
    let buckets = time_series::buckets_of(ns);
    cx.op.wait_for_writers(&buckets)?;
    let interrupt = || cx.op.check();
    super::time_series::change(catalog, coll, series, a.timeseries, expire, &interrupt)?;
    let Some(change) = &a.index else {
        return Ok(());
    };
    let buckets = catalog.get(&buckets);
    let Some(buckets) = buckets else {
        bail!(NamespaceNotFound, "ns does not exist: {ns}");
    };
    let key = change
        .key
        .map(|k| super::time_series::dropped(series, &buckets, k.as_val()));
    let named = match &key {
        Some(name) => IndexChange {
            name: name.as_val().as_str(),
            key: name.as_val().as_doc(),
            ..*change
        },
        None => IndexChange { ..*change },
    };
    if change.unique.is_some() || change.prepare_unique.is_some() {
        bail!(
            InvalidOptions,
            "Unique indexes are not supported on time-series collections: {ns}"
        );
    }
    change_index(cx, &buckets, &named, false)
}

/// Changes a view, whose source is `on`.
fn change_view(
    cx: &CommandContext<'_, '_>,
    coll: &Collection,
    on: &str,
    a: &Arguments<'_>,
) -> Result<()> {
    let ns = &coll.ns;
    if a.index.is_some()
        || a.is_of_capped()
        || a.timeseries.is_some()
        || a.dry_run
        || a.expire.is_some()
        || a.changes_options()
    {
        bail!(InvalidOptions, "option not supported on a view: {ns}");
    }
    if !a.is_of_view() {
        return Ok(());
    }
    let stages = match (a.pipeline, coll.option("pipeline")) {
        (None, Some(old)) => old.to_value(),
        (given, _) => view::stages(given)?,
    };
    let options = view::options(a.view_on.unwrap_or(on), &stages);
    cx.app
        .engine
        .catalog
        .change_options(ns, options, &|| cx.op.check())
}

fn change_collection(
    cx: &mut CommandContext<'_, '_>,
    coll: &Collection,
    a: &Arguments<'_>,
) -> Result<()> {
    let ns = &coll.ns;
    if a.is_of_capped() && coll.capped.is_none() || a.timeseries.is_some() || a.is_of_view() {
        bail!(
            InvalidOptions,
            "option is not supported on a collection of this kind: {ns}"
        );
    }
    let numbers = changed_numbers(coll, a)?;
    if let Some(v) = a.validator {
        super::validator::check(ns, v)?;
    }
    if a.dry_run && a.index.as_ref().is_none_or(|i| i.unique != Some(true)) {
        bail!(
            InvalidOptions,
            "The 'dryRun' option can only be used together with the conversion of an index to unique"
        );
    }
    if let Some(change) = &a.index {
        change_index(cx, coll, change, a.dry_run)?;
    }
    let catalog = &cx.app.engine.catalog;
    if a.changes_options() {
        catalog.change_options(ns, changed_options(coll, a), &|| cx.op.check())?;
    }
    if !numbers.is_empty()
        && let Some(now) = catalog.get(ns)
    {
        catalog.change_options(ns, with_numbers(&now, &numbers), &|| cx.op.check())?;
    }
    Ok(())
}

/// The options that are numbers, with their new values; `None` removes one.
fn changed_numbers(
    coll: &Collection,
    a: &Arguments<'_>,
) -> Result<Vec<(&'static str, Option<i64>)>> {
    let mut numbers = Vec::new();
    if let Some(v) = a.expire {
        if coll.option("clusteredIndex").is_none() {
            bail!(
                InvalidOptions,
                "'expireAfterSeconds' is only supported on collections clustered by _id"
            );
        }
        numbers.push(("expireAfterSeconds", clustered_expiry(v)?));
    }
    if let Some(n) = a.capped_size {
        numbers.push(("size", Some(n)));
    }
    if let Some(n) = a.capped_max {
        numbers.push(("max", Some(n).filter(|n| *n > 0)));
    }
    Ok(numbers)
}

/// Whether a collection is clustered by an index of that name.
pub fn is_clustered_by(coll: &Collection, name: &str) -> bool {
    let index = coll.option("clusteredIndex").and_then(|v| v.as_doc());
    index.is_some_and(|d| d.get("name").and_then(|v| v.as_str()) == Some(name))
}

/// `expireAfterSeconds` of a clustered collection; `None` for "off".
fn clustered_expiry(v: Val<'_>) -> Result<Option<i64>> {
    if let Some(s) = v.as_str() {
        if s == "off" {
            return Ok(None);
        }
        bail!(
            InvalidOptions,
            "Invalid string value for the 'clusteredIndex::expireAfterSeconds' option. Got: '{s}'. Accepted value is 'off'"
        );
    }
    let n = idl::whole(v).unwrap_or(0);
    if n < 0 || n > crate::clock::now_millis() / 1000 {
        bail!(
            InvalidOptions,
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a different value than {n}"
        );
    }
    Ok(Some(n))
}

/// A collection's options with these numbers in them, or without those that are none.
fn with_numbers(coll: &Collection, numbers: &[(&str, Option<i64>)]) -> DocBuf {
    let mut w = Writer::new();
    let replaced = |name: &str| numbers.iter().find(|(n, _)| *n == name);
    for e in coll.options.as_doc() {
        match replaced(e.name) {
            None => w.val(e.name, e.val),
            Some((_, Some(n))) => w.int(e.name, *n),
            Some((_, None)) => &mut w,
        };
    }
    for (name, n) in numbers {
        if let Some(n) = n.filter(|_| coll.option(name).is_none()) {
            w.int(name, n);
        }
    }
    w.finish()
}

fn find_index(coll: &Collection, c: &IndexChange<'_>) -> Result<Option<Arc<Index>>> {
    match (c.name, c.key) {
        (Some(name), None) if name == "_id_" || is_clustered_by(coll, name) => Ok(None),
        (Some(name), None) => match coll.index_named(name) {
            Some(i) => Ok(Some(i.clone())),
            None => bail!(IndexNotFound, "cannot find index {name} for ns {}", coll.ns),
        },
        (None, Some(key)) => {
            if super::index_spec::same_key(key, bson::doc! { "_id": 1 }.as_doc()) {
                return Ok(None);
            }
            let mut found = coll
                .indexes
                .iter()
                .filter(|i| super::index_spec::same_key(i.info.key.as_doc(), key));
            match (found.next(), found.next()) {
                (Some(i), None) => Ok(Some(i.clone())),
                (None, _) => bail!(
                    IndexNotFound,
                    "cannot find index {} for ns {}",
                    shell::doc(key),
                    coll.ns
                ),
                _ => bail!(
                    AmbiguousIndexKeyPattern,
                    "index keyPattern {} matches more than one index, must use index name",
                    shell::doc(key)
                ),
            }
        }
        _ => bail!(
            InvalidOptions,
            "must specify exactly one of either index name or key pattern"
        ),
    }
}

fn change_index(
    cx: &mut CommandContext<'_, '_>,
    coll: &Collection,
    c: &IndexChange<'_>,
    dry_run: bool,
) -> Result<()> {
    let index = find_index(coll, c)?;
    check_names_a_change(c)?;
    let Some(index) = index else {
        return Err(unchangeable(coll, c).into());
    };
    let changes = IndexOptions::changed(&index, c)?;
    if changes.becomes_unique {
        check_unique(cx, coll, &index)?;
        if dry_run {
            return Ok(());
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let spec = changes.apply(&index);
    changes.report(&index, &mut cx.w);
    let catalog = &cx.app.engine.catalog;
    catalog.change_index(&coll.ns, index.name(), spec, &|| cx.op.check())
}

fn check_names_a_change(c: &IndexChange<'_>) -> Result<()> {
    if c.expire.is_some() || c.hidden.is_some() || c.unique.is_some() || c.prepare_unique.is_some()
    {
        return Ok(());
    }
    if c.name.is_some() || c.key.is_some() {
        bail!(
            InvalidOptions,
            "no expireAfterSeconds, hidden, unique, or prepareUnique field"
        );
    }
    bail!(
        InvalidOptions,
        "must specify exactly one of either index name or key pattern"
    )
}

/// Why the index of `_id` cannot be changed.
fn unchangeable(coll: &Collection, c: &IndexChange<'_>) -> Error {
    match (coll.option("clusteredIndex"), c.hidden) {
        (Some(_), Some(_)) => err!(6011800, "Cannot hide a clusteredIndex"),
        (Some(_), None) => err!(IndexNotFound, "cannot find index _id_ for ns {}", coll.ns),
        (None, Some(_)) => err!(BadValue, "can't hide _id index"),
        (None, None) => err!(InvalidOptions, "the _id index cannot be changed"),
    }
}

fn is_on(index: &Index, option: &str) -> bool {
    index.spec.get(option).is_some_and(|v| v.truthy())
}

/// The options of an index that get a value other than they have.
struct IndexOptions {
    expire: Option<i64>,
    hidden: Option<bool>,
    prepare_unique: Option<bool>,
    becomes_unique: bool,
}

impl IndexOptions {
    /// What a change, which is checked, makes of an index.
    fn changed(index: &Index, c: &IndexChange<'_>) -> Result<IndexOptions> {
        if let Some(n) = c.expire {
            check_expiry(index, n)?;
        }
        if c.unique == Some(false) {
            bail!(
                BadValue,
                "collMod does not support converting an index to 'unique: false' or to an empty string"
            );
        }
        let becomes_unique = c.unique == Some(true) && !is_on(index, "unique");
        if becomes_unique && !is_on(index, "prepareUnique") {
            bail!(
                InvalidOptions,
                "Cannot make index unique with 'prepareUnique' not being set to true"
            );
        }
        let prepare_unique = c
            .prepare_unique
            .filter(|p| *p != is_on(index, "prepareUnique"));
        if prepare_unique.is_some()
            && (c.expire.is_some() || c.hidden.is_some() || c.unique.is_some())
        {
            bail!(
                InvalidOptions,
                "cannot modify 'prepareUnique' together with other options of an index"
            );
        }
        Ok(IndexOptions {
            expire: c.expire.map(|n| n.min(i64::from(i32::MAX))),
            hidden: c.hidden.filter(|h| *h != is_on(index, "hidden")),
            prepare_unique,
            becomes_unique,
        })
    }

    fn is_empty(&self) -> bool {
        self.expire.is_none()
            && self.hidden.is_none()
            && self.prepare_unique.is_none()
            && !self.becomes_unique
    }

    /// The index's specification with these options.
    fn apply(&self, index: &Index) -> DocBuf {
        let mut w = Writer::new();
        for e in index.spec.as_doc() {
            let replaced = match e.name {
                "hidden" => self.hidden.is_some(),
                "expireAfterSeconds" => self.expire.is_some(),
                "unique" => self.becomes_unique,
                "prepareUnique" => self.becomes_unique || self.prepare_unique.is_some(),
                _ => false,
            };
            if !replaced {
                w.val(e.name, e.val);
            }
        }
        if let Some(n) = self.expire {
            w.int("expireAfterSeconds", n);
        }
        for (name, on) in [
            ("unique", self.becomes_unique),
            ("prepareUnique", self.prepare_unique == Some(true)),
            ("hidden", self.hidden == Some(true)),
        ] {
            if on {
                w.bool(name, true);
            }
        }
        w.finish()
    }

    /// Tells the client the old and the new values.
    fn report(&self, index: &Index, w: &mut Writer) {
        if let Some(n) = self.expire {
            if let Some(old) = index.spec.get("expireAfterSeconds") {
                let old = old.to_i64_truncated().unwrap_or(0);
                w.i64("expireAfterSeconds_old", old);
            }
            w.i64("expireAfterSeconds_new", n);
        }
        if self.becomes_unique {
            w.bool("unique_new", true);
        }
        if let Some(p) = self.prepare_unique {
            w.bool("prepareUnique_old", !p).bool("prepareUnique_new", p);
        }
        if let Some(h) = self.hidden {
            w.bool("hidden_old", !h).bool("hidden_new", h);
        }
    }
}

fn check_expiry(index: &Index, seconds: i64) -> Result<()> {
    if seconds < 0 {
        bail!(
            InvalidOptions,
            "TTL index 'expireAfterSeconds' option cannot be less than 0"
        );
    }
    if index.info.key.as_doc().count() != 1 {
        bail!(
            InvalidOptions,
            "TTL indexes are single-field indexes, compound indexes do not support TTL"
        );
    }
    Ok(())
}

/// Fails when the index holds a value twice, and tells which documents have it.
fn check_unique(cx: &mut CommandContext<'_, '_>, coll: &Collection, index: &Index) -> Result<()> {
    let duplicates = executor::duplicates(&mut cx.op, coll, index)?;
    if duplicates.is_empty() {
        return Ok(());
    }
    let mut w = Writer::new();
    w.open_array("violations");
    for ids in &duplicates {
        w.open_doc("").open_array("ids");
        ids.iter().for_each(|id| {
            w.push(id.as_val());
        });
        w.close().close();
    }
    w.close();
    Err(err!(
        CannotConvertIndexToUnique,
        "Cannot convert the index to unique. Please resolve conflicting documents before running collMod again."
    )
    .with_extra(w.finish().into_vec()).into())
}

fn changed_options(coll: &Collection, a: &Arguments<'_>) -> DocBuf {
    let mut w = Writer::new();
    for e in coll.options.as_doc() {
        let replaced = match e.name {
            "validationLevel" => a.level.is_some(),
            "validationAction" => a.action.is_some(),
            "changeStreamPreAndPostImages" => a.images.is_some(),
            "validator" => a.validator.is_some(),
            _ => false,
        };
        if !replaced {
            w.val(e.name, e.val);
        }
    }
    if let Some(v) = a.validator.filter(|v| !v.is_empty()) {
        w.doc("validator", v);
    }
    if let Some(l) = a.level {
        w.str("validationLevel", l);
    }
    if let Some(action) = a.action {
        w.str("validationAction", action);
    }
    if a.images == Some(true) {
        w.open_doc("changeStreamPreAndPostImages")
            .bool("enabled", true)
            .close();
    }
    w.finish()
}
