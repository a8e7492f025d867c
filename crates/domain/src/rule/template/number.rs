//! Prints numbers like Go's `fmt` and Prometheus' `humanize` functions.

/// `%g`: the shortest text that parses to the same number, or with `digits` significant digits. Very large and very small numbers have an
/// exponent.
pub(super) fn general(value: f64, digits: Option<usize>) -> String {
    if let Some(text) = special(value) {
        return text;
    }
    let digits = digits.map(|digits| digits.max(1));
    let written = match digits {
        None => format!("{value:e}"),
        Some(digits) => format!("{value:.*e}", digits - 1),
    };
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let limit = digits.map_or(SHORTEST_EXPONENT_MAX, |digits| {
        i32::try_from(digits).unwrap_or(i32::MAX)
    });
    let mantissa = if mantissa.contains('.') {
        mantissa.trim_end_matches('0').trim_end_matches('.')
    } else {
        mantissa
    };
    if exponent < -4 || exponent >= limit {
        return format!("{mantissa}{}", exponent_text(exponent));
    }
    plain(mantissa, exponent)
}

/// As in Go: without a number of digits, numbers of 10^6 or more have an exponent.
const SHORTEST_EXPONENT_MAX: i32 = 6;

/// `%e` with this number of digits after the decimal point.
pub(super) fn exponential(value: f64, digits: usize) -> String {
    if let Some(text) = special(value) {
        return text;
    }
    let written = format!("{value:.digits$e}");
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    format!(
        "{mantissa}{}",
        exponent_text(exponent.parse().unwrap_or_default())
    )
}

/// `%f` with this number of digits after the decimal point.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    special(value).unwrap_or_else(|| format!("{value:.digits$}"))
}

fn special(value: f64) -> Option<String> {
    let text = if value.is_nan() {
        "NaN"
    } else if value == f64::INFINITY {
        "+Inf"
    } else if value == f64::NEG_INFINITY {
        "-Inf"
    } else {
        return None;
    };
    Some(text.to_owned())
}

fn exponent_text(exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("e{sign}{:02}", exponent.unsigned_abs())
}

/// Prints a mantissa with its decimal point moved by the exponent.
fn plain(mantissa: &str, exponent: i32) -> String {
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    match usize::try_from(exponent) {
        Err(_) => {
            let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
            format!("{sign}0.{zeros}{digits}")
        }
        Ok(whole) if digits.len() <= whole + 1 => {
            format!("{sign}{digits}{}", "0".repeat(whole + 1 - digits.len()))
        }
        Ok(whole) => format!("{sign}{}.{}", &digits[..=whole], &digits[whole + 1..]),
    }
}

/// `%.4g`, which all `humanize` functions of Prometheus use.
fn four(value: f64) -> String {
    general(value, Some(4))
}

const SMALL: [&str; 8] = ["m", "u", "n", "p", "f", "a", "z", "y"];

/// Prints a number like `1.235M`.
pub(super) fn humanize(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return four(value);
    }
    if value.abs() >= 1.0 {
        return enlarged(value, 1_000.0, &["k", "M", "G", "T", "P", "E", "Z", "Y"]);
    }
    let (value, prefix) = shrunk(value);
    format!("{}{prefix}", four(value))
}

/// Prints a number like `1.5Mi`.
pub(super) fn humanize_1024(value: f64) -> String {
    if value.abs() <= 1.0 || !value.is_finite() {
        return four(value);
    }
    enlarged(value, 1_024.0, &["ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"])
}

fn enlarged(mut value: f64, base: f64, prefixes: &[&'static str]) -> String {
    let mut prefix = "";
    for next in prefixes {
        if value.abs() < base {
            break;
        }
        (prefix, value) = (next, value / base);
    }
    format!("{}{prefix}", four(value))
}

fn shrunk(mut value: f64) -> (f64, &'static str) {
    let mut prefix = "";
    for next in SMALL {
        if value.abs() >= 1.0 {
            break;
        }
        (prefix, value) = (next, value * 1_000.0);
    }
    (value, prefix)
}

/// Prints a ratio as a percentage: `12.34%` for 0.1234.
pub(super) fn humanize_percentage(value: f64) -> String {
    format!("{}%", four(value * 100.0))
}

/// Prints a duration like `1h 0m 5s`.
pub(super) fn humanize_duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return four(seconds);
    }
    if seconds == 0.0 {
        return format!("{}s", four(seconds));
    }
    if seconds.abs() < 1.0 {
        let (value, prefix) = shrunk(seconds);
        return format!("{}{prefix}s", four(value));
    }
    let sign = if seconds < 0.0 { "-" } else { "" };
    let seconds = seconds.abs();
    // The cast saturates at 2^64 seconds, which is beyond any real duration.
    let whole = seconds as u64;
    let (days, hours, minutes, rest) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{sign}{}s", four(seconds)),
        (0, 0, _) => format!("{sign}{minutes}m {rest}s"),
        (0, ..) => format!("{sign}{hours}h {minutes}m {rest}s"),
        _ => format!("{sign}{days}d {hours}h {minutes}m {rest}s"),
    }
}
