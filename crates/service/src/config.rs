//! What the server was told at its start, after flags, environment and file are merged and checked.

use std::path::PathBuf;
use std::time::Duration;

/// Whose manners the process has: its own, or those that scripts expect of `mongod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    Pando,
    Mongod,
}

/// When an acknowledged write reaches the disk beyond what its write concern asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durability {
    /// Every acknowledged write waits for the disk, `w: 1` too.
    pub always: bool,
    /// The longest time that an acknowledged `w: 1` write stays off the disk.
    pub interval: Duration,
    /// Files are synced at all. Without it acknowledgements do not wait for the disk, whatever they ask for: for data that is not kept.
    pub syncs: bool,
}

impl Default for Durability {
    fn default() -> Durability {
        Durability {
            always: false,
            interval: Duration::from_millis(100),
            syncs: true,
        }
    }
}

/// The part this process plays towards drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    Standalone,
    /// A router: of no set itself, with a cluster of them behind it.
    Router,
    /// The one member of a replica set of this name.
    ReplicaSet {
        name: String,
        /// The user gave the name; the user or a script may go on to call `replSetInitiate`.
        named: bool,
    },
}

impl Topology {
    pub fn set_name(&self) -> Option<&str> {
        match self {
            Topology::Standalone | Topology::Router => None,
            Topology::ReplicaSet { name, .. } => Some(name),
        }
    }

    /// Whether the server is in neither a replica set nor a cluster.
    pub fn is_standalone(&self) -> bool {
        matches!(self, Topology::Standalone)
    }
}

/// The part that the server plays in a sharded cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterRole {
    #[default]
    None,
    Shard,
    /// It has the metadata.
    Config,
    Router,
}

/// Which connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    #[default]
    Disabled,
    /// Those whose client asks for it.
    Allow,
    /// As `Allow`; between members where they can.
    Prefer,
    /// All, but those over a Unix socket.
    Require,
}

/// Certificates, and whose are taken.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    pub mode: TlsMode,
    /// PEM: the server's certificate, those that lead to its authority, and its private key.
    pub certificate_key_file: PathBuf,
    /// What opens the key, where it is encrypted.
    pub certificate_key_password: Option<Secret>,
    /// PEM: what other members are shown in place of the server's own, and what opens its key.
    pub cluster_file: Option<PathBuf>,
    pub cluster_password: Option<Secret>,
    /// Members' certificates may be of another name than the one that they are reached under.
    pub allow_invalid_hostnames: bool,
    /// PEM: authorities of clients' certificates. Clients must show one then.
    pub ca_file: Option<PathBuf>,
    pub crl_file: Option<PathBuf>,
    /// Clients that show no certificate are let in all the same.
    pub allow_without_certificates: bool,
    /// No certificate of a client is asked for.
    pub allow_invalid_certificates: bool,
    /// `TLS1_2`, `TLS1_3`; older ones are never spoken.
    pub disabled: Vec<String>,
}

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// How members of a cluster prove to one another that they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterAuth {
    /// By the key file alone.
    #[default]
    KeyFile,
    /// By the key file; certificates are taken too.
    SendKeyFile,
    /// By certificates; the key file is taken too.
    SendX509,
    X509,
}

impl ClusterAuth {
    pub fn takes_key(self) -> bool {
        self != ClusterAuth::X509
    }

    pub fn takes_certificates(self) -> bool {
        self != ClusterAuth::KeyFile
    }

    /// As the option spells it.
    pub fn name(self) -> &'static str {
        match self {
            ClusterAuth::KeyFile => "keyFile",
            ClusterAuth::SendKeyFile => "sendKeyFile",
            ClusterAuth::SendX509 => "sendX509",
            ClusterAuth::X509 => "x509",
        }
    }
}

/// Where the audit log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTo {
    Console,
    File(PathBuf),
}

#[derive(Clone, Debug)]
pub struct AuditOptions {
    pub to: AuditTo,
    /// A query on lines, in Extended JSON.
    pub filter: Option<String>,
}

/// Access control.
#[derive(Clone, Default)]
pub struct SecurityOptions {
    /// Commands are checked.
    pub authorization: bool,
    /// What the members of a cluster share; the first is the one to log in with.
    pub keys: Vec<String>,
    pub cluster_auth: ClusterAuth,
}

impl std::fmt::Debug for SecurityOptions {
    /// Without the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Security")
            .field("authorization", &self.authorization)
            .finish_non_exhaustive()
    }
}

/// Where the console is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsoleAt {
    /// On loopback, [`CONSOLE_PORT_OFFSET`] above the server's port, if that is free.
    #[default]
    Loopback,
    Off,
    Address {
        address: std::net::SocketAddr,
        encrypted: bool,
    },
}

pub const CONSOLE_PORT_OFFSET: u16 = 1000;

#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub personality: Personality,
    pub db_path: PathBuf,
    pub port: u16,
    /// Addresses to listen on, as given: names, IPv4, IPv6.
    pub bind: Vec<String>,
    /// Path of a Unix domain socket to listen on as well.
    pub unix_socket: Option<PathBuf>,
    /// `host:port` that clients shall be told to reach this server at; otherwise the address each
    /// one came in on.
    pub advertise: Option<String>,
    pub topology: Topology,
    pub role: ClusterRole,
    /// A router's configuration set: `set/host:port,…`.
    pub config_db: Option<String>,
    /// The master key's file; `None`: data are not encrypted.
    pub encryption_key_file: Option<PathBuf>,
    /// Memory for blocks and memtables together, in bytes.
    pub cache_bytes: u64,
    /// Data files are read and written past the kernel's page cache.
    pub direct_io: bool,
    /// Bytes a second of data files that are read for damage, in a pass a week; 0 for none.
    pub scrub_bytes: u64,
    /// A member whose data files are damaged gets those of the primary.
    pub self_repair: bool,
    /// RocksDB's options by name, for experiments.
    pub engine_options: String,
    pub durability: Durability,
    /// The log's past is kept up to this size, in bytes: what change streams and `local.oplog.rs`
    /// can read.
    pub log_retain_bytes: u64,
    /// Younger entries are kept however large the log is.
    pub log_retain_at_least: Duration,
    pub max_connections: usize,
    /// Scripts are run: `$where`, `$function`, `$accumulator`, `mapReduce`.
    pub scripting: bool,
    pub security: SecurityOptions,
    pub tls: TlsOptions,
    pub audit: Option<AuditOptions>,
    /// Event loops; as many as cores when 0.
    pub loops: usize,
    /// Threads of one aggregation; as many as cores when 0.
    pub query_threads: usize,
    /// `setParameter`, name and value as text, in the order given.
    pub parameters: Vec<(String, String)>,
    pub slow_ms: i64,
    /// The profiler's level of databases without one of their own.
    pub profile_level: i32,
    /// What part of slow operations is logged and profiled.
    pub slow_sample_rate: f64,
    pub log_path: Option<PathBuf>,
    pub log_append: bool,
    /// A rotation opens the log file anew, and leaves it to others to move the old one away.
    pub log_reopen: bool,
    /// 0 is information; each more is one level of debugging.
    pub verbosity: u8,
    pub quiet: bool,
    /// The command line, for `getCmdLineOpts`.
    pub argv: Vec<String>,
    /// Where figures are served over HTTP.
    pub metrics: Option<std::net::SocketAddr>,
    pub console: ConsoleAt,
    /// The options in effect that were given, nested as in mongod's configuration file, for
    /// `getCmdLineOpts`.
    pub parsed: serde_json::Value,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            personality: Personality::Pando,
            db_path: PathBuf::from("pando-data"),
            port: 27017,
            bind: vec!["localhost".into()],
            unix_socket: None,
            advertise: None,
            topology: Topology::ReplicaSet {
                name: "rs0".into(),
                named: false,
            },
            encryption_key_file: None,
            role: ClusterRole::None,
            config_db: None,
            cache_bytes: 256 << 20,
            direct_io: false,
            scrub_bytes: 0,
            self_repair: true,
            engine_options: String::new(),
            durability: Durability::default(),
            log_retain_bytes: 1 << 30,
            log_retain_at_least: Duration::ZERO,
            max_connections: 65_536,
            scripting: true,
            security: SecurityOptions::default(),
            tls: TlsOptions::default(),
            audit: None,
            loops: 0,
            query_threads: 0,
            parameters: Vec::new(),
            slow_ms: 100,
            profile_level: 0,
            slow_sample_rate: 1.0,
            log_path: None,
            log_append: true,
            log_reopen: false,
            verbosity: 0,
            quiet: false,
            metrics: None,
            console: ConsoleAt::default(),
            argv: Vec::new(),
            parsed: serde_json::Value::Object(Default::default()),
        }
    }
}
