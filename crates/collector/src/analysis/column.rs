//! Which series feed the analysers, and with which meaning.

use domain::ident::{Rank, RunId};
use domain::series::Labels;

/// The meaning of one series for the analysers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(super) subject: Subject,
    pub(super) field: Field,
}

/// What a series is about. The node is always the one whose agent sent the series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A rank of a run.
    Rank { run: RunId, rank: Rank },
    /// A GPU of the node, by the value of the label `gpu`.
    Gpu(String),
    /// The node itself.
    Node,
}

/// The parts of a step, as in [`StepParts`](domain::diagnosis::input::StepParts).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Step,
    Data,
    Forward,
    Backward,
    Optimizer,
    Save,
    Sync,
    Host,
}

/// What a series measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Field {
    PoolSteps,
    LastStep,
    Mean(Part),
    Max(Part),
    MicroBatch,
    OwnLoss,
    LearningRate,
    InputMean,
    InputDeviation,
    LabelMean,
    LabelDeviation,
    /// Share of the most frequent class among the labels.
    LabelTopRatio,
    GradientNorm,
    /// Norm of the rank's own gradients, before they are combined with those of other ranks.
    OwnGradientNorm,
    /// The square of the norm of this rank's part of a sharded gradient.
    GradientSquare,
    PipelineBubble,
    /// Checksum of the parameters that the rank shares with the ranks of a group, which is named by its lowest rank.
    ParametersChecksum {
        group: u32,
    },
    Phase,
    PhaseAge,
    Moves,
    ProcessState,
    CpuSeconds,
    RunDelaySeconds,
    MajorFaults,
    HostMemory,
    /// The rank computes on this GPU.
    Gpu(String),
    /// The GPU throttles for this reason.
    Throttle(String),
    /// PCIe lanes of the GPU, and the highest number that GPU and slot both support.
    PcieWidth,
    PcieWidthMax,
    Cpus,
    StealSeconds,
}

/// Throttle reasons of a GPU that is idle, or whose clocks a user has limited.
const HARMLESS_THROTTLE: [&str; 2] = ["idle", "applications_clocks_setting"];

impl Column {
    /// Returns the meaning of a series for the analysers, or `None`, which holds for nearly all series.
    pub(crate) fn of(labels: &Labels) -> Option<Self> {
        let metric = labels.metric_name()?;
        match metric.split_once('_')?.0 {
            "train" => of_rank(metric, labels),
            "gpu" => of_gpu(metric, labels),
            "node" => of_node(metric, labels),
            _ => None,
        }
    }
}

fn of_rank(metric: &str, labels: &Labels) -> Option<Column> {
    let field = match metric.strip_prefix("train_")? {
        "pool_steps" => Field::PoolSteps,
        "step" => Field::LastStep,
        "micro_batch" => Field::MicroBatch,
        "loss_own" => Field::OwnLoss,
        "learning_rate" => Field::LearningRate,
        "input_mean" => Field::InputMean,
        "input_deviation" => Field::InputDeviation,
        "label_mean" => Field::LabelMean,
        "label_deviation" => Field::LabelDeviation,
        "label_top_ratio" => Field::LabelTopRatio,
        "grad_norm" => Field::GradientNorm,
        "grad_norm_own" => Field::OwnGradientNorm,
        "grad_norm_local_square" => Field::GradientSquare,
        "pipeline_bubble_ratio" => Field::PipelineBubble,
        "parameters_checksum" => Field::ParametersChecksum {
            group: labels.get("replica_group")?.parse().ok()?,
        },
        "phase" => Field::Phase,
        "phase_age_seconds" => Field::PhaseAge,
        "moves_total" => Field::Moves,
        "process_state" => Field::ProcessState,
        "cpu_seconds_total" => Field::CpuSeconds,
        "run_delay_seconds_total" => Field::RunDelaySeconds,
        "major_faults_total" => Field::MajorFaults,
        "host_memory_bytes" => Field::HostMemory,
        part => match part.strip_suffix("_seconds_max") {
            Some(part) => Field::Max(Part::of(part)?),
            None => Field::Mean(Part::of(part.strip_suffix("_seconds")?)?),
        },
    };
    Some(Column {
        subject: rank(labels)?,
        field,
    })
}

fn of_gpu(metric: &str, labels: &Labels) -> Option<Column> {
    let gpu = labels.get("gpu")?.to_owned();
    let field = match metric {
        "gpu_assignment_info" => {
            return Some(Column {
                subject: rank(labels)?,
                field: Field::Gpu(gpu),
            });
        }
        "gpu_throttle" => {
            let reason = labels
                .get("reason")
                .filter(|reason| !HARMLESS_THROTTLE.contains(reason))?;
            Field::Throttle(reason.to_owned())
        }
        "gpu_pcie_width" => Field::PcieWidth,
        "gpu_pcie_width_max" => Field::PcieWidthMax,
        _ => return None,
    };
    Some(Column {
        subject: Subject::Gpu(gpu),
        field,
    })
}

fn of_node(metric: &str, labels: &Labels) -> Option<Column> {
    let field = match metric {
        "node_cpus" => Field::Cpus,
        "node_cpu_seconds_total" if labels.get("mode") == Some("steal") => Field::StealSeconds,
        _ => return None,
    };
    Some(Column {
        subject: Subject::Node,
        field,
    })
}

fn rank(labels: &Labels) -> Option<Subject> {
    Some(Subject::Rank {
        run: RunId::new(labels.get("run")?).ok()?,
        rank: Rank(labels.get("rank")?.parse().ok()?),
    })
}

impl Part {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "step" => Self::Step,
            "data" => Self::Data,
            "forward" => Self::Forward,
            "backward" => Self::Backward,
            "optimizer" => Self::Optimizer,
            "save" => Self::Save,
            "sync" => Self::Sync,
            "host" => Self::Host,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(metric: &str, labels: &[(&str, &str)]) -> Option<Field> {
        let all = [("__name__", metric)].into_iter().chain(labels.iter().copied());
        Column::of(&Labels::new(all).expect("well-formed labels")).map(|column| column.field)
    }

    #[test]
    fn the_series_of_the_analysers_are_known_by_name_and_labels() {
        let rank = [("run", "r1"), ("rank", "3")];
        assert_eq!(field("train_pool_steps", &rank), Some(Field::PoolSteps));
        assert_eq!(field("train_sync_seconds", &rank), Some(Field::Mean(Part::Sync)));
        assert_eq!(
            field("train_sync_seconds_max", &rank),
            Some(Field::Max(Part::Sync))
        );
        assert_eq!(field("train_loss", &rank), None);
        assert_eq!(field("train_grad_norm_own", &rank), Some(Field::OwnGradientNorm));
        assert_eq!(field("train_padding_ratio", &rank), None);
        assert_eq!(field("train_parameters_checksum", &rank), None, "without a group");
        let in_group = [("run", "r1"), ("rank", "3"), ("replica_group", "1")];
        assert_eq!(
            field("train_parameters_checksum", &in_group),
            Some(Field::ParametersChecksum { group: 1 })
        );
        assert_eq!(field("train_rpc_seconds_max", &rank), None);
        assert_eq!(field("train_step", &[("run", "r1")]), None, "without a rank");
        assert_eq!(field("train_step", &[("run", "r1"), ("rank", "x")]), None);
        assert_eq!(field("node_cpu_seconds_total", &[("mode", "user")]), None);
        assert_eq!(
            field("node_cpu_seconds_total", &[("mode", "steal")]),
            Some(Field::StealSeconds)
        );
        assert_eq!(field("gpu_throttle", &[("gpu", "0"), ("reason", "idle")]), None);
        assert_eq!(
            field("gpu_throttle", &[("gpu", "0"), ("reason", "hw_thermal_slowdown")]),
            Some(Field::Throttle("hw_thermal_slowdown".into()))
        );
        assert_eq!(field("gpu_pcie_width", &[("gpu", "0")]), Some(Field::PcieWidth));
        assert_eq!(
            field("gpu_pcie_width_max", &[("gpu", "0")]),
            Some(Field::PcieWidthMax)
        );
        assert_eq!(field("gpu_pcie_generation", &[("gpu", "0")]), None);
        assert_eq!(
            field(
                "gpu_assignment_info",
                &[("gpu", "GPU-1"), ("run", "r1"), ("rank", "0")]
            ),
            Some(Field::Gpu("GPU-1".into()))
        );
    }
}
