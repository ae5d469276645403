//! A function's text, and behind a zero byte a document (BSON or Extended JSON): the function is
//! called with it and maps it, twice in one realm. Whatever it does, what comes back is well-formed
//! or an error.

use bson::{Doc, DocBuf, Val, Writer};
use script::{FunctionCall, Interrupted, RealmGlobals, ScriptEngine};
use std::cell::Cell;
use std::sync::Arc;

/// How often the engine may ask whether it must end.
const ASKS: u32 = 200;

fn interrupted() -> Interrupted {
    let asked = Cell::new(0);
    Box::new(move || {
        asked.set(asked.get() + 1);
        asked.get() > ASKS
    })
}

fn document(bytes: &[u8]) -> DocBuf {
    if bson::validate(bytes).is_ok() {
        return DocBuf::from_vec(bytes.to_vec()).unwrap_or_default();
    }
    let text = String::from_utf8_lossy(bytes);
    bson::json::parse(&text).unwrap_or_default()
}

fn check(v: Val<'_>) {
    let mut w = Writer::new();
    w.val("v", v);
    let whole = w.finish();
    // A document deeper than a client's may be is refused where it is stored.
    bson::validate_with_depth(whole.as_bytes(), 400).expect("well-formed");
}

pub fn run(input: &[u8]) {
    let mut parts = input.splitn(2, |b| *b == 0);
    let text = String::from_utf8_lossy(parts.next().unwrap_or(&[]));
    let doc = document(parts.next().unwrap_or(&[]));
    let source: Arc<str> = Arc::from(&*text);
    let engine = ScriptEngine::default();
    let args = [doc.as_doc().as_val()];
    let call = FunctionCall {
        source: &source,
        this: Some(doc.as_doc()),
        args: &args,
        globals: RealmGlobals::default(),
    };
    for _ in 0..2 {
        if let Ok(v) = engine.call(&call, interrupted) {
            check(v.as_val());
        }
        let mut emitted = Vec::new();
        if engine.map(&call, &mut emitted, interrupted).is_ok() {
            let all = Doc::new(&emitted).expect("a document of what was emitted");
            assert_eq!(all.values().count() % 2, 0);
            all.values().for_each(check);
        }
    }
    // The rest of the realm still answers.
    let plain: Arc<str> = Arc::from("function (x) { return x }");
    let call = FunctionCall {
        source: &plain,
        ..call
    };
    if let Ok(v) = engine.call(&call, interrupted) {
        check(v.as_val());
    }
}
