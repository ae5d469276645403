//! A server of MongoDB's protocol by its connection string: address, encryption, credentials.

use crate::{
    CertificateCheck, ClientTls, Credentials, Error, HostAddress, Result, Stream, TlsFiles, Url,
};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const DEFAULT_PORT: u16 = 27017;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MongoTarget {
    pub url: Url,
    pub tls: Option<ClientTls>,
    pub login: Option<Credentials>,
}

impl MongoTarget {
    /// Options that say nothing about the connection or the login are ignored. Certificates are read.
    pub fn parse(text: &str) -> Result<MongoTarget> {
        let shown = crate::without_password(text);
        let usage = |why: &str| Err(Error::Usage(format!("{shown}: {why}")));
        match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("mongodb") => {}
            Some("mongodb+srv") => return usage("give the host itself, as mongodb://host:port"),
            Some(_) => return usage("this takes mongodb:// targets only"),
            None => return usage("a target is a URL such as mongodb://127.0.0.1:27017"),
        }
        let url = Url::parse(text, DEFAULT_PORT)?;
        Ok(MongoTarget {
            login: Credentials::of(&url)?,
            tls: files(&url)?.map(|f| ClientTls::open(&f)).transpose()?,
            url,
        })
    }

    /// A server that wants neither TLS nor a login.
    pub fn plain(addr: SocketAddr) -> MongoTarget {
        MongoTarget {
            url: Url {
                text: format!("mongodb://{addr}"),
                user: None,
                password: None,
                host: HostAddress::Tcp(addr),
                name: addr.ip().to_string(),
                database: None,
                options: Vec::new(),
            },
            tls: None,
            login: None,
        }
    }

    /// A socket, encrypted if required; not logged in yet.
    pub fn connect(&self) -> Result<Stream> {
        self.secure(self.url.host.connect()?)
    }

    /// The same where no step of it takes longer than `limit`, which is not zero.
    pub fn connect_within(&self, limit: Duration) -> Result<Stream> {
        self.secure(self.url.host.connect_within(limit, limit)?)
    }

    fn secure(&self, stream: TcpStream) -> Result<Stream> {
        let stream = Stream::from(stream);
        match &self.tls {
            Some(tls) => stream.secure(tls, &self.url.name),
            None => Ok(stream),
        }
    }
}

/// What the options of a connection string say of TLS; nothing where it is not wanted.
fn files(url: &Url) -> Result<Option<TlsFiles>> {
    let usage = |why: String| Error::Usage(format!("{}: {why}", url.text));
    let truth = |name: &str| match url.option(name) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(usage(format!("{name}={other} is not true or false"))),
    };
    let wanted = truth("tls")?.or(truth("ssl")?);
    let path = |name: &str| url.option(name).map(std::path::PathBuf::from);
    let (anybody, any_name) = (
        truth("tlsallowinvalidcertificates")?.or(truth("tlsinsecure")?),
        truth("tlsallowinvalidhostnames")?,
    );
    let given = TlsFiles {
        check: match (anybody, any_name) {
            (Some(true), _) => CertificateCheck::Nothing,
            (_, Some(true)) => CertificateCheck::Authority,
            _ => CertificateCheck::Name,
        },
        authorities: path("tlscafile"),
        certificate: path("tlscertificatekeyfile"),
        key: None,
        key_password: url
            .option("tlscertificatekeyfilepassword")
            .map(String::from),
        revoked: path("tlscrlfile"),
    };
    // As other drivers have it, an option of TLS switches it on.
    let implied = given != TlsFiles::default();
    match wanted {
        Some(false) if implied => Err(usage("options of TLS, and tls=false".into())),
        None if !implied => Ok(None),
        Some(false) => Ok(None),
        _ if !url.host.is_tcp() => Err(usage("a Unix socket is never encrypted".into())),
        _ => Ok(Some(given)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(options: &str) -> Result<Option<TlsFiles>> {
        let url = format!("mongodb://127.0.0.1/?{options}");
        files(&Url::parse(&url, DEFAULT_PORT)?)
    }

    #[test]
    fn options_of_tls() {
        assert_eq!(wanted("").unwrap(), None);
        assert_eq!(wanted("tls=false").unwrap(), None);
        assert_eq!(wanted("ssl=true").unwrap(), Some(TlsFiles::default()));
        let f = wanted("tlsCAFile=/a%20b&tlsCertificateKeyFile=/c&tlsAllowInvalidHostnames=true");
        let f = f.unwrap().unwrap();
        assert_eq!(f.authorities.as_deref(), Some("/a b".as_ref()));
        assert_eq!(f.certificate.as_deref(), Some("/c".as_ref()));
        assert_eq!(f.check, CertificateCheck::Authority);
        let f = wanted("tls=true&tlsInsecure=true").unwrap().unwrap();
        assert_eq!(f.check, CertificateCheck::Nothing);
        for bad in ["tls=yes", "tls=false&tlsCAFile=/a"] {
            assert!(wanted(bad).is_err(), "{bad}");
        }
        let socket = "mongodb://%2Ftmp%2Fa.sock/?tls=true";
        assert!(MongoTarget::parse(socket).is_err());
        let e = MongoTarget::parse("mongodb://u:geheim@127.0.0.1/?tlsCAFile=/nowhere.pem");
        let e = e.unwrap_err().to_string();
        assert!(e.contains("/nowhere.pem") && !e.contains("geheim"), "{e}");
    }
}
