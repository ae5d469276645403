//! Collections, and which one a document is of: its `_id` says so.

/// A collection.
pub type Ns = u32;

/// The one that is sharded.
pub const SHARDED: Ns = 0;
/// The database of the others.
pub const DB: &str = "h";
/// Its views: they are where its primary is.
pub const VIEWS: Ns = 1;
/// The first of its collections.
pub const FIRST: Ns = 2;

const EACH: u32 = 1_000_000;

pub fn ns_of(id: u32) -> Ns {
    id / EACH
}

/// The `n`th document of a collection.
pub fn id_in(ns: Ns, n: u32) -> u32 {
    ns * EACH + n
}

pub fn name_of(ns: Ns) -> String {
    match ns {
        SHARDED => "d.c".into(),
        VIEWS => format!("{DB}.system.views"),
        n => format!("{DB}.c{n}"),
    }
}

pub fn ns_named(name: &str) -> Ns {
    match name.strip_prefix("h.c") {
        Some(n) => n.parse().expect("a collection"),
        None => SHARDED,
    }
}
