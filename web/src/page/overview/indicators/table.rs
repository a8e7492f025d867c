//! What the five indicators are: one definition each.

/// One indicator.
pub(super) struct Indicator {
    /// Its name.
    pub(super) title: &'static str,
    /// The band, in words.
    pub(super) band: &'static str,
    /// The band, in numbers; a side without a bound ends with the scale.
    pub(super) healthy: (f64, f64),
    /// The first with an answer is shown.
    pub(super) sources: &'static [Source],
}

/// Where an indicator's value comes from.
pub(super) struct Source {
    /// For people.
    pub(super) words: &'static str,
    /// PromQL with one value.
    pub(super) query: &'static str,
    /// Whether the band holds for it.
    pub(super) judged: bool,
}

/// Where a value stands against the band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Below,
    Within,
    Above,
}

impl Place {
    /// The badge's class.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Within => "badge badge-xs badge-success",
            Self::Below | Self::Above => "badge badge-xs badge-warning",
        }
    }

    /// The badge's word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Below => "below",
            Self::Within => "healthy",
            Self::Above => "above",
        }
    }
}

impl Indicator {
    /// Where `value` stands. The ends of the scale are no bounds: nothing is below 0 %, and more than 100 % of one's best is fine.
    pub(super) fn place(&self, value: f64) -> Place {
        let (low, high) = self.healthy;
        if value < low {
            Place::Below
        } else if value > high && high < 1.0 {
            Place::Above
        } else {
            Place::Within
        }
    }
}

/// Each averaged over what reports it. The bands of a training step are those of GPUs: what a step is made of on CPUs says
/// nothing about a cluster, so it is shown only where there is nothing else, and not judged. Nor is a rank in its first minute, when it compiles and
/// fills its caches, nor a GPU that nothing uses. Series of a run end with it.
pub(super) const INDICATORS: [Indicator; 5] = [
    Indicator {
        title: "GPU memory in use",
        band: "70–90 %",
        healthy: (0.7, 0.9),
        sources: &[
            judged(
                "average of busy GPUs",
                "avg(gpu_memory_used_bytes / gpu_memory_total_bytes and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05)",
            ),
            shown(
                "average of all GPUs, none is busy",
                "avg(gpu_memory_used_bytes / gpu_memory_total_bytes)",
            ),
        ],
    },
    Indicator {
        title: "Compute share",
        band: "over 85 %",
        healthy: (0.85, 1.0),
        sources: &[
            judged(
                "of a training step",
                "avg(train_compute_ratio and on (node, run, rank) train_info{device=~\"cuda.*\"} and on (node, run, rank) train_step offset 1m)",
            ),
            shown(
                "of a training step, in its first minute",
                "avg(train_compute_ratio and on (node, run, rank) train_info{device=~\"cuda.*\"})",
            ),
            judged(
                "SM activity of busy GPUs",
                "avg(gpu_sm_active_ratio and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05)",
            ),
            judged(
                "coarse utilization of busy GPUs",
                "avg(gpu_utilization_ratio and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05)",
            ),
            shown("of a training step on CPUs", "avg(train_compute_ratio)"),
            shown("coarse utilization of all GPUs", "avg(gpu_utilization_ratio)"),
        ],
    },
    Indicator {
        title: "Link bandwidth in use",
        band: "60–80 % while communicating",
        healthy: (0.6, 0.8),
        sources: &[
            judged(
                "NVLink of busy GPUs",
                "avg(link_utilization_ratio{link=\"nvlink\"} and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05)",
            ),
            judged(
                "PCIe of busy GPUs",
                "avg(link_utilization_ratio{link=\"pcie\"} and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05)",
            ),
            shown("average of all links", "avg(link_utilization_ratio)"),
        ],
    },
    Indicator {
        title: "Training throughput",
        band: "over 80 % of its own best",
        healthy: (0.8, 1.0),
        sources: &[judged(
            "against the best minute of each attempt",
            "sum(train_samples_per_second and train_samples_per_second_best) / sum(train_samples_per_second_best and train_samples_per_second)",
        )],
    },
    Indicator {
        title: "Waiting for gradient sync",
        band: "under 5 % of a step",
        healthy: (0.0, 0.05),
        sources: &[
            judged(
                "exposed wait in a step",
                "avg(train_sync_seconds / train_step_seconds and on (node, run, rank) train_info{device=~\"cuda.*\"} and on (node, run, rank) train_step offset 1m)",
            ),
            shown(
                "exposed wait in a step, on CPUs or in the first minute",
                "avg(train_sync_seconds / train_step_seconds)",
            ),
        ],
    },
];

const fn judged(words: &'static str, query: &'static str) -> Source {
    Source {
        words,
        query,
        judged: true,
    }
}

const fn shown(words: &'static str, query: &'static str) -> Source {
    Source {
        words,
        query,
        judged: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_have_two_sides_or_one() {
        let [memory, compute, _, throughput, sync] = &INDICATORS;
        for (indicator, value, place) in [
            (memory, 0.69, Place::Below),
            (memory, 0.9, Place::Within),
            (memory, 0.91, Place::Above),
            (compute, 1.0, Place::Within),
            (throughput, 1.07, Place::Within),
            (throughput, 0.5, Place::Below),
            (sync, 0.0, Place::Within),
            (sync, 0.06, Place::Above),
        ] {
            assert_eq!(indicator.place(value), place, "{} at {value}", indicator.title);
        }
    }
}
