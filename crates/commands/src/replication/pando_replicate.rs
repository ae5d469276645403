//! `pandoReplicate`: what members of a set send each other.
//!
//! ```text
//! {pandoReplicate: 1, version: <int>, set: <name>, setId: <ObjectId>, founder: <long>, to: <long>, messages: <bytes>, more: <bool>}
//! {pandoReplicate: 1, version, set, setId, founder, to, config: <document>}          to a member that knows of no set yet
//! {pandoReplicate: 1, version, set, setId, founder, to}                              asks whether it could be that member
//! {pandoReplicate: 1, version, set, setId, founder, to, begins: <long>}              asks the primary whether the member that has
//!                                                                                    nothing may begin: {admitted: <bool>, until: <index>}
//! ```
//! The reply tells the timestamp of the newest entry that is applied (`applied`) and the state of the member (`state`), the release of its program (`release`), what damage it has found in its
//! files (`damaged`), and `lacks: true` where it knows of no set: the sender introduces it then. Bytes that are longer than a document may be come in parts, all but the last with `more`. A primary tells what
//! it knows of all members besides, now and then: `from: <long>, members: [{id: <long>, ts, term, wall, applied: <timestamp>, state: <int>, heard: <bool>, release: <string>}]`.
//!
//! Invariant: a member of one set takes nothing of another, and one with data of its own joins none.

use crate::request::{CommandContext, Done};
use bson::Doc;
use errors::{Result, bail};
use front::idl;
use replication::driver::{Driver, KnownMember, MemberReport, Release};
use replication::member::OpTime;
use replication::{Config, message};

/// The most that the parts of one batch may make.
const MAX_BATCH_BYTES: usize = 512 << 20;
/// The most members that a set has.
const MOST_MEMBERS: usize = 50;

struct Batch<'a> {
    set: &'a str,
    set_id: bson::ObjectId,
    founder: u64,
    to: u64,
    config: Option<Doc<'a>>,
    messages: Option<&'a [u8]>,
    more: bool,
}

fn parse<'a>(cx: &CommandContext<'_, 'a>) -> Result<Batch<'a>> {
    let name = "pandoReplicate";
    let number = |field: &str| match cx.args.field(field).and_then(|v| v.to_i64_exact()) {
        Some(n) => Ok(n as u64),
        None => Err(idl::missing(name, field)),
    };
    Ok(Batch {
        set: idl::required(name, "set", cx.args.field("set").and_then(|v| v.as_str()))?,
        set_id: idl::required(
            name,
            "setId",
            cx.args.field("setId").and_then(|v| v.as_oid()),
        )?,
        founder: number("founder")?,
        to: number("to")?,
        config: cx.args.field("config").and_then(|v| v.as_doc()),
        messages: cx
            .args
            .field("messages")
            .and_then(|v| v.as_binary())
            .map(|b| b.1),
        more: cx.args.field("more").is_some_and(|v| v.truthy()),
    })
}

/// What a primary tells of all members.
fn board(cx: &CommandContext<'_, '_>) -> Option<(u64, Vec<KnownMember>)> {
    let members = cx.args.field("members")?.as_array()?;
    let from = cx.args.field("from")?.to_i64_exact()?;
    let known = |member: Doc<'_>| {
        let number = |name: &str| member.get(name).and_then(|v| v.to_i64_exact());
        let time = |name: &str| member.get(name).and_then(|v| v.as_timestamp());
        Some(KnownMember {
            id: number("id")?.unsigned_abs(),
            durable: OpTime {
                ts: time("ts")?,
                term: number("term")?.unsigned_abs(),
                wall_millis: number("wall")?,
            },
            report: MemberReport {
                applied: time("applied")?,
                state: i32::try_from(number("state")?).ok()?,
                release: Release::parse(
                    member.get("release").and_then(|v| v.as_str()).unwrap_or(""),
                ),
            },
            is_heard: member.get("heard")?.truthy(),
        })
    };
    let known: Option<Vec<_>> = (members.iter().take(MOST_MEMBERS))
        .map(|e| known(e.val.as_doc()?))
        .collect();
    Some((from.unsigned_abs(), known?))
}

/// A member of a later release may write what this program does not understand.
fn check_version(cx: &CommandContext<'_, '_>) -> Result<()> {
    let version = cx.args.field("version").and_then(|v| v.to_i64_exact());
    let newest = i64::from(message::VERSION);
    match version {
        Some(version) if version > newest => bail!(
            IncompatibleServerVersion,
            "this member's program is too old for its set: members send version {version} of their messages, and it understands \
             up to {newest}; install the release that the others have"
        ),
        _ => Ok(()),
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Some(driver) = cx.app.replica.clone() else {
        bail!(NoReplicationEnabled, "not running with --replSet");
    };
    check_version(cx)?;
    let batch = parse(cx)?;
    if batch.set != driver.set_name() {
        bail!(
            InconsistentReplicaSetNames,
            "replica set names do not match, ours: {}; remote: {}",
            driver.set_name(),
            batch.set
        );
    }
    if let Some(why) = driver.left() {
        bail!(
            InvalidReplicaSetConfig,
            "this member takes no part in its set any more until it is started again: {why}"
        );
    }
    let status = driver.status();
    if status.id == 0 {
        return join(cx, &driver, &batch);
    }
    let ours = status
        .config
        .as_ref()
        .and_then(|c| c.settings.replica_set_id);
    if ours != Some(batch.set_id) || status.id != batch.to {
        bail!(
            InvalidReplicaSetConfig,
            "this server belongs to another replica set of the name {}, or is another of its members",
            batch.set
        );
    }
    if let Some(member) = cx.args.field("begins").and_then(|v| v.to_i64_exact()) {
        return admit(cx, &driver, member.unsigned_abs());
    }
    if let Some(part) = batch.messages {
        receive_part(cx, &driver, part, batch.more)?;
    }
    if let Some((primary, known)) = board(cx) {
        driver.learn(primary, known);
    }
    let applied = cx.app.store.last_ts();
    cx.w.timestamp("applied", applied)
        .i32("state", status.state())
        .str("release", &Release::own().to_string());
    if let Some(damage) = driver.damage() {
        cx.w.str("damaged", damage);
    }
    Ok(Done::Reply)
}

/// A member without a set takes the configuration, or says that it lacks one.
fn join(cx: &mut CommandContext<'_, '_>, driver: &Driver, batch: &Batch<'_>) -> Result<Done> {
    let asks = batch.config.is_none() && batch.messages.is_none();
    if (asks || batch.config.is_some()) && cx.app.store.log_end() > 0 {
        bail!(
            InvalidReplicaSetConfig,
            "this server has data of its own and joins no set: empty its data directory first"
        );
    }
    match batch.config {
        Some(config) => driver.join(batch.to, batch.founder, Config::parse(config, None)?),
        None => {
            cx.w.bool("lacks", true);
        }
    }
    Ok(Done::Reply)
}

/// Keeps a part of a batch; the driver gets the batch with the last one.
fn receive_part(
    cx: &mut CommandContext<'_, '_>,
    driver: &Driver,
    part: &[u8],
    more: bool,
) -> Result<()> {
    let mut parts = cx.client.state.parts.lock();
    if parts.len() + part.len() > MAX_BATCH_BYTES {
        bail!(
            BadValue,
            "the parts of one batch make more than {MAX_BATCH_BYTES} bytes"
        );
    }
    parts.extend_from_slice(part);
    if more {
        return Ok(());
    }
    let bytes = std::mem::take(&mut *parts);
    let Some(mut messages) = message::read(&bytes) else {
        bail!(BadValue, "the bytes are no messages between members");
    };
    let status = driver.status();
    // A removed member does not know it: no member sends to it any more.
    let is_stranger = |m: &message::Message| status.member(m.from).is_none();
    if let (true, Some(config)) = (messages.iter().any(is_stranger), &status.config) {
        cx.w.doc("config", config.to_doc().as_doc());
    }
    if cx.app.fail_points.stops_entries() {
        messages.retain(|m| m.entries.is_empty());
    }
    driver.receive(messages);
    Ok(())
}

/// Whether a member that has nothing may begin.
fn admit(
    cx: &mut CommandContext<'_, '_>,
    driver: &replication::Driver,
    member: u64,
) -> Result<Done> {
    let status = driver.status();
    if status.member(member).is_none() {
        bail!(
            InvalidReplicaSetConfig,
            "the member is not in the configuration of this set"
        );
    }
    if status.is_primary() {
        let until = driver.readmits(member);
        cx.w.bool("admitted", until.is_some());
        if let Some(until) = until {
            cx.w.i64("until", until.cast_signed());
        }
    }
    cx.w.i32("state", status.state());
    Ok(Done::Reply)
}
