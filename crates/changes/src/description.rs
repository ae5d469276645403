//! `updateDescription`: a diff of the log as paths and their values.
//!
//! Source: MongoDB 8 manual, "Change Events", `update`.

use bson::{Doc, Val, Writer};

/// A step of a path.
#[derive(Clone)]
enum Step<'a> {
    Field(&'a str),
    Index(i32),
}

#[derive(Default)]
struct Description<'a> {
    path: Vec<Step<'a>>,
    updated: Writer,
    removed: Vec<String>,
    truncated: Vec<(String, i32)>,
    /// Paths that read differently by their dots and digits than they are.
    ambiguous: Vec<(String, Vec<Step<'a>>)>,
}

/// Writes `updateDescription` from a diff, see `query::update::diff`.
pub(crate) fn write(w: &mut Writer, diff: Doc<'_>, expanded: bool) {
    let mut d = Description::default();
    d.document(diff, 0);
    w.open_doc("updateDescription");
    w.doc("updatedFields", d.updated.finish().as_doc());
    w.open_array("removedFields");
    d.removed.iter().for_each(|path| {
        w.push_value(path.as_str());
    });
    w.close().open_array("truncatedArrays");
    for (path, size) in &d.truncated {
        w.open_doc("").str("field", path).i32("newSize", *size);
        w.close();
    }
    w.close();
    if expanded {
        w.open_doc("disambiguatedPaths");
        for (path, steps) in &d.ambiguous {
            w.open_array(path);
            for step in steps {
                match step {
                    Step::Field(name) => w.push_value(*name),
                    Step::Index(i) => w.push_value(*i),
                };
            }
            w.close();
        }
        w.close();
    }
    w.close();
}

impl<'a> Description<'a> {
    /// The path of the field at hand, with its last step.
    fn name(&mut self, last: Step<'a>) -> String {
        self.path.push(last);
        let text = |step: &Step<'_>| match step {
            Step::Field(name) => (*name).to_string(),
            Step::Index(i) => i.to_string(),
        };
        let path = self.path.iter().map(text).collect::<Vec<_>>().join(".");
        let unclear = |step: &Step<'_>| match step {
            Step::Field(name) => {
                name.contains('.') || !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
            }
            Step::Index(_) => false,
        };
        if self.path.iter().any(unclear) {
            self.ambiguous.push((path.clone(), self.path.clone()));
        }
        self.path.pop();
        path
    }

    fn set(&mut self, last: Step<'a>, v: Val<'_>) {
        let path = self.name(last);
        self.updated.val(&path, v);
    }

    fn document(&mut self, diff: Doc<'a>, depth: usize) {
        if depth > bson::MAX_DEPTH {
            return;
        }
        for e in diff.iter() {
            let inner = e.val.as_doc().unwrap_or(Doc::EMPTY);
            match e.name {
                "d" => {
                    for f in inner.iter() {
                        let path = self.name(Step::Field(f.name));
                        self.removed.push(path);
                    }
                }
                "u" | "i" => inner
                    .iter()
                    .for_each(|f| self.set(Step::Field(f.name), f.val)),
                name => {
                    if let Some(field) = name.strip_prefix('s') {
                        self.inside(Step::Field(field), inner, depth);
                    }
                }
            }
        }
    }

    fn inside(&mut self, step: Step<'a>, diff: Doc<'a>, depth: usize) {
        match diff.first().is_some_and(|e| e.name == "a") {
            true => self.array(step, diff, depth + 1),
            false => {
                self.path.push(step);
                self.document(diff, depth + 1);
                self.path.pop();
            }
        }
    }

    fn array(&mut self, step: Step<'a>, diff: Doc<'a>, depth: usize) {
        if depth > bson::MAX_DEPTH {
            return;
        }
        if let Some(size) = diff.get("l").and_then(|v| v.as_i32()) {
            let path = self.name(step.clone());
            self.truncated.push((path, size));
        }
        self.path.push(step);
        for e in diff.iter() {
            let Some((kind, position)) = e.name.split_at_checked(1) else {
                continue;
            };
            let Ok(index) = position.parse() else {
                continue;
            };
            match kind {
                "u" => self.set(Step::Index(index), e.val),
                "s" => self.inside(
                    Step::Index(index),
                    e.val.as_doc().unwrap_or(Doc::EMPTY),
                    depth,
                ),
                _ => {}
            }
        }
        self.path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(diff: &str) -> String {
        let mut w = Writer::new();
        write(&mut w, bson::json::parse(diff).unwrap().as_doc(), true);
        bson::validate(w.finish().as_bytes()).unwrap().to_string()
    }

    #[test]
    fn a_diff_as_paths() {
        let cases = [
            (
                r#"{"d":{"x":false},"u":{"a":1},"i":{"n":{"m":2}},"sb":{"u":{"c":3},"d":{"e":false}}}"#,
                r#"{"updatedFields":{"a":1,"n":{"m":2},"b.c":3},"removedFields":["x","b.e"],"truncatedArrays":[],"disambiguatedPaths":{}}"#,
            ),
            (
                r#"{"sa":{"a":true,"l":2,"u0":7,"s1":{"u":{"b":1}}}}"#,
                r#"{"updatedFields":{"a.0":7,"a.1.b":1},"removedFields":[],"truncatedArrays":[{"field":"a","newSize":2}],"disambiguatedPaths":{}}"#,
            ),
            (
                r#"{"u":{"x.y":1},"sa":{"a":true,"s0":{"u":{"0":2}}}}"#,
                r#"{"updatedFields":{"x.y":1,"a.0.0":2},"removedFields":[],"truncatedArrays":[],"disambiguatedPaths":{"x.y":["x.y"],"a.0.0":["a",0,"0"]}}"#,
            ),
        ];
        for (diff, want) in cases {
            let want = format!(r#"{{"updateDescription":{want}}}"#);
            let want = bson::json::parse(&want).unwrap();
            assert_eq!(described(diff), want.as_doc().to_string());
        }
    }
}
