//! Matches, their bounds, and the callback.

use super::{MatchFailure, PatternOptions, Regex, WARM_UP};

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern, PatternOptions::default()).unwrap()
}

fn free(_: usize) -> bool {
    true
}

#[test]
fn finds() {
    for (pattern, text, found) in [
        ("a+b", "xaab", true),
        ("^b", "ab", false),
        ("", "", true),
        ("^.$", "é", true),
        (r"(a)\1", "xaa", true),
        ("(?<!a)b", "ab", false),
    ] {
        let r = regex(pattern);
        // Before and after there is machine code for it.
        for _ in 0..WARM_UP + 10 {
            assert_eq!(r.is_match(text, &mut free), Ok(found), "{pattern} {text}");
        }
    }
    let caseless = PatternOptions {
        caseless: true,
        ..PatternOptions::default()
    };
    let r = Regex::new("É", caseless).unwrap();
    assert_eq!(r.is_match("é", &mut free), Ok(true));
    let e = Regex::new("a(", PatternOptions::default()).unwrap_err();
    assert!(e.contains("offset 2: missing closing parenthesis"), "{e}");
}

#[test]
fn captures() {
    let r = regex("(a)|(b)");
    let mut c = r.captures().unwrap();
    assert_eq!(r.captures_at("éxb", 2, &mut c, &mut free), Ok(true));
    let all: Vec<_> = (0..c.len()).map(|i| c.get(i)).collect();
    assert_eq!(all, [Some((3, 4)), None, Some((3, 4))]);
    assert_eq!(c.get(3), None);
    assert_eq!(r.captures_at("éxb", 4, &mut c, &mut free), Ok(false));
    assert_eq!(
        r.captures_at("éxb", 1, &mut c, &mut free),
        Ok(false),
        "in the middle of a character"
    );
}

/// Long texts are matched by the second try too, with the same answers.
#[test]
fn long_texts() {
    let text = format!("{}ing", "x ".repeat(500_000));
    let mut c = regex("([a-z]+)ing").captures().unwrap();
    let mut told = 0;
    for pattern in [r"[a-z]+ing", r"(?:x|y) ing$", "(x) (?:ing)"] {
        let mut count = |units| {
            told += units;
            true
        };
        let r = regex(pattern);
        let found = pattern != "[a-z]+ing";
        assert_eq!(r.is_match(&text, &mut count), Ok(found), "{pattern}");
    }
    assert!(told > 500_000, "{told}");
    let r = regex("(i)ng");
    assert_eq!(r.captures_at(&text, 0, &mut c, &mut free), Ok(true));
    assert_eq!(c.get(0), Some((1_000_000, 1_000_003)));
}

/// A pattern that goes back for ever ends by its bounds, or as soon as the callback says so; it is no
/// match that way, however often it was used.
#[test]
fn bounds() {
    let long = format!("{}b", "a".repeat(1_000_000));
    let short = format!("{}b", "a".repeat(40));
    for (pattern, text) in [
        ("^(a|a)*$", &long),
        ("^(a|a)*$", &short),
        ("(a+)+$", &short),
        ("(?:a?){40}a{40}$", &short),
    ] {
        let r = regex(pattern);
        for _ in 0..2 {
            let found = r.is_match(text, &mut free);
            assert!(
                matches!(found, Err(MatchFailure::Limit(_))),
                "{pattern} {found:?}"
            );
        }
        let (mut asked, mut units) = (0, 0);
        let mut until = |n| {
            (asked, units) = (asked + 1, units + n);
            asked < 3
        };
        assert_eq!(r.is_match(text, &mut until), Err(MatchFailure::Ended));
        assert_eq!(asked, 3);
        assert!(units < 5000, "{pattern}: {units} are told bit by bit");
    }
}

/// A step may go over all of the text without going back; that is counted too.
#[test]
fn scans_count() {
    let text = "a".repeat(100_000);
    for pattern in [r"(?=[a-z]*+\d)a", r"(a*)\1\d", r"a*?(?=a*+\d)"] {
        let mut units = 0;
        let mut until = |n| {
            units += n;
            units < 1_000_000
        };
        let found = regex(pattern).is_match(&text, &mut until);
        assert!(found != Ok(true), "{pattern}");
        assert!(units >= 100_000, "{pattern}: {units}");
    }
}

/// The matches of a long text are found one after another with the same room.
#[test]
fn one_stack_serves_a_walk() {
    let (text, r) = ("ab".repeat(20_000), regex("a"));
    let mut found = r.captures().unwrap();
    let before = crate::watched::STACKS_MADE.get();
    for i in 0..5000 {
        assert_eq!(r.captures_at(&text, 2 * i, &mut found, &mut free), Ok(true));
        assert_eq!(found.get(0), Some((2 * i, 2 * i + 1)));
    }
    assert_eq!(crate::watched::STACKS_MADE.get(), before + 1);
}

/// What a match took is given back: threads keep little.
#[test]
fn memory() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = status.split(' ').nth(1).and_then(|n| n.parse().ok());
        pages.unwrap_or(0usize) * 4096
    };
    let text = format!("{}b", "a".repeat(10_000_000));
    let r = regex("^(a|a)*$");
    let before = resident();
    let _ = r.is_match(&text, &mut free);
    let after = resident();
    assert!(after < before + (64 << 20), "{before} {after}");
}
