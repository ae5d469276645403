//! One blocking connection to PostgreSQL: logged in, for statements outside the measurement and for those that a measured
//! connection prepares.

use super::messages::{cells, header, message, refused};
use crate::connection::read_some;
use crate::fault::{Fault, Result, target};
use crate::targets::encryption::Route;
use crate::targets::{Stream, Url};
use auth::scram::{self, Hash, ScramClient};
use std::io::{Read, Write};

/// One blocking connection.
pub(super) struct Pg {
    pub(super) stream: Stream,
    input: Vec<u8>,
}

impl Pg {
    pub(super) fn connect(route: &Route) -> Result<Pg> {
        let url = &route.url;
        let mut stream = Stream::from(url.host.connect()?);
        if route.encryption.is_wanted() {
            // SSLRequest, answered by one byte.
            let ask = [8u32.to_be_bytes(), 80_877_103u32.to_be_bytes()].concat();
            let mut said = [0];
            stream
                .write_all(&ask)
                .and_then(|()| stream.read_exact(&mut said))
                .map_err(target("asking PostgreSQL for TLS"))?;
            stream = route.encryption.apply(stream, url, said == *b"S")?;
        }
        let mut pg = Pg {
            stream,
            input: Vec::new(),
        };
        let user = url.user.clone().unwrap_or_else(|| "postgres".into());
        let mut hello = vec![0; 4];
        hello.extend_from_slice(&196_608u32.to_be_bytes());
        let database = url.database.as_deref().unwrap_or("postgres");
        for word in [
            "user",
            &user,
            "database",
            database,
            "application_name",
            "pando lab",
            "",
        ] {
            hello.extend_from_slice(word.as_bytes());
            hello.push(0);
        }
        let length = hello.len() as u32;
        hello[..4].copy_from_slice(&length.to_be_bytes());
        pg.send(&hello)?;
        pg.log_in(url, &user)?;
        Ok(pg)
    }

    fn log_in(&mut self, url: &Url, user: &str) -> Result<()> {
        let unauthorised = |why: &str| Fault::Target(format!("{}: {why}", url.text));
        let password = || {
            let none = || unauthorised("the server asks for a password, and the URL has none");
            url.password.clone().ok_or_else(none)
        };
        let mut login = None;
        loop {
            let (kind, body) = self.next()?;
            match (kind, body.get(..4)) {
                (b'E', _) => return Err(refused(&body)),
                (b'Z', _) => return Ok(()),
                (b'R', Some(&[0, 0, 0, how])) => match how {
                    0 => {}
                    3 => {
                        let p = password()?;
                        self.say(b'p', &[p.as_bytes(), &[0]].concat())?;
                    }
                    5 => {
                        let salt = body.get(4..8).unwrap_or_default();
                        let inner = format!("{:x}", md5::compute(password()? + user));
                        let outer = md5::compute([inner.as_bytes(), salt].concat());
                        self.say(b'p', format!("md5{outer:x}\0").as_bytes())?;
                    }
                    10 => {
                        let password = password()?;
                        // What SASLprep forbids PostgreSQL takes as it is.
                        let password = stringprep::saslprep(&password)
                            .map_or_else(|_| password.clone(), |p| p.into_owned());
                        let s = ScramClient::new(Hash::Sha256, "", &password, &scram::nonce());
                        let first = s.first();
                        let mut out = b"SCRAM-SHA-256\0".to_vec();
                        out.extend_from_slice(&(first.len() as u32).to_be_bytes());
                        out.extend_from_slice(first.as_bytes());
                        self.say(b'p', &out)?;
                        login = Some(s);
                    }
                    11 | 12 => {
                        let text =
                            String::from_utf8_lossy(body.get(4..).unwrap_or_default()).into_owned();
                        let Some(s) = &mut login else {
                            return Err(unauthorised("an answer without a question"));
                        };
                        if how == 12 && !s.proven(&text) {
                            return Err(unauthorised(
                                "the server does not know the password itself",
                            ));
                        }
                        if how == 11 {
                            let last = s
                                .last(&text)
                                .ok_or_else(|| unauthorised("malformed SCRAM challenge"))?;
                            self.say(b'p', last.as_bytes())?;
                        }
                    }
                    _ => {
                        return Err(unauthorised(
                            "the server wants a login that is not supported",
                        ));
                    }
                },
                _ => {}
            }
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .map_err(target("sending to PostgreSQL"))
    }

    pub(super) fn say(&mut self, kind: u8, body: &[u8]) -> Result<()> {
        let mut out = Vec::new();
        message(&mut out, kind, |out| out.extend_from_slice(body));
        self.send(&out)
    }

    pub(super) fn next(&mut self) -> Result<(u8, Vec<u8>)> {
        loop {
            if let Some((kind, end)) = header(&self.input, 0)?
                && end <= self.input.len()
            {
                let body = self.input[5..end].to_vec();
                self.input.drain(..end);
                return Ok((kind, body));
            }
            let mut chunk = [0; 8192];
            let n = read_some(&mut self.stream, &mut chunk)
                .map_err(target("waiting for PostgreSQL"))?;
            if n == 0 {
                return Err(Fault::Target("PostgreSQL closed the connection".into()));
            }
            self.input.extend_from_slice(&chunk[..n]);
        }
    }

    /// Rows until the server is ready again.
    pub(super) fn until_ready(&mut self) -> Result<Vec<Vec<String>>> {
        let (mut rows, mut fault) = (Vec::new(), None);
        loop {
            let (kind, body) = self.next()?;
            match kind {
                b'D' => {
                    let text = |c: &[u8]| String::from_utf8_lossy(c).into_owned();
                    rows.push(cells(&body).into_iter().map(text).collect());
                }
                b'E' => fault = Some(refused(&body)),
                b'Z' => return fault.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    pub(super) fn query(&mut self, sql: &str) -> Result<Vec<Vec<String>>> {
        self.say(b'Q', &[sql.as_bytes(), &[0]].concat())?;
        self.until_ready()
    }

    pub(super) fn run(&mut self, sql: &str) -> Result<()> {
        self.query(sql).map(|_| ())
    }

    pub(super) fn row(&mut self, sql: &str) -> Result<Vec<String>> {
        let rows = self.query(sql)?;
        rows.into_iter()
            .next()
            .ok_or_else(|| Fault::Target(format!("no row from {sql}")))
    }

    pub(super) fn value(&mut self, sql: &str) -> Result<String> {
        Ok(self.row(sql)?.into_iter().next().unwrap_or_default())
    }
}
