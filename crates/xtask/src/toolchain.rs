//! What the work needs from the machine: found when it is there, fetched where that is possible, else named with the way to get it.
//!
//! Everything fetched lands in the cache folder, is put in place whole or not at all, and is used again next time.

pub(crate) mod all_smi;
pub(crate) mod apt;
pub(crate) mod container;
pub(crate) mod npm;
pub(crate) mod venv;
pub(crate) mod wasm;
