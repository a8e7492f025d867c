//! Findings as text, for terminals, logs and pages.

use crate::diagnosis::clock_reasons;
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

    /// Returns true if the sentence is about this finding: the same culprit and problem, whatever was known of the phase and the cause.
    #[must_use]
    pub fn is_described_by(&self, sentence: &str) -> bool {
        let bare = Self {
            phase: None,
            cause: Cause::Unknown,
            is_suspect: false,
            witnesses: Vec::new(),
            ..self.clone()
        };
        let bare = bare.sentence();
        let rest = sentence.strip_prefix(bare.trim_end_matches('.'));
        rest.is_some_and(|rest| rest.starts_with([' ', ':', '.']))
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
    /// Returns the witness as text: `rank 2: time per step in the phase optimizer step 395 ms, its peers 180 ms`.
    #[must_use]
    pub fn words(&self) -> String {
        let measured = if self.what == Evidence::Throttled {
            self.throttling()
        } else {
            self.measurement()
        };
        format!("{}: {measured}", self.source.words())
    }

    fn throttling(&self) -> String {
        let share = || format!("{} % of the time", significant(self.value * 100.0, 3));
        let does = yes_or_no(self.value).map_or_else(share, str::to_owned);
        let reasons: String = self
            .detail
            .split(", ")
            .filter(|reason| !reason.is_empty())
            .map(|reason| format!(", {}", clock_reasons::words(reason)))
            .collect();
        // The value of the peers is their median. It is `yes` or `no` only if that is true for most of them.
        let peers = self
            .compared_with
            .and_then(yes_or_no)
            .map(|peers| format!("; most of its peers: {peers}"))
            .unwrap_or_default();
        format!("{}: {does}{reasons}{peers}", self.what.words())
    }

    fn measurement(&self) -> String {
        let phase = self.phase();
        let what = match (&self.what, phase) {
            (Evidence::PhaseSeconds, Some(phase)) => {
                format!("time per step in the phase {}", phase.words())
            }
            (what, Some(phase)) => format!("{} in the phase {}", what.words(), phase.words()),
            (what, None) => what.words().to_owned(),
        };
        let compared = self
            .compared_with
            .map(|value| self.compared(&self.value_words(value)))
            .unwrap_or_default();
        let detail = match phase {
            None if !self.detail.is_empty() => format!(" ({})", self.detail),
            _ => String::new(),
        };
        format!("{what}{}{compared}{detail}", self.value_words(self.value))
    }

    /// Returns the phase, if the detail is one.
    fn phase(&self) -> Option<Phase> {
        match self.what {
            Evidence::PhaseSeconds | Evidence::OwnUsualSeconds => {
                serde_json::from_value(self.detail.as_str().into()).ok()
            }
            _ => None,
        }
    }

    /// Returns a value with its unit and the space before it; nothing if it is unknown or says nothing.
    fn value_words(&self, value: f64) -> String {
        match (&self.what, self.unit.as_str()) {
            (Evidence::PipeWithoutWriter, _) => String::new(),
            (Evidence::ProcessState, _) => format!(": {}", process_state(value)),
            (Evidence::KernelStarted, _) => format!(": {}", yes_or_no(value).unwrap_or("unknown")),
            (_, "seconds") if !value.is_finite() => String::new(),
            (_, "seconds") => format!(" {}", duration(value)),
            // The number of CPUs that a rank uses can be greater than 1.
            (Evidence::CpuShare, _) | (_, "") => format!(" {}", number(value)),
            (_, "ratio") => format!(" {} %", significant(value * 100.0, 3)),
            (_, unit) => format!(" {} {unit}", number(value)),
        }
    }

    /// Returns the part of the text that has the value to compare with.
    fn compared(&self, value: &str) -> String {
        match self.what {
            Evidence::PeersWait => format!(", the slow rank{value}"),
            Evidence::OwnUsualSeconds => format!(", now{value}"),
            Evidence::LastEnqueued => format!(", its peers wait in{value}"),
            Evidence::DifferentStacks => format!(" of{value} samples"),
            Evidence::PhaseSeconds
            | Evidence::RunDelay
            | Evidence::Steal
            | Evidence::PcieWidthRatio
            | Evidence::MajorFaults
            | Evidence::MicroBatch => format!(", its peers{value}"),
            _ => format!(", compared with{value}"),
        }
    }
}

/// Returns the state of a process for a value of `train_process_state`.
fn process_state(value: f64) -> String {
    match value as i64 {
        1 => "stopped by a signal or a debugger".to_owned(),
        2 => "uninterruptible sleep".to_owned(),
        3 => "ended".to_owned(),
        _ => number(value),
    }
}

fn yes_or_no(value: f64) -> Option<&'static str> {
    if value == 1.0 {
        Some("yes")
    } else if value == 0.0 {
        Some("no")
    } else {
        None
    }
}

/// Prints a duration: below one second in milliseconds.
fn duration(seconds: f64) -> String {
    // A value that is rounded to 1000 ms is printed as seconds.
    if seconds.abs() < 0.999_5 {
        format!("{} ms", significant(seconds * 1e3, 3))
    } else {
        format!("{} s", significant(seconds, 3))
    }
}

/// Prints a number without a unit. Sequence numbers and checksums keep all their digits.
fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        significant(value, 4)
    }
}

/// Prints a number with at least this many significant digits, without trailing zeros after the point.
fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = value.abs().log10().floor();
    let decimals = (f64::from(digits) - 1.0 - exponent).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.decimals$}");
    if decimals == 0 {
        return text;
    }
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
            Self::PeersWait => "wait for other ranks per step",
            Self::PhaseSeconds => "time in a step",
            Self::OwnUsualSeconds => "its usual time per step",
            Self::LostPerMinute => "time lost per minute",
            Self::Throttled => "GPU throttles",
            Self::RunDelay => "share of time it waits for a CPU",
            Self::Steal => "share of CPU time taken by the hypervisor",
            Self::PcieWidthRatio => "PCIe lanes as a share of the maximum",
            Self::MajorFaults => "major page faults per second",
            Self::MicroBatch => "samples in a micro-batch",
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
            Self::KernelNotStarted => "the kernel of the collective has not started on its GPU",
            Self::Working => "it works on something else, as its stack shows",
            Self::Saving => "it saves a checkpoint",
            Self::Throttled => "its GPU throttles",
            Self::RunDelay => "its process waits for a free CPU",
            Self::BusyProcessors => "its process waits for a free CPU, and so do those of its peers",
            Self::Steal => "the hypervisor takes CPU time from its node",
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

    #[test]
    fn an_event_describes_the_finding_whatever_phase_and_cause_it_names() {
        let rank = |rank| Culprit::Ranks {
            ranks: [Rank(rank)].into_iter().collect(),
            nodes: vec!["b".into()],
        };
        let slow = |of, phase, cause| finding(FindingKind::Straggler, rank(of), phase, cause);
        let now = slow(3, Some(Phase::Optimizer), Cause::Throttled);
        for (other, expected) in [
            (slow(3, None, Cause::Unknown), true),
            (slow(3, Some(Phase::Data), Cause::Data), true),
            (slow(30, Some(Phase::Optimizer), Cause::Throttled), false),
            (finding(FindingKind::Hang, rank(3), None, Cause::Stopped), false),
        ] {
            let sentence = other.sentence();
            assert_eq!(now.is_described_by(&sentence), expected, "{sentence}");
        }
        let unknown = |cause| finding(FindingKind::Hang, Culprit::Unknown, None, cause);
        assert!(unknown(Cause::Unknown).is_described_by(&unknown(Cause::Desynchronised).sentence()));
    }

    fn witness(
        source: Source,
        what: Evidence,
        (value, unit): (f64, &str),
        compared_with: Option<f64>,
    ) -> Witness {
        Witness {
            source,
            what,
            value,
            unit: unit.into(),
            compared_with,
            detail: String::new(),
        }
    }

    #[test]
    fn a_witness_has_values_with_units_and_words_for_signals() {
        let rank = || Source::Rank { rank: Rank(17) };
        let ranks = [Rank(0), Rank(1), Rank(2)].into_iter().collect();
        let peers = Source::Peers { ranks };
        let kernel = || Source::Kernel { node: "a".into() };
        let driver = || Source::Driver { node: "a".into() };
        let (s, ratio) = ("seconds", "ratio");
        for (witness, detail, expected) in [
            (
                witness(rank(), Evidence::PhaseSeconds, (0.3952, s), Some(0.18)),
                "optimizer",
                "rank 17: time per step in the phase optimizer step 395 ms, its peers 180 ms",
            ),
            (
                witness(rank(), Evidence::OwnUsualSeconds, (0.0176, s), Some(1.25)),
                "data",
                "rank 17: its usual time per step in the phase data loading 17.6 ms, now 1.25 s",
            ),
            (
                witness(rank(), Evidence::PhaseSeconds, (3.2, s), None),
                "longest stall, in the phase data loading",
                "rank 17: time in a step 3.2 s (longest stall, in the phase data loading)",
            ),
            (
                witness(peers.clone(), Evidence::PeersWait, (0.2153, s), Some(0.0012)),
                "",
                "ranks 0–2: wait for other ranks per step 215 ms, the slow rank 1.2 ms",
            ),
            (
                witness(peers.clone(), Evidence::WaitsInCollective, (754.3, s), None),
                "all_reduce",
                "ranks 0–2: wait in a collective 754 s (all_reduce)",
            ),
            (
                witness(peers, Evidence::WaitsInCollective, (f64::NAN, s), None),
                "",
                "ranks 0–2: wait in a collective",
            ),
            (
                witness(driver(), Evidence::Throttled, (1.0, ""), Some(0.0)),
                "hw_slowdown, hw_power_brake",
                "GPU driver of a: GPU throttles: yes, hardware slowdown (temperature or power), \
                 hardware power brake (external power supply); most of its peers: no",
            ),
            (
                witness(driver(), Evidence::Throttled, (1.0, ""), Some(0.5)),
                "",
                "GPU driver of a: GPU throttles: yes",
            ),
            (
                witness(driver(), Evidence::PcieWidthRatio, (0.625, ratio), Some(1.0)),
                "",
                "GPU driver of a: PCIe lanes as a share of the maximum 62.5 %, its peers 100 %",
            ),
            (
                witness(kernel(), Evidence::ProcessState, (1.0, ""), None),
                "rank 3",
                "kernel of a: state of the process: stopped by a signal or a debugger (rank 3)",
            ),
            (
                witness(kernel(), Evidence::PipeWithoutWriter, (1.0, ""), None),
                "rank 3, pipe:[7]",
                "kernel of a: it reads a pipe that no other process has open (rank 3, pipe:[7])",
            ),
            (
                witness(kernel(), Evidence::CpuShare, (1.98, ratio), None),
                "",
                "kernel of a: CPUs used 1.98",
            ),
            (
                witness(rank(), Evidence::DifferentStacks, (1.0, ""), Some(6.0)),
                "",
                "rank 17: different stacks 1 of 6 samples",
            ),
            (
                witness(rank(), Evidence::LastEnqueued, (120.0, ""), Some(121.0)),
                "group 0",
                "rank 17: last operation enqueued 120, its peers wait in 121 (group 0)",
            ),
            (
                witness(rank(), Evidence::LearningRate, (0.000_03, ""), Some(0.0003)),
                "",
                "rank 17: learning rate 0.00003, compared with 0.0003",
            ),
            (
                witness(rank(), Evidence::ParametersChecksum, (4_123_456_789.0, ""), None),
                "",
                "rank 17: checksum of the parameters 4123456789",
            ),
        ] {
            let detail = detail.to_owned();
            assert_eq!(Witness { detail, ..witness }.words(), expected);
        }
    }

    #[test]
    fn a_duration_has_three_digits_and_changes_its_unit_at_one_second() {
        for (seconds, expected) in [
            (0.0, "0 ms"),
            (0.000_21, "0.21 ms"),
            (0.999_4, "999 ms"),
            (0.9996, "1 s"),
            (100.0, "100 s"),
            (1_234.4, "1234 s"),
        ] {
            assert_eq!(duration(seconds), expected);
        }
    }
}
