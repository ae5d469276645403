//! The state of a connection.

pub mod login;
pub mod monitor;

use bson::DocBuf;
use login::Login;
use monitor::Monitor;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI64;

/// The service's state of one connection.
#[derive(Debug, Default)]
pub struct Connection {
    /// Names the connection (`connectionStatus.uuid`).
    pub uuid: [u8; 16],
    /// `client` of the first hello.
    pub metadata: OnceLock<DocBuf>,
    /// `client.application.name`, for currentOp and fail points.
    pub app_name: OnceLock<String>,
    /// The outcome of the last write, for getLastError.
    pub last_write: Mutex<LastWrite>,
    /// The cursor that the last request opened, or 0. Until the reply has arrived the client does
    /// not know it.
    pub opened: AtomicI64,
    /// The cursor for which a getMore waits, or 0.
    pub awaited: AtomicI64,
    /// The logged-in users.
    pub login: Login,
    /// A batch of another member's messages that has come in part.
    pub parts: Mutex<Vec<u8>>,
    /// The state of an awaited hello, or of a stream of hellos.
    pub monitor: Mutex<Monitor>,
}

/// The result for `getLastError`.
#[derive(Clone, Debug, Default)]
pub struct LastWrite {
    pub n: i64,
    pub code: i32,
    pub error: Option<String>,
}

impl Connection {
    pub fn new() -> Connection {
        Connection {
            uuid: catalog::new_uuid(),
            ..Connection::default()
        }
    }

    pub fn app_name(&self) -> &str {
        self.app_name.get().map_or("", |s| s)
    }
}
