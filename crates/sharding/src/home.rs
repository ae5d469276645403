//! Where a database's collections are that are not sharded: its primary shard, since which version,
//! and what a shard knows of that (`config.homes` there).
//!
//! Invariant: what is learned never goes back. A shard that is fenced, or is the primary no more,
//! serves no router that believes otherwise.

use crate::Standing;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail};

/// `{uuid, timestamp, lastMod}`: the database's life, and how often its primary has changed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DbVersion {
    pub uuid: [u8; 16],
    pub timestamp: u64,
    pub last_mod: i64,
}

impl DbVersion {
    pub fn parse(d: Doc<'_>) -> Result<DbVersion> {
        let read = || {
            Some(DbVersion {
                uuid: d.get("uuid")?.as_binary()?.1.try_into().ok()?,
                timestamp: d.get("timestamp")?.as_timestamp()?,
                last_mod: d.get("lastMod")?.to_i64_exact()?,
            })
        };
        match read() {
            Some(version) => Ok(version),
            None => bail!(
                FailedToParse,
                "databaseVersion is {{uuid, timestamp, lastMod}}, not {d}"
            ),
        }
    }

    pub fn to_doc(self) -> DocBuf {
        let mut w = Writer::new();
        w.binary("uuid", 4, &self.uuid)
            .timestamp("timestamp", self.timestamp)
            .int("lastMod", self.last_mod);
        w.finish()
    }

    /// Of a later life or, in the same, after more changes.
    pub fn is_newer(&self, other: &DbVersion) -> bool {
        (self.timestamp, self.last_mod) > (other.timestamp, other.last_mod)
    }

    /// The version after the next change.
    pub fn next(self) -> DbVersion {
        DbVersion {
            last_mod: self.last_mod + 1,
            ..self
        }
    }
}

/// What a shard knows of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub db: String,
    pub version: DbVersion,
    /// Whether the shard is the primary.
    pub primary: bool,
    /// Who is about to make another shard the primary: routers wait.
    pub fence: Option<String>,
}

impl Home {
    pub fn parse(d: Doc<'_>) -> Result<Home> {
        let db = d.get("_id").and_then(Val::as_str);
        let version = d.get("version").and_then(Val::as_doc);
        let (Some(db), Some(version)) = (db, version) else {
            bail!(FailedToParse, "{d} does not say where a database is");
        };
        Ok(Home {
            db: db.into(),
            version: DbVersion::parse(version)?,
            primary: d.get("primary").is_some_and(Val::truthy),
            fence: d.get("fence").and_then(Val::as_str).map(str::to_string),
        })
    }

    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("_id", &self.db)
            .doc("version", self.version.to_doc().as_doc())
            .bool("primary", self.primary);
        if let Some(by) = &self.fence {
            w.str("fence", by);
        }
        w.finish()
    }

    /// What is known after `told`; `None` when it is nothing new.
    pub fn learn(known: Option<&Home>, told: &Home) -> Option<Home> {
        match known {
            Some(known) if !told.version.is_newer(&known.version) => None,
            _ => Some(Home {
                fence: None,
                ..told.clone()
            }),
        }
    }
}

/// How a router's belief of a database's primary stands to what the shard knows. A shard that has
/// heard of nothing believes it.
pub fn home_standing(known: Option<&Home>, received: DbVersion) -> Standing {
    match known {
        None => Standing::Serve { hides: false },
        Some(known) if known.version != received || !known.primary => Standing::Stale,
        Some(known) if known.fence.is_some() => Standing::Fenced,
        Some(_) => Standing::Serve { hides: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(timestamp: u64, last_mod: i64) -> DbVersion {
        DbVersion {
            uuid: [timestamp as u8; 16],
            timestamp,
            last_mod,
        }
    }

    #[test]
    fn a_primary_moves() {
        let serve = Standing::Serve { hides: false };
        let old = Home {
            db: "d".into(),
            version: version(5, 1),
            primary: true,
            fence: None,
        };
        assert_eq!(Home::parse(old.to_doc().as_doc()).unwrap(), old);
        assert_eq!(home_standing(None, version(5, 1)), serve);
        assert_eq!(home_standing(Some(&old), version(5, 1)), serve);
        let fenced = Home {
            fence: Some("m".into()),
            ..old.clone()
        };
        assert_eq!(Home::parse(fenced.to_doc().as_doc()).unwrap(), fenced);
        assert_eq!(
            home_standing(Some(&fenced), version(5, 1)),
            Standing::Fenced
        );
        let told = Home {
            version: version(5, 1).next(),
            primary: false,
            ..old.clone()
        };
        let now = Home::learn(Some(&fenced), &told).unwrap();
        assert_eq!(now.fence, None);
        for believed in [version(5, 1), version(5, 2)] {
            assert_eq!(home_standing(Some(&now), believed), Standing::Stale);
        }
        assert!(Home::learn(Some(&now), &old).is_none());
        let again = Home {
            version: version(6, 1),
            ..old
        };
        let now = Home::learn(Some(&now), &again).unwrap();
        assert_eq!(home_standing(Some(&now), version(6, 1)), serve);
    }
}
