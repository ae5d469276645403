//! Server parameters (`getParameter`, `setParameter`, `--setParameter`): those that clients and
//! tools ask for, with the values of a MongoDB 8 where they mean something here and harmless ones
//! where they do not.

use crate::settings::log_components;
use crate::version::FEATURE_VERSION;
use bson::{Doc, Value, Writer, array, doc};
use errors::{Result, bail};
use parking_lot::RwLock;
use service::establishment::{AddressRange, EstablishmentRate};
use std::collections::BTreeMap;

pub const NO_TABLE_SCAN: &str = "notablescan";
/// Seconds that a transaction may be open.
pub const TRANSACTION_LIFETIME: &str = "transactionLifetimeLimitSeconds";
/// How long a snapshot can be read (`readConcern: snapshot`).
pub const SNAPSHOT_WINDOW: &str = "minSnapshotHistoryWindowInSeconds";
/// Megabytes a second that a member which copies files from here may have; 0 without a limit.
pub const DB_CHECK_LOGGED_EVERY: &str = "dbCheckHealthLogEveryNBatches";
pub const DB_CHECK_MOST_RUNS: &str = "dbCheckMaxRunsOnQueue";
pub const DB_CHECK_RATE: &str = "maxDbCheckMBperSec";
pub const INITIAL_SYNC_RATE: &str = "initialSyncMaxMBPerSec";
/// A checkpoint that was not read for this many seconds is removed.
pub const INITIAL_SYNC_PATIENCE: &str = "initialSyncSourceIdleSecs";
/// Documents that a member rolls back are saved in files.
pub const ROLLBACK_FILES: &str = "createRollbackDataFiles";
/// What limits how many connections a second are let in.
pub const ESTABLISHMENT: [&str; 5] = [
    "ingressConnectionEstablishmentRateLimiterEnabled",
    "ingressConnectionEstablishmentRatePerSec",
    "ingressConnectionEstablishmentBurstCapacitySecs",
    "ingressConnectionEstablishmentMaxQueueDepth",
    "ingressConnectionEstablishmentRateLimiterBypass",
];
/// Which of MongoDB's engines explain speaks of: `forceClassicEngine` has every `$group` as a stage.
pub const FRAMEWORK: &str = "internalQueryFrameworkControl";
/// How often a router asks for the settings of the whole cluster, in seconds.
pub const SETTINGS_INTERVAL: &str = "clusterServerParameterRefreshIntervalSecs";
/// How long a router may know of users and roles what does not hold any more, in seconds.
pub const USER_CACHE_INTERVAL: &str = "userCacheInvalidationIntervalSecs";
/// Whether `setProfilingFilterGlobally` does anything.
pub const GLOBAL_PROFILING_FILTER: &str = "internalQueryGlobalProfilingFilter";
/// Movers of ranges rest while routers are served.
pub const PACED_MOVES: &str = "pacedRangeMoves";
/// How long they rest at least, in milliseconds: when documents were put, and when some were removed.
pub const COPY_PAUSE: &str = "migrateCloneInsertionBatchDelayMS";
pub const CLEAN_PAUSE: &str = "rangeDeleterBatchDelayMS";
/// Messages that are put at once at a shard that a range comes to.
pub const MIGRATION_CONCURRENCY: &str = "chunkMigrationConcurrency";
/// How long a transaction waits for DDL.
pub const TRANSACTION_LOCK_PATIENCE: &str = "maxTransactionLockRequestTimeoutMillis";

/// Those that change what the server does. The others are kept and returned by `getParameter`; the
/// features that they set do not exist here.
const EFFECTIVE: &[&str] = &[
    NO_TABLE_SCAN,
    "allowDiskUseByDefault",
    "clientCursorMonitorFrequencySecs",
    "cursorTimeoutMillis",
    DB_CHECK_LOGGED_EVERY,
    DB_CHECK_MOST_RUNS,
    DB_CHECK_RATE,
    ROLLBACK_FILES,
    ESTABLISHMENT[0],
    ESTABLISHMENT[1],
    ESTABLISHMENT[2],
    ESTABLISHMENT[3],
    ESTABLISHMENT[4],
    FRAMEWORK,
    SETTINGS_INTERVAL,
    GLOBAL_PROFILING_FILTER,
    INITIAL_SYNC_PATIENCE,
    INITIAL_SYNC_RATE,
    "logComponentVerbosity",
    "logLevel",
    COPY_PAUSE,
    MIGRATION_CONCURRENCY,
    PACED_MOVES,
    CLEAN_PAUSE,
    SNAPSHOT_WINDOW,
    TRANSACTION_LOCK_PATIENCE,
    TRANSACTION_LIFETIME,
    "ttlMonitorEnabled",
    "ttlMonitorSleepSecs",
    USER_CACHE_INTERVAL,
];

/// When a parameter may be set.
const START: u8 = 1;
const RUNNING: u8 = 2;

#[derive(Clone, Debug)]
pub struct Parameter {
    pub value: Value,
    at: u8,
    /// Smallest and largest number; of text, the bytes that it may have.
    range: Option<(i64, i64)>,
}

impl Parameter {
    pub fn at_start(&self) -> bool {
        self.at & START != 0
    }

    pub fn at_runtime(&self) -> bool {
        self.at & RUNNING != 0
    }
}

pub struct Parameters(RwLock<BTreeMap<&'static str, Parameter>>);

const NEVER: u8 = 0;
const BOTH: u8 = START | RUNNING;

const POSITIVE: Option<(i64, i64)> = Some((1, i32::MAX as i64));
const NATURAL: Option<(i64, i64)> = Some((0, i32::MAX as i64));

/// One row a parameter: name, default, when it may be set, range.
macro_rules! parameters {
    ($($name:expr => $value:expr, $at:expr, $range:expr;)*) => {
        fn defaults() -> Vec<(&'static str, Value, u8, Option<(i64, i64)>)> {
            vec![$(($name, Value::from($value), $at, $range)),*]
        }
    };
}

parameters! {
    "KeysRotationIntervalSec" => 7_776_000, START, POSITIVE;
    "ShardingTaskExecutorPoolReplicaSetMatching" => "automatic", BOTH, None;
    "allowDiskUseByDefault" => true, BOTH, None;
    "authSchemaVersion" => 5, NEVER, None;
    "authenticationMechanisms" => array!["SCRAM-SHA-1", "SCRAM-SHA-256"], START, None;
    "automationServiceDescriptor" => "", BOTH, Some((0, 64));
    MIGRATION_CONCURRENCY => 1, BOTH, Some((1, 500));
    "clientCursorMonitorFrequencySecs" => 4, BOTH, POSITIVE;
    "clusterAuthMode" => "undefined", BOTH, None;
    ROLLBACK_FILES => true, BOTH, None;
    SETTINGS_INTERVAL => 30, BOTH, Some((1, i32::MAX as i64));
    DB_CHECK_LOGGED_EVERY => 25, BOTH, Some((1, 10_000));
    DB_CHECK_MOST_RUNS => 5, BOTH, Some((1, 100));
    "cursorTimeoutMillis" => 600_000i64, BOTH, Some((1, i64::MAX));
    "diagnosticDataCollectionEnabled" => false, BOTH, None;
    "enableLocalhostAuthBypass" => true, START, None;
    "enableTestCommands" => true, START, None;
    "failIndexKeyTooLong" => true, BOTH, None;
    "featureCompatibilityVersion" => doc! { "version": FEATURE_VERSION }, NEVER, None;
    INITIAL_SYNC_PATIENCE => 60, BOTH, POSITIVE;
    INITIAL_SYNC_RATE => 0, BOTH, NATURAL;
    "internalQueryExecMaxBlockingSortBytes" => 104_857_600, BOTH, NATURAL;
    GLOBAL_PROFILING_FILTER => false, BOTH, None;
    "internalQueryMaxBlockingSortMemoryUsageBytes" => 104_857_600, BOTH, NATURAL;
    ESTABLISHMENT[0] => false, BOTH, None;
    ESTABLISHMENT[1] => i32::MAX, BOTH, POSITIVE;
    ESTABLISHMENT[2] => 1.0, BOTH, NATURAL;
    ESTABLISHMENT[3] => 0, BOTH, NATURAL;
    ESTABLISHMENT[4] => doc! { "ranges": array![] }, BOTH, None;
    FRAMEWORK => "trySbeRestricted", BOTH, None;
    "journalCommitInterval" => 100, BOTH, Some((1, 500));
    "localLogicalSessionTimeoutMinutes" => 30, START, POSITIVE;
    "logComponentVerbosity" => log_components::defaults(), BOTH, None;
    "logLevel" => 0, BOTH, Some((0, 5));
    "logicalSessionRefreshMillis" => 300_000, START, POSITIVE;
    "maxBSONDepth" => 200, START, None;
    "maxIndexBuildMemoryUsageMegabytes" => 200.0, BOTH, Some((50, i64::from(i32::MAX)));
    "maxSessions" => 1_000_000, START, POSITIVE;
    COPY_PAUSE => 0, BOTH, NATURAL;
    TRANSACTION_LOCK_PATIENCE => 5, BOTH, None;
    SNAPSHOT_WINDOW => 300, BOTH, NATURAL;
    NO_TABLE_SCAN => false, BOTH, None;
    PACED_MOVES => true, BOTH, None;
    DB_CHECK_RATE => 1, BOTH, NATURAL;
    "periodicNoopIntervalSecs" => 10, START, POSITIVE;
    "quiet" => false, BOTH, None;
    CLEAN_PAUSE => 0, BOTH, NATURAL;
    "requireApiVersion" => false, BOTH, None;
    "saslHostName" => "", START, None;
    "scramIterationCount" => 10_000, BOTH, POSITIVE;
    "scramSHA256IterationCount" => 15_000, BOTH, POSITIVE;
    "sslMode" => "disabled", BOTH, None;
    "storageEngineConcurrentReadTransactions" => 0, RUNNING, NATURAL;
    "syncdelay" => 60.0, BOTH, NATURAL;
    "testForceBackgroundSyncFail" => false, BOTH, None;
    "tlsMode" => "disabled", BOTH, None;
    "traceExceptions" => false, BOTH, None;
    TRANSACTION_LIFETIME => 60, BOTH, POSITIVE;
    "ttlMonitorEnabled" => true, BOTH, None;
    "ttlMonitorSleepSecs" => 60, BOTH, POSITIVE;
    USER_CACHE_INTERVAL => 30, BOTH, Some((1, 86_400));
    "waitForSecondaryBeforeNoopWriteMS" => 10, BOTH, NATURAL;
    "wiredTigerConcurrentReadTransactions" => 0, RUNNING, NATURAL;
    "wiredTigerConcurrentWriteTransactions" => 0, RUNNING, NATURAL;
    "wiredTigerEngineRuntimeConfig" => "", RUNNING, None;
    "writePeriodicNoops" => true, START, None;
}

impl Parameters {
    /// The defaults with what the command line says over them. A name that is not known is kept out
    /// (and is no error: scripts that start `mongod` set many).
    pub fn new(given: &[(String, String)]) -> Parameters {
        let mut map = BTreeMap::new();
        for (name, value, at, range) in defaults() {
            map.insert(name, Parameter { value, at, range });
        }
        for (name, text) in given {
            let Some(p) = map.get_mut(name.as_str()) else {
                tracing::warn!(target: "CONTROL", startup_warning = true, parameter = name,
                    "This server has no such parameter: it has no effect");
                continue;
            };
            match converted(name, p, Value::from(text.as_str()).as_val(), true) {
                Ok(value) => p.value = value,
                Err(e) => {
                    tracing::warn!(target: "CONTROL", startup_warning = true, parameter = name, error = %e,
                        "A parameter cannot have this value and keeps its default");
                }
            }
        }
        tie_log_levels("logLevel", &mut map);
        Parameters(RwLock::new(map))
    }

    pub fn get(&self, name: &str) -> Option<Parameter> {
        self.0.read().get(name).cloned()
    }

    pub fn int(&self, name: &str) -> i64 {
        self.get(name)
            .and_then(|p| p.value.as_val().to_i64_truncated())
            .unwrap_or(0)
    }

    pub fn bool(&self, name: &str) -> bool {
        let map = self.0.read();
        map.get(name).is_some_and(|p| p.value.as_val().truthy())
    }

    /// Whether a parameter has this text.
    pub fn is(&self, name: &str, text: &str) -> bool {
        let map = self.0.read();
        map.get(name)
            .is_some_and(|p| p.value.as_val().as_str() == Some(text))
    }

    pub fn all(&self) -> Vec<(&'static str, Parameter)> {
        self.0.read().iter().map(|(n, p)| (*n, p.clone())).collect()
    }

    /// Sets a parameter of the running server; its value before.
    pub fn set(&self, name: &str, v: bson::Val<'_>) -> Result<Value> {
        let mut map = self.0.write();
        let Some(p) = map.get_mut(name) else {
            bail!(
                InvalidOptions,
                "attempted to set unrecognized parameter [{name}], use help:true to see options "
            );
        };
        if !p.at_runtime() {
            bail!(
                IllegalOperation,
                "not allowed to change [{name}] at runtime"
            );
        }
        let new = converted(name, p, v, false)?;
        if !EFFECTIVE.contains(&name) && new != p.value {
            tracing::warn!(target: "CONTROL", parameter = name, "This parameter is kept, but has no effect here");
        }
        let was = std::mem::replace(&mut p.value, new);
        tie_log_levels(name, &mut map);
        Ok(was)
    }

    /// How connections are limited; `None` when they are not.
    pub fn establishment(&self) -> Option<EstablishmentRate> {
        let [enabled, per_second, burst, depth, exempt] = ESTABLISHMENT;
        if !self.bool(enabled) {
            return None;
        }
        let number = |name| self.get(name).and_then(|p| p.value.as_val().to_f64());
        let exempt = self.get(exempt);
        let exempt = exempt.and_then(|p| exempt_ranges(p.value.as_val()));
        Some(EstablishmentRate {
            per_second: number(per_second).unwrap_or(f64::MAX),
            burst_seconds: number(burst).unwrap_or(0.0),
            queue_depth: usize::try_from(self.int(depth)).unwrap_or(0),
            exempt: exempt.into_iter().flatten().flatten().collect(),
        })
    }

    /// Gives a parameter a value that a command of its own has checked.
    pub fn put(&self, name: &str, value: Value) {
        if let Some(p) = self.0.write().get_mut(name) {
            p.value = value;
        }
    }

    /// Whether every command is to be logged.
    pub fn logs_commands(&self) -> bool {
        let levels = self.get("logComponentVerbosity");
        let levels = levels.as_ref().and_then(|p| p.value.as_val().as_doc());
        levels.is_some_and(log_components::tells_commands)
    }
}

/// Two names for one level: `logLevel`, and the outermost of `logComponentVerbosity`.
fn tie_log_levels(changed: &str, map: &mut BTreeMap<&'static str, Parameter>) {
    let (Some(one), Some(all)) = (map.get("logLevel"), map.get("logComponentVerbosity")) else {
        return;
    };
    let levels = all.value.as_val().as_doc().unwrap_or(Doc::EMPTY);
    let (other, value) = match changed {
        "logLevel" => {
            let top = one.value.as_val().to_i64_truncated().unwrap_or(0);
            let levels = log_components::with_top(levels, top);
            ("logComponentVerbosity", Value::from(levels))
        }
        "logComponentVerbosity" => {
            let top = log_components::level(levels, "");
            ("logLevel", Value::from(top as i32))
        }
        _ => return,
    };
    if let Some(p) = map.get_mut(other) {
        p.value = value;
    }
}

/// `v` as a value of the parameter's type; numbers may come as text from the command line only.
fn converted(name: &str, p: &Parameter, v: bson::Val<'_>, from_text: bool) -> Result<Value> {
    use bson::tag;
    let number = || -> Result<f64> {
        if v.tag == tag::BOOL {
            return Ok(f64::from(u8::from(v.truthy())));
        }
        if let Some(f) = v.to_f64() {
            return Ok(f);
        }
        match v
            .as_str()
            .filter(|_| from_text)
            .map(str::trim)
            .map(str::parse::<f64>)
        {
            Some(Ok(f)) => Ok(f),
            _ => bail!(BadValue, "Invalid value for parameter {name}: {v}"),
        }
    };
    let in_range = |f: f64| -> Result<f64> {
        if let Some((low, high)) = p.range
            && !(low as f64..=high as f64).contains(&f.trunc())
        {
            if name == MIGRATION_CONCURRENCY {
                bail!(
                    InvalidOptions,
                    "Chunk migration concurrency level must be positive and less than {high}."
                );
            }
            bail!(
                BadValue,
                "Invalid value for parameter {name}: {v} is not within [{low}, {high}]"
            );
        }
        if f.is_nan() {
            bail!(BadValue, "Invalid value for parameter {name}: {v}");
        }
        Ok(f)
    };
    Ok(match p.value.tag() {
        tag::BOOL => Value::from(match v.as_str() {
            Some("false" | "0" | "no" | "off") => false,
            _ => v.truthy(),
        }),
        tag::INT32 => Value::from(in_range(number()?)? as i32),
        tag::INT64 => Value::from(in_range(number()?)? as i64),
        tag::DOUBLE => Value::from(in_range(number()?)?),
        tag::STRING => match v.as_str() {
            Some(s) => {
                if let Some((_, most)) = p.range
                    && s.len() as i64 > most
                {
                    bail!(
                        Overflow,
                        "Value for parameter {name} must be no more than {most} bytes"
                    );
                }
                Value::from(s)
            }
            None => bail!(
                TypeMismatch,
                "Invalid value for parameter {name}: expected a string, got {}",
                v.type_name()
            ),
        },
        tag::DOCUMENT if name == "logComponentVerbosity" => {
            let now = p.value.as_val().as_doc().unwrap_or(Doc::EMPTY);
            Value::from(log_components::changed(now, v)?)
        }
        tag::DOCUMENT if name == ESTABLISHMENT[4] => {
            let Some(ranges) = exempt_ranges(v) else {
                bail!(BadValue, "Invalid value for parameter {name}: {v}");
            };
            if ranges.iter().any(Option::is_none) {
                bail!(BadValue, "Invalid CIDR range in parameter {name}: {v}");
            }
            v.to_value()
        }
        _ => v.to_value(),
    })
}

/// The address ranges of `{ranges: ["10.0.0.0/8", …]}`; `None` where one is not.
fn exempt_ranges(v: bson::Val<'_>) -> Option<Vec<Option<AddressRange>>> {
    let ranges = v.as_doc()?.get("ranges")?.as_array()?;
    let range = |v: bson::Val<'_>| v.as_str().and_then(AddressRange::parse);
    Some(ranges.values().map(range).collect())
}

/// Appends a parameter, with when it may be set if `details`.
pub fn append(w: &mut Writer, name: &str, p: &Parameter, details: bool) {
    if details {
        w.open_doc(name).val("value", p.value.as_val());
        w.bool("settableAtRuntime", p.at_runtime())
            .bool("settableAtStartup", p.at_start())
            .close();
    } else {
        w.val(name, p.value.as_val());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_tells() {
        let p = Parameters::new(&[
            ("cursorTimeoutMillis".into(), "5".into()),
            ("nobodyKnows".into(), "1".into()),
        ]);
        assert_eq!(p.int("cursorTimeoutMillis"), 5);
        assert_eq!(
            p.set("logLevel", Value::from(2.7).as_val()).unwrap(),
            Value::from(0)
        );
        assert_eq!(p.int("logLevel"), 2);
        for (name, v, code) in [
            ("nope", Value::from(1), 72),
            ("logLevel", Value::from(-1), 2),
            ("logLevel", Value::from("x"), 2),
            ("maxSessions", Value::from(1), 20),
            (MIGRATION_CONCURRENCY, Value::from(0), 72),
            (MIGRATION_CONCURRENCY, Value::from(501), 72),
            (MIGRATION_CONCURRENCY, Value::from("many"), 2),
        ] {
            assert_eq!(
                p.set(name, v.as_val()).unwrap_err().into_error().code.0,
                code,
                "{name}"
            );
        }
        assert_eq!(
            p.set("quiet", Value::from(1).as_val()).unwrap(),
            Value::from(false)
        );
        assert_eq!(p.get("quiet").unwrap().value, Value::from(true));
        let long = Value::from("x".repeat(65));
        let refused = p.set("automationServiceDescriptor", long.as_val());
        assert_eq!(refused.unwrap_err().into_error().code.0, 15);
    }

    #[test]
    fn two_names_for_the_log_level() {
        let p = Parameters::new(&[("logLevel".into(), "1".into())]);
        assert!(p.logs_commands());
        let levels = |p: &Parameters| p.get("logComponentVerbosity").unwrap().value;
        let top = |p: &Parameters| log_components::level(levels(p).as_val().as_doc().unwrap(), "");
        assert_eq!(top(&p), 1);
        p.set("logLevel", Value::from(3).as_val()).unwrap();
        assert_eq!(top(&p), 3);
        let given = Value::from(doc! { "verbosity": 2, "command": 0 });
        p.set("logComponentVerbosity", given.as_val()).unwrap();
        assert_eq!(p.int("logLevel"), 2);
        assert!(!p.logs_commands());
    }
}
