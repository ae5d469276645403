//! Cases: document, update, result (or `#code`); `=` means the update changes nothing.

use super::*;
use bson::json;

const NOW: i64 = 1_700_000_000_000;
const TS: u64 = 7 << 32 | 1;

fn val(text: &str) -> bson::Value {
    json::parse_value(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn doc(text: &str) -> DocBuf {
    json::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn parse(update: &str, array_filters: &str) -> Result<Update> {
    let filters = val(array_filters);
    let filters: Vec<Doc<'_>> = filters
        .as_val()
        .as_array()
        .unwrap()
        .values()
        .filter_map(|v| v.as_doc())
        .collect();
    Update::parse(val(update).as_val(), &filters, &ParseEnv::new())
}

fn filter(query: &str) -> Filter {
    Filter::parse(doc(query).as_doc(), &ParseEnv::new()).unwrap()
}

fn show(r: Result<Option<Applied>>) -> String {
    match r {
        Ok(None) => "=".to_string(),
        Ok(Some(a)) => {
            bson::validate(a.doc.as_bytes()).unwrap();
            a.doc.as_doc().to_string()
        }
        Err(e) => format!("#{}", e.into_error().code.0),
    }
}

fn run(query: &str, d: &str, update: &str, array_filters: &str) -> String {
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    show(parse(update, array_filters).and_then(|u| u.apply(doc(d).as_doc(), &filter(query), &ctx)))
}

fn check(cases: &[(&str, &str, &str)]) {
    for (d, update, want) in cases {
        let want = if want.starts_with('{') {
            doc(want).as_doc().to_string()
        } else {
            want.to_string()
        };
        assert_eq!(run("{}", d, update, "[]"), want, "{update} on {d}");
    }
}

#[test]
fn set_and_unset() {
    check(&[
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$set":{"a":99}}"#,
            r#"{"_id":1,"a":99}"#,
        ),
        (
            r#"{"_id":1,"a":1,"b":2}"#,
            r#"{"$set":{"a":"long string"}}"#,
            r#"{"_id":1,"a":"long string","b":2}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"$set":{"a":1}}"#, "="),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$set":{"a":{"$numberLong":"1"}}}"#,
            r#"{"_id":1,"a":{"$numberLong":"1"}}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"z":1,"a":2,"m":3}}"#,
            r#"{"_id":1,"a":2,"m":3,"z":1}"#,
        ),
        // What begins with a zero is no number.
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"01":1,"1":2,"002":3}}"#,
            r#"{"_id":1,"002":3,"01":1,"1":2}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"10":1,"9":2,"1":3}}"#,
            r#"{"_id":1,"1":3,"9":2,"10":1}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"a.b.c":1,"a.d":2}}"#,
            r#"{"_id":1,"a":{"b":{"c":1},"d":2}}"#,
        ),
        (
            r#"{"_id":1,"a":{"b":1},"z":0}"#,
            r#"{"$set":{"a.b":2,"a.c":3}}"#,
            r#"{"_id":1,"a":{"b":2,"c":3},"z":0}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.5":9}}"#,
            r#"{"_id":1,"a":[1,2,null,null,null,9]}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.2":3,"a.10":4,"a.0":0}}"#,
            r#"{"_id":1,"a":[0,2,3,null,null,null,null,null,null,null,4]}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.2000000":9}}"#,
            "#34",
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"a.0":9}}"#,
            r#"{"_id":1,"a":{"0":9}}"#,
        ),
        (
            r#"{"_id":1,"a":[{"b":1},{"b":2}]}"#,
            r#"{"$set":{"a.1.b":3}}"#,
            r#"{"_id":1,"a":[{"b":1},{"b":3}]}"#,
        ),
        (r#"{"_id":1,"a":[1]}"#, r#"{"$set":{"a.b":3}}"#, "#28"),
        (r#"{"_id":1,"a":"x"}"#, r#"{"$set":{"a.b":3}}"#, "#28"),
        (r#"{"_id":1,"a":null}"#, r#"{"$set":{"a.b.c":3}}"#, "#28"),
        (r#"{"_id":1}"#, r#"{"$set":{}}"#, "="),
        (r#"{"_id":1}"#, r#"{"$set":{"_id":1}}"#, "="),
        (r#"{"_id":1}"#, r#"{"$set":{"_id":2}}"#, "#66"),
        (r#"{"_id":{"a":1}}"#, r#"{"$set":{"_id.a":2}}"#, "#66"),
        (r#"{"_id":{"a":1}}"#, r#"{"$set":{"_id.b":2}}"#, "#66"),
        (r#"{"_id":1}"#, r#"{"$unset":{"_id":1}}"#, "#66"),
        (r#"{"_id":1}"#, r#"{"$set":{"$x":1}}"#, "#52"),
        (r#"{"_id":1,"$x":1}"#, r#"{"$inc":{"$x":1}}"#, "#52"),
        (
            r#"{"_id":1,"$x":1}"#,
            r#"{"$unset":{"$x":1}}"#,
            r#"{"_id":1}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$set":{"a.$x":1}}"#,
            r#"{"_id":1,"a":{"$x":1}}"#,
        ),
        (
            r#"{"_id":1,"a":1,"b":2,"c":3}"#,
            r#"{"$unset":{"a":"","c":""}}"#,
            r#"{"_id":1,"b":2}"#,
        ),
        (
            r#"{"_id":1,"a":{"b":1}}"#,
            r#"{"$unset":{"a.b":""}}"#,
            r#"{"_id":1,"a":{}}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$unset":{"a.0":"","a.7":""}}"#,
            r#"{"_id":1,"a":[null,2]}"#,
        ),
        (r#"{"_id":1,"a":"s"}"#, r#"{"$unset":{"a.b.c":""}}"#, "="),
        (r#"{"_id":1,"a":[1]}"#, r#"{"$unset":{"a.-1":""}}"#, "="),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$setOnInsert":{"a":2,"b":1}}"#,
            "=",
        ),
        (
            r#"{"_id":1,"a":1,"a":2}"#,
            r#"{"$set":{"a":3}}"#,
            r#"{"_id":1,"a":3}"#,
        ),
    ]);
}

#[test]
fn what_does_not_parse() {
    check(&[
        ("{}", r#"{"$foo":{"a":1}}"#, "#9"),
        ("{}", r#"{"$set":{"a":1},"b":1}"#, "#9"),
        ("{}", r#"{"$set":5}"#, "#9"),
        ("{}", r#"{"$set":{"":1}}"#, "#56"),
        ("{}", r#"{"$set":{"a..b":1}}"#, "#56"),
        ("{}", r#"{"$set":{"a.":1}}"#, "#56"),
        ("{}", r#"{"$set":{".a":1}}"#, "#56"),
        ("{}", r#"{"$set":{"a":1,"a.b":2}}"#, "#40"),
        ("{}", r#"{"$set":{"a.b":1},"$inc":{"a":2}}"#, "#40"),
        ("{}", r#"{"$set":{"a":1},"$inc":{"a":2}}"#, "#40"),
        ("{}", r#"{"$set":{"a.$[]":1,"a.0":2}}"#, "#40"),
        ("{}", r#"{"$set":{"a.$[].b":1,"a.$[]":2}}"#, "#40"),
        ("{}", r#"{"$set":{"$":1}}"#, "#2"),
        ("{}", r#"{"$set":{"$[]":1}}"#, "#2"),
        ("{}", r#"{"$set":{"a.$.b.$":1}}"#, "#2"),
        ("{}", r#"{"$set":{"a.$[x]":1}}"#, "#2"),
        ("{}", "5", "#9"),
        ("{}", r#"[{"$match":{}}]"#, "#72"),
        ("{}", r#"[{"$foo":{}}]"#, "#40324"),
        ("{}", r#"[{"$set":{"a":1},"$unset":"b"}]"#, "#40323"),
    ]);
}

#[test]
fn arithmetic() {
    check(&[
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$inc":{"a":2}}"#,
            r#"{"_id":1,"a":3}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"$inc":{"a":0}}"#, "="),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$inc":{"a":0.0}}"#,
            r#"{"_id":1,"a":1.0}"#,
        ),
        (
            r#"{"_id":1,"a":2147483647}"#,
            r#"{"$inc":{"a":1}}"#,
            r#"{"_id":1,"a":2147483648}"#,
        ),
        (
            r#"{"_id":1,"a":9223372036854775807}"#,
            r#"{"$inc":{"a":1}}"#,
            "#2",
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$inc":{"a.b":5}}"#,
            r#"{"_id":1,"a":{"b":5}}"#,
        ),
        (r#"{"_id":1,"a":"x"}"#, r#"{"$inc":{"a":1}}"#, "#14"),
        (r#"{"_id":1}"#, r#"{"$inc":{"a":"x"}}"#, "#14"),
        (
            r#"{"_id":1,"a":3}"#,
            r#"{"$mul":{"a":2.5}}"#,
            r#"{"_id":1,"a":7.5}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$mul":{"a":2.5,"b":{"$numberLong":"3"}}}"#,
            r#"{"_id":1,"a":0.0,"b":{"$numberLong":"0"}}"#,
        ),
        (
            r#"{"_id":1,"a":5}"#,
            r#"{"$min":{"a":4},"$max":{"b":1}}"#,
            r#"{"_id":1,"a":4,"b":1}"#,
        ),
        (r#"{"_id":1,"a":5}"#, r#"{"$min":{"a":5.0}}"#, "="),
        (
            r#"{"_id":1,"a":5}"#,
            r#"{"$max":{"a":"x"}}"#,
            r#"{"_id":1,"a":"x"}"#,
        ),
        (
            r#"{"_id":1,"a":13}"#,
            r#"{"$bit":{"a":{"and":10}}}"#,
            r#"{"_id":1,"a":8}"#,
        ),
        (
            r#"{"_id":1,"a":255}"#,
            r#"{"$bit":{"a":{"and":15,"or":16}}}"#,
            r#"{"_id":1,"a":31}"#,
        ),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$bit":{"a":{"xor":{"$numberLong":"3"}}}}"#,
            r#"{"_id":1,"a":{"$numberLong":"2"}}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$bit":{"a":{"or":3}}}"#,
            r#"{"_id":1,"a":3}"#,
        ),
        (r#"{"_id":1,"a":1.5}"#, r#"{"$bit":{"a":{"or":3}}}"#, "#2"),
        (r#"{"_id":1}"#, r#"{"$bit":{"a":{}}}"#, "#2"),
        (r#"{"_id":1}"#, r#"{"$bit":{"a":{"not":1}}}"#, "#2"),
        (
            r#"{"_id":1}"#,
            r#"{"$currentDate":{"a":true,"b":{"$type":"timestamp"}}}"#,
            r#"{"_id":1,"a":{"$date":{"$numberLong":"1700000000000"}},"b":{"$timestamp":{"t":7,"i":1}}}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$currentDate":{"a":{"$type":"Date"}}}"#,
            "#2",
        ),
        (r#"{"_id":1}"#, r#"{"$currentDate":{"a":1}}"#, "#2"),
    ]);
}

#[test]
fn arrays() {
    check(&[
        (
            r#"{"_id":1,"a":[1]}"#,
            r#"{"$push":{"a":2}}"#,
            r#"{"_id":1,"a":[1,2]}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$push":{"a.b":2}}"#,
            r#"{"_id":1,"a":{"b":[2]}}"#,
        ),
        (
            r#"{"_id":1,"a":[1]}"#,
            r#"{"$push":{"a":[2,3]}}"#,
            r#"{"_id":1,"a":[1,[2,3]]}"#,
        ),
        (
            r#"{"_id":1,"a":[3,1,2]}"#,
            r#"{"$push":{"a":{"$sort":1}}}"#,
            r#"{"_id":1,"a":[3,1,2,{"$sort":1}]}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2,3,4,5,6,7,8,9]}"#,
            r#"{"$push":{"a":{"$each":[10,11,12]}}}"#,
            r#"{"_id":1,"a":[1,2,3,4,5,6,7,8,9,10,11,12]}"#,
        ),
        (
            r#"{"_id":1,"a":[5,3]}"#,
            r#"{"$push":{"a":{"$each":[1,4,2],"$sort":-1,"$slice":-2}}}"#,
            r#"{"_id":1,"a":[2,1]}"#,
        ),
        (
            r#"{"_id":1,"a":[50,60,70]}"#,
            r#"{"$push":{"a":{"$each":[10,20],"$position":-1}}}"#,
            r#"{"_id":1,"a":[50,60,10,20,70]}"#,
        ),
        (
            r#"{"_id":1,"a":[1]}"#,
            r#"{"$push":{"a":{"$each":[0],"$position":-9}}}"#,
            r#"{"_id":1,"a":[0,1]}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$push":{"a":{"$each":[]}}}"#,
            "=",
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$push":{"a":{"$each":[],"$slice":0}}}"#,
            r#"{"_id":1,"a":[]}"#,
        ),
        (
            r#"{"_id":1,"a":[{"s":{"t":3}},4,{"s":{"t":1}}]}"#,
            r#"{"$push":{"a":{"$each":[],"$sort":{"s.t":1}}}}"#,
            r#"{"_id":1,"a":[4,{"s":{"t":1}},{"s":{"t":3}}]}"#,
        ),
        (r#"{"_id":1,"a":5}"#, r#"{"$push":{"a":1}}"#, "#2"),
        (r#"{"_id":1}"#, r#"{"$push":{"a":{"$each":1}}}"#, "#2"),
        (
            r#"{"_id":1}"#,
            r#"{"$push":{"a":{"$each":[],"$x":1}}}"#,
            "#2",
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$push":{"a":{"$each":[],"$sort":2}}}"#,
            "#2",
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$push":{"a":{"$each":[],"$sort":{"b.":1}}}}"#,
            "#2",
        ),
        (
            r#"{"_id":1}"#,
            r#"{"$push":{"a":{"$each":[],"$slice":1.5}}}"#,
            "#2",
        ),
        (
            r#"{"_id":1,"a":[1,3]}"#,
            r#"{"$addToSet":{"a":{"$each":[1,2,3.0,2,4]}}}"#,
            r#"{"_id":1,"a":[1,3,2,4]}"#,
        ),
        (
            r#"{"_id":1,"a":[{"a":1,"b":2}]}"#,
            r#"{"$addToSet":{"a":{"b":2,"a":1}}}"#,
            r#"{"_id":1,"a":[{"a":1,"b":2},{"b":2,"a":1}]}"#,
        ),
        (r#"{"_id":1,"a":[1]}"#, r#"{"$addToSet":{"a":1.0}}"#, "="),
        (
            r#"{"_id":1}"#,
            r#"{"$addToSet":{"a":{"$each":[1,1]}}}"#,
            r#"{"_id":1,"a":[1]}"#,
        ),
        (r#"{"_id":1}"#, r#"{"$addToSet":{"a":{"$each":1}}}"#, "#14"),
        (
            r#"{"_id":1}"#,
            r#"{"$addToSet":{"a":{"$each":[],"$sort":1}}}"#,
            "#2",
        ),
        (r#"{"_id":1}"#, r#"{"$addToSet":{"_id":1}}"#, "#2"),
        (
            r#"{"_id":1,"a":[1,2,3],"b":[1,2]}"#,
            r#"{"$pop":{"a":1,"b":-1}}"#,
            r#"{"_id":1,"a":[1,2],"b":[2]}"#,
        ),
        (r#"{"_id":1,"a":[]}"#, r#"{"$pop":{"a":1,"z":1}}"#, "="),
        (r#"{"_id":1,"a":1}"#, r#"{"$pop":{"a":1}}"#, "#14"),
        (r#"{"_id":1,"a":1}"#, r#"{"$pop":{"a.b":1}}"#, "#28"),
        (
            r#"{"_id":1,"a":[{"b":[1]}]}"#,
            r#"{"$pop":{"a.b":1}}"#,
            "#28",
        ),
        (r#"{"_id":1,"a":[1]}"#, r#"{"$pop":{"a":2}}"#, "#9"),
        (r#"{"_id":1,"a":[1]}"#, r#"{"$pop":{"a":"1"}}"#, "#9"),
        (
            r#"{"_id":1,"a":[1,2,1.0,[1]]}"#,
            r#"{"$pull":{"a":1}}"#,
            r#"{"_id":1,"a":[2,[1]]}"#,
        ),
        (
            r#"{"_id":1,"a":[1,5,"x",9]}"#,
            r#"{"$pull":{"a":{"$gt":4}}}"#,
            r#"{"_id":1,"a":[1,"x"]}"#,
        ),
        (
            r#"{"_id":1,"a":[{"x":1,"y":2},{"y":2,"x":1},{"x":1}]}"#,
            r#"{"$pull":{"a":{"x":1,"y":2}}}"#,
            r#"{"_id":1,"a":[{"x":1}]}"#,
        ),
        (
            r#"{"_id":1,"a":[{"x":1},{"x":7}]}"#,
            r#"{"$pull":{"a":{"$or":[{"x":7}]}}}"#,
            r#"{"_id":1,"a":[{"x":1}]}"#,
        ),
        (r#"{"_id":1,"a":[1,2]}"#, r#"{"$pull":{"a":{}}}"#, "="),
        (
            r#"{"_id":1,"a":[[1,2],[2,3],[1,2,3],1]}"#,
            r#"{"$pull":{"a":{"$all":[1,2]}}}"#,
            r#"{"_id":1,"a":[[2,3],1]}"#,
        ),
        (
            r#"{"_id":1,"a":[[1,9],[2],7,3]}"#,
            r#"{"$pull":{"a":{"$gt":5}}}"#,
            r#"{"_id":1,"a":[[2],3]}"#,
        ),
        (
            r#"{"_id":1,"a":["abc","x"]}"#,
            r#"{"$pull":{"a":{"$regularExpression":{"pattern":"^a","options":""}}}}"#,
            r#"{"_id":1,"a":["x"]}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"$pull":{"a":1}}"#, "#2"),
        (
            r#"{"_id":1,"a":[1]}"#,
            r#"{"$pull":{"a":{"$badop":1}}}"#,
            "#2",
        ),
        (
            r#"{"_id":1,"a":[1,2,3,1]}"#,
            r#"{"$pullAll":{"a":[1,3.0]}}"#,
            r#"{"_id":1,"a":[2]}"#,
        ),
        (r#"{"_id":1,"a":[1]}"#, r#"{"$pullAll":{"a":1}}"#, "#2"),
    ]);
}

#[test]
fn rename() {
    check(&[
        (
            r#"{"_id":1,"a":1,"c":2}"#,
            r#"{"$rename":{"a":"b"}}"#,
            r#"{"_id":1,"c":2,"b":1}"#,
        ),
        (
            r#"{"_id":1,"a":1,"b":2,"c":3}"#,
            r#"{"$rename":{"a":"b"}}"#,
            r#"{"_id":1,"b":1,"c":3}"#,
        ),
        (
            r#"{"_id":1,"a":1,"b":1}"#,
            r#"{"$rename":{"a":"b"}}"#,
            r#"{"_id":1,"b":1}"#,
        ),
        (r#"{"_id":1,"b":2}"#, r#"{"$rename":{"a":"b"}}"#, "="),
        (r#"{"_id":1,"b":2}"#, r#"{"$rename":{"a.x":"b.y"}}"#, "="),
        (
            r#"{"_id":1,"a":{"b":1}}"#,
            r#"{"$rename":{"a.b":"c.d"}}"#,
            r#"{"_id":1,"a":{},"c":{"d":1}}"#,
        ),
        (
            r#"{"_id":1,"a":{"b":1,"d":2}}"#,
            r#"{"$rename":{"a.b":"a.c"}}"#,
            r#"{"_id":1,"a":{"d":2,"c":1}}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a":"a"}}"#, "#2"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a":"a.b"}}"#, "#2"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a":5}}"#, "#2"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a":""}}"#, "#56"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"":"a"}}"#, "#56"),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$rename":{"a":"b\u0000"}}"#,
            "#9867600",
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a":"$b"}}"#, "#52"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a":"_id"}}"#, "#66"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"_id":"a"}}"#, "#66"),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a.b":"c"}}"#, "#28"),
        (
            r#"{"_id":1,"a":1,"b":2}"#,
            r#"{"$rename":{"a":"b.x"}}"#,
            "#28",
        ),
        (r#"{"_id":1,"a":[1,2]}"#, r#"{"$rename":{"a.0":"x"}}"#, "#2"),
        (
            r#"{"_id":1,"a":[{"b":1}]}"#,
            r#"{"$rename":{"a.0.b":"x"}}"#,
            "#2",
        ),
        (
            r#"{"_id":1,"x":1,"a":[1,2]}"#,
            r#"{"$rename":{"x":"a.0"}}"#,
            "#2",
        ),
        (
            r#"{"_id":1,"x":1,"a":[1,2]}"#,
            r#"{"$rename":{"x":"a.2"}}"#,
            "#2",
        ),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$rename":{"a":"b","c":"b"}}"#,
            "#40",
        ),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$rename":{"a":"b","b":"c"}}"#,
            "#40",
        ),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"$rename":{"a":"b"},"$set":{"a":1}}"#,
            "#40",
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"$rename":{"a.$[].x":"b"}}"#, "#2"),
    ]);
}

#[test]
fn positions() {
    // query, document, update, array filters, result
    let cases = [
        (
            r#"{"a":2}"#,
            r#"{"_id":1,"a":[1,2,3]}"#,
            r#"{"$set":{"a.$":9}}"#,
            "[]",
            r#"{"_id":1,"a":[1,9,3]}"#,
        ),
        (
            r#"{"a.n":2}"#,
            r#"{"_id":1,"a":[{"n":1},{"n":2}]}"#,
            r#"{"$set":{"a.$.v":9}}"#,
            "[]",
            r#"{"_id":1,"a":[{"n":1},{"n":2,"v":9}]}"#,
        ),
        (
            r#"{"_id":1}"#,
            r#"{"_id":1,"a":[1,2,3]}"#,
            r#"{"$set":{"a.$":9}}"#,
            "[]",
            "#2",
        ),
        (
            r#"{"a":5}"#,
            r#"{"_id":1,"a":5}"#,
            r#"{"$set":{"a.$":9}}"#,
            "[]",
            "#2",
        ),
        (
            r#"{"a":2}"#,
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$":9,"a.0":8}}"#,
            "[]",
            r#"{"_id":1,"a":[8,9]}"#,
        ),
        (
            r#"{"a":2}"#,
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$":9,"a.1":8}}"#,
            "[]",
            "#40",
        ),
        (
            r#"{"a":2}"#,
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$unset":{"a.$":9}}"#,
            "[]",
            r#"{"_id":1,"a":[1,null]}"#,
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$inc":{"a.$[]":1}}"#,
            "[]",
            r#"{"_id":1,"a":[2,3]}"#,
        ),
        (
            "{}",
            r#"{"_id":1,"a":[]}"#,
            r#"{"$inc":{"a.$[]":1}}"#,
            "[]",
            "=",
        ),
        (
            "{}",
            r#"{"_id":1,"a":5}"#,
            r#"{"$inc":{"a.$[]":1}}"#,
            "[]",
            "#2",
        ),
        ("{}", r#"{"_id":1}"#, r#"{"$inc":{"a.$[]":1}}"#, "[]", "#2"),
        (
            "{}",
            r#"{"_id":1,"o":{}}"#,
            r#"{"$inc":{"o.a.$[]":1}}"#,
            "[]",
            "#2",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[{"s":[1,2]},{"s":[3]}]}"#,
            r#"{"$set":{"a.$[].s.$[]":0}}"#,
            "[]",
            r#"{"_id":1,"a":[{"s":[0,0]},{"s":[0]}]}"#,
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,5,9]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{"x":{"$gt":4}}]"#,
            r#"{"_id":1,"a":[1,0,0]}"#,
        ),
        (
            "{}",
            r#"{"_id":1,"a":[{"b":[1,2]},{"b":[4,5,6]}]}"#,
            r#"{"$set":{"a.$[x].b.$[y]":0}}"#,
            r#"[{"x.b":{"$gte":4}},{"y":{"$gte":5}}]"#,
            r#"{"_id":1,"a":[{"b":[1,2]},{"b":[4,0,0]}]}"#,
        ),
        (
            "{}",
            r#"{"_id":1,"a":[{"b":1},{"b":2}]}"#,
            r#"{"$set":{"a.$[x].c":0,"a.$[].d":1}}"#,
            r#"[{"x.b":2}]"#,
            r#"{"_id":1,"a":[{"b":1,"d":1},{"b":2,"c":0,"d":1}]}"#,
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0,"a.$[]":1}}"#,
            r#"[{"x":2}]"#,
            "#40",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0,"b":1}}"#,
            r#"[{"x":2},{"y":1}]"#,
            "#9",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{"x":2},{"x":1}]"#,
            "#9",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{"x":2,"y":1}]"#,
            "#9",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[X]":0}}"#,
            r#"[{"X":2}]"#,
            "#2",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[x]":0}}"#,
            r#"[{}]"#,
            "#9",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{}}"#,
            r#"[{"x":1}]"#,
            "#9",
        ),
        (
            "{}",
            r#"{"_id":1,"a":[1,2]}"#,
            r#"[{"$set":{"a":1}}]"#,
            r#"[{"x":1}]"#,
            "#9",
        ),
    ];
    for (query, d, update, filters, want) in cases {
        let want = if want.starts_with('{') {
            doc(want).as_doc().to_string()
        } else {
            want.to_string()
        };
        assert_eq!(run(query, d, update, filters), want, "{update} on {d}");
    }
}

#[test]
fn replacements() {
    check(&[
        (r#"{"_id":1,"a":1}"#, r#"{"b":2}"#, r#"{"_id":1,"b":2}"#),
        (
            r#"{"_id":1,"a":1}"#,
            r#"{"b":2,"_id":1}"#,
            r#"{"_id":1,"b":2}"#,
        ),
        (r#"{"_id":1,"a":1}"#, r#"{"_id":2}"#, "#66"),
        (r#"{"_id":1,"a":1}"#, r#"{}"#, r#"{"_id":1}"#),
        (r#"{"_id":1,"a":1}"#, r#"{"_id":1,"a":1}"#, "="),
        (r#"{"_id":1,"a":1}"#, r#"{"a":1}"#, r#"{"_id":1,"a":1}"#),
        (r#"{"_id":1}"#, r#"{"a":1,"$b":1}"#, "#52"),
        (
            r#"{"_id":1}"#,
            r#"{"a":{"$timestamp":{"t":0,"i":0}}}"#,
            r#"{"_id":1,"a":{"$timestamp":{"t":7,"i":1}}}"#,
        ),
    ]);
}

#[test]
fn upserts() {
    // query, update, result
    let cases = [
        (
            r#"{"_id":1,"b":2,"a":1}"#,
            r#"{"$set":{"c":3}}"#,
            r#"{"_id":1,"a":1,"b":2,"c":3}"#,
        ),
        (
            r#"{"a.b":5,"_id":1,"a.c":6}"#,
            r#"{"$set":{"c":1}}"#,
            r#"{"_id":1,"a":{"b":5,"c":6},"c":1}"#,
        ),
        (
            r#"{"_id":1,"x":{"$gt":5}}"#,
            r#"{"$inc":{"x":5}}"#,
            r#"{"_id":1,"x":5}"#,
        ),
        (
            r#"{"_id":1,"x":5}"#,
            r#"{"$inc":{"x":5}}"#,
            r#"{"_id":1,"x":10}"#,
        ),
        (r#"{"x":5}"#, r#"{"$set":{"_id":7}}"#, r#"{"_id":7,"x":5}"#),
        (
            r#"{"_id":1}"#,
            r#"{"$setOnInsert":{"a":1,"$x":2}}"#,
            r#"{"_id":1,"$x":2,"a":1}"#,
        ),
        (r#"{"_id":1,"a":2}"#, r#"{"b":1}"#, r#"{"_id":1,"b":1}"#),
        (r#"{"_id":1}"#, r#"{"_id":2,"b":1}"#, "#66"),
        (r#"{"_id":1}"#, r#"{"$setOnInsert":{"_id":2}}"#, "#66"),
        (r#"{"_id.a":1}"#, r#"{"$setOnInsert":{"_id.b":2}}"#, "#66"),
        (r#"{"_id.a":1}"#, r#"{"$setOnInsert":{"_id":"x"}}"#, "#66"),
        (r#"{"_id":[1]}"#, r#"{"$set":{"a":1}}"#, "#53"),
        (r#"{"a":5}"#, r#"{"$set":{"a.$":1}}"#, "#2"),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$set":{"a.$[]":0}}"#,
            r#"{"_id":1,"a":[0,0]}"#,
        ),
        (
            r#"{"_id":1,"$and":[{"a":1},{"a":2}]}"#,
            r#"{"$set":{"x":1}}"#,
            "#54",
        ),
        (r#"{"_id":1,"a":1,"a.b":2}"#, r#"{"$set":{"x":1}}"#, "#54"),
        (r#"{"_id":99}"#, r#"{"$pop":{"a":1}}"#, r#"{"_id":99}"#),
    ];
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    for (query, update, want) in cases {
        let got = parse(update, "[]").and_then(|u| u.upsert(&filter(query), &ctx));
        let got = match got {
            Ok(d) => d.as_doc().to_string(),
            Err(e) => format!("#{}", e.into_error().code.0),
        };
        let want = if want.starts_with('{') {
            doc(want).as_doc().to_string()
        } else {
            want.to_string()
        };
        assert_eq!(got, want, "{update} where {query}");
    }
    let made = parse(r#"{"$set":{"a":1}}"#, "[]")
        .unwrap()
        .upsert(&filter("{}"), &ctx)
        .unwrap();
    assert_eq!(made.as_doc().first().unwrap().val.type_name(), "objectId");
}

#[test]
fn diffs_and_touched_paths() {
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    let cases = [
        (
            r#"{"_id":1,"a":1,"b":{"c":1}}"#,
            r#"{"$set":{"a":2,"b.c":3,"n.m":4}}"#,
            r#"{"u":{"a":2},"i":{"n":{"m":4}},"sb":{"u":{"c":3}}}"#,
        ),
        (
            r#"{"_id":1,"a":1,"b":{"c":1}}"#,
            r#"{"$unset":{"a":2,"b.c":3}}"#,
            r#"{"d":{"a":false},"sb":{"d":{"c":false}}}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$push":{"a":3}}"#,
            r#"{"sa":{"a":true,"u2":3}}"#,
        ),
        (
            r#"{"_id":1,"a":[1,2]}"#,
            r#"{"$pop":{"a":1}}"#,
            r#"{"u":{"a":[1]}}"#,
        ),
        (
            r#"{"_id":1,"a":[{"b":1}]}"#,
            r#"{"$set":{"a.$[].b":2}}"#,
            r#"{"sa":{"a":true,"s0":{"u":{"b":2}}}}"#,
        ),
    ];
    for (d, update, want) in cases {
        let a = parse(update, "[]")
            .unwrap()
            .apply(doc(d).as_doc(), &Filter::all(), &ctx)
            .unwrap()
            .unwrap();
        let diff = DocBuf::from_vec(a.diff.unwrap()).unwrap();
        assert_eq!(diff.as_doc().to_string(), doc(want).as_doc().to_string());
    }
    let u = parse(r#"{"$set":{"a.0.b":1,"c.d":1},"$rename":{"e":"f"}}"#, "[]").unwrap();
    assert_eq!(u.touched_paths().unwrap(), ["a", "c.d", "e", "f"]);
    for (path, touched) in [
        ("a.b", true),
        ("c", true),
        ("c.d.e", true),
        ("c.e", false),
        ("f", true),
        ("cd", false),
    ] {
        assert_eq!(u.may_touch(path), touched, "{path}");
    }
    assert!(parse("{}", "[]").unwrap().may_touch("x"));
}

#[test]
fn limits() {
    let big = "x".repeat(9 << 20);
    let d = bson::doc! { "_id": 1, "a": big.as_str() };
    let u = bson::doc! { "$set": bson::doc! { "b": big.as_str() } };
    let u = Update::parse(u.as_doc().as_val(), &[], &ParseEnv::new()).unwrap();
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    assert_eq!(show(u.apply(d.as_doc(), &Filter::all(), &ctx)), "#10334");
    // What goes to many places is not made to its end to find out.
    let ones = format!(r#"{{"_id":1,"a":[{}]}}"#, ["1"; 40_000].join(","));
    let update = bson::doc! { "$set": bson::doc! { "a.$[]": "x".repeat(8 << 10).as_str() } };
    let u = Update::parse(update.as_doc().as_val(), &[], &ParseEnv::new()).unwrap();
    let refused = show(u.apply(doc(&ones).as_doc(), &Filter::all(), &ctx));
    assert_eq!(refused, "#10334");
    let written = super::apply::REFUSED_AT.get();
    assert!(
        (MAX_DOC_BYTES..3 * MAX_DOC_BYTES).contains(&written),
        "{written}"
    );
    let many = format!(r#"[{{"$set":{{"b":[{}]}}}}]"#, [r#""$b""#; 20].join(","));
    let u = parse(&many, "[]").unwrap();
    let d = bson::doc! { "_id": 1, "b": big.as_str() };
    assert_eq!(show(u.apply(d.as_doc(), &Filter::all(), &ctx)), "#146");
    let deep = (0..90).fold("1".to_string(), |v, _| format!("[{v}]"));
    check(&[
        (
            r#"{"_id":1}"#,
            &format!(r#"{{"$set":{{"{}":{deep}}}}}"#, ["a"; 92].join(".")),
            "#15",
        ),
        (
            r#"{"_id":1}"#,
            &format!(r#"{{"$set":{{"{}":1}}}}"#, ["a"; 182].join(".")),
            "#15",
        ),
    ]);
}

/// `cargo test --release -p query update::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn speed() {
    let mut w = Writer::new();
    w.oid("_id", ObjectId::generate()).i32("k", 1);
    for i in 0..10 {
        w.str(&format!("field{i}"), &"x".repeat(85));
    }
    w.i32("n", 5);
    let d = w.finish();
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    for update in [
        r#"{"$set":{"k":7}}"#,
        r#"{"$inc":{"n":1}}"#,
        r#"{"$set":{"field5":"y"}}"#,
        r#"{"$set":{"new":1}}"#,
    ] {
        let start = std::time::Instant::now();
        for _ in 0..1_000_000 {
            let u = Update::parse(
                std::hint::black_box(&parse_doc(update)).as_doc().as_val(),
                &[],
                &ParseEnv::new(),
            )
            .unwrap();
            std::hint::black_box(u.apply(d.as_doc(), &Filter::all(), &ctx).unwrap());
        }
        let both = start.elapsed();
        let u = parse(update, "[]").unwrap();
        let start = std::time::Instant::now();
        for _ in 0..1_000_000 {
            std::hint::black_box(u.apply(d.as_doc(), &Filter::all(), &ctx).unwrap());
        }
        println!(
            "{update} on {} bytes: apply {:?}, parse and apply {both:?} (a million)",
            d.as_bytes().len(),
            start.elapsed()
        );
    }
}

fn parse_doc(update: &str) -> DocBuf {
    thread_local!(static CACHE: std::cell::RefCell<(String, DocBuf)> = Default::default());
    CACHE.with_borrow_mut(|(text, d)| {
        if text != update {
            *text = update.to_string();
            *d = doc(update);
        }
        d.clone()
    })
}

/// Operators on many fields, lists and filters: each against all others, they would take hours.
#[test]
fn long_ones() {
    use crate::list::tests::long_array;
    use bson::Writer;
    const N: i32 = 200_000;
    let apply = |u: DocBuf, filters: &[Doc<'_>], d: Doc<'_>| {
        let u = Update::parse(u.as_doc().as_val(), filters, &ParseEnv::new()).unwrap();
        let vars = Vars::new(NOW);
        let applied = u.apply(d, &Filter::all(), &UpdateCtx::new(&vars, NOW, TS));
        applied.unwrap()
    };
    let list = long_array(N);
    let mut w = Writer::new();
    w.val("a", list.as_val()).open_array("none").close();
    let arrays = w.finish();
    let with = |op: &str, path: &str| {
        let mut w = Writer::new();
        w.open_doc(op);
        match op {
            "$addToSet" => w.open_doc(path).val("$each", list.as_val()).close(),
            _ => w.val(path, list.as_val()),
        };
        w.close();
        w.finish()
    };
    let size = |a: Option<Applied>, path: &str| {
        let doc = a.unwrap().doc;
        doc.get(path).unwrap().as_array().unwrap().count()
    };
    assert!(apply(with("$addToSet", "a"), &[], arrays.as_doc()).is_none());
    let added = apply(with("$addToSet", "none"), &[], arrays.as_doc());
    assert_eq!(size(added, "none"), 133_334);
    let pulled = apply(with("$pullAll", "a"), &[], arrays.as_doc());
    assert_eq!(size(pulled, "a"), 0);

    let name = |i: i32| format!("f{}", i * 7919 % N);
    let mut w = Writer::new();
    w.open_doc("d");
    (0..N).for_each(|i| {
        w.i32(&format!("f{i}"), i);
    });
    w.close();
    let wide = w.finish();
    let many = |op: &str, prefix: &str| {
        let mut w = Writer::new();
        w.open_doc(op);
        for i in 0..N {
            w.i32(&format!("{prefix}{}", name(i)), 1);
        }
        w.close();
        w.finish()
    };
    for (op, prefix, changes) in [
        ("$inc", "d.", true),
        ("$set", "e.", true),
        // The document would be copied for each field that is not there.
        ("$unset", "", false),
        ("$pop", "", false),
    ] {
        let changed = apply(many(op, prefix), &[], wide.as_doc());
        assert_eq!(changed.is_some(), changes, "{op}");
    }
    let mut w = Writer::new();
    w.open_array("a");
    (0..N).for_each(|i| {
        w.i32("", i);
    });
    w.close();
    let array = w.finish();
    let mut w = Writer::new();
    w.open_doc("$set");
    (0..N).for_each(|i| {
        w.i32(&format!("a.{}", i * 7919 % N), 1);
    });
    w.close();
    let set = apply(w.finish(), &[], array.as_doc()).unwrap().doc;
    let ones = set.get("a").unwrap().as_array().unwrap();
    assert!(ones.values().all(|v| v.as_i32() == Some(1)));

    let filters: Vec<DocBuf> = (0..N)
        .map(|i| doc(&format!(r#"{{"{}":1}}"#, name(i))))
        .collect();
    let filters: Vec<Doc<'_>> = filters.iter().map(|f| f.as_doc()).collect();
    let mut w = Writer::new();
    w.open_doc("$set");
    (0..N).for_each(|i| {
        w.i32(&format!("none.$[{}]", name(i)), 1);
    });
    w.close();
    assert!(apply(w.finish(), &filters, arrays.as_doc()).is_none());

    let pipeline = val(r#"[{"$replaceWith":"$d"}]"#);
    let u = Update::parse(pipeline.as_val(), &[], &ParseEnv::new()).unwrap();
    let mut w = Writer::new();
    (0..N).for_each(|i| {
        w.i32(&format!("g{i}"), i);
    });
    w.extend(wide.as_doc());
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    let moved = u.apply(w.finish().as_doc(), &Filter::all(), &ctx).unwrap();
    assert_eq!(
        moved.unwrap().doc,
        wide.get("d").unwrap().as_doc().unwrap().to_buf()
    );
}

/// New fields of many come in the order in which few would.
#[test]
fn order_of_many() {
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};
    let mut r = StdRng::seed_from_u64(5);
    for round in 0..300 {
        let mut names: Vec<String> = (0..r.random_range(10..40))
            .map(|i| match round % 3 {
                0 => format!("x{i}"),
                1 => i.to_string(),
                _ if i % 2 == 0 => i.to_string(),
                _ => format!("x{i}"),
            })
            .collect();
        names.shuffle(&mut r);
        let mut w = bson::Writer::new();
        w.open_doc("$set");
        names.iter().for_each(|n| {
            w.i32(&format!("d.{n}"), 1);
        });
        w.close();
        let u = Update::parse(w.finish().as_doc().as_val(), &[], &ParseEnv::new()).unwrap();
        let vars = Vars::new(NOW);
        let ctx = UpdateCtx::new(&vars, NOW, TS);
        let made = u.apply(Doc::EMPTY, &Filter::all(), &ctx).unwrap().unwrap();
        let d = made.doc.get("d").unwrap().as_doc().unwrap();
        let made: Vec<&str> = d.iter().map(|e| e.name).collect();
        // Numbers by value, before all names with a letter in front.
        names.sort_by_key(|n| (n.starts_with('x'), n.parse().unwrap_or(0), n.clone()));
        assert_eq!(made, names);
        // Any of them twice is still a conflict.
        let twice = format!(r#"{{"$set":{{"d.{0}":1}},"$inc":{{"d.{0}":1}}}}"#, names[0]);
        assert_eq!(parse(&twice, "[]").unwrap_err().into_error().code.0, 40);
    }
}

/// A path as long as a command is none of a document.
#[test]
fn long_upsert_paths() {
    for (parts, ok) in [(100, true), (300, false), (1_000_000, false)] {
        let path = vec!["a"; parts].join(".");
        let query = filter(&format!(r#"{{"{path}":1}}"#));
        let base = upsert_base(&query, false);
        assert_eq!(base.is_ok(), ok, "{parts}");
    }
}

/// What an update does for each of many elements can be ended within the one document.
#[test]
fn long_updates_ask() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let asked = Arc::new(AtomicUsize::new(0));
    let mut vars = Vars::new(NOW);
    let count = asked.clone();
    vars.set_watchdog(Arc::new(move || match count.fetch_add(1, Relaxed) {
        200.. => Err(err!(Interrupted, "enough").into()),
        _ => Ok(()),
    }));
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    let mut w = bson::Writer::new();
    w.open_array("a");
    (0..50_000).for_each(|i| {
        w.open_doc("").i32("x", i).close();
    });
    w.close();
    let long = w.finish();
    let list = |f: &dyn Fn(usize) -> String| (0..300).map(f).collect::<Vec<_>>().join(",");
    let names = list(&|i| format!(r#""a.$[e{i}].x":1"#));
    let ids = list(&|i| format!(r#"{{"e{i}.x":-{i}.5}}"#));
    let wide = list(&|i| format!(r#""a.$[].$.n{i}":1"#));
    let twice = list(&|i| format!(r#""a.$[].n{i}":1,"a.$[e].m{i}":1"#));
    for (update, filters) in [
        (format!(r#"{{"$set":{{{names}}}}}"#), format!("[{ids}]")),
        (format!(r#"{{"$unset":{{{wide}}}}}"#), "[]".to_string()),
        (
            format!(r#"{{"$unset":{{{twice}}}}}"#),
            r#"[{"e.x":{"$gte":0}}]"#.to_string(),
        ),
        (
            format!(
                r#"{{"$pull":{{"a":{{"$or":[{}]}}}}}}"#,
                list(&|i| format!(r#"{{"x":{{"$lt":-{i}.5}}}}"#))
            ),
            "[]".to_string(),
        ),
    ] {
        let u = parse(&update, &filters).unwrap();
        assert!(u.wants_vars(), "{update}");
        asked.store(0, Relaxed);
        let done = u.apply(long.as_doc(), &filter(r#"{"a.x":0}"#), &ctx);
        assert!(
            matches!(done, Err(e) if e.is(errors::Code::Interrupted)),
            "{update}"
        );
    }
    asked.store(0, Relaxed);
    for update in [r#"{"$set":{"a.$[].x":1}}"#, r#"{"$inc":{"a.$.x":1}}"#] {
        let u = parse(update, "[]").unwrap();
        let done = u.apply(
            doc(r#"{"a":[{"x":0},{"x":2}]}"#).as_doc(),
            &filter(r#"{"a.x":0}"#),
            &ctx,
        );
        assert!(done.unwrap().is_some() && u.wants_vars(), "{update}");
    }
    assert_eq!(asked.load(Relaxed), 0);
    assert!(
        !parse(r#"{"$set":{"a":1},"$push":{"b":2}}"#, "[]")
            .unwrap()
            .wants_vars()
    );
}

/// A random document: few names, so that documents share them; some nesting.
fn random_doc(rng: &mut impl rand::Rng, depth: usize) -> DocBuf {
    let mut names = ["a", "b", "c", "d", "e"].to_vec();
    let mut w = Writer::new();
    for _ in 0..rng.random_range(0..5) {
        let name = names.swap_remove(rng.random_range(0..names.len()));
        random_value(rng, &mut w, Some(name), depth);
    }
    w.finish()
}

fn random_value(rng: &mut impl rand::Rng, w: &mut Writer, name: Option<&str>, depth: usize) {
    let value = match rng.random_range(0..if depth == 0 { 3 } else { 6 }) {
        0 => bson::Value::from(rng.random_range(0..3)),
        1 => bson::Value::from("text that is long enough to make a diff worth its while"),
        2 => bson::Value::from(rng.random_range(0..2) as f64),
        3 => random_doc(rng, depth - 1).as_doc().as_val().to_value(),
        _ => {
            let mut items = Writer::new_array();
            for _ in 0..rng.random_range(0..4) {
                random_value(rng, &mut items, None, depth - 1);
            }
            items.finish_array()
        }
    };
    match name {
        Some(name) => w.val(name, value.as_val()),
        None => w.push(value.as_val()),
    };
}

fn assert_applies(old: Doc<'_>, diff: &[u8], new: Doc<'_>) {
    bson::validate(diff).unwrap();
    let diff = Doc::new(diff).unwrap();
    let made = diff::apply(old, diff).unwrap();
    bson::validate(made.as_bytes()).unwrap();
    assert_eq!(made.as_doc(), new, "{diff} on {old}");
}

#[test]
fn a_diff_makes_the_new_document_of_the_old_one() {
    let seed = std::env::var("PANDO_SEED").map_or(20261124, |s| s.parse().unwrap());
    println!("PANDO_SEED={seed}");
    let mut rng: rand::rngs::StdRng = rand::SeedableRng::seed_from_u64(seed);
    let rng = &mut rng;
    let vars = Vars::new(NOW);
    let ctx = UpdateCtx::new(&vars, NOW, TS);
    let updates = [
        r#"{"$set":{"a":1,"b.c":2,"d.1":3,"x.y.z":4}}"#,
        r#"{"$unset":{"a":1,"b.c":1,"c.0":1},"$set":{"e.0.b":[1]}}"#,
        r#"{"$inc":{"a":1},"$push":{"b":{"$each":[1,{"q":2}]}},"$set":{"c.4":1}}"#,
        r#"{"$pop":{"a":1},"$push":{"b":{"$each":[7],"$position":0}},"$addToSet":{"c":9}}"#,
        r#"{"$rename":{"a":"b"},"$set":{"c.$[]":5}}"#,
        r#"{"$set":{"a.$[].b":2},"$min":{"b":-1},"$max":{"z":1}}"#,
    ]
    .map(|u| parse(u, "[]").unwrap());
    let (mut walked, mut compared) = (0, 0);
    for _ in 0..3_000 {
        let (old, new) = (random_doc(rng, 3), random_doc(rng, 3));
        for update in &updates {
            let Ok(Some(applied)) = update.apply(old.as_doc(), &Filter::all(), &ctx) else {
                continue;
            };
            assert_applies(old.as_doc(), &applied.diff.unwrap(), applied.doc.as_doc());
            walked += 1;
            for new in [&applied.doc, &new] {
                if let Some(diff) = diff::between(old.as_doc(), new.as_doc()) {
                    assert_applies(old.as_doc(), &diff, new.as_doc());
                    compared += 1;
                }
            }
        }
    }
    assert!(walked > 3_000 && compared > 1_000, "{walked} {compared}");
}
