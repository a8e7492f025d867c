//! All trials as a table, with intervals, and which targets are met.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::kind::{Family, Kind};
use super::score::{Outcome, others};
use super::trial::Trial;

/// Fractions of the trials.
const RIGHT_MIN: f64 = 0.95;
const WRONG_MAX: f64 = 1.0 / 120.0;
/// The larger of a time and of a number of median steps (for hangs, plus three seconds). The steps of real runs take at most 0.2 s here, so
/// that only the time matters.
const HANG_P95_S: f64 = 12.0;
const HANG_P95_STEPS: f64 = 3.0;
const HANG_P95_MORE_S: f64 = 3.0;
const STRAGGLER_P95_S: f64 = 20.0;
const STRAGGLER_P95_STEPS: f64 = 20.0;
/// The quantile of the normal distribution for a two-sided 95 % interval.
const Z: f64 = 1.959_964;

/// The first lines of a table.
const HEAD: &str = "\
| fault | trials | detected | culprit right | wrong rank named | unknown | p50 s | p95 s | named by `run why` | TraceML right | TraceML wrong | alerts besides |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|
";

/// The trials of one kind, or of several kinds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Row {
    name: String,
    family: Option<Family>,
    trials: usize,
    detected: usize,
    right: usize,
    wrong: usize,
    unknown: usize,
    /// Time until each was named; infinite if it was not.
    seconds: Vec<f64>,
    /// The same as a share of the limit of the family, if it has one.
    of_limit: Vec<f64>,
    why: usize,
    others: BTreeSet<String>,
    /// Number of trials with such an alert.
    with_others: usize,
    /// Number of TraceML's trials.
    peer: usize,
    peer_right: usize,
    peer_wrong: usize,
    /// Number of TraceML's trials in which Lockstep was right.
    right_beside_peer: usize,
}

/// Returns one row for each kind that has trials.
pub(super) fn rows(kinds: &[&'static Kind], trials: &[Trial]) -> Vec<Row> {
    let of = |kind: &&&Kind| {
        let mut row = Row {
            name: kind.name.to_owned(),
            family: Some(kind.family),
            ..Row::default()
        };
        trials
            .iter()
            .filter(|trial| trial.kind == kind.name)
            .for_each(|trial| row.count(trial, kind));
        row
    };
    let rows = kinds.iter().map(|kind| of(&kind));
    rows.filter(|row| row.trials > 0).collect()
}

impl Row {
    fn count(&mut self, trial: &Trial, kind: &Kind) {
        let outcome = trial.outcome(kind);
        self.trials += 1;
        self.detected += usize::from(outcome != Outcome::Undetected);
        let is_right = matches!(outcome, Outcome::Right { .. });
        self.right += usize::from(is_right);
        self.wrong += usize::from(outcome == Outcome::Wrong);
        self.unknown += usize::from(outcome == Outcome::Unknown);
        let seconds = match outcome {
            Outcome::Right { seconds } => seconds,
            _ => f64::INFINITY,
        };
        self.seconds.push(seconds);
        let limit_s = limit_s(kind.family, trial.draw.step_s);
        self.of_limit.extend(limit_s.map(|limit_s| seconds / limit_s));
        self.why += usize::from(trial.why_names_it(kind));
        let others = others(kind, &trial.alerts);
        self.with_others += usize::from(!others.is_empty());
        self.others.extend(others.into_iter().map(str::to_owned));
        if let Some(peer) = &trial.traceml {
            self.peer += 1;
            self.right_beside_peer += usize::from(is_right);
            self.peer_right += usize::from(peer.is_right(&trial.draw.culprits));
            self.peer_wrong += usize::from(peer.is_wrong(&trial.draw.culprits));
        }
    }

    fn add(&mut self, other: &Self) {
        self.trials += other.trials;
        self.detected += other.detected;
        self.right += other.right;
        self.wrong += other.wrong;
        self.unknown += other.unknown;
        self.seconds.extend(&other.seconds);
        self.of_limit.extend(&other.of_limit);
        self.why += other.why;
        self.others.extend(other.others.iter().cloned());
        self.with_others += other.with_others;
        self.peer += other.peer;
        self.peer_right += other.peer_right;
        self.peer_wrong += other.peer_wrong;
        self.right_beside_peer += other.right_beside_peer;
    }

    fn line(&self) -> String {
        let others: Vec<&str> = self.others.iter().map(String::as_str).collect();
        let peer = |count: usize| {
            if self.peer > 0 {
                format!("{count} of {}", self.peer)
            } else {
                "–".to_owned()
            }
        };
        format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            self.name,
            self.trials,
            self.detected,
            self.right,
            self.wrong,
            self.unknown,
            seconds(percentile(&self.seconds, 0.5)),
            seconds(percentile(&self.seconds, 0.95)),
            self.why,
            peer(self.peer_right),
            peer(self.peer_wrong),
            others.join(", "),
        )
    }
}

/// Returns a table for each family, with its sum; then the sum of all trials, the intervals, and the targets. Targets are only said to be met if
/// there are enough trials.
pub(super) fn text(rows: &[Row], is_enough: bool) -> String {
    let (mut text, sums) = (String::new(), sums(rows));
    for sum in &sums {
        let _infallible = write!(text, "### {}\n\n{HEAD}", heading(sum.family));
        let of_family = rows
            .iter()
            .filter(|row| sum.family.is_some() && row.family == sum.family);
        of_family.for_each(|row| text += &row.line());
        text += &Row {
            name: format!("**{}**", sum.name),
            others: BTreeSet::new(),
            ..sum.clone()
        }
        .line();
        text.push('\n');
    }
    for sum in sums.iter().filter(|sum| sum.trials > 0) {
        let _infallible = writeln!(
            text,
            "- {}: culprit right in {}; wrong rank named in {}; alerts besides in {}{}.",
            sum.name,
            share(sum.right, sum.trials),
            share(sum.wrong, sum.trials),
            share(sum.with_others, sum.trials),
            if sum.peer > 0 {
                format!(
                    "; TraceML right in {}, wrong in {}, and Lockstep right in {} of these trials",
                    share(sum.peer_right, sum.peer),
                    share(sum.peer_wrong, sum.peer),
                    sum.right_beside_peer
                )
            } else {
                String::new()
            }
        );
    }
    let unmet = unmet(rows);
    if unmet.is_empty() && is_enough {
        text += "- All targets are met.\n";
    }
    for target in unmet {
        let _infallible = writeln!(text, "- **Not met:** {target}.");
    }
    text
}

/// Returns the targets that are not met.
pub(super) fn unmet(rows: &[Row]) -> Vec<String> {
    let mut unmet = Vec::new();
    let mut must = |is_met: bool, target: String| {
        if !is_met {
            unmet.push(target);
        }
    };
    for sum in sums(rows).iter().filter(|sum| sum.trials > 0) {
        let part = |count: usize| count as f64 / sum.trials as f64;
        let (name, is_in_time) = (&sum.name, percentile(&sum.of_limit, 0.95) <= 1.0);
        match sum.family {
            None => {
                must(
                    part(sum.right) >= RIGHT_MIN,
                    "the culprit is right in at least 95 % of all trials".to_owned(),
                );
                must(
                    part(sum.wrong) <= WRONG_MAX,
                    "a wrong rank is named in at most one trial of 120".to_owned(),
                );
            }
            Some(Family::Hang) => must(
                is_in_time,
                format!(
                    "{name} are named within {HANG_P95_S} s, or {HANG_P95_STEPS} steps and \
                     {HANG_P95_MORE_S} s, at p95"
                ),
            ),
            Some(Family::Straggler) => {
                must(
                    is_in_time,
                    format!(
                        "{name} are named within {STRAGGLER_P95_S} s, or {STRAGGLER_P95_STEPS} steps, at p95"
                    ),
                );
                must(
                    sum.peer == 0 || sum.right_beside_peer > sum.peer_right,
                    format!("{name} are right in more trials than TraceML's"),
                );
            }
            // Their rules count minutes or hundreds of steps.
            Some(_) => {}
        }
    }
    unmet
}

/// Returns the sum of each family and that of all trials, if there are any.
fn sums(rows: &[Row]) -> Vec<Row> {
    let of = |family: Option<Family>| {
        let mut sum = Row {
            name: heading(family).to_lowercase(),
            family,
            ..Row::default()
        };
        let counted = rows.iter().filter(|row| family.is_none() || row.family == family);
        counted.for_each(|row| sum.add(row));
        sum
    };
    let families = Family::ALL.map(Some).into_iter().chain([None]);
    families.map(of).filter(|sum| sum.trials > 0).collect()
}

/// Returns within how many seconds a fault of this family must be named in 95 % of the trials, if there is a limit.
fn limit_s(family: Family, step_s: f64) -> Option<f64> {
    match family {
        Family::Hang => Some(HANG_P95_S.max(HANG_P95_STEPS * step_s + HANG_P95_MORE_S)),
        Family::Straggler => Some(STRAGGLER_P95_S.max(STRAGGLER_P95_STEPS * step_s)),
        _ => None,
    }
}

fn heading(family: Option<Family>) -> &'static str {
    family.map_or("All", Family::heading)
}

/// Formats a share, for example `5 of 6 (84 %, 95 % interval 44–97 %)`.
pub(super) fn share(count: usize, of: usize) -> String {
    let (low, high) = wilson(count, of);
    let percent = |part: f64| (part * 100.0).round();
    format!(
        "{count} of {of} ({} %, 95 % interval {}–{} %)",
        percent(count as f64 / of as f64),
        percent(low),
        percent(high)
    )
}

/// Returns Wilson's 95 % interval of a share.
fn wilson(count: usize, of: usize) -> (f64, f64) {
    let (n, p) = (of as f64, count as f64 / of as f64);
    let scale = 1.0 + Z * Z / n;
    let center = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    ((center - half).max(0.0), (center + half).min(1.0))
}

/// Returns the smallest value that at least this fraction of all values does not exceed; infinite if there are no values.
fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::INFINITY)
}

fn seconds(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.1}")
    } else {
        "∞".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::Draw;
    use super::super::kinds::named;
    use super::super::peer::Verdict;
    use super::super::trial::Alert;
    use super::*;

    fn trial(kind: &Kind, number: u32, named_after: Option<f64>, peer_right: bool) -> Trial {
        let draw = Draw::new(kind, 1, number);
        let late = |after_s| Alert {
            rule: "StragglerRank".to_owned(),
            rank: Some(draw.culprits[0]),
            node: None,
            of_run: true,
            rank_state: Some("late".to_owned()),
            after_s,
        };
        Trial {
            kind: kind.name.to_owned(),
            seed: 1,
            number,
            nodes: Vec::new(),
            alerts: named_after.map(late).into_iter().collect(),
            why: format!("\n  culprit   r-1, rank {}, on a\n", draw.culprits[0]),
            traceml: Some(Verdict {
                primary: "STRAGGLER".to_owned(),
                ranks: draw.culprits.iter().filter(|_| peer_right).copied().collect(),
            }),
            draw,
        }
    }

    #[test]
    fn misses_count_as_infinite_time_and_against_the_targets() {
        let kind = named("slow-forward");
        let trials: Vec<Trial> = (1..=4)
            .map(|n| trial(kind, n, (n < 4).then_some(f64::from(n)), n < 3))
            .collect();
        let rows = rows(&[kind, named("spin")], &trials);
        assert_eq!(rows.len(), 1, "kinds without trials are left out");
        assert_eq!(
            (rows[0].right, rows[0].detected, rows[0].why, rows[0].peer_right),
            (3, 3, 4, 2)
        );
        let text = text(&rows, true);
        assert!(
            text.contains("| slow-forward | 4 | 3 | 3 | 0 | 0 | 2.0 | ∞ | 4 | 2 of 4 | 0 of 4 |  |"),
            "{text}"
        );
        assert!(
            text.contains("stragglers: culprit right in 3 of 4 (75 %, 95 % interval 30–95 %)"),
            "{text}"
        );
        assert_eq!(unmet(&rows).len(), 2, "{text}");
    }

    #[test]
    fn who_is_right_each_time_in_time_and_more_often_than_its_peer_meets_all() {
        let kind = named("slow-forward");
        let trials: Vec<Trial> = (1..=4)
            .map(|n| trial(kind, n, Some(f64::from(n)), n < 4))
            .collect();
        let met = rows(&[kind], &trials);
        assert_eq!(unmet(&met), Vec::<String>::new());
        let says_so = |is_enough: bool| text(&met, is_enough).contains("All targets are met");
        assert!(says_so(true) && !says_so(false), "too few trials meet no targets");
        let trials: Vec<Trial> = (1..=4)
            .map(|n| trial(kind, n, Some(f64::from(n)), true))
            .collect();
        assert_eq!(unmet(&rows(&[kind], &trials)).len(), 1);
    }

    #[test]
    fn only_the_trials_in_which_traceml_ran_are_compared_with_it() {
        let kind = named("slow-forward");
        let trials: Vec<Trial> = (1..=4)
            .map(|n| {
                let mut trial = trial(kind, n, Some(f64::from(n)), true);
                trial.traceml = trial.traceml.filter(|_| n < 3);
                trial
            })
            .collect();
        let rows = rows(&[kind], &trials);
        assert_eq!(
            unmet(&rows),
            ["stragglers are right in more trials than TraceML's"]
        );
        let text = text(&rows, true);
        assert!(text.contains("Lockstep right in 2 of these trials"), "{text}");
    }

    #[test]
    fn each_family_has_a_table_and_a_sum() {
        let kinds = [named("slow-forward"), named("spin"), named("constant-labels")];
        let trials: Vec<Trial> = kinds.iter().map(|kind| trial(kind, 1, None, false)).collect();
        let text = text(&rows(&kinds, &trials), true);
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("### ")).collect();
        assert_eq!(headings, ["### Hangs", "### Stragglers", "### Data", "### All"]);
        for row in [
            "| spin | 1 |",
            "| **hangs** | 1 |",
            "| **data** | 1 |",
            "| **all** | 3 |",
        ] {
            assert_eq!(text.matches(row).count(), 1, "{row}: {text}");
        }
    }

    #[test]
    fn a_long_step_allows_more_time() {
        let kind = named("slow-forward");
        let in_time = |step_s: f64| {
            let trials: Vec<Trial> = (1..=4)
                .map(|n| {
                    let mut trial = trial(kind, n, Some(50.0), false);
                    trial.draw.step_s = step_s;
                    trial
                })
                .collect();
            unmet(&rows(&[kind], &trials)).is_empty()
        };
        assert!(!in_time(2.0));
        assert!(in_time(3.0));
        assert_eq!(limit_s(Family::Hang, 0.2), Some(12.0));
        assert_eq!(limit_s(Family::Hang, 4.0), Some(15.0));
    }

    #[test]
    fn intervals_are_wilsons() {
        let near = |seen: (f64, f64), low: f64, high: f64| {
            assert!(
                (seen.0 - low).abs() < 0.001 && (seen.1 - high).abs() < 0.001,
                "{seen:?}"
            );
        };
        near(wilson(0, 10), 0.0, 0.2775);
        near(wilson(114, 120), 0.8952, 0.9769);
        near(wilson(10, 10), 0.7225, 1.0);
    }
}
