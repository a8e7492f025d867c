//! The product as tests start it and ask it: the binary, processes of this machine, the collector's API. Shared by the test
//! targets of this package, each of which says `#[path = "../product/mod.rs"] mod product;`.

pub(crate) mod api;
pub(crate) mod chosen;
pub(crate) mod process;
pub(crate) mod surroundings;
