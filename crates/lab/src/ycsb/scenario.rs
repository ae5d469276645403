//! The built-in workloads, as property files.

use super::{Properties, Spec};
use crate::fault::{Fault, Result};

/// Name, what it is, properties.
pub const ALL: &[(&str, &str, &str)] = &[
    (
        "C.S1",
        "study C: 100% insert",
        include_str!("../../scenarios/S1.properties"),
    ),
    (
        "C.S2",
        "study C: 90% read, 10% update",
        include_str!("../../scenarios/S2.properties"),
    ),
    (
        "C.S3",
        "study C: 50% read, 50% update",
        include_str!("../../scenarios/S3.properties"),
    ),
    (
        "C.S4",
        "study C: 10% read, 90% update",
        include_str!("../../scenarios/S4.properties"),
    ),
    (
        "C.S5",
        "study C: 100% read",
        include_str!("../../scenarios/S5.properties"),
    ),
    (
        "A",
        "YCSB: 50% read, 50% update",
        include_str!("../../scenarios/A.properties"),
    ),
    (
        "B",
        "YCSB: 95% read, 5% update",
        include_str!("../../scenarios/B.properties"),
    ),
    (
        "C",
        "YCSB: 100% read",
        include_str!("../../scenarios/C.properties"),
    ),
    (
        "D",
        "YCSB: 95% read of the latest, 5% insert",
        include_str!("../../scenarios/D.properties"),
    ),
    (
        "E",
        "YCSB: 95% scan, 5% insert",
        include_str!("../../scenarios/E.properties"),
    ),
    (
        "F",
        "YCSB: 50% read, 50% read-modify-write",
        include_str!("../../scenarios/F.properties"),
    ),
];

/// The properties of a scenario; case does not matter.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter()
        .find(|(n, _, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, _, properties)| *properties)
}

/// The workload of a scenario; without `records`, of as many as its properties say.
pub fn spec(name: &str, records: impl Into<Option<u64>>) -> Result<Spec> {
    let Some(text) = find(name) else {
        return Err(Fault::Usage(format!(
            "{name} is not a scenario (see `pando lab list`)"
        )));
    };
    let mut p = Properties::default();
    p.add_text(text)?;
    if let Some(n) = records.into() {
        p.set("recordcount", n);
    }
    Ok(Spec::new(&p)?.0)
}
