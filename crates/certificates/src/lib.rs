//! Certificates and their keys: read from PEM files, and what a certificate says.
//!
//! Invariant: an error is one line that names the file and never its content; cryptography is
//! libraries'.

mod of_the_system;
mod subject;

pub use of_the_system::authorities_of_the_system;
use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
pub use subject::{Certified, read};

/// A certificate with those that lead to its authority, and its private key.
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// From one file, or from two. `password` is for a key that is encrypted.
    pub fn read(
        certificate: &Path,
        key: &Path,
        password: Option<&str>,
    ) -> Result<Identity, String> {
        let pem = read_file(certificate)?;
        let chain = all::<CertificateDer<'static>>(certificate, &pem, "certificate")?;
        let pem = match key == certificate {
            true => pem,
            false => read_file(key)?,
        };
        let key = private_key(&pem, password).map_err(|e| wrong(key, &e))?;
        Ok(Identity { chain, key })
    }

    /// The certificate itself, as it is sent.
    pub fn der(&self) -> &[u8] {
        self.chain.first().map_or(&[], |c| c.as_ref())
    }
}

fn wrong(path: &Path, why: &dyn fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| wrong(path, &e))
}

/// Refuses a file that others than its owner may read.
pub fn check_private(path: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(path).map_err(|e: io::Error| wrong(path, &e))?;
    match metadata.permissions().mode() & 0o077 {
        0 => Ok(()),
        _ => Err(wrong(
            path,
            &"permissions are too open: only its owner may read a private key (chmod 600)",
        )),
    }
}

/// All objects of a kind; none is an error.
fn all<T: PemObject>(path: &Path, pem: &[u8], what: &str) -> Result<Vec<T>, String> {
    let all: Result<Vec<T>, _> = T::pem_slice_iter(pem).collect();
    let all = all.map_err(|e| wrong(path, &e))?;
    match all.is_empty() {
        true => Err(wrong(path, &format_args!("it holds no {what}"))),
        false => Ok(all),
    }
}

const ENCRYPTED: [&str; 2] = [
    "-----BEGIN ENCRYPTED PRIVATE KEY-----",
    "-----END ENCRYPTED PRIVATE KEY-----",
];
/// How keys were encrypted before PKCS#8.
const OLD_ENCRYPTED: &str = "Proc-Type: 4,ENCRYPTED";

fn private_key(pem: &[u8], password: Option<&str>) -> Result<PrivateKeyDer<'static>, String> {
    if let Ok(key) = PrivateKeyDer::from_pem_slice(pem) {
        return Ok(key);
    }
    let text = std::str::from_utf8(pem).unwrap_or_default();
    let [begin, end] = ENCRYPTED.map(|line| text.find(line));
    let (Some(begin), Some(end)) = (begin, end) else {
        return Err(match text.contains(OLD_ENCRYPTED) {
            true => {
                "its private key is encrypted in an old form: convert it with openssl pkcs8 -topk8"
                    .into()
            }
            false => "it holds no private key".into(),
        });
    };
    let section = text.get(begin..end + ENCRYPTED[1].len());
    let Some(password) = password else {
        return Err("its private key is encrypted, and no password was given".into());
    };
    let malformed = || "its encrypted private key is malformed".to_string();
    let document = SecretDocument::from_pem(section.unwrap_or_default());
    let (_, document) = document.map_err(|_| malformed())?;
    let info = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes());
    let info = info.map_err(|_| malformed())?;
    let plain = info
        .decrypt(password)
        .map_err(|_| "the password does not open its private key".to_string())?;
    Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into())
}

/// Authorities whose certificates are trusted.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, String> {
    let pem = read_file(path)?;
    let mut roots = RootCertStore::empty();
    for certificate in all::<CertificateDer<'static>>(path, &pem, "certificate")? {
        roots.add(certificate).map_err(|e| wrong(path, &e))?;
    }
    Ok(roots)
}

/// Lists of certificates that were revoked. No list would be no check, and is an error.
pub fn read_revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    all(path, &read_file(path)?, "revocation list")
}
