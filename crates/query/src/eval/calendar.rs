//! Parts of a date in UTC, computed from seconds since the epoch (proleptic Gregorian calendar).

use crate::function::Function;

const DAY_S: i64 = 86_400;

/// Returns the function that computes the part of a date.
pub(super) fn part(function: Function) -> Option<fn(f64) -> f64> {
    Some(match function {
        Function::Minute => |time| (second_of_day(time) / 60 % 60) as f64,
        Function::Hour => |time| (second_of_day(time) / 3_600) as f64,
        // 1970-01-01 was a Thursday; Sunday is 0.
        Function::DayOfWeek => |time| ((days(time) + 4).rem_euclid(7)) as f64,
        Function::DayOfMonth => |time| date(days(time)).day as f64,
        Function::DayOfYear => |time| {
            let date = date(days(time));
            (days(time) - days_before(date.year, 1) + 1) as f64
        },
        Function::DaysInMonth => |time| {
            let Date { year, month, .. } = date(days(time));
            let next = if month == 12 {
                (year + 1, 1)
            } else {
                (year, month + 1)
            };
            (days_before(next.0, next.1) - days_before(year, month)) as f64
        },
        Function::Month => |time| date(days(time)).month as f64,
        Function::Year => |time| date(days(time)).year as f64,
        _ => return None,
    })
}

struct Date {
    year: i64,
    month: i64,
    day: i64,
}

/// Rounds to whole seconds, towards zero as in Prometheus. The cast saturates far beyond any date, and the bound prevents overflow of sums.
fn whole(time: f64) -> i64 {
    (time as i64).clamp(-i64::MAX / 4, i64::MAX / 4)
}

fn days(time: f64) -> i64 {
    whole(time).div_euclid(DAY_S)
}

fn second_of_day(time: f64) -> i64 {
    whole(time).rem_euclid(DAY_S)
}

/// Returns the date of a day since the epoch. Years begin in March, so that the leap day is the last day of a year; 400 years have 146,097
/// days (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: i64) -> Date {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    Date { year, month, day }
}

/// Returns the days from the epoch to the first day of a month: the inverse of [`date`].
fn days_before(year: i64, month: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * march_month + 2) / 5;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn dates_have_their_parts() {
        let parts = [
            Function::Year,
            Function::Month,
            Function::DayOfMonth,
            Function::DayOfWeek,
            Function::DayOfYear,
            Function::DaysInMonth,
            Function::Hour,
            Function::Minute,
        ];
        for (time, expected) in [
            (0.0, [1970, 1, 1, 4, 1, 31, 0, 0]),
            // 2024-02-29 23:59:59, a leap day and a Thursday.
            (1_709_251_199.0, [2024, 2, 29, 4, 60, 29, 23, 59]),
            (1_735_689_599.0, [2024, 12, 31, 2, 366, 31, 23, 59]),
            (-1.0, [1969, 12, 31, 3, 365, 31, 23, 59]),
        ] {
            let found = parts.map(|function| part(function).unwrap()(time) as i64);
            assert_eq!(found, expected, "{time}");
        }
    }

    #[test]
    fn no_time_is_too_far() {
        for time in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            assert!(part(Function::Year).unwrap()(time).is_finite());
            assert!(part(Function::DayOfYear).unwrap()(time).is_finite());
        }
    }
}
