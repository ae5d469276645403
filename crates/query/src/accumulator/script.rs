//! `$accumulator`, and the reduction of mapReduce.

use super::spec::{AccumulatorSpec, Kind};
use super::state::Accumulator;
use crate::expr::{EvalCtx, Expression, ParseEnv, Vars};
use crate::script::Function;
use bson::{Iter, Val, Value, Writer, tag};
use errors::{Error, Result, bail};

/// Values of a key that are reduced to one as soon as there are so many, or so many bytes.
const REDUCED_ITEMS: usize = 1000;
const REDUCED_BYTES: usize = 1 << 20;

/// The functions of an `$accumulator`.
#[derive(Clone, Debug)]
pub(super) struct Functions {
    init: Function,
    accumulate: Function,
    merge: Function,
    finalize: Option<Function>,
    init_args: Expression,
}

/// The values of one key that `reduce` has not seen together yet.
pub struct Reduction {
    key: Value,
    /// As elements without names: `reduce` does not see the indexes of its array.
    values: Vec<u8>,
    items: usize,
}

impl Default for Reduction {
    fn default() -> Reduction {
        Reduction {
            key: Value::NULL,
            values: Vec::new(),
            items: 0,
        }
    }
}

impl Reduction {
    /// Takes `{k, v}`, as `emit` makes it.
    pub(super) fn take(&mut self, v: Val<'_>) -> Result<()> {
        let Some(d) = v.as_doc() else {
            bail!(
                31242,
                "$_internalJsReduce requires a document argument, but found {}",
                v.type_name()
            );
        };
        let (Some(k), Some(v)) = (d.get("k"), d.get("v")) else {
            bail!(
                31251,
                "$_internalJsReduce requires the 'data' argument to have a 'k' and 'v' field. Instead found{d}"
            );
        };
        self.take_pair(k, v);
        Ok(())
    }

    pub(super) fn take_pair(&mut self, k: Val<'_>, v: Val<'_>) {
        if self.items == 0 {
            self.key = k.to_value();
        }
        self.push(v);
    }

    pub(super) fn push(&mut self, v: Val<'_>) {
        self.values.extend_from_slice(&[v.tag, 0]);
        self.values.extend_from_slice(v.bytes);
        self.items += 1;
    }

    pub(super) fn to_partial(&self, w: &mut Writer) {
        w.val("k", self.key.as_val()).open_array("a");
        let mut values = Iter::over(&self.values);
        while let Some((_, v)) = values.next_raw() {
            w.push(v);
        }
        w.close();
    }

    pub(super) fn set_key(&mut self, k: Option<Val<'_>>) {
        self.key = k.unwrap_or(Val::NULL).to_value();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.values.len() + self.key.as_val().bytes.len()
    }

    /// What `reduce` makes of the values.
    fn reduced(&mut self, reduce: &Function, vars: &Vars) -> Result<Value> {
        let mut bytes = Vec::with_capacity(self.values.len() + 5);
        bytes.extend_from_slice(&(self.values.len() as i32 + 5).to_le_bytes());
        bytes.append(&mut self.values);
        bytes.push(0);
        self.items = 0;
        let (tag, bytes) = (tag::ARRAY, bytes.as_slice());
        let args = [self.key.as_val(), Val { tag, bytes }];
        vars.scripts()?
            .call(reduce, None, &args, vars.script_globals(true))
    }

    /// After each value: reduces early, so that the held values stay small.
    pub(super) fn settle(&mut self, reduce: &Function, vars: &Vars) -> Result<()> {
        if self.items >= REDUCED_ITEMS || self.values.len() >= REDUCED_BYTES {
            let one = self.reduced(reduce, vars)?;
            self.push(one.as_val());
        }
        Ok(())
    }

    pub(super) fn finish(mut self, reduce: &Function, vars: &Vars) -> Result<Value> {
        self.reduced(reduce, vars)
    }
}

impl Functions {
    pub(super) fn start(&self, group: &EvalCtx<'_>) -> Result<Accumulator> {
        let args = self.init_args.evaluate(group)?;
        let Some(list) = args.as_val().and_then(Val::as_array) else {
            bail!(
                4544711,
                "$accumulator initArgs must evaluate to an array: {}",
                args.or_null()
            );
        };
        let args: Vec<Val<'_>> = list.values().collect();
        Ok(Accumulator::Script(vec![call(
            &self.init, &args, group.vars,
        )?]))
    }

    /// Takes the arguments that one document gives into the state.
    pub(super) fn add(&self, states: &mut Vec<Value>, args: Val<'_>, vars: &Vars) -> Result<()> {
        let Some(list) = args.as_array() else {
            bail!(
                4544712,
                "$accumulator accumulateArgs must evaluate to an array: {args}"
            );
        };
        let state = self.merged(std::mem::take(states), vars)?;
        let mut all = vec![state.as_val()];
        all.extend(list.values());
        *states = vec![call(&self.accumulate, &all, vars)?];
        Ok(())
    }

    fn merged(&self, states: Vec<Value>, vars: &Vars) -> Result<Value> {
        let mut states = states.into_iter();
        let mut whole = states.next().unwrap_or(Value::NULL);
        for next in states {
            whole = call(&self.merge, &[whole.as_val(), next.as_val()], vars)?;
        }
        Ok(whole)
    }

    pub(super) fn finish(&self, states: Vec<Value>, vars: &Vars) -> Result<Value> {
        let whole = self.merged(states, vars)?;
        match &self.finalize {
            Some(f) => call(f, &[whole.as_val()], vars),
            None => Ok(whole),
        }
    }

    pub(super) fn write(&self, args: &Expression, w: &mut Writer) {
        w.open_doc("$accumulator");
        w.str("init", &self.init.source);
        w.val("initArgs", self.init_args.to_value().as_val());
        w.str("accumulate", &self.accumulate.source);
        w.val("accumulateArgs", args.to_value().as_val());
        w.str("merge", &self.merge.source);
        if let Some(f) = &self.finalize {
            w.str("finalize", &f.source);
        }
        w.str("lang", "js").close();
    }
}

fn call(function: &Function, args: &[Val<'_>], vars: &Vars) -> Result<Value> {
    vars.scripts()?
        .call(function, None, args, vars.script_globals(false))
}

fn constant_function(name: &str, v: Val<'_>, env: &ParseEnv) -> Result<Option<Function>> {
    let expression = Expression::parse(v, env)?;
    let Some(v) = expression.constant() else {
        bail!(
            4544701,
            "$accumulator '{name}' must be a constant expression"
        );
    };
    let v = v.as_val();
    if !matches!(v.tag, tag::STRING | tag::CODE) {
        bail!(4544702, "$accumulator '{name}' must be a String or Code");
    }
    let text = v.as_code().unwrap_or("");
    Ok((!text.is_empty()).then(|| Function::new(text)))
}

/// `$accumulator`: its functions, and what gives the arguments for each document.
pub(super) fn parse(arg: Val<'_>, env: &ParseEnv) -> Result<(Kind, Expression)> {
    let Some(d) = arg.as_doc() else {
        bail!(
            4544703,
            "$accumulator expects an object as an argument; found: {}",
            arg.type_name()
        );
    };
    let (mut init, mut accumulate, mut merge, mut finalize) = (None, None, None, None);
    let (mut init_args, mut args) = (None, None);
    for e in d {
        match e.name {
            "init" => init = constant_function(e.name, e.val, env)?,
            "accumulate" => accumulate = constant_function(e.name, e.val, env)?,
            "merge" => merge = constant_function(e.name, e.val, env)?,
            "finalize" => finalize = constant_function(e.name, e.val, env)?,
            "initArgs" => init_args = Some(Expression::parse(e.val, env)?),
            "accumulateArgs" => args = Some(Expression::parse(e.val, env)?),
            "lang" => match e.val.as_str() {
                Some("js") => {}
                Some(_) => bail!(4544705, "$accumulator only supports lang: 'js'"),
                None => bail!(
                    4544704,
                    "$accumulator lang must be a string; found: {}",
                    e.val.type_name()
                ),
            },
            name => bail!(4544706, "$accumulator got an unexpected field: {name}"),
        }
    }
    let missing = |code, name: &str| {
        let message = format!("$accumulator missing required argument '{name}'");
        Error::coded(code, message)
    };
    let functions = Functions {
        init: init.ok_or_else(|| missing(4544707, "init"))?,
        accumulate: accumulate.ok_or_else(|| missing(4544708, "accumulate"))?,
        merge: merge.ok_or_else(|| missing(4544709, "merge"))?,
        finalize,
        init_args: init_args
            .unwrap_or_else(|| Expression::literal(Writer::new_array().finish_array())),
    };
    let args = args.ok_or_else(|| missing(4544710, "accumulateArgs"))?;
    Ok((Kind::Script(Box::new(functions)), args))
}

/// `$_internalJsReduce`: what mapReduce's reduction is.
pub(super) fn parse_reduce(arg: Val<'_>, env: &ParseEnv) -> Result<(Kind, Expression)> {
    let part = |name: &str| arg.as_doc().and_then(|d| d.get(name));
    let Some(reduce) = part("eval") else {
        bail!(
            31245,
            "$_internalJsReduce requires 'eval' argument, recieved input: {arg}"
        );
    };
    if !matches!(reduce.tag, tag::STRING | tag::CODE) {
        bail!(
            31244,
            "$_internalJsReduce requires the 'eval' argument to be of type string, or code but found {}",
            reduce.type_name()
        );
    }
    let Some(data) = part("data") else {
        bail!(
            31349,
            "$_internalJsReduce requires 'data' argument, recieved input: {arg}"
        );
    };
    let reduce = Function::new(reduce.as_code().unwrap_or(""));
    Ok((Kind::Reduce(reduce), Expression::parse(data, env)?))
}

impl AccumulatorSpec {
    /// The result of a state. Only scripts need the variables.
    pub fn finish(&self, state: Accumulator, vars: &Vars) -> Result<Value> {
        match (&self.kind, state) {
            (Kind::Script(f), Accumulator::Script(states)) => f.finish(states, vars),
            (Kind::Reduce(f), Accumulator::Reduce(r)) => r.finish(f, vars),
            (_, state) => state.finish(),
        }
    }
}
