//! `filemd5`: the digest of a file of GridFS, over its chunks as the router reads them, wherever they
//! lie.

use crate::reads::cursors::get_more;
use crate::reads::find;
use crate::request::{RoutedCommand, finish, own};
use crate::state::{Router, cursors};
use bson::{DocBuf, Val, Writer, doc};
use cluster_view::metadata::Placement;
use cluster_view::{Failure, Outcome};
use commands::{FileDigest, chunks_of_view};
use errors::{Code, err};

/// What reading the chunks takes over from the command.
const SHARED: [&str; 3] = ["readConcern", "$readPreference", "maxTimeMS"];

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let root = command.field("root").and_then(Val::as_str);
    let chunks = format!("{}.chunks", root.unwrap_or("fs"));
    let ns = format!("{}.{chunks}", command.db);
    check_key(router, &ns)?;
    let mut w = Writer::new();
    let id = command.body.first().map_or(Val::NULL, |e| e.val);
    w.str("find", &chunks)
        .open_doc("filter")
        .open_doc("files_id")
        .val("$eq", id)
        .close()
        .close()
        .value("sort", doc! {"files_id": 1, "n": 1});
    for name in SHARED {
        if let Some(v) = command.field(name) {
            w.val(name, v);
        }
    }
    w.str("$db", command.db);
    let opened = own(router, &w.finish(), find::stored);
    let mut reply = opened.map_err(|failure| match failure {
        Failure::Client(e) if e.code == Code::CommandOnShardedViewNotSupportedOnMongod => {
            chunks_of_view(&ns).into()
        }
        failure => failure,
    })?;
    let mut digest = FileDigest::new(command.is("partialOk"));
    loop {
        let id = cluster_view::reply::cursor_id(&reply);
        for chunk in cluster_view::reply::batch_of(&reply) {
            let added = digest.add(chunk);
            if !matches!(added, Ok(true)) {
                cursors::end(router, &ns, id);
            }
            if !added? {
                return Ok(ended(digest, &reply));
            }
        }
        if id == 0 {
            return Ok(ended(digest, &reply));
        }
        let more = doc! {"getMore": id, "collection": &chunks, "$db": command.db};
        reply = own(router, &more, get_more)?;
    }
}

fn ended(digest: FileDigest, last: &DocBuf) -> DocBuf {
    let mut w = Writer::new();
    digest.write(&mut w);
    finish(w, std::slice::from_ref(last))
}

/// As MongoDB, which has two keys for chunks.
fn check_key(router: &Router, ns: &str) -> Outcome<()> {
    let Some(Placement::Sharded(table)) = router.cluster.placement(ns)? else {
        return Ok(());
    };
    let keys = [doc! {"files_id": 1}, doc! {"files_id": 1, "n": 1}];
    match keys.iter().any(|k| k.as_doc() == table.key().pattern()) {
        true => Ok(()),
        false => Err(err!(
            IllegalOperation,
            "The GridFS fs.chunks collection must be sharded on either {{files_id:1}} or {{files_id:1, n:1}}"
        )
        .into()),
    }
}
