//! The functions of `$setWindowFields` as they are written; what they give is made in
//! `window_values`.

use super::options::{options, required};
use super::window::Unit;
use crate::accumulator::AccumulatorSpec;
use crate::arithmetic::{Number, decimal};
use crate::expr::join_paths;
use crate::expr::{Expression, ParseEnv};
use crate::sort::SortPattern;
use bson::{Decimal128, Doc, Val, Value, Writer, order, tag};
use errors::{Code, Result, bail, err};
use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) enum Function {
    Accumulate(AccumulatorSpec),
    DocumentNumber,
    Rank,
    DenseRank,
    Shift {
        output: Expression,
        by: i64,
        default: Value,
    },
    ExpMovingAvg {
        input: Expression,
        alpha: Decimal128,
    },
    Derivative {
        input: Expression,
        unit: Option<Unit>,
    },
    Integral {
        input: Expression,
        unit: Option<Unit>,
    },
    Covariance {
        x: Expression,
        y: Expression,
        sample: bool,
    },
    LinearFill(Expression),
    Locf(Expression),
    /// The least of the window becomes `min`, the greatest `max`.
    MinMaxScaler {
        input: Expression,
        min: Number,
        max: Number,
    },
}

/// A function as the stage writes it.
struct Written<'a> {
    name: &'a str,
    arg: Val<'a>,
    sort: Option<&'a SortPattern>,
    has_window: bool,
    env: &'a ParseEnv,
}

impl Function {
    /// Paths of the document that it reads; `None` when it may read all of it.
    pub fn needed_paths(&self) -> Option<BTreeSet<String>> {
        match self {
            Function::Accumulate(spec) => spec.needed_paths(),
            Function::DocumentNumber | Function::Rank | Function::DenseRank => {
                Some(BTreeSet::new())
            }
            Function::Shift { output: e, .. }
            | Function::ExpMovingAvg { input: e, .. }
            | Function::Derivative { input: e, .. }
            | Function::Integral { input: e, .. }
            | Function::MinMaxScaler { input: e, .. }
            | Function::LinearFill(e)
            | Function::Locf(e) => e.needed_paths(),
            Function::Covariance { x, y, .. } => {
                let mut all = x.needed_paths();
                join_paths(&mut all, y.needed_paths());
                all
            }
        }
    }

    pub fn parse(
        name: &str,
        arg: Val<'_>,
        sort: Option<&SortPattern>,
        has_window: bool,
        env: &ParseEnv,
    ) -> Result<Function> {
        let written = Written {
            name,
            arg,
            sort,
            has_window,
            env,
        };
        match name {
            "$rank" | "$denseRank" | "$documentNumber" => written.rank(),
            "$shift" => written.shift(),
            "$expMovingAvg" => written.exp_moving_avg(),
            "$derivative" | "$integral" => written.derivative_or_integral(),
            "$covariancePop" | "$covarianceSamp" => written.covariance(),
            "$linearFill" => written.linear_fill(),
            "$minMaxScaler" => written.min_max_scaler(),
            "$locf" => {
                written.no_window()?;
                Ok(Function::Locf(Expression::parse(arg, env)?))
            }
            _ => written.accumulator(),
        }
    }
}

impl<'a> Written<'a> {
    fn sorted(&self) -> Result<()> {
        if self.sort.is_none() {
            bail!(FailedToParse, "{} requires a sortBy", self.name);
        }
        Ok(())
    }

    /// Whether `sortBy` has exactly one element.
    fn sorted_by_one(&self) -> bool {
        self.sort.is_some_and(|s| s.fields.len() == 1)
    }

    fn no_window(&self) -> Result<()> {
        if self.has_window {
            bail!(
                FailedToParse,
                "'window' field is not allowed in {}",
                self.name
            );
        }
        Ok(())
    }

    fn object(&self) -> Result<Doc<'a>> {
        self.arg.as_doc().ok_or_else(|| {
            err!(
                FailedToParse,
                "Argument to {} must be an object, found {}",
                self.name,
                self.arg.type_name()
            )
            .into()
        })
    }

    fn rank(&self) -> Result<Function> {
        let Written { name, arg, .. } = *self;
        if !arg.as_doc().is_some_and(Doc::is_empty) {
            bail!(5371603, "{name} must be specified with '{{}}' as the value");
        }
        if !self.sorted_by_one() {
            bail!(
                5371602,
                "{name} must be specified with a top level sortBy expression with exactly one element"
            );
        }
        Ok(match name {
            "$rank" => Function::Rank,
            "$denseRank" => Function::DenseRank,
            _ => Function::DocumentNumber,
        })
    }

    fn shift(&self) -> Result<Function> {
        let Written { name, env, .. } = *self;
        self.no_window()?;
        self.sorted()?;
        let [output, by, default] = options(name, self.object()?, ["output", "by", "default"])?;
        let (Some(output), Some(by)) = (output, by) else {
            bail!(FailedToParse, "{name} requires 'output' and 'by'");
        };
        let Some(by) = by.to_i64_exact() else {
            bail!(
                FailedToParse,
                "'{name}:by' field must be an integer, but found {by}"
            );
        };
        let default = match default {
            Some(d) => match Expression::parse(d, env)?.constant() {
                Some(c) => c.clone(),
                None => bail!(
                    FailedToParse,
                    "'{name}:default' expression must yield a constant value."
                ),
            },
            None => Value::NULL,
        };
        Ok(Function::Shift {
            output: Expression::parse(output, env)?,
            by,
            default,
        })
    }

    fn exp_moving_avg(&self) -> Result<Function> {
        let Written { name, env, .. } = *self;
        self.no_window()?;
        self.sorted()?;
        let [input, n, alpha] = options(name, self.object()?, ["input", "N", "alpha"])?;
        let Some(input) = input else {
            bail!(FailedToParse, "{name} requires 'input'");
        };
        let alpha = match (n, alpha) {
            (Some(n), None) => match n.to_i64_exact() {
                Some(n) if n > 0 => {
                    let above = Number::Long(n.saturating_add(1)).to_decimal();
                    decimal::div(Number::Int(2).to_decimal(), above)
                }
                _ => bail!(
                    FailedToParse,
                    "'N' field must be an integer greater than zero, found {n}"
                ),
            },
            (None, Some(a)) => match Number::of(a) {
                Some(x) if x.to_f64() > 0.0 && x.to_f64() < 1.0 => x.to_decimal(),
                _ => bail!(
                    FailedToParse,
                    "'alpha' must be between 0 and 1 (exclusive), found {a}"
                ),
            },
            _ => bail!(
                FailedToParse,
                "{name} sub object must have exactly two fields: An 'input' field, and either an 'N' field or an \
                 'alpha' field"
            ),
        };
        Ok(Function::ExpMovingAvg {
            input: Expression::parse(input, env)?,
            alpha,
        })
    }

    fn derivative_or_integral(&self) -> Result<Function> {
        let Written {
            name,
            env,
            has_window,
            ..
        } = *self;
        let [input, unit] = options(name, self.object()?, ["input", "unit"])?;
        let Some(input) = input else {
            bail!(FailedToParse, "{name} requires an 'input' expression");
        };
        if !self.sorted_by_one() {
            bail!(
                FailedToParse,
                "{name} requires a sortBy with exactly one field"
            );
        }
        if name == "$derivative" && !has_window {
            bail!(FailedToParse, "{name} requires explicit window bounds");
        }
        let unit = unit.map(Unit::parse).transpose()?;
        if unit.as_ref().is_some_and(|u| u.ms.is_none()) {
            bail!(5490704, "unit must be 'week' or smaller");
        }
        let input = Expression::parse(input, env)?;
        Ok(if name == "$derivative" {
            Function::Derivative { input, unit }
        } else {
            Function::Integral { input, unit }
        })
    }

    fn covariance(&self) -> Result<Function> {
        let Written { name, arg, env, .. } = *self;
        let parts: Vec<Val<'_>> = arg
            .as_array()
            .map(|a| a.values().collect())
            .unwrap_or_default();
        let sample = name == "$covarianceSamp";
        Ok(match parts.as_slice() {
            [x, y] => Function::Covariance {
                x: Expression::parse(*x, env)?,
                y: Expression::parse(*y, env)?,
                sample,
            },
            // Anything else gives no pairs.
            _ => Function::Covariance {
                x: Expression::parse(arg, env)?,
                y: Expression::literal(Value::NULL),
                sample,
            },
        })
    }

    fn linear_fill(&self) -> Result<Function> {
        let Written { name, arg, env, .. } = *self;
        self.no_window()?;
        if !self.sorted_by_one() {
            bail!(
                605001,
                "{name} must be specified with a top level sortBy expression with exactly one element"
            );
        }
        Ok(Function::LinearFill(Expression::parse(arg, env)?))
    }

    fn min_max_scaler(&self) -> Result<Function> {
        let Written { name, env, .. } = *self;
        let [input, min, max] = options(name, self.object()?, ["input", "min", "max"])?;
        let input = required(name, "input", input)?;
        let bound = |what: &str, v: Option<Val<'_>>| -> Result<Option<Number>> {
            let Some(v) = v else {
                return Ok(None);
            };
            let e = Expression::parse(v, env)?;
            let Some(c) = e.constant() else {
                bail!(
                    FailedToParse,
                    "'{what}' argument to {name} must be a constant"
                );
            };
            match Number::of(c.as_val()) {
                Some(n) => Ok(Some(n)),
                None => bail!(
                    FailedToParse,
                    "'{what}' argument to {name} must be a numeric type"
                ),
            }
        };
        let (min, max) = match (bound("min", min)?, bound("max", max)?) {
            (None, None) => (Number::Int(0), Number::Int(1)),
            (Some(min), Some(max)) => (min, max),
            _ => bail!(
                FailedToParse,
                "'min' and 'max' must both be specified, or neither, in {name}"
            ),
        };
        if !order::compare(max.to_value().as_val(), min.to_value().as_val()).is_gt() {
            bail!(
                FailedToParse,
                "'max' must be strictly greater than 'min' in {name}"
            );
        }
        Ok(Function::MinMaxScaler {
            input: Expression::parse(input, env)?,
            min,
            max,
        })
    }

    fn accumulator(&self) -> Result<Function> {
        let Written { name, arg, env, .. } = *self;
        if matches!(name, "$accumulator" | "$_internalJsReduce") {
            bail!(FailedToParse, "Unrecognized window function, {name}");
        }
        // Here an array is an expression like any other, which `$group` refuses.
        let mut w = Writer::new();
        w.open_array("$concatArrays").push(arg).close();
        let wrapped = w.finish();
        let arg = if arg.tag == tag::ARRAY {
            wrapped.as_doc().as_val()
        } else {
            arg
        };
        Ok(Function::Accumulate(
            AccumulatorSpec::parse(name, arg, env).map_err(|e| {
                if e.is(Code(15952)) {
                    err!(FailedToParse, "Unrecognized window function, {name}").into()
                } else {
                    e
                }
            })?,
        ))
    }
}
