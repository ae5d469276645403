//! Every option, once: its place in mongod's configuration file, its flags, and what it means to this server.
//!
//! Flags, environment (`PANDO_…`) and file all come down to the same keys; the later of file, environment and flags wins.
//! Both personalities take all flags: only defaults, help and manners differ.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// What a flag takes on the command line.
#[derive(Clone, Copy)]
pub enum FlagValue {
    /// A value; the text stands for it in the help.
    Value(&'static str),
    /// Nothing: it stands for this value.
    Fixed(&'static str),
    /// `true` or `false`, or nothing for `true`.
    Switch,
}
use FlagValue::{Fixed, Switch, Value};

pub struct Flag {
    pub names: &'static [&'static str],
    pub key: &'static str,
    pub takes: FlagValue,
    /// Empty for what only mongod has.
    pub help: &'static str,
}

const fn own(
    names: &'static [&'static str],
    key: &'static str,
    takes: FlagValue,
    help: &'static str,
) -> Flag {
    Flag {
        names,
        key,
        takes,
        help,
    }
}

const fn flag(name: &'static [&'static str], key: &'static str, takes: FlagValue) -> Flag {
    Flag {
        names: name,
        key,
        takes,
        help: "",
    }
}

/// The first name is the one that help and environment use.
pub const FLAGS: &[Flag] = &[
    own(
        &["dbpath"],
        "storage.dbPath",
        Value("DIR"),
        "The data directory [default: pando-data; mongod: /data/db]",
    ),
    own(
        &["port"],
        "net.port",
        Value("PORT"),
        "The TCP port [default: 27017]",
    ),
    own(
        &["bind", "bind_ip"],
        "net.bindIp",
        Value("HOSTS"),
        "Addresses to listen on, with commas between [default: localhost]",
    ),
    own(
        &["allow-insecure-bind"],
        "pando.allowInsecureBind",
        Switch,
        "Listen beyond this machine without --auth or without TLS: whoever reaches the port, or listens on the network, may read everything",
    ),
    own(
        &["cache"],
        "pando.cache",
        Value("SIZE"),
        "Memory for cached data and pending writes, as 512MB, 4GB or 25% [default: a quarter of the memory, of the machine's or of what its control group allows]",
    ),
    own(
        &["direct-io"],
        "pando.directIo",
        Switch,
        "Read and write data files past the kernel's page cache: the memory used is then the cache and little else",
    ),
    own(
        &["scrub"],
        "pando.scrub",
        Value("SIZE"),
        "Once a week all data files are read and compared with their checksums, so much of them in a second, as 16MB; 0 for never [default: 8MB]",
    ),
    own(
        &["no-self-repair"],
        "pando.noSelfRepair",
        Switch,
        "Where the data files of a member of a set are damaged, do not replace them by those of the primary",
    ),
    // A slowdown put in on purpose, which `pando lab compare` has to find.
    flag(&["handicap"], "pando.handicap", Value("PERCENT")),
    own(
        &["engine-options"],
        "pando.engineOptions",
        Value("OPTIONS"),
        "Options of RocksDB by name (name=value;..., or records:name=value for the family of records), for experiments; dead_ranges=off: scans step over all that is deleted",
    ),
    own(
        &["durability"],
        "pando.durability",
        Value("WHEN"),
        "default: writes with majority or j:true wait for the disk, others reach it within 100 ms; always: every acknowledged write waits; none: no write waits, for data that is not kept; or another interval, as 20ms [default: default]",
    ),
    own(
        &["advertise"],
        "pando.advertise",
        Value("HOST:PORT"),
        "The address that clients are told to use [default: the one that each came in on]",
    ),
    own(
        &["replica-set", "replSet"],
        "replication.replSetName",
        Value("NAME"),
        "The name of the replica set whose one member this is [default: rs0]",
    ),
    own(
        &["standalone"],
        "pando.standalone",
        Switch,
        "Be no replica set: no transactions, no change streams",
    ),
    own(
        &["max-connections", "maxConns"],
        "net.maxIncomingConnections",
        Value("N"),
        "Connections at a time [default: as many as there may be open files]",
    ),
    own(
        &["unix-socket-dir", "unixSocketPrefix"],
        "net.unixDomainSocket.pathPrefix",
        Value("DIR"),
        "Listen on DIR/mongodb-PORT.sock as well",
    ),
    own(
        &["set-parameter", "setParameter"],
        "setParameter",
        Value("NAME=VALUE"),
        "A server parameter; may be given more than once",
    ),
    own(
        &["slow-ms", "slowms"],
        "operationProfiling.slowOpThresholdMs",
        Value("MS"),
        "Log commands that take longer [default: 100]",
    ),
    own(
        &["log-path", "logpath"],
        "systemLog.path",
        Value("FILE"),
        "Write the log here [default: warnings to a terminal, else everything to stderr; mongod: stdout]",
    ),
    own(
        &["log-retain", "oplogSize"],
        "replication.oplogSizeMB",
        Value("MB"),
        "How much of the log's past to keep [default: 1024]",
    ),
    own(
        &["oplogMinRetentionHours"],
        "storage.oplogMinRetentionHours",
        Value("HOURS"),
        "Keep what is younger however large the log is",
    ),
    own(
        &["event-loops"],
        "pando.eventLoops",
        Value("N"),
        "Threads that serve connections [default: as many as cores]",
    ),
    own(
        &["query-threads", "queryThreads"],
        "pando.queryThreads",
        Value("N"),
        "Threads that an aggregation over much of a collection may use, 256 at most; 1: its own [default: as many as the machine has cores that are idle]",
    ),
    own(
        &["metrics"],
        "pando.metrics",
        Value("ADDRESS"),
        "Serve figures for Prometheus on http://ADDRESS/metrics; a port alone is one on loopback [default: none]",
    ),
    own(
        &["console"],
        "pando.console",
        Value("ADDRESS"),
        "Serve a page for operators on http://ADDRESS, encrypted where --tlsMode is and the address is not loopback or begins with https://; a port alone is one on loopback; off: none [default: the port and 1000 on loopback]",
    ),
    flag(&["no-console"], "pando.console", Fixed("off")),
    own(&["quiet"], "systemLog.quiet", Switch, "Log no connections"),
    own(
        &["fork"],
        "processManagement.fork",
        Switch,
        "Go to the background once ready (needs --log-path)",
    ),
    own(
        &["pid-file", "pidfilepath"],
        "processManagement.pidFilePath",
        Value("FILE"),
        "Write the process id here",
    ),
    flag(&["bind_ip_all"], "net.bindIpAll", Switch),
    flag(&["ipv6"], "net.ipv6", Switch),
    flag(
        &["nounixsocket"],
        "net.unixDomainSocket.enabled",
        Fixed("false"),
    ),
    flag(
        &["filePermissions"],
        "net.unixDomainSocket.filePermissions",
        Value("MODE"),
    ),
    flag(
        &["networkMessageCompressors"],
        "net.compression.compressors",
        Value("NAMES"),
    ),
    flag(&["objcheck"], "net.wireObjectCheck", Fixed("true")),
    flag(&["noobjcheck"], "net.wireObjectCheck", Fixed("false")),
    flag(&["listenBacklog"], "net.listenBacklog", Value("N")),
    own(
        &["tlsMode"],
        "net.tls.mode",
        Value("MODE"),
        "Encrypt connections: disabled, allowTLS, preferTLS or requireTLS [default: disabled]",
    ),
    own(
        &["tlsCertificateKeyFile"],
        "net.tls.certificateKeyFile",
        Value("FILE"),
        "The server's certificate and private key, in PEM",
    ),
    flag(
        &["tlsCertificateKeyFilePassword"],
        "net.tls.certificateKeyFilePassword",
        Value("PASSWORD"),
    ),
    own(
        &["tlsCAFile"],
        "net.tls.CAFile",
        Value("FILE"),
        "Authorities of the certificates that clients must show, in PEM",
    ),
    own(
        &["auditDestination"],
        "auditLog.destination",
        Value("WHERE"),
        "Keep an audit log: file (see --auditPath) or console",
    ),
    own(
        &["auditPath"],
        "auditLog.path",
        Value("FILE"),
        "The audit log: a line of JSON for each event",
    ),
    flag(&["auditFormat"], "auditLog.format", Value("FORMAT")),
    flag(&["auditFilter"], "auditLog.filter", Value("QUERY")),
    flag(&["tlsCRLFile"], "net.tls.CRLFile", Value("FILE")),
    flag(
        &["tlsAllowConnectionsWithoutCertificates"],
        "net.tls.allowConnectionsWithoutCertificates",
        Switch,
    ),
    flag(
        &["tlsAllowInvalidCertificates"],
        "net.tls.allowInvalidCertificates",
        Switch,
    ),
    flag(
        &["tlsDisabledProtocols"],
        "net.tls.disabledProtocols",
        Value("NAMES"),
    ),
    flag(&["tlsClusterFile"], "net.tls.clusterFile", Value("FILE")),
    flag(
        &["tlsClusterPassword"],
        "net.tls.clusterPassword",
        Value("PASSWORD"),
    ),
    flag(
        &["tlsClusterCAFile"],
        "net.tls.clusterCAFile",
        Value("FILE"),
    ),
    flag(
        &["tlsAllowInvalidHostnames"],
        "net.tls.allowInvalidHostnames",
        Switch,
    ),
    flag(&["tlsLogVersions"], "net.tls.logVersions", Value("NAMES")),
    flag(&["sslCRLFile"], "net.ssl.CRLFile", Value("FILE")),
    flag(
        &["sslAllowInvalidCertificates"],
        "net.ssl.allowInvalidCertificates",
        Switch,
    ),
    flag(
        &["sslDisabledProtocols"],
        "net.ssl.disabledProtocols",
        Value("NAMES"),
    ),
    flag(
        &["sslPEMKeyPassword"],
        "net.ssl.PEMKeyPassword",
        Value("PASSWORD"),
    ),
    flag(&["sslPEMKeyFile"], "net.ssl.PEMKeyFile", Value("FILE")),
    flag(&["sslCAFile"], "net.ssl.CAFile", Value("FILE")),
    flag(
        &["sslAllowConnectionsWithoutCertificates"],
        "net.ssl.allowConnectionsWithoutCertificates",
        Switch,
    ),
    flag(&["sslMode"], "net.ssl.mode", Value("MODE")),
    flag(
        &["wiredTigerCacheSizeGB"],
        "storage.wiredTiger.engineConfig.cacheSizeGB",
        Value("GB"),
    ),
    flag(
        &["wiredTigerCacheSizePct"],
        "storage.wiredTiger.engineConfig.cacheSizePct",
        Value("PERCENT"),
    ),
    flag(
        &["wiredTigerJournalCompressor"],
        "storage.wiredTiger.engineConfig.journalCompressor",
        Value("NAME"),
    ),
    flag(
        &["wiredTigerDirectoryForIndexes"],
        "storage.wiredTiger.engineConfig.directoryForIndexes",
        Switch,
    ),
    flag(
        &["wiredTigerCollectionBlockCompressor"],
        "storage.wiredTiger.collectionConfig.blockCompressor",
        Value("NAME"),
    ),
    flag(
        &["wiredTigerIndexPrefixCompression"],
        "storage.wiredTiger.indexConfig.prefixCompression",
        Value("BOOL"),
    ),
    flag(
        &["zstdDefaultCompressionLevel"],
        "storage.wiredTiger.engineConfig.zstdCompressionLevel",
        Value("N"),
    ),
    flag(&["storageEngine"], "storage.engine", Value("NAME")),
    flag(&["journal"], "storage.journal.enabled", Fixed("true")),
    flag(&["nojournal"], "storage.journal.enabled", Fixed("false")),
    flag(
        &["journalCommitInterval"],
        "storage.journal.commitIntervalMs",
        Value("MS"),
    ),
    flag(&["directoryperdb"], "storage.directoryPerDB", Switch),
    flag(&["syncdelay"], "storage.syncPeriodSecs", Value("SECONDS")),
    flag(&["repair"], "storage.repair", Switch),
    flag(
        &["enableMajorityReadConcern"],
        "replication.enableMajorityReadConcern",
        Switch,
    ),
    flag(&["shardsvr"], "sharding.clusterRole", Fixed("shardsvr")),
    flag(&["configsvr"], "sharding.clusterRole", Fixed("configsvr")),
    flag(&["configdb"], "sharding.configDB", Value("SET/HOST:PORT")),
    own(
        &["auth"],
        "security.authorization",
        Fixed("enabled"),
        "Ask clients to log in, and check what they may do",
    ),
    flag(&["noauth"], "security.authorization", Fixed("disabled")),
    own(
        &["keyFile"],
        "security.keyFile",
        Value("FILE"),
        "The key that members of a cluster share; switches --auth on",
    ),
    own(
        &["enableEncryption"],
        "security.enableEncryption",
        Switch,
        "Encrypt the data directory with AES-256, if it is new; one that is encrypted wants it too",
    ),
    own(
        &["encryptionKeyFile"],
        "security.encryptionKeyFile",
        Value("FILE"),
        "The master key, with --enableEncryption: 32 bytes in base64, as openssl rand -base64 32 makes them, readable for its owner only",
    ),
    flag(
        &["clusterAuthMode"],
        "security.clusterAuthMode",
        Value("MODE"),
    ),
    flag(
        &["noscripting"],
        "security.javascriptEnabled",
        Fixed("false"),
    ),
    flag(&["logappend"], "systemLog.logAppend", Switch),
    flag(&["logRotate"], "systemLog.logRotate", Value("HOW")),
    flag(&["syslog"], "systemLog.destination", Fixed("syslog")),
    flag(
        &["timeStampFormat"],
        "systemLog.timeStampFormat",
        Value("NAME"),
    ),
    flag(&["verbose"], "systemLog.verbosity", Value("v…")),
    flag(
        &["timeZoneInfo"],
        "processManagement.timeZoneInfo",
        Value("DIR"),
    ),
    flag(&["profile"], "operationProfiling.mode", Value("LEVEL")),
    flag(
        &["slowOpSampleRate"],
        "operationProfiling.slowOpSampleRate",
        Value("RATE"),
    ),
    flag(&["notablescan"], "security.notablescan", Switch),
    flag(
        &["enableFreeMonitoring"],
        "cloud.monitoring.free.state",
        Value("STATE"),
    ),
];

/// Keys that the file may have and no flag does.
const FILE_ONLY: &[&str] = &[
    "systemLog.destination",
    "systemLog.traceAllExceptions",
    "net.serviceExecutor",
    "storage.wiredTiger.engineConfig.maxCacheOverflowFileSizeGB",
    "storage.inMemory.engineConfig.inMemorySizeGB",
    "operationProfiling.filter",
    "security.redactClientLogData",
];

/// Keys that are understood and change nothing here.
pub const WITHOUT_EFFECT: &[&str] = &[
    "cloud.monitoring.free.state",
    "net.compression.compressors",
    "net.ipv6",
    "net.listenBacklog",
    "net.serviceExecutor",
    "net.tls.clusterCAFile",
    "net.tls.logVersions",
    "net.unixDomainSocket.filePermissions",
    "net.wireObjectCheck",
    "operationProfiling.filter",
    "processManagement.timeZoneInfo",
    "replication.enableMajorityReadConcern",
    "security.javascriptEnabled",
    "security.redactClientLogData",
    "storage.directoryPerDB",
    "storage.inMemory.engineConfig.inMemorySizeGB",
    "storage.journal.enabled",
    "storage.syncPeriodSecs",
    "storage.wiredTiger.collectionConfig.blockCompressor",
    "storage.wiredTiger.engineConfig.directoryForIndexes",
    "storage.wiredTiger.engineConfig.journalCompressor",
    "storage.wiredTiger.engineConfig.maxCacheOverflowFileSizeGB",
    "storage.wiredTiger.engineConfig.zstdCompressionLevel",
    "storage.wiredTiger.indexConfig.prefixCompression",
    "systemLog.timeStampFormat",
    "systemLog.traceAllExceptions",
];

/// A value and where it was given, for messages.
#[derive(Clone, Debug)]
pub struct Given {
    pub value: String,
    pub origin: String,
}

/// Options by key, and server parameters in the order given.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub keys: BTreeMap<String, Given>,
    pub parameters: Vec<(String, String)>,
}

impl Options {
    pub fn set(
        &mut self,
        key: &str,
        value: impl Into<String>,
        origin: impl Into<String>,
    ) -> Result<(), String> {
        let (value, origin) = (value.into(), origin.into());
        if key == "setParameter" {
            let (name, value) = value
                .split_once('=')
                .ok_or_else(|| format!("{origin} wants NAME=VALUE, not '{value}'"))?;
            self.parameters
                .push((name.trim().into(), value.trim().into()));
        } else {
            self.keys.insert(key.into(), Given { value, origin });
        }
        Ok(())
    }

    /// The values of `other` take precedence.
    pub fn overlay(&mut self, other: Options) {
        self.keys.extend(other.keys);
        self.parameters.extend(other.parameters);
    }
}

/// What the command line asks for.
#[derive(Debug)]
pub enum CommandLine {
    Run {
        options: Options,
        config_file: Option<PathBuf>,
    },
    Help,
    Version,
    /// Stop the server that has the data directory open.
    Shutdown(Options),
}

/// Whether a configuration file may have the key.
pub fn is_key(key: &str) -> bool {
    FILE_ONLY.contains(&key) || FLAGS.iter().any(|f| f.key == key)
}

/// Reads the words after the command.
pub fn parse(args: &[OsString]) -> Result<CommandLine, String> {
    let mut options = Options::default();
    let mut config_file = None;
    let mut shutdown = false;
    let mut words = args
        .iter()
        .map(|w| w.to_string_lossy().into_owned())
        .peekable();
    while let Some(word) = words.next() {
        if let Some(vs) = word
            .strip_prefix('-')
            .filter(|w| !w.is_empty() && w.chars().all(|c| c == 'v'))
        {
            options.set("systemLog.verbosity", vs.len().to_string(), word.as_str())?;
            continue;
        }
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) => (name.to_string(), Some(value.to_string())),
            None => (word.clone(), None),
        };
        let mut next = |value: &mut Option<String>| {
            value
                .take()
                .or_else(|| words.next())
                .ok_or_else(|| format!("the option {name} needs a value"))
        };
        match name.as_str() {
            "--help" | "-h" => return Ok(CommandLine::Help),
            "--version" => return Ok(CommandLine::Version),
            "--config" | "-f" => {
                config_file = Some(PathBuf::from(next(&mut value)?));
                continue;
            }
            "--shutdown" => {
                shutdown = true;
                continue;
            }
            _ => {}
        }
        let flag = name
            .strip_prefix("--")
            .and_then(|n| FLAGS.iter().find(|f| f.names.contains(&n)))
            .ok_or_else(|| format!("unrecognised option '{word}'"))?;
        let value = match flag.takes {
            Value(_) => next(&mut value)?,
            Fixed(fixed) => fixed.to_string(),
            Switch => {
                let given = value
                    .take()
                    .or_else(|| words.next_if(|w| matches!(w.as_str(), "true" | "false")));
                given.unwrap_or_else(|| "true".into())
            }
        };
        options.set(flag.key, value, name)?;
    }
    if shutdown {
        Ok(CommandLine::Shutdown(options))
    } else {
        Ok(CommandLine::Run {
            options,
            config_file,
        })
    }
}

/// `PANDO_<FLAG>` for our own flags.
pub fn from_environment(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(Options, Option<PathBuf>), String> {
    let mut options = Options::default();
    for flag in FLAGS.iter().filter(|f| !f.help.is_empty()) {
        let name = format!("PANDO_{}", flag.names[0].replace('-', "_").to_uppercase());
        if let Some(value) = variable(&name).filter(|v| !v.is_empty()) {
            options.set(flag.key, value, name)?;
        }
    }
    Ok((options, variable("PANDO_CONFIG").map(PathBuf::from)))
}

/// The help of the program that is called so: `pando serve`, `pando route`, `mongod`, `mongos`.
pub fn help(program: &str) -> String {
    let starts = match program {
        "pando route" | "mongos" => {
            "Starts a router of a sharded cluster.\n\nUsage: PROGRAM --configdb SET/HOST:PORT,... [options]\n\n  --configdb SET/HOST:PORT    The replica set that has the cluster's metadata\n\n"
        }
        _ => "Starts the server.\n\nUsage: PROGRAM [options]\n\n",
    };
    let mut out = starts.replace("PROGRAM", program);
    out.push_str(
        "Each option can also be given in the environment (--dbpath as PANDO_DBPATH) and in a\nconfiguration file in mongod's format; flags go before environment, environment before file.\nmongod's own flags are understood too.\n\n",
    );
    let routes = starts.contains("router");
    let mut row = |left: &str, help: &str| {
        out.push_str(&format!("  {left:<28}"));
        if left.chars().count() >= 28 {
            out.push_str(&format!("\n  {:28}", ""));
        }
        let mut column = 0;
        for word in help.split(' ') {
            if column > 0 && column + word.len() > 68 {
                out.truncate(out.trim_end().len());
                out.push_str(&format!("\n  {:28}", ""));
                column = 0;
            }
            out.push_str(word);
            out.push(' ');
            column += word.len() + 1;
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    };
    let of_data = [
        "replication.",
        "pando.standalone",
        "pando.durability",
        "storage.oplog",
    ];
    let shown = |f: &&Flag| {
        !(f.help.is_empty() || routes && of_data.iter().any(|of| f.key.starts_with(of)))
    };
    for flag in FLAGS.iter().filter(shown) {
        match flag.takes {
            Value(what) => row(&format!("--{} {what}", flag.names[0]), flag.help),
            Fixed(_) | Switch => row(&format!("--{}", flag.names[0]), flag.help),
        }
    }
    row(
        "--config, -f FILE",
        "A configuration file in mongod's format (YAML)",
    );
    row("-v, -vv, …", "Log more");
    row("--help, --version", "");
    out
}

/// The names that `mongod` has for options, one a line: programs that start it look for them in its
/// help.
pub fn names_of_mongod() -> String {
    let mut out = String::from("\nThese are understood too:\n\n");
    for flag in FLAGS {
        let shown = usize::from(!flag.help.is_empty());
        for name in flag.names.iter().skip(shown) {
            out.push_str(&format!("  --{name}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn value(line: &str, key: &str) -> Option<String> {
        match parse(&words(line)) {
            Ok(CommandLine::Run { options, .. }) => options.keys.get(key).map(|g| g.value.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_of_both_kinds() {
        assert_eq!(
            value("--port 1 --bind_ip a,b", "net.port").as_deref(),
            Some("1")
        );
        assert_eq!(value("--port=2", "net.port").as_deref(), Some("2"));
        assert_eq!(
            value("--fork --port 3", "processManagement.fork").as_deref(),
            Some("true")
        );
        assert_eq!(
            value(
                "--enableMajorityReadConcern false",
                "replication.enableMajorityReadConcern"
            )
            .as_deref(),
            Some("false")
        );
        assert_eq!(
            value("--nojournal", "storage.journal.enabled").as_deref(),
            Some("false")
        );
        assert_eq!(value("-vvv", "systemLog.verbosity").as_deref(), Some("3"));
        let Ok(CommandLine::Run {
            options,
            config_file,
        }) = parse(&words(
            "--setParameter a=1 --set-parameter b=x=y -f /etc/x.conf",
        ))
        else {
            panic!()
        };
        assert_eq!(
            options.parameters,
            [("a".into(), "1".into()), ("b".into(), "x=y".into())]
        );
        assert_eq!(config_file, Some(PathBuf::from("/etc/x.conf")));
        assert!(matches!(
            parse(&words("--shutdown --dbpath x")),
            Ok(CommandLine::Shutdown(_))
        ));
    }

    #[test]
    fn mistakes() {
        for (line, says) in [
            ("--prot 1", "unrecognised option '--prot'"),
            ("data", "unrecognised option 'data'"),
            ("--port", "--port needs a value"),
            ("--setParameter x", "wants NAME=VALUE"),
        ] {
            let error = parse(&words(line)).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn the_table_is_consistent() {
        let mut names: Vec<&str> = FLAGS.iter().flat_map(|f| f.names.iter().copied()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a flag stands twice");
        assert!(WITHOUT_EFFECT.iter().all(|k| is_key(k)));
        for program in ["pando serve", "pando route", "mongod", "mongos"] {
            let help = help(program);
            assert!(help.lines().all(|l| l.chars().count() <= 100), "{help}");
            assert!(help.contains(&format!("Usage: {program} ")), "{help}");
            // Between an option and what it means there is room.
            let rows = help.lines().filter(|l| l.starts_with("  --"));
            for row in rows.filter(|l| l.chars().count() > 30) {
                let is_alone = row.split_whitespace().count() <= 2;
                assert!(is_alone || row.chars().nth(29) == Some(' '), "{row}");
            }
        }
        assert!(
            !help("mongos").contains("--replica-set") && help("mongod").contains("--replica-set")
        );
    }

    #[test]
    fn environment() {
        let (options, config) = from_environment(|name| {
            (name == "PANDO_MAX_CONNECTIONS" || name == "PANDO_CONFIG").then(|| "7".into())
        })
        .unwrap();
        assert_eq!(options.keys["net.maxIncomingConnections"].value, "7");
        assert_eq!(
            options.keys["net.maxIncomingConnections"].origin,
            "PANDO_MAX_CONNECTIONS"
        );
        assert_eq!(config, Some(PathBuf::from("7")));
    }
}
