//! What a stage names besides its input: the collections that it reads or writes, and the pipelines
//! within it.
//!
//! Invariant: nothing else reads a namespace out of a stage. The parser takes it from here, and so do
//! the check of rights and a router, which has to know where a collection is: what is allowed is what
//! runs.

use super::{Namespace, facet, fusion, graph_lookup, lookup, options, union_with, write};
use bson::{Doc, Elem, Val};
use errors::{Result, bail, operation};

/// What one stage names.
#[derive(Debug, PartialEq)]
pub enum Named<'a> {
    Nothing,
    /// Another collection, through a pipeline. `from`: none where that one makes its own documents.
    Joined {
        from: Option<Namespace>,
        pipeline: Option<Val<'a>>,
    },
    /// Pipelines over the stage's own input, by their names.
    Branches(Vec<(&'a str, Val<'a>)>),
    /// A collection that is replaced.
    Replaced(Namespace),
    /// A collection that is written to.
    Merged {
        into: Namespace,
        updates: bool,
        inserts: bool,
    },
}

impl<'a> Named<'a> {
    /// `db`: the database of the pipeline. Fails as the parser does where the stage does not say what it
    /// names, or says it twice.
    pub fn of(stage: Elem<'a>, db: &str) -> Result<Named<'a>> {
        let (name, spec) = (stage.name, stage.val);
        operation::step()?;
        options::check_unique(name, spec)?;
        let joined = |(from, pipeline)| Named::Joined { from, pipeline };
        Ok(match name {
            "$lookup" => {
                let l = lookup::Written::parse(spec, db)?;
                joined((l.from, l.pipeline))
            }
            "$unionWith" => joined(union_with::written(spec, db)?),
            "$graphLookup" => joined((graph_lookup::named(spec, db)?, None)),
            "$facet" => Named::Branches(facet::branches(spec)?.0),
            name if fusion::is_fusion(name) => {
                let pipelines = fusion::pipelines(name, spec)?;
                Named::Branches(pipelines.iter().map(|e| (e.name, e.val)).collect())
            }
            "$out" => Named::Replaced(write::out_target(spec, db)?.0),
            "$merge" => {
                let merge = write::MergeWritten::parse(spec)?;
                Named::Merged {
                    into: merge.target(db)?,
                    updates: merge.updates()?,
                    inserts: merge.inserts()?,
                }
            }
            _ => Named::Nothing,
        })
    }
}

/// The stages of a pipeline, each by its name and its specification.
pub fn written<'a>(stages: Val<'a>) -> Result<impl Iterator<Item = Result<Elem<'a>>>> {
    let Some(list) = stages.as_array() else {
        bail!(
            TypeMismatch,
            "'pipeline' option must be specified as an array, found {}",
            stages.type_name()
        );
    };
    Ok(list.values().map(stage))
}

pub(super) fn stage(v: Val<'_>) -> Result<Elem<'_>> {
    let Some(d) = v.as_doc() else {
        bail!(
            TypeMismatch,
            "Each element of the 'pipeline' array must be an object"
        );
    };
    let mut elements = d.iter();
    match (elements.next(), elements.next()) {
        (Some(e), None) => Ok(e),
        _ => bail!(
            40323,
            "A pipeline stage specification object must contain exactly one field."
        ),
    }
}

/// The collections that the stages of a pipeline name, here or further inside. Stages that are not as
/// they have to be name none.
pub fn collections(db: &str, stages: Doc<'_>) -> Vec<Namespace> {
    let mut found = Vec::new();
    collect(db, stages, &mut found);
    found
}

fn collect(db: &str, stages: Doc<'_>, found: &mut Vec<Namespace>) {
    for stage in stages.values().filter_map(|v| stage(v).ok()) {
        let inner = |v: Option<Val<'_>>, found: &mut Vec<Namespace>| {
            let stages = v.and_then(|v| v.as_array());
            collect(db, stages.unwrap_or(Doc::EMPTY), found);
        };
        match Named::of(stage, db) {
            Ok(Named::Joined { from, pipeline }) => {
                found.extend(from);
                inner(pipeline, found);
            }
            Ok(Named::Branches(all)) => all.iter().for_each(|(_, p)| inner(Some(*p), found)),
            Ok(Named::Replaced(ns) | Named::Merged { into: ns, .. }) => found.push(ns),
            Ok(Named::Nothing) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::ParseEnv;
    use crate::pipeline::{ParseCtx, Pipeline};
    use bson::json;

    fn parsed(stages: &str) -> bson::DocBuf {
        json::parse(&format!("{{\"p\":{stages}}}")).unwrap()
    }

    fn names(stages: &str) -> Vec<String> {
        let d = parsed(stages);
        let stages = d.get("p").and_then(|v| v.as_array()).unwrap();
        let mut names: Vec<String> = (collections("d", stages).iter())
            .map(Namespace::to_string)
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// What runs: the collections of the parsed stages.
    fn runs(stages: &str) -> Vec<String> {
        let d = parsed(stages);
        let ctx = ParseCtx::new("d", Some("c"), ParseEnv::new());
        let pipeline = Pipeline::parse(d.get("p").unwrap(), &ctx).unwrap();
        let all = pipeline
            .reads()
            .into_iter()
            .chain(pipeline.target().cloned());
        let mut names: Vec<String> = all.map(|n| n.to_string()).collect();
        // A ranking reads the collection that the pipeline is on.
        names.retain(|n| n != "d.c");
        names.sort();
        names.dedup();
        names
    }

    #[test]
    fn what_is_named_is_what_runs() {
        let graph = r#""startWith":1,"connectFromField":"a","connectToField":"b","as":"x""#;
        for (stages, wanted) in [
            (r#"[{"$match":{"a":1}}]"#.to_string(), vec![]),
            (r#"[{"$lookup":{"from":"a","localField":"x","foreignField":"y","as":"z"}}]"#.into(), vec!["d.a"]),
            (
                r#"[{"$lookup":{"from":"a","pipeline":[{"$unionWith":{"coll":"b","pipeline":[{"$unionWith":"e"}]}}],"as":"z"}}]"#.into(),
                vec!["d.a", "d.b", "d.e"],
            ),
            (r#"[{"$lookup":{"pipeline":[{"$documents":[]},{"$unionWith":"b"}],"as":"z"}}]"#.into(), vec!["d.b"]),
            (r#"[{"$unionWith":{"pipeline":[{"$documents":[]}]}}]"#.into(), vec![]),
            (format!(r#"[{{"$graphLookup":{{"from":"g",{graph}}}}}]"#), vec!["d.g"]),
            (
                r#"[{"$facet":{"one":[{"$unionWith":"a"}],"two":[{"$lookup":{"from":"b","pipeline":[],"as":"z"}}]}}]"#.into(),
                vec!["d.a", "d.b"],
            ),
            (r#"[{"$rankFusion":{"input":{"pipelines":{"p":[{"$sort":{"a":1}}]}}}}]"#.into(), vec![]),
            (r#"[{"$out":"o"}]"#.into(), vec!["d.o"]),
            (r#"[{"$out":{"db":"e","coll":"o"}}]"#.into(), vec!["e.o"]),
            (r#"[{"$merge":"m"}]"#.into(), vec!["d.m"]),
            (r#"[{"$merge":{"into":"m"}}]"#.into(), vec!["d.m"]),
            (r#"[{"$merge":{"into":{"coll":"m"}}}]"#.into(), vec!["d.m"]),
            (r#"[{"$merge":{"into":{"db":"","coll":"m"}}}]"#.into(), vec!["d.m"]),
            (r#"[{"$merge":{"into":{"db":"e","coll":"m"}}}]"#.into(), vec!["e.m"]),
        ] {
            assert_eq!(names(&stages), wanted, "{stages}");
            assert_eq!(runs(&stages), wanted, "{stages}");
        }
    }

    #[test]
    fn a_merge_is_named_by_what_it_does() {
        for (options, updates, inserts) in [
            ("", true, true),
            (r#","whenMatched":"fail""#, false, true),
            (r#","whenMatched":"keepExisting""#, false, true),
            (r#","whenMatched":[{"$set":{"a":1}}]"#, true, true),
            (r#","whenNotMatched":"discard""#, true, false),
            (
                r#","whenMatched":"replace","whenNotMatched":"fail""#,
                true,
                false,
            ),
        ] {
            let d = parsed(&format!(r#"{{"$merge":{{"into":"m"{options}}}}}"#));
            let stage = d.get("p").and_then(|v| v.as_doc()?.first()).unwrap();
            let into = Namespace::new("d", "m");
            let wanted = Named::Merged {
                into,
                updates,
                inserts,
            };
            assert_eq!(Named::of(stage, "d").unwrap(), wanted, "{options}");
        }
    }

    #[test]
    fn refused() {
        for (stage, code) in [
            (r#"{"$lookup":1}"#, 9),
            (r#"{"$lookup":{"pipeline":[],"as":"z"}}"#, 9),
            (r#"{"$graphLookup":{"from":""}}"#, 73),
            (r#"{"$unionWith":1}"#, 9),
            (
                r#"{"$unionWith":{"pipeline":[{"$listLocalSessions":{"allUsers":true}}]}}"#,
                9,
            ),
            (
                r#"{"$unionWith":{"pipeline":[{"$currentOp":{"allUsers":true}},{"$documents":[]}]}}"#,
                9,
            ),
            (r#"{"$unionWith":{"pipeline":[]}}"#, 9),
            (r#"{"$unionWith":{}}"#, 9),
            (r#"{"$facet":{}}"#, 40169),
            (r#"{"$facet":{"a":1}}"#, 40170),
            (r#"{"$out":1}"#, 16990),
            (r#"{"$out":{"coll":"a"}}"#, 40414),
            (r#"{"$merge":{"into":1}}"#, 51178),
            (r#"{"$merge":{"into":"a","whenMatched":"x"}}"#, 2),
        ] {
            let d = parsed(stage);
            let stage = d.get("p").and_then(|v| v.as_doc()?.first()).unwrap();
            let e = Named::of(stage, "d").unwrap_err().into_error();
            assert_eq!(e.code.0, code, "{stage:?}: {e}");
        }
    }
}
