//! Objects in a bucket of a store that speaks S3: Amazon's, or one like it.
//!
//! ```text
//! s3://BUCKET/PREFIX    an object is PREFIX/NAME
//! ```
//! Credentials and endpoint come from the environment, as Amazon's own tools read it:
//! `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`,
//! `AWS_ENDPOINT_URL_S3`, `AWS_CA_BUNDLE`.
//!
//! Invariants:
//! - An object is there whole or not at all: it is put by one request, or by the one that ends its parts.
//! - No request waits without end, and no error shows an address that was signed.

use crate::ArchiveResult;
use crate::store::{ArchiveStore, Object};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use rusty_s3::actions::{
    CompleteMultipartUpload, CreateMultipartUpload, ListObjectsV2, S3Action, UploadPart,
};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// A longer object is put in parts of this size, at most 10,000 of them.
const PART_BYTES: u64 = 16 << 20;
const MOST_PARTS: usize = 10_000;
/// How long a signed address is taken.
const SIGNED: Duration = Duration::from_secs(900);
const CONNECT: Duration = Duration::from_secs(10);
/// How long one turn of the network, and the store's answer, may take.
const SILENCE: Duration = Duration::from_secs(60);
/// How often a request is made that the store or the network fails.
const ATTEMPTS: u32 = 5;
/// Objects that are moved beside each other: each holds a part in memory, and waits for the network and the store.
const TRANSFERS: usize = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct S3 {
    /// The part of it that does requests is shared with open readers.
    requests: Arc<Requests>,
    prefix: String,
}

struct Requests {
    agent: Agent,
    bucket: Bucket,
    credentials: Option<Credentials>,
}

/// Why a request brought nothing.
enum Trouble {
    /// It may bring something the next time.
    Passing(String),
    /// S3's code, and a sentence.
    Refused(String, String),
}

impl Trouble {
    fn says(self) -> String {
        match self {
            Trouble::Passing(why) | Trouble::Refused(_, why) => why,
        }
    }
}

impl S3 {
    /// `place` is what stands behind `s3://`; `setting` gives values of the environment.
    pub fn new(place: &str, setting: impl Fn(&str) -> Option<String>) -> ArchiveResult<S3> {
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        if name.is_empty() {
            return Err("an archive in S3 is s3://BUCKET/PREFIX".into());
        }
        let set = |names: &[&str]| {
            names
                .iter()
                .find_map(|n| setting(n).filter(|v| !v.is_empty()))
        };
        let region = set(&["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or("us-east-1".into());
        let endpoint = set(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        // Amazon wants the bucket in the host's name; others rarely have such names.
        let style = match endpoint {
            Some(_) => UrlStyle::Path,
            None => UrlStyle::VirtualHost,
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let url = (endpoint.parse()).map_err(|e| format!("the endpoint {endpoint}: {e}"))?;
        let bucket = Bucket::new(url, style, name.to_string(), region);
        let bucket = bucket.map_err(|e| format!("the endpoint {endpoint}: {e}"))?;
        let credentials = match (set(&["AWS_ACCESS_KEY_ID"]), set(&["AWS_SECRET_ACCESS_KEY"])) {
            (Some(key), Some(secret)) => Some(match set(&["AWS_SESSION_TOKEN"]) {
                Some(token) => Credentials::new_with_token(key, secret, token),
                None => Credentials::new(key, secret),
            }),
            (None, None) => None,
            _ => {
                return Err(
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set both or neither".into(),
                );
            }
        };
        let agent = agent(
            endpoint.starts_with("https:"),
            set(&["AWS_CA_BUNDLE"]).as_deref(),
        )?;
        let prefix = prefix.trim_matches('/');
        Ok(S3 {
            requests: Arc::new(Requests {
                agent,
                bucket,
                credentials,
            }),
            prefix: match prefix {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

fn agent(encrypted: bool, authorities: Option<&str>) -> ArchiveResult<Agent> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .timeout_per_write(Some(SILENCE));
    if encrypted {
        let certificates = match authorities {
            Some(file) => read_authorities(file)?,
            None => {
                let found = certificates::authorities_of_the_system();
                let own = |der: &rustls::pki_types::CertificateDer<'_>| {
                    Certificate::from_der(der).to_owned()
                };
                found.iter().map(own).collect()
            }
        };
        if certificates.is_empty() {
            return Err(
                "this system has no authorities of its own: AWS_CA_BUNDLE names a file of them"
                    .into(),
            );
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        config = config.tls_config(
            TlsConfig::builder()
                .root_certs(RootCerts::Specific(Arc::new(certificates)))
                .unversioned_rustls_crypto_provider(provider)
                .build(),
        );
    }
    Ok(config.build().new_agent())
}

fn read_authorities(file: &str) -> ArchiveResult<Vec<Certificate<'static>>> {
    let cannot = |e: &dyn std::fmt::Display| format!("AWS_CA_BUNDLE, {file}: {e}");
    let text = std::fs::read(file).map_err(|e| cannot(&e))?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&text) {
        if let ureq::tls::PemItem::Certificate(one) = item.map_err(|e| cannot(&e))? {
            found.push(one);
        }
    }
    Ok(found)
}

impl Requests {
    /// Does a request until it brings something, or is refused.
    fn until_it_answers<T>(
        &self,
        mut request: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS {
            match request() {
                Err(Trouble::Passing(_)) => std::thread::sleep(pause),
                other => return other,
            }
            pause *= 3;
        }
        request()
    }

    fn signed<'a>(&self, action: &impl S3Action<'a>) -> String {
        action.sign(SIGNED).to_string()
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Trouble> {
        self.until_it_answers(|| {
            let action = self.bucket.put_object(self.credentials.as_ref(), key);
            answered(self.agent.put(self.signed(&action)).send(bytes)).map(|_| ())
        })
    }

    /// The object from a place on.
    fn get(&self, key: &str, from: u64) -> Result<Body, Trouble> {
        self.until_it_answers(|| {
            let action = self.bucket.get_object(self.credentials.as_ref(), key);
            let mut request = self.agent.get(self.signed(&action));
            if from > 0 {
                request = request.header("range", format!("bytes={from}-"));
            }
            let reply = answered(request.call())?;
            match from > 0 && reply.status() != 206 {
                true => Err(Trouble::Refused(
                    String::new(),
                    "the store does not read from the middle of an object".into(),
                )),
                false => Ok(reply.into_body()),
            }
        })
    }

    fn remove(&self, key: &str) -> Result<(), Trouble> {
        self.until_it_answers(|| {
            let action = self.bucket.delete_object(self.credentials.as_ref(), key);
            answered(self.agent.delete(self.signed(&action)).call()).map(|_| ())
        })
    }

    /// The objects listed behind a token, the token of the next ones, and the store's time.
    fn list(
        &self,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<
        (
            rusty_s3::actions::list_objects_v2::ListObjectsV2Response,
            Timestamp,
        ),
        Trouble,
    > {
        self.until_it_answers(|| {
            let mut action = self.bucket.list_objects_v2(self.credentials.as_ref());
            action.with_prefix(prefix);
            if let Some(token) = token {
                action.with_continuation_token(token);
            }
            let mut reply = answered(self.agent.get(self.signed(&action)).call())?;
            let now = reply
                .headers()
                .get("date")
                .and_then(|date| date.to_str().ok());
            let now = now.and_then(|date| rfc2822::parse(date).ok());
            let now = now.map_or_else(Timestamp::now, |date| date.timestamp());
            let text = text_of(&mut reply)?;
            let listed = ListObjectsV2::parse_response(&text);
            listed.map(|l| (l, now)).map_err(|e| strange(&e))
        })
    }

    /// Puts an object in parts, the first of which has been read.
    fn put_parts(&self, key: &str, first: Vec<u8>, from: &mut dyn Read) -> ArchiveResult<()> {
        let credentials = self.credentials.as_ref();
        let begin = self.until_it_answers(|| {
            let action = self.bucket.create_multipart_upload(credentials, key);
            let mut reply = answered(self.agent.post(self.signed(&action)).send_empty())?;
            CreateMultipartUpload::parse_response(&text_of(&mut reply)?).map_err(|e| strange(&e))
        });
        let upload = begin.map_err(Trouble::says)?;
        let upload = upload.upload_id();
        let put = self.put_each_part(key, upload, first, from);
        let ended = put.and_then(|parts| self.end_parts(key, upload, &parts));
        if ended.is_err() {
            let action = self.bucket.abort_multipart_upload(credentials, key, upload);
            // Parts that cannot be removed now cost room until the bucket's own rules remove it.
            let _ = answered(self.agent.delete(self.signed(&action)).call());
        }
        ended
    }

    /// The tags of all parts.
    fn put_each_part(
        &self,
        key: &str,
        upload: &str,
        mut part: Vec<u8>,
        from: &mut dyn Read,
    ) -> ArchiveResult<Vec<String>> {
        let mut tags = Vec::new();
        while !part.is_empty() {
            if tags.len() == MOST_PARTS {
                return Err(format!("{key} is longer than a store like S3 takes"));
            }
            let number = u16::try_from(tags.len() + 1).unwrap_or(u16::MAX);
            let tag = self.until_it_answers(|| {
                let credentials = self.credentials.as_ref();
                let action = UploadPart::new(&self.bucket, credentials, key, number, upload);
                let reply = answered(self.agent.put(self.signed(&action)).send(&part[..]))?;
                let tag = reply.headers().get("etag").and_then(|t| t.to_str().ok());
                tag.map(String::from)
                    .ok_or_else(|| strange(&"a part without a tag"))
            });
            tags.push(tag.map_err(Trouble::says)?);
            read_part(from, &mut part)?;
        }
        Ok(tags)
    }

    fn end_parts(&self, key: &str, upload: &str, tags: &[String]) -> ArchiveResult<()> {
        let ended = self.until_it_answers(|| {
            let tags = tags.iter().map(String::as_str);
            let credentials = self.credentials.as_ref();
            let action = CompleteMultipartUpload::new(&self.bucket, credentials, key, upload, tags);
            let url = self.signed(&action);
            let mut reply = answered(self.agent.post(url).send(action.body()))?;
            // The store may say that it is well before it knows.
            let text = text_of(&mut reply)?;
            match text.contains("<Error>") {
                true => Err(Trouble::Passing(sentence_of(&text).1)),
                false => Ok(()),
            }
        });
        match ended {
            // It was done, but the reply was lost.
            Err(Trouble::Refused(code, _))
                if code == "NoSuchUpload" && self.get(key, 0).is_ok() =>
            {
                Ok(())
            }
            other => other.map_err(Trouble::says),
        }
    }
}

impl ArchiveStore for S3 {
    fn transfers(&self) -> usize {
        TRANSFERS
    }

    fn put(&self, name: &str, from: &mut dyn Read) -> ArchiveResult<()> {
        let key = self.key(name);
        let mut first = Vec::new();
        read_part(from, &mut first)?;
        let put = match (first.len() as u64) < PART_BYTES {
            true => self.requests.put(&key, &first).map_err(Trouble::says),
            false => self.requests.put_parts(&key, first, from),
        };
        put.map_err(|why| format!("cannot write {name}: {why}"))
    }

    fn get(&self, name: &str) -> ArchiveResult<Option<Box<dyn Read + '_>>> {
        let key = self.key(name);
        match self.requests.get(&key, 0) {
            Ok(body) => Ok(Some(Box::new(Reading {
                requests: self.requests.clone(),
                key,
                from: Box::new(body.into_reader()),
                at: 0,
                failed_at: None,
            }))),
            Err(Trouble::Refused(code, _)) if code == "NoSuchKey" => Ok(None),
            Err(why) => Err(format!("cannot read {name}: {}", why.says())),
        }
    }

    fn list(&self, prefix: &str) -> ArchiveResult<Vec<Object>> {
        let (prefix, mut token, mut found) = (self.key(prefix), None, Vec::new());
        loop {
            let part = self.requests.list(&prefix, token.as_deref());
            let (part, now) = part.map_err(|e| format!("cannot list {prefix}: {}", e.says()))?;
            for object in part.contents {
                let Some(name) = object.key.strip_prefix(&self.prefix) else {
                    continue;
                };
                let written = object.last_modified.parse::<Timestamp>().ok();
                let age = written.map(|at| now.duration_since(at));
                found.push(Object {
                    name: name.into(),
                    bytes: object.size,
                    age: age.map(|age| Duration::try_from(age).unwrap_or_default()),
                });
            }
            token = part.next_continuation_token;
            if token.is_none() {
                break;
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn remove(&self, name: &str) -> ArchiveResult<()> {
        let removed = self.requests.remove(&self.key(name));
        match removed {
            Err(Trouble::Refused(code, _)) if code == "NoSuchKey" => Ok(()),
            other => other.map_err(|e| format!("cannot remove {name}: {}", e.says())),
        }
    }
}

/// An object that is read; where a connection breaks, on from there by another one.
struct Reading {
    requests: Arc<Requests>,
    key: String,
    from: Box<dyn Read>,
    at: u64,
    /// Where it broke the last time.
    failed_at: Option<u64>,
}

impl Read for Reading {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.from.read(to) {
                Ok(n) => {
                    self.at += n as u64;
                    return Ok(n);
                }
                // Nothing has come since it broke before.
                Err(e) if self.failed_at == Some(self.at) => return Err(e),
                Err(_) => {
                    self.failed_at = Some(self.at);
                    let body = self.requests.get(&self.key, self.at);
                    let body = body.map_err(|e| std::io::Error::other(e.says()))?;
                    self.from = Box::new(body.into_reader());
                }
            }
        }
    }
}

/// Reads as much as a part takes.
fn read_part(from: &mut dyn Read, part: &mut Vec<u8>) -> ArchiveResult<()> {
    part.clear();
    let read = from.take(PART_BYTES).read_to_end(part);
    read.map(|_| ()).map_err(|e| e.to_string())
}

fn not_reached(e: ureq::Error) -> Trouble {
    let why = format!("the store is not reached: {e}");
    let is_stranger = match &e {
        ureq::Error::Rustls(_) | ureq::Error::BadUri(_) => true,
        // A bad certificate comes as this.
        ureq::Error::Io(e) => e.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    };
    match is_stranger {
        true => Trouble::Refused(String::new(), why),
        false => Trouble::Passing(why),
    }
}

/// A reply that says that it is well.
fn answered(reply: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>, Trouble> {
    let mut reply = reply.map_err(not_reached)?;
    let status = reply.status();
    if status.is_success() {
        return Ok(reply);
    }
    let (code, sentence) = sentence_of(&text_of(&mut reply).unwrap_or_default());
    let why = match sentence.is_empty() {
        true => format!("the store answers {status}"),
        false => sentence,
    };
    let passes = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
    match passes {
        true => Err(Trouble::Passing(why)),
        false => Err(Trouble::Refused(code, why)),
    }
}

fn text_of(reply: &mut Response<Body>) -> Result<String, Trouble> {
    let text = reply.body_mut().read_to_string();
    text.map_err(|e| Trouble::Passing(format!("the store broke off: {e}")))
}

fn strange(why: &dyn std::fmt::Display) -> Trouble {
    Trouble::Refused(
        String::new(),
        format!("the store does not answer as S3 does: {why}"),
    )
}

/// S3's code of an error, and code and message for people.
fn sentence_of(text: &str) -> (String, String) {
    let within = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_string())
    };
    let code = within("Code").unwrap_or_default();
    let message = within("Message").unwrap_or_default();
    let sentence = match (code.is_empty(), message.is_empty()) {
        (true, _) => message,
        (_, true) => code.clone(),
        _ => format!("{code}: {message}"),
    };
    (code, sentence)
}
