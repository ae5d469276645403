//! Dotted field paths and the walk that MongoDB's queries make along them.
//!
//! The walk ([`FieldPath::visit`]) yields every value that a predicate on the path has to be tried
//! on, in MongoDB's order: documents are entered by name; an array on the way is entered element by
//! element, and by position where the next component is a number; an array at the end yields its
//! elements and then itself ([`Leaf::Expand`]) or only itself ([`Leaf::Whole`]). A place that is
//! not there yields `None`, once for each document that lacks it; an array on the way that holds no
//! document yields nothing at all.

use bson::{Doc, Val, tag};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// A parsed dotted path. The empty path has no components and stands for the value itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath {
    /// Shared: plans copy the paths of their filters.
    text: Arc<str>,
    /// End offset of each component in `text`, and its number when it is one.
    parts: SmallVec<[Component; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Component {
    start: u32,
    end: u32,
    index: Option<u32>,
}

/// The arrays that a walk went through without success, each with the component it was entered for.
/// A number is a position and a name, so that with many of them there are as many ways to a place
/// as a Fibonacci number tells: 90 would take for ever.
type Seen = Option<HashSet<(usize, usize)>>;

/// With fewer numbers in a path there are few ways, and nothing is noted.
const MANY_NUMBERS: usize = 5;

/// What a walk does with an array at the end of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// Its elements, then the array itself.
    Expand,
    /// The array itself only.
    Whole,
}

/// A component that addresses an array element: decimal digits without leading zeros.
pub fn array_index(component: &str) -> Option<u32> {
    let b = component.as_bytes();
    match b {
        [] => None,
        [b'0'] => Some(0),
        [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => component.parse().ok(),
        _ => None,
    }
}

impl FieldPath {
    /// Splits at dots. Any text is a path; a caller that must refuse empty components asks
    /// [`FieldPath::has_empty_part`].
    pub fn new(text: &str) -> FieldPath {
        let mut parts = SmallVec::new();
        let mut start = 0;
        for c in text.split('.') {
            let end = start + c.len();
            parts.push(Component {
                start: start as u32,
                end: end as u32,
                index: array_index(c),
            });
            start = end + 1;
        }
        FieldPath {
            text: text.into(),
            parts,
        }
    }

    /// The path of no components: the value itself.
    pub fn empty() -> FieldPath {
        FieldPath {
            text: "".into(),
            parts: SmallVec::new(),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// How many components.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Component `i`; `""` past the end.
    #[inline]
    pub fn part(&self, i: usize) -> &str {
        match self.parts.get(i) {
            Some(p) => &self.text[p.start as usize..p.end as usize],
            None => "",
        }
    }

    /// Component `i` as a position in an array.
    #[inline]
    pub fn index(&self, i: usize) -> Option<u32> {
        self.parts.get(i).and_then(|p| p.index)
    }

    pub fn parts(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.parts
            .iter()
            .map(|p| &self.text[p.start as usize..p.end as usize])
    }

    pub fn first(&self) -> &str {
        self.part(0)
    }

    pub fn last(&self) -> &str {
        self.part(self.len().wrapping_sub(1))
    }

    pub fn is_dotted(&self) -> bool {
        self.parts.len() > 1
    }

    pub fn is_id(&self) -> bool {
        &*self.text == "_id"
    }

    pub fn has_empty_part(&self) -> bool {
        self.parts.iter().any(|p| p.start == p.end)
    }

    pub fn has_index_part(&self) -> bool {
        self.parts.iter().any(|p| p.index.is_some())
    }

    /// Whether `prefix` equals the first components of this path (a path starts with itself).
    pub fn starts_with(&self, prefix: &FieldPath) -> bool {
        prefix.is_empty()
            || (self.text.starts_with(&*prefix.text)
                && matches!(
                    self.text.as_bytes().get(prefix.text.len()),
                    None | Some(b'.')
                ))
    }

    /// One path is a prefix of the other, or they are equal.
    pub fn conflicts_with(&self, other: &FieldPath) -> bool {
        self.starts_with(other) || other.starts_with(self)
    }

    /// The path without its last component.
    pub fn parent(&self) -> FieldPath {
        match self.text.rsplit_once('.') {
            Some((parent, _)) => FieldPath::new(parent),
            None => FieldPath::empty(),
        }
    }

    /// The path without its first `n` components.
    pub fn tail(&self, n: usize) -> FieldPath {
        match self.parts.get(n) {
            Some(p) => FieldPath::new(&self.text[p.start as usize..]),
            None => FieldPath::empty(),
        }
    }

    /// This path followed by `more`.
    pub fn join(&self, more: &FieldPath) -> FieldPath {
        if self.is_empty() {
            more.clone()
        } else if more.is_empty() {
            self.clone()
        } else {
            FieldPath::new(&format!("{}.{}", self.text, more.text))
        }
    }

    /// The value at the path, entering documents only: a value behind an array is not found.
    pub fn get<'a>(&self, doc: Doc<'a>) -> Option<Val<'a>> {
        let mut d = doc;
        for i in 0..self.len() {
            let v = d.get(self.part(i))?;
            if i + 1 == self.len() {
                return Some(v);
            }
            d = v.as_doc()?;
        }
        None
    }

    /// Walks the path and calls `f` with each value and the array position that a positional `$`
    /// would stand for, until `f` says true; says whether it did.
    #[inline]
    pub fn visit<'a>(
        &self,
        doc: Doc<'a>,
        leaf: Leaf,
        f: &mut impl FnMut(Option<Val<'a>>, Option<u32>) -> bool,
    ) -> bool {
        if self.parts.len() == 1 {
            let v = doc.get(self.part(0));
            return match v {
                Some(v) if v.tag == tag::ARRAY && leaf == Leaf::Expand => expand(v, f),
                v => f(v, None),
            };
        }
        let numbers = self.parts.iter().filter(|p| p.index.is_some()).count();
        let mut seen = (numbers >= MANY_NUMBERS).then(HashSet::new);
        self.walk(doc, 0, leaf, &mut seen, f)
    }

    fn walk<'a>(
        &self,
        doc: Doc<'a>,
        from: usize,
        leaf: Leaf,
        seen: &mut Seen,
        f: &mut dyn FnMut(Option<Val<'a>>, Option<u32>) -> bool,
    ) -> bool {
        let (mut d, mut i) = (doc, from);
        loop {
            let Some(v) = d.get(self.part(i)) else {
                return f(None, None);
            };
            i += 1;
            if i >= self.parts.len() {
                return match (v.tag, leaf) {
                    (tag::ARRAY, Leaf::Expand) => expand(v, f),
                    _ => f(Some(v), None),
                };
            }
            match v.tag {
                tag::DOCUMENT => d = Doc::new(v.bytes).unwrap_or(Doc::EMPTY),
                tag::ARRAY => return self.through_array(v, i, leaf, seen, f),
                _ => return f(None, None),
            }
        }
    }

    /// `i` is the component after the one that named the array.
    fn through_array<'a>(
        &self,
        array: Val<'a>,
        i: usize,
        leaf: Leaf,
        seen: &mut Seen,
        f: &mut dyn FnMut(Option<Val<'a>>, Option<u32>) -> bool,
    ) -> bool {
        if let Some(seen) = seen
            && !seen.insert((array.bytes.as_ptr() as usize, i))
        {
            return false;
        }
        let wanted = self.index(i);
        for (n, e) in array.as_array().unwrap_or(Doc::EMPTY).values().enumerate() {
            let n = n as u32;
            if e.tag == tag::DOCUMENT {
                let d = Doc::new(e.bytes).unwrap_or(Doc::EMPTY);
                // The outermost array's position is the one that counts.
                if self.walk(d, i, leaf, seen, &mut |v, _| f(v, Some(n))) {
                    return true;
                }
            }
            if wanted != Some(n) {
                continue;
            }
            // A position that the path names itself is none that `$` could stand for.
            let found = if i + 1 == self.parts.len() {
                f(Some(e), None)
            } else {
                match e.tag {
                    tag::DOCUMENT => {
                        let d = Doc::new(e.bytes).unwrap_or(Doc::EMPTY);
                        self.walk(d, i + 1, leaf, seen, f)
                    }
                    tag::ARRAY => self.through_array(e, i + 1, leaf, seen, f),
                    _ => false,
                }
            };
            if found {
                return true;
            }
        }
        false
    }
}

fn expand<'a>(
    array: Val<'a>,
    f: &mut (impl FnMut(Option<Val<'a>>, Option<u32>) -> bool + ?Sized),
) -> bool {
    let mut it = array.as_array().unwrap_or(Doc::EMPTY).iter();
    let mut n = 0;
    while let Some((_, e)) = it.next_raw() {
        if f(Some(e), Some(n)) {
            return true;
        }
        n += 1;
    }
    f(Some(array), None)
}

impl fmt::Debug for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&str> for FieldPath {
    fn from(s: &str) -> FieldPath {
        FieldPath::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(path: &str, doc: &str, leaf: Leaf) -> Vec<String> {
        let d = bson::json::parse(doc).unwrap();
        let mut out = Vec::new();
        FieldPath::new(path).visit(d.as_doc(), leaf, &mut |v, n| {
            let v = v.map_or("-".to_string(), |v| v.to_string().replace(' ', ""));
            out.push(match n {
                None => v,
                Some(n) => format!("{v}@{n}"),
            });
            false
        });
        out
    }

    #[test]
    fn walks_like_mongodb() {
        use Leaf::*;
        let cases: &[(&str, &str, Leaf, &[&str])] = &[
            ("a", r#"{"a": 1}"#, Expand, &["1"]),
            ("a", r#"{"b": 1}"#, Expand, &["-"]),
            ("a", r#"{"a": [1, 2]}"#, Expand, &["1@0", "2@1", "[1,2]"]),
            ("a", r#"{"a": [1, 2]}"#, Whole, &["[1,2]"]),
            ("a", r#"{"a": []}"#, Expand, &["[]"]),
            ("a.b", r#"{"a": {"b": 1}}"#, Expand, &["1"]),
            ("a.b", r#"{"a": 5}"#, Expand, &["-"]),
            ("a.b", r#"{"a": []}"#, Expand, &[]),
            ("a.b", r#"{"a": [1, 2]}"#, Expand, &[]),
            (
                "a.b",
                r#"{"a": [{"b": 1}, {"c": 2}, 3]}"#,
                Expand,
                &["1@0", "-@1"],
            ),
            (
                "a.b",
                r#"{"a": [{"b": [7, 8]}]}"#,
                Expand,
                &["7@0", "8@0", "[7,8]@0"],
            ),
            ("a.b", r#"{"a": [[{"b": 1}]]}"#, Expand, &[]),
            ("a.1", r#"{"a": [5, 6]}"#, Expand, &["6"]),
            ("a.1", r#"{"a": [5, [2, 4]]}"#, Expand, &["[2,4]"]),
            (
                "a.1",
                r#"{"a": [5, {"1": 4}]}"#,
                Expand,
                &["4@1", "{\"1\":4}"],
            ),
            ("a.1.b", r#"{"a": [5, {"b": 4}]}"#, Expand, &["-@1", "4"]),
            ("a.0.b", r#"{"a": [[{"b": 1}]]}"#, Expand, &["1@0"]),
            ("a.0", r#"{"a": {"0": 3}}"#, Expand, &["3"]),
        ];
        for (path, doc, leaf, want) in cases {
            assert_eq!(walk(path, doc, *leaf), *want, "{path} in {doc}");
        }
    }

    #[test]
    fn paths() {
        let p = FieldPath::new("a.10.b");
        assert_eq!(
            (p.len(), p.part(1), p.index(1), p.index(0)),
            (3, "10", Some(10), None)
        );
        assert!(p.starts_with(&"a.10".into()) && !p.starts_with(&"a.1".into()));
        assert_eq!(p.tail(1).as_str(), "10.b");
        assert_eq!(array_index("01"), None);
        assert_eq!(FieldPath::empty().join(&p), p);
        assert!(FieldPath::new("a..b").has_empty_part() && FieldPath::new("").has_empty_part());
    }
    /// `{0: [{0: [{0: …}]}]}` and a path of zeros, of which each is a position or a name.
    #[test]
    fn many_numbers() {
        let mut text = "1".to_string();
        for _ in 0..60 {
            text = format!(r#"[{{"0":{text}}}]"#);
        }
        let d = bson::json::parse(&format!(r#"{{"0":{text}}}"#)).unwrap();
        for (parts, ends) in [
            (60, false),
            (61, true),
            (90, true),
            (121, true),
            (122, false),
        ] {
            let path = FieldPath::new(&vec!["0"; parts].join("."));
            let mut calls = 0;
            let found = path.visit(d.as_doc(), Leaf::Expand, &mut |v, _| {
                calls += 1;
                assert!(calls < 10_000);
                v.is_some_and(|v| v.as_i32() == Some(1))
            });
            assert_eq!(found, ends, "{parts}");
        }
    }
}
