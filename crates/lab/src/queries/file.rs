//! The query file: read whole, and refused with the line that is wrong.

use super::variable::{Variable, VariableKind};
use super::wrong;
use crate::fault::{Fault, Result, local};
use crate::targets::QueryLanguage;
use crate::terms::count;
use std::ops::RangeInclusive;
use std::path::Path;

/// What a file says.
#[derive(Debug)]
pub struct File {
    /// All of it, for the result.
    pub text: String,
    pub variables: Vec<(String, VariableKind)>,
    pub before: Vec<Once>,
    pub after: Vec<Once>,
    pub queries: Vec<UserQuery>,
}

/// A statement beside the measurement.
#[derive(Clone, Debug)]
pub struct Once {
    pub line: usize,
    pub times: u64,
    pub language: QueryLanguage,
    pub text: String,
}

impl Once {
    /// Whether a target of that language is told it.
    pub fn is_told_in(&self, language: QueryLanguage) -> bool {
        understands(language, self.language)
    }
}

/// Whether a target of one language gets statements in another.
fn understands(language: QueryLanguage, said: QueryLanguage) -> bool {
    language == said || language == QueryLanguage::MySql && said == QueryLanguage::Sql
}

/// A query in one language.
#[derive(Clone, Debug)]
pub struct UserQuery {
    pub line: usize,
    pub name: String,
    /// How often it is asked, beside the others.
    pub weight: u64,
    /// How many records its answer may have, or how many it may change.
    pub rows: Option<RangeInclusive<u64>>,
    pub language: QueryLanguage,
    pub text: String,
}

/// What a block of the file is.
enum Head {
    Before(u64),
    After(u64),
    Query(UserQuery),
}

/// `NAME=NUMBER`, for `--define`.
pub fn define(text: &str) -> std::result::Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=NUMBER is expected")?;
    let value = value.trim().parse();
    let value = value.map_err(|_| format!("'{text}': the value is not a whole number"))?;
    Ok((name.trim().to_string(), value))
}

impl File {
    pub fn read(path: &Path, defined: &[(String, i64)]) -> Result<File> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(local(&name))?;
        File::parse(&text, defined).map_err(|fault| match fault {
            Fault::Usage(why) => Fault::Usage(format!("{name}: {why}")),
            other => other,
        })
    }

    pub fn parse(text: &str, defined: &[(String, i64)]) -> Result<File> {
        let mut file = File {
            text: text.to_string(),
            variables: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            queries: Vec::new(),
        };
        let mut head: Option<(usize, Head)> = None;
        let mut body = String::new();
        for (line, said) in (1..).zip(text.lines()) {
            let bare = said.trim();
            if bare.starts_with('#') {
                continue;
            }
            let next = match said.split_whitespace().next() {
                Some("set") => {
                    file.set(line, bare, defined)?;
                    None
                }
                Some(word @ ("before" | "after" | "query")) => {
                    Some(Head::parse(line, word, bare, |name| file.constant(name))?)
                }
                _ if head.is_none() && !bare.is_empty() => {
                    return Err(wrong(
                        line,
                        "set, before, query or after is expected before a statement",
                    ));
                }
                _ => {
                    body.push_str(said);
                    body.push('\n');
                    continue;
                }
            };
            file.block(head.take(), std::mem::take(&mut body))?;
            head = next.map(|h| (line, h));
        }
        file.block(head, body)?;
        file.check(defined)?;
        Ok(file)
    }

    /// `set NAME = …`; a constant of that name on the command line wins.
    fn set(&mut self, line: usize, said: &str, defined: &[(String, i64)]) -> Result<()> {
        let (name, value) = said
            .strip_prefix("set")
            .and_then(|rest| rest.split_once('='))
            .ok_or_else(|| wrong(line, "set NAME = VALUE is expected"))?;
        let name = name.trim();
        if !is_name(name) || self.variables.iter().any(|v| v.0 == name) {
            return Err(wrong(line, format!("'{name}' is no name, or one twice")));
        }
        let given = defined.iter().rfind(|d| d.0 == name);
        let kind = match given {
            Some((_, n)) => VariableKind::Constant(*n),
            None => {
                VariableKind::parse(value, |n| self.constant(n)).map_err(|why| wrong(line, why))?
            }
        };
        self.variables.push((name.to_string(), kind));
        Ok(())
    }

    /// The value of a constant that is set above.
    fn constant(&self, name: &str) -> Option<i64> {
        match self.variables.iter().find(|v| v.0 == name) {
            Some((_, VariableKind::Constant(n))) => Some(*n),
            _ => None,
        }
    }

    /// A block that has come to its end.
    fn block(&mut self, head: Option<(usize, Head)>, body: String) -> Result<()> {
        let Some((line, head)) = head else {
            return Ok(());
        };
        let text = body.trim().trim_end_matches(';').to_string();
        if text.is_empty() {
            return Err(wrong(line, "there is no statement below it"));
        }
        let language = match text.starts_with('{') {
            true => QueryLanguage::Commands,
            false => QueryLanguage::Sql,
        };
        let once = |times| Once {
            line,
            times,
            language,
            text: text.clone(),
        };
        match head {
            Head::Before(n) => self.before.push(once(n)),
            Head::After(n) => self.after.push(once(n)),
            Head::Query(q) => {
                let language = match (q.language, language) {
                    (QueryLanguage::MySql, QueryLanguage::Commands) => {
                        return Err(wrong(line, "a command is not for mysql"));
                    }
                    (QueryLanguage::MySql, _) => QueryLanguage::MySql,
                    (_, said) => said,
                };
                self.queries.push(UserQuery {
                    language,
                    text,
                    ..q
                });
            }
        }
        Ok(())
    }

    fn check(&self, defined: &[(String, i64)]) -> Result<()> {
        if self.queries.is_empty() {
            return Err(Fault::Usage("there is no query in it".into()));
        }
        for (i, q) in self.queries.iter().enumerate() {
            let same = |o: &&UserQuery| o.name == q.name && o.language == q.language;
            if self.queries[..i].iter().any(|o| same(&o)) {
                return Err(wrong(q.line, format!("a second query {}", q.name)));
            }
        }
        let known = |name: &str| self.variables.iter().any(|v| v.0 == name);
        match defined.iter().find(|d| !known(&d.0)) {
            Some((name, _)) => Err(Fault::Usage(format!("-D {name}: the file sets no {name}"))),
            None => Ok(()),
        }
    }

    /// The queries in a language; every name must have one.
    pub fn queries_in(&self, language: QueryLanguage) -> Result<Vec<&UserQuery>> {
        let own_form = |q: &UserQuery| {
            let same = |o: &&UserQuery| o.name == q.name && o.language == language;
            q.language == language || !self.queries.iter().any(|o| same(&o))
        };
        let own: Vec<&UserQuery> = self
            .queries
            .iter()
            .filter(|q| understands(language, q.language) && own_form(q))
            .collect();
        let told = |q: &&UserQuery| own.iter().any(|o| o.name == q.name);
        match self.queries.iter().find(|q| !told(q)) {
            Some(q) => Err(wrong(
                q.line,
                format!("query {} is not said in {}", q.name, language.name()),
            )),
            None => Ok(own),
        }
    }

    /// The names of the queries, in their order.
    pub fn names(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for q in &self.queries {
            if !all.contains(&q.name.as_str()) {
                all.push(&q.name);
            }
        }
        all
    }

    pub fn variables(&self) -> Vec<Variable> {
        let all = self.variables.iter();
        all.map(|(name, kind)| Variable::new(name, kind.clone()))
            .collect()
    }
}

pub fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Head {
    fn parse(
        line: usize,
        word: &str,
        said: &str,
        constant: impl Fn(&str) -> Option<i64>,
    ) -> Result<Head> {
        let mut words = said.split_whitespace().skip(1);
        if word != "query" {
            let times = match words.next() {
                Some(n) if n.starts_with(':') => constant(&n[1..])
                    .and_then(|n| u64::try_from(n).ok())
                    .ok_or_else(|| wrong(line, format!("'{n}' is no constant above zero")))?,
                Some(n) => count(n).map_err(|why| wrong(line, why))?,
                None => 1,
            };
            return match (words.next(), times) {
                (None, 1..) if word == "before" => Ok(Head::Before(times)),
                (None, 1..) => Ok(Head::After(times)),
                _ => Err(wrong(line, format!("{word} [TIMES] is expected"))),
            };
        }
        let name = words.next().unwrap_or_default();
        if !is_name(name) {
            return Err(wrong(
                line,
                "query NAME [weight N] [rows A..B] [on mysql] is expected",
            ));
        }
        let mut query = UserQuery {
            line,
            name: name.to_string(),
            weight: 1,
            rows: None,
            language: QueryLanguage::Sql,
            text: String::new(),
        };
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            let done = match word {
                "weight" => value
                    .parse()
                    .ok()
                    .filter(|n| *n > 0)
                    .map(|n| query.weight = n),
                "rows" => rows(value).map(|r| query.rows = Some(r)),
                "on" => (value == "mysql").then(|| query.language = QueryLanguage::MySql),
                _ => None,
            };
            if done.is_none() {
                return Err(wrong(
                    line,
                    format!("'{word} {value}': weight N, rows A..B or on mysql is expected"),
                ));
            }
        }
        Ok(Head::Query(query))
    }
}

/// `10` or `0..100`, both ends included.
fn rows(text: &str) -> Option<RangeInclusive<u64>> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high).then_some(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# a comment\nset n = 10\nset a = uniform(1, :n)\nbefore 2k\n{\"insert\":\n  \"t\"}\n\
        query q weight 3 rows 0..5\n{\"find\": \"t\"}\nquery q\nSELECT 1;\nafter\n{\"drop\": \"t\"}\n";

    #[test]
    fn a_file_is_read() {
        let f = File::parse(GOOD, &[]).unwrap();
        assert_eq!(f.variables[1].1, VariableKind::Uniform(1, 10));
        assert_eq!((f.before.len(), f.before[0].times), (1, 2000));
        assert_eq!(f.before[0].text, "{\"insert\":\n  \"t\"}");
        assert_eq!(f.after[0].language, QueryLanguage::Commands);
        let commands = f.queries_in(QueryLanguage::Commands).unwrap();
        assert_eq!((commands.len(), commands[0].weight), (1, 3));
        assert_eq!(commands[0].rows, Some(0..=5));
        assert_eq!(
            f.queries_in(QueryLanguage::Sql).unwrap()[0].text,
            "SELECT 1"
        );
        let two =
            "set n = 3\nbefore :n\nSELECT 1\nquery q on mysql rows 1\nSELECT 2\nquery q\nSELECT 3";
        let two = File::parse(two, &[]).unwrap();
        assert_eq!(two.before[0].times, 3);
        let said = |language| two.queries_in(language).map(|all| all[0].text.clone());
        assert_eq!(said(QueryLanguage::Sql).unwrap(), "SELECT 3");
        assert_eq!(said(QueryLanguage::MySql).unwrap(), "SELECT 2");
        assert!(
            two.before[0].is_told_in(QueryLanguage::MySql)
                && said(QueryLanguage::Commands).is_err()
        );
        let defined = [("n".to_string(), 99)];
        let f = File::parse(GOOD, &defined).unwrap();
        assert_eq!(f.variables[1].1, VariableKind::Uniform(1, 99));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line) in [
            ("SELECT 1", "line 1"),
            ("set a = 1\nset a = 2\nquery q\nSELECT 1", "line 2"),
            ("query q\n\nquery r\nSELECT 1", "line 1"),
            ("query q weight 0\nSELECT 1", "line 1"),
            ("query q rows 5..1\nSELECT 1", "line 1"),
            ("query q often\nSELECT 1", "line 1"),
            ("query 1q\nSELECT 1", "line 1"),
            ("query q\nSELECT 1\nquery q\nSELECT 2", "line 3"),
            ("before none\nSELECT 1", "line 1"),
            ("before :n\nSELECT 1", "line 1"),
            ("query q on oracle\nSELECT 1", "line 1"),
            ("query q on mysql\n{\"ping\": 1}", "line 1"),
            ("set a = normal(1, 2)\nquery q\nSELECT 1", "line 1"),
            ("set a = 1", "no query"),
        ] {
            let said = File::parse(text, &[]).unwrap_err().to_string();
            assert!(said.contains(line), "{text}: {said}");
        }
        let unknown = [("m".to_string(), 1)];
        assert!(File::parse(GOOD, &unknown).is_err());
        let one = File::parse("query q\nSELECT 1", &[]).unwrap();
        let said = one
            .queries_in(QueryLanguage::Commands)
            .unwrap_err()
            .to_string();
        assert!(said.contains("query q"), "{said}");
    }
}
