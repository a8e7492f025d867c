//! A simulated cluster in one process: nodes that join a collector over the agent–collector protocol, and ranks that exist only as reports and
//! samples. For `lockstep demo`.
//!
//! ```text
//! world    ─ pure: (time, commands) ─▶ reports, readings, events, log lines
//!   ├─ attempt   the ranks of one attempt: steps, waits, exits, checkpoints
//!   ├─ gpu       what the GPUs of a node measure under that load
//!   ├─ workload  how long the parts of a step take: traces of real recipes, stretched
//!   └─ fault     what goes wrong, and when
//! cluster  ─ one task: advances the world once per second and hands each node its part
//! node     ─ one task per node: telemetry stream and control stream to the collector
//! ```
//! Everything that the collector shows of it is marked as simulated (`Inventory::simulated`). Nothing here decides a diagnosis: the collector's
//! own analysers and rules find the faults in what the nodes send, as they would in a real cluster.

mod answers;
mod attempt;
mod cluster;
mod fault;
mod gpu;
mod node;
mod noise;
mod reading;
mod training;
mod workload;
mod world;

pub use cluster::{Cluster, start};
pub use workload::{Workload, workloads};
