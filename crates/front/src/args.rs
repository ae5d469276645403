//! The arguments that every command takes (`lsid`, `maxTimeMS`, `writeConcern`, …), separated from
//! the command's own in one pass.

use crate::idl;
use auth::session_id::{Lsid, NOBODY};
use bson::{Doc, Elem, Val, tag};
use errors::{Result, Stop, bail, err};
use smallvec::SmallVec;

/// The arguments of the versioned API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Api {
    pub version: bool,
    pub strict: bool,
    pub deprecation_errors: bool,
}

/// The generic arguments of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Generic<'a> {
    pub lsid: Option<Lsid>,
    pub txn_number: Option<i64>,
    pub autocommit: Option<bool>,
    pub start_transaction: bool,
    /// 0 is none.
    pub max_time_ms: u64,
    pub comment: Option<Val<'a>>,
    pub read_concern: Option<Val<'a>>,
    pub write_concern: Option<Val<'a>>,
    pub api: Api,
    /// A secondary may answer.
    pub secondary_ok: bool,
    /// `$readPreference`, a document.
    pub read_preference: Option<Val<'a>>,
    /// The write is a part of the move of a range between shards.
    pub from_migrate: bool,
    /// Whose write it is may write while users' writes are blocked.
    pub bypasses_write_block: bool,
}

/// A command's arguments.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    /// The command's name as messages print it.
    pub command: &'static str,
    /// The value of the first field: the collection's name, mostly.
    pub first: Val<'a>,
    pub db: &'a str,
    /// The fields after the first that are not generic.
    pub fields: SmallVec<[Elem<'a>; 10]>,
    pub generic: Generic<'a>,
}

/// A whole number from 0 to the greatest int32, as MongoDB checks `maxTimeMS`.
pub fn max_time_ms(name: &str, v: Val<'_>) -> Result<u64> {
    if v.is_nullish() {
        return Ok(0);
    }
    if !v.is_number() {
        bail!(
            TypeMismatch,
            "BSON field '{name}' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            v.type_name()
        );
    }
    let Some(n) = v.to_i64_exact() else {
        if v.as_f64()
            .is_some_and(|f| f.is_finite() && f.fract() == 0.0)
        {
            bail!(
                BadValue,
                "{v} value for {name} is out of range [0, {}]",
                i32::MAX
            );
        }
        bail!(
            FailedToParse,
            "{name} must be an integral value, but is {v}"
        );
    };
    if !(0..=i64::from(i32::MAX)).contains(&n) {
        bail!(
            BadValue,
            "{n} value for {name} is out of range [0, {}]",
            i32::MAX
        );
    }
    Ok(n.unsigned_abs())
}

fn lsid(v: Val<'_>) -> Result<Option<Lsid>> {
    let Some(d) = v.as_doc() else {
        if v.is_nullish() {
            return Ok(None);
        }
        return Err(err!(
            TypeMismatch,
            "BSON field 'lsid' is the wrong type '{}', expected type 'object'",
            v.type_name()
        )
        .into());
    };
    let (mut id, mut uid) = (None, NOBODY);
    for e in idl::unique("lsid", d)? {
        match e.name {
            "id" => id = idl::uuid("lsid", e)?,
            "uid" => uid = digest(e.val).unwrap_or(uid),
            "txnNumber" | "txnUUID" => {}
            name => return Err(idl::unknown("lsid", name)),
        }
    }
    let id = idl::required("lsid", "id", id)?;
    Ok(Some(Lsid { id, uid }))
}

/// The user that a session id names.
pub fn digest(v: Val<'_>) -> Option<[u8; 32]> {
    let (_, bytes) = v.as_binary()?;
    bytes.try_into().ok()
}

/// A time that a client received from another server of the deployment: a single server checks only
/// its form.
fn check_cluster_time(command: &str, e: Elem<'_>) -> Result<()> {
    let Some(d) = e.val.as_doc().filter(|_| e.val.tag == tag::DOCUMENT) else {
        return Err(idl::mismatch(command, e.name, e.val, &["object"]));
    };
    // Named only where something is wrong: each command of a driver comes by here.
    let within = || format!("{command}.{}", e.name);
    match d.get("clusterTime") {
        Some(v) if v.tag == tag::TIMESTAMP => Ok(()),
        Some(v) => Err(idl::mismatch(&within(), "clusterTime", v, &["timestamp"])),
        None => Err(idl::missing(&within(), "clusterTime")),
    }
}

/// Fails where an explained command names another database than the one that explains it: rights are
/// looked at for that one.
pub fn check_explained_db(explained: Doc<'_>, db: &str) -> Result<()> {
    match explained.get("$db").and_then(Val::as_str) {
        Some(named) if named != db => bail!(
            InvalidNamespace,
            "Mismatched $db in explain command. Expected {db} but got {named}"
        ),
        _ => Ok(()),
    }
}

/// Whether a generic argument is known and has no effect here.
fn is_ignored(name: &str) -> bool {
    matches!(
        name,
        "$client"
            | "$audit"
            | "$configServerState"
            | "$configTime"
            | "$topologyTime"
            | "$oplogQueryData"
            | "$queryOptions"
            | "$replData"
            | "$gleStats"
            | "databaseVersion"
            | "shardVersion"
            | "writesTo"
            | "moveTurn"
            | "tracking_info"
            | "coordinator"
            | "maxTimeMSOpOnly"
            | "clientOperationKey"
            | "txnRetryCounter"
            | "backpressure"
            | "allowImplicitCollectionCreation"
            | "bypassEmptyTsReplacement"
            | "originalQueryShapeHash"
            | "versionContext"
            | "operationTime"
            | "expectPrefix"
            | "usesDefaultMaxTimeMS"
            | "requestGossipRoutingCache"
            | "rawData"
            | "startOrContinueTransaction"
            | "help"
    )
}

fn txn_number(v: Val<'_>) -> Result<Option<i64>> {
    match v.as_i64() {
        Some(n) if n < 0 => bail!(InvalidOptions, "Transaction number cannot be negative"),
        None if !v.is_nullish() => bail!(
            TypeMismatch,
            "BSON field 'txnNumber' is the wrong type '{}', expected type 'long'",
            v.type_name()
        ),
        n => Ok(n),
    }
}

fn check_read_preference(v: Val<'_>) -> Result<()> {
    if v.tag != tag::DOCUMENT {
        bail!(
            TypeMismatch,
            "$readPreference must be an object, found {}",
            v.type_name()
        );
    }
    Ok(())
}

impl<'a> Generic<'a> {
    /// Of a command whose own fields others read.
    pub fn parse(command: &str, body: Doc<'a>) -> Result<Generic<'a>> {
        let mut generic = Generic::default();
        for e in body.iter().skip(1) {
            generic.read(command, e)?;
        }
        Ok(generic)
    }

    /// Reads one field; false when it is not generic.
    fn read(&mut self, command: &str, e: Elem<'a>) -> Result<bool> {
        let v = e.val;
        match e.name {
            "lsid" => self.lsid = lsid(v)?,
            "txnNumber" => self.txn_number = txn_number(v)?,
            "autocommit" => self.autocommit = idl::boolean(command, e)?,
            "startTransaction" => {
                self.start_transaction = idl::boolean(command, e)?.unwrap_or(false);
            }
            "maxTimeMS" => self.max_time_ms = max_time_ms("maxTimeMS", v)?,
            "comment" => self.comment = Some(v),
            "fromMigrate" => self.from_migrate = v.truthy(),
            "mayBypassWriteBlocking" => self.bypasses_write_block = v.truthy(),
            "readConcern" => self.read_concern = Some(v),
            "writeConcern" => self.write_concern = Some(v),
            "apiVersion" => match idl::string(command, e)? {
                Some("1") => self.api.version = true,
                Some(_) => bail!(APIVersionError, "API version must be \"1\""),
                None => {}
            },
            "apiStrict" => self.api.strict = idl::boolean(command, e)?.unwrap_or(false),
            "apiDeprecationErrors" => {
                self.api.deprecation_errors = idl::boolean(command, e)?.unwrap_or(false)
            }
            "$readPreference" => {
                check_read_preference(v)?;
                self.read_preference = Some(v);
                let mode = v
                    .as_doc()
                    .and_then(|d| d.get("mode"))
                    .and_then(|m| m.as_str());
                self.secondary_ok |= mode.is_some_and(|mode| mode != "primary");
            }
            "$secondaryOk" => self.secondary_ok |= v.truthy(),
            "$clusterTime" => check_cluster_time(command, e)?,
            name => return Ok(is_ignored(name)),
        }
        Ok(true)
    }
}

impl<'a> Args<'a> {
    /// Separates the body into the command's fields and the generic ones. `db` is what stands beside
    /// the body, in its message or in the command that it is within: the body may not name another.
    pub fn parse(command: &'static str, body: Doc<'a>, db: Option<&'a str>) -> Result<Args<'a>> {
        let mut args = Args {
            command,
            first: Val::NULL,
            db: "",
            fields: SmallVec::new(),
            generic: Generic::default(),
        };
        let mut found_db = db;
        let mut it = body.iter();
        if let Some(e) = it.next() {
            args.first = e.val;
        }
        for e in it {
            if e.name == "$db" {
                match e.val.as_str() {
                    // What is checked for one database must not be read as one for another.
                    Some(s) if db.is_some_and(|db| db != s) => bail!(
                        InvalidNamespace,
                        "Mismatched $db in command {command}. Expected {} but got {s}",
                        db.unwrap_or_default()
                    ),
                    Some(s) => found_db = Some(s),
                    None => bail!(
                        TypeMismatch,
                        "BSON field '$db' is the wrong type '{}', expected type 'string'",
                        e.val.type_name()
                    ),
                }
            } else if !args.generic.read(command, e)? {
                args.fields.push(e);
            }
        }
        let g = &args.generic;
        if (g.api.strict || g.api.deprecation_errors) && !g.api.version {
            bail!(
                4886600,
                "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion"
            );
        }
        match found_db {
            Some(db) => args.db = db,
            None => bail!(40571, "OP_MSG requests require a $db argument"),
        }
        Ok(args)
    }

    /// The error of a field that the command does not know.
    pub fn unknown(&self, e: Elem<'_>) -> Stop {
        idl::unknown(self.command, e.name)
    }

    /// Fails on any field of the command's own: for commands that have none.
    pub fn no_fields(&self) -> Result<()> {
        match self.fields.first() {
            Some(e) => Err(self.unknown(*e)),
            None => Ok(()),
        }
    }

    /// The value of a field of the command's own.
    pub fn field(&self, name: &str) -> Option<Val<'a>> {
        self.fields.iter().find(|e| e.name == name).map(|e| e.val)
    }

    /// `db.collection` from the first field.
    pub fn namespace(&self) -> Result<String> {
        let Some(coll) = self.first.as_str() else {
            if self.first.as_binary().is_some_and(|(t, _)| t == 4) {
                bail!(
                    BadValue,
                    "Collection name must be provided. UUID is not valid in this context"
                );
            }
            bail!(
                InvalidNamespace,
                "collection name has invalid type {}",
                self.first.type_name()
            );
        };
        self.namespace_of(coll)
    }

    /// `db.coll`, checked.
    pub fn namespace_of(&self, coll: &str) -> Result<String> {
        let mut ns = String::with_capacity(self.db.len() + 1 + coll.len());
        ns.push_str(self.db);
        ns.push('.');
        ns.push_str(coll);
        if coll.is_empty() || coll.starts_with('.') || coll.contains('\0') {
            bail!(InvalidNamespace, "Invalid namespace specified '{ns}'");
        }
        Ok(ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Value, doc};

    #[test]
    fn parts() {
        let lsid = doc! { "id": Value::binary(4, &[3; 16]) };
        let d = doc! { "find": "c", "filter": doc!{}, "lsid": lsid, "$db": "test", "maxTimeMS": 5, "limit": 1, "txnNumber": 7i64 };
        let a = Args::parse("find", d.as_doc(), None).unwrap();
        assert_eq!(a.namespace().unwrap(), "test.c");
        assert_eq!(
            a.fields.iter().map(|e| e.name).collect::<Vec<_>>(),
            ["filter", "limit"]
        );
        assert_eq!(
            (
                a.generic.lsid.map(|l| l.id),
                a.generic.max_time_ms,
                a.generic.txn_number
            ),
            (Some([3; 16]), 5, Some(7))
        );
    }

    /// Otherwise a user of one database would have its command run on another.
    #[test]
    fn the_database_beside_a_command_is_its_own() {
        let named = doc! { "find": "c", "$db": "a" };
        let parse = |db| Args::parse("find", named.as_doc(), db).map(|a| a.db);
        assert_eq!(parse(None).unwrap(), "a");
        assert_eq!(parse(Some("a")).unwrap(), "a");
        assert_eq!(parse(Some("b")).unwrap_err().into_error().code.0, 73);
        let unnamed = doc! { "find": "c" };
        let parsed = Args::parse("find", unnamed.as_doc(), Some("b")).unwrap();
        assert_eq!(parsed.db, "b");
    }

    #[test]
    fn rejected() {
        for (d, code) in [
            (doc! { "ping": 1 }, 40571),
            (doc! { "ping": 1, "$db": 1 }, 14),
            (doc! { "ping": 1, "$db": "a", "apiVersion": "2" }, 322),
            (doc! { "ping": 1, "$db": "a", "apiStrict": true }, 4886600),
            (doc! { "ping": 1, "$db": "a", "maxTimeMS": -1 }, 2),
            (doc! { "ping": 1, "$db": "a", "maxTimeMS": 1.5 }, 9),
            (doc! { "ping": 1, "$db": "a", "maxTimeMS": "1" }, 14),
            (doc! { "ping": 1, "$db": "a", "lsid": doc!{} }, 40414),
        ] {
            assert_eq!(
                Args::parse("ping", d.as_doc(), None)
                    .unwrap_err()
                    .into_error()
                    .code
                    .0,
                code,
                "{d:?}"
            );
        }
    }
}
