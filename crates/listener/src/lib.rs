//! Accepts connections of Lockstep's services, so that a client that can only reach a port cannot exhaust them.
//!
//! ```text
//! accept ─▶ Admission: counted by address ─▶ TLS ─▶ GuardedStream ─▶ hyper ─▶ Admitted: each request gets its Connection ─▶ router
//!             │ too many: the oldest                    │ until Connection::authenticate:
//!             │ unauthenticated one is closed           │   8 KiB per request, a deadline, may be closed for a newer one
//! ```
//! A service calls [`Connection::authenticate`] when a request has a valid token. From then on the connection has no limits
//! here. This crate contains nothing about tokens or routes.

mod address;
mod connections;
mod gate;
mod http;
mod open_files;
mod socket;
mod stream;

pub use address::AddressKey;
pub use connections::{Connection, Connections, Limits};
pub use gate::serve;
pub use http::{HEAD_BYTES_MAX, HEAD_TIMEOUT};
pub use open_files::OpenFiles;
pub use socket::listen;
