//! MySQL and MariaDB: the client/server protocol with prepared statements; a batch of inserts is one statement of text.
//! `?engine=innodb|myisam|aria` chooses the storage engine of the tables.
//!
//! Statements are prepared on every connection in the same order, so that their numbers are their places behind the
//! connection's first; requests are made with the places and fitted to the connection when they are sent. Durability, for InnoDB: `w1` is `innodb_flush_log_at_trx_commit = 2` (written at once, synced each second),
//! the others 1. MyISAM and Aria know no such promise: their tables take every durability and keep none.

use super::{Answer, Cells, Dialect, Key, Table, Target, Url, acknowledged_only};
use crate::fault::{Fault, Result, target};
use crate::report::{Sizes, TargetInfo};
use crate::terms::Durability;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

pub struct MySql {
    url: Url,
    text: String,
    engine: &'static str,
}

const ENGINES: [&str; 3] = ["InnoDB", "MyISAM", "Aria"];

impl MySql {
    pub fn open(text: &str) -> Result<MySql> {
        let url = Url::parse(text, 3306)?;
        let asked = url.option("engine").unwrap_or("innodb");
        let Some(engine) = ENGINES.iter().find(|e| e.eq_ignore_ascii_case(asked)) else {
            return Err(Fault::Usage(format!(
                "{}: engine={asked} is not innodb, myisam or aria",
                url.text
            )));
        };
        Ok(MySql {
            text: url.text.clone(),
            url,
            engine,
        })
    }
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn full_name(table: &Table) -> String {
    format!("{}.{}", quoted(&table.database), quoted(&table.name))
}

impl Target for MySql {
    fn url(&self) -> &str {
        &self.text
    }

    fn info(&self) -> Result<TargetInfo> {
        let mut c = My::connect(&self.url)?;
        let version = c.value("SELECT VERSION()")?;
        let mut settings = BTreeMap::new();
        settings.insert("engine".to_string(), self.engine.to_string());
        let cache = match self.engine {
            "MyISAM" => "key_buffer_size",
            "Aria" => "aria_pagecache_buffer_size",
            _ => "innodb_buffer_pool_size",
        };
        for name in [
            "innodb_flush_log_at_trx_commit",
            "innodb_doublewrite",
            "sync_binlog",
            "log_bin",
            cache,
        ] {
            if let Ok(value) = c.value(&format!("SELECT @@{name}")) {
                settings.insert(name.to_string(), value);
            }
        }
        let maria = version.contains("MariaDB");
        let pid = c
            .value("SELECT @@pid_file")
            .ok()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let local = self.url.addr.ip().is_loopback();
        Ok(TargetInfo {
            url: self.text.clone(),
            product: format!(
                "{} {}",
                if maria { "MariaDB" } else { "MySQL" },
                self.engine
            ),
            version: version.split('-').next().unwrap_or_default().to_string(),
            pid: pid.filter(|_| local).and_then(|p| p.trim().parse().ok()),
            cache_bytes: settings.get(cache).and_then(|v| v.parse().ok()),
            settings,
            ..TargetInfo::default()
        })
    }

    fn database(&self) -> Option<String> {
        self.url.database.clone()
    }

    fn create(&self, table: &Table) -> Result<()> {
        let mut c = My::connect(&self.url)?;
        c.run(&format!(
            "CREATE DATABASE IF NOT EXISTS {}",
            quoted(&table.database)
        ))?;
        let (name, key) = (full_name(table), quoted(&table.key_name));
        c.run(&format!("DROP TABLE IF EXISTS {name}"))?;
        let mut columns = vec![format!(
            "{key} VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
        )];
        columns.extend(
            table
                .fields
                .iter()
                .map(|f| format!("{} TEXT CHARACTER SET ascii", quoted(f))),
        );
        match table.key {
            Key::Primary => columns.push(format!("PRIMARY KEY ({key})")),
            Key::Indexed => columns.push(format!("KEY ({key})")),
            Key::Unkeyed => {}
        }
        c.run(&format!(
            "CREATE TABLE {name} ({}) ENGINE={}",
            columns.join(", "),
            self.engine
        ))
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        let mut c = My::connect(&self.url)?;
        let db = c.query(&format!("SHOW DATABASES LIKE '{}'", table.database))?;
        if db.is_empty() {
            return Ok(());
        }
        c.run(&format!("DROP TABLE IF EXISTS {}", full_name(table)))
    }

    fn count(&self, table: &Table) -> Result<u64> {
        let mut c = My::connect(&self.url)?;
        let there = c.value(&format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{}' AND table_name = '{}'",
            table.database, table.name
        ))?;
        if there == "0" {
            return Ok(0);
        }
        let n = c.value(&format!("SELECT COUNT(*) FROM {}", full_name(table)))?;
        n.parse()
            .map_err(|_| Fault::Target(format!("a count of '{n}'")))
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<Sizes> {
        let mut c = My::connect(&self.url)?;
        let rows = c.query(&format!(
            "SELECT table_rows, data_length, index_length, data_free FROM information_schema.tables \
             WHERE table_schema = '{}' AND table_name = '{}'",
            table.database, table.name
        ))?;
        let number = |i: usize| {
            rows.first()
                .and_then(|r| r.get(i)?.parse().ok())
                .unwrap_or(0)
        };
        Ok(Sizes {
            at,
            documents: number(0),
            data_bytes: number(1),
            storage_bytes: number(1) + number(3),
            index_bytes: number(2),
            ..Sizes::default()
        })
    }

    fn dialect(&self, table: &Arc<Table>, durability: Durability) -> Result<Box<dyn Dialect>> {
        acknowledged_only("MySQL", durability)?;
        if self.engine == "InnoDB" {
            let flush = if durability == Durability::W1 { 2 } else { 1 };
            let mut c = My::connect(&self.url)?;
            c.run(&format!(
                "SET GLOBAL innodb_flush_log_at_trx_commit = {flush}"
            ))?;
        }
        Ok(Box::new(MyDialect {
            url: self.url.clone(),
            statements: statements(table),
            table: Arc::clone(table),
        }))
    }
}

/// The statements that every connection prepares, in this order; places count from 1.
fn statements(table: &Table) -> Vec<String> {
    let (name, key) = (full_name(table), quoted(&table.key_name));
    let n = table.fields.len();
    let fields: Vec<String> = table.fields.iter().map(|f| quoted(f)).collect();
    let sets: Vec<String> = fields.iter().map(|f| format!("{f} = ?")).collect();
    let mut all = vec![
        format!(
            "INSERT INTO {name} VALUES ({})",
            vec!["?"; n + 1].join(", ")
        ),
        format!("SELECT * FROM {name} WHERE {key} = ?"),
        format!("SELECT * FROM {name} WHERE {key} >= ? ORDER BY {key} LIMIT ?"),
        format!("DELETE FROM {name} WHERE {key} = ?"),
        format!("UPDATE {name} SET {} WHERE {key} = ?", sets.join(", ")),
    ];
    all.extend(
        sets.iter()
            .map(|set| format!("UPDATE {name} SET {set} WHERE {key} = ?")),
    );
    if table.single_fields {
        all.extend(
            fields
                .iter()
                .map(|f| format!("SELECT {key}, {f} FROM {name} WHERE {key} = ?")),
        );
        all.extend(fields.iter().map(|f| {
            format!("SELECT {key}, {f} FROM {name} WHERE {key} >= ? ORDER BY {key} LIMIT ?")
        }));
    }
    all
}

const INSERT: usize = 1;
const READ: usize = 2;
const SCAN: usize = 3;
const DELETE: usize = 4;
const UPDATE_ALL: usize = 5;
const UPDATE_FIRST: usize = 6;

struct MyDialect {
    url: Url,
    statements: Vec<String>,
    table: Arc<Table>,
}

/// The longest payload of one packet; what is longer goes on in the next.
const PACKET_BYTES: usize = 0xff_ffff;

/// Appends `body` as packets numbered from 0.
fn packet(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    numbered(out, 0, body);
}

fn numbered(out: &mut Vec<u8>, first: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let mut at = start;
    let mut number = first;
    loop {
        let length = (out.len() - at - 4).min(PACKET_BYTES);
        out[at..at + 3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
        out[at + 3] = number;
        if length < PACKET_BYTES {
            return;
        }
        at += 4 + length;
        number = number.wrapping_add(1);
        out.splice(at..at, [0; 4]);
    }
}

fn length_encoded(out: &mut Vec<u8>, bytes: &[u8]) {
    let n = bytes.len() as u64;
    match n {
        0..251 => out.push(n as u8),
        251..0x1_0000 => {
            out.push(0xfc);
            out.extend_from_slice(&n.to_le_bytes()[..2]);
        }
        0x1_0000..0x100_0000 => {
            out.push(0xfd);
            out.extend_from_slice(&n.to_le_bytes()[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&n.to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

const EXECUTE: u8 = 0x17;
const STRING: [u8; 2] = [0xfd, 0];
const LONG_LONG: [u8; 2] = [8, 0];

/// Executes statement `id` with strings, and a number after them.
fn execute<'a>(
    out: &mut Vec<u8>,
    id: usize,
    values: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    number: Option<u64>,
) {
    packet(out, |out| {
        out.push(EXECUTE);
        out.extend_from_slice(&(id as u32).to_le_bytes());
        out.extend_from_slice(&[0, 1, 0, 0, 0]);
        let n = values.len() + usize::from(number.is_some());
        out.resize(out.len() + n.div_ceil(8), 0);
        out.push(1);
        for _ in 0..values.len() {
            out.extend_from_slice(&STRING);
        }
        if number.is_some() {
            out.extend_from_slice(&LONG_LONG);
        }
        for v in values {
            length_encoded(out, v);
        }
        if let Some(n) = number {
            out.extend_from_slice(&n.to_le_bytes());
        }
    });
}

fn literal(out: &mut Vec<u8>, value: &[u8]) {
    out.push(b'\'');
    for &b in value {
        match b {
            b'\'' | b'\\' => out.extend_from_slice(&[b'\\', b]),
            0 => out.extend_from_slice(b"\\0"),
            _ => out.push(b),
        }
    }
    out.push(b'\'');
}

impl MyDialect {
    /// The statement for all fields, or the one for a single field where it is prepared.
    fn one_field(&self, all: usize, field: Option<usize>) -> usize {
        let n = self.table.fields.len();
        match field.filter(|_| self.table.single_fields) {
            None => all,
            Some(f) => UPDATE_FIRST + n + f + if all == SCAN { n } else { 0 },
        }
    }
}

impl Dialect for MyDialect {
    fn connect(&self) -> Result<(TcpStream, u32)> {
        let mut c = My::connect(&self.url)?;
        let mut before = None;
        for (place, sql) in (1u32..).zip(&self.statements) {
            let id = c.prepare(sql)?;
            if id.wrapping_sub(place) != *before.get_or_insert(id.wrapping_sub(place)) {
                return Err(Fault::Target(
                    "statements are not numbered one after the other".into(),
                ));
            }
        }
        Ok((c.stream, before.unwrap_or(0)))
    }

    fn stamp(&self, request: &mut [u8], _: i32, before: u32) {
        if request.get(4) == Some(&EXECUTE)
            && let Some(id) = request.get_mut(5..9).and_then(|b| b.first_chunk_mut::<4>())
        {
            *id = u32::from_le_bytes(*id).wrapping_add(before).to_le_bytes();
        }
    }

    fn insert(&mut self, rows: &Cells, out: &mut Vec<u8>) {
        let width = self.table.fields.len() + 1;
        if rows.len() == width {
            let cells: Vec<&[u8]> = rows.iter().collect();
            return execute(out, INSERT, cells.into_iter(), None);
        }
        packet(out, |out| {
            out.push(3);
            out.extend_from_slice(
                format!("INSERT INTO {} VALUES ", full_name(&self.table)).as_bytes(),
            );
            for (i, cell) in rows.iter().enumerate() {
                out.extend_from_slice(match (i, i % width) {
                    (0, _) => b"(",
                    (_, 0) => b"),(",
                    _ => b",",
                });
                literal(out, cell);
            }
            out.push(b')');
        });
    }

    fn read(&mut self, key: &[u8], field: Option<usize>, out: &mut Vec<u8>) {
        execute(out, self.one_field(READ, field), [key].into_iter(), None);
    }

    fn update(&mut self, key: &[u8], first: usize, values: &Cells, out: &mut Vec<u8>) {
        if values.len() == 1 {
            return execute(
                out,
                UPDATE_FIRST + first,
                [values.get(0), key].into_iter(),
                None,
            );
        }
        let mut cells: Vec<&[u8]> = values.iter().collect();
        cells.push(key);
        execute(out, UPDATE_ALL, cells.into_iter(), None);
    }

    fn scan(&mut self, key: &[u8], limit: u64, field: Option<usize>, out: &mut Vec<u8>) {
        execute(
            out,
            self.one_field(SCAN, field),
            [key].into_iter(),
            Some(limit),
        );
    }

    fn delete(&mut self, key: &[u8], out: &mut Vec<u8>) {
        execute(out, DELETE, [key].into_iter(), None);
    }

    fn frame(&self, input: &[u8]) -> Result<wire::Frame> {
        Ok(match whole(input) {
            Ok(reply) => wire::Frame::Complete { len: reply.end },
            Err(need) => wire::Frame::Incomplete { need },
        })
    }

    fn answer(&self, reply: &[u8], _id: i32) -> Result<Answer> {
        let seen = whole(reply).map_err(|_| Fault::Target("a reply cut short".into()))?;
        let first = payload(reply, 0).map_or(&[][..], |(p, _)| p);
        match first.first() {
            Some(0xff) => Err(refused(first)),
            Some(0) => Ok(Answer {
                rows: 0,
                affected: number(first.get(1..).unwrap_or_default()).map_or(0, |(n, _)| n),
            }),
            _ => Ok(Answer {
                rows: seen.rows,
                affected: 0,
            }),
        }
    }

    fn rows(&self, reply: &[u8], _id: i32, into: &mut Cells) -> Result<()> {
        let cut = || Fault::Target("a reply cut short".into());
        let (first, mut at) = payload(reply, 0).ok_or_else(cut)?;
        let columns = number(first).map_or(0, |(n, _)| n) as usize;
        for _ in 0..columns {
            at = payload(reply, at).ok_or_else(cut)?.1;
        }
        while let Some((row, end)) = payload(reply, at) {
            at = end;
            if ends_rows(row) {
                break;
            }
            // A zero and the bits of NULLs, of which there are none.
            let mut rest = row.get(1 + (columns + 9) / 8..).unwrap_or_default();
            for _ in 0..columns {
                let (n, after) = number(rest).ok_or_else(cut)?;
                let (cell, next) = after.split_at_checked(n as usize).ok_or_else(cut)?;
                into.push(cell);
                rest = next;
            }
        }
        Ok(())
    }
}

/// The payload of the packet at `at`, and the packet's end. Replies here have no packet of 16 MB.
fn payload(input: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let header = input.get(at..at + 4)?;
    let length =
        usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
    let end = at + 4 + length;
    Some((input.get(at + 4..end)?, end))
}

/// A length-encoded number and what follows.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let size = match first {
        0..=250 => return Some((u64::from(first), rest)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let (low, rest) = rest.split_at_checked(size)?;
    let mut all = [0; 8];
    all[..size].copy_from_slice(low);
    Some((u64::from_le_bytes(all), rest))
}

fn ends_rows(row: &[u8]) -> bool {
    matches!(row.first(), Some(0xfe) if row.len() < PACKET_BYTES) || row.first() == Some(&0xff)
}

struct Whole {
    end: usize,
    rows: u64,
}

/// The bounds of a whole reply, or how many bytes are needed at least.
fn whole(input: &[u8]) -> std::result::Result<Whole, usize> {
    let next = |at: usize| {
        payload(input, at).ok_or_else(|| match input.get(at..at + 4) {
            None => at + 4,
            Some(h) => {
                at + 4 + (usize::from(h[0]) | usize::from(h[1]) << 8 | usize::from(h[2]) << 16)
            }
        })
    };
    let (first, mut at) = next(0)?;
    if matches!(first.first(), None | Some(0 | 0xff)) {
        return Ok(Whole { end: at, rows: 0 });
    }
    let columns = number(first).map_or(0, |(n, _)| n);
    for _ in 0..columns {
        at = next(at)?.1;
    }
    let mut rows = 0;
    loop {
        let (row, end) = next(at)?;
        at = end;
        if ends_rows(row) {
            return Ok(Whole { end: at, rows });
        }
        rows += 1;
    }
}

fn refused(payload: &[u8]) -> Fault {
    let code = payload
        .get(1..3)
        .map_or(0, |c| u16::from_le_bytes([c[0], c[1]]));
    // A '#' and five characters of SQLSTATE before the sentence.
    let text = payload.get(3..).unwrap_or_default();
    let text = if text.first() == Some(&b'#') {
        text.get(6..).unwrap_or_default()
    } else {
        text
    };
    Fault::Target(format!(
        "MySQL answered: {} ({code})",
        String::from_utf8_lossy(text)
    ))
}

mod capability {
    pub const FOUND_ROWS: u32 = 2;
    pub const PROTOCOL_41: u32 = 0x200;
    pub const TRANSACTIONS: u32 = 0x2000;
    pub const SECURE_CONNECTION: u32 = 0x8000;
    pub const PLUGIN_AUTH: u32 = 0x8_0000;
    pub const DEPRECATE_EOF: u32 = 0x100_0000;
    pub const WANTED: u32 = FOUND_ROWS
        | PROTOCOL_41
        | TRANSACTIONS
        | SECURE_CONNECTION
        | PLUGIN_AUTH
        | DEPRECATE_EOF
        | 5;
}

/// One blocking connection.
struct My {
    stream: TcpStream,
    input: Vec<u8>,
    sequence: u8,
}

fn proof(plugin: &str, password: &str, salt: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let mixed = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(x, y)| x ^ y).collect();
    if plugin == "caching_sha2_password" {
        let once = Sha256::digest(password);
        let twice = Sha256::digest(once);
        return mixed(&once, &Sha256::digest([&twice[..], salt].concat()));
    }
    let once = Sha1::digest(password);
    let twice = Sha1::digest(once);
    mixed(&once, &Sha1::digest([salt, &twice[..]].concat()))
}

impl My {
    fn connect(url: &Url) -> Result<My> {
        let what = || format!("connecting to {}", url.text);
        let stream = TcpStream::connect_timeout(&url.addr, Duration::from_secs(10))
            .map_err(target(what()))?;
        stream.set_nodelay(true).map_err(target(what()))?;
        stream
            .set_read_timeout(Some(Duration::from_secs(600)))
            .map_err(target(what()))?;
        let mut my = My {
            stream,
            input: Vec::new(),
            sequence: 0,
        };
        my.log_in(url)?;
        Ok(my)
    }

    fn log_in(&mut self, url: &Url) -> Result<()> {
        let strange = || Fault::Target(format!("{}: this is not a MySQL server", url.text));
        let greeting = self.next()?;
        match greeting.first() {
            Some(0xff) => return Err(refused(&greeting)),
            Some(10) => {}
            _ => return Err(strange()),
        }
        let version = greeting[1..]
            .iter()
            .position(|b| *b == 0)
            .ok_or_else(strange)?;
        // Thread, 8 bytes of salt, 0, capabilities, character set, status, capabilities, length of salt, 10 zeros, salt.
        let rest = greeting.get(version + 2..).unwrap_or_default();
        let (first, more) = (
            rest.get(4..12).ok_or_else(strange)?,
            rest.get(31..).unwrap_or_default(),
        );
        let has = |at: usize| {
            rest.get(at..at + 2)
                .map_or(0, |b| u32::from(u16::from_le_bytes([b[0], b[1]])))
        };
        let capabilities = has(13) | has(18) << 16;
        if capabilities & capability::DEPRECATE_EOF == 0 {
            return Err(Fault::Target(format!(
                "{}: the server is older than MySQL 5.7 or MariaDB 10.2",
                url.text
            )));
        }
        let mut salt = [first, more.get(..12).unwrap_or_default()].concat();
        let name = more
            .get(13..)
            .unwrap_or_default()
            .split(|b| *b == 0)
            .next()
            .unwrap_or_default();
        let mut plugin = String::from_utf8_lossy(name).into_owned();
        let user = url.user.as_deref().unwrap_or("root");
        let password = url.password.as_deref().unwrap_or("");
        let answer = proof(&plugin, password, &salt);
        self.reply(|out| {
            out.extend_from_slice(&capability::WANTED.to_le_bytes());
            out.extend_from_slice(&(1u32 << 30).to_le_bytes());
            // utf8mb4, and 23 zeros.
            out.push(45);
            out.resize(out.len() + 23, 0);
            out.extend_from_slice(user.as_bytes());
            out.push(0);
            out.push(answer.len() as u8);
            out.extend_from_slice(&answer);
            out.extend_from_slice(plugin.as_bytes());
            out.push(0);
        })?;
        loop {
            let said = self.next()?;
            match said.first() {
                Some(0) => return Ok(()),
                Some(0xff) => return Err(refused(&said)),
                Some(0xfe) => {
                    let mut parts = said[1..].splitn(2, |b| *b == 0);
                    plugin = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
                    if !matches!(
                        plugin.as_str(),
                        "mysql_native_password" | "caching_sha2_password"
                    ) {
                        return Err(Fault::Target(format!(
                            "{}: login by {plugin} is not supported",
                            url.text
                        )));
                    }
                    salt = parts.next().unwrap_or_default().to_vec();
                    salt.truncate(20);
                    let answer = proof(&plugin, password, &salt);
                    self.reply(|out| out.extend_from_slice(&answer))?;
                }
                // The password's hash is in the server's cache.
                Some(1) if said.get(1) == Some(&3) => {}
                Some(1) => {
                    return Err(Fault::Target(format!(
                        "{}: the server wants the password over TLS once; log in with its own client first, or give the user mysql_native_password",
                        url.text
                    )));
                }
                _ => return Err(strange()),
            }
        }
    }

    fn reply(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut out = Vec::new();
        numbered(&mut out, self.sequence, body);
        self.stream
            .write_all(&out)
            .map_err(target("sending to MySQL"))
    }

    fn command(&mut self, kind: u8, text: &str) -> Result<()> {
        self.sequence = 0;
        self.reply(|out| {
            out.push(kind);
            out.extend_from_slice(text.as_bytes());
        })
    }

    fn next(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some((body, end)) = payload(&self.input, 0) {
                let body = body.to_vec();
                self.sequence = self.input[3].wrapping_add(1);
                self.input.drain(..end);
                return Ok(body);
            }
            let mut chunk = [0; 8192];
            let n = self
                .stream
                .read(&mut chunk)
                .map_err(target("waiting for MySQL"))?;
            if n == 0 {
                return Err(Fault::Target("MySQL closed the connection".into()));
            }
            self.input.extend_from_slice(&chunk[..n]);
        }
    }

    fn prepare(&mut self, sql: &str) -> Result<u32> {
        self.command(0x16, sql)?;
        let head = self.next()?;
        if head.first() == Some(&0xff) {
            return Err(refused(&head));
        }
        let (Some(id), Some(counts)) = (head.get(1..5), head.get(5..9)) else {
            return Err(Fault::Target("a reply cut short".into()));
        };
        let definitions =
            u16::from_le_bytes([counts[0], counts[1]]) + u16::from_le_bytes([counts[2], counts[3]]);
        for _ in 0..definitions {
            self.next()?;
        }
        Ok(u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
    }

    fn query(&mut self, sql: &str) -> Result<Vec<Vec<String>>> {
        self.command(3, sql)?;
        let head = self.next()?;
        match head.first() {
            Some(0xff) => return Err(refused(&head)),
            Some(0) | None => return Ok(Vec::new()),
            _ => {}
        }
        let columns = number(&head).map_or(0, |(n, _)| n);
        for _ in 0..columns {
            self.next()?;
        }
        let mut rows = Vec::new();
        loop {
            let row = self.next()?;
            if row.first() == Some(&0xff) {
                return Err(refused(&row));
            }
            if ends_rows(&row) {
                return Ok(rows);
            }
            let mut rest = &row[..];
            let mut cells = Vec::new();
            for _ in 0..columns {
                // 0xfb is NULL.
                let (n, after) = number(rest).unwrap_or((0, rest.get(1..).unwrap_or_default()));
                let (cell, next) = after.split_at_checked(n as usize).unwrap_or_default();
                cells.push(String::from_utf8_lossy(cell).into_owned());
                rest = next;
            }
            rows.push(cells);
        }
    }

    fn run(&mut self, sql: &str) -> Result<()> {
        self.query(sql).map(|_| ())
    }

    fn value(&mut self, sql: &str) -> Result<String> {
        let rows = self.query(sql)?;
        let first = rows.into_iter().next().and_then(|r| r.into_iter().next());
        first.ok_or_else(|| Fault::Target(format!("no row from {sql}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect() -> MyDialect {
        let table = Table {
            database: "d".into(),
            name: "t".into(),
            key: Key::Primary,
            key_name: "k".into(),
            fields: vec!["a".into(), "b".into()],
            text: true,
            single_fields: true,
        };
        MyDialect {
            url: Url::parse("mysql://127.0.0.1", 1).unwrap(),
            statements: statements(&table),
            table: Arc::new(table),
        }
    }

    #[test]
    fn replies_are_framed_counted_and_read() {
        let d = dialect();
        let mut reply = Vec::new();
        packet(&mut reply, |o| o.push(3));
        for _ in 0..3 {
            packet(&mut reply, |o| o.extend_from_slice(b"a definition"));
        }
        packet(&mut reply, |o| {
            o.extend_from_slice(&[0, 0]);
            for c in [&b"k1"[..], b"x", &[b'y'; 300]] {
                length_encoded(o, c);
            }
        });
        packet(&mut reply, |o| {
            o.extend_from_slice(&[0xfe, 0, 0, 2, 0, 0, 0])
        });
        for cut in 0..reply.len() {
            let wire::Frame::Incomplete { need } = d.frame(&reply[..cut]).unwrap() else {
                panic!("whole at {cut}")
            };
            assert!(need > cut);
        }
        assert!(
            matches!(d.frame(&reply).unwrap(), wire::Frame::Complete { len } if len == reply.len())
        );
        assert_eq!(
            d.answer(&reply, 0).unwrap(),
            Answer {
                rows: 1,
                affected: 0
            }
        );
        let mut c = Cells::default();
        d.rows(&reply, 0, &mut c).unwrap();
        assert_eq!((c.len(), c.get(0), c.get(2).len()), (3, &b"k1"[..], 300));
        let mut ok = Vec::new();
        packet(&mut ok, |o| o.extend_from_slice(&[0, 7, 0, 2, 0, 0, 0]));
        assert_eq!(d.answer(&ok, 0).unwrap().affected, 7);
        let mut bad = Vec::new();
        packet(&mut bad, |o| {
            o.extend_from_slice(b"\xff\x26\x04#23000Duplicate entry")
        });
        assert!(
            d.answer(&bad, 0)
                .unwrap_err()
                .to_string()
                .contains("Duplicate entry (1062)")
        );
    }

    #[test]
    fn long_requests_go_on_in_the_next_packet() {
        let mut out = Vec::new();
        packet(&mut out, |o| o.resize(o.len() + PACKET_BYTES + 5, 7));
        assert_eq!(&out[..4], &[0xff, 0xff, 0xff, 0]);
        assert_eq!(&out[PACKET_BYTES + 4..PACKET_BYTES + 8], &[5, 0, 0, 1]);
        assert_eq!(out.len(), PACKET_BYTES + 5 + 8);
    }

    #[test]
    fn statements_have_the_places_that_requests_use() {
        let mut d = dialect();
        let mut out = Vec::new();
        d.read(b"k", None, &mut out);
        d.stamp(&mut out, 0, 40);
        assert_eq!(&out[4..9], &[EXECUTE, READ as u8 + 40, 0, 0, 0]);
        let at = |id: usize| d.statements[id - 1].as_str();
        assert!(
            at(INSERT).starts_with("INSERT")
                && at(SCAN).contains(">= ?")
                && at(DELETE).starts_with("DELETE")
        );
        assert!(
            at(UPDATE_FIRST + 1).contains("`b` = ?") && at(UPDATE_ALL).contains("`a` = ?, `b` = ?")
        );
        assert!(at(d.one_field(READ, Some(1))).contains("`k`, `b`"));
        assert!(
            at(d.one_field(SCAN, Some(0))).contains("`a`")
                && at(d.one_field(SCAN, Some(0))).contains("LIMIT")
        );
        assert_eq!(d.one_field(READ, None), READ);
    }

    #[test]
    fn passwords() {
        assert!(proof("mysql_native_password", "", b"x").is_empty());
        assert_eq!(proof("mysql_native_password", "p", &[1; 20]).len(), 20);
        assert_eq!(proof("caching_sha2_password", "p", &[1; 20]).len(), 32);
    }
}
