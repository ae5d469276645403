//! Whether a configuration may start a set, or follow another.
//!
//! Non-forced changes keep each majority of the old configuration and each of the new in one
//! member at least: at most one vote comes or goes.

use super::{Config, Host, MAX_MEMBERS, MAX_VOTING_MEMBERS, MemberConfig, NO_TERM};
use errors::{Fallible, bail, err};

impl Config {
    /// Whether the set `set_name` may start with it, and as which member the server that `is_me`
    /// knows. Gives the place in `members`.
    pub fn check_initiate(&self, set_name: &str, is_me: impl Fn(&Host) -> bool) -> Fallible<usize> {
        if self.name != set_name {
            bail!(
                InvalidReplicaSetConfig,
                "Attempting to initiate a replica set with name {}, but command line reports {set_name}; rejecting",
                self.name
            );
        }
        let checked = self
            .check()
            .and_then(|()| self.check_arbiters())
            .and_then(|()| self.check_first())
            .and_then(|()| self.find_electable_self(is_me));
        checked.map_err(|e| err!(InvalidReplicaSetConfig, "{}", e.message))
    }

    /// Whether it may follow `old`.
    pub fn check_reconfig(&self, old: &Config, force: bool) -> Fallible<()> {
        let mut checked = self.check().and_then(|()| self.check_successor(old));
        if !force {
            checked = checked.and_then(|()| self.check_single_change(old));
        }
        checked
            .and_then(|()| self.check_arbiters())
            .map_err(|e| err!(NewReplicaSetConfigurationIncompatible, "{}", e.message))
    }

    /// The place in `members` of the server that `is_me` knows.
    pub fn find_self(&self, is_me: impl Fn(&Host) -> bool) -> Fallible<usize> {
        let mut found = self.members.iter().enumerate();
        let mut found = found.by_ref().filter(|(_, m)| is_me(&m.host));
        let Some((at, first)) = found.next() else {
            bail!(
                NodeNotFound,
                "No host described in new configuration with {} for replica set {} maps to this node",
                self.version_and_term(),
                self.name
            );
        };
        if let Some((_, second)) = found.next() {
            bail!(
                InvalidReplicaSetConfig,
                "The hosts {} and {} all map to this node in new configuration with {} for replica set {}",
                first.host,
                second.host,
                self.version_and_term(),
                self.name
            );
        }
        Ok(at)
    }

    fn find_electable_self(&self, is_me: impl Fn(&Host) -> bool) -> Fallible<usize> {
        let at = self.find_self(is_me)?;
        match self.members.get(at) {
            Some(me) if !me.is_electable() => bail!(
                NodeNotElectable,
                "This node, {}, with _id {} is not electable under the new configuration with {} for replica set {}",
                me.host,
                me.id,
                self.version_and_term(),
                self.name
            ),
            _ => Ok(at),
        }
    }

    /// Whether the primary, by its `_id`, stays one that may be primary.
    pub fn check_stays_electable(&self, id: i32) -> Fallible<()> {
        let of = || {
            format!(
                "new configuration with {} for replica set {}",
                self.version_and_term(),
                self.name
            )
        };
        match self.member(id) {
            None => bail!(
                NodeNotFound,
                "No host described in {} maps to this node",
                of()
            ),
            Some(me) if !me.is_electable() => bail!(
                NodeNotElectable,
                "This node, {}, with _id {id} is not electable under the {}",
                me.host,
                of()
            ),
            Some(_) => Ok(()),
        }
    }

    /// What holds for each configuration by itself.
    fn check(&self) -> Fallible<()> {
        let n = self.members.len();
        if n == 0 || n > MAX_MEMBERS {
            bail!(
                BadValue,
                "Replica set configuration contains {n} members, but must have at least 1 and no more than  {MAX_MEMBERS}"
            );
        }
        self.check_distinct()?;
        let count = |f: fn(&MemberConfig) -> bool| self.members.iter().filter(|m| f(m)).count();
        let local = count(|m| m.host.is_localhost());
        if local != 0 && local != n {
            bail!(
                BadValue,
                "Either all host names in a replica set configuration must be localhost references, or none must be; found {local} out of {n}"
            );
        }
        let voters = count(|m| m.votes);
        if voters == 0 || voters > MAX_VOTING_MEMBERS {
            bail!(
                BadValue,
                "Replica set configuration contains {voters} voting members, but must be at least 1 and no more than {MAX_VOTING_MEMBERS}"
            );
        }
        if count(MemberConfig::is_electable) == 0 {
            bail!(
                BadValue,
                "Replica set configuration must contain at least one non-arbiter member with priority > 0"
            );
        }
        Ok(())
    }

    fn check_distinct(&self) -> Fallible<()> {
        for (i, a) in self.members.iter().enumerate() {
            for (j, b) in self.members.iter().enumerate().skip(i + 1) {
                let (field, value) = match () {
                    () if a.id == b.id => ("_id", a.id.to_string()),
                    () if a.host == b.host => ("host", a.host.to_string()),
                    () => continue,
                };
                bail!(
                    BadValue,
                    "Found two member configurations with same {field} field, members.{i}.{field} == members.{j}.{field} == {value}"
                );
            }
        }
        Ok(())
    }

    /// An arbiter is never elected.
    fn check_arbiters(&self) -> Fallible<()> {
        let mut arbiters = self.members.iter().filter(|m| m.arbiter_only);
        match arbiters.find(|m| m.priority != 0.0) {
            Some(m) => bail!(
                InvalidReplicaSetConfig,
                "Member {} is an arbiter but has priority {}. Arbiter priority must be 0.",
                m.host,
                m.priority
            ),
            None => Ok(()),
        }
    }

    fn check_first(&self) -> Fallible<()> {
        if self.version != 1 {
            bail!(
                NewReplicaSetConfigurationIncompatible,
                "Configuration used to initiate a replica set must  have version 1, but found {}",
                self.version
            );
        }
        Ok(())
    }

    /// Configurations are ordered by term and version; one that was forced has no term, and is
    /// compared by version.
    pub fn is_newer_than(&self, old: &Config) -> bool {
        match old.term == NO_TERM || self.term == NO_TERM {
            true => self.version > old.version,
            false => (self.term, self.version) > (old.term, old.version),
        }
    }

    fn check_successor(&self, old: &Config) -> Fallible<()> {
        if !self.is_newer_than(old) {
            bail!(
                NewReplicaSetConfigurationIncompatible,
                "New replica set configuration version and term must be greater than old, but {} is not greater than {} for replica set {}",
                self.version_and_term(),
                old.version_and_term(),
                self.name
            );
        }
        if old.name != self.name {
            bail!(
                NewReplicaSetConfigurationIncompatible,
                "New and old configurations differ in replica set name; old was {}, and new is {}",
                old.name,
                self.name
            );
        }
        let (was, is) = (old.settings.replica_set_id, self.settings.replica_set_id);
        if was != is {
            let shown = |id: Option<bson::ObjectId>| {
                id.map_or_else(String::new, |id| {
                    id.0.iter().map(|b| format!("{b:02x}")).collect()
                })
            };
            bail!(
                NewReplicaSetConfigurationIncompatible,
                "New and old configurations differ in replica set ID; old was {}, and new is {}",
                shown(was),
                shown(is)
            );
        }
        if old.config_server && !self.config_server {
            bail!(
                NewReplicaSetConfigurationIncompatible,
                "Cannot remove \"configsvr\" from replica set configuration on reconfig"
            );
        }
        for new in &self.members {
            for was in &old.members {
                self.check_same_member(was, new)?;
            }
        }
        Ok(())
    }

    /// Whether two members of two configurations may be one.
    fn check_same_member(&self, was: &MemberConfig, new: &MemberConfig) -> Fallible<()> {
        if was.id != new.id && was.host != new.host {
            return Ok(());
        }
        if was.id != new.id {
            bail!(
                NewReplicaSetConfigurationIncompatible,
                "New and old configurations both have members with host of {} but in the new configuration the _id field is {} and in the old configuration it is {} for replica set {}",
                was.host,
                new.id,
                was.id,
                self.name
            );
        }
        let field = match () {
            () if was.build_indexes != new.build_indexes => "buildIndexes",
            () if was.arbiter_only != new.arbiter_only => "arbiterOnly",
            () => return Ok(()),
        };
        bail!(
            NewReplicaSetConfigurationIncompatible,
            "New and old configurations differ in the setting of the {field} field for member {}; to make this change, remove then re-add the member",
            was.host
        )
    }

    fn check_single_change(&self, old: &Config) -> Fallible<()> {
        let votes = |config: &Config, id: i32| config.voters().any(|m| m.id == id);
        let come = self.voters().filter(|m| !votes(old, m.id)).count();
        let gone = old.voters().filter(|m| !votes(self, m.id)).count();
        if come + gone > 1 {
            bail!(
                InvalidReplicaSetConfig,
                "Non force replica set reconfig can only add or remove at most 1 voting member."
            );
        }
        Ok(())
    }
}
