//! Temporary collections: an operation (`$out`, convertToCapped) fills one before it replaces
//! another collection. Those that a kill leaves behind are dropped at the next start. They are
//! recognized by their reserved names.

use catalog::Catalog;

const OUT: &str = "tmp.agg_out.";
const CAPPED: &str = ".convertToCapped";

/// A new name for a temporary collection of `$out`.
pub(crate) fn of_out(db: &str) -> String {
    format!("{db}.{OUT}{:016x}", rand::random::<u64>())
}

/// A new name for a temporary collection of convertToCapped.
pub fn of_convert_to_capped(db: &str) -> String {
    format!("{db}.tmp{:016x}{CAPPED}", rand::random::<u64>())
}

fn is_one(ns: &str) -> bool {
    let name = catalog::collection_of(ns);
    let name = name.strip_prefix(time_series::BUCKETS).unwrap_or(name);
    let number = name.strip_prefix(OUT).or_else(|| {
        let rest = name.strip_prefix("tmp")?;
        rest.strip_suffix(CAPPED)
    });
    number
        .is_some_and(|n| n.len() == 16 && n.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Drops all temporary collections. One that cannot be dropped stays until the next start; it does
/// no harm.
pub(crate) fn drop_all(catalog: &Catalog) {
    for coll in catalog.snapshot().all().filter(|c| is_one(&c.ns)) {
        match catalog.drop_collection(&coll.ns, &catalog::never_interrupted) {
            Ok(_) => {
                tracing::info!(target: "STORAGE", ns = &*coll.ns, "Dropped what an operation that was killed had left");
            }
            Err(e) => {
                tracing::warn!(target: "STORAGE", ns = &*coll.ns, error = %e, "Cannot drop what an operation that was killed had left");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_names() {
        assert!(is_one(&of_out("d")) && is_one(&of_convert_to_capped("d")));
        for other in [
            "d.tmp.agg_out.1",
            "d.tmp.agg_out.mine56789abcdefg",
            "d.tmp.convertToCapped",
            "d.things",
        ] {
            assert!(!is_one(other), "{other}");
        }
    }
}
