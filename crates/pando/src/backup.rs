//! `pando backup URI DIR`: has a running server copy all its data into a directory, which starts as it is.

use bson::{Doc, Writer};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Copies all data of a running server, consistent as of one moment, while it goes on.

Usage: pando backup URI DIR

  URI   the server, as mongodb://127.0.0.1:27017/
  DIR   a directory of the server's machine that does not exist yet; a server starts from it with
        pando serve --dbpath DIR. On the file system of the data it shares the data files, and takes
        little time and space.
";

pub fn main(args: &[OsString]) -> ExitCode {
    let words: Vec<String> = args
        .iter()
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let (uri, dir) = match words.as_slice() {
        [help] if help == "--help" || help == "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        [uri, dir] if !uri.starts_with('-') && !dir.starts_with('-') => (uri, dir),
        _ => {
            eprintln!("pando: backup wants a URI and a directory (see pando backup --help)");
            return ExitCode::from(2);
        }
    };
    match run(uri, Path::new(dir)) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(says) => {
            eprintln!("pando: no backup was made: {says}");
            ExitCode::from(1)
        }
    }
}

fn run(uri: &str, dir: &Path) -> Result<String, String> {
    let address = address(uri)?;
    let path = std::path::absolute(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let mut body = Writer::new();
    body.i32("pandoBackup", 1)
        .str("path", path)
        .str("$db", "admin");
    let reply = ask(&address, body.finish().as_doc())?;
    let reply = Doc::new(&reply).ok_or("the server's reply is damaged")?;
    if reply.get("ok").is_some_and(|v| v.truthy()) {
        return Ok(format!(
            "The backup is in {path}. Start it with: pando serve --dbpath {path}"
        ));
    }
    let text = reply.get("errmsg").and_then(|v| v.as_str());
    Err(text
        .unwrap_or("the server refused without a reason")
        .to_string())
}

/// `host:port` of the first host in the URI.
fn address(uri: &str) -> Result<String, String> {
    let rest = uri
        .strip_prefix("mongodb://")
        .ok_or_else(|| format!("'{uri}' does not begin with mongodb://"))?;
    let hosts = rest.split(['/', '?']).next().unwrap_or("");
    let host = hosts.split(',').next().unwrap_or("");
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if host.is_empty() {
        return Err(format!("'{uri}' names no host"));
    }
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
    Ok(match has_port {
        true => host.to_string(),
        false => format!("{host}:27017"),
    })
}

/// Sends one command and waits for its reply, for as long as it takes.
fn ask(address: &str, body: Doc<'_>) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("{address}: {e}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    let mut message = Vec::new();
    let start = wire::begin_msg(&mut message, 1, 0, 0);
    wire::begin_body(&mut message);
    message.extend_from_slice(body.as_bytes());
    wire::end(&mut message, start);
    stream.write_all(&message).map_err(failed)?;
    let mut reply = Vec::new();
    loop {
        match wire::frame(&reply) {
            Ok(wire::Frame::Complete { len }) => {
                let whole = reply.get(..len).unwrap_or(&[]);
                return match wire::parse(whole) {
                    Ok((_, wire::Message::Msg(msg))) => Ok(msg.body.to_vec()),
                    _ => Err(format!("{address} does not answer as a server does")),
                };
            }
            Ok(wire::Frame::Incomplete { .. }) => {
                let mut buffer = [0; 4096];
                match stream.read(&mut buffer).map_err(failed)? {
                    0 => return Err(format!("{address} has closed the connection")),
                    n => reply.extend_from_slice(buffer.get(..n).unwrap_or(&[])),
                }
            }
            Err(_) => return Err(format!("{address} does not answer as a server does")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (uri, is) in [
            ("mongodb://a:1/", "a:1"),
            ("mongodb://a", "a:27017"),
            ("mongodb://u:p@a:2/x?replicaSet=rs0", "a:2"),
            ("mongodb://a:1,b:2", "a:1"),
            ("mongodb://[::1]", "[::1]:27017"),
        ] {
            assert_eq!(address(uri).as_deref(), Ok(is), "{uri}");
        }
        assert!(address("http://a").is_err() && address("mongodb:///x").is_err());
    }
}
