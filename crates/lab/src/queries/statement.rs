//! A statement of the user's, made ready: a command as a whole message in which variables are patched in place, or SQL in
//! pieces with variables between them.

use super::file::is_name;
use super::variable::{Drawn, Variable};
use super::wrong;
use crate::fault::{Fault, Result};
use crate::request::Template;
use crate::targets::{Dialect, QueryLanguage};
use bson::{Doc, Writer};

#[derive(Clone, Debug)]
pub enum Statement {
    /// With the variable of each slot.
    Command(Template, Vec<usize>),
    Sql(Vec<Piece>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    Variable(usize),
}

impl Statement {
    pub fn new(
        (line, text): (usize, &str),
        language: QueryLanguage,
        database: &str,
        variables: &[Variable],
    ) -> Result<Statement> {
        match language {
            QueryLanguage::Sql | QueryLanguage::MySql => {
                Ok(Statement::Sql(pieces(text, variables)))
            }
            QueryLanguage::Commands => {
                let command = bson::json::parse(text).map_err(|why| wrong(line, why))?;
                let mut made = Writer::new();
                let mut slots = Vec::new();
                copy(
                    command.as_doc(),
                    &mut made,
                    &mut Vec::new(),
                    &mut Known {
                        variables,
                        slots: &mut slots,
                    },
                )
                .map_err(|why| wrong(line, why))?;
                if !command.as_doc().contains("$db") {
                    made.str("$db", database);
                }
                let mut template = Template::new(made.finish().as_doc(), None, 0);
                for (path, _) in &slots {
                    let path: Vec<&str> = path.iter().map(String::as_str).collect();
                    template = template.slot(&path);
                }
                let of = slots.into_iter().map(|(_, variable)| variable).collect();
                Ok(Statement::Command(template, of))
            }
        }
    }

    /// Appends the request with the values drawn last.
    pub fn write(
        &self,
        variables: &[Variable],
        drawn: &[Drawn],
        dialect: &dyn Dialect,
        sql: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        match self {
            Statement::Command(template, of) => {
                let values: Vec<&[u8]> = of.iter().map(|v| drawn[*v].bytes.as_slice()).collect();
                template.write(out, &values);
            }
            Statement::Sql(pieces) => {
                sql.clear();
                for piece in pieces {
                    match piece {
                        Piece::Text(text) => sql.extend_from_slice(text.as_bytes()),
                        Piece::Variable(v) => drawn[*v].write_sql(&variables[*v], sql),
                    }
                }
                dialect.statement(sql, out);
            }
        }
    }

    /// The variables that it needs.
    pub fn uses(&self) -> Vec<usize> {
        let mut all: Vec<usize> = match self {
            Statement::Command(_, of) => of.clone(),
            Statement::Sql(pieces) => pieces
                .iter()
                .filter_map(|p| match p {
                    Piece::Variable(v) => Some(*v),
                    Piece::Text(_) => None,
                })
                .collect(),
        };
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// SQL cut at `:name`s of variables; all other colons (`::bigint`, a time) stay.
fn pieces(text: &str, variables: &[Variable]) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(':') {
        let (before, after) = rest.split_at(at);
        let name: String = after[1..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let doubled = before.ends_with(':') || (before.is_empty() && plain.ends_with(':'));
        let variable = variables.iter().position(|v| v.name == name);
        plain.push_str(before);
        match variable.filter(|_| !doubled) {
            Some(v) => {
                out.push(Piece::Text(std::mem::take(&mut plain)));
                out.push(Piece::Variable(v));
                rest = &after[1 + name.len()..];
            }
            None => {
                plain.push(':');
                rest = &after[1..];
            }
        }
    }
    plain.push_str(rest);
    out.push(Piece::Text(plain));
    out
}

struct Known<'a> {
    variables: &'a [Variable],
    /// Where variables stand, and which.
    slots: &'a mut Vec<(Vec<String>, usize)>,
}

/// Copies a document, a value of the right type in place of each `":name"`.
fn copy(
    from: Doc<'_>,
    to: &mut Writer,
    path: &mut Vec<String>,
    known: &mut Known<'_>,
) -> std::result::Result<(), String> {
    for e in from.iter() {
        path.push(e.name.to_string());
        let named = e.val.as_str().and_then(|s| s.strip_prefix(':'));
        if let Some(name) = named.filter(|n| is_name(n)) {
            let variable = known.variables.iter().position(|v| v.name == name);
            let variable = variable.ok_or_else(|| format!("there is no variable :{name}"))?;
            to.value(e.name, known.variables[variable].kind.sample());
            known.slots.push((path.clone(), variable));
        } else if let Some(inner) = e.val.as_doc() {
            let mut w = Writer::new();
            copy(inner, &mut w, path, known)?;
            to.value(e.name, w.finish());
        } else if let Some(inner) = e.val.as_array() {
            let mut w = Writer::new();
            copy(inner, &mut w, path, known)?;
            let array = bson::Value::from_bytes(bson::tag::ARRAY, w.finish().as_bytes().to_vec());
            to.value(e.name, array);
        } else {
            to.val(e.name, e.val);
        }
        path.pop();
    }
    Ok(())
}

/// Whether an answer has as many records as it may.
pub fn due(name: &str, got: u64, rows: Option<&std::ops::RangeInclusive<u64>>) -> Result<()> {
    match rows.filter(|r| !r.contains(&got)) {
        None => Ok(()),
        Some(r) => Err(Fault::Check(format!(
            "query {name}: {got} records where {} to {} were due",
            r.start(),
            r.end()
        ))),
    }
}

/// The message's body, for tests.
#[cfg(test)]
fn body(message: &[u8]) -> bson::DocBuf {
    let (_, wire::Message::Msg(m)) = wire::parse(message).unwrap() else {
        panic!("no OP_MSG")
    };
    Doc::new(m.body).unwrap().to_buf()
}

#[cfg(test)]
mod tests {
    use super::super::variable::VariableKind;
    use super::*;
    use crate::random::Rng;
    use bson::Val;

    fn variables() -> Vec<Variable> {
        vec![
            Variable::new("n", VariableKind::Sequence(7)),
            Variable::new("t", VariableKind::Text(4)),
        ]
    }

    #[test]
    fn variables_of_commands_are_patched_wherever_they_stand() {
        let variables = variables();
        let text = r#"{"update": "t", "updates": [{"q": {"a": {"$in": [1, ":n"]}}, "u": {"$set": {"t": ":t", "n": ":n"}}}]}"#;
        let s = Statement::new((3, text), QueryLanguage::Commands, "d", &variables).unwrap();
        assert_eq!(s.uses(), [0, 1]);
        let Statement::Command(template, of) = &s else {
            panic!("a command")
        };
        let mut drawn: Vec<Drawn> = variables.iter().map(Drawn::new).collect();
        let mut rng = Rng::new(1);
        drawn
            .iter_mut()
            .zip(&variables)
            .for_each(|(d, v)| d.draw(v, &mut rng));
        let values: Vec<&[u8]> = of.iter().map(|v| drawn[*v].bytes.as_slice()).collect();
        let mut out = Vec::new();
        template.write(&mut out, &values);
        let said = body(&out);
        bson::validate(said.as_bytes()).unwrap();
        let first = |d: Doc<'_>, name: &str| d.get(name).unwrap().as_doc().unwrap().to_buf();
        let update = said.get("updates").and_then(Val::as_array).unwrap();
        let update = update.values().next().unwrap().as_doc().unwrap();
        let set = first(first(update, "u").as_doc(), "$set");
        assert_eq!(set.get("n").and_then(Val::as_i64), Some(7));
        let t = set.get("t").and_then(Val::as_str).unwrap().to_string();
        assert!(t.len() == 4 && t != "xxxx", "{t}");
        let listed = first(first(update, "q").as_doc(), "a");
        let listed = listed.get("$in").and_then(Val::as_array).unwrap();
        assert_eq!(listed.values().nth(1).unwrap().as_i64(), Some(7));
        assert_eq!(said.get("$db").and_then(Val::as_str), Some("d"));
        let bad = Statement::new(
            (3, r#"{"find": ":m"}"#),
            QueryLanguage::Commands,
            "d",
            &variables,
        );
        assert!(bad.unwrap_err().to_string().contains("line 3"));
        assert!(Statement::new((1, "{"), QueryLanguage::Commands, "d", &variables).is_err());
    }

    #[test]
    fn sql_is_cut_at_variables_and_nowhere_else() {
        let text = "SELECT a::text, :n, '12:30', :nn FROM t WHERE t = :t";
        let cut = pieces(text, &variables());
        let of = |i: usize| cut[i].clone();
        assert_eq!(cut.len(), 5);
        assert_eq!(of(0), Piece::Text("SELECT a::text, ".into()));
        assert_eq!(of(1), Piece::Variable(0));
        assert_eq!(
            of(2),
            Piece::Text(", '12:30', :nn FROM t WHERE t = ".into())
        );
        assert_eq!(
            (of(3), of(4)),
            (Piece::Variable(1), Piece::Text(String::new()))
        );
    }
}
