//! Groups under test: evaluated as the collector does it, over series in memory, each time when the test says.

use std::collections::{HashMap, HashSet};

use domain::rule::alert::{Active, step};
use domain::rule::instance::{Instancing, Surroundings};
use domain::rule::{Group, Rule, record, trace};
use domain::series::{Budget, Labels, STALE};
use domain::time::TimestampMs;
use query::{Params, Query, Value};

use super::storage::Storage;

/// A group and where it stands.
pub(super) struct Tested {
    pub(super) name: String,
    limit: usize,
    query_offset_ms: i64,
    pub(super) rules: Vec<TestedRule>,
}

/// A rule and where it stands.
pub(super) struct TestedRule {
    pub(super) rule: Rule,
    query: Query,
    instancing: Instancing,
    pub(super) active: Vec<Active>,
    /// Of the active alerts, as last filled in.
    pub(super) annotations: HashMap<Labels, Labels>,
    written: HashSet<Labels>,
}

/// What templates of a test may know.
pub(super) struct Outside<'a> {
    pub(super) labels: &'a Labels,
    pub(super) url: &'a str,
}

impl Tested {
    pub(super) fn new(group: Group) -> anyhow::Result<Self> {
        let rules = group.rules.into_iter().map(|rule| {
            Ok(TestedRule {
                query: query::parse(&rule.expr)?,
                instancing: Instancing::of(&rule, |_| true)?,
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

    /// Evaluates all rules; returns what failed, with the rule's name.
    pub(super) fn evaluate(
        &mut self,
        storage: &mut Storage,
        at_ms: TimestampMs,
        outside: &Outside<'_>,
    ) -> Vec<(String, String)> {
        let mut failures = Vec::new();
        let query_ms = at_ms - self.query_offset_ms;
        for rule in &mut self.rules {
            match rule.evaluate(storage, at_ms, query_ms, self.limit, outside) {
                Ok(samples) => rule.write(storage, query_ms, samples),
                Err(error) => failures.push((rule.rule.name.clone(), error)),
            }
        }
        failures
    }
}

impl TestedRule {
    fn evaluate(
        &mut self,
        storage: &Storage,
        at_ms: TimestampMs,
        query_ms: TimestampMs,
        limit: usize,
        outside: &Outside<'_>,
    ) -> Result<Vec<(Labels, f64)>, String> {
        let found = samples(storage, &self.query, query_ms)?;
        if !self.rule.is_alert() {
            return record::recorded(&self.rule, found, limit).map_err(|error| error.to_string());
        }
        let ask = |text: &str| {
            let query = query::parse(text).map_err(|error| error.to_string())?;
            samples(storage, &query, query_ms)
        };
        let surroundings = Surroundings {
            external_labels: outside.labels,
            external_url: outside.url,
            now_ms: query_ms,
            query: &ask,
        };
        let instances = self
            .instancing
            .instances(found, limit, &surroundings)
            .map_err(|error| error.to_string())?;
        let mut samples = Vec::with_capacity(instances.len());
        for instance in instances {
            samples.push((instance.labels.clone(), instance.value));
            self.annotations.insert(instance.labels, instance.annotations);
        }
        step(&mut self.active, samples, self.rule.holding(), at_ms);
        self.annotations
            .retain(|labels, _| self.active.iter().any(|alert| alert.labels == *labels));
        Ok(trace::samples(&self.active))
    }

    /// Writes the samples, and an end for each series that is not among them any more.
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

/// What a query gives at a time; a number counts as a series without labels.
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
