//! Time zones: names of the IANA database (bundled, so that every machine gives the same answer)
//! and fixed offsets.

use super::calendar::Civil;
use super::node::{Call, EvalCtx};
use errors::{Result, bail, err};
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::sync::OnceLock;

#[derive(Clone, Debug)]
pub(crate) enum Zone {
    Utc,
    /// Seconds east of Greenwich.
    Fixed(i64),
    Named(TimeZone),
}

fn database() -> &'static TimeZoneDatabase {
    static BUNDLED: OnceLock<TimeZoneDatabase> = OnceLock::new();
    BUNDLED.get_or_init(TimeZoneDatabase::bundled)
}

/// What MongoDB counts as UTC itself.
const UTC_NAMES: &[&str] = &[
    "UTC",
    "GMT",
    "Etc/UTC",
    "Etc/GMT",
    "Zulu",
    "Universal",
    "UCT",
];

impl Zone {
    pub(crate) fn parse(name: &str) -> Result<Zone> {
        if UTC_NAMES.contains(&name) {
            return Ok(Zone::Utc);
        }
        if name.starts_with(['+', '-'])
            && let Some(seconds) = parse_offset(name)
        {
            return Ok(match seconds {
                0 => Zone::Utc,
                s => Zone::Fixed(s),
            });
        }
        Zone::named(name)
            .ok_or_else(|| err!(40485, "unrecognized time zone identifier: \"{name}\"").into())
    }

    /// By its exact name: the database itself does not mind the case.
    pub(super) fn named(name: &str) -> Option<Zone> {
        let zone = database().get(name).ok()?;
        (zone.iana_name() == Some(name)).then_some(Zone::Named(zone))
    }

    pub(crate) fn is_utc(&self) -> bool {
        matches!(self, Zone::Utc)
    }

    /// Milliseconds to add to a moment to get the local time.
    pub(crate) fn offset_at(&self, ms: i64) -> i64 {
        match self {
            Zone::Utc => 0,
            Zone::Fixed(s) => s * 1000,
            Zone::Named(z) => {
                // Beyond the years 9999 the offset of the last known moment stands.
                let (low, high) = (-377_000_000_000_000, 253_000_000_000_000);
                let t = Timestamp::from_millisecond(ms.clamp(low, high)).unwrap_or_default();
                i64::from(z.to_offset(t).seconds()) * 1000
            }
        }
    }

    pub(crate) fn local(&self, ms: i64) -> Civil {
        Civil::of_ms(ms.saturating_add(self.offset_at(ms)))
    }

    /// The moment of a local time given as if it were UTC. A time that a clock change skips is
    /// moved forward; of one that comes twice the first is taken.
    pub(crate) fn to_utc(&self, local_ms: i64) -> i64 {
        let Zone::Named(_) = self else {
            return local_ms.saturating_sub(self.offset_at(local_ms));
        };
        let day = super::calendar::DAY_MS;
        let before = self.offset_at(local_ms.saturating_sub(day));
        let after = self.offset_at(local_ms.saturating_add(day));
        let with_before = local_ms.saturating_sub(before);
        if self.offset_at(with_before) == before || before == after {
            return local_ms.saturating_sub(self.offset_at(with_before));
        }
        let with_after = local_ms.saturating_sub(after);
        if self.offset_at(with_after) == after {
            with_after
        } else {
            with_before
        }
    }

    /// `None` when there is no such moment.
    pub(crate) fn instant(&self, local: Civil) -> Option<i64> {
        local.to_ms().map(|ms| self.to_utc(ms))
    }
}

/// `+HH`, `+HHMM`, `+HH:MM` in seconds.
pub(super) fn parse_offset(s: &str) -> Option<i64> {
    let (sign, digits) = match s.as_bytes() {
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let number = |a: u8, b: u8| {
        (a.is_ascii_digit() && b.is_ascii_digit())
            .then(|| i64::from(a - b'0') * 10 + i64::from(b - b'0'))
    };
    let (hours, minutes) = match *digits {
        [a, b] => (number(a, b)?, 0),
        [a, b, c, d] | [a, b, b':', c, d] => (number(a, b)?, number(c, d)?),
        _ => return None,
    };
    Some(sign * (hours * 3600 + minutes * 60))
}

/// The zone that argument `i` names: UTC when it was not given, `None` when it is null.
pub(super) fn zone_of(c: &Call, i: usize, ctx: &EvalCtx<'_>) -> Result<Option<Zone>> {
    if !c.has(i) {
        return Ok(Some(Zone::Utc));
    }
    let v = c.arg(i, ctx)?;
    if v.is_nullish() {
        return Ok(None);
    }
    match v.or_null().as_str() {
        Some(s) => Zone::parse(s).map(Some),
        None => bail!(
            40517,
            "timezone must evaluate to a string, found {}",
            v.type_name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets() {
        let cases = [
            ("+05:30", Some(19800)),
            ("-0300", Some(-10800)),
            ("+02", Some(7200)),
            ("+5", None),
            ("+100:00", None),
        ];
        for (s, want) in cases {
            assert_eq!(parse_offset(s), want, "{s}");
        }
        assert!(Zone::parse("america/new_york").is_err());
        assert!(Zone::parse("").is_err());
    }

    #[test]
    fn clock_changes() {
        let z = Zone::parse("America/New_York").unwrap();
        let at = |y, mo, d, h, mi| Civil {
            year: y,
            month: mo,
            day: d,
            hour: h,
            minute: mi,
            second: 0,
            millisecond: 0,
        };
        let utc = |c: Civil| c.to_ms().unwrap();
        // Skipped: 02:30 on 2021-03-14 becomes 03:30 EDT.
        assert_eq!(
            z.instant(at(2021, 3, 14, 2, 30)),
            Some(utc(at(2021, 3, 14, 7, 30)))
        );
        // Twice: 01:30 on 2021-11-07 is the first, EDT.
        assert_eq!(
            z.instant(at(2021, 11, 7, 1, 30)),
            Some(utc(at(2021, 11, 7, 5, 30)))
        );
        assert_eq!(
            z.instant(at(2021, 7, 1, 0, 0)),
            Some(utc(at(2021, 7, 1, 4, 0)))
        );
    }
}
