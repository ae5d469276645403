//! The authorities that the system trusts.
//!
//! Linux has them in files at several places, which a library knows. macOS has the public ones in one file; those that a user
//! has added to a keychain are not in it.
//!
//! Invariant: `SSL_CERT_FILE` names a file of others on each system.

use rustls::pki_types::CertificateDer;

/// All of them; none where there are none.
#[cfg(not(target_os = "macos"))]
pub fn authorities_of_the_system() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// All of them; none where there are none.
#[cfg(target_os = "macos")]
pub fn authorities_of_the_system() -> Vec<CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    let file = std::env::var_os("SSL_CERT_FILE").unwrap_or_else(|| "/etc/ssl/cert.pem".into());
    let found = CertificateDer::pem_file_iter(file);
    found.into_iter().flatten().flatten().collect()
}
