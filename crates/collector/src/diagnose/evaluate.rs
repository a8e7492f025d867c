//! One evaluation of one rule.

use std::time::{Duration, Instant};

use domain::api::alerts::{AlertView, Evidence, EvidenceValue};
use domain::api::prometheus::float;
use domain::rule::alert::{Active, Change, step};
use domain::rule::template;
use domain::series::Labels;
use domain::time::TimestampMs;
use query::Value;
use store::state::alerts::AlertChanges;
use store::state::outbox::NewMessage;
use tracing::{info, warn};

use super::rule::{RuleState, Status};
use super::view;
use crate::app::Shared;
use crate::changes::Change as Shown;
use crate::notify;

/// Alerts one rule may have: a rule that matches everything is a mistake in the rule, not ten thousand faults.
const ALERTS_PER_RULE_MAX: usize = 10_000;
/// Values kept of one evidence query: the ranks of a large node, and more than anyone reads.
const EVIDENCE_VALUES_MAX: usize = 16;
/// How long one evaluation gathers evidence: when a whole cluster fails at once, word of it must not wait for decoration.
const EVIDENCE_WITHIN: Duration = Duration::from_secs(2);
/// Alerts in one message; a receiver that bounds its bodies must not refuse the worst day's news.
const ALERTS_PER_MESSAGE: usize = 64;

impl RuleState {
    /// Evaluates the rule now. What goes wrong is kept with the rule and shown; its alerts stay as they are then.
    pub(super) async fn evaluate(&self, app: &Shared) {
        let (started, now_ms) = (Instant::now(), app.now_ms());
        let result = self.try_evaluate(app, now_ms).await;
        let mut status = self.status();
        status.evaluated_ms = now_ms;
        status.duration_s = started.elapsed().as_secs_f64();
        if let (Err(error), None) = (&result, &status.error) {
            warn!(rule = self.rule.alert, error, "a rule cannot be evaluated");
        }
        status.error = result.err();
    }

    async fn try_evaluate(&self, app: &Shared, now_ms: TimestampMs) -> Result<(), String> {
        let samples = self.samples(app, now_ms).await?;
        let mut next = self.status().clone();
        let changes = step(&mut next.active, samples, self.holding(), now_ms);
        let outcome = self.carry_out(app, &mut next, &changes, now_ms).await;
        if !changes.is_empty() {
            self.store(app, &outcome, now_ms).await?;
        }
        self.show_values(&mut next);
        let mut status = self.status();
        (status.active, status.views) = (next.active, next.views);
        drop(status);
        if !changes.is_empty() {
            app.changes.send(Shown::Diagnoses);
        }
        Ok(())
    }

    /// The label sets for which the condition holds now.
    async fn samples(&self, app: &Shared, now_ms: TimestampMs) -> Result<Vec<(Labels, f64)>, String> {
        let output = app
            .evaluator
            .instant(&self.rule.expr, now_ms)
            .await
            .map_err(|error| error.to_string())?;
        let samples: Vec<(Labels, f64)> = match output.value {
            Value::Vector(samples) => samples
                .into_iter()
                .map(|(labels, _, value)| (labels, value))
                .collect(),
            Value::Scalar(_, value) => vec![(Labels::empty(), value)],
            Value::Matrix(_) | Value::String(..) => {
                return Err("the expression gives neither a vector nor a number".to_owned());
            }
        };
        if samples.len() > ALERTS_PER_RULE_MAX {
            return Err(format!(
                "the expression matches {} series, more than {ALERTS_PER_RULE_MAX}",
                samples.len()
            ));
        }
        Ok(samples
            .into_iter()
            .map(|(labels, value)| (view::alert_labels(&self.rule, &labels, value), value))
            .collect())
    }

    /// Brings the views in line with the changes, and gathers what is to be stored.
    async fn carry_out(
        &self,
        app: &Shared,
        next: &mut Status,
        changes: &[Change],
        now_ms: TimestampMs,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let began = Instant::now();
        for change in changes {
            match change {
                Change::Pending(active) => outcome.upsert(next, self.alert(active, vec![], None)),
                Change::Firing(active) => {
                    let evidence = match began.elapsed() {
                        spent if spent < EVIDENCE_WITHIN => self.evidence(app, active, now_ms).await,
                        _ => vec![],
                    };
                    let alert = self.alert(active, evidence, None);
                    outcome.told.push(alert.clone());
                    outcome.upsert(next, alert);
                }
                Change::Resolved(active) => {
                    let before = next
                        .views
                        .remove(&domain::rule::alert::fingerprint(&active.labels));
                    let alert = self.alert(
                        active,
                        before.map(|alert| alert.evidence).unwrap_or_default(),
                        Some(now_ms),
                    );
                    outcome.told.push(alert.clone());
                    outcome.upserts.push(alert);
                }
                Change::Dropped(active) => {
                    let fingerprint = domain::rule::alert::fingerprint(&active.labels);
                    next.views.remove(&fingerprint);
                    outcome.forgotten.push(fingerprint);
                }
            }
        }
        outcome
    }

    fn alert(&self, active: &Active, evidence: Vec<Evidence>, resolved_ms: Option<TimestampMs>) -> AlertView {
        view::alert(&self.rule, active, evidence, resolved_ms)
    }

    /// Answers of the rule's evidence queries. One that fails is left out: an alert must not wait for its decoration.
    async fn evidence(&self, app: &Shared, active: &Active, now_ms: TimestampMs) -> Vec<Evidence> {
        let mut all = Vec::new();
        for (title, text) in self.rule.evidence() {
            let Ok(query) = template::expand_query(text, &active.labels, active.value) else {
                continue;
            };
            match app.evaluator.instant(&query, now_ms).await {
                Ok(output) => all.push(Evidence {
                    title,
                    query,
                    values: evidence_values(output.value),
                }),
                Err(error) => warn!(rule = self.rule.alert, query, %error, "an evidence query failed"),
            }
        }
        all
    }

    async fn store(&self, app: &Shared, outcome: &Outcome, now_ms: TimestampMs) -> Result<(), String> {
        let messages = self.messages(app, outcome).await?;
        let changes = AlertChanges {
            upserts: &outcome.upserts,
            forgotten: &outcome.forgotten,
            messages: &messages,
        };
        app.store
            .state
            .apply_alerts(changes, now_ms)
            .await
            .map_err(|error| format!("the store did not take it: {error}"))?;
        for alert in &outcome.told {
            let labels = alert.labels.to_string();
            info!(rule = alert.rule, state = ?alert.state, labels, value = alert.value, "an alert changed");
        }
        if !messages.is_empty() {
            app.alerts.notifier().wake();
        }
        Ok(())
    }

    async fn messages(&self, app: &Shared, outcome: &Outcome) -> Result<Vec<NewMessage>, String> {
        if outcome.told.is_empty() {
            return Ok(vec![]);
        }
        let webhooks = app
            .store
            .state
            .webhooks()
            .await
            .map_err(|error| format!("webhooks cannot be read: {error}"))?;
        let url = notify::external_url(app);
        let messages = outcome.told.chunks(ALERTS_PER_MESSAGE).flat_map(|alerts| {
            let to = |webhook| notify::message::new(webhook, alerts, &url);
            webhooks.iter().map(to).collect::<Vec<_>>()
        });
        Ok(messages.collect())
    }

    /// Values of alerts that merely go on.
    fn show_values(&self, next: &mut Status) {
        for active in &next.active {
            let fingerprint = domain::rule::alert::fingerprint(&active.labels);
            let fresh = next
                .views
                .get(&fingerprint)
                .map(|view| self.alert(active, view.evidence.clone(), None));
            next.views.insert(
                fingerprint,
                fresh.unwrap_or_else(|| self.alert(active, vec![], None)),
            );
        }
    }
}

/// What an evaluation leads to.
#[derive(Default)]
struct Outcome {
    upserts: Vec<AlertView>,
    forgotten: Vec<String>,
    /// Those that began to fire or were resolved.
    told: Vec<AlertView>,
}

impl Outcome {
    fn upsert(&mut self, next: &mut Status, alert: AlertView) {
        next.views.insert(alert.fingerprint.clone(), alert.clone());
        self.upserts.push(alert);
    }
}

fn evidence_values(value: Value) -> Vec<EvidenceValue> {
    let text = |labels, value| EvidenceValue {
        labels,
        value: float(value),
    };
    match value {
        Value::Vector(samples) => samples
            .into_iter()
            .take(EVIDENCE_VALUES_MAX)
            .map(|(labels, _, value)| text(labels, value))
            .collect(),
        Value::Scalar(_, value) => vec![text(Labels::empty(), value)],
        Value::Matrix(_) | Value::String(..) => vec![],
    }
}
