//! A run as the API shows it.

use crate::api::runs::{AttemptView, ExcludedNode, NodeTaskView, RankView, RunSummary, RunView};
use crate::ident::Rank;
use crate::run::spec::Spec;
use crate::run::state::judge::{is_cascade, named_rank};
use crate::run::state::machine::{Attempt, Exclusion, Machine, NodeTask};

impl Machine {
    /// The line of the list.
    #[must_use]
    pub fn summary(&self) -> RunSummary {
        let attempt = self.current();
        let spec = &self.spec;
        RunSummary {
            id: self.id.to_string(),
            name: spec.display_name(),
            program: spec
                .recipe
                .clone()
                .or_else(|| spec.script.clone())
                .unwrap_or_default(),
            state: self.state,
            outcome: self.outcome.clone(),
            attempt: attempt.no,
            nodes: attempt.nodes.iter().map(|task| task.node.to_string()).collect(),
            world_size: attempt
                .nodes
                .iter()
                .map(|task| u32::try_from(task.ranks.len()).unwrap_or(u32::MAX))
                .sum(),
            submitted_ms: self.submitted_ms,
            started_ms: self.started_ms,
            ended_ms: self.ended_ms,
        }
    }

    /// Everything about it.
    #[must_use]
    pub fn view(&self) -> RunView {
        let attempts = self
            .attempts
            .iter()
            .map(|attempt| attempt.view(&self.spec))
            .collect();
        RunView {
            summary: self.summary(),
            spec: self.spec.shown(),
            attempts,
            stop: self.stop_view(),
            steps_since_checkpoint: None,
            watched: self.watched,
            unknown_attempts: Vec::new(),
            pending: self.pending.as_ref().map(|pending| pending.change.clone()),
            // Of the store, not of the machine.
            unread_reports: Vec::new(),
        }
    }
}

impl Attempt {
    fn view(&self, spec: &Spec) -> AttemptView {
        let named = named_rank(self);
        AttemptView {
            attempt: self.no,
            cause: self.cause.clone(),
            started_ms: self.started_ms,
            ended_ms: self.ended_ms,
            outcome: self.outcome.clone(),
            nodes: (0..)
                .zip(&self.nodes)
                .map(|(node_rank, task)| task.view(node_rank, (self, named)))
                .collect(),
            resumed_from: self.resumed_from.clone(),
            last_step: self.last_step(),
            excluded: self.excluded.iter().map(excluded).collect(),
            provenance: self.provenance.clone(),
            warnings: self.warnings.clone(),
            knobs: self.knobs.clone(),
            change: self.change.as_deref().cloned(),
            answers: self.answers.clone(),
            bandwidth: self.bandwidth_view(&spec.preflight_bandwidth),
            mesh: self.mesh.clone(),
            unseen: self.unseen.lines(),
            live: self.live.clone(),
        }
    }
}

fn excluded(exclusion: &Exclusion) -> ExcludedNode {
    ExcludedNode {
        node: exclusion.node.to_string(),
        reason: exclusion.fault.reason.clone(),
    }
}

impl NodeTask {
    fn view(&self, node_rank: u32, (attempt, named): (&Attempt, Option<Rank>)) -> NodeTaskView {
        let ranks = self.ranks.iter().map(|(local, task)| RankView {
            rank: Rank(self.first_rank + local),
            local_rank: *local,
            pid: task.pid,
            step: task.last_step(),
            exit: task.exit.clone(),
            stall: task.stall.clone().filter(|_| task.exit.is_none()),
            cascade: task
                .exit
                .as_ref()
                .is_some_and(|exit| is_cascade(attempt, named, exit)),
        });
        NodeTaskView {
            node: self.node.to_string(),
            node_rank,
            command: self.command.clone(),
            ranks: ranks.collect(),
        }
    }
}
