//! How each product is started: its program, its words, what makes its empty data folder, and its URL. Same cache
//! everywhere, every commit able to reach the disk, nothing else tuned.

use super::{PRODUCTS, Up};
use crate::fault::{Fault, Result, local};
use std::path::{Path, PathBuf};

/// One server to be started.
pub struct Recipe {
    pub binary: PathBuf,
    pub words: Vec<String>,
    pub url: String,
    /// Commands that make the empty data folder.
    pub before: Vec<Vec<String>>,
}

/// The program `pando`, which lies beside this one.
pub fn own_server() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(local("this program's own path"))?;
    let server = own.with_file_name("pando");
    if server.is_file() {
        return Ok(server);
    }
    Err(Fault::Local(format!(
        "there is no server beside this program, at {}; in the source tree, cargo build -p pando makes it",
        server.display()
    )))
}

/// Where the product's program is.
pub fn program(product: &str, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return if path.is_file() {
            Ok(path.to_path_buf())
        } else {
            Err(Fault::Usage(format!("{}: no such program", path.display())))
        };
    }
    let (names, package): (&[&str], &str) = match product {
        "pando" => return own_server(),
        "mariadb" => (&["mariadbd", "mysqld"], "the package mariadb-server has it"),
        "postgres" => (&["postgres"], "the package postgresql has it"),
        "mongod" => (&["mongod"], "give --binary PATH"),
        "mongos" => (&["mongos"], "give --router PATH"),
        other => {
            return Err(Fault::Usage(format!(
                "{other} is not one of {}",
                PRODUCTS.join(", ")
            )));
        }
    };
    let mut folders: Vec<PathBuf> = Vec::new();
    if product == "postgres" {
        // Debian keeps the versions side by side; the newest first.
        let versions = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten();
        let mut versions: Vec<PathBuf> = versions.map(|e| e.path().join("bin")).collect();
        versions.sort();
        versions.reverse();
        folders.extend(versions);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from));
    let found = folders
        .iter()
        .flat_map(|f| names.iter().map(|n| f.join(n)))
        .find(|p| p.is_file());
    found.ok_or_else(|| Fault::Local(format!("no {} on this machine; {package}", names[0])))
}

/// How one server of the product is started on an empty folder.
pub fn recipe(dir: &Path, up: &Up, port: u16) -> Result<Recipe> {
    let binary = program(&up.product, up.means.binary.as_deref())?;
    let (words, url) = words(dir, &binary, up, port)?;
    Ok(Recipe {
        before: preparation(dir, &binary, up),
        binary,
        words,
        url,
    })
}

/// A member of a cluster of mongods, or one by itself; `role` are the words that make it what it is.
pub fn mongod(dir: &Path, binary: &Path, memory: u64, port: u16, role: &[&str]) -> Result<Recipe> {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).map_err(local(data.display()))?;
    let gigabytes = (memory as f64 / 1e9).max(0.25);
    let mut words = vec![
        "--dbpath".to_string(),
        data.display().to_string(),
        "--port".into(),
        port.to_string(),
        "--bind_ip".into(),
        "127.0.0.1".into(),
        "--wiredTigerCacheSizeGB".into(),
        format!("{gigabytes:.2}"),
    ];
    words.extend(role.iter().map(|w| (*w).to_string()));
    Ok(Recipe {
        binary: binary.to_path_buf(),
        words,
        url: format!("mongodb://127.0.0.1:{port}/"),
        before: Vec::new(),
    })
}

/// The router of a cluster; the name of the file for its process id is what its command line is known by.
pub fn mongos(dir: &Path, binary: &Path, port: u16, config: &str) -> Recipe {
    let words = [
        "--configdb",
        config,
        "--port",
        &port.to_string(),
        "--bind_ip",
        "127.0.0.1",
        "--pidfilepath",
        &dir.join("pid").display().to_string(),
    ];
    Recipe {
        binary: binary.to_path_buf(),
        words: words.map(String::from).to_vec(),
        url: format!("mongodb://127.0.0.1:{port}/"),
        before: Vec::new(),
    }
}

/// The router that belongs to a mongod: given, beside it, or installed.
pub fn router(mongod: &Path, given: Option<&Path>) -> Result<PathBuf> {
    if given.is_some() {
        return program("mongos", given);
    }
    let near = mongod.with_file_name("mongos");
    if near.is_file() {
        return Ok(near);
    }
    program("mongos", None).map_err(|_| {
        Fault::Local(format!(
            "no mongos beside {} nor installed; shards need one: give --router PATH",
            mongod.display()
        ))
    })
}

/// Our own server, by itself or as a member of a cluster; `role` are the words that make it what it is.
pub fn pando(dir: &Path, binary: &Path, memory: u64, port: u16, role: &[&str]) -> Result<Recipe> {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).map_err(local(dir.display()))?;
    let mut words = vec![
        "serve".to_string(),
        "--dbpath".into(),
        data.display().to_string(),
        "--port".into(),
        port.to_string(),
        "--cache".into(),
        format!("{}MB", megabytes(memory)),
    ];
    words.extend(role.iter().map(|w| (*w).to_string()));
    Ok(Recipe {
        binary: binary.to_path_buf(),
        words,
        url: format!("mongodb://127.0.0.1:{port}/"),
        before: Vec::new(),
    })
}

/// The router of a cluster of our own servers; its folder is scratch.
pub fn route(dir: &Path, binary: &Path, port: u16, config: &str) -> Result<Recipe> {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).map_err(local(dir.display()))?;
    let words = [
        "route",
        "--configdb",
        config,
        "--port",
        &port.to_string(),
        "--dbpath",
        &data.display().to_string(),
    ];
    Ok(Recipe {
        binary: binary.to_path_buf(),
        words: words.map(String::from).to_vec(),
        url: format!("mongodb://127.0.0.1:{port}/"),
        before: Vec::new(),
    })
}

fn megabytes(memory: u64) -> u64 {
    (memory / 1_000_000).max(8)
}

fn words(dir: &Path, binary: &Path, up: &Up, port: u16) -> Result<(Vec<String>, String)> {
    let data = dir.join("data").display().to_string();
    let megabytes = megabytes(up.means.memory);
    let recipe = match up.product.as_str() {
        "mariadb" => {
            let words = mariadb(dir, binary, data, port, megabytes);
            let url = format!("mysql://root@127.0.0.1:{port}/lab?engine={}", up.engine);
            return Ok((words, url));
        }
        "postgres" => {
            let words = postgres(dir, data, port, megabytes);
            let layout = &up.layout;
            let url = format!("postgres://lab@127.0.0.1:{port}/postgres?layout={layout}");
            return Ok((words, url));
        }
        "mongod" => mongod(dir, binary, up.means.memory, port, &[])?,
        _ => pando(dir, binary, up.means.memory, port, &[])?,
    };
    Ok((recipe.words, recipe.url))
}

fn mariadb(dir: &Path, binary: &Path, data: String, port: u16, megabytes: u64) -> Vec<String> {
    let here = dir.display();
    let mut words = vec![
        "--no-defaults".to_string(),
        format!("--datadir={data}"),
        "--bind-address=127.0.0.1".into(),
        format!("--port={port}"),
        format!("--socket={here}/socket"),
        format!("--pid-file={here}/pid"),
        "--max-connections=600".into(),
        "--skip-log-bin".into(),
        "--innodb-flush-log-at-trx-commit=1".into(),
        format!("--innodb-buffer-pool-size={megabytes}M"),
        format!("--innodb-log-file-size={}M", (megabytes / 2).max(96)),
        format!("--key-buffer-size={megabytes}M"),
        "--max-allowed-packet=64M".into(),
    ];
    if binary.ends_with("mariadbd") {
        words.push(format!("--aria-pagecache-buffer-size={megabytes}M"));
    }
    // SAFETY: no pointers are involved.
    if unsafe { libc::getuid() } == 0 {
        words.push("--user=root".into());
    }
    words
}

fn postgres(dir: &Path, data: String, port: u16, megabytes: u64) -> Vec<String> {
    let settings = [
        "listen_addresses=127.0.0.1".to_string(),
        format!("unix_socket_directories={}", dir.display()),
        format!("shared_buffers={megabytes}MB"),
        "max_connections=600".into(),
        "fsync=on".into(),
        "full_page_writes=on".into(),
        "max_wal_size=4GB".into(),
        "logging_collector=off".into(),
    ];
    let mut words = vec!["-D".to_string(), data, "-p".into(), port.to_string()];
    for s in settings {
        words.extend(["-c".to_string(), s]);
    }
    words
}

/// What makes the empty data folder.
fn preparation(dir: &Path, binary: &Path, up: &Up) -> Vec<Vec<String>> {
    let data = dir.join("data").display().to_string();
    let beside = |name: &str| {
        let near = binary.with_file_name(name);
        let candidates = [
            near,
            Path::new("/usr/bin").join(name),
            Path::new("/usr/local/bin").join(name),
        ];
        let found = candidates.iter().find(|p| p.is_file());
        found.map_or(name.to_string(), |p| p.display().to_string())
    };
    match up.product.as_str() {
        "mariadb"
            if binary.ends_with("mysqld")
                && !Path::new("/usr/bin/mariadb-install-db").is_file() =>
        {
            vec![vec![
                binary.display().to_string(),
                "--no-defaults".into(),
                "--initialize-insecure".into(),
                format!("--datadir={data}"),
            ]]
        }
        "mariadb" => vec![vec![
            beside("mariadb-install-db"),
            "--no-defaults".into(),
            format!("--datadir={data}"),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
        ]],
        "postgres" => vec![vec![
            beside("initdb"),
            "-D".into(),
            data,
            "-U".into(),
            "lab".into(),
            "--auth=trust".into(),
            "--locale=C".into(),
            "--encoding=UTF8".into(),
            "--no-sync".into(),
        ]],
        _ => Vec::new(),
    }
}
