//! Scripts in the language: what `$where`, `$function`, `$accumulator` and `mapReduce` ask of an
//! engine.
//!
//! Invariant: no engine is known here. It comes in from outside with the variables of the command
//! ([`crate::expr::Watchdog::scripts`]), as the clock and other collections do.

use bson::{Doc, Val, Value};
use errors::Result;
use std::sync::Arc;

/// The name of the variable that holds mapReduce's `scope`.
pub const SCOPE: &str = "JS_SCOPE";
/// The name of the variable that holds the documents of `system.js`.
pub const STORED: &str = "JS_STORED";

/// A function as it is written. Copies share the text, so an engine compiles it once.
#[derive(Clone, Debug)]
pub struct Function {
    pub source: Arc<str>,
}

impl Function {
    pub fn new(source: &str) -> Function {
        Function {
            source: Arc::from(source),
        }
    }
}

/// Global variables of the scripts of a command.
#[derive(Clone, Copy, Default)]
pub struct Globals<'a> {
    pub scope: Option<Doc<'a>>,
    pub stored: Option<Doc<'a>>,
}

/// Runs functions. Errors are MongoDB's: JSInterpreterFailure for what the script throws.
pub trait Scripts {
    /// What the function returns.
    fn call(
        &self,
        function: &Function,
        this: Option<Doc<'_>>,
        args: &[Val<'_>],
        globals: Globals<'_>,
    ) -> Result<Value>;

    /// Runs the function for the values that it emits, which replace the content of `out`.
    fn map(
        &self,
        function: &Function,
        this: Doc<'_>,
        globals: Globals<'_>,
        out: &mut Emitted,
    ) -> Result<()>;
}

/// What the calls of `emit` for one document gave.
#[derive(Default)]
pub struct Emitted {
    /// A document of nameless elements: keys and values in turn.
    pub bytes: Vec<u8>,
}

impl Emitted {
    /// Keys and their values, in the order in which they were emitted.
    pub fn pairs(&self) -> impl Iterator<Item = (Val<'_>, Val<'_>)> {
        let mut all = Doc::new(&self.bytes).unwrap_or(Doc::EMPTY).values();
        std::iter::from_fn(move || Some((all.next()?, all.next()?)))
    }
}
