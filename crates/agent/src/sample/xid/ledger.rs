//! Decides which sightings are the same error, which errors belong together, and what was already reported.
//!
//! ```text
//! sightings of (location, xid) within ±2 s, of any witness       ─▶ one incident; its count is that of the witness who saw more
//! incidents of (location, xid) within 3 min                      ─▶ one burst; earlier bursts of the day mean that the error recurs
//! other Xids of the location within 3 min                        ─▶ companions
//! ```

use std::collections::{HashMap, VecDeque};

use domain::event::Severity;
use domain::time::TimestampMs;
use domain::xid::{Assessment, Job, LogDetails, Occurrence, assess};

use super::{ErrorLocation, Sighting, Witness};
use crate::sample::kernel_log::XidDetails;

/// The maximum difference between the times of two witnesses of one error: one is read once per second, the other waits in the driver.
const SAME_MS: i64 = 2_000;
/// How long an incident is kept for a late witness.
const REMEMBER_MS: i64 = 10_000;
/// Errors within this time belong to one burst.
const BURST_MS: i64 = 180_000;
/// Bursts older than this do not count as recurrence.
const DAY_MS: i64 = 86_400_000;
/// The maximum number of bursts kept for one Xid of one GPU. More would change nothing.
const BURSTS_MAX: usize = 8;
/// The maximum number of histories. When it is reached, the one with the oldest last error is removed.
const HISTORIES_MAX: usize = 512;
/// The maximum number of open incidents. When it is reached, new errors are counted but not assessed.
const INCIDENTS_MAX: usize = 256;
/// How often a continuing burst is reported again.
const REPORT_INTERVAL_MS: i64 = 60_000;

/// An error that further sightings may belong to.
#[derive(Debug)]
struct Incident {
    location: ErrorLocation,
    xid: u32,
    first_ms: TimestampMs,
    /// When the first sighting arrived.
    received_ms: TimestampMs,
    by_nvml: u32,
    by_log: u32,
    details: XidDetails,
    run: Option<String>,
    settled: bool,
}

/// An error for which no more sightings are expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) location: ErrorLocation,
    pub(super) xid: u32,
    pub(super) at_ms: TimestampMs,
    pub(super) times: u32,
    pub(super) details: XidDetails,
    pub(super) run: Option<String>,
    pub(super) earlier: u32,
    pub(super) companions: Vec<u32>,
}

/// The history of one Xid at one location.
#[derive(Debug, Default)]
struct History {
    bursts: VecDeque<TimestampMs>,
    last_ms: TimestampMs,
    /// When this was last reported, and with which severity.
    reported: Option<(TimestampMs, Severity)>,
    /// The number of incidents since then.
    suppressed: u32,
}

/// The incidents and histories of a node.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: Vec<Incident>,
    histories: HashMap<(ErrorLocation, u32), History>,
}

impl Ledger {
    /// Adds a sighting. Returns the number of errors that were not counted before.
    pub(super) fn take(&mut self, sighting: Sighting, received_ms: TimestampMs) -> u32 {
        self.open
            .retain(|incident| !incident.settled || received_ms - incident.received_ms < REMEMBER_MS);
        let same = self.open.iter_mut().find(|incident| incident.is(&sighting));
        if let Some(incident) = same {
            return incident.add(sighting);
        }
        if self.open.len() < INCIDENTS_MAX {
            let mut incident = Incident::new(&sighting, received_ms);
            incident.add(sighting);
            self.open.push(incident);
        }
        1
    }

    /// Returns the incidents that have waited long enough.
    pub(super) fn settle(&mut self, now_ms: TimestampMs) -> Vec<Settled> {
        let due: Vec<usize> = (0..self.open.len())
            .filter(|at| !self.open[*at].settled && now_ms - self.open[*at].received_ms >= SAME_MS)
            .collect();
        for at in &due {
            let (location, xid, at_ms) = (
                self.open[*at].location,
                self.open[*at].xid,
                self.open[*at].first_ms,
            );
            self.note(location, xid, at_ms);
            self.open[*at].settled = true;
        }
        due.iter().map(|at| self.settled(&self.open[*at])).collect()
    }

    /// Returns the number of earlier incidents that the event also represents, or `None` if no event should be written.
    pub(super) fn begin_report(&mut self, settled: &Settled, assessment: &Assessment) -> Option<u32> {
        let history = self.histories.entry((settled.location, settled.xid)).or_default();
        let quiet = history.reported.is_some_and(|(at_ms, severity)| {
            settled.at_ms - at_ms < REPORT_INTERVAL_MS && severity >= assessment.severity
        });
        if quiet {
            history.suppressed += 1;
            return None;
        }
        history.reported = Some((settled.at_ms, assessment.severity));
        Some(std::mem::take(&mut history.suppressed))
    }

    fn note(&mut self, location: ErrorLocation, xid: u32, at_ms: TimestampMs) {
        if self.histories.len() >= HISTORIES_MAX && !self.histories.contains_key(&(location, xid)) {
            let oldest = self
                .histories
                .iter()
                .min_by_key(|(_, history)| history.last_ms)
                .map(|(key, _)| *key);
            oldest.and_then(|key| self.histories.remove(&key));
        }
        let history = self.histories.entry((location, xid)).or_default();
        if history.bursts.is_empty() || at_ms - history.last_ms > BURST_MS {
            if history.bursts.len() == BURSTS_MAX {
                history.bursts.pop_front();
            }
            history.bursts.push_back(at_ms);
        }
        history.last_ms = history.last_ms.max(at_ms);
    }

    fn settled(&self, incident: &Incident) -> Settled {
        let at_ms = incident.first_ms;
        let history = self.histories.get(&(incident.location, incident.xid));
        let bursts = history.map_or(0, |history| {
            history
                .bursts
                .iter()
                .filter(|start| at_ms - **start < DAY_MS)
                .count()
        });
        Settled {
            location: incident.location,
            xid: incident.xid,
            at_ms,
            times: incident.by_nvml.max(incident.by_log),
            details: incident.details.clone(),
            run: incident.run.clone(),
            earlier: u32::try_from(bursts.saturating_sub(1)).unwrap_or(u32::MAX),
            companions: self.companions(incident),
        }
    }

    fn companions(&self, incident: &Incident) -> Vec<u32> {
        let close = |at_ms: TimestampMs| (incident.first_ms - at_ms).abs() <= BURST_MS;
        let other = |location: ErrorLocation, xid: u32| location == incident.location && xid != incident.xid;
        let before = self
            .histories
            .iter()
            .filter(|((location, xid), history)| other(*location, *xid) && close(history.last_ms));
        let beside = self
            .open
            .iter()
            .filter(|open| other(open.location, open.xid) && close(open.first_ms));
        let mut companions: Vec<u32> = before
            .map(|((_, xid), _)| *xid)
            .chain(beside.map(|open| open.xid))
            .collect();
        companions.sort_unstable();
        companions.dedup();
        companions
    }
}

impl Incident {
    fn new(sighting: &Sighting, received_ms: TimestampMs) -> Self {
        Self {
            location: sighting.location,
            xid: sighting.xid,
            first_ms: sighting.at_ms,
            received_ms,
            by_nvml: 0,
            by_log: 0,
            details: XidDetails::default(),
            run: None,
            settled: false,
        }
    }

    fn is(&self, sighting: &Sighting) -> bool {
        let same = self.location == sighting.location && self.xid == sighting.xid;
        same && (self.first_ms - sighting.at_ms).abs() <= SAME_MS
    }

    /// Adds a sighting. Returns the increase of the error's count.
    fn add(&mut self, sighting: Sighting) -> u32 {
        let before = self.by_nvml.max(self.by_log);
        match sighting.witness {
            Witness::Nvml => self.by_nvml += 1,
            Witness::KernelLog => self.by_log += 1,
        }
        if self.details.words.is_empty()
            || self.details.log_details == LogDetails::Nothing
                && sighting.details.log_details != LogDetails::Nothing
        {
            self.details = sighting.details;
        }
        self.run = self.run.take().or(sighting.run);
        self.by_nvml.max(self.by_log) - before
    }
}

impl Settled {
    /// Returns the assessment of the error, given the state of the job.
    pub(super) fn assess(&self, job: Job) -> Assessment {
        assess(&Occurrence {
            xid: self.xid,
            log_details: self.details.log_details.clone(),
            earlier: self.earlier,
            companions: &self.companions,
            job,
        })
    }
}
