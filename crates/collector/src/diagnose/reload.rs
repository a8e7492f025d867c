//! Reading the rule files again: all or nothing.
//!
//! ```text
//! files ─ read, check ─▶ mistakes: everything stays as it is
//!                     └▶ same group as before: goes on, untouched
//!                        changed:  old one stops ─▶ each rule goes on with the alerts and series of the same rule before
//!                        gone:     its alerts are resolved, its series end
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

/// What a reload found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloaded {
    /// Groups in force.
    pub groups: usize,
    /// Their rules.
    pub rules: usize,
    /// Groups that were not there, or not like this, before.
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
    /// Reads the rule files again. Rules that are still there keep their alerts and series. What was begun is carried through,
    /// also when whoever asked has left.
    ///
    /// # Errors
    /// When a file cannot be used; the rules in force stay then.
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
            tracing::error!(%error, "rules were not loaded again; those before stay in force");
        })?;
        let reloaded = self.replace(engine, read).await;
        self.metrics.reloaded_at.set(clock::now_ms() as f64 / 1_000.0);
        let Reloaded {
            groups,
            rules,
            changed,
        } = reloaded;
        tracing::info!(groups, rules, changed, "rules were loaded again");
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

    /// Ends what rules that are gone have left.
    async fn end(&self, engine: &Engine, gone: &[&RuleState]) {
        let alerts: Vec<AlertView> = gone.iter().flat_map(|rule| rule.alerts()).collect();
        let has_alerts = !alerts.is_empty();
        if let Err(error) = resolve(engine, alerts).await {
            tracing::error!(%error, "alerts of rules that are gone could not be resolved; the next start does it");
        }
        if has_alerts {
            engine.changes.send(crate::changes::Change::Diagnoses);
        }
        let series: Vec<Labels> = gone
            .iter()
            .flat_map(|rule| rule.written().drain().collect::<Vec<_>>())
            .collect();
        // Behind every sample they wrote.
        let last_ms = gone
            .iter()
            .map(|rule| rule.status().evaluated_ms)
            .max()
            .unwrap_or_default();
        write::end(engine, series, clock::now_ms().max(last_ms + 1)).await;
    }
}

/// Each new rule goes on where the same one was: in its own group first, else wherever it was. Returns the old rules that
/// nobody goes on with.
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

/// What it looks for may have changed: name and labels are what its alerts and series are known by.
fn is_same(a: &Rule, b: &Rule) -> bool {
    a.is_alert() == b.is_alert() && a.name == b.name && a.labels == b.labels
}
