//! All trials of a group, in batches of runs at the same time.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;

use super::super::draw::{Chance, Draw};
use super::super::kind::{Family, Kind};
use super::super::score::Outcome;
use super::super::table::share;
use super::super::trial::{Trial, WATCHED_AFTER};
use super::batch::{self, Planned};
use super::kinds::{Group, LARGE_FROM, of_number};
use crate::trials;

/// The maximum number of hangs in a batch. The collector inspects the ranks of four runs at a time, for some seconds each: if all runs of a
/// batch hung within seconds, the trials would measure that limit.
const HANGS_MAX: usize = 6;
/// Trials are put together if they take about the same time.
const DURATION_S: u64 = 60;

/// Trials with 1,024 ranks are of every fifth kind.
const LARGE_STEP: usize = 5;

/// The trials to run.
pub(super) struct Lab {
    pub(super) group: Group,
    /// Only these kinds; all if it is empty.
    pub(super) only: Vec<String>,
    /// Number of trials of each kind.
    pub(super) count: u32,
    /// Number of trials with 1,024 ranks, in addition.
    pub(super) large: u32,
    pub(super) seed: u64,
    /// Maximum number of runs, and of nodes, of a batch.
    pub(super) runs: usize,
    pub(super) nodes: u32,
    /// File to which each trial is added when it ends.
    pub(super) results: Option<PathBuf>,
}

/// The trials that have been done, in this execution and in earlier ones.
pub(super) struct Done {
    pub(super) trials: Vec<Trial>,
    /// Names of trials that could not be carried out.
    pub(super) failed: Vec<String>,
}

impl Lab {
    /// Returns the kinds.
    pub(super) fn kinds(&self) -> Vec<&'static Kind> {
        let all = self.group.kinds();
        for name in &self.only {
            assert!(
                all.iter().any(|kind| kind.name == name),
                "there is no kind `{name}`"
            );
        }
        let is_meant = |kind: &&Kind| self.only.is_empty() || self.only.iter().any(|name| name == kind.name);
        all.iter().filter(is_meant).collect()
    }

    /// Runs the trials that are not done yet.
    pub(super) fn run(&self) -> Result<Done> {
        let planned = self.planned();
        let mut known: Vec<Trial> = self.results.as_deref().map(trials::read).unwrap_or_default();
        known.retain(|trial| planned.iter().any(|planned| self.is_done(planned, trial)));
        let mut done = Done {
            trials: known,
            failed: Vec::new(),
        };
        let missing = planned
            .into_iter()
            .filter(|planned| !done.trials.iter().any(|trial| self.is_done(planned, trial)));
        let batches = self.batches(missing.collect());
        let count = batches.len();
        for (batch, number) in batches.iter().zip(1..) {
            println!("batch {number} of {count}: {} runs", batch.len());
            let ended = batch::run((self.group, self.seed), batch, &[], |planned, trial| {
                println!("{}", trial.in_words(&planned.kind));
                self.results.iter().for_each(|file| trials::add(file, &trial));
                done.trials.push(trial);
            })?;
            done.failed.extend(ended.failed);
        }
        Ok(done)
    }

    fn is_done(&self, planned: &Planned, trial: &Trial) -> bool {
        (trial.kind.as_str(), trial.seed, trial.number) == (planned.kind.name, self.seed, planned.number)
    }

    fn planned(&self) -> Vec<Planned> {
        let kinds = self.kinds();
        let of_all = (1..=self.count).flat_map(|number| kinds.iter().map(move |kind| (number, *kind)));
        let large = (0..self.large).zip(kinds.iter().cycle().step_by(LARGE_STEP));
        let large = large.map(|(number, kind)| (LARGE_FROM + number, *kind));
        let planned = of_all.chain(large).map(|(number, kind)| {
            let kind = of_number(kind, number);
            Planned {
                draw: Draw::new(&kind, self.seed, number),
                kind,
                watched_after: WATCHED_AFTER,
                number,
            }
        });
        planned.collect()
    }

    /// Distributes the trials among batches.
    fn batches(&self, mut planned: Vec<Planned>) -> Vec<Vec<Planned>> {
        let mixed = |planned: &Planned| Chance::new(&format!("{}/{}", planned.name(), self.seed)).next();
        planned.sort_by_cached_key(|planned| (duration(planned), mixed(planned)));
        let mut batches: Vec<Vec<Planned>> = Vec::new();
        for planned in planned {
            let room = batches.iter().position(|batch| self.has_room(batch, &planned));
            match room {
                Some(place) => batches[place].push(planned),
                None => batches.push(vec![planned]),
            }
        }
        batches
    }

    fn has_room(&self, batch: &[Planned], planned: &Planned) -> bool {
        let is_hang = |planned: &&Planned| planned.kind.family == Family::Hang;
        let nodes: u32 = batch.iter().map(|planned| planned.draw.nodes).sum();
        batch.len() < self.runs
            && nodes + planned.draw.nodes <= self.nodes
            && duration(&batch[0]) == duration(planned)
            && (!is_hang(&planned) || batch.iter().filter(is_hang).count() < HANGS_MAX)
    }
}

/// Returns the longest time that a trial may take, in units of `DURATION_S`.
fn duration(planned: &Planned) -> u64 {
    let even_s = f64::from(planned.draw.at_step) * planned.draw.step_s;
    (even_s as u64 + planned.kind.watched.as_secs()) / DURATION_S
}

/// Returns lines about the trials with 1,024 ranks, if there are any.
pub(super) fn of_large(kinds: &[&'static Kind], trials: &[Trial]) -> String {
    let large = trials.iter().filter(|trial| trial.number >= LARGE_FROM);
    let outcomes: Vec<Outcome> = large
        .filter_map(|trial| {
            let kind = kinds.iter().find(|kind| kind.name == trial.kind)?;
            Some(trial.outcome(kind))
        })
        .collect();
    let mut text = String::new();
    if !outcomes.is_empty() {
        let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
        let _infallible = writeln!(
            text,
            "- of these, with 1,024 ranks: culprit right in {}; wrong rank named in {}.",
            share(
                count(|outcome| matches!(outcome, Outcome::Right { .. })),
                outcomes.len()
            ),
            share(count(|outcome| *outcome == Outcome::Wrong), outcomes.len())
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_trial_is_in_one_batch_within_the_limits() {
        let lab = Lab {
            group: Group::Simulated,
            only: Vec::new(),
            count: 16,
            large: 3,
            seed: 1001,
            runs: 20,
            nodes: 64,
            results: None,
        };
        let planned = lab.planned();
        assert!(planned.len() >= 400, "{}", planned.len());
        let names: BTreeSet<String> = planned.iter().map(Planned::name).collect();
        assert_eq!(names.len(), planned.len());
        let batches = lab.batches(planned);
        let mut found = BTreeSet::new();
        for batch in &batches {
            let nodes: u32 = batch.iter().map(|planned| planned.draw.nodes).sum();
            let hangs = batch.iter().filter(|planned| planned.kind.family == Family::Hang);
            assert!(batch.len() <= 20 && hangs.count() <= HANGS_MAX);
            assert!(nodes <= 64 || batch.len() == 1, "{nodes}");
            assert!(batch.iter().all(|planned| found.insert(planned.name())));
        }
        assert_eq!(found, names);
        assert!(batches.len() < 60, "{}", batches.len());
    }
}
