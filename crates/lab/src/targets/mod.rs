//! The databases that the laboratory measures. Each is one file that implements [`TargetDatabase`] (reach it, make a table, count)
//! and [`Dialect`] (what its requests and replies look like); `docs/lab.md` adds one as a worked example.
//!
//! All databases are driven by the same loop ([`crate::lane`]): one thread polls many sockets, requests are bytes made
//! ready before the clock starts, replies are cut and judged in place. So the client costs every side the same.
//!
//! Invariant: a dialect's request gets exactly one whole reply, and `frame` never calls a reply whole before its end.

mod encryption;
pub mod local;
pub mod mark;
pub mod mongodb;
pub mod mysql;
pub mod postgres;
pub mod split;

use crate::fault::{Fault, Result};
use crate::report::{CollectionSizes, TargetInfo};
use crate::terms::WriteDurability;
use bson::DocBuf;
use mark::Owner;
pub use outgoing::{Stream, Url, without_password};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How records are found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRole {
    /// The key is the primary key (`_id`).
    Primary,
    /// The key is a field like the others: records are not found by it.
    Unkeyed,
    /// The key is a field with an index of its own.
    Indexed,
}

/// A table (a collection) of records: a key and named fields.
#[derive(Clone, Debug)]
pub struct Table {
    pub database: String,
    /// Empty where there is none of ours, and only the user's own statements are said.
    pub name: String,
    pub key: KeyRole,
    /// The key's name where it is not `_id`.
    pub key_name: String,
    pub fields: Vec<String>,
    /// Fields are text; else they are bytes, where the database has such a type for them.
    pub text: bool,
    /// Whether single fields are read too, so that statements for them are worth preparing.
    pub single_fields: bool,
}

/// A database under measurement.
pub trait TargetDatabase: Send + Sync {
    fn url(&self) -> &str;
    /// Sees that the server keeps what a durability promises, before anything is measured.
    fn ready(&self, _durability: WriteDurability) -> Result<()> {
        Ok(())
    }
    /// Product, version, settings, and its process when it runs on this machine.
    fn info(&self) -> Result<TargetInfo>;
    /// The database that the URL names.
    fn database(&self) -> Option<String>;
    /// Whose the table is, if there is one.
    fn owner(&self, table: &Table) -> Result<Owner>;
    /// Makes the table, empty, and marks it, in place of one of ours. One of others is refused.
    fn create(&self, table: &Table) -> Result<()>;
    /// Drops the table; that there is none is fine. One of others is refused.
    fn drop_table(&self, table: &Table) -> Result<()>;
    /// Records in the table; none where there is no table.
    fn count(&self, table: &Table) -> Result<u64>;
    fn sizes(&self, table: &Table, at: f64) -> Result<CollectionSizes>;
    /// Has a study's own order done, outside of a measurement; gives how many records the answer has.
    fn obey(&self, _database: &str, _order: &Instruction) -> Result<u64> {
        let shown = self.url();
        Err(Fault::Usage(format!(
            "{shown}: this study is for MongoDB's protocol and PostgreSQL"
        )))
    }
    /// What the server is busy with beside requests (`flush`, `compaction`, `checkpoint`), where it says so.
    fn activity(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// The servers behind it, where the client spreads the keys over several.
    fn parts(&self) -> &[Arc<dyn TargetDatabase>] {
        &[]
    }
    /// What one lane says about one table. `Unack` is refused by databases that know no such thing.
    fn dialect(&self, table: &Arc<Table>, durability: WriteDurability) -> Result<Box<dyn Dialect>>;
}

/// What a study has a database do, in its language.
#[derive(Clone, Debug, PartialEq)]
pub enum Instruction {
    Command(DocBuf),
    Sql(String),
}

impl Instruction {
    /// The request that says it.
    pub fn request(&self, dialect: &dyn Dialect, database: &str) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Instruction::Command(body) => {
                let message = crate::request::command(database, body.as_doc());
                message.write(&mut out, &[]);
            }
            Instruction::Sql(text) => dialect.statement(text.as_bytes(), &mut out),
        }
        out
    }
}

/// What a target was busy with beside requests, and when: seconds since the step began.
#[derive(Default)]
pub struct Activity(pub BTreeMap<String, Vec<f64>>);

impl Activity {
    /// Once a second costs the server nothing that a figure would show.
    pub fn look(&mut self, target: &dyn TargetDatabase, at: f64) {
        for what in target.activity() {
            self.0.entry(what.into()).or_default().push(at);
        }
    }
}

/// What a whole reply says: how many records it holds, or how many a write touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyCounts {
    pub rows: u64,
    pub affected: u64,
}

/// In what a user's own statement is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryLanguage {
    /// Commands of MongoDB's protocol, whole messages.
    Commands,
    Sql,
    /// SQL, or what only MySQL and MariaDB say so.
    MySql,
}

impl QueryLanguage {
    pub fn name(self) -> &'static str {
        match self {
            QueryLanguage::Commands => "MongoDB's commands",
            QueryLanguage::Sql | QueryLanguage::MySql => "SQL",
        }
    }
}

/// Requests and replies about one table. Requests are appended to `out`.
pub trait Dialect: Send {
    /// A socket that is ready for the requests below, and a number that `stamp` gets with each request on it.
    fn connect(&self) -> Result<(Stream, u32)>;
    /// All rows of `rows`, each a key and all fields.
    fn insert(&mut self, rows: &ByteStrings, out: &mut Vec<u8>);
    /// One record by its key; one field of it or all.
    fn read(&mut self, key: &[u8], field: Option<usize>, out: &mut Vec<u8>);
    /// Sets the fields from `first` on to the cells of `values`.
    fn update(&mut self, key: &[u8], first: usize, values: &ByteStrings, out: &mut Vec<u8>);
    /// Up to `limit` records in the order of their keys, from `key` on.
    fn scan(&mut self, key: &[u8], limit: u64, field: Option<usize>, out: &mut Vec<u8>);
    fn delete(&mut self, key: &[u8], out: &mut Vec<u8>);
    /// What users' own statements are written in.
    fn language(&self) -> QueryLanguage {
        QueryLanguage::Sql
    }
    /// Such a statement, as it is.
    fn statement(&self, text: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(text);
    }
    /// Gives a request its number, in protocols that have one, or fits it to its connection.
    fn stamp(&self, _request: &mut [u8], _id: i32, _connection: u32) {}
    /// Whether `input` holds a whole reply.
    fn frame(&self, input: &[u8]) -> Result<wire::Frame>;
    /// Judges a whole reply to the request `id`; an error reply is a fault.
    fn answer(&self, reply: &[u8], id: i32) -> Result<ReplyCounts>;
    /// The records of a reply: key, then fields, record after record.
    fn rows(&self, reply: &[u8], id: i32, into: &mut ByteStrings) -> Result<()>;
}

/// Byte strings one after the other in one buffer: rows of a request or a reply, without an allocation each.
#[derive(Clone, Debug, Default)]
pub struct ByteStrings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ByteStrings {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    #[inline]
    pub fn push(&mut self, cell: &[u8]) {
        self.bytes.extend_from_slice(cell);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The cell, or nothing past the end.
    #[inline]
    pub fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 {
            0
        } else {
            self.ends.get(i - 1).copied().unwrap_or(0)
        };
        self.ends
            .get(i)
            .and_then(|&end| self.bytes.get(start..end))
            .unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// The target of a URL. Nothing is connected yet.
pub fn open(url: &str) -> Result<Arc<dyn TargetDatabase>> {
    let parts = outgoing::parts(url);
    if parts.len() > 1 {
        return Ok(Arc::new(split::Split::open(&parts)?));
    }
    let shown = without_password(url);
    let scheme = url.split_once("://").map(|(s, _)| s);
    match scheme {
        Some("mongodb" | "mongodb+srv") => Ok(Arc::new(mongodb::MongoDb::open(url)?)),
        Some("postgres" | "postgresql") => Ok(Arc::new(postgres::Postgres::open(url)?)),
        Some("mysql" | "mariadb") => Ok(Arc::new(mysql::MySql::open(url)?)),
        Some(other) => Err(Fault::Usage(format!(
            "{shown}: no target speaks {other}:// (mongodb, postgres, mysql)"
        ))),
        None => Err(Fault::Usage(format!(
            "{shown}: a target is a URL such as mongodb://127.0.0.1:27017, postgres://user@127.0.0.1/db or mysql://root@127.0.0.1"
        ))),
    }
}

/// Where a server is looked for when no URL is given, by commands that only read.
pub const DEFAULT_URL: &str = "mongodb://127.0.0.1:27017";

/// Those of the URLs that answer; of the others one line each. No target at all is a fault.
pub fn open_all(urls: &[String]) -> Result<Vec<Arc<dyn TargetDatabase>>> {
    let mut there = Vec::new();
    for url in urls {
        let target = open(url)?;
        match target.info() {
            Ok(_) => there.push(target),
            // One alone is not skipped: it is the fault.
            Err(fault) if urls.len() == 1 => return Err(fault),
            Err(fault) => eprintln!("{}: skipped ({fault})", target.url()),
        }
    }
    if there.is_empty() {
        return Err(Fault::Target("none of the targets answered".into()));
    }
    Ok(there)
}

/// Sets a server's setting back to what it was before a run.
pub fn set_back(setting: &crate::changed::ChangedSetting) -> Result<()> {
    mysql::set_back(setting)
}

/// Refuses what a database without unacknowledged writes cannot do.
fn acknowledged_only(product: &str, durability: WriteDurability) -> Result<()> {
    if durability.acknowledged() {
        return Ok(());
    }
    Err(Fault::Usage(format!(
        "{product} has no unacknowledged writes: use --durability w1 or journaled"
    )))
}

/// What the tests of dialects share.
#[cfg(test)]
mod examples {
    use super::*;

    pub fn table() -> Arc<Table> {
        Arc::new(Table {
            database: "d".into(),
            name: "t".into(),
            key: KeyRole::Primary,
            key_name: "k".into(),
            fields: vec!["a".into(), "b".into()],
            text: true,
            single_fields: true,
        })
    }

    /// A reply that is cut anywhere waits for more than there is.
    pub fn whole_at_its_end(dialect: &dyn Dialect, reply: &[u8]) {
        for cut in 0..reply.len() {
            let wire::Frame::Incomplete { need } = dialect.frame(&reply[..cut]).unwrap() else {
                panic!("whole at {cut}")
            };
            assert!(need > cut);
        }
        let whole = dialect.frame(reply).unwrap();
        assert!(matches!(whole, wire::Frame::Complete { len } if len == reply.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_keep_their_bounds() {
        let mut c = ByteStrings::default();
        c.push(b"ab");
        c.push(b"");
        c.push(b"cde");
        assert_eq!(c.iter().collect::<Vec<_>>(), [&b"ab"[..], b"", b"cde"]);
        assert_eq!((c.len(), c.get(3)), (3, &b""[..]));
        c.clear();
        assert!(c.is_empty());
    }

    #[test]
    fn a_url_chooses_its_target() {
        for good in [
            "mongodb://127.0.0.1",
            "postgres://u@127.0.0.1:5433/db?layout=jsonb",
            "mysql://root@127.0.0.1/x?engine=myisam",
        ] {
            assert_eq!(open(good).unwrap().url(), good);
        }
        for bad in [
            "127.0.0.1",
            "redis://127.0.0.1",
            "postgres://",
            "mysql://h:x/",
            "postgres://127.0.0.1?layout=xml",
        ] {
            assert!(matches!(open(bad), Err(Fault::Usage(_))), "{bad}");
        }
    }
}
