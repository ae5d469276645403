//! Members that say what a test wants.

use crate::replica_set::{ConnectionStrings, ReplicaSet};
use crate::upstream::{self, message};
use bson::{Doc, DocBuf, Val, Value, doc};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A member that says what it is, at once or when that changes, and counts how often it was asked.
#[derive(Default)]
pub struct FakeMember {
    pub primary: AtomicBool,
    pub secondary: AtomicBool,
    /// It takes what comes and answers nothing.
    pub deaf: AtomicBool,
    pub hellos: AtomicUsize,
    pub others: AtomicUsize,
    pub newest: AtomicI64,
    /// The cluster's time in its answers.
    pub time: AtomicU64,
}

impl FakeMember {
    fn serve(self: Arc<Self>, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let mut message = vec![0; 16];
            stream.read_exact(&mut message)?;
            let len = i32::from_le_bytes(message[..4].try_into().unwrap()) as usize;
            message.resize(len, 0);
            stream.read_exact(&mut message[16..])?;
            let asked = Doc::new(&message[upstream::BODY_AT..]).unwrap();
            while self.deaf.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let is_primary = || self.primary.load(Ordering::Relaxed);
            let mut reply = doc! {"ok": 1.0};
            if asked.first().unwrap().name == "hello" {
                self.hellos.fetch_add(1, Ordering::Relaxed);
                let known = asked.get("topologyVersion").and_then(Val::as_doc);
                let counter = known.and_then(|t| t.get("counter")?.to_i64_exact());
                let most = asked.get("maxAwaitTimeMS").and_then(Val::to_i64_exact);
                let until = Instant::now() + Duration::from_millis(most.unwrap_or(0) as u64);
                while counter == Some(i64::from(is_primary())) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let version = doc! {"counter": i64::from(is_primary())};
                let newest = self.newest.load(Ordering::Relaxed);
                let time = Value::timestamp(self.time.load(Ordering::Relaxed));
                reply = doc! {
                    "$clusterTime": doc! {"clusterTime": time},
                    "isWritablePrimary": is_primary(), "topologyVersion": version, "ok": 1.0,
                    "secondary": self.secondary.load(Ordering::Relaxed) && !is_primary(),
                    "pandoCluster": doc! {"min": newest, "max": newest},
                };
            } else {
                self.others.fetch_add(1, Ordering::Relaxed);
            }
            stream.write_all(&message_of(&reply))?;
        }
    }
}

pub fn message_of(reply: &DocBuf) -> Vec<u8> {
    message(reply.as_doc(), &[])
}

/// A set of one member that says this; and what decides what it says.
pub fn fake_set(newest: i64) -> (Arc<ReplicaSet>, Arc<FakeMember>) {
    let (host, member) = fake_member(newest);
    let set = ReplicaSet::new(&format!("s/{host}"), access());
    (Arc::new(set), member)
}

pub fn fake_member(newest: i64) -> (String, Arc<FakeMember>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let member = Arc::new(FakeMember::default());
    member.newest.store(newest, Ordering::Relaxed);
    let served = member.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let member = served.clone();
            std::thread::spawn(move || member.serve(stream.unwrap()));
        }
    });
    (host, member)
}

pub fn access() -> ConnectionStrings {
    Arc::new(|host: &str| format!("mongodb://{host}/?directConnection=true"))
}
