//! Numbers and times for people.

use domain::time::{DisplayDuration, TimestampMs};

/// What a number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 0 to 1, shown in percent.
    Ratio,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Degrees Celsius.
    Celsius,
    /// Watts.
    Watts,
    /// Anything else.
    Plain,
}

impl Unit {
    /// The name the charts know it by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ratio => "ratio",
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Celsius => "celsius",
            Self::Watts => "watts",
            Self::Plain => "plain",
        }
    }
}

/// A value with its unit, three digits or so.
pub(crate) fn show(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".to_owned()
        } else {
            "∞".to_owned()
        };
    }
    match unit {
        Unit::Ratio => format!("{:.1} %", value * 100.0),
        Unit::Seconds if value.abs() < 1.0 => format!("{:.1} ms", value * 1_000.0),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::Bytes => format!("{}B", scaled(value)),
        Unit::Celsius => format!("{value:.0} °C"),
        Unit::Watts => format!("{value:.0} W"),
        Unit::Plain => scaled(value).trim_end().to_owned(),
    }
}

fn scaled(value: f64) -> String {
    for (factor, prefix) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= factor {
            return format!("{:.2} {prefix}", value / factor);
        }
    }
    format!("{value:.2} ")
}

/// `3m20s ago`, to the second.
pub(crate) fn ago(at_ms: TimestampMs) -> String {
    let now_ms = js_sys::Date::now();
    #[expect(clippy::cast_possible_truncation, reason = "the browser's clock fits")]
    let seconds = ((now_ms as i64) - at_ms).max(0) / 1_000;
    format!("{} ago", DisplayDuration(seconds * 1_000))
}

/// The local time of day.
pub(crate) fn clock(at_ms: TimestampMs) -> String {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
    let date = js_sys::Date::new(&(at_ms as f64).into());
    format!(
        "{:02}:{:02}:{:02}",
        date.get_hours(),
        date.get_minutes(),
        date.get_seconds()
    )
}
