//! What keeps other pages of the same browser out.
//!
//! Invariants:
//! - Every reply forbids frames, sniffing, and scripts, styles and connections that are not the page's own.
//! - A request under a name that this server does not have (a name that was bent to this address) is refused.
//! - Requests to the API come from the page itself: a browser that says otherwise is refused, and a
//!   request that changes anything carries a header that no other page may send.

use crate::http::{HttpRequest, Method};
use std::net::IpAddr;

pub const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\r\n\
X-Frame-Options: DENY\r\n\
X-Content-Type-Options: nosniff\r\n\
Referrer-Policy: no-referrer\r\n\
Cross-Origin-Opener-Policy: same-origin\r\n\
Cross-Origin-Resource-Policy: same-origin\r\n\
Permissions-Policy: camera=(), geolocation=(), microphone=(), payment=(), usb=()\r\n";

/// The header that the page sends with everything that it posts.
const OWN_HEADER: &str = "x-pando-console";

/// The hosts that a request may name.
pub struct Guard {
    /// Names beside addresses and `localhost`, in lower case.
    pub names: Vec<String>,
    pub secure: bool,
}

impl Guard {
    /// Why a request is refused, with the status.
    pub fn refusal(&self, r: &HttpRequest) -> Option<(u16, &'static str)> {
        let Some(host) = r.header("host") else {
            return Some((400, "say the host, once"));
        };
        if !self.knows(host) {
            return Some((421, "this server does not have the name that was asked for"));
        }
        if !r.path.starts_with("/api/") {
            return None;
        }
        if let Some(site) = r.header("sec-fetch-site")
            && !matches!(site, "same-origin" | "none")
        {
            return Some((403, "another page may not ask this"));
        }
        if let Some(origin) = r.header("origin")
            && !self.is_own_origin(origin, host)
        {
            return Some((403, "another page may not ask this"));
        }
        if r.method != Method::Post {
            return None;
        }
        if r.header(OWN_HEADER) != Some("1") {
            return Some((403, "the header X-Pando-Console: 1 is missing"));
        }
        let json = r.header("content-type").map(|t| t.split(';').next());
        match json {
            Some(Some(t)) if t.trim().eq_ignore_ascii_case("application/json") => None,
            _ => Some((415, "the body must be application/json")),
        }
    }

    fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let scheme = if self.secure { "https://" } else { "http://" };
        origin
            .strip_prefix(scheme)
            .is_some_and(|o| o.eq_ignore_ascii_case(host))
    }

    /// An address cannot be bent to another machine; of names, those that are known.
    fn knows(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(""),
            None => host.split(':').next().unwrap_or(""),
        };
        let name = name.to_ascii_lowercase();
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.names.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http;

    fn refused(head: &str) -> u16 {
        let guard = Guard {
            names: vec!["db.example".into()],
            secure: false,
        };
        let request = http::read(&mut format!("{head}\r\n\r\n").as_bytes()).unwrap();
        guard.refusal(&request).map_or(200, |(status, _)| status)
    }

    #[test]
    fn names() {
        for (host, status) in [
            ("localhost:28017", 200),
            ("LOCALHOST", 200),
            ("127.0.0.1:1", 200),
            ("[::1]:28017", 200),
            ("DB.example:28017", 200),
            ("evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("localhost.evil.example:28017", 421),
            ("", 421),
        ] {
            assert_eq!(
                refused(&format!("GET / HTTP/1.1\r\nHost: {host}")),
                status,
                "{host}"
            );
        }
        assert_eq!(refused("GET / HTTP/1.1"), 400);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: a\r\nHost: localhost"), 400);
    }

    #[test]
    fn other_pages() {
        let get = "GET /api/1/now HTTP/1.1\r\nHost: localhost:1";
        for (more, status) in [
            ("", 200),
            ("\r\nSec-Fetch-Site: same-origin", 200),
            ("\r\nSec-Fetch-Site: none", 200),
            ("\r\nSec-Fetch-Site: cross-site", 403),
            ("\r\nSec-Fetch-Site: same-site", 403),
            ("\r\nOrigin: http://localhost:1", 200),
            ("\r\nOrigin: http://localhost:2", 403),
            ("\r\nOrigin: https://localhost:1", 403),
            ("\r\nOrigin: null", 403),
        ] {
            assert_eq!(refused(&format!("{get}{more}")), status, "{more}");
        }
        let post = "POST /api/1/kill HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 0";
        let json = "\r\nContent-Type: application/json";
        let own = "\r\nX-Pando-Console: 1";
        for (more, status) in [
            (String::new(), 403),
            (json.to_string(), 403),
            (own.to_string(), 415),
            (format!("{own}\r\nContent-Type: text/plain"), 415),
            (format!("{own}{json}"), 200),
            (format!("{own}{json}; charset=utf-8"), 200),
            (format!("{own}{json}\r\nSec-Fetch-Site: cross-site"), 403),
        ] {
            assert_eq!(refused(&format!("{post}{more}")), status, "{more}");
        }
    }
}
