//! Units of the values of metrics.

/// Unit of a metric. A whole number without a unit is a [`Unit::Count`], a [`Unit::Code`], a [`Unit::Flag`] or an [`Unit::Info`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes: memory, disks and messages.
    Bytes,
    /// Bytes per second: bandwidth of links.
    BytesPerSecond,
    /// Seconds: durations, and times since the Unix epoch.
    Seconds,
    /// A ratio from 0 to 1.
    Ratio,
    /// Joules: energy.
    Joules,
    /// Watts: power.
    Watts,
    /// Hertz: clocks.
    Hertz,
    /// Degrees Celsius: temperatures.
    Celsius,
    /// Operations or items per second.
    PerSecond,
    /// A number of items, errors or steps.
    Count,
    /// A number that stands for a state; the help text lists them.
    Code,
    /// 1 if true, 0 if false.
    Flag,
    /// Always 1; the information is in the labels.
    Info,
    /// A number without a unit, for example a loss.
    Number,
}

impl Unit {
    /// All units. A unit whose suffix is the end of another unit's suffix comes after that unit.
    pub const ALL: [Self; 14] = [
        Self::BytesPerSecond,
        Self::PerSecond,
        Self::Bytes,
        Self::Seconds,
        Self::Ratio,
        Self::Joules,
        Self::Watts,
        Self::Hertz,
        Self::Celsius,
        Self::Count,
        Self::Code,
        Self::Flag,
        Self::Info,
        Self::Number,
    ];

    /// Returns the suffix of the names of metrics with this unit, without the `_total` of counters.
    #[must_use]
    pub fn suffix(self) -> Option<&'static str> {
        match self {
            Self::PerSecond => Some("per_second"),
            _ => self.open_metrics(),
        }
    }

    /// Returns the name of the unit in OpenMetrics, if it has one.
    #[must_use]
    pub fn open_metrics(self) -> Option<&'static str> {
        Some(match self {
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes_per_second",
            Self::Seconds => "seconds",
            Self::Ratio => "ratio",
            Self::Joules => "joules",
            Self::Watts => "watts",
            Self::Hertz => "hertz",
            Self::Celsius => "celsius",
            Self::PerSecond | Self::Count | Self::Code | Self::Flag | Self::Info | Self::Number => {
                return None;
            }
        })
    }
}
