//! One evaluation of one rule.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::api::alerts::{AlertState, AlertView, Evidence, EvidenceValue};
use domain::api::prometheus::float;
use domain::incident::{Context, DiagnosisId, NamedCulprit};
use domain::rule::alert::{Active, Change, fingerprint, step};
use domain::rule::{alert_series, evidence, record};
use domain::series::Labels;
use domain::time::TimestampMs;
use query::Value;
use store::state::alerts::AlertChanges;
use tracing::{info, warn};

use super::burst;
use super::context;
use super::divergence;
use super::engine::Engine;
use super::group::GroupState;
use super::log_tail;
use super::rule::{RuleState, Status};
use super::rule_queries;
use super::view;
use crate::changes::Change as Shown;

/// Maximum number of alerts of one rule. A rule that matches more is a mistake in the rule, not ten thousand faults.
const ALERTS_PER_RULE_MAX: usize = 10_000;
/// Maximum number of values kept of one evidence query: the ranks of a large node, and more than anyone reads.
const EVIDENCE_VALUES_MAX: usize = 16;
/// How long one evaluation may collect evidence. If a whole cluster fails at once, notifications must not wait for it.
const EVIDENCE_WITHIN: Duration = Duration::from_secs(2);

/// The annotations of the current alerts, by their labels.
type Annotations = HashMap<Labels, Labels>;

impl RuleState {
    /// Evaluates the rule for a time. Returns the samples to store, or `None` if the evaluation failed. The error is then shown with the
    /// rule, and its alerts and series stay as they are.
    pub(super) async fn evaluate(
        &self,
        engine: &Engine,
        group: &GroupState,
        at_ms: TimestampMs,
    ) -> Option<Vec<(Labels, f64)>> {
        let started = Instant::now();
        let result = if self.rule.is_alert() {
            self.alert_on(engine, group, at_ms).await
        } else {
            self.record(engine, group, at_ms).await
        };
        let mut status = self.status();
        status.evaluated_ms = at_ms;
        status.duration_s = started.elapsed().as_secs_f64();
        match result {
            Ok(samples) => {
                status.error = None;
                Some(samples)
            }
            Err(error) => {
                if status.error.is_none() {
                    let (rule, group) = (&self.rule.name, &self.group);
                    warn!(rule, group, error, "a rule cannot be evaluated");
                }
                status.error = Some(error);
                None
            }
        }
    }

    async fn record(
        &self,
        engine: &Engine,
        group: &GroupState,
        at_ms: TimestampMs,
    ) -> Result<Vec<(Labels, f64)>, String> {
        let (offset_ms, limit) = (group.definition.query_offset_ms, group.definition.limit);
        let found = rule_queries::samples(engine, &self.query, at_ms - offset_ms).await?;
        record::recorded(&self.rule, found, limit).map_err(|error| error.to_string())
    }

    async fn alert_on(
        &self,
        engine: &Engine,
        group: &GroupState,
        at_ms: TimestampMs,
    ) -> Result<Vec<(Labels, f64)>, String> {
        let query_ms = at_ms - group.definition.query_offset_ms;
        let found = rule_queries::samples(engine, &self.query, query_ms).await?;
        if found.len() > ALERTS_PER_RULE_MAX {
            return Err(format!(
                "the expression matches {} series, more than {ALERTS_PER_RULE_MAX}",
                found.len()
            ));
        }
        let limit = group.definition.limit;
        let instances = rule_queries::instances(engine, &self.templates, found, limit, query_ms).await?;
        let (mut samples, mut annotations) = (Vec::new(), Annotations::new());
        for instance in instances {
            samples.push((instance.labels.clone(), instance.value));
            annotations.insert(instance.labels, instance.annotations);
        }
        self.advance(engine, samples, &annotations, at_ms).await
    }

    /// Advances the alerts to the next state.
    async fn advance(
        &self,
        engine: &Engine,
        samples: Vec<(Labels, f64)>,
        annotations: &Annotations,
        now_ms: TimestampMs,
    ) -> Result<Vec<(Labels, f64)>, String> {
        let mut next = self.status().clone();
        let changes = step(&mut next.active, samples, self.rule.alert_times(), now_ms);
        let outcome = self
            .carry_out(engine, &mut next, &changes, annotations, now_ms)
            .await;
        if !changes.is_empty() {
            self.store(engine, &outcome, now_ms).await?;
        }
        self.show_values(&mut next, annotations);
        context::renew(engine, &mut next, self.metrics());
        let series = alert_series::samples(&next.active);
        let mut status = self.status();
        (status.active, status.views, status.contexts) = (next.active, next.views, next.contexts);
        drop(status);
        if !changes.is_empty() {
            engine.changes.send(Shown::Diagnoses);
        }
        Ok(series)
    }

    /// Updates the views according to the changes, and collects what must be stored.
    async fn carry_out(
        &self,
        engine: &Engine,
        next: &mut Status,
        changes: &[Change],
        annotations: &Annotations,
        now_ms: TimestampMs,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let began = Instant::now();
        for change in changes {
            match change {
                Change::Pending(active) => {
                    let alert = self.alert(active, annotations, None, None);
                    outcome.upsert(next, alert);
                }
                Change::Firing(active) => {
                    let evidence = match began.elapsed() {
                        spent if spent < EVIDENCE_WITHIN => self.evidence(engine, active, now_ms).await,
                        _ => vec![],
                    };
                    let before = next.views.get(&fingerprint(&active.labels));
                    let mut alert = self.alert(active, annotations, before, None);
                    alert.evidence = evidence;
                    burst::request(engine, &alert).await;
                    divergence::note(engine, &alert).await;
                    let context = context::gather(engine, &alert, self.metrics()).await;
                    outcome.contexts.push((DiagnosisId::of(&alert), context.clone()));
                    next.contexts.insert(alert.fingerprint.clone(), context);
                    outcome.changed.push(alert.clone());
                    outcome.upsert(next, alert);
                }
                Change::Resolved(active) => {
                    let before = next.views.remove(&fingerprint(&active.labels));
                    let alert = self.alert(active, annotations, before.as_ref(), Some(now_ms));
                    let id = DiagnosisId::of(&alert);
                    if let Some(context) = next.contexts.remove(&alert.fingerprint) {
                        outcome.contexts.push((id, context));
                    }
                    outcome.changed.push(alert.clone());
                    outcome.upserts.push(alert);
                }
                Change::Dropped(active) => {
                    let fingerprint = fingerprint(&active.labels);
                    next.views.remove(&fingerprint);
                    outcome.forgotten.push(fingerprint);
                }
            }
        }
        outcome
    }

    /// Returns the current view of an alert: with the new annotations, or with the previous ones if the alert was not seen this time.
    fn alert(
        &self,
        active: &Active,
        annotations: &Annotations,
        before: Option<&AlertView>,
        resolved_ms: Option<TimestampMs>,
    ) -> AlertView {
        let fresh = annotations.get(&active.labels).cloned();
        let kept = || before.map(|view| view.annotations.clone());
        let evidence = before.map(|view| view.evidence.clone());
        AlertView {
            state: resolved_ms.map_or(active.state, |_| AlertState::Resolved),
            fingerprint: fingerprint(&active.labels),
            rule: self.rule.name.clone(),
            severity: view::severity(&active.labels),
            annotations: fresh.or_else(kept).unwrap_or_else(Labels::empty),
            labels: active.labels.clone(),
            value: float(active.value),
            active_ms: active.active_ms,
            fired_ms: active.fired_ms,
            resolved_ms,
            evidence: evidence.unwrap_or_default(),
        }
    }

    /// Collects the results of the rule's evidence queries, and the last log lines if the rule requests them. A failed query is left out:
    /// an alert must not wait for evidence.
    async fn evidence(&self, engine: &Engine, active: &Active, now_ms: TimestampMs) -> Vec<Evidence> {
        let culprit = NamedCulprit::of(&active.labels, None);
        let mut all = Vec::new();
        for (title, text) in self.rule.evidence() {
            let Ok(query) = evidence::expand(text, &active.labels, active.value) else {
                continue;
            };
            match engine.evaluator.instant(&query, now_ms).await {
                Ok(output) => all.push(Evidence {
                    title,
                    query,
                    values: evidence_values(output.value, &culprit),
                    lines: Vec::new(),
                }),
                Err(error) => warn!(rule = self.rule.name, query, %error, "an evidence query failed"),
            }
        }
        evidence::select_phase(&mut all, &active.labels);
        if self
            .rule
            .annotations
            .get(log_tail::ANNOTATION)
            .map(String::as_str)
            == Some("true")
        {
            all.extend(log_tail::evidence(engine, &active.labels).await);
        }
        all
    }

    async fn store(&self, engine: &Engine, outcome: &Outcome, now_ms: TimestampMs) -> Result<(), String> {
        let silences = engine.incidents.silences();
        let silenced: Vec<String> = outcome
            .changed
            .iter()
            .filter(|alert| silences.silenced_until(&alert.labels, now_ms).is_some())
            .map(|alert| alert.fingerprint.clone())
            .collect();
        let changes = AlertChanges {
            upserts: &outcome.upserts,
            silenced: &silenced,
            forgotten: &outcome.forgotten,
            contexts: &outcome.contexts,
        };
        engine
            .state
            .apply_alerts(changes, now_ms)
            .await
            .map_err(|error| format!("the change of alerts could not be stored: {error}"))?;
        for alert in &outcome.changed {
            let labels = alert.labels.to_string();
            if alert.state == AlertState::Resolved {
                engine.incidents.forget(&DiagnosisId::of(alert));
            }
            info!(rule = alert.rule, state = ?alert.state, labels, value = alert.value, "an alert changed");
        }
        if !outcome.changed.is_empty() {
            engine.notifier.wake();
        }
        Ok(())
    }

    /// Updates values and texts of alerts that continue.
    fn show_values(&self, next: &mut Status, annotations: &Annotations) {
        for active in &next.active {
            let fingerprint = fingerprint(&active.labels);
            let view = self.alert(active, annotations, next.views.get(&fingerprint), None);
            next.views.insert(fingerprint, view);
        }
    }
}

/// The result of an evaluation.
#[derive(Default)]
struct Outcome {
    upserts: Vec<AlertView>,
    forgotten: Vec<String>,
    contexts: Vec<(DiagnosisId, Context)>,
    /// Alerts that began to fire or were resolved.
    changed: Vec<AlertView>,
}

impl Outcome {
    fn upsert(&mut self, next: &mut Status, alert: AlertView) {
        next.views.insert(alert.fingerprint.clone(), alert.clone());
        self.upserts.push(alert);
    }
}

/// Returns the values of an evidence query. The culprit's own values come first, so that they are kept however many peers there are.
fn evidence_values(value: Value, culprit: &NamedCulprit) -> Vec<EvidenceValue> {
    let mut samples = rule_queries::vector(value).unwrap_or_default();
    samples.sort_by_key(|(labels, _)| !culprit.owns(labels));
    let value = |(labels, value)| EvidenceValue {
        labels,
        value: float(value),
    };
    samples.into_iter().take(EVIDENCE_VALUES_MAX).map(value).collect()
}
