//! The TCP connections of a run's ranks to other nodes.
//!
//! ```text
//! connections   the kernel's list, by netlink: one connection with its figures
//! peers         connections by interface and peer ─▶ series of at most 64 peers per run
//! ```
//! Traffic by RDMA or NVLink has no connections here. The connections of another network namespace than the agent's cannot be seen; then
//! there are no series.

mod connections;
mod peers;

pub(crate) use connections::connections;
pub(crate) use peers::PeerTraffic;
