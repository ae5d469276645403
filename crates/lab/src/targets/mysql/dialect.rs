//! Statements to MySQL, and how its replies are judged.

use super::Route;
use super::packets::{ends_rows, length_encoded, number, packet, payload, refused, whole};
use super::session::My;
use crate::fault::{Fault, Result};
use crate::targets::{ByteStrings, Dialect, QueryLanguage, ReplyCounts, Stream, Table};
use std::sync::Arc;

pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

pub(super) fn full_name(table: &Table) -> String {
    format!("{}.{}", quoted(&table.database), quoted(&table.name))
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

pub(super) struct MyDialect {
    route: Route,
    statements: Vec<String>,
    table: Arc<Table>,
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
    pub(super) fn new(route: &Route, table: &Arc<Table>) -> MyDialect {
        MyDialect {
            route: route.clone(),
            statements: match table.name.is_empty() {
                true => Vec::new(),
                false => statements(table),
            },
            table: Arc::clone(table),
        }
    }

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
    fn language(&self) -> QueryLanguage {
        QueryLanguage::MySql
    }

    fn connect(&self) -> Result<(Stream, u32)> {
        let mut c = My::connect(&self.route)?;
        if self.table.name.is_empty() {
            let database = quoted(&self.table.database);
            c.run(&format!("CREATE DATABASE IF NOT EXISTS {database}"))?;
            c.run(&format!("USE {database}"))?;
        }
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

    fn insert(&mut self, rows: &ByteStrings, out: &mut Vec<u8>) {
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

    fn update(&mut self, key: &[u8], first: usize, values: &ByteStrings, out: &mut Vec<u8>) {
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

    fn statement(&self, text: &[u8], out: &mut Vec<u8>) {
        packet(out, |out| {
            out.push(3);
            out.extend_from_slice(text);
        });
    }

    fn frame(&self, input: &[u8]) -> Result<wire::Frame> {
        Ok(match whole(input) {
            Ok(reply) => wire::Frame::Complete { len: reply.end },
            Err(need) => wire::Frame::Incomplete { need },
        })
    }

    fn answer(&self, reply: &[u8], _id: i32) -> Result<ReplyCounts> {
        let seen = whole(reply).map_err(|_| Fault::Target("a reply cut short".into()))?;
        let first = payload(reply, 0).map_or(&[][..], |(p, _)| p);
        match first.first() {
            Some(0xff) => Err(refused(first)),
            Some(0) => Ok(ReplyCounts {
                rows: 0,
                affected: number(first.get(1..).unwrap_or_default()).map_or(0, |(n, _)| n),
            }),
            _ => Ok(ReplyCounts {
                rows: seen.rows,
                affected: 0,
            }),
        }
    }

    fn rows(&self, reply: &[u8], _id: i32, into: &mut ByteStrings) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::examples;

    fn dialect() -> MyDialect {
        let route = Route {
            url: outgoing::Url::parse("mysql://127.0.0.1", 1).unwrap(),
            encryption: Default::default(),
        };
        MyDialect::new(&route, &examples::table())
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
        examples::whole_at_its_end(&d, &reply);
        assert_eq!(
            d.answer(&reply, 0).unwrap(),
            ReplyCounts {
                rows: 1,
                affected: 0
            }
        );
        let mut c = ByteStrings::default();
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
}
