//! Accumulators of `$group`: states that take one value a document.
//!
//! Invariant: `$sum $avg $min $max $first $last $stdDev*` hold one value; the others hold what they
//! return, and [`Accumulator::memory_bytes`] says how much that is.

pub(crate) mod percentile;
mod script;
mod spec;
mod state;

pub use spec::AccumulatorSpec;
pub use state::Accumulator;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{EvalCtx, ParseEnv, Vars, cases::cases};
    use bson::{Doc, Val, json};
    use errors::Result;

    /// Runs an accumulator; `split`: in two halves that are merged through partial states, as a
    /// spilling group does it.
    fn run(spec: &str, docs: &str, split: bool) -> Result<String> {
        let (spec, docs) = (
            json::parse_value(spec).expect(spec),
            json::parse_value(docs).expect(docs),
        );
        let vars = Vars::new(0);
        let spec = AccumulatorSpec::parse_field("x", spec.as_val(), &ParseEnv::new())?;
        let docs: Vec<Doc<'_>> = docs
            .as_val()
            .as_array()
            .unwrap_or(Doc::EMPTY)
            .values()
            .filter_map(Val::as_doc)
            .collect();
        let group = EvalCtx::new(Doc::EMPTY, &vars);
        let half = |docs: &[Doc<'_>]| -> Result<Accumulator> {
            let mut acc = spec.start(&group)?;
            for d in docs {
                spec.add(&mut acc, &EvalCtx::new(*d, &vars))?;
            }
            Ok(acc)
        };
        let acc = if split {
            let (first, second) = docs.split_at(docs.len() / 2);
            let mut acc = spec.start(&group)?;
            acc.merge(half(first)?.to_partial().as_val())?;
            acc.merge(half(second)?.to_partial().as_val())?;
            acc
        } else {
            half(&docs)?
        };
        Ok(acc.finish()?.as_val().to_string())
    }

    #[test]
    fn accumulators() {
        let text = include_str!("../../testdata/accumulators.txt");
        for (spec, docs, want) in cases(text) {
            for split in [false, true] {
                let got = run(spec, docs, split)
                    .unwrap_or_else(|e| format!("!{}", e.failure().unwrap().code.0));
                assert_eq!(got, want, "{spec} of {docs} (split: {split})");
            }
        }
    }
}
