//! One blocking connection, for everything that is not measured: set-up, counts, statistics, shutdown.

use crate::fault::{Fault, Result, target};
use crate::fleet::Waits;
use crate::reply;
use crate::request::{Template, command, set_request_id};
use crate::targets::Stream;
use crate::targets::mark::{self, Owner};
use bson::{Doc, DocBuf, Val, doc};
use outgoing::{Converse, MongoTarget};
use std::io::{Read, Write};
use std::net::SocketAddr;

/// The product's name of the null server, whose records are all the same.
pub const NULL_SERVER: &str = "null server";

/// A server by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MongoAddress {
    /// As it may be shown: without the password.
    pub url: String,
    /// The database that the URL names.
    pub database: Option<String>,
    target: MongoTarget,
}

impl MongoAddress {
    /// `mongodb://[user:password@]host[:port][/database][?options]`; one host, or the path of a socket.
    /// Options that say nothing about the login and TLS are ignored.
    pub fn parse(url: &str) -> Result<MongoAddress> {
        let target = MongoTarget::parse(url)?;
        Ok(MongoAddress {
            url: target.url.text.clone(),
            database: target.url.database.clone(),
            target,
        })
    }

    pub fn local(port: u16) -> MongoAddress {
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let target = MongoTarget::plain(addr);
        MongoAddress {
            url: target.url.text.clone(),
            database: None,
            target,
        }
    }

    pub fn connect(&self) -> Result<MongoConnection> {
        MongoConnection::open(&self.target)
    }
}

/// A connection that has said `hello`, and its server.
pub struct MongoConnection {
    stream: Stream,
    /// As it may be shown.
    shown: String,
    /// The server is on this machine, as far as its address tells.
    local: bool,
    input: Vec<u8>,
    request_id: i32,
    pub hello: DocBuf,
}

impl Converse for MongoConnection {
    type Failure = Fault;

    fn ask(&mut self, db: &str, command: Doc<'_>) -> Result<DocBuf> {
        self.try_command(db, command)
    }
}

/// The first document of a cursor's first batch.
fn first_of_batch(reply: Doc<'_>) -> Option<Doc<'_>> {
    let cursor = reply.get("cursor")?.as_doc()?;
    cursor
        .get("firstBatch")?
        .as_array()?
        .values()
        .next()?
        .as_doc()
}

/// A socket with `hello` said on it, and the answer.
pub fn handshake(address: &MongoAddress) -> Result<(Stream, DocBuf)> {
    let c = address.connect()?;
    Ok((c.stream, c.hello))
}

/// Reads once. A signal (the user's Ctrl-C) is no fault of the connection's: the pending request ends
/// when it has its answer, or with the process when none comes.
pub(crate) fn read_some(stream: &mut impl Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let _waits = Waits::begin();
    loop {
        match stream.read(buf) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl MongoConnection {
    pub fn open(target: &MongoTarget) -> Result<MongoConnection> {
        let mut c = MongoConnection {
            stream: target.connect()?,
            shown: target.url.host.to_string(),
            local: target.url.host.is_local(),
            input: vec![0; 4096],
            request_id: 0,
            hello: DocBuf::new(),
        };
        let client = doc! {
            "application": doc! {"name": "pando lab"},
            "driver": doc! {"name": "pando-lab", "version": env!("CARGO_PKG_VERSION")},
            "os": doc! {"type": "Linux"},
        };
        let mut hello = bson::Writer::new();
        hello.i32("hello", 1).value("client", client);
        let login = target.login.as_ref();
        if let Some(user) = login.and_then(|l| l.asks_for()) {
            hello.str("saslSupportedMechs", &user);
        }
        c.hello = c.command("admin", hello.finish().as_doc())?;
        if let Some(login) = login {
            let hello = c.hello.clone();
            login.perform(&mut c, hello.as_doc())?;
        }
        Ok(c)
    }

    pub fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Runs a command; the reply must be `ok: 1` without write errors.
    pub fn command(&mut self, db: &str, body: Doc<'_>) -> Result<DocBuf> {
        let reply = self.try_command(db, body)?;
        let name = body.first().map_or("command", |e| e.name).to_string();
        reply::ok(reply.as_doc()).map_err(|f| Fault::Target(format!("{name}: {f}")))?;
        Ok(reply)
    }

    /// Runs a command and gives its reply, an error reply too.
    pub fn try_command(&mut self, db: &str, body: Doc<'_>) -> Result<DocBuf> {
        let message = self.exchange(&command(db, body))?;
        Ok(reply::body(&message, self.request_id)?.to_buf())
    }

    /// Sends a template as it is and gives the whole reply message.
    pub fn exchange(&mut self, request: &Template) -> Result<Vec<u8>> {
        self.exchange_bytes(request.bytes().to_vec())
    }

    pub fn exchange_bytes(&mut self, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.request_id = self.request_id.wrapping_add(1);
        set_request_id(&mut bytes, self.request_id);
        self.stream
            .write_all(&bytes)
            .map_err(target(format!("sending to {}", self.shown)))?;
        let mut filled = 0;
        loop {
            match wire::frame(&self.input[..filled]) {
                Ok(wire::Frame::Complete { len }) => return Ok(self.input[..len].to_vec()),
                Ok(wire::Frame::Incomplete { need }) => {
                    if self.input.len() < need {
                        self.input.resize(need, 0);
                    }
                }
                Err(f) => return Err(Fault::Target(format!("the reply is not a message: {f}"))),
            }
            let n = read_some(&mut self.stream, &mut self.input[filled..])
                .map_err(target(format!("waiting for {}", self.shown)))?;
            if n == 0 {
                return Err(Fault::Target(format!(
                    "{} closed the connection",
                    self.shown
                )));
            }
            filled += n;
        }
    }

    /// All documents in a collection, by its metadata.
    pub fn count(&mut self, db: &str, collection: &str) -> Result<u64> {
        let reply = self.command(db, doc! {"count": collection}.as_doc())?;
        reply::int(reply.as_doc(), "n")
            .and_then(|n| u64::try_from(n).ok())
            .ok_or_else(|| Fault::Check(format!("no count in {}", reply::brief(reply.as_doc()))))
    }

    /// Whose a collection is: see [`mark`].
    pub fn owner(&mut self, db: &str, collection: &str) -> Result<Owner> {
        let Some(there) = self.uuid(db, collection)? else {
            return Ok(Owner::Nobody);
        };
        let find = doc! {
            "find": mark::COLLECTION, "filter": doc! {"_id": collection}, "limit": 1, "singleBatch": true,
        };
        let reply = self.command(db, find.as_doc())?;
        let marked = first_of_batch(reply.as_doc());
        let uuid = marked.map(|m| m.get("uuid").map(|v| v.bytes.to_vec()));
        Ok(match uuid {
            Some(uuid) if uuid == there => Owner::Ours,
            _ => Owner::Others,
        })
    }

    /// The UUID of a collection that is there, where the server tells it.
    fn uuid(&mut self, db: &str, collection: &str) -> Result<Option<Option<Vec<u8>>>> {
        let list = doc! {"listCollections": 1, "filter": doc! {"name": collection}};
        let reply = self.command(db, list.as_doc())?;
        Ok(first_of_batch(reply.as_doc()).map(|c| {
            let info = c.get("info").and_then(Val::as_doc)?;
            Some(info.get("uuid")?.bytes.to_vec())
        }))
    }

    /// Drops a collection of ours; that there was none is fine, and one of others is refused.
    pub fn drop_collection(&mut self, db: &str, collection: &str) -> Result<()> {
        let owner = self.owner(db, collection)?;
        if owner == Owner::Nobody {
            return Ok(());
        }
        mark::claim(owner, &self.shown, &format!("{db}.{collection}"))?;
        self.command(db, doc! {"drop": collection}.as_doc())?;
        let all = doc! {"q": doc! {"_id": collection}, "limit": 1};
        let unmark = doc! {"delete": mark::COLLECTION, "deletes": bson::array![all]};
        self.command(db, unmark.as_doc())?;
        // The last mark goes with its collection.
        if self.count(db, mark::COLLECTION)? == 0 {
            self.try_command(db, doc! {"drop": mark::COLLECTION}.as_doc())?;
        }
        Ok(())
    }

    /// Marks a collection as one that the laboratory has made.
    pub fn mark(&mut self, db: &str, collection: &str) -> Result<()> {
        let mut made = bson::Writer::new();
        made.str("_id", collection);
        if let Some(Some(uuid)) = self.uuid(db, collection)? {
            made.value("uuid", bson::Value::from_bytes(bson::tag::BINARY, uuid));
        }
        let statement = doc! {
            "q": doc! {"_id": collection}, "u": made.finish(), "upsert": true,
        };
        let update = doc! {"update": mark::COLLECTION, "updates": bson::array![statement]};
        self.command(db, update.as_doc())?;
        Ok(())
    }

    /// Creates the collection, marks it, and makes an index for each `(field, direction)`.
    pub fn create_indexes(
        &mut self,
        db: &str,
        collection: &str,
        fields: &[(&str, i32)],
    ) -> Result<()> {
        if fields.is_empty() {
            self.command(db, doc! {"create": collection}.as_doc())?;
            return self.mark(db, collection);
        }
        let mut indexes = bson::Writer::new_array();
        for (field, direction) in fields {
            let mut key = bson::Writer::new();
            key.i32(field, *direction);
            let name = format!("{field}_{direction}");
            indexes.push_value(doc! {"key": key.finish(), "name": name});
        }
        let mut body = bson::Writer::new();
        body.str("createIndexes", collection)
            .value("indexes", indexes.finish_array());
        self.command(db, body.finish().as_doc())?;
        self.mark(db, collection)
    }

    /// Whether a router of a cluster answers here.
    pub fn is_router(&self) -> bool {
        self.hello.get("msg").and_then(Val::as_str) == Some("isdbgrid")
    }

    /// Makes the collection, spread over the shards by a field.
    pub fn shard_collection(
        &mut self,
        db: &str,
        collection: &str,
        field: &str,
        how: bson::Value,
    ) -> Result<()> {
        let namespace = format!("{db}.{collection}");
        let mut key = bson::Writer::new();
        key.value(field, how);
        self.command("admin", doc! {"enableSharding": db}.as_doc())?;
        self.command(
            "admin",
            doc! {"shardCollection": namespace.as_str(), "key": key.finish()}.as_doc(),
        )?;
        self.mark(db, collection)
    }

    /// The server's process, when it is one of this machine and says so.
    pub fn server_pid(&mut self) -> Option<u32> {
        if !self.local {
            return None;
        }
        let status = self
            .try_command("admin", doc! {"serverStatus": 1}.as_doc())
            .ok()?;
        let pid = u32::try_from(reply::int(status.as_doc(), "pid")?).ok()?;
        crate::process::cpu_time(pid).map(|_| pid)
    }

    /// The server's product and its version. Others than MongoDB name themselves beside the version that they imitate.
    pub fn product(&mut self) -> (String, String) {
        let info = self.try_command("admin", doc! {"buildInfo": 1}.as_doc());
        let Ok(info) = info else {
            return ("unknown".into(), String::new());
        };
        let text = |d: Doc<'_>, name: &str| Some(d.get(name)?.as_str()?.to_string());
        if let Some(own) = info.get("pandodb").and_then(Val::as_doc) {
            return ("PandoDB".into(), text(own, "version").unwrap_or_default());
        }
        if info.get("pandoLabNull").is_some() {
            return (NULL_SERVER.into(), String::new());
        }
        let version = text(info.as_doc(), "version").unwrap_or_default();
        let product = if info.get("ferretdb").is_some() {
            "FerretDB"
        } else {
            "MongoDB"
        };
        (product.into(), version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let t = MongoAddress::parse("mongodb://127.0.0.1:27099/ycsb?w=1").unwrap();
        let host = |t: &MongoAddress| t.target.url.host.to_string();
        assert_eq!(host(&t), "127.0.0.1:27099");
        assert_eq!(t.database.as_deref(), Some("ycsb"));
        let t = MongoAddress::parse("mongodb://u:secret@127.0.0.1/?w=1").unwrap();
        assert!(t.target.login.is_some() && !format!("{t:?}").contains("secret"));
        let t = MongoAddress::parse("mongodb://localhost").unwrap();
        assert!(host(&t).ends_with(":27017") && t.database.is_none());
        let t = MongoAddress::parse("mongodb://[::1]/").unwrap();
        assert_eq!(host(&t), "[::1]:27017");
        let t = MongoAddress::parse("mongodb://%2Ftmp%2Fmongodb-27017.sock").unwrap();
        assert_eq!(host(&t), "/tmp/mongodb-27017.sock");
        for bad in [
            "localhost",
            "mysql://h/",
            "mongodb+srv://h",
            "mongodb://u@127.0.0.1/",
            "mongodb://127.0.0.1/?tlsCAFile=/nowhere.pem",
            "mongodb://a,b/",
            "mongodb://",
            "mongodb://127.0.0.1:99999",
        ] {
            assert!(
                matches!(MongoAddress::parse(bad), Err(Fault::Usage(_))),
                "{bad}"
            );
        }
    }
}
