//! Reading: from a plan to documents, in order.
//!
//! Index scans gather record keys and fetch the records in batches. Each file uses only those above
//! it in this list, except `source` and `union`, which use each other.

pub(crate) mod count;
pub(crate) mod dedup;
pub(crate) mod find;
pub(crate) mod index_scan;
pub(crate) mod measure;
pub(crate) mod merge;
pub(crate) mod multi_range;
pub(crate) mod near_scan;
pub(crate) mod record_stream;
pub(crate) mod request;
pub(crate) mod skip_scan;
pub(crate) mod sorter;
pub(crate) mod source;
pub(crate) mod step;
pub(crate) mod tail;
pub(crate) mod text;
pub(crate) mod union;
pub(crate) mod zones;

pub use count::{count, has_records};
pub use find::{FindCursor, FindRequest};
pub use record_stream::{RecordStream, Trial};
pub use request::ReadRequest;
pub use tail::TailCursor;
