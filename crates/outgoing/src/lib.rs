//! Connections that we open ourselves, to servers of any make: connection strings, TLS, and logins in
//! MongoDB's protocol.
//!
//! - [`Url`]: where a server is, and what its connection string says;
//! - [`ClientTls`]: trusted authorities, and the own certificate;
//! - [`Stream`]: a socket, with or without TLS;
//! - [`Credentials`]: SCRAM and certificates; [`MongoTarget`]: all of it for a `mongodb://` string.
//!
//! Invariant: a password is never shown, whatever is printed of these. A server that is not proven to be
//! the named one is told nothing, unless the user has waived the proof.

mod login;
mod mongo_target;
mod stream;
mod tls;
mod url;

pub use login::{Converse, Credentials};
pub use mongo_target::MongoTarget;
pub use stream::{Stream, StreamEnder};
pub use tls::{CertificateCheck, ClientTls, TlsFiles};
pub use url::{HostAddress, Url, parts, without_password};

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The request makes no sense.
    Usage(String),
    /// The server, or the way to it.
    Failed(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Usage(why) | Error::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

/// Names the attempt in a failure of the system.
fn failed(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    move |e| Error::Failed(format!("{}: {e}", what.into()))
}
