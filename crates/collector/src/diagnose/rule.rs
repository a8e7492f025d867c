//! One rule in force: its definition, what it reads and wrote, and its alerts.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::api::alerts::{AlertState, AlertView, RuleKind, RuleView};
use domain::incident::{Context, DiagnosisId};
use domain::rule::alert::Active;
use domain::rule::definition::{EVIDENCE_PREFIX, Texts};
use domain::rule::instance::Instancing;
use domain::rule::{Group, Rule, trace};
use domain::series::{Labels, METRIC_NAME, MatchOp};
use domain::time::TimestampMs;
use query::{Params, ParseError, Query};

/// A rule in force. Only its group's task changes it; everyone may look.
pub(super) struct RuleState {
    pub(super) file: String,
    pub(super) group: String,
    pub(super) rule: Rule,
    pub(super) query: Query,
    pub(super) instancing: Instancing,
    /// The metrics its expression names; none when it may read any.
    reads: Option<Vec<String>>,
    status: Mutex<Status>,
    written: Mutex<HashSet<Labels>>,
}

/// Where a rule's alerts stand.
#[derive(Clone, Default)]
pub(super) struct Status {
    pub(super) active: Vec<Active>,
    /// What people see of each active alert, by fingerprint.
    pub(super) views: BTreeMap<String, AlertView>,
    /// What is known around each alert that fires, by fingerprint.
    pub(super) contexts: BTreeMap<String, Context>,
    pub(super) evaluated_ms: TimestampMs,
    pub(super) duration_s: f64,
    pub(super) error: Option<String>,
}

impl RuleState {
    /// A rule that is not evaluated yet; its expression is parsed.
    pub(super) fn new(file: &str, group: &Group, rule: Rule) -> Result<Self, ParseError> {
        let query = query::parse(&rule.expr)?;
        let instancing = Instancing::of(&rule, |name| !name.starts_with(EVIDENCE_PREFIX));
        Ok(Self {
            file: file.to_owned(),
            group: group.name.clone(),
            instancing: instancing.expect("templates are checked when the file is read"),
            reads: names_read(&query),
            rule,
            query,
            status: Mutex::default(),
            written: Mutex::default(),
        })
    }

    /// The status, whoever panicked while holding it: every change replaces it whole.
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The series it wrote last.
    pub(super) fn written(&self) -> MutexGuard<'_, HashSet<Labels>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its answer may depend on what `other` writes.
    pub(super) fn may_read(&self, other: &Self) -> bool {
        let Some(reads) = &self.reads else { return true };
        if other.rule.is_alert() {
            return reads
                .iter()
                .any(|name| name == trace::ALERTS || name == trace::ALERTS_FOR_STATE);
        }
        reads.contains(&other.rule.name)
    }

    /// Goes on with alerts that were active before, and holds them until `true_ms` even if nothing shows them.
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

    /// Goes on where another one stopped: the same rule before its file was read again.
    pub(super) fn take_over(&self, before: &Self) {
        *self.status() = before.status().clone();
        *self.written() = std::mem::take(&mut *before.written());
    }

    pub(super) fn alerts(&self) -> Vec<AlertView> {
        self.status().views.values().cloned().collect()
    }

    /// Alerts that fire, each with what is known around it.
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

    /// The metrics that its expression names; none when it may read any.
    pub(super) fn metrics(&self) -> &[String] {
        self.reads.as_deref().unwrap_or_default()
    }

    pub(super) fn view(&self) -> RuleView {
        let status = self.status().clone();
        let holding = self.rule.holding();
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
            for_ms: holding.hold_ms,
            keep_firing_ms: holding.keep_firing_ms,
            labels: as_labels(&self.rule.labels),
            annotations: as_labels(&self.rule.annotations),
            alerts: status.views.into_values().collect(),
            evaluated_ms: status.evaluated_ms,
            duration_s: status.duration_s,
            error: status.error,
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
    let names = selections.iter().map(|selection| {
        let named = selection
            .matchers
            .iter()
            .find(|matcher| matcher.name == METRIC_NAME && matcher.op == MatchOp::Equal);
        named.map(|matcher| matcher.value.clone())
    });
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
