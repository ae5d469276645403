//! MongoDB's protocol: PandoDB, MongoDB and whatever else speaks it.

use super::mark::Owner;
use super::{
    ByteStrings, Dialect, Instruction, KeyRole, QueryLanguage, ReplyCounts, Table, TargetDatabase,
};
use crate::connection::{MongoAddress, MongoConnection, handshake};
use crate::fault::{Fault, Result};
use crate::random::Rng;
use crate::reply;
use crate::report::{CollectionSizes, TargetInfo};
use crate::request::{InsertHead, Template, flags, set_request_id};
use crate::terms::WriteDurability;
use bson::{Doc, ObjectId, Val, Writer, doc};
use outgoing::Stream;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub struct MongoDb {
    address: MongoAddress,
}

impl MongoDb {
    pub fn open(url: &str) -> Result<MongoDb> {
        Ok(MongoDb {
            address: MongoAddress::parse(url)?,
        })
    }

    pub fn at(address: MongoAddress) -> MongoDb {
        MongoDb { address }
    }

    fn control(&self) -> Result<MongoConnection> {
        self.address.connect()
    }
}

impl TargetDatabase for MongoDb {
    fn url(&self) -> &str {
        &self.address.url
    }

    fn info(&self) -> Result<TargetInfo> {
        Ok(TargetInfo::of(&self.address, &mut self.control()?))
    }

    fn database(&self) -> Option<String> {
        self.address.database.clone()
    }

    fn owner(&self, table: &Table) -> Result<Owner> {
        self.control()?.owner(&table.database, &table.name)
    }

    fn create(&self, table: &Table) -> Result<()> {
        let mut c = self.control()?;
        c.drop_collection(&table.database, &table.name)?;
        if c.is_router() {
            // Else all of it would live on one shard.
            c.shard_collection(
                &table.database,
                &table.name,
                "_id",
                bson::Value::from("hashed"),
            )?;
            if table.key != KeyRole::Indexed {
                return Ok(());
            }
        }
        match table.key {
            KeyRole::Indexed => {
                c.create_indexes(&table.database, &table.name, &[(&table.key_name, 1)])
            }
            KeyRole::Primary | KeyRole::Unkeyed => {
                c.create_indexes(&table.database, &table.name, &[])
            }
        }
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        self.control()?
            .drop_collection(&table.database, &table.name)
    }

    fn count(&self, table: &Table) -> Result<u64> {
        self.control()?.count(&table.database, &table.name)
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<CollectionSizes> {
        CollectionSizes::of(&mut self.control()?, &table.database, &table.name, at)
    }

    fn obey(&self, database: &str, order: &Instruction) -> Result<u64> {
        let Instruction::Command(body) = order else {
            return Err(Fault::Usage(format!("{}: no SQL", self.address.url)));
        };
        let reply = self.control()?.command(database, body.as_doc())?;
        let batch = |c: Doc<'_>| Some(c.get("firstBatch")?.as_array()?.count() as u64);
        Ok(reply
            .get("cursor")
            .and_then(Val::as_doc)
            .and_then(batch)
            .unwrap_or(0))
    }

    fn activity(&self) -> Vec<&'static str> {
        let status = self
            .control()
            .and_then(|mut c| c.try_command("admin", doc! {"serverStatus": 1}.as_doc()));
        let Ok(status) = status else {
            return Vec::new();
        };
        let at = |path: &[&str]| {
            let mut d = status.as_doc();
            let (last, parents) = path.split_last()?;
            for p in parents {
                d = d.get(p)?.as_doc()?;
            }
            d.get(last)?.to_f64()
        };
        let known = [
            ("flush", &["pandodb", "engine", "runningFlushes"][..]),
            ("compaction", &["pandodb", "engine", "runningCompactions"]),
            (
                "checkpoint",
                &[
                    "wiredTiger",
                    "transaction",
                    "transaction checkpoint currently running",
                ],
            ),
        ];
        let busy = known
            .iter()
            .filter(|(_, path)| at(path).is_some_and(|n| n > 0.0));
        busy.map(|(what, _)| *what).collect()
    }

    fn dialect(&self, table: &Arc<Table>, durability: WriteDurability) -> Result<Box<dyn Dialect>> {
        Ok(Box::new(MongoDialect::new(
            self.address.clone(),
            table,
            durability,
        )))
    }
}

struct MongoDialect {
    address: MongoAddress,
    table: Arc<Table>,
    durability: WriteDurability,
    head: Arc<InsertHead>,
    /// Reads by length of the key and by field (the last: all fields).
    reads: Vec<Option<Template>>,
    /// The key as a BSON string value.
    key: Vec<u8>,
    /// For records without an `_id` of their own: seconds, five random bytes, a counter, as drivers make them.
    object_id: [u8; 12],
    counter: u32,
}

impl MongoDialect {
    fn new(address: MongoAddress, table: &Arc<Table>, durability: WriteDurability) -> MongoDialect {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let here = &raw const address as u64;
        let mut rng = Rng::new(now.as_nanos() as u64 ^ here);
        let mut object_id = [0; 12];
        object_id[..4].copy_from_slice(&(now.as_secs() as u32).to_be_bytes());
        object_id[4..9].copy_from_slice(&rng.next_u64().to_le_bytes()[..5]);
        MongoDialect {
            head: Arc::new(InsertHead::new(&table.database, &table.name, durability)),
            address,
            table: Arc::clone(table),
            durability,
            reads: Vec::new(),
            key: Vec::new(),
            object_id,
            counter: rng.next_u64() as u32,
        }
    }

    fn set_key(&mut self, key: &[u8]) {
        self.key.clear();
        self.key
            .extend_from_slice(&(key.len() as i32 + 1).to_le_bytes());
        self.key.extend_from_slice(key);
        self.key.push(0);
    }

    fn key_val(&self) -> Val<'_> {
        Val {
            tag: bson::tag::STRING,
            bytes: &self.key,
        }
    }

    fn key_name(&self) -> &str {
        match self.table.key {
            KeyRole::Primary => "_id",
            KeyRole::Unkeyed | KeyRole::Indexed => &self.table.key_name,
        }
    }

    fn next_object_id(&mut self) -> ObjectId {
        self.counter = self.counter.wrapping_add(1);
        self.object_id[9..].copy_from_slice(&self.counter.to_be_bytes()[1..]);
        ObjectId(self.object_id)
    }

    fn write_field(&self, w: &mut Writer, field: usize, value: &[u8]) {
        let Some(name) = self.table.fields.get(field) else {
            return;
        };
        match std::str::from_utf8(value) {
            Ok(text) if self.table.text => w.str(name, text),
            _ => w.binary(name, 0, value),
        };
    }

    /// Begins a write message up to its body.
    fn begin(&self, out: &mut Vec<u8>, command: &str) -> usize {
        let start = wire::begin_msg(out, 0, 0, flags(self.durability));
        wire::begin_body(out);
        let mut w = Writer::on(std::mem::take(out));
        w.str(command, &self.table.name).bool("ordered", true);
        self.durability.write_concern(&mut w);
        w.str("$db", &self.table.database);
        *out = w.finish_into();
        start
    }

    fn read_template(&self, field: Option<usize>) -> Template {
        let mut body = Writer::new();
        body.str("find", &self.table.name)
            .open_doc("filter")
            .val(self.key_name(), self.key_val())
            .close();
        if let Some(name) = field.and_then(|f| self.table.fields.get(f)) {
            body.open_doc("projection").i32(name, 1).close();
        }
        body.i32("limit", 1)
            .bool("singleBatch", true)
            .str("$db", &self.table.database);
        Template::new(body.finish().as_doc(), None, 0).slot(&["filter", self.key_name()])
    }
}

impl Dialect for MongoDialect {
    fn connect(&self) -> Result<(Stream, u32)> {
        Ok((handshake(&self.address)?.0, 0))
    }

    fn insert(&mut self, rows: &ByteStrings, out: &mut Vec<u8>) {
        let head = Arc::clone(&self.head);
        let width = self.table.fields.len() + 1;
        head.write(out, |out| {
            for first in (0..rows.len()).step_by(width) {
                self.set_key(rows.get(first));
                let object_id = (self.table.key != KeyRole::Primary).then(|| self.next_object_id());
                let mut w = Writer::on(std::mem::take(out));
                match object_id {
                    Some(id) => {
                        w.value("_id", bson::Value::from(id));
                        w.val(&self.table.key_name, self.key_val());
                    }
                    None => {
                        w.val("_id", self.key_val());
                    }
                }
                for field in 0..self.table.fields.len() {
                    self.write_field(&mut w, field, rows.get(first + 1 + field));
                }
                *out = w.finish_into();
            }
        });
    }

    fn read(&mut self, key: &[u8], field: Option<usize>, out: &mut Vec<u8>) {
        self.set_key(key);
        let all = self.table.fields.len();
        let at = key.len() * (all + 1) + field.unwrap_or(all);
        if self.reads.len() <= at {
            self.reads.resize(at + 1, None);
        }
        if self.reads[at].is_none() {
            self.reads[at] = Some(self.read_template(field));
        }
        if let Some(template) = &self.reads[at] {
            template.write(out, &[&self.key]);
        }
    }

    fn update(&mut self, key: &[u8], first: usize, values: &ByteStrings, out: &mut Vec<u8>) {
        self.set_key(key);
        let start = self.begin(out, "update");
        let sequence = wire::begin_sequence(out, "updates");
        let mut w = Writer::on(std::mem::take(out));
        w.open_doc("q").val(self.key_name(), self.key_val()).close();
        w.open_doc("u").open_doc("$set");
        for (i, value) in values.iter().enumerate() {
            self.write_field(&mut w, first + i, value);
        }
        *out = w.finish_into();
        wire::end_sequence(out, sequence);
        wire::end(out, start);
    }

    fn scan(&mut self, key: &[u8], limit: u64, field: Option<usize>, out: &mut Vec<u8>) {
        self.set_key(key);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let start = wire::begin_msg(out, 0, 0, 0);
        wire::begin_body(out);
        let mut w = Writer::on(std::mem::take(out));
        w.str("find", &self.table.name);
        w.open_doc("filter").open_doc(self.key_name());
        w.val("$gte", self.key_val()).close().close();
        w.open_doc("sort").i32(self.key_name(), 1).close();
        if let Some(name) = field.and_then(|f| self.table.fields.get(f)) {
            w.open_doc("projection").i32(name, 1).close();
        }
        w.i64("limit", limit)
            .i64("batchSize", limit)
            .bool("singleBatch", true)
            .str("$db", &self.table.database);
        *out = w.finish_into();
        wire::end(out, start);
    }

    fn delete(&mut self, key: &[u8], out: &mut Vec<u8>) {
        self.set_key(key);
        let start = self.begin(out, "delete");
        let sequence = wire::begin_sequence(out, "deletes");
        let mut w = Writer::on(std::mem::take(out));
        w.open_doc("q").val(self.key_name(), self.key_val()).close();
        w.i32("limit", 1);
        *out = w.finish_into();
        wire::end_sequence(out, sequence);
        wire::end(out, start);
    }

    fn language(&self) -> QueryLanguage {
        QueryLanguage::Commands
    }

    fn stamp(&self, request: &mut [u8], id: i32, _: u32) {
        set_request_id(request, id);
    }

    fn frame(&self, input: &[u8]) -> Result<wire::Frame> {
        wire::frame(input).map_err(|f| Fault::Target(format!("the reply is not a message: {f}")))
    }

    fn answer(&self, message: &[u8], id: i32) -> Result<ReplyCounts> {
        let body = reply::body(message, id)?;
        reply::ok(body)?;
        let Some(cursor) = body.get("cursor").and_then(Val::as_doc) else {
            let n = reply::int(body, "n").and_then(|n| u64::try_from(n).ok());
            return Ok(ReplyCounts {
                rows: 0,
                affected: n.unwrap_or(0),
            });
        };
        let docs = cursor.get("firstBatch").and_then(Val::as_array);
        let docs =
            docs.ok_or_else(|| Fault::Check(format!("no batch in {}", reply::brief(body))))?;
        if reply::int(cursor, "id") != Some(0) {
            return Err(Fault::Check(
                "a cursor that should be exhausted is open".into(),
            ));
        }
        Ok(ReplyCounts {
            rows: docs.count() as u64,
            affected: 0,
        })
    }

    fn rows(&self, message: &[u8], id: i32, into: &mut ByteStrings) -> Result<()> {
        let body = reply::body(message, id)?;
        let cursor = body.get("cursor").and_then(Val::as_doc);
        let docs = cursor
            .and_then(|c| c.get("firstBatch")?.as_array())
            .unwrap_or(Doc::EMPTY);
        let wrong =
            |what: &str, d: Doc<'_>| Err(Fault::Check(format!("{what} in {}", reply::brief(d))));
        for d in docs.values().filter_map(Val::as_doc) {
            let Some(key) = d.get(self.key_name()).and_then(Val::as_str) else {
                // A projection keeps the key only where it is the `_id`.
                return wrong("no key", d);
            };
            into.push(key.as_bytes());
            for e in d
                .iter()
                .filter(|e| e.name != "_id" && e.name != self.table.key_name)
            {
                match (e.val.as_binary(), e.val.as_str()) {
                    (Some((_, bytes)), _) if !self.table.text => into.push(bytes),
                    (_, Some(text)) if self.table.text => into.push(text.as_bytes()),
                    _ => return wrong("a field of another type", d),
                }
            }
        }
        Ok(())
    }
}
