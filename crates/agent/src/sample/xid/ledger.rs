//! Which sightings are one error, which errors belong together, and what has been told already.
//!
//! ```text
//! sightings of (place, xid) within ±2 s, whoever saw them ─▶ one incident; as often as the witness who saw more says
//! incidents of (place, xid) within 3 min                   ─▶ one burst; a day's bursts are what recurs
//! other numbers of the place within 3 min                  ─▶ companions
//! ```

use std::collections::{HashMap, VecDeque};

use domain::event::Severity;
use domain::time::TimestampMs;
use domain::xid::{Job, Occurrence, Said, Verdict, judge};

use super::{Place, Sighting, Witness};
use crate::sample::kernel_log::Told;

/// Two witnesses of one error differ by no more: one is asked once a second, the other waits in the driver.
const SAME_MS: i64 = 2_000;
/// How long an incident is remembered for a witness who comes late.
const REMEMBER_MS: i64 = 10_000;
/// Errors this close belong to one trouble.
const BURST_MS: i64 = 180_000;
/// Bursts older than this do not count as recurrence.
const DAY_MS: i64 = 86_400_000;
/// Bursts remembered of one number on one GPU; more change nothing.
const BURSTS_MAX: usize = 8;
/// Numbers and places remembered; beyond, the one longest silent is forgotten.
const HISTORIES_MAX: usize = 512;
/// Incidents open at once. Beyond, new ones are counted, but not judged.
const INCIDENTS_MAX: usize = 256;
/// How often a burst that goes on is told again.
const TELL_AGAIN_MS: i64 = 60_000;

/// An error that is still being heard of.
#[derive(Debug)]
struct Incident {
    place: Place,
    xid: u32,
    first_ms: TimestampMs,
    /// When we heard of it first.
    heard_ms: TimestampMs,
    by_nvml: u32,
    by_log: u32,
    told: Told,
    run: Option<String>,
    settled: bool,
}

/// An error that has been heard of by all who will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) place: Place,
    pub(super) xid: u32,
    pub(super) at_ms: TimestampMs,
    pub(super) times: u32,
    pub(super) told: Told,
    pub(super) run: Option<String>,
    pub(super) earlier: u32,
    pub(super) companions: Vec<u32>,
}

/// What is known of one number at one place.
#[derive(Debug, Default)]
struct History {
    bursts: VecDeque<TimestampMs>,
    last_ms: TimestampMs,
    /// When this was told last, and how bad it was said to be.
    told: Option<(TimestampMs, Severity)>,
    /// Incidents since then.
    folded: u32,
}

/// The book.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    open: Vec<Incident>,
    histories: HashMap<(Place, u32), History>,
}

impl Ledger {
    /// Takes a sighting; gives how many errors nobody had seen before.
    pub(super) fn take(&mut self, sighting: Sighting, heard_ms: TimestampMs) -> u32 {
        self.open
            .retain(|incident| !incident.settled || heard_ms - incident.heard_ms < REMEMBER_MS);
        let same = self.open.iter_mut().find(|incident| incident.is(&sighting));
        if let Some(incident) = same {
            return incident.add(sighting);
        }
        if self.open.len() < INCIDENTS_MAX {
            let mut incident = Incident::new(&sighting, heard_ms);
            incident.add(sighting);
            self.open.push(incident);
        }
        1
    }

    /// The incidents that have waited long enough.
    pub(super) fn settle(&mut self, now_ms: TimestampMs) -> Vec<Settled> {
        let due: Vec<usize> = (0..self.open.len())
            .filter(|at| !self.open[*at].settled && now_ms - self.open[*at].heard_ms >= SAME_MS)
            .collect();
        for at in &due {
            let (place, xid, at_ms) = (self.open[*at].place, self.open[*at].xid, self.open[*at].first_ms);
            self.note(place, xid, at_ms);
            self.open[*at].settled = true;
        }
        due.iter().map(|at| self.settled(&self.open[*at])).collect()
    }

    /// Whether an event should be written, and how many incidents it stands for beside itself.
    pub(super) fn worth_telling(&mut self, settled: &Settled, verdict: &Verdict) -> Option<u32> {
        let history = self.histories.entry((settled.place, settled.xid)).or_default();
        let quiet = history.told.is_some_and(|(at_ms, severity)| {
            settled.at_ms - at_ms < TELL_AGAIN_MS && severity >= verdict.severity
        });
        if quiet {
            history.folded += 1;
            return None;
        }
        history.told = Some((settled.at_ms, verdict.severity));
        Some(std::mem::take(&mut history.folded))
    }

    fn note(&mut self, place: Place, xid: u32, at_ms: TimestampMs) {
        if self.histories.len() >= HISTORIES_MAX && !self.histories.contains_key(&(place, xid)) {
            let oldest = self
                .histories
                .iter()
                .min_by_key(|(_, history)| history.last_ms)
                .map(|(key, _)| *key);
            oldest.and_then(|key| self.histories.remove(&key));
        }
        let history = self.histories.entry((place, xid)).or_default();
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
        let history = self.histories.get(&(incident.place, incident.xid));
        let bursts = history.map_or(0, |history| {
            history
                .bursts
                .iter()
                .filter(|start| at_ms - **start < DAY_MS)
                .count()
        });
        Settled {
            place: incident.place,
            xid: incident.xid,
            at_ms,
            times: incident.by_nvml.max(incident.by_log),
            told: incident.told.clone(),
            run: incident.run.clone(),
            earlier: u32::try_from(bursts.saturating_sub(1)).unwrap_or(u32::MAX),
            companions: self.companions(incident),
        }
    }

    fn companions(&self, incident: &Incident) -> Vec<u32> {
        let close = |at_ms: TimestampMs| (incident.first_ms - at_ms).abs() <= BURST_MS;
        let other = |place: Place, xid: u32| place == incident.place && xid != incident.xid;
        let before = self
            .histories
            .iter()
            .filter(|((place, xid), history)| other(*place, *xid) && close(history.last_ms));
        let beside = self
            .open
            .iter()
            .filter(|open| other(open.place, open.xid) && close(open.first_ms));
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
    fn new(sighting: &Sighting, heard_ms: TimestampMs) -> Self {
        Self {
            place: sighting.place,
            xid: sighting.xid,
            first_ms: sighting.at_ms,
            heard_ms,
            by_nvml: 0,
            by_log: 0,
            told: Told::default(),
            run: None,
            settled: false,
        }
    }

    fn is(&self, sighting: &Sighting) -> bool {
        let same = self.place == sighting.place && self.xid == sighting.xid;
        same && (self.first_ms - sighting.at_ms).abs() <= SAME_MS
    }

    /// Gives by how much the error is now seen more often.
    fn add(&mut self, sighting: Sighting) -> u32 {
        let before = self.by_nvml.max(self.by_log);
        match sighting.witness {
            Witness::Nvml => self.by_nvml += 1,
            Witness::KernelLog => self.by_log += 1,
        }
        if self.told.words.is_empty()
            || self.told.said == Said::Nothing && sighting.told.said != Said::Nothing
        {
            self.told = sighting.told;
        }
        self.run = self.run.take().or(sighting.run);
        self.by_nvml.max(self.by_log) - before
    }
}

impl Settled {
    /// How bad it is, given what the job does.
    pub(super) fn judge(&self, job: Job) -> Verdict {
        judge(&Occurrence {
            xid: self.xid,
            said: self.told.said.clone(),
            earlier: self.earlier,
            companions: &self.companions,
            job,
        })
    }
}
