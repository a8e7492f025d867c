//! How Lockstep's services accept connections, so that nobody who merely reaches a port can exhaust them.
//!
//! ```text
//! accept ─▶ Admission: counted by address ─▶ TLS ─▶ GuardedStream ─▶ hyper ─▶ Admitted: each request gets its Connection ─▶ router
//!             │ too many: the oldest                    │ until Connection::authenticate:
//!             │ unauthenticated one is closed           │   8 KiB per request, a deadline, may be closed for a newer one
//! ```
//! A service calls [`Connection::authenticate`] when a request has shown a valid token. From then on the connection has no limits here.
//! There is no knowledge of tokens or routes in this crate.

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
pub use http::{HEAD_BYTES_MAX, HEAD_WITHIN};
pub use open_files::OpenFiles;
pub use socket::listen;
