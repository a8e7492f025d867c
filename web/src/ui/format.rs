//! Formats numbers for users.

use domain::metric::Unit;

/// Returns the name of a unit in `chart.js`.
pub(crate) fn chart_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Ratio => "ratio",
        Unit::Seconds => "seconds",
        Unit::Bytes => "bytes",
        Unit::Celsius => "celsius",
        Unit::Watts => "watts",
        Unit::Hertz => "hertz",
        _ => "plain",
    }
}

/// Formats a value with its unit and about three digits.
pub(crate) fn show(value: f64, unit: Unit) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    match unit {
        Unit::Ratio => format!("{} %", fixed(value * 100.0, 1)),
        Unit::Seconds if value.abs() < 1.0 => format!("{} ms", fixed(value * 1_000.0, 1)),
        Unit::Seconds => format!("{} s", fixed(value, 2)),
        Unit::Celsius => format!("{} °C", fixed(value, 0)),
        Unit::Watts => format!("{} W", fixed(value, 0)),
        _ => scaled(value),
    }
}

/// Formats a value with this number of decimals. It uses integers, because the library's formatting of floats is as large as a whole page.
pub(crate) fn fixed(value: f64, digits: u32) -> String {
    let unit = 10_u64.pow(digits);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is shown this way is far below 2^53"
    )]
    let whole = (value.abs() * unit as f64).round() as u64;
    let sign = if value < 0.0 && whole > 0 { "-" } else { "" };
    let (before, behind) = (whole / unit, whole % unit);
    match digits as usize {
        0 => format!("{sign}{before}"),
        digits => format!("{sign}{before}.{behind:0digits$}"),
    }
}

/// Formats the relative change of a ratio of two values: `+25.0 %`, `−3.0 %`.
pub(crate) fn percent_change(ratio: f64) -> String {
    let change = fixed((ratio - 1.0) * 100.0, 1);
    match change.strip_prefix('-') {
        Some(less) => format!("−{less} %"),
        None if ratio > 1.0 => format!("+{change} %"),
        None => format!("{change} %"),
    }
}

/// Parses a number in Prometheus' notation.
pub(crate) fn number(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ => finite(text),
    }
}

/// The browser parses numbers, so the program contains no code for it.
#[cfg(target_arch = "wasm32")]
fn finite(text: &str) -> Option<f64> {
    Some(js_sys::Number::parse_float(text)).filter(|value| value.is_finite())
}

/// The tests run without a browser.
#[cfg(not(target_arch = "wasm32"))]
fn finite(text: &str) -> Option<f64> {
    text.parse().ok()
}

/// Formats bytes in a suitable unit.
pub(crate) fn bytes(count: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1_024.0 {
            let digits = u32::from(value < 100.0 && unit != "B");
            return format!("{} {unit}", fixed(value, digits));
        }
        value /= 1_024.0;
    }
    format!("{} TiB", fixed(value, 1))
}

fn scaled(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e5 {
        return fixed(value, 0);
    }
    if size >= 1e15 || (size > 0.0 && size < 1e-3) {
        return with_exponent(value);
    }
    for (factor, prefix) in [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")] {
        if size >= factor {
            return format!("{}{prefix}", fixed(value / factor, 2));
        }
    }
    fixed(value, if size < 1.0 { 4 } else { 2 })
}

/// Formats as `3.00e30`. Multiplies by ten, at most three hundred times: a logarithm is less exact.
fn with_exponent(value: f64) -> String {
    let (mut digits, mut exponent) = (value, 0);
    while digits.abs() >= 10.0 {
        digits /= 10.0;
        exponent += 1;
    }
    while digits.abs() < 1.0 {
        digits *= 10.0;
        exponent -= 1;
    }
    format!("{}e{exponent}", fixed(digits, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short_and_carry_their_unit() {
        for (value, unit, expected) in [
            (0.4567, Unit::Ratio, "45.7 %"),
            (0.0123, Unit::Seconds, "12.3 ms"),
            (1.5, Unit::Seconds, "1.50 s"),
            (64.6, Unit::Celsius, "65 °C"),
            (12_345.6, Unit::Number, "12.35 k"),
            (9.0, Unit::Number, "9"),
            (0.5, Unit::Number, "0.5000"),
            (3e30, Unit::Number, "3.00e30"),
            (2e-7, Unit::Number, "2.00e-7"),
            (f64::NAN, Unit::Ratio, "NaN"),
            (f64::NEG_INFINITY, Unit::Number, "−∞"),
        ] {
            assert_eq!(show(value, unit), expected);
        }
    }

    #[test]
    fn digits_behind_the_point_are_rounded() {
        for (value, digits, expected) in [
            (0.0, 1, "0.0"),
            (-0.04, 1, "0.0"),
            (-12.35, 1, "-12.4"),
            (1.999, 2, "2.00"),
            (7.05, 2, "7.05"),
            (99.5, 0, "100"),
        ] {
            assert_eq!(fixed(value, digits), expected);
        }
    }

    #[test]
    fn a_change_has_a_sign_that_is_no_hyphen() {
        for (ratio, expected) in [
            (1.25, "+25.0 %"),
            (0.75, "−25.0 %"),
            (1.0, "0.0 %"),
            (0.9999, "0.0 %"),
        ] {
            assert_eq!(percent_change(ratio), expected);
        }
    }

    #[test]
    fn numbers_are_read_as_prometheus_writes_them() {
        assert_eq!(number("1.5e-3"), Some(0.0015));
        assert_eq!(number("-Inf"), Some(f64::NEG_INFINITY));
        assert!(number("NaN").is_some_and(f64::is_nan));
        assert_eq!(number("none"), None);
    }

    #[test]
    fn bytes_are_short() {
        for (count, expected) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (734_003_200, "700 MiB"),
            (3 << 40, "3.0 TiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }
}
