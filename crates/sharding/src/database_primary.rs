//! Where a database's collections are that are not sharded: its primary shard, since which version,
//! and what a shard knows of that (`config.homes` there).
//!
//! Invariant: the state never goes back. A shard that is fenced, or is the primary no more, serves no
//! router that believes otherwise. What an earlier holder of the database's lock still sends is refused.

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
pub struct DatabasePrimary {
    pub db: String,
    pub version: DbVersion,
    /// Whether the shard is the primary.
    pub primary: bool,
    /// The mover that is about to make another shard the primary: routers wait.
    pub fence: Option<String>,
    /// The latest holder of the database's lock that was heard of.
    pub turn: u64,
}

impl DatabasePrimary {
    pub fn parse(d: Doc<'_>) -> Result<DatabasePrimary> {
        let db = d.get("_id").and_then(Val::as_str);
        let version = d.get("version").and_then(Val::as_doc);
        let (Some(db), Some(version)) = (db, version) else {
            bail!(FailedToParse, "{d} does not say where a database is");
        };
        Ok(DatabasePrimary {
            db: db.into(),
            version: DbVersion::parse(version)?,
            primary: d.get("primary").is_some_and(Val::truthy),
            fence: d.get("fence").and_then(Val::as_str).map(str::to_string),
            turn: d.get("turn").and_then(Val::to_i64_exact).unwrap_or(0) as u64,
        })
    }

    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("_id", &self.db)
            .doc("version", self.version.to_doc().as_doc())
            .bool("primary", self.primary)
            .i64("turn", self.turn as i64);
        if let Some(by) = &self.fence {
            w.str("fence", by);
        }
        w.finish()
    }

    /// The state after `told`; `None` if it is not newer.
    pub fn learn(
        known: Option<&DatabasePrimary>,
        told: &DatabasePrimary,
    ) -> Option<DatabasePrimary> {
        match known {
            Some(known) if !told.version.is_newer(&known.version) => None,
            _ => Some(DatabasePrimary {
                fence: None,
                turn: known.map_or(0, |k| k.turn),
                ..told.clone()
            }),
        }
    }

    /// The same when a router tells it, or the holder `turn` of the database's lock.
    pub fn learn_in_turn(
        known: Option<&DatabasePrimary>,
        told: &DatabasePrimary,
        turn: Option<u64>,
    ) -> Result<Option<DatabasePrimary>> {
        let learned = DatabasePrimary::learn(known, told);
        let Some(turn) = turn else {
            return Ok(learned);
        };
        let base = learned.or(known.cloned()).unwrap_or_else(|| told.clone());
        base.heed(turn).map(Some)
    }

    /// Fails if the lock has had a later holder.
    fn heed(mut self, turn: u64) -> Result<DatabasePrimary> {
        if turn < self.turn {
            bail!(
                ConflictingOperationInProgress,
                "the primary of {} is being changed by somebody else since",
                self.db
            );
        }
        self.turn = turn;
        Ok(self)
    }

    /// With a fence, where the shard is the primary as of that version, of which it may hear by this.
    pub fn fenced(
        known: Option<&DatabasePrimary>,
        (db, version): (&str, DbVersion),
        by: &str,
        turn: u64,
    ) -> Result<DatabasePrimary> {
        // The lock's holder may know of a later life than the shard, if no router has used it yet.
        let known_now = known.filter(|k| !version.is_newer(&k.version));
        if known_now.is_some_and(|k| k.version != version || !k.primary) {
            bail!(StaleDbVersion, "{db} has another primary since");
        }
        let open = DatabasePrimary {
            db: db.into(),
            version,
            primary: true,
            fence: None,
            turn: known.map_or(0, |k| k.turn),
        };
        Ok(DatabasePrimary {
            fence: Some(by.into()),
            ..open.heed(turn)?
        })
    }

    pub fn without_fence(&self) -> DatabasePrimary {
        DatabasePrimary {
            fence: None,
            ..self.clone()
        }
    }

    /// Without the fence of `by`, and for the holder `turn` of the lock without that of anybody; `None`
    /// where there is nothing to lift.
    pub fn lifted(&self, by: &str, turn: Option<u64>) -> Result<Option<DatabasePrimary>> {
        let heard = self.clone().heed(turn.unwrap_or(self.turn))?;
        let fence = heard.fence.as_deref();
        let lifts = fence == Some(by) || turn.is_some() && fence.is_some();
        Ok(lifts.then(|| heard.without_fence()))
    }

    /// Before the database's views are removed from a shard: from here on commands of earlier holders of
    /// the lock are refused. Fails where the shard is the primary.
    pub fn cleared(
        known: Option<&DatabasePrimary>,
        db: &str,
        turn: u64,
    ) -> Result<DatabasePrimary> {
        match known {
            Some(known) if !known.primary => known.clone().heed(turn),
            _ => bail!(IllegalOperation, "the shard may be the primary of {db}"),
        }
    }

    /// Whether the shard takes views from a mover: the mover is the last holder of the lock that the
    /// shard knows, and the shard is not the primary yet.
    pub fn takes_from(known: Option<&DatabasePrimary>, turn: u64) -> bool {
        known.is_some_and(|k| !k.primary && k.turn == turn)
    }
}

/// How a router's belief of a database's primary stands to what the shard knows. A shard that has
/// heard of nothing believes it.
pub fn database_standing(known: Option<&DatabasePrimary>, received: DbVersion) -> Standing {
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
        let old = DatabasePrimary {
            db: "d".into(),
            version: version(5, 1),
            primary: true,
            fence: None,
            turn: 3,
        };
        assert_eq!(DatabasePrimary::parse(old.to_doc().as_doc()).unwrap(), old);
        assert_eq!(database_standing(None, version(5, 1)), serve);
        assert_eq!(database_standing(Some(&old), version(5, 1)), serve);
        let fenced = DatabasePrimary {
            fence: Some("m".into()),
            ..old.clone()
        };
        assert_eq!(
            DatabasePrimary::parse(fenced.to_doc().as_doc()).unwrap(),
            fenced
        );
        assert_eq!(
            database_standing(Some(&fenced), version(5, 1)),
            Standing::Fenced
        );
        let told = DatabasePrimary {
            version: version(5, 1).next(),
            primary: false,
            ..old.clone()
        };
        let now = DatabasePrimary::learn(Some(&fenced), &told).unwrap();
        assert_eq!(now.fence, None);
        for believed in [version(5, 1), version(5, 2)] {
            assert_eq!(database_standing(Some(&now), believed), Standing::Stale);
        }
        assert!(DatabasePrimary::learn(Some(&now), &old).is_none());
        let again = DatabasePrimary {
            version: version(6, 1),
            ..old
        };
        let now = DatabasePrimary::learn(Some(&now), &again).unwrap();
        assert_eq!(database_standing(Some(&now), version(6, 1)), serve);
    }

    /// A mover that wakes up when another has the lock, or whose fence comes after the end of its own
    /// move, changes nothing.
    #[test]
    fn who_was_followed_is_refused() {
        let v = version(5, 1);
        let fence = |known: Option<&DatabasePrimary>, by, turn| {
            DatabasePrimary::fenced(known, ("d", v), by, turn)
        };
        let fenced = fence(None, "m", 7).unwrap();
        assert_eq!((fenced.fence.as_deref(), fenced.turn), (Some("m"), 7));
        assert!(fence(Some(&fenced), "n", 6).is_err());
        assert_eq!(fenced.lifted("n", None).unwrap(), None);
        let lifted = fenced.lifted("n", Some(7)).unwrap().unwrap();
        assert_eq!((lifted.fence.as_deref(), lifted.turn), (None, 7));
        assert_eq!(lifted.lifted("m", Some(7)).unwrap(), None);
        assert!(fenced.lifted("m", Some(6)).is_err());
        let told = DatabasePrimary::learn_in_turn(Some(&fenced), &fenced, Some(8))
            .unwrap()
            .unwrap();
        assert_eq!((told.fence.as_deref(), told.turn), (Some("m"), 8));
        let open = told.lifted("m", None).unwrap().unwrap();
        assert!(fence(Some(&open), "m", 7).is_err());
        let next = DatabasePrimary {
            version: v.next(),
            primary: false,
            ..open.clone()
        };
        assert_eq!(
            DatabasePrimary::learn_in_turn(Some(&open), &next, None)
                .unwrap()
                .unwrap()
                .turn,
            8
        );
        let moved = DatabasePrimary::learn_in_turn(Some(&open), &next, Some(8))
            .unwrap()
            .unwrap();
        assert!(
            fence(Some(&moved), "m", 8).is_err(),
            "it is the primary no more"
        );
        // A life of which the shard has not heard.
        let later = (("d", version(6, 1)), "m");
        assert!(DatabasePrimary::fenced(Some(&moved), later.0, later.1, 7).is_err());
        let fenced = DatabasePrimary::fenced(Some(&moved), later.0, later.1, 8).unwrap();
        assert_eq!((fenced.version, fenced.primary), (version(6, 1), true));
        assert!(
            DatabasePrimary::takes_from(Some(&moved), 8)
                && !DatabasePrimary::takes_from(Some(&moved), 7)
        );
        assert!(
            !DatabasePrimary::takes_from(Some(&open), 8) && !DatabasePrimary::takes_from(None, 8)
        );
        assert!(
            DatabasePrimary::cleared(Some(&open), "d", 8).is_err()
                && DatabasePrimary::cleared(None, "d", 8).is_err()
        );
        assert!(DatabasePrimary::cleared(Some(&moved), "d", 7).is_err());
        assert_eq!(
            DatabasePrimary::cleared(Some(&moved), "d", 9).unwrap().turn,
            9
        );
    }
}
