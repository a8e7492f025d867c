//! The state of runs and nodes as series, so that rules evaluate it and alerts report it.
//!
//! ```text
//! Runs::publish ─▶ set_run ─┐
//!                           ├─ once per second ─▶ one append: the current series, and a staleness marker for each one that ended
//! Live, nodes ──────────────┘
//! ```
//! A series exists as long as its state: an alert on it neither ends while its condition holds nor outlives it. A stall of a rank whose agent
//! restarts exists until the agent is back, for a minute at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ident::{NodeName, RunId};
use domain::run::state::{Machine, NodePhase, NodeTask, StallsBefore};
use domain::series::{Labels, METRIC_NAME};
use domain::time::TimestampMs;
use store::SeriesStore;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::append::Publisher;
use crate::clock;
use crate::evaluator::Evaluator;
use crate::live::{Live, Presence};

const PERIOD: Duration = Duration::from_secs(1);
/// How long the series of an ended run exist: as long as a user may be interested in them.
const ENDED_SHOWN_MS: i64 = 3_600_000;
/// Bound of the ended runs with series. The oldest are removed first.
const ENDED_SHOWN_MAX: usize = 1_000;
/// After its own start, and after a time in which it did not run, the collector cannot distinguish a node that is down from one that has
/// not reconnected yet: agents reconnect within a minute. A node that was connected since, and is not any more, is down.
const UNCERTAIN_FOR: Duration = Duration::from_secs(90);
/// An agent that reports that it stops while its node holds ranks, for example for an upgrade, is back within this time.
const PLANNED_STOP_MAX_MS: i64 = 60_000;
/// Minimum clock offset with a series. A smaller one may be the time that the hello took to arrive, and the agent measures it better.
const CLOCK_OFF_MS: u64 = 30_000;
/// If two ticks are further apart than this, by either clock, this process or its machine was suspended, or the clock was set.
const TICKS_APART_MAX: Duration = Duration::from_secs(5);

/// The series of all runs that are shown.
#[derive(Debug, Default)]
pub(crate) struct StateSeries {
    runs: Mutex<BTreeMap<RunId, ShownRun>>,
}

#[derive(Debug)]
struct ShownRun {
    series: Vec<(Labels, f64)>,
    /// The stalls of ranks whose agents are away.
    stalls_before: Option<StallsBefore>,
    /// True if no agent of its nodes is away, so that all stalls are known.
    has_all_agents: bool,
    busy_nodes: BTreeSet<NodeName>,
    ended_ms: Option<TimestampMs>,
}

impl StateSeries {
    /// Sets the current state of a run.
    pub(crate) fn set_run(&self, run: &Machine) {
        let shown = ShownRun {
            series: run.series(),
            stalls_before: run.stalls_before(),
            has_all_agents: !run.current().nodes.iter().any(is_away),
            busy_nodes: run.busy_nodes().cloned().collect(),
            ended_ms: run.ended_ms.filter(|_| run.state.is_final()),
        };
        self.lock().insert(run.id.clone(), shown);
    }

    /// Returns the series of all runs, without those that ended long ago. Before `started_ms`, no agent was connected.
    fn of_runs(&self, now_ms: TimestampMs, started_ms: TimestampMs) -> Vec<(Labels, f64)> {
        let mut runs = self.lock();
        runs.retain(|_, run| run.ended_ms.is_none_or(|ended| now_ms - ended < ENDED_SHOWN_MS));
        let mut ended: Vec<_> = runs
            .iter()
            .filter_map(|(id, run)| Some((run.ended_ms?, id.clone())))
            .collect();
        ended.sort_unstable();
        let too_many = ended.len().saturating_sub(ENDED_SHOWN_MAX);
        for (_, id) in &ended[..too_many] {
            runs.remove(id);
        }
        runs.values()
            .flat_map(|run| run.series(now_ms, started_ms))
            .collect()
    }

    /// Returns true if all stalls of the run in these labels are known.
    fn knows_stalls(&self, labels: &Labels) -> bool {
        let run = labels.get("run").and_then(|run| RunId::new(run).ok());
        run.is_some_and(|run| self.lock().get(&run).is_some_and(|run| run.has_all_agents))
    }

    fn busy_nodes(&self) -> BTreeSet<NodeName> {
        self.lock()
            .values()
            .flat_map(|run| run.busy_nodes.iter().cloned())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, ShownRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_away(task: &NodeTask) -> bool {
    task.phase != NodePhase::Ended && task.away_since_ms.is_some()
}

impl ShownRun {
    /// Returns the series of the run. An agent that restarts has nothing new to report: its stalls are kept, if this collector has seen it
    /// disconnect.
    fn series(&self, now_ms: TimestampMs, started_ms: TimestampMs) -> Vec<(Labels, f64)> {
        let kept = self.stalls_before.as_ref().filter(|before| {
            before.away_since_ms > started_ms && now_ms - before.away_since_ms < PLANNED_STOP_MAX_MS
        });
        let Some(kept) = kept else {
            return self.series.clone();
        };
        let others = self
            .series
            .iter()
            .filter(|(labels, _)| labels.metric_name() != Some("run_stalled"));
        others.chain(&kept.series).cloned().collect()
    }
}

/// Writes the series until the collector stops.
pub(crate) async fn write(
    state: Arc<StateSeries>,
    live: Arc<Live>,
    store: SeriesStore,
    evaluator: Evaluator,
) {
    let started_ms = clock::now_ms();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The process before could not end the stalls that it wrote. Without this, one that is over would look as if it still held.
    let mut publisher = Publisher::continuing("the state of runs and nodes", &evaluator, "run_stalled").await;
    let mut nodes = KnownNodes::new();
    let mut clocks = Clocks::new(Instant::now(), clock::now_ms());
    loop {
        ticks.tick().await;
        let now_ms = clock::now_ms();
        let certainty = clocks.tick(Instant::now(), now_ms);
        // Before the current series are read: a stall that becomes known after this must not end before it is among them.
        publisher.end_earlier(|labels| state.knows_stalls(labels));
        let mut series = state.of_runs(now_ms, started_ms);
        series.extend(node_series((&state, &live), now_ms, certainty, &mut nodes));
        series.extend(clock_series(&live, now_ms));
        publisher.publish(&store, series, now_ms).await;
    }
}

/// Returns `node_clock_offset_seconds` of the nodes whose clocks are far off. Rules may not see the samples of such a node, including the
/// offset that its agent measures, because they have other times.
fn clock_series(live: &Live, now_ms: TimestampMs) -> Vec<(Labels, f64)> {
    let series = live.clocks_off(CLOCK_OFF_MS, now_ms).into_iter();
    let of_node = |(node, offset_ms): (NodeName, i64)| {
        let names = [
            (METRIC_NAME, "node_clock_offset_seconds"),
            ("node", node.as_str()),
        ];
        let labels = Labels::new(names).expect("well-formed names");
        (labels, offset_ms as f64 / 1e3)
    };
    series.map(of_node).collect()
}

/// The last known state of each node.
type KnownNodes = BTreeMap<NodeName, bool>;

/// Returns `node_up` of each node. If nothing certain is known, a node keeps its previous value, or has none.
fn node_series(
    (state, live): (&StateSeries, &Live),
    now_ms: TimestampMs,
    certainty: Certainty,
    known: &mut KnownNodes,
) -> Vec<(Labels, f64)> {
    let busy = state.busy_nodes();
    let before = std::mem::take(known);
    for (node, presence) in live.presences(now_ms) {
        let is_busy = busy.contains(&node);
        let up = is_up(presence, is_busy, certainty, before.get(&node).copied());
        known.extend(up.map(|up| (node, up)));
    }
    let series = known.iter().map(|(node, up)| {
        let labels =
            Labels::new([(METRIC_NAME, "node_up"), ("node", node.as_str())]).expect("well-formed names");
        (labels, f64::from(u8::from(*up)))
    });
    series.collect()
}

/// Returns whether a node is up, or `None` if that is not known.
fn is_up(presence: Presence, is_busy: bool, certainty: Certainty, before: Option<bool>) -> Option<bool> {
    match presence {
        Presence::Heard => Some(true),
        Presence::StoppedAsPlanned { .. } if !is_busy => None,
        Presence::StoppedAsPlanned { for_ms } if for_ms < PLANNED_STOP_MAX_MS => before,
        Presence::NotHeardYet if !is_busy => None,
        Presence::NotHeardYet if certainty.of_absence => Some(false),
        Presence::NotHeardYet => before,
        Presence::StoppedAsPlanned { .. } | Presence::Silent if certainty.of_silence => Some(false),
        Presence::StoppedAsPlanned { .. } | Presence::Silent => before,
    }
}

/// Whether a missing connection of a node means that it is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Certainty {
    /// For a node that was connected before.
    of_silence: bool,
    /// For a node that has not connected since the start.
    of_absence: bool,
}

/// Compares two clocks. If they disagree, the machine was suspended or the clock was set.
#[derive(Debug)]
struct Clocks {
    ticked: Instant,
    ticked_ms: TimestampMs,
    started: Instant,
    disturbed: Option<Instant>,
}

impl Clocks {
    fn new(now: Instant, now_ms: TimestampMs) -> Self {
        Self {
            ticked: now,
            ticked_ms: now_ms,
            started: now,
            disturbed: None,
        }
    }

    /// Must be called once per tick.
    fn tick(&mut self, now: Instant, now_ms: TimestampMs) -> Certainty {
        let apart = now.saturating_duration_since(self.ticked);
        let apart_ms = now_ms - self.ticked_ms;
        let allowed_ms = i64::try_from(TICKS_APART_MAX.as_millis()).unwrap_or(i64::MAX);
        if apart > TICKS_APART_MAX || !(0..=allowed_ms).contains(&apart_ms) {
            self.disturbed = Some(now);
        }
        (self.ticked, self.ticked_ms) = (now, now_ms);
        let passed = |since: Instant| now.saturating_duration_since(since) >= UNCERTAIN_FOR;
        let of_silence = self.disturbed.is_none_or(passed);
        Certainty {
            of_silence,
            of_absence: of_silence && passed(self.started),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::topology::Inventory;
    use store::state::nodes::NodeRecord;

    use super::*;

    const CERTAIN: Certainty = Certainty {
        of_silence: true,
        of_absence: true,
    };
    const AFTER_START: Certainty = Certainty {
        of_silence: true,
        of_absence: false,
    };
    const DISTURBED: Certainty = Certainty {
        of_silence: false,
        of_absence: false,
    };

    #[test]
    fn a_node_is_down_when_its_silence_is_certain_and_matters() {
        use Presence::{Heard, NotHeardYet, Silent, StoppedAsPlanned};
        let (soon, long) = (
            StoppedAsPlanned { for_ms: 20_000 },
            StoppedAsPlanned { for_ms: 60_000 },
        );
        let (busy, idle) = (true, false);
        for (presence, is_busy, certainty, before, expected) in [
            (Heard, idle, DISTURBED, None, Some(true)),
            (Silent, idle, AFTER_START, Some(true), Some(false)),
            (Silent, idle, DISTURBED, Some(true), Some(true)),
            (Silent, busy, DISTURBED, Some(false), Some(false)),
            // A planned stop of an agent without ranks ends the series; with ranks it may be an upgrade.
            (long, idle, CERTAIN, Some(true), None),
            (soon, busy, CERTAIN, Some(true), Some(true)),
            (long, busy, CERTAIN, Some(true), Some(false)),
            // Known only from an earlier start of the collector.
            (NotHeardYet, idle, CERTAIN, None, None),
            (NotHeardYet, busy, CERTAIN, None, Some(false)),
            (NotHeardYet, busy, AFTER_START, None, None),
        ] {
            let found = is_up(presence, is_busy, certainty, before);
            assert_eq!(found, expected, "{presence:?} {is_busy} {certainty:?} {before:?}");
        }
    }

    #[test]
    fn a_stall_is_kept_while_its_agent_restarts() {
        let series = |name| {
            let labels = Labels::new([(METRIC_NAME, name), ("run", "r")]).expect("well-formed names");
            (labels, 1.0)
        };
        let (of_state, stalled) = (series("run_state"), series("run_stalled"));
        let without_stall = vec![of_state.clone()];
        let mut run = ShownRun {
            series: without_stall.clone(),
            stalls_before: Some(StallsBefore {
                series: vec![stalled.clone()],
                away_since_ms: 100_000,
            }),
            has_all_agents: false,
            busy_nodes: BTreeSet::new(),
            ended_ms: None,
        };
        let with_stall = vec![of_state, stalled.clone()];
        assert_eq!(run.series(101_000, 50_000), with_stall);
        assert_eq!(run.series(159_000, 50_000), with_stall);
        assert_eq!(run.series(160_000, 50_000), without_stall, "it is lost");
        assert_eq!(
            run.series(101_000, 100_500),
            without_stall,
            "the collector restarted: no agent is back yet"
        );
        // Another rank has reported its stall, and the culprit is still the one that was known before.
        run.series.push(stalled.clone());
        assert_eq!(run.series(101_000, 50_000), with_stall);
        run.stalls_before = None;
        assert_eq!(run.series(101_000, 50_000), with_stall);
    }

    #[test]
    fn stalls_of_a_run_are_known_once_all_its_agents_are_connected() {
        let state = StateSeries::default();
        for (id, has_all_agents) in [("back", true), ("away", false)] {
            let run = ShownRun {
                series: Vec::new(),
                stalls_before: None,
                has_all_agents,
                busy_nodes: BTreeSet::new(),
                ended_ms: None,
            };
            state.lock().insert(RunId::new(id).expect("an id"), run);
        }
        let knows = |run: &str| state.knows_stalls(&Labels::new([("run", run)]).expect("well-formed names"));
        assert_eq!(["back", "away", "other"].map(knows), [true, false, false]);
    }

    #[test]
    fn only_a_clock_that_is_far_off_has_a_series() {
        let live = Live::from_records(Vec::new());
        for (name, clock_offset_ms) in [("a", -29_999), ("b", -720_000), ("c", 30_000), ("d", i64::MIN)] {
            let record = NodeRecord {
                name: NodeName::new(name).expect("a good name"),
                agent_version: "1".into(),
                clock_offset_ms,
                inventory: Inventory::default(),
                seen_ms: 0,
            };
            live.hello(record, 1_000_000);
        }
        let series = |now_ms| -> Vec<(String, f64)> {
            let of_node =
                |(labels, value): (Labels, f64)| (labels.get("node").unwrap_or_default().to_owned(), value);
            clock_series(&live, now_ms).into_iter().map(of_node).collect()
        };
        let far = i64::MIN as f64 / 1e3;
        let expected = [("b", -720.0), ("c", 30.0), ("d", far)].map(|(node, value)| (node.to_owned(), value));
        assert_eq!(series(1_000_000), expected);
        assert_eq!(series(2_000_000), [], "none is connected");
    }

    #[test]
    fn silence_is_ignored_after_a_suspend_or_a_set_clock() {
        let start = Instant::now();
        let mut clocks = Clocks::new(start, 0);
        let mut tick = |second: u64, now_ms: i64| clocks.tick(start + Duration::from_secs(second), now_ms);
        for second in 1..90 {
            assert_eq!(tick(second, second as i64 * 1_000), AFTER_START, "{second}");
        }
        assert_eq!(tick(90, 90_000), CERTAIN);
        // The machine was suspended for a minute.
        for second in 150..240 {
            assert_eq!(tick(second, second as i64 * 1_000), DISTURBED, "{second}");
        }
        assert_eq!(tick(240, 240_000), CERTAIN);
        // The clock was set forward by an hour, and back.
        for second in 241..331 {
            assert_eq!(
                tick(second, second as i64 * 1_000 + 3_600_000),
                DISTURBED,
                "{second}"
            );
        }
        assert_eq!(tick(331, 3_931_000), CERTAIN);
        assert_eq!(tick(332, 332_000), DISTURBED);
    }
}
