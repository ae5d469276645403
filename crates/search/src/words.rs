//! From the tokens of a search to queries: one behind the other, or beside each other as a graph.
//!
//! Tokens at the same place are one word that is written in several ways. Where some stand for more positions than others
//! each way through them is a phrase of its own.
//!
//! Source: Lucene's `QueryBuilder` and `GraphTokenStreamFiniteStrings`.

use crate::analysis::Token;
use crate::compiler::{Compiler, Made, any_of};
use crate::definition::{OrProblem, StringType};
use crate::operator::{MOST_CLAUSES, SynonymsOf, too_many_clauses};
use crate::phrase::PhraseQuery;
use crate::problem::wrong;
use crate::score::{Bm25, WordQuery, idf};
use errors::Result;
use errors::operation::step;
use std::sync::Arc;
use tantivy::Term;

/// What stands between two positions that all ways lead over.
struct Stretch<'a> {
    tokens: &'a [Token],
    end: usize,
}

impl Stretch<'_> {
    /// Whether each token leads over all of it.
    fn is_one_place(&self) -> bool {
        let start = self.tokens.first().map_or(0, |t| t.position);
        let over = |t: &Token| t.position == start && t.position + t.length == self.end;
        self.tokens.iter().all(over)
    }
}

fn stretches(tokens: &[Token]) -> Vec<Stretch<'_>> {
    let mut out: Vec<Stretch<'_>> = Vec::new();
    let (mut from, mut end) = (0, 0);
    for (n, token) in tokens.iter().enumerate() {
        if n > from && token.position >= end {
            out.push(Stretch {
                tokens: tokens.get(from..n).unwrap_or(&[]),
                end,
            });
            from = n;
        }
        end = end.max(token.position + token.length);
    }
    if from < tokens.len() {
        out.push(Stretch {
            tokens: tokens.get(from..).unwrap_or(&[]),
            end,
        });
    }
    out
}

/// The ways through tokens up to a position, at most as many as a search may have clauses.
pub(crate) fn ways<'t>(tokens: &'t [Token], end: usize) -> Result<Vec<Vec<&'t Token>>> {
    let start = tokens.first().map_or(0, |t| t.position);
    let mut open: Vec<(usize, Vec<&'t Token>)> = vec![(start, Vec::new())];
    let mut out = Vec::new();
    while let Some((at, way)) = open.pop() {
        step()?;
        if at >= end {
            out.push(way);
        } else {
            // Where a word was left out the way goes on behind it.
            let here = tokens.iter().map(|t| t.position).filter(|p| *p >= at).min();
            let Some(here) = here else {
                out.push(way);
                continue;
            };
            for token in tokens.iter().rev().filter(|t| t.position == here) {
                let mut way = way.clone();
                way.push(token);
                open.push((here + token.length.max(1), way));
            }
        }
        if open.len() + out.len() > MOST_CLAUSES {
            return Err(too_many_clauses());
        }
    }
    Ok(out)
}

/// Where the tokens of a way stand when it is written alone. A gap stays one.
pub(crate) fn places_of(way: &[&Token]) -> Vec<usize> {
    let (mut at, mut end) = (0, way.first().map_or(0, |t| t.position));
    let each = way.iter().map(|token| {
        let here = at + token.position.saturating_sub(end);
        at = here + 1;
        end = token.position + token.length;
        here
    });
    each.collect()
}

impl Compiler<'_, '_> {
    /// The tokens of a search's text, with their synonyms.
    pub(crate) fn query_tokens(
        &self,
        analyzers: &StringType,
        text: &str,
        synonyms: Option<&SynonymsOf>,
    ) -> Result<Vec<Token>> {
        let analyzer = &analyzers.search;
        let Some(of) = synonyms else {
            let mut tokens = analyzer.tokens(text);
            if !analyzer.is_graph() {
                tokens.iter_mut().for_each(|t| t.length = 1);
            }
            return Ok(tokens);
        };
        match self.snapshot.synonyms.get(&of.name) {
            None => Err(wrong(format!(
                "\"{}\" is not a synonym mapping: {}",
                of.at, of.name
            ))),
            Some(Err(problem)) => Err(wrong(format!(
                "\"{}\" names a synonym mapping that cannot be used: {}: {problem}",
                of.at, of.name
            ))),
            Some(Ok(map)) => map.expand(&of.at, analyzer, text),
        }
    }

    /// A query for each place of a text.
    pub(crate) fn words(&self, path: u32, tokens: &[Token]) -> Result<Vec<Made>> {
        let mut out = Vec::new();
        for stretch in stretches(tokens) {
            step()?;
            if out.len() >= MOST_CLAUSES {
                return Err(too_many_clauses());
            }
            out.push(match stretch.is_one_place() {
                true => {
                    let words: Vec<&str> = stretch.tokens.iter().map(|t| t.text.as_str()).collect();
                    self.word(path, &words)?
                }
                false => {
                    let mut all = Vec::new();
                    for way in ways(stretch.tokens, stretch.end)? {
                        all.extend(self.way(path, &way, 0)?);
                    }
                    any_of(all)
                }
            });
        }
        Ok(out)
    }

    /// The phrases of a text: one, or one for each way through it. `None` without words.
    pub(crate) fn phrases(&self, path: u32, tokens: &[Token], slop: u32) -> Result<Vec<Made>> {
        if tokens.iter().any(|t| t.length > 1) {
            let end = tokens.iter().map(|t| t.position + t.length).max();
            let mut out = Vec::new();
            for way in ways(tokens, end.unwrap_or(0))? {
                out.extend(self.way(path, &way, slop)?);
            }
            return Ok(out);
        }
        let mut places: Vec<(usize, Vec<&str>)> = Vec::new();
        for token in tokens {
            match places.last_mut().filter(|(at, _)| *at == token.position) {
                Some((_, words)) => words.push(&token.text),
                None => places.push((token.position, vec![&token.text])),
            }
        }
        Ok(self.phrase_of(path, &places, slop)?.into_iter().collect())
    }

    /// One way through a text as a phrase.
    fn way(&self, path: u32, way: &[&Token], slop: u32) -> Result<Option<Made>> {
        let mut places: Vec<(usize, Vec<&str>)> = Vec::new();
        for (token, at) in way.iter().zip(places_of(way)) {
            places.push((at, vec![&token.text]));
        }
        self.phrase_of(path, &places, slop)
    }

    fn phrase_of(
        &self,
        path: u32,
        places: &[(usize, Vec<&str>)],
        slop: u32,
    ) -> Result<Option<Made>> {
        if places.len() > MOST_CLAUSES {
            return Err(too_many_clauses());
        }
        match places {
            [] => return Ok(None),
            [(_, words)] => return self.word(path, words).map(Some),
            _ => {}
        }
        let mut sum = 0.0;
        let mut terms = Vec::new();
        for (place, words) in places {
            step()?;
            let of_place: Vec<Term> = words.iter().map(|w| self.term(path, w)).collect();
            for term in &of_place {
                sum += self.idf(path, term)?;
            }
            terms.push((of_place, u32::try_from(*place).unwrap_or(u32::MAX)));
        }
        Ok(Some(Box::new(PhraseQuery {
            terms,
            slop,
            bm25: Arc::new(Bm25::new(self.snapshot, path, sum)?),
        })))
    }

    /// Documents with one of some words that mean the same: as rare as the most frequent of them.
    pub(crate) fn word(&self, path: u32, words: &[&str]) -> Result<Made> {
        let mut terms: Vec<Term> = Vec::new();
        for word in words {
            let term = self.term(path, word);
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        let mut most = 0;
        for term in &terms {
            most = most.max(self.snapshot.searcher.doc_freq(term).or_problem()?);
        }
        let idf = idf(self.snapshot.length_sum(path)?.documents, most);
        Ok(Box::new(WordQuery {
            terms,
            bm25: Arc::new(Bm25::new(self.snapshot, path, idf)?),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, position: usize, length: usize) -> Token {
        Token {
            text: text.into(),
            position,
            length,
            start: 0,
            end: 0,
            keyword: false,
        }
    }

    #[test]
    fn a_graph_has_stretches_and_ways() {
        let tokens = [
            token("red", 0, 1),
            token("motor", 1, 1),
            token("car", 1, 2),
            token("vehicle", 2, 1),
            token("here", 3, 1),
        ];
        let parts = stretches(&tokens);
        let sizes: Vec<usize> = parts.iter().map(|s| s.tokens.len()).collect();
        assert_eq!(sizes, [1, 3, 1]);
        assert!(parts[0].is_one_place() && !parts[1].is_one_place());
        let words = |ways: Vec<Vec<&Token>>| -> Vec<String> {
            let joined = |w: &Vec<&Token>| {
                let words: Vec<&str> = w.iter().map(|t| t.text.as_str()).collect();
                words.join(" ")
            };
            ways.iter().map(joined).collect()
        };
        let inner = ways(parts[1].tokens, parts[1].end).unwrap();
        assert_eq!(words(inner), ["motor vehicle", "car"]);
        let all = ways(&tokens, 4).unwrap();
        assert_eq!(words(all), ["red motor vehicle here", "red car here"]);
    }

    #[test]
    fn a_graph_with_too_many_ways_is_refused() {
        let mut tokens = Vec::new();
        for n in 0..20 {
            tokens.push(token("a", n * 2, 1));
            tokens.push(token("b", n * 2, 2));
            tokens.push(token("c", n * 2 + 1, 1));
        }
        assert!(ways(&tokens, 40).is_err());
    }
}
