//! `emit(key, value)`, which a map function calls for each of its results.
//!
//! It is called more often than anything else that this room gives to scripts, so it is a class of
//! its own, whose call looks at its arguments where they are.

use crate::fault::ScriptFault;
use crate::{Shared, convert};
use bson::Writer;
use errors::err;
use rquickjs::class::{ClassKind, JsCell, JsClass, Readable, Trace, Tracer};
use rquickjs::function::{Constructor, Params};
use rquickjs::{Class, Ctx, Exception, Function, JsLifetime, Object, Result, Value};
use std::rc::Rc;

/// What the calls for one document may give.
const EMIT_BYTES: usize = 100 << 20;

pub struct Emit(Rc<Shared>);

impl<'js> Trace<'js> for Emit {
    fn trace<'a>(&self, _: Tracer<'a, 'js>) {}
}

// SAFETY: it holds nothing of the engine's.
unsafe impl JsLifetime<'_> for Emit {
    type Changed<'to> = Emit;
}

impl<'js> JsClass<'js> for Emit {
    const NAME: &'static str = "emit";
    const KIND: ClassKind = ClassKind::Callable;
    type Mutable = Readable;

    fn prototype(ctx: &Ctx<'js>) -> Result<Option<Object<'js>>> {
        Ok(Some(Function::prototype(ctx.clone())))
    }

    fn constructor(_: &Ctx<'js>) -> Result<Option<Constructor<'js>>> {
        Ok(None)
    }

    fn call<'a>(this: &JsCell<'js, Self>, params: Params<'a, 'js>) -> Result<Value<'js>> {
        let emit = this.borrow();
        let emitted = match (params.arg(0), params.arg(1), params.len()) {
            (Some(k), Some(v), 2) => match emit.take_plain(&k, &v) {
                Some(()) => Ok(()),
                None => emit.take(params.ctx(), &k, &v),
            },
            _ => Err(ScriptFault::Own(err!(31220, "emit takes 2 args"))),
        };
        match emitted {
            Ok(()) => Ok(Value::new_undefined(params.ctx().clone())),
            Err(ScriptFault::Script(e)) => Err(e),
            Err(ScriptFault::Own(e)) => {
                let thrown = Exception::throw_message(params.ctx(), &e.message);
                emit.0.failure.replace(Some(e));
                Err(thrown)
            }
        }
    }
}

/// The function for the global object.
pub fn function<'js>(ctx: &Ctx<'js>, shared: &Rc<Shared>) -> Result<Class<'js, Emit>> {
    Class::instance(ctx.clone(), Emit(shared.clone()))
}

impl Emit {
    /// Takes a number under a text, which most emissions are: nothing of the script's runs
    /// meanwhile. `None` for anything else.
    fn take_plain<'js>(&self, k: &Value<'js>, v: &Value<'js>) -> Option<()> {
        let (n, text) = (v.as_number()?, k.as_string()?);
        let text = text.clone().to_cstring().ok()?;
        let bytes: &[u8] = text.as_ref();
        let text = std::str::from_utf8(bytes).ok()?;
        let mut emitted = self.0.emitted.borrow_mut();
        let w = emitted.as_mut()?;
        if w.len() + text.len() + 32 > EMIT_BYTES {
            return None;
        }
        w.str("", text).f64("", n);
        Some(())
    }

    fn take<'js>(
        &self,
        ctx: &Ctx<'js>,
        k: &Value<'js>,
        v: &Value<'js>,
    ) -> std::result::Result<(), ScriptFault> {
        // Taken while it is written: what converts a value may call a script's functions.
        let mut w = self.0.emitted.take().unwrap_or_default();
        let before = w.len();
        let mut written = if k.is_undefined() {
            w.null("");
            Ok(())
        } else {
            write_one(ctx, &mut w, k)
        };
        written = written.and_then(|()| write_one(ctx, &mut w, v));
        if written.is_ok() && w.len() > EMIT_BYTES {
            written = Err(ScriptFault::Own(err!(
                31292,
                "Size of emitted values exceeds the set size limit of {EMIT_BYTES} bytes"
            )));
        }
        if written.is_err() {
            // The script may catch it and go on.
            w.truncate(before);
        }
        self.0.emitted.replace(Some(w));
        written
    }
}

/// Writes one value that is limited by itself, not together with those before it.
fn write_one<'js>(
    ctx: &Ctx<'js>,
    w: &mut Writer,
    v: &Value<'js>,
) -> std::result::Result<(), ScriptFault> {
    if let Some(n) = v.as_number() {
        w.f64("", n);
    } else if let Some(s) = v.as_string() {
        convert::with_text(ctx, s, |s| {
            w.str("", s);
        })?;
    } else {
        let mut one = Writer::new();
        convert::write(ctx, &mut one, "", v, 0)?;
        w.extend(one.finish().as_doc());
    }
    Ok(())
}
