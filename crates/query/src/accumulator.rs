//! Accumulators of `$group`: states that take one value a document.

use crate::expr::{EvalCtx, Expression, ParseEnv};
use bson::{Val, Value};
use errors::{Result, err};

/// A parsed accumulator, e.g. `{$sum: "$a"}`.
#[derive(Clone, Debug)]
pub struct AccumulatorSpec {
    arg: Expression,
}

/// The state of one accumulator of one group.
#[derive(Clone, Debug)]
pub struct Accumulator {}

impl AccumulatorSpec {
    /// Parses the value of an output field of `$group`: `{$sum: …}`.
    pub fn parse_field(_field: &str, _spec: Val<'_>, _env: &ParseEnv) -> Result<AccumulatorSpec> {
        Err(err!(NotImplemented, "accumulators are not there yet"))
    }

    pub fn parse(_name: &str, arg: Val<'_>, env: &ParseEnv) -> Result<AccumulatorSpec> {
        Ok(AccumulatorSpec {
            arg: Expression::parse(arg, env)?,
        })
    }

    /// A fresh state. `group`: a context whose root is the group's `{_id: …}` (the `n` of `$firstN` may depend on it).
    pub fn start(&self, _group: &EvalCtx<'_>) -> Result<Accumulator> {
        Ok(Accumulator {})
    }

    /// Evaluates the argument over a document and takes it in.
    pub fn add(&self, _acc: &mut Accumulator, ctx: &EvalCtx<'_>) -> Result<()> {
        self.arg.evaluate(ctx).map(|_| ())
    }

    pub fn to_value(&self) -> Value {
        self.arg.to_value()
    }

    /// The argument expressions (for dependency analysis).
    pub fn expressions(&self) -> Vec<&Expression> {
        vec![&self.arg]
    }
}

impl Accumulator {
    pub fn finish(self) -> Result<Value> {
        Ok(Value::NULL)
    }

    /// Heap bytes held, approximately.
    pub fn memory_bytes(&self) -> usize {
        0
    }

    /// The state as a value that [`Accumulator::merge`] takes back: how a `$group` that spills writes it.
    pub fn to_partial(&self) -> Value {
        Value::NULL
    }

    /// Takes in another state of the same accumulator, later in input order.
    pub fn merge(&mut self, _partial: Val<'_>) -> Result<()> {
        Ok(())
    }
}
