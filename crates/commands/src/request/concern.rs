//! Read concern, write concern, and the durability that a write concern requires.
//!
//! One node is its own majority: a majority write is one that is on this node's disk.

use ::replication::config::{UnsatisfiableConcern, Wanted};
use ::replication::{Config, Driver};
use bson::{Elem, Val, Writer, tag};
use errors::{Result, bail};
use front::Args;
use front::idl;
use service::config::Topology;

/// The most members that a replica set can have, and so the greatest `w`.
const MAX_MEMBERS: i64 = 50;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// Not at all.
    Never,
    /// In the log file.
    Written,
    /// On disk.
    Durable,
}

/// Why a valid write concern cannot be satisfied: the `writeConcernError` of the reply. The write
/// was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetConcern {
    /// `w` is more than there are members.
    TooManyMembers(i64),
    /// `w` names a mode that the configuration does not have.
    UnknownMode(String),
    /// The members that were asked for did not have it in time.
    TimedOut,
    /// This member was deposed while it waited for others.
    SteppedDown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteConcern {
    pub acknowledge: Acknowledge,
    pub unmet: Option<UnmetConcern>,
    /// In a set of several members: those that must have the write, and for how long they are waited
    /// for at the most, in milliseconds. Waited for by the command itself, on a worker.
    pub members: Option<(Wanted, Option<u64>)>,
    /// In such a set: it is to be on this member's disk, whatever the others have (`w: 1, j: true`).
    /// Waited for in the same place.
    pub own_disk: bool,
}

impl WriteConcern {
    /// What an unspecified write concern means: majority.
    pub const DEFAULT: WriteConcern = WriteConcern {
        acknowledge: Acknowledge::Durable,
        unmet: None,
        members: None,
        own_disk: false,
    };
}

fn check_provenance(within: &str, e: Elem<'_>) -> Result<()> {
    match idl::string(within, e)? {
        Some(
            "clientSupplied"
            | "implicitDefault"
            | "customDefault"
            | "getLastErrorDefaults"
            | "internalWriteDefault",
        )
        | None => Ok(()),
        Some(other) => bail!(
            BadValue,
            "Enumeration value '{other}' for field '{within}.provenance' is not a valid value."
        ),
    }
}

idl::arguments! {
    struct Fields<'a> {
        "w" => w: Option<Val<'a>> = idl::value,
        "j" => journal: Option<bool> = idl::safe_bool,
        "fsync" => fsync: Option<bool> = idl::safe_bool,
    }
    checked: "wtimeout" => check_timeout, "provenance" => check_provenance;
    ignored: "getLastError";
}

fn check_timeout(_within: &str, e: Elem<'_>) -> Result<()> {
    if e.val.to_f64().is_some_and(|f| f > f64::from(i32::MAX)) {
        bail!(
            FailedToParse,
            "wtimeout must be a 32-bit integer, but is {}",
            e.val
        );
    }
    Ok(())
}

/// Reads and checks a `writeConcern`.
pub fn write_concern(v: Val<'_>, topology: &Topology) -> Result<WriteConcern> {
    let Some(d) = v.as_doc() else {
        if v.is_nullish() {
            return Ok(WriteConcern::DEFAULT);
        }
        bail!(
            TypeMismatch,
            "BSON field 'writeConcern' is the wrong type '{}', expected type 'object'",
            v.type_name()
        );
    };
    let fields = Fields::parse_document("writeConcern", d)?;
    let journal = match fields.fsync {
        Some(true) => Some(true),
        _ => fields.journal,
    };
    let standalone = topology.is_standalone();
    let mut concern = match fields.w {
        None => WriteConcern::DEFAULT,
        Some(v) if v.is_nullish() && !standalone => WriteConcern::DEFAULT,
        Some(v) if v.is_nullish() => {
            bail!(
                BadValue,
                "cannot use non-majority 'w' mode  when a host is not a member of a replica set"
            )
        }
        Some(v) => members(v, journal, standalone)?,
    };
    if concern.unmet.is_some() {
        concern.acknowledge = Acknowledge::Written;
    }
    if journal == Some(true) {
        concern.acknowledge = Acknowledge::Durable;
    }
    Ok(concern)
}

/// What `w` asks for: a number of members, a mode by name, or tags of members.
fn members(v: Val<'_>, journal: Option<bool>, standalone: bool) -> Result<WriteConcern> {
    let unmet = |mode: &str| WriteConcern {
        unmet: Some(UnmetConcern::UnknownMode(mode.to_string())),
        ..WriteConcern::DEFAULT
    };
    if v.is_number() {
        return count_of_members(v, journal, standalone);
    }
    if let Some(mode) = v.as_str() {
        if mode == "majority" {
            return Ok(WriteConcern::DEFAULT);
        }
        if standalone {
            bail!(
                BadValue,
                "cannot use non-majority 'w' mode {mode} when a host is not a member of a replica set"
            );
        }
        return Ok(unmet(mode));
    }
    let Some(tags) = v.as_doc() else {
        bail!(
            FailedToParse,
            "w has to be a number, string, or object; found: {}",
            v.type_name()
        )
    };
    let Some(first) = tags.first() else {
        bail!(FailedToParse, "tagged write concern requires tags");
    };
    if let Some(e) = tags.iter().find(|e| !e.val.is_number()) {
        bail!(
            FailedToParse,
            "tags must be a number, got {} of type {}",
            e.val,
            e.val.type_name()
        );
    }
    Ok(unmet(first.name))
}

fn count_of_members(v: Val<'_>, journal: Option<bool>, standalone: bool) -> Result<WriteConcern> {
    let finite = v.to_f64().is_some_and(f64::is_finite);
    let n = idl::whole(v).filter(|n| finite && (0..=MAX_MEMBERS).contains(n));
    let Some(n) = n else {
        bail!(
            FailedToParse,
            "w has to be a non-negative number and not greater than {MAX_MEMBERS}; found: {v}"
        );
    };
    if n > 1 && standalone {
        bail!(BadValue, "cannot use 'w' > 1 when a host is not replicated");
    }
    Ok(WriteConcern {
        acknowledge: match (n, journal) {
            (0 | 1, Some(true)) => Acknowledge::Durable,
            (0, _) => Acknowledge::Never,
            _ => Acknowledge::Written,
        },
        unmet: (n > 1).then_some(UnmetConcern::TooManyMembers(n)),
        ..WriteConcern::DEFAULT
    })
}

/// The same of the set that this member is one of, where it is configured.
pub fn of_set(concern: &mut WriteConcern, v: Val<'_>, replica: Option<&Driver>) {
    let status = replica.map(Driver::status);
    if let Some(config) = status.as_ref().and_then(|s| s.config.as_ref()) {
        of_members(concern, v, config);
    }
}

/// The members that a write concern requires in a configured set, if that is more than the primary or
/// other than a majority, or if the wait has a limit.
pub fn of_members(concern: &mut WriteConcern, v: Val<'_>, config: &Config) {
    let Some(d) = v.as_doc() else { return };
    let timeout = d.get("wtimeout").and_then(|v| v.to_f64());
    let timeout = timeout.map(|ms| ms as u64).filter(|ms| *ms > 0);
    let wanted = match d.get("w") {
        Some(w) if w.is_number() => match idl::whole(w).and_then(|n| usize::try_from(n).ok()) {
            Some(n) if n > 1 => Wanted::Members(n),
            _ => {
                if concern.acknowledge == Acknowledge::Durable {
                    concern.acknowledge = Acknowledge::Written;
                    concern.own_disk = true;
                }
                return;
            }
        },
        Some(w) if w.as_str().is_some_and(|mode| mode != "majority") => {
            Wanted::WriteConcernMode(w.as_str().unwrap_or_default().into())
        }
        Some(w) if w.tag == tag::DOCUMENT => {
            let tags = w.as_doc().into_iter().flat_map(|d| d.iter());
            let count = |e: Elem<'_>| e.val.to_i64_truncated().unwrap_or(0) as i32;
            Wanted::Tags(tags.map(|e| (e.name.to_string(), count(e))).collect())
        }
        _ if timeout.is_some() => Wanted::Majority,
        _ => return,
    };
    concern.unmet = match config.check_reachable(&wanted) {
        Ok(()) => None,
        Err(UnsatisfiableConcern::UnknownMode(mode)) => Some(UnmetConcern::UnknownMode(mode)),
        Err(UnsatisfiableConcern::TooFewMembers) => match &wanted {
            Wanted::Members(n) => Some(UnmetConcern::TooManyMembers(*n as i64)),
            _ => Some(UnmetConcern::TooManyMembers(0)),
        },
    };
    if concern.unmet.is_none() {
        concern.acknowledge = Acknowledge::Written;
        concern.members = Some((wanted, timeout));
    }
}

/// Appends `writeConcernError` for a write concern that cannot be met.
pub fn append_unmet(unmet: &UnmetConcern, w: &mut Writer) {
    let (code, message) = match unmet {
        UnmetConcern::TooManyMembers(_) => (
            errors::Code::UnsatisfiableWriteConcern,
            "Not enough data-bearing nodes".to_string(),
        ),
        UnmetConcern::UnknownMode(mode) => (
            errors::Code::UnknownReplWriteConcern,
            format!("No write concern mode named '{mode}' found in replica set configuration"),
        ),
        UnmetConcern::TimedOut => (
            errors::Code::WriteConcernFailed,
            "waiting for replication timed out".to_string(),
        ),
        UnmetConcern::SteppedDown => (
            errors::Code::PrimarySteppedDown,
            "Primary stepped down while waiting for replication".to_string(),
        ),
    };
    w.open_doc("writeConcernError");
    w.i32("code", code.0)
        .str("codeName", &code.name())
        .str("errmsg", &message);
    if *unmet == UnmetConcern::TimedOut {
        w.open_doc("errInfo").bool("wtimeout", true).close().close();
        return;
    }
    if *unmet == UnmetConcern::SteppedDown {
        w.close();
        return;
    }
    w.open_doc("errInfo").open_doc("writeConcern");
    match unmet {
        UnmetConcern::TooManyMembers(n) => w.int("w", *n),
        UnmetConcern::UnknownMode(mode) => w.str("w", mode),
        UnmetConcern::TimedOut | UnmetConcern::SteppedDown => w,
    };
    w.i32("wtimeout", 0)
        .str("provenance", "clientSupplied")
        .close()
        .close()
        .close();
}

idl::arguments! {
    /// A read concern as it is written.
    struct ReadConcern<'a> {
        "level" => level: Option<&'a str> = idl::string,
        "afterClusterTime" => after: bool = is_cluster_time,
        "atClusterTime" => at: bool = is_cluster_time,
    }
    checked: "provenance" => check_provenance;
    ignored: "afterOpTime" | "allowTransactionTableSnapshot" | "waitLastStableRecoveryTimestamp";
}

/// Checks a time; it was given.
fn is_cluster_time(within: &str, e: Elem<'_>) -> Result<bool> {
    if e.val.tag != tag::TIMESTAMP {
        return Err(idl::mismatch(within, e.name, e.val, &["timestamp"]));
    }
    // Without seconds it is none, whatever its count.
    if e.val.as_timestamp().unwrap_or(0) >> 32 == 0 {
        bail!(
            InvalidOptions,
            "{within} {} cannot be a null timestamp",
            e.name
        );
    }
    Ok(true)
}

/// Checks a `readConcern`; on one node every level reads the newest state. `supported`: the command
/// takes other levels than local.
pub fn read_concern(v: Val<'_>, topology: &Topology, command: &str, supported: bool) -> Result<()> {
    let Some(d) = v.as_doc() else {
        if v.is_nullish() {
            return Ok(());
        }
        bail!(
            TypeMismatch,
            "BSON field 'readConcern' is the wrong type '{}', expected type 'object'",
            v.type_name()
        );
    };
    let concern = ReadConcern::parse_document("readConcern", d)?;
    check_level(concern.level, command, supported)?;
    if topology.is_standalone() {
        check_standalone(&concern)?;
    }
    if concern.at && concern.level != Some("snapshot") {
        bail!(
            InvalidOptions,
            "readConcern atClusterTime can only be set when level is 'snapshot'"
        );
    }
    if concern.after && matches!(concern.level, Some("linearizable" | "available")) {
        bail!(
            InvalidOptions,
            "afterClusterTime field can be set only if level is equal to majority, local, or snapshot"
        );
    }
    Ok(())
}

/// Checks the level by itself, and whether the command takes it.
fn check_level(level: Option<&str>, command: &str, supported: bool) -> Result<()> {
    match level {
        None | Some("local" | "available" | "majority" | "linearizable" | "snapshot") => {}
        Some(other) => bail!(
            BadValue,
            "Enumeration value '{other}' for field 'readConcern.level' is not a valid value."
        ),
    }
    if let Some(l) = level.filter(|l| *l != "local" && !supported) {
        bail!(
            InvalidOptions,
            "Command {command} does not support {{ readConcern: {{ level: \"{l}\" }} }} :: caused by :: read concern not supported"
        );
    }
    if level == Some("snapshot") && command == "count" {
        bail!(
            InvalidOptions,
            "Command count does not support {{ readConcern: {{ level: \"snapshot\" }} }}"
        );
    }
    Ok(())
}

/// Checks what a server that is in no set takes.
fn check_standalone(concern: &ReadConcern<'_>) -> Result<()> {
    if let Some(l @ ("snapshot" | "linearizable")) = concern.level {
        bail!(
            NotAReplicaSet,
            "node needs to be a replica set member to use readConcern '{l}'"
        );
    }
    if concern.after || concern.at {
        bail!(
            IllegalOperation,
            "Cannot specify afterClusterTime or atClusterTime in readConcern on a standalone"
        );
    }
    Ok(())
}

/// Whether a read asks for the newest of all states.
pub(crate) fn is_linearizable(args: &Args<'_>) -> bool {
    let concern = args.generic.read_concern.and_then(|v| v.as_doc());
    concern.and_then(|d| d.get("level")?.as_str()) == Some("linearizable")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DocBuf, doc};

    fn parse(d: DocBuf) -> Result<WriteConcern> {
        let rs = Topology::ReplicaSet {
            name: "rs0".into(),
            named: false,
        };
        write_concern(d.as_doc().as_val(), &rs)
    }

    #[test]
    fn durability() {
        use Acknowledge::*;
        for (d, want) in [
            (doc! {}, Durable),
            (doc! { "w": "majority" }, Durable),
            (doc! { "w": "majority", "j": false }, Durable),
            (doc! { "w": 1 }, Written),
            (doc! { "w": 1.5 }, Written),
            (doc! { "w": 1, "j": true }, Durable),
            (doc! { "w": 0 }, Never),
            (doc! { "w": 0, "j": true }, Durable),
            (doc! { "j": true }, Durable),
        ] {
            assert_eq!(parse(d.clone()).unwrap().acknowledge, want, "{d:?}");
        }
        assert_eq!(
            parse(doc! { "w": 2 }).unwrap().unmet,
            Some(UnmetConcern::TooManyMembers(2))
        );
        assert_eq!(
            parse(doc! { "w": "x" }).unwrap().unmet,
            Some(UnmetConcern::UnknownMode("x".into()))
        );
    }

    #[test]
    fn rejected() {
        for (d, code) in [
            (doc! { "w": -1 }, 9),
            (doc! { "w": 51 }, 9),
            (doc! { "w": f64::NAN }, 9),
            (doc! { "w": true }, 9),
            (doc! { "w": doc!{} }, 9),
            (doc! { "j": "x" }, 14),
            (doc! { "wtimeout": 2147483648.0 }, 9),
            (doc! { "nope": 1 }, 40415),
            (doc! { "provenance": "nope" }, 2),
        ] {
            assert_eq!(
                parse(d.clone()).unwrap_err().into_error().code.0,
                code,
                "{d:?}"
            );
        }
        assert_eq!(
            write_concern(doc! { "w": 2 }.as_doc().as_val(), &Topology::Standalone)
                .unwrap_err()
                .into_error()
                .code
                .0,
            2
        );
    }
}
