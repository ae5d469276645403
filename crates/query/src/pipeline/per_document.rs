//! A pipeline of stages that make at most one document of each document, run over one at a time:
//! what may follow `$changeStream`.
//!
//! Invariant: nothing is kept from one document to the next.

use super::redact;
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::filter::Filter;
use crate::transform::Transform;
use bson::{DocBuf, Val};
use errors::{Error, Result};

#[derive(Debug)]
enum Step {
    Match(Filter),
    Transform(Transform),
    Redact(Expression),
}

/// Parsed stages.
#[derive(Debug, Default)]
pub struct PerDocument {
    steps: Vec<Step>,
}

impl PerDocument {
    /// Adds a stage; false when it is none of those that can be here.
    pub fn add(&mut self, name: &str, spec: Val<'_>, env: &ParseEnv) -> Result<bool> {
        let step = match name {
            "$match" => Step::Match(super::parse::parse_match(spec, env)?),
            "$redact" => Step::Redact(redact::parse(spec, env)?),
            "$addFields" | "$project" | "$replaceRoot" | "$replaceWith" | "$set" | "$unset" => {
                match super::parse::parse_transform(name, spec, env)? {
                    Some(t) => Step::Transform(t),
                    None => return Ok(false),
                }
            }
            _ => return Ok(false),
        };
        self.steps.push(step);
        Ok(true)
    }

    /// What becomes of a document; `None` when nothing does.
    pub fn apply(&self, doc: DocBuf, vars: &Vars) -> Result<Option<DocBuf>> {
        let mut doc = doc;
        for step in &self.steps {
            let mut out = Vec::new();
            match step {
                Step::Match(filter) => match filter.matches_with(doc.as_doc(), vars)? {
                    true => continue,
                    false => return Ok(None),
                },
                Step::Transform(t) => t.apply(&EvalCtx::new(doc.as_doc(), vars), &mut out)?,
                Step::Redact(e) => {
                    let vars = redact::vars_with_answers(vars);
                    if !redact::redact(e, &vars, doc.as_doc(), &mut out)? {
                        return Ok(None);
                    }
                }
            }
            doc = DocBuf::from_vec(out)
                .ok_or_else(|| Error::internal("a stage of a pipeline made no document"))?;
        }
        Ok(Some(doc))
    }

    /// Whether no document is tested or changed.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_one_another() {
        let stages = [
            r#"{"$match":{"a":{"$gt":1}}}"#,
            r#"{"$set":{"b":{"$add":["$a",1]}}}"#,
            r#"{"$redact":{"$cond":[{"$eq":["$b",4]},"$$PRUNE","$$KEEP"]}}"#,
            r#"{"$unset":"c"}"#,
        ];
        let mut p = PerDocument::default();
        for stage in stages {
            let stage = bson::json::parse(stage).unwrap();
            let e = stage.as_doc().first().unwrap();
            assert!(p.add(e.name, e.val, &ParseEnv::new()).unwrap());
        }
        let group = bson::doc! { "_id": 1 };
        let group = group.as_doc().as_val();
        assert!(!p.add("$group", group, &ParseEnv::new()).unwrap());
        let vars = Vars::new(0);
        for (doc, want) in [
            (r#"{"a":1}"#, None),
            (r#"{"a":3}"#, None),
            (r#"{"a":2,"c":1}"#, Some(r#"{"a":2,"b":3}"#)),
        ] {
            let got = p.apply(bson::json::parse(doc).unwrap(), &vars).unwrap();
            let want = want.map(|w| bson::json::parse(w).unwrap());
            assert_eq!(got, want, "{doc}");
        }
    }
}
