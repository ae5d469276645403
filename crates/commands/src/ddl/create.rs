//! `create`: a collection with options.
//!
//! The checks are MongoDB's; an option that would change how documents are kept or found, and that this
//! version does not have, is refused rather than ignored.

use super::{changed, encrypted_fields, engine_options, time_series};
use crate::request::collation;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem, Val, Value, Writer, order, shell, tag};
use catalog::Catalog;
use errors::{Error, Result, bail, err};
use front::idl;

pub const MAX_CAPPED_BYTES: i64 = 1 << 50;

idl::arguments! {
    struct Options<'a> {
        "capped" => capped: bool = idl::flag,
        "size" => size: Option<i64> = read_size,
        "max" => max: Option<i64> = read_max,
        "idIndex" => id_index: Option<Doc<'a>> = idl::doc,
        "storageEngine" => storage_engine: Option<Doc<'a>> = read_engine,
        "indexOptionDefaults" => index_defaults: Option<Doc<'a>> = read_index_defaults,
        "validator" => validator: Option<Doc<'a>> = idl::doc,
        "validationLevel" => level: Option<&'a str> = validation_level,
        "validationAction" => action: Option<&'a str> = validation_action,
        "viewOn" => view_on: Option<&'a str> = idl::string,
        "pipeline" => pipeline: Option<Doc<'a>> = idl::array,
        "collation" => collation: Option<Doc<'a>> = idl::doc,
        "timeseries" => timeseries: Option<Doc<'a>> = read_timeseries,
        /// `Some(None)`: given as false.
        "clusteredIndex" => clustered: Option<Option<DocBuf>> = read_clustered,
        "expireAfterSeconds" => expire_after: Option<i64> = idl::int,
        "changeStreamPreAndPostImages" => images: Option<bool> = images,
        "encryptedFields" => encrypted: Option<Doc<'a>> = idl::doc,
        "autoIndexId" => auto_index_id: Option<bool> = idl::safe_bool,
        /// The UUID of the collection's other parts: a router gives it for a part of a sharded
        /// collection.
        "pandoUUID" => uuid: Option<[u8; 16]> = idl::uuid,
    }
    checked: "temp" | "recordIdsReplicated" => idl::safe_bool;
    ignored: "flags";
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let o = Options::parse("create", cx.args.fields.iter().copied())?;
    if o.auto_index_id == Some(false) && cx.args.db != "local" {
        bail!(
            InvalidOptions,
            "The autoIndexId option is not allowed to be false"
        );
    }
    let encrypted = match o.encrypted {
        Some(d) => Some(encrypted_fields::check(catalog::collection_of(&ns), d)?),
        None => None,
    };
    check_name(&ns, o.timeseries.is_some())?;
    check_together(&o)?;
    if encrypted.is_some() && cx.app.config.topology.is_standalone() {
        bail!(
            6346402,
            "Encrypted collections are not supported on standalone"
        );
    }
    if let Some(d) = o.timeseries.filter(|_| o.view_on.is_none()) {
        return create_time_series(cx, &ns, &o, d);
    }
    if let Some(v) = o.validator {
        super::validator::check(&ns, v)?;
    }
    let options = match o.view_on {
        Some(on) => {
            let mut w = Writer::new();
            w.extend(super::view::options(on, &super::view::stages(o.pipeline)?).as_doc());
            write_collation(&mut w, o.collation)?;
            w.finish()
        }
        None => stored(&o, encrypted.as_ref())?,
    };
    let catalog = &cx.app.engine.catalog;
    let created = match &mut cx.op.transaction {
        Some(_) if o.view_on.is_some() => bail!(
            OperationNotSupportedInTransaction,
            "Cannot create a view in a multi-document transaction."
        ),
        Some(transaction) => transaction.create(&ns, options.clone())?,
        None => (catalog.create_as(&ns, options.clone(), o.uuid)?).is_some(),
    };
    if created {
        changed(cx);
        return Ok(Done::Reply);
    }
    // Outside of transactions it is no error to create a collection that exists with the same options.
    let same = (catalog.get(&ns))
        .filter(|_| cx.op.transaction.is_none())
        .is_some_and(|c| same_options(c.options.as_doc(), options.as_doc()));
    if !same {
        bail!(NamespaceExists, "Collection {ns} already exists.");
    }
    Ok(Done::Reply)
}

/// Creates a time series, with the collection of its buckets.
fn create_time_series(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    o: &Options<'_>,
    d: Doc<'_>,
) -> Result<Done> {
    if cx.op.transaction.is_some() {
        bail!(
            OperationNotSupportedInTransaction,
            "Cannot create a time-series collection in a multi-document transaction."
        );
    }
    let series = time_series::options(d)?;
    let mut w = Writer::new();
    write_collation(&mut w, o.collation)?;
    let w = w.finish();
    let collation = w.get("collation").and_then(|v| v.as_doc());
    let shown =
        catalog::time_series::options_of_measurements(ns, &series, o.expire_after, collation);
    let buckets = catalog::time_series::options_of_buckets(&series, collation);
    let catalog = &cx.app.engine.catalog;
    if catalog.create_time_series(ns, shown.clone(), buckets, o.uuid)? {
        changed(cx);
        return Ok(Done::Reply);
    }
    let same = catalog.get(ns);
    if !same.is_some_and(|c| same_options(c.options.as_doc(), shown.as_doc())) {
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
    let found = actual.by_uuid(&uuid);
    let found = found.filter(|c| c.db() == catalog::db_of(ns));
    let uuid = Value::binary(4, &uuid);
    Err(uuid_mismatch(ns, uuid.as_val(), found.map(|c| c.name())).into())
}

/// The error of a collection that is not the one with the UUID that the client says. `actual`: which of
/// its database has that.
pub fn uuid_mismatch(ns: &str, uuid: Val<'_>, actual: Option<&str>) -> Error {
    let mut w = Writer::new();
    w.str("db", catalog::db_of(ns))
        .val("collectionUUID", uuid)
        .str("expectedCollection", catalog::collection_of(ns));
    match actual {
        Some(name) => w.str("actualCollection", name),
        None => w.null("actualCollection"),
    };
    err!(
        CollectionUUIDMismatch,
        "Collection UUID does not match that specified"
    )
    .with_extra(w.finish().into_vec())
}

fn read_size(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    let size = idl::int(within, e)?;
    if size.is_some_and(|n| !(1..=MAX_CAPPED_BYTES).contains(&n)) {
        bail!(
            BadValue,
            "BSON field 'size' value must be >= 1 and <= {MAX_CAPPED_BYTES}, actual value '{}'",
            e.val
        );
    }
    Ok(size)
}

fn read_max(within: &str, e: Elem<'_>) -> Result<Option<i64>> {
    let max = idl::int(within, e)?;
    if max.is_some_and(|n| n > i64::from(i32::MAX)) {
        bail!(
            BadValue,
            "BSON field 'max' value must be < 2147483648, actual value '{}'",
            e.val
        );
    }
    Ok(max)
}

fn read_engine<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    let d = idl::doc(within, e)?;
    engine_options::check(d.unwrap_or(Doc::EMPTY))?;
    Ok(d)
}

fn read_index_defaults<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    const AT: &str = "create.indexOptionDefaults";
    let d = idl::doc(within, e)?;
    for f in idl::unique(AT, d.unwrap_or(Doc::EMPTY))? {
        match f.name {
            "storageEngine" => read_engine(AT, f)?,
            name => return Err(idl::unknown(AT, name)),
        };
    }
    Ok(d)
}

fn read_timeseries<'a>(within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    let d = idl::doc(within, e)?;
    if let Some(d) = d {
        time_series::options(d)?;
    }
    Ok(d)
}

pub fn validation_level<'a>(within: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    enumerated(within, e, &["off", "strict", "moderate"])
}

pub fn validation_action<'a>(within: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    enumerated(within, e, &["error", "warn", "errorAndLog"])
}

/// A string of a fixed set.
fn enumerated<'a>(within: &str, e: Elem<'a>, values: &[&str]) -> Result<Option<&'a str>> {
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
    for e in idl::unique(&at, d)? {
        match e.name {
            "enabled" => enabled = idl::boolean(&at, e)?,
            name => return Err(idl::unknown(&at, name)),
        }
    }
    idl::required(&at, "enabled", enabled).map(Some)
}

/// The argument `clusteredIndex`, completed; `Some(None)` for false.
fn read_clustered(_within: &str, e: Elem<'_>) -> Result<Option<Option<DocBuf>>> {
    clustered(e.val).map(Some)
}

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
    for e in idl::unique(at, d)? {
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
            "The clusteredIndex option supports only the key {{_id: 1}}, got {}",
            shell::doc(key)
        );
    }
    let mut w = Writer::new();
    w.i32("v", 2)
        .doc("key", key)
        .str("name", name)
        .bool("unique", true);
    Ok(Some(w.finish()))
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
    match o.view_on {
        Some(on) => check_view(on, o)?,
        None => check_collection(o)?,
    }
    if o.timeseries.is_some()
        && (o.capped
            || o.validator.is_some()
            || o.level.is_some()
            || o.action.is_some()
            || o.id_index.is_some()
            || o.images.is_some())
    {
        bail!(InvalidOptions, "option is not supported with 'timeseries'");
    }
    check_expiry(o)?;
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

fn check_view(on: &str, o: &Options<'_>) -> Result<()> {
    super::view::check_source(on)?;
    if o.id_index.is_some() {
        bail!(InvalidOptions, "Cannot create an _id index on a view");
    }
    if o.clustered.is_some() {
        bail!(
            6026500,
            "The 'clusteredIndex' option is not supported with views"
        );
    }
    if o.images == Some(true) || o.timeseries.is_some() || o.expire_after.is_some() {
        bail!(InvalidOptions, "option not supported on a view");
    }
    Ok(())
}

fn check_collection(o: &Options<'_>) -> Result<()> {
    if o.pipeline.is_some() {
        bail!(
            InvalidOptions,
            "'pipeline' requires 'viewOn' to also be specified"
        );
    }
    let clustered = o.clustered.is_some();
    if !o.capped && (o.size.is_some() || o.max.is_some()) && !(clustered && o.size.is_none()) {
        bail!(
            InvalidOptions,
            "the 'capped' field needs to be true when either the 'size' or 'max' fields are present"
        );
    }
    if clustered && o.capped {
        bail!(6049200, "'capped' and 'clusteredIndex' are incompatible");
    }
    if clustered && o.max.is_some() {
        bail!(6049204, "'max' and 'clusteredIndex' are incompatible");
    }
    if clustered && (o.id_index.is_some() || o.timeseries.is_some()) {
        bail!(
            InvalidOptions,
            "The 'clusteredIndex' option is not supported with 'idIndex' or 'timeseries'"
        );
    }
    Ok(())
}

fn check_expiry(o: &Options<'_>) -> Result<()> {
    let Some(n) = o.expire_after else {
        return Ok(());
    };
    if o.timeseries.is_none() && o.clustered.as_ref().is_none_or(|c| c.is_none()) {
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
    Ok(())
}

idl::arguments! {
    /// The argument `idIndex` as it is written.
    struct IdIndex<'a> {
        "key" => key: Option<Doc<'a>> = read_id_key,
        "name" => name: Option<&'a str> = read_id_name,
    }
    checked: "v" => check_id_version, "collation" => check_id_collation;
    ignored: "ns";
}

fn read_id_key<'a>(_within: &str, e: Elem<'a>) -> Result<Option<Doc<'a>>> {
    match e.val.as_doc() {
        Some(key) => Ok(Some(key)),
        None => bail!(
            TypeMismatch,
            "The field 'key' must be an object, but got {}",
            e.val.type_name()
        ),
    }
}

fn read_id_name<'a>(_within: &str, e: Elem<'a>) -> Result<Option<&'a str>> {
    match e.val.as_str() {
        Some("") => bail!(CannotCreateIndex, "The index name cannot be empty"),
        Some(name) => Ok(Some(name)),
        None => bail!(
            TypeMismatch,
            "The field 'name' must be a string, but got {}",
            e.val.type_name()
        ),
    }
}

fn check_id_version(_within: &str, e: Elem<'_>) -> Result<()> {
    match e.val.to_i64_exact() {
        Some(1 | 2) => Ok(()),
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
    }
}

fn check_id_collation(_within: &str, e: Elem<'_>) -> Result<()> {
    match idl::doc("create.idIndex", e)? {
        Some(c) => collation::complete(c).map(|_| ()),
        None => Ok(()),
    }
}

fn check_id_index(d: Doc<'_>) -> Result<()> {
    let mut index = IdIndex::default();
    for e in idl::unique("create.idIndex", d)? {
        if !index.read("create.idIndex", e)? {
            bail!(
                InvalidIndexSpecificationOption,
                "The field '{}' is not valid for an _id index specification.",
                e.name
            );
        }
    }
    let (Some(key), Some(_)) = (index.key, index.name) else {
        bail!(
            FailedToParse,
            "The 'key' and 'name' fields are required properties of an index specification"
        );
    };
    if key.count() != 1 || key.get("_id").and_then(|v| v.to_f64()) != Some(1.0) {
        bail!(
            BadValue,
            "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
            shell::doc(key)
        );
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

/// The collation as it is kept.
fn write_collation(w: &mut Writer, c: Option<Doc<'_>>) -> Result<()> {
    if let Some(c) = c.map(collation::complete).transpose()?.flatten() {
        w.doc("collation", c.as_doc());
    }
    Ok(())
}

/// The options as listCollections shows them.
fn stored(o: &Options<'_>, encrypted: Option<&DocBuf>) -> Result<DocBuf> {
    let mut w = Writer::new();
    if o.capped {
        capped(&mut w, o.size.unwrap_or(0), o.max);
    }
    write_collation(&mut w, o.collation)?;
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
    if let Some(Some(c)) = &o.clustered {
        w.doc("clusteredIndex", c.as_doc());
    }
    if let Some(d) = encrypted {
        w.doc("encryptedFields", d.as_doc());
    }
    if let Some(n) = o.expire_after {
        w.i64("expireAfterSeconds", n);
    }
    Ok(w.finish())
}

fn same_options(a: Doc<'_>, b: Doc<'_>) -> bool {
    a.count() == b.count()
        && a.iter()
            .all(|e| b.get(e.name).is_some_and(|v| order::equal(e.val, v)))
}
