//! The planner's request, and its plan.

use crate::distinct::{Distinct, DistinctRequest};
use crate::interval::Interval;
use crate::skip::SkipBounds;
use bson::{Doc, DocBuf, Val, Value, key};
use query::expr::Vars;
use query::filter::{Filter, NearTest, Node, Test, TextSearch};
use query::index_keys::{KeyField, KeyPattern};
use query::path::FieldPath;
use query::projection::Projection;
use query::sort::SortPattern;
use std::sync::Arc;

/// An index as the planner sees it. `_id_` is among them only where records do not lie under their
/// `_id` ([`PlanRequest::clustered`]).
#[derive(Clone, Debug)]
pub struct IndexInfo {
    pub id: u32,
    pub name: String,
    pub key: KeyPattern,
    pub unique: bool,
    pub sparse: bool,
    pub partial: Option<Arc<Filter>>,
    pub hidden: bool,
    /// Bit i: field i has held an array.
    pub multikey: u64,
    pub ready: bool,
}

/// What the client said about the index to use.
#[derive(Clone, Debug)]
pub enum Hint {
    Name(String),
    Key(DocBuf),
    /// `{$natural: ±1}`: the records themselves, forward or backward.
    Natural {
        reverse: bool,
    },
    /// Of query settings: what to choose from, as long as something of it serves the query.
    Among(Vec<Hint>),
}

impl Hint {
    /// Whether it names this index.
    pub fn names(&self, index: &IndexInfo) -> bool {
        match self {
            Hint::Name(n) => index.name == *n,
            Hint::Key(k) => crate::hint::same_pattern(index.key.as_doc(), k.as_doc()),
            Hint::Natural { .. } | Hint::Among(_) => false,
        }
    }

    /// Whether it names the records' own order by `_id`, where that is no index.
    pub fn names_id(&self) -> bool {
        match self {
            Hint::Name(n) => n == "_id_",
            Hint::Key(k) => crate::hint::is_id_pattern(k.as_doc()),
            Hint::Natural { .. } | Hint::Among(_) => false,
        }
    }
}

/// The planner's request.
pub struct PlanRequest<'a> {
    pub filter: &'a Filter,
    /// Values of the variables that `$expr` in the filter names.
    pub vars: Option<&'a Vars>,
    pub sort: Option<&'a SortPattern>,
    pub projection: Option<&'a Projection>,
    /// How many results are wanted at most, skipped ones included.
    pub limit: Option<u64>,
    pub hint: Option<&'a Hint>,
    /// `min` (inclusive) and `max` (exclusive) of find: key documents for the hinted index.
    pub min: Option<Doc<'a>>,
    pub max: Option<Doc<'a>>,
    pub indexes: &'a [IndexInfo],
    /// The records lie in the order of `_id`. Otherwise they lie in that of insertion, and `_id_`
    /// is one of `indexes`.
    pub clustered: bool,
    /// Only the number of results matters.
    pub count: bool,
    /// Only one document of each value of a path matters, where an index can go from value to
    /// value.
    pub distinct: Option<DistinctRequest<'a>>,
    pub ns: &'a str,
    /// Which of several ranges of an index holds the fewest entries, exactly. Asked only where a
    /// phrase is looked for.
    pub fewest: Option<&'a dyn Fn(u32, &[(Vec<u8>, Vec<u8>)]) -> usize>,
    /// The reads of several accesses, if they can be counted. Asked only when there is a choice.
    pub estimate: Option<&'a dyn Fn(&[&Access]) -> Vec<Reads>>,
}

/// What an access reads when it is run to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads {
    /// Index entries.
    pub keys: f64,
    /// What the tests on keys let pass: so many documents are fetched, unless the index covers the
    /// query.
    pub given: f64,
    /// It was counted.
    pub exact: bool,
}

/// What running a plan is thought to cost, in reads of one index entry: it lies between `low` and
/// `high`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub low: f64,
    pub likely: f64,
    pub high: f64,
}

impl Cost {
    /// What a plan may have read without having disappointed.
    pub fn most_reads(&self) -> u64 {
        // As far as a number of reads can be; a float's conversion ends there.
        self.high.ceil() as u64
    }
}

/// A plan, and its estimates.
#[derive(Clone, Debug)]
pub struct Estimated {
    pub plan: Plan,
    pub reads: Reads,
    pub cost: Cost,
    /// It may be cheaper than the plan that was chosen: only running both can tell.
    pub rival: bool,
}

/// The plan that was chosen, and those that were not.
#[derive(Clone, Debug)]
pub struct Choice {
    pub plan: Plan,
    /// `None`: there was nothing to choose from.
    pub estimated: Option<(Reads, Cost)>,
    /// The best first.
    pub others: Vec<Estimated>,
    /// Plans whose entries are more than those of `plan` when all are read, and lie in another order. Where a limit ends the
    /// scan one of them may come to its end sooner: they join when `plan` has read much and given nothing.
    pub wider: Vec<Plan>,
    /// After how many reads without an end the plan has disappointed, and others join it. `None`: it goes to its end.
    pub watch: Option<u64>,
    /// How many entries were counted to choose, if known.
    pub counted: u64,
    /// How long that took, in nanoseconds, if known.
    pub nanos: u64,
}

impl Choice {
    pub(crate) fn only(plan: Plan) -> Choice {
        Choice {
            plan,
            estimated: None,
            others: Vec::new(),
            wider: Vec::new(),
            watch: None,
            counted: 0,
            nanos: 0,
        }
    }
}

/// How a query is answered.
#[derive(Clone, Debug)]
pub struct Plan {
    pub access: Access,
    /// The test that remains on a fetched document; trivial when the access decides everything. Branches
    /// of `Or` have theirs.
    pub residual: Filter,
    /// The order the results still need; `None` when the access gives it (or none was asked for).
    pub sort: Option<SortPattern>,
    /// The index entries hold all that the projection (and residual) needs: nothing is fetched. The
    /// executor builds a document of the index's fields and projects that.
    pub covered: bool,
    /// The `$text` that finds the documents, bound to its index: it knows their scores.
    pub text: Option<Arc<TextSearch>>,
    /// The values of `_id` that `Ids` and `Records` stand for, when they are not all: for explain.
    pub id_bounds: Vec<Interval>,
}

/// Where candidates come from.
#[derive(Clone, Debug)]
pub enum Access {
    /// Nothing can match.
    Eof,
    /// Records by `_id`, in the order given, without duplicates.
    Ids(Vec<Value>),
    /// Records in `[low, high)` of record keys (`high` empty: to the end). Both empty: a collection
    /// scan.
    Records {
        low: Vec<u8>,
        high: Vec<u8>,
        reverse: bool,
    },
    Index(Arc<IndexAccess>),
    /// The union; a record comes once.
    Or(Arc<[Branch<Access>]>),
    /// What an index of shapes has near to a point, the nearest first; a record comes once.
    Near(Arc<NearAccess>),
    /// Index scans that are each in the wanted order, merged; a record comes once.
    Merge(Arc<[Branch<Arc<IndexAccess>>]>, SortPattern),
}

/// One of several ways to candidates, which may come to the same records.
#[derive(Clone, Debug)]
pub struct Branch<A> {
    pub access: A,
    /// The test that remains on its documents.
    pub residual: Filter,
    /// What decides whether a document is among its results, whatever it is found by, and the same
    /// each time. `None`: no other branch comes to its records.
    pub whole: Option<Filter>,
}

/// A scan of one index.
#[derive(Clone, Debug)]
pub struct IndexAccess {
    pub index: u32,
    pub bounds: Bounds,
    pub reverse: bool,
    /// Bounds of the fields behind those that the ranges bound.
    pub skip: SkipBounds,
    /// One entry of each value of a field is wanted.
    pub distinct: Option<Distinct>,
    /// Tests on single fields of the key (by position, on the value itself) before anything is
    /// fetched.
    pub key_filter: Vec<(usize, Filter)>,
    /// A record may come more than once (multikey): duplicates are to be dropped.
    pub dedup: bool,
    /// The values wanted of each field, all of them where empty: for explain.
    pub intervals: Vec<Vec<Interval>>,
    /// Of a wildcard index: the path that it stands for, `$_path` for all.
    pub wildcard: Option<FieldPath>,
}

/// A search of an index of shapes for documents near a point.
#[derive(Clone, Debug)]
pub struct NearAccess {
    pub index: u32,
    /// The field of the index that has the cells, and its path.
    pub field: usize,
    pub path: FieldPath,
    pub test: Arc<NearTest>,
    pub starts: CellPrefixes,
    /// Tests on single fields of the key, as those of [`IndexAccess`].
    pub key_filter: Vec<(usize, Filter)>,
}

/// Where the fields before the cells are bound to.
#[derive(Clone, Debug)]
pub enum CellPrefixes {
    /// To these values, encoded: cells follow.
    Prefixes(Vec<Vec<u8>>),
    /// Somewhere in these ranges of keys.
    Ranges(Vec<(Vec<u8>, Vec<u8>)>),
}

/// Which entries of an index are wanted.
#[derive(Clone, Debug)]
pub enum Bounds {
    /// Ranges `[low, high)` of index keys (after the index's prefix; `high` empty: to the end),
    /// ascending and disjoint.
    Ranges(Vec<(Vec<u8>, Vec<u8>)>),
}

impl IndexAccess {
    /// Whether an entry with this key (without the index's prefix) is within all bounds.
    pub fn holds(&self, fields: &[KeyField], entry: &[u8]) -> bool {
        let Bounds::Ranges(ranges) = &self.bounds;
        let from = ranges.partition_point(|(low, _)| low.as_slice() <= entry);
        let within = |(_, high): &(Vec<u8>, Vec<u8>)| high.is_empty() || entry < high.as_slice();
        if !from
            .checked_sub(1)
            .and_then(|i| ranges.get(i))
            .is_some_and(within)
        {
            return false;
        }
        if self.skip.is_empty() {
            return true;
        }
        let (mut ends, mut at) = (Vec::with_capacity(fields.len()), 0);
        for f in fields {
            let Some(n) = entry
                .get(at..)
                .and_then(|r| key::field_len(r, f.descending))
            else {
                return false;
            };
            at += n;
            ends.push(at);
        }
        self.skip.admit(entry, &ends, false, &mut Vec::new())
    }
}

impl Access {
    fn add_form(&self, form: &mut Vec<u32>) {
        match self {
            Access::Index(a) => form.extend([1, a.index, u32::from(a.reverse)]),
            Access::Or(branches) => {
                form.push(2);
                branches.iter().for_each(|b| b.access.add_form(form));
            }
            Access::Merge(branches, _) => {
                form.push(3);
                form.extend(branches.iter().map(|b| b.access.index));
            }
            Access::Records { reverse, .. } => form.extend([4, u32::from(*reverse)]),
            Access::Ids(_) => form.push(5),
            Access::Near(a) => form.extend([6, a.index]),
            Access::Eof => form.push(7),
        }
    }

    /// All records, as a collection scan reads them.
    pub fn scan(reverse: bool) -> Access {
        Access::Records {
            low: Vec::new(),
            high: Vec::new(),
            reverse,
        }
    }

    pub fn is_scan(&self) -> bool {
        matches!(self, Access::Records { low, high, .. } if low.is_empty() && high.is_empty())
    }
}

impl Plan {
    /// What tells it from the other plans of its query, and of queries of the same shape.
    pub fn form(&self) -> Vec<u32> {
        let mut form = vec![u32::from(self.sort.is_some())];
        self.access.add_form(&mut form);
        form
    }

    /// Reads and gives nothing.
    pub fn nothing() -> Plan {
        Plan::new(Access::Eof, Filter::all())
    }

    pub(crate) fn new(access: Access, residual: Filter) -> Plan {
        Plan {
            access,
            residual,
            sort: None,
            covered: false,
            text: None,
            id_bounds: Vec::new(),
        }
    }
}

/// The `_id` of a filter that is `{_id: <equality>}` and nothing else (not a regular expression,
/// which is a pattern).
pub fn id_lookup(filter: &Filter) -> Option<Val<'_>> {
    match filter.root() {
        Node::Pred {
            path,
            test: Test::Eq(v),
        } if path.is_id() => Some(v.as_val()),
        _ => None,
    }
}
