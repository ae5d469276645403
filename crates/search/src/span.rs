//! `span`: places of a text, by how they lie to one another.
//!
//! Source: MongoDB's manual, "span (Operator)"; Lucene's `SpanQuery`s. A document counts each span that is left, less
//! the wider it is.

use crate::compiler::{Compiler, Made, any_of};
use crate::fields::SpecificationFields;
use crate::operator::{MOST_CLAUSES, PathSpec, one_or_several, too_many_clauses};
use crate::paths::paths;
use crate::problem::wrong;
use crate::score::{Bm25, SegmentBm25, not_explained};
use errors::Result;
use errors::operation::step;
use std::sync::Arc;
use tantivy::postings::{Postings, SegmentPostings};
use tantivy::query::{EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocId, DocSet, Score, SegmentReader, TERMINATED, Term};

/// How deep spans may nest.
const MOST_DEPTH: usize = 50;

/// Where the end of a span lies at the most that `first` lets through, if it does not say so.
const FIRST_END: i32 = 3;

/// Spans as a search writes them.
#[derive(Clone, Debug)]
pub(crate) enum Spans<T> {
    Term(T),
    /// Those that end by a position.
    First(Box<Spans<T>>, u32),
    Near {
        clauses: Vec<Spans<T>>,
        slop: u32,
        in_order: bool,
    },
    Or(Vec<Spans<T>>),
    /// Those of the first that overlap with none of the second.
    Subtract(Box<Spans<T>>, Box<Spans<T>>),
    /// Little ones that lie in big ones, or (`outer`) big ones that hold little ones.
    Contains {
        little: Box<Spans<T>>,
        big: Box<Spans<T>>,
        outer: bool,
    },
}

/// Words at paths.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub paths: Vec<PathSpec>,
    pub query: Vec<String>,
}

const KINDS: [&str; 6] = ["contains", "first", "near", "or", "subtract", "term"];

/// What an operator has that is made of one of the kinds of span.
pub(crate) fn parse(f: &SpecificationFields<'_>, depth: usize) -> Result<Spans<Words>> {
    step()?;
    if depth > MOST_DEPTH {
        return Err(wrong("operators are nested too deep"));
    }
    let mut found = KINDS.iter().filter(|name| f.get(name).is_some());
    let (Some(name), None) = (found.next(), found.next()) else {
        return Err(wrong(format!(
            "\"{}\" must have exactly one of [{}]",
            f.at,
            KINDS.join(", ")
        )));
    };
    let of = SpecificationFields::of(&f.name(name), f.required(name)?)?;
    let below = |name: &'static str| -> Result<Box<Spans<Words>>> {
        let inner = SpecificationFields::of(&of.name(name), of.required(name)?)?;
        let spans = parse(&inner, depth + 1)?;
        inner.end()?;
        Ok(Box::new(spans))
    };
    let spans = match *name {
        "term" => Spans::Term(Words {
            query: of.strings("query")?,
            paths: paths(&of)?,
        }),
        "first" => {
            let end = of.int("endPositionLte", 0, i32::MAX)?.unwrap_or(FIRST_END);
            Spans::First(below("operator")?, end.unsigned_abs())
        }
        "near" => Spans::Near {
            clauses: clauses(&of, depth)?,
            slop: of.int("slop", 0, i32::MAX)?.unwrap_or(0).unsigned_abs(),
            in_order: of.flag("inOrder")?.unwrap_or(false),
        },
        "or" => Spans::Or(clauses(&of, depth)?),
        "subtract" => Spans::Subtract(below("include")?, below("exclude")?),
        _ => Spans::Contains {
            little: below("little")?,
            big: below("big")?,
            outer: match of.required_string("spanToReturn")? {
                "inner" => false,
                "outer" => true,
                _ => {
                    return Err(wrong(format!(
                        "\"{}\" must be one of [inner, outer]",
                        of.name("spanToReturn")
                    )));
                }
            },
        },
    };
    // A score of a part changes nothing: the whole is scored.
    of.doc("score")?;
    of.end()?;
    Ok(spans)
}

fn clauses(f: &SpecificationFields<'_>, depth: usize) -> Result<Vec<Spans<Words>>> {
    one_or_several(&f.name("clauses"), f.required("clauses")?, |f| {
        parse(f, depth + 1)
    })
}

impl<T> Spans<T> {
    /// Has `each` called with all terms; whether spans of them count, and not only take others away.
    pub fn each<'s>(&'s self, counts: bool, each: &mut dyn FnMut(&'s T, bool)) {
        match self {
            Spans::Term(t) => each(t, counts),
            Spans::First(of, _) => of.each(counts, each),
            Spans::Near { clauses, .. } | Spans::Or(clauses) => {
                clauses.iter().for_each(|c| c.each(counts, each));
            }
            Spans::Subtract(include, exclude) => {
                include.each(counts, each);
                exclude.each(false, each);
            }
            Spans::Contains { little, big, .. } => {
                little.each(counts, each);
                big.each(counts, each);
            }
        }
    }

    /// The same with other terms.
    fn map<U>(&self, to: &mut dyn FnMut(&T) -> Result<U>) -> Result<Spans<U>> {
        let all = |clauses: &[Spans<T>], to: &mut dyn FnMut(&T) -> Result<U>| {
            clauses
                .iter()
                .map(|c| c.map(to))
                .collect::<Result<Vec<_>>>()
        };
        Ok(match self {
            Spans::Term(t) => Spans::Term(to(t)?),
            Spans::First(of, end) => Spans::First(Box::new(of.map(to)?), *end),
            Spans::Near {
                clauses,
                slop,
                in_order,
            } => Spans::Near {
                clauses: all(clauses, to)?,
                slop: *slop,
                in_order: *in_order,
            },
            Spans::Or(clauses) => Spans::Or(all(clauses, to)?),
            Spans::Subtract(a, b) => Spans::Subtract(Box::new(a.map(to)?), Box::new(b.map(to)?)),
            Spans::Contains { little, big, outer } => Spans::Contains {
                little: Box::new(little.map(to)?),
                big: Box::new(big.map(to)?),
                outer: *outer,
            },
        })
    }
}

impl Compiler<'_, '_> {
    /// Spans of one path have nothing to do with those of another.
    pub(crate) fn span(&mut self, spans: &Spans<Words>) -> Result<Made> {
        let mut words = Vec::new();
        spans.each(true, &mut |w, _| words.push(w));
        let mut numbers = std::collections::BTreeSet::new();
        for w in words {
            numbers.extend(self.analyzed(&w.paths)?.into_iter().map(|(n, _)| n));
        }
        let mut alternatives: Vec<Made> = Vec::new();
        for path in numbers {
            let mut terms: Vec<Term> = Vec::new();
            let of_path = spans.map(&mut |w: &Words| {
                let mut places = Vec::new();
                for (number, analyzers) in self.analyzed(&w.paths)? {
                    let texts = w.query.iter().filter(|_| number == path);
                    for token in texts.flat_map(|text| analyzers.search.tokens(text)) {
                        step()?;
                        places.push(terms.len());
                        terms.push(self.term(path, &token.text));
                        if terms.len() > MOST_CLAUSES {
                            return Err(too_many_clauses());
                        }
                    }
                }
                Ok(places)
            })?;
            let mut counted = vec![false; terms.len()];
            of_path.each(true, &mut |places: &Vec<usize>, counts| {
                places
                    .iter()
                    .filter_map(|n| counted.get_mut(*n).map(|c| *c |= counts))
                    .count();
            });
            let mut idf = 0.0;
            for (term, _) in terms.iter().zip(&counted).filter(|(_, counts)| **counts) {
                idf += self.idf(path, term)?;
            }
            alternatives.push(Box::new(SpanQuery {
                terms: terms.into_iter().zip(counted).collect(),
                spans: of_path,
                bm25: Arc::new(Bm25::new(self.snapshot, path, idf)?),
            }));
        }
        Ok(any_of(alternatives))
    }
}

/// Documents with spans in a path.
#[derive(Clone, Debug)]
struct SpanQuery {
    /// With whether spans of it count.
    terms: Vec<(Term, bool)>,
    spans: Spans<Vec<usize>>,
    bm25: Arc<Bm25>,
}

impl Query for SpanQuery {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for SpanQuery {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let mut words = Vec::new();
        for (term, counts) in &self.terms {
            let inverted = reader.inverted_index(term.field())?;
            let option = IndexRecordOption::WithFreqsAndPositions;
            words.push(Word {
                postings: inverted.read_postings(term, option)?,
                counts: *counts,
            });
        }
        let mut scorer = SpanScorer {
            positions: vec![Vec::new(); words.len()],
            words,
            spans: self.spans.clone(),
            bm25: self.bm25.in_segment(reader, boost)?,
            frequency: 0.0,
            doc: 0,
        };
        scorer.settle(0);
        Ok(Box::new(scorer))
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        let mut scorer = self.scorer(reader, 1.0)?;
        if scorer.doc() > doc || scorer.seek(doc) != doc {
            return Err(not_explained());
        }
        Ok(Explanation::new("span", scorer.score()))
    }
}

struct Word {
    /// `None`: the segment does not have it.
    postings: Option<SegmentPostings>,
    counts: bool,
}

struct SpanScorer {
    words: Vec<Word>,
    /// Of each word in the document at hand.
    positions: Vec<Vec<u32>>,
    spans: Spans<Vec<usize>>,
    bm25: SegmentBm25,
    frequency: f32,
    doc: DocId,
}

impl SpanScorer {
    /// To the first document from `from` on that has a span.
    fn settle(&mut self, from: DocId) -> DocId {
        let mut from = from;
        loop {
            let mut doc = TERMINATED;
            for word in self.words.iter_mut().filter(|w| w.counts) {
                doc = doc.min(word.at(from));
            }
            self.doc = doc;
            if doc == TERMINATED {
                return doc;
            }
            for (word, positions) in self.words.iter_mut().zip(&mut self.positions) {
                positions.clear();
                if word.at(doc) == doc
                    && let Some(postings) = &mut word.postings
                {
                    postings.positions(positions);
                }
            }
            let spans = spans_of(&self.spans, &self.positions);
            self.frequency = spans.iter().map(|s| 1.0 / (1.0 + s.width as f32)).sum();
            if self.frequency > 0.0 {
                return doc;
            }
            from = doc + 1;
        }
    }
}

impl Word {
    /// Its first document from `from` on.
    fn at(&mut self, from: DocId) -> DocId {
        match &mut self.postings {
            Some(postings) if postings.doc() < from => postings.seek(from),
            Some(postings) => postings.doc(),
            None => TERMINATED,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    start: u32,
    /// The position behind it.
    end: u32,
    /// By which it counts less.
    width: u32,
}

impl Span {
    fn holds(&self, other: &Span) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    fn overlaps(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The spans of a document in order, given the positions of its words.
fn spans_of(spans: &Spans<Vec<usize>>, positions: &[Vec<u32>]) -> Vec<Span> {
    match spans {
        Spans::Term(words) => {
            let of = words.iter().filter_map(|w| positions.get(*w)).flatten();
            let span = |p: &u32| Span {
                start: *p,
                end: p.saturating_add(1),
                width: 0,
            };
            ordered(of.map(span).collect())
        }
        Spans::First(of, end) => {
            let mut all = spans_of(of, positions);
            all.retain(|s| s.end <= *end);
            all
        }
        Spans::Or(clauses) => {
            let all = clauses.iter().flat_map(|c| spans_of(c, positions));
            ordered(all.collect())
        }
        Spans::Near {
            clauses,
            slop,
            in_order,
        } => {
            let all: Vec<Vec<Span>> = clauses.iter().map(|c| spans_of(c, positions)).collect();
            match in_order {
                true => near_in_order(&all, *slop),
                false => near_in_any_order(&all, *slop),
            }
        }
        Spans::Subtract(include, exclude) => {
            let (mut all, without) = (spans_of(include, positions), spans_of(exclude, positions));
            all.retain(|s| !any_of_sorted(&without, s, Span::overlaps));
            all
        }
        Spans::Contains { little, big, outer } => {
            let (mut little, mut big) = (spans_of(little, positions), spans_of(big, positions));
            match outer {
                true => {
                    big.retain(|b| any_of_sorted(&little, b, |l, b| b.holds(l)));
                    big
                }
                false => {
                    little.retain(|l| any_of_sorted(&big, l, |b, l| b.holds(l)));
                    little
                }
            }
        }
    }
}

/// Whether one of `spans`, in order, has to do with `one`. Those that begin behind its end have not.
fn any_of_sorted(spans: &[Span], one: &Span, relates: impl Fn(&Span, &Span) -> bool) -> bool {
    let near = spans.partition_point(|s| s.start < one.end);
    let (near, _) = spans.split_at(near);
    near.iter().any(|s| relates(s, one))
}

fn ordered(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    spans.dedup_by_key(|s| (s.start, s.end));
    spans
}

/// From each span of the first clause on the next of each other one, where what lies between them is no more than
/// `slop`.
fn near_in_order(clauses: &[Vec<Span>], slop: u32) -> Vec<Span> {
    let Some((firsts, others)) = clauses.split_first() else {
        return Vec::new();
    };
    let mut next = vec![0usize; others.len()];
    let mut out = Vec::new();
    'first: for first in firsts {
        let (mut end, mut gaps) = (first.end, 0u32);
        for (spans, at) in others.iter().zip(&mut next) {
            while spans.get(*at).is_some_and(|s| s.start < end) {
                *at += 1;
            }
            let Some(s) = spans.get(*at) else {
                return out;
            };
            gaps = gaps.saturating_add(s.start - end);
            end = s.end;
            if gaps > slop {
                continue 'first;
            }
        }
        out.push(Span {
            start: first.start,
            end,
            width: gaps,
        });
    }
    out
}

/// Spans of all clauses, in whatever order, where what is between them is no more than `slop`.
fn near_in_any_order(clauses: &[Vec<Span>], slop: u32) -> Vec<Span> {
    let mut at = vec![0usize; clauses.len()];
    let mut out = Vec::new();
    loop {
        let now: Option<Vec<Span>> = clauses
            .iter()
            .zip(&at)
            .map(|(c, i)| c.get(*i).copied())
            .collect();
        let Some(now) = now else {
            return ordered(out);
        };
        let lowest = now.iter().enumerate().min_by_key(|(_, s)| s.start);
        let (Some((lowest, first)), Some(end)) = (lowest, now.iter().map(|s| s.end).max()) else {
            return ordered(out);
        };
        let length = now
            .iter()
            .fold(0u32, |n, s| n.saturating_add(s.end - s.start));
        let width = end - first.start;
        if width.saturating_sub(length) <= slop {
            out.push(Span {
                start: first.start,
                end,
                width,
            });
        }
        match at.get_mut(lowest) {
            Some(at) => *at += 1,
            None => return ordered(out),
        }
    }
}

impl DocSet for SpanScorer {
    fn advance(&mut self) -> DocId {
        match self.doc {
            TERMINATED => TERMINATED,
            doc => self.settle(doc + 1),
        }
    }

    fn doc(&self) -> DocId {
        self.doc
    }

    fn size_hint(&self) -> u32 {
        let words = self.words.iter().filter_map(|w| w.postings.as_ref());
        words.map(|p| p.size_hint()).max().unwrap_or(0)
    }
}

impl Scorer for SpanScorer {
    fn score(&mut self) -> Score {
        self.bm25.score(self.doc, self.frequency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(word: usize) -> Spans<Vec<usize>> {
        Spans::Term(vec![word])
    }

    fn places(spans: &Spans<Vec<usize>>) -> Vec<(u32, u32)> {
        // quick brown … fox quick … brown
        let positions = [vec![0, 5], vec![1, 9], vec![4]];
        let all = spans_of(spans, &positions);
        all.iter().map(|s| (s.start, s.end)).collect()
    }

    fn near(slop: u32, in_order: bool) -> Spans<Vec<usize>> {
        Spans::Near {
            clauses: vec![term(0), term(1)],
            slop,
            in_order,
        }
    }

    #[test]
    fn spans_lie_to_one_another_as_asked() {
        assert_eq!(places(&term(0)), [(0, 1), (5, 6)]);
        assert_eq!(places(&Spans::First(Box::new(term(0)), 1)), [(0, 1)]);
        assert_eq!(
            places(&Spans::Or(vec![term(2), term(0)])),
            [(0, 1), (4, 5), (5, 6)]
        );
        assert_eq!(places(&near(0, true)), [(0, 2)]);
        assert_eq!(places(&near(3, true)), [(0, 2), (5, 10)]);
        assert_eq!(places(&near(3, false)), [(0, 2), (1, 6), (5, 10)]);
        let less = Spans::Subtract(Box::new(term(0)), Box::new(near(0, true)));
        assert_eq!(places(&less), [(5, 6)]);
        let contains = |outer| Spans::Contains {
            little: Box::new(term(0)),
            big: Box::new(near(0, true)),
            outer,
        };
        assert_eq!(places(&contains(false)), [(0, 1)]);
        assert_eq!(places(&contains(true)), [(0, 2)]);
    }
}
