//! Dates as text: `$dateToString`.

use super::calendar::Civil;
use super::date::to_date;
use super::date_zone::{Zone, zone_of};
use super::node::{Call, Computed, EvalCtx, own};
use super::table::Named;
use errors::operation::step;
use errors::{Result, bail};
use std::fmt::Write;

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const ISO: &str = "%Y-%m-%dT%H:%M:%S.%LZ";
const ISO_LOCAL: &str = "%Y-%m-%dT%H:%M:%S.%L";

/// ISO 8601 in UTC with milliseconds; years from 0 to 9999.
pub(super) fn iso(ms: i64) -> Result<String> {
    formatted(ms, &Zone::Utc, ISO)
}

/// A timestamp as MongoDB prints it inside strings: `Jan  1 00:00:01:1`.
pub(super) fn timestamp(t: u64) -> String {
    let c = Civil::of_ms((t >> 32) as i64 * 1000);
    format!(
        "{} {:2} {:02}:{:02}:{:02}:{}",
        month_name(c).get(..3).unwrap_or(""),
        c.day,
        c.hour,
        c.minute,
        c.second,
        t & 0xFFFF_FFFF
    )
}

pub(super) static DATE_TO_STRING: Named = Named {
    fields: &[
        ("date", 18628),
        ("format", 0),
        ("timezone", 0),
        ("onNull", 0),
    ],
    not_object: 18629,
    unknown: 18534,
};

pub(super) fn date_to_string<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let date = c.arg(0, ctx)?;
    let pattern = c.arg(1, ctx)?;
    if c.has(1) && !pattern.is_nullish() {
        match pattern.or_null().as_str() {
            Some(p) => check_format(p)?,
            None => bail!(
                18533,
                "$dateToString requires that 'format' be a string, found: {} with value {}",
                pattern.type_name(),
                pattern.or_null()
            ),
        }
    }
    let zone = zone_of(c, 2, ctx)?;
    if date.is_nullish() {
        return if c.has(3) {
            c.arg(3, ctx)
        } else {
            Ok(Computed::NULL)
        };
    }
    let Some(zone) = zone else {
        return Ok(Computed::NULL);
    };
    if c.has(1) && pattern.is_nullish() {
        return Ok(Computed::NULL);
    }
    let ms = to_date(date.or_null())?;
    let default = if zone.is_utc() { ISO } else { ISO_LOCAL };
    own(formatted(
        ms,
        &zone,
        pattern.or_null().as_str().unwrap_or(default),
    )?)
}

/// Refuses conversions that do not exist.
fn check_format(pattern: &str) -> Result<()> {
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        step()?;
        match chars.next() {
            None => bail!(18535, "Unmatched '%' at end of format string"),
            Some(c) if "%bBdGHjLmMSUuVwYzZ".contains(c) => {}
            Some(c) => bail!(18536, "Invalid format character '%{c}' in format string"),
        }
    }
    Ok(())
}

fn formatted(ms: i64, zone: &Zone, pattern: &str) -> Result<String> {
    let c = zone.local(ms);
    let year = |y: i64| -> Result<i64> {
        if !(0..=9999).contains(&y) {
            bail!(
                18537,
                "$dateToString is only defined on year 0-9999, tried to use year {y}"
            );
        }
        Ok(y)
    };
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        step()?;
        let _ = match chars.next().unwrap_or('%') {
            'Y' => write!(out, "{:04}", year(c.year)?),
            'm' => write!(out, "{:02}", c.month),
            'd' => write!(out, "{:02}", c.day),
            'H' => write!(out, "{:02}", c.hour),
            'M' => write!(out, "{:02}", c.minute),
            'S' => write!(out, "{:02}", c.second),
            'L' => write!(out, "{:03}", c.millisecond),
            'b' => write!(out, "{}", month_name(c).get(..3).unwrap_or("")),
            'B' => write!(out, "{}", month_name(c)),
            'G' => write!(out, "{:04}", year(c.iso_week().0)?),
            'V' => write!(out, "{:02}", c.iso_week().1),
            'u' => write!(out, "{}", c.iso_day_of_week()),
            'U' => write!(out, "{:02}", c.week()),
            'w' => write!(out, "{}", c.day_of_week()),
            'j' => write!(out, "{:03}", c.day_of_year()),
            'z' => {
                let minutes = zone.offset_at(ms) / 60_000;
                let sign = if minutes < 0 { '-' } else { '+' };
                let m = minutes.abs();
                write!(out, "{sign}{:02}{:02}", m / 60, m % 60)
            }
            'Z' => write!(out, "{}", zone.offset_at(ms) / 60_000),
            other => write!(out, "{other}"),
        };
    }
    Ok(out)
}

fn month_name(c: Civil) -> &'static str {
    usize::try_from(c.month - 1)
        .ok()
        .and_then(|i| MONTHS.get(i).copied())
        .unwrap_or("")
}
