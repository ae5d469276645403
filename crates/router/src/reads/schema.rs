//! `pandoSchema`: of a sharded collection, what its shards say of their parts, made one.
//!
//! Invariant: each shard looks at as many documents as its part of all is, so that the shares of fields and
//! types are those of a sample of the whole.

use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use bson::{Doc, DocBuf, Val, Value, Writer, array};
use cluster_view::Outcome;
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::reply::sound;
use errors::err;
use std::sync::Arc;

const SAMPLE: i64 = 1000;

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    router.cluster.agree(&ns, |placement| match placement {
        Some(placement @ Placement::Unsharded(Unsharded { shard, .. })) => {
            router.send(command, placement, shard, &command.whole(), &[])
        }
        Some(placement @ Placement::Sharded(table)) => {
            let shards: Vec<Arc<str>> = table.shards().cloned().collect();
            of_shards(router, command, placement, &shards)
        }
        None => Err(err!(NamespaceNotFound, "Collection '{ns}' does not exist.").into()),
    })
}

fn of_shards(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    shards: &[Arc<str>],
) -> Outcome<DocBuf> {
    let ask = |samples: &[(Arc<str>, i64)]| -> Outcome<Vec<DocBuf>> {
        let each: Vec<_> = samples
            .iter()
            .map(|(shard, n)| {
                let mut w = command.without(&["sampleSize"]);
                w.int("sampleSize", *n);
                (shard.clone(), w.finish())
            })
            .collect();
        let replies = router.cluster.scatter(placement, &each)?;
        replies.into_iter().map(sound).collect()
    };
    let first: Vec<_> = shards.iter().map(|s| (s.clone(), 1)).collect();
    let counts: Vec<i64> = ask(&first)?
        .iter()
        .map(|r| number(r.as_doc(), "documents"))
        .collect();
    let wanted = command.int("sampleSize").unwrap_or(SAMPLE);
    let parts = parts(wanted, &counts);
    let samples: Vec<_> = shards
        .iter()
        .cloned()
        .zip(parts)
        .filter(|(_, n)| *n > 0)
        .collect();
    // Of an empty collection any shard says that there is nothing.
    let samples = if samples.is_empty() { first } else { samples };
    let replies = ask(&samples)?;
    let mut w = Writer::new();
    w.str("ns", &command.namespace()?);
    merge(&mut w, &replies);
    Ok(finish(w, &replies))
}

/// How many documents each shard looks at.
fn parts(wanted: i64, counts: &[i64]) -> Vec<i64> {
    let all: i128 = counts.iter().map(|n| i128::from(*n)).sum();
    let part = |n: &i64| {
        let all = all.max(1);
        // Rounded up: a shard that has something looks at something.
        let part = (i128::from(wanted) * i128::from(*n) + all - 1) / all;
        i64::try_from(part).unwrap_or(i64::MAX)
    };
    counts.iter().map(part).collect()
}

fn number(d: Doc<'_>, field: &str) -> i64 {
    d.get(field).and_then(Val::to_i64_exact).unwrap_or(0)
}

/// A field over all shards.
struct Field {
    path: String,
    documents: i64,
    types: Vec<(String, i64)>,
    examples: Vec<Value>,
    /// Least, most, and all elements of its arrays.
    elements: Option<(i64, i64, f64)>,
    indexes: Value,
}

impl Field {
    fn add(&mut self, told: Doc<'_>) {
        self.documents += number(told, "documents");
        let mut arrays = 0;
        for t in list(told, "types").filter_map(Val::as_doc) {
            let name = t.get("type").and_then(Val::as_str).unwrap_or("");
            let n = number(t, "count");
            arrays += if name == "array" { n } else { 0 };
            match self.types.iter_mut().find(|(of, _)| of == name) {
                Some((_, sum)) => *sum += n,
                None => self.types.push((name.into(), n)),
            }
        }
        let most = self.examples.len().max(list(told, "examples").count());
        for example in list(told, "examples") {
            let is_new = self.examples.iter().all(|e| e.as_val() != example);
            if is_new && self.examples.len() < most {
                self.examples.push(example.to_value());
            }
        }
        if let Some(d) = told.get("elements").and_then(Val::as_doc) {
            let average = d.get("average").and_then(Val::to_f64).unwrap_or(0.0);
            let sum = average * arrays as f64;
            let (least, most) = (number(d, "least"), number(d, "most"));
            self.elements = Some(match self.elements {
                None => (least, most, sum),
                Some((l, m, s)) => (l.min(least), m.max(most), s + sum),
            });
        }
    }

    fn write(&mut self, w: &mut Writer, sampled: i64) {
        w.open_doc("")
            .str("path", &self.path)
            .int("documents", self.documents)
            .f64("share", share(self.documents, sampled))
            .open_array("types");
        let values = self.types.iter().map(|t| t.1).sum();
        self.types.sort_by_key(|t| std::cmp::Reverse(t.1));
        for (name, n) in &self.types {
            w.open_doc("")
                .str("type", name)
                .int("count", *n)
                .f64("share", share(*n, values))
                .close();
        }
        w.close().open_array("examples");
        for e in &self.examples {
            w.push(e.as_val());
        }
        w.close();
        if let Some((least, most, sum)) = self.elements {
            let arrays = self.types.iter().find(|(t, _)| t == "array");
            let average = sum / arrays.map_or(1, |(_, n)| *n).max(1) as f64;
            w.open_doc("elements")
                .int("least", least)
                .int("most", most)
                .f64("average", (average * 100.0).round() / 100.0)
                .close();
        }
        w.val("indexes", self.indexes.as_val()).close();
    }
}

fn list<'d>(d: Doc<'d>, field: &str) -> impl Iterator<Item = Val<'d>> + use<'d> {
    let all = d.get(field).and_then(Val::as_array);
    all.into_iter().flat_map(Doc::values)
}

/// A share of a whole, to four digits.
fn share(n: i64, of: i64) -> f64 {
    (n as f64 / of.max(1) as f64 * 10_000.0).round() / 10_000.0
}

fn merge(w: &mut Writer, replies: &[DocBuf]) {
    let mut fields: Vec<Field> = Vec::new();
    let told = replies.iter().flat_map(|r| list(r.as_doc(), "fields"));
    for told in told.filter_map(Val::as_doc) {
        let path = told.get("path").and_then(Val::as_str).unwrap_or("");
        let at = match fields.iter().position(|f| f.path == path) {
            Some(at) => at,
            None => {
                fields.push(Field {
                    path: path.into(),
                    documents: 0,
                    types: Vec::new(),
                    examples: Vec::new(),
                    elements: None,
                    indexes: told.get("indexes").map_or_else(|| array![], Val::to_value),
                });
                fields.len() - 1
            }
        };
        if let Some(field) = fields.get_mut(at) {
            field.add(told);
        }
    }
    let sum = |name: &str| {
        replies
            .iter()
            .map(|r| number(r.as_doc(), name))
            .sum::<i64>()
    };
    let is = |r: &DocBuf, name: &str| r.get(name).is_some_and(Val::truthy);
    let sampled = sum("sampled");
    w.int("documents", sum("documents"))
        .int("sampled", sampled)
        .bool("complete", replies.iter().all(|r| is(r, "complete")))
        .bool("truncated", replies.iter().any(|r| is(r, "truncated")))
        .open_array("fields");
    for field in &mut fields {
        field.write(w, sampled);
    }
    w.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn shards_look_at_their_part_of_all() {
        assert_eq!(parts(100, &[30, 10]), [75, 25]);
        assert_eq!(parts(100, &[1, 0, 999_999]), [1, 0, 100]);
        assert_eq!(parts(i64::MAX, &[5, 5]).len(), 2);
        assert_eq!(parts(100, &[0, 0]), [0, 0]);
    }

    #[test]
    fn fields_of_shards_become_one() {
        let of = |n: i64, name: &str, least: i64, average: f64| {
            let types = array![
                doc! {"type": name, "count": n, "share": 0.5},
                doc! {"type": "array", "count": n, "share": 0.5}
            ];
            let elements = doc! {"least": least, "most": least + 1, "average": average};
            let field = doc! {
                "path": "a", "documents": n, "share": 1.0, "types": types, "examples": array![n],
                "elements": elements, "indexes": array![doc! {"name": "a_1", "position": 0}]
            };
            doc! {"documents": 10 * n, "sampled": 2 * n, "complete": false, "truncated": false, "fields": array![field]}
        };
        let mut w = Writer::new();
        merge(&mut w, &[of(3, "int", 2, 2.0), of(1, "string", 0, 6.0)]);
        let whole = w.finish();
        let expected = doc! {
            "path": "a", "documents": 4, "share": 0.5,
            "types": array![
                doc! {"type": "array", "count": 4, "share": 0.5},
                doc! {"type": "int", "count": 3, "share": 0.375},
                doc! {"type": "string", "count": 1, "share": 0.125}
            ],
            "examples": array![3_i64],
            "elements": doc! {"least": 0, "most": 3, "average": 3.0},
            "indexes": array![doc! {"name": "a_1", "position": 0}]
        };
        let fields = whole.get("fields").and_then(Val::as_array).unwrap();
        assert_eq!(
            fields
                .values()
                .next()
                .unwrap()
                .as_doc()
                .unwrap()
                .to_string(),
            expected.as_doc().to_string()
        );
        assert_eq!(
            (
                number(whole.as_doc(), "documents"),
                number(whole.as_doc(), "sampled")
            ),
            (40, 8)
        );
    }
}
