//! Finds replicas whose parameters differ. Ranks that hold the same parameters send a checksum of them at the same steps.
//!
//! ```text
//! step      256  512  768 1024 1280
//! rank 0     A    B    C    D    E
//! rank 1     A    B    C    D    E      the majority
//! rank 2     A    B    X    Y    Z      differs since step 768; named at 1280, after three checks in a row
//! ```
//! The ranks that differ from more than half of their group are named. If two sides are equally large, both are shown, and none is named. If
//! there is neither a majority nor a pair of equal sides, ranks may train apart by design, and nothing is reported.

use std::collections::{BTreeMap, VecDeque};

use crate::diagnosis::draft_finding::{DraftCulprit, DraftFinding, WITNESSED_RANKS_MAX, witness};
use crate::diagnosis::finding::{Cause, Evidence, FindingKind, Source, Witness};
use crate::diagnosis::input::{ParametersChecksum, Pool};
use crate::diagnosis::members::Members;
use crate::event::Severity;
use crate::run::ranks::RankSet;
use crate::time::TimestampMs;

/// Number of consecutive checks in which a rank must differ.
const CHECKS: u32 = 3;
/// How long to wait for the checksums of a step, by the clocks of the nodes. Later checksums are ignored.
const LATE_MS: i64 = 5_000;
/// Maximum number of steps of a group that wait for checksums. If there are more, the oldest is compared as it is.
const OPEN_MAX: usize = 16;

/// The analyser of replicated parameters.
#[derive(Debug, Clone, Default)]
pub(super) struct Replicas {
    /// By the lowest rank of each group.
    groups: BTreeMap<u32, Group>,
    tracks: Vec<Track>,
}

/// Ranks that hold the same parameters.
#[derive(Debug, Clone, Default)]
struct Group {
    /// Places of the ranks that have sent a checksum, in ascending order.
    places: Vec<usize>,
    /// Steps that are not compared yet, in ascending order.
    open: VecDeque<Check>,
    compared: Option<u64>,
    tie: Option<Tie>,
}

/// The checksums of one step.
#[derive(Debug, Clone)]
struct Check {
    step: u64,
    /// When the first rank ended the step.
    at_ms: TimestampMs,
    values: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    checksum: u64,
    place: usize,
}

/// One rank, compared with the majority of its group.
#[derive(Debug, Clone, Default)]
struct Track {
    group: Option<u32>,
    /// The last compared step in which it was equal to the majority.
    equal_step: Option<u64>,
    difference: Option<Difference>,
}

#[derive(Debug, Clone, Copy)]
struct Difference {
    since_ms: TimestampMs,
    since_step: u64,
    checks: u32,
    /// Checksums of the last comparison.
    own: u64,
    of_others: u64,
}

/// Two sides of equal size.
#[derive(Debug, Clone)]
struct Tie {
    sides: [Vec<usize>; 2],
    difference: Difference,
}

impl Replicas {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            groups: BTreeMap::new(),
            tracks: vec![Track::default(); ranks],
        }
    }

    pub(super) fn take(&mut self, place: usize, pool: &Pool) {
        let Some(ParametersChecksum { group, checksum }) = pool.parameters else {
            return;
        };
        self.join(place, group);
        let group = self.groups.entry(group).or_default();
        if group.compared.is_some_and(|compared| pool.last_step <= compared) {
            return;
        }
        let at = group.open.partition_point(|check| check.step < pool.last_step);
        let is_new = group
            .open
            .get(at)
            .is_none_or(|check| check.step != pool.last_step);
        if is_new {
            let check = Check {
                step: pool.last_step,
                at_ms: pool.at_ms,
                values: Vec::new(),
            };
            group.open.insert(at, check);
        }
        group.open[at].values.push(Value { checksum, place });
        if group.open.len() > OPEN_MAX {
            group.compare_oldest(&mut self.tracks);
        }
    }

    /// Adds a rank to its group. A rank that now belongs to another group leaves the previous one.
    fn join(&mut self, place: usize, group: u32) {
        let track = &mut self.tracks[place];
        if track.group == Some(group) {
            return;
        }
        if let Some(previous) = track.group.and_then(|previous| self.groups.get_mut(&previous)) {
            previous.places.retain(|known| *known != place);
            previous.tie = None;
        }
        *track = Track {
            group: Some(group),
            ..Track::default()
        };
        let places = &mut self.groups.entry(group).or_default().places;
        let at = places.partition_point(|known| *known < place);
        places.insert(at, place);
    }

    /// Compares the steps for which no more checksums are expected.
    pub(super) fn compare(&mut self, watermark_ms: Option<TimestampMs>) {
        let Some(watermark_ms) = watermark_ms else { return };
        for group in self.groups.values_mut() {
            let is_due = |check: &Check| watermark_ms - check.at_ms >= LATE_MS;
            while group.open.front().is_some_and(is_due) {
                group.compare_oldest(&mut self.tracks);
            }
        }
    }

    pub(super) fn findings(&self, members: &Members) -> Vec<DraftFinding> {
        let of_group = |group: &Group| {
            let minority = group.minority(&self.tracks, members);
            minority.or_else(|| group.tied(&self.tracks, members))
        };
        self.groups.values().filter_map(of_group).collect()
    }
}

impl Group {
    fn compare_oldest(&mut self, tracks: &mut [Track]) {
        let Some(mut check) = self.open.pop_front() else {
            return;
        };
        self.compared = Some(check.step);
        if check.values.len() < 2 {
            return;
        }
        check.values.sort_unstable();
        let sides: Vec<&[Value]> = check.values.chunk_by(|a, b| a.checksum == b.checksum).collect();
        let majority = sides.iter().find(|side| side.len() * 2 > self.places.len());
        match (sides.as_slice(), majority) {
            (_, Some(majority)) => {
                self.tie = None;
                for value in &check.values {
                    let track = &mut tracks[value.place];
                    if value.checksum == majority[0].checksum {
                        (track.difference, track.equal_step) = (None, Some(check.step));
                    } else {
                        let difference = Difference::new(&check, value.checksum, majority[0].checksum);
                        track.difference = Some(difference.after(track.difference));
                    }
                }
            }
            ([first, second], None)
                if first.len() == second.len() && check.values.len() == self.places.len() =>
            {
                self.tie(&check, first, second);
            }
            _ => {}
        }
    }

    fn tie(&mut self, check: &Check, first: &[Value], second: &[Value]) {
        let mut sides = [first, second];
        sides.sort_unstable_by_key(|side| side[0].place);
        let difference = Difference::new(check, sides[0][0].checksum, sides[1][0].checksum);
        let sides = sides.map(|side| side.iter().map(|value| value.place).collect());
        let before = self.tie.take().filter(|tie| tie.sides == sides);
        self.tie = Some(Tie {
            sides,
            difference: difference.after(before.map(|tie| tie.difference)),
        });
    }

    /// Returns the finding about the ranks that differ from the majority.
    fn minority(&self, tracks: &[Track], members: &Members) -> Option<DraftFinding> {
        let lasting = |place: &usize| tracks[*place].difference.filter(Difference::is_lasting);
        let named: Vec<(usize, Difference)> = self
            .places
            .iter()
            .filter_map(|place| Some((*place, lasting(place)?)))
            .collect();
        let differences = named.iter().map(|(_, difference)| difference);
        let since = differences.min_by_key(|difference| difference.since_step)?;
        let others = self
            .places
            .iter()
            .filter(|place| tracks[**place].difference.is_none());
        let others: RankSet = others.map(|place| members.rank(*place)).collect();
        let witness_of = |place: usize, difference: &Difference| {
            let source = Source::Rank {
                rank: members.rank(place),
            };
            checksum(source, difference.own, difference.of_others)
        };
        let own = named.iter().take(WITNESSED_RANKS_MAX);
        let mut witnesses: Vec<Witness> = own
            .map(|(place, difference)| witness_of(*place, difference))
            .collect();
        let source = Source::Peers { ranks: others };
        witnesses.push(checksum(source, since.of_others, since.own));
        let equal_steps = named.iter().filter_map(|(place, _)| tracks[*place].equal_step);
        let cause = cause(equal_steps.max());
        let places: Vec<usize> = named.iter().map(|(place, _)| *place).collect();
        let ratio = places.len() as f64 / self.places.len() as f64;
        Some(draft_finding(
            DraftCulprit::Ranks(places),
            since,
            cause,
            witnesses,
            ratio,
        ))
    }

    /// Returns the finding about two sides of equal size.
    fn tied(&self, tracks: &[Track], members: &Members) -> Option<DraftFinding> {
        let tie = self.tie.as_ref().filter(|tie| tie.difference.is_lasting())?;
        let sides = tie.sides.each_ref().map(|side| {
            let ranks = side.iter().map(|place| members.rank(*place));
            ranks.collect::<RankSet>()
        });
        let [first, second] = sides.clone();
        let Difference { own, of_others, .. } = tie.difference;
        let witnesses = vec![
            checksum(Source::Peers { ranks: first }, own, of_others),
            checksum(Source::Peers { ranks: second }, of_others, own),
        ];
        let places = tie.sides.iter().flatten();
        let equal_steps = places.filter_map(|place| tracks[*place].equal_step);
        let cause = cause(equal_steps.max());
        Some(draft_finding(
            DraftCulprit::Sides(sides.to_vec()),
            &tie.difference,
            cause,
            witnesses,
            0.5,
        ))
    }
}

impl Difference {
    fn new(check: &Check, own: u64, of_others: u64) -> Self {
        Self {
            since_ms: check.at_ms,
            since_step: check.step,
            checks: 1,
            own,
            of_others,
        }
    }

    /// Continues a period that began in an earlier check.
    fn after(self, before: Option<Self>) -> Self {
        match before {
            None => self,
            Some(before) => Self {
                since_ms: before.since_ms,
                since_step: before.since_step,
                checks: before.checks.saturating_add(1),
                ..self
            },
        }
    }

    fn is_lasting(&self) -> bool {
        self.checks >= CHECKS
    }
}

fn cause(equal_step: Option<u64>) -> Cause {
    if equal_step.is_some() {
        Cause::ParametersDiverged
    } else {
        Cause::ParametersNeverEqual
    }
}

fn checksum(source: Source, own: u64, of_others: u64) -> Witness {
    witness(source, Evidence::ParametersChecksum, own as f64).against(of_others as f64)
}

fn draft_finding(
    culprit: DraftCulprit,
    difference: &Difference,
    cause: Cause,
    witnesses: Vec<Witness>,
    ratio: f64,
) -> DraftFinding {
    DraftFinding {
        since_step: Some(difference.since_step),
        witnesses,
        severity: Severity::Critical,
        values: vec![("diagnosis_replicas_differ_ratio", ratio)],
        ..DraftFinding::new(FindingKind::ReplicasDiffer, culprit, cause, difference.since_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::input::{Learning, StepParts};
    use crate::diagnosis::messages::Member;
    use crate::ident::{NodeName, Rank};

    const EVERY_MS: i64 = 10_000;

    /// Passes one check after another; a letter per rank is its checksum, `-` a missing one. Returns for each check the culprits, or the
    /// sides, and the step since which they differ.
    fn findings_after(checks: &[&str]) -> Vec<String> {
        let ranks = checks[0].len();
        let (mut replicas, members) = (Replicas::new(ranks), members(ranks));
        let mut findings = Vec::new();
        for (at, letters) in (1..).zip(checks) {
            for (place, letter) in letters.bytes().enumerate().filter(|(_, letter)| *letter != b'-') {
                replicas.take(place, &pool(place, at, u64::from(letter)));
            }
            replicas.compare(Some(at as i64 * EVERY_MS + LATE_MS));
            findings.push(words(&replicas.findings(&members)));
        }
        findings
    }

    fn words(findings: &[DraftFinding]) -> String {
        let one = |finding: &DraftFinding| {
            let culprit = match &finding.culprit {
                DraftCulprit::Ranks(places) => format!("{places:?}"),
                DraftCulprit::Sides(sides) => format!("{} against {}", sides[0], sides[1]),
                _ => "nobody".to_owned(),
            };
            assert!(!finding.is_suspect());
            format!("{culprit} since {}", finding.since_step.unwrap_or_default())
        };
        findings.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    fn members(ranks: usize) -> Members {
        let member = |rank| Member {
            rank: Rank(rank as u32),
            node: NodeName::new("a").expect("a name"),
            role: None,
            data_group: None,
        };
        Members::new((0..ranks).map(member).collect())
    }

    fn pool(place: usize, check: u64, checksum: u64) -> Pool {
        Pool {
            rank: Rank(place as u32),
            node: NodeName::new("a").expect("a name"),
            first_step: check * 256,
            last_step: check * 256,
            at_ms: check as i64 * EVERY_MS,
            mean: StepParts::default(),
            max: StepParts::default(),
            micro_batch: None,
            learning: Learning::default(),
            parameters: Some(ParametersChecksum { group: 0, checksum }),
        }
    }

    #[test]
    fn a_minority_is_named_after_three_checks_until_it_is_equal_again() {
        let found = findings_after(&["AAAA", "BBXB", "CCYC", "DDZD", "EEZE", "FFFF"]);
        assert_eq!(found, ["", "", "", "[2] since 512", "[2] since 512", ""]);
    }

    #[test]
    fn of_two_ranks_none_is_named() {
        let found = findings_after(&["AA", "BX", "CY", "DZ", "EE"]);
        assert_eq!(found, ["", "", "", "0 against 1 since 512", ""]);
        let found = findings_after(&["AABB", "BBAA", "CCDD"]);
        assert_eq!(found[2], "0-1 against 2-3 since 256");
        assert_eq!(
            findings_after(&["AABB", "ABAB", "AABB", "ABAB"]),
            ["", "", "", ""],
            "other sides each time"
        );
    }

    #[test]
    fn a_missing_checksum_neither_starts_nor_ends_a_finding() {
        assert_eq!(
            findings_after(&["AAAA", "BB-B", "C-CC", "DDD-", "---E"]),
            ["", "", "", "", ""]
        );
        let found = findings_after(&["AAAA", "BBXB", "CC-C", "DDYD", "EEZE", "FF-F", "GG--", "HHHH"]);
        let named = "[2] since 512";
        assert_eq!(found, ["", "", "", "", named, named, named, ""]);
    }

    #[test]
    fn ranks_that_differ_in_the_same_way_stay_named_while_the_majority_is_missing() {
        let found = findings_after(&["AAAAA", "XBBBX", "XCCCX", "XDDDX", "E---E"]);
        assert_eq!(found[3..], ["[0, 4] since 512", "[0, 4] since 512"]);
    }

    #[test]
    fn ranks_that_all_differ_train_apart_by_design() {
        assert_eq!(
            findings_after(&["ABCD", "EFGH", "IJKL", "MNOP"]),
            ["", "", "", ""]
        );
        assert_eq!(findings_after(&["AABBC", "DDEEF", "GGHHI"]), ["", "", ""]);
    }

    #[test]
    fn a_late_checksum_is_ignored() {
        let (mut replicas, members) = (Replicas::new(3), members(3));
        for check in 1..10 {
            for place in 0..2 {
                replicas.take(place, &pool(place, check, check));
            }
            replicas.compare(Some(check as i64 * EVERY_MS + LATE_MS));
            replicas.take(2, &pool(2, check, 99));
        }
        assert_eq!(words(&replicas.findings(&members)), "");
        assert_eq!(replicas.groups[&0].open.len(), 0);
    }

    #[test]
    fn checks_that_come_faster_than_they_are_compared_stay_few() {
        let mut replicas = Replicas::new(2);
        for check in 1..1_000 {
            replicas.take(0, &pool(0, check, check));
        }
        assert_eq!(replicas.groups[&0].open.len(), OPEN_MAX);
    }

    #[test]
    fn the_cause_says_whether_they_have_ever_been_equal() {
        for (first, expected) in [(7, Cause::ParametersDiverged), (8, Cause::ParametersNeverEqual)] {
            let (mut replicas, members) = (Replicas::new(3), members(3));
            for check in 1..=4 {
                let of_third = if check == 1 { first } else { 99 };
                for (place, checksum) in [7, 7, of_third].into_iter().enumerate() {
                    replicas.take(place, &pool(place, check, checksum));
                }
            }
            replicas.compare(Some(100 * EVERY_MS));
            assert_eq!(replicas.findings(&members)[0].cause, expected);
        }
    }
}
