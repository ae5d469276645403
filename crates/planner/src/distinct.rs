//! Scans of an index that go from value to value of a field: for `distinct`, and for `$group` where
//! the first document of each group is all that counts.
//!
//! Invariant: the documents of the entries that such a scan gives hold every value of the path that
//! any matching document holds; for a group, the first entry of each value is that of the document
//! that comes first in the order asked for.

use crate::choose::{Candidate, Planner};
use crate::hint::Hinted;
use crate::interval::{Interval, bounded};
use crate::plan::{Access, IndexInfo};
use crate::predicate::{Predicate, clauses, collect};
use query::collation::Collation;
use query::index_keys::{FieldKind, Multikey};
use query::path::FieldPath;
use std::sync::Arc;

/// Of what each value is wanted once.
#[derive(Clone, Copy, Debug)]
pub struct DistinctRequest<'a> {
    pub path: &'a FieldPath,
    /// Under which values are equal.
    pub collation: Option<&'a Collation>,
    /// Documents are grouped by the path, where no value is null and an array is one value.
    /// Otherwise values are gathered: a document without one gives none, and one with an array
    /// gives the elements.
    pub group: bool,
}

/// How a scan goes from value to value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distinct {
    /// The field of the index; entries that share it and those before it are one value.
    pub field: usize,
    /// Entries that lack the field, or that stand for an empty array, are values like others.
    /// Otherwise they say nothing about the entries behind them that have the same key.
    pub missing: bool,
}

impl Planner<'_> {
    /// The best scan from value to value, when an index allows one that leaves nothing to be
    /// tested.
    pub(crate) fn by_distinct(
        &self,
        d: &DistinctRequest<'_>,
        hinted: &Hinted<'_>,
    ) -> Option<Candidate> {
        let concerned = |i: &&IndexInfo| {
            i.key.wildcard().is_none() && i.key.fields.iter().any(|f| f.path == *d.path)
        };
        let (indexes, insisted) = match hinted {
            Hinted::Nothing => (self.req.indexes, false),
            Hinted::Index(i) => (std::slice::from_ref(*i), true),
            Hinted::Natural { .. } | Hinted::Id => return None,
        };
        let mut indexes = indexes.iter().filter(concerned).peekable();
        indexes.peek()?;
        let preds = collect(clauses(self.req.filter.root()), self.vars);
        indexes
            .filter_map(|i| Some((self.distinct_over(d, i, &preds, insisted)?, i)))
            .min_by_key(|(c, i)| (!c.covered, i.key.fields.len()))
            .map(|(c, _)| c)
    }

    fn distinct_over(
        &self,
        d: &DistinctRequest<'_>,
        info: &IndexInfo,
        preds: &[Predicate<'_>],
        insisted: bool,
    ) -> Option<Candidate> {
        let root = self.req.filter.root();
        let fields = &info.key.fields;
        let field = fields.iter().position(|f| f.path == *d.path)?;
        let plain = |f: &query::index_keys::KeyField| f.kind == FieldKind::Ordered;
        if !fields.iter().take(field + 1).all(plain) || d.path.has_index_part() {
            return None;
        }
        // Values that such an index tells apart are at least as many as those asked for; one with a
        // collation keeps none.
        if info.key.collation().is_some() && info.key.collation() != d.collation {
            return None;
        }
        let multikey = Multikey(info.multikey);
        // What a filter says about one element of an array says nothing about the others.
        if multikey.field(field) && !self.req.filter.is_trivial() || d.group && multikey.any() {
            return None;
        }
        // What a sparse index leaves out has no value to gather.
        let whole = info.sparse && !d.group && info.partial.is_none();
        let usable = insisted || whole && info.ready && !info.hidden;
        if !usable && !self.usable(info, root, preds) {
            return None;
        }
        let mut c = self.by_index(info, root, preds, true)?;
        if matches!(c.access, Access::Eof) {
            return Some(c);
        }
        let Access::Index(a) = &mut c.access else {
            return None;
        };
        let a = Arc::make_mut(a);
        let exact = c.residual.is_trivial() && a.key_filter.is_empty() && a.skip.is_empty();
        let (before, behind) = a.intervals.split_at(field);
        let together = before
            .iter()
            .all(|l| matches!(&l[..], [one] if one.is_point()))
            && !behind.iter().skip(1).any(|l: &Vec<Interval>| bounded(l));
        if !c.sorted || !exact || !together {
            return None;
        }
        a.dedup = false;
        a.distinct = Some(Distinct {
            field,
            missing: d.group,
        });
        if !d.group {
            // An array's elements are gathered from the document: an entry may stand for a part
            // that is no value of it.
            c.covered = info.key.collation().is_none() && !multikey.field(field);
        }
        Some(c)
    }
}
