//! The shape of documents as they are: which fields occur, with which types, how often, for
//! example.
//!
//! ```text
//! {_id: 1, tags: ["a"], items: [{qty: 2}]}   →   _id   tags   tags[]   items   items[]   items[].qty
//! ```
//! Invariant: memory is bounded by [`ShapeLimits`], whatever the documents are. Where fields are
//! too many (keys that are data), those of one object are told together, as `parent.*`.

use bson::{Doc, Val, Value, tag};
use std::collections::HashMap;

/// An example that is longer is cut off, in bytes; so is a field's name told as `*`.
const EXAMPLE_BYTES: usize = 80;
const NAME_BYTES: usize = 200;

#[derive(Clone, Copy, Debug)]
pub struct ShapeLimits {
    /// Paths that are told apart.
    pub fields: usize,
    /// Fields of one object that are told apart.
    pub of_object: usize,
    pub examples: usize,
    pub depth: usize,
}

impl Default for ShapeLimits {
    fn default() -> ShapeLimits {
        ShapeLimits {
            fields: 1000,
            of_object: 100,
            examples: 3,
            depth: 32,
        }
    }
}

/// The counts of one path.
#[derive(Clone, Debug)]
pub struct Field {
    pub path: String,
    /// Documents in which it occurs.
    pub documents: u64,
    /// How often it occurs: in arrays, more than once in a document.
    pub values: u64,
    /// Type name and how often, in the order they were seen.
    pub types: Vec<(&'static str, u64)>,
    /// Different values of it, the first ones. None of objects and arrays.
    pub examples: Vec<Value>,
    /// Of arrays: the fewest and most elements, and all of them.
    pub elements: Option<(u64, u64, u64)>,
    /// The number of the last document that had it.
    last: u64,
    children: usize,
}

/// The shape of all documents given so far.
pub struct Shape {
    limits: ShapeLimits,
    pub documents: u64,
    /// Something was left out: too many paths, or too deep.
    pub truncated: bool,
    fields: Vec<Field>,
    by_path: HashMap<String, usize>,
    top: usize,
}

impl Shape {
    pub fn new(limits: ShapeLimits) -> Shape {
        Shape {
            limits,
            documents: 0,
            truncated: false,
            fields: Vec::new(),
            by_path: HashMap::new(),
            top: 0,
        }
    }

    pub fn add(&mut self, d: Doc<'_>) {
        self.documents += 1;
        let mut path = String::new();
        self.object(d, &mut path, None, 0);
    }

    /// The fields, each after its parent and otherwise in the order they were first seen.
    pub fn into_fields(self) -> Vec<Field> {
        let mut fields = self.fields;
        // The place of a path is that of its parts: a parent is seen before its children.
        let first: HashMap<String, usize> = self.by_path;
        let place = |path: &str| -> Vec<usize> {
            let ends = path.match_indices(['.', '[']).map(|(at, _)| at);
            ends.chain([path.len()])
                .filter_map(|end| first.get(&path[..end]).copied())
                .collect()
        };
        fields.sort_by_cached_key(|f| place(&f.path));
        fields
    }

    fn object(&mut self, d: Doc<'_>, path: &mut String, parent: Option<usize>, depth: usize) {
        if depth >= self.limits.depth {
            self.truncated = true;
            return;
        }
        let end = path.len();
        for e in d {
            if end > 0 {
                path.push('.');
            }
            let start = path.len();
            path.push_str(if e.name.len() > NAME_BYTES || e.name == "*" {
                "*"
            } else {
                e.name
            });
            if !self.by_path.contains_key(path.as_str()) {
                let siblings = match parent {
                    Some(p) => &mut self.fields[p].children,
                    None => &mut self.top,
                };
                // The fields of the top are the collection's own: they are never told together.
                if parent.is_some() && *siblings >= self.limits.of_object {
                    path.truncate(start);
                    path.push('*');
                } else {
                    *siblings += 1;
                }
            }
            self.value(e.val, path, depth);
            path.truncate(end);
        }
    }

    fn value(&mut self, v: Val<'_>, path: &mut String, depth: usize) {
        let Some(at) = self.find(path) else {
            self.truncated = true;
            return;
        };
        self.note(at, v);
        match v.tag {
            tag::DOCUMENT => {
                let d = v.as_doc().unwrap_or(Doc::EMPTY);
                self.object(d, path, Some(at), depth + 1);
            }
            tag::ARRAY => {
                if depth + 1 >= self.limits.depth {
                    self.truncated = true;
                    return;
                }
                let end = path.len();
                path.push_str("[]");
                let mut n = 0;
                for e in v.as_array().unwrap_or(Doc::EMPTY).values() {
                    n += 1;
                    self.value(e, path, depth + 1);
                }
                path.truncate(end);
                if let Some(f) = self.fields.get_mut(at) {
                    let (least, most, all) = f.elements.unwrap_or((n, n, 0));
                    f.elements = Some((least.min(n), most.max(n), all + n));
                }
            }
            _ => {}
        }
    }

    fn find(&mut self, path: &str) -> Option<usize> {
        if let Some(at) = self.by_path.get(path) {
            return Some(*at);
        }
        if self.fields.len() >= self.limits.fields {
            return None;
        }
        let at = self.fields.len();
        self.fields.push(Field {
            path: path.to_string(),
            documents: 0,
            values: 0,
            types: Vec::new(),
            examples: Vec::new(),
            elements: None,
            last: 0,
            children: 0,
        });
        self.by_path.insert(path.to_string(), at);
        Some(at)
    }

    fn note(&mut self, at: usize, v: Val<'_>) {
        let (number, most) = (self.documents, self.limits.examples);
        let Some(f) = self.fields.get_mut(at) else {
            return;
        };
        f.values += 1;
        if f.last != number {
            f.last = number;
            f.documents += 1;
        }
        let name = v.type_name();
        match f.types.iter_mut().find(|(t, _)| *t == name) {
            Some((_, n)) => *n += 1,
            None => f.types.push((name, 1)),
        }
        if f.examples.len() < most
            && let Some(example) = example(v)
            && !f.examples.contains(&example)
        {
            f.examples.push(example);
        }
    }
}

/// A value to show: strings cut to a readable length, large and structured values not at all.
fn example(v: Val<'_>) -> Option<Value> {
    match v.tag {
        tag::DOCUMENT | tag::ARRAY | tag::NULL | tag::UNDEFINED => None,
        tag::STRING => {
            let s = v.as_str()?;
            if s.len() <= EXAMPLE_BYTES {
                return Some(Value::from(s));
            }
            let end = (0..=EXAMPLE_BYTES).rev().find(|n| s.is_char_boundary(*n))?;
            Some(Value::from(format!("{}…", &s[..end]).as_str()))
        }
        _ if v.bytes.len() > EXAMPLE_BYTES => None,
        _ => Some(v.to_value()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DocBuf, Writer, array, doc};

    fn shape(docs: &[DocBuf], limits: ShapeLimits) -> (Vec<Field>, bool) {
        let mut s = Shape::new(limits);
        docs.iter().for_each(|d| s.add(d.as_doc()));
        let truncated = s.truncated;
        (s.into_fields(), truncated)
    }

    fn paths(fields: &[Field]) -> Vec<&str> {
        fields.iter().map(|f| f.path.as_str()).collect()
    }

    #[test]
    fn fields_types_and_examples() {
        let docs = [
            doc! { "_id": 1, "name": "a", "items": array![doc! { "qty": 2 }, doc! { "qty": 2.5 }] },
            doc! { "_id": 2, "name": "x".repeat(500).as_str(), "extra": doc! { "deep": true }, "items": array![] },
            doc! { "_id": 3, "name": () },
        ];
        let (fields, truncated) = shape(&docs, ShapeLimits::default());
        assert!(!truncated);
        assert_eq!(
            paths(&fields),
            [
                "_id",
                "name",
                "items",
                "items[]",
                "items[].qty",
                "extra",
                "extra.deep"
            ]
        );
        let f = |p: &str| fields.iter().find(|f| f.path == p).unwrap();
        assert_eq!(
            (
                f("name").documents,
                f("items").documents,
                f("extra").documents
            ),
            (3, 2, 1)
        );
        assert_eq!(f("name").types, [("string", 2), ("null", 1)]);
        assert_eq!(f("items[].qty").types, [("int", 1), ("double", 1)]);
        assert_eq!(
            (f("items[].qty").documents, f("items[].qty").values),
            (1, 2)
        );
        assert_eq!(f("items").elements, Some((0, 2, 2)));
        assert_eq!(f("_id").examples.len(), 3);
        assert!(f("name").examples[1].as_val().as_str().unwrap().len() < 100);
    }

    #[test]
    fn memory_is_bounded() {
        let limits = ShapeLimits {
            fields: 50,
            of_object: 10,
            examples: 1,
            depth: 5,
        };
        let mut w = Writer::new();
        w.open_doc("by_user");
        for i in 0..1000 {
            w.open_doc(&format!("user{i}")).i32("visits", i).close();
        }
        w.close();
        let (fields, truncated) = shape(&[w.finish()], limits);
        assert!(!truncated);
        assert_eq!(fields.len(), 1 + 2 * 11);
        let rest = fields
            .iter()
            .find(|f| f.path == "by_user.*.visits")
            .unwrap();
        assert_eq!((rest.documents, rest.values), (1, 990));

        let mut w = Writer::new();
        for i in 0..100 {
            w.i32(&format!("f{i}"), i);
        }
        let (fields, truncated) = shape(&[w.finish()], limits);
        assert!(truncated);
        assert_eq!(fields.len(), 50);

        let mut deep = doc! { "a": 1 };
        for _ in 0..20 {
            deep = doc! { "a": deep };
        }
        let (fields, truncated) = shape(&[deep], limits);
        assert!(truncated);
        assert_eq!(fields.len(), 5);
    }
}
