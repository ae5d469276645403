//! Random queries of a collection, and which of its indexes bear on each.

use super::schema::{
    ELEMENTS, FIELDS, Pattern, RandomCollection, Rank, ValueSpread, document, field, one_in, pick,
};
use crate::random::Rng;
use bson::{DocBuf, Value, Writer, doc, shell};

/// A condition, and the fields by which an index can narrow it.
#[derive(Clone)]
pub struct Condition {
    pub filter: DocBuf,
    fields: Vec<usize>,
}

pub struct RandomQuery {
    pub condition: Condition,
    /// Where it is an `$or` and nothing else: each branch, which an index of its own can serve.
    branches: Vec<Condition>,
    pub sort: Pattern,
    pub limit: Option<i32>,
    pub skip: i32,
}

/// An index that bears on a query. One that does not narrow gives the order, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bearing<'a> {
    pub index: &'a Pattern,
    pub narrows: bool,
}

impl Condition {
    fn test(schema: &RandomCollection, r: &mut Rng) -> Condition {
        let at = field(r);
        let v = schema.value(r, at);
        let test = match r.below(10) {
            0 => doc! {"$gte": v}.into(),
            1 => doc! {"$lt": v}.into(),
            2 => doc! {"$gt": v, "$lte": schema.value(r, at)}.into(),
            3 => {
                let mut all = Writer::new_array();
                for _ in 0..pick(r, &[2, 5, 100]) {
                    all.push_value(schema.value(r, at));
                }
                doc! {"$in": all.finish_array()}.into()
            }
            4 if schema.kinds[at] == ValueSpread::Array => {
                let below = r.below(ELEMENTS) as i64;
                doc! {"$elemMatch": doc! {"$gte": v, "$lt": below}}.into()
            }
            4 if schema.kinds[at] == ValueSpread::Text => {
                let begins = v.as_val().as_str().and_then(|t| t.get(..2));
                doc! {"$regex": format!("^{}", begins.unwrap_or("a"))}.into()
            }
            5 if one_in(r, 3) => doc! {"$ne": v}.into(),
            _ => v,
        };
        let mut w = Writer::new();
        w.value(FIELDS[at], test);
        Condition {
            filter: w.finish(),
            fields: vec![at],
        }
    }

    /// One to three tests.
    fn tests(schema: &RandomCollection, r: &mut Rng) -> Condition {
        let all = (0..1 + r.below(3)).map(|_| Condition::test(schema, r));
        Condition::all_of(all.collect())
    }

    /// `{a: …, b: …}`, or `$and` where a field stands twice.
    fn all_of(mut all: Vec<Condition>) -> Condition {
        if all.len() == 1 {
            return all.remove(0);
        }
        let mut names: Vec<String> = Vec::new();
        for c in &all {
            names.extend(c.filter.as_doc().iter().map(|e| e.name.to_string()));
        }
        let many = names.len();
        names.sort();
        names.dedup();
        let mut w = Writer::new();
        if names.len() == many {
            for c in &all {
                w.extend(c.filter.as_doc());
            }
        } else {
            w.value("$and", listed(&all));
        }
        Condition {
            filter: w.finish(),
            fields: all.into_iter().flat_map(|c| c.fields).collect(),
        }
    }
}

fn listed(all: &[Condition]) -> Value {
    let mut w = Writer::new_array();
    for c in all {
        w.push_value(&c.filter);
    }
    w.finish_array()
}

impl RandomQuery {
    pub fn new(schema: &RandomCollection, r: &mut Rng) -> RandomQuery {
        let mut condition = Condition::tests(schema, r);
        let mut branches = Vec::new();
        if one_in(r, 8) {
            let many = 2 + r.below(2);
            branches = (0..many).map(|_| Condition::tests(schema, r)).collect();
            let or = Condition {
                filter: doc! {"$or": listed(&branches)},
                // No single index narrows by fields of branches.
                fields: Vec::new(),
            };
            condition = match one_in(r, 2) {
                true => or,
                false => {
                    branches.clear();
                    Condition::all_of(vec![condition, or])
                }
            };
        }
        let sort = match r.below(5) {
            0 | 1 => order(schema, r),
            _ => Pattern::new(),
        };
        RandomQuery {
            condition,
            branches,
            sort,
            limit: one_in(r, 2).then(|| pick(r, &[1, 1, 10, 50, 200])),
            skip: if one_in(r, 8) { r.below(50) as i32 } else { 0 },
        }
    }

    /// The indexes that begin with a field of the condition, and those that begin with that of the order.
    pub fn bearing<'a>(&self, schema: &'a RandomCollection) -> Vec<Bearing<'a>> {
        let ordered = self.sort.first().map(|(f, _)| *f);
        bearing(schema, &self.condition.fields, ordered)
    }

    /// Each branch of an `$or` as a query of its own, where all of them are read and an index bears on each.
    pub fn parts(&self, schema: &RandomCollection) -> Vec<RandomQuery> {
        let cut = self.limit.is_some() || self.skip > 0;
        let served = |c: &Condition| !bearing(schema, &c.fields, None).is_empty();
        if cut || !self.branches.iter().all(served) {
            return Vec::new();
        }
        let whole = |c: &Condition| RandomQuery {
            condition: c.clone(),
            branches: Vec::new(),
            sort: Pattern::new(),
            limit: None,
            skip: 0,
        };
        self.branches.iter().map(whole).collect()
    }

    /// `{ a: 1 }, sort { b: 1 }, limit 10`, without the rest of long lists.
    pub fn text(&self) -> String {
        let mut told = brief(&shell::doc(self.condition.filter.as_doc()));
        if !self.sort.is_empty() {
            told.push_str(&format!(
                ", sort {}",
                shell::doc(document(&self.sort).as_doc())
            ));
        }
        if let Some(limit) = self.limit {
            told.push_str(&format!(", limit {limit}"));
        }
        if self.skip > 0 {
            told.push_str(&format!(", skip {}", self.skip));
        }
        told
    }

    /// Where a document stands in the order.
    pub fn ranks(&self, schema: &RandomCollection, id: u64) -> Vec<Rank> {
        let row = schema.row(id);
        let rank = |(f, direction): &(usize, i32)| row[*f].rank(*direction);
        self.sort.iter().map(rank).collect()
    }
}

/// Of lists in a text of a filter the first few values, and how many there are.
fn brief(filter: &str) -> String {
    const BEGINS: &str = "$in: [ ";
    let mut parts = filter.split(BEGINS);
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (list, rest) = part.split_once(" ]").unwrap_or((part, ""));
        let values: Vec<&str> = list.split(", ").collect();
        out.push_str(BEGINS);
        match values.as_slice() {
            [a, b, c, _, _, _, ..] => {
                out.push_str(&format!("{a}, {b}, {c}, … {} values", values.len()));
            }
            _ => out.push_str(list),
        }
        out.push_str(" ]");
        out.push_str(rest);
    }
    out
}

fn bearing<'a>(
    schema: &'a RandomCollection,
    fields: &[usize],
    ordered: Option<usize>,
) -> Vec<Bearing<'a>> {
    let told = |index: &'a Pattern| {
        let first = index.first()?.0;
        let narrows = fields.contains(&first);
        (narrows || ordered == Some(first)).then_some(Bearing { index, narrows })
    };
    schema.indexes.iter().filter_map(told).collect()
}

/// One field, sometimes two, of which at most one holds arrays.
fn order(schema: &RandomCollection, r: &mut Rng) -> Pattern {
    let mut by = vec![(field(r), pick(r, &[1, -1]))];
    let (first, second) = (by[0].0, field(r));
    let arrays = schema.is_array(first) && schema.is_array(second);
    if one_in(r, 3) && second != first && !arrays {
        by.push((second, pick(r, &[1, -1])));
    }
    by
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many() -> Vec<(RandomCollection, RandomQuery)> {
        (0..40)
            .flat_map(|n| {
                let schema = || RandomCollection::new(1, n, 2000);
                let mut r = schema().queries();
                let queries = (0..50).map(|_| RandomQuery::new(&schema(), &mut r));
                queries.map(|q| (schema(), q)).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn queries_have_all_forms() {
        let all: Vec<RandomQuery> = many().into_iter().map(|(_, q)| q).collect();
        let texts: Vec<String> = all.iter().map(|q| q.text()).collect();
        for word in [
            "$gte",
            "$lt:",
            "$lte",
            "$in",
            "$elemMatch",
            "$regex",
            "$ne",
            "$or",
            "$and",
            "null",
            "limit 1,",
            "limit 200",
            "skip",
        ] {
            assert!(texts.iter().any(|t| t.contains(word)), "{word}");
        }
        for fields in 0..=2 {
            assert!(all.iter().any(|q| q.sort.len() == fields));
        }
        let again: Vec<String> = many().iter().map(|(_, q)| q.text()).collect();
        assert_eq!(texts, again);
        assert!(texts.iter().any(|t| t.contains("… 100 values ]")));
        assert!(texts.iter().all(|t| t.len() < 800), "a long list");
        assert_eq!(
            brief("{ a: { $in: [ 1, 2 ] }, b: 3 }"),
            "{ a: { $in: [ 1, 2 ] }, b: 3 }"
        );
    }

    #[test]
    fn the_indexes_that_bear_on_a_query_begin_with_one_of_its_fields() {
        let mut schema = RandomCollection::new(1, 0, 100);
        schema.indexes = vec![vec![(0, 1), (1, 1)], vec![(1, -1)], vec![(2, 1), (0, 1)]];
        let condition = |fields: &[usize]| Condition {
            filter: doc! {},
            fields: fields.to_vec(),
        };
        let mut q = RandomQuery {
            condition: condition(&[0, 3]),
            branches: Vec::new(),
            sort: vec![(1, 1), (2, 1)],
            limit: None,
            skip: 0,
        };
        let bearing: Vec<_> = q.bearing(&schema);
        let told: Vec<_> = bearing.iter().map(|b| (b.index[0].0, b.narrows)).collect();
        assert_eq!(told, [(0, true), (1, false)]);
        assert!(q.parts(&schema).is_empty());
        // A branch without an index makes a scan of all.
        q.branches = vec![condition(&[0]), condition(&[2])];
        assert_eq!(q.parts(&schema).len(), 2);
        q.branches.push(condition(&[5]));
        assert!(q.parts(&schema).is_empty());
        q.branches.pop();
        q.limit = Some(1);
        assert!(q.parts(&schema).is_empty());
    }
}
