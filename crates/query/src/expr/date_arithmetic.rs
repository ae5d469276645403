//! `$dateAdd $dateSubtract $dateDiff $dateTrunc`: in the local time of a zone for days and longer
//! units, in absolute time for hours and shorter ones.

use super::calendar::{Civil, DAY_MS, days_from_civil, days_in_month};
use super::date::date_value;
use super::date_zone::{Zone, zone_of};
use super::node::{Call, Computed, EvalCtx, own};
use super::table::{Named, Op};
use bson::{Val, Value};
use errors::{Result, bail, err};

pub(super) const OPS: &[Op] = &[
    Op::named("$dateAdd", &DATE_ADD, |c, x| add(c, x, 1)),
    Op::named("$dateSubtract", &DATE_ADD, |c, x| add(c, x, -1)),
    Op::named("$dateDiff", &DATE_DIFF, difference),
    Op::named("$dateTrunc", &DATE_TRUNC, truncate),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Year,
    Quarter,
    Month,
    Week,
    Day,
    /// Units of fixed length, in milliseconds.
    Fixed(i64),
}

impl Unit {
    fn parse(s: &str) -> Option<Unit> {
        Some(match s {
            "year" => Unit::Year,
            "quarter" => Unit::Quarter,
            "month" => Unit::Month,
            "week" => Unit::Week,
            "day" => Unit::Day,
            "hour" => Unit::Fixed(3_600_000),
            "minute" => Unit::Fixed(60_000),
            "second" => Unit::Fixed(1000),
            "millisecond" => Unit::Fixed(1),
            _ => return None,
        })
    }

    /// The months of a year, quarter or month.
    fn months(self) -> Option<i64> {
        match self {
            Unit::Year => Some(12),
            Unit::Quarter => Some(3),
            Unit::Month => Some(1),
            _ => None,
        }
    }
}

/// `None` when the argument is null.
fn unit_of(c: &Call, v: &Computed<'_>) -> Result<Option<Unit>> {
    if v.is_nullish() {
        return Ok(None);
    }
    let Some(s) = v.or_null().as_str() else {
        bail!(
            5439013,
            "{} requires 'unit' to be a string, but got {}",
            c.op.name,
            v.type_name()
        );
    };
    Unit::parse(s)
        .map(Some)
        .ok_or_else(|| err!(FailedToParse, "unknown time unit value: {s}").into())
}

/// 1 is Monday. `None` when the argument is null; Sunday when it was not given.
fn start_of_week(c: &Call, i: usize, unit: Unit, ctx: &EvalCtx<'_>) -> Result<Option<i64>> {
    if !c.has(i) {
        return Ok(Some(7));
    }
    let v = c.arg(i, ctx)?;
    if unit != Unit::Week {
        return Ok(Some(7));
    }
    if v.is_nullish() {
        return Ok(None);
    }
    let Some(s) = v.or_null().as_str() else {
        bail!(
            5439015,
            "{} requires 'startOfWeek' to be a string, but got {}",
            c.op.name,
            v.type_name()
        );
    };
    let lower = s.to_ascii_lowercase();
    let day = [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ]
    .iter()
    .position(|d| *d == lower || lower.len() == 3 && d.starts_with(&lower));
    match day {
        Some(d) => Ok(Some(d as i64 + 1)),
        None => bail!(
            5439016,
            "{} parameter 'startOfWeek' value cannot be recognized as a day of a week: {s}",
            c.op.name
        ),
    }
}

static DATE_ADD: Named = Named {
    fields: &[
        ("startDate", 5166402),
        ("unit", 5166402),
        ("amount", 5166402),
        ("timezone", 0),
    ],
    not_object: 5166400,
    unknown: 5166401,
};

fn add<'a>(c: &'a Call, ctx: &EvalCtx<'a>, sign: i64) -> Result<Computed<'a>> {
    let (date, unit, amount) = (c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?);
    if date.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(unit) = unit_of(c, &unit)? else {
        return Ok(Computed::NULL);
    };
    if amount.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(zone) = zone_of(c, 3, ctx)? else {
        return Ok(Computed::NULL);
    };
    let Some(ms) = date_value(date.or_null()) else {
        bail!(
            5166403,
            "{} requires startDate to be convertible to a date",
            c.op.name
        );
    };
    let Some(n) = amount.or_null().to_i64_exact() else {
        bail!(
            5166405,
            "{} expects integer amount of time units",
            c.op.name
        );
    };
    let Some(n) = n.checked_mul(sign) else {
        bail!(
            6045000,
            "invalid {} 'amount' parameter value: {n}",
            c.op.name
        );
    };
    match shift(ms, unit, n, &zone)? {
        Some(ms) => own(Value::date(ms)),
        None => bail!(5166406, "{} overflowed", c.op.name),
    }
}

/// A moment some units later; `None` when it is out of range.
fn shift(ms: i64, unit: Unit, n: i64, zone: &Zone) -> Result<Option<i64>> {
    let too_large = || err!(5976500, "invalid dateAdd 'amount' parameter value: {n}");
    if let Unit::Fixed(length) = unit {
        return Ok(n.checked_mul(length).and_then(|d| ms.checked_add(d)));
    }
    // More than any two dates can be apart.
    if n.unsigned_abs() > 110_000_000_000 {
        return Err(too_large().into());
    }
    let local_ms = ms.saturating_add(zone.offset_at(ms));
    let moved = match unit.months() {
        Some(months) => {
            let t = Civil::of_ms(local_ms);
            let count = t.year * 12 + t.month - 1 + n * months;
            let (year, month) = (count.div_euclid(12), count.rem_euclid(12) + 1);
            if year.abs() > 300_000_000 {
                return Err(too_large().into());
            }
            Civil {
                year,
                month,
                day: t.day.min(days_in_month(year, month)),
                ..t
            }
            .to_ms()
        }
        None => {
            let days = if unit == Unit::Week { n * 7 } else { n };
            days.checked_mul(DAY_MS)
                .and_then(|d| local_ms.checked_add(d))
        }
    };
    let Some(moved) = moved else {
        return Ok(None);
    };
    if moved == local_ms {
        return Ok(Some(ms));
    }
    Ok(Some(zone.to_utc(moved)))
}

static DATE_DIFF: Named = Named {
    fields: &[
        ("startDate", 5166303),
        ("endDate", 5166304),
        ("unit", 5166305),
        ("timezone", 0),
        ("startOfWeek", 0),
    ],
    not_object: 5166301,
    unknown: 5166302,
};

fn difference<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (start, end, unit) = (c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?);
    if start.is_nullish() || end.is_nullish() || unit.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(zone) = zone_of(c, 3, ctx)? else {
        return Ok(Computed::NULL);
    };
    let Some(unit) = unit_of(c, &unit)? else {
        return Ok(Computed::NULL);
    };
    let Some(first_day) = start_of_week(c, 4, unit, ctx)? else {
        return Ok(Computed::NULL);
    };
    let ms = |v: &Computed<'_>, name: &str| match date_value(v.or_null()) {
        Some(ms) => Ok(ms),
        None => Err(err!(
            5166307,
            "$dateDiff requires '{name}' to be a date, but got {}",
            v.type_name()
        )),
    };
    let (start, end) = (ms(&start, "startDate")?, ms(&end, "endDate")?);
    let count = |ms: i64| -> i128 {
        let local_ms = i128::from(ms) + i128::from(zone.offset_at(ms));
        if let Unit::Fixed(length) = unit {
            // Boundaries of hours and shorter units as the local clock shows them.
            return local_ms.div_euclid(i128::from(length));
        }
        let t = zone.local(ms);
        i128::from(match unit.months() {
            Some(months) => (t.year * 12 + t.month - 1).div_euclid(months),
            // 1970-01-01 was a Thursday.
            None if unit == Unit::Week => (t.days() + 3 - (first_day - 1)).div_euclid(7),
            None => t.days(),
        })
    };
    // Between two moments hours are counted in absolute time, whatever the clocks do.
    let d = match unit {
        Unit::Fixed(length) => {
            let shift = i128::from(zone.offset_at(start));
            let at = |ms: i64| (i128::from(ms) + shift).div_euclid(i128::from(length));
            at(end) - at(start)
        }
        _ => count(end) - count(start),
    };
    match i64::try_from(d) {
        Ok(n) => own(n),
        Err(_) => bail!(5166308, "$dateDiff overflowed"),
    }
}

static DATE_TRUNC: Named = Named {
    fields: &[
        ("date", 5439009),
        ("unit", 5439010),
        ("binSize", 0),
        ("timezone", 0),
        ("startOfWeek", 0),
    ],
    not_object: 5439007,
    unknown: 5439008,
};

fn truncate<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (date, unit, bin) = (c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?);
    let null = |i: usize| Ok::<bool, errors::Stop>(c.has(i) && c.arg(i, ctx)?.is_nullish());
    if date.is_nullish() || unit.is_nullish() || null(2)? || null(4)? {
        return Ok(Computed::NULL);
    }
    let Some(zone) = zone_of(c, 3, ctx)? else {
        return Ok(Computed::NULL);
    };
    let Some(unit) = unit_of(c, &unit)? else {
        return Ok(Computed::NULL);
    };
    let bin = if c.has(2) {
        bin_size(bin.or_null())?
    } else {
        1
    };
    let Some(first_day) = start_of_week(c, 4, unit, ctx)? else {
        return Ok(Computed::NULL);
    };
    let Some(ms) = date_value(date.or_null()) else {
        bail!(
            5166307,
            "$dateTrunc requires 'date' to be a date, but got {}",
            date.type_name()
        );
    };
    match bin_start(ms, unit, bin, first_day, &zone)? {
        Some(ms) => own(Value::date(ms)),
        None => bail!(5439005, "$dateTrunc overflowed"),
    }
}

fn bin_size(v: Val<'_>) -> Result<i64> {
    match v.to_i64_exact() {
        Some(n) if n > 0 => Ok(n),
        Some(n) => bail!(
            5439018,
            "$dateTrunc requires 'binSize' to be greater than 0, but got value {n}"
        ),
        None => bail!(
            5439017,
            "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{v}' of type {}",
            v.type_name()
        ),
    }
}

/// Bins are counted from 2000-01-01 (weeks: from the first one after it) in local time.
fn bin_start(ms: i64, unit: Unit, bin: i64, first_day: i64, zone: &Zone) -> Result<Option<i64>> {
    const LARGEST: i64 = 100_000_000_000;
    let reference_days = days_from_civil(2000, 1, 1);
    if let Unit::Fixed(length) = unit {
        let Some(size) = length.checked_mul(bin) else {
            bail!(
                5439002,
                "invalid $dateTrunc 'binSize' parameter value: {bin}"
            );
        };
        let reference = zone.to_utc(reference_days * DAY_MS);
        let since = i128::from(ms) - i128::from(reference);
        let start = since.div_euclid(i128::from(size)) * i128::from(size) + i128::from(reference);
        return Ok(i64::try_from(start).ok());
    }
    if bin > LARGEST {
        bail!(
            5439006,
            "invalid $dateTrunc 'binSize' parameter value: {bin}"
        );
    }
    let t = zone.local(ms);
    let days = match unit.months() {
        Some(months) => {
            let size = months * bin;
            let since = (t.year - 2000) * 12 + t.month - 1;
            let start = since.div_euclid(size) * size;
            let (year, month) = (2000 + start.div_euclid(12), start.rem_euclid(12) + 1);
            if year.abs() > 300_000_000 {
                return Ok(None);
            }
            days_from_civil(year, month, 1)
        }
        None if unit == Unit::Week => {
            // 2000-01-01 was a Saturday, day 6.
            let reference = reference_days + (first_day - 6).rem_euclid(7);
            let size = bin * 7;
            reference + (t.days() - reference).div_euclid(size) * size
        }
        None => reference_days + (t.days() - reference_days).div_euclid(bin) * bin,
    };
    Ok(days.checked_mul(DAY_MS).map(|local| zone.to_utc(local)))
}
