//! The architecture, checked: which room may use which, and that every file says what it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every room with the rooms it may use, from the ground up: a room uses only what stands above it in this table.
const ROOMS: &[(&str, &[&str])] = &[
    ("bson", &[]),
    ("errors", &[]),
    ("alloc_meter", &[]),
    ("pcre", &[]),
    ("geo", &["bson", "errors"]),
    ("uring", &[]),
    ("own_process", &[]),
    ("script", &["alloc_meter", "bson", "errors"]),
    ("wire", &["errors"]),
    ("text", &["bson", "errors"]),
    ("time_series", &["bson", "errors"]),
    (
        "query",
        &["geo", "text", "time_series", "pcre", "bson", "errors"],
    ),
    ("encryption", &[]),
    ("auth", &["bson", "errors"]),
    ("oplog", &["own_process", "encryption", "errors"]),
    (
        "storage",
        &["oplog", "own_process", "encryption", "uring", "errors"],
    ),
    ("planner", &["query", "geo", "text", "bson", "errors"]),
    (
        "catalog",
        &[
            "storage",
            "planner",
            "query",
            "time_series",
            "bson",
            "errors",
        ],
    ),
    ("changes", &["catalog", "storage", "bson", "errors"]),
    ("search", &["encryption", "pcre", "bson", "errors", "geo"]),
    (
        "executor",
        &[
            "search",
            "changes",
            "catalog",
            "storage",
            "planner",
            "query",
            "geo",
            "time_series",
            "script",
            "alloc_meter",
            "own_process",
            "bson",
            "errors",
            "auth",
        ],
    ),
    ("sharding", &["planner", "query", "bson", "errors"]),
    (
        "session",
        &[
            "executor", "sharding", "catalog", "storage", "auth", "bson", "errors",
        ],
    ),
    ("replication", &["storage", "own_process", "bson", "errors"]),
    ("certificates", &[]),
    ("outgoing", &["auth", "certificates", "bson"]),
    ("archive", &["certificates"]),
    ("service", &["wire", "bson", "errors"]),
    ("front", &["service", "auth", "query", "bson", "errors"]),
    (
        "commands",
        &[
            "front",
            "service",
            "replication",
            "sharding",
            "auth",
            "session",
            "executor",
            "search",
            "changes",
            "catalog",
            "storage",
            "planner",
            "query",
            "text",
            "time_series",
            "own_process",
            "bson",
            "errors",
        ],
    ),
    (
        "cluster_view",
        &["outgoing", "service", "sharding", "wire", "bson", "errors"],
    ),
    (
        "mover",
        &[
            "cluster_view",
            "front",
            "service",
            "sharding",
            "bson",
            "errors",
        ],
    ),
    (
        "router",
        &[
            "mover",
            "cluster_view",
            "front",
            "commands",
            "changes",
            "service",
            "sharding",
            "auth",
            "query",
            "wire",
            "bson",
            "errors",
        ],
    ),
    (
        "server",
        &[
            "service",
            "certificates",
            "wire",
            "uring",
            "own_process",
            "bson",
            "errors",
        ],
    ),
    (
        "console",
        &["outgoing", "service", "query", "bson", "errors"],
    ),
    ("lab", &["outgoing", "own_process", "auth", "wire", "bson"]),
    (
        "pando",
        &[
            "archive",
            "auth",
            "commands",
            "router",
            "mover",
            "cluster_view",
            "server",
            "console",
            "service",
            "replication",
            "executor",
            "changes",
            "catalog",
            "storage",
            "outgoing",
            "wire",
            "own_process",
            "alloc_meter",
            "bson",
            "errors",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What cargo says of the workspace: each package with the workspace's packages that it depends on, tests aside.
fn workspace() -> Vec<(String, BTreeSet<String>)> {
    let out = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .map(|package| {
            let uses = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter();
            let rooms = uses
                .filter(|d| d["path"].is_string() && d["kind"] != "dev")
                .map(|d| d["name"].as_str().expect("a name").to_string());
            (
                package["name"].as_str().expect("a name").to_string(),
                rooms.collect(),
            )
        })
        .collect()
}

#[test]
fn the_table_goes_one_way() {
    for (i, (room, uses)) in ROOMS.iter().enumerate() {
        for used in *uses {
            assert!(
                ROOMS[..i].iter().any(|(r, _)| r == used),
                "{room} may not use {used}, which stands below it"
            );
        }
    }
}

/// The table names exactly the edges that exist: a forbidden edge is a fault, and so is an unused one.
#[test]
fn the_table_names_the_edges_that_exist() {
    let workspace = workspace();
    for (room, uses) in &workspace {
        let Some((_, may)) = ROOMS.iter().find(|(r, _)| r == room) else {
            panic!(
                "{room} is not in the table of rooms: give it its place here and in ARCHITECTURE.md"
            );
        };
        for used in uses {
            assert!(
                may.contains(&used.as_str()),
                "{room} uses {used}: the direction is in ARCHITECTURE.md"
            );
        }
        for allowed in *may {
            assert!(
                uses.contains(*allowed),
                "{room} may use {allowed} and does not: take the edge out of the table"
            );
        }
    }
    for (room, _) in ROOMS {
        assert!(
            workspace.iter().any(|(r, _)| r == room),
            "{room} is in the table but not in the workspace"
        );
    }
}

/// A dependency that no source names would let an edge stand that does not exist.
#[test]
fn what_a_room_depends_on_it_names() {
    for (room, uses) in workspace() {
        let mut sources = String::new();
        for path in sources_below(&root().join("crates").join(&room).join("src")) {
            sources += &std::fs::read_to_string(path).expect("a file");
        }
        for used in uses {
            assert!(
                sources.contains(&format!("{used}::")) || sources.contains(&format!("use {used};")),
                "{room} depends on {used} and names it nowhere: take it out of its Cargo.toml"
            );
        }
    }
}

#[test]
fn rooms_are_described() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for (room, _) in ROOMS {
        assert!(
            page.contains(&format!("### `{room}`")),
            "ARCHITECTURE.md does not describe {room}"
        );
    }
}

#[test]
fn every_file_says_what_it_is() {
    let says = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).expect("a file");
        text.starts_with("//!")
    };
    let mut unsaid = sources_below(&root().join("crates"));
    unsaid.retain(|path| !says(path));
    assert!(
        unsaid.is_empty(),
        "these files do not open with what they are (`//!`): {unsaid:#?}"
    );
}

#[test]
fn adaptive_mechanisms_are_where_their_page_says() {
    let page = std::fs::read_to_string(root().join("docs/adaptive.md")).expect("docs/adaptive.md");
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| **")).collect();
    assert!(rows.len() >= 10, "the table is not found");
    for row in rows {
        let quoted: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let sources: Vec<String> = quoted
            .iter()
            .filter(|q| q.starts_with("crates/"))
            .map(|file| {
                std::fs::read_to_string(root().join(file))
                    .unwrap_or_else(|e| panic!("docs/adaptive.md names {file}: {e}"))
            })
            .collect();
        assert!(!sources.is_empty(), "no file is named: {row}");
        let is_constant =
            |q: &str| q.len() > 2 && q.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        for constant in quoted.iter().filter(|q| is_constant(q)) {
            let declared = format!("const {constant}:");
            assert!(
                sources.iter().any(|s| s.contains(&declared)),
                "docs/adaptive.md names {constant}, which none of its files declares: {row}"
            );
        }
    }
}

/// All Rust files in a folder and the folders in it.
fn sources_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found
}
