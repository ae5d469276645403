//! Dates out of text: by a format, or in one of the many ways in which people write absolute dates.

use super::calendar::{Civil, civil_from_days, days_from_civil, days_from_iso_week, days_in_month};
use super::date_format::MONTHS;
use super::date_zone::{Zone, parse_offset};
use errors::operation::step;
use errors::{Code, Error, Result, bail};

/// What has been read so far.
#[derive(Default)]
struct Fields {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    iso_year: Option<i64>,
    iso_week: Option<i64>,
    iso_day: Option<i64>,
    day_of_year: Option<i64>,
    /// Hour, minute, second, millisecond.
    time: Option<[i64; 4]>,
    zone: Option<Zone>,
    by_format: bool,
}

fn failure(s: &str, why: &str) -> Error {
    Error::new(
        Code::ConversionFailure,
        format!("Error parsing date string '{s}'; {why}"),
    )
}

impl Fields {
    fn has_day(&self) -> bool {
        self.day.is_some() || self.day_of_year.is_some() || self.iso_week.is_some()
    }

    fn finish(self, s: &str, argument: Option<&Zone>) -> Result<i64> {
        if self.zone.is_some() && argument.is_some() {
            return Err(Error::new(
                Code::ConversionFailure,
                format!(
                    "you cannot pass in a date/time string with GMT offset together with a timezone argument: '{s}'"
                ),
            ).into());
        }
        let incomplete = || {
            failure(
                s,
                "an incomplete date/time string has been found, with elements missing",
            )
        };
        let invalid = || failure(s, "The parsed date was invalid");
        let days = if let Some(year) = self.iso_year {
            let (week, day) = (self.iso_week.unwrap_or(1), self.iso_day.unwrap_or(1));
            if !(1..=53).contains(&week) || !(1..=7).contains(&day) {
                return Err(invalid().into());
            }
            if self.iso_week.is_none() && self.iso_day.is_none() {
                days_from_civil(year, 1, 1)
            } else {
                days_from_iso_week(year, week, day)
            }
        } else if let (Some(year), Some(n)) = (self.year, self.day_of_year) {
            if !(1..=366).contains(&n) {
                return Err(invalid().into());
            }
            // By a format MongoDB counts the days from 0.
            days_from_civil(year, 1, 1) + n - i64::from(!self.by_format)
        } else {
            let (Some(year), Some(month)) = (self.year, self.month) else {
                return Err(incomplete().into());
            };
            let Some(day) = self.day else {
                return Err(incomplete().into());
            };
            if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
                return Err(invalid().into());
            }
            days_from_civil(year, month, day)
        };
        let [hour, minute, second, millisecond] = self.time.unwrap_or_default();
        if hour > 24 || minute > 59 || second > 59 || hour == 24 && minute + second > 0 {
            return Err(invalid().into());
        }
        let (year, month, day) = civil_from_days(days);
        let local = Civil {
            year,
            month,
            day,
            hour,
            minute,
            second,
            millisecond,
        };
        let utc = Zone::Utc;
        let zone = self.zone.as_ref().or(argument).unwrap_or(&utc);
        zone.instant(local).ok_or_else(|| invalid().into())
    }
}

/// Refuses conversions that cannot be read.
pub(super) fn check_format(format: &str) -> Result<()> {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c == '%' {
            step()?;
            match chars.next() {
                None => bail!(18535, "Unmatched '%' at end of format string"),
                Some(c) if "%bBdGHjLmMSuVYzZ".contains(c) => {}
                Some(c) => bail!(18536, "Invalid format character '%{c}' in format string"),
            }
        }
    }
    Ok(())
}

/// Reads along a text.
struct Cursor<'s> {
    rest: &'s str,
}

impl<'s> Cursor<'s> {
    /// Up to three digits behind the point of seconds.
    fn milliseconds(&mut self) -> Option<i64> {
        let digits = self.digits_ahead().min(3);
        Some(self.number(1, 3)? * 10i64.pow(3 - digits as u32))
    }

    fn signed_minutes(&mut self) -> Option<i64> {
        let sign = match self.literal('-') {
            true => -1,
            false => {
                self.literal('+');
                1
            }
        };
        Some(sign * self.number(1, 4)?)
    }

    /// From `min` to `max` digits as a number.
    fn number(&mut self, min: usize, max: usize) -> Option<i64> {
        let n = self
            .rest
            .bytes()
            .take(max)
            .take_while(u8::is_ascii_digit)
            .count();
        if n < min {
            return None;
        }
        let (digits, rest) = self.rest.split_at(n);
        self.rest = rest;
        digits.parse().ok()
    }

    fn literal(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(r) => {
                self.rest = r;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'s str {
        let n = self
            .rest
            .bytes()
            .take_while(u8::is_ascii_alphabetic)
            .count();
        let (w, rest) = self.rest.split_at(n);
        self.rest = rest;
        w
    }

    fn digits_ahead(&self) -> usize {
        self.rest.bytes().take_while(u8::is_ascii_digit).count()
    }

    /// `+HH`, `+HHMM` or `+HH:MM`.
    fn offset(&mut self) -> Option<i64> {
        let at = |n: usize| self.rest.get(..n).and_then(parse_offset).map(|o| (o, n));
        let (seconds, used) = at(6).or_else(|| at(5)).or_else(|| at(3))?;
        self.rest = &self.rest[used..];
        Some(seconds)
    }

    /// The same as people write it: hours may be of one digit.
    fn correction(&mut self) -> Option<i64> {
        let sign = if self.literal('-') { -1 } else { 1 };
        if sign > 0 {
            self.literal('+').then_some(())?;
        }
        let (hours, minutes) = match self.digits_ahead() {
            1 | 2 => {
                let hours = self.number(1, 2)?;
                let minutes = if self.literal(':') {
                    self.number(2, 2)?
                } else {
                    0
                };
                (hours, minutes)
            }
            n @ (3 | 4) => (self.number(1, n - 2)?, self.number(2, 2)?),
            _ => return None,
        };
        (hours < 100 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

fn month_of(word: &str) -> Option<i64> {
    let w = word.to_ascii_lowercase();
    let at = MONTHS.iter().position(|m| {
        let m = m.to_ascii_lowercase();
        w == m || w.len() == 3 && m.starts_with(&w) || w == "sept" && m == "september"
    })?;
    Some(at as i64 + 1)
}

pub(super) fn with_format(s: &str, format: &str, zone: Option<&Zone>) -> Result<i64> {
    let mut f = Fields {
        by_format: true,
        ..Fields::default()
    };
    let mut time = [0i64; 4];
    let mut cursor = Cursor { rest: s };
    let mut chars = format.chars();
    let mismatch = |what: &str| failure(s, what);
    while let Some(c) = chars.next() {
        if c != '%' {
            if !cursor.literal(c) {
                return Err(mismatch("Format literal not found").into());
            }
            continue;
        }
        step()?;
        let mut number = |min: usize, max: usize, what: &str| {
            cursor
                .number(min, max)
                .ok_or_else(|| mismatch(&format!("A {what} could not be found")))
        };
        match chars.next().unwrap_or('%') {
            'Y' => f.year = Some(number(4, 4, "four digit year")?),
            'm' => f.month = Some(number(1, 2, "two digit month")?),
            'd' => f.day = Some(number(1, 2, "two digit day")?),
            'H' => time[0] = number(1, 2, "two digit hour")?,
            'M' => time[1] = number(2, 2, "two digit minute")?,
            'S' => time[2] = number(2, 2, "two digit second")?,
            'L' => {
                time[3] = cursor
                    .milliseconds()
                    .ok_or_else(|| mismatch("A three digit millisecond could not be found"))?;
            }
            'j' => f.day_of_year = Some(number(1, 3, "three digit day-of-year")?),
            'G' => f.iso_year = Some(number(4, 4, "four digit ISO year")?),
            'V' => f.iso_week = Some(number(1, 2, "two digit ISO week")?),
            'u' => f.iso_day = Some(number(1, 1, "one digit ISO day of week")?),
            'b' | 'B' => {
                let month = month_of(cursor.word());
                f.month =
                    Some(month.ok_or_else(|| mismatch("A textual month could not be found"))?);
            }
            'z' => {
                let seconds = match cursor.literal('Z') {
                    true => Some(0),
                    false => cursor.offset(),
                };
                let seconds = seconds.ok_or_else(|| mismatch("The timezone could not be found"))?;
                f.zone = Some(Zone::Fixed(seconds));
            }
            'Z' => {
                let minutes = cursor
                    .signed_minutes()
                    .ok_or_else(|| mismatch("The timezone offset in minutes could not be found"))?;
                f.zone = Some(Zone::Fixed(minutes * 60));
            }
            _ => {
                if !cursor.literal('%') {
                    return Err(mismatch("Format literal not found").into());
                }
            }
        }
    }
    if !cursor.rest.is_empty() {
        return Err(mismatch("Trailing data").into());
    }
    f.time = Some(time);
    if f.month.is_some() {
        f.day = f.day.or(Some(1));
    }
    f.finish(s, zone)
}

/// Zone abbreviations and their hours.
const ABBREVIATIONS: &[(&str, i64)] = &[
    ("z", 0),
    ("utc", 0),
    ("gmt", 0),
    ("est", -5),
    ("edt", -4),
    ("cst", -6),
    ("cdt", -5),
    ("mst", -7),
    ("mdt", -6),
    ("pst", -8),
    ("pdt", -7),
    ("cet", 1),
    ("cest", 2),
    ("eet", 2),
    ("eest", 3),
    ("wet", 0),
    ("west", 1),
    ("bst", 1),
    ("msk", 3),
    ("jst", 9),
];

const WEEKDAYS: &[&str] = &[
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// An absolute date in ISO 8601 or a common way of writing dates in English. Fields may come in any
/// order.
pub(super) fn free_form(s: &str, zone: Option<&Zone>) -> Result<i64> {
    let mut f = Fields::default();
    let mut c = Cursor {
        rest: s.trim_matches([' ', '\t', '\n', '\x0B', '\x0C', '\r', '\0', '\u{A0}']),
    };
    if c.rest.is_empty() {
        return Err(failure(
            s,
            "an incomplete date/time string has been found, with elements missing",
        )
        .into());
    }
    let bad = || failure(s, "Unexpected character or word");
    while let Some(next) = c.rest.chars().next() {
        match next {
            ' ' | '\t' | ',' => c.rest = &c.rest[1..],
            '0'..='9' => digits(&mut c, &mut f).ok_or_else(bad)?,
            '+' | '-' if f.zone.is_none() && (f.time.is_some() || f.has_day()) => {
                f.zone = Some(Zone::Fixed(c.correction().ok_or_else(bad)?));
            }
            'a'..='z' | 'A'..='Z' => word(&mut c, &mut f).ok_or_else(bad)?,
            _ => return Err(bad().into()),
        }
    }
    f.finish(s, zone)
}

/// Sets a field that must not be there yet.
fn set(slot: &mut Option<i64>, v: i64) -> Option<()> {
    slot.replace(v).is_none().then_some(())
}

fn date(f: &mut Fields, year: i64, month: i64, day: i64) -> Option<()> {
    set(&mut f.year, year)?;
    set(&mut f.month, month)?;
    set(&mut f.day, day)
}

fn word(c: &mut Cursor<'_>, f: &mut Fields) -> Option<()> {
    let start = c.rest;
    let w = c.word().to_ascii_lowercase();
    if w == "t" && f.year.is_some() && c.digits_ahead() > 0 {
        return clock(c, f);
    }
    if let Some(m) = month_of(&w) {
        c.literal('.');
        return set(&mut f.month, m);
    }
    if WEEKDAYS
        .iter()
        .any(|d| *d == w || w.len() == 3 && d.starts_with(&w))
    {
        return Some(());
    }
    if f.zone.is_some() {
        return None;
    }
    if c.rest.starts_with(['/', '_']) {
        let n = start
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'_' | b'-' | b'+'))
            .count();
        let (name, rest) = start.split_at(n);
        c.rest = rest;
        f.zone = Some(Zone::named(name)?);
        return Some(());
    }
    if w == "gmt" && c.rest.starts_with(['+', '-']) {
        f.zone = Some(Zone::Fixed(c.correction()?));
        return Some(());
    }
    let (_, hours) = ABBREVIATIONS.iter().find(|(a, _)| *a == w)?;
    f.zone = Some(match hours {
        0 => Zone::Utc,
        h => Zone::Fixed(h * 3600),
    });
    Some(())
}

/// What begins with digits: a date, a time, a day or a year.
fn digits(c: &mut Cursor<'_>, f: &mut Fields) -> Option<()> {
    let n = c.digits_ahead();
    let after = c.rest.as_bytes().get(n).copied().unwrap_or(b' ');
    if after == b':' || meridian(c.rest.get(n..)?).is_some() && n <= 2 {
        return clock(c, f);
    }
    match (n, after) {
        (4, b'-') => {
            let year = c.number(4, 4)?;
            c.literal('-');
            if c.literal('W') {
                return iso_week(c, f, year);
            }
            if c.digits_ahead() == 3 {
                set(&mut f.year, year)?;
                let n = c.number(3, 3)?;
                return set(&mut f.day_of_year, n);
            }
            if !c.rest.starts_with(|x: char| x.is_ascii_digit()) {
                let month = month_of(c.word())?;
                c.literal('-').then_some(())?;
                let day = c.number(1, 2)?;
                return date(f, year, month, day);
            }
            let month = c.number(1, 2)?;
            let day = if c.literal('-') { c.number(1, 2)? } else { 1 };
            date(f, year, month, day)
        }
        (4, b'/') => {
            let year = c.number(4, 4)?;
            c.literal('/');
            let month = c.number(1, 2)?;
            c.literal('/').then_some(())?;
            let day = c.number(1, 2)?;
            date(f, year, month, day)
        }
        (4, b'W') => {
            let year = c.number(4, 4)?;
            c.literal('W');
            iso_week(c, f, year)
        }
        (8, _) if f.year.is_none() => {
            let (year, month, day) = (c.number(4, 4)?, c.number(2, 2)?, c.number(2, 2)?);
            date(f, year, month, day)
        }
        (4, _) if f.year.is_none() && f.month.is_some() => {
            let year = c.number(4, 4)?;
            set(&mut f.year, year)
        }
        // American order.
        (1 | 2, b'/') => {
            let month = c.number(1, 2)?;
            c.literal('/');
            let day = c.number(1, 2)?;
            c.literal('/').then_some(())?;
            let year = c.number(4, 4)?;
            date(f, year, month, day)
        }
        (1 | 2, b'-' | b'.') => {
            let day = c.number(1, 2)?;
            let separator = after as char;
            c.literal(separator);
            let month = if c.digits_ahead() > 0 {
                c.number(1, 2)?
            } else {
                month_of(c.word())?
            };
            c.literal(separator).then_some(())?;
            let year = c.number(4, 4)?;
            date(f, year, month, day)
        }
        (1 | 2, _) => {
            let day = c.number(1, 2)?;
            if let Some(two) = c.rest.get(..2)
                && ["st", "nd", "rd", "th"].contains(&two.to_ascii_lowercase().as_str())
            {
                c.rest = &c.rest[2..];
            }
            set(&mut f.day, day)
        }
        _ => None,
    }
}

fn iso_week(c: &mut Cursor<'_>, f: &mut Fields, year: i64) -> Option<()> {
    set(&mut f.iso_year, year)?;
    let week = c.number(2, 2)?;
    set(&mut f.iso_week, week)?;
    c.literal('-');
    if c.digits_ahead() == 1 {
        let day = c.number(1, 1)?;
        set(&mut f.iso_day, day)?;
    }
    Some(())
}

/// `am` or `pm`, and how long it is written.
fn meridian(s: &str) -> Option<(bool, usize)> {
    let spaces = s.len() - s.trim_start_matches(' ').len();
    let rest = s.get(spaces..)?.to_ascii_lowercase();
    for (text, pm) in [("a.m.", false), ("p.m.", true), ("am", false), ("pm", true)] {
        if rest.starts_with(text) {
            let after = rest.as_bytes().get(text.len());
            return (!after.is_some_and(u8::is_ascii_alphanumeric))
                .then_some((pm, spaces + text.len()));
        }
    }
    None
}

fn clock(c: &mut Cursor<'_>, f: &mut Fields) -> Option<()> {
    let mut time = [0; 4];
    let compact = c.digits_ahead() >= 4;
    time[0] = c.number(if compact { 2 } else { 1 }, 2)?;
    if compact {
        time[1] = c.number(2, 2)?;
        if c.digits_ahead() >= 2 {
            time[2] = c.number(2, 2)?;
        }
    } else if c.literal(':') {
        time[1] = c.number(1, 2)?;
        if c.literal(':') {
            time[2] = c.number(1, 2)?;
        }
    }
    if (c.rest.starts_with('.') || c.rest.starts_with(','))
        && c.rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit)
    {
        c.rest = &c.rest[1..];
        let n = c.digits_ahead();
        let digits = c.rest.get(..n.min(3))?;
        time[3] = digits.parse::<i64>().ok()? * 10i64.pow(3 - digits.len() as u32);
        c.rest = c.rest.get(n..)?;
    }
    if let Some((pm, used)) = meridian(c.rest) {
        if !(1..=12).contains(&time[0]) {
            return None;
        }
        time[0] = time[0] % 12 + if pm { 12 } else { 0 };
        c.rest = c.rest.get(used..)?;
    }
    if c.rest.starts_with('Z') {
        c.literal('Z');
        f.zone = Some(Zone::Utc);
    }
    f.time.replace(time).is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_forms() {
        let want = |y, mo, d, h, mi, s, l| {
            let c = Civil {
                year: y,
                month: mo,
                day: d,
                hour: h,
                minute: mi,
                second: s,
                millisecond: l,
            };
            c.to_ms()
        };
        let cases = [
            (
                "2017-02-08T12:10:40.787Z",
                want(2017, 2, 8, 12, 10, 40, 787),
            ),
            ("2017-02-08T12:10:40.787", want(2017, 2, 8, 12, 10, 40, 787)),
            ("2017-02-08 12:10", want(2017, 2, 8, 12, 10, 0, 0)),
            ("2017-02-08", want(2017, 2, 8, 0, 0, 0, 0)),
            ("2017-02-08T12:10:40+02:00", want(2017, 2, 8, 10, 10, 40, 0)),
            ("oct 20 2020", want(2020, 10, 20, 0, 0, 0, 0)),
            ("July 4th, 2017 11am UTC", want(2017, 7, 4, 11, 0, 0, 0)),
            ("4 July 2017 11:30 pm", want(2017, 7, 4, 23, 30, 0, 0)),
            (
                "WED jan 31 12:05:28 +03:30 1996",
                want(1996, 1, 31, 8, 35, 28, 0),
            ),
            ("20170708T112233", want(2017, 7, 8, 11, 22, 33, 0)),
            ("7/8/2017", want(2017, 7, 8, 0, 0, 0, 0)),
            ("2017-W27-6", want(2017, 7, 8, 0, 0, 0, 0)),
            ("2017-189", want(2017, 7, 8, 0, 0, 0, 0)),
            ("2018-03-05 +10:00", want(2018, 3, 4, 14, 0, 0, 0)),
            ("2018-03-05 -0300", want(2018, 3, 5, 3, 0, 0, 0)),
            ("2018-03-05 GMT+2", want(2018, 3, 4, 22, 0, 0, 0)),
            ("2018-03-05 12:00 GMT-3:30", want(2018, 3, 5, 15, 30, 0, 0)),
            ("2018-03-05 12:00 +5", want(2018, 3, 5, 7, 0, 0, 0)),
            ("2018-03-05 +1:", None),
            (
                "2017-07-08 12:00 America/New_York",
                want(2017, 7, 8, 16, 0, 0, 0),
            ),
            ("2017-13-01", None),
            ("2017-02-30", None),
            ("tomorrow", None),
            ("60.Monday1770/06:59", None),
            ("", None),
        ];
        for (s, want) in cases {
            assert_eq!(free_form(s, None).ok(), want, "{s}");
        }
    }
}
