//! Members that run become what they are to be: sets are made, members join theirs, the router knows
//! its shards. Each step finds out whether it was done before.

use super::deployment::{Access, Deployment, MemberProcess, Role, Stage};
use super::{ANSWER, LOOK, PATIENCE};
use crate::client::refusal;
use bson::{Doc, DocBuf, Val, Writer, doc};
use replication::state_file;
use std::fs;
use std::path::Path;
use std::time::Instant;

const ALREADY_INITIALIZED: i64 = 23;
const PRIMARY: i64 = 1;
const SECONDARY: i64 = 2;

/// Awaits the members, makes the sets that are not made, and tells the router of its shards.
pub(super) fn make_ready(dir: &Path, deployment: &Deployment) -> Result<(), String> {
    let (routers, members): (Vec<&MemberProcess>, Vec<&MemberProcess>) = deployment
        .members
        .iter()
        .partition(|m| m.role == Role::Router);
    let access = deployment.access()?;
    let access = &access;
    await_members(dir, &members, access)?;
    for set in deployment.sets() {
        if set.iter().any(|m| m.role == Role::Router) {
            continue;
        }
        let (new, old): (Vec<_>, Vec<_>) =
            set.into_iter().partition(|m| m.stage == Stage::NewMember);
        initiate(dir, &old, access)?;
        // One that was taken in before may be the primary by now.
        let all: Vec<_> = old.iter().chain(&new).copied().collect();
        await_set(&old, &all, access)?;
        for member in new {
            join(&all, member, access)?;
        }
    }
    await_members(dir, &routers, access)?;
    for router in routers {
        for shard in deployment.shards_that_stay() {
            let add = doc! { "addShard": shard };
            let reply = router.ask(access, "admin", add.as_doc())?;
            refusal(reply.as_doc()).map_or(Ok(()), Err)?;
        }
    }
    Ok(())
}

fn await_members(dir: &Path, members: &[&MemberProcess], access: &Access) -> Result<(), String> {
    let anonymous = access.without_login();
    let until = Instant::now() + PATIENCE;
    for member in members {
        let hello = doc! { "hello": 1 };
        while member
            .ask_within(ANSWER, &anonymous, hello.as_doc())
            .is_err()
        {
            if !member.runs() || Instant::now() > until {
                let log = dir.join(format!("{}.log", member.name));
                let why = fs::read_to_string(&log).unwrap_or_default();
                let why = why.lines().last().unwrap_or("it says nothing");
                return Err(format!(
                    "{} does not serve: {why} ({})",
                    member.name,
                    log.display()
                ));
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

/// Makes the set, if it is not made. A set that one member knows is made: the others learn of it from
/// that member.
fn initiate(dir: &Path, members: &[&MemberProcess], access: &Access) -> Result<(), String> {
    let first = members.first().ok_or("there is no member")?;
    let knows = |m: &&MemberProcess| dir.join(&m.name).join(state_file::NAME).exists();
    if !members.iter().any(knows) {
        let mut w = Writer::new();
        w.open_doc("replSetInitiate")
            .str("_id", &first.set)
            .open_array("members");
        for (n, member) in members.iter().enumerate() {
            w.open_doc("")
                .int("_id", n as i64)
                .str("host", &member.host())
                .close();
        }
        w.close().close();
        let reply = first.ask(access, "admin", w.finish().as_doc())?;
        let code = reply.as_doc().get("code").and_then(|v| v.to_i64_exact());
        // It was made by an `up` that was ended right behind.
        if code != Some(ALREADY_INITIALIZED) {
            refusal(reply.as_doc()).map_or(Ok(()), Err)?;
        }
    }
    Ok(())
}

/// Waits until these members of a set have its data, and all of its voters their votes: with fewer it
/// would not bear the loss of one.
fn await_set(
    members: &[&MemberProcess],
    all: &[&MemberProcess],
    access: &Access,
) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let states: Vec<i64> = members.iter().map(|m| state(m, access)).collect();
        let primary = all.iter().find(|m| state(m, access) == PRIMARY).copied();
        let have_data = states.iter().all(|s| matches!(*s, PRIMARY | SECONDARY));
        let all_vote = |p: &MemberProcess| voters(p, access).is_some_and(|n| votes(p, access) >= n);
        if have_data && primary.is_some_and(all_vote) {
            return Ok(());
        }
        if Instant::now() > until {
            let late = members.iter().zip(&states);
            let late = late.filter(|(_, s)| !matches!(**s, PRIMARY | SECONDARY));
            // A copy of much data takes as long as it takes.
            if primary.is_some() && late.clone().all(|(_, s)| shown_number(*s) == COPIES) {
                for (member, _) in late {
                    eprintln!(
                        "pando: {} {COPIES}: pando cluster status tells when it has it",
                        member.name
                    );
                }
                return Ok(());
            }
            let each = late.map(|(m, state)| match why_not(m, access) {
                Some(why) => format!("\n  {}: {why}", m.name),
                None => format!("\n  {}: {}", m.name, shown_number(*state)),
            });
            let each: String = each.collect();
            let leaderless = if primary.is_none() {
                " there is no primary"
            } else {
                ""
            };
            return Err(format!(
                "the members did not get ready in time:{leaderless}{each}"
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// Has a member taken into its set, if it is not in it.
fn join(all: &[&MemberProcess], new: &MemberProcess, access: &Access) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    let taken_in = || {
        let primary = all.iter().find(|m| state(m, access) == PRIMARY);
        let primary = primary.ok_or("there is no primary")?;
        let config = config_of(primary, access)?;
        let Some(config) = with_member(config.as_doc(), &new.host()) else {
            return Ok(());
        };
        let reconfig = doc! { "replSetReconfig": config };
        let reply = primary.ask(access, "admin", reconfig.as_doc())?;
        refusal(reply.as_doc()).map_or(Ok(()), Err)
    };
    // Another change of the configuration, or an election, may be under way.
    while let Err(why) = taken_in() {
        if Instant::now() > until {
            return Err(format!("{} was not taken into its set: {why}", new.name));
        }
        std::thread::sleep(LOOK);
    }
    await_set(&[new], all, access)
}

fn config_of(member: &MemberProcess, access: &Access) -> Result<DocBuf, String> {
    let reply = member.ask_within(ANSWER, access, doc! { "replSetGetConfig": 1 }.as_doc())?;
    refusal(reply.as_doc()).map_or(Ok(()), Err)?;
    let config = reply.as_doc().get("config").and_then(|v| v.as_doc());
    config
        .map(Doc::to_buf)
        .ok_or("it has no configuration".into())
}

/// The configuration that has this member too; `None` where it has it already.
fn with_member(config: Doc<'_>, host: &str) -> Option<DocBuf> {
    let members = config.get("members").and_then(|v| v.as_array());
    let members: Vec<Doc<'_>> = members?.values().filter_map(|m| m.as_doc()).collect();
    let is_there = |m: &Doc<'_>| m.get("host").and_then(|v| v.as_str()) == Some(host);
    if members.iter().any(is_there) {
        return None;
    }
    let ids = members.iter().filter_map(|m| m.get("_id")?.to_i64_exact());
    let id = ids.max().unwrap_or(-1) + 1;
    let mut w = Writer::new();
    for field in config {
        match field.name {
            "version" => {
                w.int("version", field.val.to_i64_exact().unwrap_or(0) + 1);
            }
            "members" => {
                w.open_array("members");
                for member in &members {
                    w.push(member.as_val());
                }
                w.open_doc("").int("_id", id).str("host", host).close();
                w.close();
            }
            _ => {
                w.val(field.name, field.val);
            }
        }
    }
    Some(w.finish())
}

/// How many members of a set have a vote by its configuration.
fn voters(primary: &MemberProcess, access: &Access) -> Option<i64> {
    let config = config_of(primary, access).ok()?;
    let members = config.as_doc().get("members").and_then(|v| v.as_array())?;
    let has_none = |m: &Doc<'_>| m.get("votes").and_then(Val::to_i64_exact) == Some(0);
    let voters = members
        .values()
        .filter_map(|m| m.as_doc())
        .filter(|m| !has_none(m));
    i64::try_from(voters.count()).ok()
}

/// MongoDB's number of a member's state; 8 for one that is not reached.
fn state(member: &MemberProcess, access: &Access) -> i64 {
    status_number(member, access, "myState").unwrap_or(8)
}

/// How many members have a vote, as one of them knows it; 0 for one that is not reached.
fn votes(member: &MemberProcess, access: &Access) -> i64 {
    status_number(member, access, "votingMembersCount").unwrap_or(0)
}

fn status_number(member: &MemberProcess, access: &Access, field: &str) -> Option<i64> {
    let status = doc! { "replSetGetStatus": 1 };
    let reply = member.ask_within(ANSWER, access, status.as_doc()).ok()?;
    reply.as_doc().get(field)?.to_i64_exact()
}

const COPIES: &str = "copies the data";

fn shown_number(state: i64) -> &'static str {
    match state {
        PRIMARY => "primary",
        SECONDARY => "secondary",
        3 | 5 => COPIES,
        8 => "does not answer",
        _ => "starts",
    }
}

/// What a member is, for people.
pub(super) fn shown_state(member: &MemberProcess, access: &Access) -> &'static str {
    if !member.runs() {
        return "does not run";
    }
    if member.role == Role::Router {
        let hello = doc! { "hello": 1 };
        return match member.ask_within(ANSWER, access, hello.as_doc()) {
            Ok(_) => "router",
            Err(_) => "does not answer",
        };
    }
    shown_number(state(member, access))
}

/// Why a member has no state in its set.
fn why_not(member: &MemberProcess, access: &Access) -> Option<String> {
    let status = doc! { "replSetGetStatus": 1 };
    match member.ask_within(ANSWER, access, status.as_doc()) {
        Ok(reply) => refusal(reply.as_doc()),
        Err(why) => Some(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::array;

    #[test]
    fn a_member_is_taken_in_once() {
        let members = array![
            doc! {"_id": 4, "host": "a:1", "votes": 1},
            doc! {"_id": 2, "host": "b:1"}
        ];
        let config =
            doc! {"_id": "rs0", "version": 7, "members": members, "settings": doc! {"x": 1}};
        let wider = with_member(config.as_doc(), "c:1").unwrap();
        let wider = wider.as_doc();
        assert_eq!(wider.get("version").and_then(Val::to_i64_exact), Some(8));
        assert!(wider.get("settings").is_some());
        let members = wider.get("members").and_then(|v| v.as_array()).unwrap();
        let last = members.values().nth(2).and_then(|m| m.as_doc()).unwrap();
        assert_eq!(last.get("_id").and_then(Val::to_i64_exact), Some(5));
        assert_eq!(with_member(wider, "c:1"), None);
    }
}
