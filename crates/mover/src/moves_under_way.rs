//! What moves between shards, as operations that `currentOp` shows: a range, a collection, a database's
//! primary, a resharding.
//!
//! ```text
//! {type: "op", desc: "MoveCoordinator", ns, active: true, op: "command",
//!  command: {moveRange: ns, min, max, fromShard, toShard}, secs_running, msg: "copy",
//!  progress: as `sharding::progress` has it}
//! ```
//! It is read from `config.migrations`, so every router shows the moves of all others and of the
//! balancer. The mover renews it once a second.

use crate::transfer::{PRIMARY, RANGE};
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::Outcome;
use cluster_view::metadata::Cluster;

/// The name of the command that begins a move of this kind.
fn command_of(kind: &str) -> &'static str {
    match kind {
        RANGE => "moveRange",
        PRIMARY => "movePrimary",
        _ => "reshardCollection",
    }
}

/// All pending moves.
pub fn operations(cluster: &Cluster) -> Outcome<Vec<DocBuf>> {
    let found = cluster.read_config("migrations", Doc::EMPTY, Doc::EMPTY)?;
    Ok(found.iter().map(|d| operation(d.as_doc())).collect())
}

fn operation(entry: Doc<'_>) -> DocBuf {
    let text = |name: &str| entry.get(name).and_then(Val::as_str).unwrap_or_default();
    let progress = entry.get("progress").and_then(Val::as_doc);
    let seconds = progress.and_then(|p| p.get("seconds")?.to_i64_exact());
    let phase = progress.and_then(|p| p.get("phase")?.as_str());
    let ns = text("ns");
    let mut w = Writer::new();
    w.str("type", "op")
        .str("desc", "MoveCoordinator")
        .str("ns", ns)
        .bool("active", true)
        .str("op", "command");
    w.open_doc("command").str(command_of(text("kind")), ns);
    // A document with several recipients has a list of them.
    let first = |v| match Val::as_array(v) {
        Some(list) => list.values().next(),
        None => Some(v),
    };
    for (shown, name) in [
        ("min", "min"),
        ("max", "max"),
        ("fromShard", "from"),
        ("toShard", "to"),
    ] {
        if let Some(v) = entry.get(name).and_then(first) {
            w.val(shown, v);
        }
    }
    w.close();
    w.i64("secs_running", seconds.unwrap_or(0))
        .str("msg", phase.unwrap_or(text("state")));
    if let Some(progress) = progress {
        w.doc("progress", progress);
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn a_move_is_shown_as_the_command_that_began_it() {
        let told = doc! {"phase": "copy", "copiedDocuments": 7i64, "seconds": 3i64};
        let entry = doc! {
            "_id": "r.1", "ns": "d.c", "kind": "range", "by": "r", "turn": 1i64, "state": "moving", "from": "s0",
            "to": bson::array!["s1"], "min": doc! {"k": 1}, "max": doc! {"k": 9}, "progress": told.clone(),
        };
        let shown = operation(entry.as_doc());
        let command = shown.get("command").and_then(Val::as_doc);
        let expected = doc! {
            "moveRange": "d.c", "min": doc! {"k": 1}, "max": doc! {"k": 9}, "fromShard": "s0", "toShard": "s1",
        };
        assert_eq!(command, Some(expected.as_doc()));
        assert_eq!(
            shown.get("progress").and_then(Val::as_doc),
            Some(told.as_doc())
        );
        assert_eq!(shown.get("msg").and_then(Val::as_str), Some("copy"));
        assert_eq!(
            shown.get("secs_running").and_then(Val::to_i64_exact),
            Some(3)
        );
        // One that has told nothing yet.
        let begun = doc! {"_id": "d", "ns": "d", "kind": "home", "state": "moving"};
        let shown = operation(begun.as_doc());
        assert_eq!(shown.get("msg").and_then(Val::as_str), Some("moving"));
        assert!(!shown.as_doc().contains("progress"));
    }
}
