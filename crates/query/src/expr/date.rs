//! Operators that take dates apart, put them together, and read or print them.

use super::calendar::{Civil, DAY_MS, days_from_iso_week};
use super::date_format::{DATE_TO_STRING, date_to_string};
use super::date_parse;
use super::date_zone::{Zone, zone_of};
use super::node::{Call, Computed, EvalCtx, Node, Prepared, own};
use super::parse::{ParseEnv, Parsed, operand};
use super::table::{Named, Op};
use bson::{Val, Value, Writer, tag};
use errors::{Code, Error, Result, bail};

pub(super) const OPS: &[Op] = &[
    part("$year", |c, x| int_part(c, x, |t| t.year)),
    part("$month", |c, x| int_part(c, x, |t| t.month)),
    part("$dayOfMonth", |c, x| int_part(c, x, |t| t.day)),
    part("$hour", |c, x| int_part(c, x, |t| t.hour)),
    part("$minute", |c, x| int_part(c, x, |t| t.minute)),
    part("$second", |c, x| int_part(c, x, |t| t.second)),
    part("$millisecond", |c, x| int_part(c, x, |t| t.millisecond)),
    part("$dayOfWeek", |c, x| int_part(c, x, Civil::day_of_week)),
    part("$dayOfYear", |c, x| int_part(c, x, Civil::day_of_year)),
    part("$week", |c, x| int_part(c, x, Civil::week)),
    part("$isoDayOfWeek", |c, x| {
        int_part(c, x, Civil::iso_day_of_week)
    }),
    part("$isoWeek", |c, x| int_part(c, x, |t| t.iso_week().1)),
    part("$isoWeekYear", |c, x| match local(c, x)? {
        Some(t) => own(t.iso_week().0),
        None => Ok(Computed::NULL),
    }),
    Op::named("$dateToParts", &DATE_TO_PARTS, date_to_parts),
    Op::named("$dateFromParts", &DATE_FROM_PARTS, date_from_parts).prepared(check_parts),
    Op::named("$dateToString", &DATE_TO_STRING, date_to_string),
    Op::named("$dateFromString", &DATE_FROM_STRING, date_from_string),
];

const fn part(name: &'static str, eval: super::table::Eval) -> Op {
    Op::custom(name, parse_part, &["date", "timezone"], eval)
}

/// A date, `[date]`, or `{date, timezone}`.
fn parse_part(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let name = op.name;
    let one = |v: Val<'_>| -> Result<Parsed> {
        let args = vec![operand(v, env)?, Node::Absent];
        Ok(Parsed::Call(args, Prepared::None))
    };
    if let Some(a) = arg.as_array() {
        let n = a.count();
        return match a.values().next() {
            Some(v) if n == 1 => one(v),
            _ => bail!(
                40536,
                "{name} accepts exactly one argument if given an array, but was given {n}"
            ),
        };
    }
    let Some(d) = arg.as_doc() else {
        return one(arg);
    };
    if d.first().is_some_and(|e| e.name.starts_with('$')) {
        return one(arg);
    }
    let mut args = vec![Node::Absent, Node::Absent];
    for e in d.iter() {
        let slot = match e.name {
            "date" => 0,
            "timezone" => 1,
            other => bail!(40535, "unrecognized option to {name}: \"{other}\""),
        };
        args[slot] = operand(e.val, env)?;
    }
    if matches!(args[0], Node::Absent) {
        bail!(40539, "missing 'date' argument to {name}, provided: {d}");
    }
    Ok(Parsed::Call(args, Prepared::None))
}

/// Milliseconds of a date, timestamp or ObjectId.
pub(super) fn to_date(v: Val<'_>) -> Result<i64> {
    match date_value(v) {
        Some(ms) => Ok(ms),
        None => bail!(
            16006,
            "can't convert from BSON type {} to Date",
            v.type_name()
        ),
    }
}

pub(super) fn date_value(v: Val<'_>) -> Option<i64> {
    match v.tag {
        tag::DATE => v.as_date(),
        tag::TIMESTAMP => v.as_timestamp().map(|t| (t >> 32) as i64 * 1000),
        // MongoDB reads the seconds as a signed number.
        tag::OBJECT_ID => v.as_oid().map(|o| i64::from(o.seconds() as i32) * 1000),
        _ => None,
    }
}

/// The local time of the arguments date and zone; `None` when either is null.
fn local(c: &Call, ctx: &EvalCtx<'_>) -> Result<Option<Civil>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(None);
    }
    let Some(zone) = zone_of(c, 1, ctx)? else {
        return Ok(None);
    };
    Ok(Some(zone.local(to_date(v.or_null())?)))
}

fn int_part<'a>(c: &'a Call, ctx: &EvalCtx<'a>, f: fn(Civil) -> i64) -> Result<Computed<'a>> {
    match local(c, ctx)? {
        Some(t) => own(f(t) as i32),
        None => Ok(Computed::NULL),
    }
}

static DATE_TO_PARTS: Named = Named {
    fields: &[("date", 40522), ("timezone", 0), ("iso8601", 0)],
    not_object: 40524,
    unknown: 40520,
};

fn date_to_parts<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let iso = c.arg(2, ctx)?;
    let Some(t) = local(c, ctx)? else {
        return Ok(Computed::NULL);
    };
    let iso = if !c.has(2) {
        false
    } else if iso.is_nullish() {
        return Ok(Computed::NULL);
    } else {
        match iso.or_null().as_bool() {
            Some(b) => b,
            None => bail!(
                40521,
                "iso8601 must evaluate to a bool, found {}",
                iso.type_name()
            ),
        }
    };
    let mut w = Writer::new();
    let mut put = |name: &str, v: i64| {
        w.i32(name, v as i32);
    };
    if iso {
        let (year, week) = t.iso_week();
        put("isoWeekYear", year);
        put("isoWeek", week);
        put("isoDayOfWeek", t.iso_day_of_week());
    } else {
        put("year", t.year);
        put("month", t.month);
        put("day", t.day);
    }
    put("hour", t.hour);
    put("minute", t.minute);
    put("second", t.second);
    put("millisecond", t.millisecond);
    own(w.finish())
}

static DATE_FROM_PARTS: Named = Named {
    fields: &[
        ("year", 0),
        ("isoWeekYear", 0),
        ("month", 0),
        ("day", 0),
        ("isoWeek", 0),
        ("isoDayOfWeek", 0),
        ("hour", 0),
        ("minute", 0),
        ("second", 0),
        ("millisecond", 0),
        ("timezone", 0),
    ],
    not_object: 40519,
    unknown: 40518,
};

fn check_parts(c: &mut Call) -> Result<()> {
    let has = |i: usize| c.has(i);
    if !has(0) && !has(1) {
        bail!(
            40516,
            "$dateFromParts requires either 'year' or 'isoWeekYear' to be present"
        );
    }
    if has(0) && (has(1) || has(4) || has(5)) {
        bail!(
            40489,
            "$dateFromParts does not allow mixing natural dates with ISO dates"
        );
    }
    if has(1) && (has(2) || has(3)) {
        bail!(
            40525,
            "$dateFromParts does not allow mixing ISO dates with natural dates"
        );
    }
    Ok(())
}

/// An argument of `$dateFromParts`. `None`: it is null, and so is the result.
fn date_part(c: &Call, i: usize, default: i64, ctx: &EvalCtx<'_>) -> Result<Option<i64>> {
    if !c.has(i) {
        return Ok(Some(default));
    }
    let v = c.arg(i, ctx)?;
    if v.is_nullish() {
        return Ok(None);
    }
    match v.or_null().to_i64_exact() {
        Some(n) => Ok(Some(n)),
        None => bail!(
            40515,
            "'{}' must evaluate to an integer, found {} with value {}",
            DATE_FROM_PARTS.fields[i].0,
            v.type_name(),
            v.or_null()
        ),
    }
}

/// The same of a part that MongoDB refuses outside of these bounds. Inside it carries over.
fn limited_date_part(c: &Call, i: usize, default: i64, ctx: &EvalCtx<'_>) -> Result<Option<i64>> {
    match date_part(c, i, default, ctx)? {
        Some(n) if i < 8 && i16::try_from(n).is_err() => bail!(
            31034,
            "'{}' must evaluate to a value in the range [-32768, 32767]; value {n} is not in range",
            DATE_FROM_PARTS.fields[i].0
        ),
        n => Ok(n),
    }
}

fn date_from_parts<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let number = |i, default| date_part(c, i, default, ctx);
    let limited = |i, default| limited_date_part(c, i, default, ctx);
    let iso = c.has(1);
    let year_at = usize::from(iso);
    let (a, b) = if iso { (4, 5) } else { (2, 3) };
    let parts = [
        number(year_at, 1970)?,
        limited(a, 1)?,
        limited(b, 1)?,
        limited(6, 0)?,
        limited(7, 0)?,
        number(8, 0)?,
        number(9, 0)?,
    ];
    let Some(zone) = zone_of(c, 10, ctx)? else {
        return Ok(Computed::NULL);
    };
    let [
        Some(year),
        Some(second),
        Some(third),
        Some(hour),
        Some(minute),
        Some(sec),
        Some(millis),
    ] = parts
    else {
        return Ok(Computed::NULL);
    };
    if !(1..=9999).contains(&year) {
        bail!(
            40523,
            "'{}' must evaluate to an integer in the range 1 to 9999, found {year}",
            DATE_FROM_PARTS.fields[year_at].0
        );
    }
    let midnight = if iso {
        days_from_iso_week(year, second, third).checked_mul(DAY_MS)
    } else {
        let first = Civil {
            year,
            month: second,
            day: third,
            hour: 0,
            minute: 0,
            second: 0,
            millisecond: 0,
        };
        first.to_ms()
    };
    let local = midnight
        .zip(sec.checked_mul(1000))
        .and_then(|(m, s)| m.checked_add(s)?.checked_add(millis))
        .and_then(|t| t.checked_add(hour * 3_600_000 + minute * 60_000));
    match local {
        Some(ms) => own(Value::date(zone.to_utc(ms))),
        None => bail!(Overflow, "$dateFromParts: the date is out of range"),
    }
}

static DATE_FROM_STRING: Named = Named {
    fields: &[
        ("dateString", 40542),
        ("timezone", 0),
        ("format", 0),
        ("onNull", 0),
        ("onError", 0),
    ],
    not_object: 40540,
    unknown: 40541,
};

fn date_from_string<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let text = c.arg(0, ctx)?;
    let zone = zone_of(c, 1, ctx)?;
    let format = c.arg(2, ctx)?;
    if c.has(2) && !format.is_nullish() {
        match format.or_null().as_str() {
            Some(f) => date_parse::check_format(f)?,
            None => bail!(
                40684,
                "$dateFromString requires that 'format' be a string, found: {} with value {}",
                format.type_name(),
                format.or_null()
            ),
        }
    }
    if text.is_nullish() {
        return if c.has(3) {
            c.arg(3, ctx)
        } else {
            Ok(Computed::NULL)
        };
    }
    let Some(zone) = zone else {
        return Ok(Computed::NULL);
    };
    if c.has(2) && format.is_nullish() {
        return Ok(Computed::NULL);
    }
    let given = (c.has(1) && !zone.is_utc()).then_some(&zone);
    match parse_string(&text, &format, given) {
        Err(e) if e.is(Code::ConversionFailure) && c.has(4) => c.arg(4, ctx),
        other => own(Value::date(other?)),
    }
}

fn parse_string(text: &Computed<'_>, format: &Computed<'_>, zone: Option<&Zone>) -> Result<i64> {
    let Some(s) = text.or_null().as_str() else {
        return Err(Error::new(
            Code::ConversionFailure,
            format!(
                "$dateFromString requires that 'dateString' be a string, found: {} with value {}",
                text.type_name(),
                text.or_null()
            ),
        )
        .into());
    };
    match format.as_val().and_then(Val::as_str) {
        Some(f) => date_parse::with_format(s, f, zone),
        None => date_parse::free_form(s, zone),
    }
}
