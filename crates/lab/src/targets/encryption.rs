//! How connections to PostgreSQL and MySQL are encrypted, by the options that their own clients know.
//!
//! Without an option a connection is plain, whatever the server offers, so that two servers are not
//! compared one with and one without.

use crate::fault::{Fault, Result};
use outgoing::{CertificateCheck, ClientTls, Stream, TlsFiles, Url};
use std::path::PathBuf;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    #[default]
    Never,
    /// Where the server offers it.
    Offered(ClientTls),
    Always(ClientTls),
}

/// A server, and how it is reached.
#[derive(Clone, Debug)]
pub struct Route {
    pub url: Url,
    pub encryption: Encryption,
}

impl Encryption {
    /// `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `sslpassword`, `sslcrl`, as libpq takes them; but
    /// the default is `disable`.
    pub fn of_postgres(url: &Url) -> Result<Encryption> {
        let path = |name: &str| url.option(name).map(PathBuf::from);
        let authorities = path("sslrootcert").filter(|p| p.as_os_str() != "system");
        let mode = url.option("sslmode").unwrap_or("disable");
        let check = match mode {
            "disable" | "allow" => return Ok(Encryption::Never),
            "verify-full" => CertificateCheck::Name,
            "verify-ca" => CertificateCheck::Authority,
            // As libpq has it: named authorities are checked.
            "require" if authorities.is_some() => CertificateCheck::Authority,
            "require" | "prefer" => CertificateCheck::Nothing,
            other => {
                return Err(Fault::Usage(format!(
                    "{}: sslmode={other} is not disable, prefer, require, verify-ca or verify-full",
                    url.text
                )));
            }
        };
        let tls = ClientTls::open(&TlsFiles {
            check,
            authorities,
            certificate: path("sslcert"),
            key: path("sslkey"),
            key_password: url.option("sslpassword").map(String::from),
            revoked: path("sslcrl"),
        })?;
        Encryption::over_tcp(url, mode == "prefer", tls)
    }

    /// `ssl-mode`, `ssl-ca`, `ssl-cert`, `ssl-key`, `ssl-crl`, as MySQL's shell takes them, and `sslMode`
    /// as its drivers do; but the default is DISABLED.
    pub fn of_mysql(url: &Url) -> Result<Encryption> {
        let option = |name: &str| {
            let known = |k: &str| k.replace(['-', '_'], "") == name;
            let found = url.options.iter().rev().find(|(k, _)| known(k));
            found.map(|(_, v)| v.as_str())
        };
        let path = |name: &str| option(name).map(PathBuf::from);
        let mode = option("sslmode").unwrap_or("DISABLED");
        let mode = mode.to_ascii_uppercase().replace('-', "_");
        let check = match mode.as_str() {
            "DISABLED" => return Ok(Encryption::Never),
            "VERIFY_IDENTITY" => CertificateCheck::Name,
            "VERIFY_CA" => CertificateCheck::Authority,
            "REQUIRED" | "PREFERRED" => CertificateCheck::Nothing,
            _ => {
                return Err(Fault::Usage(format!(
                    "{}: ssl-mode={mode} is not DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY",
                    url.text
                )));
            }
        };
        let tls = ClientTls::open(&TlsFiles {
            check,
            authorities: path("sslca"),
            certificate: path("sslcert"),
            key: path("sslkey"),
            key_password: option("sslpassword").map(String::from),
            revoked: path("sslcrl"),
        })?;
        Encryption::over_tcp(url, mode == "PREFERRED", tls)
    }

    fn over_tcp(url: &Url, offered: bool, tls: ClientTls) -> Result<Encryption> {
        match (url.host.is_tcp(), offered) {
            (true, true) => Ok(Encryption::Offered(tls)),
            (true, false) => Ok(Encryption::Always(tls)),
            (false, true) => Ok(Encryption::Never),
            (false, false) => Err(Fault::Usage(format!(
                "{}: a Unix socket is not encrypted",
                url.text
            ))),
        }
    }

    pub fn is_wanted(&self) -> bool {
        *self != Encryption::Never
    }

    /// Encrypts a connection whose server offers it, or does not.
    pub fn apply(&self, stream: Stream, url: &Url, is_offered: bool) -> Result<Stream> {
        match self {
            Encryption::Offered(tls) | Encryption::Always(tls) if is_offered => {
                Ok(stream.secure(tls, &url.name)?)
            }
            Encryption::Always(_) => Err(Fault::Target(format!(
                "{}: the server offers no TLS",
                url.text
            ))),
            _ => Ok(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let postgres = |options: &str| {
            let url = format!("postgres://u@127.0.0.1/?{options}");
            Encryption::of_postgres(&Url::parse(&url, 5432).unwrap())
        };
        let mysql = |options: &str| {
            let url = format!("mysql://u@127.0.0.1/?{options}");
            Encryption::of_mysql(&Url::parse(&url, 3306).unwrap())
        };
        assert_eq!(postgres("").unwrap(), Encryption::Never);
        assert_eq!(mysql("").unwrap(), Encryption::Never);
        for always in [postgres("sslmode=require"), mysql("ssl-mode=required")] {
            assert!(matches!(always, Ok(Encryption::Always(_))));
        }
        for offered in [postgres("sslmode=prefer"), mysql("sslMode=PREFERRED")] {
            assert!(matches!(offered, Ok(Encryption::Offered(_))));
        }
        for bad in [
            postgres("sslmode=yes"),
            postgres("sslmode=verify-full&sslrootcert=/nowhere.pem"),
            mysql("ssl-mode=maybe"),
            mysql("ssl-mode=VERIFY_CA&ssl-ca=/nowhere.pem"),
        ] {
            assert!(matches!(bad, Err(Fault::Usage(_))), "{bad:?}");
        }
    }
}
