//! Conversion of a run's state to the types of the API.

use super::{
    AttemptView, BandwidthFigure, BandwidthView, ExcludedNode, NodeTaskView, RankView, RunSummary, RunView,
    StopView,
};
use crate::ident::Rank;
use crate::run::bandwidth::{BandwidthOptions, judge};
use crate::run::spec::Spec;
use crate::run::state::{
    Attempt, DesiredState, Exclusion, Machine, NodeTask, StopPoint, is_cascade, named_rank,
};

impl From<&Machine> for RunSummary {
    fn from(machine: &Machine) -> Self {
        let attempt = machine.current();
        let spec = &machine.spec;
        Self {
            id: machine.id.to_string(),
            name: spec.display_name(),
            program: spec
                .recipe
                .clone()
                .or_else(|| spec.script.clone())
                .unwrap_or_default(),
            state: machine.state,
            outcome: machine.outcome.clone(),
            attempt: attempt.no,
            nodes: attempt.nodes.iter().map(|task| task.node.to_string()).collect(),
            world_size: attempt
                .nodes
                .iter()
                .map(|task| u32::try_from(task.ranks.len()).unwrap_or(u32::MAX))
                .sum(),
            owner: machine.owner.clone(),
            labels: spec.labels.clone(),
            submitted_ms: machine.submitted_ms,
            started_ms: machine.started_ms,
            ended_ms: machine.ended_ms,
        }
    }
}

/// Leaves fields empty that only the collector can fill: unread reports, unknown attempts, steps since the last checkpoint.
impl From<&Machine> for RunView {
    fn from(machine: &Machine) -> Self {
        Self {
            summary: machine.into(),
            spec: machine.spec.shown(),
            attempts: machine
                .attempts
                .iter()
                .map(|attempt| attempt_view(attempt, &machine.spec))
                .collect(),
            state_since_ms: machine.state_since_ms.or(machine.ended_ms),
            total_steps: machine.spec.total_steps(),
            stop: stop_view(machine),
            steps_since_checkpoint: None,
            watched: machine.watched,
            unknown_attempts: Vec::new(),
            pending: machine.pending.as_ref().map(|pending| pending.change.clone()),
            unread_reports: Vec::new(),
        }
    }
}

/// Returns the stop that is in progress or requested; `None` if the run has ended.
fn stop_view(machine: &Machine) -> Option<StopView> {
    if machine.state.is_final() || (machine.desired == DesiredState::Run && machine.stop_plan().is_none()) {
        return None;
    }
    let point = machine.stop_plan().map(|plan| plan.point);
    let after_step = match point {
        Some(StopPoint::Step(step)) => Some(step),
        _ => None,
    };
    Some(StopView {
        after_step,
        after_checkpoint: point == Some(StopPoint::Checkpoint),
        steps_lost: None,
    })
}

fn attempt_view(attempt: &Attempt, spec: &Spec) -> AttemptView {
    let named = named_rank(attempt);
    AttemptView {
        attempt: attempt.no,
        cause: attempt.cause.clone(),
        started_ms: attempt.started_ms,
        ended_ms: attempt.ended_ms,
        outcome: attempt.outcome.clone(),
        nodes: (0..)
            .zip(&attempt.nodes)
            .map(|(node_rank, task)| NodeTaskView {
                node: task.node.to_string(),
                node_rank,
                command: task.command.clone(),
                ranks: ranks(task, attempt, named),
            })
            .collect(),
        resumed_from: attempt.placement.resumed_from.clone(),
        last_step: attempt.last_step(),
        last_good_step: attempt
            .progress
            .divergence
            .as_ref()
            .map(|divergence| divergence.last_good_step),
        excluded: attempt.placement.excluded.iter().map(excluded).collect(),
        provenance: attempt.findings.provenance.clone(),
        warnings: attempt.findings.warnings.clone(),
        knobs: attempt.knobs.values.clone(),
        change: attempt.knobs.change.as_deref().cloned(),
        answers: attempt.knobs.answers.clone(),
        bandwidth: bandwidth_view(attempt, &spec.preflight_bandwidth),
        mesh: attempt.findings.mesh.clone(),
        unseen: attempt.findings.unobserved.lines(),
        live: attempt.knobs.live.clone(),
    }
}

fn excluded(exclusion: &Exclusion) -> ExcludedNode {
    ExcludedNode {
        node: exclusion.node.to_string(),
        reason: exclusion.fault.reason.clone(),
    }
}

fn ranks(task: &NodeTask, attempt: &Attempt, named: Option<Rank>) -> Vec<RankView> {
    let ranks = task.ranks.iter().map(|(local, rank)| RankView {
        rank: Rank(task.first_rank + local),
        local_rank: *local,
        pid: rank.pid,
        step: rank.last_step(),
        exit: rank.exit.clone(),
        stall: rank.stall.clone().filter(|_| rank.exit.is_none()),
        cascade: rank
            .exit
            .as_ref()
            .is_some_and(|exit| is_cascade(attempt, named, exit)),
    });
    ranks.collect()
}

fn bandwidth_view(attempt: &Attempt, options: &BandwidthOptions) -> Option<BandwidthView> {
    let check = attempt.findings.bandwidth.as_ref()?;
    let name = |node: u32| attempt.name(node).to_owned();
    let judged = judge(&check.figures, options);
    let limit = judged.limit_mib_s;
    Some(BandwidthView {
        rounds: check.rounds,
        rounds_done: check.round + u32::from(check.waiting.is_empty()),
        usual_mib_s: judged.usual_mib_s,
        slow_below_mib_s: (limit > 0.0).then_some(limit),
        slow_as_asked: options.min_mib_s.is_some_and(|asked| asked >= limit),
        figures: check
            .figures
            .iter()
            .map(|figure| BandwidthFigure {
                from: name(figure.from),
                to: name(figure.to),
                mib_s: figure.mib_s,
                slow: figure.mib_s.is_some_and(|mib_s| mib_s < limit),
                problem: figure.problem.clone(),
            })
            .collect(),
    })
}
