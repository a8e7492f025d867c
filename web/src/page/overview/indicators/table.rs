//! What the five indicators are: one definition each.

/// One indicator.
pub(super) struct Indicator {
    /// Its name.
    pub(super) title: &'static str,
    /// The band, in words.
    pub(super) band: &'static str,
    /// The band, in numbers; a side without a bound ends with the scale.
    pub(super) healthy: (f64, f64),
    /// Which end of the values is the bad one.
    pub(super) worst: Worst,
    /// The first with an answer is shown.
    pub(super) sources: &'static [Source],
}

/// Where an indicator's value comes from.
pub(super) struct Source {
    /// For people.
    pub(super) words: &'static str,
    /// PromQL with one value per GPU or rank.
    pub(super) query: &'static str,
    /// Whether the values are of GPUs; else of ranks.
    pub(super) of: Subject,
    /// Whether the band holds for it.
    pub(super) judged: bool,
}

/// Which end of the values is the bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worst {
    Lowest,
    Highest,
}

/// What a source has a value of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Gpu,
    Rank,
}

/// Where a value stands against the band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Below,
    Within,
    Above,
}

impl Place {
    /// Colour and shape.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Within => "state state-ok",
            Self::Below | Self::Above => "state state-warning",
        }
    }

    /// The word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Below => "below",
            Self::Within => "healthy",
            Self::Above => "above",
        }
    }
}

impl Source {
    /// PromQL for the median, the worst and the number of the values, told apart by the label `is`; of one run, or of all.
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

/// The bands of a training step are those of GPUs: what a step is made of on CPUs says nothing about a cluster, so it is shown
/// only where there is nothing else, and not judged. Nor is a rank in its first minute, when it compiles and fills its caches, nor
/// a GPU that nothing uses. Series of a run end with it.
pub(super) const INDICATORS: [Indicator; 5] = [
    Indicator {
        title: "GPU memory in use",
        band: "70–90 %",
        healthy: (0.7, 0.9),
        worst: Worst::Lowest,
        sources: &[
            Source {
                words: "busy GPUs",
                query: "gpu_memory_used_bytes / gpu_memory_total_bytes and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: "GPUs, none is busy",
                query: "gpu_memory_used_bytes / gpu_memory_total_bytes",
                of: Subject::Gpu,
                judged: false,
            },
        ],
    },
    Indicator {
        title: "Compute share",
        band: "over 85 %",
        healthy: (0.85, 1.0),
        worst: Worst::Lowest,
        sources: &[
            Source {
                words: "ranks, share of a step",
                query: "train_compute_ratio and on (node, run, rank) train_info{device=~\"cuda.*\"} and on (node, run, rank) train_step offset 1m",
                of: Subject::Rank,
                judged: true,
            },
            Source {
                words: "ranks in their first minute, share of a step",
                query: "train_compute_ratio and on (node, run, rank) train_info{device=~\"cuda.*\"}",
                of: Subject::Rank,
                judged: false,
            },
            Source {
                words: "busy GPUs, SM activity",
                query: "gpu_sm_active_ratio and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: "busy GPUs, coarse utilization",
                query: "gpu_utilization_ratio and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: "ranks on CPUs, share of a step",
                query: "train_compute_ratio",
                of: Subject::Rank,
                judged: false,
            },
            Source {
                words: "GPUs, coarse utilization",
                query: "gpu_utilization_ratio",
                of: Subject::Gpu,
                judged: false,
            },
        ],
    },
    Indicator {
        title: "Link bandwidth in use",
        band: "60–80 % while communicating",
        healthy: (0.6, 0.8),
        worst: Worst::Lowest,
        sources: &[
            Source {
                words: "busy GPUs, NVLink",
                query: "link_utilization_ratio{link=\"nvlink\"} and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: "busy GPUs, PCIe",
                query: "link_utilization_ratio{link=\"pcie\"} and on (node, gpu) max_over_time(gpu_utilization_ratio[1m]) > 0.05",
                of: Subject::Gpu,
                judged: true,
            },
            Source {
                words: "links",
                query: "link_utilization_ratio",
                of: Subject::Gpu,
                judged: false,
            },
        ],
    },
    Indicator {
        title: "Training throughput",
        band: "over 80 % of its own best",
        healthy: (0.8, 1.0),
        worst: Worst::Lowest,
        sources: &[Source {
            words: "ranks, against their best minute",
            query: "train_samples_per_second / train_samples_per_second_best",
            of: Subject::Rank,
            judged: true,
        }],
    },
    Indicator {
        title: "Waiting for gradient sync",
        band: "under 5 % of a step",
        healthy: (0.0, 0.05),
        worst: Worst::Highest,
        sources: &[
            Source {
                words: "ranks, exposed wait in a step",
                query: "train_sync_seconds / train_step_seconds and on (node, run, rank) train_info{device=~\"cuda.*\"} and on (node, run, rank) train_step offset 1m",
                of: Subject::Rank,
                judged: true,
            },
            Source {
                words: "ranks on CPUs or in their first minute",
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
