//! Runs a search over a snapshot of an index.
//!
//! Operators become queries of the library. What takes many terms is looked up first ([`crate::set`]); texts and phrases
//! are scored while their postings are read.

use crate::analysis::Analyzer;
use crate::definition::{Kind, OrProblem, StringType};
use crate::files::{Snapshot, damaged};
use crate::operator::{
    Bounds, Clause, Count, Fuzzy, MOST_CLAUSES, Operator, PathSpec, ScoreChange, Search,
    too_many_clauses,
};
use crate::phrase::PhraseQuery;
use crate::problem::wrong;
use crate::room::Room;
use crate::score::{Bm25, WordQuery, idf};
use crate::set::{ScoredQuery, SetQuery, TermRange};
use crate::terms::{
    asked, date_of, grams_name, is_path, kind, multi_name, number_of, value_prefix, word_prefix,
};
use bson::Value;
use errors::Result;
use errors::operation::step;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Bound;
use std::sync::Arc;
use tantivy::query::{
    AllQuery, BooleanQuery, BoostQuery, ConstScoreQuery, EmptyQuery, EnableScoring, Occur, Query,
};
use tantivy::schema::Value as _;
use tantivy::{DocAddress, DocId, DocSet, SegmentReader, TERMINATED, TantivyDocument, Term};

/// The most results of a search that says nothing of how many it wants: their scores and places stay in memory.
const MOST_FOUND: usize = 4 << 20;

/// A document that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The key that it was put under.
    pub key: Vec<u8>,
    pub score: f32,
}

/// What a search has found, from the best on.
pub struct Hits {
    snapshot: Snapshot,
    found: std::vec::IntoIter<Hit>,
    /// How many there are in all.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hit {
    pub score: f32,
    pub at: DocAddress,
}

impl Eq for Hit {}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Hit) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The better one is less: a heap's greatest is the one to give up first.
impl Ord for Hit {
    fn cmp(&self, other: &Hit) -> Ordering {
        other
            .score
            .total_cmp(&self.score)
            .then_with(|| self.at.cmp(&other.at))
    }
}

impl Hits {
    /// The next one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Found>> {
        let Some(hit) = self.found.next() else {
            return Ok(None);
        };
        let doc: TantivyDocument = self.snapshot.searcher.doc(hit.at).or_problem()?;
        let key = doc
            .get_first(self.snapshot.fields.key)
            .and_then(|v| v.as_bytes().map(<[u8]>::to_vec));
        let key = key.ok_or_else(|| damaged("a document without a key"))?;
        Ok(Some(Found {
            key,
            score: hit.score,
        }))
    }
}

impl Search {
    /// Finds the best `limit` documents, or all; `None` of `limit` wants all.
    pub fn find(
        &self,
        snapshot: Snapshot,
        limit: Option<usize>,
        room: &mut Room<'_>,
    ) -> Result<Hits> {
        let mut compiler = Compiler {
            snapshot: &snapshot,
            room,
        };
        let query = match &self.clause {
            Some(clause) => compiler.clause(clause)?,
            None => Box::new(AllQuery),
        };
        let scoring = EnableScoring::enabled_from_searcher(&snapshot.searcher);
        let weight = query.weight(scoring).or_problem()?;
        let most = limit.unwrap_or(MOST_FOUND);
        let (mut best, mut count) = (BinaryHeap::new(), 0);
        for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
            let mut scorer = weight.scorer(reader, 1.0).or_problem()?;
            let alive = reader.alive_bitset();
            let mut doc = scorer.doc();
            while doc != TERMINATED {
                step()?;
                if alive.is_none_or(|a| a.is_alive(doc)) {
                    count += 1;
                    if most > 0 {
                        let hit = Hit {
                            score: scorer.score(),
                            at: DocAddress::new(segment, doc),
                        };
                        keep(&mut best, hit, most, limit)?;
                        if best.len() == best.capacity() && best.len() < most {
                            compiler.room.take(best.len() * size_of::<Hit>())?;
                        }
                    }
                }
                doc = scorer.advance();
            }
        }
        Ok(Hits {
            found: best.into_sorted_vec().into_iter(),
            count,
            snapshot,
        })
    }
}

impl Search {
    /// What is known of all results: `{count, facet}`.
    pub fn meta(&self, snapshot: Snapshot, room: &mut Room<'_>) -> Result<bson::DocBuf> {
        let count = self.find(snapshot.clone(), Some(0), room)?.count;
        let mut w = bson::Writer::new();
        w.open_doc("count");
        let name = match self.count {
            Count::LowerBound => "lowerBound",
            Count::Total => "total",
        };
        w.i64(name, i64::try_from(count).unwrap_or(i64::MAX))
            .close();
        if !self.facets.is_empty() {
            let clause = self.clause.as_ref();
            crate::facet::write(&mut w, &snapshot, clause, &self.facets, room)?;
        }
        Ok(w.finish())
    }
}

fn keep(best: &mut BinaryHeap<Hit>, hit: Hit, most: usize, limit: Option<usize>) -> Result<()> {
    if best.len() >= most && limit.is_none() {
        return Err(wrong(format!(
            "more than {MOST_FOUND} documents match: ask for fewer with a $limit behind the search"
        )));
    }
    keep_best(best, hit, most);
    Ok(())
}

/// Keeps a hit that is among the best `most`.
pub(crate) fn keep_best(best: &mut BinaryHeap<Hit>, hit: Hit, most: usize) {
    if best.len() < most {
        best.push(hit);
    } else if let Some(mut worst) = best.peek_mut()
        && hit < *worst
    {
        *worst = hit;
    }
}

pub(crate) fn into_hits(snapshot: Snapshot, best: BinaryHeap<Hit>) -> Hits {
    Hits {
        count: best.len() as u64,
        found: best.into_sorted_vec().into_iter(),
        snapshot,
    }
}

/// Gives the documents that match, in batches of one segment each; all of them where nothing is
/// asked for.
pub(crate) fn each_match(
    snapshot: &Snapshot,
    clause: Option<&Clause>,
    room: &mut Room<'_>,
    mut each: impl FnMut(&SegmentReader, u32, &[DocId], &mut Room<'_>) -> Result<()>,
) -> Result<()> {
    let query = match clause {
        Some(clause) => Compiler { snapshot, room }.clause(clause)?,
        None => Box::new(AllQuery),
    };
    let unscored = EnableScoring::disabled_from_searcher(&snapshot.searcher);
    let weight = query.weight(unscored).or_problem()?;
    for (segment, reader) in (0u32..).zip(snapshot.searcher.segment_readers()) {
        let mut scorer = weight.scorer(reader, 1.0).or_problem()?;
        let alive = reader.alive_bitset();
        let mut batch = Vec::new();
        let mut doc = scorer.doc();
        while doc != TERMINATED {
            step()?;
            if alive.is_none_or(|a| a.is_alive(doc)) {
                batch.push(doc);
            }
            if batch.len() == 1024 {
                each(reader, segment, &batch, room)?;
                batch.clear();
            }
            doc = scorer.advance();
        }
        each(reader, segment, &batch, room)?;
    }
    Ok(())
}

type Made = Box<dyn Query>;

struct Compiler<'a, 'r> {
    snapshot: &'a Snapshot,
    room: &'a mut Room<'r>,
}

impl Compiler<'_, '_> {
    fn clause(&mut self, clause: &Clause) -> Result<Made> {
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
            Operator::Text {
                paths,
                query,
                fuzzy,
                all,
            } => self.text(paths, query, *fuzzy, *all),
            Operator::Phrase { paths, query, slop } => self.phrase(paths, query, *slop),
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
            Operator::Exists { path } => self.exists(path),
            Operator::Range { paths, bounds } => self.range(paths, bounds),
            Operator::Near {
                paths,
                kind,
                origin,
                pivot,
            } => self.near(paths, *kind, *origin, *pivot),
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
    fn analyzed(&self, paths: &[PathSpec]) -> Result<Vec<(u32, StringType)>> {
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
    fn numbers<'p>(&'p self, paths: &'p [String]) -> impl Iterator<Item = u32> + 'p {
        paths.iter().filter_map(|p| self.snapshot.paths.get(p))
    }

    fn text(
        &mut self,
        paths: &[PathSpec],
        query: &[String],
        fuzzy: Option<Fuzzy>,
        all: bool,
    ) -> Result<Made> {
        let paths = self.analyzed(paths)?;
        let mut alternatives: Vec<Made> = Vec::new();
        let mut clauses = 0;
        for (path, analyzers) in paths {
            for text in query {
                let mut words: Vec<Made> = Vec::new();
                for token in analyzers.search.tokens(text) {
                    step()?;
                    words.push(match fuzzy {
                        None => self.word(path, &token.text)?,
                        Some(f) => self.fuzzy(path, &token.text, f)?,
                    });
                    clauses += 1;
                    if clauses > MOST_CLAUSES {
                        return Err(too_many_clauses());
                    }
                }
                match all {
                    true if !words.is_empty() => {
                        alternatives.push(Box::new(BooleanQuery::intersection(words)));
                    }
                    true => {}
                    false => alternatives.extend(words),
                }
            }
        }
        Ok(any_of(alternatives))
    }

    fn term(&self, path: u32, word: &str) -> Term {
        let text = format!("{}{word}", word_prefix(path));
        Term::from_field_text(self.snapshot.fields.words, &text)
    }

    /// How many documents have a term, and of how many with the path.
    fn idf(&self, path: u32, term: &Term) -> Result<f32> {
        let with_term = self.snapshot.searcher.doc_freq(term).or_problem()?;
        Ok(idf(self.snapshot.length_sum(path)?.documents, with_term))
    }

    fn word(&self, path: u32, word: &str) -> Result<Made> {
        let term = self.term(path, word);
        let bm25 = Bm25::new(self.snapshot, path, self.idf(path, &term)?)?;
        Ok(Box::new(WordQuery {
            term,
            bm25: Arc::new(bm25),
        }))
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
        let mut terms: Vec<(usize, String)> = near.into_iter().map(|(t, d)| (d, t)).collect();
        terms.sort();
        terms.truncate(fuzzy.expansions.min(MOST_CLAUSES));
        let mut most = 0;
        for (_, text) in &terms {
            let term = self.term(path, text);
            most = most.max(self.snapshot.searcher.doc_freq(&term).or_problem()?);
        }
        let idf = idf(self.snapshot.length_sum(path)?.documents, most);
        let bm25 = Arc::new(Bm25::new(self.snapshot, path, idf)?);
        let queries = terms.iter().map(|(distance, text)| {
            let shorter = text.chars().count().min(wanted.len()).max(1);
            let boost = (1.0 - *distance as f32 / shorter as f32).max(0.0);
            let query = WordQuery {
                term: self.term(path, text),
                bm25: bm25.clone(),
            };
            Box::new(BoostQuery::new(Box::new(query), boost)) as Made
        });
        Ok(any_of(queries.collect()))
    }

    fn phrase(&mut self, paths: &[PathSpec], query: &[String], slop: u32) -> Result<Made> {
        let mut alternatives: Vec<Made> = Vec::new();
        for (path, analyzers) in self.analyzed(paths)? {
            for text in query {
                let tokens = analyzers.search.tokens(text);
                if alternatives.len() + tokens.len() > MOST_CLAUSES {
                    return Err(too_many_clauses());
                }
                if let [one] = &tokens[..] {
                    alternatives.push(self.word(path, &one.text)?);
                }
                if tokens.len() < 2 {
                    continue;
                }
                let mut sum = 0.0;
                let mut terms = Vec::new();
                for token in &tokens {
                    let term = self.term(path, &token.text);
                    sum += self.idf(path, &term)?;
                    terms.push((term, u32::try_from(token.position).unwrap_or(u32::MAX)));
                }
                alternatives.push(Box::new(PhraseQuery {
                    terms,
                    slop,
                    bm25: Arc::new(Bm25::new(self.snapshot, path, sum)?),
                }));
            }
        }
        Ok(any_of(alternatives))
    }

    fn set(&mut self, ranges: &[TermRange], wanted: &dyn Fn(&[u8]) -> bool) -> Result<Made> {
        let set = SetQuery::of(&self.snapshot.searcher, ranges, self.room, wanted)?;
        Ok(Box::new(set))
    }

    /// A filter of vectors may ask only for what was said to be one.
    fn check_filters(&self, paths: &[String]) -> Result<()> {
        let definition = &self.snapshot.definition;
        let is_filter = |p: &&String| definition.at(p).0.is_some_and(|t| t.token.is_some());
        match paths.iter().find(|p| !is_filter(p)) {
            Some(path) if definition.kind == Kind::Vector => Err(wrong(format!(
                "Path '{path}' needs to be indexed as filter"
            ))),
            _ => Ok(()),
        }
    }

    fn values(&mut self, paths: &[String], values: &[Value], finite: bool) -> Result<Made> {
        self.check_filters(paths)?;
        let mut ranges = Vec::new();
        for path in paths {
            let (types, dynamic) = self.snapshot.definition.at(path);
            let token = types.and_then(|t| t.token);
            for value in values {
                step()?;
                let Some((kind, bytes)) = asked(value.as_val(), token == Some(true))? else {
                    continue;
                };
                let analyzed = types.map_or(dynamic, |t| t.string.is_some());
                if kind == kind::STRING && token.is_none() && analyzed {
                    return Err(wrong(format!(
                        "Path \"{path}\" needs to be indexed as token"
                    )));
                }
                let number = value.as_val().to_f64().filter(|_| kind == kind::NUMBER);
                if finite && number.is_some_and(|n| !n.is_finite()) {
                    continue;
                }
                if let Some(n) = self.snapshot.paths.get(path) {
                    let mut exact = value_prefix(n, kind);
                    exact.extend_from_slice(&bytes);
                    ranges.push(TermRange {
                        field: self.snapshot.fields.values,
                        low: Bound::Included(exact.clone()),
                        high: Bound::Included(exact),
                    });
                }
            }
        }
        self.set(&ranges, &|_| true)
    }

    fn exists(&mut self, path: &str) -> Result<Made> {
        self.check_filters(&[path.to_string()])?;
        let Some(n) = self.snapshot.paths.get(path) else {
            return Ok(Box::new(EmptyQuery));
        };
        let range = TermRange::prefix(self.snapshot.fields.values, &value_prefix(n, kind::EXISTS));
        self.set(&[range], &|_| true)
    }

    fn range(&mut self, paths: &[String], bounds: &Bounds) -> Result<Made> {
        self.check_filters(paths)?;
        let of = |path: u32, bound: &Option<(Vec<u8>, bool)>| {
            bound.as_ref().map(|(bytes, inclusive)| {
                let mut at = value_prefix(path, bounds.kind);
                at.extend_from_slice(bytes);
                match inclusive {
                    true => Bound::Included(at),
                    false => Bound::Excluded(at),
                }
            })
        };
        let field = self.snapshot.fields.values;
        let ranges = self.numbers(paths).map(|path| {
            let whole = TermRange::prefix(field, &value_prefix(path, bounds.kind));
            TermRange {
                field,
                low: of(path, &bounds.low).unwrap_or(whole.low),
                high: of(path, &bounds.high).unwrap_or(whole.high),
            }
        });
        let ranges: Vec<TermRange> = ranges.collect();
        self.set(&ranges, &|term| !is_nan(term))
    }

    fn near(&mut self, paths: &[String], kind: u8, origin: f64, pivot: f64) -> Result<Made> {
        let field = self.snapshot.fields.values;
        let ranges = self.numbers(paths);
        let ranges = ranges.map(|path| TermRange::prefix(field, &value_prefix(path, kind)));
        let ranges: Vec<TermRange> = ranges.collect();
        let score = |term: &[u8]| {
            let Some(bytes) = term.last_chunk::<8>() else {
                return 0.0;
            };
            let value = match kind {
                kind::DATE => date_of(*bytes) as f64,
                _ => number_of(*bytes),
            };
            let score = pivot / (pivot + (origin - value).abs());
            if score.is_finite() { score as f32 } else { 0.0 }
        };
        let found = ScoredQuery::of(&self.snapshot.searcher, &ranges, self.room, &score)?;
        Ok(Box::new(found))
    }

    fn pattern(
        &mut self,
        paths: &[PathSpec],
        query: &[String],
        analyzed: bool,
        regex: bool,
    ) -> Result<Made> {
        if !analyzed {
            self.check_keywords(paths)?;
        }
        let found = self.analyzed(paths)?;
        let mut alternatives: Vec<Made> = Vec::new();
        for text in query {
            let compiled = match regex {
                true => Some(whole_regex(text)?),
                false => None,
            };
            for (path, _) in &found {
                let start = word_prefix(*path);
                let range = TermRange::prefix(self.snapshot.fields.words, start.as_bytes());
                let matches = |term: &[u8]| {
                    let word = term
                        .get(start.len()..)
                        .and_then(|t| std::str::from_utf8(t).ok());
                    word.is_some_and(|w| match &compiled {
                        Some(r) => r.is_match(w),
                        None => wildcard(text, w),
                    })
                };
                alternatives.push(self.set(&[range], &matches)?);
            }
        }
        Ok(any_of(alternatives))
    }

    /// Patterns look at whole strings, unless the search says otherwise.
    fn check_keywords(&self, paths: &[PathSpec]) -> Result<()> {
        let definition = &self.snapshot.definition;
        for path in paths {
            let (name, found) = match path {
                PathSpec::Path(p) => (p, definition.analyzers(p, None)),
                PathSpec::Multi(p, m) => (p, definition.analyzers(p, Some(m))),
                PathSpec::Wildcard(_) => continue,
            };
            if found.is_none_or(|a| a.index != Analyzer::Keyword) {
                return Err(wrong(format!(
                    "path \"{name}\" is analyzed: set \"allowAnalyzedField\" to search it by a pattern"
                )));
            }
        }
        Ok(())
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
                phrase.push((self.term(n, &gram), place));
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
                    false => Box::new(BooleanQuery::intersection(words)),
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

/// Ranges hold no number that is none.
fn is_nan(term: &[u8]) -> bool {
    term.get(4) == Some(&kind::NUMBER)
        && term
            .last_chunk::<8>()
            .is_some_and(|b| number_of(*b).is_nan())
}

fn any_of(mut queries: Vec<Made>) -> Made {
    match queries.len() {
        0 => Box::new(EmptyQuery),
        1 => queries.remove(0),
        _ => Box::new(BooleanQuery::union(queries)),
    }
}

/// A pattern of regular expressions over a whole term.
fn whole_regex(pattern: &str) -> Result<regex::Regex> {
    let whole = regex::RegexBuilder::new(&format!("^(?:{pattern})$"))
        .dot_matches_new_line(true)
        .size_limit(1 << 20)
        .build();
    whole.map_err(|_| {
        wrong(format!(
            "\"regex.query\" is no regular expression: {pattern}"
        ))
    })
}

/// Whether a path's name matches a pattern in which `*` stands for anything.
fn glob(pattern: &str, name: &str) -> bool {
    matches_pattern(pattern, name, false)
}

/// The same for a term, where `?` is any one character and `\` takes what follows as it is.
fn wildcard(pattern: &str, word: &str) -> bool {
    matches_pattern(pattern, word, true)
}

#[derive(Clone, Copy, PartialEq)]
enum Piece {
    Any,
    One,
    Is(char),
}

fn matches_pattern(pattern: &str, word: &str, single: bool) -> bool {
    let mut chars = pattern.chars();
    let mut pieces = Vec::new();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            '*' => Piece::Any,
            '?' if single => Piece::One,
            '\\' if single => Piece::Is(chars.next().unwrap_or('\\')),
            c => Piece::Is(c),
        });
    }
    let word: Vec<char> = word.chars().collect();
    // Where to go on when what follows the last star does not match: no more than words times pieces in all.
    let (mut p, mut w) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while w < word.len() {
        match (pieces.get(p), word.get(w)) {
            (Some(Piece::Any), _) => {
                star = Some((p, w));
                p += 1;
            }
            (Some(Piece::One), Some(_)) => (p, w) = (p + 1, w + 1),
            (Some(Piece::Is(a)), Some(b)) if a == b => (p, w) = (p + 1, w + 1),
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (p, w) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    pieces
        .get(p..)
        .is_some_and(|rest| rest.iter().all(|r| *r == Piece::Any))
}

/// How many characters have to be put in, taken out, replaced or swapped with their neighbour; `None` where that is more
/// than `most`.
fn edits(wanted: &[char], word: &str, most: usize) -> Option<usize> {
    let n = word.chars().count();
    if n.abs_diff(wanted.len()) > most || wanted.len() > 255 || n > 255 {
        return None;
    }
    let word: Vec<char> = word.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=word.len()).collect();
    for (i, a) in wanted.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in word.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut best = (at(&row, j + 1) + 1).min(at(&next, j) + 1);
            best = best.min(at(&row, j) + usize::from(a != b));
            let swapped =
                i > 0 && j > 0 && wanted.get(i - 1) == Some(b) && word.get(j - 1) == Some(a);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            next.push(best);
        }
        if next.iter().min().is_some_and(|m| *m > most) {
            return None;
        }
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().filter(|d| *d <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_words() {
        let cases = [
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a?b", "ab", false),
            ("a\\*b", "axb", false),
            ("a\\*b", "a*b", true),
            ("*", "", true),
            ("qu*k", "quickly", false),
        ];
        for (pattern, word, want) in cases {
            assert_eq!(wildcard(pattern, word), want, "{pattern} {word}");
        }
    }

    #[test]
    fn edits_are_counted_in_characters() {
        let near = |a: &str, b: &str, most| edits(&a.chars().collect::<Vec<_>>(), b, most);
        assert_eq!(near("cafe", "café", 1), Some(1));
        assert_eq!(near("resume", "résumé", 2), Some(2));
        assert_eq!(near("abcd", "abdc", 1), Some(1));
        assert_eq!(near("quick", "quack", 0), None);
    }
}
