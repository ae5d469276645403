//! Runs the cases of `testdata/expressions.txt`.

use super::{EvalCtx, Expression, ParseEnv, Vars, table};
use bson::json;

/// Lines of a case file as (what, on, expected).
pub(crate) fn cases(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.lines()
        .filter(|l| !l.trim().is_empty() && !l.starts_with('#'))
        .map(|l| {
            let (left, want) = l.rsplit_once(" => ").expect(l);
            let (what, on) = left.rsplit_once(" | ").expect(l);
            (what, on, want)
        })
}

fn run(expression: &str, doc: &str) -> String {
    let (e, doc) = (
        json::parse_value(expression).expect(expression),
        json::parse(doc).expect(doc),
    );
    let vars = Vars::new(1000);
    let parsed = match Expression::parse(e.as_val(), &ParseEnv::new()) {
        Ok(x) => x,
        Err(e) => return format!("!{}", e.into_error().code.0),
    };
    // What explain prints must be an expression again.
    let printed = parsed.to_value();
    if let Err(e) = Expression::parse(printed.as_val(), &ParseEnv::new()) {
        return format!("explain of {expression} is {printed:?}: {e}");
    }
    match parsed.evaluate(&EvalCtx::new(doc.as_doc(), &vars)) {
        Ok(v) => v.as_val().map_or("missing".into(), |v| v.to_string()),
        Err(e) => format!("!{}", e.into_error().code.0),
    }
}

#[test]
fn expressions() {
    let text = include_str!("../../testdata/expressions.txt");
    let mut failed = Vec::new();
    for (e, doc, want) in cases(text) {
        let got = run(e, doc);
        if got != want {
            failed.push(format!("{e} | {doc}\n  gives {got}\n  not   {want}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_operator_has_a_case() {
    let text = include_str!("../../testdata/expressions.txt");
    // The row without a name is `$where`'s: no expression can name it.
    for name in table::names().filter(|name| !name.is_empty()) {
        assert!(text.contains(&format!("\"{name}\":")), "{name}");
    }
}

#[test]
fn constants_are_folded() {
    let cases = [
        (r#"{"$add":[1,{"$multiply":[2,3]}]}"#, true),
        (r#"{"$cond":[true,5,"$a"]}"#, true),
        (r#"{"$add":[1,"$a"]}"#, false),
        (r#"{"$rand":{}}"#, false),
        (r#"{"a":[1,{"$add":[1,1]}]}"#, true),
    ];
    for (e, want) in cases {
        let v = json::parse_value(e).unwrap();
        let x = Expression::parse(v.as_val(), &ParseEnv::new()).unwrap();
        assert_eq!(x.constant().is_some(), want, "{e}");
    }
}

#[test]
fn needed_paths() {
    let cases = [
        (r#"{"$add":["$a.b","$c"]}"#, Some("a.b,c")),
        (r#"{"$map":{"input":"$a","in":"$$this.x"}}"#, Some("a")),
        (r#""$$ROOT""#, None),
        (r#""$$ROOT.a""#, Some("a")),
        (r#"{"$literal":"$a"}"#, Some("")),
    ];
    for (e, want) in cases {
        let v = json::parse_value(e).unwrap();
        let x = Expression::parse(v.as_val(), &ParseEnv::new()).unwrap();
        let got = x
            .needed_paths()
            .map(|s| s.into_iter().collect::<Vec<_>>().join(","));
        assert_eq!(got.as_deref(), want, "{e}");
    }
}
