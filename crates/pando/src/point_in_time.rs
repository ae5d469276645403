//! Moments of the log as people write and read them: a time, or the timestamp of an entry.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use storage::Until;

/// For help texts and errors.
pub const FORMS: &str = "a time as 2026-11-24T10:00:00Z, or a timestamp as 1795514400:3";

/// `2026-11-24T10:00:00.5Z` (UTC where no zone is named), seconds since 1970, or `SECONDS:INCREMENT`, also as
/// `Timestamp(SECONDS, INCREMENT)`.
pub fn parse(text: &str) -> Result<Until, String> {
    let wrong = || format!("'{text}' is no moment: it should be {FORMS}");
    let inner = text
        .strip_prefix("Timestamp(")
        .and_then(|t| t.strip_suffix(')'));
    let pair = inner.unwrap_or(text);
    let separator = if inner.is_some() { ',' } else { ':' };
    if let Some((seconds, increment)) = pair.split_once(separator)
        && let (Ok(seconds), Ok(increment)) = (
            seconds.trim().parse::<u32>(),
            increment.trim().parse::<u32>(),
        )
    {
        return Ok(Until::Timestamp(
            u64::from(seconds) << 32 | u64::from(increment),
        ));
    }
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Until::Wall(i64::from(seconds) * 1000));
    }
    let at = match text.parse::<Timestamp>() {
        Ok(at) => at,
        Err(_) => {
            let civil: DateTime = text.parse().map_err(|_| wrong())?;
            let zoned = civil.to_zoned(TimeZone::UTC).map_err(|_| wrong())?;
            zoned.timestamp()
        }
    };
    Ok(Until::Wall(at.as_millisecond()))
}

/// `2026-11-24T10:00:00.5Z (1795514400:3)`.
pub fn show(wall_millis: i64, ts: u64) -> String {
    let (seconds, increment) = (ts >> 32, ts & 0xffff_ffff);
    match Timestamp::from_millisecond(wall_millis) {
        Ok(at) => format!("{at} ({seconds}:{increment})"),
        Err(_) => format!("{seconds}:{increment}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let at = Until::Timestamp(1_795_514_400 << 32 | 3);
        assert_eq!(parse("1795514400:3"), Ok(at));
        assert_eq!(parse("Timestamp(1795514400, 3)"), Ok(at));
        let wall = Until::Wall(1_795_514_400_000);
        for text in [
            "1795514400",
            "2026-11-24T10:00:00Z",
            "2026-11-24T10:00:00",
            "2026-11-24 10:00",
            "2026-11-24T11:00:00+01:00",
        ] {
            assert_eq!(parse(text), Ok(wall), "{text}");
        }
        for text in ["", "yesterday", "1:x", "2026-13-01T00:00:00Z", "-5"] {
            assert!(parse(text).unwrap_err().contains("is no moment"), "{text}");
        }
        assert_eq!(
            show(1_795_514_400_500, 1_795_514_400 << 32 | 3),
            "2026-11-24T10:00:00.5Z (1795514400:3)"
        );
    }
}
