//! Rule groups under test. They are evaluated as in the collector, but on series in memory and at the times of the test.

use std::collections::{HashMap, HashSet};

use domain::rule::alert::{Active, step};
use domain::rule::instance::{AlertTemplates, ExpansionContext};
use domain::rule::{Group, Rule, alert_series, record};
use domain::series::{Budget, Labels, STALE};
use domain::time::TimestampMs;
use query::{Params, Query, Value};

use super::storage::Storage;

/// A group and its current state.
pub(super) struct GroupState {
    pub(super) name: String,
    limit: usize,
    query_offset_ms: i64,
    pub(super) rules: Vec<RuleState>,
}

/// A rule and its current state.
pub(super) struct RuleState {
    pub(super) rule: Rule,
    query: Query,
    templates: AlertTemplates,
    pub(super) active: Vec<Active>,
    /// Annotations of the active alerts, from the last evaluation.
    pub(super) annotations: HashMap<Labels, Labels>,
    written: HashSet<Labels>,
}

/// Values from outside the rules that templates can use.
pub(super) struct TemplateContext<'a> {
    pub(super) labels: &'a Labels,
    pub(super) url: &'a str,
}

impl GroupState {
    pub(super) fn new(group: Group) -> anyhow::Result<Self> {
        let rules = group.rules.into_iter().map(|rule| {
            Ok(RuleState {
                query: query::parse(&rule.expr)?,
                templates: AlertTemplates::of(&rule, |_| true)?,
                rule,
                active: Vec::new(),
                annotations: HashMap::new(),
                written: HashSet::new(),
            })
        });
        Ok(Self {
            name: group.name,
            limit: group.limit,
            query_offset_ms: group.query_offset_ms,
            rules: rules.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Evaluates all rules. Returns the name and the error of each rule that failed.
    pub(super) fn evaluate(
        &mut self,
        storage: &mut Storage,
        at_ms: TimestampMs,
        context: &TemplateContext<'_>,
    ) -> Vec<(String, String)> {
        let mut failures = Vec::new();
        let query_ms = at_ms - self.query_offset_ms;
        for rule in &mut self.rules {
            match rule.evaluate(storage, at_ms, query_ms, self.limit, context) {
                Ok(samples) => rule.write(storage, query_ms, samples),
                Err(error) => failures.push((rule.rule.name.clone(), error)),
            }
        }
        failures
    }
}

impl RuleState {
    fn evaluate(
        &mut self,
        storage: &Storage,
        at_ms: TimestampMs,
        query_ms: TimestampMs,
        limit: usize,
        context: &TemplateContext<'_>,
    ) -> Result<Vec<(Labels, f64)>, String> {
        let found = samples(storage, &self.query, query_ms)?;
        if !self.rule.is_alert() {
            return record::recorded(&self.rule, found, limit).map_err(|error| error.to_string());
        }
        let ask = |text: &str| {
            let query = query::parse(text).map_err(|error| error.to_string())?;
            samples(storage, &query, query_ms)
        };
        let expansion = ExpansionContext {
            external_labels: context.labels,
            external_url: context.url,
            now_ms: query_ms,
            query: &ask,
        };
        let instances = self
            .templates
            .instances(found, limit, &expansion)
            .map_err(|error| error.to_string())?;
        let mut samples = Vec::with_capacity(instances.len());
        for instance in instances {
            samples.push((instance.labels.clone(), instance.value));
            self.annotations.insert(instance.labels, instance.annotations);
        }
        step(&mut self.active, samples, self.rule.alert_times(), at_ms);
        self.annotations
            .retain(|labels, _| self.active.iter().any(|alert| alert.labels == *labels));
        Ok(alert_series::samples(&self.active))
    }

    /// Writes the samples, and a staleness marker for each series that has no sample any more.
    fn write(&mut self, storage: &mut Storage, at_ms: TimestampMs, samples: Vec<(Labels, f64)>) {
        let mut before = std::mem::take(&mut self.written);
        for (labels, value) in samples {
            storage.add(&labels, at_ms, value);
            before.remove(&labels);
            self.written.insert(labels);
        }
        for ended in before {
            storage.add(&ended, at_ms, STALE);
        }
    }
}

/// Evaluates a query at a time. A scalar becomes one series without labels.
pub(super) fn samples(
    storage: &Storage,
    query: &Query,
    at_ms: TimestampMs,
) -> Result<Vec<(Labels, f64)>, String> {
    let output = query
        .evaluate(storage, &Params::instant(at_ms), &Budget::unlimited())
        .map_err(|error| error.to_string())?;
    match output.value {
        Value::Vector(samples) => Ok(samples
            .into_iter()
            .map(|(labels, _, value)| (labels, value))
            .collect()),
        Value::Scalar(_, value) => Ok(vec![(Labels::empty(), value)]),
        Value::Matrix(_) | Value::String(..) => Err("rule result is not a vector or scalar".to_owned()),
    }
}
