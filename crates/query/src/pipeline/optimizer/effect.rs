//! What each stage says of itself, in one table: which fields it changes, how many documents it
//! gives, whether it keeps their order, whether it makes all of them anew, what it reads.
//!
//! The table names every stage, so that a new one does not compile without its line.

use super::super::{
    Op, Pipeline, Stage, bucket, densify, facet, graph_lookup, group, lookup, window,
};
use crate::expr::join_paths;
use crate::filter::Filter;
use crate::path::FieldPath;
use crate::sort::SortPattern;
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
    /// Parts of them may be missing. The remaining fields stand at their paths.
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

/// Whether what comes of an earlier document comes out earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Order {
    Kept,
    Lost,
}

/// What of its input is in what comes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Output {
    /// Also what it does not read.
    Passed,
    /// Only what it reads.
    Anew,
}

/// What of its input decides what a stage does.
pub(in super::super) enum Reads<'a> {
    Nothing,
    /// All of a document may.
    All,
    Of(&'a dyn ReadsPaths),
}

/// Whatever knows the dotted paths that it reads; `None` when all of a document may be.
pub(in super::super) trait ReadsPaths {
    fn read_paths(&self) -> Option<BTreeSet<String>>;
}

/// The line of a stage.
pub(in super::super) struct Effect<'a> {
    pub fields: Fields<'a>,
    pub rows: Rows,
    order: Order,
    output: Output,
    reads: Reads<'a>,
}

impl Stage {
    #[rustfmt::skip]
    pub(in super::super) fn effect(&self) -> Effect<'_> {
        use Fields::*;
        use Order::*;
        use Output::*;
        use Reads::{All, Nothing, Of};
        use Rows::*;
        let (fields, rows, order, output, reads) = match &self.op {
            Op::Match(f)       => (Same, Each, Kept, Passed, Of(&**f)),
            Op::Transform(t)   => (Transformed(t), One, Kept, made(!t.keeps_unnamed()), Of(&**t)),
            Op::Redact(_)      => (Pruned, Each, Kept, Passed, All),
            Op::Unwind(u)      => (Written(u.index.iter().chain([&u.path]).collect()), Each, Kept, Passed, Of(&u.path)),
            Op::Lookup(l)      => (Written(joined(l)), looked_up(l), Kept, Passed, Of(&**l)),
            Op::GraphLookup(g) => (Written(vec![&g.as_]), One, Kept, Passed, Of(&**g)),
            Op::Sort(p, None)  => (Same, One, Lost, Passed, Of(&**p)),
            Op::Sort(p, _)     => (Same, Together, Lost, Passed, Of(&**p)),
            Op::Limit(_)       => (Same, Together, Kept, Passed, Nothing),
            Op::Skip(_)        => (Same, Together, Kept, Passed, Nothing),
            Op::Sample(_)      => (Same, Together, Lost, Passed, Nothing),
            Op::Score(_)       => (Same, Together, Kept, Passed, All),
            Op::UnionWith(_)   => (Same, Together, Lost, Passed, Nothing),
            Op::Inhibit        => (Same, Together, Kept, Passed, Nothing),
            Op::Window(w)      => (Written(w.written().collect()), Together, Lost, Passed, Of(&**w)),
            Op::Densify(d)     => (Others, Together, Lost, Passed, Of(&**d)),
            Op::Group(g)       => (Others, Together, Lost, Anew, Of(&**g)),
            Op::Count(_)       => (Others, Together, Lost, Anew, Nothing),
            Op::Facet(f)       => (Others, Together, Lost, Anew, Of(&**f)),
            Op::BucketAuto(b)  => (Others, Together, Lost, Anew, Of(&**b)),
            // They read no input.
            Op::Fusion(_)      => (Others, Together, Lost, Anew, Nothing),
            Op::Documents(_)   => (Others, Together, Lost, Anew, Nothing),
            Op::Rows(_)        => (Others, Together, Lost, Anew, Nothing),
            Op::Search(_)      => (Others, Together, Lost, Anew, Nothing),
            Op::Out(_)         => (Others, Together, Lost, Passed, All),
            Op::Merge(_)       => (Others, Together, Lost, Passed, All),
            Op::GeoNear(_)     => (Others, Together, Lost, Passed, All),
            Op::Merged(_)      => (Others, Together, Kept, Passed, All),
            Op::Unpack(_)      => (Others, Each, Kept, Passed, All),
        };
        Effect { fields, rows, order, output, reads }
    }
}

fn made(anew: bool) -> Output {
    match anew {
        true => Output::Anew,
        false => Output::Passed,
    }
}

/// The paths that a `$lookup` writes.
fn joined(l: &lookup::Lookup) -> Vec<&FieldPath> {
    let index = l.unwinding.as_ref().and_then(|u| u.index.as_ref());
    index.into_iter().chain([&l.as_]).collect()
}

fn looked_up(l: &lookup::Lookup) -> Rows {
    match &l.unwinding {
        None => Rows::One,
        Some(_) => Rows::Each,
    }
}

impl Effect<'_> {
    /// Whether it makes of each document one, in the order in which they came.
    pub fn one_by_one(&self) -> bool {
        self.rows == Rows::One && self.order == Order::Kept
    }

    /// Whether nothing of its input but what [`Effect::reads`] names is in what comes out.
    pub fn makes_all_anew(&self) -> bool {
        self.output == Output::Anew
    }

    /// Dotted paths of its input that decide what it does; `None` when all of a document may.
    pub fn reads(&self) -> Option<BTreeSet<String>> {
        match self.reads {
            Reads::Nothing => Some(BTreeSet::new()),
            Reads::All => None,
            Reads::Of(of) => of.read_paths(),
        }
    }

    /// Whether the fields of that name at the top come out as they went in.
    pub fn keeps(&self, top_level: &str) -> bool {
        match &self.fields {
            Fields::Same => true,
            Fields::Written(written) => written.iter().all(|w| w.first() != top_level),
            Fields::Transformed(t) => t.keeps(top_level),
            Fields::Pruned | Fields::Others => false,
        }
    }
}

impl ReadsPaths for Filter {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        super::super::filter_paths(self.root())
    }
}

impl ReadsPaths for SortPattern {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        let paths = self.fields.iter().filter(|f| f.meta.is_none());
        Some(paths.map(|f| f.path.to_string()).collect())
    }
}

impl ReadsPaths for Transform {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        self.read_paths()
    }
}

impl ReadsPaths for FieldPath {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        Some(BTreeSet::from([self.to_string()]))
    }
}

impl ReadsPaths for lookup::Lookup {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        self.needed()
    }
}

impl ReadsPaths for graph_lookup::GraphLookup {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        self.start.needed_paths()
    }
}

impl ReadsPaths for group::Group {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        if self.part == group::GroupPhase::Last {
            return Some(["_id", "s"].map(String::from).into());
        }
        let mut all = self.id.needed_paths();
        for f in &self.fields {
            join_paths(&mut all, f.spec.needed_paths());
        }
        all
    }
}

impl ReadsPaths for facet::Facet {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        let mut all = Some(BTreeSet::new());
        for (_, part) in &self.parts {
            join_paths(&mut all, part.needed(0));
        }
        all
    }
}

impl ReadsPaths for bucket::BucketAuto {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        self.needed_paths()
    }
}

impl ReadsPaths for window::Window {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        match self.sorts_by_metadata() {
            true => None,
            false => self.needed_paths(),
        }
    }
}

impl ReadsPaths for densify::Densify {
    fn read_paths(&self) -> Option<BTreeSet<String>> {
        Some(self.read_paths())
    }
}

impl Pipeline {
    /// Paths that the stages from `from` on read of their input; `None` when they may read all of
    /// it, or give it.
    pub(in super::super) fn needed(&self, from: usize) -> Option<BTreeSet<String>> {
        needed(self.stages.get(from..).unwrap_or_default())
    }
}

/// The same of stages.
pub(super) fn needed(stages: &[Stage]) -> Option<BTreeSet<String>> {
    let mut all = Some(BTreeSet::new());
    for s in stages {
        let effect = s.effect();
        join_paths(&mut all, effect.reads());
        all.as_ref()?;
        if effect.makes_all_anew() {
            return all;
        }
    }
    None
}
