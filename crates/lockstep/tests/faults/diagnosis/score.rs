//! Decides whether only the culprit was named, and when.

use std::collections::BTreeSet;

use super::kind::{Family, Kind};
use super::trial::Alert;

/// The result of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    /// Each culprit was named by a matching rule, and no other rank by any rule.
    Right {
        /// Time from the fault until the last culprit was named.
        seconds: f64,
    },
    /// An alert named a rank that is not a culprit, or a rank before the fault.
    Wrong,
    /// The fault was detected, but not every culprit was named.
    Unknown,
    /// No matching alert.
    Undetected,
}

/// Judges the alerts of a trial.
pub(super) fn outcome(kind: &Kind, culprits: &[u32], nodes: &[String], alerts: &[Alert]) -> Outcome {
    let of_run: Vec<&Alert> = alerts.iter().filter(|alert| alert.of_run).collect();
    let is_wrong = |alert: &&Alert| match (alert.rank, &alert.node) {
        (Some(rank), _) => !culprits.contains(&rank) || alert.after_s < 0.0,
        (None, Some(node)) => !nodes.is_empty() && !nodes.contains(node),
        (None, None) => false,
    };
    if of_run.iter().any(is_wrong) {
        return Outcome::Wrong;
    }
    let fitting: Vec<&Alert> = of_run
        .into_iter()
        .filter(|alert| alert.after_s >= 0.0 && fits(kind, alert))
        .collect();
    if fitting.is_empty() {
        return Outcome::Undetected;
    }
    let first_naming = |rank: &u32| {
        let naming = fitting.iter().filter(|alert| alert.rank == Some(*rank));
        naming.map(|alert| alert.after_s).min_by(f64::total_cmp)
    };
    let named: Option<Vec<f64>> = culprits.iter().map(first_naming).collect();
    match named {
        Some(named) => Outcome::Right {
            seconds: named.into_iter().fold(0.0, f64::max),
        },
        None => Outcome::Unknown,
    }
}

/// Returns true if an alert of this rule is about a fault of this kind.
fn fits(kind: &Kind, alert: &Alert) -> bool {
    let marked = match kind.family {
        Family::Hang => "stuck",
        Family::Straggler => "late",
    };
    alert.rank_state.as_deref() == Some(marked) || kind.rules.contains(&alert.rule.as_str())
}

/// Returns the rules of alerts that do not match: what the user sees in addition.
pub(super) fn others<'a>(kind: &Kind, alerts: &'a [Alert]) -> BTreeSet<&'a str> {
    let others = alerts.iter().filter(|alert| !(alert.of_run && fits(kind, alert)));
    others.map(|alert| alert.rule.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::kind::named;
    use super::*;

    fn alert(rule: &str, rank: Option<u32>, after_s: f64) -> Alert {
        let state = match rule {
            "RankStuck" | "RunStalled" => Some("stuck"),
            "StragglerRank" => Some("late"),
            _ => None,
        };
        Alert {
            rule: rule.to_owned(),
            rank,
            node: rank.map(|rank| if rank < 2 { "a" } else { "b" }.to_owned()),
            of_run: true,
            rank_state: state.map(str::to_owned),
            after_s,
        }
    }

    fn check(kind: &str, culprits: &[u32], alerts: &[Alert], expected: Outcome) {
        let seen = outcome(named(kind), culprits, &["b".to_owned()], alerts);
        assert_eq!(seen, expected, "{alerts:?}");
    }

    #[test]
    fn right_is_the_culprit_alone_by_a_rule_that_fits() {
        let right = |seconds| Outcome::Right { seconds };
        check("spin", &[2], &[alert("RankStuck", Some(2), 4.0)], right(4.0));
        check(
            "spin",
            &[2],
            &[alert("RunStalled", None, 3.0), alert("RankStuck", Some(2), 4.0)],
            right(4.0),
        );
        check(
            "slow-forward",
            &[2],
            &[alert("StragglerRank", Some(2), 9.0)],
            right(9.0),
        );
        check(
            "slow-forward",
            &[2],
            &[
                alert("GradientSyncSlow", None, 2.0),
                alert("StragglerRank", Some(2), 9.0),
            ],
            right(9.0),
        );
        check(
            "fsdp2-slow-data",
            &[2],
            &[alert("DataLoadingSlow", Some(2), 9.0)],
            right(9.0),
        );
        let both = [
            alert("StragglerRank", Some(2), 9.0),
            alert("StragglerRank", Some(3), 12.0),
        ];
        check("slow-forward", &[2, 3], &both, right(12.0));
    }

    #[test]
    fn another_rank_or_node_is_wrong_whatever_else_is_said() {
        let right = alert("RankStuck", Some(2), 4.0);
        check(
            "spin",
            &[2],
            &[right.clone(), alert("RankStuck", Some(0), 5.0)],
            Outcome::Wrong,
        );
        check(
            "spin",
            &[2],
            &[right.clone(), alert("StragglerRank", Some(3), 5.0)],
            Outcome::Wrong,
        );
        check("spin", &[2], &[alert("RankStuck", Some(2), -4.0)], Outcome::Wrong);
        let node = Alert {
            node: Some("a".to_owned()),
            ..alert("RunStalled", None, 5.0)
        };
        check("spin", &[2], &[right, node], Outcome::Wrong);
    }

    #[test]
    fn who_is_not_named_is_unknown_and_who_is_not_seen_is_undetected() {
        check("spin", &[2], &[alert("RunStalled", None, 4.0)], Outcome::Unknown);
        check(
            "slow-forward",
            &[2, 3],
            &[alert("StragglerRank", Some(2), 9.0)],
            Outcome::Unknown,
        );
        check(
            "slow-forward",
            &[2],
            &[alert("GradientSyncSlow", None, 9.0)],
            Outcome::Undetected,
        );
        check(
            "slow-forward",
            &[2],
            &[alert("RankStuck", Some(2), 9.0)],
            Outcome::Undetected,
        );
        check("spin", &[2], &[], Outcome::Undetected);
        check(
            "slow-forward",
            &[2],
            &[alert("DataLoadingSlow", Some(2), 9.0)],
            Outcome::Undetected,
        );
        let of_node = Alert {
            of_run: false,
            ..alert("RankStuck", Some(0), 4.0)
        };
        check("spin", &[2], std::slice::from_ref(&of_node), Outcome::Undetected);
        assert_eq!(others(named("spin"), &[of_node]), ["RankStuck"].into());
    }
}
