//! The units of metrics' values.

/// A unit. Whole numbers without one are a [`Unit::Count`], a [`Unit::Code`], a [`Unit::Flag`] or an [`Unit::Info`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Of memory, disks and messages.
    Bytes,
    /// Of links.
    BytesPerSecond,
    /// Also of times since the Unix epoch.
    Seconds,
    /// From 0 to 1.
    Ratio,
    /// Of energy.
    Joules,
    /// Of power.
    Watts,
    /// Of clocks.
    Hertz,
    /// Of temperatures.
    Celsius,
    /// Things per second.
    PerSecond,
    /// Things, errors, steps.
    Count,
    /// A number that stands for a state, as the help text says.
    Code,
    /// 1 if it is so, else 0.
    Flag,
    /// Always 1: what there is to know is in the labels.
    Info,
    /// No unit, like a loss.
    Number,
}

impl Unit {
    /// Every unit; one whose name ends another's comes after it.
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

    /// How names of metrics with this unit end, counters' `_total` aside.
    #[must_use]
    pub fn suffix(self) -> Option<&'static str> {
        match self {
            Self::PerSecond => Some("per_second"),
            _ => self.open_metrics(),
        }
    }

    /// Its name in OpenMetrics, if it has one there.
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
