//! Tools that the commands need from the machine: found if installed, downloaded if possible, else reported with instructions.
//!
//! Downloads go to the cache folder. They are put in place completely or not at all, and are used again next time.

pub(crate) mod all_smi;
pub(crate) mod apt;
pub(crate) mod container;
pub(crate) mod npm;
pub(crate) mod venv;
pub(crate) mod wasm;
