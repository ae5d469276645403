//! `pando lab study vectors`: study M, the nearest vectors: building a graph of them, and searches for the best ten, of all of
//! them and behind a filter that leaves 10%, 1% and 0.1%.
//!
//! A rate says nothing without the recall at which it was reached: how many of the best ten of an exact search were found. It is
//! counted over all answers of a step. PostgreSQL needs pgvector with HNSW (0.5 or newer), whose `ef_search` is the number of
//! candidates; its filter is applied to what the graph gave.

use super::embeddings::{Exact, MOST_DIMENSIONS, Vectors, product};
use super::sides::{Common, Questions, Side, Study, Write, is_ready};
use crate::fault::{Fault, Result};
use crate::fleet::catch_interrupts;
use crate::progress::say;
use crate::report::{CheckedFigure, Draft, MeasuredStep};
use crate::request::InsertHead;
use crate::targets::{ByteStrings, Instruction, QueryLanguage, Table};
use crate::terms::{WriteDurability, count};
use bson::{Value, Writer, array, doc};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(clap::Args)]
pub struct Args {
    /// Vectors that are searched.
    #[arg(long, default_value = "20k", value_parser = count)]
    pub records: u64,
    /// Dimensions of made vectors, or of those of a file without them.
    #[arg(long)]
    pub dimensions: Option<usize>,
    /// Vectors of a file in place of made ones: .fvecs, or 32-bit floats (with --dimensions); some of them are the queries.
    #[arg(long, value_name = "FILE")]
    pub vectors: Option<PathBuf>,
    /// How many vectors a search compares (`numCandidates`, `hnsw.ef_search`).
    #[arg(long, default_value_t = 100)]
    pub candidates: u32,
    #[command(flatten)]
    pub common: Common,
}

const TABLE: &str = "lab_vectors";
const FIELDS: [&str; 2] = ["v", "part"];
const INDEX: &str = "near";
const DIMENSIONS: usize = 256;
const QUERIES: usize = 200;
const PAGE: usize = 10;
const BATCH: u64 = 200;
const LEAST_RECALL: f64 = 0.95;
/// Each vector has one of so many parts, and a filter asks for those below a number.
const PARTS: u64 = 1000;
const SEARCHES: [(&str, u64); 4] = [
    ("nearest of all", PARTS),
    ("nearest of 10%", PARTS / 10),
    ("nearest of 1%", PARTS / 100),
    ("nearest of 0.1%", PARTS / 1000),
];
/// Of BSON's binary data: a vector, of 32-bit floats.
const VECTOR: u8 = 9;
const FLOATS: [u8; 2] = [0x27, 0];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let (all, queries) = vectors(&args)?.split(QUERIES);
    if all.len() < PAGE || queries.is_empty() {
        return Err(Fault::Usage("there are too few vectors".into()));
    }
    say(args.common.how.to.quiet, "exact answers");
    let exact = SEARCHES.map(|(_, below)| {
        let is_wanted = |n: usize| part(n as u64) < below;
        Arc::new(all.exact(&queries, PAGE, is_wanted))
    });
    let (records, dimensions) = (all.len() as u64, all.dimensions);
    let mut draft = Draft::new("study", "M-vectors");
    draft.set("records", records);
    draft.set("dimensions", dimensions);
    let made = || "made".to_string();
    draft.set(
        "vectors",
        args.vectors.map_or_else(made, |p| p.display().to_string()),
    );
    draft.set("candidates", args.candidates);
    let mut study = Study::open(args.common, draft, SEARCHES.len())?;
    let both = Arc::new((all, queries));
    study.prepare(|side| {
        let table = side.table(TABLE, &FIELDS);
        side.target.create(&table)?;
        let mut columns = columns(side.language, dimensions).into_iter();
        columns.try_for_each(|order| side.obey(&order).map(drop))?;
        side.fill(&table, &write_of(&both, &table), records, BATCH)?;
        let ready = is_ready(side.language, TABLE, INDEX);
        side.build(&index(side.language, dimensions), &ready, records)
    })?;
    let names = SEARCHES.map(|(name, _)| name);
    study.measure(&names, |side, (search, connections), draft| {
        let recall = Arc::new(Recall {
            both: Arc::clone(&both),
            exact: Arc::clone(&exact[search]),
            below: SEARCHES[search].1,
            right: AtomicU64::new(0),
            due: AtomicU64::new(0),
        });
        searches(
            side,
            connections,
            (names[search], args.candidates),
            (&recall, draft),
        )
    })?;
    study.finish(&[TABLE])
}

/// A step of searches, and the recall that they had.
fn searches(
    side: &Side,
    connections: usize,
    (name, candidates): (&str, u32),
    (recall, draft): (&Arc<Recall>, &mut Draft),
) -> Result<MeasuredStep> {
    let (table, queries) = (side.table(TABLE, &FIELDS), &recall.both.1);
    let request = |q| {
        let order = question(side.language, queries.row(q), recall.below, candidates);
        side.request(&table, &order)
    };
    let counted = Arc::clone(recall);
    let questions = Questions {
        requests: (0..queries.len()).map(request).collect::<Result<_>>()?,
        judge: Box::new(move |i, rows| counted.count(i, rows)),
    };
    let step = side.ask(name, connections, (&table, questions))?;
    let label = side.info.label();
    let name = format!("{label}, {connections} connection(s): {name}: recall@{PAGE}");
    draft.check(match side.language {
        QueryLanguage::Commands => CheckedFigure::at_least(&name, recall.share(), "", LEAST_RECALL),
        _ => CheckedFigure::figure(&name, recall.share(), ""),
    });
    Ok(step)
}

/// Those that are searched, and the queries among them.
fn vectors(args: &Args) -> Result<Vectors> {
    let count = usize::try_from(args.records)
        .unwrap_or(usize::MAX)
        .saturating_add(QUERIES);
    match &args.vectors {
        Some(path) => Vectors::read(path, args.dimensions, count),
        None => match args.dimensions.unwrap_or(DIMENSIONS) {
            dimensions @ 1..=MOST_DIMENSIONS => {
                Ok(Vectors::made(count, dimensions, args.common.how.seed))
            }
            _ => Err(Fault::Usage("--dimensions must be from 1 to 8192".into())),
        },
    }
}

/// The part of a vector by its number.
fn part(n: u64) -> u64 {
    n.wrapping_mul(7919) % PARTS
}

/// How many of those that an exact search finds were found.
struct Recall {
    /// What is searched, and the queries.
    both: Arc<(Vectors, Vectors)>,
    exact: Arc<Vec<Exact>>,
    below: u64,
    right: AtomicU64,
    due: AtomicU64,
}

impl Recall {
    /// Counts an answer: keys of vectors that the filter lets through, each once.
    fn count(&self, query: usize, keys: &ByteStrings) -> Result<()> {
        let (exact, (vectors, queries)) = (self.exact[query], &*self.both);
        let (mut seen, mut right) = (Vec::with_capacity(PAGE), 0);
        for key in keys.iter() {
            let n = std::str::from_utf8(key)
                .ok()
                .and_then(|k| k.parse::<usize>().ok());
            let n = n.filter(|n| *n < vectors.len() && part(*n as u64) < self.below);
            let Some(n) = n.filter(|n| !seen.contains(n)) else {
                let key = String::from_utf8_lossy(key);
                return Err(Fault::Check(format!(
                    "vector {key} is none of those, or there twice"
                )));
            };
            seen.push(n);
            let near = product(queries.row(query), vectors.row(n));
            right += u64::from(exact.has(near));
        }
        if seen.len() > PAGE {
            return Err(Fault::Check(format!("{} vectors of {PAGE}", seen.len())));
        }
        self.right.fetch_add(right.min(exact.due as u64), Relaxed);
        self.due.fetch_add(exact.due as u64, Relaxed);
        Ok(())
    }

    fn share(&self) -> f64 {
        self.right.load(Relaxed) as f64 / self.due.load(Relaxed).max(1) as f64
    }
}

/// A vector as BSON has it.
fn binary(vector: &[f32]) -> Vec<u8> {
    let floats = vector.iter().flat_map(|v| v.to_le_bytes());
    FLOATS.into_iter().chain(floats).collect()
}

/// The same as pgvector reads it.
fn text(vector: &[f32]) -> String {
    let all: Vec<String> = vector.iter().map(f32::to_string).collect();
    format!("[{}]", all.join(","))
}

/// Rows of numbered vectors.
fn write_of(both: &Arc<(Vectors, Vectors)>, table: &Table) -> Arc<Write> {
    let both = Arc::clone(both);
    let head = InsertHead::new(&table.database, &table.name, WriteDurability::W1);
    Arc::new(move |dialect, rows, out| {
        let vectors = &both.0;
        if dialect.language() == QueryLanguage::Commands {
            return head.write(out, |out| {
                for n in rows {
                    let mut w = Writer::on(std::mem::take(out));
                    w.str("_id", &n.to_string());
                    w.binary(FIELDS[0], VECTOR, &binary(vectors.row(n as usize)));
                    w.i32(FIELDS[1], part(n) as i32);
                    *out = w.finish_into();
                }
            });
        }
        let mut cells = ByteStrings::default();
        for n in rows {
            cells.push(n.to_string().as_bytes());
            cells.push(text(vectors.row(n as usize)).as_bytes());
            cells.push(part(n).to_string().as_bytes());
        }
        dialect.insert(&cells, out);
    })
}

/// Gives the columns of a table their types.
fn columns(language: QueryLanguage, dimensions: usize) -> Vec<Instruction> {
    if language == QueryLanguage::Commands {
        return Vec::new();
    }
    let vector = format!("v TYPE vector({dimensions}) USING v::vector({dimensions})");
    let all = [
        "CREATE EXTENSION IF NOT EXISTS vector".to_string(),
        format!(
            "ALTER TABLE {TABLE} ALTER COLUMN {vector}, ALTER COLUMN part TYPE int USING part::int"
        ),
    ];
    all.map(Instruction::Sql).to_vec()
}

fn index(language: QueryLanguage, dimensions: usize) -> Vec<Instruction> {
    if language == QueryLanguage::Commands {
        let vector = doc! {
            "type": "vector", "path": FIELDS[0], "numDimensions": dimensions as i32, "similarity": "cosine",
        };
        let filter = doc! {"type": "filter", "path": FIELDS[1]};
        let index = doc! {
            "name": INDEX, "type": "vectorSearch", "definition": doc! {"fields": array![vector, filter]},
        };
        return vec![Instruction::Command(
            doc! {"createSearchIndexes": TABLE, "indexes": array![index]},
        )];
    }
    let graph = format!("CREATE INDEX ON {TABLE} USING hnsw (v vector_cosine_ops)");
    let all = [
        // With less it builds on the disk.
        format!("SET maintenance_work_mem = '1GB'; {graph}"),
        format!("CREATE INDEX ON {TABLE} (part)"),
        format!("VACUUM ANALYZE {TABLE}"),
    ];
    all.map(Instruction::Sql).to_vec()
}

fn question(language: QueryLanguage, query: &[f32], below: u64, candidates: u32) -> Instruction {
    if language == QueryLanguage::Commands {
        let mut stage = doc! {
            "index": INDEX, "path": FIELDS[0], "queryVector": Value::binary(VECTOR, &binary(query)),
            "numCandidates": i64::from(candidates), "limit": PAGE as i32,
        };
        if below < PARTS {
            let mut w = Writer::new();
            let filter = doc! {"part": doc! {"$lt": below as i32}};
            w.extend(stage.as_doc()).doc("filter", filter.as_doc());
            stage = w.finish();
        }
        let pipeline = array![
            doc! {"$vectorSearch": stage},
            doc! {"$project": doc! {"_id": 1}}
        ];
        return Instruction::Command(
            doc! {"aggregate": TABLE, "pipeline": pipeline, "cursor": doc! {}},
        );
    }
    let filter = match below < PARTS {
        true => format!("WHERE part < {below} "),
        false => String::new(),
    };
    Instruction::Sql(format!(
        "SET hnsw.ef_search = {candidates}; SELECT id FROM {TABLE} {filter}ORDER BY v <=> '{}' LIMIT {PAGE}",
        text(query)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_language_is_asked_for_the_same() {
        let [all, some] = [PARTS, 10].map(|below| {
            let of = |language| question(language, &[0.5, -1.0], below, 70);
            (of(QueryLanguage::Commands), of(QueryLanguage::Sql))
        });
        let body = |order: &Instruction| match order {
            Instruction::Command(body) => body.as_doc().to_string(),
            Instruction::Sql(text) => text.clone(),
        };
        assert!(body(&all.0).contains("\"numCandidates\": 70") && !body(&all.0).contains("filter"));
        assert!(
            body(&some.0).contains(r#""filter": {"part": {"$lt": 10}}"#),
            "{}",
            body(&some.0)
        );
        let sql = "SET hnsw.ef_search = 70; SELECT id FROM lab_vectors ";
        assert_eq!(
            body(&all.1),
            format!("{sql}ORDER BY v <=> '[0.5,-1]' LIMIT 10")
        );
        assert_eq!(
            body(&some.1),
            format!("{sql}WHERE part < 10 ORDER BY v <=> '[0.5,-1]' LIMIT 10")
        );
        assert_eq!(binary(&[1.0]), [0x27, 0, 0, 0, 0x80, 0x3f]);
        assert!(body(&index(QueryLanguage::Commands, 3)[0]).contains("\"numDimensions\": 3"));
        assert!(columns(QueryLanguage::Commands, 3).is_empty());
    }

    #[test]
    fn parts_are_even() {
        for (_, below) in SEARCHES {
            let n = (0..20_000).filter(|n| part(*n) < below).count() as u64;
            assert_eq!(n, 20 * below);
        }
    }

    #[test]
    fn recall_is_the_share_of_the_exact_answers() {
        let (vectors, queries) = Vectors::made(3020, 8, 1).split(20);
        let exact = vectors.exact(&queries, PAGE, |n| part(n as u64) < 100);
        let recall = Recall {
            exact: Arc::new(exact),
            both: Arc::new((vectors, queries)),
            below: 100,
            right: AtomicU64::new(0),
            due: AtomicU64::new(0),
        };
        let keys = |all: &[usize]| {
            let mut keys = ByteStrings::default();
            all.iter().for_each(|n| keys.push(n.to_string().as_bytes()));
            keys
        };
        let near = |n: &usize| product(recall.both.1.row(4), recall.both.0.row(*n));
        let mut all: Vec<usize> = (0..3000).filter(|n| part(*n as u64) < 100).collect();
        all.sort_by(|a, b| near(b).total_cmp(&near(a)));
        recall.count(4, &keys(&all[..10])).unwrap();
        assert_eq!(recall.share(), 1.0);
        recall.count(4, &keys(&all[5..15])).unwrap();
        recall.count(4, &keys(&[])).unwrap();
        assert_eq!(recall.share(), 15.0 / 30.0);
        let other = (0..3000).find(|n| part(*n as u64) >= 100).unwrap();
        for bad in [vec![other], vec![all[0]; 2], vec![9999], all[..11].to_vec()] {
            assert!(recall.count(4, &keys(&bad)).is_err(), "{bad:?}");
        }
    }
}
