//! The kinds of questions, and the n-th question of each kind. Each question uses another metric, GPU or time.
//!
//! | kind | query |
//! |---|---|
//! | `metric` | one metric of all GPUs, one hour at 15 s |
//! | `gpu` | all metrics of one GPU, six hours at 30 s, Grafana's step for a panel of 720 points |
//! | `topk` | the ten largest of one metric, one hour at 15 s |
//! | `quantile` | the 99th percentile of one metric by node, one hour at 15 s |
//! | `rate` | the rate over five minutes of one counter of all GPUs, one hour at 15 s |
//! | `max` | the maximum of one metric by node, one hour at 15 s |
//! | `month` | one series, 30 days at one hour |
//! | `month-average` | the hourly average of one series, 30 days |
//! | `rule-max` | the maximum by node at one time, as in a recording rule |
//! | `rule-threshold` | values beyond a limit at one time, as in an alerting rule |
//! | `dashboards` | the eight panels of a node's dashboard, one hour at 15 s |

use clap::ValueEnum;

use super::answer::Identity;
use crate::Fleet;
use crate::history::History;

/// The kind of a question; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the table above says it once")]
pub enum Kind {
    Metric,
    Gpu,
    Topk,
    Quantile,
    Rate,
    Max,
    Month,
    MonthAverage,
    RuleMax,
    RuleThreshold,
    Dashboards,
}

const HOUR_S: i64 = 3_600;
/// The step of a dashboard over one hour.
const STEP_S: i64 = 15;
/// Grafana's step for six hours.
const WIDE_STEP_S: i64 = 30;
/// Ends of ranges differ by up to this many steps of 15 s. The history has room for this.
const ENDS: u32 = 20;
/// The thresholds of alerting rules, chosen so that some GPUs exceed them.
const LIMITS: [(&str, &str); 8] = [
    ("DCGM_FI_DEV_GPU_TEMP", "> 78"),
    ("DCGM_FI_DEV_POWER_USAGE", "> 520"),
    ("DCGM_FI_DEV_GPU_UTIL", ">= 99"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "> 78"),
    ("DCGM_FI_DEV_SM_CLOCK", "< 1920"),
    ("DCGM_FI_PROF_SM_ACTIVE", "> 0.8"),
    ("DCGM_FI_DEV_FB_USED", "> 75000"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "< 0.2"),
];

/// A query, and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) query: String,
    pub(super) when: When,
}

/// The time of a query, in seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    At(i64),
    Range { start_s: i64, end_s: i64, step_s: i64 },
}

impl Question {
    /// Returns the path and the parameters of the request.
    pub(super) fn request(&self) -> (&'static str, Vec<(&'static str, String)>) {
        let query = ("query", self.query.clone());
        match self.when {
            When::At(at_s) => ("/api/v1/query", vec![query, ("time", at_s.to_string())]),
            When::Range {
                start_s,
                end_s,
                step_s,
            } => (
                "/api/v1/query_range",
                vec![
                    query,
                    ("start", start_s.to_string()),
                    ("end", end_s.to_string()),
                    ("step", step_s.to_string()),
                ],
            ),
        }
    }

    /// Returns how series of two servers' answers are matched.
    pub(super) fn identity(&self) -> Identity {
        match self.query.as_bytes() {
            // Several metrics: only the name distinguishes them.
            [b'{', ..] => Identity::Labels,
            query if query.starts_with(b"topk") => Identity::Rank,
            _ => Identity::LabelsWithoutName,
        }
    }

    /// Returns true if servers may compute different values: how a rate treats the edges of its window is a design choice.
    pub(super) fn is_rate(&self) -> bool {
        self.query.starts_with("rate(")
    }
}

/// The source of questions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Catalogue {
    pub(super) fleet: Fleet,
    pub(super) history: History,
}

impl Catalogue {
    /// Returns the `n`-th question of a kind. For dashboards, this is the first panel.
    pub(super) fn question(&self, kind: Kind, n: u32) -> Question {
        let fleet = self.fleet;
        let metric = fleet.metric_name(n * 7 % fleet.metrics);
        match kind {
            Kind::Metric => self.hour(metric, n),
            Kind::Gpu => Question {
                query: format!(
                    r#"{{node="{}",gpu="{}"}}"#,
                    fleet.node_name(n * 5 % self.history.recent_nodes_of(fleet)),
                    (n * 3 + n / self.history.recent_nodes_of(fleet)) % fleet.gpus
                ),
                when: self.range(n, 6 * HOUR_S, WIDE_STEP_S),
            },
            Kind::Topk => self.hour(format!("topk(10, {metric})"), n),
            Kind::Quantile => self.hour(format!("quantile by (node) (0.99, {metric})"), n),
            Kind::Rate => self.hour(format!("rate({}[5m])", self.counter(n)), n),
            Kind::Max => self.hour(format!("max by (node) ({metric})"), n),
            Kind::Month => self.month(self.old_series(n)),
            Kind::MonthAverage => self.month(format!("avg_over_time({}[1h])", self.old_series(n))),
            Kind::RuleMax => self.at(format!("max by (node) ({metric})"), n),
            Kind::RuleThreshold => {
                let (name, limit) = LIMITS[n as usize % LIMITS.len()];
                self.at(format!("{name} {limit}"), n)
            }
            Kind::Dashboards => self.panels(n).swap_remove(0),
        }
    }

    /// Returns the panels of the `n`-th dashboard: some of one node, some of the whole cluster.
    pub(super) fn panels(&self, n: u32) -> Vec<Question> {
        let fleet = self.fleet;
        let node = format!(r#"{{node="{}"}}"#, fleet.node_name(n * 5 % fleet.nodes));
        let metric = |nth: u32| fleet.metric_name((n * 7 + nth) % fleet.metrics);
        let queries = [
            format!("DCGM_FI_DEV_GPU_TEMP{node}"),
            format!("DCGM_FI_DEV_POWER_USAGE{node}"),
            format!("DCGM_FI_DEV_GPU_UTIL{node}"),
            format!("DCGM_FI_DEV_FB_USED{node}"),
            format!("rate({}{node}[5m])", self.counter(n)),
            format!("sum by (node) ({})", metric(0)),
            format!("avg({})", metric(1)),
            format!("topk(10, {})", metric(2)),
        ];
        queries.into_iter().map(|query| self.hour(query, n)).collect()
    }

    fn hour(&self, query: String, n: u32) -> Question {
        let when = self.range(n, HOUR_S, STEP_S);
        Question { query, when }
    }

    fn month(&self, query: String) -> Question {
        let when = self.range(0, 30 * 24 * HOUR_S, HOUR_S);
        Question { query, when }
    }

    /// Returns a range. Its end is a multiple of the step, as in Grafana, and differs between questions.
    fn range(&self, n: u32, length_s: i64, step_s: i64) -> When {
        let earlier_s = i64::from((n + n / ENDS) % ENDS) * STEP_S;
        let end_s = (self.history.end_s - earlier_s).div_euclid(step_s) * step_s;
        When::Range {
            start_s: end_s - length_s,
            end_s,
            step_s,
        }
    }

    /// Returns the query of a rule: another second for each question.
    fn at(&self, query: String, n: u32) -> Question {
        let when = When::At(self.history.end_s - i64::from(n) * 17 % HOUR_S);
        Question { query, when }
    }

    fn counter(&self, n: u32) -> String {
        let counters = self.fleet.counters();
        self.fleet.metric_name(counters[n as usize % counters.len()])
    }

    fn old_series(&self, n: u32) -> String {
        let fleet = self.fleet;
        let gpu = n / fleet.metrics % self.history.month_gpus_of(fleet);
        let metric = fleet.metric_name(n * 7 % fleet.metrics);
        format!(r#"{metric}{{node="{}",gpu="{gpu}"}}"#, fleet.node_name(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Names;
    use std::collections::BTreeSet;

    const CATALOGUE: Catalogue = Catalogue {
        fleet: Fleet {
            nodes: 32,
            gpus: 8,
            metrics: 30,
            seed: 1,
            names: Names::Dcgm,
            runs: 1,
        },
        history: History {
            end_s: 1_790_000_007,
            spacing_s: 5,
            recent_nodes: 4,
            month_gpus: 2,
        },
    };

    #[test]
    fn questions_stay_within_the_history() {
        let history = CATALOGUE.history;
        for kind in Kind::value_variants() {
            for n in 0..300 {
                let question = CATALOGUE.question(*kind, n);
                match question.when {
                    When::At(at_s) => assert!((history.end_s - HOUR_S..=history.end_s).contains(&at_s)),
                    When::Range {
                        start_s,
                        end_s,
                        step_s,
                    } => {
                        assert!(end_s <= history.end_s && end_s % step_s == 0);
                        assert!((start_s - HOUR_S) * 1_000 >= history.start_ms(), "{question:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn questions_differ() {
        let check = |kind, at_least| {
            let questions: BTreeSet<_> = (0..60)
                .map(|n| format!("{:?}", CATALOGUE.question(kind, n)))
                .collect();
            assert!(questions.len() >= at_least, "{kind:?}: {}", questions.len());
        };
        for (kind, at_least) in [
            (Kind::Metric, 60),
            (Kind::Gpu, 40),
            (Kind::Rate, 40),
            (Kind::Month, 60),
            (Kind::RuleMax, 60),
            (Kind::RuleThreshold, 60),
        ] {
            check(kind, at_least);
        }
    }

    #[test]
    fn a_dashboard_asks_of_its_node_and_of_all() {
        let panels = CATALOGUE.panels(3);
        assert_eq!(panels.len(), 8);
        let of_node = panels
            .iter()
            .filter(|panel| panel.query.contains("gpu-node-00015"));
        assert_eq!(of_node.count(), 5);
        assert_eq!(panels.iter().filter(|panel| panel.is_rate()).count(), 1);
    }
}
