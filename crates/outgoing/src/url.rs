//! URLs of targets: `scheme://[user[:password]@]host[:port][/database][?option=value&…]`; the host may be the path of a Unix socket
//! with its slashes as `%2F`.

use crate::{Error, Result, failed};
use std::fmt;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl HostAddress {
    /// A blocking connection. A socket of either kind sends and receives by the same calls, so one type stands for both.
    pub fn connect(&self) -> Result<TcpStream> {
        self.connect_within(CONNECT_TIMEOUT, REPLY_TIMEOUT)
    }

    /// The same with limits, which are not zero: for the connection, and for its first reply.
    pub fn connect_within(&self, limit: Duration, reply: Duration) -> Result<TcpStream> {
        let what = || format!("connecting to {self}");
        let stream = match self {
            HostAddress::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(addr, limit).map_err(failed(what()))?;
                stream.set_nodelay(true).map_err(failed(what()))?;
                stream
            }
            HostAddress::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed(what()))?;
                TcpStream::from(OwnedFd::from(stream))
            }
        };
        stream
            .set_read_timeout(Some(reply))
            .map_err(failed(what()))?;
        Ok(stream)
    }

    pub fn is_tcp(&self) -> bool {
        matches!(self, HostAddress::Tcp(_))
    }

    /// Whether the server is on this machine, as far as the address tells.
    pub fn is_local(&self) -> bool {
        match self {
            HostAddress::Tcp(addr) => addr.ip().is_loopback(),
            HostAddress::Unix(_) => true,
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostAddress::Tcp(addr) => addr.fmt(f),
            HostAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Long enough for an index build on much data.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);
/// A server that has not taken the connection by then is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// As it may be shown.
    pub text: String,
    pub user: Option<String>,
    pub password: Option<String>,
    pub host: HostAddress,
    /// The host as it was named, without its port: the name that a certificate must have.
    pub name: String,
    pub database: Option<String>,
    pub options: Vec<(String, String)>,
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Url {
    pub fn parse(text: &str, default_port: u16) -> Result<Url> {
        let shown = without_password(text);
        let usage = |why: &str| Error::Usage(format!("{shown}: {why}"));
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| usage("a target is a URL"))?;
        if scheme.ends_with("+srv") {
            return Err(usage(
                "members are not looked up: name one, as mongodb://host:port",
            ));
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, authority),
        };
        if host.is_empty() || host.contains(',') {
            return Err(usage("name exactly one host"));
        }
        let decode = |s: &str| decode(s).ok_or_else(|| usage("malformed %-escape"));
        let plain = decode(host)?;
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            None => name,
        };
        let name = name.to_string();
        let host = if plain.starts_with('/') {
            HostAddress::Unix(plain.into())
        } else {
            let with_port = if host.ends_with(']') || !host.contains(':') {
                format!("{host}:{default_port}")
            } else {
                host.to_string()
            };
            let addr = with_port.to_socket_addrs().ok().and_then(|mut a| a.next());
            HostAddress::Tcp(addr.ok_or_else(|| usage("no such host"))?)
        };
        let (user, password) = match login {
            None => (None, None),
            Some(login) => match login.split_once(':') {
                Some((u, p)) => (Some(decode(u)?), Some(decode(p)?)),
                None => (Some(decode(login)?), None),
            },
        };
        Ok(Url {
            text: shown.clone(),
            user,
            password,
            host,
            name,
            database: Some(decode(database)?).filter(|d| !d.is_empty()),
            options: options
                .split('&')
                .filter(|o| !o.is_empty())
                .map(|o| {
                    let (k, v) = o.split_once('=').unwrap_or((o, ""));
                    Ok((k.to_ascii_lowercase(), decode(v)?))
                })
                .collect::<Result<_>>()?,
        })
    }

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .rev()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }
}

/// The URLs of `URL+URL+…`: a plus with a scheme after it parts them.
pub fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices("://") {
        let scheme = text[start..at]
            .rfind(|c: char| !c.is_ascii_alphanumeric())
            .map(|plus| start + plus);
        // The plus of mongodb+srv:// parts nothing.
        let between = |p: usize| text[start..p].contains("://") && p + 1 < at;
        if let Some(plus) = scheme.filter(|&p| text[p..].starts_with('+') && between(p)) {
            parts.push(&text[start..plus]);
            start = plus + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A text with any number of URLs as it may be shown and kept: results are passed on.
pub fn without_password(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (scheme, after) = rest.split_at(at + 3);
        shown.push_str(&without_secret_options(scheme));
        let end = after.find(['/', '?']).unwrap_or(after.len());
        let authority = &after[..end];
        rest = after;
        if let Some((login, _)) = authority.rsplit_once('@')
            && let Some((user, _)) = login.split_once(':')
        {
            shown.push_str(user);
            shown.push_str(":***");
            rest = &after[login.len()..];
        }
    }
    shown + &without_secret_options(rest)
}

/// The same with the values of options that are passwords (`sslpassword=…`) left out.
fn without_secret_options(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.to_ascii_lowercase().find("password=") {
        let (before, after) = rest.split_at(at + "password=".len());
        shown.push_str(before);
        shown.push_str("***");
        let end = after.find(['&', '+', ',', ' ']).unwrap_or(after.len());
        rest = &after[end..];
    }
    shown + rest
}

fn decode(s: &str) -> Option<String> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let digit = |b: Option<u8>| char::from(b?).to_digit(16);
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let u = Url::parse(
            "postgres://me:s%40t@127.0.0.1:5433/lab?Layout=jsonb&x",
            5432,
        )
        .unwrap();
        assert_eq!(
            (u.user.as_deref(), u.password.as_deref()),
            (Some("me"), Some("s@t"))
        );
        let at = |port: u16| HostAddress::Tcp(([127, 0, 0, 1], port).into());
        assert_eq!((&u.host, u.database.as_deref()), (&at(5433), Some("lab")));
        assert_eq!(
            (u.name.as_str(), u.database.as_deref()),
            ("127.0.0.1", Some("lab"))
        );
        assert_eq!(
            (u.option("layout"), u.option("x"), u.option("y")),
            (Some("jsonb"), Some(""), None)
        );
        assert_eq!(
            u.text,
            "postgres://me:***@127.0.0.1:5433/lab?Layout=jsonb&x"
        );
        assert_eq!(without_password("mongodb://u:p@h/"), "mongodb://u:***@h/");
        assert_eq!(
            without_password("mongodb://u@h/x:y@z"),
            "mongodb://u@h/x:y@z"
        );
        assert_eq!(
            without_password("1=mongodb://a:1,2=mongodb://u:p@b:2/+mongodb://v:q,r@c"),
            "1=mongodb://a:1,2=mongodb://u:***@b:2/+mongodb://v:***@c"
        );
        assert_eq!(
            without_password("mongodb://h/?tlsCertificateKeyFilePassword=geheim&w=1"),
            "mongodb://h/?tlsCertificateKeyFilePassword=***&w=1"
        );
        let srv = Url::parse("mongodb+srv://u:p@h.example/", 1).unwrap_err();
        assert!(srv.to_string().contains("not looked up"), "{srv}");
        assert_eq!(super::parts("mongodb+srv://h+mongodb+srv://i").len(), 2);
        let u = Url::parse("mysql://127.0.0.1", 3306).unwrap();
        assert_eq!((u.host, u.user, u.database), (at(3306), None, None));
        let u = Url::parse("mongodb://u:p@%2Ftmp%2Fa-1.sock/lab", 1).unwrap();
        assert_eq!(u.host, HostAddress::Unix("/tmp/a-1.sock".into()));
        assert_eq!(
            (u.host.is_local(), u.database.as_deref()),
            (true, Some("lab"))
        );
        for bad in [
            "x",
            "a://",
            "a://u@",
            "a://h,i/",
            "a://127.0.0.1:99999",
            "a://u:%4@127.0.0.1",
        ] {
            assert!(Url::parse(bad, 1).is_err(), "{bad}");
        }
    }
}
