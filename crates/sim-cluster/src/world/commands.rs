//! How a node carries out commands of the collector.

use std::sync::Arc;

use domain::ident::Rank;
use domain::run::spec::Spec;
use domain::run::state::{EndCause, NodeCommand, NodeEnd, NodeReport, Prepared, RankExit, Start};
use domain::time::TimestampMs;

use super::{NodeOutput, World};
use crate::attempt::{Attempt, AttemptPhase, NodeIndex};
use crate::gpu::{self, GPUS};
use crate::identity::address;
use crate::scenario::Scenario;
use crate::workload::{Workload, workloads};

/// The time from the start of the last node to the first step: PyTorch is imported, the model is built.
const START_MS: TimestampMs = 2_000;
/// With this many workers the data loader is fast enough.
const WORKERS_ENOUGH: u32 = 4;
const SIGTERM: i32 = 15;

impl World {
    /// Carries out a command to a node. The result is in the output of the node.
    pub(crate) fn command(
        &mut self,
        node: NodeIndex,
        (run, attempt): (&str, u32),
        command: NodeCommand,
        now_ms: TimestampMs,
    ) -> NodeOutput {
        let mut output = NodeOutput::default();
        let key = (run.to_owned(), attempt);
        match command {
            NodeCommand::Prepare { spec, nnodes, .. } => {
                let scenario = self.scenario(&spec);
                let gpus = u32::try_from(self.gpus[node].len()).unwrap_or(GPUS);
                let of = self
                    .attempts
                    .entry(key)
                    .or_insert_with(|| Attempt::new(run, attempt, scenario, nnodes));
                output.report(of, NodeReport::Prepared(prepared(node, gpus)));
            }
            NodeCommand::Start(start) => {
                if let Some(mut of) = self.attempts.remove(&key) {
                    self.start(&mut of, node, &start, now_ms, &mut output);
                    self.attempts.insert(key, of);
                }
            }
            NodeCommand::Stop { .. } => {
                if let Some(of) = self.attempts.get_mut(&key) {
                    stop(of, node, now_ms, &mut output);
                }
            }
            NodeCommand::StopAfter { step, .. } => {
                if let Some(of) = self.attempts.get_mut(&key) {
                    of.stop_after = Some(step);
                }
            }
            NodeCommand::LookFor { .. } => {
                if let Some(of) = self.attempts.get(&key) {
                    output.report(of, NodeReport::Looked { seen: true });
                }
            }
            NodeCommand::Remove(order) => {
                let report = self.remove(run, &order);
                if let Some((report, of)) = report.zip(self.attempts.get(&key)) {
                    output.report(of, report);
                }
            }
            NodeCommand::Measure(_) | NodeCommand::Checkpoints(_) | NodeCommand::TurnLive { .. } => {}
        }
        output
    }

    /// Returns the scenario with the name of the run, otherwise that of the demo.
    fn scenario(&self, spec: &Spec) -> Arc<Scenario> {
        let known = self.scenarios.get(&spec.name).cloned();
        known.unwrap_or_else(|| Arc::new(Scenario::demo(workload(spec))))
    }

    fn start(
        &mut self,
        of: &mut Attempt,
        node: NodeIndex,
        start: &Start,
        now_ms: TimestampMs,
        output: &mut NodeOutput,
    ) {
        of.nproc = start.nproc.min(GPUS);
        of.resume_step = start.resume_step.unwrap_or_default();
        of.slow_data = slow_data(of.scenario.slow_data, &start.spec);
        of.nodes.insert(start.node_rank, node);
        self.open_storage(of, start.spec.checkpoint_dir.as_deref(), now_ms);
        output.report(
            of,
            NodeReport::ShimStarted {
                pid: 4_000,
                command: format!(
                    "torchrun --nnodes {} --nproc-per-node {} /srv/train.py (simulated)",
                    start.nnodes, of.nproc
                ),
                kept_by: String::new(),
            },
        );
        for (rank, local_rank) in of.ranks_on(node) {
            let pid = 4_100 + local_rank;
            output.report(
                of,
                NodeReport::RankStarted {
                    rank: Rank(rank),
                    local_rank,
                    pid,
                },
            );
            let device = if of.scenario.has_gpus() {
                format!("cuda:{local_rank}")
            } else {
                "cpu".to_owned()
            };
            let world = of.ranks();
            output.line(
                of,
                rank,
                false,
                format!("rank {rank} of {world} on {device} (simulated)"),
            );
        }
        if start.node_rank == 0
            && let Some(report) = self.report_storage(&of.run)
        {
            output.report(of, report);
        }
        if of.nodes.len() == of.nnodes as usize {
            of.phase = AttemptPhase::Starting {
                first_step_ms: Some(now_ms + START_MS),
            };
        }
    }
}

/// Returns the workload of a spec, by its name, otherwise by its recipe.
fn workload(spec: &Spec) -> &'static Workload {
    let all = workloads();
    let by_name = all.iter().find(|workload| workload.name == spec.name);
    let by_recipe = || {
        all.iter()
            .find(|workload| spec.recipe.as_deref() == Some(workload.recipe))
    };
    by_name.or_else(by_recipe).unwrap_or(&all[0])
}

fn slow_data(usual: f64, spec: &Spec) -> f64 {
    let workers = spec
        .set
        .get("num_workers")
        .and_then(|text| text.parse::<u32>().ok());
    if workers.is_some_and(|workers| workers >= WORKERS_ENOUGH) {
        1.0
    } else {
        usual
    }
}

/// Ends the ranks of one node at once.
fn stop(of: &mut Attempt, node: NodeIndex, now_ms: TimestampMs, output: &mut NodeOutput) {
    let step = of.training().map(crate::training::Training::step);
    for (rank, _) in of.ranks_on(node) {
        output.report(
            of,
            NodeReport::RankExited(RankExit {
                rank: Rank(rank),
                signal: Some(SIGTERM),
                last_step: step,
                at_ns: now_ms * 1_000_000,
                ..RankExit::default()
            }),
        );
    }
    let cause = if of.nodes.values().any(|at| *at == node) {
        EndCause::Stopped
    } else {
        EndCause::NeverStarted
    };
    output.report(
        of,
        NodeReport::Ended(NodeEnd {
            cause,
            ..NodeEnd::default()
        }),
    );
    output.over.push(of.run.clone());
    of.nodes.retain(|_, at| *at != node);
    of.phase = AttemptPhase::Over;
}

/// Ends all ranks normally after a step, because they are asked to or because the script is done.
pub(super) fn end_after_step(
    of: &mut Attempt,
    (step, is_asked): (u64, bool),
    now_ms: TimestampMs,
    outputs: &mut [NodeOutput],
) {
    for node in of.nodes.values() {
        let output = &mut outputs[*node];
        for (rank, _) in of.ranks_on(*node) {
            let rank = Rank(rank);
            if is_asked {
                output.report(of, NodeReport::StopStep { rank, step });
            }
            output.report(
                of,
                NodeReport::RankExited(RankExit {
                    rank,
                    code: Some(0),
                    last_step: Some(step),
                    at_ns: now_ms * 1_000_000,
                    ..RankExit::default()
                }),
            );
        }
        output.report(
            of,
            NodeReport::Ended(NodeEnd {
                code: Some(0),
                ..NodeEnd::default()
            }),
        );
        output.over.push(of.run.clone());
    }
    of.nodes.clear();
    of.phase = AttemptPhase::Over;
}

fn prepared(node: NodeIndex, gpus: u32) -> Prepared {
    let of_gpus = |version: &str| {
        if gpus > 0 {
            version.to_owned()
        } else {
            String::new()
        }
    };
    Prepared {
        address: address(node),
        port: 29_500,
        python: "/usr/bin/python3".to_owned(),
        python_version: "3.11.2".to_owned(),
        torch_version: "2.10.0".to_owned(),
        gpus,
        nproc_default: GPUS,
        driver: of_gpus(gpu::DRIVER),
        cuda: of_gpus("12.8"),
        nccl: of_gpus("2.27.3"),
        ..Prepared::default()
    }
}
