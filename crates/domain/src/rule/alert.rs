//! The state machine of an alert: a pure function from one evaluation to the next.
//!
//! ```text
//!            condition true            held for `for`
//! (nothing) ───────────────▶ pending ───────────────▶ firing ───────────────▶ resolved ──▶ (nothing)
//!     ▲                         │                       ▲  condition false,       │
//!     └─────────────────────────┘                       │  keep_firing_for over    │
//!            condition false                            └──────────────────────────┘
//!                                                            condition true again
//! ```
//! An alert of a rule without `for` fires at once. A firing alert is always resolved later, also after a restart: the caller stores the
//! active alerts.

use std::collections::HashMap;

use crate::api::alerts::AlertState;
use crate::series::Labels;
use crate::time::TimestampMs;

/// Longest time for which an alert that is restored after a restart waits for its samples. A time further in the future comes from a clock
/// that was set back, and must not keep the alert.
const RESTORED_FOR_MAX_MS: i64 = 60_000;

/// A pending or firing alert.
#[derive(Debug, Clone, PartialEq)]
pub struct Active {
    /// Labels of the series and of the rule, including `alertname`. They identify the alert.
    pub labels: Labels,
    /// Pending or firing.
    pub state: AlertState,
    /// Last value for which the condition was true.
    pub value: f64,
    /// When the condition was first true.
    pub active_ms: TimestampMs,
    /// When the alert began to fire.
    pub fired_ms: Option<TimestampMs>,
    /// When the condition was last true. For an alert that is restored after a restart this is a time in the future. Until that time the
    /// alert stays as it is even if the condition is not true, because the nodes that report the samples are still reconnecting.
    pub true_ms: TimestampMs,
    /// When the condition of a firing alert was first no longer true. `keep_firing_for` counts from here, as in Prometheus.
    pub over_ms: Option<TimestampMs>,
}

/// The change that an evaluation made to an alert.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The alert is new and waits for the `for` duration.
    Pending(Active),
    /// The alert began to fire.
    Firing(Active),
    /// The alert was firing and is resolved now.
    Resolved(Active),
    /// The alert was pending; its condition is no longer true and it never fired.
    Dropped(Active),
}

/// How long a condition must be true before its alert fires, and how long the alert continues to fire afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AlertTimes {
    /// `for`, in milliseconds.
    pub hold_ms: i64,
    /// `keep_firing_for`, in milliseconds.
    pub keep_firing_ms: i64,
}

/// Processes one evaluation of one rule. Updates `active` and returns the changes.
///
/// `samples` contains the label sets for which the condition is true now, each once.
pub fn step(
    active: &mut Vec<Active>,
    samples: Vec<(Labels, f64)>,
    times: AlertTimes,
    now_ms: TimestampMs,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut known: HashMap<Labels, usize> = active
        .iter()
        .enumerate()
        .map(|(at, alert)| (alert.labels.clone(), at))
        .collect();
    for (labels, value) in samples {
        if let Some(&at) = known.get(&labels) {
            (active[at].value, active[at].true_ms, active[at].over_ms) = (value, now_ms, None);
            continue;
        }
        let alert = Active {
            labels: labels.clone(),
            state: AlertState::Pending,
            value,
            active_ms: now_ms,
            fired_ms: None,
            true_ms: now_ms,
            over_ms: None,
        };
        if times.hold_ms > 0 {
            changes.push(Change::Pending(alert.clone()));
        }
        known.insert(labels, active.len());
        active.push(alert);
    }
    active.retain_mut(|alert| match advance(alert, times, now_ms) {
        None => true,
        Some(change) => {
            let stays = matches!(change, Change::Firing(_));
            changes.push(change);
            stays
        }
    });
    changes
}

fn advance(alert: &mut Active, times: AlertTimes, now_ms: TimestampMs) -> Option<Change> {
    let holds = alert.true_ms == now_ms;
    let waits_for_samples = (1..=RESTORED_FOR_MAX_MS).contains(&(alert.true_ms - now_ms));
    match alert.state {
        _ if waits_for_samples => None,
        AlertState::Pending if !holds => Some(Change::Dropped(alert.clone())),
        AlertState::Pending if now_ms - alert.active_ms >= times.hold_ms => {
            alert.state = AlertState::Firing;
            alert.fired_ms = Some(now_ms);
            Some(Change::Firing(alert.clone()))
        }
        AlertState::Firing if !holds => {
            let over_ms = alert.over_ms.map_or(now_ms, |over_ms| over_ms.min(now_ms));
            alert.over_ms = Some(over_ms);
            let is_over = now_ms - over_ms >= times.keep_firing_ms;
            is_over.then(|| Change::Resolved(alert.clone()))
        }
        _ => None,
    }
}

/// Returns an identifier of an alert that depends only on the rule's name and the labels: 16 hexadecimal digits (FNV-1a, 64 bits).
#[must_use]
pub fn fingerprint(labels: &Labels) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for label in labels.iter() {
        add(&label.name);
        add(&label.value);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(gpu: &str) -> Labels {
        Labels::new([("alertname", "Hot"), ("gpu", gpu)]).expect("well formed")
    }

    /// Runs one evaluation per second; `1` means that the condition is true. Returns one letter per change: p(ending), f(iring),
    /// r(esolved), d(ropped), `.` for no change.
    fn life(conditions: &str, hold_ms: i64, keep_firing_ms: i64) -> String {
        let mut active = Vec::new();
        let mut happened = String::new();
        for (n, condition) in conditions.chars().enumerate() {
            let samples = if condition == '1' {
                vec![(labels("0"), 95.0)]
            } else {
                vec![]
            };
            let now_ms = 1_000 * i64::try_from(n).expect("few");
            let changes = step(
                &mut active,
                samples,
                AlertTimes {
                    hold_ms,
                    keep_firing_ms,
                },
                now_ms,
            );
            happened.push(match changes.as_slice() {
                [] => '.',
                [Change::Pending(_)] => 'p',
                [Change::Firing(_)] => 'f',
                [Change::Resolved(_)] => 'r',
                [Change::Dropped(_)] => 'd',
                more => panic!("several changes at once: {more:?}"),
            });
        }
        happened
    }

    #[test]
    fn an_alert_pends_fires_and_resolves() {
        for (conditions, hold_ms, keep_ms, expected) in [
            ("0110", 0, 0, ".f.r"),
            ("011110", 2_000, 0, ".p.f.r"),
            ("01010", 2_000, 0, ".pdpd"),
            ("1100010", 0, 2_000, "f...rf."),
            ("11011000", 0, 2_000, "f......r"),
        ] {
            assert_eq!(life(conditions, hold_ms, keep_ms), expected, "{conditions}");
        }
    }

    #[test]
    fn each_label_set_lives_for_itself() {
        let mut active = Vec::new();
        let both = vec![(labels("0"), 1.0), (labels("1"), 2.0)];
        assert_eq!(step(&mut active, both, AlertTimes::default(), 0).len(), 2);
        let changes = step(
            &mut active,
            vec![(labels("1"), 3.0)],
            AlertTimes::default(),
            1_000,
        );
        assert!(matches!(changes.as_slice(), [Change::Resolved(alert)] if alert.labels == labels("0")));
        assert_eq!(active[0].value, 3.0);
    }

    #[test]
    fn an_alert_that_is_restored_waits_for_its_nodes_to_reconnect() {
        let taken_up = |state| Active {
            labels: labels("0"),
            state,
            value: 1.0,
            active_ms: 0,
            fired_ms: None,
            true_ms: 5_000,
            over_ms: None,
        };
        let times = AlertTimes::default();
        for state in [AlertState::Pending, AlertState::Firing] {
            let mut active = vec![taken_up(state)];
            assert_eq!(
                step(&mut active, vec![], times, 4_000),
                [],
                "{state:?} is not over yet"
            );
            assert_eq!(
                step(&mut active, vec![], times, 6_000).len(),
                1,
                "{state:?} is over"
            );
        }
        let mut seen = vec![taken_up(AlertState::Firing)];
        assert_eq!(step(&mut seen, vec![(labels("0"), 2.0)], times, 4_000), []);
        assert_eq!(
            step(&mut seen, vec![], times, 4_500).len(),
            1,
            "seen true, and then not: over at once"
        );
    }

    #[test]
    fn an_alert_ends_although_the_clock_was_set_back() {
        let times = AlertTimes {
            hold_ms: 0,
            keep_firing_ms: 5_000,
        };
        let mut active = Vec::new();
        assert_eq!(
            step(&mut active, vec![(labels("0"), 1.0)], times, 9_000_000).len(),
            1
        );
        assert_eq!(step(&mut active, vec![], times, 9_001_000), []);
        assert_eq!(step(&mut active, vec![], times, 1_000_000), []);
        let changes = step(&mut active, vec![], times, 1_005_000);
        assert!(matches!(changes.as_slice(), [Change::Resolved(_)]), "{changes:?}");
    }

    #[test]
    fn fingerprints_distinguish_labels() {
        let a = Labels::new([("a", "bc")]).expect("well formed");
        let b = Labels::new([("ab", "c")]).expect("well formed");
        assert_ne!(fingerprint(&a), fingerprint(&b));
        assert_eq!(fingerprint(&a), fingerprint(&a.clone()));
    }
}
