//! From the text of a function to something that can be called.
//!
//! MongoDB takes a function (`function (x) {…}`, `x => …`), an expression (`this.a > 1`) or the body of a
//! function (`if (this.a) return true`). Nothing of it is run here: only function expressions are evaluated.

use rquickjs::context::EvalOptions;
use rquickjs::{Ctx, Function, Value};

/// The function that the text stands for; fails with the script's SyntaxError.
pub fn compile<'js>(ctx: &Ctx<'js>, text: &str) -> rquickjs::Result<Function<'js>> {
    if is_function(text) {
        let made: Value<'js> = eval(ctx, format!("({text}\n)"))?;
        if let Ok(function) = made.try_into_function() {
            return Ok(function);
        }
    }
    let expression = text.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    let made = eval(ctx, format!("(function(){{return ({expression}\n)}})"));
    if made.is_ok() {
        return made;
    }
    // The exception is of no account: perhaps it is a body.
    drop(ctx.catch());
    eval(ctx, format!("(function(){{{text}\n}})"))
}

/// Evaluates text in sloppy mode, as MongoDB does.
pub fn eval<'js, V: rquickjs::FromJs<'js>>(ctx: &Ctx<'js>, text: String) -> rquickjs::Result<V> {
    let mut options = EvalOptions::default();
    options.strict = false;
    options.filename = Some("script".to_string());
    ctx.eval_with_options(text, options)
}

/// Whether the text begins as a function does: `function`, `x =>`, `(a, b) =>`, each perhaps with `async`.
fn is_function(text: &str) -> bool {
    let mut rest = skip_blank(text);
    if let Some(after) = word(rest, "async") {
        rest = skip_blank(after);
    }
    if word(rest, "function").is_some() {
        return true;
    }
    let name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let after = match rest.strip_prefix('(') {
        None => rest.trim_start_matches(name),
        Some(inside) => {
            let mut depth = 1;
            let end = inside.find(|c| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth == 0
            });
            end.map_or("", |at| &inside[at + 1..])
        }
    };
    after.len() < rest.len() && skip_blank(after).starts_with("=>")
}

fn word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let rest = text.strip_prefix(word)?;
    let goes_on = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    (!rest.starts_with(goes_on)).then_some(rest)
}

fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        let after = match text.get(..2) {
            Some("//") => text.split_once('\n'),
            Some("/*") => text[2..].split_once("*/"),
            _ => return text,
        };
        match after {
            Some((_, rest)) => text = rest,
            None => return "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_function;

    #[test]
    fn tells_functions_from_expressions() {
        for text in [
            "function () { return 1 }",
            "  // a comment\n/* and\nanother */ function f(x) {}",
            "x => x + 1",
            "(a, b) => a",
            "async (a) => a",
            "({a, b}) => a",
            "_a1$=>1",
        ] {
            assert!(is_function(text), "{text}");
        }
        for text in [
            "this.a > 1",
            "functional(1)",
            "(this.a) > 1",
            "return 1",
            "// only a comment",
            "/* not closed",
            "",
            "(",
            "é",
        ] {
            assert!(!is_function(text), "{text}");
        }
    }
}
