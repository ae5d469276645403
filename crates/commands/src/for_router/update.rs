//! What an update makes of a document, for a router that has to know on which shard that belongs:
//! parsed and computed as where documents are stored, without a collection.

use crate::clock::now_millis;
use crate::crud::variables;
use crate::request::collation;
use bson::{Doc, DocBuf, Val};
use errors::Result;
use query::expr::Vars;
use query::filter::Filter;
use query::update::{Update, UpdateCtx};
use std::sync::Arc;

/// An update of one document. Where it and its filter are, the values are as the client wrote them.
pub struct OneUpdate<'a> {
    pub filter: Doc<'a>,
    pub update: Val<'a>,
    pub array_filters: Option<Val<'a>>,
    pub collation: Option<Doc<'a>>,
    pub variables: Option<Doc<'a>>,
    /// The cluster's time, for `$$CLUSTER_TIME`, and before every timestamp that it makes.
    pub cluster_time: u64,
    /// It may run scripts.
    pub scripting: bool,
}

/// The same, parsed.
struct Parsed {
    filter: Filter,
    update: Update,
    vars: Arc<Vars>,
    now_millis: i64,
}

impl OneUpdate<'_> {
    /// What it makes of a document that its filter has found.
    pub fn of(&self, before: Doc<'_>) -> Result<DocBuf> {
        let p = self.parse()?;
        let applied = p.update.apply(before, &p.filter, &self.context(&p))?;
        Ok(applied.map_or_else(|| before.to_buf(), |a| a.doc))
    }

    /// What it inserts where its filter finds nothing.
    pub fn inserted(&self) -> Result<DocBuf> {
        let p = self.parse()?;
        p.update.upsert(&p.filter, &self.context(&p))
    }

    fn parse(&self) -> Result<Parsed> {
        let now_millis = now_millis();
        let mut vars = Vars::new(now_millis);
        vars.set_cluster_time(self.cluster_time);
        let stoppable =
            |vars: &Vars| executor::stoppable(errors::operation::deadline(), self.scripting, vars);
        let collation = collation::given(self.collation)?.flatten();
        let (env, vars) = variables::with_let(collation, self.variables, vars, stoppable)?;
        let filters = self.array_filters.and_then(|v| v.as_array());
        let filters = filters.into_iter().flat_map(|f| f.values());
        let filters: Vec<Doc> = filters.filter_map(|v| v.as_doc()).collect();
        Ok(Parsed {
            filter: Filter::parse(self.filter, &env)?,
            update: Update::parse(self.update, &filters, &env)?,
            vars: stoppable(&vars),
            now_millis,
        })
    }

    fn context<'p>(&self, parsed: &'p Parsed) -> UpdateCtx<'p> {
        let seconds = u64::try_from(parsed.now_millis / 1000).unwrap_or(0);
        let stamp = (seconds << 32 | 1).max(self.cluster_time.saturating_add(1));
        UpdateCtx::new(&parsed.vars, parsed.now_millis, stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    fn run(filter: &str, update: &str, options: &str, before: Option<&str>) -> Result<String> {
        let [filter, update, options] =
            [filter, &format!("{{\"u\":{update}}}"), options].map(|t| json::parse(t).unwrap());
        let one = OneUpdate {
            filter: filter.as_doc(),
            update: update.get("u").unwrap(),
            array_filters: options.get("arrayFilters"),
            collation: options.get("collation").and_then(Val::as_doc),
            variables: options.get("let").and_then(Val::as_doc),
            cluster_time: 7 << 32,
            scripting: false,
        };
        let made = match before {
            Some(before) => one.of(json::parse(before).unwrap().as_doc())?,
            None => one.inserted()?,
        };
        Ok(bson::shell::doc(made.as_doc()))
    }

    #[test]
    fn what_becomes_of_a_document() {
        for (filter, update, options, before, wanted) in [
            (
                "{}",
                r#"{"$set":{"a":2}}"#,
                "{}",
                r#"{"_id":1,"a":1}"#,
                "{ _id: 1, a: 2 }",
            ),
            (
                "{}",
                r#"{"$set":{"a":1}}"#,
                "{}",
                r#"{"_id":1,"a":1}"#,
                "{ _id: 1, a: 1 }",
            ),
            (
                "{}",
                r#"{"b":1}"#,
                "{}",
                r#"{"_id":1,"a":1}"#,
                "{ _id: 1, b: 1 }",
            ),
            (
                r#"{"l":2}"#,
                r#"{"$set":{"l.$":9}}"#,
                "{}",
                r#"{"_id":1,"l":[1,2]}"#,
                "{ _id: 1, l: [ 1, 9 ] }",
            ),
            (
                r#"{"l":"B"}"#,
                r#"{"$set":{"l.$":"x"}}"#,
                r#"{"collation":{"locale":"en","strength":2}}"#,
                r#"{"_id":1,"l":["a","b"]}"#,
                "{ _id: 1, l: [ \"a\", \"x\" ] }",
            ),
            (
                "{}",
                r#"{"$set":{"l.$[e]":0}}"#,
                r#"{"arrayFilters":[{"e":{"$gt":1}}]}"#,
                r#"{"_id":1,"l":[1,2]}"#,
                "{ _id: 1, l: [ 1, 0 ] }",
            ),
            (
                "{}",
                r#"[{"$set":{"a":"$$x"}}]"#,
                r#"{"let":{"x":{"$add":[1,2]}}}"#,
                r#"{"_id":1}"#,
                "{ _id: 1, a: 3 }",
            ),
        ] {
            let made = run(filter, update, options, Some(before)).unwrap();
            assert_eq!(made, wanted, "{filter} {update}");
        }
    }

    #[test]
    fn what_is_inserted() {
        for (filter, update, options, wanted) in [
            (
                r#"{"_id":1,"k":2}"#,
                r#"{"$set":{"a":3}}"#,
                "{}",
                "{ _id: 1, k: 2, a: 3 }",
            ),
            (
                r#"{"_id":1,"k":{"$gt":2}}"#,
                r#"{"$setOnInsert":{"a":3}}"#,
                "{}",
                "{ _id: 1, a: 3 }",
            ),
            (r#"{"_id":1,"k":2}"#, r#"{"a":3}"#, "{}", "{ _id: 1, a: 3 }"),
            (
                r#"{"_id":1}"#,
                r#"[{"$set":{"a":"$$x"}}]"#,
                r#"{"let":{"x":4}}"#,
                "{ _id: 1, a: 4 }",
            ),
        ] {
            let made = run(filter, update, options, None).unwrap();
            assert_eq!(made, wanted, "{filter} {update}");
        }
        let made = run(
            "{}",
            r#"{"$currentDate":{"t":{"$type":"timestamp"}}}"#,
            "{}",
            None,
        )
        .unwrap();
        assert!(
            made.contains("_id: ObjectId(") && made.contains("t: Timestamp("),
            "{made}"
        );
    }

    #[test]
    fn refused() {
        for (update, options, code) in [
            ("1", "{}", 9),
            (r#"{"$nothing":{"a":1}}"#, "{}", 9),
            (r#"{"$set":{"_id":2}}"#, "{}", 66),
            (
                r#"{"$set":{"a":1}}"#,
                r#"{"collation":{"locale":"nowhere"}}"#,
                2,
            ),
            (r#"{"$set":{"a":1}}"#, r#"{"let":{"NOW":1}}"#, 4738901),
            (r#"[{"$out":"x"}]"#, "{}", 72),
        ] {
            let e = run("{}", update, options, Some(r#"{"_id":1}"#)).unwrap_err();
            assert_eq!(e.into_error().code.0, code, "{update} {options}");
        }
    }
}
