//! All figures of serverStatus, and those of the replica set, in the text form that Prometheus reads.
//!
//! ```text
//! pando_opcounters_insert 5
//! pando_replication_member_state{member="a:27017"} 2
//! ```
//! A figure's name is its path in serverStatus. What is no number or boolean is left out.
//!
//! Invariant: a name with its labels comes once.

use crate::Commands;
use bson::{Doc, DocBuf, Val, Writer, tag};
use errors::Fallible;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Path and labels, to the number.
type Figures = BTreeMap<String, f64>;

/// The text of all figures now.
pub fn text(app: &Commands) -> Fallible<String> {
    let mut figures = Figures::new();
    let status = ask(app, "serverStatus")?;
    add_all(&mut figures, "pando", status.as_doc());
    if app.replica.is_some() {
        // Before there is a set this is an error, which has no figures.
        add_set(&mut figures, ask(app, "replSetGetStatus")?.as_doc());
    }
    let mut text = String::new();
    for (name, figure) in figures {
        let _ = writeln!(text, "{name} {figure}");
    }
    Ok(text)
}

/// The reply to a command of the server's own.
fn ask(app: &Commands, command: &str) -> Fallible<DocBuf> {
    let mut w = Writer::new();
    w.i32(command, 1).str("$db", "admin");
    app.run_own(app.own_user()?, w.finish().as_doc())
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
