//! Index definitions: which fields of documents are indexed, and how.
//!
//! ```text
//! search        {mappings: {dynamic, fields: {name: {type, …} | [{type, …}, …]}}, analyzer, searchAnalyzer, analyzers, synonyms}
//! vectorSearch  {fields: [{type: "vector", path, numDimensions, similarity, …}, {type: "filter", path}], nestedRoot}
//! ```
//! Source: MongoDB's manual, "Define Field Mappings" and "How to Index Fields for Vector Search".

use crate::analysis::{self, Analyzer, Analyzers};
use crate::problem::{of_library, wrong, wrong_definition};
use crate::synonyms::{self, SynonymSource};
use crate::vector_definition::{VectorField, VectorUse, vector_field};
use bson::{Doc, DocBuf, Writer};
use errors::Result;
use std::collections::BTreeMap;

/// How deep mappings may nest.
pub(crate) const MOST_DEPTH: usize = 32;

/// Two kinds of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Search,
    Vector,
}

impl Kind {
    /// The type as commands write it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Search => "search",
            Kind::Vector => "vectorSearch",
        }
    }

    pub fn named(name: &str) -> Option<Kind> {
        match name {
            "search" => Some(Kind::Search),
            "vectorSearch" => Some(Kind::Vector),
            _ => None,
        }
    }
}

/// How the strings of a field are broken into terms, at both times.
#[derive(Clone, Debug, Default)]
pub struct StringType {
    pub index: Analyzer,
    pub search: Analyzer,
}

/// A field of type autocomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grams {
    pub least: usize,
    pub most: usize,
    pub from: GramsFrom,
}

/// Which parts of a word are indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GramsFrom {
    Start,
    End,
    Anywhere,
}

/// What is indexed of one field.
#[derive(Clone, Debug, Default)]
pub struct FieldTypes {
    pub string: Option<StringType>,
    /// Other analyzers of the same field, by name.
    pub multi: BTreeMap<String, StringType>,
    pub autocomplete: Option<Grams>,
    /// Whole strings: `Some(true)` in lower case.
    pub token: Option<bool>,
    pub number: bool,
    pub date: bool,
    pub boolean: bool,
    pub object_id: bool,
    pub uuid: bool,
    /// Shapes; `Some(true)`: not only points (`indexShapes`).
    pub geo: Option<bool>,
    pub document: Option<Mapping>,
    /// Elements of an array, each as a document of its own.
    pub embedded: Option<Embedded>,
    /// A vector; its path is known at the top.
    pub vector: Option<VectorField>,
}

/// A field of type embeddedDocuments.
#[derive(Clone, Debug, Default)]
pub struct Embedded {
    pub mapping: Mapping,
    pub stored: StoredSource,
}

impl FieldTypes {
    /// What is indexed of documents there.
    fn inner(&self) -> Option<&Mapping> {
        let embedded = self.embedded.as_ref().map(|e| &e.mapping);
        self.document.as_ref().or(embedded)
    }
}

/// What is indexed of a document.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    pub dynamic: bool,
    pub fields: BTreeMap<String, FieldTypes>,
}

/// A definition that was checked.
#[derive(Clone, Debug)]
pub struct Definition {
    pub kind: Kind,
    pub mapping: Mapping,
    /// Of strings whose field says nothing.
    pub default: StringType,
    pub vectors: Vec<VectorField>,
    /// The array whose elements have the vectors.
    pub nested_root: Option<String>,
    pub stored: StoredSource,
    pub synonyms: Vec<SynonymSource>,
    /// The paths of type embeddedDocuments, and what of their elements may be given.
    pub embedded: BTreeMap<String, StoredSource>,
}

/// Which fields of its documents a search may give instead of the documents (`storedSource`).
#[derive(Clone, Debug, Default)]
pub enum StoredSource {
    /// None: a search that asks for them is refused.
    #[default]
    None,
    All,
    /// By a projection.
    Some(DocBuf),
}

impl Definition {
    /// Fails with MongoDB's errors.
    pub fn parse(kind: Kind, d: Doc<'_>) -> Result<Definition> {
        match kind {
            Kind::Search => search(d),
            Kind::Vector => crate::vector_definition::parse(d),
        }
    }

    /// What the definition says of a path; the second: whether strings and values found there are indexed because
    /// nothing was said of it.
    pub fn at(&self, path: &str) -> (Option<&FieldTypes>, bool) {
        let mut mapping = Some(&self.mapping);
        let mut found = None;
        let mut dynamic = self.mapping.dynamic;
        for part in path.split('.') {
            found = mapping.and_then(|m| m.fields.get(part));
            mapping = match found {
                Some(types) => {
                    dynamic = types.inner().is_some_and(|m| m.dynamic);
                    types.inner()
                }
                None => {
                    dynamic = mapping.map_or(dynamic, |m| m.dynamic);
                    None
                }
            };
        }
        (found, found.is_none() && dynamic)
    }

    /// The projection of what an index has stored; `None`: it has all.
    pub(crate) fn given(&self, name: &str) -> Result<Option<DocBuf>> {
        match &self.stored {
            StoredSource::None => Err(wrong(format!(
                "\"returnStoredSource\" needs an index with \"storedSource\": {name}"
            ))),
            StoredSource::All => Ok(None),
            StoredSource::Some(projection) => Ok(Some(projection.clone())),
        }
    }

    /// The analyzers of a path, or of one of its alternatives; `None`: it holds no analyzed strings.
    pub fn analyzers(&self, path: &str, multi: Option<&str>) -> Option<StringType> {
        let (types, dynamic) = self.at(path);
        match (types, multi) {
            (Some(types), Some(name)) => types.multi.get(name).cloned(),
            (Some(types), None) => types.string.clone(),
            (None, None) => dynamic.then(|| self.default.clone()),
            (None, Some(_)) => None,
        }
    }
}

pub(crate) fn string<'a>(d: Doc<'a>, name: &str) -> Result<Option<&'a str>> {
    match d.get(name).filter(|v| !v.is_nullish()) {
        None => Ok(None),
        Some(v) => match v.as_str() {
            Some(s) => Ok(Some(s)),
            None => Err(wrong_definition(format!("\"{name}\" must be a string"))),
        },
    }
}

fn flag(d: Doc<'_>, name: &str) -> Result<Option<bool>> {
    match d.get(name).filter(|v| !v.is_nullish()) {
        None => Ok(None),
        Some(v) => match v.as_bool() {
            Some(b) => Ok(Some(b)),
            None => Err(wrong_definition(format!("\"{name}\" must be a boolean"))),
        },
    }
}

/// What stands above the fields of a definition.
struct Above {
    default: StringType,
    custom: Analyzers,
}

impl Above {
    fn analyzer(&self, d: Doc<'_>, name: &str) -> Result<Option<Analyzer>> {
        match string(d, name)? {
            None => Ok(None),
            Some(given) => match analysis::named(given, &self.custom) {
                Some(a) => Ok(Some(a)),
                None => Err(wrong_definition(format!(
                    "\"{name}\" is not a supported analyzer: {given}"
                ))),
            },
        }
    }

    /// The analyzers of a definition or a field.
    fn analyzers(&self, d: Doc<'_>) -> Result<StringType> {
        let index = self.analyzer(d, "analyzer")?;
        let search = self.analyzer(d, "searchAnalyzer")?;
        let default = &self.default;
        Ok(StringType {
            search: search
                .or(index.clone())
                .unwrap_or_else(|| default.search.clone()),
            index: index.unwrap_or_else(|| default.index.clone()),
        })
    }
}

fn search(d: Doc<'_>) -> Result<Definition> {
    for e in d.iter() {
        match e.name {
            "mappings" | "analyzer" | "searchAnalyzer" | "analyzers" | "synonyms"
            | "storedSource" | "numPartitions" => {}
            name => return Err(wrong_definition(format!("unrecognized field \"{name}\""))),
        }
    }
    let mut above = Above {
        default: StringType::default(),
        custom: analysis::parse(d)?,
    };
    above.default = above.analyzers(d)?;
    let Some(m) = d.get("mappings").filter(|v| !v.is_nullish()) else {
        return Err(wrong_definition("\"mappings\" is required"));
    };
    let Some(m) = m.as_doc() else {
        return Err(wrong_definition("\"mappings\" must be a document"));
    };
    let mapping = mapping(m, &above, 0)?;
    let mut paths = TypedPaths::default();
    paths.add(&mapping, "");
    let stored = stored_source(d)?;
    if matches!(stored, StoredSource::All) && !paths.vectors.is_empty() {
        return Err(wrong_definition(
            "\"storedSource\" cannot be true in an index with fields of type vector",
        ));
    }
    Ok(Definition {
        kind: Kind::Search,
        mapping,
        embedded: paths.embedded,
        synonyms: synonyms::parse(d, &above.custom)?,
        default: above.default,
        vectors: paths.vectors,
        nested_root: None,
        stored,
    })
}

/// The paths at which mappings have types that an index treats apart.
#[derive(Default)]
struct TypedPaths {
    embedded: BTreeMap<String, StoredSource>,
    vectors: Vec<VectorField>,
}

impl TypedPaths {
    fn add(&mut self, mapping: &Mapping, at: &str) {
        for (name, types) in &mapping.fields {
            let path = match at.is_empty() {
                true => name.clone(),
                false => format!("{at}.{name}"),
            };
            if let Some(document) = &types.document {
                self.add(document, &path);
            }
            if let Some(field) = &types.vector {
                self.vectors.push(VectorField {
                    path: path.clone(),
                    ..field.clone()
                });
            }
            if let Some(embedded) = &types.embedded {
                self.add(&embedded.mapping, &path);
                self.embedded.insert(path, embedded.stored.clone());
            }
        }
    }
}

/// Whether any field of a mapping has vectors.
fn has_vectors(mapping: &Mapping) -> bool {
    let of = |types: &FieldTypes| types.vector.is_some() || types.inner().is_some_and(has_vectors);
    mapping.fields.values().any(of)
}

/// `true`, `false`, `{include: [path, …]}` or `{exclude: [path, …]}`.
pub(crate) fn stored_source(d: Doc<'_>) -> Result<StoredSource> {
    let Some(v) = d.get("storedSource").filter(|v| !v.is_nullish()) else {
        return Ok(StoredSource::None);
    };
    match v.as_bool() {
        Some(true) => return Ok(StoredSource::All),
        Some(false) => return Ok(StoredSource::None),
        None => {}
    }
    let one = v.as_doc().filter(|d| d.count() == 1).and_then(Doc::first);
    let wanted = match one.map(|e| e.name) {
        Some("include") => 1,
        Some("exclude") => 0,
        _ => {
            return Err(wrong_definition(
                "\"storedSource\" must be a boolean, or have one of [include, exclude]",
            ));
        }
    };
    let paths = one.and_then(|e| e.val.as_array());
    let Some(paths) = paths.filter(|l| !l.is_empty()) else {
        return Err(wrong_definition(
            "\"storedSource\" must have a list of paths that is not empty",
        ));
    };
    let mut known: Vec<&str> = Vec::new();
    for path in paths.values() {
        errors::operation::step()?;
        match path.as_str() {
            Some(path) if is_path(path) => known.push(path),
            _ => {
                return Err(wrong_definition(
                    "the paths of \"storedSource\" must be paths of fields",
                ));
            }
        }
    }
    let projection = projection(known, wanted);
    Ok(match projection.as_doc().is_empty() {
        true => StoredSource::All,
        false => StoredSource::Some(projection),
    })
}

fn is_path(path: &str) -> bool {
    let mut parts = path.split('.');
    parts.all(|p| !p.is_empty() && !p.starts_with('$') && !p.contains('\0'))
}

/// A projection by paths. What lies within another of them goes with that one; `_id` is always there.
fn projection(mut paths: Vec<&str>, wanted: i32) -> DocBuf {
    // In this order a path stands behind the one that it lies within.
    paths.sort_by(|a, b| a.split('.').cmp(b.split('.')));
    let mut w = Writer::new();
    let mut last: Option<&str> = None;
    for path in paths {
        let within = last.is_some_and(|l| {
            let rest = path.strip_prefix(l);
            rest.is_some_and(|r| r.is_empty() || r.starts_with('.'))
        });
        if within || wanted == 0 && path == "_id" {
            continue;
        }
        w.i32(path, wanted);
        last = Some(path);
    }
    w.finish()
}

fn mapping(d: Doc<'_>, above: &Above, depth: usize) -> Result<Mapping> {
    if depth > MOST_DEPTH {
        return Err(wrong_definition("the mappings are nested too deep"));
    }
    let dynamic = match d.get("dynamic") {
        Some(v) if v.as_doc().is_some() => true,
        _ => flag(d, "dynamic")?.unwrap_or(false),
    };
    let mut out = Mapping {
        dynamic,
        fields: BTreeMap::new(),
    };
    let Some(fields) = d.get("fields").filter(|v| !v.is_nullish()) else {
        return Ok(out);
    };
    let Some(fields) = fields.as_doc() else {
        return Err(wrong_definition("\"mappings.fields\" must be a document"));
    };
    for e in fields.iter() {
        errors::operation::step()?;
        let mut types = FieldTypes::default();
        match (e.val.as_doc(), e.val.as_array()) {
            (Some(one), _) => field(&mut types, e.name, one, above, depth)?,
            (_, Some(list)) => {
                for v in list.values() {
                    let Some(one) = v.as_doc() else {
                        return Err(not_a_type(e.name));
                    };
                    field(&mut types, e.name, one, above, depth)?;
                }
            }
            _ => return Err(not_a_type(e.name)),
        }
        out.fields.insert(e.name.to_string(), types);
    }
    Ok(out)
}

fn not_a_type(name: &str) -> errors::Stop {
    wrong_definition(format!(
        "\"mappings.fields.{name}\" must be a document or a list of documents"
    ))
}

fn field(
    types: &mut FieldTypes,
    name: &str,
    d: Doc<'_>,
    above: &Above,
    depth: usize,
) -> Result<()> {
    let Some(kind) = string(d, "type")? else {
        return Err(wrong_definition(format!(
            "\"mappings.fields.{name}.type\" is required"
        )));
    };
    match kind {
        "string" => {
            types.string = Some(above.analyzers(d)?);
            if let Some(multi) = d.get("multi").and_then(|v| v.as_doc()) {
                for e in multi.iter() {
                    let one = e.val.as_doc().unwrap_or(Doc::EMPTY);
                    let one = above.analyzers(one)?;
                    types.multi.insert(e.name.to_string(), one);
                }
            }
        }
        "token" | "stringFacet" => {
            types.token = Some(is_lowercased(d)?);
        }
        "autocomplete" => types.autocomplete = Some(grams(d)?),
        "number" | "numberFacet" => types.number = true,
        "date" | "dateFacet" => types.date = true,
        "boolean" => types.boolean = true,
        "objectId" => types.object_id = true,
        "uuid" => types.uuid = true,
        "document" => types.document = Some(mapping(d, above, depth + 1)?),
        "geo" => types.geo = Some(flag(d, "indexShapes")?.unwrap_or(false)),
        "embeddedDocuments" => {
            types.embedded = Some(embedded(name, d, above, depth)?);
        }
        "knnVector" | "vector" => {
            let used_by = match kind {
                "vector" => VectorUse::Operator,
                _ => VectorUse::Knn,
            };
            let at = format!("mappings.fields.{name}");
            types.vector = Some(vector_field("", &at, d, used_by)?);
        }
        other => {
            return Err(wrong_definition(format!(
                "\"mappings.fields.{name}.type\" is unknown: {other}"
            )));
        }
    }
    Ok(())
}

/// Whether a field of tokens is made lower case (`normalizer`).
fn is_lowercased(d: Doc<'_>) -> Result<bool> {
    match string(d, "normalizer")? {
        None | Some("none") => Ok(false),
        Some("lowercase") => Ok(true),
        Some(other) => Err(wrong_definition(format!(
            "\"normalizer\" is not supported: {other}"
        ))),
    }
}

fn embedded(name: &str, d: Doc<'_>, above: &Above, depth: usize) -> Result<Embedded> {
    let mapping = mapping(d, above, depth + 1)?;
    if has_vectors(&mapping) {
        return Err(wrong_definition(format!(
            "\"mappings.fields.{name}\" of type embeddedDocuments cannot have fields of type vector"
        )));
    }
    Ok(Embedded {
        mapping,
        stored: stored_source(d)?,
    })
}

fn grams(d: Doc<'_>) -> Result<Grams> {
    let number = |name: &str, default: i64| {
        let n = d
            .get(name)
            .and_then(|v| v.to_i64_exact())
            .unwrap_or(default);
        match usize::try_from(n) {
            Ok(n @ 1..=50) => Ok(n),
            _ => Err(wrong_definition(format!(
                "\"{name}\" must be within bounds [1, 50]"
            ))),
        }
    };
    let (least, most) = (number("minGrams", 2)?, number("maxGrams", 15)?);
    if least > most {
        return Err(wrong_definition(
            "\"minGrams\" cannot be greater than \"maxGrams\"",
        ));
    }
    let from = match string(d, "tokenization")?.unwrap_or("edgeGram") {
        "edgeGram" => GramsFrom::Start,
        "rightEdgeGram" => GramsFrom::End,
        "nGram" => GramsFrom::Anywhere,
        other => {
            return Err(wrong_definition(format!(
                "\"tokenization\" is unknown: {other}"
            )));
        }
    };
    Ok(Grams { least, most, from })
}

/// A problem of the library as one of ours; here so that all files name one place.
pub(crate) trait OrProblem<T> {
    fn or_problem(self) -> Result<T>;
}

impl<T> OrProblem<T> for tantivy::Result<T> {
    fn or_problem(self) -> Result<T> {
        self.map_err(of_library)
    }
}

impl<T> OrProblem<T> for std::io::Result<T> {
    fn or_problem(self) -> Result<T> {
        self.map_err(crate::problem::of_io)
    }
}
