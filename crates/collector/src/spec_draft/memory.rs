//! The memory plan of a run that has not started.

use domain::api::runs::{MemoryForecast, MemoryPart};
use domain::plan::{Fit, Plan, Settings, plan, ways_to_fit};
use domain::run::spec::Spec;

/// Memory of the CUDA context, NCCL and loaded kernels, as in `lockstep plan memory`.
const FRAMEWORK_BYTES: u64 = 2_000_000_000;
/// Number of processes per node if neither the run nor a node says it. The agent's default on a node without GPUs.
pub(crate) const NPROC_WITHOUT_GPUS: u32 = 2;

/// The smallest GPU of the nodes that accept runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallestGpu {
    /// Its memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Number of GPUs of its node.
    pub(crate) per_node: u32,
}

/// Returns the plan, or why there is none.
pub(super) fn forecast(spec: &Spec, gpu: Option<SmallestGpu>) -> Result<MemoryForecast, String> {
    let per_node = gpu.map_or(NPROC_WITHOUT_GPUS, |gpu| gpu.per_node);
    let nproc = spec.nproc_per_node.unwrap_or(per_node);
    let settings = Settings::of_run(spec, nproc).map_err(|error| error.to_string())?;
    let plan = plan(&settings, FRAMEWORK_BYTES).map_err(|error| error.to_string())?;
    let ways = gpu.map(|gpu| ways_to_fit(&settings, FRAMEWORK_BYTES, gpu.memory_bytes));
    Ok(MemoryForecast {
        gpus: settings.gpus,
        peak_bytes: plan.peak_bytes,
        peak_at: plan.peak_at.label().to_owned(),
        parts: parts(&plan),
        fit: gpu.map(|gpu| Fit::of(plan.peak_bytes, gpu.memory_bytes)),
        ways_to_fit: ways
            .into_iter()
            .flatten()
            .map(|way| way.steps.join(", "))
            .collect(),
    })
}

fn parts(plan: &Plan) -> Vec<MemoryPart> {
    let parts = plan.components.iter().map(|component| MemoryPart {
        name: component.part.label().to_owned(),
        bytes: component.at_peak_bytes,
    });
    let mut parts: Vec<MemoryPart> = parts.filter(|part| part.bytes > 0).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}
