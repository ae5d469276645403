//! What a `$search` or `$searchMeta` stage asks: parsed once, with MongoDB's errors.
//!
//! Source: MongoDB's manual, "$search" and "$searchMeta".

use crate::definition::{Definition, Kind, StoredSource};
use crate::facet::Facet;
use crate::fields::SpecificationFields;
use crate::highlight::Highlight;
use crate::operator::{Clause, OPERATORS, Operator, only_clause};
use crate::page::Pages;
use crate::problem::wrong;
use bson::{Doc, DocBuf, Val};
use errors::Result;
use errors::operation::step;

/// How results are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Count {
    #[default]
    LowerBound,
    Total,
}

/// A search over one index.
#[derive(Clone, Debug)]
pub struct Search {
    pub index: String,
    /// `None`: all documents.
    pub(crate) clause: Option<Clause>,
    pub(crate) facets: Vec<Facet>,
    pub(crate) count: Count,
    /// As `$sort` takes it.
    pub sort: Option<DocBuf>,
    /// Documents are given as the index has stored them.
    stored: bool,
    /// The path of the elements that are found instead of documents (`returnScope`).
    pub scope: Option<String>,
    pub pages: Pages,
    pub(crate) highlight: Option<Highlight>,
    /// How scores came about is told.
    pub details: bool,
}

fn check_bool(f: &SpecificationFields<'_>, name: &'static str) -> Result<()> {
    match f.raw(name) {
        Some(v) if v.as_bool().is_none() => errors::bail!(
            13111,
            "wrong type for field ({name}) {} != bool",
            v.type_name()
        ),
        _ => Ok(()),
    }
}

/// Fields that say nothing of what is nearest, and whether they are given.
fn refuse_with_vectors(fields: &[(&str, bool)]) -> Result<()> {
    match fields.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(wrong(format!(
            "\"{name}\" cannot be used with vectors: knnBeta, vectorSearch"
        ))),
        None => Ok(()),
    }
}

impl Search {
    /// From the stage's document. `meta`: of `$searchMeta`, which shows no documents.
    pub fn parse(stage: Doc<'_>, meta: bool) -> Result<Search> {
        let f = SpecificationFields::new("", stage);
        check_bool(&f, "scoreDetails")?;
        if !meta {
            check_bool(&f, "returnStoredSource")?;
        }
        let stored = f.flag("returnStoredSource")?.unwrap_or(false);
        let index = f.string("index")?.unwrap_or("default");
        if index.is_empty() {
            return Err(wrong("\"index\" cannot be empty"));
        }
        let count = count(&f)?;
        let sort = sort(&f)?;
        f.flag("concurrent")?;
        if let Some(preference) = f.doc("searchNodePreference")? {
            preference.required_string("key")?;
        }
        let scope = scope(&f, stored || meta)?;
        f.doc("tracking")?;
        // They say which documents are shown, and of what: none here.
        let (highlight, pages) = match meta {
            false => (Highlight::parse(&f)?, Pages::parse(&f, sort.as_ref())?),
            true => {
                f.doc("highlight")?;
                f.raw("searchAfter");
                f.raw("searchBefore");
                (None, Pages::default())
            }
        };
        let tracks = f.get("tracking").is_some();
        let details = f.get("scoreDetails").and_then(|v| v.as_bool());
        let (clause, facets) = match f.doc("facet")? {
            Some(collector) => faceted(&f, &collector)?,
            None => (Some(only_clause(&f, 0)?), Vec::new()),
        };
        f.end()?;
        let by_vector = matches!(
            clause.as_ref().map(|c| &c.operator),
            Some(Operator::Nearest(_))
        );
        if by_vector {
            refuse_with_vectors(&[
                ("facet", f.doc.contains("facet")),
                ("highlight", highlight.is_some()),
                ("returnScope", scope.is_some()),
                ("searchAfter or searchBefore", pages.is_bounded()),
                ("sort", sort.is_some()),
                ("tracking", tracks),
            ])?;
        }
        Ok(Search {
            index: index.to_string(),
            clause,
            facets,
            count,
            sort,
            stored,
            scope,
            pages,
            highlight,
            details: details == Some(true),
        })
    }

    /// The projection of what the index has stored, where that is asked for: of documents, or of elements.
    pub fn stored(&self, definition: &Definition) -> Result<Option<DocBuf>> {
        let Some(scope) = &self.scope else {
            return match self.stored {
                true => definition.given(&self.index),
                false => Ok(None),
            };
        };
        match definition.embedded.get(scope) {
            Some(StoredSource::All) => Ok(None),
            Some(StoredSource::Some(projection)) => Ok(Some(projection.clone())),
            _ => Err(wrong(format!(
                "\"returnScope.path\" needs to be indexed as embeddedDocuments with \"storedSource\": {scope}"
            ))),
        }
    }

    /// The names of the synonym mappings that it asks for.
    pub fn synonyms(&self) -> Vec<&str> {
        let mut names = Vec::new();
        if let Some(clause) = &self.clause {
            clause.each(&mut |c| {
                let of = match &c.operator {
                    Operator::Text { text, .. } => text.synonyms.as_ref(),
                    Operator::Phrase { synonyms, .. } => synonyms.as_ref(),
                    _ => None,
                };
                names.extend(of.map(|of| of.name.as_str()));
            });
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// How many documents it finds by their vectors, if it does; it finds `most` from now on, where that is given.
    pub fn nearest(&mut self, most: Option<usize>) -> Option<usize> {
        let limit = self.clause.as_mut()?.nearest()?;
        let before = *limit;
        *limit = most.unwrap_or(before);
        Some(before)
    }

    /// Refuses what cannot be asked of an index of that kind.
    pub fn check_kind(&self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Search => Ok(()),
            Kind::Vector => Err(wrong(format!(
                "Cannot execute $search over vectorSearch index '{}'",
                self.index
            ))),
        }
    }
}

/// The operator and the facets of a collector.
fn faceted(
    f: &SpecificationFields<'_>,
    collector: &SpecificationFields<'_>,
) -> Result<(Option<Clause>, Vec<Facet>)> {
    if let Some(e) = f
        .doc
        .iter()
        .find(|e| OPERATORS.contains(&e.name) && !e.val.is_nullish())
    {
        return Err(wrong(format!(
            "only one operator may be present, found \"facet\" and \"{}\"",
            e.name
        )));
    }
    let facets = crate::facet::parse(collector)?;
    let clause = match collector.doc("operator")? {
        None => None,
        Some(operator) => {
            let clause = only_clause(&operator, 0)?;
            operator.end()?;
            Some(clause)
        }
    };
    collector.end()?;
    Ok((clause, facets))
}

/// `stored`: documents are given as the index has stored them, or none is.
fn scope(f: &SpecificationFields<'_>, stored: bool) -> Result<Option<String>> {
    let Some(scope) = f.doc("returnScope")? else {
        return Ok(None);
    };
    let path = scope.required_string("path")?;
    scope.end()?;
    match stored {
        true => Ok(Some(path.to_string())),
        false => Err(wrong(
            "\"returnScope\" requires \"returnStoredSource\" to be true",
        )),
    }
}

fn count(f: &SpecificationFields<'_>) -> Result<Count> {
    let Some(c) = f.doc("count")? else {
        return Ok(Count::default());
    };
    let kind = match c.string("type")? {
        None | Some("lowerBound") => Count::LowerBound,
        Some("total") => Count::Total,
        Some(_) => {
            return Err(wrong("\"count.type\" must be one of [lowerBound, total]"));
        }
    };
    c.int("threshold", 0, i32::MAX)?;
    c.end()?;
    Ok(kind)
}

/// The `$sort` that orders the results.
fn sort(f: &SpecificationFields<'_>) -> Result<Option<DocBuf>> {
    let Some(s) = f.doc("sort")? else {
        return Ok(None);
    };
    let mut w = bson::Writer::new();
    if s.doc.is_empty() {
        return Err(wrong("\"sort\" must have at least one sort field"));
    }
    for e in s.doc.iter() {
        step()?;
        let name = s.name(e.name);
        let order = |v: Val<'_>| match v.as_decimal().is_none().then(|| v.to_f64()).flatten() {
            Some(1.0) => Ok(1),
            Some(-1.0) => Ok(-1),
            _ => Err(wrong(format!("\"{name}\" must be 1, -1 or a document"))),
        };
        match e.val.as_doc() {
            Some(d) if d.contains("$meta") => {
                if d.get("$meta").and_then(|v| v.as_str()) != Some("searchScore") {
                    return Err(wrong(format!("\"{name}.$meta\" must be \"searchScore\"")));
                }
                // In the order of scores from the highest on, unless the lowest are asked for.
                match d.get("order").map(order).transpose()? {
                    Some(1) => return Err(wrong("ascending order of scores is not supported yet")),
                    _ => w.open_doc(e.name).str("$meta", "searchScore").close(),
                };
            }
            Some(d) => {
                let by = d.get("order").map_or(Ok(1), order)?;
                w.i32(e.name, by);
            }
            None => {
                let by = order(e.val)?;
                w.i32(e.name, by);
            }
        }
    }
    Ok(Some(w.finish()))
}
