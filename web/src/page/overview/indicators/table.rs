//! The definitions of the five indicators.

use crate::language::{marked, tr};

/// One indicator.
pub(super) struct Indicator {
    /// Its name.
    pub(super) title: &'static str,
    /// The band as text.
    pub(super) band: &'static str,
    /// The band as numbers. A side without a bound has the end of the scale.
    pub(super) healthy: (f64, f64),
    /// Which end of the scale is bad.
    pub(super) worst: Worst,
    /// The sources; the first with a result is shown.
    pub(super) sources: &'static [Source],
}

/// The source of an indicator's values.
pub(super) struct Source {
    /// Description for users.
    pub(super) words: &'static str,
    /// PromQL with one value per GPU or rank.
    pub(super) query: &'static str,
    /// Whether the values belong to GPUs or ranks.
    pub(super) of: Subject,
    /// Whether the band applies to this source.
    pub(super) judged: bool,
}

/// Which end of the scale is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worst {
    Lowest,
    Highest,
}

/// What a source measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Gpu,
    Rank,
}

/// The position of a value relative to the band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BandPosition {
    Below,
    Within,
    Above,
}

impl BandPosition {
    /// Returns the CSS class for colour and shape.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Within => "state state-ok",
            Self::Below | Self::Above => "state state-warning",
        }
    }

    /// Returns the position as a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Below => tr("below"),
            Self::Within => tr("healthy"),
            Self::Above => tr("above"),
        }
    }
}

impl Source {
    /// Returns PromQL for the median, the worst and the number of values, distinguished by the label `is`; for one run or all runs.
    pub(super) fn summary(&self, worst: Worst, run: Option<&str>) -> String {
        let values = self.values(run);
        let end = match worst {
            Worst::Lowest => "bottomk",
            Worst::Highest => "topk",
        };
        let part =
            |name: &str, query: String| format!("label_replace({query}, \"is\", \"{name}\", \"\", \"\")");
        [
            part("median", format!("quantile(0.5, {values})")),
            part("worst", format!("{end}(1, {values})")),
            part("count", format!("count({values})")),
        ]
        .join(" or ")
    }

    fn values(&self, run: Option<&str>) -> String {
        let Some(run) = run else {
            return self.query.to_owned();
        };
        let run = run.replace('\\', "\\\\").replace('"', "\\\"");
        match self.of {
            Subject::Rank => format!(
                "({}) and on (run) group by (run) (train_step{{run=\"{run}\"}})",
                self.query
            ),
            Subject::Gpu => {
                format!(
                    "({}) and on (node, gpu) gpu_assignment_info{{run=\"{run}\"}}",
                    self.query
                )
            }
        }
    }
}

impl Indicator {
    /// Returns the position of `value`. The ends of the scale are not bounds: nothing is below 0 %, and more than 100 % of the best minute
    /// is good.
    pub(super) fn position(&self, value: f64) -> BandPosition {
        let (low, high) = self.healthy;
        if value < low {
            BandPosition::Below
        } else if value > high && high < 1.0 {
            BandPosition::Above
        } else {
            BandPosition::Within
        }
    }
}

/// The bands of a training step apply to GPUs. Steps on CPUs are shown only if there is nothing else, and are not judged, because they say
/// nothing about a cluster. Ranks in their first minute (compilation, cold caches) and idle GPUs are not judged either. The series of a run
/// end with the run.
pub(super) const INDICATORS: [Indicator; 5] = [
    Indicator {
        title: marked("GPU memory in use"),
        band: marked("70–90 %"),
        healthy: (0.7, 0.9),
        worst: Worst::Lowest,
        sources: &[
            Source {
                words: marked("busy GPUs"),
                query: "gpu_memory_used_bytes / gpu_memory_total_bytes and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: marked("idle GPUs"),
                query: "gpu_memory_used_bytes / gpu_memory_total_bytes",
                of: Subject::Gpu,
                judged: false,
            },
        ],
    },
    Indicator {
        title: marked("Compute share"),
        band: marked("over 85 %"),
        healthy: (0.85, 1.0),
        worst: Worst::Lowest,
        sources: &[
            Source {
                words: marked("ranks, share of a step"),
                query: "train_compute_ratio and on (node, run, rank) train_info{device=~\"cuda.*\"} and on (node, run, rank) train_step offset 1m",
                of: Subject::Rank,
                judged: true,
            },
            Source {
                words: marked("ranks in their first minute, share of a step"),
                query: "train_compute_ratio and on (node, run, rank) train_info{device=~\"cuda.*\"}",
                of: Subject::Rank,
                judged: false,
            },
            Source {
                words: marked("busy GPUs, SM activity"),
                query: "gpu_sm_active_ratio and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: marked("busy GPUs, coarse utilization"),
                query: "gpu_utilization_ratio and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: marked("ranks on CPUs, share of a step"),
                query: "train_compute_ratio",
                of: Subject::Rank,
                judged: false,
            },
            Source {
                words: marked("GPUs, coarse utilization"),
                query: "gpu_utilization_ratio",
                of: Subject::Gpu,
                judged: false,
            },
        ],
    },
    Indicator {
        title: marked("Link bandwidth in use"),
        band: marked("60–80 % while communicating"),
        healthy: (0.6, 0.8),
        worst: Worst::Lowest,
        sources: &[
            Source {
                words: marked("busy GPUs, NVLink"),
                query: "link_utilization_ratio{link=\"nvlink\"} and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: marked("busy GPUs, PCIe"),
                query: "link_utilization_ratio{link=\"pcie\"} and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: marked("links"),
                query: "link_utilization_ratio",
                of: Subject::Gpu,
                judged: false,
            },
        ],
    },
    Indicator {
        title: marked("Training throughput"),
        band: marked("over 80 % of its own best"),
        healthy: (0.8, 1.0),
        worst: Worst::Lowest,
        sources: &[Source {
            words: marked("ranks, against their best minute"),
            query: "train_samples_per_second / train_samples_per_second_best",
            of: Subject::Rank,
            judged: true,
        }],
    },
    Indicator {
        title: marked("Waiting for gradient sync"),
        band: marked("under 5 % of a step"),
        healthy: (0.0, 0.05),
        worst: Worst::Highest,
        sources: &[
            Source {
                words: marked("ranks, exposed wait per step"),
                query: "train_sync_seconds / train_step_seconds and on (node, run, rank) train_info{device=~\"cuda.*\"} and on (node, run, rank) train_step offset 1m",
                of: Subject::Rank,
                judged: true,
            },
            Source {
                words: marked("ranks on CPUs or in their first minute"),
                query: "train_sync_seconds / train_step_seconds",
                of: Subject::Rank,
                judged: false,
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_have_two_sides_or_one() {
        let [memory, compute, _, throughput, sync] = &INDICATORS;
        for (indicator, value, position) in [
            (memory, 0.69, BandPosition::Below),
            (memory, 0.9, BandPosition::Within),
            (memory, 0.91, BandPosition::Above),
            (compute, 1.0, BandPosition::Within),
            (throughput, 1.07, BandPosition::Within),
            (throughput, 0.5, BandPosition::Below),
            (sync, 0.0, BandPosition::Within),
            (sync, 0.06, BandPosition::Above),
        ] {
            assert_eq!(
                indicator.position(value),
                position,
                "{} at {value}",
                indicator.title
            );
        }
    }

    #[test]
    fn one_run_is_asked_for_by_its_ranks_or_by_its_gpus() {
        let [memory, _, _, throughput, sync] = &INDICATORS;
        let of = |indicator: &Indicator, run| indicator.sources[0].summary(indicator.worst, run);
        assert!(of(throughput, None).starts_with(
            "label_replace(quantile(0.5, train_samples_per_second / train_samples_per_second_best), \"is\", \"median\""
        ));
        assert!(of(throughput, Some("a\"b")).contains("train_step{run=\"a\\\"b\"}"));
        assert!(of(memory, Some("a")).contains("and on (node, gpu) gpu_assignment_info{run=\"a\"}"));
        assert!(of(sync, None).contains("topk(1, "));
    }

    #[test]
    fn queries_are_promql() {
        for source in INDICATORS.iter().flat_map(|indicator| indicator.sources) {
            for run in [None, Some("llama-70b")] {
                let query = source.summary(Worst::Lowest, run);
                let open = query.matches('(').count();
                assert_eq!(open, query.matches(')').count(), "{query}");
            }
        }
    }
}
