//! Times in UTC, printed as in Go.

use super::number;
use super::value::Value;

/// Converts seconds to milliseconds.
pub(super) fn at_seconds(seconds: f64) -> Result<i64, String> {
    if !seconds.is_finite() {
        return Err("value is NaN or Inf".to_owned());
    }
    let nanoseconds = seconds * 1e9;
    if nanoseconds.abs() >= i64::MAX as f64 {
        return Err(format!(
            "{} cannot be represented as a nanoseconds timestamp since it overflows int64",
            number::general(seconds, None)
        ));
    }
    Ok(nanoseconds as i64 / 1_000_000)
}

/// Prints a time in seconds as `2015-07-01 20:10:51.781 +0000 UTC`. A value that is not a time is printed as a number.
pub(super) fn humanized(seconds: f64) -> Result<String, String> {
    if !seconds.is_finite() {
        return Ok(number::general(seconds, Some(4)));
    }
    at_seconds(seconds).map(written)
}

/// Prints `2015-07-01 20:10:51.781 +0000 UTC`.
pub(super) fn written(ms: i64) -> String {
    let at = Civil::of(ms);
    let fraction = match at.ms {
        0 => String::new(),
        ms => format!(".{ms:03}").trim_end_matches('0').to_owned(),
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}{fraction} +0000 UTC",
        at.year, at.month, at.day, at.hour, at.minute, at.second
    )
}

/// Prints a duration as in Go: `1h5m0s`, `250ms`.
pub(super) fn duration(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let seconds = seconds.abs();
    if seconds == 0.0 {
        return "0s".to_owned();
    }
    for (unit, factor) in [("ns", 1e9), ("µs", 1e6), ("ms", 1e3)] {
        if seconds * factor < 1_000.0 {
            return format!("{sign}{}{unit}", number::general(seconds * factor, None));
        }
    }
    let whole = seconds as u64;
    let (hours, minutes) = (whole / 3_600, whole / 60 % 60);
    let rest = seconds - (hours * 3_600 + minutes * 60) as f64;
    let rest = number::general((rest * 1e9).round() / 1e9, None);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{rest}s"),
        (0, _) => format!("{sign}{minutes}m{rest}s"),
        _ => format!("{sign}{hours}h{minutes}m{rest}s"),
    }
}

/// Calls a method of a time. Only the methods that rule files use are supported.
pub(super) fn method(ms: i64, name: &str, arguments: &[Value]) -> Result<Value, String> {
    let at = Civil::of(ms);
    match (name, arguments) {
        ("Format", [Value::Text(layout)]) => Ok(Value::text(at.format(layout))),
        ("Unix", []) => Ok(Value::Int(ms.div_euclid(1_000))),
        ("UnixMilli", []) => Ok(Value::Int(ms)),
        ("Year", []) => Ok(Value::Int(at.year)),
        ("Month", []) => Ok(Value::text(MONTHS[at.month - 1])),
        ("Day", []) => Ok(Value::Int(at.day)),
        ("Hour", []) => Ok(Value::Int(at.hour)),
        ("Minute", []) => Ok(Value::Int(at.minute)),
        ("Second", []) => Ok(Value::Int(at.second)),
        ("Weekday", []) => Ok(Value::text(WEEKDAYS[at.weekday])),
        ("UTC", []) => Ok(Value::Time(ms)),
        ("String", []) => Ok(Value::text(written(ms))),
        _ => Err(format!(
            "can't evaluate field {name} in type *time.Time, or not with these arguments"
        )),
    }
}

const MONTHS: [&str; 12] = [
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
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

struct Civil {
    year: i64,
    /// 1 to 12.
    month: usize,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    ms: i64,
    /// 0 is Sunday.
    weekday: usize,
}

impl Civil {
    /// Converts days to a date with Howard Hinnant's `civil_from_days`: years begin in March, in eras of 400 years.
    fn of(ms: i64) -> Self {
        let days = ms.div_euclid(86_400_000);
        let of_day = ms.rem_euclid(86_400_000);
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march_month = (5 * of_year + 2) / 153;
        let month = if march_month < 10 {
            march_month + 3
        } else {
            march_month - 9
        };
        Self {
            year: year + era * 400 + i64::from(month <= 2),
            month: month as usize,
            day: of_year - (153 * march_month + 2) / 5 + 1,
            hour: of_day / 3_600_000,
            minute: of_day / 60_000 % 60,
            second: of_day / 1_000 % 60,
            ms: of_day % 1_000,
            weekday: (days + 4).rem_euclid(7) as usize,
        }
    }

    /// Formats with Go's layouts, which consist of the parts of "Mon Jan 2 15:04:05 MST 2006".
    fn format(&self, layout: &str) -> String {
        let hour_12 = (self.hour + 11) % 12 + 1;
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let month = MONTHS[self.month - 1];
        let weekday = WEEKDAYS[self.weekday];
        let parts = [
            ("January", month.to_owned()),
            ("Jan", month[..3].to_owned()),
            ("Monday", weekday.to_owned()),
            ("Mon", weekday[..3].to_owned()),
            ("MST", "UTC".to_owned()),
            ("2006", format!("{:04}", self.year)),
            ("Z07:00", "Z".to_owned()),
            ("-07:00", "+00:00".to_owned()),
            ("-0700", "+0000".to_owned()),
            ("01", format!("{:02}", self.month)),
            ("02", format!("{:02}", self.day)),
            ("03", format!("{hour_12:02}")),
            ("04", format!("{:02}", self.minute)),
            ("05", format!("{:02}", self.second)),
            ("06", format!("{:02}", self.year.rem_euclid(100))),
            ("15", format!("{:02}", self.hour)),
            (".000", format!(".{:03}", self.ms)),
            ("PM", half.to_owned()),
            ("pm", half.to_lowercase()),
            ("1", self.month.to_string()),
            ("2", self.day.to_string()),
            ("3", hour_12.to_string()),
            ("4", self.minute.to_string()),
            ("5", self.second.to_string()),
        ];
        let (mut out, mut rest) = (String::new(), layout);
        while let Some(c) = rest.chars().next() {
            if let Some((part, text)) = parts.iter().find(|(part, _)| rest.starts_with(part)) {
                out.push_str(text);
                rest = &rest[part.len()..];
            } else {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        out
    }
}
