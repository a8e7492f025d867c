//! A simulated `libnvidia-ml.so.1`: the NVML C ABI over a scenario engine.
//!
//! Programs that read GPUs through NVML (the agent, pynvml, nvitop, all-smi) open this library instead of NVIDIA's. They see a node of
//! data-centre GPUs that train, are idle, overheat or fall off the bus.
//!
//! - `engine` is pure: the meaning of a specification, and what each GPU shows at a given second since the start. It reads no clock, has no
//!   state and contains no C.
//! - `abi` is the C interface: C structs, exported functions, the process-wide session, the only clock and the only `unsafe`.
//!
//! The specification comes from `lockstep_sim_configure(spec)`, otherwise from the environment variable `LOCKSTEP_SIMULATE`; the default is
//! `h100x8`. Its grammar is in `engine/spec.rs`. The grammar of scenario files, in which several things happen, is in
//! `engine/scenario_file.rs`, and examples are in `examples/scenarios`. A program can distinguish the simulator from the real library by the
//! symbol `lockstep_sim_configure`.

mod abi;
mod engine;
