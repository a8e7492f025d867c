//! The NCCL profiler plugin: what collectives a training process starts, how large, when, and how long they take.
//!
//! ```text
//!  NCCL's threads                                                    our thread
//!  init ─▶ Comms (a slot a communicator)                             every 50 ms
//!  start(Coll, P2p) ─▶ counters of the slot ───────────────────────▶ Summary ─▶ one datagram a second and communicator
//!        └─ arrival ──▶ Ring (8,192, full: dropped and counted) ───▶    ▲
//!  start/record/stop(KernelCh) ─▶ Timings (1,024) ─ finished ─▶ Ring ───┘
//!                                     ▲ GPU timers, a few seconds a minute: the thread sets the mask NCCL gave us
//! ```
//! NCCL loads this library into the training process and calls it from the threads that launch kernels. So the callbacks take no lock,
//! make no system call, allocate nothing and never wait; a panic ends here and switches the probe off; NCCL always hears success.
//! Facts on the versions of the interface are in [`descriptor`]; the datagram is drawn in [`summary`] and docs/nccl-probe.md.
//!
//! Absent by design: no dependency on anything else of ours, no CUDA, no file, no network beyond one local datagram socket.

mod abi;
mod descriptor;
mod guard;

mod probe;

mod comm;
mod function;
mod ring;
mod timing;

/// The atomics of [`ring`]; its test over all interleavings has others.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

mod clock;
mod daemon;
mod mask;
mod settings;
mod version;

mod channel;
mod summary;

pub use abi::{
    EarlyTable, FourthTable, LateTable, ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4,
    ncclProfiler_v5, ncclProfiler_v6, ncclProfiler_v7,
};
