//! Findings as text, for terminals, logs and pages.

use crate::diagnosis::finding::{Cause, Culprit, Evidence, Finding, FindingKind, Source, Witness};
use crate::diagnosis::input::Phase;

impl Finding {
    /// Returns the finding as one sentence: culprit, problem, node and cause.
    #[must_use]
    pub fn sentence(&self) -> String {
        let who = self.culprit.words();
        let does = match &self.kind {
            FindingKind::Hang => "blocks the run, which makes no progress",
            FindingKind::WorksAlone => "works by itself while the others wait",
            FindingKind::Straggler => "is slower than its peers",
            FindingKind::RareStalls => "stalls intermittently while the others wait",
            FindingKind::UnevenLearning => "learns differently from its peers",
            FindingKind::ReplicasDiffer => "has different parameters from the other replicas",
            FindingKind::NodeBlind => "sends no data; the state of its ranks is unknown",
            FindingKind::Other(kind) => kind,
        };
        let phase = self
            .phase
            .map(|phase| format!(" in the phase {}", phase.words()))
            .unwrap_or_default();
        let cause = self
            .cause
            .words()
            .map(|cause| format!(": {cause}"))
            .unwrap_or_default();
        let who = match &self.culprit {
            Culprit::Unknown if self.kind == FindingKind::Hang => {
                return format!("The run makes no progress, and no culprit is known{cause}.");
            }
            Culprit::Sides { .. } if self.kind == FindingKind::UnevenLearning => {
                return format!("The ranks learn differently: {who}{cause}.");
            }
            Culprit::Sides { .. } if self.kind == FindingKind::ReplicasDiffer => {
                return format!("Replicas have different parameters: {who}{cause}.");
            }
            Culprit::Sides { .. } => {
                return format!("The run makes no progress; its ranks disagree: {who}{cause}.");
            }
            _ => capitalised(&who),
        };
        let suspect = if self.is_suspect {
            " (suspect: one witness)"
        } else {
            ""
        };
        format!("{who} {does}{phase}{cause}{suspect}.")
    }

    /// Returns the cause of a straggler as a sentence, if it is known. The text of the rule can only list the possible causes.
    #[must_use]
    pub fn cause_sentence(&self) -> Option<String> {
        let is_unknown = matches!(self.cause, Cause::Computing | Cause::Unknown | Cause::Other(_));
        if self.kind != FindingKind::Straggler || self.is_suspect || is_unknown {
            return None;
        }
        Some(format!("{}.", capitalised(self.cause.words()?)))
    }
}

impl Culprit {
    /// Returns the culprit as text: `rank 3 on node-b`, `ranks 0–7 on node-a`, `node node-a`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Ranks { ranks, nodes } => match nodes.as_slice() {
                [] => ranks.words(),
                nodes => format!("{} on {}", ranks.words(), nodes.join(", ")),
            },
            Self::Node { node, .. } => format!("node {node}"),
            Self::Sides { sides } => {
                let sides: Vec<String> = sides.iter().map(crate::run::ranks::RankSet::words).collect();
                sides.join(" against ")
            }
            Self::Unknown => "an unknown rank".to_owned(),
        }
    }

    /// Returns the node, if all culprits are on one node.
    #[must_use]
    pub fn only_node(&self) -> Option<&str> {
        match self {
            Self::Ranks { nodes, .. } => match nodes.as_slice() {
                [node] => Some(node),
                _ => None,
            },
            Self::Node { node, .. } => Some(node),
            Self::Sides { .. } | Self::Unknown => None,
        }
    }
}

impl Witness {
    /// Returns the witness as text: `rank 2: waits in a collective 7.21 s, its peers 0.02 s (all_reduce)`.
    #[must_use]
    pub fn words(&self) -> String {
        let unit = if self.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", self.unit)
        };
        let compared = self
            .compared_with
            .map(|with| format!(", compared with {}{unit}", short(with)))
            .unwrap_or_default();
        let detail = if self.detail.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.detail)
        };
        format!(
            "{}: {} {}{unit}{compared}{detail}",
            self.source.words(),
            self.what.words(),
            short(self.value)
        )
    }
}

/// Prints at most three decimals, without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Source {
    /// Returns the source as text: `rank 2`, `kernel of node-a`.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Rank { rank } => format!("rank {}", rank.0),
            Self::Peers { ranks } => ranks.words(),
            Self::Kernel { node } => format!("kernel of {node}"),
            Self::Driver { node } => format!("GPU driver of {node}"),
            Self::Nic { node } => format!("network interfaces of {node}"),
            Self::Agent { node } => format!("agent of {node}"),
        }
    }
}

impl Evidence {
    /// Returns what was measured, as a noun.
    #[must_use]
    pub fn words(&self) -> &str {
        match self {
            Self::SecondsWithoutMove => "time without progress",
            Self::WaitsInCollective => "wait in a collective",
            Self::ProcessState => "state of the process",
            Self::LastEnqueued => "last operation enqueued",
            Self::UnfinishedOperation => "unfinished operation",
            Self::DifferentStacks => "different stacks",
            Self::CpuShare => "CPUs used",
            Self::PipeWithoutWriter => "it reads a pipe that no other process has open",
            Self::PeersWait => "wait of the peers per step in addition to its own",
            Self::PhaseSeconds => "time per step in this phase",
            Self::OwnUsualSeconds => "its usual time per step",
            Self::LostPerMinute => "time lost per minute",
            Self::Throttled => "GPU throttles",
            Self::ClockRatio => "GPU clock as a share of its maximum",
            Self::RunDelay => "share of time it waits for a CPU",
            Self::Steal => "share of CPU time taken by the hypervisor",
            Self::OtherProcesses => "other processes on the GPU",
            Self::PcieWidthRatio => "PCIe lanes as a share of the maximum",
            Self::MajorFaults => "major page faults per second",
            Self::MicroBatch => "samples in a micro-batch",
            Self::NetworkErrors => "network errors per second",
            Self::KernelStarted => "kernel of the operation has started",
            Self::OwnLoss => "own loss",
            Self::InputMean => "mean of its inputs",
            Self::LabelMean => "mean of its labels",
            Self::TopClassShare => "share of the most frequent class",
            Self::OwnGradientNorm => "norm of its own gradients",
            Self::LearningRate => "learning rate",
            Self::ParametersChecksum => "checksum of the parameters",
            Self::NotHeard => "time since its last data",
            Self::Other(what) => what,
        }
    }
}

impl Phase {
    /// Returns the phase as text: `waiting for data`, `forward pass`.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Starting => "start of the process",
            Self::TorchImported => "after the import of torch",
            Self::Rendezvous => "rendezvous",
            Self::GroupMade => "set-up of the model",
            Self::ModelWrapped => "set-up of the data",
            Self::Data => "data loading",
            Self::Forward => "forward pass",
            Self::Backward => "backward pass",
            Self::Optimizer => "optimizer step",
            Self::Host => "code between steps",
            Self::Collective => "collective",
            Self::Save => "saving a checkpoint",
            Self::Ending => "end of the script",
        }
    }
}

impl Cause {
    /// Returns the cause as a part of a sentence; `None` if it is unknown.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        Some(match self {
            Self::Ended => "its process has ended",
            Self::Stopped => "its process is stopped by a signal or a debugger",
            Self::Uninterruptible => {
                "its process waits in the kernel for a disk, a network file system or a driver"
            }
            Self::NotEnqueued => "it has not entered the collective in which the others wait",
            Self::HoldsInterpreter => "it holds the GIL, Python's global interpreter lock",
            Self::MessageMissing => "it waits for a message that no rank sends",
            Self::Desynchronised => "ranks do operations of different kinds, sizes or types",
            Self::GroupOrder => "ranks entered two process groups in different orders",
            Self::Network => "all ranks have entered the collective, and the network has errors",
            Self::KernelNotStarted => "the kernel of the collective has not started on its GPU",
            Self::Working => "it works on something else, as its stack shows",
            Self::Saving => "it saves a checkpoint",
            Self::Throttled => "its GPU throttles",
            Self::LowClock => "its GPU runs at a lower clock than the others",
            Self::RunDelay => "its process waits for a free CPU",
            Self::BusyProcessors => "its process waits for a free CPU, and so do those of its peers",
            Self::Steal => "the hypervisor takes CPU time from its node",
            Self::OtherProcess => "another process uses its GPU",
            Self::PcieWidth => "its GPU has fewer PCIe lanes than it could have",
            Self::MajorFaults => "its memory is read back from disk",
            Self::LargerBatch => "its batches are larger",
            Self::Data => "its data loader is slow",
            Self::Computing => "its own computation takes longer",
            Self::HostCode => "the script's own code between steps takes longer",
            Self::OtherLoss => "its loss differs from that of its peers",
            Self::OtherInputs => "the distribution of its inputs differs from that of its peers",
            Self::OtherLabels => "the distribution of its labels differs from that of its peers",
            Self::OtherLearningRate => "its learning rate differs from that of its peers",
            Self::LargerGradients => "its own gradients are far larger than those of its peers",
            Self::ParametersDiverged => "they were equal before",
            Self::ParametersNeverEqual => "they have differed since the attempt began",
            Self::LearningRateRaised => "the learning rate was raised since the loss was lowest",
            Self::GradientsGrew => "the gradients have grown with the loss",
            Self::NeverFell => "the loss has not fallen since the attempt began",
            Self::StoppedFalling => "the loss has stopped falling",
            Self::NotHeard => "its node sends no data",
            Self::Unknown => return None,
            Self::Other(cause) => cause,
        })
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Severity;
    use crate::ident::Rank;

    fn finding(kind: FindingKind, culprit: Culprit, phase: Option<Phase>, cause: Cause) -> Finding {
        Finding {
            kind,
            culprit,
            phase,
            cause,
            since_ms: 0,
            since_step: None,
            witnesses: vec![],
            is_suspect: false,
            is_symptom: false,
            severity: Severity::Warning,
            lost_seconds: 0.0,
        }
    }

    #[test]
    fn a_finding_is_described_in_one_sentence() {
        let rank = |rank| Culprit::Ranks {
            ranks: [Rank(rank)].into_iter().collect(),
            nodes: vec!["b".into()],
        };
        let hang = finding(FindingKind::Hang, rank(3), Some(Phase::Backward), Cause::Stopped);
        assert_eq!(
            hang.sentence(),
            "Rank 3 on b blocks the run, which makes no progress in the phase backward pass: its process is stopped by a signal or a debugger."
        );
        assert_eq!(hang.culprit.only_node(), Some("b"));
        let slow = Finding {
            is_suspect: true,
            ..finding(FindingKind::Straggler, rank(0), None, Cause::Unknown)
        };
        assert_eq!(
            slow.sentence(),
            "Rank 0 on b is slower than its peers (suspect: one witness)."
        );
        let unknown = finding(FindingKind::Hang, Culprit::Unknown, None, Cause::Unknown);
        assert_eq!(
            unknown.sentence(),
            "The run makes no progress, and no culprit is known."
        );
    }

    #[test]
    fn the_cause_of_a_straggler_is_a_sentence_if_it_is_known() {
        let cause = |cause| finding(FindingKind::Straggler, Culprit::Unknown, None, cause).cause_sentence();
        assert_eq!(cause(Cause::Throttled).as_deref(), Some("Its GPU throttles."));
        assert_eq!(cause(Cause::Data).as_deref(), Some("Its data loader is slow."));
        for unknown in [Cause::Computing, Cause::Unknown, Cause::Other("newer".into())] {
            assert_eq!(cause(unknown), None);
        }
        let throttled = |kind| finding(kind, Culprit::Unknown, None, Cause::Throttled);
        assert_eq!(throttled(FindingKind::Hang).cause_sentence(), None);
        let suspect = Finding {
            is_suspect: true,
            ..throttled(FindingKind::Straggler)
        };
        assert_eq!(suspect.cause_sentence(), None);
    }
}
