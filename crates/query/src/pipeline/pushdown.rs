//! What of the beginning of a pipeline a query over the collection can answer.

use super::group::Group;
use super::{Op, Pipeline, series_last};
use crate::collation::Collation;
use crate::expr::join_paths;
use crate::filter::{Filter, Node, Test};
use crate::path::FieldPath;
use crate::sort::SortPattern;
use bson::Writer;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The query that stands for the first `consumed` stages: filter, then sort, then skip, then limit.
#[derive(Clone, Debug)]
pub struct Pushdown {
    pub filter: Filter,
    pub sort: Option<Arc<SortPattern>>,
    pub skip: u64,
    /// `Some(0)` means no document at all.
    pub limit: Option<u64>,
    /// Dotted paths that the stages after these read; `None` when they may read all of the
    /// document.
    pub needed: Option<BTreeSet<String>>,
    /// The next stage only counts (see [`Stage::counted`](super::Stage::counted)): nothing else of
    /// the documents matters.
    pub count_only: bool,
    /// The next stage makes its groups of one document each.
    pub group: Option<GroupPushdown>,
    /// Of the documents that the query gives in the order of `_id` backwards few are wanted (see
    /// [`Source::leave_out`](super::Source::leave_out)).
    pub backwards: bool,
    /// How many stages the query stands for: [`Pipeline::attach`] takes the rest.
    pub consumed: usize,
}

/// A `$group` by a field whose results need only the first document of each group in one of these
/// orders.
#[derive(Clone, Debug)]
pub struct GroupPushdown {
    pub path: FieldPath,
    /// Under which values of the field are equal.
    pub collation: Option<Collation>,
    /// Without fields any document of the group will do.
    pub orders: Vec<Option<SortPattern>>,
}

impl GroupPushdown {
    fn of(g: &Group, sort: Option<&SortPattern>) -> Option<GroupPushdown> {
        let path = g.id.as_path()?;
        let all = |name: &str| g.fields.iter().all(|f| f.spec.name() == name);
        let orders = match sort {
            _ if g.fields.is_empty() => vec![None],
            // Which document comes first is not for the index to say.
            None => return None,
            Some(s) if all("$first") => orders(&path, s, false),
            Some(s) if all("$last") => orders(&path, s, true),
            Some(_) => return None,
        };
        Some(GroupPushdown {
            path: FieldPath::new(&path),
            collation: g.collation().cloned(),
            orders,
        })
    }
}

/// Orders by `path` and then as `sort` says, or as it says backwards: within one value of `path`
/// those are the same.
fn orders(path: &str, sort: &SortPattern, backwards: bool) -> Vec<Option<SortPattern>> {
    let order = |first: bool| {
        let mut w = Writer::new();
        let sign = |descending: bool| if descending != backwards { -1 } else { 1 };
        w.i32(path, sign(first));
        for f in sort.fields.iter().filter(|f| f.path.as_str() != path) {
            w.i32(f.path.as_str(), sign(f.descending));
        }
        let pattern = SortPattern::parse(w.finish().as_doc()).ok()?;
        Some(pattern.collated(sort.collation()))
    };
    let given = sort.fields.iter().find(|f| f.path.as_str() == path);
    let either = match given {
        Some(f) => vec![order(f.descending), order(!f.descending)],
        None => vec![order(false), order(true)],
    };
    either.into_iter().filter(Option::is_some).collect()
}

impl Pipeline {
    pub fn pushdown(&self) -> Pushdown {
        let mut filters: Vec<&Arc<Filter>> = Vec::new();
        let (mut sort, mut skip, mut limit) = (None, 0u64, None::<u64>);
        let before = match (self.geo_near(), self.unpack()) {
            (Some(g), _) => Some(g.filter()),
            (_, Some(u)) => Some(u.filter(self.stages.split_at(1).1)),
            _ => None,
        };
        if let Some(filter) = before {
            return Pushdown {
                filter,
                sort: None,
                skip: 0,
                limit: None,
                needed: None,
                count_only: false,
                group: None,
                backwards: self.wants_newest(),
                consumed: 0,
            };
        }
        let mut consumed = 0;
        for s in &self.stages {
            match &s.op {
                Op::Match(f) if skip == 0 && limit.is_none() => filters.push(f),
                Op::Sort(p, l)
                    if sort.is_none() && skip == 0 && limit.is_none() && !p.has_meta() =>
                {
                    sort = Some(p.clone());
                    limit = *l;
                }
                Op::Limit(n) => limit = Some(limit.map_or(*n, |l| l.min(*n))),
                Op::Skip(n) => {
                    skip = skip.saturating_add(*n);
                    limit = limit.map(|l| l.saturating_sub(*n));
                }
                _ => break,
            }
            consumed += 1;
        }
        let filter = match filters.as_slice() {
            [] => Filter::all(),
            [one] => Filter::clone(one),
            many => Filter::from_node(Node::and(many.iter().map(|f| f.root().clone()).collect())),
        };
        let count_only = self
            .stages
            .get(consumed)
            .is_some_and(|s| s.counted(0).is_some());
        let group = match self.stages.get(consumed).map(|s| &s.op) {
            Some(Op::Group(g)) if skip == 0 && limit.is_none() => {
                GroupPushdown::of(g, sort.as_deref())
            }
            _ => None,
        };
        Pushdown {
            filter,
            group,
            sort,
            skip,
            limit,
            needed: self.needed(consumed),
            count_only,
            backwards: false,
            consumed,
        }
    }

    /// Of the buckets that it begins with only the newest of each device are wanted.
    fn wants_newest(&self) -> bool {
        let behind = self.stages.get(1..).unwrap_or_default();
        let wanted = self.unpack().and_then(|u| series_last::wanted(u, behind));
        wanted == Some(true)
    }
}

/// Paths that a predicate reads.
pub fn filter_paths(node: &Node) -> Option<BTreeSet<String>> {
    let mut all = Some(BTreeSet::new());
    walk(node, &mut all);
    all
}

fn walk(node: &Node, all: &mut Option<BTreeSet<String>>) {
    match node {
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().for_each(|n| walk(n, all)),
        Node::Not(n) => walk(n, all),
        Node::Pred { path, test } => {
            let path = path.to_string();
            // Inside `$elemMatch` paths are below this one.
            let whole = path.is_empty() && !matches!(test, Test::Exists);
            if whole {
                *all = None;
            } else {
                join_paths(all, Some(BTreeSet::from([path])));
            }
        }
        Node::Expr(e) => join_paths(all, e.needed_paths()),
        Node::Schema(_) | Node::Text(_) => *all = None,
        Node::Const(_) | Node::Sample(_) => {}
    }
}
