//! Operators over words: `text`, `autocomplete`, `moreLikeThis`.

use crate::fields::SpecificationFields;
use crate::operator::{
    Clause, Fuzzy, MOST_CLAUSES, Operator, PathSpec, ScoreChange, SynonymsOf, Text,
};
use crate::paths::paths;
use crate::problem::wrong;
use errors::Result;
use errors::operation::step;

fn fuzzy(f: &SpecificationFields<'_>) -> Result<Option<Fuzzy>> {
    let Some(z) = f.doc("fuzzy")? else {
        return Ok(None);
    };
    let whole = |n: Option<i32>, default: usize| n.map_or(default, |n| n.unsigned_abs() as usize);
    let fuzzy = Fuzzy {
        edits: whole(z.int("maxEdits", 1, 2)?, 2),
        prefix: whole(z.int("prefixLength", 0, i32::MAX)?, 0),
        expansions: whole(z.int("maxExpansions", 1, 1000)?, 50),
    };
    z.end()?;
    Ok(Some(fuzzy))
}

pub(crate) fn text(f: &SpecificationFields<'_>) -> Result<Operator> {
    let query = f.strings("query")?;
    let paths = paths(f)?;
    let fuzzy = fuzzy(f)?;
    let synonyms = SynonymsOf::parse(f)?;
    if fuzzy.is_some() && synonyms.is_some() {
        return Err(wrong(format!(
            "\"{}\" cannot have both \"fuzzy\" and \"synonyms\"",
            f.at
        )));
    }
    let all = match f.string("matchCriteria")? {
        None | Some("any") => false,
        Some("all") => true,
        Some(_) => {
            return Err(wrong(format!(
                "\"{}\" must be one of [all, any]",
                f.name("matchCriteria")
            )));
        }
    };
    Ok(Operator::Text {
        paths,
        text: Text {
            query,
            fuzzy,
            all,
            synonyms,
        },
    })
}

pub(crate) fn autocomplete(f: &SpecificationFields<'_>) -> Result<Operator> {
    let query = f.strings("query")?;
    let path = f.required_string("path")?.to_string();
    let in_order = match f.string("tokenOrder")? {
        None | Some("any") => false,
        Some("sequential") => true,
        Some(_) => {
            return Err(wrong(format!(
                "\"{}\" must be one of [any, sequential]",
                f.name("tokenOrder")
            )));
        }
    };
    Ok(Operator::Autocomplete {
        path,
        query,
        fuzzy: fuzzy(f)?,
        in_order,
    })
}

/// As `text` over each path of the examples.
pub(crate) fn more_like_this(f: &SpecificationFields<'_>) -> Result<Operator> {
    let like = f.required("like")?;
    let mut examples = Vec::new();
    match (like.as_doc(), like.as_array()) {
        (Some(d), _) => examples.push(d),
        (_, Some(list)) => {
            for v in list.values() {
                let Some(d) = v.as_doc() else {
                    return Err(wrong(format!("\"{}\" must be a document", f.name("like"))));
                };
                examples.push(d);
            }
        }
        _ => {
            return Err(wrong(format!(
                "\"{}\" must be a document or a list of documents",
                f.name("like")
            )));
        }
    }
    let mut should = Vec::new();
    for e in examples.iter().flat_map(|d| d.iter()) {
        step()?;
        let Some(text) = e.val.as_str().filter(|s| !s.is_empty()) else {
            continue;
        };
        should.push(Clause {
            operator: Operator::Text {
                paths: vec![PathSpec::Path(e.name.to_string())],
                text: Text {
                    query: vec![text.to_string()],
                    ..Text::default()
                },
            },
            score: ScoreChange::None,
        });
    }
    if should.is_empty() || should.len() > MOST_CLAUSES {
        return Err(wrong(format!("\"{}\" must have texts", f.name("like"))));
    }
    Ok(Operator::Compound {
        must: vec![],
        should,
        must_not: vec![],
        filter: vec![],
        least: 1,
    })
}
