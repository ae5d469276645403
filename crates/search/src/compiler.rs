//! From operators to queries of the library: what scores words while their postings are read, and how queries are put
//! together. Queries over values and patterns are in files of their own.

use crate::analysis::Analyzer;
use crate::best::WordsQuery;
use crate::definition::{OrProblem, StringType};
use crate::edits::edits;
use crate::files::IndexSnapshot;
use crate::operator::{
    Clause, Fuzzy, MOST_CLAUSES, Operator, PathSpec, ScoreChange, SynonymsOf, Text,
    too_many_clauses,
};
use crate::pattern::glob;
use crate::phrase::PhraseQuery;
use crate::problem::wrong;
use crate::room::Room;
use crate::score::{Bm25, WordQuery, idf};
use crate::set::TermRange;
use crate::terms::{grams_name, is_path, multi_name, word_prefix};
use errors::Result;
use errors::operation::step;
use std::ops::Bound;
use std::sync::Arc;
use tantivy::Term;
use tantivy::query::{
    AllQuery, BooleanQuery, BoostQuery, ConstScoreQuery, EmptyQuery, Occur, Query,
};

pub(crate) type Made = Box<dyn Query>;

pub(crate) struct Compiler<'a, 'r> {
    pub snapshot: &'a IndexSnapshot,
    pub room: &'a mut Room<'r>,
    /// The path of the elements that are asked for; `None`: whole documents.
    pub scope: Option<String>,
}

impl<'a, 'r> Compiler<'a, 'r> {
    pub(crate) fn new(snapshot: &'a IndexSnapshot, room: &'a mut Room<'r>) -> Compiler<'a, 'r> {
        Compiler {
            snapshot,
            room,
            scope: None,
        }
    }
}

impl Compiler<'_, '_> {
    pub(crate) fn clause(&mut self, clause: &Clause) -> Result<Made> {
        step()?;
        let query = self.operator(&clause.operator)?;
        Ok(match clause.score {
            ScoreChange::None => query,
            ScoreChange::Boost(by) => Box::new(BoostQuery::new(query, by)),
            ScoreChange::Constant(to) => Box::new(ConstScoreQuery::new(query, to)),
        })
    }

    fn operator(&mut self, operator: &Operator) -> Result<Made> {
        match operator {
            Operator::Text { paths, text } => self.text(paths, text),
            Operator::Phrase {
                paths,
                query,
                slop,
                synonyms,
            } => self.phrase(paths, query, *slop, synonyms.as_ref()),
            Operator::Compound {
                must,
                should,
                must_not,
                filter,
                least,
            } => {
                let mut clauses = Vec::new();
                for c in must {
                    clauses.push((Occur::Must, self.clause(c)?));
                }
                for c in filter {
                    let unscored = ConstScoreQuery::new(self.clause(c)?, 0.0);
                    clauses.push((Occur::Must, Box::new(unscored) as Made));
                }
                if must.is_empty() && filter.is_empty() && should.is_empty() {
                    let all = ConstScoreQuery::new(Box::new(AllQuery), 0.0);
                    clauses.push((Occur::Must, Box::new(all)));
                }
                for c in should {
                    clauses.push((Occur::Should, self.clause(c)?));
                }
                for c in must_not {
                    clauses.push((Occur::MustNot, self.clause(c)?));
                }
                Ok(Box::new(BooleanQuery::with_minimum_required_clauses(
                    clauses, *least,
                )))
            }
            Operator::Values {
                paths,
                values,
                finite,
            } => self.values(paths, values, *finite),
            Operator::Span(spans) => self.span(spans),
            Operator::Nearest(nearest) => self.nearest(nearest),
            Operator::Embedded {
                path,
                clause,
                aggregate,
            } => self.embedded(path, clause, *aggregate),
            Operator::Ancestor { path, clause } => self.ancestor(path.as_deref(), clause),
            Operator::Exists { path } => self.exists(path),
            Operator::Range { paths, bounds } => self.range(paths, bounds),
            Operator::Near {
                paths,
                kind,
                origin,
                pivot,
            } => self.near(paths, *kind, *origin, *pivot),
            Operator::Place {
                paths,
                place,
                shapes,
            } => self.place(paths, place, *shapes),
            Operator::NearPoint { paths, near, pivot } => self.near_point(paths, near, *pivot),
            Operator::Pattern {
                paths,
                query,
                analyzed,
                regex,
            } => self.pattern(paths, query, *analyzed, *regex),
            Operator::Autocomplete {
                path,
                query,
                fuzzy,
                in_order,
            } => self.autocomplete(path, query, *fuzzy, *in_order),
        }
    }

    /// The names among the index's paths that are meant, with their analyzers. A path that no document has is none.
    pub(crate) fn analyzed(&self, paths: &[PathSpec]) -> Result<Vec<(u32, StringType)>> {
        let (known, definition) = (&self.snapshot.paths, &self.snapshot.definition);
        let mut out = Vec::new();
        for path in paths {
            match path {
                PathSpec::Path(p) => {
                    if let (Some(n), Some(a)) = (known.get(p), definition.analyzers(p, None)) {
                        out.push((n, a));
                    }
                }
                PathSpec::Multi(p, m) => {
                    let Some(a) = definition.analyzers(p, Some(m)) else {
                        return Err(wrong(format!("path \"{p}\" has no multi analyzer \"{m}\"")));
                    };
                    if let Some(n) = known.get(&multi_name(p, m)) {
                        out.push((n, a));
                    }
                }
                PathSpec::Wildcard(pattern) => {
                    for name in known.names().iter().filter(|n| is_path(n)) {
                        step()?;
                        if glob(pattern, name)
                            && let (Some(n), Some(a)) =
                                (known.get(name), definition.analyzers(name, None))
                        {
                            out.push((n, a));
                        }
                    }
                }
            }
        }
        Ok(out)
    }

    /// The numbers of plain paths.
    pub(crate) fn numbers<'p>(&'p self, paths: &'p [String]) -> impl Iterator<Item = u32> + 'p {
        paths.iter().filter_map(|p| self.snapshot.paths.get(p))
    }

    fn text(&mut self, paths: &[PathSpec], text: &Text) -> Result<Made> {
        let paths = self.analyzed(paths)?;
        let mut alternatives: Vec<Made> = Vec::new();
        let mut clauses = 0;
        for (path, analyzers) in paths {
            for query in &text.query {
                let tokens = self.query_tokens(&analyzers, query, text.synonyms.as_ref())?;
                let words = match text.fuzzy {
                    None => self.words(path, &tokens)?,
                    Some(f) => {
                        let mut words: Vec<Made> = Vec::new();
                        for token in &tokens {
                            step()?;
                            if words.len() >= MOST_CLAUSES {
                                return Err(too_many_clauses());
                            }
                            words.push(self.fuzzy(path, &token.text, f)?);
                        }
                        words
                    }
                };
                clauses += words.len();
                if clauses > MOST_CLAUSES {
                    return Err(too_many_clauses());
                }
                match text.all {
                    true if !words.is_empty() => {
                        alternatives.push(all_of(words));
                    }
                    true => {}
                    false => alternatives.extend(words),
                }
            }
        }
        Ok(any_of(alternatives))
    }

    pub(crate) fn term(&self, path: u32, word: &str) -> Term {
        let text = format!("{}{word}", word_prefix(path));
        Term::from_field_text(self.snapshot.fields.words, &text)
    }

    /// How many documents have a term, and of how many with the path.
    pub(crate) fn idf(&self, path: u32, term: &Term) -> Result<f32> {
        let with_term = self.snapshot.searcher.doc_freq(term).or_problem()?;
        Ok(idf(self.snapshot.length_sum(path)?.documents, with_term))
    }

    /// The terms near a word: as many as it may become, the nearest first. All score by the most frequent one's rarity,
    /// less the further they are.
    fn fuzzy(&mut self, path: u32, word: &str, fuzzy: Fuzzy) -> Result<Made> {
        let wanted: Vec<char> = word.chars().collect();
        let fixed: String = wanted.iter().take(fuzzy.prefix).collect();
        let start = word_prefix(path);
        let range = TermRange::prefix(
            self.snapshot.fields.words,
            format!("{start}{fixed}").as_bytes(),
        );
        let mut near = std::collections::BTreeMap::new();
        for reader in self.snapshot.searcher.segment_readers() {
            range.walk(reader, |term, _| {
                let Some(term) = term
                    .get(start.len()..)
                    .and_then(|t| std::str::from_utf8(t).ok())
                else {
                    return Ok(());
                };
                let distance = edits(&wanted, term, fuzzy.edits);
                if let Some(distance) = distance {
                    near.insert(term.to_string(), distance);
                }
                Ok(())
            })?;
        }
        // As Lucene has it: a short term is further away by the same edits.
        let boost = |(term, distance): (String, usize)| {
            let shorter = term.chars().count().min(wanted.len()).max(1);
            let boost = (1.0 - distance as f32 / shorter as f32).max(0.0);
            (boost, term)
        };
        let mut terms: Vec<(f32, String)> = near.into_iter().map(boost).collect();
        terms.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        terms.truncate(fuzzy.expansions.min(MOST_CLAUSES));
        let mut most = 0;
        for (_, text) in &terms {
            let term = self.term(path, text);
            most = most.max(self.snapshot.searcher.doc_freq(&term).or_problem()?);
        }
        let idf = idf(self.snapshot.length_sum(path)?.documents, most);
        let bm25 = Arc::new(Bm25::new(self.snapshot, path, idf)?);
        let queries = terms.iter().map(|(boost, text)| {
            let query = WordQuery {
                terms: vec![self.term(path, text)],
                bm25: bm25.clone(),
            };
            Box::new(BoostQuery::new(Box::new(query), *boost)) as Made
        });
        Ok(any_of(queries.collect()))
    }

    fn phrase(
        &mut self,
        paths: &[PathSpec],
        query: &[String],
        slop: u32,
        synonyms: Option<&SynonymsOf>,
    ) -> Result<Made> {
        let mut alternatives: Vec<Made> = Vec::new();
        for (path, analyzers) in self.analyzed(paths)? {
            for text in query {
                let tokens = self.query_tokens(&analyzers, text, synonyms)?;
                alternatives.extend(self.phrases(path, &tokens, slop)?);
                if alternatives.len() > MOST_CLAUSES {
                    return Err(too_many_clauses());
                }
            }
        }
        Ok(any_of(alternatives))
    }

    fn autocomplete(
        &mut self,
        path: &str,
        query: &[String],
        fuzzy: Option<Fuzzy>,
        in_order: bool,
    ) -> Result<Made> {
        let grams = self
            .snapshot
            .definition
            .at(path)
            .0
            .and_then(|t| t.autocomplete);
        let Some(grams) = grams else {
            return Err(wrong(format!(
                "path \"{path}\" needs to be indexed as autocomplete"
            )));
        };
        let Some(n) = self.snapshot.paths.get(&grams_name(path)) else {
            return Ok(Box::new(EmptyQuery));
        };
        let mut alternatives: Vec<Made> = Vec::new();
        for text in query {
            let mut words: Vec<Made> = Vec::new();
            let mut phrase = Vec::new();
            for token in Analyzer::Standard.tokens(text) {
                // The index knows no longer gram.
                let gram: String = token.text.chars().take(grams.most).collect();
                words.push(match fuzzy {
                    Some(f) => self.fuzzy(n, &gram, f)?,
                    None => self.gram(n, &gram)?,
                });
                let place = u32::try_from(token.position).unwrap_or(u32::MAX);
                phrase.push((vec![self.term(n, &gram)], place));
            }
            if words.len() > MOST_CLAUSES {
                return Err(too_many_clauses());
            }
            alternatives.push(match in_order && fuzzy.is_none() && words.len() > 1 {
                true => Box::new(PhraseQuery {
                    terms: phrase,
                    slop: 0,
                    bm25: Arc::new(Bm25::new(self.snapshot, n, 1.0)?),
                }),
                false => match words.is_empty() {
                    true => Box::new(EmptyQuery),
                    false => all_of(words),
                },
            });
        }
        Ok(any_of(alternatives))
    }

    fn gram(&mut self, path: u32, gram: &str) -> Result<Made> {
        let exact = format!("{}{gram}", word_prefix(path)).into_bytes();
        let range = TermRange {
            field: self.snapshot.fields.words,
            low: Bound::Included(exact.clone()),
            high: Bound::Included(exact),
        };
        self.set(&[range], &|_| true)
    }
}

fn all_of(mut queries: Vec<Made>) -> Made {
    match (queries.len(), WordsQuery::of(&queries, true)) {
        (1, _) => queries.remove(0),
        (_, Some(words)) => Box::new(words),
        _ => Box::new(BooleanQuery::intersection(queries)),
    }
}

pub(crate) fn any_of(mut queries: Vec<Made>) -> Made {
    match queries.len() {
        0 => Box::new(EmptyQuery),
        1 => queries.remove(0),
        _ => match WordsQuery::of(&queries, false) {
            Some(words) => Box::new(words),
            None => Box::new(BooleanQuery::union(queries)),
        },
    }
}
