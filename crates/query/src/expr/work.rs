//! How much an evaluation has done: the operation is asked in proportion whether to end it.
//!
//! Loops that each count their own turns are not enough: three of 255 turns inside one another take
//! millions, and a turn may sort an array of 16 MB. So there is one count for all that an
//! evaluation does. A unit is about what a small operator takes, and about what going over
//! [`BYTES_OF_UNIT`] bytes does. Counted are
//!
//! * each call of an operator and each turn of a loop;
//! * the length of every operand that an operator reads ([`super::node::Call::arg`]) and of every
//!   value it makes, so that an operator that is linear in both needs nothing of its own;
//! * by the operator itself, work beyond that (sorting, regular expressions) or where the length says
//!   too much ([`super::node::Call::peek`]).
//!
//! Invariant: an evaluation counts from zero ([`Vars::begin_work`]), so that a small one never
//! asks, however many there were before.

use super::Vars;
use errors::{Result, Suspension};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Units from one question to the next.
const TURN: usize = 1024;
/// Going over so many bytes is a unit.
const BYTES_OF_UNIT: usize = 64;
/// What a step over so many bytes counts: one for itself, and the bytes.
pub(crate) fn byte_units(bytes: usize) -> usize {
    1 + bytes / BYTES_OF_UNIT
}

/// Smaller values need no room beforehand.
const LARGE_BYTES: usize = 1 << 20;

/// Elements that are skipped for a unit.
const ELEMENTS_OF_UNIT: usize = 8;
/// Comparisons for a unit.
const COMPARISONS_OF_UNIT: usize = 4;

/// Units left until the next question. One thread evaluates at a time; were there two, a few units
/// would be lost.
pub(super) struct Left(AtomicUsize);

impl Default for Left {
    fn default() -> Left {
        Left(AtomicUsize::new(TURN))
    }
}

impl Clone for Left {
    fn clone(&self) -> Left {
        Left::default()
    }
}

impl Vars {
    /// Before an evaluation.
    #[inline]
    pub(crate) fn begin_work(&self) {
        self.left.0.store(TURN, Relaxed);
    }

    /// Counts units of work, done or about to be done.
    #[inline]
    pub(crate) fn work(&self, units: usize) -> Result<()> {
        let left = self.left.0.load(Relaxed);
        if units >= left {
            return self.ask(units - left);
        }
        self.left.0.store(left - units, Relaxed);
        Ok(())
    }

    /// `over`: units done since the question became due. Large values are made by much work, so
    /// what the thread holds is asked here too.
    #[cold]
    fn ask(&self, over: usize) -> Result<()> {
        self.left.0.store(TURN - over % TURN, Relaxed);
        let Some(w) = &self.watchdog else {
            return Ok(());
        };
        w.weigh(0)?;
        // Much at once is asked for as often as if it were done bit by bit: an answer may be how
        // much there may be.
        (0..=over / TURN).try_for_each(|_| w.check())
    }

    /// Before a value of so many bytes is made at once, out of what is short: there is room for it, or the operation waits
    /// before it holds it.
    pub(crate) fn room_for(&self, bytes: usize) -> Result<()> {
        match &self.watchdog {
            Some(w) if bytes >= LARGE_BYTES => w.weigh(bytes),
            _ => Ok(()),
        }
    }

    /// Counts bytes that are read, copied or compared.
    #[inline]
    pub(crate) fn work_bytes(&self, bytes: usize) -> Result<()> {
        if bytes < BYTES_OF_UNIT {
            return Ok(());
        }
        self.work(bytes / BYTES_OF_UNIT)
    }

    /// Counts elements that are skipped, whatever their length.
    #[inline]
    pub(crate) fn work_elements(&self, elements: usize) -> Result<()> {
        if elements < ELEMENTS_OF_UNIT {
            return Ok(());
        }
        self.work(elements / ELEMENTS_OF_UNIT)
    }

    /// Counts the sorting of so many items of together so many bytes; `weight`: how much dearer
    /// than others' their comparison is.
    #[inline]
    pub(crate) fn work_sort(&self, items: usize, bytes: usize, weight: usize) -> Result<()> {
        let levels = (usize::BITS - items.leading_zeros()) as usize;
        let level = items / COMPARISONS_OF_UNIT + bytes / BYTES_OF_UNIT;
        self.work(level.saturating_mul(levels).saturating_mul(weight))
    }

    /// Variables for constants that are computed while they are parsed, which nothing could end: few
    /// steps are allowed. The second gives the bytes that were gone over so far.
    pub(super) fn for_constants() -> (Vars, impl Fn() -> usize) {
        let mut vars = Vars::default();
        let left = Arc::new(AtomicU32::new(CONSTANT_TURNS));
        let counted = left.clone();
        vars.set_watchdog(Arc::new(move || match counted.load(Relaxed) {
            0 => Err(Suspension::Worker.into()),
            n => {
                counted.store(n - 1, Relaxed);
                Ok(())
            }
        }));
        let spent = move || (CONSTANT_TURNS - left.load(Relaxed)) as usize * TURN * BYTES_OF_UNIT;
        (vars, spent)
    }
}

/// Questions until a constant is left to be computed for each document, where it can be ended: it
/// is about 16 MB that are gone over.
const CONSTANT_TURNS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::super::{EvalCtx, Expression, ParseEnv, Vars};
    use bson::{Doc, DocBuf, Value, Writer};
    use errors::{Code, err};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    fn parse(text: &str) -> Expression {
        let doc = bson::json::parse(text).unwrap();
        Expression::parse(doc.as_doc().as_val(), &ParseEnv::new()).unwrap()
    }

    /// How often an evaluation asks, if it may as often as `most`; else none.
    fn asks(text: &str, doc: Doc<'_>, most: u32) -> Option<u32> {
        let asked = Arc::new(AtomicU32::new(0));
        let mut vars = Vars::new(0);
        let count = asked.clone();
        vars.set_watchdog(Arc::new(move || match count.fetch_add(1, Relaxed) {
            n if n < most => Ok(()),
            _ => Err(err!(Interrupted, "enough").into()),
        }));
        match parse(text).evaluate(&EvalCtx::new(doc, &vars)) {
            Ok(_) => Some(asked.load(Relaxed)),
            Err(e) if e.is(Code::Interrupted) => None,
            Err(e) => panic!("{text}: {e:?}"),
        }
    }

    /// `{a: [0, 1, …], o: [{x: 0}, …], s: "aaa…", w: {f0: 0, …}, l: "after all that"}`, a few
    /// hundred thousand bytes each.
    fn long() -> DocBuf {
        let mut w = Writer::new();
        w.open_array("a");
        (0..40_000).for_each(|i| {
            w.i32("", i * 7919 % 40_009);
        });
        w.close().open_array("o");
        (0..20_000).for_each(|i| {
            w.open_doc("").i32("x", i).close();
        });
        w.close()
            .val("s", Value::from("a".repeat(400_000)).as_val());
        w.open_doc("w");
        (0..40_000).for_each(|i| {
            w.i32(&format!("f{i}"), i);
        });
        w.close().i32("l", 1);
        w.finish()
    }

    #[test]
    fn loops_in_loops_ask() {
        let turns = r#"{"$range":[0,200]}"#;
        let mut text = r#"{"$add":["$$this",1]}"#.to_string();
        for levels in 1..=3 {
            text = format!(r#"{{"$map":{{"input":{turns},"as":"this","in":{text}}}}}"#);
            let asked = asks(&text, Doc::EMPTY, 10);
            assert_eq!(asked.is_some(), levels == 1, "{levels}: {asked:?}");
        }
        for body in [
            format!(r#"{{"$reduce":{{"input":{turns},"initialValue":0,"in":"$$this"}}}}"#),
            format!(r#"{{"$filter":{{"input":{turns},"cond":"$$this"}}}}"#),
            format!(r#"{{"$range":[0,{{"$size":{turns}}}]}}"#),
            // Not longer than what would not be asked for by itself.
            format!(r#"{{"$setUnion":[{{"$ifNull":["$none",{turns}]}},["$none"]]}}"#),
        ] {
            let text = format!(r#"{{"$map":{{"input":{turns},"as":"t","in":[{body},"$$t"]}}}}"#);
            assert_eq!(asks(&text, Doc::EMPTY, 5), None, "{text}");
        }
    }

    /// The work of an operator shows in how often it asks, whether the length is that of its
    /// operands or of its result.
    #[test]
    fn long_values_count() {
        let doc = long();
        for text in [
            r#"{"$in":["x","$a"]}"#,
            r#"{"$indexOfArray":["$a","x"]}"#,
            r#"{"$size":"$a"}"#,
            r#"{"$last":"$a"}"#,
            r#"{"$arrayElemAt":["$a",39000]}"#,
            r#"{"$slice":["$a",2]}"#,
            r#"{"$lastN":{"n":2,"input":"$a"}}"#,
            r#"{"$sum":"$a"}"#,
            r#"{"$max":"$a"}"#,
            r#"{"$eq":["$a",{"$concatArrays":["$a",[]]}]}"#,
            r#"{"$allElementsTrue":"$a"}"#,
            r#"{"$setIsSubset":["$a",[0]]}"#,
            r#"{"$toHashedIndexKey":"$a"}"#,
            r#"{"$strLenCP":"$s"}"#,
            r#"{"$indexOfBytes":["$s","b"]}"#,
            r#"{"$indexOfCP":["$s","b"]}"#,
            r#"{"$substrCP":["$s",399000,1]}"#,
            r#"{"$strcasecmp":["$s","b"]}"#,
            r#"{"$trim":{"input":"$s","chars":"a"}}"#,
            r#"{"$regexMatch":{"input":"$s","regex":"b"}}"#,
            r#"{"$toUpper":"$s"}"#,
            r#"{"$split":["$s","a"]}"#,
            r#"{"$add":["$w.f39000",1]}"#,
            r#"{"$isArray":"$o.none"}"#,
            r#"{"$isArray":"$o.x"}"#,
            r#"{"$ifNull":[{"$getField":{"field":"f39000","input":"$w"}},0]}"#,
            r#"{"$mergeObjects":["$w",{"x":1}]}"#,
            r#"{"$objectToArray":"$w"}"#,
            r#"{"a":"$a","b":["$a"]}"#,
            r#"{"$map":{"input":{"$range":[0,100]},"in":{"$regexMatch":{"input":{"$toString":"$$this"},"regex":"(1+)+$"}}}}"#,
            r#"{"$range":[0,"$w.f39000"]}"#,
            r#"{"$map":{"input":{"$range":[0,50]},"in":{"$asinh":{"$toDecimal":"$$this"}}}}"#,
            r#"{"$map":{"input":{"$range":[0,50]},"in":{"$pow":[{"$toDecimal":"$$this"},1.5]}}}"#,
            r#"{"$map":{"input":{"$range":[0,300]},"in":{"$mod":[{"$toDecimal":"$$this"},1.5]}}}"#,
            r#"{"$map":{"input":{"$range":[0,300]},"in":{"$divide":[{"$toDecimal":"$$this"},1.5]}}}"#,
            r#"{"$map":{"input":{"$range":[1,50]},"in":{"$log":["$$this",{"$toDecimal":10}]}}}"#,
            r#"{"$map":{"input":{"$range":[1,50]},"in":{"$atan2":["$$this",{"$toDecimal":10}]}}}"#,
        ] {
            let asked = asks(text, doc.as_doc(), u32::MAX).unwrap();
            // From 250 KB to a megabyte, and some are gone over twice.
            assert!((2..100).contains(&asked), "{text}: {asked}");
            assert_eq!(asks(text, doc.as_doc(), 0), None, "{text}");
        }
        for text in [
            r#"{"$setUnion":["$a"]}"#,
            r#"{"$setIsSubset":[[],"$a"]}"#,
            r#"{"$setIntersection":["$a","$a"]}"#,
            r#"{"$setDifference":["$a",[1]]}"#,
            r#"{"$setEquals":["$a","$a"]}"#,
            r#"{"$sortArray":{"input":"$a","sortBy":1}}"#,
            r#"{"$maxN":{"n":2,"input":"$a"}}"#,
            r#"{"$median":{"input":"$a","method":"approximate"}}"#,
        ] {
            let asked = asks(text, doc.as_doc(), u32::MAX).unwrap();
            assert!((100..2000).contains(&asked), "{text}: {asked}");
        }
    }

    /// As many names as fit into a command: they take no stack, and each is found at once, so that
    /// this ends.
    #[test]
    fn many_names() {
        const MANY: usize = 200_000;
        let vars = |value: &dyn Fn(usize) -> String| {
            let one = |i| format!(r#""v{i}":{}"#, value(i));
            (0..MANY).map(one).collect::<Vec<_>>().join(",")
        };
        let sum = format!(r#"["$$v0","$$v{}","$$v7","$$o"]"#, MANY - 1);
        let text = format!(
            r#"{{"$let":{{"vars":{{"o":1000000,"v7":-1}},"in":{{"$let":{{"vars":{{{}}},"in":{{"$add":{sum}}}}}}}}}}}"#,
            vars(&|i| format!(r#"{{"$add":["$n",{i}]}}"#)),
        );
        let doc = bson::json::parse(r#"{"n":1}"#).unwrap();
        let value = |text: &str, env: &ParseEnv, vars: &Vars| {
            let text = bson::json::parse(text).unwrap();
            let e = Expression::parse(text.as_doc().as_val(), env).unwrap();
            let v = e.evaluate(&EvalCtx::new(doc.as_doc(), vars)).unwrap();
            v.as_val().and_then(|v| v.to_f64()).unwrap() as i64
        };
        let expected = 1_000_000 + MANY as i64 + 1 + 8;
        assert_eq!(value(&text, &ParseEnv::new(), &Vars::new(0)), expected);
        let (mut env, mut known) = (ParseEnv::new(), Vars::new(0));
        for i in 0..MANY {
            env.define(&format!("v{i}")).unwrap();
            known.set(&format!("v{i}"), Value::from(i as i64));
        }
        known.set("v7", Value::from(-7_i64));
        let all: Vec<String> = (0..MANY).map(|i| format!(r#""$$v{i}""#)).collect();
        let text = format!(r#"{{"$add":[{}]}}"#, all.join(","));
        let expected = (MANY * (MANY - 1) / 2) as i64 - 14;
        assert_eq!(value(&text, &env, &known), expected);
        assert!(!env.knows("v"));
    }

    /// What does not look at all of a value does not pay for its length, and small evaluations
    /// never ask.
    #[test]
    fn what_is_short_does_not_ask() {
        let doc = long();
        for text in [
            r#"{"$isArray":"$a"}"#,
            r#"{"$type":"$s"}"#,
            r#"{"$bsonSize":"$w"}"#,
            r#"{"$first":"$a"}"#,
            r#"{"$arrayElemAt":["$a",5]}"#,
            r#"{"$eq":["$s",null]}"#,
            r#"{"$cond":["$a","$s","$w"]}"#,
            r#"{"$ifNull":["$none","$s"]}"#,
            r#"{"$and":["$a","$s",{"$not":["$w"]}]}"#,
            r#"{"$getField":{"field":"f0","input":"$w"}}"#,
            r#"{"$add":["$l",1]}"#,
        ] {
            assert_eq!(asks(text, doc.as_doc(), 0), Some(0), "{text}");
        }
        let e = parse(r#"{"$map":{"input":"$a","in":{"$add":["$$this",1]}}}"#);
        let mut vars = Vars::new(0);
        vars.set_watchdog(Arc::new(|| Err(err!(Interrupted, "enough").into())));
        let doc = bson::json::parse(r#"{"a":[1,2,3,4,5,6,7,8]}"#).unwrap();
        for _ in 0..10_000 {
            assert!(e.evaluate(&EvalCtx::new(doc.as_doc(), &vars)).is_ok());
        }
    }

    /// Parsing cannot be ended.
    #[test]
    fn long_constants_are_left_for_later() {
        let long = parse(r#"{"$range":[0,6000000]}"#);
        assert!(long.constant().is_none());
        assert_eq!(asks(r#"{"$range":[0,6000000]}"#, Doc::EMPTY, 100), None);
        let short = parse(r#"{"$setUnion":[{"$range":[0,10000]},[1,2]]}"#);
        assert!(short.constant().is_some());
    }

    /// A text and a set of characters that are both long are gone over once.
    #[test]
    fn what_went_over_things_again_and_again() {
        let count = |text: &str, doc: &DocBuf| {
            let vars = Vars::new(0);
            let e = parse(text);
            let v = e.evaluate(&EvalCtx::new(doc.as_doc(), &vars));
            v.unwrap().into_value().unwrap()
        };
        let chars: String = (0x4E00..0x9000).filter_map(char::from_u32).collect();
        let text = chars.chars().last().unwrap().to_string().repeat(200_000);
        let mut w = Writer::new();
        w.val("s", Value::from(text).as_val())
            .val("c", Value::from(chars).as_val());
        w.open_array("o");
        (0..40_000).for_each(|i| {
            w.open_doc("").i32(&format!("f{i}"), i).i32("x", i).close();
        });
        w.close().open_array("d");
        (0..200_000).for_each(|i| {
            w.i32("", i * 7919 % 200_003);
        });
        w.close();
        let doc = w.finish();
        let trimmed = r#"{"$trim":{"input":"$s","chars":"$c"}}"#;
        assert_eq!(count(trimmed, &doc), Value::from(""));
        let merged = count(r#"{"$mergeObjects":"$o"}"#, &doc);
        let merged = merged.as_val().as_doc().unwrap();
        assert_eq!(
            (
                merged.count(),
                merged.get("x").and_then(|v| v.to_i64_exact())
            ),
            (40_001, Some(39_999))
        );
        let kept = count(r#"{"$size":{"$setDifference":["$d",[1,2,3]]}}"#, &doc);
        assert!(kept.as_val().to_i64_exact().unwrap() > 199_000);
        let order = count(
            r#"{"$setDifference":[{"$ifNull":["$none",[3,1,2,3.0,1,5]]},[2]]}"#,
            &doc,
        );
        assert_eq!(order, bson::array![3, 1, 5]);
    }
}
