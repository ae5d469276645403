//! The architecture within rooms, checked: which folders and files of a room use each other in a circle.
//!
//! A file uses another where it names it by `crate::…` or `super::…`. The root of a room (`lib.rs`) is left out: it names its
//! modules to declare them, and they name what it declares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module by its path, such as `["crud", "find"]`.
type Module = Vec<String>;
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// The rooms that are looked at.
const ROOMS: [&str; 4] = ["front", "commands", "mover", "router"];

/// The circles of files that stay, with the reason of each.
const CIRCLES: &[(&str, &[&str], &str)] = &[
    (
        "front",
        &["check", "needs", "specification"],
        "the table says what each command needs, and an `explain` needs what the explained command needs",
    ),
    (
        "commands",
        &[
            "crud/aggregate",
            "crud/candidates",
            "crud/execution_stats",
            "crud/explain",
            "crud/explain_pipeline",
            "crud/find",
            "crud/map_reduce",
            "crud/oplog",
            "crud/view_rewrite",
        ],
        "commands that read run each other: a `find` of a view is an `aggregate`, that of `local.oplog.rs` a `find` with another source; `explain` runs what it explains",
    ),
    (
        "commands",
        &["shard/admission", "shard/ranges_read"],
        "what a read was admitted by is made by the admission, and refuses as it does",
    ),
    (
        "mover",
        &[
            "transfer/copy",
            "transfer/leases",
            "transfer/progress",
            "transfer/put",
        ],
        "a copy tells its progress and keeps its leases, and each of these looks at how far the copy is",
    ),
    (
        "mover",
        &["transfer/recovery", "transfer/reshard"],
        "a pending change of the shard key is ended as that change ends",
    ),
    (
        "router",
        &["state", "state/cursors"],
        "a router keeps its cursors, and a cursor goes on with the router",
    ),
    (
        "router",
        &[
            "reads/aggregate",
            "reads/change_stream",
            "reads/find",
            "reads/joins",
            "reads/merge_into",
            "reads/parted_merge",
            "reads/search",
            "reads/small_side",
            "reads/synonyms",
            "reads/views",
        ],
        "commands that read run each other: a `find` of a view is an `aggregate`, what a pipeline joins or writes is read by another pipeline, a change stream looks its documents up, a search finds its synonyms",
    ),
    (
        "router",
        &["writes/key_change", "writes/write"],
        "an update that moves a document is a delete and an insert",
    ),
    (
        "router",
        &["admin/collections", "admin/series"],
        "a time series becomes sharded as its buckets do",
    ),
];

/// The source without comments and without the tests at its end.
fn code_of(source: &str) -> String {
    let source = source
        .split_once("#[cfg(test)]\nmod tests {")
        .map_or(source, |(code, _)| code);
    let without = |line: &str| {
        line.split_once("//")
            .map_or(line, |(code, _)| code)
            .to_string()
    };
    source.lines().map(without).collect::<Vec<_>>().join("\n")
}

/// The paths that a use tree names: `a::{b, c::d}` names `a::b` and `a::c::d`.
fn paths_of(tree: &str) -> Vec<Module> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or("");
        let parts = path.split("::").map(str::trim);
        return vec![parts.filter(|p| !p.is_empty()).map(String::from).collect()];
    };
    let close = tree.rfind('}').unwrap_or(tree.len());
    let head = paths_of(tree[..open].trim_end_matches(':')).remove(0);
    let (mut depth, mut part, mut found) = (0, String::new(), Vec::new());
    for c in tree[open + 1..close].chars().chain([',']) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            for path in paths_of(&part).into_iter().filter(|p| !p.is_empty()) {
                found.push([head.clone(), path].concat());
            }
            part.clear();
        } else {
            part.push(c);
        }
    }
    found
}

/// What follows `root` wherever the code names it: a use tree to its semicolon, or a path.
fn named_after<'c>(code: &'c str, root: &str) -> Vec<&'c str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(root) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
            continue;
        }
        let rest = &code[at + root.len()..];
        let line = code[..at].rfind('\n').map_or(0, |n| n + 1);
        let end = match code[line..at].trim_start().contains("use") {
            true => rest.find(';'),
            false => rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')),
        };
        found.push(&rest[..end.unwrap_or(rest.len())]);
    }
    found
}

fn module_of(relative: &Path) -> Module {
    let mut parts: Module = relative
        .with_extension("")
        .iter()
        .map(|p| p.to_string_lossy().into())
        .collect();
    if parts.last().is_some_and(|p| p == "mod" || p == "lib") {
        parts.pop();
    }
    parts
}

fn files_below(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Which module of a room names which.
fn graph_of(room: &str) -> Graph {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(room)
        .join("src");
    let mut files = Vec::new();
    files_below(&root, &mut files);
    let sources: BTreeMap<Module, String> = (files.iter())
        .map(|f| {
            (
                module_of(f.strip_prefix(&root).expect("below")),
                std::fs::read_to_string(f).expect("a file"),
            )
        })
        .filter(|(m, _)| !m.is_empty() && m.last().is_none_or(|last| last != "tests"))
        .collect();
    let mut graph = Graph::new();
    for (module, source) in &sources {
        let code = code_of(source);
        let mut named: Vec<Module> = named_after(&code, "crate::")
            .into_iter()
            .flat_map(paths_of)
            .collect();
        for tail in named_after(&code, "super::") {
            let (mut up, mut tail) = (1, tail);
            while let Some(rest) = tail.strip_prefix("super::") {
                (up, tail) = (up + 1, rest);
            }
            let above = &module[..module.len().saturating_sub(up)];
            named.extend(
                paths_of(tail)
                    .into_iter()
                    .map(|p| [above.to_vec(), p].concat()),
            );
        }
        // The longest part of a path that is a module of the room.
        let is_module = |path: &Module| {
            (1..=path.len())
                .rev()
                .map(|n| path[..n].to_vec())
                .find(|m| sources.contains_key(m))
        };
        let used = named.iter().filter_map(is_module).filter(|m| m != module);
        graph.insert(module.clone(), used.collect());
    }
    graph
}

/// The same, of folders and of files that lie in none.
fn of_folders(graph: &Graph) -> Graph {
    let folder = |m: &Module| vec![m[0].clone()];
    let mut folders = Graph::new();
    for (module, used) in graph {
        let uses = folders.entry(folder(module)).or_default();
        uses.extend(used.iter().map(folder).filter(|f| *f != folder(module)));
    }
    folders
}

fn reached(graph: &Graph, from: &Module) -> BTreeSet<Module> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = left.pop() {
        for used in graph.get(&module).into_iter().flatten() {
            if seen.insert(used.clone()) {
                left.push(used.clone());
            }
        }
    }
    seen
}

/// Sets of modules that reach each other.
fn circles(graph: &Graph) -> BTreeSet<Vec<String>> {
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        graph.keys().map(|m| (m, reached(graph, m))).collect();
    let mut found = BTreeSet::new();
    for (module, reaches) in reach.iter().filter(|(m, r)| r.contains(**m)) {
        let circle = reaches
            .iter()
            .filter(|other| reach.get(other).is_some_and(|r| r.contains(*module)));
        found.insert(circle.map(|m| m.join("/")).collect());
    }
    found
}

#[test]
fn no_folder_takes_part_in_a_circle() {
    // The others have no folders.
    for room in ["commands", "mover", "router"] {
        let found = circles(&of_folders(&graph_of(room)));
        assert!(found.is_empty(), "{room}: {found:#?}");
    }
}

#[test]
fn circles_of_files_are_those_that_are_listed() {
    for room in ROOMS {
        let listed: BTreeSet<Vec<String>> = (CIRCLES.iter())
            .filter(|(of, _, _)| *of == room)
            .map(|(_, files, _)| files.iter().map(|f| f.to_string()).collect())
            .collect();
        assert_eq!(circles(&graph_of(room)), listed, "{room}");
    }
}

#[test]
fn circles_are_found() {
    let source =
        "use crate::{a::{b, c as d}, e};\nuse super::f;\nfn x() { crate::g::h(1); } // crate::i\n";
    let code = code_of(source);
    let mut named: Vec<String> = (named_after(&code, "crate::").into_iter())
        .flat_map(paths_of)
        .map(|p| p.join("::"))
        .collect();
    named.sort();
    assert_eq!(named, ["a::b", "a::c", "e", "g::h"]);
    let module = |name: &str| vec![name.to_string()];
    let edge = |a: &str, b: &str| (module(a), BTreeSet::from([module(b)]));
    let graph = Graph::from([edge("a", "b"), edge("b", "c"), edge("c", "b")]);
    assert_eq!(
        circles(&graph),
        BTreeSet::from([vec!["b".to_string(), "c".to_string()]])
    );
}
