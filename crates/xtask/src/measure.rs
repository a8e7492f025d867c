//! What `bench`, `soak` and `lab` share: release builds, binaries of earlier revisions, servers on loopback that are started, queried,
//! killed and restarted, the load generator, resource use of processes and folders, and the section of a document that a run replaces.

pub(crate) mod build;
pub(crate) mod server;

pub(crate) mod generator;
pub(crate) mod http;

pub(crate) mod background_load;
pub(crate) mod folder;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod revision;
pub(crate) mod section;
