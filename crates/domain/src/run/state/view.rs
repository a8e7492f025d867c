//! A run as the API shows it.

use crate::api::runs::{AttemptView, NodeTaskView, RankView, RunSummary, RunView};
use crate::ident::Rank;
use crate::run::state::machine::{Attempt, Machine, NodeTask};

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
        let attempts = self.attempts.iter().map(Attempt::view).collect();
        RunView {
            summary: self.summary(),
            spec: self.spec.clone(),
            attempts,
            stop: None,
            watched: false,
        }
    }
}

impl Attempt {
    fn view(&self) -> AttemptView {
        AttemptView {
            attempt: self.no,
            cause: self.cause.clone(),
            started_ms: self.started_ms,
            ended_ms: self.ended_ms,
            outcome: self.outcome.clone(),
            nodes: (0..)
                .zip(&self.nodes)
                .map(|(node_rank, task)| task.view(node_rank))
                .collect(),
            resumed_from: None,
            last_step: None,
            excluded: Vec::new(),
            provenance: None,
        }
    }
}

impl NodeTask {
    fn view(&self, node_rank: u32) -> NodeTaskView {
        let ranks = self.ranks.iter().map(|(local, task)| RankView {
            rank: Rank(self.first_rank + local),
            local_rank: *local,
            pid: task.pid,
            step: task.first_step,
            exit: task.exit.clone(),
            cascade: false,
        });
        NodeTaskView {
            node: self.node.to_string(),
            node_rank,
            command: self.command.clone(),
            ranks: ranks.collect(),
        }
    }
}
