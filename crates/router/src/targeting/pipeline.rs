//! The shards of a pipeline, and the collections that it is about.

use super::pipeline_context::PipelineContext;
use super::targets;
use crate::request::RoutedCommand;
use bson::{Doc, DocBuf, Val};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use query::pipeline::Namespace;
use std::sync::Arc;

/// A stage by its name and its specification.
pub(crate) fn stage_of(stage: Val<'_>) -> Option<(&str, Val<'_>)> {
    let e = stage.as_doc()?.first()?;
    Some((e.name, e.val))
}

/// The other collections that a pipeline reads or writes, by full name.
pub(crate) fn joined_collections(db: &str, stages: Doc<'_>) -> Vec<String> {
    let named = query::pipeline::collections(db, stages);
    named.iter().map(Namespace::to_string).collect()
}

/// The filter of the documents that a pipeline begins with.
fn first_filter(stages: Doc<'_>) -> Doc<'_> {
    let filter = match stages.values().next().and_then(stage_of) {
        Some(("$match", filter)) => filter.as_doc(),
        Some(("$geoNear", near)) => near.as_doc().and_then(|d| d.get("query")?.as_doc()),
        _ => None,
    };
    filter.unwrap_or(Doc::EMPTY)
}

/// Whether a pipeline reads or writes no collection but its own.
pub(crate) fn is_of_one_collection(db: &str, stages: Doc<'_>) -> bool {
    joined_collections(db, stages).is_empty() && !fuses(stages)
}

/// The shards whose documents can have a part in what a pipeline gives. `body`: the aggregate.
pub(crate) fn pipeline_targets(
    command: &RoutedCommand<'_>,
    body: Doc<'_>,
    placement: &Placement,
    stages: Doc<'_>,
) -> Outcome<Vec<Arc<str>>> {
    if let Placement::Sharded(table) = placement {
        let own = table.entry.collation.as_ref().map(DocBuf::as_doc);
        let moved = moved_filter(command.db, body, own, stages);
        // A filter as the optimizer leaves it may be none that a client can write.
        if let Some(Ok(shards)) = moved.map(|f| targets(command, placement, f.as_doc())) {
            return Ok(shards);
        }
    }
    targets(command, placement, first_filter(stages))
}

/// What decides what the stages of an aggregate mean.
pub(crate) fn pipeline_context<'a>(
    db: &'a str,
    body: Doc<'a>,
    collation: Option<Doc<'_>>,
) -> Outcome<PipelineContext<'a>> {
    Ok(PipelineContext {
        db,
        collection: body.first().and_then(|e| e.val.as_str()),
        collation: commands::given_collation(collation)?.flatten(),
        variables: body.get("let").and_then(Val::as_doc).unwrap_or(Doc::EMPTY),
    })
}

/// The filter that a pipeline begins with as it runs, where it is written further behind. `own`: the
/// collection's collation.
fn moved_filter(db: &str, body: Doc<'_>, own: Option<Doc<'_>>, stages: Doc<'_>) -> Option<DocBuf> {
    let mut names = stages.values().filter_map(stage_of).map(|(name, _)| name);
    let begins = names.next();
    if matches!(begins, Some("$match" | "$geoNear")) || !names.any(|name| name == "$match") {
        return None;
    }
    let given = body.get("collation").and_then(Val::as_doc);
    let pipeline = pipeline_context(db, body, given.or(own))
        .ok()?
        .parsed(stages)?;
    Some(pipeline.optimized().pushdown().filter.to_doc())
}

/// Whether a pipeline begins with one that ranks what several others find.
pub(crate) fn fuses(stages: Doc<'_>) -> bool {
    let first = stages.values().next().and_then(stage_of);
    first.is_some_and(|(name, _)| matches!(name, "$rankFusion" | "$scoreFusion"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::{table, with_command};

    #[test]
    fn a_pipeline_goes_where_its_documents_can_be() {
        let all = vec!["s0", "s1", "s2"];
        for (stages, wanted) in [
            (r#"[]"#, all.clone()),
            (r#"[{"$match":{"a":5}}]"#, vec!["s1"]),
            (r#"[{"$sort":{"b":1}},{"$match":{"a":5}}]"#, vec!["s1"]),
            (r#"[{"$addFields":{"b":1}},{"$match":{"a":5}}]"#, vec!["s1"]),
            (
                r#"[{"$project":{"x":"$a"}},{"$match":{"x":5}}]"#,
                vec!["s1"],
            ),
            (r#"[{"$limit":1},{"$match":{"a":5}}]"#, all.clone()),
            (r#"[{"$set":{"a":5}},{"$match":{"a":5}}]"#, all.clone()),
            (
                r#"[{"$group":{"_id":"$b"}},{"$match":{"a":5}}]"#,
                all.clone(),
            ),
            (
                r#"[{"$geoNear":{"near":[0,0],"query":{"a":5}}}]"#,
                vec!["s1"],
            ),
        ] {
            let command = format!(r#"{{"aggregate":"c","pipeline":{stages}}}"#);
            let found: Vec<String> = with_command(&command, |command| {
                let placement = Placement::Sharded(Arc::new(table(&[0, 10])));
                let stages = command.field("pipeline").and_then(Val::as_array).unwrap();
                let found = pipeline_targets(command, command.body, &placement, stages);
                found.unwrap().iter().map(|s| s.to_string()).collect()
            });
            assert_eq!(found, wanted, "{stages}");
        }
    }

    #[test]
    fn other_collections_are_found_wherever_they_are_named() {
        for (stages, wanted) in [
            (r#"[{"$match":{"a":5}}]"#, vec![]),
            (
                r#"[{"$lookup":{"from":"x","pipeline":[{"$unionWith":"y"}],"as":"z"}}]"#,
                vec!["d.x", "d.y"],
            ),
            (
                r#"[{"$facet":{"f":[{"$unionWith":{"coll":"x"}}]}}]"#,
                vec!["d.x"],
            ),
            (
                r#"[{"$merge":{"into":{"db":"e","coll":"x"}}}]"#,
                vec!["e.x"],
            ),
            (r#"[{"$out":"x"}]"#, vec!["d.x"]),
        ] {
            let command = format!(r#"{{"aggregate":"c","pipeline":{stages}}}"#);
            with_command(&command, |command| {
                let stages = command.field("pipeline").and_then(Val::as_array).unwrap();
                assert_eq!(joined_collections("d", stages), wanted);
                assert_eq!(is_of_one_collection("d", stages), wanted.is_empty());
            });
        }
    }
}
