//! Orphans hidden from a router's command: its filters are joined with one that holds for documents
//! outside of the orphan ranges. A filter that says where its documents are, as most do, needs that
//! only where such a range lies there.
//!
//! Invariant: no filter that runs finds an orphan. A filter that cannot be parsed may find anything.

use bson::{Doc, DocBuf, Val, Writer};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use service::Request;
use sharding::{Ownership, PlaceRange, Series, ShardKey, targeting};

pub(super) struct Hider<'k> {
    pub known: &'k Ownership,
    /// The collection compares strings in another way than by their bytes.
    pub collated: bool,
    /// The command names the measurements of the buckets that are known.
    pub series: Option<Series>,
}

impl Hider<'_> {
    /// The command in place of the one that came. `None`: that finds none.
    pub fn hide(&self, command: &str, request: &Request<'_>) -> Option<DocBuf> {
        let field = match command {
            "find" => "filter",
            "count" | "distinct" | "findAndModify" | "mapReduce" => "query",
            "aggregate" => return self.hide_in_pipeline(request.body),
            "update" => return self.hide_in_statements("updates", request),
            "delete" => return self.hide_in_statements("deletes", request),
            _ => return None,
        };
        let filter = request.body.get(field).and_then(Val::as_doc);
        let shown = self.shown(filter, request.body)?;
        let mut w = Writer::with_capacity(request.body.len() + shown.as_bytes().len() + 64);
        for e in request.body.iter().filter(|e| e.name != field) {
            w.val(e.name, e.val);
        }
        w.doc(field, both(filter, &shown).as_doc());
        Some(w.finish())
    }

    /// A filter that leaves out orphans, for a filter and the options beside it.
    fn shown(&self, filter: Option<Doc<'_>>, options: Doc<'_>) -> Option<DocBuf> {
        let is_given = |name| {
            let given = options.get(name).and_then(Val::as_doc);
            given.is_some_and(|d| !d.is_empty())
        };
        let unknown = self.collated || ["collation", "let", "c"].into_iter().any(is_given);
        let parsed = filter.filter(|_| !unknown);
        let parsed = parsed.and_then(|f| Filter::parse(f, &ParseEnv::new()).ok());
        let ranges = match parsed {
            Some(filter) => targeting::ranges(&filter, self.key(), &Vars::new(0)),
            None => vec![PlaceRange::all()],
        };
        match &self.series {
            Some(series) => series.shown_among(self.known, &ranges),
            None => self.known.shown_among(&ranges),
        }
    }

    /// The shard key by the names that filters use.
    fn key(&self) -> &ShardKey {
        self.series.as_ref().map_or(&self.known.key, Series::key)
    }

    fn hide_in_statements(&self, field: &str, request: &Request<'_>) -> Option<DocBuf> {
        let inline = request.body.get(field).and_then(Val::as_array);
        let statements: Vec<Doc<'_>> = match (inline, request.sequence(field)) {
            (_, Some(docs)) => docs.collect(),
            (Some(list), None) => list.values().filter_map(Val::as_doc).collect(),
            (None, None) => Vec::new(),
        };
        let variables = request.body.get("let").and_then(Val::as_doc);
        let collated = variables.is_some_and(|v| !v.is_empty()) || self.collated;
        let hider = Hider {
            known: self.known,
            collated,
            series: self.series.clone(),
        };
        let shown = |s: &Doc<'_>| hider.shown(s.get("q").and_then(Val::as_doc), *s);
        let shown: Vec<Option<DocBuf>> = statements.iter().map(shown).collect();
        if shown.iter().all(Option::is_none) {
            return None;
        }
        let mut w = Writer::new();
        for e in request.body.iter().filter(|e| e.name != field) {
            w.val(e.name, e.val);
        }
        w.open_array(field);
        for (statement, shown) in statements.into_iter().zip(shown) {
            match shown {
                None => w.push(statement.as_val()),
                Some(shown) => w.push(with_shown(statement, &shown).as_doc().as_val()),
            };
        }
        w.close();
        Some(w.finish())
    }

    fn hide_in_pipeline(&self, body: Doc<'_>) -> Option<DocBuf> {
        let stages = body.get("pipeline").and_then(Val::as_array);
        let stages = stages.unwrap_or(Doc::EMPTY);
        let first = stages.values().next().and_then(Val::as_doc);
        let first = first.and_then(Doc::first);
        let filter = match first {
            Some(e) if e.name == "$match" => e.val.as_doc(),
            Some(e) if e.name == "$geoNear" => {
                e.val.as_doc().and_then(|near| near.get("query")?.as_doc())
            }
            _ => None,
        };
        let shown = self.shown(filter, body)?;
        let mut w = Writer::new();
        for e in body {
            match e.name {
                "pipeline" => pipeline(&mut w, stages, &shown),
                name => {
                    w.val(name, e.val);
                }
            }
        }
        Some(w.finish())
    }
}

/// Both `filter` and `shown`.
fn both(filter: Option<Doc<'_>>, shown: &DocBuf) -> DocBuf {
    let mut w = Writer::new();
    w.open_array("$and");
    if let Some(filter) = filter.filter(|f| !f.is_empty()) {
        w.push(filter.as_val());
    }
    w.push(shown.as_doc().as_val());
    w.finish()
}

/// An update or a delete without orphans.
fn with_shown(statement: Doc<'_>, shown: &DocBuf) -> DocBuf {
    let mut w = Writer::new();
    for e in statement {
        match e.name {
            "q" => w.doc("q", both(e.val.as_doc(), shown).as_doc()),
            name => w.val(name, e.val),
        };
    }
    w.finish()
}

/// Hides orphans from a pipeline: in its first stage where that looks for documents itself, before
/// it otherwise.
fn pipeline(w: &mut Writer, stages: Doc<'_>, shown: &DocBuf) {
    w.open_array("pipeline");
    let first = stages
        .values()
        .next()
        .and_then(Val::as_doc)
        .and_then(Doc::first);
    let taken = match first {
        Some(e) if e.name == "$match" => {
            let mut m = Writer::new();
            m.doc("$match", both(e.val.as_doc(), shown).as_doc());
            w.push(m.finish().as_doc().as_val());
            1
        }
        Some(e) if e.name == "$geoNear" => {
            let near = e.val.as_doc().unwrap_or(Doc::EMPTY);
            let mut g = Writer::new();
            g.open_doc("$geoNear");
            for f in near.iter().filter(|f| f.name != "query") {
                g.val(f.name, f.val);
            }
            let query = near.get("query").and_then(Val::as_doc);
            g.doc("query", both(query, shown).as_doc());
            w.push(g.finish().as_doc().as_val());
            1
        }
        // A search has to find its documents first.
        Some(e) if matches!(e.name, "$search" | "$searchMeta" | "$vectorSearch") => {
            let mut s = Writer::new();
            s.open_doc(e.name)
                .extend(e.val.as_doc().unwrap_or(Doc::EMPTY));
            s.doc(query::pipeline::search::SHOWN, shown.as_doc())
                .close();
            w.push(s.finish().as_doc().as_val());
            1
        }
        // It tells of the collection, not of its documents.
        Some(e)
            if matches!(
                e.name,
                "$collStats"
                    | "$indexStats"
                    | "$planCacheStats"
                    | "$changeStream"
                    | "$listSearchIndexes"
            ) =>
        {
            0
        }
        _ => {
            let mut m = Writer::new();
            m.doc("$match", shown.as_doc());
            w.push(m.finish().as_doc().as_val());
            0
        }
    };
    for stage in stages.values().skip(taken) {
        w.push(stage);
    }
    w.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{ObjectId, array, doc};
    use sharding::{ShardKey, Version};

    /// Of a collection by `a`, of which what lies from 5 to 8 may be orphans.
    fn known() -> Ownership {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let place = |n: i32| key.place_of(doc! {"a": n}.as_doc()).unwrap();
        let gone = PlaceRange {
            low: place(5),
            high: Some(place(8)),
        };
        let version = Version {
            epoch: ObjectId([7; 12]),
            timestamp: 5,
            placement: Version::placement_of(1, 0),
        };
        Ownership::nothing("d.c", key, version).receive(gone)
    }

    #[test]
    fn filters_of_every_command_are_joined() {
        let known = known();
        let shown = known.shown();
        let hider = Hider {
            known: &known,
            collated: false,
            series: None,
        };
        let joined = |filter: Option<DocBuf>| both(filter.as_ref().map(DocBuf::as_doc), &shown);
        for (command, body, wanted) in [
            (
                "find",
                doc! {"find": "c", "limit": 1},
                Some(doc! {"find": "c", "limit": 1, "filter": joined(None)}),
            ),
            (
                "count",
                doc! {"count": "c", "query": doc! {"b": 1}},
                Some(doc! {"count": "c", "query": joined(Some(doc! {"b": 1}))}),
            ),
            (
                "delete",
                doc! {"delete": "c", "deletes": array![doc! {"q": doc! {}, "limit": 0}]},
                Some(doc! {"delete": "c", "deletes": array![doc! {"q": joined(None), "limit": 0}]}),
            ),
            (
                "aggregate",
                doc! {"aggregate": "c", "pipeline": array![doc! {"$group": 1}]},
                Some(
                    doc! {"aggregate": "c", "pipeline": array![doc! {"$match": &shown}, doc! {"$group": 1}]},
                ),
            ),
            (
                "aggregate",
                doc! {"aggregate": "c", "pipeline": array![doc! {"$search": doc! {"a": 1}}]},
                Some(doc! {"aggregate": "c", "pipeline": array![
                    doc! {"$search": doc! {"a": 1, "$_pandoShown": &shown}},
                ]}),
            ),
            ("insert", doc! {"insert": "c"}, None),
        ] {
            assert_eq!(
                hider.hide(command, &Request::own(body.as_doc())),
                wanted,
                "{command}"
            );
        }
    }

    #[test]
    fn who_says_where_pays_only_there() {
        let known = known();
        let hides = |collated: bool, command: &str, body: DocBuf| {
            let hider = Hider {
                known: &known,
                collated,
                series: None,
            };
            hider.hide(command, &Request::own(body.as_doc())).is_some()
        };
        let find = |filter: DocBuf| doc! {"find": "c", "filter": filter};
        assert!(!hides(false, "find", find(doc! {"a": 4})));
        assert!(hides(false, "find", find(doc! {"a": 5})));
        assert!(!hides(false, "find", find(doc! {"a": 8})));
        assert!(hides(false, "find", find(doc! {"a": doc! {"$gt": 7}})));
        assert!(hides(false, "find", find(doc! {"$unknown": 4})));
        assert!(hides(true, "find", find(doc! {"a": 4})));
        let collation = doc! {"locale": "fr"};
        assert!(hides(
            false,
            "find",
            doc! {"find": "c", "filter": doc! {"a": 4}, "collation": &collation}
        ));
        let two = |b: i32| {
            let of = |a: i32| doc! {"q": doc! {"a": a}, "limit": 1};
            doc! {"delete": "c", "deletes": array![of(1), of(b)]}
        };
        assert!(!hides(false, "delete", two(2)));
        assert!(hides(false, "delete", two(6)));
        let matching = |a: i32| {
            let first = doc! {"$match": doc! {"a": a}};
            doc! {"aggregate": "c", "pipeline": array![first, doc! {"$limit": 1}]}
        };
        assert!(!hides(false, "aggregate", matching(1)));
        assert!(hides(false, "aggregate", matching(6)));
    }
}
