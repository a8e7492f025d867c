//! Rules, and what becomes of them: each group is evaluated at its own times over the one evaluator; changes of alerts and what
//! webhooks are to be sent about them are stored in one transaction before anyone sees them.
//!
//! ```text
//! rule ─ query ─▶ samples ─┬─ recording: named ──────────────────────────────────────────▶ series store
//!                          └─ alerting: templates, step ─▶ changes ─┬─▶ evidence (when it fires)  ▲
//!                                                                   ├─▶ store: alerts, webhooks  │
//!                                                                   └─▶ ALERTS, ALERTS_FOR_STATE ┘
//! files ─ start, reload ─▶ groups: those that changed are stopped, and begin again where they were
//! ```
//! When the store does not take a change of alerts, memory stays as it was and the next evaluation tries again.

pub mod files;
mod reload;

mod engine;
mod group;
mod rule;

mod ask;
mod burst;
mod context;
mod evaluate;
mod log_tail;
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
use store::state::StateError;
use store::state::alerts::AlertChanges;

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

/// How long an alert that was active when the collector ended is held after its start though nothing shows it: agents are back
/// within 15 s, and their spools a moment later.
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
    /// One reload at a time.
    reloading: Arc<tokio::sync::Mutex<()>>,
}

/// A group as people see it.
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// The file it is from.
    pub file: String,
    /// Milliseconds between evaluations.
    pub interval_ms: i64,
    /// The most series or alerts of each rule; 0 for no limit.
    pub limit: usize,
    /// The time it was last evaluated for, and how long that took.
    pub evaluated_ms: TimestampMs,
    /// Seconds.
    pub duration_s: f64,
    /// Its rules.
    pub rules: Vec<RuleView>,
}

/// Gives each alert to the first rule it may be of; returns those that are of none.
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

/// Ends alerts of rules that are not there any more: a receiver that knows such an alert as firing is sent its end.
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
    /// The rules the configuration names, nothing active yet.
    ///
    /// # Errors
    /// When a rule file cannot be used.
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

    /// Takes up the alerts that were active when the collector last ran, and evaluates every group at its interval until the
    /// collector stops.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn start(&self, engine: &Arc<Engine>) -> Result<(), StartError> {
        let failed = |error: StateError| StartError::Load {
            what: "alerts",
            source: error.into(),
        };
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

    /// Nodes of which a critical alert fires that is not one run's own.
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

    /// Alerts that are pending or firing.
    #[must_use]
    pub fn active(&self) -> Vec<AlertView> {
        let groups = self.groups();
        let rules = groups.iter().flat_map(|group| &group.rules);
        rules.flat_map(RuleState::alerts).collect()
    }

    /// Alerts that fire, read as diagnoses, worst and oldest first.
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

    /// An alert that fires, with what is known around it.
    #[must_use]
    pub fn firing(&self, id: &DiagnosisId) -> Option<(AlertView, Context)> {
        let groups = self.groups();
        let mut firing = groups
            .iter()
            .flat_map(|group| &group.rules)
            .flat_map(RuleState::firing);
        firing.find(|(alert, _)| DiagnosisId::of(alert) == *id)
    }

    /// All rules with their alerts.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleView> {
        let groups = self.groups();
        let rules = groups.iter().flat_map(|group| &group.rules);
        rules.map(RuleState::view).collect()
    }

    /// All groups with their rules.
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
