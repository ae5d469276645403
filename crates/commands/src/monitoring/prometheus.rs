//! All figures of serverStatus, and those of the replica set, in the text form that Prometheus reads.
//!
//! ```text
//! # HELP pando_opcounters_insert opcounters.insert of serverStatus
//! # TYPE pando_opcounters_insert counter
//! pando_opcounters_insert 5
//! pando_replication_member_state{member="a:27017"} 2
//! ```
//! A figure's name is its path in serverStatus. What is no number or boolean is left out.
//!
//! Invariant: a name with its labels comes once, behind what is said of the name.

use crate::Commands;
use bson::{Doc, DocBuf, Val, Writer, tag};
use errors::Fallible;
use own_process::disk_space::DiskSpace;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// Path and labels, to the number.
type Figures = BTreeMap<String, f64>;

/// What figures beside those of serverStatus mean.
const MEANINGS: &[(&str, &str)] = &[
    (
        "pando_disk_total_bytes",
        "size of the file system of the data directory",
    ),
    (
        "pando_disk_free_bytes",
        "what the server may still write on the file system of the data directory",
    ),
    (
        "pando_certificate_expires_seconds",
        "when the certificate of the server ends, in seconds since 1970",
    ),
    (
        "pando_data_files_damaged",
        "1 where damage was found in the data files since the start",
    ),
    (
        "pando_locks_against_writes",
        "locks against writes that are held: by fsync, or for a backup",
    ),
    ("pando_index_builds_running", "index builds under way"),
    (
        "pando_index_builds_records_done",
        "records that the index builds under way have indexed",
    ),
    (
        "pando_index_builds_records_total",
        "records that the index builds under way have to index",
    ),
    (
        "pando_replication_state",
        "MongoDB's number of this member's state: 1 primary, 2 secondary",
    ),
    ("pando_replication_term", "the term of the set's elections"),
    ("pando_replication_voting_members", "members that vote now"),
    (
        "pando_replication_voted_for_member_id",
        "_id of the member that this one voted for last",
    ),
    (
        "pando_replication_member_state",
        "MongoDB's number of a member's state, as this member knows it",
    ),
    (
        "pando_replication_member_health",
        "1 where the member is heard of",
    ),
    (
        "pando_replication_member_last_index_on_disk",
        "the last entry of the log on the member's disk",
    ),
    (
        "pando_replication_member_lag_entries",
        "entries of the log that the member lacks",
    ),
    (
        "pando_replication_member_lag_seconds",
        "how much older the member's last entry is than the newest that is known",
    ),
    (
        "pando_replication_initial_sync_bytes",
        "bytes that the initial sync of this member copies",
    ),
    (
        "pando_replication_initial_sync_copied_bytes",
        "bytes that the initial sync of this member has copied",
    ),
    (
        "pando_replication_initial_sync_failures",
        "attempts of the initial sync that failed",
    ),
];
/// Parts of serverStatus, and fields, that only grow while the process runs.
const GROWING_PARTS: &[&str] = &[
    "pando_opcounters_",
    "pando_opcountersRepl_",
    "pando_asserts_",
    "pando_opLatencies_",
];
const GROWING: &[&str] = &[
    "pando_uptime",
    "pando_uptimeMillis",
    "pando_uptimeEstimate",
    "pando_connections_totalCreated",
    "pando_network_bytesIn",
    "pando_network_bytesOut",
    "pando_network_physicalBytesIn",
    "pando_network_physicalBytesOut",
    "pando_network_numRequests",
    "pando_extra_info_page_faults",
    "pando_metrics_queryExecutor_hiddenKeysSkipped",
    "pando_pandodb_engine_hiddenKeysSkipped",
    "pando_pandodb_moves_done",
    "pando_pandodb_moves_failed",
    "pando_pandodb_moves_copiedDocuments",
    "pando_pandodb_moves_copiedBytes",
];

/// The text of all figures now.
pub fn text(app: &Commands) -> Fallible<String> {
    let mut figures = Figures::new();
    let status = ask(app, "serverStatus")?;
    add_all(&mut figures, "pando", status.as_doc());
    if app.replica.is_some() {
        // Before there is a set this is an error, which has no figures.
        add_set(&mut figures, ask(app, "replSetGetStatus")?.as_doc());
    }
    add_disk(&mut figures, &app.config.db_path);
    add_builds(&mut figures, app);
    add_health(&mut figures, app);
    Ok(render(&figures))
}

fn render(figures: &Figures) -> String {
    let (mut text, mut before) = (String::new(), "");
    for (name, figure) in figures {
        let base = name.split('{').next().unwrap_or(name);
        if base != before {
            before = base;
            let known = MEANINGS.iter().find(|(of, _)| *of == base);
            let meaning = match known {
                Some((_, meaning)) => (*meaning).to_string(),
                None => format!(
                    "{} of serverStatus",
                    base.trim_start_matches("pando_").replace('_', ".")
                ),
            };
            let _ = writeln!(text, "# HELP {base} {meaning}");
            let _ = writeln!(text, "# TYPE {base} {}", kind(base, known.is_some()));
        }
        let _ = writeln!(text, "{name} {figure}");
    }
    text
}

/// Of most fields of serverStatus nothing is said here.
fn kind(base: &str, is_ours: bool) -> &'static str {
    let grows = GROWING.contains(&base) || GROWING_PARTS.iter().any(|part| base.starts_with(part));
    match (grows, is_ours) {
        (true, _) => "counter",
        (false, true) => "gauge",
        (false, false) => "untyped",
    }
}

/// Room on the file system of the data.
fn add_disk(figures: &mut Figures, dir: &Path) {
    if let Some(space) = DiskSpace::at(dir) {
        figures.insert("pando_disk_total_bytes".into(), space.total as f64);
        figures.insert("pando_disk_free_bytes".into(), space.free as f64);
    }
}

fn add_builds(figures: &mut Figures, app: &Commands) {
    let running = app.engine.builds.running();
    let sum =
        |of: fn(&executor::BuildProgress) -> u64| running.iter().map(|b| of(b)).sum::<u64>() as f64;
    let done = sum(|b| b.done.load(Relaxed));
    let total = sum(|b| b.total.load(Relaxed));
    for (name, n) in [
        ("running", running.len() as f64),
        ("records_done", done),
        ("records_total", total),
    ] {
        figures.insert(format!("pando_index_builds_{name}"), n);
    }
}

fn add_health(figures: &mut Figures, app: &Commands) {
    let mut add = |name: &str, n: f64| figures.insert(format!("pando_{name}"), n);
    let is_damaged = storage::damage().is_some();
    add("data_files_damaged", f64::from(u8::from(is_damaged)));
    add("locks_against_writes", app.engine.fsync_lock.locks() as f64);
    if let Some(offered) = app.control.certificates.get() {
        let expires = (offered.own)().expires_millis;
        add("certificate_expires_seconds", (expires / 1000) as f64);
    }
}

/// The reply to a command of the server's own.
fn ask(app: &Commands, command: &str) -> Fallible<DocBuf> {
    let mut w = Writer::new();
    w.i32(command, 1).str("$db", "admin");
    app.ask_own(w.finish().as_doc())
}

fn number(v: Val<'_>) -> Option<f64> {
    match v.tag {
        tag::BOOL => Some(f64::from(u8::from(v.truthy()))),
        _ => v.to_f64(),
    }
}

/// A name may have letters, digits and underscores.
fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.chars().map(plain).collect()
}

fn add_all(figures: &mut Figures, path: &str, doc: Doc<'_>) {
    for e in doc.iter() {
        let path = format!("{path}_{}", plain(e.name));
        if let Some(inner) = e.val.as_doc() {
            add_all(figures, &path, inner);
        } else if let Some(n) = number(e.val) {
            figures.entry(path).or_insert(n);
        }
    }
}

fn add_set(figures: &mut Figures, status: Doc<'_>) {
    let mut add = |name: &str, labels: &str, n: f64| {
        figures.insert(format!("pando_replication_{name}{labels}"), n);
    };
    let number_of = |d: Doc<'_>, field: &str| d.get(field).and_then(number);
    for (field, name) in [
        ("myState", "state"),
        ("term", "term"),
        ("votingMembersCount", "voting_members"),
    ] {
        if let Some(n) = number_of(status, field) {
            add(name, "", n);
        }
    }
    let vote = status
        .get("electionParticipantMetrics")
        .and_then(|v| v.as_doc());
    if let Some(id) = vote.and_then(|vote| number_of(vote, "electionCandidateMemberId")) {
        add("voted_for_member_id", "", id);
    }
    if let Some(sync) = status.get("initialSyncStatus").and_then(|v| v.as_doc()) {
        for (field, name) in [
            ("approxTotalDataSize", "initial_sync_bytes"),
            ("approxTotalBytesCopied", "initial_sync_copied_bytes"),
            ("failedInitialSyncAttempts", "initial_sync_failures"),
        ] {
            if let Some(n) = number_of(sync, field) {
                add(name, "", n);
            }
        }
    }
    let members = status.get("members").and_then(|v| v.as_array());
    let members: Vec<Doc<'_>> = members
        .iter()
        .flat_map(|m| m.values())
        .filter_map(|v| v.as_doc())
        .collect();
    let last = members
        .iter()
        .filter_map(|m| number_of(*m, "lastIndexOnDisk"))
        .fold(0.0, f64::max);
    let date = |m: Doc<'_>| m.get("optimeDate").and_then(|v| v.as_date());
    let newest = members.iter().filter_map(|m| date(*m)).max();
    for member in members {
        let host = member
            .get("name")
            .and_then(|v| v.as_str())
            .unwrap_or_default();
        let labels = format!("{{member=\"{}\"}}", host.replace(['"', '\\', '\n'], "_"));
        for (field, name) in [
            ("state", "member_state"),
            ("health", "member_health"),
            ("lastIndexOnDisk", "member_last_index_on_disk"),
        ] {
            if let Some(n) = number_of(member, field) {
                add(name, &labels, n);
            }
        }
        if let (Some(own), Some(newest)) = (date(member), newest) {
            add(
                "member_lag_seconds",
                &labels,
                (newest - own) as f64 / 1000.0,
            );
        }
        if let Some(own) = number_of(member, "lastIndexOnDisk") {
            add("member_lag_entries", &labels, (last - own).max(0.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn each_name_is_explained_once_and_before_its_figures() {
        let mut figures = Figures::new();
        for (name, n) in [
            ("pando_replication_member_state{member=\"b:1\"}", 2.0),
            ("pando_replication_member_state{member=\"a:1\"}", 1.0),
            ("pando_opcounters_insert", 5.0),
            ("pando_mem_resident", 9.0),
        ] {
            figures.insert(name.into(), n);
        }
        let text = render(&figures);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..6],
            [
                "# HELP pando_mem_resident mem.resident of serverStatus",
                "# TYPE pando_mem_resident untyped",
                "pando_mem_resident 9",
                "# HELP pando_opcounters_insert opcounters.insert of serverStatus",
                "# TYPE pando_opcounters_insert counter",
                "pando_opcounters_insert 5",
            ]
        );
        assert_eq!(lines[7], "# TYPE pando_replication_member_state gauge");
        assert_eq!(lines.len(), 10);
        let mut disk = Figures::new();
        add_disk(&mut disk, Path::new("/"));
        assert!(disk["pando_disk_free_bytes"] <= disk["pando_disk_total_bytes"]);
    }

    #[test]
    fn figures_are_named_by_their_path() {
        let mut figures = Figures::new();
        let inner = doc! { "b-c": 5, "s": "text", "on": true };
        let status = doc! { "a": inner, "n": 1.5 };
        add_all(&mut figures, "pando", status.as_doc());
        let names: Vec<(&str, f64)> = figures.iter().map(|(n, f)| (&**n, *f)).collect();
        assert_eq!(
            names,
            [("pando_a_b_c", 5.0), ("pando_a_on", 1.0), ("pando_n", 1.5)]
        );
    }
}
