//! Definitions of vector indexes: fields that hold vectors, and fields that filters may ask for. An index of type search
//! may have fields with vectors too.
//!
//! Source: MongoDB's manual, "How to Index Fields for Vector Search", "How to Index Vector Fields" (`vector`, `knnVector`).

use crate::analysis::Analyzer;
use crate::definition::{Definition, Kind, MOST_DEPTH, Mapping, StringType, stored_source, string};
use crate::nested::of_parent;
use crate::problem::wrong_definition;
use bson::{Doc, Val};
use errors::Result;

/// The most dimensions of a vector.
const MOST_DIMENSIONS: i64 = 8192;

/// How alike two vectors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    Cosine,
    DotProduct,
    Euclidean,
}

/// What of a vector stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    None,
    Scalar,
    Binary,
}

/// What may ask for the vectors of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorUse {
    /// `$vectorSearch`: a field of an index of type vectorSearch.
    Stage,
    /// The operator `vectorSearch`: a field of type vector in an index of type search.
    Operator,
    /// `$vectorSearch` and the operator `knnBeta`: a field of type knnVector.
    Knn,
}

/// A field that holds vectors.
#[derive(Clone, Debug)]
pub struct VectorField {
    pub path: String,
    pub used_by: VectorUse,
    pub dimensions: usize,
    pub similarity: Similarity,
    pub quantization: Quantization,
    /// There is no graph: all vectors are compared (`indexingMethod: "flat"`).
    pub flat: bool,
    /// Half of the links of a slot in the graph (`maxEdges`).
    pub edges: usize,
    /// How many slots a new one chooses its links from (`numEdgeCandidates`).
    pub edge_candidates: usize,
}

/// Fails with MongoDB's errors.
pub(crate) fn parse(d: Doc<'_>) -> Result<Definition> {
    let fields = d.get("fields").and_then(|v| v.as_array());
    let Some(fields) = fields.filter(|l| !l.is_empty()) else {
        return Err(wrong_definition(
            "\"fields\" is required and cannot be empty",
        ));
    };
    if let Some(v) = d.get("storedSource")
        && v.as_bool() != Some(false)
        && v.as_doc().is_none()
    {
        return Err(wrong_definition(
            "\"storedSource\" must be a document or false",
        ));
    }
    let nested_root = string(d, "nestedRoot")?.map(str::to_string);
    let mut out = Definition {
        kind: Kind::Vector,
        mapping: Mapping::default(),
        default: StringType {
            index: Analyzer::Keyword,
            search: Analyzer::Keyword,
        },
        vectors: Vec::new(),
        nested_root,
        stored: stored_source(d)?,
        synonyms: Vec::new(),
        embedded: Default::default(),
    };
    for v in fields.values() {
        errors::operation::step()?;
        let Some(f) = v.as_doc() else {
            return Err(wrong_definition("\"fields\" must be a list of documents"));
        };
        add_field(&mut out, f)?;
    }
    if out.vectors.is_empty() {
        return Err(wrong_definition(
            "\"fields\" must have at least one of type \"vector\"",
        ));
    }
    if let Some(root) = &out.nested_root {
        check_nested(root, &out.vectors)?;
    }
    Ok(out)
}

/// Adds a vector, or a field that searches may filter by.
fn add_field(to: &mut Definition, f: Doc<'_>) -> Result<()> {
    let Some(path) = string(f, "path")? else {
        return Err(wrong_definition("\"fields.path\" is required"));
    };
    match string(f, "type")? {
        Some("vector") => {
            let field = vector_field(path, "fields", f, VectorUse::Stage)?;
            to.vectors.push(field);
            Ok(())
        }
        Some("filter") => {
            to.mapping.put_filter(path)?;
            match to.nested_root {
                Some(_) => to.mapping.put_filter(&of_parent(path)),
                None => Ok(()),
            }
        }
        _ => Err(wrong_definition(
            "\"fields.type\" must be one of [filter, vector]",
        )),
    }
}

/// Refuses vectors that are not within the elements of the nested root.
fn check_nested(root: &str, vectors: &[VectorField]) -> Result<()> {
    let within = |f: &VectorField| {
        let rest = f.path.strip_prefix(root);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    if !vectors.iter().any(within) {
        errors::bail!(
            CommandFailed,
            "\"nestedRoot\" does not match any vector field's path"
        );
    }
    if !vectors.iter().all(within) {
        return Err(wrong_definition(
            "vectors beside \"nestedRoot\" are not supported yet",
        ));
    }
    Ok(())
}

/// A field that holds vectors. `at`: its name in sentences.
pub(crate) fn vector_field(
    path: &str,
    at: &str,
    f: Doc<'_>,
    used_by: VectorUse,
) -> Result<VectorField> {
    let whole = |v: Val<'_>| v.to_i64_exact();
    let count = match used_by {
        VectorUse::Knn => "dimensions",
        _ => "numDimensions",
    };
    let Some(n) = f.get(count).and_then(whole) else {
        return Err(wrong_definition(format!("\"{at}.{count}\" is required")));
    };
    if !(1..=MOST_DIMENSIONS).contains(&n) {
        return Err(wrong_definition(format!(
            "\"{at}.{count}\" must be within bounds [1, {MOST_DIMENSIONS}]"
        )));
    }
    let one_of = |name: &str, names: &str| {
        wrong_definition(format!("\"{at}.{name}\" must be one of [{names}]"))
    };
    let similarity = match string(f, "similarity")? {
        Some("cosine") => Similarity::Cosine,
        Some("dotProduct") => Similarity::DotProduct,
        Some("euclidean") => Similarity::Euclidean,
        _ => return Err(one_of("similarity", "cosine, dotProduct, euclidean")),
    };
    let quantization = match string(f, "quantization")? {
        None | Some("none") => Quantization::None,
        Some("scalar") => Quantization::Scalar,
        Some("binary") => Quantization::Binary,
        Some(_) => return Err(one_of("quantization", "none, scalar, binary")),
    };
    let flat = match string(f, "indexingMethod")? {
        None | Some("hnsw") => false,
        Some("flat") => true,
        Some(_) => return Err(one_of("indexingMethod", "flat, hnsw")),
    };
    let options = match f.get("hnswOptions").filter(|v| !v.is_nullish()) {
        None => Doc::EMPTY,
        Some(v) => v
            .as_doc()
            .ok_or_else(|| wrong_definition(format!("\"{at}.hnswOptions\" must be a document")))?,
    };
    Ok(VectorField {
        path: path.to_string(),
        used_by,
        dimensions: usize::try_from(n).unwrap_or(0),
        similarity,
        quantization,
        flat,
        edges: edge_option(at, options, "maxEdges", (16, 64))?,
        edge_candidates: edge_option(at, options, "numEdgeCandidates", (100, 3200))?,
    })
}

/// A number of `hnswOptions`; the lowest is what it is by default.
fn edge_option(
    at: &str,
    options: Doc<'_>,
    name: &str,
    (low, high): (usize, usize),
) -> Result<usize> {
    let Some(v) = options.get(name).filter(|v| !v.is_nullish()) else {
        return Ok(low);
    };
    let n = v.to_i64_exact().and_then(|n| usize::try_from(n).ok());
    n.filter(|n| (low..=high).contains(n)).ok_or_else(|| {
        wrong_definition(format!(
            "\"{at}.hnswOptions.{name}\" must be within bounds [{low}, {high}]"
        ))
    })
}

impl Mapping {
    /// Everything that a filter can ask of a path.
    fn put_filter(&mut self, path: &str) -> Result<()> {
        let (first, rest) = path
            .split_once('.')
            .map_or((path, None), |(f, r)| (f, Some(r)));
        if path.split('.').count() > MOST_DEPTH {
            return Err(wrong_definition("a path is too deep"));
        }
        let types = self.fields.entry(first.to_string()).or_default();
        match rest {
            Some(rest) => types.document.get_or_insert_default().put_filter(rest),
            None => {
                types.token = Some(false);
                types.number = true;
                types.date = true;
                types.boolean = true;
                types.object_id = true;
                types.uuid = true;
                Ok(())
            }
        }
    }
}
