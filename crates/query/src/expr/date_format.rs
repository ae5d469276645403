//! Dates as text.

use super::calendar::Civil;
use errors::{Result, bail};

/// ISO 8601 in UTC with milliseconds; years from 0 to 9999.
pub(super) fn iso(ms: i64) -> Result<String> {
    let c = Civil::of_ms(ms);
    if !(0..=9999).contains(&c.year) {
        bail!(
            18537,
            "$dateToString is only defined on year 0-9999, tried to use year {}",
            c.year
        );
    }
    Ok(format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        c.year, c.month, c.day, c.hour, c.minute, c.second, c.millisecond
    ))
}
