//! What `bench`, `soak` and `lab` share: programs built as users have them, the binary of an earlier revision, servers on loopback
//! that are started, asked, killed and started again, the generator, what processes and folders take, and the section of a
//! document that a run replaces.

pub(crate) mod build;
pub(crate) mod server;

pub(crate) mod ask;
pub(crate) mod generator;

pub(crate) mod folder;
pub(crate) mod machine;
pub(crate) mod others;
pub(crate) mod process;
pub(crate) mod revision;
pub(crate) mod section;
