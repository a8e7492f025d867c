//! The agent: one on each node. It reads GPUs, links, host and training processes, keeps what it read on disk until the
//! collector has it, serves it on its own `/metrics`, and carries out run commands.
//!
//! ```text
//! sample::*  ──push──▶ Samples ──drain, 1 Hz──▶ uplink::spool ──▶ uplink::session ──▶ collector
//!                         │                        (on disk)           ▲ acknowledgements
//!                         └──latest──▶ exporter (/metrics)
//! ```
//! Absent by design: no knowledge of the store or the collector's code. NVML, /proc and processes are known here only.

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
pub use node::{AgentError, Seen, look, once, run};
pub use sample::sources;
