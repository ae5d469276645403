//! What a router keeps: what it knows of the cluster, the server that it embeds, open cursors and
//! transactions.

pub(crate) mod cursors;
pub(crate) mod ended_sessions;
pub(crate) mod kept_synonyms;
pub(crate) mod transactions;

use crate::request::RoutedCommand;
use crate::state::cursors::Cursors;
use crate::state::ended_sessions::EndedSessions;
use crate::state::kept_synonyms::KeptSynonyms;
use crate::state::transactions::Transactions;
use bson::{Doc, DocBuf};
use cluster_view::Outcome as Routed;
use cluster_view::metadata::Cluster;
use commands::{Commands, Connection};
use service::in_flight::SMALL_BYTES;
use service::{Client, Outcome};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// What runs a command of a client.
pub(crate) type Handler = fn(&Router, &RoutedCommand<'_>) -> Routed<DocBuf>;

pub struct Router {
    pub(crate) cluster: Arc<Cluster>,
    /// Answers commands about this process, and runs pipelines over what shards give.
    pub(crate) local: Commands,
    pub(crate) cursors: Arc<Cursors>,
    pub(crate) itself: Weak<Router>,
    pub(crate) transactions: Transactions,
    pub(crate) ended_sessions: EndedSessions,
    pub(crate) synonyms: KeptSynonyms,
}

impl Router {
    /// All figures of this process, in the text form that Prometheus reads.
    pub fn figures(&self) -> errors::Fallible<String> {
        self.local.figures()
    }

    /// The reply to a command that the process asks for itself, and about itself.
    pub fn ask_own(&self, command: Doc<'_>) -> errors::Fallible<DocBuf> {
        self.local.ask_own(command)
    }

    /// Bytes of the file system of the router's directory: all, and those that are free.
    pub fn disk(&self) -> Option<(u64, u64)> {
        self.local.disk()
    }

    pub(crate) fn answer(
        &self,
        client: &Client<Connection>,
        outcome: Routed<DocBuf>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        match outcome {
            Ok(reply) => out.extend_from_slice(reply.as_bytes()),
            Err(failure) => service::write_error(&failure.into_error(), out),
        }
        self.count_long(client, out.len());
        Outcome::Reply
    }

    /// Counts the memory of a long reply until it is sent.
    pub(crate) fn count_long(&self, client: &Client<Connection>, bytes: usize) {
        if bytes > SMALL_BYTES && client.reply_held.load(Relaxed) == 0 {
            self.local.control.in_flight.take(bytes);
            client.reply_held.store(bytes, Relaxed);
        }
    }
}
