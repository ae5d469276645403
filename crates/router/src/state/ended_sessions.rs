//! Sessions that have ended, for the shards.

use bson::DocBuf;
use cluster_view::metadata::Cluster;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

/// Tells the shards that the router has used of sessions that have ended, behind the reply: a client that goes does not wait for
/// shards. A session that a shard is not told of ends there by its timeout.
pub(crate) struct EndedSessions(pub SyncSender<DocBuf>);

/// Commands that may wait to be told.
const MOST_WAITING: usize = 256;

impl EndedSessions {
    pub fn tell(cluster: &Arc<Cluster>) -> EndedSessions {
        let (sender, waiting) = sync_channel(MOST_WAITING);
        let cluster = Arc::downgrade(cluster);
        let run = move || tell_shards(&cluster, &waiting);
        let begun = std::thread::Builder::new()
            .name("ended-sessions".into())
            .spawn(run);
        if let Err(e) = begun {
            tracing::warn!(target: "COMMAND", error = %e, "Shards will not hear of sessions that end");
        }
        EndedSessions(sender)
    }
}

fn tell_shards(cluster: &Weak<Cluster>, waiting: &Receiver<DocBuf>) {
    while let Ok(command) = waiting.recv() {
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        cluster.tell_used_shards(&command);
    }
}
