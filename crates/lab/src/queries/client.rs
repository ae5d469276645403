//! One lane: which query comes next, with which values, and whether the answer is one that the file allows.

use super::file::{File, Once};
use super::statement::{Statement, due};
use super::variable::{Drawn, Variable};
use crate::fault::{Fault, Result};
use crate::lane::{Issued, Judged, Numbered};
use crate::random::Rng;
use crate::spoken::Spoken;
use crate::targets::{Dialect, QueryLanguage};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all lanes of one target share.
pub struct LaneShare {
    variables: Arc<Vec<Variable>>,
    queries: Vec<Ready>,
    /// Running sums of the weights.
    weights: Vec<u64>,
    names: &'static [&'static str],
    left: AtomicU64,
    seed: u64,
}

#[derive(Clone)]
struct Ready {
    statement: Statement,
    uses: Vec<usize>,
    rows: Option<RangeInclusive<u64>>,
}

impl LaneShare {
    pub fn new(
        file: &File,
        language: QueryLanguage,
        database: &str,
        seed: u64,
    ) -> Result<LaneShare> {
        let variables = Arc::new(file.variables());
        let (mut queries, mut weights, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let mut sum = 0;
        for q in file.queries_in(language)? {
            let said = (q.line, q.text.as_str());
            let statement = Statement::new(said, language, database, &variables)?;
            queries.push(Ready {
                uses: statement.uses(),
                statement,
                rows: q.rows.clone(),
            });
            sum += q.weight;
            weights.push(sum);
            names.push(q.name.as_str());
        }
        Ok(LaneShare {
            variables,
            queries,
            weights,
            names: lasting(&names),
            left: AtomicU64::new(u64::MAX),
            seed,
        })
    }

    /// The same variables, and one statement so many times.
    pub fn only(&self, once: &Once, database: &str) -> Result<LaneShare> {
        let said = (once.line, once.text.as_str());
        let statement = Statement::new(said, once.language, database, &self.variables)?;
        Ok(LaneShare {
            variables: Arc::clone(&self.variables),
            queries: vec![Ready {
                uses: statement.uses(),
                statement,
                rows: None,
            }],
            weights: vec![1],
            names: &["statement"],
            left: AtomicU64::new(once.times),
            seed: self.seed,
        })
    }
}

impl LaneShare {
    /// The same variables, and one of the queries.
    pub fn alone(&self, query: usize) -> Option<LaneShare> {
        Some(LaneShare {
            variables: Arc::clone(&self.variables),
            queries: vec![self.queries.get(query)?.clone()],
            weights: vec![1],
            names: self.names.get(query..=query)?,
            left: AtomicU64::new(u64::MAX),
            seed: self.seed,
        })
    }

    /// Of its first query.
    pub fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }
}

/// Results name kinds of requests for as long as the program runs.
fn lasting(names: &[&str]) -> &'static [&'static str] {
    let kept = names.iter().map(|n| &*Box::leak(Box::from(*n)));
    Box::leak(kept.collect::<Vec<&'static str>>().into_boxed_slice())
}

pub struct StatementClient {
    share: Arc<LaneShare>,
    dialect: Box<dyn Dialect>,
    rng: Rng,
    drawn: Vec<Drawn>,
    sql: Vec<u8>,
}

impl StatementClient {
    pub fn new(share: &Arc<LaneShare>, dialect: Box<dyn Dialect>, lane: u64) -> StatementClient {
        StatementClient {
            dialect,
            rng: Rng::new(share.seed ^ (lane + 1) << 32),
            drawn: share.variables.iter().map(Drawn::new).collect(),
            sql: Vec::new(),
            share: Arc::clone(share),
        }
    }
}

impl Spoken for StatementClient {
    fn kinds(&self) -> &'static [&'static str] {
        self.share.names
    }

    fn dialect(&self) -> &dyn Dialect {
        &*self.dialect
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        let share = Arc::clone(&self.share);
        let less = |left: u64| match left {
            u64::MAX => Some(left),
            n => n.checked_sub(1),
        };
        let (order, left) = (Ordering::Relaxed, &share.left);
        left.fetch_update(order, order, less).ok()?;
        let point = self.rng.below(*share.weights.last()?);
        let kind = share.weights.iter().position(|sum| point < *sum)?;
        Some(self.ask(kind, out))
    }

    fn judge(&mut self, issued: &Issued, (message, id): Numbered<'_>, out: &mut Vec<u8>) -> Judged {
        let kind = usize::from(issued.kind);
        let answer = match self.dialect.answer(message, id) {
            // Said again, as an application does: one operation, and the times of two requests.
            Err(Fault::Conflict(_)) => return Ok(Some(self.ask(kind, out))),
            answer => answer?,
        };
        let rows = self.share.queries[kind].rows.as_ref();
        let got = answer.rows.max(answer.affected);
        due(self.share.names[kind], got, rows)?;
        Ok(None)
    }
}

impl StatementClient {
    /// A query with values drawn anew.
    fn ask(&mut self, kind: usize, out: &mut Vec<u8>) -> Issued {
        let share = Arc::clone(&self.share);
        let query = &share.queries[kind];
        for &v in &query.uses {
            self.drawn[v].draw(&share.variables[v], &mut self.rng);
        }
        query.statement.write(
            &share.variables,
            &self.drawn,
            &*self.dialect,
            &mut self.sql,
            out,
        );
        Issued {
            kind: kind as u8,
            whole: None,
            units: 1,
            tag: 0,
            acknowledged: true,
        }
    }
}
