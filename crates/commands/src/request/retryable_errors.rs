//! Errors after which a client may send a command again.

use errors::{Code, Error};

pub fn not_primary() -> Error {
    errors::err!(NotWritablePrimary, "not primary").with_label("RetryableWriteError")
}

/// Codes after which a retryable write may be sent again.
pub fn retryable_code(code: i32) -> bool {
    let codes = [
        Code::HostUnreachable,
        Code::HostNotFound,
        Code::NetworkTimeout,
        Code::ShutdownInProgress,
        Code::PrimarySteppedDown,
        Code::ExceededTimeLimit,
        Code::SocketException,
        Code::NotWritablePrimary,
        Code::InterruptedAtShutdown,
        Code::InterruptedDueToReplStateChange,
        Code::NotPrimaryNoSecondaryOk,
        Code::NotPrimaryOrSecondary,
    ];
    codes.contains(&Code(code))
}
