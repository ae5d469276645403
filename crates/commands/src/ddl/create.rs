//! `create`: a collection with options.
//!
//! What is checked is what MongoDB checks; an option that would change how documents are kept or
//! found, and that this version does not have, is refused rather than ignored.

use super::{changed, engine_options, unsupported};
use crate::request::collation;
use crate::request::idl;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem, Val, Writer, order, tag};
use catalog::Catalog;
use errors::{Result, bail, err};

pub const MAX_CAPPED_BYTES: i64 = 1 << 50;

#[derive(Default)]
struct Options<'a> {
    capped: bool,
    size: Option<i64>,
    max: Option<i64>,
    id_index: Option<Doc<'a>>,
    storage_engine: Option<Doc<'a>>,
    index_defaults: Option<Doc<'a>>,
    validator: Option<Doc<'a>>,
    level: Option<&'a str>,
    action: Option<&'a str>,
    view_on: Option<&'a str>,
    pipeline: Option<Doc<'a>>,
    collation: Option<Doc<'a>>,
    timeseries: Option<Doc<'a>>,
    clustered: Option<DocBuf>,
    clustered_given: bool,
    expire_after: Option<i64>,
    images: Option<bool>,
    encrypted: Option<DocBuf>,
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let o = parse(cx)?;
    check_namespace(&ns, &o)?;
    check_together(&o)?;
    if o.encrypted.is_some() && cx.app.config.topology.set_name().is_none() {
        bail!(
            6346402,
            "Encrypted collections are not supported on standalone"
        );
    }
    refuse_missing(&o)?;
    if let Some(v) = o.validator {
        super::validator::check(&ns, v)?;
    }
    let options = match o.view_on {
        Some(on) => {
            let mut w = Writer::new();
            w.extend(super::view::options(on, &super::view::stages(o.pipeline)?).as_doc());
            write_collation(&mut w, o.collation);
            w.finish()
        }
        None => stored(&o),
    };
    let catalog = &cx.app.engine.catalog;
    if catalog.create(&ns, options.clone())?.is_some() {
        changed(cx);
        return Ok(Done::Reply);
    }
    let same = catalog
        .get(&ns)
        .is_some_and(|c| same_options(c.options.as_doc(), options.as_doc()));
    if !same {
        bail!(NamespaceExists, "Collection {ns} already exists.");
    }
    Ok(Done::Reply)
}

/// Fails when the collection's UUID is not the one that the client says.
pub fn check_uuid(catalog: &Catalog, ns: &str, uuid: Option<[u8; 16]>) -> Result<()> {
    let Some(uuid) = uuid else { return Ok(()) };
    let actual = catalog.snapshot();
    if actual.get(ns).is_some_and(|c| c.uuid == uuid) {
        return Ok(());
    }
    let mut w = Writer::new();
    w.str("db", catalog::db_of(ns))
        .binary("collectionUUID", 4, &uuid)
        .str("expectedCollection", catalog::collection_of(ns));
    match actual
        .by_uuid(&uuid)
        .filter(|c| c.db() == catalog::db_of(ns))
    {
        Some(c) => w.str("actualCollection", c.name()),
        None => w.null("actualCollection"),
    };
    Err(err!(
        CollectionUUIDMismatch,
        "Collection UUID does not match that specified"
    )
    .with_extra(w.finish().into_vec()))
}

fn parse<'r>(cx: &CommandContext<'_, 'r>) -> Result<Options<'r>> {
    let at = "create";
    let mut o = Options::default();
    for e in cx.args.fields.iter().copied() {
        match e.name {
            "capped" => o.capped = idl::safe_bool(at, e)?.unwrap_or(false),
            "size" => {
                o.size = idl::int(at, e)?;
                if o.size.is_some_and(|n| !(1..=MAX_CAPPED_BYTES).contains(&n)) {
                    bail!(
                        BadValue,
                        "BSON field 'size' value must be >= 1 and <= {MAX_CAPPED_BYTES}, actual value '{}'",
                        e.val
                    );
                }
            }
            "max" => {
                o.max = idl::int(at, e)?;
                if o.max.is_some_and(|n| n > i64::from(i32::MAX)) {
                    bail!(
                        BadValue,
                        "BSON field 'max' value must be < 2147483648, actual value '{}'",
                        e.val
                    );
                }
            }
            "autoIndexId" => {
                if idl::safe_bool(at, e)? == Some(false) && cx.args.db != "local" {
                    bail!(
                        InvalidOptions,
                        "The autoIndexId option is not allowed to be false"
                    );
                }
            }
            "idIndex" => o.id_index = idl::doc(at, e)?,
            "storageEngine" => {
                o.storage_engine = idl::doc(at, e)?;
                engine_options::check(o.storage_engine.unwrap_or(Doc::EMPTY))?;
            }
            "indexOptionDefaults" => {
                o.index_defaults = idl::doc(at, e)?;
                for f in o.index_defaults.unwrap_or(Doc::EMPTY) {
                    match f.name {
                        "storageEngine" => {
                            let d = idl::doc("create.indexOptionDefaults", f)?;
                            engine_options::check(d.unwrap_or(Doc::EMPTY))?;
                        }
                        name => return Err(idl::unknown("create.indexOptionDefaults", name)),
                    }
                }
            }
            "validator" => o.validator = idl::doc(at, e)?,
            "validationLevel" => o.level = enumerated(at, e, &["off", "strict", "moderate"])?,
            "validationAction" => o.action = enumerated(at, e, &["error", "warn", "errorAndLog"])?,
            "viewOn" => o.view_on = idl::string(at, e)?,
            "pipeline" => o.pipeline = idl::array(at, e)?,
            "collation" => o.collation = idl::doc(at, e)?,
            "timeseries" => {
                o.timeseries = idl::doc(at, e)?;
                if let Some(d) = o.timeseries {
                    check_timeseries(d)?;
                }
            }
            "clusteredIndex" => {
                o.clustered_given = true;
                o.clustered = clustered(e.val)?;
            }
            "expireAfterSeconds" => o.expire_after = idl::int(at, e)?,
            "changeStreamPreAndPostImages" => o.images = images(at, e)?,
            "encryptedFields" => {
                let coll = cx.args.first.as_str().unwrap_or("");
                if let Some(d) = idl::doc(at, e)? {
                    o.encrypted = Some(super::encrypted_fields::check(coll, d)?);
                }
            }
            "temp" | "recordIdsReplicated" => {
                idl::safe_bool(at, e)?;
            }
            "flags" => {}
            _ => return Err(cx.args.unknown(e)),
        }
    }
    Ok(o)
}

/// A string of a fixed set.
pub fn enumerated<'a>(within: &str, e: Elem<'a>, values: &[&str]) -> Result<Option<&'a str>> {
    match idl::string(within, e)? {
        Some(v) if !values.contains(&v) => {
            bail!(
                BadValue,
                "Enumeration value '{v}' for field '{within}.{}' is not a valid value.",
                e.name
            )
        }
        v => Ok(v),
    }
}

/// `changeStreamPreAndPostImages`.
pub fn images(within: &str, e: Elem<'_>) -> Result<Option<bool>> {
    let at = format!("{within}.changeStreamPreAndPostImages");
    let Some(d) = idl::doc(within, e)? else {
        return Ok(None);
    };
    let mut enabled = None;
    for e in d {
        match e.name {
            "enabled" => enabled = idl::boolean(&at, e)?,
            name => return Err(idl::unknown(&at, name)),
        }
    }
    idl::required(&at, "enabled", enabled).map(Some)
}

fn check_timeseries(d: Doc<'_>) -> Result<()> {
    let at = "create.timeseries";
    let mut time = None;
    for e in d {
        match e.name {
            "timeField" => time = idl::string(at, e)?,
            "metaField" => {
                idl::string(at, e)?;
            }
            "granularity" => {
                enumerated(at, e, &["seconds", "minutes", "hours"])?;
            }
            "bucketMaxSpanSeconds" | "bucketRoundingSeconds" => {
                if idl::int(at, e)?.is_some_and(|n| !(1..=31_536_000).contains(&n)) {
                    bail!(
                        BadValue,
                        "BSON field '{}' value must be >= 1 and <= 31536000, actual value '{}'",
                        e.name,
                        e.val
                    );
                }
            }
            name => return Err(idl::unknown(at, name)),
        }
    }
    idl::required(at, "timeField", time).map(|_| ())
}

/// `clusteredIndex`, completed; `None` for false.
fn clustered(v: Val<'_>) -> Result<Option<DocBuf>> {
    let at = "create.clusteredIndex";
    let Some(d) = v.as_doc() else {
        if v.tag == tag::BOOL || v.is_number() {
            if v.truthy() {
                bail!(
                    5979703,
                    "The clusteredIndex option is not supported for namespaces that are not time-series buckets collections"
                );
            }
            return Ok(None);
        }
        return Err(idl::mismatch(
            "create",
            "clusteredIndex",
            v,
            &["bool", "object", "int", "long", "double", "decimal"],
        ));
    };
    let (mut key, mut unique, mut name) = (None, None, "_id_");
    for e in d {
        match e.name {
            "v" => {
                if idl::int(at, e)?.is_some_and(|n| n != 2) {
                    bail!(5979704, "Invalid clusteredIndex version: {}", e.val);
                }
            }
            "key" => key = idl::doc(at, e)?,
            "unique" => unique = idl::safe_bool(at, e)?,
            "name" => name = idl::string(at, e)?.unwrap_or(name),
            other => return Err(idl::unknown(at, other)),
        }
    }
    let key = idl::required(at, "key", key)?;
    if !idl::required(at, "unique", unique)? {
        bail!(
            5979700,
            "The clusteredIndex option requires unique: true to be specified"
        );
    }
    if key.count() != 1 || key.get("_id").and_then(|v| v.to_f64()) != Some(1.0) {
        bail!(
            InvalidIndexSpecificationOption,
            "The clusteredIndex option supports only the key {{_id: 1}}, got {key}"
        );
    }
    let mut w = Writer::new();
    w.i32("v", 2)
        .doc("key", key)
        .str("name", name)
        .bool("unique", true);
    Ok(Some(w.finish()))
}

fn check_namespace(ns: &str, o: &Options<'_>) -> Result<()> {
    check_name(ns, o.timeseries.is_some())
}

/// Names that a collection may be given.
pub fn check_name(ns: &str, timeseries: bool) -> Result<()> {
    catalog::check_collection_name(ns)?;
    if catalog::collection_of(ns).starts_with("system.buckets.") && !timeseries {
        bail!(
            IllegalOperation,
            "Cannot create system.buckets collection without timeseries options: {ns}"
        );
    }
    catalog::check_system_name(ns)
}

/// Checks of options against each other.
fn check_together(o: &Options<'_>) -> Result<()> {
    if o.capped && o.size.is_none() {
        bail!(
            InvalidOptions,
            "the 'size' field is required when 'capped' is true"
        );
    }
    if o.encrypted.is_some() {
        if o.capped {
            bail!(
                6367301,
                "Encrypted fields cannot be used with capped collections"
            );
        }
        if o.view_on.is_some() || o.timeseries.is_some() {
            bail!(
                6346401,
                "Encrypted fields cannot be used with views or time-series collections"
            );
        }
    }
    if let Some(view) = o.view_on {
        super::view::check_source(view)?;
        if o.id_index.is_some() {
            bail!(InvalidOptions, "Cannot create an _id index on a view");
        }
        if o.clustered_given {
            bail!(
                6026500,
                "The 'clusteredIndex' option is not supported with views"
            );
        }
        if o.images == Some(true) || o.timeseries.is_some() || o.expire_after.is_some() {
            bail!(InvalidOptions, "option not supported on a view");
        }
    } else {
        if o.pipeline.is_some() {
            bail!(
                InvalidOptions,
                "'pipeline' requires 'viewOn' to also be specified"
            );
        }
        if !o.capped
            && (o.size.is_some() || o.max.is_some())
            && !(o.clustered_given && o.size.is_none())
        {
            bail!(
                InvalidOptions,
                "the 'capped' field needs to be true when either the 'size' or 'max' fields are present"
            );
        }
        if o.clustered_given && o.capped {
            bail!(6049200, "'capped' and 'clusteredIndex' are incompatible");
        }
        if o.clustered_given && o.max.is_some() {
            bail!(6049204, "'max' and 'clusteredIndex' are incompatible");
        }
        if o.clustered_given && (o.id_index.is_some() || o.timeseries.is_some()) {
            bail!(
                InvalidOptions,
                "The 'clusteredIndex' option is not supported with 'idIndex' or 'timeseries'"
            );
        }
    }
    if o.timeseries.is_some()
        && (o.capped
            || o.validator.is_some()
            || o.level.is_some()
            || o.action.is_some()
            || o.id_index.is_some())
    {
        bail!(InvalidOptions, "option is not supported with 'timeseries'");
    }
    if let Some(n) = o.expire_after {
        if o.timeseries.is_none() && o.clustered.is_none() {
            bail!(
                InvalidOptions,
                "'expireAfterSeconds' is only supported on time-series collections or when the 'clusteredIndex' option is specified"
            );
        }
        if n < 0 || n > crate::clock::now_millis() / 1000 {
            bail!(
                InvalidOptions,
                "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a different value than {n}"
            );
        }
    }
    let own = o.collation.map(collation::complete).transpose()?.flatten();
    if let Some(d) = o.id_index {
        check_id_index(d)?;
        if let Some(c) = d.get("collation").and_then(|v| v.as_doc())
            && collation::complete(c)? != own
        {
            bail!(
                BadValue,
                "The _id index must have the same collation as the collection"
            );
        }
    }
    Ok(())
}

fn check_id_index(d: Doc<'_>) -> Result<()> {
    let (mut key, mut name) = (None, None);
    for e in d {
        match e.name {
            "key" => match e.val.as_doc() {
                Some(k) => key = Some(k),
                None => bail!(
                    TypeMismatch,
                    "The field 'key' must be an object, but got {}",
                    e.val.type_name()
                ),
            },
            "name" => match e.val.as_str() {
                Some("") => bail!(CannotCreateIndex, "The index name cannot be empty"),
                Some(n) => name = Some(n),
                None => bail!(
                    TypeMismatch,
                    "The field 'name' must be a string, but got {}",
                    e.val.type_name()
                ),
            },
            "v" => match e.val.to_i64_exact() {
                Some(1 | 2) => {}
                Some(_) => bail!(CannotCreateIndex, "Invalid index version {}", e.val),
                None if e.val.is_number() => bail!(
                    BadValue,
                    "Index version must be representable as a 32-bit integer, but got {}",
                    e.val
                ),
                None => bail!(
                    TypeMismatch,
                    "The field 'v' must be a number, but got {}",
                    e.val.type_name()
                ),
            },
            "ns" => {}
            "collation" => {
                if let Some(c) = idl::doc("create.idIndex", e)? {
                    collation::complete(c)?;
                }
            }
            other => bail!(
                InvalidIndexSpecificationOption,
                "The field '{other}' is not valid for an _id index specification."
            ),
        }
    }
    let (Some(key), Some(_)) = (key, name) else {
        bail!(
            FailedToParse,
            "The 'key' and 'name' fields are required properties of an index specification"
        );
    };
    if key.count() != 1 || key.get("_id").and_then(|v| v.to_f64()) != Some(1.0) {
        bail!(
            BadValue,
            "The field 'key' for an _id index must be {{_id: 1}}, but got {key}"
        );
    }
    Ok(())
}

fn refuse_missing(o: &Options<'_>) -> Result<()> {
    if o.view_on.is_some() {
        return Ok(());
    }
    if o.timeseries.is_some() {
        return unsupported("time-series collections");
    }
    Ok(())
}

/// The options that make a collection a capped one, as they are kept.
pub fn capped(w: &mut Writer, size: i64, max: Option<i64>) {
    w.bool("capped", true).int("size", rounded_up(size));
    if let Some(n) = max.filter(|n| *n > 0) {
        w.int("max", n);
    }
}

/// Sizes of capped collections are multiples of 256, as in MongoDB.
pub fn rounded_up(size: i64) -> i64 {
    size.saturating_add(0xFF) & !0xFF
}

/// The collation, which was checked before, as it is kept.
fn write_collation(w: &mut Writer, c: Option<Doc<'_>>) {
    if let Some(c) = c.and_then(|c| collation::complete(c).ok().flatten()) {
        w.doc("collation", c.as_doc());
    }
}

/// The options as listCollections shows them.
fn stored(o: &Options<'_>) -> DocBuf {
    let mut w = Writer::new();
    if o.capped {
        capped(&mut w, o.size.unwrap_or(0), o.max);
    }
    write_collation(&mut w, o.collation);
    for (name, d) in [
        ("storageEngine", o.storage_engine),
        ("indexOptionDefaults", o.index_defaults),
    ] {
        if let Some(d) = d.filter(|d| !d.is_empty()) {
            w.doc(name, d);
        }
    }
    if let Some(v) = o.validator.filter(|v| !v.is_empty()) {
        w.doc("validator", v);
    }
    for (name, s) in [("validationLevel", o.level), ("validationAction", o.action)] {
        if let Some(s) = s {
            w.str(name, s);
        }
    }
    if o.images == Some(true) {
        w.open_doc("changeStreamPreAndPostImages")
            .bool("enabled", true)
            .close();
    }
    if let Some(c) = &o.clustered {
        w.doc("clusteredIndex", c.as_doc());
    }
    if let Some(d) = &o.encrypted {
        w.doc("encryptedFields", d.as_doc());
    }
    if let Some(n) = o.expire_after {
        w.i64("expireAfterSeconds", n);
    }
    w.finish()
}

fn same_options(a: Doc<'_>, b: Doc<'_>) -> bool {
    a.count() == b.count()
        && a.iter()
            .all(|e| b.get(e.name).is_some_and(|v| order::equal(e.val, v)))
}
