//! Reads the rule files again: all or nothing.
//!
//! ```text
//! files ─ read, check ─▶ mistakes: everything stays as it is
//!                     └▶ unchanged group: continues
//!                        changed group: the old one stops ─▶ each rule continues with the alerts and series of the same old rule
//!                        removed group: its alerts are resolved, its series end
//! ```

use std::sync::Arc;

use domain::api::alerts::AlertView;
use domain::rule::Rule;
use domain::series::Labels;

use super::engine::Engine;
use super::files::{RulesError, Sources};
use super::group::GroupState;
use super::metrics::RuleMetrics;
use super::rule::RuleState;
use super::{Alerts, resolve, write};
use crate::clock;

/// The result of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Number of active groups.
    pub groups: usize,
    /// Number of their rules.
    pub rules: usize,
    /// Number of new or changed groups.
    pub changed: usize,
}

/// Reads all files into groups that are not evaluated yet.
pub(super) fn read(
    sources: &Sources,
    interval_ms: i64,
    metrics: &RuleMetrics,
) -> Result<Vec<GroupState>, RulesError> {
    let loaded = sources.load()?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let groups = loaded.groups.into_iter().map(|(file, group)| {
        GroupState::new(file, group, interval_ms, metrics.clone())
            .map_err(|error| RulesError(vec![error.to_string()]))
    });
    groups.collect()
}

impl Alerts {
    /// Reads the rule files again. Rules that still exist keep their alerts and series. A reload is completed even if the client
    /// disconnects.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used. The current rules then stay active.
    pub async fn reload(&self, engine: &Arc<Engine>) -> Result<Reloaded, RulesError> {
        let (alerts, used) = (self.clone(), Arc::clone(engine));
        let reload = engine
            .tasks
            .spawn_to_end(async move { alerts.reload_now(&used).await });
        reload
            .await
            .unwrap_or_else(|panic| Err(RulesError(vec![panic.to_string()])))
    }

    async fn reload_now(&self, engine: &Arc<Engine>) -> Result<Reloaded, RulesError> {
        let _one_at_a_time = self.reloading.lock().await;
        let (sources, interval_ms, metrics) =
            (Arc::clone(&self.sources), self.interval_ms, self.metrics.clone());
        let read = tokio::task::spawn_blocking(move || read(&sources, interval_ms, &metrics)).await;
        let read = read.unwrap_or_else(|panic| Err(RulesError(vec![panic.to_string()])));
        self.metrics.reload_worked.set(f64::from(u8::from(read.is_ok())));
        let read = read.inspect_err(|error| {
            tracing::error!(%error, "rules were not reloaded; the current rules stay active");
        })?;
        let reloaded = self.replace(engine, read).await;
        self.metrics.reloaded_at.set(clock::now_ms() as f64 / 1_000.0);
        let Reloaded {
            groups,
            rules,
            changed,
        } = reloaded;
        tracing::info!(groups, rules, changed, "rules were reloaded");
        Ok(reloaded)
    }

    async fn replace(&self, engine: &Arc<Engine>, read: Vec<GroupState>) -> Reloaded {
        let mut before: Vec<Arc<GroupState>> = self.groups().to_vec();
        let (mut groups, mut fresh) = (Vec::with_capacity(read.len()), Vec::new());
        for group in read {
            let same = before.iter().position(|old| old.is_same(&group));
            let group = same.map(|at| before.remove(at)).unwrap_or_else(|| {
                let group = Arc::new(group);
                fresh.push(Arc::clone(&group));
                group
            });
            groups.push(group);
        }
        for old in &before {
            old.stop().await;
        }
        let gone = hand_over(&before, &fresh);
        self.set_groups(groups.clone().into());
        for group in &fresh {
            group.start(engine);
        }
        for old in &before {
            if !groups.iter().any(|group| group.label == old.label) {
                self.metrics.forget(&old.label);
            }
        }
        self.end(engine, &gone).await;
        Reloaded {
            groups: groups.len(),
            rules: groups.iter().map(|group| group.rules.len()).sum(),
            changed: fresh.len(),
        }
    }

    /// Ends the alerts and series of removed rules.
    async fn end(&self, engine: &Engine, gone: &[&RuleState]) {
        let alerts: Vec<AlertView> = gone.iter().flat_map(|rule| rule.alerts()).collect();
        let has_alerts = !alerts.is_empty();
        if let Err(error) = resolve(engine, alerts).await {
            tracing::error!(%error, "alerts of removed rules could not be resolved; the next start resolves them");
        }
        if has_alerts {
            engine.changes.send(crate::changes::Change::Diagnoses);
        }
        let series: Vec<Labels> = gone
            .iter()
            .flat_map(|rule| rule.written().drain().collect::<Vec<_>>())
            .collect();
        // After every sample that they wrote.
        let last_ms = gone
            .iter()
            .map(|rule| rule.status().evaluated_ms)
            .max()
            .unwrap_or_default();
        write::end(engine, series, clock::now_ms().max(last_ms + 1)).await;
    }
}

/// Lets each new rule continue the state of the same old rule: first of one in the same group, otherwise of one in any group. Returns the
/// old rules that no rule continues.
fn hand_over<'a>(before: &'a [Arc<GroupState>], fresh: &[Arc<GroupState>]) -> Vec<&'a RuleState> {
    let mut left: Vec<&RuleState> = before.iter().flat_map(|group| &group.rules).collect();
    let mut waiting: Vec<&RuleState> = fresh.iter().flat_map(|group| &group.rules).collect();
    for is_anywhere in [false, true] {
        waiting.retain(|rule| {
            let found = left.iter().position(|old| {
                let at_home = (&old.file, &old.group) == (&rule.file, &rule.group);
                (is_anywhere || at_home) && is_same(&old.rule, &rule.rule)
            });
            if let Some(at) = found {
                rule.take_over(left.remove(at));
            }
            found.is_none()
        });
    }
    left
}

/// Compares kind, name and labels, which identify a rule's alerts and series. The expression may have changed.
fn is_same(a: &Rule, b: &Rule) -> bool {
    a.is_alert() == b.is_alert() && a.name == b.name && a.labels == b.labels
}
