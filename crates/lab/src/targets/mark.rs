//! Whose a table is. The laboratory drops only what it made and marked, and what it was told to with `--overwrite`.
//!
//! Invariant: a table that is there and bears no mark of ours is never dropped, emptied or loaded into
//! without `--overwrite`. A mark of MongoDB's protocol is a document in a collection beside the table,
//! with the table's UUID, so that a table that another program dropped and made anew is not taken for
//! ours; of PostgreSQL and MySQL it is the table's comment.

use crate::fault::{Fault, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The collection of marks, one in each database: `{_id: <collection>, uuid: <its UUID>}`.
pub const COLLECTION: &str = "pando_lab_made";

/// The comment on a table of a relational database.
pub const COMMENT: &str = "made by pando lab";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// There is no such table.
    Nobody,
    /// The laboratory made it.
    Ours,
    Others,
}

static OVERWRITE: AtomicBool = AtomicBool::new(false);

/// `--overwrite`: tables of others may be dropped, for as long as this process lives.
pub fn overwrite() {
    OVERWRITE.store(true, Relaxed);
}

/// Refuses a table of others, in one line that says what to add.
pub fn claim(owner: Owner, shown: &str, table: &str) -> Result<()> {
    if owner != Owner::Others || OVERWRITE.load(Relaxed) {
        return Ok(());
    }
    Err(Fault::Usage(format!(
        "{shown}: the laboratory did not make {table} and leaves it alone; name another database, or add --overwrite to lose it"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_made_is_refused_in_one_line() {
        assert!(claim(Owner::Nobody, "u", "t").is_ok() && claim(Owner::Ours, "u", "t").is_ok());
        let fault = claim(Owner::Others, "mongodb://h", "precious.t").unwrap_err();
        let line = fault.to_string();
        assert!(matches!(fault, Fault::Usage(_)) && !line.contains('\n'));
        assert!(
            line.contains("precious.t") && line.contains("--overwrite"),
            "{line}"
        );
    }
}
