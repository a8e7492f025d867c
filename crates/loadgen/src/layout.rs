//! The series of one GPU with Lockstep's own names: those of the GPU, those of the rank on it, and one of its node.
//!
//! The first 30, up to that of the node, are those that the indicators, the analysers and most rules read. `--metrics` takes the first ones.

use std::collections::BTreeSet;

use domain::metric::unit_of;

use crate::healthy::{
    GPU_MEMORY_BYTES, MICRO_BATCH, NODE_MEMORY_BYTES, NVLINKS, POWER_LIMIT_W, Part, Quantity,
    SAMPLES_PER_SECOND_BEST, SM_CLOCK_MAX_HZ, STEPS,
};

/// Bytes that PyTorch holds on a GPU, and those of its tensors at most.
const RESERVED_BYTES: f64 = 68e9;
const ALLOCATED_BYTES: f64 = 62e9;
/// Resident memory of a rank on its node.
const RANK_MEMORY_BYTES: f64 = 9.4e9;
/// The size of the root file system, and its free space.
const ROOT_BYTES: f64 = 1.9e12;
const ROOT_FREE_BYTES: f64 = 1.33e12;

/// A series without its place in the cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template {
    pub(crate) name: &'static str,
    pub(crate) labels: Labels,
    pub(crate) quantity: Quantity,
}

/// Labels besides the name and the node, by name.
pub(crate) type Labels = &'static [(&'static str, Label)];

/// The value of a label.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Label {
    /// The index of the GPU.
    Gpu,
    /// The GPU as PyTorch names it.
    Device,
    /// The network interface beside the GPU.
    Interface,
    Rank,
    Run,
    Text(&'static str),
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    OfGpu(Template),
    /// Another series of the node on each GPU.
    OfNode,
}

const GPU: Labels = &[("gpu", Label::Gpu)];
const ASSIGNMENT: Labels = &[("gpu", Label::Gpu), ("rank", Label::Rank), ("run", Label::Run)];
const THERMAL: Labels = &[
    ("gpu", Label::Gpu),
    ("reason", Label::Text("hw_thermal_slowdown")),
];
const UNCORRECTED: Labels = &[("gpu", Label::Gpu), ("type", Label::Text("uncorrected"))];
const NVLINK: Labels = &[("gpu", Label::Gpu), ("link", Label::Text("nvlink"))];
const PCIE: Labels = &[("gpu", Label::Gpu), ("link", Label::Text("pcie"))];
const RANK: Labels = &[("rank", Label::Rank), ("run", Label::Run)];
const SOFTWARE: Labels = &[
    ("attempt", Label::Text("1")),
    ("backend", Label::Text("nccl")),
    ("device", Label::Device),
    ("python", Label::Text("3.11.2")),
    ("rank", Label::Rank),
    ("run", Label::Run),
    ("torch", Label::Text("2.10.0")),
];
const NONE: Labels = &[];
const STEAL: Labels = &[("mode", Label::Text("steal"))];
const USER: Labels = &[("mode", Label::Text("user"))];
const ROOT: Labels = &[
    ("device", Label::Text("/dev/nvme0n1p2")),
    ("mountpoint", Label::Text("/")),
];
const INTERFACE: Labels = &[("device", Label::Interface)];

const LAYOUT: &[Slot] = &[
    fixed("gpu_up", GPU, 1.0),
    of_gpu("gpu_utilization_ratio", GPU, Quantity::GpuUtilization),
    of_gpu("gpu_memory_used_bytes", GPU, Quantity::GpuMemoryUsed),
    fixed("gpu_memory_total_bytes", GPU, GPU_MEMORY_BYTES as f64),
    of_gpu("gpu_sm_clock_hertz", GPU, Quantity::SmClock),
    fixed("gpu_sm_clock_max_hertz", GPU, SM_CLOCK_MAX_HZ),
    fixed("gpu_throttle", THERMAL, 0.0),
    fixed("gpu_nvlinks_active", GPU, NVLINKS as f64),
    fixed("gpu_nvlinks", GPU, NVLINKS as f64),
    of_gpu("link_utilization_ratio", NVLINK, Quantity::NvlinkUtilization),
    fixed("gpu_assignment_info", ASSIGNMENT, 1.0),
    fixed("train_info", SOFTWARE, 1.0),
    of_gpu("train_step", RANK, Quantity::LastStep),
    fixed("train_pool_steps", RANK, STEPS as f64),
    of_gpu("train_step_seconds", RANK, Quantity::Mean(Part::Step)),
    of_gpu("train_data_seconds", RANK, Quantity::Mean(Part::Data)),
    of_gpu("train_forward_seconds", RANK, Quantity::Mean(Part::Forward)),
    of_gpu("train_backward_seconds", RANK, Quantity::Mean(Part::Backward)),
    of_gpu("train_optimizer_seconds", RANK, Quantity::Mean(Part::Optimizer)),
    of_gpu("train_host_seconds", RANK, Quantity::Mean(Part::Host)),
    of_gpu("train_sync_seconds", RANK, Quantity::Mean(Part::Sync)),
    of_gpu("train_compute_ratio", RANK, Quantity::ComputeRatio),
    of_gpu("train_samples_per_second", RANK, Quantity::SamplesPerSecond),
    of_gpu("train_loss_own", RANK, Quantity::OwnLoss),
    of_gpu("train_grad_norm", RANK, Quantity::GradientNorm),
    fixed("train_process_state", RANK, 0.0),
    of_gpu("train_phase", RANK, Quantity::Phase),
    of_gpu("train_phase_age_seconds", RANK, Quantity::PhaseAge),
    of_gpu("train_moves_total", RANK, Quantity::Moves),
    Slot::OfNode,
    // === beyond the core ===
    fixed("train_samples_per_second_best", RANK, SAMPLES_PER_SECOND_BEST),
    of_gpu("train_loss", RANK, Quantity::LoggedLoss),
    of_gpu("train_loss_best", RANK, Quantity::BestLoss),
    fixed("train_learning_rate", RANK, 3e-4),
    fixed("gpu_ecc_errors_total", UNCORRECTED, 0.0),
    of_gpu("gpu_power_watts", GPU, Quantity::Power),
    fixed("gpu_power_limit_watts", GPU, POWER_LIMIT_W),
    of_gpu("gpu_temperature_celsius", GPU, Quantity::Temperature),
    fixed("gpu_pcie_width", GPU, 16.0),
    fixed("gpu_pcie_width_max", GPU, 16.0),
    of_gpu("train_memory_current_bytes", RANK, Quantity::TensorMemory),
    fixed("train_memory_reserved_bytes", RANK, RESERVED_BYTES),
    fixed("train_memory_allocated_bytes", RANK, ALLOCATED_BYTES),
    fixed("train_memory_alloc_retries_total", RANK, 0.0),
    fixed("train_micro_batch", RANK, MICRO_BATCH),
    of_gpu("train_cpu_seconds_total", RANK, Quantity::CpuSeconds),
    of_gpu("train_run_delay_seconds_total", RANK, Quantity::RunDelaySeconds),
    fixed("train_major_faults_total", RANK, 0.0),
    fixed("train_host_memory_bytes", RANK, RANK_MEMORY_BYTES),
    of_gpu("link_utilization_ratio", PCIE, Quantity::PcieUtilization),
    of_gpu("gpu_sm_active_ratio", GPU, Quantity::SmActive),
    of_gpu("gpu_tensor_active_ratio", GPU, Quantity::TensorActive),
    of_gpu("train_step_seconds_max", RANK, Quantity::Max(Part::Step)),
    of_gpu("train_data_seconds_max", RANK, Quantity::Max(Part::Data)),
    of_gpu("train_forward_seconds_max", RANK, Quantity::Max(Part::Forward)),
    of_gpu("train_backward_seconds_max", RANK, Quantity::Max(Part::Backward)),
    of_gpu(
        "train_optimizer_seconds_max",
        RANK,
        Quantity::Max(Part::Optimizer),
    ),
    of_gpu("train_host_seconds_max", RANK, Quantity::Max(Part::Host)),
    of_gpu("train_sync_seconds_max", RANK, Quantity::Max(Part::Sync)),
];

/// The series of a node, one for each of its first GPUs.
const OF_NODE: [Template; 9] = [
    template("node_cpus", NONE, Quantity::Fixed(96.0)),
    template("node_load1", NONE, Quantity::Load),
    template(
        "node_memory_total_bytes",
        NONE,
        Quantity::Fixed(NODE_MEMORY_BYTES),
    ),
    template("node_memory_available_bytes", NONE, Quantity::MemoryAvailable),
    template("node_filesystem_size_bytes", ROOT, Quantity::Fixed(ROOT_BYTES)),
    template(
        "node_filesystem_available_bytes",
        ROOT,
        Quantity::Fixed(ROOT_FREE_BYTES),
    ),
    template("node_cpu_seconds_total", STEAL, Quantity::Fixed(0.0)),
    template("node_network_up", INTERFACE, Quantity::Fixed(1.0)),
    template("node_cpu_seconds_total", USER, Quantity::ProcessorTime(28.0)),
];
/// The series of a node for each other GPU.
const OF_INTERFACE: Template = template(
    "node_network_receive_bytes_total",
    INTERFACE,
    Quantity::Traffic(4e9),
);

const fn of_gpu(name: &'static str, labels: Labels, quantity: Quantity) -> Slot {
    Slot::OfGpu(template(name, labels, quantity))
}

const fn fixed(name: &'static str, labels: Labels, value: f64) -> Slot {
    of_gpu(name, labels, Quantity::Fixed(value))
}

/// In a constant, a name that is not in the catalogue is a compile error.
const fn template(name: &'static str, labels: Labels, quantity: Quantity) -> Template {
    let _in_the_catalogue = unit_of(name);
    Template {
        name,
        labels,
        quantity,
    }
}

/// Returns the number of series per GPU that exist.
pub(crate) const fn count() -> usize {
    LAYOUT.len()
}

/// Returns a series of a GPU. `metric` is less than [`count`].
pub(crate) fn series(metric: u32, gpu: u32) -> Template {
    match LAYOUT[metric as usize] {
        Slot::OfGpu(template) => template,
        Slot::OfNode => OF_NODE.get(gpu as usize).copied().unwrap_or(OF_INTERFACE),
    }
}

/// Returns the names of the first `metrics` series of all GPUs of a node.
pub(crate) fn names(metrics: u32, gpus: u32) -> BTreeSet<&'static str> {
    let of_gpu = |gpu| (0..metrics).map(move |metric| series(metric, gpu).name);
    (0..gpus).flat_map(of_gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healthy::HealthySignal;
    use domain::metric::{Kind, Metric, Unit, find};

    /// The usual number of series per GPU.
    const CORE: usize = 30;
    /// Twice as many GPUs as there are series of a node.
    const GPUS: u32 = 18;

    fn all() -> impl Iterator<Item = (Template, &'static Metric)> {
        let all = (0..GPUS).flat_map(|gpu| (0..count() as u32).map(move |metric| series(metric, gpu)));
        all.map(|template| (template, find(template.name).expect("a metric of the catalogue")))
    }

    #[test]
    fn labels_are_those_of_the_catalogue_in_order() {
        for (template, metric) in all() {
            let labels = template.labels.iter().map(|(name, _)| *name);
            assert!(labels.clone().is_sorted(), "{}", metric.name);
            for label in labels {
                assert!(metric.labels.contains(&label), "{}: {label}", metric.name);
            }
        }
    }

    #[test]
    fn the_core_has_all_kinds_of_names() {
        let names = names(CORE as u32, 8);
        for prefix in ["gpu_", "node_", "link_", "train_"] {
            assert!(names.iter().any(|name| name.starts_with(prefix)), "{prefix}");
        }
        assert!(matches!(LAYOUT[CORE - 1], Slot::OfNode));
    }

    /// What a value of this unit can be on a node of eight GPUs.
    fn is_plausible(unit: Unit, value: f64) -> bool {
        let whole = value.fract() == 0.0 && value >= 0.0;
        match unit {
            Unit::Ratio => (0.0..=1.0).contains(&value),
            Unit::Flag => value == 0.0 || value == 1.0,
            Unit::Info => value == 1.0,
            Unit::Count | Unit::Code => whole && value < 1e9,
            Unit::Bytes => whole && value < 1e16,
            Unit::Seconds => (0.0..1e7).contains(&value),
            Unit::Watts => (50.0..=POWER_LIMIT_W).contains(&value),
            Unit::Hertz => (1e8..3e9).contains(&value),
            Unit::Celsius => (20.0..90.0).contains(&value),
            Unit::PerSecond => (0.0..1e6).contains(&value),
            Unit::BytesPerSecond => (0.0..1e12).contains(&value),
            Unit::Joules => (0.0..1e12).contains(&value),
            Unit::Number => (0.0..100.0).contains(&value),
        }
    }

    #[test]
    fn values_are_plausible_for_their_unit_and_counters_do_not_fall() {
        for (template, metric) in all() {
            for key in 0..5 {
                let signal = HealthySignal::new(key << 32, 9, template.quantity);
                let values: Vec<f64> = (0..300).map(|tick| signal.at(tick)).collect();
                for value in &values {
                    assert!(is_plausible(metric.unit, *value), "{}: {value}", metric.name);
                }
                let rises = values.is_sorted();
                assert!(metric.kind == Kind::Gauge || rises, "{}", metric.name);
            }
        }
    }
}
