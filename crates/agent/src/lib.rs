//! The agent, one per node. It reads GPUs, links, the host and training processes, keeps the samples on disk until the collector
//! acknowledges them, serves the latest values on its own `/metrics`, and carries out run commands.
//!
//! ```text
//! sample::*  ──push──▶ Samples ──drain, 1 Hz──▶ uplink::spool ──▶ uplink::session ──▶ collector
//!                         │                        (on disk)           ▲ acknowledgements
//!                         └──latest──▶ exporter (/metrics)
//! ```
//! The agent does not use the store or the collector's code. Only the agent (and `shim`) uses NVML, `/proc` and processes.

pub mod config;
pub mod node;

mod lock;
mod program_pages;

pub mod sample;

pub mod launch;

pub mod exporter;
pub mod release;
pub mod uplink;

pub use config::{AgentConfig, MetricsConfig, NvmlSource, Secret};
pub use lock::lock_holder;
pub use node::{AgentError, NodeSnapshot, once, run, snapshot};
pub use sample::sources;
