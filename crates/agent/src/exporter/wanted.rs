//! Which metrics a page holds. `/metrics` by itself is bounded: a node of eight GPUs gives some hundreds of lines, however many
//! processes run on it and however many lanes its NVLinks have.
//!
//! ```text
//! /metrics                                   all but what grows with processes or with single lanes of NVLink
//! /metrics?collect[]=gpu&collect[]=train     metrics whose names begin so, those that grow among them
//! /metrics?all=1                             everything
//! ```

use domain::metric::{CATALOGUE, Metric};

/// Labels whose values multiply: a process each, one of a GPU's eighteen NVLinks each. Reasons, types and pipes are closed sets, and
/// ports of network cards as few as GPUs.
const MULTIPLYING: [&str; 3] = ["pid", "process", "nvlink"];
/// More names than this nobody asks for.
const NAMES_MAX: usize = 64;
/// What stands before all of dcgm-exporter's names.
const DCGM: &str = "DCGM_FI";

/// What a reader asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    all: bool,
    names: Vec<String>,
}

/// A request that cannot be meant as it is written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WantedError {
    #[error("no metric's name begins with {0:?}; `/metrics?all=1` shows all there are")]
    Name(String),
    #[error("{0:?} is no parameter of /metrics; there are collect[]=NAME and all=1")]
    Parameter(String),
    #[error("more than {NAMES_MAX} names; leave collect[] out to get all metrics")]
    TooMany,
}

impl Wanted {
    /// Everything.
    pub(crate) fn all() -> Self {
        Self {
            all: true,
            names: Vec::new(),
        }
    }

    /// As the part of a URL behind the question mark says.
    pub(super) fn parse(query: &str) -> Result<Self, WantedError> {
        let mut wanted = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "all" => wanted.all = matches!(value, "" | "1" | "true"),
                "collect[]" | "collect%5B%5D" | "collect%5b%5d" | "collect" => {
                    wanted.names.push(known(value)?.to_owned());
                }
                other => return Err(WantedError::Parameter(other.to_owned())),
            }
            if wanted.names.len() > NAMES_MAX {
                return Err(WantedError::TooMany);
            }
        }
        Ok(wanted)
    }

    /// Whether a metric belongs on the page.
    pub(super) fn has(&self, metric: &Metric) -> bool {
        if self.all {
            return true;
        }
        if self.names.is_empty() {
            return !metric.labels.iter().any(|label| MULTIPLYING.contains(label));
        }
        self.names.iter().any(|name| begins(metric.name, name))
    }

    /// Whether dcgm-exporter's names belong on the page.
    pub(super) fn has_dcgm(&self) -> bool {
        self.all || self.names.is_empty() || self.names.iter().any(|name| begins(name, DCGM))
    }
}

fn known(name: &str) -> Result<&str, WantedError> {
    let is_ours = CATALOGUE.iter().any(|metric| begins(metric.name, name));
    if is_ours || begins(name, DCGM) {
        Ok(name)
    } else {
        Err(WantedError::Name(name.to_owned()))
    }
}

/// By whole words: `gpu_p` begins nothing.
fn begins(name: &str, with: &str) -> bool {
    name.strip_prefix(with)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn names(query: &str) -> Vec<&'static str> {
        let wanted = Wanted::parse(query).unwrap();
        let has = CATALOGUE.iter().filter(|metric| wanted.has(metric));
        has.map(|metric| metric.name).collect()
    }

    #[test]
    fn a_page_holds_what_was_asked_for() {
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
        assert!(Wanted::parse("").unwrap().has_dcgm() && !Wanted::parse("collect[]=gpu").unwrap().has_dcgm());
        assert!(
            Wanted::parse("collect[]=DCGM_FI").unwrap().has_dcgm() && names("collect[]=DCGM_FI").is_empty()
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let refused = |query: &str| Wanted::parse(query).unwrap_err();
        assert_eq!(refused("collect[]=gpu_p"), WantedError::Name("gpu_p".into()));
        assert_eq!(refused("collect[]="), WantedError::Name(String::new()));
        assert_eq!(refused("name[]=gpu"), WantedError::Parameter("name[]".into()));
        assert_eq!(
            refused(&"collect[]=gpu&".repeat(NAMES_MAX + 1)),
            WantedError::TooMany
        );
    }
}
