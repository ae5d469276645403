//! `getDefaultRWConcern` and `setDefaultRWConcern`: what a client that says nothing gets.

use crate::clock::now_millis;
use crate::request::concern::{self, Acknowledge, UnmetConcern, WriteConcern};
use crate::request::{CommandContext, Done};
use crate::settings::stored;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail};
use front::idl;
use parking_lot::RwLock;
use service::config::{ClusterRole, Topology};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

pub(crate) use front::cluster_settings::RW_CONCERN as SETTING;
const SET: &str = "setDefaultRWConcern";

/// The defaults that were set, and the one that every write needs at hand.
pub struct Defaults {
    acknowledge: AtomicU8,
    /// Reads without a read concern show what a majority has.
    majority: AtomicBool,
    /// Any default was set.
    set: AtomicBool,
    /// Writes without a write concern wait for more than the two say.
    members: AtomicBool,
    given: RwLock<Given>,
    /// What a write concern is read for.
    topology: Topology,
    /// False in a sharded cluster, whose routers say what holds with each command.
    heeds: bool,
}

#[derive(Clone, Default)]
struct Given {
    /// As they are shown; `None` is MongoDB's own default.
    read: Option<DocBuf>,
    write: Option<DocBuf>,
    updated: Option<(u64, i64)>,
}

impl Given {
    fn document(&self) -> DocBuf {
        let mut w = Writer::new();
        if let Some(d) = &self.read {
            w.doc("defaultReadConcern", d.as_doc());
        }
        if let Some(d) = &self.write {
            w.doc("defaultWriteConcern", d.as_doc());
        }
        if let Some((ts, at)) = self.updated {
            w.timestamp("updateOpTime", ts)
                .date("updateWallClockTime", at);
        }
        w.finish()
    }
}

impl stored::InMemory for Defaults {
    fn id(&self) -> &'static str {
        SETTING
    }

    fn take(&self, setting: Option<Doc<'_>>) {
        let d = setting.unwrap_or(Doc::EMPTY);
        let sub = |name: &str| d.get(name).and_then(|v| v.as_doc()).map(|d| d.to_buf());
        let updated = d.get("updateOpTime").and_then(|v| v.as_timestamp());
        let at = d.get("updateWallClockTime").and_then(|v| v.as_date());
        let given = Given {
            read: sub("defaultReadConcern"),
            write: sub("defaultWriteConcern"),
            updated: updated.zip(at),
        };
        let heeded = Some(&given).filter(|_| self.heeds);
        let write = heeded.and_then(|given| given.write.as_ref());
        let acknowledge = write
            .and_then(|d| concern::write_concern(d.as_doc().as_val(), &self.topology).ok())
            .map_or(Acknowledge::Durable, |c| c.acknowledge);
        let members = write.is_some_and(|d| is_of_members(d.as_doc()));
        let level = heeded.and_then(|given| given.read.as_ref()?.get("level"));
        let majority = level.is_some_and(|v| v.as_str() == Some("majority"));
        let set = given.read.is_some() || given.write.is_some();
        self.set.store(set, Relaxed);
        self.members.store(members, Relaxed);
        self.majority.store(majority, Relaxed);
        *self.given.write() = given;
        self.acknowledge.store(code(acknowledge), Relaxed);
    }
}

impl Defaults {
    /// MongoDB's own.
    pub fn new(topology: &Topology, role: ClusterRole) -> Defaults {
        Defaults {
            heeds: role == ClusterRole::None,
            set: AtomicBool::new(false),
            members: AtomicBool::new(false),
            acknowledge: AtomicU8::new(code(Acknowledge::Durable)),
            majority: AtomicBool::new(false),
            given: RwLock::default(),
            topology: topology.clone(),
        }
    }

    /// Whether a read without a read concern shows what a majority has.
    pub fn reads_majority(&self) -> bool {
        self.majority.load(Relaxed)
    }

    /// Whether any was set.
    #[inline]
    pub fn are_set(&self) -> bool {
        self.set.load(Relaxed)
    }

    /// The concerns that were set, of reads and of writes, as they are shown.
    pub fn given(&self) -> (Option<DocBuf>, Option<DocBuf>) {
        let given = self.given.read();
        (given.read.clone(), given.write.clone())
    }

    /// The write concern of a write without one, where [`Self::write_concern`] does not say it all.
    pub fn of_members(&self) -> Option<DocBuf> {
        let given = self.members.load(Relaxed).then(|| self.given.read());
        given?.write.clone()
    }

    /// What a write without a write concern gets.
    pub fn write_concern(&self) -> WriteConcern {
        let acknowledge = match self.acknowledge.load(Relaxed) {
            0 => Acknowledge::Written,
            _ => Acknowledge::Durable,
        };
        WriteConcern {
            acknowledge,
            ..WriteConcern::DEFAULT
        }
    }
}

fn code(a: Acknowledge) -> u8 {
    u8::from(a == Acknowledge::Durable)
}

pub fn get(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut in_memory = None;
    for e in cx.args.fields.clone() {
        match e.name {
            "inMemory" => in_memory = idl::boolean("getDefaultRWConcern", e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    refuse_where_none_are(cx)?;
    show(cx);
    if in_memory == Some(true) {
        cx.w.bool("inMemory", true);
    }
    Ok(Done::Reply)
}

fn show(cx: &mut CommandContext<'_, '_>) {
    let given = cx.app.rw_defaults.given.read().clone();
    let w = &mut cx.w;
    match &given.read {
        Some(d) => w.doc("defaultReadConcern", d.as_doc()),
        None => w
            .open_doc("defaultReadConcern")
            .str("level", "local")
            .close(),
    };
    match &given.write {
        Some(d) => w.doc("defaultWriteConcern", d.as_doc()),
        None => w
            .open_doc("defaultWriteConcern")
            .str("w", "majority")
            .i32("wtimeout", 0)
            .close(),
    };
    if let Some((ts, at)) = given.updated {
        w.timestamp("updateOpTime", ts)
            .date("updateWallClockTime", at);
    }
    let source = |set: bool| if set { "global" } else { "implicit" };
    w.str("defaultWriteConcernSource", source(given.write.is_some()))
        .str("defaultReadConcernSource", source(given.read.is_some()))
        .date("localUpdateWallClockTime", now_millis());
}

pub fn set(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let (mut read, mut write) = (None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "defaultReadConcern" => read = idl::doc(SET, e)?,
            "defaultWriteConcern" => write = idl::doc(SET, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    refuse_where_none_are(cx)?;
    // The setting is itself a write: a concern that it cannot meet is an error and not a remark.
    if let Some(unmet) = &cx.write_concern.unmet {
        return Err(unmet_error(unmet).into());
    }
    if read.is_none() && write.is_none() {
        bail!(
            BadValue,
            "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be present"
        );
    }
    let mut given = cx.app.rw_defaults.given.read().clone();
    if let Some(d) = read {
        given.read = read_default(d)?;
    }
    if let Some(d) = write {
        match write_default(d, cx)? {
            Some(w) => given.write = Some(w),
            None if given.write.is_some() => bail!(
                IllegalOperation,
                "The global default write concern cannot be unset once it is set."
            ),
            None => {}
        }
    }
    given.updated = Some((cx.app.store.last_ts(), now_millis()));
    stored::save(&mut cx.op, SETTING, given.document().as_doc())?;
    show(cx);
    Ok(Done::Reply)
}

fn unmet_error(unmet: &UnmetConcern) -> errors::Error {
    match unmet {
        UnmetConcern::TooManyMembers(n) => errors::err!(
            UnsatisfiableWriteConcern,
            "Not enough data-bearing nodes for w: {n}"
        ),
        UnmetConcern::UnknownMode(mode) => errors::err!(
            UnknownReplWriteConcern,
            "No write concern mode named '{mode}' found in replica set configuration"
        ),
        UnmetConcern::TimedOut => {
            errors::err!(WriteConcernFailed, "waiting for replication timed out")
        }
        UnmetConcern::SteppedDown => errors::err!(
            PrimarySteppedDown,
            "Primary stepped down while waiting for replication"
        ),
    }
}

/// Whether a stored default waits for others than the primary or a majority, or not for ever.
fn is_of_members(d: Doc<'_>) -> bool {
    let is = |name: &str| d.get(name).is_some_and(Val::truthy);
    match d.get("w") {
        Some(w) if w.as_str() == Some("majority") => is("wtimeout"),
        Some(w) if idl::whole(w) == Some(1) => is("j"),
        w => w.is_some(),
    }
}

/// A read concern as a default, `None` to go back to MongoDB's own.
fn read_default(d: Doc<'_>) -> Result<Option<DocBuf>> {
    let mut level = None;
    for e in idl::unique("readConcern", d)? {
        match e.name {
            "level" => level = idl::string("readConcern", e)?,
            "provenance" => {}
            name => return Err(idl::unknown("readConcern", name)),
        }
    }
    match level {
        None => Ok(None),
        Some(l @ ("local" | "available" | "majority")) => Ok(Some(bson::doc! { "level": l })),
        Some(l @ ("linearizable" | "snapshot")) => bail!(
            BadValue,
            "level: '{l}' is not suitable for the default read concern"
        ),
        Some(l) => bail!(
            BadValue,
            "Enumeration value '{l}' for field 'readConcern.level' is not a valid value."
        ),
    }
}

/// A write concern as a default; `None` for an empty one.
fn write_default(d: Doc<'_>, cx: &CommandContext<'_, '_>) -> Result<Option<DocBuf>> {
    if d.is_empty() {
        return Ok(None);
    }
    let mut parsed = concern::write_concern(d.as_val(), &cx.app.config.topology)?;
    concern::of_set(&mut parsed, d.as_val(), cx.app.replica.as_ref());
    let w = match d.get("w") {
        Some(v) if v.is_nullish() => {
            return Err(unmet_error(&UnmetConcern::UnknownMode(String::new())).into());
        }
        Some(v) => v,
        None => bail!(
            BadValue,
            "missing 'w' field: a default write concern must say how many members"
        ),
    };
    if let Some(unmet) = &parsed.unmet {
        return Err(unmet_error(unmet).into());
    }
    let number = idl::whole(w);
    if number == Some(0) {
        bail!(
            BadValue,
            "w: 0 is not suitable for the default write concern"
        );
    }
    let mut out = Writer::new();
    match number {
        Some(n) => out.i32("w", n as i32),
        None => out.val("w", w),
    };
    if let Some(j) = d.get("j") {
        out.bool("j", j.truthy());
    }
    let wtimeout = d.get("wtimeout").and_then(|v: Val<'_>| idl::whole(v));
    out.int("wtimeout", wtimeout.unwrap_or(0).max(0));
    Ok(Some(out.finish()))
}

fn refuse_where_none_are(cx: &CommandContext<'_, '_>) -> Result<()> {
    let name = cx.command.name;
    if cx.app.config.topology.is_standalone() {
        bail!(51300, "'{name}' is not supported on standalone nodes.");
    }
    if cx.app.config.role == ClusterRole::Shard {
        bail!(51301, "'{name}' is not supported on shard nodes.");
    }
    Ok(())
}
