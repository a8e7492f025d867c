//! Runs all trials, one after another or several at a time.

use std::path::PathBuf;
use std::sync::{Mutex, RwLock};

use anyhow::Result;

use super::draw::Draw;
use super::kind::{Family, Inflicted, Kind};
use super::peer::TraceMl;
use super::trial::{self, Trial};
use crate::trials;

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
    /// Number of trials that could not be carried out.
    pub(super) failed: usize,
}

impl Lab {
    /// Runs the trials that are not done yet.
    pub(super) fn run(&self) -> Done {
        let known = self.results.as_deref().map(trials::read).unwrap_or_default();
        let done = Mutex::new(Done {
            trials: Vec::new(),
            failed: 0,
        });
        known
            .into_iter()
            .for_each(|trial| done.lock().unwrap().add(trial));
        // Run all kinds once, then all kinds again: if the lab is interrupted, the results contain all kinds.
        let numbers = 1..=self.count;
        let tasks = numbers.flat_map(|number| self.kinds.iter().map(move |kind| (number, *kind)));
        let tasks = Mutex::new(tasks);
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
                        if let Err(error) = self.run_and_record(kind, number, &done) {
                            println!("{} #{number}: not carried out: {error:#}", kind.name);
                            done.lock().unwrap().failed += 1;
                        }
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap();
        done.trials
            .retain(|trial| trial.seed == self.seed && trial.number <= self.count);
        done
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
        let traceml = self.traceml.as_ref().filter(|_| kind.family == Family::Straggler);
        if let Some(traceml) = traceml.filter(|_| trial.traceml.is_none()) {
            begins("TraceML begins");
            trial.traceml = Some(traceml.run_trial(kind, &draw)?);
            println!("{}", trial.in_words(kind));
            self.keep(&trial, done);
        }
        Ok(())
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
}
