//! What the GPU grid can be coloured by.

use domain::metric::{Unit, unit_of};

/// One way to colour the grid.
pub(super) struct Choice {
    /// Its name in the list.
    pub(super) title: &'static str,
    /// PromQL with a series a GPU.
    pub(super) query: &'static str,
    /// How its values are written.
    pub(super) unit: Unit,
    /// The values of the palest and of the strongest colour.
    pub(super) scale: (f64, f64),
}

impl Choice {
    /// Where `value` stands on the scale, 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let (low, high) = self.scale;
        ((value - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// All of them, the default first.
pub(super) static CHOICES: [Choice; 7] = [
    Choice {
        title: "memory in use",
        query: "gpu_memory_used_bytes / gpu_memory_total_bytes",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
    },
    Choice {
        title: "compute (SM activity, else utilization)",
        query: "gpu_sm_active_ratio or gpu_utilization_ratio",
        unit: unit_of("gpu_sm_active_ratio"),
        scale: (0.0, 1.0),
    },
    Choice {
        title: "NVLink bandwidth",
        query: "link_utilization_ratio{link=\"nvlink\"}",
        unit: unit_of("link_utilization_ratio"),
        scale: (0.0, 1.0),
    },
    Choice {
        title: "temperature",
        query: "gpu_temperature_celsius",
        unit: unit_of("gpu_temperature_celsius"),
        scale: (25.0, 95.0),
    },
    Choice {
        title: "power",
        query: "gpu_power_watts",
        unit: unit_of("gpu_power_watts"),
        scale: (0.0, 1_000.0),
    },
    Choice {
        title: "power against its limit",
        query: "gpu_power_watts / gpu_power_limit_watts",
        unit: Unit::Ratio,
        scale: (0.0, 1.0),
    },
    Choice {
        title: "SM clock against its highest",
        query: "gpu_sm_clock_hertz / gpu_sm_clock_max_hertz",
        unit: Unit::Ratio,
        scale: (0.3, 1.0),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_scale_have_its_end_colours() {
        let temperature = CHOICES
            .iter()
            .find(|choice| choice.title == "temperature")
            .expect("is in the list");
        let shares = [20.0, 25.0, 60.0, 95.0, 120.0].map(|value| temperature.share(value));
        assert_eq!(shares, [0.0, 0.0, 0.5, 1.0, 1.0]);
    }
}
