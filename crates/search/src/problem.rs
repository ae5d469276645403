//! What is wrong with a search or a definition, in MongoDB's codes and sentences.

use errors::{Error, Stop, err};
use tantivy::TantivyError;

/// A mistake in a search, found where it runs: `UnknownError`, as a search server's answers reach a client of MongoDB.
pub fn wrong(sentence: impl std::fmt::Display) -> Stop {
    let context = "PlanExecutor error during aggregation :: caused by ::";
    Stop::from(err!(UnknownError, "{context} {sentence}"))
}

/// A mistake in an index definition.
pub fn wrong_definition(sentence: impl std::fmt::Display) -> Stop {
    Stop::from(err!(
        UnknownError,
        "Error occurred while validating index definition: {sentence}"
    ))
}

/// Ends the library's reading where the operation is to end; [`of_library`] gives the operation's own error again.
pub fn stopped() -> TantivyError {
    TantivyError::InternalError("the operation is to end".into())
}

/// What the library says of its files: not the user's mistake. `DataCorruptionDetected` where they cannot be what it wrote.
pub fn of_library(e: TantivyError) -> Stop {
    Stop::from(match e {
        TantivyError::InternalError(said) => match errors::operation::ask() {
            Err(end) => end,
            Ok(()) => Error::internal(format!("search index: {said}")),
        },
        TantivyError::DataCorruption(_)
        | TantivyError::OpenReadError(_)
        | TantivyError::IncompatibleIndex(_) => {
            err!(DataCorruptionDetected, "a search index is damaged: {e}")
        }
        _ => Error::internal(format!("search index: {e}")),
    })
}

/// The same for a file that cannot be read or written.
pub fn of_io(e: std::io::Error) -> Stop {
    Stop::from(Error::internal(format!("search index: {e}")))
}
