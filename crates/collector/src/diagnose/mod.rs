//! Rules, and what becomes of them: each group is evaluated at its own interval over the one evaluator; changes and the
//! messages about them are stored in one transaction before anyone sees them.
//!
//! ```text
//! rule ─ expand, query ─▶ samples ─ domain::rule::alert::step ─▶ changes ─┬─▶ evidence queries (when it fires)
//!                                                                         └─▶ store: alerts + outbox, then memory
//! ```
//! When the store does not take a change, memory stays as it was and the next evaluation tries again.

mod evaluate;
mod rule;
mod view;

#[cfg(test)]
mod recorded;

use std::sync::Arc;
use std::time::Duration;

use domain::api::alerts::{AlertState, AlertView, Diagnosis, RuleView};
use domain::rule::{RuleFile, shipped};
use store::state::StateError;
use store::state::alerts::AlertChanges;

use crate::app::Shared;
use crate::error::StartError;
use crate::notify::{self, Notifier};
use rule::{GroupState, RuleState};

/// How long an alert that was active when the collector ended is held after its start though nothing shows it: agents are back
/// within 15 s, and their spools a moment later.
const RETURN_MS: i64 = 30_000;

/// The rules of this collector. Cheap to clone.
#[derive(Clone)]
pub struct Alerts {
    groups: Arc<[GroupState]>,
    notifier: Notifier,
}

/// Takes up the alerts that were active when the collector last ran, and evaluates every group at its interval until the
/// collector stops.
///
/// # Errors
/// When the store cannot be read.
pub async fn start(app: &Shared) -> Result<(), StartError> {
    let active = app.store.state.active_alerts().await;
    let active = active.map_err(|error| StartError::Load {
        what: "alerts",
        source: error.into(),
    })?;
    let true_ms = app.now_ms() + RETURN_MS;
    app.alerts
        .rule_states()
        .for_each(|rule| rule.take_up(&active, true_ms));
    resolve_orphans(app, active)
        .await
        .map_err(|error| StartError::Load {
            what: "alerts",
            source: error.into(),
        })?;
    for index in 0..app.alerts.groups.len() {
        let shared = Arc::clone(app);
        app.spawn(async move { shared.alerts.evaluate_for_ever(index, &shared).await });
    }
    Ok(())
}

/// Ends alerts of rules that are not there any more, and says so: whoever was told of the fire must hear of its end.
async fn resolve_orphans(app: &Shared, active: Vec<AlertView>) -> Result<(), StateError> {
    let has_rule = |alert: &AlertView| app.alerts.rule_states().any(|rule| rule.rule.alert == alert.rule);
    let (now_ms, url) = (app.now_ms(), notify::external_url(app));
    for mut alert in active.into_iter().filter(|alert| !has_rule(alert)) {
        if alert.fired_ms.is_none() {
            let forgotten = &[alert.fingerprint.clone()];
            let changes = AlertChanges {
                forgotten,
                ..AlertChanges::default()
            };
            app.store.state.apply_alerts(changes, now_ms).await?;
            continue;
        }
        (alert.state, alert.resolved_ms) = (AlertState::Resolved, Some(now_ms));
        let upserts = &[alert];
        let webhooks = app.store.state.webhooks().await?;
        let messages: Vec<_> = webhooks
            .iter()
            .map(|webhook| notify::message::new(webhook, upserts, &url))
            .collect();
        let changes = AlertChanges {
            upserts,
            messages: &messages,
            ..AlertChanges::default()
        };
        app.store.state.apply_alerts(changes, now_ms).await?;
    }
    Ok(())
}

impl Alerts {
    /// The rules that ship with Lockstep, nothing active yet.
    ///
    /// # Panics
    /// When a shipped rule is malformed, which tests rule out.
    #[must_use]
    pub fn shipped() -> Self {
        let files = shipped::FILES.iter().map(|(name, text)| {
            RuleFile::parse(text)
                .unwrap_or_else(|error| panic!("the shipped rules in {name} are malformed: {error}"))
        });
        let groups = files.flat_map(|file| file.groups).map(|group| {
            let name = group.name.clone();
            GroupState::new(group)
                .unwrap_or_else(|error| panic!("a shipped rule in group {name} is malformed: {error}"))
        });
        Self {
            groups: groups.collect(),
            notifier: Notifier::default(),
        }
    }

    /// Wakes the delivery of messages.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    async fn evaluate_for_ever(&self, index: usize, app: &Shared) {
        let group = &self.groups[index];
        let mut ticks = tokio::time::interval(Duration::from_millis(group.interval_ms));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            for rule in &group.rules {
                rule.evaluate(app).await;
            }
        }
    }

    /// Alerts that are pending or firing.
    #[must_use]
    pub fn active(&self) -> Vec<AlertView> {
        self.rule_states().flat_map(RuleState::alerts).collect()
    }

    /// Alerts that fire, read as diagnoses, worst and oldest first.
    #[must_use]
    pub fn diagnoses(&self) -> Vec<Diagnosis> {
        let mut diagnoses: Vec<_> = self
            .active()
            .into_iter()
            .filter(|a| a.fired_ms.is_some())
            .map(view::diagnosis)
            .collect();
        diagnoses.sort_by_key(|d| (std::cmp::Reverse(d.alert.severity), d.alert.active_ms));
        diagnoses
    }

    /// All rules with their alerts.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleView> {
        self.rule_states().map(RuleState::view).collect()
    }

    fn rule_states(&self) -> impl Iterator<Item = &RuleState> {
        self.groups.iter().flat_map(|group| &group.rules)
    }
}
