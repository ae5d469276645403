//! Users and roles with their credentials, as mongorestore puts them into a server: beside the others, then taken over by it.

use super::server::{NO_SUCH_NAMESPACE, Result, Server, command};
use super::structure::{self, Notes};
use crate::client::DocumentSequence;
use bson::doc;

const BESIDE: [(&str, &str); 2] = [
    ("system.users", "migrated_users"),
    ("system.roles", "migrated_roles"),
];

/// Takes over all users and roles of the source; those that the target has beside them stay.
pub(super) fn copy(from: &mut Server, to: &mut Server, notes: &mut Notes) -> Result<()> {
    match try_copy(from, to) {
        Err(e) if !e.passes() => {
            notes.add(format!("users and roles were not copied: {e}"));
            Ok(())
        }
        done => done,
    }
}

fn try_copy(from: &mut Server, to: &mut Server) -> Result<()> {
    let mut any = false;
    for (at_source, beside) in BESIDE {
        let found = match from.list("admin", &command("find", at_source, |_| {})) {
            Err(e) if e.is(NO_SUCH_NAMESPACE) => Vec::new(),
            found => found?,
        };
        structure::drop_collection(to, "admin", beside)?;
        for document in &found {
            any = true;
            let documents = DocumentSequence {
                field: "documents",
                bytes: document.as_bytes(),
            };
            to.run_with("admin", &command("insert", beside, |_| {}), &documents)?;
        }
    }
    if any {
        let merge = doc! {
            "_mergeAuthzCollections": 1,
            "tempUsersCollection": "admin.migrated_users",
            "tempRolesCollection": "admin.migrated_roles",
            "drop": false,
            "db": "",
        };
        to.run("admin", &merge)?;
    }
    let mut each = BESIDE.iter();
    each.try_for_each(|(_, beside)| structure::drop_collection(to, "admin", beside))
}
