//! Bent scripts.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/scripts.rs"]
mod targets;

#[test]
fn scripts() {
    const DOCUMENT: &str = r#"{"_id": 1, "text": "a b a", "n": {"$numberLong": "5"}, "d": {"$date": 5}, "list": [1, "x", null, {"y": [2.5]}], "id": {"$oid": "65a1b2c3d4e5f60718293a4b"}, "b": {"$binary": {"base64": "AQID", "subType": "00"}}}"#;
    let texts = [
        "function () { var words = this.text.split(' '); for (var i = 0; i < words.length; i++) emit(words[i], 1) }",
        "function (x) { return x }",
        "function () { for (var k in this) emit(k, this[k]); emit(undefined, {a: [1, NumberInt(2)]}) }",
        "function (x) { try { emit(1) } catch (e) { emit(e, String(e)) } emit('k', x.list) }",
        "function (x) { var a = [1, 2]; a.x = a; a[5] = x; Object.defineProperty(a, 1, {get() { return emit }}); return a }",
        "function () { emit.call = emit; String.prototype.toWellFormed = () => emit('\\ud800', '\\ud801'); emit('\\ud800', 1) }",
        "function () { Object.setPrototypeOf(Array.prototype, {get 3() { throw 3 }}); return {a: Date(), r: /a(b|c)*/gi, f: emit} }",
        "function () { return {_bson: 5, type: -1, _v: '===='} }",
        "function () { return tojson({a: [ISODate(), NumberDecimal('1.5'), MinKey, UUID()]}) + Array.sum([1n, 2n]) }",
        "function f() { return f() + 1 }",
        "while (true) { [].concat('x'.repeat(1e6)) }",
        "var s = 'ab'; for (;;) s = s.replace(/a*b/g, s + s)",
        "(function* () { yield* [1, 2] })().next().value",
        "class A extends Map { get _bson() { return 17 } }; return new A([[1, 2]])",
        "JSON.parse('[[[[1e400]]]]', function (k, v) { return {k, v} })",
    ];
    let seeds: Vec<Vec<u8>> = (texts.iter())
        .map(|t| [t.as_bytes(), b"\0", DOCUMENT.as_bytes()].concat())
        .collect();
    mutate::fuzz("scripts", &seeds, targets::run);
}
