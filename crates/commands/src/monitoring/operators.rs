//! Which stages and operators commands were made of: `aggStageCounters` and `operatorCounters` of
//! `serverStatus.metrics`.
//!
//! Counted as they are written, of commands that have run. Invariant: names that MongoDB does not have
//! are not counted, so a client cannot make the tables grow; the walk reads each byte of a command once.

use bson::{Doc, Val, Writer};
use foldhash::HashMap;
use service::Request;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MATCH: [&str; 36] = [
    "$all",
    "$alwaysFalse",
    "$alwaysTrue",
    "$and",
    "$bitsAllClear",
    "$bitsAllSet",
    "$bitsAnyClear",
    "$bitsAnySet",
    "$comment",
    "$elemMatch",
    "$eq",
    "$exists",
    "$expr",
    "$geoIntersects",
    "$geoWithin",
    "$gt",
    "$gte",
    "$in",
    "$jsonSchema",
    "$lt",
    "$lte",
    "$mod",
    "$ne",
    "$near",
    "$nearSphere",
    "$nin",
    "$nor",
    "$not",
    "$or",
    "$regex",
    "$sampleRate",
    "$size",
    "$text",
    "$type",
    "$where",
    "$options",
];

const ACCUMULATORS: [&str; 25] = [
    "$accumulator",
    "$addToSet",
    "$avg",
    "$bottom",
    "$bottomN",
    "$concatArrays",
    "$count",
    "$first",
    "$firstN",
    "$last",
    "$lastN",
    "$max",
    "$maxN",
    "$median",
    "$mergeObjects",
    "$min",
    "$minN",
    "$percentile",
    "$push",
    "$setUnion",
    "$stdDevPop",
    "$stdDevSamp",
    "$sum",
    "$top",
    "$topN",
];

/// Functions of windows that are no accumulators.
const OF_WINDOWS: [&str; 9] = [
    "$covariancePop",
    "$covarianceSamp",
    "$denseRank",
    "$derivative",
    "$documentNumber",
    "$expMovingAvg",
    "$integral",
    "$rank",
    "$shift",
];

struct Counts(HashMap<&'static str, AtomicU64>);

impl Counts {
    fn of(names: impl Iterator<Item = &'static str>) -> Counts {
        Counts(names.map(|name| (name, AtomicU64::new(0))).collect())
    }

    fn add(&self, name: &str) {
        if let Some(count) = self.0.get(name) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn write(&self, w: &mut Writer, name: &str) {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_unstable_by_key(|(name, _)| **name);
        w.open_doc(name);
        for (name, count) in all {
            w.i64(name, count.load(Relaxed) as i64);
        }
        w.close();
    }
}

pub struct OperatorCounters {
    stages: Counts,
    matches: Counts,
    expressions: Counts,
    accumulators: Counts,
    windows: Counts,
}

impl Default for OperatorCounters {
    fn default() -> OperatorCounters {
        let accumulators = || ACCUMULATORS.into_iter();
        OperatorCounters {
            stages: Counts::of(query::pipeline::stage_names()),
            matches: Counts::of(MATCH.into_iter()),
            expressions: Counts::of(query::expr::operator_names()),
            accumulators: Counts::of(accumulators()),
            windows: Counts::of(accumulators().chain(OF_WINDOWS)),
        }
    }
}

impl OperatorCounters {
    /// Counts what a command was made of.
    pub fn see(&self, command: &str, request: &Request<'_>) {
        let body = request.body;
        match command {
            "find" => self.filter_of(body, "filter"),
            "count" | "distinct" | "findAndModify" => self.filter_of(body, "query"),
            "aggregate" => self.pipeline(body.get("pipeline")),
            "update" => self.statements(request, "updates"),
            "delete" => self.statements(request, "deletes"),
            _ => {}
        }
    }

    pub fn write(&self, w: &mut Writer) {
        self.stages.write(w, "aggStageCounters");
        w.open_doc("operatorCounters");
        self.expressions.write(w, "expressions");
        self.accumulators.write(w, "groupAccumulators");
        self.matches.write(w, "match");
        self.windows.write(w, "windowAccumulators");
        w.close();
    }

    fn statements(&self, request: &Request<'_>, name: &str) {
        if let Some(documents) = request.sequence(name) {
            documents.for_each(|d| self.filter_of(d, "q"));
        }
        for d in documents(request.body.get(name)) {
            self.filter_of(d, "q");
        }
    }

    fn filter_of(&self, d: Doc<'_>, name: &str) {
        if let Some(filter) = d.get(name).and_then(Val::as_doc) {
            self.filter(filter);
        }
    }

    fn filter(&self, filter: Doc<'_>) {
        for e in filter {
            if e.name.starts_with('$') {
                self.test(e.name, e.val);
            } else if let Some(tests) = e.val.as_doc() {
                for t in tests.iter().take_while(|t| t.name.starts_with('$')) {
                    self.test(t.name, t.val);
                }
            }
        }
    }

    fn test(&self, name: &str, v: Val<'_>) {
        self.matches.add(name);
        match name {
            "$and" | "$or" | "$nor" => documents(Some(v)).for_each(|d| self.filter(d)),
            "$expr" => self.expression(v),
            "$all" => documents(Some(v)).for_each(|d| self.filter(d)),
            "$not" | "$elemMatch" => {
                if let Some(inner) = v.as_doc() {
                    self.filter(inner);
                }
            }
            _ => {}
        }
    }

    fn expression(&self, v: Val<'_>) {
        if let Some(items) = v.as_array() {
            items.values().for_each(|v| self.expression(v));
        }
        let Some(d) = v.as_doc() else { return };
        for e in d {
            if e.name.starts_with('$') {
                self.expressions.add(e.name);
            }
            if e.name != "$literal" {
                self.expression(e.val);
            }
        }
    }

    fn pipeline(&self, stages: Option<Val<'_>>) {
        for stage in documents(stages) {
            if let Some(e) = stage.first() {
                self.stages.add(e.name);
                self.stage(e.name, e.val);
            }
        }
    }

    fn stage(&self, name: &str, spec: Val<'_>) {
        let fields = spec.as_doc().unwrap_or(Doc::EMPTY);
        match name {
            "$match" => self.filter(fields),
            "$lookup" | "$unionWith" => self.pipeline(fields.get("pipeline")),
            "$facet" => fields.iter().for_each(|e| self.pipeline(Some(e.val))),
            "$geoNear" => self.filter_of(fields, "query"),
            "$graphLookup" => self.filter_of(fields, "restrictSearchWithMatch"),
            "$group" => {
                self.expression(fields.get("_id").unwrap_or(Val::NULL));
                let outputs = fields.iter().filter(|e| e.name != "_id");
                outputs.for_each(|e| self.output(&self.accumulators, e.val));
            }
            "$bucket" | "$bucketAuto" => self.outputs(&self.accumulators, fields),
            "$setWindowFields" => self.outputs(&self.windows, fields),
            "$project" | "$addFields" | "$set" | "$replaceRoot" | "$replaceWith" | "$redact"
            | "$sortByCount" | "$documents" | "$fill" => self.expression(spec),
            _ => {}
        }
    }

    fn outputs(&self, counts: &Counts, fields: Doc<'_>) {
        let output = fields.get("output").and_then(Val::as_doc);
        let output = output.unwrap_or(Doc::EMPTY);
        output.iter().for_each(|e| self.output(counts, e.val));
    }

    /// One field that is accumulated.
    fn output(&self, counts: &Counts, v: Val<'_>) {
        for e in v.as_doc().unwrap_or(Doc::EMPTY) {
            counts.add(e.name);
            self.expression(e.val);
        }
    }
}

fn documents(list: Option<Val<'_>>) -> impl Iterator<Item = Doc<'_>> {
    let list = list.and_then(Val::as_array).unwrap_or(Doc::EMPTY);
    list.values().filter_map(Val::as_doc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn counted(all: &OperatorCounters) -> Vec<(String, i64)> {
        let mut w = Writer::new();
        all.write(&mut w);
        let mut out = Vec::new();
        let doc = w.finish();
        for part in ["aggStageCounters", "operatorCounters"] {
            walk(part, doc.get(part).unwrap().as_doc().unwrap(), &mut out);
        }
        out
    }

    fn walk(path: &str, d: Doc<'_>, out: &mut Vec<(String, i64)>) {
        for e in d {
            match e.val.as_doc() {
                Some(inner) => walk(e.name, inner, out),
                None if e.val.to_f64() == Some(0.0) => {}
                None => out.push((format!("{path}.{}", e.name), e.val.to_i64_exact().unwrap())),
            }
        }
    }

    #[test]
    fn what_a_pipeline_is_made_of() {
        let all = OperatorCounters::default();
        let inner = bson::array![doc! {"$match": doc! {"$expr": doc! {"$gt": 1}}}];
        let stages = bson::array![
            doc! {"$match": doc! {"a": doc! {"$not": doc! {"$gt": 1}}, "$nope": 1, "b": doc! {"x": doc! {"$eq": 1}}}},
            doc! {"$group": doc! {"_id": doc! {"$abs": "$a"}, "n": doc! {"$sum": doc! {"$literal": doc! {"$abs": 1}}}}},
            doc! {"$unionWith": doc! {"coll": "c", "pipeline": inner}},
            doc! {"$nonsense": 1}
        ];
        let body = doc! {"aggregate": "c", "pipeline": stages};
        all.see("aggregate", &Request::own(body.as_doc()));
        let want = [
            ("aggStageCounters.$group", 1),
            ("aggStageCounters.$match", 2),
            ("aggStageCounters.$unionWith", 1),
            ("expressions.$abs", 1),
            ("expressions.$gt", 1),
            ("expressions.$literal", 1),
            ("groupAccumulators.$sum", 1),
            ("match.$expr", 1),
            ("match.$gt", 1),
            ("match.$not", 1),
        ];
        let want: Vec<_> = want.map(|(n, c)| (n.to_string(), c)).into();
        assert_eq!(counted(&all), want);
    }
}
