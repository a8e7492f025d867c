//! The product as tests start and use it: the binary, processes of this machine, the collector's API. The test targets of this package
//! share it; each declares `#[path = "../product/mod.rs"] mod product;`.

pub(crate) mod api;
pub(crate) mod environment;
pub(crate) mod process;
pub(crate) mod selection;
