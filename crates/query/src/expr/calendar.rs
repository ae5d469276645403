//! The proleptic Gregorian calendar over all 64-bit milliseconds.

/// A moment taken apart, without a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millisecond: i64,
}

pub(crate) const DAY_MS: i64 = 86_400_000;

/// Days since 1970-01-01 of a date (Howard Hinnant's algorithm). `month` from 1 to 12; `day` may be
/// anything.
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year + day - 1 - 719_468
}

/// Year, month, day of days since 1970-01-01.
pub(crate) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * of_year + 2) / 153;
    let day = of_year - (153 * m + 2) / 5 + 1;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

impl Civil {
    pub(crate) fn of_ms(ms: i64) -> Civil {
        let (year, month, day) = civil_from_days(ms.div_euclid(DAY_MS));
        let t = ms.rem_euclid(DAY_MS);
        Civil {
            year,
            month,
            day,
            hour: t / 3_600_000,
            minute: t / 60_000 % 60,
            second: t / 1000 % 60,
            millisecond: t % 1000,
        }
    }

    /// Milliseconds since 1970; fields out of range carry over. `None` on overflow.
    pub(crate) fn to_ms(self) -> Option<i64> {
        let months = self
            .year
            .checked_mul(12)?
            .checked_add(self.month.checked_sub(1)?)?;
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
        // Far beyond what 64 bits of milliseconds hold.
        if year.abs() > 400_000_000 {
            return None;
        }
        let days = days_from_civil(year, month, 1).checked_add(self.day.checked_sub(1)?)?;
        days.checked_mul(DAY_MS)?
            .checked_add(self.hour.checked_mul(3_600_000)?)?
            .checked_add(self.minute.checked_mul(60_000)?)?
            .checked_add(self.second.checked_mul(1000)?)?
            .checked_add(self.millisecond)
    }

    pub(crate) fn days(self) -> i64 {
        days_from_civil(self.year, self.month, self.day)
    }

    /// 1 is Sunday, 7 Saturday.
    pub(crate) fn day_of_week(self) -> i64 {
        (self.days() + 4).rem_euclid(7) + 1
    }

    /// 1 is Monday, 7 Sunday.
    pub(crate) fn iso_day_of_week(self) -> i64 {
        (self.days() + 3).rem_euclid(7) + 1
    }

    /// From 1.
    pub(crate) fn day_of_year(self) -> i64 {
        self.days() - days_from_civil(self.year, 1, 1) + 1
    }

    /// Week of the year, weeks begin on Sunday; days before the first Sunday are in week 0.
    pub(crate) fn week(self) -> i64 {
        (self.day_of_year() + 7 - self.day_of_week()) / 7
    }

    /// ISO 8601 year and week.
    pub(crate) fn iso_week(self) -> (i64, i64) {
        // The week belongs to the year of its Thursday.
        let thursday = self.days() - self.iso_day_of_week() + 4;
        let (year, _, _) = civil_from_days(thursday);
        (year, (thursday - days_from_civil(year, 1, 1)) / 7 + 1)
    }
}

/// Days since 1970-01-01 of a day of an ISO week; numbers out of range carry over.
pub(crate) fn days_from_iso_week(year: i64, week: i64, day: i64) -> i64 {
    let january_4 = days_from_civil(year, 1, 4);
    let monday = january_4 - (january_4 + 3).rem_euclid(7);
    monday + (week - 1) * 7 + day - 1
}

pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for ms in [
            0,
            -1,
            i64::MAX,
            i64::MIN + DAY_MS,
            951_782_400_000,
            -62_135_596_800_000,
        ] {
            assert_eq!(Civil::of_ms(ms).to_ms(), Some(ms));
        }
    }

    #[test]
    fn weeks() {
        let of = |y, m, d| Civil {
            year: y,
            month: m,
            day: d,
            hour: 0,
            minute: 0,
            second: 0,
            millisecond: 0,
        };
        assert_eq!(of(2016, 1, 1).iso_week(), (2015, 53));
        assert_eq!(of(2016, 1, 4).iso_week(), (2016, 1));
        assert_eq!(of(2016, 1, 1).week(), 0);
        assert_eq!(of(2016, 1, 3).week(), 1);
        assert_eq!(of(2016, 1, 3).day_of_week(), 1);
        assert_eq!(of(2016, 12, 31).day_of_year(), 366);
        assert_eq!(days_from_iso_week(2017, 1, 1), of(2017, 1, 2).days());
    }
}
