//! From the document to the configuration.
//!
//! An invalid document gives InvalidReplicaSetConfig with the sentence of MongoDB's parser, whatever
//! code that parser uses.

use super::{
    Config, Host, INITIAL_TERM, MAX_MEMBERS, MemberConfig, NO_TERM, SetSettings, WriteConcernMode,
};
use bson::{Doc, Elem, ObjectId, Val, tag};
use errors::{Error, Fallible, bail, err};

const CONFIG: &str = "ReplSetConfig";
const MEMBER: &str = "MemberConfig";
const SETTINGS: &str = "ReplSetConfig.settings";
const NUMBERS: &str = "[long, int, decimal, double]";
const SAFE_BOOL: &str = "[bool, long, int, decimal, double]";
const LONGEST_DELAY_SECS: i64 = 366 * 24 * 3600;

impl Config {
    /// Reads a configuration that came with `replSetReconfig`, or that was kept. Where it names no
    /// `replicaSetId`, `replica_set_id` is its own.
    pub fn parse(d: Doc<'_>, replica_set_id: Option<ObjectId>) -> Fallible<Config> {
        config(d, replica_set_id).map_err(|e| invalid(&e))
    }

    /// Reads a configuration that came with `replSetInitiate`, for a set of that id.
    pub fn parse_for_initiate(d: Doc<'_>, replica_set_id: ObjectId) -> Fallible<Config> {
        let mut parsed = Config::parse(d, Some(replica_set_id))?;
        parsed.term = INITIAL_TERM;
        if parsed.settings.replica_set_id != Some(replica_set_id) {
            bail!(
                InvalidReplicaSetConfig,
                "replica set configuration cannot contain 'replicaSetId' field when called from replSetInitiate: {d}"
            );
        }
        Ok(parsed)
    }
}

fn invalid(e: &Error) -> Error {
    err!(InvalidReplicaSetConfig, "{}", e.message)
}

fn config(d: Doc<'_>, replica_set_id: Option<ObjectId>) -> Fallible<Config> {
    let (mut name, mut version, mut members) = (None, None, None);
    let mut config = Config {
        name: String::new(),
        version: 0,
        term: NO_TERM,
        members: Vec::new(),
        config_server: false,
        majority_journal_default: true,
        settings: SetSettings::default(),
    };
    for e in d {
        match e.name {
            "_id" => name = Some(string(CONFIG, e)?),
            "version" => version = Some(exact(CONFIG, e, 1, i64::from(i32::MAX))?),
            "term" => config.term = exact(CONFIG, e, NO_TERM, i64::from(i32::MAX))?,
            "members" => {
                let Some(list) = e.val.as_array() else {
                    return Err(mismatch(CONFIG, e, "'array'"));
                };
                members = Some(list);
            }
            "configsvr" => config.config_server = boolean(CONFIG, e)?,
            "protocolVersion" => {
                exact(CONFIG, e, 1, 1)?;
            }
            "writeConcernMajorityJournalDefault" => {
                config.majority_journal_default = boolean(CONFIG, e)?;
            }
            "settings" => config.settings = settings(doc(CONFIG, e)?)?,
            "repaired" | "recipientConfig" if e.val.is_nullish() => {}
            "repaired" => bail!(InvalidReplicaSetConfig, "Replicated data has been repaired"),
            other => return Err(unknown(CONFIG, other)),
        }
    }
    config.name = required(CONFIG, "_id", name)?.to_string();
    config.version = required(CONFIG, "version", version)?;
    for (i, v) in required(CONFIG, "members", members)?.values().enumerate() {
        let Some(d) = v.as_doc() else {
            bail!(
                TypeMismatch,
                "BSON field '{CONFIG}.members.{i}' is the wrong type '{}', expected type 'object'",
                v.type_name()
            );
        };
        if i > MAX_MEMBERS {
            // `check` tells how many are too many; more than that need not be read.
            break;
        }
        config.members.push(
            member(d).map_err(|e| err!(BadValue, "member: {d} :: caused by :: {}", e.message))?,
        );
    }
    if config.settings.replica_set_id.is_none() {
        config.settings.replica_set_id = replica_set_id;
    }
    check_modes(&config)?;
    Ok(config)
}

fn member(d: Doc<'_>) -> Fallible<MemberConfig> {
    let (mut id, mut host) = (None, None);
    let mut m = MemberConfig::new(0, Host::parse("none")?);
    for e in d {
        match e.name {
            "_id" => id = Some(exact(MEMBER, e, 0, i64::from(i32::MAX))? as i32),
            "host" => host = Some(string(MEMBER, e)?),
            "votes" => m.votes = ranged(MEMBER, e, 0, 1)? == 1,
            "priority" => m.priority = priority(e)?,
            "hidden" => m.hidden = boolean(MEMBER, e)?,
            // `slaveDelay` is what it was called up to MongoDB 4.4.
            "secondaryDelaySecs" => m.delay_secs = ranged(MEMBER, e, 0, LONGEST_DELAY_SECS)?,
            "arbiterOnly" => m.arbiter_only = boolean(MEMBER, e)?,
            "buildIndexes" => m.build_indexes = boolean(MEMBER, e)?,
            "tags" => m.tags = tags(doc(MEMBER, e)?)?,
            "horizons" if doc(MEMBER, e)?.is_empty() => {}
            "horizons" => bail!(
                BadValue,
                "PandoDB does not support split horizons: give members names that all clients resolve"
            ),
            other => return Err(unknown(MEMBER, other)),
        }
    }
    m.id = required(MEMBER, "_id", id)?;
    m.host = Host::parse(required(MEMBER, "host", host)?)?;
    check_member(&mut m)?;
    Ok(m)
}

/// What the fields of one member allow each other.
fn check_member(m: &mut MemberConfig) -> Fallible<()> {
    if m.arbiter_only {
        if m.priority == 1.0 {
            m.priority = 0.0;
        }
        if !m.votes {
            bail!(BadValue, "Arbiter must vote (cannot have 0 votes)");
        }
        if !m.tags.is_empty() {
            bail!(BadValue, "Cannot set tags on arbiters.");
        }
    }
    if m.priority == 0.0 {
        return Ok(());
    }
    let why = match () {
        () if !m.votes => "when non-voting (votes:0)",
        () if m.delay_secs > 0 => "when secondaryDelaySecs is used",
        () if m.hidden => "when hidden=true",
        () if !m.build_indexes => "when buildIndexes=false",
        () => return Ok(()),
    };
    bail!(BadValue, "priority must be 0 {why}")
}

fn priority(e: Elem<'_>) -> Fallible<f64> {
    let Some(n) = e.val.to_f64() else {
        return Err(mismatch(MEMBER, e, &format!("'{NUMBERS}'")));
    };
    if n < 0.0 || n.is_nan() {
        bail!(
            BadValue,
            "BSON field 'priority' value must be >= 0, actual value '{n}'"
        );
    }
    if n > 1000.0 {
        bail!(
            BadValue,
            "BSON field 'priority' value must be <= 1000, actual value '{n}'"
        );
    }
    Ok(n)
}

fn tags(d: Doc<'_>) -> Fallible<Vec<(String, String)>> {
    let mut tags: Vec<(String, String)> = Vec::new();
    for e in d {
        let Some(value) = e.val.as_str() else {
            bail!(
                TypeMismatch,
                "tags.{} field has non-string value of type {}",
                e.name,
                e.val.type_name()
            );
        };
        tags.push((e.name.to_string(), value.to_string()));
    }
    Ok(tags)
}

fn settings(d: Doc<'_>) -> Fallible<SetSettings> {
    let mut s = SetSettings::default();
    for e in d {
        let from = |least| exact(SETTINGS, e, least, i64::MAX);
        match e.name {
            "chainingAllowed" => s.chaining_allowed = boolean(SETTINGS, e)?,
            "heartbeatIntervalMillis" => s.heartbeat_interval_ms = from(1)?,
            "heartbeatTimeoutSecs" => s.heartbeat_timeout_secs = from(1)?,
            "electionTimeoutMillis" => s.election_timeout_ms = from(1)?,
            "catchUpTimeoutMillis" => s.catch_up_timeout_ms = from(-1)?,
            "catchUpTakeoverDelayMillis" => s.catch_up_takeover_delay_ms = from(-1)?,
            "getLastErrorModes" => s.modes = modes(e.val)?,
            "getLastErrorDefaults" => check_defaults(doc(SETTINGS, e)?)?,
            "replicaSetId" => s.replica_set_id = Some(set_id(e)?),
            // MongoDB leaves aside what it does not know here.
            _ => {}
        }
    }
    Ok(s)
}

fn set_id(e: Elem<'_>) -> Fallible<ObjectId> {
    match e.val.as_oid() {
        Some(ObjectId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) => {
            bail!(BadValue, "replicaSetId field value cannot be null")
        }
        Some(id) => Ok(id),
        None => Err(mismatch(SETTINGS, e, "'objectId'")),
    }
}

/// The default write concern of a set is `setDefaultRWConcern`'s: this one may say only what it
/// says anyway.
fn check_defaults(d: Doc<'_>) -> Fallible<()> {
    let (mut w, mut others) = (1.0, false);
    for e in d {
        match e.name {
            "w" => match e.val.to_f64() {
                Some(n) => w = n,
                None => others = true,
            },
            "wtimeout" => others |= e.val.to_f64() != Some(0.0),
            "provenance" => {}
            _ => others |= e.val.truthy(),
        }
    }
    if w == 0.0 {
        bail!(
            BadValue,
            "Default write concern mode must wait for at least 1 member"
        );
    }
    if w != 1.0 || others {
        bail!(
            BadValue,
            "Replica set config contains customized getLastErrorDefaults, which has been deprecated and is now ignored. Use setDefaultRWConcern instead to set a cluster-wide default writeConcern."
        );
    }
    Ok(())
}

fn modes(v: Val<'_>) -> Fallible<Vec<WriteConcernMode>> {
    const AT: &str = "getLastErrorModes";
    let Some(d) = v.as_doc() else {
        bail!(
            TypeMismatch,
            "Expected {AT} to be an Object, it actually had type {}",
            v.type_name()
        );
    };
    let mut modes: Vec<WriteConcernMode> = Vec::new();
    for e in d {
        let name = e.name;
        if modes.iter().any(|m| m.name == name) {
            bail!(BadValue, "{AT} contains multiple fields named {name}");
        }
        let Some(tags) = e.val.as_doc() else {
            bail!(
                TypeMismatch,
                "Expected {AT}.{name} to be an Object, not {}",
                e.val.type_name()
            );
        };
        let mut mode = WriteConcernMode {
            name: name.to_string(),
            tags: Vec::new(),
        };
        for t in tags {
            let Some(n) = t.val.to_i64_truncated() else {
                bail!(
                    TypeMismatch,
                    "Expected {AT}.{name}.{} to be a number, not {}",
                    t.name,
                    t.val.type_name()
                );
            };
            let n = n.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            if n <= 0 {
                bail!(
                    BadValue,
                    "Value of {AT}.{name}.{} must be positive, but found {n}",
                    t.name
                );
            }
            mode.tags.push((t.name.to_string(), n));
        }
        modes.push(mode);
    }
    Ok(modes)
}

/// A mode may only name tags that some member has.
fn check_modes(config: &Config) -> Fallible<()> {
    let known = |tag: &str| {
        let mut tags = config.members.iter().flat_map(|m| &m.tags);
        tags.any(|(name, _)| name == tag)
    };
    let named = config.settings.modes.iter().flat_map(|m| &m.tags);
    match named.into_iter().find(|(tag, _)| !known(tag)) {
        Some((tag, _)) => bail!(
            NoSuchKey,
            "No replica set tag definition found for key {tag}"
        ),
        None => Ok(()),
    }
}

fn mismatch(within: &str, e: Elem<'_>, expected: &str) -> Error {
    let types = if expected.contains('[') {
        "types"
    } else {
        "type"
    };
    err!(
        TypeMismatch,
        "BSON field '{within}.{}' is the wrong type '{}', expected {types} {expected}",
        e.name,
        e.val.type_name()
    )
}

fn unknown(within: &str, field: &str) -> Error {
    err!(
        IDLUnknownField,
        "BSON field '{within}.{field}' is an unknown field."
    )
}

fn required<T>(within: &str, field: &str, v: Option<T>) -> Fallible<T> {
    v.ok_or_else(|| {
        err!(
            IDLFailedToParse,
            "BSON field '{within}.{field}' is missing but a required field"
        )
    })
}

fn string<'a>(within: &str, e: Elem<'a>) -> Fallible<&'a str> {
    e.val
        .as_str()
        .ok_or_else(|| mismatch(within, e, "'string'"))
}

fn doc<'a>(within: &str, e: Elem<'a>) -> Fallible<Doc<'a>> {
    e.val
        .as_doc()
        .ok_or_else(|| mismatch(within, e, "'object'"))
}

fn boolean(within: &str, e: Elem<'_>) -> Fallible<bool> {
    match e.val.tag == tag::BOOL || e.val.is_number() {
        true => Ok(e.val.truthy()),
        false => Err(mismatch(within, e, &format!("'{SAFE_BOOL}'"))),
    }
}

/// A number of any type, whose fraction is cut off.
fn ranged(within: &str, e: Elem<'_>, least: i64, most: i64) -> Fallible<i64> {
    match e.val.to_i64_truncated() {
        Some(n) => in_range(e, n, least, most),
        None => Err(mismatch(within, e, &format!("'{NUMBERS}'"))),
    }
}

/// A whole number of any type.
fn exact(within: &str, e: Elem<'_>, least: i64, most: i64) -> Fallible<i64> {
    if !e.val.is_number() {
        return Err(mismatch(within, e, &format!("'{NUMBERS}'")));
    }
    match e.val.to_i64_exact() {
        Some(n) => in_range(e, n, least, most),
        None => bail!(
            BadValue,
            "Expected field \"{}\" to have a value exactly representable as a 64-bit integer, but found {}: {}",
            e.name,
            e.name,
            e.val
        ),
    }
}

fn in_range(e: Elem<'_>, n: i64, least: i64, most: i64) -> Fallible<i64> {
    let (relation, bound) = match () {
        () if n < least => (">=", least),
        () if n > most => ("<=", most),
        () => return Ok(n),
    };
    bail!(
        BadValue,
        "BSON field '{}' value must be {relation} {bound}, actual value '{n}'",
        e.name
    )
}
