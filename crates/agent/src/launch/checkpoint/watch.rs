//! Looks after the checkpoints of one attempt on this node: looks again and again, tells what changed, carries out orders.
//!
//! All disk work is done on a thread of its own, one thing at a time: a dead file server stops neither the attempt's follower nor
//! the agent's end.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use domain::run::checkpoint::{
    Checkpoint, CheckpointReport, Origin, RemovalOrder, SaveFailure, fits_one_part,
};
use domain::run::spec::Spec;
use domain::run::state::Start;
use domain::run::torchrun::Launch;
use domain::time::TimestampMs;
use shim::{Folder, files};
use tokio::sync::oneshot;

use super::look::{Limits, Memory, Place, look};
use super::records::{Records, RecordsFolder};
use super::removal::carry_out;
use crate::launch::probe::{Phase, Saving};
use crate::launch::supervise::Attempt;
use crate::sample::Samples;
use crate::sample::series::series;
use crate::uplink::link::now_ms;

/// How often the folder is looked at; slower where a look takes long.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A look may take this part of the time.
const REST_FACTOR: u32 = 20;
/// Looks are not further apart than this.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(120);
/// Paths the probe named that are looked at on their own; the oldest are forgotten.
const NAMED_MAX: usize = 64;
/// Free space that changed by less than this part is not news.
const FREE_SHARE: u64 = 50;
/// The last look of an attempt waits for a slow disk so long.
const LAST_LOOK_WITHIN: Duration = Duration::from_secs(60);
/// Gaps between saves that the usual one is taken from.
const GAPS: usize = 8;

/// The checkpoints of an attempt.
pub(crate) struct Watch {
    node: String,
    folder: Option<PathBuf>,
    /// What is known of the files that the run wrote.
    records: RecordsFolder,
    named: VecDeque<PathBuf>,
    limits: Limits,
    memory: Memory,
    work: Option<oneshot::Receiver<Done>>,
    next_look: Instant,
    saves: VecDeque<Saving>,
    failure: Option<SaveFailure>,
    told: Option<CheckpointReport>,
    trouble: Option<String>,
    series: RunSaves,
}

struct Done {
    memory: Memory,
    report: CheckpointReport,
    trouble: Option<String>,
    pruned: bool,
    took: Duration,
}

impl Watch {
    /// For an attempt that has been started, or that is only to be pruned.
    pub(crate) fn new(attempt: &Attempt, node: &str, samples: Samples) -> Self {
        drop_old_order(attempt);
        let start: Option<Start> = attempt.folder().read(files::START).ok();
        let order: Option<RemovalOrder> = attempt.folder().read(files::REMOVAL).ok();
        let folder = start
            .as_ref()
            .and_then(|start| run_folder(&start.spec, attempt.folder()))
            .or_else(|| order.map(|order| PathBuf::from(order.folder)));
        let told = attempt.reported_checkpoints();
        Self {
            node: node.to_owned(),
            folder,
            records: RecordsFolder::of(attempt.run(), attempt.folder()),
            named: VecDeque::new(),
            limits: Limits::for_nodes(start.map_or(1, |start| start.nnodes)),
            memory: Memory::default(),
            work: None,
            next_look: Instant::now(),
            saves: VecDeque::new(),
            failure: told.as_ref().and_then(|told| told.failure.clone()),
            told,
            trouble: None,
            series: RunSaves::new(attempt.run().as_str(), samples),
        }
    }

    /// A rank tells of a save.
    pub(crate) fn note(&mut self, saving: &Saving) {
        let path = PathBuf::from(&saving.path);
        let elsewhere = self
            .folder
            .as_ref()
            .is_none_or(|folder| !path.starts_with(folder));
        if elsewhere && path.is_absolute() && !self.named.contains(&path) {
            self.named.push_back(path);
            let over = self.named.len().saturating_sub(NAMED_MAX);
            self.named.drain(..over);
        }
        match saving.phase {
            Phase::Begin => {}
            Phase::End => {
                self.saves.push_back(saving.clone());
                let over = self.saves.len().saturating_sub(NAMED_MAX);
                self.saves.drain(..over);
                self.next_look = Instant::now();
            }
            Phase::Failure => {
                self.failure = Some(SaveFailure {
                    at_ms: saving.wall_ns / 1_000_000,
                    path: saving.path.clone(),
                    step: saving.step,
                    error: saving.error.clone().unwrap_or_default(),
                });
                self.next_look = Instant::now();
            }
        }
    }

    /// Time passes. Nothing here waits for the disk.
    pub(crate) fn tick(&mut self, attempt: &Attempt, in_use: impl FnOnce() -> BTreeSet<String>) {
        self.series.tick(now_ms());
        self.take_done(attempt);
        let ordered = attempt.folder().has(files::REMOVAL);
        let nothing_there = self.folder.is_none() && self.named.is_empty();
        if self.work.is_none() && (ordered || !nothing_there && Instant::now() >= self.next_look) {
            self.begin(attempt, in_use(), false);
        }
    }

    /// The ranks have ended: looks once more, and carries out what is still ordered. False when the disk does not answer.
    pub(crate) async fn finish(&mut self, attempt: &Attempt, in_use: &BTreeSet<String>) -> bool {
        // A look that was begun before the end does not count.
        let mut counts = self.work.is_none();
        let deadline = tokio::time::Instant::now() + LAST_LOOK_WITHIN;
        loop {
            if self.work.is_none() {
                self.begin(attempt, in_use.clone(), true);
            }
            let Some(work) = &mut self.work else { return false };
            let Ok(done) = tokio::time::timeout_at(deadline, work).await else {
                tracing::warn!(run = %attempt.run(), "the checkpoint folder does not answer; its last state is not known");
                return false;
            };
            self.work = None;
            self.took(attempt, done.ok());
            if counts && !attempt.folder().has(files::REMOVAL) {
                return true;
            }
            counts = true;
        }
    }

    fn begin(&mut self, attempt: &Attempt, in_use: BTreeSet<String>, over: bool) {
        let order: Option<RemovalOrder> = attempt.folder().read(files::REMOVAL).ok();
        let mut memory = std::mem::take(&mut self.memory);
        let (node, folder, limits) = (self.node.clone(), self.folder.clone(), self.limits);
        let named: Vec<PathBuf> = self.named.iter().cloned().collect();
        let order_file = attempt.folder().file(files::REMOVAL);
        let saves = attempt.folder().file(files::SAVES);
        let records = self.records.clone();
        let (done, work) = oneshot::channel();
        self.work = Some(work);
        std::thread::spawn(move || {
            let begun = Instant::now();
            let (seen, trouble) = records.lock().hold(|| {
                let mut records = Records::open(&records);
                records.take_saves(&saves);
                let trouble = order
                    .as_ref()
                    .and_then(|order| carry_out(order, &in_use, &node, &mut records));
                if order.is_some() {
                    let _next_pass_looks_again = std::fs::remove_file(&order_file);
                }
                let place = Place {
                    node: &node,
                    folder: folder.as_deref(),
                    named: &named,
                    records: Some(&records),
                    over,
                    limits,
                };
                let seen = look(&place, &mut memory);
                records.proofs.settle(&seen.files, !seen.incomplete);
                records.store();
                (seen, trouble)
            });
            let _nobody_waits_any_more = done.send(Done {
                memory,
                report: seen.report,
                trouble: trouble.map(|trouble| trouble.to_string()),
                pruned: order.is_some(),
                took: begun.elapsed(),
            });
        });
    }

    fn take_done(&mut self, attempt: &Attempt) {
        let done = match self.work.as_mut().map(oneshot::Receiver::try_recv) {
            None | Some(Err(oneshot::error::TryRecvError::Empty)) => return,
            Some(done) => done.ok(),
        };
        self.work = None;
        self.took(attempt, done);
    }

    fn took(&mut self, attempt: &Attempt, done: Option<Done>) {
        let Some(done) = done else {
            tracing::error!(run = %attempt.run(), "a look at the checkpoints failed");
            return;
        };
        self.memory = done.memory;
        let rest = done.took * REST_FACTOR;
        self.next_look = Instant::now() + rest.clamp(LOOK_EVERY, LOOK_EVERY_MAX);
        if done.pruned {
            self.trouble = done.trouble;
        }
        let mut report = done.report;
        report.failure.clone_from(&self.failure);
        let refused = attempt.old_order_refused().then(|| OLD_ORDER.to_owned());
        report.problem = self.trouble.clone().or(refused).or(report.problem);
        self.add_what_was_said(&mut report.checkpoints);
        // Also for a complete report that is sent in parts: collectors of protocol 1 take each part for a partial report.
        if report.partial || !fits_one_part(&report) {
            report.gone = self.gone(&report);
        }
        self.series.saw(&report, now_ms());
        if self.is_news(&report) {
            match attempt.tell_checkpoints(report.clone()) {
                Ok(()) => self.told = Some(report),
                Err(error) => {
                    tracing::warn!(run = %attempt.run(), %error, "checkpoints cannot be told; is the disk full?")
                }
            }
        }
    }

    /// The probe knows how long it took, and at which step.
    fn add_what_was_said(&self, checkpoints: &mut [Checkpoint]) {
        for checkpoint in checkpoints {
            if let Some(saving) = self
                .saves
                .iter()
                .rev()
                .find(|saving| saving.path == checkpoint.path)
            {
                checkpoint.step = checkpoint.step.or(saving.step);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a saturating cast of a duration"
                )]
                let said = saving.seconds.map(|seconds| (seconds * 1_000.0) as u64);
                checkpoint.duration_ms = checkpoint.duration_ms.or(said);
            } else if let Some(before) = self.told.as_ref().and_then(|told| same(told, &checkpoint.path))
                && before.finished_ms == checkpoint.finished_ms
            {
                // An agent before this one heard it.
                checkpoint.step = checkpoint.step.or(before.step);
                checkpoint.duration_ms = checkpoint.duration_ms.or(before.duration_ms);
            }
        }
    }

    /// Those told before that are not there any more.
    fn gone(&self, report: &CheckpointReport) -> Vec<String> {
        let before = self.told.as_ref();
        let gone = |path: &String| same(report, path).is_none() && std::fs::symlink_metadata(path).is_err();
        let told = before
            .into_iter()
            .flat_map(|told| told.checkpoints.iter().map(|one| &one.path).chain(&told.gone));
        told.filter(|path| gone(path))
            .take(self.limits.told)
            .cloned()
            .collect()
    }

    fn is_news(&self, report: &CheckpointReport) -> bool {
        let Some(told) = &self.told else { return true };
        let far = match (told.free_bytes, report.free_bytes) {
            (Some(before), Some(now)) => before.abs_diff(now) > before / FREE_SHARE,
            (before, now) => before != now,
        };
        let same_but_space = CheckpointReport {
            free_bytes: told.free_bytes,
            ..report.clone()
        };
        far || same_but_space != *told
    }
}

/// Why an order of an older collector is not carried out.
pub(crate) const OLD_ORDER: &str = "an order to remove checkpoints was refused: it is of an older collector, which does not ask whether this run \
     wrote them. Upgrade the collector, then prune again";

fn drop_old_order(attempt: &Attempt) {
    if std::fs::remove_file(attempt.folder().file(files::PRUNE)).is_ok() {
        tracing::warn!(run = %attempt.run(), "an order to remove checkpoints that waited since before the upgrade is dropped");
    }
}

fn same<'r>(report: &'r CheckpointReport, path: &str) -> Option<&'r Checkpoint> {
    report.checkpoints.iter().find(|one| one.path == path)
}

/// The spec's folder; a relative one is relative to where the script runs.
fn run_folder(spec: &Spec, folder: &Folder) -> Option<PathBuf> {
    let named = Path::new(spec.checkpoint_dir.as_deref().filter(|name| !name.is_empty())?);
    if named.is_absolute() {
        return Some(named.to_owned());
    }
    let launch: Launch = folder.read(files::LAUNCH).ok()?;
    Some(Path::new(&launch.workdir).join(named))
}

/// What the disk shows, as series of the run.
struct RunSaves {
    run: String,
    samples: Samples,
    since_ms: TimestampMs,
    last_ms: Option<TimestampMs>,
    last_bytes: Option<u64>,
    free_bytes: Option<u64>,
    gap_ms: Option<i64>,
    incomplete: BTreeSet<String>,
    incomplete_total: u64,
    seen_before: bool,
}

impl RunSaves {
    fn new(run: &str, samples: Samples) -> Self {
        Self {
            run: run.to_owned(),
            samples,
            since_ms: now_ms(),
            last_ms: None,
            last_bytes: None,
            free_bytes: None,
            gap_ms: None,
            incomplete: BTreeSet::new(),
            incomplete_total: 0,
            seen_before: false,
        }
    }

    fn saw(&mut self, report: &CheckpointReport, now_ms: TimestampMs) {
        let mut full: Vec<_> = report.checkpoints.iter().filter(|one| one.is_usable()).collect();
        full.sort_by_key(|one| std::cmp::Reverse(one.finished_ms));
        self.last_ms = full.first().and_then(|one| one.finished_ms);
        self.last_bytes = full.first().map(|one| one.bytes);
        self.free_bytes = report.free_bytes;
        let times: Vec<i64> = full
            .iter()
            .filter_map(|one| one.finished_ms)
            .take(GAPS + 1)
            .collect();
        let mut gaps: Vec<i64> = times.windows(2).map(|pair| pair[0] - pair[1]).collect();
        gaps.sort_unstable();
        self.gap_ms = gaps.get(gaps.len() / 2).copied();
        // A file of someone else is no failed save of this run.
        let is_foreign = |one: &Checkpoint| {
            let mut origins = one.seen.values().map(|sight| sight.origin);
            origins.any(|origin| origin == Some(Origin::BeforeStart))
        };
        let torn = report
            .checkpoints
            .iter()
            .filter(|one| !one.complete && !one.writing && !one.uncertain && !is_foreign(one));
        let torn: BTreeSet<String> = torn.map(|one| one.path.clone()).collect();
        // What lay there before this attempt is no news of it.
        if self.seen_before {
            self.incomplete_total += torn.difference(&self.incomplete).count() as u64;
        }
        (self.incomplete, self.seen_before) = (torn, true);
        self.put(now_ms);
    }

    fn tick(&mut self, now_ms: TimestampMs) {
        if self.seen_before {
            self.put(now_ms);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "bytes and times stay far below 2^53")]
    fn put(&self, now_ms: TimestampMs) {
        let age_ms = (now_ms - self.last_ms.unwrap_or(self.since_ms).max(self.since_ms)).max(0);
        let seconds = |ms: i64| ms as f64 / 1_000.0;
        let values = [
            ("run_checkpoint_age_seconds", Some(seconds(age_ms))),
            ("run_checkpoint_interval_seconds", self.gap_ms.map(seconds)),
            ("run_checkpoint_bytes", self.last_bytes.map(|bytes| bytes as f64)),
            (
                "run_checkpoint_free_bytes",
                self.free_bytes.map(|bytes| bytes as f64),
            ),
            (
                "run_checkpoints_incomplete_total",
                Some(self.incomplete_total as f64),
            ),
        ];
        for (metric, value) in values {
            if let Some(value) = value {
                self.samples
                    .push(&series(metric, &[("run", &self.run)]), now_ms, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
