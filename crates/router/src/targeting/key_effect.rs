//! What an update does to the shard key of the document that it finds, as far as it says so itself.
//!
//! Invariant: no update that the router lets pass to a shard as it is moves a document to another
//! place.

use crate::request::RoutedCommand;
use bson::{Doc, Val, Writer, order};
use cluster_view::Outcome;
use errors::err;
use query::collation::Collation;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::path::FieldPath;
use sharding::{Place, PlaceRange, RoutingTable, ShardKey, targeting};

/// What an update does to the shard key of the document that it finds.
pub(crate) enum Key {
    /// It keeps it.
    Kept,
    /// It is a replacement, of this place, which is that of the document.
    Replaced(Place),
    /// It is a replacement, of this place, of a document that may lie elsewhere.
    ReplacedSomewhere(Place),
    /// It may change it.
    MayChange,
}

/// The value that a filter gives a field.
fn equality(filter: &Filter, field: &str) -> Option<bson::Value> {
    let path = FieldPath::new(field);
    let all = filter.equalities().ok()?;
    let found = all.iter().find(|(p, _)| **p == path);
    found.map(|(_, v)| v.to_value())
}

fn effect_of_pipeline(key: &ShardKey, stages: Doc<'_>) -> Key {
    let touches = |e: bson::Elem<'_>| match (e.name, e.val.as_doc()) {
        ("$set" | "$addFields", Some(fields)) => fields.iter().any(|f| key.concerns(f.name)),
        ("$unset", _) => {
            let one = e.val.as_str().into_iter();
            let list = e.val.as_array().unwrap_or(Doc::EMPTY);
            let mut names = one.chain(list.values().filter_map(Val::as_str));
            names.any(|name| key.concerns(name))
        }
        _ => key.names().any(|name| name != "_id"),
    };
    let mut first = stages.values().filter_map(|s| s.as_doc()?.first());
    match first.any(touches) {
        true => Key::MayChange,
        false => Key::Kept,
    }
}

/// What can be said by the update alone.
pub(crate) fn effect_on_key(
    table: &RoutingTable,
    filter: Doc<'_>,
    found: &[PlaceRange],
    update: Val<'_>,
    many: bool,
) -> Outcome<Key> {
    let key = table.entry.asked_key();
    if table.entry.measurements().is_some() && !many {
        // The shard reports what is wrong with it.
        return Ok(Key::Kept);
    }
    if let Some(stages) = update.as_array() {
        return Ok(effect_of_pipeline(key, stages));
    }
    let update = update.as_doc().unwrap_or(Doc::EMPTY);
    let parsed = Filter::parse(filter, &ParseEnv::new()).ok();
    let given = |field: &str| parsed.as_ref().and_then(|f| equality(f, field));
    if update.first().is_none_or(|e| !e.name.starts_with('$')) {
        if many {
            // The shard reports what is wrong with it.
            return Ok(Key::Kept);
        }
        return replacement(table, update, found, given("_id"));
    }
    for operator in update {
        for f in operator.val.as_doc().unwrap_or(Doc::EMPTY) {
            let renamed = (operator.name == "$rename")
                .then(|| f.val.as_str())
                .flatten();
            if renamed.is_some_and(|to| key.concerns(to)) {
                return Ok(Key::MayChange);
            }
            if !key.concerns(f.name) {
                continue;
            }
            let value = given(f.name);
            // A string may equal others under a collation: then it does not say where they are.
            let told =
                |v: &bson::Value| !Collation::affects(v.as_val()) || *found != [PlaceRange::all()];
            let same = matches!(operator.name, "$set" | "$setOnInsert")
                && value
                    .as_ref()
                    .is_some_and(|v| order::equal(v.as_val(), f.val) && told(v));
            // Only a new document gets it, and that is made before its place is looked for.
            let new = operator.name == "$setOnInsert" && value.is_none();
            if !same && !new {
                return Ok(Key::MayChange);
            }
        }
    }
    Ok(Key::Kept)
}

fn replacement(
    table: &RoutingTable,
    new: Doc<'_>,
    found: &[PlaceRange],
    id: Option<bson::Value>,
) -> Outcome<Key> {
    let key = table.key();
    let by_id = key.names().any(|name| name == "_id");
    let old = targeting::single_place(found, key);
    let mut w = Writer::new();
    match (new.contains("_id"), id) {
        (false, Some(id)) => {
            w.val("_id", id.as_val());
        }
        // It keeps the id that it has, wherever that is.
        (false, None) if by_id => return Ok(Key::Kept),
        _ => {}
    }
    w.extend(new);
    let place = key.place_of(w.finish().as_doc())?;
    Ok(match old {
        Some(old) if old == place => Key::Replaced(place),
        Some(_) => Key::MayChange,
        None => Key::ReplacedSomewhere(place),
    })
}

/// Where an upsert's new document would lie.
pub(crate) fn place_of_upsert(
    table: &RoutingTable,
    found: &[PlaceRange],
    replacement: Option<Place>,
) -> Outcome<Place> {
    let place = targeting::single_place(found, table.key()).or(replacement);
    place.ok_or_else(|| {
        err!(
            ShardKeyNotFound,
            "Failed to target upsert by query :: could not extract exact shard key"
        )
        .into()
    })
}

/// Whether an update that may change a shard key may be run at all.
pub(crate) fn check_may_move(command: &RoutedCommand<'_>, many: bool) -> Outcome<()> {
    if many {
        return Err(err!(
            InvalidOptions,
            "Multi-update operations are not allowed when updating the shard key field."
        )
        .into());
    }
    if command.generic.txn_number.is_none() && !command.in_transaction() {
        return Err(err!(
            IllegalOperation,
            "Must run update to shard key field in a multi-statement transaction or with retryWrites: true."
        )
        .into());
    }
    Ok(())
}

/// What may be said of the place of an update's document; `None`: it may move, and has to be looked at.
/// Fails where it may not.
pub(crate) fn kept_place(
    command: &RoutedCommand<'_>,
    effect: Key,
    many: bool,
) -> Outcome<Option<Option<Place>>> {
    match effect {
        Key::Kept => Ok(Some(None)),
        Key::Replaced(place) => Ok(Some(Some(place))),
        // A command that must not move it looks for it where it would belong.
        Key::ReplacedSomewhere(place) if check_may_move(command, many).is_err() => {
            Ok(Some(Some(place)))
        }
        Key::ReplacedSomewhere(_) => Ok(None),
        Key::MayChange => check_may_move(command, many).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::{table, value, with_command};

    fn effect(filter: &str, update: &str, options: &str, many: bool) -> &'static str {
        let command = format!(r#"{{"update":"c","q":{filter}{options}}}"#);
        with_command(&command, |command| {
            let table = table(&[0, 10]);
            let filter = command.document("q").unwrap();
            let found = command.ranges(filter, &table).unwrap();
            let update = value(update);
            let update = update.get("v").unwrap();
            match effect_on_key(&table, filter, &found, update, many).unwrap() {
                Key::Kept => "kept",
                Key::Replaced(_) => "replaced",
                Key::ReplacedSomewhere(_) => "replaced somewhere",
                Key::MayChange => "may change",
            }
        })
    }

    #[test]
    fn what_an_update_does_to_the_key() {
        for (filter, update, wanted) in [
            (r#"{"a":1}"#, r#"{"$set":{"b":1}}"#, "kept"),
            (r#"{"a":1}"#, r#"{"$set":{"a":1}}"#, "kept"),
            (r#"{"a":1}"#, r#"{"$set":{"a":1.0}}"#, "kept"),
            (r#"{"a":1}"#, r#"{"$set":{"a":2}}"#, "may change"),
            (r#"{"b":1}"#, r#"{"$set":{"a":1}}"#, "may change"),
            (r#"{"b":1}"#, r#"{"$set":{"a.x":1}}"#, "may change"),
            (r#"{"a":1}"#, r#"{"$inc":{"a":1}}"#, "may change"),
            (r#"{"a":1}"#, r#"{"$unset":{"a":""}}"#, "may change"),
            (r#"{"a":1}"#, r#"{"$rename":{"b":"a"}}"#, "may change"),
            (r#"{"a":1}"#, r#"{"$rename":{"b":"c"}}"#, "kept"),
            (r#"{"b":1}"#, r#"{"$setOnInsert":{"a":2}}"#, "kept"),
            (r#"{"a":1}"#, r#"{"$setOnInsert":{"a":2}}"#, "may change"),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#, "replaced"),
            (r#"{"a":1}"#, r#"{"a":2}"#, "may change"),
            (r#"{"b":1}"#, r#"{"a":2}"#, "replaced somewhere"),
            (r#"{"a":1}"#, r#"[{"$set":{"b":1}}]"#, "kept"),
            (r#"{"a":1}"#, r#"[{"$set":{"b":1}},{"$unset":"c"}]"#, "kept"),
            (r#"{"a":1}"#, r#"[{"$set":{"a":1}}]"#, "may change"),
            (r#"{"a":1}"#, r#"[{"$unset":["b","a"]}]"#, "may change"),
            (r#"{"a":1}"#, r#"[{"$replaceWith":"$b"}]"#, "may change"),
        ] {
            assert_eq!(
                effect(filter, update, "", false),
                wanted,
                "{filter} {update}"
            );
        }
        // A replacement of many documents is refused by the shards.
        assert_eq!(effect(r#"{"a":1}"#, r#"{"a":2}"#, "", true), "kept");
        // The string that is there may be another one.
        let collation = r#","collation":{"locale":"en"}"#;
        let same = r#"{"$set":{"a":"x"}}"#;
        assert_eq!(effect(r#"{"a":"x"}"#, same, collation, false), "may change");
        assert_eq!(effect(r#"{"a":"x"}"#, same, "", false), "kept");
    }

    #[test]
    fn a_document_moves_by_a_retry_or_in_a_transaction() {
        for (more, many, refused) in [
            ("", false, Some(20)),
            (r#","txnNumber":{"$numberLong":"1"}"#, false, None),
            (
                r#","txnNumber":{"$numberLong":"1"},"autocommit":false"#,
                false,
                None,
            ),
            (r#","txnNumber":{"$numberLong":"1"}"#, true, Some(72)),
        ] {
            let command = format!(r#"{{"update":"c"{more}}}"#);
            with_command(&command, |command| {
                let moves = check_may_move(command, many).map_err(|f| f.into_error().code.0);
                assert_eq!(moves.err(), refused, "{more} {many}");
                let kept = kept_place(command, Key::Kept, many).unwrap();
                assert!(matches!(kept, Some(None)));
                let looked = kept_place(command, Key::MayChange, many);
                assert_eq!(looked.is_err(), refused.is_some());
            });
        }
    }
}
