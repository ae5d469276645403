//! The table of operators: one row each. A new operator is a row in the `OPS` of its family's file.

use super::node::{Call, Computed, EvalCtx, Node};
use super::parse::{ParseEnv, Parsed};
use super::{
    arithmetic, array, array_build, bits, boolean, control, convert, date, date_arithmetic, hash,
    ladder, object, regex, script, set, string, string_position, trigonometry, values,
};
use bson::{Val, Value, Writer};
use errors::Result;
use std::collections::HashMap;
use std::sync::OnceLock;

pub(crate) type Eval = for<'a> fn(&'a Call, &EvalCtx<'a>) -> Result<Computed<'a>>;

/// How an operator's argument is written.
#[derive(Clone, Copy)]
pub(crate) enum Syntax {
    /// An array of that many operands; one operand may stand without the array.
    Args { min: usize, max: usize },
    /// An object of named operands.
    Named(&'static Named),
    /// Anything else. `names`: how the arguments print.
    Custom {
        parse: fn(&'static Op, Val<'_>, &ParseEnv) -> Result<Parsed>,
        names: &'static [&'static str],
    },
}

/// Named operands, each with the error code when it is missing (0: optional), and the codes of the
/// two other mistakes.
pub(crate) struct Named {
    pub(crate) fields: &'static [(&'static str, i32)],
    pub(crate) not_object: i32,
    pub(crate) unknown: i32,
}

pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) syntax: Syntax,
    pub(crate) eval: Eval,
    /// Constant arguments give a constant result.
    pub(crate) foldable: bool,
    /// Checks or compiles constant arguments, once they are folded.
    pub(crate) prepare: Option<fn(&mut Call) -> Result<()>>,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Op {
    pub(crate) const fn args(name: &'static str, min: usize, max: usize, eval: Eval) -> Op {
        Op {
            name,
            syntax: Syntax::Args { min, max },
            eval,
            foldable: true,
            prepare: None,
        }
    }

    /// Any number of operands.
    pub(crate) const fn variadic(name: &'static str, eval: Eval) -> Op {
        Op::args(name, 0, usize::MAX, eval)
    }

    pub(crate) const fn named(name: &'static str, spec: &'static Named, eval: Eval) -> Op {
        Op {
            name,
            syntax: Syntax::Named(spec),
            eval,
            foldable: true,
            prepare: None,
        }
    }

    pub(crate) const fn custom(
        name: &'static str,
        parse: fn(&'static Op, Val<'_>, &ParseEnv) -> Result<Parsed>,
        names: &'static [&'static str],
        eval: Eval,
    ) -> Op {
        Op {
            name,
            syntax: Syntax::Custom { parse, names },
            eval,
            foldable: true,
            prepare: None,
        }
    }

    pub(crate) const fn varying(mut self) -> Op {
        self.foldable = false;
        self
    }

    pub(crate) const fn prepared(mut self, f: fn(&mut Call) -> Result<()>) -> Op {
        self.prepare = Some(f);
        self
    }
}

static FAMILIES: &[&[Op]] = &[
    arithmetic::OPS,
    array::OPS,
    array_build::OPS,
    bits::OPS,
    boolean::OPS,
    control::OPS,
    convert::OPS,
    date::OPS,
    date_arithmetic::OPS,
    hash::OPS,
    ladder::OPS,
    object::OPS,
    regex::OPS,
    script::OPS,
    set::OPS,
    string::OPS,
    string_position::OPS,
    trigonometry::OPS,
    values::OPS,
];

pub(crate) fn find(name: &str) -> Option<&'static Op> {
    static INDEX: OnceLock<HashMap<&'static str, &'static Op>> = OnceLock::new();
    INDEX
        .get_or_init(|| {
            FAMILIES
                .iter()
                .flat_map(|f| f.iter())
                .map(|o| (o.name, o))
                .collect()
        })
        .get(name)
        .copied()
}

/// Every operator's name; empty those of calls that are written otherwise.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|f| f.iter()).map(|o| o.name)
}

pub(crate) fn prepare(c: &mut Call) -> Result<()> {
    c.op.prepare.map_or(Ok(()), |f| f(c))
}

pub(crate) fn to_value(c: &Call) -> Value {
    let mut w = Writer::new();
    match (c.op.name, c.op.syntax) {
        ("$let", _) => {
            w.open_doc("$let").open_doc("vars");
            for (name, n) in c.names().iter().zip(&c.args) {
                w.val(name, n.to_value().as_val());
            }
            w.close();
            if let Some(body) = c.args.last() {
                w.val("in", body.to_value().as_val());
            }
            w.close();
        }
        ("$function" | "$_internalJsEmit" | "", _) => super::script::write(c, &mut w),
        ("$switch", _) => {
            w.open_doc("$switch").open_array("branches");
            let (branches, default) = c.args.split_at(c.args.len().saturating_sub(1));
            for pair in branches.chunks(2) {
                w.open_doc("");
                w.val("case", pair[0].to_value().as_val());
                w.val("then", pair[1].to_value().as_val());
                w.close();
            }
            w.close();
            if let [n] = default
                && !matches!(n, Node::Absent)
            {
                w.val("default", n.to_value().as_val());
            }
            w.close();
        }
        (name, Syntax::Named(spec)) => {
            let names = spec.fields.iter().map(|f| f.0);
            object_of(&mut w, name, names, c);
        }
        (name, Syntax::Custom { names, .. }) if !names.is_empty() => {
            object_of(&mut w, name, names.iter().copied(), c);
        }
        (name, _) => {
            w.open_array(name);
            for a in &c.args {
                w.push(a.to_value().as_val());
            }
            w.close();
        }
    }
    Value::from(w.finish())
}

fn object_of<'n>(w: &mut Writer, op: &str, names: impl Iterator<Item = &'n str>, c: &Call) {
    w.open_doc(op);
    for (field, n) in names.zip(&c.args) {
        if !matches!(n, Node::Absent) {
            w.val(field, n.to_value().as_val());
        }
    }
    match &c.prepared {
        super::node::Prepared::Names(n) if c.op.name != "$reduce" => {
            if let Some(name) = n.first() {
                w.str("as", name);
            }
        }
        super::node::Prepared::Sort(s) => {
            w.val("sortBy", s.spec.as_val());
        }
        _ => {}
    }
    w.close();
}
