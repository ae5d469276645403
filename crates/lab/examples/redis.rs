//! A worked example of adding a database: Redis, as one file that implements `TargetDatabase` and `Dialect`.
//!
//! ```sh
//! redis-server --port 6399 --bind 127.0.0.1 --save '' &
//! cargo run -p lab --example redis -- redis://127.0.0.1:6399
//! ```
//! To make it a target of `pando lab` itself, the file moves to `src/targets/`, and `targets::open` gets a line for its
//! scheme. A record is a hash under its key; the keys are also in a sorted set, for scans. What to mind is marked (1)–(5).

use lab::fault::{Fault, Result, target as lost};
use lab::report::{CollectionSizes, TargetInfo};
use lab::targets::mark::{self, Owner};
use lab::targets::{ByteStrings, Dialect, ReplyCounts, Stream, Table, TargetDatabase, Url};
use lab::terms::WriteDurability;
use lab::ycsb::session::StepPlan;
use lab::ycsb::{Properties, Session, Spec, scenario};
use lab::{sheets, show};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use wire::Frame;

struct Redis {
    url: Url,
}

/// Appends a command in Redis's protocol.
fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    let _ = write!(out, "*{}\r\n", words.len());
    for w in words {
        let _ = write!(out, "${}\r\n", w.len());
        out.extend_from_slice(w);
        out.extend_from_slice(b"\r\n");
    }
}

/// The end of the value at `at`, or how many bytes are needed at least. (1) Nothing that came from a socket may panic.
fn end(input: &[u8], at: usize) -> std::result::Result<usize, usize> {
    let rest = input.get(at..).unwrap_or_default();
    let Some(line) = rest.windows(2).position(|w| w == b"\r\n") else {
        return Err(input.len() + 1);
    };
    let number = std::str::from_utf8(&rest[1..line.max(1)])
        .ok()
        .and_then(|n| n.parse::<i64>().ok());
    let next = at + line + 2;
    match (rest[0], number) {
        (b'$', Some(n)) if n >= 0 => {
            let end = next + n as usize + 2;
            if end > input.len() { Err(end) } else { Ok(end) }
        }
        (b'*', Some(n)) => (0..n.max(0)).try_fold(next, |at, _| end(input, at)),
        _ => Ok(next),
    }
}

impl Redis {
    /// A blocking connection for unmeasured requests.
    fn ask(&self, words: &[&[u8]]) -> Result<Vec<u8>> {
        let mut stream = self.url.host.connect()?;
        let mut out = Vec::new();
        command(&mut out, words);
        stream.write_all(&out).map_err(lost("sending to Redis"))?;
        let mut input = Vec::new();
        let mut chunk = [0; 4096];
        while end(&input, 0).is_err() {
            let n = stream.read(&mut chunk).map_err(lost("waiting for Redis"))?;
            if n == 0 {
                return Err(Fault::Target("Redis closed the connection".into()));
            }
            input.extend_from_slice(&chunk[..n]);
        }
        Ok(input)
    }
}

fn number(reply: &[u8]) -> u64 {
    let line = reply.split(|b| *b == b'\r').next().unwrap_or_default();
    let digits = line.get(1..).and_then(|d| std::str::from_utf8(d).ok());
    digits.and_then(|d| d.parse().ok()).unwrap_or(0)
}

const MARK: &[u8] = b"made by pando lab";

impl TargetDatabase for Redis {
    fn url(&self) -> &str {
        &self.url.text
    }

    // (2) Name the product and everything that decides what a write costs there: results are compared by it.
    fn info(&self) -> Result<TargetInfo> {
        let text = self.ask(&[b"INFO", b"server"])?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let field = |name: &str| {
            text.lines()
                .find_map(|l| l.strip_prefix(name))
                .unwrap_or_default()
                .trim()
                .to_string()
        };
        Ok(TargetInfo {
            url: self.url.text.clone(),
            product: "Redis".into(),
            version: field("redis_version:"),
            pid: field("process_id:")
                .parse()
                .ok()
                .filter(|_| self.url.host.is_local()),
            ..TargetInfo::default()
        })
    }

    fn database(&self) -> Option<String> {
        self.url.database.clone()
    }

    // (3) Nothing of others is dropped: a table of ours bears a mark, here a key of its own beside it.
    fn owner(&self, _table: &Table) -> Result<Owner> {
        if number(&self.ask(&[b"DBSIZE"])?) == 0 {
            return Ok(Owner::Nobody);
        }
        Ok(match number(&self.ask(&[b"EXISTS", MARK])?) {
            0 => Owner::Others,
            _ => Owner::Ours,
        })
    }

    fn create(&self, table: &Table) -> Result<()> {
        self.drop_table(table)?;
        self.ask(&[b"SET", MARK, b"1"]).map(|_| ())
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        mark::claim(self.owner(table)?, &self.url.text, "the database")?;
        self.ask(&[b"FLUSHDB"]).map(|_| ())
    }

    fn count(&self, table: &Table) -> Result<u64> {
        Ok(number(&self.ask(&[b"ZCARD", table.name.as_bytes()])?))
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<CollectionSizes> {
        Ok(CollectionSizes {
            at,
            documents: self.count(table)?,
            ..CollectionSizes::default()
        })
    }

    // (4) Refuse what the database cannot promise, instead of measuring something else under its name.
    fn dialect(&self, table: &Arc<Table>, durability: WriteDurability) -> Result<Box<dyn Dialect>> {
        if durability != WriteDurability::W1 {
            return Err(Fault::Usage(
                "Redis is measured with --durability w1".into(),
            ));
        }
        Ok(Box::new(Talk {
            url: self.url.clone(),
            table: Arc::clone(table),
        }))
    }
}

/// Its requests and replies. Writes are transactions, so that record and sorted set agree.
struct Talk {
    url: Url,
    table: Arc<Table>,
}

impl Dialect for Talk {
    fn connect(&self) -> Result<(Stream, u32)> {
        Ok((Stream::from(self.url.host.connect()?), 0))
    }

    fn insert(&mut self, rows: &ByteStrings, out: &mut Vec<u8>) {
        let width = self.table.fields.len() + 1;
        command(out, &[b"MULTI"]);
        for first in (0..rows.len()).step_by(width) {
            let mut words: Vec<&[u8]> = vec![b"HSET", rows.get(first), b"_key", rows.get(first)];
            for (i, f) in self.table.fields.iter().enumerate() {
                words.extend([f.as_bytes(), rows.get(first + 1 + i)]);
            }
            command(out, &words);
            command(
                out,
                &[b"ZADD", self.table.name.as_bytes(), b"0", rows.get(first)],
            );
        }
        command(out, &[b"EXEC"]);
    }

    fn read(&mut self, key: &[u8], field: Option<usize>, out: &mut Vec<u8>) {
        match field.and_then(|f| self.table.fields.get(f)) {
            Some(f) => command(out, &[b"HMGET", key, b"_key", f.as_bytes()]),
            None => {
                let mut words: Vec<&[u8]> = vec![b"HMGET", key, b"_key"];
                words.extend(self.table.fields.iter().map(|f| f.as_bytes()));
                command(out, &words);
            }
        }
    }

    fn update(&mut self, key: &[u8], first: usize, values: &ByteStrings, out: &mut Vec<u8>) {
        let mut words: Vec<&[u8]> = vec![b"HSET", key];
        for (i, v) in values.iter().enumerate() {
            words.extend([self.table.fields[first + i].as_bytes(), v]);
        }
        command(out, &words);
    }

    fn scan(&mut self, key: &[u8], limit: u64, _field: Option<usize>, out: &mut Vec<u8>) {
        let from = [b"[", key].concat();
        let limit = limit.to_string();
        command(
            out,
            &[
                b"ZRANGEBYLEX",
                self.table.name.as_bytes(),
                &from,
                b"+",
                b"LIMIT",
                b"0",
                limit.as_bytes(),
            ],
        );
    }

    fn delete(&mut self, key: &[u8], out: &mut Vec<u8>) {
        command(out, &[b"MULTI"]);
        command(out, &[b"DEL", key]);
        command(out, &[b"ZREM", self.table.name.as_bytes(), key]);
        command(out, &[b"EXEC"]);
    }

    // (5) A reply is whole when all of it is there: a transaction's ends with the array that EXEC gives.
    fn frame(&self, input: &[u8]) -> Result<Frame> {
        let mut at = 0;
        loop {
            match end(input, at) {
                Err(need) => return Ok(Frame::Incomplete { need }),
                Ok(end) if input.get(at) == Some(&b'+') => at = end,
                Ok(end) => return Ok(Frame::Complete { len: end }),
            }
        }
    }

    // (6) Say what the reply holds as it is: the workload decides whether that is right.
    fn answer(&self, reply: &[u8], _id: i32) -> Result<ReplyCounts> {
        let last = reply
            .windows(2)
            .rposition(|w| w == b"\n*")
            .map_or(0, |i| i + 1);
        let last = reply.get(last..).unwrap_or_default();
        if reply.starts_with(b"-") {
            return Err(Fault::Target(format!(
                "Redis answered: {}",
                String::from_utf8_lossy(reply).trim_end()
            )));
        }
        let n = number(last);
        // A record that is not there has nulls for values; values may hold any bytes, so only the first is looked at.
        let values = last
            .windows(2)
            .position(|w| w == b"\r\n")
            .map_or(0, |i| i + 2);
        let nothing = last.get(values..).is_some_and(|v| v.starts_with(b"$-1"));
        Ok(match last.first() {
            // EXEC: two replies a record. HMGET: the fields of one record, or nothing but nulls.
            Some(b'*') if reply.starts_with(b"+") => ReplyCounts {
                rows: 0,
                affected: n / 2,
            },
            Some(b'*') if nothing => ReplyCounts::default(),
            Some(b'*') => ReplyCounts {
                rows: if n == self.table.fields.len() as u64 + 1 || n == 2 {
                    1
                } else {
                    n
                },
                affected: 0,
            },
            // HSET on a hash that is there adds no field: 0.
            _ => ReplyCounts {
                rows: 0,
                affected: 1,
            },
        })
    }

    /// The values of HMGET: the key, which each hash holds too, then the fields. Samples are compared whole.
    fn rows(&self, reply: &[u8], _id: i32, into: &mut ByteStrings) -> Result<()> {
        let cut = |_| Fault::Target("a reply cut short".into());
        let mut at = reply
            .windows(2)
            .position(|w| w == b"\r\n")
            .map_or(0, |i| i + 2);
        while at < reply.len() {
            let next = end(reply, at).map_err(cut)?;
            let value = &reply[at..next];
            let head = value
                .windows(2)
                .position(|w| w == b"\r\n")
                .map_or(0, |i| i + 2);
            into.push(value.get(head..value.len() - 2).unwrap_or_default());
            at = next;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let Some(url) = std::env::args().nth(1) else {
        // Run without an argument (as tests do, to see that it builds), there is nothing to measure.
        println!("usage: redis redis://127.0.0.1:6379");
        return Ok(());
    };
    let target = Arc::new(Redis {
        url: Url::parse(&url, 6379)?,
    });
    let mut p = Properties::default();
    p.add_text(scenario::find("C.S1").unwrap_or_default())?;
    p.set("recordcount", 20_000);
    let mut session = Session::open(target, "load", Spec::new(&p)?.0, WriteDurability::W1)?;
    let plan = StepPlan {
        limit: None,
        ..StepPlan::timed(8, Duration::ZERO)
    };
    let (_, step) = session.load(plan, &mut |_| {})?;
    let mut p = Properties::default();
    p.add_text(scenario::find("C.S3").unwrap_or_default())?;
    p.set("recordcount", 20_000);
    session.set_spec("C.S3", Spec::new(&p)?.0);
    let (_, mixed) = session.run(StepPlan::timed(8, Duration::from_secs(3)), &mut |_| {})?;
    show::print(&sheets::steps(&[step, mixed]));
    Ok(())
}
