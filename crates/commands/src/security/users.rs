//! Users as they are stored, one document each, as MongoDB 8 keeps them.
//!
//! ```text
//! admin.system.users:   {_id: "db.user", userId: UUID, user, db, credentials: {"SCRAM-SHA-256": {…}, …},
//!                        customData, roles: [{role, db}, …], authenticationRestrictions: [{…}, …]}
//! admin.system.version: {_id: "authSchema", currentVersion: 5}
//! ```

use crate::settings::documents;
use auth::restriction::Restrictions;
use auth::{RoleName, UserName};
use bson::{Doc, DocBuf, Val, doc};
use errors::Result;
use executor::{Engine, OpCtx};
use std::sync::Arc;

pub const NS: &str = "admin.system.users";
const VERSION: &str = "admin.system.version";

/// A stored user.
#[derive(Clone)]
pub struct User {
    pub name: UserName,
    doc: DocBuf,
}

impl User {
    /// `None`: the document is no user's.
    pub fn of(doc: DocBuf) -> Option<User> {
        let text = |field: &str| Some(doc.get(field)?.as_str()?.to_string());
        let name = UserName::new(text("user")?, text("db")?);
        Some(User { name, doc })
    }

    pub fn field(&self, name: &str) -> Option<Val<'_>> {
        self.doc.get(name)
    }

    pub fn document(&self) -> Doc<'_> {
        self.doc.as_doc()
    }

    pub fn credentials(&self) -> Doc<'_> {
        let d = self.field("credentials").and_then(|v| v.as_doc());
        d.unwrap_or(Doc::EMPTY)
    }

    pub fn roles(&self) -> Vec<RoleName> {
        role_names(self.document())
    }

    /// What cannot be read allows nothing.
    pub fn restrictions(&self) -> Result<Restrictions> {
        match self.field("authenticationRestrictions") {
            Some(v) => Ok(Restrictions::parse(v)?),
            None => Ok(Restrictions::default()),
        }
    }
}

/// The roles that a stored user or role names. Invalid names are skipped.
pub fn role_names(d: Doc<'_>) -> Vec<RoleName> {
    let list = d.get("roles").and_then(|v| v.as_array());
    (list.iter().flat_map(|l| l.values()))
        .filter_map(|v| RoleName::parse(v, "").ok())
        .collect()
}

pub fn any(engine: &Arc<Engine>) -> Result<bool> {
    documents::any(engine, NS)
}

pub fn find(engine: &Arc<Engine>, name: &UserName) -> Result<Option<User>> {
    let found = documents::get(engine, NS, &name.id())?.and_then(User::of);
    // Two names can have one id, where one holds a dot.
    Ok(found.filter(|u| u.name == *name))
}

/// All users that match a filter on their documents.
pub fn matching(engine: &Arc<Engine>, filter: Doc<'_>) -> Result<Vec<User>> {
    let mut all = Vec::new();
    documents::each(engine, NS, filter, |d| {
        all.extend(User::of(d.to_buf()));
        Ok(true)
    })?;
    all.sort_by(|a, b| (&a.name.db, &a.name.user).cmp(&(&b.name.db, &b.name.user)));
    Ok(all)
}

/// Stores a user; `doc` has no `_id`.
pub fn save(op: &mut OpCtx<'_>, engine: &Arc<Engine>, name: &UserName, doc: Doc<'_>) -> Result<()> {
    if documents::get(engine, VERSION, "authSchema")?.is_none() {
        let version = doc! { "currentVersion": 5 };
        documents::put(op, VERSION, "authSchema", version.as_doc())?;
    }
    documents::put(op, NS, &name.id(), doc)
}
