//! `queryString`: a query as Lucene's users write it.
//!
//! ```text
//! list    = part+                        any of them, or as + and - say
//! part    = one (AND one)*
//! one     = [+ | - | ! | NOT] [field:] ( ( list ) | "phrase"[~slop] | /regex/ | range | word[~edits] ) [^boost]
//! range   = [low TO high] | {low TO high}       `*`: no bound
//! ```
//! Source: Lucene's "Query Parser Syntax".

use crate::fields::SpecificationFields;
use crate::operator::{
    Bounds, Clause, Fuzzy, MOST_CLAUSES, Operator, PathSpec, ScoreChange, Text, too_many_clauses,
};
use crate::problem::wrong;
use crate::terms::{kind, number_bytes};
use errors::Result;
use errors::operation::step;

/// How deep parentheses may nest.
const MOST_DEPTH: usize = 32;

pub(crate) fn parse(f: &SpecificationFields<'_>) -> Result<Operator> {
    let path = f.required_string("defaultPath")?;
    let query = f.required_string("query")?;
    let mut parser = Parser {
        query,
        chars: query.chars().collect(),
        at: 0,
        field: path.to_string(),
        clauses: 0,
    };
    let clause = parser.list(0)?;
    match parser.peek() {
        None => Ok(with_score(clause)),
        Some(_) => Err(parser.unparsed()),
    }
}

/// A clause as an operator, which has no score of its own.
fn with_score(clause: Clause) -> Operator {
    match clause.score {
        ScoreChange::None => clause.operator,
        _ => Operator::Compound {
            must: vec![clause],
            should: Vec::new(),
            must_not: Vec::new(),
            filter: Vec::new(),
            least: 0,
        },
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Occur {
    Should,
    Must,
    Not,
}

struct Parser<'q> {
    query: &'q str,
    chars: Vec<char>,
    at: usize,
    /// Where words are looked for.
    field: String,
    clauses: usize,
}

fn plain(operator: Operator) -> Clause {
    Clause {
        operator,
        score: ScoreChange::None,
    }
}

fn together(mut parts: Vec<(Occur, Clause)>) -> Clause {
    if parts.len() == 1
        && let Some((occur, one)) = parts.pop()
    {
        match occur {
            Occur::Not => parts.push((occur, one)),
            _ => return one,
        }
    }
    let (mut must, mut should, mut must_not) = (Vec::new(), Vec::new(), Vec::new());
    for (occur, clause) in parts {
        match occur {
            Occur::Should => should.push(clause),
            Occur::Must => must.push(clause),
            Occur::Not => must_not.push(clause),
        }
    }
    plain(Operator::Compound {
        least: usize::from(must.is_empty() && !should.is_empty()),
        must,
        should,
        must_not,
        filter: Vec::new(),
    })
}

impl Parser<'_> {
    fn unparsed(&self) -> errors::Stop {
        wrong(format!(
            "cannot parse \"queryString.query\": {}",
            self.query
        ))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn takes(&mut self, c: char) -> bool {
        let there = self.peek() == Some(c);
        self.at += usize::from(there);
        there
    }

    /// Takes an operator of several characters; one of letters stands alone.
    fn takes_word(&mut self, word: &str) -> bool {
        let n = word.chars().count();
        let there = word
            .chars()
            .enumerate()
            .all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        let behind = self.chars.get(self.at + n).copied();
        let alone = !word.starts_with(char::is_alphabetic)
            || behind.is_none_or(|c| c.is_whitespace() || c == '(' || c == ')');
        let found = there && alone;
        self.at += if found { n } else { 0 };
        found
    }

    fn list(&mut self, depth: usize) -> Result<Clause> {
        if depth > MOST_DEPTH {
            return Err(self.unparsed());
        }
        let mut parts = Vec::new();
        loop {
            self.skip_spaces();
            if self.peek().is_none_or(|c| c == ')') {
                break;
            }
            if self.takes_word("OR") || self.takes_word("||") {
                self.skip_spaces();
                if parts.is_empty() || self.peek().is_none_or(|c| c == ')') {
                    return Err(self.unparsed());
                }
            }
            parts.push(self.part(depth)?);
        }
        match parts.is_empty() {
            true => Err(self.unparsed()),
            false => Ok(together(parts)),
        }
    }

    fn part(&mut self, depth: usize) -> Result<(Occur, Clause)> {
        let mut all = vec![self.one(depth)?];
        loop {
            self.skip_spaces();
            if !(self.takes_word("AND") || self.takes_word("&&")) {
                break;
            }
            self.skip_spaces();
            all.push(self.one(depth)?);
        }
        if all.len() == 1
            && let Some(one) = all.pop()
        {
            return Ok(one);
        }
        let required = |(occur, clause)| match occur {
            Occur::Not => (Occur::Not, clause),
            _ => (Occur::Must, clause),
        };
        let all = all.into_iter().map(required).collect();
        Ok((Occur::Should, together(all)))
    }

    fn one(&mut self, depth: usize) -> Result<(Occur, Clause)> {
        step()?;
        self.clauses += 1;
        if self.clauses > MOST_CLAUSES {
            return Err(too_many_clauses());
        }
        let occur = if self.takes('+') {
            Occur::Must
        } else if self.takes('-') || self.takes('!') || self.takes_word("NOT") {
            Occur::Not
        } else {
            Occur::Should
        };
        self.skip_spaces();
        let outer = self.field.clone();
        if let Some(name) = self.field_name() {
            self.field = name;
        }
        let operator = self.operand(depth)?;
        self.field = outer;
        let score = match self.takes('^') {
            true => ScoreChange::Boost(self.number().ok_or_else(|| self.unparsed())? as f32),
            false => ScoreChange::None,
        };
        Ok((occur, Clause { operator, score }))
    }

    /// A name and its colon.
    fn field_name(&mut self) -> Option<String> {
        let rest = self.chars.get(self.at..)?;
        let end = rest
            .iter()
            .position(|c| !(c.is_alphanumeric() || matches!(c, '_' | '.' | '-')))?;
        if end == 0 || rest.get(end) != Some(&':') {
            return None;
        }
        self.at += end + 1;
        Some(rest.iter().take(end).collect())
    }

    fn path(&self) -> Vec<PathSpec> {
        vec![match self.field.contains('*') {
            true => PathSpec::Wildcard(self.field.clone()),
            false => PathSpec::Path(self.field.clone()),
        }]
    }

    fn operand(&mut self, depth: usize) -> Result<Operator> {
        match self.peek() {
            Some('(') => {
                self.at += 1;
                let inner = self.list(depth + 1)?;
                match self.takes(')') {
                    true => Ok(with_score(inner)),
                    false => Err(self.unparsed()),
                }
            }
            Some('"') => {
                let text = self.until('"')?;
                let slop = match self.takes('~') {
                    true => self.number().unwrap_or(0.0) as u32,
                    false => 0,
                };
                Ok(Operator::Phrase {
                    paths: self.path(),
                    query: vec![text],
                    slop,
                    synonyms: None,
                })
            }
            Some('/') => {
                let text = self.until('/')?;
                Ok(self.pattern(text, true))
            }
            Some('[' | '{') => self.range(),
            _ => self.word(),
        }
    }

    fn pattern(&self, text: String, regex: bool) -> Operator {
        Operator::Pattern {
            paths: self.path(),
            query: vec![text],
            analyzed: true,
            regex,
        }
    }

    /// What stands between two of a character.
    fn until(&mut self, end: char) -> Result<String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return Err(self.unparsed()),
                Some(c) if c == end => break,
                Some('\\') if end == '"' => {
                    self.at += 1;
                    text.extend(self.peek());
                }
                Some(c) => text.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        match text.is_empty() {
            true => Err(self.unparsed()),
            false => Ok(text),
        }
    }

    fn number(&mut self) -> Option<f64> {
        let rest = self.chars.get(self.at..)?;
        let digits: String = rest
            .iter()
            .take_while(|c| c.is_ascii_digit() || **c == '.')
            .collect();
        self.at += digits.len();
        digits.parse().ok()
    }

    fn word(&mut self) -> Result<Operator> {
        let (mut text, mut pattern, mut escaped) = (String::new(), false, false);
        while let Some(c) = self.peek() {
            if escaped {
                // Patterns know the same mark.
                escaped = false;
                text.push(c);
            } else if c == '\\' {
                escaped = true;
                text.push(c);
            } else if c.is_whitespace()
                || matches!(c, '(' | ')' | '"' | '~' | '^' | ':' | '[' | ']' | '{' | '}')
            {
                break;
            } else {
                pattern |= matches!(c, '*' | '?');
                text.push(c);
            }
            self.at += 1;
        }
        if escaped || text.is_empty() || matches!(text.as_str(), "AND" | "OR" | "NOT" | "&&" | "||")
        {
            return Err(self.unparsed());
        }
        if text == "*" {
            return Ok(Operator::Exists {
                path: self.field.clone(),
            });
        }
        if pattern {
            return Ok(self.pattern(crate::analysis::lower(&text), false));
        }
        let fuzzy = match self.takes('~') {
            true => Some(Fuzzy {
                edits: self.number().map_or(2, |n| (n as usize).clamp(1, 2)),
                prefix: 0,
                expansions: 50,
            }),
            false => None,
        };
        Ok(Operator::Text {
            paths: self.path(),
            text: Text {
                query: vec![text.replace('\\', "")],
                fuzzy,
                ..Text::default()
            },
        })
    }

    fn range(&mut self) -> Result<Operator> {
        let low_in = self.takes('[');
        self.at += usize::from(!low_in);
        let mut words = Vec::new();
        let high_in = loop {
            self.skip_spaces();
            match self.peek() {
                None => return Err(self.unparsed()),
                Some(c @ (']' | '}')) => {
                    self.at += 1;
                    break c == ']';
                }
                Some('"') => words.push(self.until('"')?),
                Some(_) => {
                    let rest = self.chars.get(self.at..).unwrap_or(&[]);
                    let word: String = rest
                        .iter()
                        .take_while(|c| !c.is_whitespace() && !matches!(c, ']' | '}'))
                        .collect();
                    self.at += word.chars().count();
                    words.push(word);
                }
            }
        };
        let [low, to, high] = &words[..] else {
            return Err(self.unparsed());
        };
        if to != "TO" || low == "*" && high == "*" {
            return Err(self.unparsed());
        }
        let number = |s: &String| s.parse::<f64>().ok();
        let numbers = [low, high].iter().all(|s| *s == "*" || number(s).is_some());
        let bound = |s: &String, inclusive: bool| {
            let bytes = match number(s).filter(|_| numbers) {
                Some(n) => number_bytes(n).to_vec(),
                None => s.as_bytes().to_vec(),
            };
            (s != "*").then_some((bytes, inclusive))
        };
        Ok(Operator::Range {
            paths: vec![self.field.clone()],
            bounds: Bounds {
                kind: if numbers { kind::NUMBER } else { kind::STRING },
                low: bound(low, low_in),
                high: bound(high, high_in),
            },
        })
    }
}
