//! Finds ranks that stall intermittently while their peers wait, by the seconds lost per minute.

use crate::diagnosis::causes::{of_phase, phase_of};
use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, witness};
use crate::diagnosis::finding::{Evidence, FindingKind, Source};
use crate::diagnosis::members::{Members, seconds};
use crate::diagnosis::straggler::Straggler;
use crate::diagnosis::window::{DATA, FORWARD, HOST, PARTS, Role, SAVE, STEP, Window};
use crate::event::Severity;
use crate::time::TimestampMs;

/// Minimum duration of a stall, in seconds and in steps.
const STALL_S: f64 = 0.5;
const STALL_STEPS: f64 = 2.5;
/// Minimum excess of the rank's own part of the step, as a share of the time that its peers wait.
const EXPLAINED: f64 = 0.5;
/// Losses are counted in buckets that cover two minutes.
const BUCKET_MS: i64 = 10_000;
const BUCKETS: usize = 12;
/// A younger run counts as this old.
const MINUTE_S: f64 = 60.0;
/// Minimum number of stalls: one is not a pattern.
const STALLS_MIN: u32 = 2;
/// Minimum share of time that is lost.
const COST_RATIO: f64 = 0.02;
/// Minimum share of the culprit in the losses of all ranks of its role. If all ranks stall in turn, none is the culprit.
const SHARE_MIN: f64 = 0.75;

/// The analyser of rare stalls.
#[derive(Debug, Clone, Default)]
pub(super) struct RareStall {
    tracks: Vec<Track>,
    /// Places with stalls in the last two minutes.
    stalled: Vec<usize>,
    /// When the first window ended.
    first_ms: Option<TimestampMs>,
    now_ms: TimestampMs,
}

#[derive(Debug, Clone, Default)]
struct Track {
    buckets: [Bucket; BUCKETS],
    since: Option<(TimestampMs, u64)>,
    lost_s: f64,
    longest_s: f64,
    /// Waits of the rank's peers and of the rank itself in the longest stall.
    peers_wait_s: f64,
    own_s: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    number: i64,
    lost_s: f64,
    stalls: u32,
    by_part: [f64; PARTS],
}

/// Time that a rank has lost in the last two minutes.
struct Loss {
    seconds: f64,
    stalls: u32,
    part: usize,
}

impl RareStall {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            tracks: vec![Track::default(); ranks],
            ..Self::default()
        }
    }

    pub(super) fn take(
        &mut self,
        window: &Window,
        role: &Role<'_>,
        straggler: &Straggler,
        median_step_s: f64,
    ) {
        self.first_ms.get_or_insert(window.at_ms);
        self.now_ms = self.now_ms.max(window.at_ms);
        for at in 0..role.places.len() {
            let (place, steps) = (role.places[at], role.steps[at]);
            let (usual_s, mean_s) = role.leads(at);
            // With one or two steps, the longest cannot be left out. The usual lead is then that of the windows before.
            let usual_s = if steps.count < 3.0 {
                straggler.median_lead(place)
            } else {
                usual_s
            };
            let lost_s = steps.count * (mean_s - usual_s.max(0.0));
            if lost_s < STALL_S.max(STALL_STEPS * median_step_s) || straggler.is_leading(place) {
                continue;
            }
            let (part, excess_s) = role.largest_excess(at);
            if excess_s * steps.count < EXPLAINED * lost_s {
                continue;
            }
            let has_loader = steps.mean[DATA] > 0.0;
            // Without a data loader, all code of the script counts as forward.
            let part = if part == FORWARD && !has_loader {
                HOST
            } else {
                part
            };
            self.note(place, window, part, lost_s, role.peers_wait(at));
        }
        self.forget();
    }

    fn note(
        &mut self,
        place: usize,
        window: &Window,
        part: usize,
        lost_s: f64,
        (peers_s, own_s): (f64, f64),
    ) {
        let track = &mut self.tracks[place];
        let number = window.at_ms / BUCKET_MS;
        let bucket = &mut track.buckets[number.rem_euclid(BUCKETS as i64) as usize];
        if bucket.number != number {
            *bucket = Bucket {
                number,
                ..Bucket::default()
            };
        }
        bucket.lost_s += lost_s;
        bucket.stalls += 1;
        bucket.by_part[part] += lost_s;
        track.since.get_or_insert((window.at_ms, window.last_step));
        track.lost_s += lost_s;
        if lost_s > track.longest_s {
            (track.longest_s, track.peers_wait_s, track.own_s) = (lost_s, peers_s, own_s);
        }
        if !self.stalled.contains(&place) {
            self.stalled.push(place);
        }
    }

    /// Removes the ranks whose last stall is older than two minutes.
    fn forget(&mut self) {
        let (now_ms, tracks) = (self.now_ms, &mut self.tracks);
        self.stalled.retain(|place| {
            let keeps = tracks[*place].loss(now_ms).stalls > 0;
            if !keeps {
                tracks[*place] = Track::default();
            }
            keeps
        });
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<DraftFinding> {
        let losses: Vec<(usize, Loss)> = self
            .stalled
            .iter()
            .map(|place| (*place, self.tracks[*place].loss(self.now_ms)))
            .collect();
        let mut of_role = vec![0.0; members.role_count()];
        for (place, loss) in &losses {
            of_role[members.role(*place)] += loss.seconds;
        }
        let watched_s = seconds(self.now_ms - self.first_ms.unwrap_or(self.now_ms));
        let over_s = watched_s.clamp(MINUTE_S, seconds(BUCKET_MS) * BUCKETS as f64);
        losses
            .into_iter()
            .filter(|(place, loss)| {
                loss.stalls >= STALLS_MIN
                    && loss.seconds / over_s >= COST_RATIO
                    && loss.seconds >= SHARE_MIN * of_role[members.role(*place)]
            })
            .map(|(place, loss)| self.finding(place, &loss, over_s, members))
            .collect()
    }

    fn finding(&self, place: usize, loss: &Loss, over_s: f64, members: &Members) -> DraftFinding {
        let (rank, track) = (members.rank(place), &self.tracks[place]);
        let (since_ms, since_step) = track.since.unwrap_or_default();
        let peers = Source::Peers {
            ranks: members.peers(place),
        };
        let ratio = loss.seconds / over_s;
        let witnesses = vec![
            witness(peers, Evidence::LostPerMinute, MINUTE_S * ratio)
                .in_seconds()
                .detail(format!("{} stalls", loss.stalls)),
            witness(Source::Rank { rank }, Evidence::PhaseSeconds, track.longest_s)
                .in_seconds()
                .detail(format!(
                    "longest stall, in the phase {}",
                    phase_of(loss.part).words()
                )),
        ];
        let (kind, culprit) = (FindingKind::RareStalls, DraftCulprit::Ranks(vec![place]));
        DraftFinding {
            phase: Some(phase_of(loss.part)),
            since_step: Some(since_step),
            witnesses,
            severity: severity(loss.part),
            lost_seconds: track.lost_s,
            values: vec![("diagnosis_rare_stall_ratio", ratio)],
            ..DraftFinding::new(kind, culprit, of_phase(loss.part), since_ms)
        }
    }
}

/// Between steps, evaluations, logging and saves by the script are normal.
fn severity(part: usize) -> Severity {
    if matches!(part, HOST | SAVE) {
        Severity::Info
    } else {
        Severity::Warning
    }
}

impl Track {
    fn loss(&self, now_ms: TimestampMs) -> Loss {
        let oldest = now_ms / BUCKET_MS - BUCKETS as i64 + 1;
        let (mut loss, mut by_part) = (
            Loss {
                seconds: 0.0,
                stalls: 0,
                part: STEP,
            },
            [0.0; PARTS],
        );
        for bucket in self.buckets.iter().filter(|bucket| bucket.number >= oldest) {
            loss.seconds += bucket.lost_s;
            loss.stalls += bucket.stalls;
            for (sum, lost_s) in by_part.iter_mut().zip(bucket.by_part) {
                *sum += lost_s;
            }
        }
        let most = by_part.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        loss.part = most.map_or(STEP, |(part, _)| part);
        loss
    }
}
