//! Runs one test: adds its series step by step, evaluates its groups, and compares the results.
//!
//! ```text
//! every evaluation_interval from the start to the last eval_time:
//!   series up to now ─▶ storage ◀─▶ groups, in order ─▶ alert tests of [now, next)
//! then: expression tests
//! ```

use domain::api::alerts::AlertState;
use domain::rule::Group;
use domain::series::Labels;
use domain::time::{DisplayDuration, TimestampMs};

use super::compare;
use super::file::{AlertCase, QueryCase, Test};
use super::group::{GroupState, TemplateContext, samples};
use super::storage::Storage;

/// Settings of all tests of a file.
pub(super) struct Settings {
    pub(super) interval_ms: i64,
    pub(super) fuzzy: bool,
    pub(super) debug: bool,
}

/// Runs a test. Returns a description of each unexpected result.
pub(super) fn run(test: &Test, groups: &[Group], settings: &Settings) -> Vec<String> {
    let states = groups.iter().cloned().map(GroupState::new).collect();
    let groups = match states {
        Ok(groups) => groups,
        Err(error) => return vec![error.to_string()],
    };
    let mut run = Run {
        test,
        settings,
        groups,
        storage: Storage::default(),
        loaded: 0,
        failures: Vec::new(),
    };
    if run.evaluations() {
        for case in &test.queries {
            run.check_query(case);
        }
    }
    run.failures
}

struct Run<'a> {
    test: &'a Test,
    settings: &'a Settings,
    groups: Vec<GroupState>,
    storage: Storage,
    /// Number of points of each series that are in the storage.
    loaded: usize,
    failures: Vec<String>,
}

impl Run<'_> {
    /// Evaluates the groups at each time. Returns false if a rule could not be evaluated, which ends the test.
    fn evaluations(&mut self) -> bool {
        let test = self.test;
        let times = test.alerts.iter().map(|case| case.at_ms);
        let last_ms = times
            .chain(test.queries.iter().map(|case| case.at_ms))
            .max()
            .unwrap_or_default();
        let mut at_ms = 0;
        while at_ms <= last_ms {
            self.load_until(at_ms);
            if !self.evaluate(at_ms) {
                return false;
            }
            let next_ms = at_ms + self.settings.interval_ms;
            for case in &test.alerts {
                if (at_ms..next_ms).contains(&case.at_ms) {
                    self.check_alerts(case);
                }
            }
            at_ms = next_ms;
        }
        true
    }

    fn load_until(&mut self, at_ms: i64) {
        let end = usize::try_from(at_ms / self.test.interval_ms + 1).unwrap_or(usize::MAX);
        for (labels, points) in &self.test.input {
            for (n, point) in points.iter().enumerate().take(end).skip(self.loaded) {
                let offset_ms = i64::try_from(n).unwrap_or(i64::MAX) * self.test.interval_ms;
                if let Some(value) = point {
                    self.storage.add(labels, self.test.start_ms + offset_ms, *value);
                }
            }
        }
        self.loaded = end;
    }

    fn evaluate(&mut self, at_ms: i64) -> bool {
        let context = TemplateContext {
            labels: &self.test.external_labels,
            url: &self.test.external_url,
        };
        let time_ms: TimestampMs = self.test.start_ms + at_ms;
        let before = self.failures.len();
        for group in &mut self.groups {
            for (rule, error) in group.evaluate(&mut self.storage, time_ms, &context) {
                self.failures.push(format!(
                    "rule {rule:?} of group {:?} at {}: {error}",
                    group.name,
                    DisplayDuration(at_ms)
                ));
            }
        }
        if self.settings.debug {
            self.debug(at_ms);
        }
        self.failures.len() == before
    }

    fn debug(&self, at_ms: i64) {
        for rule in self.groups.iter().flat_map(|group| &group.rules) {
            for alert in &rule.active {
                let state = if alert.state == AlertState::Firing {
                    "fires"
                } else {
                    "is pending"
                };
                eprintln!(
                    "    {}: {} {state}, value {}",
                    DisplayDuration(at_ms),
                    alert.labels,
                    alert.value
                );
            }
        }
    }

    fn check_alerts(&mut self, case: &AlertCase) {
        let rules = self.groups.iter().flat_map(|group| &group.rules);
        let ours = rules.filter(|rule| rule.rule.is_alert() && rule.rule.name == case.name);
        let mut got = Vec::new();
        for rule in ours {
            for alert in rule
                .active
                .iter()
                .filter(|alert| alert.state == AlertState::Firing)
            {
                let annotations = rule.annotations.get(&alert.labels);
                got.push((
                    alert.labels.clone(),
                    annotations.cloned().unwrap_or_else(Labels::empty),
                ));
            }
        }
        let differences = compare::alerts(&case.expected, &got);
        self.note(&format!("alert {:?}", case.name), case.at_ms, &differences);
    }

    fn check_query(&mut self, case: &QueryCase) {
        let got = query::parse(&case.expr)
            .map_err(|error| error.to_string())
            .and_then(|query| samples(&self.storage, &query, self.test.start_ms + case.at_ms));
        let differences = match got {
            Ok(got) => compare::samples(&case.expected, &got, self.settings.fuzzy),
            Err(error) => vec![error],
        };
        self.note(&format!("expression {:?}", case.expr), case.at_ms, &differences);
    }

    fn note(&mut self, what: &str, at_ms: i64, differences: &[String]) {
        if !differences.is_empty() {
            let at = DisplayDuration(at_ms);
            self.failures
                .push(format!("{what} at {at}:\n  {}", differences.join("\n  ")));
        }
    }
}
