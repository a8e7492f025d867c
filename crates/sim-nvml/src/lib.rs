//! A simulated `libnvidia-ml.so.1`: the NVML C ABI over a scenario engine.
//!
//! Programs that read GPUs through NVML (the agent, pynvml, nvitop, all-smi) open this library in
//! place of NVIDIA's and see a node of data-centre GPUs that train, idle, overheat or fall off the bus.
//!
//! - `engine` is pure: what a spec means, and what each GPU shows at a given second since the start.
//!   It reads no clock, keeps no state and knows no C.
//! - `abi` is the bridge: C structs, exported functions, the process-wide session, the only clock and
//!   the only `unsafe`.
//!
//! What to simulate comes from `lockstep_sim_configure(spec)`, else from the environment variable
//! `LOCKSTEP_SIMULATE`, else it is `h100x8`. The grammar is in `engine/spec.rs`, that of scenario files, in which things
//! happen one after another, in `engine/script.rs`; examples are in `examples/scenarios`. A program can tell a
//! simulated library from a real one by the presence of the symbol `lockstep_sim_configure`.

mod abi;
mod engine;
