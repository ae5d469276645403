//! Whether a user may run a command, from its arguments and what the table says that it needs.

use crate::args::Args;
use crate::needs::RequiredAccess;
use auth::{Action, Privileges, RoleName, Target, UserName};
use bson::Doc;
use errors::Result;
use query::namespace::{collection_of, db_of};
use service::Request;
use std::collections::BTreeSet;

/// The part of a user on which rights depend.
#[derive(Clone, Copy)]
pub struct Subject<'c> {
    pub name: &'c UserName,
    /// Those that the user was given, and all that they lead to.
    pub all_roles: &'c BTreeSet<RoleName>,
    pub privileges: &'c Privileges,
}

/// A command that asks whether it may run.
pub struct Check<'c, 'r> {
    pub subject: Subject<'c>,
    pub args: &'c Args<'r>,
    /// `None` for a command inside another (`explain`).
    pub request: Option<&'c Request<'r>>,
}

impl<'r> Check<'_, 'r> {
    pub fn may(&self, action: Action, target: Target<'_>) -> bool {
        self.subject.privileges.allows(action, target)
    }

    pub fn may_all(&self, actions: &[Action], target: Target<'_>) -> bool {
        actions.iter().all(|a| self.may(*a, target))
    }

    /// The collection that the command's first value names; its database where it names none.
    pub fn target(&self) -> Target<'r> {
        match self.args.first.as_str() {
            Some(collection) if !collection.is_empty() => {
                Target::Collection(self.args.db, collection)
            }
            _ => Target::Database(self.args.db),
        }
    }

    /// What the command's first value names as `db.collection`.
    pub fn named(&self) -> Target<'r> {
        let ns = self.args.first.as_str().unwrap_or("");
        Target::Collection(db_of(ns), collection_of(ns))
    }

    /// A field's documents, from the body or from a sequence beside it.
    pub fn documents(&self, field: &str) -> Vec<Doc<'r>> {
        if let Some(docs) = self.request.and_then(|r| r.sequence(field)) {
            return docs.collect();
        }
        let list = self.args.field(field).and_then(|v| v.as_array());
        (list.iter().flat_map(|l| l.values()))
            .filter_map(|v| v.as_doc())
            .collect()
    }

    pub fn flag(&self, field: &str) -> bool {
        self.args.field(field).is_some_and(|v| v.truthy())
    }

    /// Whether the user may do what the table says that the command needs.
    pub fn meets(&self, needs: &RequiredAccess) -> Result<bool> {
        Ok(match needs {
            RequiredAccess::Nothing | RequiredAccess::Login => true,
            RequiredAccess::Cluster(actions) => self.may_all(actions, Target::Cluster),
            RequiredAccess::Database(actions) => {
                self.may_all(actions, Target::Database(self.args.db))
            }
            RequiredAccess::Collection(actions) => self.may_all(actions, self.target()),
            RequiredAccess::Namespace(actions) => self.may_all(actions, self.named()),
            RequiredAccess::NamedDatabase(actions) => {
                let db = self.args.first.as_str().unwrap_or("");
                self.may_all(actions, Target::Database(db))
            }
            RequiredAccess::Fixed(db, collection, actions) => {
                self.may_all(actions, Target::Collection(db, collection))
            }
            RequiredAccess::Own(decide) => decide(self)?,
        })
    }
}
