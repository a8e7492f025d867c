//! One rule in force: its definition and its alerts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::api::alerts::{AlertState, AlertView, RuleView};
use domain::rule::alert::{Active, Holding};
use domain::rule::definition::{Group, Rule};
use domain::series::Labels;
use domain::time::TimestampMs;

/// A group in force.
pub(super) struct GroupState {
    pub(super) interval_ms: u64,
    pub(super) rules: Vec<RuleState>,
}

/// A rule in force. Only its group's task changes the status; everyone may look.
pub(super) struct RuleState {
    pub(super) group: String,
    pub(super) rule: Rule,
    status: Mutex<Status>,
}

/// Where a rule's alerts stand.
#[derive(Clone, Default)]
pub(super) struct Status {
    pub(super) active: Vec<Active>,
    /// What people see of each active alert, by fingerprint.
    pub(super) views: BTreeMap<String, AlertView>,
    pub(super) evaluated_ms: TimestampMs,
    pub(super) duration_s: f64,
    pub(super) error: Option<String>,
}

impl GroupState {
    /// Checks the expressions.
    pub(super) fn new(group: Group) -> Result<Self, query::ParseError> {
        let interval_ms = u64::try_from(group.interval_ms()).unwrap_or(1_000);
        let name = group.name;
        let rules = group.rules.into_iter().map(|rule| {
            rule.queries()
                .try_for_each(|(_, text)| query::parse(&text).map(drop))?;
            Ok(RuleState {
                group: name.clone(),
                rule,
                status: Mutex::default(),
            })
        });
        Ok(Self {
            interval_ms,
            rules: rules.collect::<Result<_, _>>()?,
        })
    }
}

impl RuleState {
    /// The status, whoever panicked while holding it: every change replaces it whole.
    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with alerts that were active before, and holds them until `true_ms` even if nothing shows them.
    pub(super) fn take_up(&self, active: &[AlertView], true_ms: TimestampMs) {
        *self.status() = Status::taken_up(&self.rule, active, true_ms);
    }

    pub(super) fn holding(&self) -> Holding {
        Holding {
            hold_ms: self.rule.hold_ms(),
            keep_firing_ms: self.rule.keep_firing_ms(),
        }
    }

    pub(super) fn alerts(&self) -> Vec<AlertView> {
        self.status().views.values().cloned().collect()
    }

    pub(super) fn view(&self) -> RuleView {
        let status = self.status().clone();
        RuleView {
            group: self.group.clone(),
            name: self.rule.alert.clone(),
            expr: self.rule.expr.trim().to_owned(),
            for_ms: self.rule.hold_ms(),
            labels: Labels::from_trusted(
                self.rule
                    .labels
                    .iter()
                    .map(|(k, v)| (k.as_str().into(), v.as_str().into())),
            ),
            annotations: Labels::from_trusted(
                self.rule
                    .annotations
                    .iter()
                    .map(|(k, v)| (k.as_str().into(), v.as_str().into())),
            ),
            alerts: status.views.into_values().collect(),
            evaluated_ms: status.evaluated_ms,
            duration_s: status.duration_s,
            error: status.error,
        }
    }
}

impl Status {
    fn taken_up(rule: &Rule, active: &[AlertView], true_ms: TimestampMs) -> Self {
        let ours = active
            .iter()
            .filter(|view| view.rule == rule.alert && view.state != AlertState::Resolved);
        let mut status = Self::default();
        for view in ours {
            status.active.push(Active {
                labels: view.labels.clone(),
                state: view.state,
                value: view.value.parse().unwrap_or(f64::NAN),
                active_ms: view.active_ms,
                fired_ms: view.fired_ms,
                true_ms,
            });
            status.views.insert(view.fingerprint.clone(), view.clone());
        }
        status
    }
}
