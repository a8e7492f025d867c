//! What the collector has not acknowledged yet, bounded, on disk.
//!
//! ```text
//! DATA/spool/   oldest.seg  …  older.seg   newest.seg = live
//!               └── backfill, oldest first ┘  └── grows by one batch a second, sent first
//! ```
//! A new live segment starts when the old one is large or old, when an agent starts, and when the live data has fallen
//! behind (no connection, or a slow one): so what is new never waits for what is late. Segments go when acknowledged, and
//! the oldest goes, counted, when the bound is reached. When the disk takes nothing, the newest data is kept in memory: a
//! full disk is just what one wants to see.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::link::now_ms;
use super::segment::{Record, Segment};
use crate::sample::sink::Sample;

/// A segment of this size is closed: some quarter of an hour of a large node, so that dropping the oldest drops little.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// A segment of this age is closed, to let go of what is acknowledged and of names that are gone.
const SEGMENT_AGE_MAX: Duration = Duration::from_secs(600);
/// The most the spool keeps in memory while the disk takes nothing: minutes of a large node.
const MEMORY_BYTES_MAX: u64 = 4 << 20;

/// The spool. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    state: Arc<Mutex<State>>,
    grown: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    folder: PathBuf,
    bytes_max: u64,
    /// Oldest first; the last is live.
    segments: VecDeque<Segment>,
    dropped_samples: u64,
    disk_failed: bool,
}

impl Spool {
    /// Takes up what is there and starts a live segment.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
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

    /// Keeps a second's samples until they are acknowledged.
    pub(crate) fn append(&self, samples: &[Sample]) {
        if samples.is_empty() {
            return;
        }
        self.lock().append(samples);
        self.grown.notify_one();
    }

    /// Waits until there is something new.
    pub(crate) async fn grown(&self) {
        self.grown.notified().await;
    }

    /// Starts a new live segment if more batches than this wait in the old one.
    pub(crate) fn rotate_if_waiting_more_than(&self, batches: usize) {
        let mut state = self.lock();
        if state.live().waiting() > batches {
            state.start_segment();
        }
    }

    /// The live segment, and the number of its last batch.
    pub(crate) fn live(&self) -> (String, u64) {
        let mut state = self.lock();
        let live = state.live();
        (live.name().to_owned(), live.last_seq())
    }

    /// Older segments that wait for the collector, the oldest first.
    pub(crate) fn backlog(&self) -> Vec<String> {
        let state = self.lock();
        let older = state.segments.iter().take(state.segments.len().saturating_sub(1));
        older
            .filter(|segment| !segment.is_done())
            .map(|segment| segment.name().to_owned())
            .collect()
    }

    /// The next record of a segment behind `offset` that the collector needs, and the offset behind it.
    pub(crate) fn next(&self, segment: &str, offset: u64) -> Option<(Record, u64)> {
        let mut state = self.lock();
        let next = state.find(segment)?.next(offset);
        next.unwrap_or_else(|error| {
            tracing::warn!(segment, %error, "cannot read a spool segment");
            None
        })
    }

    /// The collector has all batches of a segment up to `seq`.
    pub(crate) fn acknowledge(&self, segment: &str, seq: u64) {
        let mut state = self.lock();
        if let Some(found) = state.find(segment) {
            found.acknowledge(seq);
        }
        state.delete_done();
    }

    /// The collector will never take a batch.
    pub(crate) fn refuse(&self, segment: &str, seq: u64) {
        let mut state = self.lock();
        let lost = state.find(segment).map_or(0, |found| found.refuse(seq));
        state.dropped_samples += lost;
        state.delete_done();
    }

    /// Bytes that wait for acknowledgement.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.lock().segments.iter().map(Segment::waiting_bytes).sum()
    }

    /// Samples lost at the bound, or refused, since the start.
    pub(crate) fn dropped_samples(&self) -> u64 {
        self.lock().dropped_samples
    }

    /// A panic leaves whole segments behind: go on with them.
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
                    "not a spool segment (or one cut off at its start); removed"
                );
                let _ = std::fs::remove_file(path);
            }
            Err(error) => tracing::warn!(?path, %error, "cannot read a spool segment; left where it is"),
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

    /// While in memory, each batch asks whether the disk is back.
    fn append_after_failure(&mut self, samples: &[Sample], full: bool) {
        let Ok(mut segment) = Segment::create(&self.folder, now_ms()) else {
            return self.append_in_memory(samples, full);
        };
        if segment.append(samples).is_ok() {
            tracing::info!("the spool is on disk again");
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
        // Memory takes everything.
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
            tracing::warn!(folder = ?self.folder, %error, "the spool cannot write; the newest samples are kept in memory");
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

    /// Drops the oldest until the bounds are kept; the live segment stays.
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
