//! JavaScript for `$where`, `$function`, `$accumulator` and `mapReduce`: a small interface before an
//! embedded engine (QuickJS).
//!
//! * [`ScriptEngine`]: the realm of one operation, made at its first call. It compiles a function once and
//!   calls it for many documents.
//! * [`FunctionCall`]: one call: the function's text, `this`, the arguments, as BSON.
//!
//! Invariant: a script reaches nothing but what it is given. There is no file, no network, no
//! environment; the realm holds the language, the clock and `prelude.js`. It takes at most
//! [`MEMORY_BYTES`] and [`STACK_BYTES`], and the caller can end it at any time: the engine asks every
//! few thousand steps; so do allocations, and the prelude where the engine would go over much in one
//! step. No script, whatever it does, is more than an error.

mod convert;
mod emit;
mod fault;
mod memory;
mod source;

use bson::{Doc, Val, Value, Writer};
use errors::{Code, Error, err};
use fault::ScriptFault;
use rquickjs::context::intrinsic;
use rquickjs::function::Args;
use rquickjs::{Context, Ctx, Function, Persistent, Runtime};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the realm of one operation may hold.
pub const MEMORY_BYTES: usize = 256 << 20;
/// What calls of a script inside one another may take of the thread's stack.
pub const STACK_BYTES: usize = 1 << 20;
/// Items of arrays and texts that functions of the engine go over between two looks whether the
/// script must end.
const SPENT_ITEMS: f64 = 1e6;
/// How long `sleep` sleeps before it looks whether it should go on.
const SLEEP: Duration = Duration::from_millis(5);

/// Asked now and then while a script runs: whether it must end.
pub type Interrupted = Box<dyn Fn() -> bool + Send>;

/// What a realm begins with.
#[derive(Default)]
pub struct RealmGlobals<'a> {
    /// `scope` of mapReduce: a global variable for each field.
    pub scope: Option<Doc<'a>>,
    /// The documents of `system.js`: `{_id: name, value: a function or a value}`.
    pub stored: Option<Doc<'a>>,
}

/// One call of a function.
pub struct FunctionCall<'a> {
    /// The function's text. Compiled once for each `Arc`.
    pub source: &'a Arc<str>,
    pub this: Option<Doc<'a>>,
    pub args: &'a [Val<'a>],
    /// For the realm, if this call is the first.
    pub globals: RealmGlobals<'a>,
}

/// The scripts of one operation.
pub struct ScriptEngine {
    realm: Mutex<Option<Realm>>,
}

/// What the engine's own functions and the code around it share.
struct Shared {
    interrupted: Interrupted,
    /// The script was told to end.
    ended: Cell<bool>,
    /// Keys and values in turn.
    emitted: RefCell<Option<Writer>>,
    /// Why one of the engine's own functions failed.
    failure: RefCell<Option<Error>>,
}

struct Realm {
    // In the order in which they go: functions before the context that they belong to.
    functions: HashMap<usize, (Arc<str>, Persistent<Function<'static>>)>,
    shared: Rc<Shared>,
    context: Context,
}

/// SAFETY: a realm counts references to its runtime and to `shared` without atomics. All that hold one
/// are inside of the realm itself (its fields, and the functions that its runtime owns), none is handed
/// out, and the realm is used through the mutex of [`ScriptEngine`] only. So one thread at a time sees them.
/// QuickJS keeps nothing for a thread but the top of its stack, which is renewed at each entry.
unsafe impl Send for Realm {}

impl Default for ScriptEngine {
    fn default() -> ScriptEngine {
        ScriptEngine {
            realm: Mutex::new(None),
        }
    }
}

impl ScriptEngine {
    /// Runs a function and gives what it returns. `interrupted` is kept by the first call.
    pub fn call(
        &self,
        call: &FunctionCall<'_>,
        interrupted: impl FnOnce() -> Interrupted,
    ) -> Result<Value, Error> {
        self.in_realm(&call.globals, interrupted, |realm| realm.call(call))
    }

    /// Runs a function for what it emits. Makes `out` a document of nameless elements: keys and
    /// values in turn.
    pub fn map(
        &self,
        call: &FunctionCall<'_>,
        out: &mut Vec<u8>,
        interrupted: impl FnOnce() -> Interrupted,
    ) -> Result<(), Error> {
        self.in_realm(&call.globals, interrupted, |realm| realm.map(call, out))
    }

    /// Between two batches of a cursor: the realm goes, with all that it holds. The next call makes another.
    pub fn rest(&self) {
        if let Ok(mut realm) = self.realm.lock() {
            *realm = None;
        }
    }

    fn in_realm<T>(
        &self,
        globals: &RealmGlobals<'_>,
        interrupted: impl FnOnce() -> Interrupted,
        f: impl FnOnce(&mut Realm) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut realm = match self.realm.lock() {
            Ok(realm) => realm,
            Err(_) => return Err(Error::internal("a script's realm is broken")),
        };
        if realm.is_none() {
            *realm = Some(Realm::new(interrupted(), globals)?);
        }
        match &mut *realm {
            Some(realm) => f(realm),
            None => Err(Error::internal("there is no realm")),
        }
    }
}

impl Realm {
    fn new(interrupted: Interrupted, globals: &RealmGlobals<'_>) -> Result<Realm, Error> {
        let broken = |e: rquickjs::Error| err!(JSInterpreterFailure, "no realm for scripts: {e}");
        let shared = Rc::new(Shared {
            interrupted,
            ended: Cell::new(false),
            emitted: RefCell::default(),
            failure: RefCell::new(None),
        });
        let memory = memory::Watched::new(&shared);
        let runtime = Runtime::new_with_alloc(memory).map_err(broken)?;
        runtime.set_memory_limit(MEMORY_BYTES);
        runtime.set_max_stack_size(STACK_BYTES);
        // No proxies and no typed arrays: loops over them could not be ended.
        let context = Context::builder()
            .with::<intrinsic::Date>()
            .with::<intrinsic::Eval>()
            .with::<intrinsic::RegExpCompiler>()
            .with::<intrinsic::RegExp>()
            .with::<intrinsic::Json>()
            .with::<intrinsic::MapSet>()
            .build(&runtime)
            .map_err(broken)?;
        let asked = shared.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || asked.must_end())));
        let realm = Realm {
            functions: HashMap::new(),
            shared,
            context,
        };
        realm.enter(|ctx, shared| {
            prepare(ctx, shared)?;
            if let Some(stored) = globals.stored {
                load_stored(ctx, stored)?;
            }
            for e in globals.scope.unwrap_or(Doc::EMPTY) {
                let value = match e.val.tag {
                    bson::tag::CODE => {
                        source::compile(ctx, e.val.as_code().unwrap_or(""))?.into_value()
                    }
                    _ => convert::to_js(ctx, e.val)?,
                };
                ctx.globals().set(e.name, value)?;
            }
            Ok(())
        })?;
        Ok(realm)
    }

    /// Does something in the realm; an exception becomes MongoDB's error.
    fn enter<T>(
        &self,
        f: impl for<'js> FnOnce(&Ctx<'js>, &Rc<Shared>) -> Result<T, ScriptFault>,
    ) -> Result<T, Error> {
        self.shared.ended.set(false);
        // One that a script has caught is not the cause of what fails later.
        self.shared.failure.take();
        self.context.with(|ctx| {
            f(&ctx, &self.shared).map_err(|fault| {
                let failure = self.shared.failure.borrow_mut().take();
                let told = match fault {
                    ScriptFault::Own(e) => e,
                    ScriptFault::Script(e) => exception(&ctx, e),
                };
                if self.shared.ended.get() {
                    return err!(Interrupted, "operation was interrupted");
                }
                failure.unwrap_or(told)
            })
        })
    }

    /// The compiled function of a text.
    fn function(&mut self, source: &Arc<str>) -> Result<Persistent<Function<'static>>, Error> {
        let key = Arc::as_ptr(source).cast::<u8>() as usize;
        if let Some((_, known)) = self.functions.get(&key) {
            return Ok(known.clone());
        }
        let compiled = self.enter(|ctx, _| {
            let function = source::compile(ctx, source)?;
            Ok(Persistent::save(ctx, function))
        })?;
        // With its text, so that no other text comes to stand at its address.
        self.functions
            .insert(key, (source.clone(), compiled.clone()));
        Ok(compiled)
    }

    fn call(&mut self, call: &FunctionCall<'_>) -> Result<Value, Error> {
        let function = self.function(call.source)?;
        self.enter(|ctx, shared| {
            let this = convert::doc_to_js(ctx, call.this.unwrap_or(Doc::EMPTY))?;
            if call.this.is_some() {
                ctx.globals().set("obj", this.clone())?;
            }
            let returned = apply(ctx, function, this, call.args)?;
            // Emitted values are not used here.
            shared.emitted.take();
            let mut w = Writer::new_array();
            convert::write(ctx, &mut w, "", &returned, 0)?;
            let first = w.open_values().next().map(Val::to_value);
            Ok(first.unwrap_or(Value::NULL))
        })
    }

    fn map(&mut self, call: &FunctionCall<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
        let function = self.function(call.source)?;
        out.clear();
        let emitted = Writer::on(std::mem::take(out));
        self.shared.emitted.replace(Some(emitted));
        let done = self.enter(|ctx, _| {
            let this = convert::doc_to_js(ctx, call.this.unwrap_or(Doc::EMPTY))?;
            apply(ctx, function, this, call.args)?;
            Ok(())
        });
        let emitted = self.shared.emitted.take().unwrap_or_default();
        *out = emitted.finish_into();
        done
    }
}

/// What a function returns.
fn apply<'js>(
    ctx: &Ctx<'js>,
    function: Persistent<Function<'static>>,
    this: rquickjs::Object<'js>,
    given: &[Val<'_>],
) -> Result<rquickjs::Value<'js>, ScriptFault> {
    let mut args = Args::new(ctx.clone(), given.len());
    args.this(this)?;
    for v in given {
        args.push_arg(convert::to_js(ctx, *v)?)?;
    }
    Ok(args.apply(&function.restore(ctx)?)?)
}

impl Shared {
    fn must_end(&self) -> bool {
        if (self.interrupted)() {
            self.ended.set(true);
        }
        self.ended.get()
    }
}

/// Runs the prelude, and gives it what only Rust can do.
fn prepare<'js>(ctx: &Ctx<'js>, shared: &Rc<Shared>) -> Result<(), ScriptFault> {
    let native = rquickjs::Object::new(ctx.clone())?;
    native.set("decimal", Function::new(ctx.clone(), convert::decimal)?)?;
    let md5 = |text: String| format!("{:x}", md5::compute(text));
    native.set("md5", Function::new(ctx.clone(), md5)?)?;
    let asked = shared.clone();
    let sleep = move |ctx: Ctx<'js>, ms: f64| {
        let until = Instant::now() + Duration::from_millis(ms.clamp(0.0, 1e9) as u64);
        while Instant::now() < until {
            if asked.must_end() {
                return Err(rquickjs::Exception::throw_message(&ctx, "interrupted"));
            }
            std::thread::sleep(SLEEP.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    };
    native.set("sleep", Function::new(ctx.clone(), sleep)?)?;
    let (asked, spent) = (shared.clone(), Cell::new(0.0));
    let spend = move |ctx: Ctx<'js>, items: f64| {
        spent.set(spent.get() + items);
        if spent.get() > SPENT_ITEMS {
            spent.set(0.0);
            asked.must_end();
        }
        match asked.ended.get() {
            true => Err(rquickjs::Exception::throw_message(&ctx, "interrupted")),
            false => Ok(()),
        }
    };
    native.set("spend", Function::new(ctx.clone(), spend)?)?;
    ctx.globals().set("emit", emit::function(ctx, shared)?)?;
    let prelude: Function<'js> = source::eval(ctx, include_str!("prelude.js").to_string())?;
    Ok(prelude.call((ctx.globals(), native))?)
}

/// Makes the functions and values of `system.js` known by their names. One that does not compile is left out.
fn load_stored<'js>(ctx: &Ctx<'js>, stored: Doc<'_>) -> Result<(), ScriptFault> {
    for d in stored.values().filter_map(Val::as_doc) {
        let (Some(name), Some(value)) = (d.get("_id").and_then(Val::as_str), d.get("value")) else {
            continue;
        };
        let made = match value.tag {
            bson::tag::CODE | bson::tag::CODE_WITH_SCOPE => {
                source::compile(ctx, value.as_code().unwrap_or("")).map(Function::into_value)
            }
            _ => convert::to_js(ctx, value),
        };
        match made {
            Ok(made) => ctx.globals().set(name, made)?,
            Err(_) => drop(ctx.catch()),
        }
    }
    Ok(())
}

/// The error for what a script threw: its name, its message, and where.
fn exception<'js>(ctx: &Ctx<'js>, e: rquickjs::Error) -> Error {
    if !matches!(e, rquickjs::Error::Exception) {
        return Error::new(Code::JSInterpreterFailure, e.to_string());
    }
    let thrown = ctx.catch();
    let property = |o: &rquickjs::Object<'js>, name: &str| {
        let value: Option<rquickjs::String<'js>> = o.get(name).ok();
        value.and_then(|s| convert::text(ctx, &s).ok())
    };
    let mut message = match thrown.as_object().filter(|o| o.is_error()) {
        Some(o) => {
            let name = property(o, "name").unwrap_or_else(|| "Error".to_string());
            let what = property(o, "message").unwrap_or_default();
            let place = property(o, "stack").unwrap_or_default();
            format!("{name}: {what} :\n{place}")
        }
        None => {
            let mut w = Writer::new_array();
            match convert::write(ctx, &mut w, "", &thrown, 0) {
                Ok(()) => match w.open_values().next() {
                    Some(v) => match v.as_str() {
                        Some(s) => format!("uncaught exception: {s}"),
                        None => format!("uncaught exception: {}", bson::shell::val(v)),
                    },
                    None => "uncaught exception".to_string(),
                },
                Err(_) => "uncaught exception".to_string(),
            }
        }
    };
    drop(ctx.catch());
    if message.len() > 4096 {
        let end = (0..=4096).rev().find(|i| message.is_char_boundary(*i));
        message.truncate(end.unwrap_or(0));
    }
    Error::new(Code::JSInterpreterFailure, message)
}

#[cfg(test)]
mod tests;
