//! From the text of a function to something that can be called.
//!
//! MongoDB takes a function (`function (x) {…}`, `x => …`), an expression (`this.a > 1`), statements of
//! which the last is an expression, whose value is the result (`var x = 1; this.a == x`), or the body of
//! a function (`if (this.a) return true`); each perhaps with semicolons behind it. Nothing of it is run
//! here: only function expressions are evaluated.

use rquickjs::context::EvalOptions;
use rquickjs::{Ctx, Function, Value};

/// The bytes that may be parsed to find where the last statement of a text begins.
const SPLIT_BYTES: usize = 4 << 20;

/// The function that the text stands for; fails with the script's SyntaxError.
pub fn compile<'js>(ctx: &Ctx<'js>, text: &str) -> rquickjs::Result<Function<'js>> {
    let text = text.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    if is_function(text) {
        let made: Option<Value<'js>> = attempt(ctx, format!("({text}\n)"));
        if let Some(function) = made.and_then(Value::into_function) {
            return Ok(function);
        }
    }
    if let Some(made) = attempt(ctx, format!("(function(){{return ({text}\n)}})")) {
        return Ok(made);
    }
    if let Some(made) = statements(ctx, text) {
        return Ok(made);
    }
    eval(ctx, format!("(function(){{{text}\n}})"))
}

/// What the text gives, or nothing where it is no such text: the exception is of no account.
fn attempt<'js, V: rquickjs::FromJs<'js>>(ctx: &Ctx<'js>, text: String) -> Option<V> {
    let made = eval(ctx, text).ok();
    if made.is_none() {
        drop(ctx.catch());
    }
    made
}

/// The function of statements of which the last is an expression. It is the longest end of the text
/// that is one expression, with whole statements before it.
fn statements<'js>(ctx: &Ctx<'js>, text: &str) -> Option<Function<'js>> {
    let mut left = SPLIT_BYTES;
    for at in boundaries(text) {
        left = left.checked_sub(text.len())?;
        let (before, last) = text.split_at(at);
        let whole: Option<Value<'js>> = attempt(ctx, format!("(function(){{{before}\n}})"));
        if whole.is_none() {
            continue;
        }
        let made = attempt(ctx, format!("(function(){{{before}\nreturn ({last}\n)}})"));
        if made.is_some() {
            return made;
        }
    }
    None
}

/// Places where a statement may begin: behind a semicolon, a block or a line that is in no brackets.
fn boundaries(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut depth, mut quote, mut escaped) = (0i32, None, false);
    for (at, c) in text.char_indices() {
        if let Some(q) = quote {
            let ends = c == q && !escaped;
            escaped = c == '\\' && !escaped;
            if ends {
                quote = None;
            }
            continue;
        }
        match c {
            '"' | '\'' | '`' => quote = Some(c),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(c, ';' | '}' | '\n') {
            found.push(at + 1);
        }
    }
    found
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
