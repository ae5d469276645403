//! Statements to PostgreSQL, and how its replies are judged.

use super::Layout;
use super::Route;
use super::messages::{Messages, cells, header, last_number, message, refused};
use super::session::Pg;
use crate::fault::{Fault, Result};
use crate::targets::{ByteStrings, Dialect, ReplyCounts, Stream, Table};
use crate::terms::WriteDurability;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
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
        all.extend(single_field_reads(jsonb, table));
    }
    all
}

/// Reads and scans of each field by itself.
fn single_field_reads(jsonb: bool, table: &Table) -> Vec<(String, String)> {
    let (name, key) = (quoted(&table.name), quoted(&table.key_name));
    let mut all = Vec::new();
    for (i, f) in table.fields.iter().enumerate() {
        let field = if jsonb {
            format!("jsonb_build_object('{f}', doc->'{f}')")
        } else {
            quoted(f)
        };
        let from = format!("SELECT {key}, {field} FROM {name} WHERE {key}");
        all.push((format!("r{i}"), format!("{from} = $1")));
        let scan = format!("{from} >= $1 ORDER BY {key} LIMIT $2");
        all.push((format!("s{i}"), scan));
    }
    all
}

pub(super) struct PgDialect {
    route: Route,
    layout: Layout,
    durability: WriteDurability,
    statements: Vec<(String, String)>,
    table: Arc<Table>,
    document: Vec<u8>,
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
    pub(super) fn new(
        route: &Route,
        layout: Layout,
        durability: WriteDurability,
        table: &Arc<Table>,
    ) -> PgDialect {
        PgDialect {
            route: route.clone(),
            layout,
            durability,
            statements: match table.name.is_empty() {
                true => Vec::new(),
                false => statements(layout, table),
            },
            table: Arc::clone(table),
            document: Vec::new(),
        }
    }

    /// The single field's statement where there is one.
    fn single(&self, field: Option<usize>) -> Option<usize> {
        field.filter(|_| self.table.single_fields)
    }
}

impl Dialect for PgDialect {
    fn connect(&self) -> Result<(Stream, u32)> {
        let mut c = Pg::connect(&self.route)?;
        let wait = if self.durability == WriteDurability::W1 {
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

    fn insert(&mut self, rows: &ByteStrings, out: &mut Vec<u8>) {
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

    fn update(&mut self, key: &[u8], first: usize, values: &ByteStrings, out: &mut Vec<u8>) {
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

    fn statement(&self, text: &[u8], out: &mut Vec<u8>) {
        message(out, b'Q', |out| {
            out.extend_from_slice(text);
            out.push(0);
        });
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

    fn answer(&self, reply: &[u8], _id: i32) -> Result<ReplyCounts> {
        let mut answer = ReplyCounts::default();
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

    fn rows(&self, reply: &[u8], _id: i32, into: &mut ByteStrings) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::examples;

    fn dialect(layout: Layout) -> PgDialect {
        let route = Route {
            url: outgoing::Url::parse("postgres://127.0.0.1", 1).unwrap(),
            encryption: Default::default(),
        };
        PgDialect::new(&route, layout, WriteDurability::W1, &examples::table())
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
        examples::whole_at_its_end(&d, &reply);
        assert_eq!(
            d.answer(&reply, 0).unwrap(),
            ReplyCounts {
                rows: 1,
                affected: 1
            }
        );
        let mut c = ByteStrings::default();
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
