//! From options to a configuration: values are read, defaults filled in, and contradictions refused.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};
use service::config::{
    AuditOptions, AuditTo, ClusterAuth, ClusterRole, ConsoleAt, Durability, Personality, Secret,
    SecurityOptions, ServerConfig, TlsMode, TlsOptions, Topology,
};

use crate::memory;
use crate::options::{Given, Options, WITHOUT_EFFECT};
use crate::route;

/// A configuration and what concerns the process alone.
#[derive(Debug)]
pub struct ServerLaunch {
    pub config: ServerConfig,
    pub fork: bool,
    pub pid_file: Option<PathBuf>,
    /// Percent of the CPU time that is spent once more in vain.
    pub handicap: f64,
    /// For the log and for `getLog`.
    pub warnings: Vec<String>,
}

/// The errors are sentences for the user.
pub fn launch(
    personality: Personality,
    options: &Options,
    argv: Vec<String>,
) -> Result<ServerLaunch, String> {
    let o = Reader(options);
    refuse(&o)?;
    let mongod = personality == Personality::Mongod;
    let tls = tls(&o)?;
    let security = security(&o, &tls)?;
    let console = console(&o, security.authorization, tls.mode)?;
    let port: u16 = o.parsed("net.port", "a port")?.unwrap_or(27017);
    let role = role(&o, &security)?;
    let topology = match role {
        ClusterRole::Router => Topology::Router,
        _ => topology(&o, mongod)?,
    };
    let config = ServerConfig {
        personality,
        db_path: match (role, o.text("storage.dbPath")) {
            (ClusterRole::Router, _) => route::scratch_dir(),
            (_, Some(dir)) => absolute(dir)?,
            (_, None) => absolute(if mongod { "/data/db" } else { "pando-data" })?,
        },
        port,
        bind: bind(&o, &security, tls.mode)?,
        unix_socket: unix_socket(&o, mongod, port)?,
        advertise: advertise(&o)?,
        parsed: shown(options, &topology),
        topology,
        role,
        config_db: o.text("sharding.configDB").map(String::from),
        cache_bytes: cache_bytes(&o)?,
        direct_io: o.switch("pando.directIo")?.unwrap_or(false),
        scrub_bytes: scrub_bytes(&o)?,
        self_repair: !o.switch("pando.noSelfRepair")?.unwrap_or(false),
        engine_options: o
            .text("pando.engineOptions")
            .unwrap_or_default()
            .to_string(),
        durability: durability(&o)?,
        log_retain_bytes: log_retain_bytes(&o)?,
        log_retain_at_least: log_retain_at_least(&o)?,
        max_connections: max_connections(&o)?,
        loops: o.parsed("pando.eventLoops", "a number")?.unwrap_or(0),
        query_threads: query_threads(&o)?,
        security,
        encryption_key_file: encryption_key_file(&o)?,
        tls,
        audit: audit(&o)?,
        scripting: o.switch("security.javascriptEnabled")?.unwrap_or(true),
        parameters: parameters(options, &o)?,
        slow_ms: o
            .parsed("operationProfiling.slowOpThresholdMs", "a number")?
            .unwrap_or(100),
        profile_level: profile_level(&o)?,
        slow_sample_rate: slow_sample_rate(&o)?,
        log_path: o.text("systemLog.path").map(absolute).transpose()?,
        log_append: o.switch("systemLog.logAppend")?.unwrap_or(!mongod),
        log_reopen: log_reopen(&o)?,
        verbosity: verbosity(&o)?,
        quiet: o.switch("systemLog.quiet")?.unwrap_or(false),
        metrics: metrics(&o)?,
        console,
        argv: without_passwords(argv),
    };
    refuse_repair(&o)?;
    let fork = o.switch("processManagement.fork")?.unwrap_or(false);
    if fork && config.log_path.is_none() {
        return Err("--fork has to be used with --logpath".into());
    }
    let handicap = o.parsed("pando.handicap", "a number")?.unwrap_or(0.0);
    let pid_file = o
        .text("processManagement.pidFilePath")
        .map(absolute)
        .transpose()?;
    let warnings = warnings(options, handicap, config.durability);
    Ok(ServerLaunch {
        config,
        fork,
        pid_file,
        handicap,
        warnings,
    })
}

/// mongod's names and numbers of the profiler's levels.
fn profile_level(o: &Reader<'_>) -> Result<i32, String> {
    match o.text("operationProfiling.mode") {
        None | Some("0" | "off") => Ok(0),
        Some("1" | "slowOp") => Ok(1),
        Some("2" | "all") => Ok(2),
        Some(other) => Err(format!(
            "--profile must be 0, 1 or 2 (operationProfiling.mode: off, slowOp or all), not {other}"
        )),
    }
}

fn slow_sample_rate(o: &Reader<'_>) -> Result<f64, String> {
    let rate: Option<f64> = o.parsed("operationProfiling.slowOpSampleRate", "a number")?;
    match rate {
        Some(rate) if !(0.0..=1.0).contains(&rate) => Err(format!(
            "--slowOpSampleRate must be from 0 to 1, not {rate}"
        )),
        given => Ok(given.unwrap_or(1.0)),
    }
}

/// mongod would repair the files, and end.
fn refuse_repair(o: &Reader<'_>) -> Result<(), String> {
    match o.switch("storage.repair")? {
        Some(true) => Err("--repair is not for this server: pando check DIR says what is damaged in a data directory, and pando salvage DIR OUT \
             saves what can be read of it, for mongorestore".into()),
        _ => Ok(()),
    }
}

fn log_retain_bytes(o: &Reader<'_>) -> Result<u64, String> {
    let megabytes: Option<u64> = o.parsed("replication.oplogSizeMB", "a number of megabytes")?;
    Ok(megabytes.unwrap_or(1024).clamp(1, MOST_LOG_MB) << 20)
}

fn log_retain_at_least(o: &Reader<'_>) -> Result<Duration, String> {
    let hours: Option<f64> = o.parsed("storage.oplogMinRetentionHours", "a number of hours")?;
    Duration::try_from_secs_f64(hours.unwrap_or(0.0) * 3600.0)
        .map_err(|_| "--oplogMinRetentionHours wants 0 or more hours".into())
}

fn max_connections(o: &Reader<'_>) -> Result<usize, String> {
    match o.parsed("net.maxIncomingConnections", "a number")? {
        Some(0) => Err("--max-connections must be at least 1".into()),
        given => Ok(given.unwrap_or(1_000_000)),
    }
}

/// An operation asks where to cut for each of its threads.
const MOST_QUERY_THREADS: usize = 256;

/// Zero: as many as there are cores.
fn query_threads(o: &Reader<'_>) -> Result<usize, String> {
    match o.parsed("pando.queryThreads", "a number")? {
        Some(n) if !(1..=MOST_QUERY_THREADS).contains(&n) => Err(format!(
            "--query-threads must be from 1 to {MOST_QUERY_THREADS}"
        )),
        given => Ok(given.unwrap_or(0)),
    }
}

/// Whether a rotated log is opened again under its name, instead of renamed by the server.
fn log_reopen(o: &Reader<'_>) -> Result<bool, String> {
    match o.text("systemLog.logRotate") {
        None | Some("rename") => Ok(false),
        Some("reopen") => Ok(true),
        Some(how) => Err(format!("--logRotate must be rename or reopen, not {how}")),
    }
}

/// What the user should know of the options that were given.
fn warnings(options: &Options, handicap: f64, durability: Durability) -> Vec<String> {
    let mut warnings: Vec<String> = (options.keys.iter())
        .filter(|(key, _)| WITHOUT_EFFECT.contains(&key.as_str()))
        .map(|(_, given)| format!("{} has no effect on this server", given.origin))
        .collect();
    if handicap > 0.0 {
        warnings.push(format!(
            "The server is slowed down on purpose: {handicap}% of its CPU time is spent once more in vain"
        ));
    }
    if !durability.syncs {
        warnings.push(
            "Nothing waits for the disk (--durability none): after a loss of power the data may be gone, acknowledged or not".into(),
        );
    }
    warnings
}

/// The address of the figures: every client that reaches it may read them, so an address beyond this
/// machine has to be named.
fn metrics(o: &Reader<'_>) -> Result<Option<SocketAddr>, String> {
    let Some(text) = o.text("pando.metrics") else {
        return Ok(None);
    };
    let address = match text.parse::<u16>() {
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        Err(_) => text.parse().map_err(|_| {
            format!("--metrics wants a port, or an address as 127.0.0.1:9216, not '{text}'")
        })?,
    };
    if !address.ip().is_loopback() && !o.switch("pando.allowInsecureBind")?.unwrap_or(false) {
        return Err(format!(
            "figures on {address} could be read by everybody who reaches it: give --metrics an address of this machine, or --allow-insecure-bind"
        ));
    }
    Ok(Some(address))
}

/// Where the console is served. Beyond this machine passwords and data go over the network: encrypted, or because it is
/// wanted.
fn console(o: &Reader<'_>, logs_in: bool, tls: TlsMode) -> Result<ConsoleAt, String> {
    let text = match o.text("pando.console").unwrap_or("on") {
        "on" | "true" => return Ok(ConsoleAt::Loopback),
        "off" | "false" => return Ok(ConsoleAt::Off),
        text => text,
    };
    let (wanted, place) = match text.strip_prefix("https://") {
        Some(place) => (true, place),
        None => (false, text),
    };
    let address = match place.parse::<u16>() {
        Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        Err(_) => place.parse().map_err(|_| {
            format!(
                "--console wants on, off, a port, or an address as 127.0.0.1:28017, not '{text}'"
            )
        })?,
    };
    let has_tls = tls != TlsMode::Disabled;
    if wanted && !has_tls {
        return Err(format!("--console {text} needs --tlsMode"));
    }
    let is_open = !address.ip().to_canonical().is_loopback();
    let at = ConsoleAt::Address {
        address,
        encrypted: wanted || is_open && has_tls,
    };
    if !is_open || (logs_in && has_tls) || o.switch("pando.allowInsecureBind")?.unwrap_or(false) {
        return Ok(at);
    }
    let why = match logs_in {
        true => "without --tlsMode whoever listens on the network could read passwords",
        false => "without --auth whoever reaches it could read everything",
    };
    Err(format!(
        "will not serve the console on {address}: {why}; add --allow-insecure-bind if the network is to be trusted"
    ))
}

struct Reader<'a>(&'a Options);

impl Reader<'_> {
    fn given(&self, key: &str) -> Option<&Given> {
        self.0.keys.get(key)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.given(key).map(|g| g.value.as_str())
    }

    fn parsed<T: FromStr>(&self, key: &str, what: &str) -> Result<Option<T>, String> {
        let Some(given) = self.given(key) else {
            return Ok(None);
        };
        let value = given.value.trim().parse().map_err(|_| bad(given, what))?;
        Ok(Some(value))
    }

    fn switch(&self, key: &str) -> Result<Option<bool>, String> {
        let Some(given) = self.given(key) else {
            return Ok(None);
        };
        match given.value.to_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(Some(true)),
            "false" | "0" | "no" | "off" => Ok(Some(false)),
            _ => Err(bad(given, "true or false")),
        }
    }
}

fn bad(given: &Given, what: &str) -> String {
    format!("{} wants {what}, not '{}'", given.origin, given.value)
}

/// What would be dangerous to pass over in silence.
fn refuse(o: &Reader<'_>) -> Result<(), String> {
    if let Some(given) = o.given("storage.engine")
        && !matches!(given.value.as_str(), "wiredTiger" | "inMemory" | "pando")
    {
        return Err(format!(
            "{}: unknown storage engine '{}'",
            given.origin, given.value
        ));
    }
    if let Some(given) = o.given("systemLog.destination")
        && given.value != "file"
    {
        return Err(format!(
            "{}: the log goes to a file or a standard stream, not to {}",
            given.origin, given.value
        ));
    }
    Ok(())
}

/// Where the audit log goes, if there is one.
fn audit(o: &Reader<'_>) -> Result<Option<AuditOptions>, String> {
    let path = o.given("auditLog.path");
    if let Some(given) = o.given("auditLog.format")
        && given.value != "JSON"
    {
        return Err(bad(given, "JSON"));
    }
    let to = match (o.given("auditLog.destination"), path) {
        (None, None) => return Ok(None),
        (None, Some(given)) => {
            return Err(format!("{} needs --auditDestination file", given.origin));
        }
        (Some(d), path) => match (d.value.as_str(), path) {
            ("console", _) => AuditTo::Console,
            ("file", Some(path)) => AuditTo::File(absolute(&path.value)?),
            ("file", None) => return Err("--auditDestination file needs --auditPath".into()),
            _ => return Err(bad(d, "file or console")),
        },
    };
    let filter = o.text("auditLog.filter").map(str::to_string);
    Ok(Some(AuditOptions { to, filter }))
}

/// Which connections are encrypted, and with what.
fn tls(o: &Reader<'_>) -> Result<TlsOptions, String> {
    // The old names of the same options.
    let key = |name: &str| [format!("net.tls.{name}"), format!("net.ssl.{name}")];
    let given = |name: &str| key(name).iter().find_map(|k| o.given(k));
    let path = |name: &str| given(name).map(|g| absolute(&g.value)).transpose();
    let switch = |name: &str| -> Result<bool, String> {
        let all = key(name);
        let first = o.switch(&all[0])?;
        Ok(first.or(o.switch(&all[1])?).unwrap_or(false))
    };
    let mode = match given("mode").map(|g| (g, g.value.as_str())) {
        None | Some((_, "disabled")) => TlsMode::Disabled,
        Some((_, "allowTLS" | "allowSSL")) => TlsMode::Allow,
        Some((_, "preferTLS" | "preferSSL")) => TlsMode::Prefer,
        Some((_, "requireTLS" | "requireSSL")) => TlsMode::Require,
        Some((g, _)) => return Err(bad(g, "disabled, allowTLS, preferTLS or requireTLS")),
    };
    let file = match path("certificateKeyFile")? {
        Some(file) => Some(file),
        None => path("PEMKeyFile")?,
    };
    let disabled = given("disabledProtocols").map_or("", |g| g.value.as_str());
    let disabled: Vec<String> = (disabled.split(',').map(str::trim))
        .filter(|p| !p.is_empty())
        .map(str::to_string)
        .collect();
    if disabled.iter().any(|p| p == "TLS1_2") && disabled.iter().any(|p| p == "TLS1_3") {
        return Err("TLS 1.2 and 1.3 are both disabled, and no older one is spoken".into());
    }
    let certificate_key_file = match (mode, file) {
        (TlsMode::Disabled, file) => file.unwrap_or_default(),
        (_, Some(file)) => file,
        (_, None) => {
            return Err("TLS needs --tlsCertificateKeyFile: a PEM file with the server's certificate and private key".into());
        }
    };
    let password = given("certificateKeyFilePassword").or_else(|| given("PEMKeyPassword"));
    Ok(TlsOptions {
        mode,
        certificate_key_file,
        certificate_key_password: password.map(|g| Secret(g.value.clone())),
        cluster_file: path("clusterFile")?,
        cluster_password: given("clusterPassword").map(|g| Secret(g.value.clone())),
        allow_invalid_hostnames: switch("allowInvalidHostnames")?,
        ca_file: path("CAFile")?,
        crl_file: path("CRLFile")?,
        allow_without_certificates: switch("allowConnectionsWithoutCertificates")?,
        allow_invalid_certificates: switch("allowInvalidCertificates")?,
        disabled,
    })
}

/// The master key's file, where data are to be encrypted.
fn encryption_key_file(o: &Reader<'_>) -> Result<Option<PathBuf>, String> {
    let enabled = o.switch("security.enableEncryption")?.unwrap_or(false);
    let file = o.text("security.encryptionKeyFile").map(absolute);
    match (enabled, file.transpose()?) {
        (true, None) => Err("--enableEncryption needs --encryptionKeyFile FILE".into()),
        (false, Some(_)) => Err("--encryptionKeyFile is for --enableEncryption".into()),
        (_, file) => Ok(file),
    }
}

/// Whether commands are checked, and the key of the cluster. A key file asks for both.
fn security(o: &Reader<'_>, tls: &TlsOptions) -> Result<SecurityOptions, String> {
    let keys = match o.given("security.keyFile") {
        Some(given) => read_keys(given)?,
        None => Vec::new(),
    };
    let (cluster_auth, by_certificate) = cluster_auth(o, tls, !keys.is_empty())?;
    let authorization = match o.given("security.authorization") {
        None => !keys.is_empty() || by_certificate,
        Some(given) => match given.value.as_str() {
            "enabled" => true,
            "disabled" => false,
            _ => return Err(bad(given, "enabled or disabled")),
        },
    };
    Ok(SecurityOptions {
        authorization,
        keys,
        cluster_auth,
    })
}

/// How members authenticate, and whether that is by certificates, which requires logins as a key file
/// does.
fn cluster_auth(
    o: &Reader<'_>,
    tls: &TlsOptions,
    has_key: bool,
) -> Result<(ClusterAuth, bool), String> {
    let Some(given) = o.given("security.clusterAuthMode") else {
        return Ok((ClusterAuth::KeyFile, false));
    };
    let all = [
        ClusterAuth::KeyFile,
        ClusterAuth::SendKeyFile,
        ClusterAuth::SendX509,
        ClusterAuth::X509,
    ];
    let Some(mode) = all.into_iter().find(|m| m.name() == given.value) else {
        return Err(bad(given, "keyFile, sendKeyFile, sendX509 or x509"));
    };
    let refused = |why: &str| Err(format!("{} {}: {why}", given.origin, given.value));
    match mode {
        ClusterAuth::KeyFile | ClusterAuth::SendKeyFile if !has_key => {
            refused("there is no --keyFile")
        }
        ClusterAuth::KeyFile => Ok((mode, false)),
        _ if tls.mode == TlsMode::Disabled => {
            refused("certificates are shown over TLS alone: it needs --tlsMode")
        }
        _ if tls.ca_file.is_none() => {
            refused("members' certificates are checked by their authority: it needs --tlsCAFile")
        }
        _ => Ok((mode, mode != ClusterAuth::SendKeyFile)),
    }
}

fn read_keys(given: &Given) -> Result<Vec<String>, String> {
    use std::os::unix::fs::PermissionsExt;
    let wrong = |why: String| format!("{}: {}: {why}", given.origin, given.value);
    let metadata = std::fs::metadata(&given.value).map_err(|e| wrong(e.to_string()))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(wrong(
            "permissions are too open: only its owner may read it (chmod 600)".into(),
        ));
    }
    let text = std::fs::read_to_string(&given.value).map_err(|e| wrong(e.to_string()))?;
    auth::key_file::parse(&text).map_err(wrong)
}

fn absolute(path: impl Into<PathBuf>) -> Result<PathBuf, String> {
    let path = path.into();
    std::path::absolute(&path)
        .map_err(|e| format!("cannot make sense of the path {}: {e}", path.display()))
}

fn bind(o: &Reader<'_>, security: &SecurityOptions, tls: TlsMode) -> Result<Vec<String>, String> {
    let all = o.switch("net.bindIpAll")?.unwrap_or(false);
    let hosts: Vec<String> = match o.text("net.bindIp") {
        _ if all => vec!["0.0.0.0".into()],
        None => vec!["localhost".into()],
        Some(list) => list
            .split(',')
            .map(|h| h.trim().to_string())
            .filter(|h| !h.is_empty())
            .collect(),
    };
    if hosts.is_empty() {
        return Err("there is no address to listen on".into());
    }
    let open = hosts.iter().find(|h| !is_loopback(h));
    if let Some(open) = open
        && !o.switch("pando.allowInsecureBind")?.unwrap_or(false)
    {
        let why = match (security.authorization, tls) {
            (true, TlsMode::Require) => return Ok(hosts),
            (true, _) => {
                "without --tlsMode requireTLS whoever listens on the network could read everything"
            }
            (false, _) => {
                "without --auth whoever reaches the port could read and change everything"
            }
        };
        return Err(format!(
            "will not listen on {open}: {why}; add --allow-insecure-bind (or PANDO_ALLOW_INSECURE_BIND=1) if the network is to be trusted"
        ));
    }
    Ok(hosts)
}

fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        // A name that stands for nothing cannot be listened on either; that is said later.
        Err(_) => (host, 0u16)
            .to_socket_addrs()
            .is_ok_and(|mut found| found.all(|a| a.ip().is_loopback())),
    }
}

fn unix_socket(o: &Reader<'_>, mongod: bool, port: u16) -> Result<Option<PathBuf>, String> {
    let prefix = o.text("net.unixDomainSocket.pathPrefix");
    let enabled = o
        .switch("net.unixDomainSocket.enabled")?
        .unwrap_or(mongod || prefix.is_some());
    let dir = prefix.unwrap_or("/tmp");
    Ok(enabled.then(|| PathBuf::from(dir).join(format!("mongodb-{port}.sock"))))
}

fn advertise(o: &Reader<'_>) -> Result<Option<String>, String> {
    let Some(given) = o.given("pando.advertise") else {
        return Ok(None);
    };
    let sound = given
        .value
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if sound {
        Ok(Some(given.value.clone()))
    } else {
        Err(bad(given, "HOST:PORT"))
    }
}

fn role(o: &Reader<'_>, security: &SecurityOptions) -> Result<ClusterRole, String> {
    let named = o.text("replication.replSetName").is_some();
    let role = match (o.text("sharding.configDB"), o.text("sharding.clusterRole")) {
        (Some(_), Some(_)) => {
            return Err("--configdb is for routers, which have no other role".into());
        }
        (Some(_), None) if security.authorization && !proves_itself(security) => {
            return Err("a router logs in at shards and at the configuration set as a member: --auth wants --keyFile, or --clusterAuthMode x509".into());
        }
        (Some(_), None) => return Ok(ClusterRole::Router),
        (None, Some("shardsvr")) => ClusterRole::Shard,
        (None, Some("configsvr")) => ClusterRole::Config,
        (None, _) => return Ok(ClusterRole::None),
    };
    match named {
        true => Ok(role),
        false => {
            Err("a member of a sharded cluster belongs to a replica set: give --replSet".into())
        }
    }
}

/// Whether the process can show other members that it is one.
fn proves_itself(security: &SecurityOptions) -> bool {
    !security.keys.is_empty() || security.cluster_auth != ClusterAuth::KeyFile
}

fn topology(o: &Reader<'_>, mongod: bool) -> Result<Topology, String> {
    let name = o
        .text("replication.replSetName")
        .map(|n| n.split('/').next().unwrap_or(n).to_string());
    let standalone = o.switch("pando.standalone")?;
    match (name, standalone) {
        (Some(_), Some(true)) => Err(
            "a standalone server has no replica set: give one of --standalone and --replica-set"
                .into(),
        ),
        (Some(name), _) if name.is_empty() => Err("the name of the replica set is empty".into()),
        (Some(name), _) => Ok(Topology::ReplicaSet { name, named: true }),
        (None, Some(true)) => Ok(Topology::Standalone),
        // A mongod that is not told of a replica set is none, and scripts that start one rely on it.
        (None, None) if mongod => Ok(Topology::Standalone),
        (None, _) => Ok(Topology::ReplicaSet {
            name: "rs0".into(),
            named: false,
        }),
    }
}

/// A petabyte.
const MOST_LOG_MB: u64 = 1 << 30;

const LEAST_CACHE_BYTES: u64 = 16 << 20;

fn cache_bytes(o: &Reader<'_>) -> Result<u64, String> {
    let memory = memory::available_bytes();
    let bytes = if let Some(given) = o.given("pando.cache") {
        size_bytes(&given.value, memory)
            .ok_or_else(|| bad(given, "a size, as 512MB, 4GB or 25%"))?
    } else if let Some(gb) = o.parsed::<f64>(
        "storage.wiredTiger.engineConfig.cacheSizeGB",
        "a number of gigabytes",
    )? {
        (gb * f64::from(1 << 30)) as u64
    } else if let Some(percent) = o.parsed::<f64>(
        "storage.wiredTiger.engineConfig.cacheSizePct",
        "a percentage",
    )? {
        (memory as f64 * percent / 100.0) as u64
    } else {
        memory::default_cache_bytes(memory)
    };
    Ok(bytes.max(LEAST_CACHE_BYTES))
}

/// Bytes a second that the scrub reads.
fn scrub_bytes(o: &Reader<'_>) -> Result<u64, String> {
    match o.given("pando.scrub") {
        None => Ok(8 << 20),
        Some(given) if given.value.trim() == "0" => Ok(0),
        Some(given) => {
            size_bytes(&given.value, 0).ok_or_else(|| bad(given, "a size, as 16MB, or 0"))
        }
    }
}

/// `512MB`, `4 GiB`, `1.5g`, `25%` of `memory`.
fn size_bytes(text: &str, memory: u64) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim().to_lowercase().as_str() {
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "%" if number <= 100.0 => memory as f64 / 100.0,
        _ => return None,
    };
    Some((number * factor) as u64)
}

/// Server parameters as they were given, one of them as an option of its own.
fn parameters(options: &Options, o: &Reader<'_>) -> Result<Vec<(String, String)>, String> {
    let mut all = options.parameters.clone();
    if o.switch("security.notablescan")?.unwrap_or(false) {
        all.push(("notablescan".into(), "true".into()));
    }
    Ok(all)
}

fn durability(o: &Reader<'_>) -> Result<Durability, String> {
    let mut durability = Durability::default();
    if let Some(ms) = o.parsed::<u64>(
        "storage.journal.commitIntervalMs",
        "a number of milliseconds",
    )? {
        durability.interval = Duration::from_millis(ms.clamp(1, 500));
    }
    let Some(given) = o.given("pando.durability") else {
        return Ok(durability);
    };
    let what = "default, always, none, or an interval such as 20ms";
    match given.value.trim() {
        "default" => {}
        "always" => durability.always = true,
        "none" => durability.syncs = false,
        text => {
            let (number, unit) = text.split_at(
                text.find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(text.len()),
            );
            let number: u64 = number.parse().map_err(|_| bad(given, what))?;
            durability.interval = match unit {
                "ms" if number > 0 => Duration::from_millis(number),
                "s" if number > 0 => Duration::from_secs(number),
                _ => return Err(bad(given, what)),
            };
        }
    }
    Ok(durability)
}

fn verbosity(o: &Reader<'_>) -> Result<u8, String> {
    let Some(given) = o.given("systemLog.verbosity") else {
        return Ok(0);
    };
    if !given.value.is_empty() && given.value.chars().all(|c| c == 'v') {
        return Ok(given.value.len().min(5) as u8);
    }
    given
        .value
        .parse::<u8>()
        .map(|v| v.min(5))
        .map_err(|_| bad(given, "0 to 5"))
}

/// The options as `getCmdLineOpts` shows them.
const PASSWORD_KEYS: [&str; 3] = [
    "net.tls.certificateKeyFilePassword",
    "net.tls.clusterPassword",
    "net.ssl.PEMKeyPassword",
];
const PASSWORD_FLAGS: [&str; 3] = [
    "--tlsCertificateKeyFilePassword",
    "--tlsClusterPassword",
    "--sslPEMKeyPassword",
];
const HIDDEN: &str = "<password>";

/// The words of the command line as they may be shown.
fn without_passwords(argv: Vec<String>) -> Vec<String> {
    let mut hide_next = false;
    let show = |word: String| {
        let hidden = std::mem::take(&mut hide_next);
        let flag = word.split_once('=').map_or(word.as_str(), |(f, _)| f);
        if hidden {
            return HIDDEN.into();
        }
        if !PASSWORD_FLAGS.contains(&flag) {
            return word;
        }
        match word.contains('=') {
            true => format!("{flag}={HIDDEN}"),
            false => {
                hide_next = true;
                word
            }
        }
    };
    argv.into_iter().map(show).collect()
}

/// The options as `getCmdLineOpts` tells them: also the set that a server is by itself.
fn shown(options: &Options, topology: &Topology) -> Value {
    let mut all = nested(options);
    if let Topology::ReplicaSet { name, named: false } = topology {
        all["replication"]["replSet"] = Value::from(name.as_str());
    }
    all
}

fn nested(options: &Options) -> Value {
    let mut root = Map::new();
    let hidden_value = HIDDEN.to_string();
    let parameters = options
        .parameters
        .iter()
        .map(|(name, value)| (format!("setParameter\0{name}"), value));
    let keys = options.keys.iter().map(|(key, given)| {
        // mongod shows the name under this key, wherever it was given.
        let key = match key.as_str() {
            "replication.replSetName" => "replication.replSet",
            key => key,
        };
        let hidden = PASSWORD_KEYS.contains(&key);
        (
            key.replace('.', "\0"),
            if hidden { &hidden_value } else { &given.value },
        )
    });
    for (path, value) in keys.chain(parameters) {
        let mut at = &mut root;
        let mut parts = path.split('\0').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                at.insert(part.into(), typed(part, value));
                break;
            }
            let next = at.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(map) = next else { break };
            at = map;
        }
    }
    Value::Object(root)
}

fn typed(name: &str, text: &str) -> Value {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        _ if matches!(name, "dbPath" | "path" | "replSet") => text.into(),
        _ => text
            .parse::<i64>()
            .map(Value::from)
            .or_else(|_| text.parse::<f64>().map(Value::from))
            .unwrap_or(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{CommandLine, parse};

    fn launched(personality: Personality, line: &str) -> Result<ServerLaunch, String> {
        let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
        match parse(&words)? {
            CommandLine::Run { options, .. } => launch(personality, &options, Vec::new()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let pando = launched(Personality::Pando, "").unwrap().config;
        assert_eq!(
            (pando.port, pando.bind.as_slice()),
            (27017, &["localhost".to_string()][..])
        );
        assert_eq!(
            pando.topology,
            Topology::ReplicaSet {
                name: "rs0".into(),
                named: false
            }
        );
        assert!(pando.db_path.ends_with("pando-data") && pando.unix_socket.is_none());
        let mongod = launched(Personality::Mongod, "").unwrap().config;
        assert_eq!(mongod.topology, Topology::Standalone);
        assert_eq!(
            mongod.unix_socket,
            Some(PathBuf::from("/tmp/mongodb-27017.sock"))
        );
        assert_eq!(mongod.db_path, PathBuf::from("/data/db"));
    }

    #[test]
    fn values() {
        let line = "--port 1 --cache 64MB --durability 20ms --advertise db.example:2 --replSet a/b --max-connections 9 --oplogSize 5 --oplogMinRetentionHours 1.5 -vv";
        let c = launched(Personality::Mongod, line).unwrap().config;
        assert_eq!((c.port, c.cache_bytes, c.max_connections), (1, 64 << 20, 9));
        assert_eq!(
            c.durability,
            Durability {
                always: false,
                interval: Duration::from_millis(20),
                syncs: true,
            }
        );
        assert_eq!(c.topology.set_name(), Some("a"));
        assert_eq!((c.log_retain_bytes, c.verbosity), (5 << 20, 2));
        assert_eq!(c.log_retain_at_least, Duration::from_secs(5400));
        assert_eq!(c.parsed["net"]["port"], 1);
        assert_eq!(c.parsed["replication"]["replSet"], "a/b");
        let c = launched(
            Personality::Mongod,
            "--wiredTigerCacheSizeGB 0.25 --nounixsocket --durability always",
        )
        .unwrap()
        .config;
        assert_eq!(
            (c.cache_bytes, c.unix_socket, c.durability.always),
            (256 << 20, None, true)
        );
        let l = launched(
            Personality::Mongod,
            "--nojournal --logpath /x/y --fork --pidfilepath p",
        )
        .unwrap();
        assert!(l.fork && l.pid_file.is_some_and(|p| p.is_absolute()));
        assert_eq!(l.warnings, ["--nojournal has no effect on this server"]);
    }

    #[test]
    fn data_that_is_not_kept_is_warned_of() {
        let l = launched(Personality::Pando, "--durability none").unwrap();
        assert!(!l.config.durability.syncs && !l.config.durability.always);
        let [warning] = &l.warnings[..] else {
            panic!("{:?}", l.warnings);
        };
        assert!(warning.contains("--durability none"), "{warning}");
        let l = launched(Personality::Pando, "--durability always").unwrap();
        assert!(l.config.durability.syncs && l.warnings.is_empty());
    }

    #[test]
    fn refusals() {
        for (line, says) in [
            ("--port 70000", "--port wants a port, not '70000'"),
            ("--bind 0.0.0.0", "--allow-insecure-bind"),
            ("--bind_ip_all", "--allow-insecure-bind"),
            ("--bind 127.0.0.1,10.0.0.1", "will not listen on 10.0.0.1"),
            ("--keyFile /nowhere/key", "/nowhere/key: No such file"),
            ("--keyFile /dev/null", "permissions are too open"),
            ("--enableEncryption", "needs --encryptionKeyFile"),
            ("--encryptionKeyFile k", "for --enableEncryption"),
            ("--clusterAuthMode x509", "needs --tlsMode"),
            ("--auth --bind 10.0.0.1", "--tlsMode requireTLS"),
            ("--tlsMode requireTLS", "--tlsCertificateKeyFile"),
            ("--tlsMode maybe", "allowTLS"),
            ("--auditPath x", "--auditDestination file"),
            ("--auditDestination file", "--auditPath"),
            ("--auditDestination syslog", "file or console"),
            ("--auditDestination console --auditFormat BSON", "JSON"),
            ("--tlsDisabledProtocols TLS1_2,TLS1_3", "both disabled"),
            ("--shardsvr", "give --replSet"),
            ("--configdb a/b:1 --shardsvr", "no other role"),
            ("--storageEngine mmapv1", "unknown storage engine"),
            ("--standalone --replSet x", "give one of"),
            ("--cache 12", "a size"),
            ("--query-threads 0", "from 1 to 256"),
            ("--queryThreads 257", "from 1 to 256"),
            ("--oplogMinRetentionHours -1", "0 or more hours"),
            ("--cache 101%", "a size"),
            ("--durability never", "default, always"),
            ("--advertise host", "HOST:PORT"),
            ("--fork", "--logpath"),
            ("--syslog", "not to syslog"),
            ("--console x", "--console wants on, off"),
            ("--console 10.0.0.1:1", "without --auth"),
            ("--console 10.0.0.1:1 --auth", "without --tlsMode"),
            ("--console https://1", "needs --tlsMode"),
        ] {
            let error = launched(Personality::Mongod, line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
        for line in [
            "--bind 0.0.0.0 --allow-insecure-bind",
            "--bind localhost,::1",
            "--noauth",
            "--tlsMode disabled",
        ] {
            launched(Personality::Pando, line).unwrap();
        }
    }

    #[test]
    fn consoles() {
        let at = |line: &str| launched(Personality::Pando, line).unwrap().config.console;
        let address = |text: &str| ConsoleAt::Address {
            address: text.parse().unwrap(),
            encrypted: false,
        };
        assert_eq!(at(""), ConsoleAt::Loopback);
        assert_eq!(
            at("--console on --bind 0.0.0.0 --allow-insecure-bind"),
            ConsoleAt::Loopback
        );
        assert_eq!(
            (at("--console off"), at("--no-console")),
            (ConsoleAt::Off, ConsoleAt::Off)
        );
        assert_eq!(at("--console 9"), address("127.0.0.1:9"));
        assert_eq!(at("--console [::1]:9"), address("[::1]:9"));
        assert_eq!(
            at("--console 10.0.0.1:9 --allow-insecure-bind"),
            address("10.0.0.1:9")
        );
    }

    #[test]
    fn sizes() {
        assert_eq!(size_bytes("1.5G", 0), Some(3 << 29));
        assert_eq!(size_bytes("10 KiB", 0), Some(10240));
        assert_eq!(size_bytes("50%", 1000), Some(500));
        assert_eq!(size_bytes("-1MB", 0), None);
        assert_eq!(size_bytes("MB", 0), None);
    }
}
