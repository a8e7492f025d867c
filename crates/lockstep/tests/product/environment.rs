//! What a test needs from its machine: the binary under test, and a Python with PyTorch.

use std::path::PathBuf;

/// Returns the binary under test: the one that cargo built for this test, or the one that `LOCKSTEP_TEST_BINARY` names, such as a release.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("LOCKSTEP_TEST_BINARY");
    named.map_or_else(|| env!("CARGO_BIN_EXE_lockstep").into(), PathBuf::from)
}

/// Returns the Python interpreter of the environment with PyTorch.
pub(crate) fn python() -> PathBuf {
    let venv = std::env::var_os("LOCKSTEP_TEST_VENV").map_or_else(|| cache().join("venv"), PathBuf::from);
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "no PyTorch at {}; `cargo xtask test --only rust` installs it",
        venv.display()
    );
    python
}

fn cache() -> PathBuf {
    let given = std::env::var_os("LOCKSTEP_CACHE").map(PathBuf::from);
    given.unwrap_or_else(|| dirs::cache_dir().unwrap().join("lockstep"))
}
