//! `$redact`: an expression that says of each document and each document inside it whether it
//! stays.

use super::{IdleVisitor, PipelineHost, Source};
use crate::expr::{EvalCtx, Expression, ParseEnv, Scope, Vars};
use crate::metadata::Metadata;
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Result, bail};
use std::sync::Arc;

/// What the variables stand for: values that no expression over data gives by accident.
const KEEP: &str = "\u{1}keep";
const PRUNE: &str = "\u{1}prune";
const DESCEND: &str = "\u{1}descend";

pub(super) fn parse(spec: Val<'_>, env: &ParseEnv) -> Result<Expression> {
    let mut env = env.clone();
    // Paths start at the document that is looked at, not at the whole one.
    for name in ["KEEP", "PRUNE", "DESCEND", "CURRENT"] {
        env.define_unchecked(name);
    }
    Expression::parse(spec, &env)
}

pub(super) struct Run {
    input: Box<dyn Source>,
    expression: Arc<Expression>,
    vars: Arc<Vars>,
    out: Vec<u8>,
}

/// The variables that an expression names, and what it may answer.
pub(super) fn vars_with_answers(vars: &Vars) -> Vars {
    let mut vars = vars.clone();
    for (name, v) in [("KEEP", KEEP), ("PRUNE", PRUNE), ("DESCEND", DESCEND)] {
        vars.set(name, Value::symbol(v));
    }
    vars
}

/// Appends what stays of `doc` to `out`; false when nothing does.
pub(super) fn redact(
    expression: &Expression,
    vars: &Vars,
    doc: Doc<'_>,
    out: &mut Vec<u8>,
) -> Result<bool> {
    let walk = Walk {
        expression,
        vars,
        root: doc,
    };
    match walk.verdict(doc)? {
        Verdict::Prune => return Ok(false),
        Verdict::Keep => out.extend_from_slice(doc.as_bytes()),
        Verdict::Descend => {
            let mut w = Writer::on(std::mem::take(out));
            walk.fields(doc, &mut w)?;
            *out = w.finish_into();
        }
    }
    Ok(true)
}

impl Run {
    pub fn new(input: Box<dyn Source>, expression: Arc<Expression>, vars: Arc<Vars>) -> Run {
        Run {
            input,
            expression,
            vars: Arc::new(vars_with_answers(&vars)),
            out: Vec::new(),
        }
    }
}

enum Verdict {
    Keep,
    Prune,
    Descend,
}

struct Walk<'a> {
    expression: &'a Expression,
    vars: &'a Vars,
    root: Doc<'a>,
}

impl Walk<'_> {
    fn verdict(&self, doc: Doc<'_>) -> Result<Verdict> {
        let current = Scope::One {
            name: "CURRENT",
            value: Some(doc.as_val()),
            parent: None,
        };
        let ctx = EvalCtx::new(self.root, self.vars).inside(&current);
        let v = self.expression.evaluate(&ctx)?;
        let v = v.or_null();
        let text = if v.tag == tag::SYMBOL {
            v.str_bytes()
        } else {
            None
        };
        match text {
            Some(t) if t == KEEP.as_bytes() => Ok(Verdict::Keep),
            Some(t) if t == PRUNE.as_bytes() => Ok(Verdict::Prune),
            Some(t) if t == DESCEND.as_bytes() => Ok(Verdict::Descend),
            _ => bail!(
                17053,
                "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and \
                 $$PRUNE, but returned {v}"
            ),
        }
    }

    /// Writes the fields of `doc` that stay.
    fn fields(&self, doc: Doc<'_>, w: &mut Writer) -> Result<()> {
        for e in doc.iter() {
            self.value(e.name, e.val, w)?;
        }
        Ok(())
    }

    fn value(&self, name: &str, v: Val<'_>, w: &mut Writer) -> Result<()> {
        match v.tag {
            tag::DOCUMENT => {
                let d = v.as_doc().unwrap_or(Doc::EMPTY);
                match self.verdict(d)? {
                    Verdict::Keep => {
                        w.val(name, v);
                    }
                    Verdict::Prune => {}
                    Verdict::Descend => {
                        w.open_doc(name);
                        self.fields(d, w)?;
                        w.close();
                    }
                }
            }
            tag::ARRAY => {
                w.open_array(name);
                for item in v.as_array().unwrap_or(Doc::EMPTY).values() {
                    self.value("", item, w)?;
                }
                w.close();
            }
            _ => {
                w.val(name, v);
            }
        }
        Ok(())
    }
}

impl Source for Run {
    fn advance(&mut self, host: &mut dyn PipelineHost) -> Result<bool> {
        while self.input.advance(host)? {
            self.out.clear();
            let doc = self.input.doc();
            if redact(&self.expression, &self.vars, doc, &mut self.out)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn doc(&self) -> Doc<'_> {
        Doc::new(&self.out).unwrap_or(Doc::EMPTY)
    }

    fn meta(&self) -> &Metadata {
        self.input.meta()
    }

    fn parts(&mut self, wanted: bool, to: &mut dyn IdleVisitor) -> Result<()> {
        self.input.parts(false, to)?;
        to.doc(&mut self.out, wanted)
    }
}
