//! Watches the checkpoints of one attempt on this node: reads the folder repeatedly, reports changes, and executes removal orders.
//!
//! All disk work is done on a separate thread, one task at a time: a dead file server blocks neither the attempt's follower nor the end of
//! the agent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
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

use super::accepted_removal::{AcceptedRemoval, ClockReading};
use super::records::{Records, RecordsFolder};
use super::removal::{RemovalError, carry_out};
use super::scan::{Limits, ScanCache, ScanInput, scan};
use crate::launch::probe::{Phase, Saving};
use crate::launch::supervise::Attempt;
use crate::sample::Samples;
use crate::sample::series::series;
use crate::uplink::link::now_ms;

/// Minimum interval between two scans of the folder. The interval is longer if a scan takes long.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// The interval is at least this multiple of the duration of a scan.
const REST_FACTOR: u32 = 20;
/// Maximum interval between two scans.
const SCAN_INTERVAL_MAX: Duration = Duration::from_secs(120);
/// Maximum number of paths outside the folder that the probe named. Each is checked separately; the oldest are forgotten.
const NAMED_MAX: usize = 64;
/// A change of the free space is reported only if it is more than 1/50 of the previous value.
const FREE_SHARE: u64 = 50;
/// How long the last scan of an attempt waits for a slow disk.
const LAST_SCAN_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of intervals between saves from which the usual interval is computed.
const GAPS: usize = 8;

/// The checkpoints of an attempt.
pub(crate) struct Watch {
    node: String,
    folder: Option<PathBuf>,
    /// The records of the files that the run wrote.
    records: RecordsFolder,
    named: VecDeque<PathBuf>,
    limits: Limits,
    cache: ScanCache,
    work: Option<oneshot::Receiver<Done>>,
    next_scan: Instant,
    saves: VecDeque<Saving>,
    failure: Option<SaveFailure>,
    /// The last report that is stored.
    reported: Option<CheckpointReport>,
    /// A later report that could not be stored, because the disk is full or fails.
    unstored: Option<CheckpointReport>,
    /// The order that was carried out last. Its file stays until the report of its result is stored; this agent does not carry it out again.
    finished: Option<AcceptedRemoval>,
    /// Why the last orders did not remove checkpoints, by path. An entry stays until its checkpoint is gone, another one is saved in its
    /// place, or another order for it arrives.
    not_removed: BTreeMap<String, NotRemoved>,
    /// Why the order in the attempt's folder cannot be read.
    unreadable_order: Option<String>,
    series: RunSaves,
}

struct Done {
    cache: ScanCache,
    report: CheckpointReport,
    not_removed: BTreeMap<String, NotRemoved>,
    /// The order that was carried out.
    finished: Option<AcceptedRemoval>,
    took: Duration,
}

/// Why an order did not remove a checkpoint.
struct NotRemoved {
    reason: String,
    /// [`RemovalOrder::ordered_ms`] of the order.
    order_ms: Option<TimestampMs>,
    /// The mark of the checkpoint; `None` until the scan after the order.
    mark: Option<String>,
}

impl Watch {
    /// Creates the watch for an attempt that was started, or that only has an order to remove checkpoints.
    pub(crate) fn new(attempt: &Attempt, node: &str, samples: Samples) -> Self {
        drop_old_order(attempt);
        let start: Option<Start> = attempt.folder().read(files::START).ok();
        let accepted: Option<AcceptedRemoval> = attempt.folder().read(files::REMOVAL).ok();
        let folder = start
            .as_ref()
            .and_then(|start| run_folder(&start.spec, attempt.folder()))
            .or_else(|| accepted.map(|accepted| PathBuf::from(accepted.order.folder)));
        let reported = attempt.reported_checkpoints();
        let not_removed = reported.as_ref().map_or_else(BTreeMap::new, not_removed);
        Self {
            node: node.to_owned(),
            folder,
            records: RecordsFolder::of(attempt.run(), attempt.folder()),
            named: VecDeque::new(),
            limits: Limits::for_nodes(start.map_or(1, |start| start.nnodes)),
            cache: ScanCache::default(),
            work: None,
            next_scan: Instant::now(),
            saves: VecDeque::new(),
            failure: reported.as_ref().and_then(|reported| reported.failure.clone()),
            reported,
            unstored: None,
            finished: None,
            not_removed,
            unreadable_order: None,
            series: RunSaves::new(attempt.run().as_str(), samples),
        }
    }

    /// Takes a rank's record of a save.
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
                self.next_scan = Instant::now();
            }
            Phase::Failure => {
                self.failure = Some(SaveFailure {
                    at_ms: saving.wall_ns / 1_000_000,
                    path: saving.path.clone(),
                    step: saving.step,
                    error: saving.error.clone().unwrap_or_default(),
                });
                self.next_scan = Instant::now();
            }
        }
    }

    /// Starts or completes disk work. It never waits for the disk.
    pub(crate) fn tick(&mut self, attempt: &Attempt, in_use: impl FnOnce() -> BTreeSet<String>) {
        self.series.tick(now_ms());
        self.take_done(attempt);
        let _the_next_tick_tries_again = self.settle(attempt);
        let ordered = self.order(attempt).is_some();
        let nothing_there = self.folder.is_none() && self.named.is_empty();
        if self.work.is_none() && (ordered || !nothing_there && Instant::now() >= self.next_scan) {
            self.begin(attempt, in_use(), false);
        }
    }

    /// Scans a last time after the ranks have ended, and executes the remaining order. Returns false if the disk does not answer.
    pub(crate) async fn finish(&mut self, attempt: &Attempt, in_use: &BTreeSet<String>) -> bool {
        // A scan that began before the end of the ranks is not the last one.
        let mut counts = self.work.is_none();
        let deadline = tokio::time::Instant::now() + LAST_SCAN_TIMEOUT;
        loop {
            if self.work.is_none() {
                self.begin(attempt, in_use.clone(), true);
            }
            let Some(work) = &mut self.work else { return false };
            let Ok(done) = tokio::time::timeout_at(deadline, work).await else {
                tracing::warn!(run = %attempt.run(), "the file system of the checkpoint folder does not answer; the final state of the folder is unknown");
                return false;
            };
            self.work = None;
            self.took(attempt, done.ok());
            if counts && self.order(attempt).is_none() {
                return true;
            }
            counts = true;
        }
    }

    /// Stores a report that could not be stored before, and closes the order whose result it contains. Returns false if that must be tried
    /// again. An attempt that ends before leaves an order without an answer.
    pub(crate) fn settle(&mut self, attempt: &Attempt) -> bool {
        match self.unstored.clone() {
            Some(report) => self.store(attempt, report),
            None => self.close_order(attempt),
        }
        self.unstored.is_none() && self.finished.is_none()
    }

    fn store(&mut self, attempt: &Attempt, report: CheckpointReport) {
        match attempt.set_checkpoint_report(report.clone()) {
            Ok(()) => {
                self.unstored = None;
                self.reported = Some(report);
                self.close_order(attempt);
            }
            Err(error) => {
                if self.unstored.is_none() {
                    tracing::warn!(run = %attempt.run(), %error, "the checkpoint report cannot be stored; is the disk full? Trying again");
                }
                self.unstored = Some(report);
            }
        }
    }

    /// Removes the file of the order that was carried out. Until then the attempt accepts no other order.
    fn close_order(&mut self, attempt: &Attempt) {
        let Some(finished) = &self.finished else { return };
        let stored = AcceptedRemoval::read(attempt.folder());
        let is_other = stored.is_ok_and(|stored| stored.as_ref() != Some(finished));
        if !is_other && let Err(error) = attempt.folder().remove(files::REMOVAL) {
            tracing::warn!(run = %attempt.run(), %error, "an order to remove checkpoints that is finished cannot be closed; trying again");
            return;
        }
        self.finished = None;
    }

    /// Drops an order that waits for a disk that does not answer, and reports that. Call it after [`Watch::finish`] has returned false.
    pub(crate) fn drop_order(&mut self, attempt: &Attempt) {
        self.drop_order_because(attempt, DROPPED_ORDER);
    }

    fn drop_order_because(&mut self, attempt: &Attempt, why: &str) {
        let Some(dropped) = self.order(attempt) else {
            return;
        };
        if let Err(error) = attempt.folder().remove(files::REMOVAL) {
            tracing::warn!(run = %attempt.run(), %error, "an order to remove checkpoints cannot be dropped");
            return;
        }
        tracing::warn!(run = %attempt.run(), "{why}");
        self.report_problem(attempt, why, Some(&dropped.order));
    }

    /// Returns the accepted order that is not carried out yet. One that cannot be read stays where it is, and is reported once. It counts as
    /// none: otherwise each tick would begin a scan for it.
    fn order(&mut self, attempt: &Attempt) -> Option<AcceptedRemoval> {
        match AcceptedRemoval::read(attempt.folder()) {
            Ok(accepted) => {
                self.unreadable_order = None;
                accepted.filter(|accepted| self.finished.as_ref() != Some(accepted))
            }
            Err(error) => {
                if self.unreadable_order.is_none() {
                    let problem = format!("{UNREADABLE_ORDER}: {error}. Prune again");
                    let file = attempt.folder().file(files::REMOVAL);
                    tracing::error!(run = %attempt.run(), file = %file.display(), "{problem}");
                    self.report_problem(attempt, &problem, None);
                    self.unreadable_order = Some(problem);
                }
                None
            }
        }
    }

    /// Reports a problem with an order at once, and for each of its checkpoints. It does not read the checkpoint folder.
    fn report_problem(&mut self, attempt: &Attempt, problem: &str, order: Option<&RemovalOrder>) {
        // Without an earlier report, this one says nothing about what is in the folder.
        let earlier = self.unstored.as_ref().or(self.reported.as_ref()).cloned();
        let mut report = earlier.unwrap_or_else(|| CheckpointReport {
            folder: self.folder.as_deref().and_then(Path::to_str).map(str::to_owned),
            failure: self.failure.clone(),
            partial: true,
            proves: true,
            ..CheckpointReport::default()
        });
        report.problem = Some(problem.to_owned());
        let is_ordered = |path: &String| order.is_some_and(|order| order.remove.contains(path));
        let all = report.checkpoints.iter_mut();
        for checkpoint in all.filter(|one| is_ordered(&one.path)) {
            if let Some(view) = checkpoint.seen.get_mut(&self.node) {
                view.not_removed = Some(problem.to_owned());
                view.not_removed_order_ms = order.and_then(|order| order.ordered_ms);
            }
        }
        self.store(attempt, report);
    }

    fn begin(&mut self, attempt: &Attempt, in_use: BTreeSet<String>, over: bool) {
        let attempt_folder = attempt.folder().clone();
        let accepted = self.order(attempt);
        let mut cache = std::mem::take(&mut self.cache);
        let (node, folder, limits) = (self.node.clone(), self.folder.clone(), self.limits);
        let named: Vec<PathBuf> = self.named.iter().cloned().collect();
        let saves = attempt.folder().file(files::SAVES);
        let records = self.records.clone();
        let mut not_removed = std::mem::take(&mut self.not_removed);
        let (done, work) = oneshot::channel();
        self.work = Some(work);
        std::thread::spawn(move || {
            let begun = Instant::now();
            let result = records.lock().hold(|| {
                let mut records = Records::open(&records);
                records.take_saves(&saves);
                // If the disk did not answer for long, the order may have been dropped, and the file may contain another one.
                let is_in_file = || attempt_folder.read::<AcceptedRemoval>(files::REMOVAL).ok() == accepted;
                if let Some(accepted) = &accepted {
                    let order = &accepted.order;
                    let is_valid = || accepted.is_valid(&ClockReading::now()) && is_in_file();
                    let kept = carry_out(order, &is_valid, &in_use, &node, &mut records);
                    not_removed.retain(|path, _| !order.remove.contains(path));
                    let kept = kept.into_iter();
                    not_removed.extend(kept.map(|(path, error)| (path, NotRemoved::by(order, &error))));
                }
                not_removed.retain(|path, _| !is_gone(path));
                let input = ScanInput {
                    node: &node,
                    folder: folder.as_deref(),
                    named: &named,
                    records: Some(&records),
                    over,
                    limits,
                };
                let result = scan(&input, &mut cache);
                records.proofs.settle(&result.files, !result.incomplete);
                records.store();
                result
            });
            let _receiver_is_gone = done.send(Done {
                cache,
                report: result.report,
                not_removed,
                finished: accepted,
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
            tracing::error!(run = %attempt.run(), "the checkpoint folder could not be read");
            self.next_scan = Instant::now() + SCAN_INTERVAL_MAX;
            // Otherwise each tick would carry it out again, and fail again.
            self.drop_order_because(attempt, FAILED_ORDER);
            return;
        };
        self.cache = done.cache;
        let rest = done.took * REST_FACTOR;
        self.next_scan = Instant::now() + rest.clamp(SCAN_INTERVAL, SCAN_INTERVAL_MAX);
        self.not_removed = done.not_removed;
        self.finished = done.finished.or_else(|| self.finished.take());
        // An order that waits has an answer of its own.
        if let Some(waiting) = self.order(attempt) {
            self.not_removed
                .retain(|path, _| !waiting.order.remove.contains(path));
        }
        let mut report = done.report;
        self.add_not_removed(&mut report.checkpoints);
        report.failure.clone_from(&self.failure);
        let refused = attempt.old_order_refused().then(|| OLD_ORDER.to_owned());
        let of_order = self.unreadable_order.clone().or_else(|| self.removal_problem());
        report.problem = of_order.or(refused).or(report.problem);
        self.add_probe_records(&mut report.checkpoints);
        // Also for a complete report that is sent in parts: collectors of protocol 1 treat each part as a partial report.
        if report.partial || !fits_one_part(&report) {
            report.gone = self.gone(&report);
        }
        self.series.saw(&report, now_ms());
        // The result of an order is reported also if it is the same as before: a person may have requested the removal again.
        if self.finished.is_some() || self.unstored.is_some() || self.has_changed(&report) {
            self.store(attempt, report);
        }
    }

    fn add_not_removed(&mut self, checkpoints: &mut [Checkpoint]) {
        for checkpoint in checkpoints {
            let Some(view) = checkpoint.seen.get_mut(&self.node) else {
                continue;
            };
            let Some(known) = self.not_removed.get_mut(&checkpoint.path) else {
                continue;
            };
            if *known.mark.get_or_insert_with(|| view.mark.clone()) == view.mark {
                view.not_removed = Some(known.reason.clone());
                view.not_removed_order_ms = known.order_ms;
            } else {
                self.not_removed.remove(&checkpoint.path);
            }
        }
    }

    /// Returns why a path was not removed, for older collectors, and for paths that are not in the list of checkpoints.
    fn removal_problem(&self) -> Option<String> {
        let (path, NotRemoved { reason, .. }) = self.not_removed.first_key_value()?;
        let more = match self.not_removed.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more were not removed"),
        };
        Some(format!("{path} was not removed: {reason}{more}"))
    }

    /// Adds the duration and the step of each save, which only the probe's records contain.
    fn add_probe_records(&self, checkpoints: &mut [Checkpoint]) {
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
                let duration_ms = saving.seconds.map(|seconds| (seconds * 1_000.0) as u64);
                checkpoint.duration_ms = checkpoint.duration_ms.or(duration_ms);
            } else if let Some(before) = self
                .reported
                .as_ref()
                .and_then(|reported| same(reported, &checkpoint.path))
                && before.finished_ms == checkpoint.finished_ms
            {
                // A previous agent has read the probe's record.
                checkpoint.step = checkpoint.step.or(before.step);
                checkpoint.duration_ms = checkpoint.duration_ms.or(before.duration_ms);
            }
        }
    }

    /// Returns the reported checkpoints that no longer exist.
    fn gone(&self, report: &CheckpointReport) -> Vec<String> {
        let before = self.reported.as_ref();
        let gone = |path: &String| same(report, path).is_none() && std::fs::symlink_metadata(path).is_err();
        let reported = before.into_iter().flat_map(|reported| {
            reported
                .checkpoints
                .iter()
                .map(|one| &one.path)
                .chain(&reported.gone)
        });
        reported
            .filter(|path| gone(path))
            .take(self.limits.checkpoints)
            .cloned()
            .collect()
    }

    fn has_changed(&self, report: &CheckpointReport) -> bool {
        let Some(reported) = &self.reported else {
            return true;
        };
        let far = match (reported.free_bytes, report.free_bytes) {
            (Some(before), Some(now)) => before.abs_diff(now) > before / FREE_SHARE,
            (before, now) => before != now,
        };
        let same_but_space = CheckpointReport {
            free_bytes: reported.free_bytes,
            ..report.clone()
        };
        far || same_but_space != *reported
    }
}

/// Why an order is dropped at the end of an attempt.
const DROPPED_ORDER: &str = "an order to remove checkpoints was dropped: the file system of the checkpoint folder does not answer, so it is not \
     known whether they were removed. Prune again when it does";

/// Why an order is dropped when the thread that carries it out has panicked.
const FAILED_ORDER: &str = "an order to remove checkpoints was dropped: a fault of the agent stopped it, so it is not known whether they were \
     removed. See the log of the agent";

/// Why an order that cannot be read is not executed; the error follows.
const UNREADABLE_ORDER: &str = "an order to remove checkpoints cannot be read, so nothing was removed";

/// Why an order of an older collector is not executed.
pub(crate) const OLD_ORDER: &str = "an order to remove checkpoints was refused: it is of an older collector, which does not check whether this run \
     wrote them. Upgrade the collector, then prune again";

fn drop_old_order(attempt: &Attempt) {
    if std::fs::remove_file(attempt.folder().file(files::PRUNE)).is_ok() {
        tracing::warn!(run = %attempt.run(), "an order to remove checkpoints from before the upgrade is dropped");
    }
}

fn same<'r>(report: &'r CheckpointReport, path: &str) -> Option<&'r Checkpoint> {
    report.checkpoints.iter().find(|one| one.path == path)
}

/// Returns the reasons in a report of an earlier agent.
fn not_removed(report: &CheckpointReport) -> BTreeMap<String, NotRemoved> {
    let mut reasons = BTreeMap::new();
    for checkpoint in &report.checkpoints {
        let known = checkpoint.seen.values().find_map(|view| {
            Some(NotRemoved {
                reason: view.not_removed.clone()?,
                order_ms: view.not_removed_order_ms,
                mark: Some(view.mark.clone()),
            })
        });
        reasons.extend(known.map(|known| (checkpoint.path.clone(), known)));
    }
    reasons
}

impl NotRemoved {
    fn by(order: &RemovalOrder, error: &RemovalError) -> Self {
        Self {
            reason: error.to_string(),
            order_ms: order.ordered_ms,
            mark: None,
        }
    }
}

fn is_gone(path: &str) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the checkpoint folder of the spec. A relative path is relative to the script's working directory.
fn run_folder(spec: &Spec, folder: &Folder) -> Option<PathBuf> {
    let named = Path::new(spec.checkpoint_dir.as_deref().filter(|name| !name.is_empty())?);
    if named.is_absolute() {
        return Some(named.to_owned());
    }
    let launch: Launch = folder.read(files::LAUNCH).ok()?;
    Some(Path::new(&launch.workdir).join(named))
}

/// The state of the checkpoints as series of the run.
#[derive(Default)]
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
            ..Self::default()
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
        // A file of another program is not a failed save of this run.
        let is_foreign = |one: &Checkpoint| {
            let mut origins = one.seen.values().map(|sight| sight.origin);
            origins.any(|origin| origin == Some(Origin::BeforeStart))
        };
        let incomplete = report
            .checkpoints
            .iter()
            .filter(|one| !one.complete && !one.writing && !one.uncertain && !is_foreign(one));
        let incomplete: BTreeSet<String> = incomplete.map(|one| one.path.clone()).collect();
        // Incomplete checkpoints from before this attempt are not counted.
        if self.seen_before {
            self.incomplete_total += incomplete.difference(&self.incomplete).count() as u64;
        }
        (self.incomplete, self.seen_before) = (incomplete, true);
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
