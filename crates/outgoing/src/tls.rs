//! What of a server's certificate is checked, and which certificate is shown to it.

use crate::{Error, Result};
use certificates::Identity;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::path::PathBuf;
use std::sync::Arc;

/// How much a server has to prove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateCheck {
    /// That it is the server of that name.
    #[default]
    Name,
    /// That an authority has signed its certificate.
    Authority,
    /// Nothing: the bytes are encrypted, for any server that answers.
    Nothing,
}

/// The places of certificates, and the check of the server's.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    pub check: CertificateCheck,
    /// Authorities; without them those of the system.
    pub authorities: Option<PathBuf>,
    /// Our own certificate, and its key where that is in a file of its own.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub key_password: Option<String>,
    pub revoked: Option<PathBuf>,
}

/// Without the password.
impl std::fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsFiles")
            .field("check", &self.check)
            .field("authorities", &self.authorities)
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// How connections of one target are encrypted.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

/// Two are the same when they came of one opening.
impl PartialEq for ClientTls {
    fn eq(&self, other: &ClientTls) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for ClientTls {}

impl ClientTls {
    pub fn open(files: &TlsFiles) -> Result<ClientTls> {
        let usage = |e: String| Error::Usage(e);
        let internal = |e: &dyn std::fmt::Display| Error::Failed(format!("TLS: {e}"));
        let provider = Arc::new(ring::default_provider());
        let verifier = verifier(files, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| internal(&e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &files.certificate {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let key = files.key.as_ref().unwrap_or(path);
                let own = Identity::read(path, key, files.key_password.as_deref());
                let own = own.map_err(usage)?;
                builder
                    .with_client_auth_cert(own.chain, own.key)
                    .map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?
            }
        };
        Ok(ClientTls {
            config: Arc::new(config),
        })
    }
}

fn verifier(
    files: &TlsFiles,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>> {
    if files.check == CertificateCheck::Nothing {
        return Ok(Arc::new(LenientVerifier {
            authorities: None,
            provider: Arc::clone(provider),
        }));
    }
    let roots = match &files.authorities {
        Some(path) => certificates::read_authorities(path).map_err(Error::Usage)?,
        None => of_the_system()?,
    };
    let mut builder =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if let Some(path) = &files.revoked {
        let lists = certificates::read_revocations(path).map_err(Error::Usage)?;
        builder = builder.with_crls(lists).only_check_end_entity_revocation();
    }
    let strict = builder
        .build()
        .map_err(|e| Error::Usage(format!("TLS: {e}")))?;
    if files.check == CertificateCheck::Name {
        return Ok(strict);
    }
    Ok(Arc::new(LenientVerifier {
        authorities: Some(strict),
        provider: Arc::clone(provider),
    }))
}

fn of_the_system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates::authorities_of_the_system());
    match roots.is_empty() {
        true => Err(Error::Usage(
            "this system has no authorities of its own: name a file of them".into(),
        )),
        false => Ok(roots),
    }
}

/// Takes certificates of another name, and, without authorities, any.
#[derive(Debug)]
struct LenientVerifier {
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(strict) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        // The name is looked at last, when all else is right.
        match strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
