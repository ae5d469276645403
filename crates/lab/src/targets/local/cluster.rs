//! A cluster of mongods, or of our own servers, on this machine, as `mlaunch --sharded N --single` makes one: a
//! configuration server, shards of one member each, a router.
//!
//! ```text
//! client ── mongos ──┬── mongod --shardsvr (shard1)
//!                    ├── mongod --shardsvr (shard2)
//!                    └── mongod --configsvr
//! ```
//! Of pando: `pando route` for mongos, `pando serve` with the same words for mongod.

use super::Up;
use super::recipe::{mongod, mongos, pando, program, route, router};
use super::room::Room;
use crate::connection::MongoAddress;
use crate::fault::{Fault, Result};
use crate::process::free_port;
use bson::{Val, array, doc};
use std::time::{Duration, Instant};

const ELECTED: Duration = Duration::from_secs(60);
/// The configuration server keeps a few documents.
const CONFIG_CACHE: u64 = 256_000_000;

pub fn start(room: &mut Room<'_>, up: &Up) -> Result<()> {
    let own = up.product == "pando";
    let binary = program(&up.product, up.means.binary.as_deref())?;
    let (name, router) = match own {
        true => ("pando-router", binary.clone()),
        false => ("mongos", router(&binary, up.means.router.as_deref())?),
    };
    let member = |room: &mut Room<'_>, set: &str, role: &str, memory: u64| -> Result<String> {
        let port = free_port()?;
        let role_of = [role, "--replSet", set];
        room.start(&up.product, &mut |dir| match own {
            true => pando(dir, &binary, memory, port, &role_of),
            false => mongod(dir, &binary, memory, port, &role_of),
        })?;
        let host = format!("127.0.0.1:{port}");
        initiate(port, set, &host, role == "--configsvr")?;
        Ok(format!("{set}/{host}"))
    };
    let config = member(room, "config", "--configsvr", CONFIG_CACHE)?;
    let each = up.means.memory / up.shards as u64;
    let mut shards = Vec::new();
    for i in 1..=up.shards {
        shards.push(member(room, &format!("shard{i}"), "--shardsvr", each)?);
    }
    let port = free_port()?;
    room.start(name, &mut |dir| match own {
        true => route(dir, &router, port, &config),
        false => Ok(mongos(dir, &router, port, &config)),
    })?;
    let mut c = MongoAddress::local(port).connect()?;
    for shard in shards {
        c.command("admin", doc! {"addShard": shard}.as_doc())?;
    }
    Ok(())
}

/// Makes a replica set of one member, and waits until it takes writes.
fn initiate(port: u16, set: &str, host: &str, config: bool) -> Result<()> {
    let address = MongoAddress::local(port);
    let members = array![doc! {"_id": 0, "host": host}];
    let settings = if config {
        doc! {"_id": set, "configsvr": true, "members": members}
    } else {
        doc! {"_id": set, "members": members}
    };
    let mut c = address.connect()?;
    c.command("admin", doc! {"replSetInitiate": settings}.as_doc())?;
    let deadline = Instant::now() + ELECTED;
    loop {
        let hello = c.command("admin", doc! {"hello": 1}.as_doc())?;
        if hello.get("isWritablePrimary").and_then(Val::as_bool) == Some(true) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Fault::Target(format!(
                "{host}: not primary of its replica set after {} s",
                ELECTED.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
