//! PostgreSQL: protocol version 3 with prepared statements. `?layout=columns` (default) keeps a record as a row of text
//! columns, `?layout=jsonb` as one JSONB document beside its key.
//!
//! A request is Bind, Execute … and one Sync; its reply ends with ReadyForQuery. A batch of inserts is one implicit
//! transaction. Durability: `w1` is `synchronous_commit = off` (the log is written within 0.2 s), the others `on`.

use super::scram::{self, Hash, Scram};
use super::{Answer, Cells, Dialect, Key, Table, Target, Url, acknowledged_only};
use crate::fault::{Fault, Result, target};
use crate::report::{Sizes, TargetInfo};
use crate::terms::Durability;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Columns,
    Jsonb,
}

pub struct Postgres {
    url: Url,
    text: String,
    layout: Layout,
}

impl Postgres {
    pub fn open(text: &str) -> Result<Postgres> {
        let url = Url::parse(text, 5432)?;
        let layout = match url.option("layout").unwrap_or("columns") {
            "columns" => Layout::Columns,
            "jsonb" => Layout::Jsonb,
            other => {
                return Err(Fault::Usage(format!(
                    "{}: layout={other} is not columns or jsonb",
                    url.text
                )));
            }
        };
        if url
            .option("sslmode")
            .is_some_and(|m| m.starts_with("require") || m.starts_with("verify"))
        {
            return Err(Fault::Usage(format!("{}: TLS is not supported", url.text)));
        }
        Ok(Postgres {
            text: url.text.clone(),
            url,
            layout,
        })
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Target for Postgres {
    fn url(&self) -> &str {
        &self.text
    }

    fn info(&self) -> Result<TargetInfo> {
        let mut c = Pg::connect(&self.url)?;
        let mut settings = BTreeMap::new();
        for name in [
            "shared_buffers",
            "fsync",
            "full_page_writes",
            "wal_sync_method",
            "max_wal_size",
        ] {
            settings.insert(name.to_string(), c.value(&format!("SHOW {name}"))?);
        }
        settings.insert("layout".into(), format!("{:?}", self.layout).to_lowercase());
        let version = c.value("SHOW server_version")?;
        let cache = c.value(
            "SELECT setting::bigint * 8192 FROM pg_settings WHERE name = 'shared_buffers'",
        )?;
        // The server process is the parent of the one that serves us.
        let pid = c
            .value("SELECT pg_backend_pid()")
            .ok()
            .and_then(|p| p.parse().ok());
        let local = self.url.addr.ip().is_loopback();
        Ok(TargetInfo {
            url: self.text.clone(),
            product: match self.layout {
                Layout::Columns => "PostgreSQL".into(),
                Layout::Jsonb => "PostgreSQL JSONB".into(),
            },
            version: version.split(' ').next().unwrap_or_default().to_string(),
            pid: pid.filter(|_| local).and_then(crate::process::parent),
            cache_bytes: cache.parse().ok(),
            settings,
            ..TargetInfo::default()
        })
    }

    fn database(&self) -> Option<String> {
        self.url.database.clone()
    }

    fn create(&self, table: &Table) -> Result<()> {
        let mut c = Pg::connect(&self.url)?;
        let (name, key) = (quoted(&table.name), quoted(&table.key_name));
        c.run("SET client_min_messages = error")?;
        c.run(&format!("DROP TABLE IF EXISTS {name}"))?;
        let primary = if table.key == Key::Primary {
            " PRIMARY KEY"
        } else {
            " NOT NULL"
        };
        let columns = match self.layout {
            Layout::Jsonb => "doc JSONB NOT NULL".to_string(),
            Layout::Columns => {
                let all: Vec<String> = table
                    .fields
                    .iter()
                    .map(|f| format!("{} TEXT", quoted(f)))
                    .collect();
                all.join(", ")
            }
        };
        c.run(&format!(
            "CREATE TABLE {name} ({key} VARCHAR(255) COLLATE \"C\"{primary}, {columns})"
        ))?;
        if table.key == Key::Indexed {
            c.run(&format!("CREATE INDEX ON {name} ({key})"))?;
        }
        Ok(())
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        let mut c = Pg::connect(&self.url)?;
        c.run("SET client_min_messages = error")?;
        c.run(&format!("DROP TABLE IF EXISTS {}", quoted(&table.name)))
    }

    fn count(&self, table: &Table) -> Result<u64> {
        let mut c = Pg::connect(&self.url)?;
        let name = quoted(&table.name);
        let there = c.value(&format!("SELECT to_regclass('{name}') IS NOT NULL"))?;
        if there != "t" {
            return Ok(0);
        }
        let n = c.value(&format!("SELECT count(*) FROM {name}"))?;
        n.parse()
            .map_err(|_| Fault::Target(format!("a count of '{n}'")))
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<Sizes> {
        let mut c = Pg::connect(&self.url)?;
        let name = quoted(&table.name);
        let row = c.row(&format!(
            "SELECT pg_table_size('{name}'), pg_indexes_size('{name}'), greatest(reltuples, 0)::bigint, \
             (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = '{name}'::regclass) \
             FROM pg_class WHERE oid = '{name}'::regclass"
        ))?;
        let number = |i: usize| row.get(i).and_then(|v| v.parse().ok()).unwrap_or(0);
        Ok(Sizes {
            at,
            documents: number(3).max(number(2)),
            data_bytes: number(0),
            storage_bytes: number(0),
            index_bytes: number(1),
            ..Sizes::default()
        })
    }

    fn dialect(&self, table: &Arc<Table>, durability: Durability) -> Result<Box<dyn Dialect>> {
        acknowledged_only("PostgreSQL", durability)?;
        Ok(Box::new(PgDialect {
            url: self.url.clone(),
            layout: self.layout,
            durability,
            statements: statements(self.layout, table),
            table: Arc::clone(table),
            document: Vec::new(),
        }))
    }
}

/// Statements by name, prepared on every connection.
fn statements(layout: Layout, table: &Table) -> Vec<(String, String)> {
    let (name, key) = (quoted(&table.name), quoted(&table.key_name));
    let n = table.fields.len();
    let jsonb = layout == Layout::Jsonb;
    let places: Vec<String> = (1..=if jsonb { 2 } else { n + 1 })
        .map(|i| format!("${i}"))
        .collect();
    let everything = if jsonb {
        format!("{key}, doc")
    } else {
        "*".to_string()
    };
    let mut all = vec![
        (
            "i".to_string(),
            format!("INSERT INTO {name} VALUES ({})", places.join(", ")),
        ),
        (
            "r".into(),
            format!("SELECT {everything} FROM {name} WHERE {key} = $1"),
        ),
        (
            "s".into(),
            format!("SELECT {everything} FROM {name} WHERE {key} >= $1 ORDER BY {key} LIMIT $2"),
        ),
        ("d".into(), format!("DELETE FROM {name} WHERE {key} = $1")),
    ];
    if jsonb {
        all.push((
            "u".into(),
            format!("UPDATE {name} SET doc = doc || $2 WHERE {key} = $1"),
        ));
    } else {
        let sets: Vec<String> = table
            .fields
            .iter()
            .enumerate()
            .map(|(i, f)| format!("{} = ${}", quoted(f), i + 2))
            .collect();
        all.push((
            "u".into(),
            format!("UPDATE {name} SET {} WHERE {key} = $1", sets.join(", ")),
        ));
        for (i, f) in table.fields.iter().enumerate() {
            all.push((
                format!("u{i}"),
                format!("UPDATE {name} SET {} = $2 WHERE {key} = $1", quoted(f)),
            ));
        }
    }
    if table.single_fields {
        for (i, f) in table.fields.iter().enumerate() {
            let field = if jsonb {
                format!("jsonb_build_object('{f}', doc->'{f}')")
            } else {
                quoted(f)
            };
            all.push((
                format!("r{i}"),
                format!("SELECT {key}, {field} FROM {name} WHERE {key} = $1"),
            ));
            all.push((
                format!("s{i}"),
                format!(
                    "SELECT {key}, {field} FROM {name} WHERE {key} >= $1 ORDER BY {key} LIMIT $2"
                ),
            ));
        }
    }
    all
}

struct PgDialect {
    url: Url,
    layout: Layout,
    durability: Durability,
    statements: Vec<(String, String)>,
    table: Arc<Table>,
    document: Vec<u8>,
}

fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn execute<'a>(
    out: &mut Vec<u8>,
    kind: u8,
    field: Option<usize>,
    values: impl ExactSizeIterator<Item = &'a [u8]>,
) {
    message(out, b'B', |out| {
        out.push(0);
        out.push(kind);
        if let Some(f) = field {
            let _ = write!(out, "{f}");
        }
        // Name's end; no parameter formats: all are text.
        out.extend_from_slice(&[0, 0, 0]);
        out.extend_from_slice(&(values.len() as u16).to_be_bytes());
        for v in values {
            out.extend_from_slice(&(v.len() as u32).to_be_bytes());
            out.extend_from_slice(v);
        }
        out.extend_from_slice(&[0, 0]);
    });
    out.extend_from_slice(&[b'E', 0, 0, 0, 9, 0, 0, 0, 0, 0]);
}

const SYNC: [u8; 5] = [b'S', 0, 0, 0, 4];

/// Appends `{"field": "value", …}`.
fn json<'a>(out: &mut Vec<u8>, fields: &[String], values: impl Iterator<Item = &'a [u8]>) {
    out.push(b'{');
    for (i, (name, value)) in fields.iter().zip(values).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":\"");
        for &b in value {
            match b {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', b]),
                0..32 => {
                    let _ = write!(out, "\\u{b:04x}");
                }
                _ => out.push(b),
            }
        }
        out.push(b'"');
    }
    out.push(b'}');
}

impl PgDialect {
    /// The single field's statement where there is one.
    fn single(&self, field: Option<usize>) -> Option<usize> {
        field.filter(|_| self.table.single_fields)
    }
}

impl Dialect for PgDialect {
    fn connect(&self) -> Result<(TcpStream, u32)> {
        let mut c = Pg::connect(&self.url)?;
        let wait = if self.durability == Durability::W1 {
            "off"
        } else {
            "on"
        };
        c.run(&format!("SET synchronous_commit = {wait}"))?;
        let mut out = Vec::new();
        for (name, sql) in &self.statements {
            message(&mut out, b'P', |out| {
                out.extend_from_slice(name.as_bytes());
                out.push(0);
                out.extend_from_slice(sql.as_bytes());
                out.extend_from_slice(&[0, 0, 0]);
            });
        }
        out.extend_from_slice(&SYNC);
        c.send(&out)?;
        c.until_ready()?;
        Ok((c.stream, 0))
    }

    fn insert(&mut self, rows: &Cells, out: &mut Vec<u8>) {
        let width = self.table.fields.len() + 1;
        for first in (0..rows.len()).step_by(width) {
            if self.layout == Layout::Jsonb {
                self.document.clear();
                json(
                    &mut self.document,
                    &self.table.fields,
                    (1..width).map(|i| rows.get(first + i)),
                );
                execute(
                    out,
                    b'i',
                    None,
                    [rows.get(first), &self.document].into_iter(),
                );
            } else {
                execute(out, b'i', None, (0..width).map(|i| rows.get(first + i)));
            }
        }
        out.extend_from_slice(&SYNC);
    }

    fn read(&mut self, key: &[u8], field: Option<usize>, out: &mut Vec<u8>) {
        execute(out, b'r', self.single(field), [key].into_iter());
        out.extend_from_slice(&SYNC);
    }

    fn update(&mut self, key: &[u8], first: usize, values: &Cells, out: &mut Vec<u8>) {
        if self.layout == Layout::Jsonb {
            self.document.clear();
            let fields = self.table.fields.get(first..).unwrap_or_default();
            json(&mut self.document, fields, values.iter());
            execute(out, b'u', None, [key, &self.document].into_iter());
        } else if values.len() == 1 {
            execute(out, b'u', Some(first), [key, values.get(0)].into_iter());
        } else {
            execute(
                out,
                b'u',
                None,
                (0..values.len() + 1).map(|i| if i == 0 { key } else { values.get(i - 1) }),
            );
        }
        out.extend_from_slice(&SYNC);
    }

    fn scan(&mut self, key: &[u8], limit: u64, field: Option<usize>, out: &mut Vec<u8>) {
        let limit = limit.to_string();
        execute(
            out,
            b's',
            self.single(field),
            [key, limit.as_bytes()].into_iter(),
        );
        out.extend_from_slice(&SYNC);
    }

    fn delete(&mut self, key: &[u8], out: &mut Vec<u8>) {
        execute(out, b'd', None, [key].into_iter());
        out.extend_from_slice(&SYNC);
    }

    fn frame(&self, input: &[u8]) -> Result<wire::Frame> {
        let mut at = 0;
        loop {
            let Some((kind, end)) = header(input, at)? else {
                return Ok(wire::Frame::Incomplete { need: at + 5 });
            };
            if end > input.len() {
                return Ok(wire::Frame::Incomplete { need: end });
            }
            at = end;
            if kind == b'Z' {
                return Ok(wire::Frame::Complete { len: at });
            }
        }
    }

    fn answer(&self, reply: &[u8], _id: i32) -> Result<Answer> {
        let mut answer = Answer::default();
        for m in Messages(reply) {
            let (kind, body) = m?;
            match kind {
                b'D' => answer.rows += 1,
                // INSERT 0 1, UPDATE 1, SELECT 1
                b'C' => answer.affected += last_number(body),
                b'E' => return Err(refused(body)),
                _ => {}
            }
        }
        Ok(answer)
    }

    fn rows(&self, reply: &[u8], _id: i32, into: &mut Cells) -> Result<()> {
        for m in Messages(reply) {
            let (kind, body) = m?;
            if kind != b'D' {
                continue;
            }
            for (i, cell) in cells(body).into_iter().enumerate() {
                if i == 1 && self.layout == Layout::Jsonb {
                    let parsed: BTreeMap<String, String> = serde_json::from_slice(cell)
                        .map_err(|e| Fault::Check(format!("a document that is not JSON ({e})")))?;
                    for name in &self.table.fields {
                        if let Some(v) = parsed.get(name) {
                            into.push(v.as_bytes());
                        }
                    }
                } else {
                    into.push(cell);
                }
            }
        }
        Ok(())
    }
}

/// Kind and end of the message at `at`, when its header is there.
fn header(input: &[u8], at: usize) -> Result<Option<(u8, usize)>> {
    let Some(&[kind, a, b, c, d]) = input.get(at..at + 5) else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if !(4..1 << 28).contains(&length) {
        return Err(Fault::Target(
            "the reply is not a PostgreSQL message".into(),
        ));
    }
    Ok(Some((kind, at + 1 + length)))
}

struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.0);
        match header(all, 0) {
            Err(e) => Some(Err(e)),
            Ok(Some((kind, end))) if end <= all.len() => {
                self.0 = &all[end..];
                Some(Ok((kind, &all[5..end])))
            }
            Ok(_) => Some(Err(Fault::Target("a reply cut short".into()))),
        }
    }
}

fn last_number(tag: &[u8]) -> u64 {
    let tag = tag.strip_suffix(&[0]).unwrap_or(tag);
    let digits = tag.rsplit(|b| *b == b' ').next().unwrap_or_default();
    std::str::from_utf8(digits)
        .ok()
        .and_then(|d| d.parse().ok())
        .unwrap_or(0)
}

/// The columns of a DataRow; NULL is empty.
fn cells(body: &[u8]) -> Vec<&[u8]> {
    let mut rest = body.get(2..).unwrap_or_default();
    let mut all = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length);
        let Some((cell, next)) = after.split_at_checked(usize::try_from(length).unwrap_or(0))
        else {
            break;
        };
        all.push(cell);
        rest = next;
    }
    all
}

/// An ErrorResponse as one line: message and SQLSTATE.
fn refused(body: &[u8]) -> Fault {
    let part = |kind: u8| {
        let mut fields = body.split(|b| *b == 0);
        let found = fields.find(|f| f.first() == Some(&kind));
        String::from_utf8_lossy(found.and_then(|f| f.get(1..)).unwrap_or_default()).into_owned()
    };
    Fault::Target(format!(
        "PostgreSQL answered: {} ({})",
        part(b'M'),
        part(b'C')
    ))
}

/// One blocking connection.
struct Pg {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Pg {
    fn connect(url: &Url) -> Result<Pg> {
        let what = || format!("connecting to {}", url.text);
        let stream = TcpStream::connect_timeout(&url.addr, Duration::from_secs(10))
            .map_err(target(what()))?;
        stream.set_nodelay(true).map_err(target(what()))?;
        stream
            .set_read_timeout(Some(Duration::from_secs(600)))
            .map_err(target(what()))?;
        let mut pg = Pg {
            stream,
            input: Vec::new(),
        };
        let user = url.user.clone().unwrap_or_else(|| "postgres".into());
        let mut hello = vec![0; 4];
        hello.extend_from_slice(&196_608u32.to_be_bytes());
        let database = url.database.as_deref().unwrap_or("postgres");
        for word in [
            "user",
            &user,
            "database",
            database,
            "application_name",
            "pando lab",
            "",
        ] {
            hello.extend_from_slice(word.as_bytes());
            hello.push(0);
        }
        let length = hello.len() as u32;
        hello[..4].copy_from_slice(&length.to_be_bytes());
        pg.send(&hello)?;
        pg.log_in(url, &user)?;
        Ok(pg)
    }

    fn log_in(&mut self, url: &Url, user: &str) -> Result<()> {
        let unauthorised = |why: &str| Fault::Target(format!("{}: {why}", url.text));
        let password = || {
            let none = || unauthorised("the server asks for a password, and the URL has none");
            url.password.clone().ok_or_else(none)
        };
        let mut login = None;
        loop {
            let (kind, body) = self.next()?;
            match (kind, body.get(..4)) {
                (b'E', _) => return Err(refused(&body)),
                (b'Z', _) => return Ok(()),
                (b'R', Some(&[0, 0, 0, how])) => match how {
                    0 => {}
                    3 => {
                        let p = password()?;
                        self.say(b'p', &[p.as_bytes(), &[0]].concat())?;
                    }
                    5 => {
                        let salt = body.get(4..8).unwrap_or_default();
                        let inner = format!("{:x}", md5::compute(password()? + user));
                        let outer = md5::compute([inner.as_bytes(), salt].concat());
                        self.say(b'p', format!("md5{outer:x}\0").as_bytes())?;
                    }
                    10 => {
                        let password = password()?;
                        // What SASLprep forbids PostgreSQL takes as it is.
                        let password = stringprep::saslprep(&password)
                            .map_or_else(|_| password.clone(), |p| p.into_owned());
                        let s = Scram::new(Hash::Sha256, "", &password, &scram::nonce());
                        let first = s.first();
                        let mut out = b"SCRAM-SHA-256\0".to_vec();
                        out.extend_from_slice(&(first.len() as u32).to_be_bytes());
                        out.extend_from_slice(first.as_bytes());
                        self.say(b'p', &out)?;
                        login = Some(s);
                    }
                    11 | 12 => {
                        let text =
                            String::from_utf8_lossy(body.get(4..).unwrap_or_default()).into_owned();
                        let Some(s) = &mut login else {
                            return Err(unauthorised("an answer without a question"));
                        };
                        if how == 12 && !s.proven(&text) {
                            return Err(unauthorised(
                                "the server does not know the password itself",
                            ));
                        }
                        if how == 11 {
                            let last = s
                                .last(&text)
                                .ok_or_else(|| unauthorised("malformed SCRAM challenge"))?;
                            self.say(b'p', last.as_bytes())?;
                        }
                    }
                    _ => {
                        return Err(unauthorised(
                            "the server wants a login that is not supported",
                        ));
                    }
                },
                _ => {}
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .map_err(target("sending to PostgreSQL"))
    }

    fn say(&mut self, kind: u8, body: &[u8]) -> Result<()> {
        let mut out = Vec::new();
        message(&mut out, kind, |out| out.extend_from_slice(body));
        self.send(&out)
    }

    fn next(&mut self) -> Result<(u8, Vec<u8>)> {
        loop {
            if let Some((kind, end)) = header(&self.input, 0)?
                && end <= self.input.len()
            {
                let body = self.input[5..end].to_vec();
                self.input.drain(..end);
                return Ok((kind, body));
            }
            let mut chunk = [0; 8192];
            let n = self
                .stream
                .read(&mut chunk)
                .map_err(target("waiting for PostgreSQL"))?;
            if n == 0 {
                return Err(Fault::Target("PostgreSQL closed the connection".into()));
            }
            self.input.extend_from_slice(&chunk[..n]);
        }
    }

    /// Rows until the server is ready again.
    fn until_ready(&mut self) -> Result<Vec<Vec<String>>> {
        let (mut rows, mut fault) = (Vec::new(), None);
        loop {
            let (kind, body) = self.next()?;
            match kind {
                b'D' => {
                    let text = |c: &[u8]| String::from_utf8_lossy(c).into_owned();
                    rows.push(cells(&body).into_iter().map(text).collect());
                }
                b'E' => fault = Some(refused(&body)),
                b'Z' => return fault.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    fn query(&mut self, sql: &str) -> Result<Vec<Vec<String>>> {
        self.say(b'Q', &[sql.as_bytes(), &[0]].concat())?;
        self.until_ready()
    }

    fn run(&mut self, sql: &str) -> Result<()> {
        self.query(sql).map(|_| ())
    }

    fn row(&mut self, sql: &str) -> Result<Vec<String>> {
        let rows = self.query(sql)?;
        rows.into_iter()
            .next()
            .ok_or_else(|| Fault::Target(format!("no row from {sql}")))
    }

    fn value(&mut self, sql: &str) -> Result<String> {
        Ok(self.row(sql)?.into_iter().next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(layout: Layout) -> PgDialect {
        let table = Table {
            database: "d".into(),
            name: "t".into(),
            key: Key::Primary,
            key_name: "k".into(),
            fields: vec!["a".into(), "b".into()],
            text: true,
            single_fields: true,
        };
        PgDialect {
            url: Url::parse("postgres://127.0.0.1", 1).unwrap(),
            layout,
            durability: Durability::W1,
            statements: statements(layout, &table),
            table: Arc::new(table),
            document: Vec::new(),
        }
    }

    #[test]
    fn replies_are_framed_counted_and_read() {
        let d = dialect(Layout::Jsonb);
        let mut reply = Vec::new();
        message(&mut reply, b'2', |_| {});
        message(&mut reply, b'D', |o| {
            o.extend_from_slice(&[0, 2, 0, 0, 0, 2]);
            o.extend_from_slice(b"k1");
            let doc = br#"{"b": "y", "a": "x\"\u0001"}"#;
            o.extend_from_slice(&(doc.len() as u32).to_be_bytes());
            o.extend_from_slice(doc);
        });
        message(&mut reply, b'C', |o| o.extend_from_slice(b"SELECT 1\0"));
        message(&mut reply, b'Z', |o| o.push(b'I'));
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
                affected: 1
            }
        );
        let mut c = Cells::default();
        d.rows(&reply, 0, &mut c).unwrap();
        assert_eq!(c.iter().collect::<Vec<_>>(), [&b"k1"[..], b"x\"\x01", b"y"]);
        let mut bad = Vec::new();
        message(&mut bad, b'E', |o| {
            o.extend_from_slice(b"SERROR\0C23505\0Mduplicate\0\0")
        });
        message(&mut bad, b'Z', |o| o.push(b'I'));
        let said = d.answer(&bad, 0).unwrap_err().to_string();
        assert!(said.contains("duplicate (23505)"), "{said}");
        assert!(d.answer(b"\0\0\0\0\0", 0).is_err() && d.frame(b"Z\xff\xff\xff\xff").is_err());
    }

    #[test]
    fn json_is_escaped() {
        let mut out = Vec::new();
        json(
            &mut out,
            &["a".into(), "b".into()],
            [&b"x\"\\\n"[..], b"y"].into_iter(),
        );
        let parsed: BTreeMap<String, String> = serde_json::from_slice(&out).unwrap();
        assert_eq!(parsed["a"], "x\"\\\n");
        assert_eq!(parsed["b"], "y");
    }
}
