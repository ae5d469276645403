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

    /// What the function emits: an array of `{k, v}`.
    fn map(&self, function: &Function, this: Doc<'_>, globals: Globals<'_>) -> Result<Value>;
}
