//! The `htmlStrip` character filter: a text without its markup.
//!
//! Source: Lucene's `HTMLStripCharFilter`: elements within lines vanish, others become line breaks, entities become their
//! characters, scripts and styles go with what they hold.

use super::text::{Filtered, Rewrite};
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

/// Elements that do not part words.
const INLINE: &str = "a abbr acronym b basefont bdo big cite code dfn em font i img input kbd label q s samp select small \
    span strike strong sub sup textarea tt u var";

/// Names of characters, and their numbers.
static ENTITIES: LazyLock<HashMap<&'static str, char>> = LazyLock::new(|| {
    let lines = include_str!("entities.txt").lines();
    let one = |l: &'static str| {
        let (name, number) = l.split_once(' ')?;
        let c = char::from_u32(u32::from_str_radix(number, 16).ok()?)?;
        // As Lucene has it: a space that is not to be broken is a space.
        Some((name, if c == '\u{a0}' { ' ' } else { c }))
    };
    lines.filter_map(one).collect()
});

/// The most characters of an entity's name.
const MOST_NAME: usize = 10;

pub(super) fn stripped(text: Filtered, kept: &BTreeSet<String>) -> Filtered {
    let mut out = Rewrite::new(text);
    let mut at = 0;
    loop {
        let rest = out.text().get(at..).unwrap_or("");
        let Some(next) = rest.find(['<', '&']) else {
            break;
        };
        at += next;
        let rest = out.text().get(at..).unwrap_or("");
        let found = match rest.starts_with('<') {
            true => markup(rest, kept),
            false => entity(rest).map(|(length, c)| (length, Some(c.to_string()))),
        };
        match found {
            Some((length, Some(by))) => {
                out.keep_to(at);
                out.replace_to(at + length, &by);
                at += length;
            }
            // It stays.
            Some((length, None)) => at += length,
            None => at += 1,
        }
    }
    out.finish()
}

/// How long the markup is that a text begins with, and what stands for it; `None`: it is none.
fn markup(text: &str, kept: &BTreeSet<String>) -> Option<(usize, Option<String>)> {
    let behind = |from: &str, end: &str| text.get(from.len()..)?.find(end).map(|n| from.len() + n);
    if text.starts_with("<!--") {
        // A comment without an end takes the rest.
        let end = behind("<!--", "-->").map_or(text.len(), |n| n + 3);
        return Some((end, Some(String::new())));
    }
    if text.starts_with("<![CDATA[") {
        let start = "<![CDATA[".len();
        let end = behind("<![CDATA[", "]]>")?;
        return Some((end + 3, text.get(start..end).map(str::to_string)));
    }
    if text.starts_with("<?") || text.starts_with("<!") {
        return Some((behind("<!", ">")? + 1, Some(String::new())));
    }
    let closes = text.starts_with("</");
    let blank = |at: usize| {
        let rest = text.get(at..)?;
        Some(at + rest.len() - rest.trim_start().len())
    };
    let name_at = blank(1 + usize::from(closes))?;
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
    let name_end = name_at + text.get(name_at..)?.find(|c| !is_name(c))?;
    let name = text.get(name_at..name_end)?.to_lowercase();
    if !name.starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | ':')) {
        return None;
    }
    let end = name_end + tag_end(text.get(name_end..)?)?;
    if kept.contains(&name) {
        return Some((end, None));
    }
    if !closes && (name == "script" || name == "style") {
        let close = format!("</{name}");
        let lower = text.get(end..)?.to_ascii_lowercase();
        let length = match lower.find(&close) {
            Some(n) => end + n + lower.get(n..)?.find('>').map_or(close.len(), |n| n + 1),
            None => text.len(),
        };
        return Some((length, Some("\n".to_string())));
    }
    let inline = INLINE.split_whitespace().any(|n| n == name);
    let by = if inline { "" } else { "\n" };
    Some((end, Some(by.to_string())))
}

/// Where a tag ends of which the name was read: quoted values may have its mark.
fn tag_end(rest: &str) -> Option<usize> {
    let first = rest.chars().next()?;
    if !(first.is_whitespace() || matches!(first, '>' | '/')) {
        return None;
    }
    let mut quote = None;
    for (at, c) in rest.char_indices() {
        match (quote, c) {
            (None, '>') => return Some(at + 1),
            (None, '<') => return None,
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            _ => {}
        }
    }
    None
}

/// How long the entity is that a text begins with, and its character.
fn entity(text: &str) -> Option<(usize, char)> {
    let body = text.get(1..)?;
    if let Some(number) = body.strip_prefix('#') {
        let (digits, radix, mark) = match number.strip_prefix(['x', 'X']) {
            Some(hex) => (hex, 16, 3),
            None => (number, 10, 2),
        };
        let n = digits.chars().take_while(|c| c.is_digit(radix)).count();
        let c = char::from_u32(u32::from_str_radix(digits.get(..n)?, radix).ok()?)?;
        let closed = digits.get(n..).is_some_and(|r| r.starts_with(';'));
        let c = if c == '\u{a0}' { ' ' } else { c };
        return closed.then_some((mark + n + 1, c));
    }
    let name = body.chars().take(MOST_NAME);
    let n = name.take_while(char::is_ascii_alphanumeric).count();
    let closed = body.get(n..).is_some_and(|r| r.starts_with(';'));
    let c = ENTITIES.get(body.get(..n)?).filter(|_| closed)?;
    Some((n + 2, *c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_goes_and_places_stay() {
        let kept = BTreeSet::from(["b".to_string()]);
        let text =
            "<p>caf&eacute; <i>x</i><b>y</b> <script>var a = '<';</script>&#65;&unknown; 1 < 2";
        let got = stripped(Filtered::of(text), &kept);
        assert_eq!(got.text, "\ncafé x<b>y</b> \nA&unknown; 1 < 2");
        let x = got.text.find('x').unwrap();
        assert_eq!(text.get(got.original(x)..got.original(x) + 1), Some("x"));
    }
}
