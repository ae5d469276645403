//! Where a member listens: `host`, `host:port`, `[address]:port`.

use errors::{Fallible, bail};
use std::fmt;

const DEFAULT_PORT: u16 = 27017;

/// A host by name or address, and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    pub name: String,
    pub port: u16,
}

impl Host {
    pub fn parse(text: &str) -> Fallible<Host> {
        let text = text.trim();
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let Some((name, after)) = rest.split_once(']') else {
                    bail!(
                        FailedToParse,
                        "Missing ']' parsing HostAndPort from \"{text}\""
                    );
                };
                match after.strip_prefix(':') {
                    Some(port) => (name, Some(port)),
                    None if after.is_empty() => (name, None),
                    None => bail!(
                        FailedToParse,
                        "Extraneous characters after ']' in pre-parsed IPv6 address: \"{text}\""
                    ),
                }
            }
            None => match text.rsplit_once(':') {
                // More than one colon and no brackets: an address without a port.
                Some((name, _)) if name.contains(':') => (text, None),
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        if name.is_empty() {
            bail!(
                FailedToParse,
                "Empty host component parsing HostAndPort from \"{text}\""
            );
        }
        Ok(Host {
            name: name.to_string(),
            port: port.map_or(Ok(DEFAULT_PORT), |port| parse_port(port, text))?,
        })
    }

    /// It means the machine itself, and so nothing to another one.
    pub fn is_localhost(&self) -> bool {
        self.name == "localhost"
            || self.name.starts_with("127.")
            || self.name == "::1"
            || self.name == "anonymous unix socket"
            || self.name.starts_with('/')
    }
}

fn parse_port(port: &str, text: &str) -> Fallible<u16> {
    let number: Option<i64> = port.parse().ok();
    match number {
        None => bail!(
            FailedToParse,
            "Bad digit \"{}\" while parsing {port}",
            port.chars().find(|c| !c.is_ascii_digit()).unwrap_or(' ')
        ),
        Some(n) => match u16::try_from(n) {
            Ok(n) if n > 0 => Ok(n),
            _ => bail!(
                FailedToParse,
                "Port number {n} out of range parsing HostAndPort from \"{text}\""
            ),
        },
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_written() {
        for (text, want) in [
            ("a", "a:27017"),
            (" a.b:1 ", "a.b:1"),
            ("[::1]:5", "[::1]:5"),
            ("::1", "[::1]:27017"),
            ("[fe80::1]", "[fe80::1]:27017"),
        ] {
            assert_eq!(Host::parse(text).unwrap().to_string(), want);
        }
        for wrong in [
            "", ":1", "a:", "a:x", "a:0", "a:65536", "a:-1", "[::1", "[::1]x",
        ] {
            assert_eq!(Host::parse(wrong).unwrap_err().code.0, 9, "{wrong}");
        }
    }

    #[test]
    fn local() {
        let local = |text| Host::parse(text).unwrap().is_localhost();
        assert!(local("localhost") && local("127.0.0.2:1") && local("[::1]:2"));
        assert!(!local("localhost.example") && !local("10.0.0.1"));
    }
}
