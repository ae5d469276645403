//! What each stage says of itself: which fields it changes, how many documents it gives, whether
//! it keeps their order, what it reads.
//!
//! The matches name every stage, so that a new one does not compile without saying it.

use super::super::{Op, Stage};
use crate::expr::join_paths;
use crate::path::FieldPath;
use crate::transform::Transform;
use std::collections::BTreeSet;

/// What becomes of the fields of a document.
pub(in super::super) enum Fields<'a> {
    /// All of them come out as they went in.
    Same,
    /// All but those below these paths. What stands on the way to such a path may change its type,
    /// so that only fields of another name at the top are the same.
    Written(Vec<&'a FieldPath>),
    /// As the transformation says.
    Transformed(&'a Transform),
    /// Parts of them may be missing. What is there stands at the path where it stood.
    Pruned,
    /// Other documents come out.
    Others,
}

/// How many documents a stage gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Rows {
    /// One for each.
    One,
    /// Of each as many as it says itself, whatever the others are.
    Each,
    /// What comes of one depends on others, or on how many there were.
    Together,
}

impl Stage {
    pub(in super::super) fn fields(&self) -> Fields<'_> {
        match &self.op {
            Op::Match(_)
            | Op::Sort(..)
            | Op::Limit(_)
            | Op::Skip(_)
            | Op::Sample(_)
            | Op::Score(_)
            | Op::UnionWith(_)
            | Op::Inhibit => Fields::Same,
            Op::Transform(t) => Fields::Transformed(t),
            Op::Redact(_) => Fields::Pruned,
            Op::Unwind(u) => Fields::Written(u.index.iter().chain([&u.path]).collect()),
            Op::Lookup(l) => {
                let index = l.unwinding.as_ref().and_then(|u| u.index.as_ref());
                Fields::Written(index.into_iter().chain([&l.as_]).collect())
            }
            Op::GraphLookup(g) => Fields::Written(vec![&g.as_]),
            Op::Window(w) => Fields::Written(w.written().collect()),
            Op::Group(_)
            | Op::Count(_)
            | Op::Facet(_)
            | Op::Fusion(_)
            | Op::Documents(_)
            | Op::BucketAuto(_)
            | Op::Densify(_)
            | Op::Out(_)
            | Op::Merge(_)
            | Op::Rows(_)
            | Op::GeoNear(_)
            | Op::Merged(_)
            | Op::Unpack(_) => Fields::Others,
        }
    }

    pub(in super::super) fn rows(&self) -> Rows {
        match &self.op {
            Op::Transform(_) | Op::GraphLookup(_) | Op::Sort(_, None) => Rows::One,
            Op::Lookup(l) if l.unwinding.is_none() => Rows::One,
            Op::Match(_) | Op::Unwind(_) | Op::Redact(_) | Op::Lookup(_) | Op::Unpack(_) => {
                Rows::Each
            }
            Op::Sort(_, Some(_))
            | Op::Limit(_)
            | Op::Skip(_)
            | Op::Sample(_)
            | Op::Score(_)
            | Op::UnionWith(_)
            | Op::Inhibit
            | Op::Window(_)
            | Op::Group(_)
            | Op::Count(_)
            | Op::Facet(_)
            | Op::Fusion(_)
            | Op::Documents(_)
            | Op::BucketAuto(_)
            | Op::Densify(_)
            | Op::Out(_)
            | Op::Merge(_)
            | Op::Rows(_)
            | Op::GeoNear(_)
            | Op::Merged(_) => Rows::Together,
        }
    }

    /// Whether what comes of an earlier document comes out earlier.
    pub(in super::super) fn keeps_order(&self) -> bool {
        match &self.op {
            Op::Match(_)
            | Op::Transform(_)
            | Op::Limit(_)
            | Op::Skip(_)
            | Op::Unwind(_)
            | Op::Lookup(_)
            | Op::GraphLookup(_)
            | Op::Redact(_)
            | Op::Score(_)
            | Op::Unpack(_)
            | Op::Merged(_)
            | Op::Inhibit => true,
            Op::Sort(..)
            | Op::Sample(_)
            | Op::UnionWith(_)
            | Op::Window(_)
            | Op::Group(_)
            | Op::Count(_)
            | Op::Facet(_)
            | Op::Fusion(_)
            | Op::Documents(_)
            | Op::BucketAuto(_)
            | Op::Densify(_)
            | Op::Out(_)
            | Op::Merge(_)
            | Op::Rows(_)
            | Op::GeoNear(_) => false,
        }
    }

    /// Whether nothing of its input but what [`Stage::reads`] names is in what comes out.
    pub(in super::super) fn makes_all_anew(&self) -> bool {
        match &self.op {
            Op::Transform(t) => !t.keeps_unnamed(),
            Op::Group(_) | Op::Count(_) | Op::Facet(_) | Op::BucketAuto(_) => true,
            // They read no input.
            Op::Fusion(_) | Op::Documents(_) | Op::Rows(_) => true,
            Op::Match(_)
            | Op::Sort(..)
            | Op::Limit(_)
            | Op::Skip(_)
            | Op::Sample(_)
            | Op::Unwind(_)
            | Op::Lookup(_)
            | Op::GraphLookup(_)
            | Op::Redact(_)
            | Op::Score(_)
            | Op::UnionWith(_)
            | Op::Window(_)
            | Op::Densify(_)
            | Op::Out(_)
            | Op::Merge(_)
            | Op::GeoNear(_)
            | Op::Merged(_)
            | Op::Unpack(_)
            | Op::Inhibit => false,
        }
    }

    /// Dotted paths of its input that decide what it does; `None` when all of a document may.
    pub(in super::super) fn reads(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(BTreeSet::new());
        match &self.op {
            Op::Match(f) => join_paths(&mut all, super::super::filter_paths(f.root())),
            Op::Sort(p, _) => {
                let paths = p.fields.iter().filter(|f| f.meta.is_none());
                join_paths(&mut all, Some(paths.map(|f| f.path.to_string()).collect()));
            }
            Op::Transform(t) => join_paths(&mut all, t.read_paths()),
            Op::Unwind(u) => join_paths(&mut all, Some(BTreeSet::from([u.path.to_string()]))),
            Op::Lookup(l) => join_paths(&mut all, l.needed()),
            Op::Group(g) => {
                join_paths(&mut all, g.id.needed_paths());
                for f in &g.fields {
                    join_paths(&mut all, f.spec.needed_paths());
                }
            }
            Op::Facet(facet) => {
                for (_, part) in &facet.parts {
                    join_paths(&mut all, part.needed(0));
                }
            }
            Op::BucketAuto(b) => join_paths(&mut all, b.needed_paths()),
            Op::Window(w) if !w.sorts_by_metadata() => join_paths(&mut all, w.needed_paths()),
            Op::Limit(_)
            | Op::Skip(_)
            | Op::Sample(_)
            | Op::Count(_)
            | Op::Inhibit
            | Op::Fusion(_)
            | Op::Documents(_)
            | Op::Rows(_) => {}
            Op::Window(_)
            | Op::GraphLookup(_)
            | Op::Redact(_)
            | Op::Score(_)
            | Op::UnionWith(_)
            | Op::Densify(_)
            | Op::Out(_)
            | Op::Merge(_)
            | Op::GeoNear(_)
            | Op::Merged(_)
            | Op::Unpack(_) => return None,
        }
        all
    }
}
