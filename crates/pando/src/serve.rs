//! `pando serve` and `mongod`: from the command line to a running server and back.
//!
//! Exit codes are mongod's: 0 after a clean shutdown, 2 for wrong options, 48 when an address cannot be listened on, 100
//! when the data directory cannot be opened. Every failure is one line on stderr.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use commands::Commands;
use own_process::fail_stop::{self, Panicked};
use replication::Driver;
use server::tls::Tls;
use server::{Limits, Listeners};
use service::config::{ClusterRole, Durability, Personality, ServerConfig, TlsMode, Topology};
use service::{Control, logging};
use storage::{LogWindow, Store, StoreOptions};

use crate::config_file;
use crate::console;
use crate::daemon::{self, Forked, PidFile, Ready};
use crate::memory;
use crate::options::{self, CommandLine};
use crate::peers::{Peers, client_uri, quoted, tls_of_client};
use crate::route;
use crate::settings::{self, ServerLaunch};

const BAD_OPTIONS: u8 = 2;
const CANNOT_LISTEN: u8 = 48;
const CANNOT_OPEN_DATA: u8 = 100;

/// Of the files that the process may open, the share of connections and that of the engine's tables. The
/// rest is for the log's segments, temporary files and other short uses.
const CONNECTIONS_PERCENT: u64 = 60;
const TABLES_PERCENT: u64 = 24;
const TEMPORARIES_PERCENT: u64 = 8;
/// A table may be open three times: by the engine, and twice for the reads of event loops (see `storage::nonblocking_read`).
const OPEN_TIMES: u64 = 3;

struct Failure {
    code: u8,
    says: String,
}

impl Failure {
    fn options(says: String) -> Failure {
        Failure {
            code: BAD_OPTIONS,
            says,
        }
    }

    fn listening(says: String) -> Failure {
        Failure {
            code: CANNOT_LISTEN,
            says,
        }
    }

    fn opening(e: errors::Error) -> Failure {
        Failure {
            code: CANNOT_OPEN_DATA,
            says: e.into_message(),
        }
    }

    fn other(says: String) -> Failure {
        Failure { code: 1, says }
    }
}

pub fn main(personality: Personality, args: &[OsString]) -> ExitCode {
    begin(personality, args, false)
}

fn begin(personality: Personality, args: &[OsString], routes: bool) -> ExitCode {
    match start(personality, args, routes) {
        Ok(code) => code,
        Err(failure) => {
            tracing::error!(target: "CONTROL", error = failure.says.as_str(), exitCode = u64::from(failure.code), "Exiting");
            match (personality, failure.code) {
                (Personality::Mongod, BAD_OPTIONS) => {
                    eprintln!(
                        "Error parsing command line: {}\ntry 'mongod --help' for more information",
                        failure.says
                    );
                }
                (Personality::Mongod, _) => eprintln!("mongod: {}", failure.says),
                (Personality::Pando, BAD_OPTIONS) => {
                    eprintln!("pando: {} (see pando serve --help)", failure.says)
                }
                (Personality::Pando, _) => eprintln!("pando: {}", failure.says),
            }
            leave(failure.code)
        }
    }
}

/// A router's beginning: as a server's, with `--configdb`.
pub fn route(personality: Personality, args: &[OsString]) -> ExitCode {
    let has = |flag: &str| args.iter().any(|a| a.to_string_lossy().starts_with(flag));
    if !has("--configdb") && !has("--help") && !has("--version") && !has("--config") && !has("-f") {
        eprintln!(
            "a router needs --configdb SET/HOST:PORT: the replica set that has the cluster's metadata"
        );
        return ExitCode::from(BAD_OPTIONS);
    }
    begin(personality, args, true)
}

/// What the user has called.
fn program(personality: Personality, routes: bool) -> &'static str {
    match (personality, routes) {
        (Personality::Pando, false) => "pando serve",
        (Personality::Pando, true) => "pando route",
        (Personality::Mongod, false) => "mongod",
        (Personality::Mongod, true) => "mongos",
    }
}

fn start(personality: Personality, args: &[OsString], routes: bool) -> Result<ExitCode, Failure> {
    memory::refuse_huge_pages();
    daemon::keep_files_private();
    let (given, from_flags) = match options::parse(args).map_err(Failure::options)? {
        CommandLine::Help => {
            print!("{}", options::help(program(personality, routes)));
            if personality == Personality::Mongod {
                print!("{}", options::names_of_mongod());
            }
            return Ok(ExitCode::SUCCESS);
        }
        CommandLine::Version => {
            print!("{}", version(personality));
            return Ok(ExitCode::SUCCESS);
        }
        CommandLine::Shutdown(options) => {
            let dir = options
                .keys
                .get("storage.dbPath")
                .map_or("/data/db", |g| g.value.as_str());
            let pid = daemon::stop_server_of(&PathBuf::from(dir)).map_err(Failure::other)?;
            println!("killing process with pid: {pid}");
            return Ok(ExitCode::SUCCESS);
        }
        CommandLine::Run {
            options,
            config_file,
        } => (options, config_file),
    };
    let (environment, from_environment) =
        options::from_environment(|name| std::env::var(name).ok()).map_err(Failure::options)?;
    let mut all = match from_flags.or(from_environment) {
        Some(path) => config_file::read(&path).map_err(Failure::options)?,
        None => options::Options::default(),
    };
    all.overlay(environment);
    all.overlay(given);
    let argv = std::env::args_os()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let launch = settings::launch(personality, &all, argv).map_err(Failure::options)?;
    if !launch.fork {
        return run(launch, None);
    }
    match daemon::fork().map_err(Failure::other)? {
        Forked::Parent(code) => Ok(code),
        Forked::Child(ready) => run(launch, Some(ready)),
    }
}

fn run(launch: ServerLaunch, ready: Option<Ready>) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let ServerLaunch {
        mut config,
        warnings,
        pid_file,
        handicap,
        ..
    } = launch;
    let files = daemon::raise_file_limit();
    config.max_connections = config.max_connections.min(
        usize::try_from(files * CONNECTIONS_PERCENT / 100)
            .unwrap_or(usize::MAX)
            .max(1),
    );
    init_log(&config)?;
    log_start(&config, &warnings);
    own_process::handicap::start(handicap).map_err(Failure::options)?;

    let tls = match config.tls.mode {
        TlsMode::Disabled => None,
        _ => Some(Arc::new(Tls::open(&config.tls).map_err(Failure::options)?)),
    };
    let listeners = listen(&mut config)?;
    let console = console::listen(&config).map_err(Failure::listening)?;
    let member = matches!(config.topology, Topology::ReplicaSet { named: true, .. });
    let store = open_store(&config, member, files).map_err(Failure::opening)?;
    memory::keep_within(config.cache_bytes);
    let control = Arc::new(Control::default());
    let replica = match (member, config.topology.set_name()) {
        (true, Some(name)) => Some(join_set(&store, &config, name).map_err(Failure::opening)?),
        _ => None,
    };
    let commands = Commands::of_member(
        Arc::clone(&store),
        config.clone(),
        Arc::clone(&control),
        replica.clone(),
    )
    .map_err(|stop| Failure::opening(stop.into_error()))?;
    let pid_file = pid_file
        .map(|path| PidFile::write(&path))
        .transpose()
        .map_err(Failure::other)?;
    daemon::watch_signals(Arc::clone(&control)).map_err(Failure::other)?;

    let said = ReadyMessage {
        lacks_users: commands.lacks_users(),
        has_set: !member || has_set(&config).map_err(Failure::opening)?,
    };
    announce(&config, &listeners, console.as_ref(), began, said);
    if let Some(ready) = ready {
        ready.announce();
    }
    if let (ClusterRole::Config, Some(driver)) = (config.role, &replica) {
        let moves = control.metrics.moves.clone();
        route::balance(&config, driver, moves).map_err(Failure::other)?;
    }
    let own_local = commands.own_local.clone();
    let served = answer(&config, listeners, console, commands, control, tls)?;
    if let Some(replica) = &replica {
        replica.stop();
    }
    let closed = store.close();
    let closed = own_local.map_or(Ok(()), |own| own.close()).and(closed);
    if config.role == ClusterRole::Router {
        route::clear(&config.db_path);
    }
    drop(pid_file);
    end(served.and(closed.map_err(errors::Error::into_message)))
}

/// Listens where the configuration says, which learns of the port where it left the choice open.
fn listen(config: &mut ServerConfig) -> Result<Listeners, Failure> {
    let listeners = server::listen(&config.bind, config.port, config.unix_socket.as_deref())
        .inspect_err(|says| log_no_listener(config, says))
        .map_err(Failure::listening)?;
    if config.port == 0
        && let Some(address) = listeners.addresses().first()
    {
        config.port = address.port();
    }
    Ok(listeners)
}

/// What tools read in the log of a server whose port is taken, to try another one.
fn log_no_listener(config: &ServerConfig, says: &str) {
    let says = match says.contains("in use by another program") {
        true => "Address already in use",
        false => says,
    };
    let error = serde_json::json!({ "code": 9001, "codeName": "SocketException", "errmsg": says });
    match config.role {
        ClusterRole::Router => {
            tracing::error!(target: "NETWORK", id = 22856, ctx = "mongosMain", error.json = %error, "Error setting up listener")
        }
        _ => {
            tracing::error!(target: "NETWORK", id = 20568, ctx = "initandlisten", error.json = %error, "Error setting up listener")
        }
    }
}

/// Opens the data directory. `files`: how many the process may have open.
fn open_store(config: &ServerConfig, member: bool, files: u64) -> errors::Fallible<Arc<Store>> {
    if let Some(path) = &config.encryption_key_file {
        storage::at_rest::use_key_file(path)?;
    }
    // What a majority of the other members may not have is not applied at the start.
    let state = match member {
        true => replication::state_file::load(&config.db_path)?,
        false => None,
    };
    let apply_up_to = state.as_ref().map_or(u64::MAX, |s| s.hard.commit);
    let now = std::time::SystemTime::now();
    let apply_made_before = state
        .as_ref()
        .map_or(i64::MAX, |s| s.applies_made_before(now));
    let options = StoreOptions {
        apply_up_to,
        apply_made_before,
        cache_bytes: usize::try_from(config.cache_bytes).unwrap_or(usize::MAX),
        sync_interval: config.durability.interval,
        log_window: LogWindow {
            max_bytes: config.log_retain_bytes,
            min_age: config.log_retain_at_least,
        },
        log_segment_bytes: segment_bytes(config.log_retain_bytes),
        open_files: usize::try_from(files * TABLES_PERCENT / 100 / OPEN_TIMES)
            .unwrap_or(usize::MAX),
        temporary_files: usize::try_from(files * TEMPORARIES_PERCENT / 100).unwrap_or(usize::MAX),
        direct_io: config.direct_io,
        has_room: Some(memory::has_room()),
        engine_options: config.engine_options.clone(),
        ..StoreOptions::new(&config.db_path)
    };
    Store::open(match config.durability.syncs {
        true => options,
        false => options.unsynced(),
    })
}

/// Answers requests until the server is told to stop. The inner result: whether it ended well.
fn answer(
    config: &ServerConfig,
    listeners: Listeners,
    console: Option<TcpListener>,
    commands: Commands,
    control: Arc<Control>,
    tls: Option<Arc<Tls>>,
) -> Result<Result<(), String>, Failure> {
    let limits = Limits {
        loops: config.loops,
        max_connections: config.max_connections,
        quiet: config.quiet,
        tls: tls.clone(),
        in_flight_bytes: memory::in_flight_bytes(),
        ..Limits::default()
    };
    let start = console::ConsoleStart {
        config,
        listener: console,
        control: control.clone(),
        tls,
    };
    let served = if config.role == ClusterRole::Router {
        let router = route::router(config, commands);
        let told = router.clone();
        let figures = serve_figures(config, move || told.figures()).map_err(Failure::listening)?;
        let console = start.of_router(&router).map_err(Failure::listening)?;
        let served = server::serve(listeners, router, control, limits);
        drop(figures);
        console.into_iter().for_each(|c| c.stop());
        served
    } else {
        route::join_as_shard(config, &commands, limits.max_workers);
        let commands = Arc::new(commands);
        let told = commands.clone();
        let figures = serve_figures(config, move || told.figures()).map_err(Failure::listening)?;
        let console = start.of_server(&commands).map_err(Failure::listening)?;
        let served = server::serve(listeners, commands, control, limits);
        drop(figures);
        console.into_iter().for_each(|c| c.stop());
        served
    };
    Ok(served.map_err(|e| e.to_string()))
}

/// The last words, and the process's code.
fn end(outcome: Result<(), String>) -> Result<ExitCode, Failure> {
    let code = u8::from(outcome.is_err());
    tracing::info!(target: "CONTROL", id = 23138, exitCode = u64::from(code), "Shutting down");
    match outcome {
        Err(says) => Err(Failure::other(says)),
        Ok(()) => leave(0),
    }
}

/// The page of figures, where one is wanted, for as long as the value lives.
fn serve_figures(
    config: &ServerConfig,
    figures: impl Fn() -> errors::Fallible<String> + Send + Sync + 'static,
) -> Result<Option<Arc<impl Fn() -> Result<String, String>>>, String> {
    let Some(address) = config.metrics else {
        return Ok(None);
    };
    let page = Arc::new(move || figures().map_err(errors::Error::into_message));
    let bound = server::figures_page::serve(address, Arc::downgrade(&page))?;
    tracing::info!(target: "NETWORK", address = %bound, "Figures are served over HTTP");
    Ok(Some(page))
}

/// A log is trimmed by whole segments: a small window has small ones.
fn segment_bytes(window: u64) -> u64 {
    (window / 16).clamp(1 << 20, 64 << 20)
}

/// This server as a member of the replica set that it was given the name of.
fn join_set(store: &Arc<Store>, config: &ServerConfig, name: &str) -> errors::Fallible<Driver> {
    let peers = Arc::new(Peers::new(config));
    let driver = Driver::new(
        store,
        config.db_path.clone(),
        name.into(),
        peers,
        Box::new(start_again),
    )?;
    driver.repair_itself(config.self_repair);
    Ok(driver)
}

/// Begins the process anew, with the arguments and under the number that it has: what memory holds of
/// writes that no majority had is forgotten, and a start applies what a majority had.
fn start_again(_why: &str) {
    use std::os::unix::process::CommandExt;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let failure = std::process::Command::new(program)
        .arg0(name)
        .args(arguments)
        .exec();
    tracing::error!(target: "CONTROL", error = %failure, "Cannot start again");
}

/// Ends the process at once. Threads of the engine may still be merging, which is as well broken off: a usual exit would destroy the
/// C++ library's own state under their hands, and end in an abort.
fn leave(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process. Acknowledged writes are in the log, and the directory's lock goes with
    // the process.
    unsafe { libc::_exit(i32::from(code)) }
}

fn init_log(config: &ServerConfig) -> Result<(), Failure> {
    let mongod = config.personality == Personality::Mongod;
    let (sink, warnings_only) = match &config.log_path {
        Some(path) => (logging::Sink::File(path.clone()), false),
        None if mongod => (logging::Sink::Stdout, false),
        None => (
            logging::Sink::Stderr,
            std::io::stderr().is_terminal() && config.verbosity == 0,
        ),
    };
    logging::set_reopen(config.log_reopen);
    logging::init(sink, config.log_append, config.verbosity, warnings_only).map_err(|e| {
        let path = config.log_path.as_deref().unwrap_or("the log".as_ref());
        Failure {
            code: 1,
            says: format!("cannot write the log {}: {e}", path.display()),
        }
    })?;
    fail_stop::watch(log_panic);
    Ok(())
}

/// A failed assertion in the log, with its place. Whether the process may end because of it.
fn log_panic(panicked: &Panicked<'_>) -> bool {
    // What a damaged file has led to is not our own mistake: there are ways to go on from damage.
    let ends = panicked.ends && storage::damage().is_none();
    let outcome = match ends {
        true => {
            "An assertion failed: the process ends. What was acknowledged is in the log, and a start is safe"
        }
        false => "An assertion failed",
    };
    tracing::error!(target: "CONTROL", place = panicked.place.as_str(), error = panicked.message, "{outcome}");
    ends
}

fn log_start(config: &ServerConfig, warnings: &[String]) {
    tracing::info!(target: "CONTROL", id = 4615611, ctx = "initandlisten", pid = std::process::id(), port = config.port,
        dbPath = %config.db_path.display(), version = env!("CARGO_PKG_VERSION"), compatibleWith = commands::VERSION,
        "PandoDB starting");
    let build = build_info();
    tracing::info!(target: "CONTROL", id = 23403, ctx = "initandlisten", buildInfo.json = %build, "Build Info");
    tracing::info!(target: "CONTROL", id = 21951, ctx = "initandlisten", options.json = %config.parsed, "Options set by command line");
    if !config.security.authorization {
        tracing::warn!(target: "CONTROL", id = 22120, ctx = "initandlisten", startup_warning = true,
            "Access control is not enabled for the database. Read and write access to data and configuration is unrestricted");
    }
    for warning in warnings {
        tracing::warn!(target: "CONTROL", ctx = "initandlisten", startup_warning = true, "{warning}");
    }
}

/// When writes reach the disk, in a line.
fn durability(durability: Durability) -> String {
    match durability {
        Durability { syncs: false, .. } => {
            "nothing waits for the disk: for data that is not kept".into()
        }
        Durability { always: true, .. } => "every acknowledged write waits for the disk".into(),
        Durability { interval, .. } => format!(
            "majority (the default) and j:true wait for the disk; w:1 reaches it within {} ms",
            interval.as_millis()
        ),
    }
}

/// What is printed for a server that is ready, beside its configuration.
struct ReadyMessage {
    /// There are no users, and logins are required.
    lacks_users: bool,
    /// Its replica set has been initiated.
    has_set: bool,
}

/// Whether the directory has the state of a member of a replica set.
fn has_set(config: &ServerConfig) -> errors::Fallible<bool> {
    let state = replication::state_file::load(&config.db_path)?;
    Ok(state.is_some_and(|s| s.id != 0))
}

/// What the server is a part of, for people.
fn part_of(config: &ServerConfig, has_set: bool) -> String {
    match &config.topology {
        Topology::Router => {
            let of = config.config_db.as_deref().unwrap_or_default();
            format!("router of {of}")
        }
        Topology::Standalone => "standalone".into(),
        Topology::ReplicaSet { name, .. } if !has_set => {
            format!("member of replica set {name}, which replSetInitiate has still to make")
        }
        Topology::ReplicaSet { name, named: true } => format!("member of replica set {name}"),
        Topology::ReplicaSet { name, .. } => format!("replica set {name} of one member"),
    }
}

/// Says that the server is ready: to people on stdout, to scripts as mongod says it in its log.
fn announce(
    config: &ServerConfig,
    listeners: &Listeners,
    console: Option<&TcpListener>,
    began: Instant,
    said: ReadyMessage,
) {
    let ReadyMessage {
        lacks_users,
        has_set,
    } = said;
    for address in listeners.addresses() {
        tracing::info!(target: "NETWORK", id = 23015, ctx = "listener", address = %address, "Listening on");
    }
    tracing::info!(target: "NETWORK", id = 23016, ctx = "listener", port = config.port, ssl = if config.tls.mode == TlsMode::Disabled { "off" } else { "on" }, "Waiting for connections");
    if lacks_users {
        tracing::warn!(target: "ACCESS", ctx = "initandlisten", startup_warning = true,
            "There are no users yet, and nobody can log in: make the first one from this machine (createUser in the database admin)");
    }
    if matches!(config.topology, Topology::ReplicaSet { named: false, .. }) {
        tracing::info!(target: "REPL", id = 21331, "Transition to primary complete; database writes are now permitted");
    }
    if config.personality == Personality::Mongod {
        return;
    }
    let host = reached_under(config, &listeners.addresses());
    let durability = durability(config.durability);
    let part = part_of(config, has_set);
    let tls = match config.tls.mode {
        TlsMode::Require => tls_of_client(config.tls.ca_file.as_deref()),
        _ => Vec::new(),
    };
    let uri = client_uri(&host, "", &tls);
    let first_user = match lacks_users {
        true => format!(
            "\nNobody can log in yet. Make the first user from this machine:\n  npx mongosh {} --eval 'db.createUser({{user: \"admin\", pwd: passwordPrompt(), roles: [\"root\"]}})'\n",
            quoted(&client_uri(&host, "admin", &tls))
        ),
        false => String::new(),
    };
    let console = console.and_then(|c| console::address_of(config, c));
    let console = console.map_or_else(String::new, |url| format!("  console     {url}\n"));
    let text = format!(
        "PandoDB {} is ready after {} ms.\n\n  connect     {uri}\n{console}  data        {}\n  cache       {}\n  durability  {durability}\n  topology    {part}\n{first_user}\nTry:  npx mongosh {}\nStop: Ctrl-C\n",
        env!("CARGO_PKG_VERSION"),
        began.elapsed().as_millis(),
        config.db_path.display(),
        size(config.cache_bytes),
        quoted(&uri),
    );
    // A reader that is gone is no reason not to serve.
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// `host:port` for people and drivers: the same as `hello` gives to a client on loopback, as drivers
/// compare the two.
fn reached_under(config: &ServerConfig, addresses: &[SocketAddr]) -> String {
    let first = addresses.iter().find(|a| a.is_ipv4()).or(addresses.first());
    let port = first.map_or(config.port, |a| a.port());
    let named = config.bind.iter().any(|b| b == "localhost");
    match first {
        Some(address) if named && address.ip().is_loopback() => format!("localhost:{port}"),
        Some(address) if !address.ip().is_unspecified() => address.to_string(),
        _ => format!("127.0.0.1:{port}"),
    }
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 30 {
        format!("{:.1} GB", bytes as f64 / f64::from(1 << 30))
    } else {
        format!("{} MB", bytes >> 20)
    }
}

fn version(personality: Personality) -> String {
    let own = env!("CARGO_PKG_VERSION");
    match personality {
        Personality::Pando => format!("pando {own}\n"),
        // Tools read the first line.
        Personality::Mongod => format!(
            "db version v{}\nPandoDB {own}: not MongoDB's server, but one that speaks its protocol\nBuild Info: {}\n",
            commands::VERSION,
            build_info(),
        ),
    }
}

fn build_info() -> serde_json::Value {
    serde_json::json!({ "version": commands::VERSION, "pandodb": env!("CARGO_PKG_VERSION"), "modules": [], "allocator": "system" })
}
