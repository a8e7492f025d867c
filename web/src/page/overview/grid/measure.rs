//! The measures by which the GPU grid can be coloured, and their scales.

use domain::metric::{Unit, unit_of};

use crate::language::{marked, tr_with};
use crate::ui::{fixed, shade, show};

/// A measure of each GPU.
pub(super) struct Measure {
    /// The name in the address.
    pub(super) key: &'static str,
    /// The name in the list.
    pub(super) title: &'static str,
    /// PromQL with one series per GPU.
    pub(super) query: &'static str,
    /// The unit of the values.
    pub(super) unit: Unit,
    /// The values of the first and of the last colour.
    pub(super) scale: (f64, f64),
    /// The difference to the peers that has the strongest colour.
    pub(super) span: f64,
}

/// What the colour of a cell shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// The difference to the median of the peers.
    Difference,
    /// The value.
    Value,
}

/// The colour number of a GPU whose node is down.
pub(super) const DOWN: u8 = 255;

impl Measure {
    /// Returns the colour number of a value.
    pub(super) fn shade(&self, value: f64) -> u8 {
        let (low, high) = self.scale;
        shade((value - low) / (high - low))
    }

    /// Returns the colour number of a difference; the middle colour means no difference.
    pub(super) fn shade_difference(&self, difference: f64) -> u8 {
        shade(0.5 + difference / (2.0 * self.span))
    }

    /// Returns a difference as text: `38.0 points below`.
    pub(super) fn difference(&self, difference: f64) -> String {
        let size = difference.abs();
        let (text, size) = match (self.unit, difference < 0.0) {
            (Unit::Ratio, true) => (marked("{size} points below"), fixed(size * 100.0, 1)),
            (Unit::Ratio, false) => (marked("{size} points above"), fixed(size * 100.0, 1)),
            (unit, true) => (marked("{size} below"), show(size, unit)),
            (unit, false) => (marked("{size} above"), show(size, unit)),
        };
        tr_with(text, &[("size", &size)])
    }
}

/// Returns the measure with this name, else the default.
pub(super) fn measure(key: Option<&str>) -> &'static Measure {
    let named = MEASURES.iter().find(|measure| Some(measure.key) == key);
    named.unwrap_or(&MEASURES[0])
}

/// All measures, the default first.
pub(super) static MEASURES: [Measure; 7] = [
    Measure {
        key: "compute",
        title: marked("compute (SM activity or utilization)"),
        query: "gpu_sm_active_ratio or gpu_utilization_ratio",
        unit: unit_of("gpu_sm_active_ratio"),
        scale: (0.0, 1.0),
        span: 0.4,
    },
    Measure {
        key: "memory",
        title: marked("memory in use"),
        query: "gpu_memory_used_bytes / gpu_memory_total_bytes",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
        span: 0.4,
    },
    Measure {
        key: "nvlink",
        title: marked("NVLink bandwidth"),
        query: "link_utilization_ratio{link=\"nvlink\"}",
        unit: unit_of("link_utilization_ratio"),
        scale: (0.0, 1.0),
        span: 0.4,
    },
    Measure {
        key: "temperature",
        title: marked("temperature"),
        query: "gpu_temperature_celsius",
        unit: unit_of("gpu_temperature_celsius"),
        scale: (25.0, 95.0),
        span: 15.0,
    },
    Measure {
        key: "power",
        title: marked("power"),
        query: "gpu_power_watts",
        unit: unit_of("gpu_power_watts"),
        scale: (0.0, 1_000.0),
        span: 200.0,
    },
    Measure {
        key: "power-limit",
        title: marked("power / power limit"),
        query: "gpu_power_watts / gpu_power_limit_watts",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
        span: 0.4,
    },
    Measure {
        key: "clock",
        title: marked("SM clock / maximum"),
        query: "gpu_sm_clock_hertz / gpu_sm_clock_max_hertz",
        unit: Unit::Ratio,
        scale: (0.3, 1.0),
        span: 0.3,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::UNMEASURED;

    #[test]
    fn values_beyond_the_scale_have_its_end_colours() {
        let temperature = measure(Some("temperature"));
        let shades = [20.0, 25.0, 60.0, 95.0, 120.0, f64::NAN].map(|value| temperature.shade(value));
        assert_eq!(shades, [1, 1, 128, 254, 254, UNMEASURED]);
    }

    #[test]
    fn no_difference_has_the_middle_colour() {
        let compute = measure(None);
        let shades = [-0.5, -0.4, 0.0, 0.4, f64::NAN].map(|value| compute.shade_difference(value));
        assert_eq!(shades, [1, 1, 128, 254, UNMEASURED]);
    }

    #[test]
    fn differences_have_words() {
        let compute = measure(Some("compute"));
        let temperature = measure(Some("temperature"));
        assert_eq!(compute.difference(-0.38), "38.0 points below");
        assert_eq!(temperature.difference(12.4), "12 °C above");
    }
}
