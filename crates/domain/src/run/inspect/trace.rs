//! Reads a trace of Kineto, PyTorch's profiler, into lanes. It reads the following parts of the JSON:
//!
//! ```text
//! traceEvents[]    ph "X": an interval; ts, dur: start and length in microseconds with three decimals, the start since a time at most
//!                  three months ago; pid, tid: process and thread, or GPU and stream
//!   cat                    name
//!   kernel                 ncclDevKernel_AllGather_RING_LL(…), ncclKernel_ReduceScatter_RING_LL_Sum_float(…), any other name: compute
//!   gpu_user_annotation    Optimizer.step#AdamW.step: from the first to the last kernel that the optimizer started in a stream
//!   user_annotation        Optimizer.step#AdamW.step; gloo:all_gather, while a thread of Gloo carries it out; nccl:all_gather
//!   cuda_runtime           cudaLaunchKernel, also in cuda_driver: only to notice that the kernels are missing
//!   cpu_op                 aten::mm, c10d::_allgather_base_, autograd::engine::evaluate_function: AddmmBackward0
//! ```
//! The file may have hundreds of MiB. It is read event by event, and only intervals are kept: no text of it is part of an answer.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::lanes::{LaneKind, LaneSource, TraceLanes, Work, divide};
use super::spans::{Span, SpanSet};

/// Maximum number of intervals in memory, 16 bytes each. When it is reached, intervals that overlap are merged, which changes no result.
const SPANS_MAX: usize = 1 << 19;
/// Larger values are no times of a trace, in microseconds. The sum of two such values fits in 63 bits of nanoseconds.
const TIME_US_MAX: f64 = 4e15;

/// Parts of the names of kernels that communicate without NCCL: NVSHMEM, DeepEP, and PyTorch's symmetric memory.
const OTHER_TRANSPORTS: [&str; 6] = [
    "nvshmem",
    "deep_ep::",
    "cross_device_reduce_",
    "one_shot_all_reduce_kernel",
    "two_shot_all_reduce_kernel",
    "multimem_",
];
/// Parts of the names of the functions of CUDA that launch kernels.
const LAUNCHES: [&str; 2] = ["LaunchKernel", "GraphLaunch"];
/// Namespaces of operators that wait for other ranks.
const COMMUNICATION_NAMESPACES: [&str; 3] = ["c10d", "_c10d_functional", "c10d_functional"];
/// Namespaces of ranges that contain other work, such as hooks that wait for other ranks.
const OUTER_NAMESPACES: [&str; 3] = ["autograd", "torch", "profiler"];
/// The range of one node of the backward pass. On the CPU, it is in the thread that called `backward`.
const BACKWARD: &str = "autograd::engine::evaluate_function";
/// Beginnings of the ranges of compiled code, whose operators are not in the trace.
const COMPILED: [&str; 2] = ["Torch-Compiled Region", "## Call CompiledFxGraph"];

/// Why a trace has no lanes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LanesError {
    /// The file cannot be read.
    #[error("the trace cannot be read to its end")]
    Io,
    /// The file is not a trace.
    #[error("the trace is not the JSON that PyTorch's profiler writes: line {line}, column {column}")]
    Json {
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error.
        column: usize,
    },
    /// Too many separate intervals.
    #[error(
        "the trace has too many separate intervals, more than {SPANS_MAX}; record fewer steps or seconds"
    )]
    TooMany,
    /// No kernels and no collectives.
    #[error("the trace has neither GPU kernels nor collectives of Gloo")]
    NoWork,
    /// Kernels, but collectives on the CPU.
    #[error(
        "the rank computes on a GPU and communicates with Gloo on the CPU; these times cannot be compared"
    )]
    Mixed,
    /// A GPU is used, but its kernels are missing.
    #[error(
        "the rank uses a GPU, but its trace has no GPU kernels; PyTorch's profiler needs CUPTI to record them"
    )]
    NoKernels,
    /// The operators on the CPU are compiled.
    #[error("the rank runs code of torch.compile on the CPU, whose operators are not in the trace")]
    Compiled,
    /// No thread runs backward passes or optimizers.
    #[error("the trace shows no thread that runs a backward pass or an optimizer")]
    NoTraining,
}

/// Reads the lanes of a trace. The reader should be buffered.
///
/// # Errors
/// Returns an error if the trace is not valid, or if its communication and compute cannot be told apart.
pub fn read_lanes(json: impl Read) -> Result<TraceLanes, LanesError> {
    read_at_most(json, SPANS_MAX)
}

fn read_at_most(json: impl Read, spans_max: usize) -> Result<TraceLanes, LanesError> {
    let mut intervals = Intervals::new(spans_max);
    let mut json = serde_json::Deserializer::from_reader(json);
    let read = json.deserialize_map(Trace(&mut intervals));
    match read.and_then(|()| json.end()) {
        Ok(()) => intervals.lanes(),
        Err(_) if intervals.is_full => Err(LanesError::TooMany),
        Err(error) if error.classify() == Category::Io => Err(LanesError::Io),
        // The text of the error may contain parts of the file.
        Err(error) => Err(LanesError::Json {
            line: error.line(),
            column: error.column(),
        }),
    }
}

// === JSON ===

/// The fields of an event that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    ph: String,
    cat: String,
    name: String,
    ts: f64,
    dur: f64,
    pid: Id,
    tid: Id,
}

impl Event {
    /// Returns the interval of the event, if it has one.
    fn span(&self) -> Option<Span> {
        let times = 0.0..=TIME_US_MAX;
        let has_one = self.ph == "X" && times.contains(&self.ts) && times.contains(&self.dur);
        let nanoseconds = |us: f64| (us * 1_000.0).round() as i64;
        let start = nanoseconds(self.ts);
        has_one.then(|| Span {
            start,
            end: start.saturating_add(nanoseconds(self.dur)),
        })
    }

    fn thread(&self) -> Option<Thread> {
        Some((self.pid.0?, self.tid.0?))
    }
}

/// A process and its thread, or a GPU and its stream.
type Thread = (i64, i64);

/// The id of a process or thread: a number, also as text; `None` for other text.
#[derive(Debug, Default, Clone, Copy)]
struct Id(Option<i64>);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or text")
    }

    fn visit_i64<E>(self, id: i64) -> Result<Id, E> {
        Ok(Id(Some(id)))
    }

    fn visit_u64<E>(self, id: u64) -> Result<Id, E> {
        Ok(Id(i64::try_from(id).ok()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Id, E> {
        Ok(Id(None))
    }

    fn visit_str<E>(self, id: &str) -> Result<Id, E> {
        Ok(Id(id.parse().ok()))
    }
}

/// The whole document: an object with the list of events.
struct Trace<'a>(&'a mut Intervals);

impl<'de> Visitor<'de> for Trace<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                map.next_value_seed(Events(&mut *self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The list of events, which is never in memory as a whole.
struct Events<'a>(&'a mut Intervals);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut events: S) -> Result<(), S::Error> {
        while let Some(event) = events.next_element::<Event>()? {
            self.0.take(&event);
            if self.0.is_full {
                return Err(de::Error::custom("too many intervals"));
            }
        }
        Ok(())
    }
}

// === intervals ===

/// The intervals of a trace that are kept.
#[derive(Debug, Default)]
struct Intervals {
    /// Kernels, by [`LaneKind::index`].
    kernels: [Vec<Span>; 4],
    /// Collectives of Gloo, by [`LaneKind::index`].
    gloo: [Vec<Span>; 4],
    /// Operators on the CPU.
    threads: HashMap<Thread, Operators>,
    /// Steps of optimizers on the GPU, by stream and name.
    gpu_steps: HashMap<(Thread, String), Vec<Span>>,
    /// Steps of optimizers on the CPU, by thread and name.
    cpu_steps: HashMap<(Thread, String), Vec<Span>>,
    /// True if the rank launches kernels or uses NCCL.
    uses_gpu: bool,
    /// True if the trace contains code of `torch.compile`.
    is_compiled: bool,
    /// Number of intervals and of lists of them, at least: it grows until [`compact`](Self::compact) counts them again.
    count: usize,
    spans_max: usize,
    /// True if the intervals do not fit.
    is_full: bool,
}

/// The operators of one thread.
#[derive(Debug, Default)]
struct Operators {
    compute: Vec<Span>,
    /// Operators that wait for other ranks. They may be called by an operator that computes.
    waits: Vec<Span>,
    /// True if the thread runs nodes of the backward pass.
    runs_backward: bool,
}

impl Intervals {
    fn new(spans_max: usize) -> Self {
        Self {
            spans_max,
            ..Self::default()
        }
    }

    fn take(&mut self, event: &Event) {
        let Some(span) = event.span() else {
            return;
        };
        let is_kept = match event.cat.as_str() {
            "kernel" => {
                // With kernels, operators on the CPU are only their launches.
                self.threads.clear();
                self.kernels[kernel_kind(&event.name).index()].push(span);
                true
            }
            "gpu_user_annotation" if is_optimizer_step(&event.name) => {
                add_step(&mut self.gpu_steps, event, span)
            }
            "user_annotation" | "cpu_op" => self.take_range(event, span),
            "cuda_runtime" | "cuda_driver" => {
                self.uses_gpu |= LAUNCHES.iter().any(|part| event.name.contains(part));
                false
            }
            _ => false,
        };
        if is_kept {
            self.count += 1;
            if self.count >= self.spans_max {
                self.compact();
            }
        }
    }

    /// Adds a range on the CPU. Returns true if it is kept.
    fn take_range(&mut self, event: &Event, span: Span) -> bool {
        let name = event.name.as_str();
        if let Some(collective) = name.strip_prefix("gloo:") {
            self.gloo[gloo_kind(collective).index()].push(span);
            return true;
        }
        if is_optimizer_step(name) {
            return add_step(&mut self.cpu_steps, event, span);
        }
        self.uses_gpu |= name.starts_with("nccl:");
        self.is_compiled |= COMPILED.iter().any(|start| name.starts_with(start));
        let Some(thread) = event.thread().filter(|_| !self.has_kernels()) else {
            return false;
        };
        if name.starts_with(BACKWARD) {
            let operators = self.threads.entry(thread).or_default();
            return !std::mem::replace(&mut operators.runs_backward, true);
        }
        let namespace = name.split_once("::").map(|(namespace, _)| namespace);
        let waits = name == "record_param_comms"
            || namespace.is_some_and(|namespace| COMMUNICATION_NAMESPACES.contains(&namespace));
        let computes = event.cat == "cpu_op"
            && namespace.is_some_and(|namespace| !OUTER_NAMESPACES.contains(&namespace));
        if waits {
            self.threads.entry(thread).or_default().waits.push(span);
        } else if computes {
            self.threads.entry(thread).or_default().compute.push(span);
        }
        waits || computes
    }

    fn has_kernels(&self) -> bool {
        self.kernels.iter().any(|spans| !spans.is_empty())
    }

    /// Merges intervals. If that does not halve them, the next ones would be merged again and again, so the trace is given up.
    fn compact(&mut self) {
        self.count = self.threads.len() + self.gpu_steps.len() + self.cpu_steps.len();
        let operators = self.threads.values_mut();
        let operators = operators.flat_map(|of| [&mut of.compute, &mut of.waits]);
        let lanes = self.kernels.iter_mut().chain(&mut self.gloo).chain(operators);
        let steps = self.gpu_steps.values_mut().chain(self.cpu_steps.values_mut());
        for spans in lanes.chain(steps) {
            *spans = SpanSet::of(std::mem::take(spans)).into_spans();
            self.count += spans.len();
        }
        self.is_full = self.count > self.spans_max / 2;
    }

    fn lanes(self) -> Result<TraceLanes, LanesError> {
        let has_gloo = self.gloo.iter().any(|spans| !spans.is_empty());
        if self.has_kernels() {
            let work: Work = self.kernels.map(SpanSet::of);
            let is_communication = |kind: &LaneKind| *kind != LaneKind::Compute;
            let mut kinds = LaneKind::ALL.into_iter().filter(is_communication);
            let communicates = kinds.any(|kind| !work[kind.index()].spans().is_empty());
            if has_gloo && !communicates {
                return Err(LanesError::Mixed);
            }
            let steps = main_optimizer(self.gpu_steps);
            return divide(LaneSource::GpuKernels, &work, steps).ok_or(LanesError::NoWork);
        }
        if self.uses_gpu {
            // The operators on the CPU only launch the work.
            return Err(LanesError::NoKernels);
        }
        if !has_gloo {
            return Err(LanesError::NoWork);
        }
        if self.is_compiled {
            return Err(LanesError::Compiled);
        }
        let mut training: Vec<Thread> = self.cpu_steps.keys().map(|(thread, _)| *thread).collect();
        training.extend(
            self.threads
                .iter()
                .filter(|(_, of)| of.runs_backward)
                .map(|(thread, _)| *thread),
        );
        if training.is_empty() {
            return Err(LanesError::NoTraining);
        }
        // Gloo copies tensors with operators too, in threads of its own.
        let of_training = self
            .threads
            .into_iter()
            .filter(|(thread, _)| training.contains(thread));
        let compute = of_training.flat_map(|(_, of)| {
            let computes = SpanSet::of(of.compute).minus(&SpanSet::of(of.waits));
            computes.into_spans()
        });
        let mut work: Work = self.gloo.map(SpanSet::of);
        work[LaneKind::Compute.index()] = SpanSet::of(compute.collect());
        divide(LaneSource::CpuRanges, &work, main_optimizer(self.cpu_steps)).ok_or(LanesError::NoWork)
    }
}

fn is_optimizer_step(name: &str) -> bool {
    name.starts_with("Optimizer.step#")
}

/// Adds a step of an optimizer. Returns true if it is kept.
fn add_step(steps: &mut HashMap<(Thread, String), Vec<Span>>, event: &Event, span: Span) -> bool {
    let Some(thread) = event.thread() else {
        return false;
    };
    steps.entry((thread, event.name.clone())).or_default().push(span);
    true
}

/// Returns the steps of one optimizer in one thread or stream. An optimizer may also use other streams, and a script may have several
/// optimizers, each of which steps once in a step of the training.
fn main_optimizer(steps: HashMap<(Thread, String), Vec<Span>>) -> Vec<Span> {
    let latest = |spans: &[Span]| spans.iter().map(|span| span.end).max();
    let steps = steps.into_values();
    steps
        .max_by_key(|spans| (spans.len(), latest(spans)))
        .unwrap_or_default()
}

/// Returns the lane of a kernel on the GPU.
fn kernel_kind(name: &str) -> LaneKind {
    let Some((_, of_nccl)) = name.split_once("nccl") else {
        let communicates = OTHER_TRANSPORTS.iter().any(|part| name.contains(part));
        return if communicates {
            LaneKind::OtherCommunication
        } else {
            LaneKind::Compute
        };
    };
    let function = of_nccl.split_once("Kernel_").map_or("", |(_, function)| function);
    if function.starts_with("AllGather") {
        LaneKind::AllGather
    } else if function.starts_with("ReduceScatter") {
        LaneKind::ReduceScatter
    } else {
        LaneKind::OtherCommunication
    }
}

/// Returns the lane of a collective of Gloo.
fn gloo_kind(collective: &str) -> LaneKind {
    match collective.trim_start_matches('_') {
        name if name.starts_with("all_gather") || name.starts_with("allgather") => LaneKind::AllGather,
        name if name.starts_with("reduce_scatter") => LaneKind::ReduceScatter,
        _ => LaneKind::OtherCommunication,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// A trace as Kineto writes it, with events that are not read before these.
    fn trace(events: &[String]) -> String {
        let others = r#"{"name": "process_name", "ph": "M", "ts": 0.000, "pid": -1, "tid": 0, "args": {"name": "python"}},
            {"ph": "X", "cat": "Trace", "ts": 0.000, "dur": 900.000, "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)"},
            {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 0.000},
            {"ph": "s", "id": 4, "pid": 7, "tid": 7, "ts": 1.500, "cat": "ac2g", "name": "ac2g"}"#;
        let events = events.join(",");
        format!(
            r#"{{"schemaVersion": 1, "deviceProperties": [{{"id": 0}}], "traceEvents": [{others},{events}], "traceName": "t.json"}}"#
        )
    }

    /// An event from one microsecond to another.
    fn event(cat: &str, name: &str, thread: u32, (start, end): (u32, u32)) -> String {
        let length = end - start;
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 7, "tid": {thread}, "ts": {start}.000, "dur": {length}.000,
                "args": {{"External id": 3, "Input Dims": [[2, 3], []]}}}}"#
        )
    }

    fn optimizer(cat: &str, thread: u32, times: (u32, u32)) -> String {
        event(cat, "Optimizer.step#AdamW.step", thread, times)
    }

    fn read(events: &[String]) -> Result<TraceLanes, LanesError> {
        read_lanes(trace(events).as_bytes())
    }

    /// Busy microseconds of each lane.
    fn busy_us(lanes: &TraceLanes) -> Vec<u64> {
        lanes.steps[0]
            .lanes
            .iter()
            .map(|lane| lane.busy_ns / 1_000)
            .collect()
    }

    #[test]
    fn lanes_of_a_gpu_are_its_kernels_between_the_ends_of_optimizer_steps() {
        let kernel = |name: &str, stream, times| event("kernel", name, stream, times);
        let lanes = read(&[
            event("cpu_op", "aten::mm", 1, (0, 100)),
            event("cpu_op", "c10d::_allgather_base_", 1, (5, 6)),
            optimizer("user_annotation", 1, (40, 50)),
            optimizer("user_annotation", 1, (50, 60)),
            kernel(
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                20,
                (12, 22),
            ),
            kernel("void at::native::gemm<float>(int)", 7, (20, 60)),
            kernel(
                "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)",
                20,
                (50, 70),
            ),
            kernel("ncclDevKernel_AllReduce_Sum_f32_TREE_LL", 20, (70, 72)),
            event("gpu_memcpy", "Memcpy HtoD", 7, (60, 70)),
            kernel("multi_tensor_apply_kernel", 7, (90, 100)),
            optimizer("gpu_user_annotation", 7, (0, 10)),
            optimizer("gpu_user_annotation", 7, (90, 100)),
            optimizer("gpu_user_annotation", 20, (101, 109)),
        ]);
        let lanes = lanes.unwrap();
        assert_eq!((lanes.source, lanes.steps.len()), (LaneSource::GpuKernels, 1));
        assert_eq!(busy_us(&lanes), [10, 50, 20, 2]);
        let step = &lanes.steps[0];
        assert_eq!(
            (step.duration_ns, step.communication_ns, step.exposed_ns),
            (90_000, 32_000, 20_000)
        );
        assert_eq!(step.lanes[0].spans, [[2_000, 12_000]]);
    }

    #[test]
    fn lanes_of_a_cpu_are_collectives_of_gloo_and_operators_of_the_training_thread() {
        let op = |name: &str, thread, times| event("cpu_op", name, thread, times);
        let gloo = |name: &str, times| event("user_annotation", name, 1, times);
        let lanes = read(&[
            optimizer("user_annotation", 1, (0, 10)),
            gloo("gloo:all_gather", (12, 30)),
            gloo("FSDP::all_gather (layer)", (12, 40)),
            // A DTensor waits inside an operator.
            op("aten::linear", 1, (14, 40)),
            op("_c10d_functional::wait_tensor", 1, (16, 30)),
            // Gloo's own thread.
            op("aten::copy_", 2, (20, 30)),
            // A node of the backward pass contains hooks that wait.
            op("autograd::engine::evaluate_function: AddmmBackward0", 1, (40, 80)),
            op("AddmmBackward0", 1, (41, 79)),
            op("aten::mm", 1, (42, 60)),
            gloo("gloo:all_reduce", (50, 70)),
            gloo("gloo:_reduce_scatter_base", (75, 80)),
            op("aten::_foreach_add_", 1, (90, 100)),
            optimizer("user_annotation", 1, (90, 100)),
        ]);
        let lanes = lanes.unwrap();
        assert_eq!((lanes.source, lanes.steps.len()), (LaneSource::CpuRanges, 1));
        assert_eq!(busy_us(&lanes), [18, 40, 5, 20]);
        let step = &lanes.steps[0];
        assert_eq!((step.communication_ns, step.exposed_ns), (43_000, 31_000));
    }

    #[test]
    fn the_name_of_a_kernel_decides_its_lane() {
        for (name, expected) in [
            (
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                LaneKind::AllGather,
            ),
            (
                "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
                LaneKind::AllGather,
            ),
            (
                "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)",
                LaneKind::AllGather,
            ),
            (
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                LaneKind::ReduceScatter,
            ),
            (
                "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16(ncclSymkDevWorkArgs4K)",
                LaneKind::ReduceScatter,
            ),
            (
                "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16",
                LaneKind::OtherCommunication,
            ),
            (
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                LaneKind::OtherCommunication,
            ),
            (
                "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
                LaneKind::OtherCommunication,
            ),
            (
                "void one_shot_all_reduce_kernel<float, 16>(float*)",
                LaneKind::OtherCommunication,
            ),
            (
                "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
                LaneKind::OtherCommunication,
            ),
            // Compiled code is named after the operators around it.
            (
                "triton_poi_fused_all_gather_into_tensor_wait_tensor_0",
                LaneKind::Compute,
            ),
            (
                "void split_with_sizes_copy_out_contiguous_no_cast_kernel<false>(char**)",
                LaneKind::Compute,
            ),
        ] {
            assert_eq!(kernel_kind(name), expected, "{name}");
        }
    }

    #[test]
    fn a_step_ends_with_the_optimizer_that_steps_most_often() {
        let muon = |times| event("gpu_user_annotation", "Optimizer.step#Muon.step", 7, times);
        let lanes = read(&[
            event("kernel", "gemm", 7, (0, 100)),
            optimizer("gpu_user_annotation", 7, (10, 20)),
            muon((20, 30)),
            optimizer("gpu_user_annotation", 7, (60, 70)),
            muon((70, 80)),
            optimizer("gpu_user_annotation", 7, (88, 89)),
        ]);
        let lengths: Vec<u64> = lanes.unwrap().steps.iter().map(|step| step.duration_ns).collect();
        assert_eq!(lengths, [50_000, 19_000]);
    }

    #[test]
    fn a_trace_whose_lanes_would_be_wrong_has_a_reason_instead() {
        let gloo = event("user_annotation", "gloo:all_reduce", 1, (5, 9));
        let backward = event("cpu_op", "autograd::engine::evaluate_function: X", 1, (1, 5));
        let compiled = event("cpu_op", "Torch-Compiled Region: 0/0", 1, (1, 5));
        let kernel = event("kernel", "gemm", 7, (1, 5));
        let nccl = event("user_annotation", "nccl:all_reduce", 1, (5, 9));
        let launch = event("cuda_runtime", "cudaLaunchKernel", 1, (5, 6));
        for (events, expected) in [
            (&[][..], LanesError::NoWork),
            (std::slice::from_ref(&backward), LanesError::NoWork),
            (std::slice::from_ref(&gloo), LanesError::NoTraining),
            (&[gloo.clone(), backward.clone(), compiled], LanesError::Compiled),
            (&[gloo.clone(), kernel], LanesError::Mixed),
            (&[gloo.clone(), backward.clone(), nccl], LanesError::NoKernels),
            (&[gloo.clone(), backward.clone(), launch], LanesError::NoKernels),
        ] {
            let mut all = vec![event("cpu_op", "aten::mm", 3, (0, 1))];
            all.extend_from_slice(events);
            assert_eq!(read(&all), Err(expected), "{all:?}");
        }
        let lanes = read(&[gloo, backward]).unwrap();
        assert!(lanes.steps[0].whole_trace, "{lanes:?}");
    }

    #[test]
    fn a_time_three_months_after_the_base_time_is_exact_to_the_nanosecond() {
        for start in [1_001_i64, (1 << 52) + 1, 7_889_237_999_999_999] {
            let (us, ns) = (start / 1_000, start % 1_000);
            let json = format!(r#"{{"ph": "X", "ts": {us}.{ns:03}, "dur": 1.001}}"#);
            let event: Event = serde_json::from_str(&json).unwrap();
            let end = start + 1_001;
            assert_eq!(event.span(), Some(Span { start, end }), "{json}");
        }
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused_without_its_text() {
        let cut = trace(&[event("kernel", "gemm", 7, (1, 5))]);
        let cut = &cut[..cut.len() - 30];
        let texts = [
            "",
            "[]",
            "{\"traceEvents\": 7}",
            "{\"traceEvents\": [{\"ts\": \"hf_0123456789abcdef\"}]}",
            "{\"traceEvents\": []} x",
            cut,
        ];
        for text in texts {
            let error = read_lanes(text.as_bytes()).unwrap_err();
            assert!(matches!(error, LanesError::Json { .. }), "{text}: {error:?}");
            assert!(!error.to_string().contains("hf_"), "{error}");
        }
    }

    #[test]
    fn memory_is_bounded_by_merging_what_overlaps_and_by_giving_up_otherwise() {
        let kernels = |length: u32| {
            let kernel = |n: u32| event("kernel", "gemm", 7, (10 * n, 10 * n + length));
            trace(&(0..100).map(kernel).collect::<Vec<_>>())
        };
        let overlapping = kernels(15);
        let merged = read_at_most(overlapping.as_bytes(), 16).unwrap();
        assert_eq!(Ok(merged), read_lanes(overlapping.as_bytes()));
        assert_eq!(read_at_most(kernels(5).as_bytes(), 16), Err(LanesError::TooMany));
    }
}
