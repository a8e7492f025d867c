//! The shim: a small process for each run and node that owns the run's ranks and outlives the agent.
//!
//! ```text
//! agent ──starts──▶ shim ──▶ torchrun ──▶ ranks
//!   ▲                │ ▲                    │ datagrams
//!   └─ files of the ─┘ └────────────────────┘
//!      attempt's folder
//! ```
//! Absent by design: a runtime, threads, the network. A shim talks to no one but the files of its [`Folder`] and its ranks' local
//! sockets. The agent uses this crate to read and write the same files, and to end what a shim left that was killed.

mod cgroup;
mod datagrams;
pub mod files;
mod folder;
mod heard;
mod memory;
mod orders;
mod owner;
pub mod page;
mod rank;
mod reports;
mod secrets;
mod shim;
pub mod time;
mod tree;

pub use cgroup::{Hierarchies, Kinds};
pub use datagrams::{Datagrams, segment_path, segments};
pub use folder::{FORMAT, Folder, write_whole};
pub use heard::Heard;
pub use memory::MemoryKills;
pub use orders::{LiveOrder, StopOrder};
pub use owner::{Owner, Remains};
pub use rank::{End, LastWords, RankProcess, end_by_log, newly_ended};
pub use reports::{CHECKPOINT_IDS_FROM, Entry, Reports, SHIM_IDS_FROM, read_from};
pub use secrets::Secrets;
pub use shim::{main, split_env};
pub use tree::{Process, Stat, all_processes, boot_id, children, environment, marked};
