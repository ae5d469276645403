//! One blocking connection to MySQL: logged in by password, for statements outside the measurement and for those that a
//! measured connection prepares.

use super::packets::{ends_rows, number, numbered, payload, refused};
use crate::connection::read_some;
use crate::fault::{Fault, Result, target};
use crate::targets::encryption::Route;
use crate::targets::{Stream, Url};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::io::Write;

mod capability {
    pub const FOUND_ROWS: u32 = 2;
    pub const PROTOCOL_41: u32 = 0x200;
    pub const TRANSACTIONS: u32 = 0x2000;
    pub const SSL: u32 = 0x800;
    pub const SECURE_CONNECTION: u32 = 0x8000;
    pub const PLUGIN_AUTH: u32 = 0x8_0000;
    pub const DEPRECATE_EOF: u32 = 0x100_0000;
    pub const WANTED: u32 = FOUND_ROWS
        | PROTOCOL_41
        | TRANSACTIONS
        | SECURE_CONNECTION
        | PLUGIN_AUTH
        | DEPRECATE_EOF
        | 5;
}

/// One blocking connection.
pub(super) struct My {
    pub(super) stream: Stream,
    input: Vec<u8>,
    sequence: u8,
}

fn proof(plugin: &str, password: &str, salt: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let mixed = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(x, y)| x ^ y).collect();
    if plugin == "caching_sha2_password" {
        let once = Sha256::digest(password);
        let twice = Sha256::digest(once);
        return mixed(&once, &Sha256::digest([&twice[..], salt].concat()));
    }
    let once = Sha1::digest(password);
    let twice = Sha1::digest(once);
    mixed(&once, &Sha1::digest([salt, &twice[..]].concat()))
}

fn strange(url: &Url) -> Fault {
    Fault::Target(format!("{}: this is not a MySQL server", url.text))
}

/// What a server says first.
struct Greeting {
    capabilities: u32,
    salt: Vec<u8>,
    /// How it would have the password proven.
    plugin: String,
}

impl Greeting {
    fn read(packet: &[u8], url: &Url) -> Result<Greeting> {
        match packet.first() {
            Some(0xff) => return Err(refused(packet)),
            Some(10) => {}
            _ => return Err(strange(url)),
        }
        let version = packet[1..].iter().position(|b| *b == 0);
        let version = version.ok_or_else(|| strange(url))?;
        // Thread, 8 bytes of salt, 0, capabilities, character set, status, capabilities, length of salt, 10 zeros, salt.
        let rest = packet.get(version + 2..).unwrap_or_default();
        let first = rest.get(4..12).ok_or_else(|| strange(url))?;
        let more = rest.get(31..).unwrap_or_default();
        let has = |at: usize| {
            rest.get(at..at + 2)
                .map_or(0, |b| u32::from(u16::from_le_bytes([b[0], b[1]])))
        };
        let capabilities = has(13) | has(18) << 16;
        if capabilities & capability::DEPRECATE_EOF == 0 {
            return Err(Fault::Target(format!(
                "{}: the server is older than MySQL 5.7 or MariaDB 10.2",
                url.text
            )));
        }
        let name = more.get(13..).unwrap_or_default();
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        Ok(Greeting {
            capabilities,
            salt: [first, more.get(..12).unwrap_or_default()].concat(),
            plugin: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

impl My {
    pub(super) fn connect(route: &Route) -> Result<My> {
        let my = My {
            stream: Stream::from(route.url.host.connect()?),
            input: Vec::new(),
            sequence: 0,
        };
        my.log_in(route)
    }

    fn log_in(mut self, route: &Route) -> Result<My> {
        let url = &route.url;
        let greeting = Greeting::read(&self.next()?, url)?;
        let user = url.user.as_deref().unwrap_or("root");
        let password = url.password.as_deref().unwrap_or("");
        let answer = proof(&greeting.plugin, password, &greeting.salt);
        let offered = greeting.capabilities & capability::SSL != 0;
        let encrypts = route.encryption.is_wanted() && offered;
        let wanted = capability::WANTED | if encrypts { capability::SSL } else { 0 };
        let head = |out: &mut Vec<u8>| {
            out.extend_from_slice(&wanted.to_le_bytes());
            out.extend_from_slice(&(1u32 << 30).to_le_bytes());
            // utf8mb4, and 23 zeros.
            out.push(45);
            out.resize(out.len() + 23, 0);
        };
        if encrypts {
            self.reply(head)?;
            self.sequence = self.sequence.wrapping_add(1);
        }
        self.stream = route.encryption.apply(self.stream, url, offered)?;
        self.reply(|out| {
            head(out);
            out.extend_from_slice(user.as_bytes());
            out.push(0);
            out.push(answer.len() as u8);
            out.extend_from_slice(&answer);
            out.extend_from_slice(greeting.plugin.as_bytes());
            out.push(0);
        })?;
        self.end_login(url, password)?;
        Ok(self)
    }

    /// What the server asks until it lets the user in.
    fn end_login(&mut self, url: &Url, password: &str) -> Result<()> {
        loop {
            let said = self.next()?;
            match said.first() {
                Some(0) => return Ok(()),
                Some(0xff) => return Err(refused(&said)),
                Some(0xfe) => {
                    let mut parts = said[1..].splitn(2, |b| *b == 0);
                    let plugin = parts.next().unwrap_or_default();
                    let plugin = String::from_utf8_lossy(plugin).into_owned();
                    if !matches!(
                        plugin.as_str(),
                        "mysql_native_password" | "caching_sha2_password"
                    ) {
                        return Err(Fault::Target(format!(
                            "{}: login by {plugin} is not supported",
                            url.text
                        )));
                    }
                    let mut salt = parts.next().unwrap_or_default().to_vec();
                    salt.truncate(20);
                    let answer = proof(&plugin, password, &salt);
                    self.reply(|out| out.extend_from_slice(&answer))?;
                }
                // The password's hash is in the server's cache.
                Some(1) if said.get(1) == Some(&3) => {}
                // It is not: the server wants the password itself, which TLS keeps from others.
                Some(1) if self.stream.is_encrypted() => {
                    self.reply(|out| out.extend_from_slice(&[password.as_bytes(), &[0]].concat()))?;
                }
                Some(1) => {
                    return Err(Fault::Target(format!(
                        "{}: the server wants the password over TLS once: add ssl-mode=REQUIRED, or give the user mysql_native_password",
                        url.text
                    )));
                }
                _ => return Err(strange(url)),
            }
        }
    }

    pub(super) fn reply(&mut self, body: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut out = Vec::new();
        numbered(&mut out, self.sequence, body);
        self.stream
            .write_all(&out)
            .map_err(target("sending to MySQL"))
    }

    pub(super) fn command(&mut self, kind: u8, text: &str) -> Result<()> {
        self.sequence = 0;
        self.reply(|out| {
            out.push(kind);
            out.extend_from_slice(text.as_bytes());
        })
    }

    pub(super) fn next(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some((body, end)) = payload(&self.input, 0) {
                let body = body.to_vec();
                self.sequence = self.input[3].wrapping_add(1);
                self.input.drain(..end);
                return Ok(body);
            }
            let mut chunk = [0; 8192];
            let n = read_some(&mut self.stream, &mut chunk).map_err(target("waiting for MySQL"))?;
            if n == 0 {
                return Err(Fault::Target("MySQL closed the connection".into()));
            }
            self.input.extend_from_slice(&chunk[..n]);
        }
    }

    pub(super) fn prepare(&mut self, sql: &str) -> Result<u32> {
        self.command(0x16, sql)?;
        let head = self.next()?;
        if head.first() == Some(&0xff) {
            return Err(refused(&head));
        }
        let (Some(id), Some(counts)) = (head.get(1..5), head.get(5..9)) else {
            return Err(Fault::Target("a reply cut short".into()));
        };
        let definitions =
            u16::from_le_bytes([counts[0], counts[1]]) + u16::from_le_bytes([counts[2], counts[3]]);
        for _ in 0..definitions {
            self.next()?;
        }
        Ok(u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
    }

    pub(super) fn query(&mut self, sql: &str) -> Result<Vec<Vec<String>>> {
        self.command(3, sql)?;
        let head = self.next()?;
        match head.first() {
            Some(0xff) => return Err(refused(&head)),
            Some(0) | None => return Ok(Vec::new()),
            _ => {}
        }
        let columns = number(&head).map_or(0, |(n, _)| n);
        for _ in 0..columns {
            self.next()?;
        }
        let mut rows = Vec::new();
        loop {
            let row = self.next()?;
            if row.first() == Some(&0xff) {
                return Err(refused(&row));
            }
            if ends_rows(&row) {
                return Ok(rows);
            }
            let mut rest = &row[..];
            let mut cells = Vec::new();
            for _ in 0..columns {
                // 0xfb is NULL.
                let (n, after) = number(rest).unwrap_or((0, rest.get(1..).unwrap_or_default()));
                let (cell, next) = after.split_at_checked(n as usize).unwrap_or_default();
                cells.push(String::from_utf8_lossy(cell).into_owned());
                rest = next;
            }
            rows.push(cells);
        }
    }

    pub(super) fn run(&mut self, sql: &str) -> Result<()> {
        self.query(sql).map(|_| ())
    }

    pub(super) fn value(&mut self, sql: &str) -> Result<String> {
        let rows = self.query(sql)?;
        let first = rows.into_iter().next().and_then(|r| r.into_iter().next());
        first.ok_or_else(|| Fault::Target(format!("no row from {sql}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords() {
        assert!(proof("mysql_native_password", "", b"x").is_empty());
        assert_eq!(proof("mysql_native_password", "p", &[1; 20]).len(), 20);
        assert_eq!(proof("caching_sha2_password", "p", &[1; 20]).len(), 32);
    }
}
