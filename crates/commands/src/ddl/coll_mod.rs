//! `collMod`: changes options of a collection or of one of its indexes.

use super::create::{check_uuid, enumerated, images, rounded_up};
use super::{changed, view};
use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Val, Writer};
use catalog::{Collection, Index};
use errors::{Result, bail, err};
use std::sync::Arc;

const AT: &str = "collMod";

#[derive(Default)]
struct IndexChange<'a> {
    name: Option<&'a str>,
    key: Option<Doc<'a>>,
    expire: Option<i64>,
    hidden: Option<bool>,
    unique: Option<bool>,
    prepare_unique: Option<bool>,
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    catalog::check_collection_name(&ns)?;
    let mut index = None;
    let mut dry_run = false;
    let (mut level, mut action, mut validator, mut pre_images) = (None, None, None, None);
    let (mut capped_size, mut capped_max) = (None, None);
    let (mut view_on, mut pipeline, mut expire, mut timeseries, mut uuid) =
        (None, None, None, false, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "index" => index = idl::doc(AT, e)?.map(parse_index).transpose()?,
            "dryRun" => dry_run = idl::safe_bool(AT, e)?.unwrap_or(false),
            "validator" => validator = idl::doc(AT, e)?,
            "validationLevel" => level = enumerated(AT, e, &["off", "strict", "moderate"])?,
            "validationAction" => action = enumerated(AT, e, &["error", "warn", "errorAndLog"])?,
            "viewOn" => {
                view_on = idl::string(AT, e)?;
                if let Some(on) = view_on {
                    view::check_source(on)?;
                }
            }
            "pipeline" => pipeline = idl::array(AT, e)?,
            "cappedSize" => {
                if let Some(n) = idl::int(AT, e)? {
                    if !(1..=1 << 50).contains(&n) {
                        bail!(
                            BadValue,
                            "BSON field 'cappedSize' value must be >= 1 and <= 1125899906842624, actual value '{n}'"
                        );
                    }
                    capped_size = Some(rounded_up(n));
                }
            }
            "cappedMax" => {
                if let Some(n) = idl::int(AT, e)? {
                    if n >= 1 << 31 {
                        bail!(
                            BadValue,
                            "BSON field 'cappedMax' value must be < 2147483648, actual value '{n}'"
                        );
                    }
                    capped_max = Some(n.max(0));
                }
            }
            "expireAfterSeconds" => {
                if !e.val.is_nullish() {
                    if !e.val.is_number() && e.val.as_str().is_none() {
                        return Err(idl::mismatch(AT, e.name, e.val, &["string", "long"]));
                    }
                    expire = Some(e.val);
                }
            }
            "timeseries" => timeseries |= idl::doc(AT, e)?.is_some(),
            "changeStreamPreAndPostImages" => pre_images = images(AT, e)?,
            "recordPreImages" => {
                idl::safe_bool(AT, e)?;
            }
            "collectionUUID" => uuid = idl::uuid(AT, e)?,
            "isTimeseriesNamespace" => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let catalog = &cx.app.engine.catalog;
    check_uuid(catalog, &ns, uuid)?;
    let capped = capped_size.is_some() || capped_max.is_some();
    if capped && ns == "local.oplog.rs" {
        bail!(
            InvalidOptions,
            "The oplog cannot be resized by collMod: use replSetResizeOplog"
        );
    }
    let Some(coll) = catalog.get(&ns) else {
        bail!(NamespaceNotFound, "ns does not exist: {ns}")
    };
    if let Some(old) = &coll.view {
        if index.is_some()
            || capped
            || timeseries
            || dry_run
            || expire.is_some()
            || validator.is_some()
            || level.is_some()
            || action.is_some()
            || pre_images.is_some()
        {
            bail!(InvalidOptions, "option not supported on a view: {ns}");
        }
        if view_on.is_some() || pipeline.is_some() {
            let stages = match pipeline {
                Some(p) => view::stages(Some(p))?,
                None => match coll.option("pipeline") {
                    Some(v) => v.to_value(),
                    None => view::stages(None)?,
                },
            };
            let options = view::options(view_on.unwrap_or(&old.on), &stages);
            catalog.change_options(&ns, options)?;
        }
        changed(cx);
        return Ok(Done::Reply);
    }
    if capped && coll.capped.is_none() || timeseries || view_on.is_some() || pipeline.is_some() {
        bail!(
            InvalidOptions,
            "option is not supported on a collection of this kind: {ns}"
        );
    }
    let mut kept: Vec<(&str, Option<i64>)> = Vec::new();
    if let Some(v) = expire {
        if coll.option("clusteredIndex").is_none() {
            bail!(
                InvalidOptions,
                "'expireAfterSeconds' is only supported on collections clustered by _id"
            );
        }
        kept.push(("expireAfterSeconds", clustered_expiry(v)?));
    }
    if let Some(n) = capped_size {
        kept.push(("size", Some(n)));
    }
    if let Some(n) = capped_max {
        kept.push(("max", Some(n).filter(|n| *n > 0)));
    }
    if let Some(v) = validator {
        super::validator::check(&ns, v)?;
    }
    if dry_run && index.as_ref().is_none_or(|i| i.unique != Some(true)) {
        bail!(
            InvalidOptions,
            "The 'dryRun' option can only be used together with the conversion of an index to unique"
        );
    }
    if let Some(change) = index {
        change_index(cx, &ns, &coll, &change, dry_run)?;
    }
    if level.is_some() || action.is_some() || pre_images.is_some() || validator.is_some() {
        let options = changed_options(&coll, level, action, pre_images, validator);
        cx.app.engine.catalog.change_options(&ns, options)?;
    }
    if !kept.is_empty() {
        let catalog = &cx.app.engine.catalog;
        if let Some(now) = catalog.get(&ns) {
            catalog.change_options(&ns, with_numbers(&now, &kept))?;
        }
    }
    changed(cx);
    Ok(Done::Reply)
}

fn parse_index(d: Doc<'_>) -> Result<IndexChange<'_>> {
    let at = "collMod.index";
    let mut c = IndexChange::default();
    for e in d {
        match e.name {
            "name" => c.name = idl::string(at, e)?,
            "keyPattern" => c.key = idl::doc(at, e)?,
            "expireAfterSeconds" => c.expire = idl::int(at, e)?,
            "hidden" => c.hidden = idl::safe_bool(at, e)?,
            "unique" => c.unique = idl::safe_bool(at, e)?,
            "prepareUnique" => c.prepare_unique = idl::safe_bool(at, e)?,
            name => return Err(idl::unknown(at, name)),
        }
    }
    Ok(c)
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
                (None, _) => bail!(IndexNotFound, "cannot find index {key} for ns {}", coll.ns),
                _ => bail!(
                    AmbiguousIndexKeyPattern,
                    "index keyPattern {key} matches more than one index, must use index name"
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
    ns: &str,
    coll: &Collection,
    c: &IndexChange<'_>,
    dry_run: bool,
) -> Result<()> {
    let index = find_index(coll, c)?;
    if c.expire.is_none() && c.hidden.is_none() && c.unique.is_none() && c.prepare_unique.is_none()
    {
        if c.name.is_some() || c.key.is_some() {
            bail!(
                InvalidOptions,
                "no expireAfterSeconds, hidden, unique, or prepareUnique field"
            );
        }
        bail!(
            InvalidOptions,
            "must specify exactly one of either index name or key pattern"
        );
    }
    let Some(index) = index else {
        if coll.option("clusteredIndex").is_some() {
            if c.hidden.is_some() {
                bail!(6011800, "Cannot hide a clusteredIndex");
            }
            bail!(IndexNotFound, "cannot find index _id_ for ns {ns}");
        }
        if c.hidden.is_some() {
            bail!(BadValue, "can't hide _id index");
        }
        bail!(InvalidOptions, "the _id index cannot be changed");
    };
    let was = |name: &str| index.spec.get(name).is_some_and(|v| v.truthy());
    if let Some(n) = c.expire {
        if n < 0 {
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
    }
    if c.unique == Some(false) {
        bail!(
            BadValue,
            "collMod does not support converting an index to 'unique: false' or to an empty string"
        );
    }
    let becomes_unique = c.unique == Some(true) && !was("unique");
    if becomes_unique && !was("prepareUnique") {
        bail!(
            InvalidOptions,
            "Cannot make index unique with 'prepareUnique' not being set to true"
        );
    }
    let prepares = c.prepare_unique.is_some_and(|p| p != was("prepareUnique"));
    if prepares && (c.expire.is_some() || c.hidden.is_some() || c.unique.is_some()) {
        bail!(
            InvalidOptions,
            "cannot modify 'prepareUnique' together with other options of an index"
        );
    }
    if becomes_unique {
        check_unique(cx, coll, &index)?;
        if dry_run {
            return Ok(());
        }
    }
    let hides = c.hidden.filter(|h| *h != was("hidden"));
    let expire = c.expire.map(|n| n.min(i64::from(i32::MAX)));
    if expire.is_none() && hides.is_none() && !becomes_unique && !prepares {
        return Ok(());
    }
    let mut w = Writer::new();
    for e in index.spec.as_doc() {
        match e.name {
            "hidden" if hides.is_some() => {}
            "expireAfterSeconds" if expire.is_some() => {}
            "unique" | "prepareUnique" if becomes_unique => {}
            "prepareUnique" if prepares => {}
            _ => {
                w.val(e.name, e.val);
            }
        }
    }
    if let Some(n) = expire {
        w.int("expireAfterSeconds", n);
        if let Some(old) = index.spec.get("expireAfterSeconds") {
            cx.w.i64(
                "expireAfterSeconds_old",
                old.to_i64_truncated().unwrap_or(0),
            );
        }
        cx.w.i64("expireAfterSeconds_new", n);
    }
    if becomes_unique {
        w.bool("unique", true);
        cx.w.bool("unique_new", true);
    }
    if let Some(p) = c.prepare_unique.filter(|_| prepares) {
        if p {
            w.bool("prepareUnique", true);
        }
        cx.w.bool("prepareUnique_old", !p)
            .bool("prepareUnique_new", p);
    }
    if let Some(h) = hides {
        if h {
            w.bool("hidden", true);
        }
        cx.w.bool("hidden_old", !h).bool("hidden_new", h);
    }
    cx.app
        .engine
        .catalog
        .change_index(ns, index.name(), w.finish())
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
    .with_extra(w.finish().into_vec()))
}

fn changed_options(
    coll: &Collection,
    level: Option<&str>,
    action: Option<&str>,
    images: Option<bool>,
    validator: Option<Doc<'_>>,
) -> DocBuf {
    let mut w = Writer::new();
    for e in coll.options.as_doc() {
        let replaced = match e.name {
            "validationLevel" => level.is_some(),
            "validationAction" => action.is_some(),
            "changeStreamPreAndPostImages" => images.is_some(),
            "validator" => validator.is_some(),
            _ => false,
        };
        if !replaced {
            w.val(e.name, e.val);
        }
    }
    if let Some(v) = validator.filter(|v| !v.is_empty()) {
        w.doc("validator", v);
    }
    if let Some(l) = level {
        w.str("validationLevel", l);
    }
    if let Some(a) = action {
        w.str("validationAction", a);
    }
    if images == Some(true) {
        w.open_doc("changeStreamPreAndPostImages")
            .bool("enabled", true)
            .close();
    }
    w.finish()
}
