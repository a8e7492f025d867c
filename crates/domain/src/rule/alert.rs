//! The life of an alert, as a pure step from one evaluation to the next.
//!
//! ```text
//!            condition true            held for `for`
//! (nothing) ───────────────▶ pending ───────────────▶ firing ───────────────▶ resolved ──▶ (nothing)
//!     ▲                         │                       ▲  condition false,       │
//!     └─────────────────────────┘                       │  keep_firing_for over    │
//!            condition false                            └──────────────────────────┘
//!                                                            condition true again
//! ```
//! A rule without `for` fires at once. An alert that fired is always resolved later, across restarts: the active ones are
//! kept by whoever calls.

use std::collections::HashMap;

use crate::api::alerts::AlertState;
use crate::series::Labels;
use crate::time::TimestampMs;

/// An alert that is pending or firing.
#[derive(Debug, Clone, PartialEq)]
pub struct Active {
    /// The series' labels with the rule's, `alertname` among them: its identity.
    pub labels: Labels,
    /// Pending or firing.
    pub state: AlertState,
    /// The value when last true.
    pub value: f64,
    /// When the condition was first seen true.
    pub active_ms: TimestampMs,
    /// When it began to fire.
    pub fired_ms: Option<TimestampMs>,
    /// When the condition was last seen true. In the future for an alert that is taken up again at a start: until then it counts
    /// as true unless it is seen to be so, because the nodes that would show it are only just coming back.
    pub true_ms: TimestampMs,
    /// When a firing alert's condition was first seen to be over; `keep_firing_for` counts from here, as in Prometheus.
    pub over_ms: Option<TimestampMs>,
}

/// What an evaluation did to an alert.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// New, and waiting for its `for`.
    Pending(Active),
    /// Fires from now on.
    Firing(Active),
    /// Fired, and is over now.
    Resolved(Active),
    /// Was pending, and is over without having fired.
    Dropped(Active),
}

/// How long a condition must hold, and how long it lingers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// `for`, milliseconds.
    pub hold_ms: i64,
    /// `keep_firing_for`, milliseconds.
    pub keep_firing_ms: i64,
}

/// Takes one evaluation of one rule: `active` is changed in place, what changed is returned.
///
/// `samples` are the label sets for which the condition holds now, each once.
pub fn step(
    active: &mut Vec<Active>,
    samples: Vec<(Labels, f64)>,
    holding: Holding,
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
        if holding.hold_ms > 0 {
            changes.push(Change::Pending(alert.clone()));
        }
        known.insert(labels, active.len());
        active.push(alert);
    }
    active.retain_mut(|alert| match advance(alert, holding, now_ms) {
        None => true,
        Some(change) => {
            let stays = matches!(change, Change::Firing(_));
            changes.push(change);
            stays
        }
    });
    changes
}

fn advance(alert: &mut Active, holding: Holding, now_ms: TimestampMs) -> Option<Change> {
    let holds = alert.true_ms == now_ms;
    match alert.state {
        _ if alert.true_ms > now_ms => None,
        AlertState::Pending if !holds => Some(Change::Dropped(alert.clone())),
        AlertState::Pending if now_ms - alert.active_ms >= holding.hold_ms => {
            alert.state = AlertState::Firing;
            alert.fired_ms = Some(now_ms);
            Some(Change::Firing(alert.clone()))
        }
        AlertState::Firing if !holds => {
            let over_ms = *alert.over_ms.get_or_insert(now_ms);
            let is_over = now_ms - over_ms >= holding.keep_firing_ms;
            is_over.then(|| Change::Resolved(alert.clone()))
        }
        _ => None,
    }
}

/// A name for an alert that stays the same as long as rule and labels do: 16 hexadecimal digits (FNV-1a, 64 bits).
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

    /// Each evaluation is a second after the one before; `1` says the condition holds. Returns what happened, a letter each:
    /// p(ending) f(iring) r(esolved) d(ropped), `.` for nothing.
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
                Holding {
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
        assert_eq!(step(&mut active, both, Holding::default(), 0).len(), 2);
        let changes = step(&mut active, vec![(labels("1"), 3.0)], Holding::default(), 1_000);
        assert!(matches!(changes.as_slice(), [Change::Resolved(alert)] if alert.labels == labels("0")));
        assert_eq!(active[0].value, 3.0);
    }

    #[test]
    fn an_alert_that_is_taken_up_waits_for_its_nodes_to_come_back() {
        let taken_up = |state| Active {
            labels: labels("0"),
            state,
            value: 1.0,
            active_ms: 0,
            fired_ms: None,
            true_ms: 5_000,
            over_ms: None,
        };
        let holding = Holding::default();
        for state in [AlertState::Pending, AlertState::Firing] {
            let mut active = vec![taken_up(state)];
            assert_eq!(
                step(&mut active, vec![], holding, 4_000),
                [],
                "{state:?} is not over yet"
            );
            assert_eq!(
                step(&mut active, vec![], holding, 6_000).len(),
                1,
                "{state:?} is over"
            );
        }
        let mut seen = vec![taken_up(AlertState::Firing)];
        assert_eq!(step(&mut seen, vec![(labels("0"), 2.0)], holding, 4_000), []);
        assert_eq!(
            step(&mut seen, vec![], holding, 4_500).len(),
            1,
            "seen true, and then not: over at once"
        );
    }

    #[test]
    fn fingerprints_tell_labels_apart() {
        let a = Labels::new([("a", "bc")]).expect("well formed");
        let b = Labels::new([("ab", "c")]).expect("well formed");
        assert_ne!(fingerprint(&a), fingerprint(&b));
        assert_eq!(fingerprint(&a), fingerprint(&a.clone()));
    }
}
