//! Runs all trials, one after another or several at a time.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, RwLock};

use anyhow::{Result, anyhow};

use super::draw::Draw;
use super::kind::{Family, Inflicted, Kind};
use super::peer::TraceMl;
use super::stop;
use super::trial::{self, Trial};
use crate::trials;

/// How often the lab goes through the missing trials. A trial that could not be carried out is tried again after all others.
const PASSES: u32 = 2;
/// The targets are about this many trials. If there are fewer than planned and than this, they are not met.
const TRIALS_MIN: usize = 120;

/// The trials to run.
pub(super) struct Lab {
    pub(super) kinds: Vec<&'static Kind>,
    /// Number of trials of each kind.
    pub(super) count: u32,
    pub(super) seed: u64,
    /// Number of trials at the same time.
    pub(super) jobs: usize,
    /// File to which each trial is added when it ends.
    pub(super) results: Option<PathBuf>,
    pub(super) traceml: Option<TraceMl>,
}

/// The trials that have been done, in this execution of the lab and in earlier ones.
pub(super) struct Done {
    pub(super) trials: Vec<Trial>,
    /// Number of trials that were planned.
    pub(super) planned: usize,
    /// Names of the trials that could not be carried out in this execution, for example because the run ended before its fault. A trial that
    /// was given up because the lab ended is not among them.
    failed: BTreeSet<String>,
}

impl Lab {
    /// Runs the trials that are not done yet, until the lab must end.
    pub(super) fn run(&self) -> Done {
        let known = self.results.as_deref().map(trials::read).unwrap_or_default();
        let planned = self.planned();
        let done = Mutex::new(Done {
            trials: Vec::new(),
            planned: planned.len(),
            failed: BTreeSet::new(),
        });
        known
            .into_iter()
            .for_each(|trial| done.lock().unwrap().add(trial));
        for _ in 0..PASSES {
            self.run_missing(&done);
        }
        let mut done = done.into_inner().unwrap();
        done.trials.retain(|trial| {
            let is_same = |(number, kind): &(u32, &Kind)| {
                (kind.name, self.seed, *number) == (trial.kind.as_str(), trial.seed, trial.number)
            };
            planned.iter().any(is_same)
        });
        done
    }

    /// Returns the number and the kind of each trial. Each kind comes once before any comes again: if the lab ends early, the results contain
    /// all kinds.
    fn planned(&self) -> Vec<(u32, &'static Kind)> {
        let numbers = 1..=self.count;
        let planned = numbers.flat_map(|number| self.kinds.iter().map(move |kind| (number, *kind)));
        planned.collect()
    }

    fn run_missing(&self, done: &Mutex<Done>) {
        let mut missing = self.planned();
        missing.retain(|(number, kind)| !self.is_done(kind, *number, done));
        let tasks = Mutex::new(missing.into_iter());
        let next = || tasks.lock().unwrap().next();
        let alone = RwLock::new(());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while let Some((number, kind)) = next() {
                        // Programs that use a whole core disturb every other trial, so these trials run alone.
                        let burns = kind.inflicted == Inflicted::Burn;
                        let _guards = if burns {
                            (None, Some(alone.write().unwrap()))
                        } else {
                            (Some(alone.read().unwrap()), None)
                        };
                        if stop::starts_no_more() {
                            break;
                        }
                        let name = format!("{} #{number}", kind.name);
                        match self.run_caught(kind, number, done) {
                            Ok(()) => _ = done.lock().unwrap().failed.remove(&name),
                            Err(error) => {
                                println!("{name}: not carried out: {error:#}");
                                if !stop::must_end() {
                                    done.lock().unwrap().failed.insert(name);
                                }
                            }
                        }
                    }
                });
            }
        });
    }

    /// Like `run_and_record`. Parts of the tests panic, for example if a collector does not start; the other trials must go on.
    fn run_caught(&self, kind: &'static Kind, number: u32, done: &Mutex<Done>) -> Result<()> {
        let ended = catch_unwind(AssertUnwindSafe(|| self.run_and_record(kind, number, done)));
        ended.unwrap_or_else(|_| Err(anyhow!("it panicked; the message is above")))
    }

    /// Runs the missing parts of a trial.
    fn run_and_record(&self, kind: &'static Kind, number: u32, done: &Mutex<Done>) -> Result<()> {
        let draw = Draw::new(kind, self.seed, number);
        let known = done.lock().unwrap().find(kind, self.seed, number);
        let begins = |what: &str| println!("{} #{number} of {}, {what}: {draw}", kind.name, self.count);
        let mut trial = if let Some(trial) = known {
            trial
        } else {
            begins("begins");
            let trial = Trial {
                seed: self.seed,
                number,
                ..trial::run_trial(kind, &draw, trial::WATCHED_AFTER)?
            };
            println!("{}", trial.in_words(kind));
            self.keep(&trial, done);
            trial
        };
        let traceml = self.peer_of(kind).filter(|_| !stop::starts_no_more());
        if let Some(traceml) = traceml.filter(|_| trial.traceml.is_none()) {
            begins("TraceML begins");
            trial.traceml = Some(traceml.run_trial(kind, &draw)?);
            println!("{}", trial.in_words(kind));
            self.keep(&trial, done);
        }
        Ok(())
    }

    /// Returns true if no part of the trial is missing.
    fn is_done(&self, kind: &Kind, number: u32, done: &Mutex<Done>) -> bool {
        let known = done.lock().unwrap().find(kind, self.seed, number);
        known.is_some_and(|trial| trial.traceml.is_some() || self.peer_of(kind).is_none())
    }

    /// Returns TraceML if it runs beside trials of this kind.
    fn peer_of(&self, kind: &Kind) -> Option<&TraceMl> {
        self.traceml.as_ref().filter(|_| kind.family == Family::Straggler)
    }

    fn keep(&self, trial: &Trial, done: &Mutex<Done>) {
        let mut done = done.lock().unwrap();
        self.results.iter().for_each(|file| trials::add(file, trial));
        done.add(trial.clone());
    }
}

impl Done {
    /// Adds a trial, and replaces an earlier result of the same trial: TraceML may have run later.
    fn add(&mut self, trial: Trial) {
        let is_same = |known: &Trial| {
            (&known.kind, known.seed, known.number) == (&trial.kind, trial.seed, trial.number)
        };
        self.trials.retain(|known| !is_same(known));
        self.trials.push(trial);
    }

    fn find(&self, kind: &Kind, seed: u64, number: u32) -> Option<Trial> {
        let mut trials = self.trials.iter();
        let found =
            trials.find(|trial| trial.kind == kind.name && (trial.seed, trial.number) == (seed, number));
        found.cloned()
    }

    /// Returns true if the trials are enough to say that targets are met. A trial that could not be carried out may hide a fault of Lockstep.
    pub(super) fn is_enough(&self) -> bool {
        self.failed.is_empty() && is_enough(self.trials.len(), self.planned)
    }

    /// Says how many of the planned trials are done, and which ones could not be carried out.
    pub(super) fn in_words(&self) -> String {
        let count = self.trials.len();
        let too_few = if is_enough(count, self.planned) {
            String::new()
        } else {
            format!(", too few to meet the targets: they need {TRIALS_MIN} or all")
        };
        let failed: Vec<&str> = self.failed.iter().map(String::as_str).collect();
        let failed = if failed.is_empty() {
            String::new()
        } else {
            format!(" Not carried out: {}.", failed.join(", "))
        };
        format!(
            "{count} of {} planned trials are done{too_few}.{failed}",
            self.planned
        )
    }
}

fn is_enough(count: usize, planned: usize) -> bool {
    count >= planned.min(TRIALS_MIN)
}

#[cfg(test)]
mod tests {
    use super::super::kinds::KINDS;
    use super::*;

    #[test]
    fn each_kind_comes_once_before_any_comes_again() {
        let lab = Lab {
            kinds: KINDS.iter().collect(),
            count: 2,
            seed: 1001,
            jobs: 2,
            results: None,
            traceml: None,
        };
        let planned = lab.planned();
        let (first, second) = planned.split_at(KINDS.len());
        for (half, number) in [(first, 1), (second, 2)] {
            let names: Vec<&str> = half.iter().map(|(_, kind)| kind.name).collect();
            let all: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            assert_eq!(names, all);
            assert!(half.iter().all(|(of, _)| *of == number));
        }
    }

    #[test]
    fn an_early_end_meets_the_targets_only_with_enough_trials() {
        assert!(is_enough(128, 128) && is_enough(120, 128) && !is_enough(119, 128));
        assert!(is_enough(4, 4) && !is_enough(3, 4));
        let done = Done {
            trials: Vec::new(),
            planned: 128,
            failed: BTreeSet::new(),
        };
        assert_eq!(
            done.in_words(),
            "0 of 128 planned trials are done, too few to meet the targets: they need 120 or all."
        );
    }

    #[test]
    fn a_trial_that_could_not_be_carried_out_is_named_and_the_targets_are_not_met() {
        let mut done = Done {
            trials: Vec::new(),
            planned: 0,
            failed: BTreeSet::new(),
        };
        assert!(done.is_enough());
        done.failed.insert("spin #1".to_owned());
        assert!(!done.is_enough());
        assert_eq!(
            done.in_words(),
            "0 of 0 planned trials are done. Not carried out: spin #1."
        );
    }
}
