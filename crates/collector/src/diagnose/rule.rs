//! One active rule: its definition, the metrics it reads, the series it wrote, and its alerts.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::api::alerts::{AlertState, AlertView, RuleKind, RuleView};
use domain::incident::{Context, DiagnosisId};
use domain::rule::alert::Active;
use domain::rule::definition::{EVIDENCE_PREFIX, Texts};
use domain::rule::instance::AlertTemplates;
use domain::rule::{Group, Rule, alert_series};
use domain::series::Labels;
use domain::time::TimestampMs;
use query::{Params, ParseError, Query};
use store::state::alerts::RuleKey;

/// An active rule. Only the task of its group changes it; any task may read it.
pub(super) struct RuleState {
    pub(super) file: String,
    pub(super) group: String,
    pub(super) rule: Rule,
    pub(super) query: Query,
    pub(super) templates: AlertTemplates,
    /// The metrics that its expression names; `None` if it may read any metric.
    reads: Option<Vec<String>>,
    status: Mutex<Status>,
    written: Mutex<HashSet<Labels>>,
}

/// The state of a rule's alerts.
#[derive(Clone, Default)]
pub(super) struct Status {
    pub(super) active: Vec<Active>,
    /// The views of the active alerts, by fingerprint.
    pub(super) views: BTreeMap<String, AlertView>,
    /// The contexts of the firing alerts, by fingerprint.
    pub(super) contexts: BTreeMap<String, Context>,
    pub(super) evaluated_ms: TimestampMs,
    pub(super) duration_s: f64,
    pub(super) error: Option<String>,
}

impl RuleState {
    /// Creates a rule that is not evaluated yet, with its parsed expression.
    pub(super) fn new(file: &str, group: &Group, rule: Rule) -> Result<Self, ParseError> {
        let query = query::parse(&rule.expr)?;
        let templates = AlertTemplates::of(&rule, |name| !name.starts_with(EVIDENCE_PREFIX));
        Ok(Self {
            file: file.to_owned(),
            group: group.name.clone(),
            templates: templates.expect("templates are checked when the file is read"),
            reads: names_read(&query),
            rule,
            query,
            status: Mutex::default(),
            written: Mutex::default(),
        })
    }

    /// Locks the status, even after a panic of another holder: every change replaces the status as a whole.
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the series that the rule last wrote.
    pub(super) fn written(&self) -> MutexGuard<'_, HashSet<Labels>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the result of this rule may depend on what `other` writes.
    pub(super) fn may_read(&self, other: &Self) -> bool {
        let Some(reads) = &self.reads else { return true };
        if other.rule.is_alert() {
            return reads
                .iter()
                .any(|name| name == alert_series::ALERTS || name == alert_series::ALERTS_FOR_STATE);
        }
        reads.contains(&other.rule.name)
    }

    /// Continues alerts that were active before, and keeps them until `true_ms` even without a sample.
    pub(super) fn take_up(
        &self,
        active: &[&AlertView],
        contexts: &BTreeMap<DiagnosisId, Context>,
        true_ms: TimestampMs,
    ) {
        let mut status = Status::taken_up(active, true_ms);
        for view in active {
            if let Some(context) = contexts.get(&DiagnosisId::of(view)) {
                status.contexts.insert(view.fingerprint.clone(), context.clone());
            }
        }
        *self.status() = status;
    }

    /// Continues the state of another rule: the same rule before its file was read again.
    pub(super) fn take_over(&self, before: &Self) {
        *self.status() = before.status().clone();
        *self.written() = std::mem::take(&mut *before.written());
    }

    pub(super) fn alerts(&self) -> Vec<AlertView> {
        self.status().views.values().cloned().collect()
    }

    /// Returns the firing alerts, each with its context.
    pub(super) fn firing(&self) -> Vec<(AlertView, Context)> {
        let status = self.status();
        let firing = status.views.values().filter(|view| view.fired_ms.is_some());
        firing
            .map(|view| {
                let context = status.contexts.get(&view.fingerprint);
                (view.clone(), context.cloned().unwrap_or_default())
            })
            .collect()
    }

    /// Returns the metrics that the expression names. Empty if it may read any metric.
    pub(super) fn metrics(&self) -> &[String] {
        self.reads.as_deref().unwrap_or_default()
    }

    /// Returns the view without the time at which the rule last fired: only the store knows it.
    pub(super) fn view(&self) -> RuleView {
        let status = self.status().clone();
        let times = self.rule.alert_times();
        RuleView {
            file: self.file.clone(),
            group: self.group.clone(),
            kind: if self.rule.is_alert() {
                RuleKind::Alerting
            } else {
                RuleKind::Recording
            },
            name: self.rule.name.clone(),
            expr: self.rule.expr.trim().to_owned(),
            for_ms: times.hold_ms,
            keep_firing_ms: times.keep_firing_ms,
            labels: as_labels(&self.rule.labels),
            annotations: as_labels(&self.rule.annotations),
            alerts: status.views.into_values().collect(),
            last_fired_ms: None,
            evaluated_ms: status.evaluated_ms,
            duration_s: status.duration_s,
            error: status.error,
        }
    }

    /// Returns by what the store finds the alerts of this rule.
    pub(super) fn key(&self) -> RuleKey<'_> {
        RuleKey {
            name: &self.rule.name,
            labels: self.rule.fixed_labels().collect(),
        }
    }
}

fn as_labels(texts: &Texts) -> Labels {
    Labels::from_trusted(
        texts
            .iter()
            .map(|(name, text)| (name.as_str().into(), text.as_str().into())),
    )
}

fn names_read(query: &Query) -> Option<Vec<String>> {
    let selections = query.selections(&Params::instant(0));
    let names = selections
        .iter()
        .map(|selection| selection.metric().map(str::to_owned));
    names.collect()
}

impl Status {
    fn taken_up(active: &[&AlertView], true_ms: TimestampMs) -> Self {
        let mut status = Self::default();
        let active = active.iter().filter(|view| view.state != AlertState::Resolved);
        for view in active {
            status.active.push(Active {
                labels: view.labels.clone(),
                state: view.state,
                value: view.value.parse().unwrap_or(f64::NAN),
                active_ms: view.active_ms,
                fired_ms: view.fired_ms,
                true_ms,
                over_ms: None,
            });
            status.views.insert(view.fingerprint.clone(), (*view).clone());
        }
        status
    }
}
