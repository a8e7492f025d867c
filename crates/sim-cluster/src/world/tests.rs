use domain::diagnosis::input::Phase;
use domain::ident::Rank;
use domain::run::checkpoint::{RemovalOrder, RequiredCheckpoint};
use domain::run::spec::Spec;
use domain::run::state::{NodeCommand, NodeReport, Start};

use super::{FaultBegun, NodeOutput, World};
use crate::fault::{Exit, Fault, FaultKind, Hold, LearnedValue, Part};
use crate::scenario::Scenario;
use crate::workload::{Workload, workloads};

const SECOND_MS: i64 = 1_000;

struct Simulation {
    world: World,
    now_ms: i64,
}

impl Simulation {
    fn new() -> Self {
        Self {
            world: World::new(8, true, &[]),
            now_ms: 0,
        }
    }

    fn start(&mut self, workload: &Workload, run: &str, attempt: u32, set: &[(&str, &str)]) {
        self.start_named((workload.name, workload.nodes), run, attempt, set);
    }

    fn start_named(&mut self, (name, nodes): (&str, u32), run: &str, attempt: u32, set: &[(&str, &str)]) {
        let spec = Spec {
            name: name.to_owned(),
            set: set
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            ..Spec::default()
        };
        for node in 0..nodes {
            let prepare = NodeCommand::Prepare {
                spec: Box::new(spec.clone()),
                node_rank: node,
                nnodes: nodes,
                resume_from: None,
            };
            let output = self.command(node as usize, run, attempt, prepare);
            assert!(matches!(&output.reports[0].what, NodeReport::Prepared(_)));
        }
        for node in 0..nodes {
            let start = NodeCommand::Start(Box::new(Start {
                spec: spec.clone(),
                node_rank: node,
                nnodes: nodes,
                nproc: 8,
                ..Start::default()
            }));
            self.command(node as usize, run, attempt, start);
        }
    }

    fn command(&mut self, node: usize, run: &str, attempt: u32, command: NodeCommand) -> NodeOutput {
        self.world.command(node, (run, attempt), command, self.now_ms)
    }

    /// Returns everything that happens in some seconds.
    fn pass(&mut self, seconds: i64) -> Vec<NodeOutput> {
        let mut all = Vec::new();
        for _ in 0..seconds {
            self.now_ms += SECOND_MS;
            all.extend(self.world.advance(self.now_ms));
        }
        all
    }
}

fn named(name: &str) -> &'static Workload {
    workloads()
        .iter()
        .find(|workload| workload.name == name)
        .expect("a workload")
}

fn values(outputs: &[NodeOutput], metric: &str, rank: &str) -> Vec<f64> {
    let readings = outputs
        .iter()
        .flat_map(|output| &output.snapshots)
        .flat_map(|snapshot| &snapshot.readings);
    let of_rank = readings.filter(|reading| {
        reading.metric == metric
            && reading
                .labels
                .iter()
                .any(|(name, value)| *name == "rank" && value == rank)
    });
    of_rank.map(|reading| reading.value).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn the_ranks_of_all_nodes_make_their_first_step_and_go_on_together() {
    let mut simulation = Simulation::new();
    simulation.start(named("llama-8b-fsdp"), "r", 1, &[]);
    let outputs = simulation.pass(10);
    let first = outputs.iter().flat_map(|output| &output.reports);
    let first = first.filter(|report| matches!(report.what, NodeReport::FirstStep { .. }));
    assert_eq!(first.count(), 24);
    assert_eq!(
        values(&outputs, "train_step", "0"),
        values(&outputs, "train_step", "23")
    );
}

#[test]
fn the_rank_on_a_braked_gpu_is_waited_for_and_its_power_falls() {
    let mut simulation = Simulation::new();
    simulation.start(named("llama-8b-fsdp"), "r", 1, &[]);
    let before = simulation.pass(13);
    let after = {
        simulation.pass(3);
        simulation.pass(15)
    };
    let wait = |outputs: &[NodeOutput], rank: &str| mean(&values(outputs, "train_sync_seconds", rank));
    assert!(wait(&after, "16") > 2.0 * wait(&before, "16"));
    assert!(wait(&after, "17") < 0.5 * wait(&after, "16"));
}

#[test]
fn a_stopped_process_stops_all_and_its_state_says_so() {
    let mut simulation = Simulation::new();
    simulation.start(named("moe-hsdp"), "r", 1, &[]);
    simulation.pass(50);
    let outputs = simulation.pass(10);
    assert!(values(&outputs, "train_step", "0").is_empty());
    assert_eq!(mean(&values(&outputs, "train_process_state", "3")), 1.0);
    assert_eq!(mean(&values(&outputs, "train_process_state", "2")), 0.0);
}

#[test]
fn a_memory_error_ends_the_rank_and_a_second_attempt_is_healthy() {
    let mut simulation = Simulation::new();
    let workload = named("bert-resume");
    simulation.start(workload, "r", 1, &[]);
    let outputs = simulation.pass(40);
    let exits: Vec<_> = outputs
        .iter()
        .flat_map(|output| &output.reports)
        .filter_map(|report| match &report.what {
            NodeReport::RankExited(exit) => Some(exit.rank),
            _ => None,
        })
        .collect();
    assert_eq!(exits, [Rank(5)]);
    assert_eq!(outputs.iter().map(|output| output.events.len()).sum::<usize>(), 1);
    let stopped = simulation.command(0, "r", 1, NodeCommand::Stop { grace_ms: 0 });
    assert!(
        stopped
            .reports
            .iter()
            .any(|report| matches!(report.what, NodeReport::Ended(_)))
    );
    assert_eq!(stopped.over, ["r"]);
    simulation.start(workload, "r", 2, &[]);
    let outputs = simulation.pass(60);
    assert!(values(&outputs, "train_step", "0").len() > 20);
    assert!(outputs.iter().all(|output| output.events.is_empty()));
}

#[test]
fn a_full_disk_fails_saves_until_checkpoints_are_removed() {
    let mut simulation = Simulation::new();
    let workload = named("bert-resume");
    // A later attempt has no faults: only the disk fills up.
    simulation.start(workload, "r", 2, &[]);
    simulation.pass(130);
    let folder = "/checkpoints/r";
    let path = |step: u64| format!("{folder}/step-{step:06}");
    let report = |output: NodeOutput| match output.reports.into_iter().next().map(|report| report.what) {
        Some(NodeReport::Checkpoints(report)) => report,
        other => panic!("a report of checkpoints, not {other:?}"),
    };
    let order = |remove: &[u64], remain: u64| {
        NodeCommand::Remove(RemovalOrder {
            folder: folder.to_owned(),
            remove: remove.iter().map(|step| path(*step)).collect(),
            remain: RequiredCheckpoint {
                path: path(remain),
                ..RequiredCheckpoint::default()
            },
            ..RemovalOrder::default()
        })
    };
    let full = report(simulation.command(0, "r", 2, order(&[], 80)));
    assert_eq!(full.checkpoints.len(), 7);
    assert!(
        full.failure
            .is_some_and(|failure| failure.error.contains("No space left"))
    );
    let refused = report(simulation.command(0, "r", 2, order(&[80, 160], 99)));
    assert_eq!(refused.checkpoints.len(), 7, "what must remain is not there");
    let pruned = report(simulation.command(0, "r", 2, order(&[80, 160], 560)));
    assert_eq!(pruned.checkpoints.len(), 5);
    simulation.pass(20);
    let later = report(simulation.command(0, "r", 2, order(&[], 560)));
    assert!(later.checkpoints.len() > 5 && later.failure.is_none());
}

#[test]
fn more_workers_end_the_wait_for_data() {
    let share = |set: &[(&str, &str)]| {
        let mut simulation = Simulation::new();
        simulation.start(named("vit-l-ddp"), "r", 1, set);
        let outputs = simulation.pass(20);
        mean(&values(&outputs, "train_data_seconds", "3"))
            / mean(&values(&outputs, "train_step_seconds", "3"))
    };
    assert!(share(&[]) > 0.35);
    assert!(share(&[("num_workers", "8")]) < 0.05);
}

#[test]
fn ranks_end_after_a_step_when_they_are_asked_to() {
    let mut simulation = Simulation::new();
    simulation.start(named("vit-l-ddp"), "r", 1, &[]);
    simulation.pass(5);
    simulation.command(
        0,
        "r",
        1,
        NodeCommand::StopAfter {
            step: 20,
            grace_ms: 0,
        },
    );
    let outputs = simulation.pass(20);
    let ends = outputs.iter().flat_map(|output| &output.reports);
    let ends = ends.filter(|report| matches!(&report.what, NodeReport::Ended(end) if end.code == Some(0)));
    assert_eq!(ends.count(), 2);
}

// === Scenarios ===

fn scenario(kind: FaultKind) -> Scenario {
    Scenario {
        seed: Some(7),
        step_s: 0.5,
        faults: vec![Fault { after_s: 10.25, kind }],
        ..Scenario::even("trial".to_owned(), named("vit-l-ddp"))
    }
}

/// Starts a scenario on two nodes with eight ranks each, without GPUs.
fn played(scenario: Scenario) -> Simulation {
    let mut simulation = Simulation {
        world: World::new(2, false, &[scenario]),
        now_ms: 0,
    };
    simulation.start_named(("trial", 2), "r", 1, &[]);
    simulation
}

#[test]
fn a_fault_begins_at_its_time_and_not_at_the_next_tick() {
    let slow = FaultKind::Slow {
        rank: Some(3),
        part: Part::Forward,
        ratio: 0.6,
    };
    let mut simulation = played(scenario(slow));
    simulation.pass(30);
    let begun = simulation.world.take_begun();
    assert_eq!(
        begun,
        [FaultBegun {
            scenario: "trial".to_owned(),
            at_ms: 12_250
        }],
        "two seconds after the start comes the first step"
    );
    let outputs = simulation.pass(20);
    let forward = |rank: &str| mean(&values(&outputs, "train_forward_seconds", rank));
    let wait = |rank: &str| mean(&values(&outputs, "train_sync_seconds", rank));
    assert!(forward("3") > forward("2") + 0.2);
    assert!(wait("2") > wait("3") + 0.2);
    let mut snapshots = outputs.iter().flat_map(|output| &output.snapshots);
    assert!(snapshots.all(|snapshot| snapshot.readings.iter().all(|reading| reading.metric != "gpu_up")));
}

#[test]
fn peers_of_a_rank_in_an_endless_loop_wait_in_their_backward_pass_under_ddp() {
    let spin = FaultKind::Hold {
        rank: 5,
        phase: Phase::Forward,
        hold: Hold::Spins,
    };
    let mut simulation = played(scenario(spin));
    simulation.pass(20);
    let outputs = simulation.pass(5);
    let all_are = |metric: &str, rank: &str, expected: f64| {
        let values = values(&outputs, metric, rank);
        assert!(!values.is_empty() && values.iter().all(|value| *value == expected));
    };
    all_are("train_phase", "5", f64::from(Phase::Forward as u8));
    all_are("train_phase", "4", f64::from(Phase::Backward as u8));
    all_are("train_process_state", "5", 0.0);
    let used = |rank: &str| {
        let values = values(&outputs, "train_cpu_seconds_total", rank);
        values[4] - values[0]
    };
    assert!((used("5") - 4.0).abs() < 1e-6);
    assert!(used("4") < 0.5);
    assert!(values(&outputs, "train_step", "4").is_empty());
}

#[test]
fn a_rank_has_a_loss_that_is_not_finite_one_step_before_all_others() {
    let mut simulation = played(scenario(FaultKind::NotFinite {
        rank: 9,
        value: LearnedValue::Loss,
    }));
    let before = simulation.pass(10);
    assert!(!values(&before, "train_loss", "9").is_empty());
    simulation.pass(10);
    let outputs = simulation.pass(5);
    assert!(values(&outputs, "train_loss", "9").is_empty());
    let since = |rank: &str| {
        let of_rank = values(&outputs, "train_nonfinite_since_step", rank);
        (of_rank[0], of_rank[1])
    };
    let (culprit, peer) = (since("9"), since("8"));
    assert_eq!(peer.0, culprit.0 + 1.0, "the loss");
    assert_eq!(peer.1, culprit.1, "the gradients");
}

#[test]
fn a_killed_rank_and_a_lost_node_stop_all_ranks() {
    let killed = FaultKind::Exit {
        rank: 2,
        exit: Exit::Killed,
    };
    let mut simulation = played(scenario(killed));
    let outputs = simulation.pass(20);
    let exits = outputs.iter().flat_map(|output| &output.reports);
    let exits = exits.filter_map(|report| match &report.what {
        NodeReport::RankExited(exit) => Some((exit.rank, exit.signal)),
        _ => None,
    });
    assert_eq!(exits.collect::<Vec<_>>(), [(Rank(2), Some(9))]);

    let mut simulation = played(scenario(FaultKind::LoseNode { rank: 9 }));
    simulation.pass(20);
    assert!(simulation.world.is_lost(1) && !simulation.world.is_lost(0));
    assert!(values(&simulation.pass(5), "train_step", "0").is_empty());
}

#[test]
fn a_script_that_is_done_ends_by_itself() {
    let mut simulation = played(Scenario {
        faults: Vec::new(),
        ends_after_s: Some(15.0),
        ..scenario(FaultKind::FailSaves { rank: 0 })
    });
    let outputs = simulation.pass(20);
    let reports = || outputs.iter().flat_map(|output| &output.reports);
    let ended =
        reports().filter(|report| matches!(&report.what, NodeReport::Ended(end) if end.code == Some(0)));
    assert_eq!(ended.count(), 2);
    assert!(!reports().any(|report| matches!(report.what, NodeReport::StopStep { .. })));
}
