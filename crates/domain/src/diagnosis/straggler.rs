//! Finds ranks that are slower than their peers in nearly all steps, and the cause.
//!
//! The *lead* of a rank is the median wait of its peers minus its own wait: the others wait for the rank that waits least. It is computed
//! without the longest step of each pool, so that a rare pause does not count (see `rare_stall`).

use crate::diagnosis::causes::{Context, corroborated, is_contended, is_plain, of_phase, phase_of};
use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, witness, word};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::members::Members;
use crate::diagnosis::statistics::median;
use crate::diagnosis::window::{OWN, PARTS, Parts, Role, STEP, SYNC, Window, largest};
use crate::time::TimestampMs;

/// Number of windows stored per rank, and how many of them a straggler must lead.
pub(super) const WINDOWS: usize = 16;
const LEADING: u32 = 12;
/// The same for two ranks, where each is the only peer of the other.
const LEADING_OF_TWO: u32 = 16;
/// A lead of twice the required size needs fewer windows, but they must be consecutive.
const STRONG_TIMES: f64 = 2.0;
const STRONG: u32 = 8;
const STRONG_OF_TWO: u32 = 12;
/// A straggler stays one until it leads fewer windows than this.
const LEADING_STILL: u32 = 6;
/// Minimum lead, as a share of a step and in median deviations of the peers.
const LEAD_RATIO: f64 = 0.05;
const LEAD_RATIO_OF_TWO: f64 = 0.10;
const LEAD_DEVIATIONS: f64 = 4.0;
/// Minimum lead in seconds: the precision of clocks and schedulers.
const LEAD_S: f64 = 0.001;
/// Minimum cost of a straggler, as a share of the run's time.
const COST_RATIO: f64 = 0.02;
/// Maximum lead of one window in the cost, as a multiple of the median lead.
const LEAD_TIMES_MAX: f64 = 3.0;
/// The rank's own phases explain its lead if their excess is at least this share of it.
const EXPLAINED: f64 = 0.5;
/// Weight of the newest window in the usual excess of a rank's phases over those of its peers.
const WEIGHT: f64 = 0.2;
/// Number of windows after which another phase or cause replaces the first one.
const CHANGES_AFTER: u32 = 8;
/// A batch is larger if it is at least this many times that of the peers.
const LARGER: f64 = 1.1;
/// Number of windows without a lead after which the usual times of a rank are known.
const BASELINE_MIN: u32 = 16;

/// The analyser of stragglers.
#[derive(Debug, Clone, Default)]
pub(super) struct Straggler {
    tracks: Vec<Track>,
    /// Number of windows so far.
    windows: u64,
}

/// Stored values of a rank.
#[derive(Debug, Clone, Default)]
struct Track {
    /// The newest windows, as a ring buffer.
    ring: [Lead; WINDOWS],
    next: usize,
    len: u32,
    /// Number of the last window in which the rank was compared with its peers.
    compared: u64,
    leading: u32,
    /// Number of consecutive windows with a strong lead.
    strong: u32,
    of_two: bool,
    /// Excess of the rank's phases over those of its peers while it leads, and its own times while it does not lead.
    excess: Parts,
    baseline: Parts,
    baseline_windows: u32,
    own: Parts,
    peers: Parts,
    batch: Option<(f64, f64)>,
    episode: Option<Episode>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lead {
    leads: bool,
    seconds: f64,
    step_s: f64,
    steps: f64,
    at_ms: TimestampMs,
    last_step: u64,
}

/// The time since a rank became a straggler.
#[derive(Debug, Clone)]
struct Episode {
    since_ms: TimestampMs,
    since_step: u64,
    lost_s: f64,
    phase: usize,
    cause: Cause,
    corroboration: Option<Witness>,
    /// Number of consecutive windows with another phase or cause.
    differs: u32,
}

impl Straggler {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            tracks: vec![Track::default(); ranks],
            windows: 0,
        }
    }

    /// Begins a window. Forgets the ranks that were not compared with their peers in as many windows as are stored: nothing is received
    /// from their nodes or from those of their peers, so nothing is known about them any more.
    pub(super) fn begin_window(&mut self) {
        self.windows += 1;
        let oldest = self.windows.saturating_sub(WINDOWS as u64);
        for track in &mut self.tracks {
            if track.len > 0 && track.compared < oldest {
                *track = Track::default();
            }
        }
    }

    /// Returns true if the rank leads at least `LEADING_STILL` of its stored windows.
    pub(super) fn is_leading(&self, place: usize) -> bool {
        self.tracks[place].leading >= LEADING_STILL
    }

    /// Returns the median lead of a rank per step, in seconds.
    pub(super) fn median_lead(&self, place: usize) -> f64 {
        self.tracks[place].median_lead()
    }

    pub(super) fn take(&mut self, window: &Window, role: &Role<'_>, context: &Context<'_>) {
        for at in 0..role.places.len() {
            let track = &mut self.tracks[role.places[at]];
            track.take(window, role, at);
            track.compared = self.windows;
            if track.persistence() >= 1.0 || track.episode.is_some() {
                track.judge(role, at, context);
            }
        }
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<DraftFinding> {
        let open = self.tracks.iter().enumerate();
        let open = open.filter(|(_, track)| track.leading >= LEADING_STILL);
        open.filter_map(|(place, track)| {
            let episode = track.episode.as_ref()?;
            Some(track.finding(place, episode, members))
        })
        .collect()
    }
}

impl Track {
    fn take(&mut self, window: &Window, role: &Role<'_>, at: usize) {
        let steps = role.steps[at];
        let (lead_s, _) = role.leads(at);
        let step_s = steps.usual(STEP);
        self.of_two = role.places.len() == 2;
        let ratio = if self.of_two {
            LEAD_RATIO_OF_TWO
        } else {
            LEAD_RATIO
        };
        let (_, deviation_s) = role.usual_wait(at);
        let least_s = (ratio * step_s).max(LEAD_DEVIATIONS * deviation_s).max(LEAD_S);
        let leads = lead_s > least_s;
        self.strong = if lead_s > STRONG_TIMES * least_s {
            self.strong + 1
        } else {
            0
        };
        let before = std::mem::replace(
            &mut self.ring[self.next],
            Lead {
                leads,
                seconds: lead_s,
                step_s,
                steps: steps.count,
                at_ms: window.at_ms,
                last_step: window.last_step,
            },
        );
        self.next = (self.next + 1) % WINDOWS;
        self.len = (self.len + 1).min(WINDOWS as u32);
        self.leading = self.leading + u32::from(leads) - u32::from(before.leads);
        self.batch = batch(role, at);
        self.measure(role, at, leads);
        if let Some(episode) = &mut self.episode {
            episode.lost_s += lead_s.max(0.0) * steps.count;
            if self.leading < LEADING_STILL {
                self.episode = None;
            }
        }
    }

    fn measure(&mut self, role: &Role<'_>, at: usize, leads: bool) {
        let smooth = |known: f64, now: f64, is_first: bool| {
            if is_first || !known.is_finite() {
                now
            } else {
                known + WEIGHT * (now - known)
            }
        };
        for part in 0..PARTS {
            let (own, peers) = (role.steps[at].usual(part), role.usual_of_peers(part, at));
            self.own[part] = smooth(self.own[part], own, self.len == 1);
            self.peers[part] = smooth(self.peers[part], peers, self.len == 1);
            if leads {
                self.excess[part] = smooth(self.excess[part], own - peers, self.leading == 1);
            } else if self.leading == 0 {
                self.baseline[part] = smooth(self.baseline[part], own, self.baseline_windows == 0);
            }
        }
        if self.leading == 0 {
            self.baseline_windows = self.baseline_windows.saturating_add(1);
        }
    }

    /// Returns the number of windows that the rank leads, as a share of the number that makes a straggler.
    fn persistence(&self) -> f64 {
        let (leading, strong) = if self.of_two {
            (LEADING_OF_TWO, STRONG_OF_TWO)
        } else {
            (LEADING, STRONG)
        };
        let share = |led: u32, needed: u32| (f64::from(led) / f64::from(needed)).min(1.0);
        share(self.leading, leading).max(share(self.strong, strong))
    }

    /// Returns the windows, the oldest first.
    fn windows(&self) -> impl Iterator<Item = &Lead> {
        let len = self.len as usize;
        (0..len).map(move |at| &self.ring[(self.next + WINDOWS - len + at) % WINDOWS])
    }

    fn median_lead(&self) -> f64 {
        let mut leads: Vec<f64> = self.windows().map(|lead| lead.seconds).collect();
        let middle = median(&mut leads);
        if middle.is_finite() { middle } else { 0.0 }
    }

    /// Returns the share of the run's time that the rank costs.
    fn cost(&self) -> f64 {
        let most = LEAD_TIMES_MAX * self.median_lead();
        let (mut lost, mut all) = (0.0, 0.0);
        for lead in self.windows() {
            lost += lead.seconds.clamp(0.0, most.max(0.0)) * lead.steps;
            all += lead.step_s * lead.steps;
        }
        if all > 0.0 { lost / all } else { 0.0 }
    }

    fn judge(&mut self, role: &Role<'_>, at: usize, context: &Context<'_>) {
        let (phase, _) = largest(|part| self.excess[part]);
        let place = role.places[at];
        let (cause, corroboration) = self.cause(phase, role, place, context);
        let Some(episode) = &mut self.episode else {
            if self.cost() >= COST_RATIO {
                let first = self
                    .windows()
                    .find(|lead| lead.leads)
                    .copied()
                    .unwrap_or_default();
                let lost_s = self
                    .windows()
                    .map(|lead| lead.seconds.max(0.0) * lead.steps)
                    .sum();
                self.episode = Some(Episode {
                    since_ms: first.at_ms - (first.step_s * first.steps * 1e3) as i64,
                    since_step: first.last_step.saturating_sub(first.steps as u64) + 1,
                    lost_s,
                    phase,
                    cause,
                    corroboration,
                    differs: 0,
                });
            }
            return;
        };
        if (episode.phase, &episode.cause) == (phase, &cause) {
            (episode.differs, episode.corroboration) = (0, corroboration);
            return;
        }
        episode.differs += 1;
        // The corroborating values may be read later than the first windows.
        let is_refined = episode.phase == phase && is_plain(&episode.cause) && !is_plain(&cause);
        if is_refined || episode.differs >= CHANGES_AFTER {
            (episode.phase, episode.cause, episode.differs) = (phase, cause, 0);
            episode.corroboration = corroboration;
        }
    }

    fn cause(
        &self,
        part: usize,
        role: &Role<'_>,
        place: usize,
        context: &Context<'_>,
    ) -> (Cause, Option<Witness>) {
        if let Some((cause, witness)) = corroborated(part, &role.places, place, context) {
            return (cause, Some(witness));
        }
        match self.batch {
            Some((own, peers)) if own > LARGER * peers => {
                let source = Source::Rank {
                    rank: context.members.rank(place),
                };
                let larger = witness(source, Evidence::MicroBatch, own).against(peers);
                (Cause::LargerBatch, Some(larger))
            }
            _ if is_contended(&role.places, place, context, (self.median_lead(), self.own[STEP])) => {
                (Cause::BusyProcessors, None)
            }
            _ => (of_phase(part), None),
        }
    }

    fn is_explained(&self) -> bool {
        let excess: f64 = OWN
            .iter()
            .map(|part| self.excess[*part])
            .filter(|excess| excess.is_finite())
            .map(|excess| excess.max(0.0))
            .sum();
        excess >= EXPLAINED * self.median_lead()
    }

    fn finding(&self, place: usize, episode: &Episode, members: &Members) -> DraftFinding {
        let rank = members.rank(place);
        let (lead_s, cost) = (self.median_lead(), self.cost());
        let peers = members.peers(place);
        let mut witnesses = vec![
            witness(
                Source::Peers { ranks: peers },
                Evidence::PeersWait,
                self.peers[SYNC],
            )
            .in_seconds()
            .against(self.own[SYNC]),
        ];
        // If all ranks wait for processors, a longer phase of one of them is not its fault.
        let is_explained = self.is_explained() && episode.cause != Cause::BusyProcessors;
        if is_explained {
            let phase = word(&phase_of(episode.phase));
            let source = Source::Rank { rank };
            let longer = witness(source.clone(), Evidence::PhaseSeconds, self.own[episode.phase])
                .in_seconds()
                .against(self.peers[episode.phase])
                .detail(phase.clone());
            witnesses.push(longer);
            if self.baseline_windows >= BASELINE_MIN {
                let usual = witness(source, Evidence::OwnUsualSeconds, self.baseline[episode.phase])
                    .in_seconds()
                    .against(self.own[episode.phase])
                    .detail(phase);
                witnesses.push(usual);
            }
            witnesses.extend(episode.corroboration.clone());
        }
        let (kind, culprit) = (FindingKind::Straggler, DraftCulprit::Ranks(vec![place]));
        let cause = if is_explained || episode.cause == Cause::BusyProcessors {
            episode.cause.clone()
        } else {
            Cause::Unknown
        };
        DraftFinding {
            phase: Some(phase_of(episode.phase)),
            since_step: Some(episode.since_step),
            witnesses,
            lost_seconds: episode.lost_s,
            values: vec![
                ("diagnosis_straggler_ratio", cost),
                ("diagnosis_straggler_lead_seconds", lead_s),
                ("diagnosis_straggler_persistence_ratio", self.persistence()),
            ],
            ..DraftFinding::new(kind, culprit, cause, episode.since_ms)
        }
    }
}

fn batch(role: &Role<'_>, at: usize) -> Option<(f64, f64)> {
    let own = role.steps[at].micro_batch;
    if !own.is_finite() {
        return None;
    }
    let others = role.steps.iter().enumerate().filter(|(peer, _)| *peer != at);
    let mut others: Vec<f64> = others
        .map(|(_, steps)| steps.micro_batch)
        .filter(|batch| batch.is_finite())
        .take(64)
        .collect();
    let peers = median(&mut others);
    peers.is_finite().then_some((own, peers))
}
