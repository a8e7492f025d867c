//! The NCCL profiler plugin: which collectives a training process starts, how large, when, and how long they take.
//!
//! ```text
//!  NCCL's threads                                                    the plugin's thread
//!  init ─▶ Comms (one slot per communicator)                         every 50 ms
//!  start(Coll, P2p) ─▶ counters of the slot ───────────────────────▶ Summary ─▶ one datagram per second and communicator
//!        └─ arrival ──▶ Ring (8,192, full: dropped and counted) ───▶    ▲
//!  start/record/stop(KernelCh) ─▶ Timings (1,024) ─ finished ─▶ Ring ───┘
//!                                     ▲ GPU timers, a few seconds per minute: the thread sets the mask that NCCL passed
//! ```
//! NCCL loads this library into the training process and calls it from the threads that launch kernels. Therefore the callbacks take no
//! lock, make no system call, allocate no memory and never wait. A panic is caught and switches the probe off, and NCCL always gets
//! success. Facts about the versions of the interface are in [`descriptor`]; the datagram is described in [`summary`] and
//! docs/nccl-probe.md.
//!
//! The library depends on no other crate of Lockstep, not on CUDA, uses no file, and no network except one local datagram socket.

mod abi;
mod descriptor;
mod guard;

mod probe;

mod comm;
mod function;
mod ring;
mod timing;

/// The atomics of [`ring`]. Its test of all interleavings uses others.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

mod clock;
mod mask;
mod settings;
mod version;
mod worker;

mod channel;
mod summary;

pub use abi::{
    EarlyTable, FourthTable, LateTable, ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4,
    ncclProfiler_v5, ncclProfiler_v6, ncclProfiler_v7,
};
