//! Which profiler plugin NCCL will load into a run's ranks, when the run asks for ours.
//!
//! ```text
//! one can be loaded, and whoever chose one keeps it:
//!   the run's own env   >   the agent's environment   >   nccl.conf   >   ours, from beside the executable
//! ```
//! Ours is copied to `DATA/lib/SHA256/` first: a build or an upgrade that replaces the file must not change what a running training has mapped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use domain::ident::RunId;
use domain::run::state::Start;
use sha2::{Digest, Sha256};

use crate::launch::Setting;

/// The file's name, beside the executable.
const PLUGIN: &str = "libnccl_probe.so";
/// By which NCCL is told.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
/// Read by every process that uses NCCL; what the environment has wins over it.
const SYSTEM_SETTINGS: &str = "etc/nccl.conf";

/// What became of the wish for the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Not asked for.
    Unasked,
    /// Ours, at this path.
    Ours(PathBuf),
    /// Somebody else's stays.
    Other {
        /// Who says so.
        by: &'static str,
        /// Which.
        plugin: String,
    },
    /// Ours cannot be had.
    Missing(String),
}

/// Where to look.
#[derive(Debug)]
struct Surroundings<'a> {
    /// The run's own variables.
    run: &'a BTreeMap<String, String>,
    /// The agent's variable, which its ranks inherit.
    inherited: Option<OsString>,
    /// The host's root.
    root: &'a Path,
    /// The folder of the executable.
    beside: &'a Path,
    /// The agent's data folder.
    data_dir: &'a Path,
}

impl Choice {
    /// Chooses for an attempt that starts. Asked for and not to be had is no reason not to train: it is said, and shown by
    /// `nccl_probe_state`.
    pub(crate) fn for_run(run: &RunId, start: &Start, setting: &Setting) -> Self {
        if !start.spec.nccl_probe {
            return Choice::Unasked;
        }
        let choice = Self::make(&Surroundings {
            run: &start.spec.env,
            inherited: std::env::var_os(VARIABLE),
            root: &setting.root,
            beside: &setting.beside,
            data_dir: &setting.data_dir,
        });
        if let Some(complaint) = choice.complaint() {
            tracing::warn!(%run, "{complaint}");
        }
        choice
    }

    fn make(around: &Surroundings<'_>) -> Self {
        let other = |by, plugin: String| Choice::Other { by, plugin };
        if let Some(plugin) = around.run.get(VARIABLE) {
            return other("the run's environment", plugin.clone());
        }
        if let Some(plugin) = around.inherited.as_ref().filter(|plugin| !plugin.is_empty()) {
            return other("the agent's environment", plugin.to_string_lossy().into_owned());
        }
        if let Some(plugin) = from_settings(&around.root.join(SYSTEM_SETTINGS)) {
            return other("/etc/nccl.conf", plugin);
        }
        let source = around.beside.join(PLUGIN);
        match unpack(&source, around.data_dir) {
            Ok(path) => Choice::Ours(path),
            Err(error) => Choice::Missing(format!(
                "{} cannot be used ({error}); build it with `cargo build -p nccl-probe` beside the executable",
                source.display()
            )),
        }
    }

    /// The word of `nccl_probe_state`, until ranks report.
    pub(crate) fn state(&self) -> Option<&'static str> {
        match self {
            Choice::Unasked => None,
            Choice::Ours(_) => Some("waiting"),
            Choice::Other { .. } => Some("other_plugin"),
            Choice::Missing(_) => Some("missing"),
        }
    }

    /// A sentence for the log, where a person should know.
    pub(crate) fn complaint(&self) -> Option<String> {
        match self {
            Choice::Unasked | Choice::Ours(_) => None,
            Choice::Other { by, plugin } => Some(format!(
                "nccl-probe is not loaded: {by} sets {VARIABLE}={plugin}, and NCCL loads one profiler; take that out to have nccl-probe"
            )),
            Choice::Missing(why) => Some(format!("nccl-probe is not loaded: {why}")),
        }
    }
}

/// `NAME=VALUE` lines; `#` begins a comment.
fn from_settings(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = |line: &str| {
        let (name, value) = line.split('#').next()?.split_once('=')?;
        (name.trim() == VARIABLE).then(|| value.trim().to_owned())
    };
    text.lines()
        .filter_map(value)
        .next_back()
        .filter(|value| !value.is_empty())
}

/// Copies the library to a folder named by its content, unless it is there already.
fn unpack(source: &Path, data_dir: &Path) -> io::Result<PathBuf> {
    let bytes = std::fs::read(source)?;
    let folder = data_dir.join("lib").join(hex::encode(Sha256::digest(&bytes)));
    let path = folder.join(PLUGIN);
    if is_ours(&path, &bytes) {
        return Ok(path);
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
    let beside = folder.join(format!(".unpacking-{}", std::process::id()));
    std::fs::write(&beside, &bytes)?;
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o444))?;
    std::fs::rename(&beside, &path)?;
    Ok(path)
}

/// Whether the file is what was unpacked, and nobody else could have written it.
fn is_ours(path: &Path, bytes: &[u8]) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let trusted = std::fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.uid() == own && meta.mode() & 0o022 == 0);
    trusted && std::fs::read(path).is_ok_and(|there| there == bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    struct Machine {
        folder: tempfile::TempDir,
        run: BTreeMap<String, String>,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(folder.path().join("etc")).unwrap();
            std::fs::write(folder.path().join(PLUGIN), "a library").unwrap();
            Self {
                folder,
                run: BTreeMap::new(),
            }
        }

        fn choose(&self, inherited: Option<&str>) -> Choice {
            let data_dir = self.folder.path().join("data");
            Choice::make(&Surroundings {
                run: &self.run,
                inherited: inherited.map(OsString::from),
                root: self.folder.path(),
                beside: self.folder.path(),
                data_dir: &data_dir,
            })
        }
    }

    #[test]
    fn ours_is_unpacked_by_content_and_survives_a_new_build() {
        let machine = Machine::new();
        let Choice::Ours(first) = machine.choose(None) else {
            panic!("not ours");
        };
        assert_eq!(std::fs::read(&first).unwrap(), b"a library");
        assert_eq!(std::fs::metadata(&first).unwrap().mode() & 0o777, 0o444);
        assert_eq!(machine.choose(None), Choice::Ours(first.clone()));
        std::fs::write(machine.folder.path().join(PLUGIN), "another build").unwrap();
        let Choice::Ours(second) = machine.choose(None) else {
            panic!("not ours");
        };
        assert_ne!(first, second);
        assert_eq!(std::fs::read(&first).unwrap(), b"a library");
    }

    #[test]
    fn a_changed_file_is_unpacked_again() {
        let machine = Machine::new();
        let Choice::Ours(path) = machine.choose(None) else {
            panic!("not ours");
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        std::fs::write(&path, "evil").unwrap();
        assert_eq!(machine.choose(None), Choice::Ours(path.clone()));
        assert_eq!(std::fs::read(&path).unwrap(), b"a library");
    }

    #[test]
    fn whoever_chose_a_plugin_keeps_it_and_hears_why() {
        let mut machine = Machine::new();
        let by = |choice: Choice| match choice {
            Choice::Other { by, plugin } => (by, plugin),
            other => panic!("{other:?}"),
        };
        std::fs::write(
            machine.folder.path().join("etc/nccl.conf"),
            "NCCL_DEBUG=INFO\n# NCCL_PROFILER_PLUGIN=no\nNCCL_PROFILER_PLUGIN = inspector # ours\n",
        )
        .unwrap();
        assert_eq!(
            by(machine.choose(None)),
            ("/etc/nccl.conf", "inspector".to_owned())
        );
        assert_eq!(by(machine.choose(Some("comma"))).0, "the agent's environment");
        machine.run.insert(VARIABLE.into(), "none".into());
        let choice = machine.choose(Some("comma"));
        assert!(
            choice
                .complaint()
                .unwrap()
                .contains("the run's environment sets NCCL_PROFILER_PLUGIN=none")
        );
        assert_eq!(choice.state(), Some("other_plugin"));
    }

    #[test]
    fn a_plugin_that_was_not_built_is_said_to_be_missing() {
        let machine = Machine::new();
        std::fs::remove_file(machine.folder.path().join(PLUGIN)).unwrap();
        let choice = machine.choose(None);
        assert_eq!(choice.state(), Some("missing"));
        assert!(choice.complaint().unwrap().contains("cargo build -p nccl-probe"));
    }
}
