//! `createSearchIndexes`, `updateSearchIndex`, `dropSearchIndex` and `listSearchIndexes`, and the
//! rows of `$listSearchIndexes`.
//!
//! A definition is a part of its collection's record in the catalog, so it goes where the collection
//! goes. Each member builds its own index of it. On a sharded cluster each shard has the definitions,
//! under the same ids: routers send the ids of the first shard to the others (`pandoIds`), and give a
//! shard that a range is moved to all definitions of the one that it comes from (`pandoLike`).
//!
//! Source: MongoDB's manual, "createSearchIndexes" and "$listSearchIndexes".

use super::{changed, listing};
use crate::clock::now_millis;
use crate::process;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Elem, Val, Writer};
use catalog::Collection;
use errors::{Result, bail, err};
use executor::Engine;
use executor::search::{LackingDocuments, SynonymStatus, check_searchable};
use front::{Args, idl};
use search::{Definition, Kind};
use std::sync::Arc;

/// The most search indexes of a collection.
const MOST_INDEXES: usize = 64;
/// The most bytes of the definitions of one.
const MOST_BYTES: usize = 1 << 20;
/// The name of an index that was given none.
const DEFAULT_NAME: &str = "default";

fn collection(cx: &CommandContext<'_, '_>) -> Result<Arc<Collection>> {
    let ns = cx.args.namespace()?;
    match cx.app.engine.catalog.get(&ns) {
        Some(c) => Ok(c),
        None => bail!(NamespaceNotFound, "Collection '{ns}' does not exist."),
    }
}

/// A definition that was asked for.
struct Wanted {
    name: String,
    kind: Kind,
    definition: DocBuf,
}

impl Wanted {
    fn parse(v: Val<'_>) -> Result<Wanted> {
        const AT: &str = "createSearchIndexes.indexes";
        let Some(d) = v.as_doc() else {
            bail!(
                TypeMismatch,
                "BSON field '{AT}' is the wrong type '{}', expected type 'object'",
                v.type_name()
            );
        };
        let (mut name, mut kind, mut definition) = (None, None, None);
        for e in idl::unique(AT, d)? {
            match e.name {
                "name" => name = Some(text(AT, e)?),
                "type" => kind = Some(text(AT, e)?),
                "definition" => definition = idl::doc(AT, e)?,
                other => return Err(idl::unknown(AT, other)),
            }
        }
        let definition: Doc = idl::required(AT, "definition", definition)?;
        let kind = match kind {
            None => Kind::Search,
            Some(given) => Kind::named(given).ok_or_else(|| {
                err!(
                    UnknownError,
                    "Invalid index type: {given}. Must be one of [search, vectorSearch]"
                )
            })?,
        };
        let name = name.unwrap_or(DEFAULT_NAME);
        if name.is_empty() {
            bail!(BadValue, "\"name\" of a search index cannot be empty");
        }
        check_definition(kind, definition)?;
        Ok(Wanted {
            name: name.to_string(),
            kind,
            definition: definition.to_buf(),
        })
    }
}

fn text<'a>(within: &str, e: Elem<'a>) -> Result<&'a str> {
    match e.val.as_str() {
        Some(s) => Ok(s),
        None => Err(idl::mismatch(within, e.name, e.val, &["string"])),
    }
}

fn check_definition(kind: Kind, d: Doc<'_>) -> Result<()> {
    if d.len() > MOST_BYTES {
        bail!(
            BSONObjectTooLarge,
            "the definition of a search index may have at most {MOST_BYTES} bytes"
        );
    }
    Definition::parse(kind, d).map(drop)
}

/// As the catalog keeps it.
fn spec(id: &str, name: &str, kind: Kind, version: i64, definition: Doc<'_>) -> DocBuf {
    let mut w = Writer::new();
    w.str("id", id).str("name", name).str("type", kind.name());
    w.i64("version", version).date("created", now_millis());
    w.doc("definition", definition);
    w.finish()
}

fn field<'a>(d: &'a DocBuf, name: &str) -> &'a str {
    d.get(name).and_then(|v| v.as_str()).unwrap_or("")
}

/// 24 hexadecimal digits.
fn new_id() -> String {
    let bytes: [u8; 12] = rand::random();
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What `createSearchIndexes` is to make.
enum Created<'a> {
    /// The search indexes of another shard, and no others.
    Like(Doc<'a>),
    /// These, under ids that are given or not.
    New(Vec<Wanted>, Vec<&'a str>),
}

fn created<'a>(args: &Args<'a>) -> Result<Created<'a>> {
    let (mut indexes, mut ids, mut like) = (None, Doc::EMPTY, None);
    for e in &args.fields {
        match e.name {
            "indexes" => indexes = idl::array("createSearchIndexes", *e)?,
            "pandoIds" => ids = idl::array("createSearchIndexes", *e)?.unwrap_or(Doc::EMPTY),
            "pandoLike" => like = idl::array("createSearchIndexes", *e)?,
            _ => return Err(args.unknown(*e)),
        }
    }
    if let Some(specs) = like {
        return Ok(Created::Like(specs));
    }
    let given: Vec<&str> = ids.values().filter_map(|v| v.as_str()).collect();
    if given.iter().any(|id| !is_id(id)) {
        bail!(BadValue, "ids of search indexes are 24 hexadecimal digits");
    }
    let indexes: Doc = idl::required("createSearchIndexes", "indexes", indexes)?;
    let wanted = indexes
        .values()
        .map(Wanted::parse)
        .collect::<Result<Vec<_>>>()?;
    if wanted.is_empty() {
        bail!(BadValue, "Must specify at least one index to create");
    }
    Ok(Created::New(wanted, given))
}

pub fn create(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (wanted, given) = match created(&cx.args)? {
        Created::Like(specs) => return make_like(cx, specs),
        Created::New(wanted, given) => (wanted, given),
    };
    let coll = collection(cx)?;
    check_searchable(&coll)?;
    let mut made = Vec::new();
    let interrupt = || cx.op.check();
    cx.app.engine.catalog.change_search(&coll.ns, &interrupt, |all| {
        for (n, w) in wanted.iter().enumerate() {
            let same = all.iter().find(|d| field(d, "name") == w.name);
            if let Some(there) = same {
                let definition = there.get("definition").and_then(|v| v.as_doc());
                let equal = definition == Some(w.definition.as_doc());
                if !equal || field(there, "type") != w.kind.name() {
                    bail!(
                        IndexAlreadyExists,
                        "Index \"{}\" already exists with a different definition. Drop it first if needed.",
                        w.name
                    );
                }
                made.push((field(there, "id").to_string(), w.name.clone()));
                continue;
            }
            if all.len() >= MOST_INDEXES {
                bail!(CannotCreateIndex, "a collection may have at most {MOST_INDEXES} search indexes");
            }
            let id = given.get(n).map_or_else(new_id, |id| id.to_string());
            all.push(spec(&id, &w.name, w.kind, 0, w.definition.as_doc()));
            made.push((id, w.name.clone()));
        }
        Ok(())
    })?;
    changed(cx);
    cx.w.open_array("indexesCreated");
    for (id, name) in made {
        cx.w.open_doc("").str("id", &id).str("name", &name).close();
    }
    cx.w.close();
    Ok(Done::Reply)
}

/// The collection has these search indexes, and no others: those of another shard.
fn make_like(cx: &mut CommandContext<'_, '_>, specs: Doc<'_>) -> Result<Done> {
    let mut wanted = Vec::new();
    for d in specs.values().filter_map(|v| v.as_doc()) {
        let text = |name: &str| d.get(name).and_then(|v| v.as_str()).unwrap_or("");
        let kind = Kind::named(text("type")).unwrap_or(Kind::Search);
        let definition = d.get("definition").and_then(|v| v.as_doc());
        let definition = definition.unwrap_or(Doc::EMPTY);
        check_definition(kind, definition)?;
        if !is_id(text("id")) || text("name").is_empty() || wanted.len() >= MOST_INDEXES {
            bail!(BadValue, "these are no search indexes: {specs}");
        }
        let version = d.get("version").and_then(|v| v.as_i64()).unwrap_or(0);
        wanted.push(spec(text("id"), text("name"), kind, version, definition));
    }
    let coll = collection(cx)?;
    let same = |a: &DocBuf, b: &DocBuf| {
        let names = ["id", "name", "type", "version", "definition"];
        names.iter().all(|name| a.get(name) == b.get(name))
    };
    let there = coll.search.as_deref().unwrap_or(&[]);
    let is_like = there.len() == wanted.len() && there.iter().zip(&wanted).all(|(a, b)| same(a, b));
    if !is_like {
        let interrupt = || cx.op.check();
        let catalog = &cx.app.engine.catalog;
        catalog.change_search(&coll.ns, &interrupt, |all| {
            *all = std::mem::take(&mut wanted);
            Ok(())
        })?;
        changed(cx);
    }
    Ok(Done::Reply)
}

/// An id is a part of the names of folders.
fn is_id(id: &str) -> bool {
    id.len() == 24 && id.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The index that a command names.
#[derive(Default)]
struct IndexSelector<'a> {
    name: Option<&'a str>,
    id: Option<&'a str>,
}

impl<'a> IndexSelector<'a> {
    /// Takes a field of the command, if it is one that names an index.
    fn take(&mut self, command: &str, e: Elem<'a>) -> Result<bool> {
        match e.name {
            "name" => self.name = Some(text(command, e)?),
            "id" => self.id = Some(text(command, e)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check(&self, command: &str) -> Result<()> {
        if self.name.is_some() == self.id.is_some() {
            bail!(
                InvalidOptions,
                "{command} needs either 'name' or 'id' of the index, and not both"
            );
        }
        Ok(())
    }

    fn is(&self, d: &DocBuf) -> bool {
        self.name.is_none_or(|n| field(d, "name") == n)
            && self.id.is_none_or(|id| field(d, "id") == id)
    }

    fn missing(&self) -> errors::Error {
        let which = self.name.or(self.id).unwrap_or("");
        err!(IndexNotFound, "Search index '{which}' not found.")
    }
}

/// Which index `updateSearchIndex` changes, and to what.
fn updated<'a>(args: &Args<'a>) -> Result<(IndexSelector<'a>, Doc<'a>)> {
    const AT: &str = "updateSearchIndex";
    let mut which = IndexSelector::default();
    let mut definition = None;
    for e in &args.fields {
        match e.name {
            "definition" => definition = idl::doc(AT, *e)?,
            _ if which.take(AT, *e)? => {}
            _ => return Err(args.unknown(*e)),
        }
    }
    which.check(AT)?;
    Ok((which, idl::required(AT, "definition", definition)?))
}

pub fn update(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (which, definition) = updated(&cx.args)?;
    let coll = collection(cx)?;
    let interrupt = || cx.op.check();
    cx.app
        .engine
        .catalog
        .change_search(&coll.ns, &interrupt, |all| {
            let Some(found) = all.iter_mut().find(|d| which.is(d)) else {
                return Err(which.missing().into());
            };
            let kind = Kind::named(field(found, "type")).unwrap_or(Kind::Search);
            check_definition(kind, definition)?;
            let version = found.get("version").and_then(|v| v.as_i64()).unwrap_or(0);
            *found = spec(
                field(found, "id"),
                field(found, "name"),
                kind,
                version + 1,
                definition,
            );
            Ok(())
        })?;
    changed(cx);
    Ok(Done::Reply)
}

/// Which index `dropSearchIndex` removes.
fn dropped<'a>(args: &Args<'a>) -> Result<IndexSelector<'a>> {
    const AT: &str = "dropSearchIndex";
    let mut which = IndexSelector::default();
    for e in &args.fields {
        if !which.take(AT, *e)? {
            return Err(args.unknown(*e));
        }
    }
    which.check(AT)?;
    Ok(which)
}

pub fn drop_one(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let which = dropped(&cx.args)?;
    let coll = collection(cx)?;
    let interrupt = || cx.op.check();
    cx.app
        .engine
        .catalog
        .change_search(&coll.ns, &interrupt, |all| {
            let before = all.len();
            all.retain(|d| !which.is(d));
            match all.len() == before {
                true => Err(which.missing().into()),
                false => Ok(()),
            }
        })?;
    changed(cx);
    Ok(Done::Reply)
}

/// What `listSearchIndexes` lists: of which collection, by which filter, and the size of the batch.
fn listed(args: &Args<'_>) -> Result<(String, DocBuf, Option<u64>)> {
    const AT: &str = "listSearchIndexes";
    let mut batch_size = None;
    let mut filter = Writer::new();
    for e in &args.fields {
        match e.name {
            "name" | "id" => {
                filter.str(e.name, text(AT, *e)?);
            }
            "cursor" => batch_size = listing::batch_size(AT, *e)?,
            _ => return Err(args.unknown(*e)),
        }
    }
    Ok((args.namespace()?, filter.finish(), batch_size))
}

/// Checks the arguments of any of the four.
pub fn check(args: &Args<'_>) -> Result<()> {
    args.namespace()?;
    match args.command {
        "createSearchIndexes" => created(args).map(drop),
        "updateSearchIndex" => updated(args).map(drop),
        "dropSearchIndex" => dropped(args).map(drop),
        _ => listed(args).map(drop),
    }
}

pub fn list(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (ns, filter, batch_size) = listed(&cx.args)?;
    executor::search::read_synonyms(&mut cx.op, &ns, filter.as_doc())?;
    let docs = rows(&cx.app.engine, &ns, filter.as_doc())?;
    listing::reply(cx, &ns, docs, batch_size)?;
    Ok(Done::Reply)
}

/// A document for each search index of a collection that `filter` names (`{name}`, `{id}`, or all).
pub fn rows(engine: &Engine, ns: &str, filter: Doc<'_>) -> Result<Vec<DocBuf>> {
    let Some(coll) = engine.catalog.get(ns) else {
        return Ok(Vec::new());
    };
    let given = |name: &str| filter.get(name).and_then(|v| v.as_str());
    let which = IndexSelector {
        name: given("name"),
        id: given("id"),
    };
    let specs = coll.search.as_deref().unwrap_or(&[]).iter();
    let specs = specs.filter(|d| which.is(d));
    specs.map(|d| row(engine, &coll, d)).collect()
}

fn row(engine: &Engine, coll: &Collection, spec: &DocBuf) -> Result<DocBuf> {
    let state = engine.search.status(coll, spec.as_doc());
    let synonyms = engine.search.synonyms(spec.as_doc());
    let lacking = engine.search.lacking(engine, spec.as_doc())?;
    let version = spec.get("version").and_then(|v| v.as_i64()).unwrap_or(0);
    let created = spec.get("created").unwrap_or(Val::NULL);
    let definition = spec
        .get("definition")
        .and_then(|v| v.as_doc())
        .unwrap_or(Doc::EMPTY);
    let write_version = |w: &mut Writer, name: &str| {
        w.open_doc(name)
            .i64("version", version)
            .val("createdAt", created)
            .close();
    };
    let mut w = Writer::new();
    for name in ["id", "name", "type"] {
        w.str(name, field(spec, name));
    }
    w.str("status", state.status)
        .bool("queryable", state.queryable);
    w.i64("latestVersion", version);
    write_version(&mut w, "latestDefinitionVersion");
    w.doc("latestDefinition", definition);
    write_synonyms(&mut w, "synonymMappingStatusDetail", &synonyms);
    w.open_array("statusDetail").open_doc("");
    w.str("hostname", &process::host_name())
        .str("status", state.status)
        .bool("queryable", state.queryable);
    w.open_doc("mainIndex")
        .str("status", state.status)
        .bool("queryable", state.queryable);
    write_synonyms(&mut w, "synonymMappingStatusDetails", &synonyms);
    write_version(&mut w, "definitionVersion");
    w.doc("definition", definition).close();
    if let Some(message) = &state.message {
        w.str("message", message);
    }
    write_lacking(&mut w, &lacking);
    w.close().close();
    w.i64(
        "numDocs",
        i64::try_from(state.documents).unwrap_or(i64::MAX),
    );
    w.i64(
        "numIncompleteDocs",
        i64::try_from(lacking.count).unwrap_or(i64::MAX),
    );
    w.i64("indexSize", i64::try_from(state.bytes).unwrap_or(i64::MAX));
    Ok(w.finish())
}

/// The status of all synonym mappings together, and that of each; nothing where there are none.
fn write_synonyms(w: &mut Writer, details: &str, synonyms: &[SynonymStatus]) {
    if synonyms.is_empty() {
        return;
    }
    let mut worst = ["FAILED", "BUILDING", "READY"].into_iter();
    let worst = worst.find(|s| synonyms.iter().any(|m| m.status == *s));
    w.str("synonymMappingStatus", worst.unwrap_or("READY"))
        .open_array(details);
    for mapping in synonyms {
        w.open_doc("").open_doc(&mapping.name);
        w.str("status", mapping.status)
            .bool("queryable", mapping.status == "READY");
        if let Some(message) = &mapping.message {
            w.str("message", message);
        }
        w.close().close();
    }
    w.close();
}

/// `incompleteDocs: [{path, reason, count, ids: [_id, …]}]`
fn write_lacking(w: &mut Writer, lacking: &LackingDocuments) {
    if lacking.fields.is_empty() {
        return;
    }
    w.open_array("incompleteDocs");
    for field in &lacking.fields {
        w.open_doc("")
            .str("path", &field.path)
            .str("reason", field.reason);
        w.i64("count", i64::try_from(field.count).unwrap_or(i64::MAX));
        w.open_array("ids");
        field.ids.iter().for_each(|id| {
            w.push(id.as_val());
        });
        w.close().close();
    }
    w.close();
}
