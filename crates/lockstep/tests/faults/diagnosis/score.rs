//! Decides whether only the culprit was named, and when.

use std::collections::BTreeSet;

use super::kind::{Culprit, Kind};
use super::trial::Alert;

/// The result of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    /// Each culprit, or the run if it has none, was named by a matching rule, and no other rank by any rule.
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
    let counted: Vec<&Alert> = alerts.iter().filter(|alert| counts(kind, alert)).collect();
    if counted.iter().any(|alert| is_wrong(kind, culprits, nodes, alert)) {
        return Outcome::Wrong;
    }
    let fitting: Vec<&Alert> = counted
        .into_iter()
        .filter(|alert| alert.after_s >= 0.0 && fits(kind, alert))
        .collect();
    if fitting.is_empty() {
        return Outcome::Undetected;
    }
    match named_after_s(kind, culprits, nodes, &fitting) {
        Some(seconds) => Outcome::Right { seconds },
        None => Outcome::Unknown,
    }
}

/// Returns true if the alert is about the run. If the culprit is a node, alerts about nodes count too.
fn counts(kind: &Kind, alert: &Alert) -> bool {
    alert.of_run || kind.culprit == Culprit::Node && kind.rules.contains(&alert.rule.as_str())
}

fn is_wrong(kind: &Kind, culprits: &[u32], nodes: &[String], alert: &Alert) -> bool {
    match (alert.rank, &alert.node) {
        (Some(_), _) if kind.culprit == Culprit::Node => true,
        (Some(rank), _) => !culprits.contains(&rank) || alert.after_s < 0.0,
        (None, Some(_)) if kind.culprit == Culprit::Run => true,
        (None, Some(node)) => !nodes.is_empty() && !nodes.contains(node),
        (None, None) => false,
    }
}

/// Returns the seconds until the last of those who must be named was named. `None` if one was not.
fn named_after_s(kind: &Kind, culprits: &[u32], nodes: &[String], fitting: &[&Alert]) -> Option<f64> {
    let first = |names: &dyn Fn(&Alert) -> bool| {
        let naming = fitting.iter().filter(|alert| names(alert));
        naming.map(|alert| alert.after_s).min_by(f64::total_cmp)
    };
    let named: Option<Vec<f64>> = match kind.culprit {
        Culprit::Ranks(_) => culprits
            .iter()
            .map(|rank| first(&|alert| alert.rank == Some(*rank)))
            .collect(),
        Culprit::RankOrRun | Culprit::Run => first(&|_| true).map(|seconds| vec![seconds]),
        Culprit::Node => nodes
            .iter()
            .map(|node| first(&|alert| alert.node.as_ref() == Some(node)))
            .collect(),
    };
    named?.into_iter().max_by(f64::total_cmp)
}

/// Returns true if an alert of this rule is about a fault of this kind.
fn fits(kind: &Kind, alert: &Alert) -> bool {
    let marked = kind.family.rank_state();
    marked.is_some() && alert.rank_state.as_deref() == marked || kind.rules.contains(&alert.rule.as_str())
}

/// Returns the rules of alerts that do not match: what the user sees in addition.
pub(super) fn others<'a>(kind: &Kind, alerts: &'a [Alert]) -> BTreeSet<&'a str> {
    let others = alerts
        .iter()
        .filter(|alert| !(counts(kind, alert) && fits(kind, alert)));
    others.map(|alert| alert.rule.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::kinds::named;
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

    #[test]
    fn if_all_ranks_have_the_fault_the_run_is_named_and_no_rank() {
        let of_run = alert("LearningRateZero", None, 185.0);
        let run = std::slice::from_ref(&of_run);
        check_run(run, Outcome::Right { seconds: 185.0 });
        check_run(
            &[of_run.clone(), alert("DataUneven", Some(0), 70.0)],
            Outcome::Wrong,
        );
        let of_node = Alert {
            node: Some("b".to_owned()),
            ..alert("CheckpointFailed", None, 5.0)
        };
        check_run(&[of_run, of_node], Outcome::Wrong);
        check_run(&[alert("LearningRateZero", None, -3.0)], Outcome::Undetected);
    }

    fn check_run(alerts: &[Alert], expected: Outcome) {
        let seen = outcome(named("learning-rate-zero"), &[], &[], alerts);
        assert_eq!(seen, expected, "{alerts:?}");
    }

    #[test]
    fn if_no_rule_can_tell_the_rank_the_run_is_enough() {
        let of_run = alert("LossNotFinite", None, 2.0);
        let right = Outcome::Right { seconds: 2.0 };
        check("inf-gradient", &[2], std::slice::from_ref(&of_run), right);
        check(
            "inf-gradient",
            &[2],
            &[of_run.clone(), alert("LossNotFinite", Some(2), 3.0)],
            right,
        );
        check(
            "inf-gradient",
            &[2],
            &[of_run, alert("LossNotFinite", Some(3), 3.0)],
            Outcome::Wrong,
        );
    }

    #[test]
    fn a_lost_node_is_named_by_an_alert_about_nodes() {
        let down = |node: &str| Alert {
            node: Some(node.to_owned()),
            of_run: false,
            ..alert("NodeDown", None, 11.0)
        };
        let right = Outcome::Right { seconds: 11.0 };
        check("node-lost", &[2], &[down("b")], right);
        check("node-lost", &[2], &[down("a")], Outcome::Wrong);
        check(
            "node-lost",
            &[2],
            &[down("b"), alert("RunFailed", Some(0), 13.0)],
            Outcome::Wrong,
        );
        check("node-lost", &[2], &[], Outcome::Undetected);
        assert!(others(named("node-lost"), &[down("b")]).is_empty());
    }
}
