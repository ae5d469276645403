//! `pando lab study search`: study L, full text: building an index of short texts, four kinds of searches, and inserts with a
//! search index beside inserts with a plain one.
//!
//! A search gives the best ten texts by score. PostgreSQL searches a `tsvector` column of the configuration `simple` with a GIN
//! index and orders by `ts_rank`, which is no BM25: each target answers with its own best. So a reply is checked for what all
//! agree on: each text has the words, and there are as many as there are such texts, up to ten.
//!
//! Under inserts the index follows the log. What it is behind in the end is the time until a search finds one more text, from
//! its acknowledgement on.

use super::sides::{Common, Questions, Side, Study, Write, is_ready};
use super::texts::{self, PAGE, TextQuery, TextQueryKind};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::report::{CheckedFigure, Draft, MeasuredStep};
use crate::targets::{ByteStrings, Instruction, QueryLanguage};
use crate::terms::count;
use bson::{array, doc};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Texts of 5 to 15 words.
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Texts of a file, one a line, in place of made ones; --records of them at the most.
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

const TEXTS: &str = "lab_search";
const INSERTED: &str = "lab_search_new";
const FIELDS: &[&str] = &["text"];
const INDEX: &str = "words";
/// Searches of each kind.
const EACH: usize = 200;
const BATCH: u64 = 1000;
/// The bars of inserts: the rate with a search index against that with a plain one, and how far it is behind then.
const LEAST_SHARE: f64 = 0.7;
const MOST_BEHIND: f64 = 1.0;
/// In no text, and not made of syllables.
const MARK: &str = "qqmarkqq";
/// How long an index may be behind.
const PATIENCE: Duration = Duration::from_secs(120);

const INSERTS: [&str; 2] = ["inserts with a plain index", "inserts with a search index"];

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let seed = args.common.how.seed;
    let all = match &args.texts {
        Some(path) => texts::read(path, args.records)?,
        None => texts::made(args.records, seed),
    };
    if all.is_empty() {
        return Err(Fault::Usage("there are no texts".into()));
    }
    let searches = texts::searches(&all, EACH, seed)?;
    let records = all.len() as u64;
    let mut draft = Draft::new("study", "L-search");
    draft.set("records", records);
    let made = || "made".to_string();
    draft.set(
        "texts",
        args.texts.map_or_else(made, |p| p.display().to_string()),
    );
    draft.note("A search gives the best ten texts; PostgreSQL ranks by ts_rank, others by BM25.");
    let mut study = Study::open(args.common, draft, TextQueryKind::ALL.len() + INSERTS.len())?;
    let write = write_of(all);
    study.prepare(|side| {
        let table = side.table(TEXTS, FIELDS);
        side.target.create(&table)?;
        side.fill(&table, &write, records, BATCH)?;
        build(side, TEXTS, records)
    })?;
    let names = TextQueryKind::ALL.map(TextQueryKind::name);
    study.measure(&names, |side, (kind, connections), _| {
        let of: Vec<TextQuery> = searches
            .iter()
            .filter(|s| s.kind == TextQueryKind::ALL[kind])
            .cloned()
            .collect();
        let table = side.table(TEXTS, FIELDS);
        let request = |s: &TextQuery| side.request(&table, &question(side.language, TEXTS, s));
        let questions = Questions {
            requests: of.iter().map(request).collect::<Result<_>>()?,
            judge: Box::new(move |i, rows| judge(&of[i], rows)),
        };
        side.ask(names[kind], connections, (&table, questions))
    })?;
    study.measure(&INSERTS, |side, (kind, connections), draft| {
        inserts(side, kind == 1, connections, (&write, draft))
    })?;
    study.finish(&[TEXTS, INSERTED])
}

/// Rows of numbered texts, again from the first after the last.
fn write_of(texts: Vec<String>) -> Arc<Write> {
    Arc::new(move |dialect, rows, out| {
        let mut cells = ByteStrings::default();
        for n in rows {
            cells.push(n.to_string().as_bytes());
            cells.push(texts[(n % texts.len() as u64) as usize].as_bytes());
        }
        dialect.insert(&cells, out);
    })
}

fn build(side: &Side, table: &str, rows: u64) -> Result<MeasuredStep> {
    let orders = search_index(side.language, table);
    side.build(&orders, &is_ready(side.language, table, INDEX), rows)
}

/// Inserts into a new table with either index; behind those with a search index come the figures of both.
fn inserts(
    side: &Side,
    is_searched: bool,
    connections: usize,
    (write, draft): (&Arc<Write>, &mut Draft),
) -> Result<MeasuredStep> {
    let table = side.table(INSERTED, FIELDS);
    side.target.create(&table)?;
    if !is_searched {
        side.obey(&plain_index(side.language))?;
        return side.insert(INSERTS[0], connections, (&table, write));
    }
    build(side, INSERTED, 0)?;
    let step = side.insert(INSERTS[1], connections, (&table, write))?;
    if interrupted() {
        return Ok(step);
    }
    let of = format!("{}, {connections} connection(s)", side.info.label());
    let is_ours = side.language == QueryLanguage::Commands;
    let name = format!("{of}: seconds until the last of the inserts is found");
    let seconds = behind(side)?.as_secs_f64();
    draft.check(match is_ours {
        true => CheckedFigure::at_most(&name, seconds, "s", MOST_BEHIND),
        false => CheckedFigure::figure(&name, seconds, "s"),
    });
    let Some(plain) = draft.step(&side.key(INSERTS[0], connections)) else {
        return Ok(step);
    };
    let share = step.per_second / plain.per_second;
    let name = format!("{of}: inserts with a search index against those with a plain one");
    draft.check(match is_ours {
        true => CheckedFigure::at_least(&name, share, "", LEAST_SHARE),
        false => CheckedFigure::figure(&name, share, ""),
    });
    Ok(step)
}

/// How long until a search finds a text, from its acknowledgement on.
fn behind(side: &Side) -> Result<Duration> {
    side.obey(&match side.language {
        QueryLanguage::Commands => Instruction::Command(doc! {
            "insert": INSERTED, "documents": array![doc! {"_id": MARK, "text": MARK}],
        }),
        _ => Instruction::Sql(format!(
            "INSERT INTO {INSERTED} VALUES ('{MARK}', '{MARK}')"
        )),
    })?;
    let began = Instant::now();
    let mark = TextQuery {
        kind: TextQueryKind::Word,
        words: vec![MARK.into()],
        due: 1,
    };
    while side.obey(&question(side.language, INSERTED, &mark))? == 0 {
        if began.elapsed() > PATIENCE {
            let why = "an acknowledged text is not found";
            return Err(Fault::Check(format!("{}: {why}", side.info.url)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(began.elapsed())
}

/// Whether the texts of an answer have the words, and whether there are as many as there must be.
fn judge(search: &TextQuery, rows: &ByteStrings) -> Result<()> {
    let found = rows.len() / 2;
    let what = || format!("{} {:?}", search.kind.name(), search.words);
    if found < search.due || found > PAGE {
        let due = search.due;
        return Err(Fault::Check(format!(
            "{}: {found} texts where {due} were due",
            what()
        )));
    }
    for i in 0..found {
        let text = String::from_utf8_lossy(rows.get(2 * i + 1));
        if !search.is_in(&text) {
            return Err(Fault::Check(format!("{}: found \"{text}\"", what())));
        }
    }
    Ok(())
}

fn plain_index(language: QueryLanguage) -> Instruction {
    match language {
        QueryLanguage::Commands => Instruction::Command(doc! {
            "createIndexes": INSERTED, "indexes": array![doc! {"key": doc! {"text": 1}, "name": "text_1"}],
        }),
        _ => Instruction::Sql(format!("CREATE INDEX ON {INSERTED} (\"text\")")),
    }
}

fn search_index(language: QueryLanguage, table: &str) -> Vec<Instruction> {
    if language == QueryLanguage::Commands {
        let fields = doc! {"text": doc! {"type": "string"}};
        let definition = doc! {"mappings": doc! {"dynamic": false, "fields": fields}};
        let index = doc! {"name": INDEX, "definition": definition};
        return vec![Instruction::Command(
            doc! {"createSearchIndexes": table, "indexes": array![index]},
        )];
    }
    let words = "words tsvector GENERATED ALWAYS AS (to_tsvector('simple', \"text\")) STORED";
    let all = [
        format!("ALTER TABLE {table} ADD COLUMN {words}"),
        format!("CREATE INDEX ON {table} USING gin (words)"),
        format!("VACUUM ANALYZE {table}"),
    ];
    all.map(Instruction::Sql).to_vec()
}

fn question(language: QueryLanguage, table: &str, search: &TextQuery) -> Instruction {
    let words = search.words.join(" ");
    if language == QueryLanguage::Commands {
        let mut query = doc! {"query": words, "path": "text"};
        if search.kind == TextQueryKind::Both {
            query = doc! {"query": search.words.join(" "), "path": "text", "matchCriteria": "all"};
        }
        let stage = match search.kind {
            TextQueryKind::Phrase => doc! {"index": INDEX, "phrase": query},
            TextQueryKind::Word | TextQueryKind::Both | TextQueryKind::Either => {
                doc! {"index": INDEX, "text": query}
            }
        };
        let pipeline = array![doc! {"$search": stage}, doc! {"$limit": PAGE as i32}];
        return Instruction::Command(
            doc! {"aggregate": table, "pipeline": pipeline, "cursor": doc! {}},
        );
    }
    let between = match search.kind {
        TextQueryKind::Either => " | ",
        TextQueryKind::Phrase => " <-> ",
        TextQueryKind::Word | TextQueryKind::Both => " & ",
    };
    let words = search.words.join(between);
    Instruction::Sql(format!(
        "SELECT id, \"text\" FROM {table}, to_tsquery('simple', '{words}') q \
         WHERE words @@ q ORDER BY ts_rank(words, q) DESC LIMIT {PAGE}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(kind: TextQueryKind, due: usize) -> TextQuery {
        TextQuery {
            kind,
            words: vec!["red".into(), "shoes".into()],
            due,
        }
    }

    #[test]
    fn each_language_is_asked_for_the_same() {
        for (kind, operator, sql) in [
            (
                TextQueryKind::Both,
                r#""matchCriteria": "all""#,
                "red & shoes",
            ),
            (
                TextQueryKind::Either,
                r#""text": {"query": "red shoes""#,
                "red | shoes",
            ),
            (
                TextQueryKind::Phrase,
                r#""phrase": {"query": "red shoes""#,
                "red <-> shoes",
            ),
        ] {
            let Instruction::Command(body) =
                question(QueryLanguage::Commands, TEXTS, &search(kind, 1))
            else {
                panic!("a command");
            };
            let body = body.as_doc().to_string();
            assert!(body.contains(operator), "{body}");
            let Instruction::Sql(text) = question(QueryLanguage::Sql, TEXTS, &search(kind, 1))
            else {
                panic!("SQL");
            };
            assert!(text.contains(sql) && text.ends_with("LIMIT 10"), "{text}");
        }
        assert_eq!(search_index(QueryLanguage::Sql, TEXTS).len(), 3);
        assert_eq!(search_index(QueryLanguage::Commands, TEXTS).len(), 1);
    }

    #[test]
    fn answers_must_have_the_words_and_be_whole() {
        let rows = |texts: &[&str]| {
            let mut rows = ByteStrings::default();
            for text in texts {
                rows.push(b"7");
                rows.push(text.as_bytes());
            }
            rows
        };
        let both = search(TextQueryKind::Both, 2);
        judge(&both, &rows(&["shoes are Red", "red shoes"])).unwrap();
        assert!(judge(&both, &rows(&["red shoes"])).is_err());
        assert!(judge(&both, &rows(&["red shoes", "red boots"])).is_err());
        assert!(judge(&both, &rows(&["red shoes"; 11])).is_err());
        judge(&search(TextQueryKind::Either, 1), &rows(&["red boots"])).unwrap();
    }
}
