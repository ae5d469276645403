//! Dates out of text.

use errors::{Result, err};

pub(super) fn free_form(s: &str, _zone: Option<&str>) -> Result<i64> {
    Err(err!(ConversionFailure, "Error parsing date string '{s}'"))
}
