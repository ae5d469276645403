//! The binary as a user and scripts start it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bson::{DocBuf, doc};

const PANDO: &str = env!("CARGO_BIN_EXE_pando");
/// How a command ends that cannot open a directory, also when it is in use.
const CANNOT_OPEN: i32 = 100;

fn run(args: &[&str]) -> Output {
    Command::new(PANDO)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server that is up, and killed when the test is over.
struct Server {
    child: Child,
    /// `host:port`
    address: String,
    banner: String,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let mut child = Command::new(PANDO)
            .arg("serve")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Stop:") {
            assert!(
                stdout.read_line(&mut banner).unwrap() > 0,
                "ended early: {banner}"
            );
        }
        let after = banner.split("mongodb://").nth(1).unwrap();
        let address = after.split('/').next().unwrap().to_string();
        Server {
            child,
            address,
            banner,
        }
    }

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill")
                .args([signal, &self.child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn call(address: &str, body: &DocBuf) -> DocBuf {
    let mut socket = TcpStream::connect(address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut out = Vec::new();
    let start = wire::begin_msg(&mut out, 1, 0, 0);
    wire::begin_body(&mut out);
    out.extend_from_slice(body.as_bytes());
    wire::end(&mut out, start);
    socket.write_all(&out).unwrap();
    let mut reply = vec![0; 16];
    socket.read_exact(&mut reply).unwrap();
    let length = wire::Header::read(&reply).unwrap().length;
    reply.resize(length, 0);
    socket.read_exact(&mut reply[16..]).unwrap();
    let (_, wire::Message::Msg(m)) = wire::parse(&reply).unwrap() else {
        panic!()
    };
    bson::validate(m.body).unwrap().to_buf()
}

fn hello(address: &str) -> DocBuf {
    call(address, &doc! { "hello": 1, "$db": "admin" })
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

#[test]
fn help_and_versions() {
    for args in [&[][..], &["--help"]] {
        let out = run(args);
        assert!(out.status.success() && text(&out.stdout).contains("pando serve --help"));
    }
    let help = text(&run(&["serve", "--help"]).stdout);
    for option in [
        "--dbpath",
        "--port",
        "--bind",
        "--cache",
        "--durability",
        "--advertise",
        "--standalone",
        "--max-connections",
        "--config",
        "--allow-insecure-bind",
    ] {
        assert!(help.contains(option), "{option}");
    }
    assert!(text(&run(&["--version"]).stdout).starts_with("pando "));
    assert!(text(&run(&["mongod", "--version"]).stdout).starts_with("db version v8.0"));
}

#[test]
fn mistakes_are_one_line_and_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let file = path(dir.path(), "file");
    std::fs::write(&file, "x").unwrap();
    let data = path(dir.path(), "data");
    let inside_file = path(Path::new(&file), "data");
    let foreign = path(dir.path(), "foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(path(Path::new(&foreign), "WiredTiger.wt"), "x").unwrap();
    let config = path(dir.path(), "x.conf");
    std::fs::write(&config, "net:\n  prot: 5\n").unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["frobnicate"], 2, "no command 'frobnicate'"),
        (&["serve", "--prot", "1"], 2, "unrecognised option '--prot'"),
        (&["serve", "--bind", "0.0.0.0"], 2, "--allow-insecure-bind"),
        (
            &["serve", "--config", &config],
            2,
            "Unrecognized option: net.prot",
        ),
        (
            &["serve", "--config", "/no/such/file"],
            2,
            "cannot read the configuration file",
        ),
        (
            &["serve", "--dbpath", &data, "--port", &port],
            48,
            "is in use by another program",
        ),
        (
            &["serve", "--dbpath", &inside_file, "--port", "0"],
            100,
            "cannot create the data directory",
        ),
        (
            &["serve", "--dbpath", &foreign, "--port", "0"],
            100,
            "MongoDB",
        ),
    ];
    for (args, code, says) in cases {
        let out = run(args);
        let err = text(&out.stderr);
        let lines: Vec<&str> = err.lines().filter(|l| !l.starts_with('{')).collect();
        assert_eq!(out.status.code(), Some(*code), "{args:?}: {err}");
        assert!(
            lines.len() == 1 && lines[0].contains(says),
            "{args:?}: {lines:?}"
        );
    }
    let out = run(&["mongod", "--prot", "1"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).starts_with(
        "Error parsing command line: unrecognised option '--prot'\ntry 'mongod --help'"
    ));
}

#[test]
fn serves_until_told_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (data, pid_file, config) = (
        path(dir.path(), "data"),
        path(dir.path(), "pid"),
        path(dir.path(), "pando.conf"),
    );
    std::fs::write(
        &config,
        format!("storage:\n  dbPath: {data}\nnet: {{ port: 1 }}\n"),
    )
    .unwrap();
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::start(&[
            "--config",
            &config,
            "--port",
            "0",
            "--cache",
            "32MB",
            "--pid-file",
            &pid_file,
        ]);
        assert!(
            server.banner.contains(&data)
                && server.banner.contains("32 MB")
                && server.banner.contains("mongosh")
        );
        let reply = hello(&server.address);
        assert_eq!(reply.get("setName").and_then(|v| v.as_str()), Some("rs0"));
        assert_eq!(
            reply.get("me").and_then(|v| v.as_str()),
            Some(server.address.as_str())
        );
        assert_eq!(
            std::fs::read_to_string(&pid_file).unwrap().trim(),
            server.child.id().to_string()
        );

        // The directory is taken.
        let out = run(&["serve", "--dbpath", &data, "--port", "0"]);
        assert_eq!(out.status.code(), Some(100), "{}", text(&out.stderr));

        server.signal(signal);
        assert_eq!(server.exit_code(), Some(0));
        assert!(!Path::new(&pid_file).exists());
    }
}

#[test]
fn environment_and_flags() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(PANDO)
        .args(["serve", "--port", "0"])
        .env("PANDO_DURABILITY", "never")
        .output()
        .unwrap();
    assert!(text(&out.stderr).contains("PANDO_DURABILITY wants"));
    let mut server = Server::start(&[
        "--dbpath",
        &path(dir.path(), "data"),
        "--port",
        "0",
        "--standalone",
    ]);
    assert!(hello(&server.address).get("setName").is_none());
    server.signal("-TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn forks_as_mongod_does() {
    let dir = tempfile::tempdir().unwrap();
    let mongod = dir.path().join("mongod");
    std::os::unix::fs::symlink(PANDO, &mongod).unwrap();
    let (data, log, pid) = (
        path(dir.path(), "data"),
        path(dir.path(), "log"),
        path(dir.path(), "pid"),
    );
    std::fs::create_dir(&data).unwrap();
    let args = [
        "--dbpath",
        &data,
        "--logpath",
        &log,
        "--fork",
        "--pidfilepath",
        &pid,
        "--port",
        "0",
        "--nounixsocket",
        "--replSet",
        "rs",
        "--bind_ip",
        "127.0.0.1",
        "--wiredTigerCacheSizeGB",
        "0.25",
        "--setParameter",
        "enableTestCommands=1",
    ];
    let out = Command::new(&mongod).args(args).output().unwrap();
    let says = text(&out.stdout);
    assert!(out.status.success(), "{says}{}", text(&out.stderr));
    assert!(says.starts_with("about to fork child process, waiting until server is ready for connections.\nforked process: "));
    assert!(
        says.ends_with("child process started successfully, parent exiting\n"),
        "{says}"
    );
    let lines = std::fs::read_to_string(&log).unwrap();
    let waiting = lines
        .lines()
        .find(|l| l.contains("Waiting for connections"))
        .unwrap();
    let port = waiting
        .split("\"port\":")
        .nth(1)
        .unwrap()
        .split([',', '}'])
        .next()
        .unwrap()
        .to_string();
    assert_eq!(
        hello(&format!("127.0.0.1:{port}"))
            .get("ok")
            .and_then(|v| v.to_f64()),
        Some(1.0)
    );
    let number = std::fs::read_to_string(&pid).unwrap();
    assert!(says.contains(&format!("forked process: {}", number.trim())));

    let out = Command::new(&mongod)
        .args(["--shutdown", "--dbpath", &data])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    until("stopped", || {
        TcpStream::connect(format!("127.0.0.1:{port}")).is_err()
    });
    assert!(!Path::new(&pid).exists());

    // A child that fails is reported with its code.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let args = [
        "--dbpath",
        &data,
        "--logpath",
        &log,
        "--fork",
        "--port",
        &port,
        "--nounixsocket",
    ];
    let out = Command::new(&mongod).args(args).output().unwrap();
    assert_eq!(out.status.code(), Some(48));
    assert!(text(&out.stdout).contains("ERROR: child process failed, exited with 48"));
    assert!(text(&out.stderr).contains("is in use"));
}

/// The laboratory is a program beside this one; alone, this one says how to make it.
#[test]
fn a_missing_laboratory_is_told_of_in_one_line() {
    let beside = Path::new(PANDO).parent().unwrap();
    let dir = tempfile::tempdir_in(beside).unwrap();
    let alone = dir.path().join("pando");
    std::fs::hard_link(PANDO, &alone).unwrap();
    let done = Command::new(&alone).args(["lab", "list"]).output().unwrap();
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in [
        "pando lab: cannot run",
        "/pando-lab: ",
        "cargo build",
        "-p lab",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

/// Study D as it stands on this machine: the laboratory starts one process, then two that its client spreads keys over.
#[test]
fn the_laboratory_launches_shards() {
    assert!(
        Path::new(PANDO).with_file_name("pando-lab").is_file(),
        "cargo test --workspace builds it, and so does cargo build -p lab"
    );
    let dir = tempfile::tempdir().unwrap();
    let out = path(dir.path(), "d.json");
    let words = "lab study shards --shards 1,2 --records 400 --connections 4 --duration 200ms --quiet --memory 64m --out";
    let words: Vec<&str> = words.split(' ').chain([out.as_str()]).collect();
    let done = run(&words);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let shown = text(&done.stdout);
    for part in ["D.S5 read-only · 2 × PandoDB", "process 2 of 2"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let file = std::fs::read_to_string(&out).unwrap();
    assert!(file.contains("\"more_pids\""));
}

/// An index entry that is not that of its record, and a record whose entry is missing: both commands name them.
#[test]
fn an_index_that_disagrees_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = path(dir.path(), "data");
    let args = ["--dbpath", data.as_str(), "--port", "0"];
    let mut server = Server::start(&args);
    let ok = |server: &Server, command: &str| {
        let reply = call(&server.address, &bson::json::parse(command).unwrap());
        let code = reply.get("ok").and_then(|v| v.to_f64());
        assert_eq!(code, Some(1.0), "{reply:?}");
        reply
    };
    ok(
        &server,
        r#"{"createIndexes": "things", "$db": "d",
            "indexes": [{"key": {"n": 1}, "name": "by_n"}, {"key": {"m": 1}, "name": "by_m"}]}"#,
    );
    ok(
        &server,
        r#"{"insert": "things", "$db": "d",
            "documents": [{"_id": 1, "n": 10, "m": 1}, {"_id": 2, "n": 20, "m": 2}, {"_id": 3, "n": 30, "m": 3}]}"#,
    );
    server.signal("-TERM");
    assert_eq!(server.exit_code(), Some(0));
    let sound = run(&["check", &data]);
    assert_eq!(sound.status.code(), Some(0), "{}", text(&sound.stdout));

    // Behind the executor's back: the entry of record 2 is lost, and one of record 3 has another value than the record.
    {
        let store = storage::Store::open(storage::StoreOptions::new(&data)).unwrap();
        let engine = executor::Engine::open(store.clone()).unwrap();
        let coll = engine.catalog.get("d.things").unwrap();
        let index = coll.index_named("by_n").unwrap();
        let entry = |text: &str, of: i32| {
            let doc = bson::json::parse(text).unwrap();
            let id = doc! { "_id": of };
            let record = executor::record_key(&coll, id.get("_id").unwrap());
            executor::entries_of(index, doc.as_doc(), &record[catalog::keyspace::PREFIX..])
                .unwrap()
                .remove(0)
        };
        let lost = entry(r#"{"n": 20}"#, 2);
        assert!(store.view().exists(&lost).unwrap());
        let wrong = entry(r#"{"n": 31}"#, 3);
        store
            .write_unlogged(&[
                storage::Effect::Delete(lost),
                storage::Effect::Put(wrong, vec![]),
            ])
            .unwrap();
        store.flush().unwrap();
        store.close().unwrap();
    }

    // The store's own threads may have its directory for a moment longer.
    let checked = (0..100)
        .map(|_| run(&["check", &data]))
        .find(|checked| {
            let in_use = checked.status.code() == Some(CANNOT_OPEN);
            if in_use {
                std::thread::sleep(Duration::from_millis(100));
            }
            !in_use
        })
        .expect("the store lets its directory go");
    let said = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    for line in [
        "d.things: the index by_n lacks an entry of the record 2",
        "d.things: the index by_n has an entry that is not that of its record 3",
        "2 faults were found",
    ] {
        assert!(said.contains(line), "{line:?} in\n{said}");
    }
    assert!(!said.contains("by_m"), "{said}");

    let server = Server::start(&args);
    let reply = ok(
        &server,
        r#"{"validate": "things", "full": true, "$db": "d"}"#,
    );
    assert_eq!(reply.get("valid").and_then(|v| v.as_bool()), Some(false));
    let said = reply.as_doc().to_string();
    assert!(
        said.contains("by_n") && !said.contains("by_m\": {\"valid\": false"),
        "{said}"
    );
    for list in ["missingIndexEntries", "extraIndexEntries"] {
        let entries = reply.get(list).and_then(|v| v.as_array());
        let named = entries.expect(list).to_string();
        assert_eq!(entries.map(|e| e.count()), Some(1), "{named}");
        assert!(named.contains("by_n"), "{list}: {named}");
    }
}
