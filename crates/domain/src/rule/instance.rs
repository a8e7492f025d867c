//! The alerts of one evaluation: each sample with the expanded labels and annotations of the rule.

use std::collections::HashSet;

use super::definition::{Rule, Texts};
use super::template::{Data, Template, TemplateError};
use crate::series::labels::LabelsError;
use crate::series::{Labels, METRIC_NAME};

/// Name of the label that contains the name of an alert's rule.
pub const ALERT_NAME: &str = "alertname";

/// The parsed label and annotation templates of a rule.
#[derive(Debug, Clone)]
pub struct AlertTemplates {
    name: String,
    labels: Vec<(String, Template)>,
    annotations: Vec<(String, Template)>,
}

/// One alert of one evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertInstance {
    /// Labels of the sample without its name, labels of the rule, and `alertname`. They identify the alert.
    pub labels: Labels,
    /// Expanded annotations.
    pub annotations: Labels,
    /// Value of the sample.
    pub value: f64,
}

/// Samples of a query, or its error.
pub type Answer = Result<Vec<(Labels, f64)>, String>;

/// Data for templates in addition to the sample.
#[derive(Clone, Copy)]
pub struct ExpansionContext<'a> {
    /// `$externalLabels`.
    pub external_labels: &'a Labels,
    /// `$externalURL`.
    pub external_url: &'a str,
    /// Time of the evaluation, in milliseconds.
    pub now_ms: i64,
    /// Evaluates the template function `query`.
    pub query: &'a dyn Fn(&str) -> Answer,
}

/// Why an evaluation makes no alerts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// Two alerts have the same labels.
    #[error("vector contains metrics with the same labelset after applying alert labels")]
    Same,
    /// There are more alerts than the group's limit.
    #[error("exceeded limit of {limit} with {count} alerts")]
    Limit {
        /// The limit.
        limit: usize,
        /// Number of alerts.
        count: usize,
    },
    /// The labels are not valid.
    #[error("an alert's labels cannot be used: {0}")]
    Labels(#[from] LabelsError),
}

impl AlertTemplates {
    /// Parses the templates of an alerting rule: all labels, and the annotations whose name `takes` accepts.
    ///
    /// # Errors
    /// Returns an error if a template is not valid. The check of the rule file rejects such rules before.
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

    /// Expands labels and annotations for each sample. If a template fails, the expanded text contains the error: an alert must not be lost
    /// because of its description.
    ///
    /// # Errors
    /// See [`InstanceError`]. There are no alerts then.
    pub fn instances(
        &self,
        samples: Vec<(Labels, f64)>,
        limit: usize,
        context: &ExpansionContext<'_>,
    ) -> Result<Vec<AlertInstance>, InstanceError> {
        let count = samples.len();
        if limit > 0 && count > limit {
            return Err(InstanceError::Limit { limit, count });
        }
        let mut seen = HashSet::with_capacity(count);
        let mut instances = Vec::with_capacity(count);
        for (labels, value) in samples {
            let instance = self.instance(&labels, value, context)?;
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
        context: &ExpansionContext<'_>,
    ) -> Result<AlertInstance, LabelsError> {
        let data = Data {
            labels: sample,
            value,
            context: *context,
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
        Ok(AlertInstance {
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

    fn instances(samples: Vec<(Labels, f64)>, limit: usize) -> Result<Vec<AlertInstance>, InstanceError> {
        let text = "
groups: [{ name: g, rules: [{ alert: Hot, expr: x, labels: { severity: critical, where: '{{ $labels.node }}', gone: '' },
  annotations: { summary: 'GPU {{ $labels.gpu }}: {{ $value }}', broken: '{{ first (query \"x\") }}', evidence_x: x } }] }]";
        let file = RuleFile::parse(text).expect("well formed");
        let rule = &file.groups[0].rules[0];
        let context = ExpansionContext {
            external_labels: &Labels::empty(),
            external_url: "",
            now_ms: 0,
            query: &|_| Ok(vec![]),
        };
        AlertTemplates::of(rule, |name| !name.starts_with("evidence_"))
            .expect("well formed")
            .instances(samples, limit, &context)
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
