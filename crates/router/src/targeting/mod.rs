//! Where a command goes: the shards of a filter, a pipeline, a place, and what an update does to the
//! place of its document.
//!
//! Invariant: no shard is passed over that has a document that is meant; whatever cannot be told of is
//! on all of them.

pub(crate) mod key_effect;
pub(crate) mod pipeline;
pub(crate) mod pipeline_context;
#[cfg(test)]
pub(crate) mod testing;

use crate::request::RoutedCommand;
use bson::Doc;
use cluster_view::Outcome;
use cluster_view::metadata::{Placement, Unsharded};
use errors::err;
use sharding::RoutingTable;
use std::sync::Arc;

/// The shards that a filter targets; at least one, so that a shard reports an invalid filter.
pub(crate) fn targets(
    command: &RoutedCommand<'_>,
    placement: &Placement,
    filter: Doc<'_>,
) -> Outcome<Vec<Arc<str>>> {
    Ok(match placement {
        Placement::Unsharded(Unsharded { shard, .. }) => vec![shard.clone()],
        Placement::Sharded(table) => {
            let mut shards = table.shards_in(&command.ranges(filter, table)?);
            if shards.is_empty() {
                shards.extend(table.shards().next().cloned());
            }
            shards
        }
    })
}

/// The shards where documents of these ranges can be; at least one, to report what is wrong with the
/// statement.
pub(crate) fn at_least_one(table: &RoutingTable, found: &[sharding::PlaceRange]) -> Vec<Arc<str>> {
    let mut shards = table.shards_in(found);
    if shards.is_empty() {
        shards.extend(table.shards().next().cloned());
    }
    shards
}

/// The shard that has a place.
pub(crate) fn shard_at(table: &RoutingTable, place: &[u8]) -> Outcome<Arc<str>> {
    let chunk = table.chunk_at(place);
    Ok(chunk
        .map(|c| c.shard.clone())
        .ok_or_else(|| err!(InternalError, "a place lies in no chunk"))?)
}

#[cfg(test)]
mod tests {
    use super::testing::{table, with_command};
    use super::*;

    fn shards(command: &str) -> Vec<String> {
        with_command(command, |command| {
            let placement = Placement::Sharded(Arc::new(table(&[0, 10])));
            let filter = command.document("filter").unwrap();
            let found = targets(command, &placement, filter).unwrap();
            found.iter().map(|s| s.to_string()).collect()
        })
    }

    #[test]
    fn a_filter_goes_where_a_match_can_be() {
        let all = vec!["s0", "s1", "s2"];
        for (filter, wanted) in [
            ("{}", all.clone()),
            (r#"{"a":5}"#, vec!["s1"]),
            (r#"{"a":{"$eq":5},"b":1}"#, vec!["s1"]),
            (r#"{"a":{"$lt":0}}"#, vec!["s0"]),
            (r#"{"a":{"$gte":0,"$lt":10}}"#, vec!["s1"]),
            (r#"{"a":{"$gte":0}}"#, vec!["s1", "s2"]),
            (r#"{"a":{"$in":[-1,20]}}"#, vec!["s0", "s2"]),
            (r#"{"$or":[{"a":1},{"a":11}]}"#, vec!["s1", "s2"]),
            (r#"{"$and":[{"a":{"$gt":3}},{"a":{"$lt":4}}]}"#, vec!["s1"]),
            (r#"{"$or":[{"a":1},{"b":11}]}"#, all.clone()),
            (r#"{"$nor":[{"a":1}]}"#, all.clone()),
            (r#"{"b":1}"#, all.clone()),
            // The shards report what is wrong with it.
            (r#"{"a":{"$nothing":1}}"#, all.clone()),
        ] {
            let command = format!(r#"{{"find":"c","filter":{filter}}}"#);
            assert_eq!(shards(&command), wanted, "{filter}");
        }
    }

    #[test]
    fn what_the_router_does_not_know_goes_everywhere() {
        let all = ["s0", "s1", "s2"];
        for (more, wanted) in [
            // A string may equal another one under a collation; a number may not.
            (
                r#""filter":{"a":"x"},"collation":{"locale":"en"}"#,
                &all[..],
            ),
            (
                r#""filter":{"a":"x"},"collation":{"locale":"simple"}"#,
                &all[2..],
            ),
            (
                r#""filter":{"a":5},"collation":{"locale":"en"}"#,
                &all[1..2],
            ),
            (r#""filter":{"a":5},"let":{"x":1}"#, &all[..]),
            (r#""filter":{"a":5},"let":{}"#, &all[1..2]),
        ] {
            let command = format!(r#"{{"find":"c",{more}}}"#);
            assert_eq!(shards(&command), wanted, "{more}");
        }
    }

    #[test]
    fn some_shard_reports_what_is_wrong() {
        let table = table(&[0, 10]);
        assert_eq!(at_least_one(&table, &[]).len(), 1);
        let place = table.key().place_of(bson::doc! {"a": 11}.as_doc()).unwrap();
        assert_eq!(&*shard_at(&table, &place).unwrap(), "s2");
    }
}
