//! Shared helpers of this module's tests.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Arguments that make the test executable a shim. The folder follows.
const SHIM_ARGUMENTS: [&str; 3] = ["--ignored", "--exact", "launch::testing::shim_process"];

/// The shim itself: this test's own executable, started again.
#[test]
#[ignore = "the process under test; other tests start it"]
fn shim_process() {
    let dir = std::env::args_os().next_back().unwrap();
    assert!(Path::new(&dir).is_dir());
    std::process::exit(shim::main(Path::new(&dir)).into());
}

/// Returns how tests start shims: this executable again.
pub(crate) fn shim_command() -> Vec<OsString> {
    let exe = std::env::current_exe().unwrap();
    std::iter::once(exe.into())
        .chain(SHIM_ARGUMENTS.map(OsString::from))
        .collect()
}

/// A stand-in for a Python with PyTorch. It answers the agent's preflight question, and spawns, polls and reaps ranks as torchrun does, in
/// plain Python. It starts at once, while PyTorch needs seconds.
pub(crate) fn fake_python(folder: &Path) -> PathBuf {
    const PYTHON: &str = r#"#!/usr/bin/env python3
import os, subprocess, sys, time
if sys.argv[1] == "-c":
    print('{"python": "3.11.0", "torch": "2.0.0", "gpus": 0}')
    sys.exit(0)
options = dict(word[2:].split("=", 1) for word in sys.argv[3:] if word.startswith("--") and "=" in word)
program = sys.argv[3 + len(options):]
nproc = int(options["nproc-per-node"])
first = int(options["node-rank"]) * nproc
ranks = []
for local in range(nproc):
    folder = f"{options['log-dir']}/x_1/attempt_0/{local}"
    os.makedirs(folder)
    env = dict(os.environ, RANK=str(first + local), LOCAL_RANK=str(local), WORLD_SIZE="2", TORCHELASTIC_RUN_ID="x")
    ranks.append(subprocess.Popen(["python3"] + program, env=env, start_new_session=True,
                                  stdout=open(folder + "/stdout.log", "wb"), stderr=open(folder + "/stderr.log", "wb")))
while any(rank.poll() is None for rank in ranks):
    time.sleep(0.5)
    if any(rank.poll() not in (None, 0) for rank in ranks):
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            rank.wait()
sys.exit(int(any(rank.returncode for rank in ranks)))
"#;
    let path = folder.join("fake-python");
    std::fs::write(&path, PYTHON).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Returns the Python with PyTorch that `cargo xtask test` installs. If there is none, prints a message and returns `None`.
pub(crate) fn python_with_torch() -> Option<PathBuf> {
    let venv = std::env::var_os("LOCKSTEP_TEST_VENV").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/lockstep/venv"));
    let python = venv.or_else(home)?.join("bin/python");
    if !python.exists() {
        eprintln!("no {}; `cargo xtask test` makes it. Skipped.", python.display());
        return None;
    }
    Some(python)
}
