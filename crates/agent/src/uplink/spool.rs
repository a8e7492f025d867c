//! The spool: batches that the collector has not acknowledged, in files of limited total size.
//!
//! ```text
//! DATA/spool/   oldest.seg  …  older.seg   newest.seg = live
//!               └── backfill, oldest first ┘  └── grows by one batch per second, sent first
//! ```
//! A new live segment starts when the old one is large or old, when the agent starts, and when the live data is behind (no connection, or a
//! slow one). So new data never waits for late data. A segment is deleted when it is acknowledged. At the size limit the oldest segment is
//! dropped, and its samples are counted. While the disk cannot be written, the newest samples are kept in memory: a full disk is a problem
//! that users want to see.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::link::now_ms;
use super::segment::{Record, Segment};
use crate::sample::sink::Sample;

/// A segment that reaches this size is closed. It contains about a quarter of an hour of a large node, so dropping the oldest segment drops
/// little.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// A segment that reaches this age is closed, so that acknowledged batches and the labels of ended series can be deleted.
const SEGMENT_AGE_MAX: Duration = Duration::from_secs(600);
/// The maximum size in memory while the disk cannot be written: some minutes of a large node.
const MEMORY_BYTES_MAX: u64 = 4 << 20;

/// The spool. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    state: Arc<Mutex<State>>,
    grown: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    bytes_max: u64,
    /// The oldest segment first; the last one is live.
    segments: VecDeque<Segment>,
    dropped_samples: u64,
    disk_failed: bool,
}

impl Spool {
    /// Opens the existing segments and starts a live one.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or read.
    pub(crate) fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
        paths.sort();
        let mut state = State {
            folder: folder.to_owned(),
            bytes_max,
            segments: VecDeque::new(),
            dropped_samples: 0,
            disk_failed: false,
        };
        paths.iter().for_each(|path| state.take_up(path));
        state.start_segment();
        state.keep_bound();
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            grown: Arc::default(),
        })
    }

    /// Stores the samples of one second until they are acknowledged.
    pub(crate) fn append(&self, samples: &[Sample]) {
        if samples.is_empty() {
            return;
        }
        self.lock().append(samples);
        self.grown.notify_one();
    }

    /// Waits until samples are appended.
    pub(crate) async fn grown(&self) {
        self.grown.notified().await;
    }

    /// Starts a new live segment if more than this number of batches wait in the old one.
    pub(crate) fn rotate_if_waiting_more_than(&self, batches: usize) {
        let mut state = self.lock();
        if state.live().waiting() > batches {
            state.start_segment();
        }
    }

    /// Returns the name of the live segment, and the number of its last batch.
    pub(crate) fn live(&self) -> (String, u64) {
        let mut state = self.lock();
        let live = state.live();
        (live.name().to_owned(), live.last_seq())
    }

    /// Returns the names of older segments with batches that are not acknowledged, the oldest first.
    pub(crate) fn backlog(&self) -> Vec<String> {
        let state = self.lock();
        let older = state.segments.iter().take(state.segments.len().saturating_sub(1));
        older
            .filter(|segment| !segment.is_done())
            .map(|segment| segment.name().to_owned())
            .collect()
    }

    /// Returns the next record of a segment after `offset` that the collector needs, and the offset after it.
    pub(crate) fn next(&self, segment: &str, offset: u64) -> Option<(Record, u64)> {
        let mut state = self.lock();
        let next = state.find(segment)?.next(offset);
        next.unwrap_or_else(|error| {
            tracing::warn!(segment, %error, "cannot read a spool segment");
            None
        })
    }

    /// Records that the collector has stored all batches of a segment up to `seq`.
    pub(crate) fn acknowledge(&self, segment: &str, seq: u64) {
        let mut state = self.lock();
        if let Some(found) = state.find(segment) {
            found.acknowledge(seq);
        }
        state.delete_done();
    }

    /// Records that the collector refused a batch.
    pub(crate) fn refuse(&self, segment: &str, seq: u64) {
        let mut state = self.lock();
        let lost = state.find(segment).map_or(0, |found| found.refuse(seq));
        state.dropped_samples += lost;
        state.delete_done();
    }

    /// Returns the number of bytes that are not acknowledged.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.lock().segments.iter().map(Segment::waiting_bytes).sum()
    }

    /// Returns the number of samples that were dropped at the size limit or refused, since the start.
    pub(crate) fn dropped_samples(&self) -> u64 {
        self.lock().dropped_samples
    }

    /// A panic leaves the segments whole, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_up(&mut self, path: &Path) {
        match Segment::open(path) {
            Ok(Some(segment)) if segment.is_done() => segment.delete(),
            Ok(Some(segment)) => self.segments.push_back(segment),
            Ok(None) => {
                tracing::warn!(
                    ?path,
                    "removed a file that is not a spool segment or lacks its header"
                );
                let _ = std::fs::remove_file(path);
            }
            Err(error) => tracing::warn!(?path, %error, "cannot read a spool segment; the file is kept"),
        }
    }

    fn live(&mut self) -> &mut Segment {
        if self.segments.is_empty() {
            self.start_segment();
        }
        self.segments.back_mut().expect("just started if there was none")
    }

    fn find(&mut self, name: &str) -> Option<&mut Segment> {
        self.segments.iter_mut().find(|segment| segment.name() == name)
    }

    fn append(&mut self, samples: &[Sample]) {
        let live = self.live();
        let full = live.length() > SEGMENT_BYTES_MAX || live.started().elapsed() > SEGMENT_AGE_MAX;
        if !live.is_on_disk() {
            self.append_after_failure(samples, full);
        } else {
            if full {
                self.start_segment();
            }
            if let Err(error) = self.live().append(samples) {
                self.disk_refused(&error);
                self.append_in_memory(samples, true);
            }
        }
        self.keep_bound();
    }

    /// While the live segment is in memory, each batch first tries the disk again.
    fn append_after_failure(&mut self, samples: &[Sample], full: bool) {
        let Ok(mut segment) = Segment::create(&self.folder, now_ms()) else {
            return self.append_in_memory(samples, full);
        };
        if segment.append(samples).is_ok() {
            tracing::info!("the spool writes to disk again");
            self.disk_failed = false;
            self.push(segment);
        } else {
            segment.delete();
            self.append_in_memory(samples, full);
        }
    }

    fn append_in_memory(&mut self, samples: &[Sample], new_segment: bool) {
        if new_segment {
            self.push(Segment::in_memory());
        }
        // Writing to memory cannot fail.
        let _ = self.live().append(samples);
    }

    fn start_segment(&mut self) {
        match Segment::create(&self.folder, now_ms()) {
            Ok(segment) => self.push(segment),
            Err(error) => {
                self.disk_refused(&error);
                self.push(Segment::in_memory());
            }
        }
    }

    /// Makes a segment the live one.
    fn push(&mut self, segment: Segment) {
        if let Some(live) = self.segments.back_mut() {
            live.close();
        }
        self.segments.push_back(segment);
        self.delete_done();
    }

    fn disk_refused(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.disk_failed, true) {
            tracing::warn!(folder = ?self.folder, %error, "cannot write to the spool; the newest samples are kept in memory");
        }
    }

    fn delete_done(&mut self) {
        let live = self.segments.pop_back();
        for segment in std::mem::take(&mut self.segments) {
            if segment.is_done() {
                segment.delete();
            } else {
                self.segments.push_back(segment);
            }
        }
        self.segments.extend(live);
    }

    /// Drops the oldest segments until the limits are met. The live segment stays.
    fn keep_bound(&mut self) {
        while self.segments.len() > 1 && self.bytes(true) + self.bytes(false) > self.bytes_max {
            self.drop_at(0);
        }
        while self.bytes(false) > MEMORY_BYTES_MAX {
            let oldest = self.segments.iter().position(|segment| !segment.is_on_disk());
            match oldest {
                Some(at) if at + 1 < self.segments.len() => self.drop_at(at),
                _ => break,
            }
        }
    }

    fn bytes(&self, on_disk: bool) -> u64 {
        self.segments
            .iter()
            .filter(|segment| segment.is_on_disk() == on_disk)
            .map(Segment::length)
            .sum()
    }

    fn drop_at(&mut self, at: usize) {
        if let Some(segment) = self.segments.remove(at) {
            let samples = segment.waiting_samples();
            self.dropped_samples += samples;
            tracing::warn!(samples, "the spool is full; its oldest samples are dropped");
            segment.delete();
        }
    }
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
