//! Names of users and roles. Each belongs to a database, and is written `name@db`.

use bson::{Doc, Val, tag};
use errors::{Fallible, bail};
use sha2::{Digest, Sha256};
use std::fmt;

/// Names a user: no two have both parts alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserName {
    pub user: String,
    pub db: String,
}

/// Names a role: no two have both parts alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoleName {
    pub role: String,
    pub db: String,
}

impl UserName {
    pub fn new(user: impl Into<String>, db: impl Into<String>) -> UserName {
        UserName {
            user: user.into(),
            db: db.into(),
        }
    }

    /// The `_id` of its document in `system.users`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.db, self.user)
    }

    /// The owner's id in a user's sessions: SHA-256 of `user@db`, of nothing where there is no name.
    pub fn digest(&self) -> [u8; 32] {
        if self.user.is_empty() && self.db.is_empty() {
            return Sha256::digest([]).into();
        }
        Sha256::new()
            .chain_update(&self.user)
            .chain_update("@")
            .chain_update(&self.db)
            .finalize()
            .into()
    }

    /// `"user"` of `db`, or `{user, db}`.
    pub fn parse(v: Val<'_>, db: &str) -> Fallible<UserName> {
        let (user, db) = pair(v, "user", db)?;
        Ok(UserName { user, db })
    }
}

impl RoleName {
    pub fn new(role: impl Into<String>, db: impl Into<String>) -> RoleName {
        RoleName {
            role: role.into(),
            db: db.into(),
        }
    }

    /// The `_id` of its document in `system.roles`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.db, self.role)
    }

    /// `"role"` of `db`, or `{role, db}`.
    pub fn parse(v: Val<'_>, db: &str) -> Fallible<RoleName> {
        let (role, db) = pair(v, "role", db)?;
        Ok(RoleName { role, db })
    }

    /// A list of names in any of their forms.
    pub fn parse_list(list: Doc<'_>, db: &str) -> Fallible<Vec<RoleName>> {
        list.values().map(|v| RoleName::parse(v, db)).collect()
    }
}

fn pair(v: Val<'_>, what: &str, db: &str) -> Fallible<(String, String)> {
    match v.tag {
        tag::STRING => {
            let name = v.as_str().unwrap_or_default();
            if name.is_empty() {
                bail!(BadValue, "{what} name must not be empty");
            }
            Ok((name.to_string(), db.to_string()))
        }
        tag::DOCUMENT => {
            let d = crate::unique(what, v.as_doc().unwrap_or(Doc::EMPTY))?;
            let part = |field: &str| match d.get(field).and_then(|v| v.as_str()) {
                Some(s) => Ok(s.to_string()),
                None => bail!(
                    BadValue,
                    "Missing expected field \"{field}\" in a {what} name"
                ),
            };
            Ok((part(what)?, part("db")?))
        }
        _ => bail!(
            BadValue,
            "A {what} name must be a string, or an object with \"{what}\" and \"db\""
        ),
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.db)
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.role, self.db)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn names_have_two_forms() {
        let v = doc! { "a": "u", "b": doc! { "user": "u", "db": "x" }, "c": 1, "d": doc! { "user": "u" }, "e": "" };
        let of = |f: &str| UserName::parse(v.get(f).unwrap(), "d");
        assert_eq!(of("a").unwrap(), UserName::new("u", "d"));
        assert_eq!(of("b").unwrap(), UserName::new("u", "x"));
        assert!(of("c").is_err() && of("d").is_err() && of("e").is_err());
        assert_eq!(of("b").unwrap().to_string(), "u@x");
        assert_eq!(of("b").unwrap().id(), "x.u");
    }
}
