//! Numbers for people.

/// What a number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 0 to 1, shown in percent.
    Ratio,
    /// Seconds.
    Seconds,
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
            Self::Celsius | Self::Watts | Self::Plain => "plain",
        }
    }
}

/// A value with its unit, three digits or so.
pub(crate) fn show(value: f64, unit: Unit) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    match unit {
        Unit::Ratio => format!("{:.1} %", value * 100.0),
        Unit::Seconds if value.abs() < 1.0 => format!("{:.1} ms", value * 1_000.0),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::Celsius => format!("{value:.0} °C"),
        Unit::Watts => format!("{value:.0} W"),
        Unit::Plain => scaled(value),
    }
}

fn scaled(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e5 {
        return format!("{value}");
    }
    if size >= 1e15 || (size > 0.0 && size < 1e-3) {
        return format!("{value:.2e}");
    }
    for (factor, prefix) in [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")] {
        if size >= factor {
            return format!("{:.2}{prefix}", value / factor);
        }
    }
    let digits = if size < 1.0 { 4 } else { 2 };
    format!("{value:.digits$}")
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
            (12_345.6, Unit::Plain, "12.35 k"),
            (9.0, Unit::Plain, "9"),
            (0.5, Unit::Plain, "0.5000"),
            (3e30, Unit::Plain, "3.00e30"),
            (2e-7, Unit::Plain, "2.00e-7"),
            (f64::NAN, Unit::Ratio, "NaN"),
            (f64::NEG_INFINITY, Unit::Plain, "−∞"),
        ] {
            assert_eq!(show(value, unit), expected);
        }
    }
}
