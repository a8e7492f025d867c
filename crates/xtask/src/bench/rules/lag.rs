//! How far rules and analysers are behind, as the collector's API shows it.
//!
//! ```text
//! rules       due ──── evaluated ─▶ results         behind: how long the last evaluation took, or how long the next one is overdue
//! analysers   evaluate every 0.5 s                  behind: the age of the last evaluation beyond 0.5 s
//! ```

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::measure::http::Address;
use crate::measure::machine;

/// How often the analysers evaluate.
const ANALYSERS_PERIOD_S: f64 = 0.5;
const DAY_S: f64 = 86_400.0;

/// What was read during a measurement.
#[derive(Debug, Default)]
pub(super) struct Lags {
    /// Seconds by which the latest group of rules was behind, at each reading.
    pub(super) rules_s: Vec<f64>,
    /// Seconds by which the analysers were behind, at each reading.
    pub(super) analysers_s: Vec<f64>,
    /// Alerts that fired at any reading, by name.
    pub(super) firing: BTreeSet<String>,
    /// Rules that could not be evaluated at any reading.
    pub(super) failed: BTreeSet<String>,
    /// Number of rules.
    pub(super) rules: usize,
}

impl Lags {
    /// Reads the rules, and the analysers of a run.
    pub(super) fn read(&mut self, address: &Address, run: &str) -> Result<()> {
        let path = "/api/v1/rules?exclude_alerts=true";
        let rules = address.get(path)?.json(path)?;
        self.note_rules(&rules, machine::now_ms())?;
        let path = format!("/api/runs/{run}/findings");
        let findings = address.get(&path)?.json(&path)?;
        self.note_findings(&findings, machine::now_ms())
    }

    fn note_rules(&mut self, rules: &Value, now_ms: i64) -> Result<()> {
        let groups = rules.pointer("/data/groups").and_then(Value::as_array);
        let groups = groups.context("the response has no groups of rules")?;
        let behind: Option<Vec<f64>> = groups.iter().map(|group| behind_s(group, now_ms)).collect();
        let behind = behind.context("a group of rules has no times")?;
        self.rules_s.push(behind.into_iter().fold(0.0, f64::max));
        let rules = || {
            groups
                .iter()
                .filter_map(|group| group["rules"].as_array())
                .flatten()
        };
        self.rules = rules().count();
        let named = |rule: &Value| rule["name"].as_str().unwrap_or_default().to_owned();
        self.firing
            .extend(rules().filter(|rule| rule["state"] == "firing").map(named));
        self.failed
            .extend(rules().filter(|rule| rule["health"] == "err").map(named));
        Ok(())
    }

    fn note_findings(&mut self, findings: &Value, now_ms: i64) -> Result<()> {
        let at_ms = findings["at_ms"].as_i64();
        let age_ms = now_ms - at_ms.context("the findings have no time")?;
        let behind_s = age_ms as f64 / 1e3 - ANALYSERS_PERIOD_S;
        self.analysers_s.push(behind_s.max(0.0));
        Ok(())
    }
}

/// Returns the id of the newest run.
pub(super) fn newest_run(address: &Address) -> Result<String> {
    let path = "/api/runs?limit=1";
    let runs = address.get(path)?.json(path)?;
    let id = runs[0]["id"].as_str();
    Ok(id.context("the collector knows no run")?.to_owned())
}

/// Returns how far a group of rules is behind.
fn behind_s(group: &Value, now_ms: i64) -> Option<f64> {
    let now_s = now_ms.rem_euclid(86_400_000) as f64 / 1e3;
    let age_s = (now_s - second_of_day(group["lastEvaluation"].as_str()?)?).rem_euclid(DAY_S);
    let overdue_s = age_s - group["interval"].as_f64()?;
    Some(overdue_s.max(group["evaluationTime"].as_f64()?))
}

/// Returns the second of the day of a time like `2026-11-25T20:10:51.781Z`.
fn second_of_day(time: &str) -> Option<f64> {
    let (_, time) = time.strip_suffix('Z')?.split_once('T')?;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Some((hours * 60.0 + minutes) * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// 2026-11-25, 00:00:02 UTC.
    const NOW_MS: i64 = 1_795_564_802_000;

    fn group(last: &str, interval_s: f64, took_s: f64) -> Value {
        json!({
            "lastEvaluation": last,
            "interval": interval_s,
            "evaluationTime": took_s,
            "rules": [
                {"name": "A", "state": "firing", "health": "ok"},
                {"name": "B", "state": "inactive", "health": "err"},
            ],
        })
    }

    #[test]
    fn a_group_is_behind_by_its_last_evaluation_or_by_the_one_that_is_overdue() {
        for (last, interval_s, took_s, expected) in [
            ("2026-11-25T00:00:01.500Z", 1.0, 0.2, 0.2),
            ("2026-11-24T23:59:59.250Z", 1.0, 0.2, 1.75),
            ("2026-11-24T23:59:50Z", 15.0, 3.0, 3.0),
        ] {
            let behind = behind_s(&group(last, interval_s, took_s), NOW_MS);
            assert!(
                behind.is_some_and(|s| (s - expected).abs() < 1e-6),
                "{last}: {behind:?}"
            );
        }
        assert_eq!(behind_s(&json!({"lastEvaluation": "never"}), NOW_MS), None);
    }

    #[test]
    fn a_reading_counts_the_latest_group_and_names_rules() {
        let mut lags = Lags::default();
        let groups = [
            group("2026-11-25T00:00:01.500Z", 1.0, 0.2),
            group("2026-11-25T00:00:01Z", 1.0, 0.9),
        ];
        let answer = json!({"data": {"groups": groups}});
        lags.note_rules(&answer, NOW_MS).expect("groups");
        assert_eq!((lags.rules_s.as_slice(), lags.rules), ([0.9].as_slice(), 4));
        assert!(lags.firing.contains("A") && lags.failed.contains("B"));
        assert!(lags.note_rules(&json!({}), NOW_MS).is_err());
    }

    #[test]
    fn analysers_are_behind_by_more_than_their_period() {
        let mut lags = Lags::default();
        for age_ms in [200, 1_700] {
            lags.note_findings(&json!({"at_ms": NOW_MS - age_ms}), NOW_MS)
                .expect("a time");
        }
        assert_eq!(lags.analysers_s[0], 0.0);
        assert!((lags.analysers_s[1] - 1.2).abs() < 1e-9);
    }
}
