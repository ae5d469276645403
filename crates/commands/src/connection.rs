//! What is kept for a connection.

use bson::DocBuf;
use parking_lot::Mutex;
use std::sync::OnceLock;

/// The service's state of one connection.
#[derive(Debug, Default)]
pub struct Connection {
    /// `client` of the first hello.
    pub metadata: OnceLock<DocBuf>,
    /// `client.application.name`, for currentOp and fail points.
    pub app_name: OnceLock<String>,
    /// How the last write fared, for getLastError.
    pub last_write: Mutex<LastWrite>,
}

/// What `getLastError` tells.
#[derive(Clone, Debug, Default)]
pub struct LastWrite {
    pub n: i64,
    pub code: i32,
    pub error: Option<String>,
}

impl Connection {
    pub fn app_name(&self) -> &str {
        self.app_name.get().map_or("", |s| s)
    }
}
