//! A deployment that grows and shrinks: one more shard, one more member, one shard less.
//!
//! ```text
//! add-shard     NewShard in the record ─► servers run ─► the router knows it ─► There
//! add-member    NewMember in the record ─► it runs ─► its set has it ─► There
//! remove-shard  `leaves` in the record ─► emptied, the router forgets it ─► its servers end ─► not in the record
//! ```
//! Invariant: a step is recorded before it begins, so the same command goes on with it, whenever it was
//! killed.

use super::deployment::{Access, Deployment, MemberProcess, Role, Stage};
use super::processes::DeploymentLock;
use super::{LOOK, recorded, start};
use crate::client::refusal;
use crate::progress::ProgressLine;
use bson::{Doc, DocBuf, Val, doc};
use std::path::Path;
use std::time::{Duration, Instant};

/// Members of a set that have a vote, at most.
const MOST_MEMBERS: usize = 7;
/// How long a router may not answer while a shard is emptied.
const SILENCE: Duration = Duration::from_secs(60);
const SHARD_NOT_FOUND: i64 = 70;

/// Starts one more shard of a sharded cluster, or goes on with one.
pub(super) fn add_shard(dir: &Path) -> Result<String, String> {
    let _claim = DeploymentLock::of(dir)?;
    let mut deployment = recorded(dir)?;
    let router = deployment.router().map(|_| deployment.uri(""));
    let router = router.ok_or_else(|| no_shards(dir))?;
    let begun = deployment
        .members
        .iter()
        .find(|m| m.stage == Stage::NewShard && !m.leaves);
    let name = match begun {
        Some(member) => member.set.clone(),
        None => plan_shard(&mut deployment)?,
    };
    deployment.save(dir)?;
    start(dir, &mut deployment)?;
    Ok(format!(
        "Shard {name} is there. The balancer moves ranges to it: sh.status() at {router}"
    ))
}

fn no_shards(dir: &Path) -> String {
    format!(
        "{} holds a replica set: 'up --shards N' makes a cluster that has shards",
        dir.display()
    )
}

fn plan_shard(deployment: &mut Deployment) -> Result<String, String> {
    let sets = deployment.sets();
    let shards = sets.iter().filter(|s| s[0].role == Role::Shard);
    let replicas = shards.map(Vec::len).max().unwrap_or(1);
    let name = format!("s{}", deployment.shards_made);
    deployment.shards_made = deployment.shards_made.saturating_add(1);
    for n in 0..replicas {
        let mut new = MemberProcess::planned(&name, Role::Shard, n, deployment.next_port()?);
        new.stage = Stage::NewShard;
        deployment.members.push(new);
    }
    Ok(name)
}

/// Starts one more member of a set, or goes on with one.
pub(super) fn add_member(dir: &Path, set: Option<&str>) -> Result<String, String> {
    let _claim = DeploymentLock::of(dir)?;
    let mut deployment = recorded(dir)?;
    let set = set_named(&deployment, set)?;
    let there: Vec<MemberProcess> = of_set(&deployment, &set);
    let first = there.first().ok_or("there is no member")?;
    if first.leaves {
        return Err(format!(
            "{set} leaves the cluster: it needs no more members"
        ));
    }
    let begun = there.iter().find(|m| m.stage == Stage::NewMember);
    let name = match begun {
        Some(member) => member.name.clone(),
        None if there.len() >= MOST_MEMBERS => {
            return Err(format!(
                "{set} has {MOST_MEMBERS} members: no more may have a vote"
            ));
        }
        None => {
            let port = deployment.next_port()?;
            let mut new = MemberProcess::planned(&set, first.role, there.len(), port);
            new.stage = Stage::NewMember;
            let name = new.name.clone();
            deployment.members.push(new);
            name
        }
    };
    deployment.save(dir)?;
    start(dir, &mut deployment)?;
    let many = of_set(&deployment, &set).len();
    let even = match many % 2 {
        0 => format!(
            " {many} members survive no more failures than {}: add another one.",
            many - 1
        ),
        _ => String::new(),
    };
    Ok(format!(
        "{name} is a member of {set} now, which has {many}.{even}\n\n  connect  {}",
        deployment.uri("")
    ))
}

fn of_set(deployment: &Deployment, set: &str) -> Vec<MemberProcess> {
    let members = deployment.members.iter();
    members.filter(|m| m.set == set).cloned().collect()
}

fn set_named(deployment: &Deployment, name: Option<&str>) -> Result<String, String> {
    let sets = deployment.sets();
    let sets = sets.iter().filter(|s| s[0].role != Role::Router);
    let names: Vec<&str> = sets.map(|s| &*s[0].set).collect();
    match (name, &*names) {
        (None, [only]) => Ok(only.to_string()),
        (None, _) => Err(format!("add-member wants a set: {}", names.join(", "))),
        (Some(name), _) if names.contains(&name) => Ok(name.into()),
        (Some(name), _) => Err(format!(
            "there is no set {name}: there are {}",
            names.join(", ")
        )),
    }
}

/// Empties a shard and takes it out of the cluster, or goes on with that.
pub(super) fn remove_shard(dir: &Path, name: &str) -> Result<String, String> {
    let claim = DeploymentLock::of(dir)?;
    let mut deployment = recorded(dir)?;
    deployment.router().ok_or_else(|| no_shards(dir))?;
    let shards = |d: &Deployment, stays: bool| -> Vec<String> {
        let sets = d.sets();
        let of = sets.iter().filter(|s| s[0].role == Role::Shard);
        let of = of.filter(|s| !stays || !s[0].leaves);
        of.map(|s| s[0].set.clone()).collect()
    };
    if !shards(&deployment, false).iter().any(|s| s == name) {
        let number = name.strip_prefix('s').and_then(|n| n.parse::<u16>().ok());
        return match number.is_some_and(|n| n < deployment.shards_made) {
            true => Ok(format!("Shard {name} was removed before.")),
            false => Err(format!(
                "there is no shard {name}: there are {}",
                shards(&deployment, true).join(", ")
            )),
        };
    }
    let mut others = shards(&deployment, true);
    others.retain(|s| s != name);
    if others.is_empty() {
        return Err(format!(
            "{name} is the last shard: nobody could have its data"
        ));
    }
    for member in deployment.members.iter_mut().filter(|m| m.set == name) {
        member.leaves = true;
    }
    deployment.save(dir)?;
    start(dir, &mut deployment)?;
    // It may take hours. Others may do something meanwhile.
    drop(claim);
    drain(&deployment, name, &others)?;
    let _claim = DeploymentLock::of(dir)?;
    let mut deployment = recorded(dir)?;
    deployment.end(dir, |m| m.set == name)?;
    let left = deployment.members.iter().filter(|m| m.set == name);
    let left: Vec<String> = left.map(|m| m.name.clone()).collect();
    deployment.members.retain(|m| m.set != name);
    deployment.save(dir)?;
    Ok(format!(
        "Shard {name} is empty, out of the cluster, and its servers have ended. What is left in {} of {} can be deleted.",
        left.join(", "),
        dir.display()
    ))
}

/// Has the cluster empty a shard, until it has forgotten it.
fn drain(deployment: &Deployment, name: &str, others: &[String]) -> Result<(), String> {
    let router = deployment.router().ok_or("there is no router")?;
    let access = deployment.access()?;
    let access = &access;
    let balancer = router.ask(access, "admin", doc! { "balancerStatus": 1 }.as_doc())?;
    if balancer.as_doc().get("mode").and_then(|v| v.as_str()) == Some("off") {
        return Err(format!(
            "the balancer is off, so no range leaves {name}: sh.startBalancer() at {}\nThe same command goes on with it.",
            deployment.uri("")
        ));
    }
    let progress = ProgressLine::of_time(&format!("emptying {name}"));
    let mut heard = Instant::now();
    let mut next = others.iter().cycle();
    loop {
        let remove = doc! { "removeShard": name };
        let reply = router.ask(access, "admin", remove.as_doc());
        match reply.and_then(|r| answered(r, SHARD_NOT_FOUND)) {
            Ok(None) => return Ok(()),
            Ok(Some(reply)) => {
                let reply = reply.as_doc();
                if reply.get("state").and_then(|v| v.as_str()) == Some("completed") {
                    return Ok(());
                }
                heard = Instant::now();
                progress.say(&remaining(name, reply));
                for why in move_what_is_whole(router, access, reply, &mut next) {
                    progress.say(&why);
                }
            }
            Err(why) if heard.elapsed() > SILENCE => {
                return Err(format!(
                    "{name} is not empty yet: {why}\nThe same command goes on with it."
                ));
            }
            Err(_) => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// Moves the databases and collections that the balancer does not cut. Returns why some stay; what does
/// not succeed now does in a later round: a move may be under way.
fn move_what_is_whole<'o>(
    router: &MemberProcess,
    access: &Access,
    reply: Doc<'_>,
    to: &mut impl Iterator<Item = &'o String>,
) -> Vec<String> {
    let mut stay = Vec::new();
    for (list, command, field) in [
        ("dbsToMove", "movePrimary", "to"),
        ("collectionsToMove", "moveCollection", "toShard"),
    ] {
        for (what, to) in listed(reply, list).into_iter().zip(&mut *to) {
            let mut w = bson::Writer::new();
            w.str(command, what).str(field, to);
            let moved = router.ask(access, "admin", w.finish().as_doc());
            if let Some(why) = moved.map_or_else(Some, |r| refusal(r.as_doc())) {
                stay.push(format!("{what} does not move yet: {why}"));
            }
        }
    }
    stay
}

/// A reply; `None` if it is an error of that code.
fn answered(reply: DocBuf, unless: i64) -> Result<Option<DocBuf>, String> {
    let code = reply.as_doc().get("code").and_then(Val::to_i64_exact);
    match refusal(reply.as_doc()) {
        None => Ok(Some(reply)),
        Some(_) if code == Some(unless) => Ok(None),
        Some(why) => Err(why),
    }
}

fn listed<'d>(reply: Doc<'d>, field: &str) -> Vec<&'d str> {
    let list = reply.get(field).and_then(|v| v.as_array());
    list.unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|v| v.as_str())
        .collect()
}

fn remaining(name: &str, reply: Doc<'_>) -> String {
    let left = reply.get("remaining").and_then(|v| v.as_doc());
    let number = |field: &str| left.and_then(|d| d.get(field)?.to_i64_exact()).unwrap_or(0);
    format!(
        "emptying {name}: {} ranges, {} databases left",
        number("chunks"),
        number("dbs")
    )
}
