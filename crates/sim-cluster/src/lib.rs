//! A simulated cluster in one process, for `lockstep demo`, for large `lockstep up --simulate` and for simulated trials of diagnoses: nodes
//! join a collector over the agent–collector protocol, and ranks exist only as reports and samples.
//!
//! ```text
//! world    ─ pure: (time, commands) ─▶ reports, readings, events, log lines
//!   ├─ attempt   the ranks of one attempt: steps, waits, exits, checkpoints
//!   ├─ training  the time of each part of each step
//!   ├─ gpu       the measurements of a node's GPUs under that load
//!   ├─ scenario  what a run plays: recording, speed, noise, pauses, faults
//!   ├─ slowdown  what faults and pauses add to a step
//!   ├─ workload  the duration of each part of a step: traces of real recipes, stretched
//!   └─ fault     the faults, and when they happen
//! cluster  ─ one task: advances the world once per second and passes each node its output
//! node     ─ one task per node: telemetry stream and control stream to the collector
//! ```
//! The collector marks everything that it shows of these nodes as simulated (`Inventory::simulated`). This crate decides no
//! diagnosis: the collector's own analysers and rules find the faults in the data of the nodes, as in a real cluster.

mod answers;
mod attempt;
mod cluster;
mod fault;
mod gpu;
mod identity;
mod node;
mod noise;
mod reading;
mod scenario;
mod slowdown;
mod training;
mod workload;
mod world;

pub use cluster::{Cluster, start};
pub use fault::{Exit, Fault, FaultKind, Hold, LearnedValue, Part};
pub use identity::node_name;
pub use scenario::{BlockedIn, Noise, Pause, Scenario, WaitPath};
pub use workload::{Workload, workloads};
pub use world::FaultBegun;
