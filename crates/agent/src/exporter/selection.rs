//! Selects the metrics of a page. The size of `/metrics` without parameters is bounded: a node with eight GPUs gives a few hundred lines,
//! however many processes run on it and however many NVLinks its GPUs have.
//!
//! ```text
//! /metrics                                   all except those with a label per process or per NVLink
//! /metrics?collect[]=gpu&collect[]=train     all metrics whose names begin with one of these words
//! /metrics?all=1                             all metrics
//! ```

use domain::metric::{CATALOGUE, Metric};

/// Labels with many values: one per process, or one per NVLink of a GPU (up to 18). Reasons, types and pipes are closed sets, and a node
/// has about as many ports of network cards as GPUs.
const MULTIPLYING: [&str; 3] = ["pid", "process", "nvlink"];
/// The maximum number of names in a request. Real requests use far fewer.
const NAMES_MAX: usize = 64;
/// The prefix of all of dcgm-exporter's names.
const DCGM: &str = "DCGM_FI";

/// The metrics that a request selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MetricSelection {
    all: bool,
    names: Vec<String>,
}

/// A request with an unknown name or parameter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectionError {
    #[error("no metric name begins with {0:?}; `/metrics?all=1` shows all metrics")]
    Name(String),
    #[error("unknown parameter {0:?} of /metrics; use collect[]=NAME or all=1")]
    Parameter(String),
    #[error("more than {NAMES_MAX} names; omit collect[] to get all metrics")]
    TooMany,
}

impl MetricSelection {
    /// Selects all metrics.
    pub(crate) fn all() -> Self {
        Self {
            all: true,
            names: Vec::new(),
        }
    }

    /// Parses the query string of a URL.
    pub(super) fn parse(query: &str) -> Result<Self, SelectionError> {
        let mut selection = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "all" => selection.all = matches!(value, "" | "1" | "true"),
                "collect[]" | "collect%5B%5D" | "collect%5b%5d" | "collect" => {
                    selection.names.push(known(value)?.to_owned());
                }
                other => return Err(SelectionError::Parameter(other.to_owned())),
            }
            if selection.names.len() > NAMES_MAX {
                return Err(SelectionError::TooMany);
            }
        }
        Ok(selection)
    }

    /// Returns true if the metric belongs on the page.
    pub(super) fn has(&self, metric: &Metric) -> bool {
        if self.all {
            return true;
        }
        if self.names.is_empty() {
            return !metric.labels.iter().any(|label| MULTIPLYING.contains(label));
        }
        self.names.iter().any(|name| begins(metric.name, name))
    }

    /// Returns true if dcgm-exporter's names belong on the page.
    pub(super) fn has_dcgm(&self) -> bool {
        self.all || self.names.is_empty() || self.names.iter().any(|name| begins(name, DCGM))
    }
}

fn known(name: &str) -> Result<&str, SelectionError> {
    let is_ours = CATALOGUE.iter().any(|metric| begins(metric.name, name));
    if is_ours || begins(name, DCGM) {
        Ok(name)
    } else {
        Err(SelectionError::Name(name.to_owned()))
    }
}

/// Compares whole words: `gpu_p` is not a prefix of any name.
fn begins(name: &str, with: &str) -> bool {
    name.strip_prefix(with)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn names(query: &str) -> Vec<&'static str> {
        let selection = MetricSelection::parse(query).unwrap();
        let has = CATALOGUE.iter().filter(|metric| selection.has(metric));
        has.map(|metric| metric.name).collect()
    }

    #[test]
    fn a_page_has_the_selected_metrics() {
        assert_eq!(names("all=1").len(), CATALOGUE.len());
        assert!(!names("").contains(&"gpu_process_memory_bytes") && names("").contains(&"gpu_throttle"));
        assert_eq!(
            names("collect[]=gpu_sm_clock"),
            ["gpu_sm_clock_hertz", "gpu_sm_clock_max_hertz"]
        );
        assert_eq!(
            names("collect%5B%5D=node_load1&collect[]=gpu_up"),
            ["gpu_up", "node_load1"]
        );
        assert!(
            MetricSelection::parse("").unwrap().has_dcgm()
                && !MetricSelection::parse("collect[]=gpu").unwrap().has_dcgm()
        );
        assert!(
            MetricSelection::parse("collect[]=DCGM_FI").unwrap().has_dcgm()
                && names("collect[]=DCGM_FI").is_empty()
        );
    }

    #[test]
    fn invalid_selections_are_refused() {
        let refused = |query: &str| MetricSelection::parse(query).unwrap_err();
        assert_eq!(refused("collect[]=gpu_p"), SelectionError::Name("gpu_p".into()));
        assert_eq!(refused("collect[]="), SelectionError::Name(String::new()));
        assert_eq!(refused("name[]=gpu"), SelectionError::Parameter("name[]".into()));
        assert_eq!(
            refused(&"collect[]=gpu&".repeat(NAMES_MAX + 1)),
            SelectionError::TooMany
        );
    }
}
