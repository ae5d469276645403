//! Clusters of any size, by counting: the product's own view of a cluster (`Cluster`: routing tables,
//! refreshes, the search for primaries), its balancer and its resolver run over loopback against servers that
//! have metadata, ownership and sizes, and no documents. What is counted are messages, bytes and documents:
//! they are the same on each machine.
//!
//!     cargo test --workspace --test scale                                        # that they grow as docs/scale-out.md says
//!     cargo test --release -p mover --test scale -- --ignored --nocapture        # the figures of that page
//!     PANDO_SCALE_SHARDS=100 PANDO_SCALE_ROUTERS=50 cargo test …                 # smaller ones
//!
//! Not counted is what servers do among themselves (heartbeats, the log), and moves: each ends when it asks for
//! its lock, which the configuration set refuses here.

mod figures;
mod metadata;
mod rounds;
mod servers;
mod shards;
mod storms;

use cluster_view::Cluster;
use metadata::{Metadata, Size};
use mover::Moving;
use servers::{Requests, Server, access, take_all, total};
use shards::{Bytes, CHUNK_BYTES, Shard};
use std::sync::Arc;

/// A cluster, and what looks at it from the configuration set's process.
pub struct Scene {
    pub size: Size,
    pub metadata: Arc<Metadata>,
    pub config: Arc<Server>,
    pub shards: Vec<Arc<Shard>>,
    /// The members of all shards.
    pub members: Vec<Arc<Server>>,
    pub cluster: Cluster,
}

/// What the configuration set and all shards were asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub config: Requests,
    pub shards: Requests,
}

impl Scene {
    /// Shards of `members` members each, of which the first is primary.
    pub fn new(size: Size, members: usize, bytes: Bytes) -> Scene {
        let (mut shards, mut servers, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..size.shards {
            let shard = Shard::new(n, size, bytes.clone());
            let own: Vec<_> = (0..members).map(|_| Server::start(shard.clone())).collect();
            own.iter().skip(1).for_each(|m| m.set_primary(false));
            let addresses: Vec<&str> = own.iter().map(|m| m.host.as_str()).collect();
            hosts.push(format!("{}/{}", Size::shard_name(n), addresses.join(",")));
            servers.extend(own);
            shards.push(shard);
        }
        let metadata = Metadata::new(size, hosts);
        let config = Server::start(metadata.clone());
        let cluster = view(&config);
        Scene {
            size,
            metadata,
            config,
            shards,
            members: servers,
            cluster,
        }
    }

    /// The same with one member each, where each chunk has the same size.
    pub fn even(size: Size) -> Scene {
        Scene::new(size, 1, sizes(size, |_, _| 1))
    }

    /// What was asked since the last time, `hello` aside.
    pub fn load(&self) -> Load {
        Load {
            config: total(&self.config.take_counts()),
            shards: total(&take_all(&self.members)),
        }
    }
}

/// A process that knows nothing yet.
pub fn view(config: &Server) -> Cluster {
    view_by(&[&config.host])
}

/// The same where the configuration set has these members.
pub fn view_by(hosts: &[&str]) -> Cluster {
    let address = format!("csrs/{}", hosts.join(","));
    Cluster::new(&address, access(), Box::<Moving>::default())
}

/// Sizes by the chunks that shards have. `times`: how much larger, by shard and collection.
pub fn sizes(size: Size, times: impl Fn(usize, usize) -> u64 + Send + Sync + 'static) -> Bytes {
    Arc::new(move |shard, collection| {
        size.chunks_on(collection, shard) as u64 * CHUNK_BYTES * times(shard, collection)
    })
}
