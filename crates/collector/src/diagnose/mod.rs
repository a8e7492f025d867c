//! Rules and their alerts: each group is evaluated at its own times with the common evaluator. Changes of alerts and the notifications
//! about them are stored in one transaction before anyone sees them.
//!
//! ```text
//! rule ─ query ─▶ samples ─┬─ recording: named ──────────────────────────────────────────▶ series store
//!                          └─ alerting: templates, step ─▶ changes ─┬─▶ evidence (if it fires)     ▲
//!                                                                   ├─▶ store: alerts, webhooks    │
//!                                                                   └─▶ ALERTS, ALERTS_FOR_STATE ──┘
//! files ─ start, reload ─▶ groups: changed ones are stopped, and continue where they were
//! ```
//! If the store cannot save a change of alerts, the state in memory stays as it was, and the next evaluation tries again.

pub mod files;
mod reload;

mod engine;
mod group;
mod rule;

mod burst;
mod context;
mod divergence;
mod evaluate;
mod log_tail;
mod rule_queries;
mod silenced;
mod write;

mod metrics;
mod view;

#[cfg(test)]
mod recorded;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use domain::api::alerts::{AlertState, AlertView, Diagnosis, RuleView};
use domain::event::Severity;
use domain::incident::{Context, DiagnosisId};
use domain::time::TimestampMs;
use prometheus::Registry;
use store::StateStore;
use store::state::StateError;
use store::state::alerts::{AlertChanges, RuleKey};

use crate::clock;
use crate::config::Config;
use crate::error::StartError;
use crate::incidents::Incidents;
use files::Sources;
use group::GroupState;
use metrics::RuleMetrics;
use rule::RuleState;

pub use engine::Engine;
pub use files::RulesError;
pub use reload::Reloaded;
pub(crate) use view::diagnosis;

/// How long an alert that was active when the collector stopped is kept after its start without a sample: agents reconnect within 15 s, and
/// their spools follow a moment later.
const RETURN_MS: i64 = 30_000;

type Groups = Arc<[Arc<GroupState>]>;

/// The rules of this collector. Cheap to clone.
#[derive(Clone)]
pub struct Alerts {
    groups: Arc<RwLock<Groups>>,
    incidents: Incidents,
    sources: Arc<Sources>,
    interval_ms: i64,
    metrics: RuleMetrics,
    /// Allows one reload at a time.
    reloading: Arc<tokio::sync::Mutex<()>>,
}

/// The view of a group.
pub struct GroupView {
    /// The name of the group.
    pub name: String,
    /// The file that contains the group.
    pub file: String,
    /// Evaluation interval, in milliseconds.
    pub interval_ms: i64,
    /// Maximum number of series or alerts of each rule; 0 for no limit.
    pub limit: usize,
    /// The time of the last evaluation.
    pub evaluated_ms: TimestampMs,
    /// The duration of the last evaluation, in seconds.
    pub duration_s: f64,
    /// The rules of the group.
    pub rules: Vec<RuleView>,
}

/// Assigns each stored alert to the first rule that it may belong to. Returns the alerts that belong to no rule.
fn take_up(
    groups: &Groups,
    active: &[AlertView],
    contexts: &BTreeMap<DiagnosisId, Context>,
    true_ms: TimestampMs,
) -> Vec<AlertView> {
    let mut left: Vec<&AlertView> = active.iter().collect();
    for rule in groups.iter().flat_map(|group| &group.rules) {
        let (ours, others) = left
            .into_iter()
            .partition(|alert| rule.rule.may_own(&alert.labels));
        left = others;
        rule.take_up(&ours, contexts, true_ms);
    }
    left.into_iter().cloned().collect()
}

/// Resolves alerts of rules that no longer exist: a receiver that has such an alert as firing gets a notification of its end.
async fn resolve(engine: &Engine, orphans: Vec<AlertView>) -> Result<(), StateError> {
    let now_ms = clock::now_ms();
    for mut alert in orphans {
        if alert.fired_ms.is_none() {
            let forgotten = &[alert.fingerprint.clone()];
            let changes = AlertChanges {
                forgotten,
                ..AlertChanges::default()
            };
            engine.state.apply_alerts(changes, now_ms).await?;
            continue;
        }
        (alert.state, alert.resolved_ms) = (AlertState::Resolved, Some(now_ms));
        let upserts = &[alert];
        let changes = AlertChanges {
            upserts,
            ..AlertChanges::default()
        };
        engine.state.apply_alerts(changes, now_ms).await?;
        engine.incidents.forget(&DiagnosisId::of(&upserts[0]));
        engine.notifier.wake();
    }
    Ok(())
}

impl Alerts {
    /// Loads the rules that the configuration names. No alert is active yet.
    ///
    /// # Errors
    /// Returns an error if a rule file cannot be used.
    pub fn load(config: &Config, registry: &Registry, incidents: Incidents) -> Result<Self, RulesError> {
        let sources = Sources {
            patterns: config.rules.clone(),
            shipped: config.shipped_rules,
        };
        let (metrics, interval_ms) = (RuleMetrics::new(registry), config.evaluation_interval_ms);
        let groups = reload::read(&sources, interval_ms, &metrics)?;
        metrics.reload_worked.set(1.0);
        metrics.reloaded_at.set(clock::now_ms() as f64 / 1_000.0);
        Ok(Self {
            groups: Arc::new(RwLock::new(groups.into_iter().map(Arc::new).collect())),
            incidents,
            sources: Arc::new(sources),
            interval_ms,
            metrics,
            reloading: Arc::default(),
        })
    }

    /// Continues the alerts that were active when the collector last stopped, and evaluates every group at its interval until the collector
    /// stops.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    pub async fn start(&self, engine: &Arc<Engine>) -> Result<(), StartError> {
        let failed = |error: StateError| StartError::load("alerts", error);
        let active = engine.state.active_alerts().await.map_err(failed)?;
        let true_ms = clock::now_ms() + RETURN_MS;
        let groups = self.groups();
        let contexts = engine.state.active_contexts().await.map_err(failed)?;
        let orphans = take_up(&groups, &active, &contexts, true_ms);
        resolve(engine, orphans).await.map_err(failed)?;
        for group in groups.iter() {
            group.start(engine);
        }
        engine
            .tasks
            .spawn(self.clone().follow_silences(Arc::clone(engine)));
        Ok(())
    }

    /// Returns the nodes with a firing critical alert that does not name a run.
    #[must_use]
    pub fn critical_nodes(&self) -> Vec<String> {
        let diagnoses = self.diagnoses().into_iter();
        let of_nodes = diagnoses.filter(|diagnosis| {
            diagnosis.alert.severity == Severity::Critical && diagnosis.alert.labels.get("run").is_none()
        });
        of_nodes
            .filter_map(|diagnosis| diagnosis.alert.labels.get("node").map(str::to_owned))
            .collect()
    }

    /// Returns the pending and firing alerts.
    #[must_use]
    pub fn active(&self) -> Vec<AlertView> {
        let groups = self.groups();
        let rules = groups.iter().flat_map(|group| &group.rules);
        rules.flat_map(RuleState::alerts).collect()
    }

    /// Returns the firing alerts as diagnoses, the most severe first, then the oldest.
    #[must_use]
    pub fn diagnoses(&self) -> Vec<Diagnosis> {
        let (groups, now_ms) = (self.groups(), clock::now_ms());
        let firing = groups
            .iter()
            .flat_map(|group| &group.rules)
            .flat_map(RuleState::firing);
        let mut diagnoses: Vec<_> = firing
            .map(|(alert, context)| {
                let handling = self
                    .incidents
                    .handling(&DiagnosisId::of(&alert), &alert.labels, now_ms);
                view::shown(alert, &context, handling)
            })
            .collect();
        diagnoses.sort_by_key(|d| (std::cmp::Reverse(d.alert.severity), d.alert.active_ms));
        diagnoses
    }

    /// Returns a firing alert with its context.
    #[must_use]
    pub fn firing(&self, id: &DiagnosisId) -> Option<(AlertView, Context)> {
        let groups = self.groups();
        let mut firing = groups
            .iter()
            .flat_map(|group| &group.rules)
            .flat_map(RuleState::firing);
        firing.find(|(alert, _)| DiagnosisId::of(alert) == *id)
    }

    /// Returns all rules with their alerts, and when each last fired.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    pub async fn rules(&self, state: &StateStore) -> Result<Vec<RuleView>, StateError> {
        let groups = self.groups();
        let rules: Vec<&RuleState> = groups.iter().flat_map(|group| &group.rules).collect();
        let keys: Vec<RuleKey<'_>> = rules.iter().map(|rule| rule.key()).collect();
        let fired = state.last_fired(&keys).await?;
        let views = rules.iter().zip(fired).map(|(rule, fired_ms)| RuleView {
            last_fired_ms: fired_ms.filter(|_| rule.rule.is_alert()),
            ..rule.view()
        });
        Ok(views.collect())
    }

    /// Returns all groups with their rules, without the times at which these last fired.
    #[must_use]
    pub fn group_views(&self) -> Vec<GroupView> {
        let view = |group: &Arc<GroupState>| GroupView {
            name: group.definition.name.clone(),
            file: group.file.clone(),
            interval_ms: group.schedule.interval_ms(),
            limit: group.definition.limit,
            evaluated_ms: group.timing().evaluated_ms,
            duration_s: group.timing().duration_s,
            rules: group.rules.iter().map(RuleState::view).collect(),
        };
        self.groups().iter().map(view).collect()
    }

    fn groups(&self) -> Groups {
        Arc::clone(&self.groups.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_groups(&self, groups: Groups) {
        *self.groups.write().unwrap_or_else(PoisonError::into_inner) = groups;
    }
}
