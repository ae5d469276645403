//! Requests and replies of HTTP/1.1, as far as the page needs them: one request a connection, parsed by `httparse`.
//!
//! Invariants:
//! - A head has at most [`HEAD_BYTES`], a body [`BODY_BYTES`]; a body's length is said before it.
//! - A request is complete within [`PATIENCE`], and its reply is taken within [`REPLY_PATIENCE`], or the
//!   connection ends: no client holds one by sending or reading slowly.

use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

pub const HEAD_BYTES: usize = 8 << 10;
pub const BODY_BYTES: usize = 64 << 10;
pub const PATIENCE: Duration = Duration::from_secs(5);
pub const REPLY_PATIENCE: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_BYTES: usize = 256 << 10;
const MOST_HEADERS: usize = 64;

/// A socket whose every read and write ends at one moment.
pub struct Timed {
    socket: TcpStream,
    until: Instant,
}

impl Timed {
    pub fn new(socket: TcpStream, limit: Duration) -> Timed {
        Timed {
            socket,
            until: Instant::now() + limit,
        }
    }

    pub fn extend(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }

    /// Takes what a client still sends of a request that was refused, within bounds: a socket that is closed before takes
    /// back the reply.
    pub fn drain(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        self.extend(DRAIN);
        let (mut taken, mut part) = (0, [0; 4096]);
        while taken < DRAIN_BYTES {
            match self.read(&mut part) {
                Ok(n) if n > 0 => taken += n,
                _ => return,
            }
        }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buf)
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
}

#[derive(Debug)]
pub struct HttpRequest {
    pub method: Method,
    pub path: String,
    query: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// A header that is given once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut given = self.headers.iter().filter(|(n, _)| n == name);
        let (_, value) = given.next()?;
        given.next().is_none().then_some(value.as_str())
    }

    /// A parameter of the address, without its percent signs.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|p| p.split_once('='));
        let (_, value) = pairs.into_iter().find(|(n, _)| *n == name)?;
        decoded(value)
    }

    pub fn takes_gzip(&self) -> bool {
        self.header("accept-encoding")
            .is_some_and(|all| all.split(',').any(|e| e.trim().starts_with("gzip")))
    }

    /// The body as JSON: an object.
    pub fn json(&self) -> Option<serde_json::Map<String, Value>> {
        match serde_json::from_slice(&self.body).ok()? {
            Value::Object(o) => Some(o),
            _ => None,
        }
    }

    /// The value of the cookie `name`.
    pub fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.header("cookie")?.split(';');
        let mut pairs = pairs.filter_map(|p| p.trim().split_once('='));
        pairs.find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' => b' ',
            b => b,
        });
    }
    String::from_utf8(out).ok()
}

/// Why there is no request.
#[derive(Debug)]
pub enum Unread {
    /// The connection is of no more use.
    Gone,
    Refused(u16, &'static str),
}

impl From<io::Error> for Unread {
    fn from(_: io::Error) -> Unread {
        Unread::Gone
    }
}

/// Reads one request.
pub fn read(stream: &mut impl Read) -> Result<HttpRequest, Unread> {
    let mut bytes = Vec::new();
    let (mut request, length, head) = loop {
        if let Some(parsed) = parse_head(&bytes)? {
            break parsed;
        }
        if bytes.len() >= HEAD_BYTES {
            return Err(Unread::Refused(431, "the head of the request is too long"));
        }
        let room = HEAD_BYTES - bytes.len();
        read_some(stream, &mut bytes, room.min(2048))?;
    };
    let mut body = bytes.split_off(head);
    while body.len() < length {
        let room = length - body.len();
        read_some(stream, &mut body, room.min(8192))?;
    }
    body.truncate(length);
    request.body = body;
    Ok(request)
}

fn read_some(stream: &mut impl Read, into: &mut Vec<u8>, most: usize) -> Result<(), Unread> {
    let before = into.len();
    into.resize(before + most, 0);
    let read = stream.read(into.get_mut(before..).unwrap_or_default());
    let n = read.as_ref().map_or(0, |n| *n);
    into.truncate(before + n);
    match read? {
        0 => Err(Unread::Gone),
        _ => Ok(()),
    }
}

/// The request without its body, the body's length, and where it begins; `None` while the head is not there.
fn parse_head(bytes: &[u8]) -> Result<Option<(HttpRequest, usize, usize)>, Unread> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let head = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Unread::Refused(431, "there are too many headers"));
        }
        Err(_) => return Err(Unread::Refused(400, "this is no request of HTTP")),
    };
    let method = match parsed.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => {
            return Err(Unread::Refused(
                405,
                "only GET, HEAD and POST are understood",
            ));
        }
    };
    let target = parsed.path.unwrap_or("");
    if !target.starts_with('/') {
        return Err(Unread::Refused(400, "the address is no path"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let text = |h: &httparse::Header<'_>| {
        let value = std::str::from_utf8(h.value).ok()?;
        Some((h.name.to_ascii_lowercase(), value.to_string()))
    };
    let all: Option<Vec<_>> = parsed.headers.iter().map(text).collect();
    let Some(headers) = all else {
        return Err(Unread::Refused(400, "a header is no text"));
    };
    let request = HttpRequest {
        method,
        path: path.to_string(),
        query: query.to_string(),
        headers,
        body: Vec::new(),
    };
    let length = body_length(&request)?;
    Ok(Some((request, length, head)))
}

fn body_length(request: &HttpRequest) -> Result<usize, Unread> {
    let has = |name: &str| request.headers.iter().any(|(n, _)| n == name);
    if has("transfer-encoding") {
        return Err(Unread::Refused(411, "say the length of the body"));
    }
    if !has("content-length") {
        return match request.method {
            Method::Post => Err(Unread::Refused(411, "say the length of the body")),
            _ => Ok(0),
        };
    }
    let digits = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
    let length = request.header("content-length").filter(digits);
    match length.and_then(|text| text.parse::<usize>().ok()) {
        Some(n) if n <= BODY_BYTES => Ok(n),
        Some(_) => Err(Unread::Refused(413, "the body is too long")),
        None => Err(Unread::Refused(
            400,
            "the length of the body makes no sense",
        )),
    }
}

pub struct HttpReply {
    pub status: u16,
    pub content_type: &'static str,
    pub gzip: bool,
    pub cookie: Option<String>,
    /// The browser may keep it.
    pub is_asset: bool,
    pub retry_after: bool,
    pub body: Vec<u8>,
}

impl HttpReply {
    pub fn json(status: u16, value: &Value) -> HttpReply {
        HttpReply {
            status,
            content_type: "application/json; charset=utf-8",
            gzip: false,
            cookie: None,
            is_asset: false,
            retry_after: status == 429 || status == 503,
            body: value.to_string().into_bytes(),
        }
    }

    pub fn error(status: u16, why: &str) -> HttpReply {
        let error = serde_json::json!({"error": {"message": why}});
        HttpReply::json(status, &error)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// Sends all of a reply. `secure`: the connection is encrypted.
pub fn write(
    stream: &mut impl Write,
    reply: &HttpReply,
    head_only: bool,
    secure: bool,
) -> io::Result<()> {
    use std::fmt::Write as _;
    let mut head = String::new();
    let (status, length) = (reply.status, reply.body.len());
    let _ = write!(head, "HTTP/1.1 {status} {}\r\n", reason(status));
    let _ = write!(
        head,
        "Content-Type: {}\r\nContent-Length: {length}\r\n",
        reply.content_type
    );
    if reply.gzip {
        head += "Content-Encoding: gzip\r\n";
    }
    // Each start of a server may bring another page: the browser asks again.
    head += match reply.is_asset {
        true => "Cache-Control: no-cache\r\nVary: Accept-Encoding\r\n",
        false => "Cache-Control: no-store\r\n",
    };
    if reply.retry_after {
        head += "Retry-After: 5\r\n";
    }
    if let Some(cookie) = &reply.cookie {
        let _ = write!(head, "Set-Cookie: {cookie}\r\n");
    }
    if secure {
        head += "Strict-Transport-Security: max-age=31536000\r\n";
    }
    head += crate::guard::HEADERS;
    head += "Connection: close\r\n\r\n";
    let mut all = head.into_bytes();
    if !head_only {
        all.extend_from_slice(&reply.body);
    }
    stream.write_all(&all)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &[u8]) -> u16 {
        match read(&mut &*text) {
            Err(Unread::Refused(status, _)) => status,
            Err(Unread::Gone) => 0,
            Ok(_) => 200,
        }
    }

    #[test]
    fn requests() {
        let text = b"POST /a/b?x=1&y=%C3%A9+z&bad=%zz HTTP/1.1\r\nHost: h\r\nCookie: a=1; b=2\r\nContent-Length: 7\r\n\r\n{\"a\":1}rest";
        let r = read(&mut &text[..]).unwrap();
        assert_eq!((r.method, r.path.as_str()), (Method::Post, "/a/b"));
        assert_eq!(r.parameter("y").as_deref(), Some("é z"));
        assert_eq!(r.parameter("bad"), None);
        assert_eq!((r.cookie("b"), r.cookie("c")), (Some("2"), None));
        assert_eq!(r.json().unwrap()["a"], 1);
    }

    #[test]
    fn what_is_refused() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_BYTES));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        for (text, status) in [
            ("PUT / HTTP/1.1\r\n\r\n", 405),
            ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
            ("\u{1}\u{2}\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nA: b", 0),
            ("", 0),
            ("POST / HTTP/1.1\r\n\r\n", 411),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                411,
            ),
            ("POST / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx", 400),
            (
                "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
                400,
            ),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nxx", 0),
            (&long, 431),
            (&many, 431),
        ] {
            assert_eq!(refusal(text.as_bytes()), status, "{text:.60}");
        }
    }

    #[test]
    fn replies_have_the_headers_that_keep_others_out() {
        let mut out = Vec::new();
        write(&mut out, &HttpReply::error(404, "no"), false, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        for header in [
            "HTTP/1.1 404 Not Found\r\n",
            "Content-Security-Policy: default-src 'none'",
            "X-Frame-Options: DENY\r\n",
            "X-Content-Type-Options: nosniff\r\n",
            "Strict-Transport-Security",
            "Cache-Control: no-store\r\n",
            "Connection: close\r\n",
        ] {
            assert!(text.contains(header), "{header}: {text}");
        }
    }

    #[test]
    fn a_moment_that_is_past_ends_reads() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut timed = Timed::new(socket, Duration::ZERO);
        assert!(matches!(read(&mut timed), Err(Unread::Gone)));
    }
}
