//! `pando cluster up --from ARCHIVE`: a deployment from a backup, at addresses and with as many members as
//! are wanted.
//!
//! ```text
//! archive ─► DIR/restored/s0, …            whole, or made anew
//!         ─► the record, with the steps that remain
//!         ─► DIR/s0-0, …                   the first member of each set
//!         ─► config.shards says where the shards are now
//!         ─► started as every deployment; the other members copy the data
//! ```
//! Invariant: the metadata is changed while the configuration set is a server alone, which contacts no
//! other. As a configuration set it would speak to the shards at their old addresses, where those of
//! before may still serve.

use super::deployment::{Access, Deployment, MemberProcess, Role, SET, Stage};
use super::processes::launch;
use super::shares::options_of;
use super::{ClusterArguments, LOOK, PATIENCE, planned};
use crate::client::refusal;
use crate::point_in_time;
use crate::progress::ProgressLine;
use crate::restore::{self, RestoredSet};
use bson::{Val, doc};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use storage::Until;

const RESTORED: &str = "restored";

/// Restores the backup, and plans the members of its sets.
pub(super) fn plan(
    dir: &Path,
    archive: &str,
    arguments: &ClusterArguments,
) -> Result<Deployment, String> {
    let until = match &arguments.until {
        Some(text) => point_in_time::parse(text)?,
        None => Until::End,
    };
    let place = dir.join(RESTORED);
    // Of an attempt that was killed before the record was there.
    let _ = fs::remove_dir_all(&place);
    let (is_cluster, sets) = restore::whole(archive, &place, arguments.key_file.as_deref(), until)?;
    let named: Vec<(String, Role)> = sets.iter().map(|s| (set_name(s), role(s))).collect();
    if let Some((name, _)) = named.iter().find(|(name, _)| !is_plain(name)) {
        return Err(format!("the set '{name}' cannot be a directory"));
    }
    let replicas = arguments.replicas.unwrap_or(1);
    let router = is_cluster.then(|| ("router".to_string(), Role::Router, 1));
    let each = named.iter().map(|(n, role)| (n.clone(), *role, replicas));
    let mut sets_to_plan: Vec<_> = router.into_iter().chain(each).collect();
    sets_to_plan.sort_by_key(|(_, role, _)| match role {
        Role::Router => 0,
        Role::Config => 1,
        _ => 2,
    });
    let mut deployment = planned(sets_to_plan, arguments)?;
    for member in &mut deployment.members {
        // They copy what the first one has.
        if member.role != Role::Router && !member.name.ends_with("-0") {
            member.stage = Stage::NewMember;
        }
    }
    let to = named.iter().map(|(set, _)| format!("{set}-0"));
    deployment.unsettled = sets.iter().map(|s| s.name.clone()).zip(to).collect();
    Ok(deployment)
}

/// The name of the replica set; a server alone becomes one.
fn set_name(set: &RestoredSet) -> String {
    let name = set.members.split('/').next().unwrap_or_default();
    match (name, set.name.as_str()) {
        ("", "") => SET.into(),
        ("", shard) => shard.into(),
        (name, _) => name.into(),
    }
}

fn role(set: &RestoredSet) -> Role {
    match set.name.as_str() {
        "" => Role::Plain,
        "config" => Role::Config,
        _ => Role::Shard,
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    name.bytes().all(plain) && !name.starts_with('.')
}

/// Puts the restored sets in their place, and has the metadata say where the shards are, unless that was
/// done.
pub(super) fn settle(dir: &Path, deployment: &mut Deployment) -> Result<(), String> {
    if deployment.unsettled.is_empty() {
        return Ok(());
    }
    // What an attempt before has left.
    deployment.end(dir, |_| true)?;
    for (from, to) in &deployment.unsettled {
        let (from, to) = (place_of(dir, from), dir.join(to));
        if from.exists() && !to.exists() {
            fs::rename(&from, &to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
        }
    }
    if deployment.router().is_some() {
        tell_addresses(dir, deployment)?;
    }
    deployment.unsettled.clear();
    deployment.save(dir)?;
    let _ = fs::remove_dir(dir.join(RESTORED));
    Ok(())
}

fn place_of(dir: &Path, set: &str) -> PathBuf {
    match set {
        "" => dir.join(RESTORED),
        set => dir.join(RESTORED).join(set),
    }
}

fn tell_addresses(dir: &Path, deployment: &mut Deployment) -> Result<(), String> {
    let _progress = ProgressLine::of_time("saying where the shards are");
    let of = |name: &str| deployment.members.iter().find(|m| m.name == name);
    let shards: Vec<(String, String)> = (deployment.unsettled.iter())
        .filter_map(|(shard, member)| {
            let member = of(member).filter(|m| m.role == Role::Shard)?;
            Some((shard.clone(), format!("{}/{}", member.set, member.host())))
        })
        .collect();
    let at = (deployment.members.iter())
        .position(|m| m.role == Role::Config && m.stage == Stage::There)
        .ok_or("there is no configuration set in the backup")?;
    let servers = deployment.members.len();
    let Some(member) = deployment.members.get_mut(at) else {
        return Ok(());
    };
    // Of no set: alone.
    let alone = MemberProcess {
        set: String::new(),
        role: Role::Plain,
        ..member.clone()
    };
    let options = options_of(&deployment.server, servers, 0)?;
    member.is_process(launch(dir, &alone, "", &options)?);
    let member = member.clone();
    deployment.save(dir)?;
    let access = deployment.access()?;
    await_writable(&member, &access)?;
    for (shard, host) in shards {
        let one = doc! {"q": doc! {"_id": shard.as_str()}, "u": doc! {"$set": doc! {"host": host}}};
        let update = doc! {
            "update": "shards",
            "updates": bson::array![one],
            "writeConcern": doc! {"w": "majority"},
        };
        let reply = member.ask(&access, "config", update.as_doc())?;
        refusal(reply.as_doc()).map_or(Ok(()), Err)?;
        if reply.as_doc().get("n").and_then(Val::to_i64_exact) != Some(1) {
            return Err(format!("the metadata of the backup has no shard {shard}"));
        }
    }
    deployment.end(dir, |m| m.name == member.name)?;
    Ok(())
}

fn await_writable(member: &MemberProcess, access: &Access) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    let anonymous = access.without_login();
    loop {
        let hello = doc! { "hello": 1 };
        let reply = member.ask_within(super::ANSWER, &anonymous, hello.as_doc());
        let writable = |r: &bson::DocBuf| {
            let is = r.as_doc().get("isWritablePrimary");
            is.is_some_and(|v| v.truthy())
        };
        match reply {
            Ok(reply) if writable(&reply) => return Ok(()),
            _ if Instant::now() > until || !member.runs() => {
                return Err(format!("{} does not serve: see its log", member.name));
            }
            _ => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_named_as_they_were() {
        let set = |name: &str, members: &str| RestoredSet {
            name: name.into(),
            members: members.into(),
        };
        for (set, name, is) in [
            (set("", ""), "rs0", Role::Plain),
            (set("", "shop/h:1"), "shop", Role::Plain),
            (set("config", "csrs/h:1,h:2"), "csrs", Role::Config),
            (set("s1", ""), "s1", Role::Shard),
        ] {
            assert_eq!((set_name(&set).as_str(), role(&set)), (name, is));
        }
        assert!(is_plain("rs-0_a.b") && !is_plain("../x") && !is_plain("a/b"));
    }
}
