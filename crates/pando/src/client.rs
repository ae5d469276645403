//! A client for the tools that ask a running server one thing: `pando schema` and `pando backup`.
//! Invariant: one command a connection, waited for as long as it takes; no login.

use bson::Doc;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

const DEFAULT_PORT: u16 = 27017;

/// A server by its connection string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port` of the first host, or the path of a Unix socket.
    pub host: String,
    /// The database that the connection string names.
    pub database: Option<String>,
}

impl Address {
    /// `mongodb://[user:password@]host[:port][,…][/database][?options]`.
    pub fn parse(uri: &str) -> Result<Address, String> {
        let rest = uri
            .strip_prefix("mongodb://")
            .ok_or_else(|| format!("'{uri}' does not begin with mongodb://"))?;
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
        let host = hosts.split(',').next().unwrap_or("");
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        if host.is_empty() {
            return Err(format!("'{uri}' names no host"));
        }
        let host = host.replace("%2F", "/").replace("%2f", "/");
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
        Ok(Address {
            host: match has_port || host.starts_with('/') {
                true => host,
                false => format!("{host}:{DEFAULT_PORT}"),
            },
            database: Some(database.to_string()).filter(|d| !d.is_empty()),
        })
    }

    /// Sends one command, `$db` included, and gives the bytes of the reply's document.
    pub fn ask(&self, body: Doc<'_>) -> Result<Vec<u8>, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.host);
        let mut stream = self.connect().map_err(failed)?;
        let mut message = Vec::new();
        let start = wire::begin_msg(&mut message, 1, 0, 0);
        wire::begin_body(&mut message);
        message.extend_from_slice(body.as_bytes());
        wire::end(&mut message, start);
        stream.write_all(&message).map_err(failed)?;
        let stranger = || format!("{} does not answer as a server does", self.host);
        let mut reply = Vec::new();
        loop {
            match wire::frame(&reply) {
                Ok(wire::Frame::Complete { len }) => {
                    let whole = reply.get(..len).ok_or_else(stranger)?;
                    return match wire::parse(whole) {
                        Ok((_, wire::Message::Msg(msg))) => Ok(msg.body.to_vec()),
                        _ => Err(stranger()),
                    };
                }
                Ok(wire::Frame::Incomplete { .. }) => {
                    let mut buffer = [0; 4096];
                    match stream.read(&mut buffer).map_err(failed)? {
                        0 => return Err(format!("{} has closed the connection", self.host)),
                        n => reply.extend(buffer.iter().take(n)),
                    }
                }
                Err(_) => return Err(stranger()),
            }
        }
    }

    /// A socket of either kind sends and receives by the same calls, so one type stands for both.
    fn connect(&self) -> std::io::Result<TcpStream> {
        if self.host.starts_with('/') {
            return Ok(TcpStream::from(OwnedFd::from(UnixStream::connect(
                &self.host,
            )?)));
        }
        TcpStream::connect(&self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (uri, host, database) in [
            ("mongodb://a:1/", "a:1", None),
            ("mongodb://a", "a:27017", None),
            ("mongodb://u:p@a:2/x?replicaSet=rs0", "a:2", Some("x")),
            ("mongodb://a:1,b:2/y", "a:1", Some("y")),
            ("mongodb://[::1]", "[::1]:27017", None),
            ("mongodb://%2Ftmp%2Fm.sock", "/tmp/m.sock", None),
        ] {
            let is = Address::parse(uri).unwrap();
            assert_eq!(
                (&*is.host, is.database.as_deref()),
                (host, database),
                "{uri}"
            );
        }
        assert!(Address::parse("http://a").is_err() && Address::parse("mongodb:///x").is_err());
    }
}
