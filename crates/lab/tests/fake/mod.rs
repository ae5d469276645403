//! A tiny server in memory, enough of the protocol for the laboratory to run everything against it at a small size, and
//! to lie when a test wants to see the laboratory notice.

pub mod gate;

use auth::scram::{Hash, ScramClient};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use gate::Gate;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Honesty {
    Honest,
    /// Acknowledges every fiftieth insert without storing it.
    LosesInserts,
    /// Gives back another document than the one asked for.
    MixesUp,
    /// Answers every hundredth find with an error.
    Fails,
    /// Closes the connection at every hundredth find.
    HangsUp,
}

type Collection = BTreeMap<Vec<u8>, DocBuf>;

/// What of a cluster a server is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Alone,
    /// Takes writes some time after `replSetInitiate`.
    Member,
    /// Keeps all documents itself, and says that its shards have them.
    Router,
}

struct State {
    role: Role,
    /// The replica set, once it was initiated, and how often `hello` was said since.
    set: Option<(String, u32)>,
    /// The only user: name, password as the mechanism hashes it, mechanism.
    user: Option<(&'static str, String, Hash)>,
    shards: Vec<String>,
    honesty: Honesty,
    collections: BTreeMap<String, Collection>,
    inserts: u64,
    finds: u64,
}

pub fn start(honesty: Honesty) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(listener, honesty, Role::Alone));
    addr
}

/// A server that lets only one user do things.
pub fn start_locked(user: &'static str, password: String, hash: Hash) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let user = Some((user, password, hash));
    std::thread::spawn(move || serve_user(listener, Honesty::Honest, Role::Alone, user, None));
    addr
}

/// A server that stops answering when its gate closes.
pub fn start_gated(gate: &Arc<Gate>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let gate = Some(Arc::clone(gate));
    std::thread::spawn(move || serve_user(listener, Honesty::Honest, Role::Alone, None, gate));
    addr
}

pub fn serve(listener: TcpListener, honesty: Honesty, role: Role) {
    serve_user(listener, honesty, role, None, None);
}

fn serve_user(
    listener: TcpListener,
    honesty: Honesty,
    role: Role,
    user: Option<(&'static str, String, Hash)>,
    gate: Option<Arc<Gate>>,
) {
    let state = Arc::new(Mutex::new(State {
        honesty,
        collections: BTreeMap::new(),
        inserts: 0,
        finds: 0,
        role,
        set: None,
        user,
        shards: Vec::new(),
    }));
    for stream in listener.incoming().flatten() {
        let state = Arc::clone(&state);
        let gate = gate.clone();
        std::thread::spawn(move || converse(stream, &state, gate.as_deref()));
    }
}

/// Whether the member that `set/host` names answers and is of that set.
pub fn is_member(name: &str) -> bool {
    let Some((set, host)) = name.split_once('/') else {
        return false;
    };
    let address = lab::connection::MongoAddress::parse(&format!("mongodb://{host}/")).unwrap();
    address
        .connect()
        .is_ok_and(|c| c.hello.get("setName").and_then(Val::as_str) == Some(set))
}

fn converse(mut stream: TcpStream, state: &Mutex<State>, gate: Option<&Gate>) {
    let mut input = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    let mut guest = Guest::default();
    loop {
        match wire::frame(&input) {
            Ok(wire::Frame::Complete { len }) => {
                let frame: Vec<u8> = input.drain(..len).collect();
                let (header, message) = wire::parse(&frame).unwrap();
                let wire::Message::Msg(msg) = message else {
                    return;
                };
                if let Some(gate) = gate {
                    gate.pass();
                }
                let user = state.lock().unwrap().user.clone();
                let refused = user.and_then(|user| guest.stop(&user, &msg));
                let done = refused.or_else(|| state.lock().unwrap().run(&msg));
                let Some(reply) = done else {
                    return;
                };
                if !msg.more_to_come() {
                    let mut out = Vec::new();
                    let start = wire::begin_msg(&mut out, 1, header.request_id, 0);
                    wire::begin_body(&mut out);
                    out.extend_from_slice(reply.as_bytes());
                    wire::end(&mut out, start);
                    if stream.write_all(&out).is_err() {
                        return;
                    }
                }
            }
            Ok(wire::Frame::Incomplete { .. }) => match stream.read(&mut chunk) {
                Ok(n) if n > 0 => input.extend_from_slice(&chunk[..n]),
                _ => return,
            },
            Err(_) => return,
        }
    }
}

/// A connection's login so far.
#[derive(Default)]
struct Guest {
    expected: Option<(String, String)>,
    known: bool,
}

impl Guest {
    /// The reply to a client that may not come in, or that logs in; `None` when the request may go on.
    fn stop(&mut self, user: &(&str, String, Hash), msg: &wire::Msg<'_>) -> Option<DocBuf> {
        let body = Doc::new(msg.body)?;
        let (name, password, hash) = user;
        let failed = doc! {"ok": 0.0, "code": 18, "errmsg": "Authentication failed."};
        let says = |text: &str, done: bool| {
            doc! {"conversationId": 7, "payload": Value::binary(0, text.as_bytes()), "done": done, "ok": 1.0}
        };
        let payload = || {
            let (_, bytes) = body.get("payload")?.as_binary()?;
            Some(String::from_utf8(bytes.to_vec()).unwrap())
        };
        match body.first()?.name {
            "hello" => {
                let asked = body.get("saslSupportedMechs").and_then(Val::as_str);
                assert!(asked.is_none_or(|a| a == "admin.me"));
                let known = bson::array!["SCRAM-SHA-1", hash.mechanism()];
                Some(doc! {
                    "isWritablePrimary": true, "maxWireVersion": 25,
                    "saslSupportedMechs": known, "ok": 1.0,
                })
            }
            "saslStart" => {
                assert_eq!(body.get("$db")?.as_str(), Some("admin"));
                if body.get("mechanism")?.as_str() != Some(hash.mechanism()) {
                    return Some(failed);
                }
                let first = payload()?;
                let nonce = first.split("r=").nth(1)?;
                let mut scram = ScramClient::new(*hash, name, password, nonce);
                if first != scram.first() {
                    return Some(failed);
                }
                let challenge = format!("r={nonce}more,s=QSXCR+Q6sek8bf92,i=4096");
                let last = scram.last(&challenge)?;
                self.expected = Some((last, scram.signature()?.to_string()));
                Some(says(&challenge, false))
            }
            "saslContinue" => {
                assert_eq!(body.get("conversationId")?.as_i32(), Some(7));
                match (payload()?.as_str(), self.expected.take()) {
                    ("", None) if self.known => Some(says("", true)),
                    (said, Some((last, proof))) if said == last => {
                        self.known = true;
                        // The newer one skips the empty exchange.
                        Some(says(&proof, *hash == Hash::Sha256))
                    }
                    _ => Some(failed),
                }
            }
            "ping" | "buildInfo" => None,
            _ if self.known => None,
            other => Some(doc! {
                "ok": 0.0, "code": 13, "errmsg": format!("Command {other} requires authentication"),
            }),
        }
    }
}

fn key(id: Val<'_>) -> Vec<u8> {
    id.str_bytes().unwrap_or(id.bytes).to_vec()
}

fn matches(d: Doc<'_>, filter: Doc<'_>) -> bool {
    let compare = |a: Val<'_>, b: Val<'_>| bson::order::compare(a, b);
    filter.iter().all(|f| {
        let Some(have) = d.get(f.name) else {
            return false;
        };
        let operators = f
            .val
            .as_doc()
            .filter(|o| o.first().is_some_and(|e| e.name.starts_with('$')));
        match operators {
            None => have == f.val,
            Some(operators) => operators.iter().all(|o| match o.name {
                "$gte" => compare(have, o.val).is_ge(),
                "$lt" => compare(have, o.val).is_lt(),
                "$in" => o.val.as_array().unwrap().values().any(|v| v == have),
                other => panic!("operator {other}"),
            }),
        }
    })
}

fn project(d: &DocBuf, projection: Option<Doc<'_>>) -> DocBuf {
    let Some(p) = projection else {
        return d.clone();
    };
    let wants = |name: &str| match p.get(name) {
        Some(v) => v.truthy(),
        None => name == "_id",
    };
    let mut w = Writer::new();
    for e in d.as_doc().iter().filter(|e| wants(e.name)) {
        w.val(e.name, e.val);
    }
    w.finish()
}

impl State {
    /// `None` closes the connection.
    fn run(&mut self, msg: &wire::Msg<'_>) -> Option<DocBuf> {
        let body = Doc::new(msg.body)?;
        let first = body.first()?;
        let db = body.get("$db")?.as_str()?;
        let ns = format!("{db}.{}", first.val.as_str().unwrap_or(""));
        let documents = |name: &str| -> Vec<DocBuf> {
            let sequence = msg.sequences.iter().find(|s| s.name == name);
            let mut rest = sequence.map_or(&[][..], |s| s.documents);
            let mut all = Vec::new();
            if sequence.is_none() {
                let inline = body.get(name).and_then(Val::as_array).unwrap_or(Doc::EMPTY);
                all.extend(inline.values().filter_map(|d| Some(d.as_doc()?.to_buf())));
            }
            while let Some(d) = Doc::new(rest) {
                bson::validate(d.as_bytes()).expect("a valid document");
                rest = &rest[d.len()..];
                all.push(d.to_buf());
            }
            all
        };
        Some(match first.name {
            "hello" => self.hello(),
            "replSetInitiate" if self.role == Role::Member => {
                let settings = first.val.as_doc()?;
                assert_eq!(settings.get("members")?.as_array()?.count(), 1);
                self.set = Some((settings.get("_id")?.as_str()?.to_string(), 0));
                doc! {"ok": 1.0}
            }
            "addShard" if self.role == Role::Router => {
                let name = first.val.as_str()?.to_string();
                if !is_member(&name) {
                    return Some(doc! {"ok": 0.0, "code": 70, "errmsg": "no such shard"});
                }
                self.shards.push(name);
                doc! {"ok": 1.0}
            }
            "listShards" if self.role == Role::Router => {
                let mut all = Writer::new_array();
                for name in &self.shards {
                    all.push_value(doc! {"_id": name.split('/').next()?});
                }
                doc! {"shards": all.finish_array(), "ok": 1.0}
            }
            "enableSharding" | "split" | "balancerStop" | "balancerStart"
                if self.role == Role::Router =>
            {
                doc! {"ok": 1.0}
            }
            "balancerStatus" if self.role == Role::Router => doc! {"mode": "off", "ok": 1.0},
            "shardCollection" if self.role == Role::Router => {
                self.shard(first.val.as_str()?);
                doc! {"ok": 1.0}
            }
            "moveChunk" if self.role == Role::Router => {
                let min = body.get("bounds")?.as_array()?.values().next()?.as_doc()?;
                let to = body.get("to")?;
                let chunks = self.collections.get_mut("config.chunks")?;
                let chunk = chunks.values_mut().find(|c| {
                    c.get("ns") == Some(first.val)
                        && c.get("min").and_then(Val::as_doc) == Some(min)
                })?;
                let mut w = Writer::new();
                for e in chunk.as_doc().iter() {
                    w.val(e.name, if e.name == "shard" { to } else { e.val });
                }
                *chunk = w.finish();
                doc! {"ok": 1.0}
            }
            "create" | "createIndexes" => {
                self.collections.entry(ns).or_default();
                doc! {"ok": 1.0}
            }
            "ping" => doc! {"ok": 1.0},
            "listCollections" => {
                let name = body.get("filter")?.as_doc()?.get("name")?.as_str()?;
                let mut batch = Writer::new_array();
                if self.collections.contains_key(&format!("{db}.{name}")) {
                    batch.push_value(doc! {"name": name, "type": "collection", "info": doc! {}});
                }
                let cursor = doc! {"firstBatch": batch.finish_array(), "id": 0i64};
                doc! {"cursor": cursor, "ok": 1.0}
            }
            "delete" => {
                let statements = documents("deletes");
                let id = statements.first()?.get("q")?.as_doc()?.get("_id")?;
                let gone = self
                    .collections
                    .get_mut(&ns)
                    .and_then(|c| c.remove(&key(id)));
                doc! {"n": i32::from(gone.is_some()), "ok": 1.0}
            }
            "buildInfo" => doc! {"version": "0.0-fake", "ok": 1.0},
            "serverStatus" => {
                doc! {"pid": Value::from(i64::from(std::process::id())), "ok": 1.0}
            }
            "drop" => match self.collections.remove(&ns) {
                Some(_) => doc! {"ok": 1.0},
                None => doc! {"ok": 0.0, "code": 26, "errmsg": "ns not found"},
            },
            "insert" => self.insert(&ns, documents("documents")),
            "update" => {
                let statements = documents("updates");
                let u = statements.first()?.as_doc();
                if u.get("upsert").is_some_and(Val::truthy) {
                    let made = u.get("u")?.as_doc()?;
                    let collection = self.collections.entry(ns).or_default();
                    collection.insert(key(made.get("_id")?), made.to_buf());
                    return Some(doc! {"n": 1, "ok": 1.0});
                }
                let id = u.get("q")?.as_doc()?.get("_id")?;
                let set = u.get("u")?.as_doc()?.get("$set")?.as_doc()?;
                let slot = self.collections.get_mut(&ns)?.get_mut(&key(id));
                let n = i32::from(slot.is_some());
                if let Some(d) = slot {
                    let mut w = Writer::new();
                    for e in d.as_doc() {
                        w.val(e.name, set.get(e.name).unwrap_or(e.val));
                    }
                    *d = w.finish();
                }
                doc! {"n": n, "nModified": n, "ok": 1.0}
            }
            // Of plans it only answers, and always with nothing; one that lies has something by a hint.
            "find" if ns.ends_with(".plans") => {
                let mut batch = Writer::new_array();
                if self.honesty == Honesty::MixesUp && body.contains("hint") {
                    batch.push_value(doc! {"_id": 1});
                }
                let cursor = doc! {"firstBatch": batch.finish_array(), "id": 0i64, "ns": ns};
                doc! {"cursor": cursor, "ok": 1.0}
            }
            "find" => return self.find(&ns, body),
            "count" => {
                let filter = body.get("query").and_then(Val::as_doc);
                let filter = filter.unwrap_or(Doc::EMPTY);
                let found = self.collections.get(&ns).map_or(0, |c| {
                    c.values().filter(|d| matches(d.as_doc(), filter)).count()
                });
                doc! {"n": found as i32, "ok": 1.0}
            }
            "explain" => {
                // With a hinted index it reads half as much.
                let hinted = first.val.as_doc()?.contains("hint");
                let (keys, name) = if hinted {
                    (90, "told_1")
                } else {
                    (190, "own_1")
                };
                let scan = doc! {"stage": "IXSCAN", "indexName": name};
                let stats = doc! {
                    "executionSuccess": true, "totalKeysExamined": keys, "totalDocsExamined": 0,
                };
                doc! {
                    "queryPlanner": doc! {"winningPlan": scan}, "executionStats": stats, "ok": 1.0,
                }
            }
            "collStats" => {
                let c = self.collections.get(&ns);
                let count = c.map_or(0, BTreeMap::len) as i32;
                let size: usize = c.map_or(0, |c| c.values().map(|d| d.as_bytes().len()).sum());
                let mut shards = Writer::new();
                for name in &self.shards {
                    let indexes = doc! {"_id_": 4i64, "a_1": 3i64};
                    let one = doc! {
                        "count": count / self.shards.len() as i32, "nchunks": 2, "indexSizes": indexes,
                    };
                    shards.value(name.split('/').next().unwrap(), one);
                }
                doc! {
                    "shards": shards.finish(),
                    "count": count, "size": size as i64, "storageSize": size as i64,
                    "totalIndexSize": 7i64, "indexSizes": doc!{"_id_": 7i64}, "ok": 1.0,
                }
            }
            other => doc! {"ok": 0.0, "code": 59, "errmsg": format!("no such command: {other}")},
        })
    }

    fn hello(&mut self) -> DocBuf {
        match (self.role, &mut self.set) {
            (Role::Router, _) => {
                doc! {"isWritablePrimary": true, "msg": "isdbgrid", "maxWireVersion": 25, "ok": 1.0}
            }
            (Role::Member, None) => {
                doc! {"isWritablePrimary": false, "maxWireVersion": 25, "ok": 1.0}
            }
            (Role::Member, Some((name, said))) => {
                *said += 1;
                doc! {
                    "isWritablePrimary": *said > 2, "setName": name.as_str(),
                    "maxWireVersion": 25, "ok": 1.0,
                }
            }
            _ => doc! {"isWritablePrimary": true, "maxWireVersion": 25, "ok": 1.0},
        }
    }

    /// Two chunks, both on the first shard, named as before MongoDB 5.
    fn shard(&mut self, ns: &str) {
        let first = self.shards.first().cloned().unwrap_or_default();
        let first = first.split('/').next().unwrap_or_default();
        let chunks = self.collections.entry("config.chunks".into()).or_default();
        for (min, max) in [("a", "m"), ("m", "z")] {
            let id = format!("{ns}-{min}");
            let chunk = doc! {
                "_id": id.as_str(), "ns": ns, "min": doc! {"_id": min}, "max": doc! {"_id": max},
                "shard": first,
            };
            chunks.insert(id.into_bytes(), chunk);
        }
    }

    fn insert(&mut self, ns: &str, documents: Vec<DocBuf>) -> DocBuf {
        let n = documents.len() as i32;
        let collection = self.collections.entry(ns.to_string()).or_default();
        for d in documents {
            self.inserts += 1;
            if self.honesty == Honesty::LosesInserts && self.inserts.is_multiple_of(50) {
                continue;
            }
            let id = key(d.get("_id").expect("an _id"));
            if collection.insert(id, d).is_some() {
                let error = doc! {"index": 0, "code": 11000, "errmsg": "duplicate key"};
                return doc! {"n": 0, "writeErrors": bson::array![error], "ok": 1.0};
            }
        }
        doc! {"n": n, "ok": 1.0}
    }

    fn find(&mut self, ns: &str, body: Doc<'_>) -> Option<DocBuf> {
        self.finds += 1;
        if self.finds.is_multiple_of(100) {
            match self.honesty {
                Honesty::Fails => {
                    return Some(doc! {"ok": 0.0, "code": 1, "errmsg": "out of order"});
                }
                Honesty::HangsUp => return None,
                _ => {}
            }
        }
        let int = |name: &str| body.get(name).and_then(Val::to_i64_exact).unwrap_or(0) as usize;
        let filter = body
            .get("filter")
            .and_then(Val::as_doc)
            .unwrap_or(Doc::EMPTY);
        let empty = Collection::new();
        let collection = self.collections.get(ns).unwrap_or(&empty);
        let equal = filter.get("_id").filter(|v| v.as_doc().is_none());
        let mut found: Vec<&DocBuf> = match equal {
            Some(id) if self.honesty == Honesty::MixesUp => collection
                .values()
                .filter(|d| d.get("_id") != Some(id))
                .take(1)
                .collect(),
            Some(id) => collection.get(&key(id)).into_iter().collect(),
            None => collection
                .values()
                .filter(|d| matches(d.as_doc(), filter))
                .collect(),
        };
        if let Some(e) = body.get("sort").and_then(|s| s.as_doc()?.first()) {
            found.sort_by(|a, b| {
                let (a, b) = (a.get(e.name).unwrap(), b.get(e.name).unwrap());
                bson::order::compare(a, b)
            });
            if e.val.to_f64() == Some(-1.0) {
                found.reverse();
            }
        }
        let limit = match int("limit") {
            0 => usize::MAX,
            n => n,
        };
        let projection = body.get("projection").and_then(Val::as_doc);
        let mut batch = Writer::new_array();
        for d in found.into_iter().skip(int("skip")).take(limit) {
            batch.push_value(project(d, projection));
        }
        let cursor = doc! {"firstBatch": batch.finish_array(), "id": 0i64, "ns": ns};
        Some(doc! {"cursor": cursor, "ok": 1.0})
    }
}
