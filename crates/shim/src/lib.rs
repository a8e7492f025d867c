//! The shim: a small process that owns the ranks of one attempt on one node and outlives the agent.
//!
//! ```text
//! agent ──starts──▶ shim ──▶ torchrun ──▶ ranks
//!   ▲                │ ▲                    │ datagrams
//!   └─ files of the ─┘ └────────────────────┘
//!      attempt's folder
//! ```
//! The shim has no async runtime, no threads and no network, by design. It uses only the files of its [`Folder`] and the local sockets of
//! its ranks. The agent uses this crate to read and write the same files, and to end the processes of a shim that was killed.

mod cgroup;
mod datagrams;
pub mod files;
mod folder;
mod memory;
mod orders;
mod owner;
pub mod page;
mod probe_message;
mod rank;
mod reports;
mod secrets;
mod shim;
pub mod time;
mod tree;

pub use cgroup::{CgroupKinds, Hierarchies};
pub use datagrams::{Datagrams, segment_path, segments};
pub use folder::{FORMAT, Folder, lock_file, remove_if_exists, write_whole};
pub use memory::MemoryKills;
pub use orders::{LiveOrder, StopOrder};
pub use owner::{LeftoverProcesses, Owner};
pub use probe_message::ProbeMessage;
pub use rank::{End, ErrorRecord, RankProcess, end_by_log, newly_ended};
pub use reports::{CHECKPOINT_IDS_FROM, Entry, Reports, SHIM_IDS_FROM, read_from};
pub use secrets::Secrets;
pub use shim::{main, split_env};
pub use tree::{Process, Stat, all_processes, boot_id, children, environment, marked};
