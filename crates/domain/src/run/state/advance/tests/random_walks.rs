//! Ten thousand random walks through a small simulated world: four nodes that carry out commands late or not at all, disconnect and come
//! back, ranks that fail, a collector that restarts, a person who stops, resumes and changes knobs. The invariants are checked after each
//! step.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::run::knob::InPlaceState;
use crate::run::state::{Attempt, FaultKind, NodePhase, StopPoint};

const WALKS: u64 = 10_000;
const STEPS: u32 = 30;
const NODES: usize = 4;

/// The actual state of the world. The machine learns it only from reports.
struct World {
    story: Story,
    random: u64,
    nodes: BTreeMap<NodeName, Node>,
    /// Commands that have not arrived yet.
    commands: Vec<(AttemptNo, NodeName, NodeCommand)>,
    keys: BTreeSet<(u32, u32)>,
    place: Option<AttemptNo>,
}

#[derive(Default)]
struct Node {
    away: bool,
    /// Attempts that may have processes on the node, with their ranks.
    holds: BTreeMap<AttemptNo, Vec<u32>>,
    /// Reports that wait for the connection.
    unsaid: Vec<(AttemptNo, NodeReport)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            story: Story::submit(2, u32::try_from(seed % 4).unwrap()),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            nodes: (0..NODES)
                .map(|n| (node(&format!("n{n}")), Node::default()))
                .collect(),
            commands: Vec::new(),
            keys: BTreeSet::new(),
            place: None,
        };
        // One third of the walks measures bandwidths, half of them with a refusal.
        if seed.is_multiple_of(3) {
            world.story.machine.spec.preflight_bandwidth = crate::run::bandwidth::BandwidthOptions {
                seconds: 1.0,
                min_mib_s: Some(100.0),
                refuse: seed.is_multiple_of(2),
            };
        }
        let first = world.story.actions.clone();
        world.carry(&first);
        world
    }

    /// The xorshift generator: the same walk for the same seed on every machine.
    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 33).unwrap() % below
    }

    fn some_node(&mut self) -> NodeName {
        let at = self.random(NODES);
        self.nodes.keys().nth(at).unwrap().clone()
    }

    // === what happens ===

    fn step(&mut self) {
        match self.random(20) {
            0..=6 => self.deliver(),
            7..=9 => self.rank_does_something(),
            10 => self.leave(),
            11 | 12 => self.come_back(),
            13 => self.event(&Event::CollectorStarted),
            14 => {
                let attempt = self.story.machine.current().no;
                let step = self.random(50) as u64;
                self.event(&Event::Stepped { attempt, step });
            }
            15 if self.random(12) == 0 => {
                let after = [None, Some(StopPoint::Step(3)), Some(StopPoint::Checkpoint)];
                let after = after[self.random(3)];
                self.event(&Event::StopRequested { grace_ms: 5, after });
            }
            16 if self.random(4) == 0 => self.event(&Event::ResumeRequested {
                from: None,
                from_start: false,
            }),
            17 if self.random(2) == 0 => self.turn_a_knob(),
            _ => self.time_passes(),
        }
    }

    fn turn_a_knob(&mut self) {
        let values = ["0.5", "2"];
        let value = values[self.random(2)];
        let by_attempt = self.story.machine.last_by_attempt().map(|(id, _)| id.attempt.0);
        let mut event = match self.random(5) {
            0 => knobs::revert(None),
            1 => knobs::revert(by_attempt),
            2 => knobs::apply(
                "process_group_timeout_s",
                &format!("{}", 60 * (1 + self.random(3))),
            ),
            _ => knobs::apply("lr_scale", value),
        };
        if let Event::KnobsChanged { after, .. } = &mut event {
            *after = [None, Some(StopPoint::Step(3))][self.random(2)];
        }
        self.event(&event);
    }

    fn time_passes(&mut self) {
        let ms = [100, 5_000, 70_000, 700_000][self.random(4)];
        self.story.now_ms += ms;
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            if self.nodes[&name].away {
                self.event(&Event::NodeLost { node: name });
            }
        }
        self.event(&Event::Tick);
        self.find_nodes();
    }

    /// Like the collector: chooses connected nodes that hold nothing of other attempts.
    fn find_nodes(&mut self) {
        let Some(attempt) = self.place else { return };
        let machine = &self.story.machine;
        if machine.state.is_final() || machine.current().no != attempt {
            return;
        }
        let excluded = &machine.current().placement.excluded;
        let good = |name: &NodeName| excluded.iter().all(|exclusion| exclusion.node != *name);
        let back = |name: &NodeName| {
            excluded.iter().any(|exclusion| {
                exclusion.node == *name && matches!(exclusion.fault.kind, FaultKind::Away | FaultKind::Shim)
            })
        };
        let free = |name: &&NodeName| !self.nodes[*name].away && self.nodes[*name].holds.is_empty();
        let usable: Vec<&NodeName> = self.nodes.keys().filter(free).collect();
        let first = usable.iter().filter(|name| good(name));
        let chosen = first.chain(usable.iter().filter(|name| back(name))).take(2);
        let chosen: Vec<NodeName> = chosen.map(|name| (*name).clone()).collect();
        if chosen.len() == 2 {
            self.place = None;
            self.event(&Event::Placed {
                attempt,
                nodes: chosen,
            });
        } else {
            let fit = self.nodes.keys().filter(|name| good(name) || back(name)).count();
            self.event(&Event::CannotPlace {
                reason: "too few".into(),
                permanent: fit < 2,
            });
        }
    }

    fn leave(&mut self) {
        let name = self.some_node();
        self.nodes.get_mut(&name).unwrap().away = true;
        self.event(&Event::NodeLost { node: name });
    }

    /// The agent reports what it holds, is told to stop what has ended, and sends its waiting reports.
    fn come_back(&mut self) {
        let name = self.some_node();
        let state = self.nodes.get_mut(&name).unwrap();
        if !state.away {
            return;
        }
        state.away = false;
        let current = self.story.machine.current().no;
        let live = self.story.machine.is_live(current);
        let state = self.nodes.get_mut(&name).unwrap();
        state.holds.retain(|attempt, _| live && *attempt == current);
        let holds = state.holds.contains_key(&current) || !state.unsaid.is_empty();
        let unsaid = std::mem::take(&mut state.unsaid);
        // The collector sends commands again that were never accepted. An agent without the attempt never received any of them.
        let was_told = self
            .story
            .machine
            .current()
            .nodes
            .iter()
            .any(|task| task.node == name);
        let waits = self.commands.iter().any(|(_, to, _)| *to == name);
        self.event(&Event::NodeBack {
            node: name.clone(),
            holds: holds || (was_told && waits),
        });
        for (attempt, report) in unsaid {
            self.say(attempt, &name, report);
        }
    }

    /// One command arrives and is carried out.
    fn deliver(&mut self) {
        let arrives = |(_, name, _): &(AttemptNo, NodeName, NodeCommand)| !self.nodes[name].away;
        let Some(at) = self.commands.iter().position(arrives) else {
            return;
        };
        let (attempt, name, command) = self.commands.remove(at);
        match command {
            NodeCommand::Prepare { .. } => {
                let report = match self.random(12) {
                    0 => NodeReport::PrepareFailed { message: "no".into() },
                    1 => NodeReport::Refused {
                        command: 1,
                        reason: "no".into(),
                    },
                    _ => prepared(),
                };
                self.say(attempt, &name, report);
            }
            NodeCommand::LookFor { .. } => self.say(attempt, &name, NodeReport::Looked { seen: true }),
            NodeCommand::Measure(measure) => {
                let report = NodeReport::Measured(Measured {
                    round: measure.round,
                    mib_s: [Some(1_000.0), Some(10.0), None][self.random(3)],
                    ..Measured::default()
                });
                // An agent hangs sometimes; its answer may arrive twice, or never.
                for _ in 0..[1, 1, 1, 2, 0][self.random(5)] {
                    self.say(attempt, &name, report.clone());
                }
            }
            // No checkpoints are saved in this world.
            NodeCommand::Checkpoints(_) | NodeCommand::Remove(_) => {}
            NodeCommand::Start(start) => {
                // A start that arrives after the end of its attempt finds the stop that ended it.
                if !self.story.machine.is_live(attempt) || self.story.machine.is_stopping() {
                    return;
                }
                let ranks = (0..start.nproc).map(|local| start.node_rank * start.nproc + local);
                let ranks: Vec<u32> = ranks.collect();
                let held = self.nodes.get_mut(&name).unwrap();
                assert!(
                    held.holds.is_empty(),
                    "{name} gets attempt {attempt} while it holds {:?}",
                    held.holds
                );
                held.holds.insert(attempt, ranks.clone());
                for (local_rank, rank) in (0..).zip(ranks) {
                    let pid = 100 + rank;
                    self.say(
                        attempt,
                        &name,
                        NodeReport::RankStarted {
                            rank: Rank(rank),
                            local_rank,
                            pid,
                        },
                    );
                }
            }
            NodeCommand::StopAfter { step, .. } => {
                let held = self.nodes[&name].holds.get(&attempt).cloned();
                for rank in held.into_iter().flatten().map(Rank) {
                    self.say(attempt, &name, NodeReport::StopStep { rank, step });
                }
            }
            NodeCommand::TurnLive { live, set } => {
                let held = self.nodes[&name].holds.get(&attempt).cloned();
                for rank in held.into_iter().flatten().map(Rank) {
                    let applied = self.random(8) > 0;
                    for (knob, value) in &set {
                        let answer = knobs::turned(knob, value.as_deref(), (live, rank, applied));
                        self.say(attempt, &name, answer);
                    }
                }
            }
            NodeCommand::Stop { .. } => {
                self.nodes.get_mut(&name).unwrap().holds.remove(&attempt);
                self.say(attempt, &name, ended(1));
            }
        }
    }

    fn rank_does_something(&mut self) {
        let name = self.some_node();
        let Some((attempt, ranks)) = self.nodes[&name].holds.iter().next() else {
            return;
        };
        let (attempt, ranks) = (*attempt, ranks.clone());
        let Some(rank) = ranks.first().copied() else {
            self.nodes.get_mut(&name).unwrap().holds.remove(&attempt);
            return self.say(attempt, &name, ended(0));
        };
        let at_ns = self.story.now_ms * 1_000_000;
        let report = match self.random(10) {
            0..=3 => NodeReport::FirstStep {
                rank: Rank(rank),
                step: 1,
            },
            4 => NodeReport::RankStalled {
                rank: Rank(rank),
                step: Some(1),
                for_ms: 40_000,
                cause: [StallCause::Stopped, StallCause::NoStep][self.random(2)].clone(),
            },
            5..=7 => exited(rank, 0, at_ns),
            8 => killed(rank, 9, at_ns),
            _ => {
                self.nodes.get_mut(&name).unwrap().holds.remove(&attempt);
                return self.say(
                    attempt,
                    &name,
                    NodeReport::Ended(NodeEnd {
                        cause: EndCause::ShimDied,
                        ..NodeEnd::default()
                    }),
                );
            }
        };
        if matches!(report, NodeReport::RankExited(_)) {
            let held = self
                .nodes
                .get_mut(&name)
                .unwrap()
                .holds
                .get_mut(&attempt)
                .unwrap();
            held.retain(|other| *other != rank);
        }
        self.say(attempt, &name, report);
    }

    fn say(&mut self, attempt: AttemptNo, name: &NodeName, report: NodeReport) {
        let state = self.nodes.get_mut(name).unwrap();
        if state.away {
            state.unsaid.push((attempt, report));
            return;
        }
        self.event(&Event::Reported {
            attempt,
            node: name.clone(),
            report,
        });
    }

    // === what must hold ===

    fn event(&mut self, event: &Event) {
        let before = self.story.machine.clone();
        let from = self.story.actions.len();
        self.story.event(event);
        let actions = self.story.actions[from..].to_vec();
        self.check(&before, event, &actions);
        self.carry(&actions);
    }

    fn check(&self, before: &Machine, event: &Event, actions: &[Action]) {
        let machine = &self.story.machine;
        let resumes = matches!(event, Event::ResumeRequested { .. } | Event::KnobsChanged { .. });
        if before.state.is_final() && !resumes {
            assert_eq!(before, machine, "a final state moved by {event:?}");
        }
        assert_eq!(machine.state.is_final(), machine.ended_ms.is_some());
        let live = machine
            .attempts
            .iter()
            .filter(|attempt| attempt.ended_ms.is_none())
            .count();
        assert!(live <= 1, "two attempts live at once");
        let over = machine
            .attempts
            .iter()
            .filter(|attempt| attempt.ended_ms.is_some());
        for attempt in over {
            assert!(attempt.nodes.iter().all(|task| task.phase == NodePhase::Ended));
        }
        for action in actions {
            assert_eq!(action.attempt, machine.current().no);
        }
        if machine.state.is_final() && before.desired != DesiredState::Run {
            let expected = [RunState::Stopped, RunState::Succeeded];
            assert!(
                expected.contains(&machine.state),
                "a requested stop ended {:?}",
                machine.state
            );
        }
        // After an agreed step, ranks end by themselves.
        if machine.state == RunState::Stopping && machine.is_stopping() {
            let told = |task: &NodeTask| task.phase == NodePhase::Ended || task.stop_grace_sent_ms.is_some();
            assert!(
                machine.current().nodes.iter().all(told),
                "a node was not told to stop"
            );
        }
        self.check_given_up(before);
        self.check_knobs(before);
        self.check_budget();
        if machine.attempts.len() > before.attempts.len() {
            self.check_left_nothing(before.current());
        }
    }

    /// Only nodes whose agents are away may be given up.
    fn check_given_up(&self, before: &Machine) {
        if self.story.machine.current().no != before.current().no {
            return;
        }
        for (task, old) in self
            .story
            .machine
            .current()
            .nodes
            .iter()
            .zip(&before.current().nodes)
        {
            let given_up = task.phase == NodePhase::Ended && task.end.is_none();
            let heard = old.phase != NodePhase::Ended && old.away_since_ms.is_none();
            assert!(
                !(given_up && heard),
                "{} was given up though it is heard",
                task.node
            );
        }
    }

    /// A change waits only while its attempt ends. Each attempt has the knobs of the one before it plus its own change, and a reverted
    /// change leaves nothing behind.
    fn check_knobs(&self, before: &Machine) {
        let machine = &self.story.machine;
        if machine.pending.is_some() {
            assert!(machine.current().ended_ms.is_none() && !machine.state.is_final());
            assert!(
                machine.desired != DesiredState::Run || machine.stop.is_some(),
                "nothing ends the attempt"
            );
        }
        for (is, was) in machine.attempts.iter().zip(&before.attempts) {
            assert_eq!(is.knobs_at_launch(), was.knobs_at_launch(), "what it began with");
            let asked = is
                .knobs
                .live
                .iter()
                .rposition(|live| live.state == InPlaceState::Asked);
            assert!(asked.is_none_or(|at| at + 1 == is.knobs.live.len() && is.ended_ms.is_none()));
        }
        let [.., last, new] = machine.attempts.as_slice() else {
            return;
        };
        if machine.attempts.len() == before.attempts.len() {
            return;
        }
        let mut knobs = last.knobs.values.clone();
        for diff in new.knobs.change.iter().flat_map(|change| &change.set) {
            assert_eq!(knobs.get(&diff.knob), diff.old.as_ref());
            match &diff.new {
                Some(value) => knobs.insert(diff.knob.clone(), value.clone()),
                None => knobs.remove(&diff.knob),
            };
        }
        assert_eq!(new.knobs.values, knobs);
        assert!(new.knobs.change.is_none() || new.requested_by_user);
        let undone = new
            .knobs
            .change
            .as_ref()
            .and_then(|change| change.reverted_change());
        if let Some(undone) = undone.filter(|undone| undone.live == 0) {
            let at = machine
                .attempts
                .iter()
                .position(|made| made.no == undone.attempt)
                .unwrap();
            // Later changes in place stay.
            let others = |made: &Attempt| {
                let mut knobs = made.knobs.values.clone();
                knobs.remove("process_group_timeout_s");
                knobs
            };
            assert_eq!(others(new), others(&machine.attempts[at - 1]));
        }
    }

    fn check_budget(&self) {
        let machine = &self.story.machine;
        let asked = machine
            .attempts
            .iter()
            .rposition(|attempt| attempt.requested_by_user)
            .unwrap();
        let since = machine.attempts.len() - asked;
        assert!(
            since <= machine.spec.max_restarts as usize + 1,
            "more attempts than the budget allows"
        );
    }

    /// When an attempt begins, processes of the one before it may only be left on nodes that the new attempt does not use.
    fn check_left_nothing(&self, before: &Attempt) {
        for (name, state) in &self.nodes {
            let given_up = before.nodes.iter().any(|task| {
                task.node == *name
                    && task
                        .fault
                        .as_ref()
                        .is_some_and(|fault| fault.kind == FaultKind::Away)
            });
            if state.holds.contains_key(&before.no) && !before.asked_again(&self.story.machine) {
                assert!(given_up, "{name} still holds attempt {}", before.no);
            }
        }
    }

    fn carry(&mut self, actions: &[Action]) {
        for action in actions {
            assert!(self.keys.insert((action.attempt.0, action.n)), "{action:?} twice");
            match &action.task {
                Task::Place { .. } => self.place = Some(action.attempt),
                Task::Command { node, command } => {
                    self.commands
                        .push((action.attempt, node.clone(), command.clone()));
                }
            }
        }
    }

    /// All nodes come back and answer, all ranks end: then the run must end, by itself or after a stop.
    fn come_to_an_end(&mut self) {
        for round in 0..400 {
            if self.story.machine.state.is_final() {
                return;
            }
            for _ in 0..8 {
                self.come_back();
                self.deliver();
                let name = self.some_node();
                let held = self.nodes[&name].holds.clone();
                for (attempt, ranks) in held {
                    for rank in ranks {
                        self.say(attempt, &name, exited(rank, 0, 1));
                    }
                    self.nodes.get_mut(&name).unwrap().holds.remove(&attempt);
                    self.say(attempt, &name, ended(0));
                }
            }
            self.story.now_ms += 1_000;
            self.event(&Event::Tick);
            self.find_nodes();
            // Nodes with broken hardware do not become usable by waiting.
            if round == 300 {
                self.event(&Event::StopRequested {
                    grace_ms: 0,
                    after: None,
                });
            }
        }
        panic!("the walk does not end: {:?}", self.story.machine);
    }
}

impl Attempt {
    /// Returns true if a person, not the policy, began the attempt after this one.
    fn asked_again(&self, machine: &Machine) -> bool {
        machine.current().requested_by_user && machine.current().no != self.no
    }
}

#[test]
fn ten_thousand_walks_end_and_never_break_a_promise() {
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut restarted, mut changed, mut reverted) = (0, 0, 0);
    for seed in 0..WALKS {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..STEPS {
                world.step();
            }
            world.come_to_an_end();
            world.story.machine
        });
        let Ok(machine) = outcome else {
            panic!("walk {seed} broke a promise");
        };
        *ends.entry(machine.state.as_str()).or_default() += 1;
        restarted += u32::from(machine.attempts.len() > 1);
        let changes = || {
            machine
                .attempts
                .iter()
                .filter_map(|made| made.knobs.change.as_ref())
        };
        changed += u32::from(changes().next().is_some());
        reverted += u32::from(changes().any(|change| change.reverts.is_some()));
        if seed % 64 == 0 {
            let text = serde_json::to_string(&V1::from(&machine)).unwrap();
            assert_eq!(
                Machine::from(serde_json::from_str::<V1<'_>>(&text).unwrap()),
                machine
            );
        }
    }
    // The walks must reach all of these cases, otherwise they prove nothing.
    assert!(restarted > 2_000, "{restarted} walks with a restart");
    assert!(
        changed > 2_000 && reverted > 100,
        "{changed} with a change, {reverted} with one taken back"
    );
    for state in ["stopped", "succeeded", "failed"] {
        assert!(ends.get(state).is_some_and(|count| *count > 500), "{ends:?}");
    }
}
