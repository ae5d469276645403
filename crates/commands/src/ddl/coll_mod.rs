//! `collMod`: changes options of a collection or of one of its indexes.

use super::create::{check_uuid, enumerated, images};
use super::{changed, unsupported};
use crate::cx::{Cx, Done};
use crate::idl;
use bson::{Doc, DocBuf, Val, Writer};
use catalog::{Collection, Index};
use errors::{Result, bail};
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

pub fn run(cx: &mut Cx<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    catalog::check_collection_name(&ns)?;
    let mut index = None;
    let mut dry_run = false;
    let (mut level, mut action, mut validator, mut pre_images, mut capped) =
        (None, None, None, None, false);
    let (mut view, mut expire, mut timeseries, mut uuid) = (false, None, false, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "index" => index = idl::doc(AT, e)?.map(parse_index).transpose()?,
            "dryRun" => dry_run = idl::safe_bool(AT, e)?.unwrap_or(false),
            "validator" => validator = idl::doc(AT, e)?,
            "validationLevel" => level = enumerated(AT, e, &["off", "strict", "moderate"])?,
            "validationAction" => action = enumerated(AT, e, &["error", "warn", "errorAndLog"])?,
            "viewOn" => view |= idl::string(AT, e)?.is_some(),
            "pipeline" => view |= idl::array(AT, e)?.is_some(),
            "cappedSize" => {
                if let Some(n) = idl::int(AT, e)? {
                    if !(1..=1 << 50).contains(&n) {
                        bail!(
                            BadValue,
                            "BSON field 'cappedSize' value must be >= 1 and <= 1125899906842624, actual value '{n}'"
                        );
                    }
                    capped = true;
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
                    capped = true;
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
            "timeseries" => timeseries |= idl::doc(AT, e)?.is_some_and(|d| !d.is_empty()),
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
    let Some(coll) = catalog.get(&ns) else {
        bail!(NamespaceNotFound, "ns does not exist: {ns}")
    };
    if coll.is_view()
        && (index.is_some() || capped || validator.is_some() || level.is_some() || action.is_some())
    {
        bail!(InvalidOptions, "option not supported on a view");
    }
    if capped || timeseries || view {
        bail!(
            InvalidOptions,
            "option is not supported on a collection of this kind: {ns}"
        );
    }
    if let Some(v) = expire {
        let _: Val<'_> = v;
        bail!(
            InvalidOptions,
            "'expireAfterSeconds' is only supported on collections clustered by _id"
        );
    }
    if validator.is_some_and(|v| !v.is_empty()) {
        return unsupported("validators");
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
        let options = changed_options(&coll, level, action, pre_images, validator.is_some());
        cx.app.engine.catalog.change_options(&ns, options)?;
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

fn find_index(coll: &Collection, c: &IndexChange<'_>) -> Result<Option<Arc<Index>>> {
    match (c.name, c.key) {
        (Some("_id_"), None) => Ok(None),
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
    cx: &mut Cx<'_, '_>,
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
    if becomes_unique || prepares {
        return unsupported("the conversion of an index to a unique one");
    }
    let _ = dry_run;
    let hides = c.hidden.filter(|h| *h != was("hidden"));
    let expire = c.expire.map(|n| n.min(i64::from(i32::MAX)));
    if expire.is_none() && hides.is_none() {
        return Ok(());
    }
    let mut w = Writer::new();
    for e in index.spec.as_doc() {
        match e.name {
            "hidden" if hides.is_some() => {}
            "expireAfterSeconds" if expire.is_some() => {}
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

fn changed_options(
    coll: &Collection,
    level: Option<&str>,
    action: Option<&str>,
    images: Option<bool>,
    clear_validator: bool,
) -> DocBuf {
    let mut w = Writer::new();
    for e in coll.options.as_doc() {
        let replaced = match e.name {
            "validationLevel" => level.is_some(),
            "validationAction" => action.is_some(),
            "changeStreamPreAndPostImages" => images.is_some(),
            "validator" => clear_validator,
            _ => false,
        };
        if !replaced {
            w.val(e.name, e.val);
        }
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
