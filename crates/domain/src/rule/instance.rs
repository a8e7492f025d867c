//! The alerts an evaluation finds: each sample with the rule's labels and annotations filled in.

use std::collections::HashSet;

use super::definition::{Rule, Texts};
use super::template::{Data, Template, TemplateError};
use crate::series::labels::LabelsError;
use crate::series::{Labels, METRIC_NAME};

/// The label that names an alert's rule.
pub const ALERT_NAME: &str = "alertname";

/// A rule's label and annotation texts, read once.
#[derive(Debug, Clone)]
pub struct Instancing {
    name: String,
    labels: Vec<(String, Template)>,
    annotations: Vec<(String, Template)>,
}

/// One alert, as found by one evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// The sample's labels but its name, the rule's, and `alertname`: the alert's identity.
    pub labels: Labels,
    /// Filled in.
    pub annotations: Labels,
    /// The sample's value.
    pub value: f64,
}

/// The samples of a query, or why there are none.
pub type Answer = Result<Vec<(Labels, f64)>, String>;

/// What templates may know besides the sample.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// `$externalLabels`.
    pub external_labels: &'a Labels,
    /// `$externalURL`.
    pub external_url: &'a str,
    /// When the rule is evaluated, in milliseconds.
    pub now_ms: i64,
    /// Answers the function `query`.
    pub query: &'a dyn Fn(&str) -> Answer,
}

/// Why an evaluation finds no alerts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// Two alerts with one identity.
    #[error("vector contains metrics with the same labelset after applying alert labels")]
    Same,
    /// More than the group's limit.
    #[error("exceeded limit of {limit} with {count} alerts")]
    Limit {
        /// The limit.
        limit: usize,
        /// What there would be.
        count: usize,
    },
    /// Labels that cannot name an alert.
    #[error("an alert's labels cannot be used: {0}")]
    Labels(#[from] LabelsError),
}

impl Instancing {
    /// Reads the texts of an alerting rule. Of its annotations, those that `takes` accepts.
    ///
    /// # Errors
    /// When a template cannot be read, which checking the file rules out.
    pub fn of(rule: &Rule, takes: impl Fn(&str) -> bool) -> Result<Self, TemplateError> {
        let read = |texts: &Texts, takes: &dyn Fn(&str) -> bool| {
            let taken = texts.iter().filter(|(name, _)| takes(name));
            taken
                .map(|(name, text)| Ok((name.clone(), Template::parse(text)?)))
                .collect::<Result<Vec<_>, TemplateError>>()
        };
        Ok(Self {
            name: rule.name.clone(),
            labels: read(&rule.labels, &|_| true)?,
            annotations: read(&rule.annotations, &takes)?,
        })
    }

    /// Fills in labels and annotations for each sample. A template that fails says so in its text: an alert must not be lost
    /// because of how it would be described.
    ///
    /// # Errors
    /// See [`InstanceError`]; then there are no alerts.
    pub fn instances(
        &self,
        samples: Vec<(Labels, f64)>,
        limit: usize,
        surroundings: &Surroundings<'_>,
    ) -> Result<Vec<Instance>, InstanceError> {
        let count = samples.len();
        if limit > 0 && count > limit {
            return Err(InstanceError::Limit { limit, count });
        }
        let mut seen = HashSet::with_capacity(count);
        let mut instances = Vec::with_capacity(count);
        for (labels, value) in samples {
            let instance = self.instance(&labels, value, surroundings)?;
            if !seen.insert(instance.labels.clone()) {
                return Err(InstanceError::Same);
            }
            instances.push(instance);
        }
        Ok(instances)
    }

    fn instance(
        &self,
        sample: &Labels,
        value: f64,
        surroundings: &Surroundings<'_>,
    ) -> Result<Instance, LabelsError> {
        let data = Data {
            labels: sample,
            value,
            surroundings: *surroundings,
        };
        let filled = |template: &Template| {
            template
                .expand(&data)
                .unwrap_or_else(|error| format!("<error expanding template: {}>", self.placed(&error)))
        };
        let own = |name: &str| name == ALERT_NAME || self.labels.iter().any(|(own, _)| own == name);
        let kept = sample
            .iter()
            .filter(|label| &*label.name != METRIC_NAME && !own(&label.name))
            .map(|label| (label.name.clone(), label.value.clone()));
        let added = self
            .labels
            .iter()
            .filter(|(name, _)| name != ALERT_NAME)
            .map(|(name, template)| (name.as_str().into(), filled(template).into()));
        let named = std::iter::once((ALERT_NAME.into(), self.name.as_str().into()));
        let annotations = self
            .annotations
            .iter()
            .map(|(name, template)| (name.as_str().into(), filled(template).into()));
        Ok(Instance {
            labels: Labels::new(kept.chain(added).chain(named))?,
            annotations: Labels::from_trusted(annotations),
            value,
        })
    }

    fn placed(&self, error: &TemplateError) -> String {
        format!("error executing template __alert_{}: {error}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::RuleFile;

    fn instances(samples: Vec<(Labels, f64)>, limit: usize) -> Result<Vec<Instance>, InstanceError> {
        let text = "
groups: [{ name: g, rules: [{ alert: Hot, expr: x, labels: { severity: critical, where: '{{ $labels.node }}', gone: '' },
  annotations: { summary: 'GPU {{ $labels.gpu }}: {{ $value }}', broken: '{{ first (query \"x\") }}', evidence_x: x } }] }]";
        let file = RuleFile::parse(text).expect("well formed");
        let rule = &file.groups[0].rules[0];
        let surroundings = Surroundings {
            external_labels: &Labels::empty(),
            external_url: "",
            now_ms: 0,
            query: &|_| Ok(vec![]),
        };
        Instancing::of(rule, |name| !name.starts_with("evidence_"))
            .expect("well formed")
            .instances(samples, limit, &surroundings)
    }

    fn sample(text: &[(&str, &str)]) -> (Labels, f64) {
        (Labels::new(text.iter().copied()).expect("well formed"), 95.0)
    }

    #[test]
    fn an_alert_is_named_by_sample_and_rule() {
        let found = instances(
            vec![sample(&[
                ("__name__", "x"),
                ("gpu", "3"),
                ("node", "n1"),
                ("gone", "soon"),
            ])],
            0,
        );
        let found = &found.expect("one alert")[0];
        assert_eq!(
            found.labels.to_string(),
            r#"{alertname="Hot", gpu="3", node="n1", severity="critical", where="n1"}"#
        );
        assert_eq!(found.annotations.get("summary"), Some("GPU 3: 95"));
        assert_eq!(found.annotations.get("evidence_x"), None);
    }

    #[test]
    fn a_template_that_fails_says_so_and_loses_no_alert() {
        let found = instances(vec![sample(&[("gpu", "3")])], 0).expect("one alert");
        let broken = found[0].annotations.get("broken").expect("a text");
        assert_eq!(
            broken,
            "<error expanding template: error executing template __alert_Hot: error calling first: first() called on vector with \
             no elements>"
        );
    }

    #[test]
    fn alerts_that_fall_together_and_too_many_are_refused() {
        let two = vec![sample(&[("where", "a")]), sample(&[("where", "b")])];
        assert_eq!(instances(two.clone(), 0), Err(InstanceError::Same));
        assert_eq!(
            instances(two, 1),
            Err(InstanceError::Limit { limit: 1, count: 2 })
        );
    }
}
