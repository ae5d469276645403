//! Scripts as users write them, well and ill: answers, errors, limits, ends.

use super::*;
use bson::json;
use std::cell::Cell;
use std::sync::Mutex;

fn never() -> Interrupted {
    Box::new(|| false)
}

fn run_in(engine: &ScriptEngine, source: &str, args: &str) -> Result<Value, Error> {
    let source: Arc<str> = source.into();
    let args = json::parse(&format!("{{\"a\": {args}}}")).unwrap();
    let args: Vec<Val<'_>> = args
        .as_doc()
        .get("a")
        .unwrap()
        .as_array()
        .unwrap()
        .values()
        .collect();
    let call = FunctionCall {
        source: &source,
        this: None,
        args: &args,
        globals: RealmGlobals::default(),
    };
    engine.call(&call, never)
}

fn run(source: &str, args: &str) -> Result<Value, Error> {
    run_in(&ScriptEngine::default(), source, args)
}

fn gives(source: &str, args: &str, expected: &str) {
    let got = run(source, args).unwrap_or_else(|e| panic!("{source}: {e}"));
    let expected = json::parse_value(expected).unwrap();
    assert!(
        bson::order::equal(got.as_val(), expected.as_val()) && got.tag() == expected.tag(),
        "{source}: {} instead of {}",
        got.as_val(),
        expected.as_val()
    );
}

fn fails(source: &str, code: i32, message: &str) {
    let e = run(source, "[]").expect_err(source);
    assert!(
        e.code == Code(code) && e.message.contains(message),
        "{source}: {e}"
    );
}

#[test]
fn functions_expressions_and_bodies() {
    gives("function (a, b) { return a + b }", "[1, 2]", "3.0");
    gives("(a) => a * 2", "[4]", "8.0");
    gives("1 + 1;", "[]", "2.0");
    gives("var a = 1; return a + 1", "[]", "2.0");
    gives("if (true) { return 'x' }", "[]", "\"x\"");
    gives(
        "function f(n) { return n < 2 ? n : f(n - 1) + f(n - 2) }",
        "[10]",
        "55.0",
    );
    gives(
        "/* c */ function () { return arguments.length }",
        "[1, 2, 3]",
        "3.0",
    );
}

#[test]
fn statements_give_the_value_of_the_last() {
    gives("function () { return 1; };", "[]", "1.0");
    gives("function () { return 1; } ; \n;", "[]", "1.0");
    gives("(x) => x + 1;", "[1]", "2.0");
    gives("var x = 1; x == 1", "[]", "true");
    gives("var x = 1;\nvar y = 2\nx + y;", "[]", "3.0");
    gives("function f(n) { return n + 1; }; f(1)", "[]", "2.0");
    gives("function f(n) { return n + 1; }\nf(1);", "[]", "2.0");
    gives("var s = 'a;b'; s + ';'", "[]", "\"a;b;\"");
    gives("var x = 1\n+ 1; x\n- 1", "[]", "1.0");
    gives(
        "for (var i = 0, n = 0; i < 3; i++) { n += i; } n",
        "[]",
        "3.0",
    );
    gives("var a = 1; return a + 1;", "[]", "2.0");
    gives("if (true) { return 'x'; };", "[]", "\"x\"");
    fails("var x = ; x", 139, "SyntaxError");
}

#[test]
fn types_go_in_and_come_back() {
    for v in [
        "1.5",
        "\"é𝄞\"",
        "true",
        "null",
        "[1.0, [\"a\"]]",
        "{\"a\": {\"b\": 1.5}}",
        "{\"$numberLong\": \"9223372036854775807\"}",
        "{\"$numberDecimal\": \"1.10\"}",
        "{\"$oid\": \"65a1b2c3d4e5f60718293a4b\"}",
        "{\"$date\": {\"$numberLong\": \"1700000000123\"}}",
        "{\"$timestamp\": {\"t\": 4294967295, \"i\": 7}}",
        "{\"$binary\": {\"base64\": \"AQIDBA==\", \"subType\": \"80\"}}",
        "{\"$regularExpression\": {\"pattern\": \"^a.b$\", \"options\": \"i\"}}",
        "{\"$minKey\": 1}",
        "{\"$maxKey\": 1}",
    ] {
        gives("function (x) { return x }", &format!("[{v}]"), v);
        gives(
            "function (x) { return {y: [x]} }",
            &format!("[{v}]"),
            &format!("{{\"y\": [{v}]}}"),
        );
    }
    gives("x => x", "[{\"$numberInt\": \"7\"}]", "7.0");
    gives("() => NumberInt(7)", "[]", "{\"$numberInt\": \"7\"}");
    gives("() => undefined", "[]", "{\"$undefined\": true}");
    gives("() => 5n", "[]", "{\"$numberLong\": \"5\"}");
    gives(
        "() => [ISODate('2024-01-02T03:04:05Z'), ISODate('2024-01-02T03:04:05.5+02:00').getTime()]",
        "[]",
        "[{\"$date\": {\"$numberLong\": \"1704164645000\"}}, 1704157445500.0]",
    );
    gives("() => '\\ud800'", "[]", "\"\u{FFFD}\"");
}

#[test]
fn what_mongodb_gives_to_scripts() {
    gives("() => Array.sum([1, 2, 3])", "[]", "6.0");
    gives("() => Array.avg([1, 2, 3])", "[]", "2.0");
    gives(
        "() => hex_md5('hello')",
        "[]",
        "\"5d41402abc4b2a76b9719d911017c592\"",
    );
    gives(
        "() => tojson({a: [1, 'x'], b: NumberLong(5)})",
        "[]",
        "\"{ \\\"a\\\" : [ 1, \\\"x\\\" ], \\\"b\\\" : NumberLong(5) }\"",
    );
    gives("() => tojsononeline([])", "[]", "\"[ ]\"");
    gives(
        "() => UUID('00112233-4455-6677-8899-aabbccddeeff').toString()",
        "[]",
        "\"UUID(\\\"00112233-4455-6677-8899-aabbccddeeff\\\")\"",
    );
    gives(
        "() => ObjectId('65a1b2c3d4e5f60718293a4b').getTimestamp().getTime()",
        "[]",
        "1705095875000.0",
    );
    gives("() => NumberLong('4') + 1", "[]", "5.0");
    gives(
        "() => NumberLong(2) > 1 && MinKey == MinKey() && isString('')",
        "[]",
        "true",
    );
    gives(
        "() => [3, 1, 2].sort().concat([9]).map(x => x * 2)",
        "[]",
        "[2.0, 4.0, 6.0, 18.0]",
    );
    gives("() => 'a,b'.split(',').indexOf('b')", "[]", "1.0");
    gives(
        "() => { print('x'); printjson({}); return typeof BinData(0, '') }",
        "[]",
        "\"object\"",
    );
}

#[test]
fn nothing_leads_outside() {
    for name in [
        "require",
        "process",
        "std",
        "os",
        "fetch",
        "XMLHttpRequest",
        "load",
        "quit",
        "scriptArgs",
        "Deno",
        "db",
        "Mongo",
        "cat",
        "run",
        "performance",
        "SharedArrayBuffer",
        "WebAssembly",
        "Proxy",
        "Atomics",
    ] {
        gives(&format!("() => typeof {name}"), "[]", "\"undefined\"");
    }
    fails("() => import('fs').x.y", 139, "");
}

#[test]
fn errors_tell_name_and_line() {
    fails(
        "function () {\n  return missing.x;\n}",
        139,
        "ReferenceError: missing is not defined",
    );
    fails("function () {\n  return missing.x;\n}", 139, "script:2:");
    fails("function ( { return 1 }", 139, "SyntaxError");
    fails(
        "() => { throw 'told so' }",
        139,
        "uncaught exception: told so",
    );
    fails(
        "() => { throw {a: 1} }",
        139,
        "uncaught exception: { a: 1.0 }",
    );
    fails("() => ObjectId('x')", 139, "invalid object id");
    fails("() => { var a = {}; a.a = a; return a }", 17279, "cycle");
    fails("() => 'x'.repeat(17 << 20)", 17260, "exceeds limit");
    fails("() => ({'a\\0b': 1})", 2, "null char");
}

#[test]
fn compiled_once_and_kept_apart() {
    let engine = ScriptEngine::default();
    let source: Arc<str> =
        "function (x) { this.n = (globalThis.n = (globalThis.n || 0) + 1); return x + n }".into();
    let ten = Value::from(10);
    for i in 0..3 {
        let call = FunctionCall {
            source: &source,
            this: Some(Doc::EMPTY),
            args: &[ten.as_val()],
            globals: RealmGlobals::default(),
        };
        let got = engine.call(&call, never).unwrap();
        assert_eq!(got.as_val().to_f64(), Some(11.0 + f64::from(i)));
    }
    assert_eq!(
        engine
            .realm
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .functions
            .len(),
        1
    );
    gives("() => typeof n", "[]", "\"undefined\"");
}

#[test]
fn emits_and_globals() {
    let scope = json::parse(r#"{"factor": 3}"#).unwrap();
    let stored = json::parse(
        r#"{"a": [{"_id": "twice", "value": {"$code": "function (x) { return 2 * x }"}}, {"_id": "broken", "value": {"$code": "function ("}}, {"_id": "seven", "value": 7}]}"#,
    )
    .unwrap();
    let source: Arc<str> =
        "function () { emit(undefined, 1); emit(this.k, {n: twice(this.n) * factor + seven}) }"
            .into();
    let doc = json::parse(r#"{"k": "x", "n": 2}"#).unwrap();
    let call = FunctionCall {
        source: &source,
        this: Some(doc.as_doc()),
        args: &[],
        globals: RealmGlobals {
            scope: Some(scope.as_doc()),
            stored: stored.as_doc().get("a").and_then(Val::as_array),
        },
    };
    assert_eq!(
        emitted(&ScriptEngine::default(), &call),
        [r#"null"#, "1.0", r#""x""#, r#"{"n": 19.0}"#]
    );
}

/// What a function emits: keys and values in turn.
fn emitted(engine: &ScriptEngine, call: &FunctionCall<'_>) -> Vec<String> {
    let mut out = b"of another document".to_vec();
    engine.map(call, &mut out, never).unwrap();
    let all = Doc::new(&out).unwrap();
    all.values().map(|v| v.to_string()).collect()
}

#[test]
fn an_emission_that_fails_leaves_those_before_it() {
    let source: Arc<str> = "function () {
        emit(1, 'a');
        const cycle = {}; cycle.self = cycle;
        for (const f of [() => emit(cycle, 1), () => emit('k', cycle), () => emit(1), () => emit(1, 2, 3)]) {
            try { f() } catch (e) {}
        }
        emit('\\ud800', {toString: () => emit(3, 'lost')});
        emit(2, 'b');
    }"
    .into();
    let call = FunctionCall {
        source: &source,
        this: None,
        args: &[],
        globals: RealmGlobals::default(),
    };
    let engine = ScriptEngine::default();
    for _ in 0..2 {
        let got = emitted(&engine, &call);
        assert_eq!(got[..2], ["1.0", "\"a\""]);
        assert_eq!(got[2], "\"\u{FFFD}\"");
        assert_eq!(got[4..], ["2.0", "\"b\""]);
    }
    let e = run_in(&engine, "() => { throw new Error('later') }", "[]").unwrap_err();
    assert!(e.message.contains("later"), "{e}");
}

#[test]
fn no_bomb_is_more_than_an_error() {
    for bomb in [
        "() => { var a = []; while (true) a.push('x'.repeat(1000) + a.length) }",
        "() => { var s = 'x'; while (true) s += s }",
        "() => new Array(1e9).fill(0)",
        "() => Array.prototype.fill.call({length: 2 ** 53 - 1}, 1)",
        "() => { var a = []; a.length = 4294967295; return a.indexOf(1) }",
        "() => { var a = []; a.length = 4294967295; return a }",
        "() => { var a = []; a.length = 4294967295; return a.sort() }",
        "() => [].concat(...Array(100).fill({length: 2 ** 32, [Symbol.isConcatSpreadable]: true}))",
        "() => 'a'.repeat(1e7).indexOf('a'.repeat(5e6) + 'b')",
        "() => { function f() { return f() + 1 } return f() }",
        "() => { var o = {}; for (var i = 0; i < 1e6; i++) o = {o}; return JSON.stringify(o) }",
        "() => JSON.parse('['.repeat(1e6))",
        "() => eval('('.repeat(1e6))",
        "() => new RegExp('('.repeat(1e6))",
        "() => { var a = []; a[0] = a; return String(a) + tojson(a) + a.flat(Infinity) }",
        "() => { Object.prototype._bson = 7; return {} }",
        "() => ({_bson: 5})",
        "() => ({_bson: 18, _v: 'x'})",
        "() => { Array.prototype[Symbol.iterator] = null; return [ISODate(), /a/] }",
        "() => { Object.defineProperty(Object.prototype, 'a', {set() { throw 1 }}); return {b: 1} }",
        "() => ({get a() { throw new Error('no') }})",
        "() => { throw {get a() { throw 1 }} }",
        "() => { throw {toString() { throw 1 }} }",
        "() => { var e = new Error(); Object.defineProperty(e, 'message', {get() { throw e }}); throw e }",
        "() => { __bson = 1; delete globalThis.__bson; globalThis.ObjectId = 1; return new Date() }",
        "() => 2n ** 100000000n",
        "() => Symbol('x')",
        "() => new Map([[1, 2]])",
        "() => function () {}",
        "() => 2n ** 70n",
    ] {
        // An answer or an error, and afterwards the engine goes on.
        let engine = ScriptEngine::default();
        let begun = Instant::now();
        let _ = run_in(&engine, bomb, "[]");
        assert!(begun.elapsed() < Duration::from_secs(20), "{bomb}");
        let after = run_in(&engine, "() => 1", "[]");
        assert!(
            after.is_ok() || after.is_err_and(|e| e.code == Code::JSInterpreterFailure),
            "{bomb}"
        );
    }
    fails(
        "() => { function f() { return f() + 1 } return f() }",
        139,
        "Maximum call stack",
    );
    fails("() => { var s = 'x'; while (true) s += s }", 139, "");
}

#[test]
fn an_endless_loop_ends_when_it_must() {
    for endless in [
        "() => { while (true) {} }",
        "() => { for (;;) { try { while (true) {} } catch (e) {} } }",
        "() => { while (true) try { sleep(1e9) } catch (e) {} }",
        "() => /(a*)*(a*)*(a*)*b/.test('a'.repeat(60))",
        "() => { while (true) [3, 2, 1].sort(() => 1) }",
        "() => { while (true) ISODate() }",
        "() => { var a = {}; while (true) a[Math.random()] = new Set([1, [2, [3]].flat(9)]) }",
        // Steps that are long by themselves.
        "() => { while (true) 'x'.repeat(1e6) }",
        "() => { while (true) try { [].concat('x'.repeat(1e6)) } catch (e) {} }",
        "() => { var a = new Array(1e6).fill(1); while (true) a.slice() }",
        "() => { var a = new Array(1e6).fill(1); while (true) try { a.indexOf(2) } catch (e) {} }",
        "() => { var s = 'ab'.repeat(1e5); while (true) s.split('a') }",
        "() => { var s = 'ab'.repeat(1e6); while (true) s.indexOf('zz') }",
        "() => { var s = 'x'.repeat(5e6); while (true) s.toUpperCase() }",
        "() => { var a = Array(1e5).fill(1); while (true) JSON.stringify(a) }",
        "() => { while (true) (1n << 100000n) * (1n << 100001n) }",
        "() => { var s = 'x'.repeat(1e5); while (true) /a*b/.test(s) }",
    ] {
        let source = Arc::<str>::from(endless);
        let call = FunctionCall {
            source: &source,
            this: None,
            args: &[],
            globals: RealmGlobals::default(),
        };
        let rarest = Arc::new(Mutex::new(Duration::ZERO));
        let answer = ScriptEngine::default().call(&call, || asked_for(rarest.clone()));
        assert_eq!(answer.unwrap_err().code, Code::Interrupted, "{endless}");
        let rarest = *rarest.lock().unwrap();
        // One step over five million characters takes a seventh of a second in a development build on a
        // slow machine. A script that is asked once in some thousand steps takes minutes.
        assert!(rarest < Duration::from_secs(1), "{endless}: {rarest:?}");
    }
}

/// Lets a script run for a tenth of a second, and tells how much of its thread's time it took at most
/// between two times that it asked.
fn asked_for(rarest: Arc<Mutex<Duration>>) -> Interrupted {
    let (began, last) = (Instant::now(), Cell::new(thread_time()));
    Box::new(move || {
        let now = thread_time();
        let since = now - last.replace(now);
        let mut rarest = rarest.lock().unwrap();
        *rarest = since.max(*rarest);
        began.elapsed() >= Duration::from_millis(100)
    })
}

fn thread_time() -> Duration {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is there on every Linux, and `t` is ours.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    assert_eq!(read, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Random pieces of scripts put together: an answer or an error, never more.
#[test]
fn random_scripts_never_panic() {
    let pieces = [
        "this",
        "x",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "=>",
        "function",
        "return ",
        ";",
        ",",
        ".",
        "'a'",
        "1",
        "NaN",
        "emit",
        "ObjectId()",
        "NumberLong",
        "new ",
        "Date",
        "throw ",
        "var ",
        "=",
        "+",
        "_bson",
        ":",
        "null",
        "tojson",
        "Array.sum",
        "BinData(0,'AA')",
        "/a/",
        "\n",
        "\\u{1F600}",
        "undefined",
        "__bson",
        "make",
        "19",
    ];
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    let engine = ScriptEngine::default();
    for _ in 0..3000 {
        let source: String = (0..1 + next(12))
            .map(|_| pieces[next(pieces.len())])
            .collect();
        let _ = run_in(&engine, &source, "[{\"b\": 1}, null]");
    }
}
