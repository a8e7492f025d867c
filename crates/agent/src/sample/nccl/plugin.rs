//! Chooses the profiler plugin that NCCL loads into a run's ranks, if the run requests nccl-probe.
//!
//! ```text
//! NCCL loads one plugin. The first of these that is set is used:
//!   the run's own env   >   the agent's environment   >   nccl.conf   >   nccl-probe, from beside the executable
//! ```
//! nccl-probe is first copied to `DATA/lib/SHA256/`: a build or an upgrade that replaces the file must not change the file that a running
//! training has mapped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use domain::ident::RunId;
use domain::run::state::Start;
use sha2::{Digest, Sha256};

use crate::launch::Setting;

/// The file name of nccl-probe. It is beside the executable.
const PLUGIN: &str = "libnccl_probe.so";
/// The environment variable that names NCCL's profiler plugin.
const VARIABLE: &str = "NCCL_PROFILER_PLUGIN";
/// The settings file of every process that uses NCCL. The environment takes precedence over it.
const SYSTEM_SETTINGS: &str = "etc/nccl.conf";

/// The plugin that an attempt uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The run does not request nccl-probe.
    Unasked,
    /// nccl-probe, at this path.
    Ours(PathBuf),
    /// Another plugin is configured and stays.
    Other {
        /// The source of the setting.
        by: &'static str,
        /// The value of the setting.
        plugin: String,
    },
    /// nccl-probe is not available, for this reason.
    Missing(String),
}

/// The places that can configure a plugin.
#[derive(Debug)]
struct PluginSources<'a> {
    /// The environment variables of the run.
    run: &'a BTreeMap<String, String>,
    /// The agent's own environment variable, which its ranks inherit.
    inherited: Option<OsString>,
    /// The host's root.
    root: &'a Path,
    /// The folder of the executable.
    beside: &'a Path,
    /// The agent's data folder.
    data_dir: &'a Path,
}

impl Choice {
    /// Chooses the plugin for an attempt that starts. If nccl-probe is requested but not available, the attempt starts without it; the log
    /// and `nccl_probe_state` report this.
    pub(crate) fn for_run(run: &RunId, start: &Start, setting: &Setting) -> Self {
        if !start.spec.nccl_probe {
            return Choice::Unasked;
        }
        let choice = Self::make(&PluginSources {
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

    fn make(sources: &PluginSources<'_>) -> Self {
        let other = |by, plugin: String| Choice::Other { by, plugin };
        if let Some(plugin) = sources.run.get(VARIABLE) {
            return other("the run's environment", plugin.clone());
        }
        if let Some(plugin) = sources.inherited.as_ref().filter(|plugin| !plugin.is_empty()) {
            return other("the agent's environment", plugin.to_string_lossy().into_owned());
        }
        if let Some(plugin) = from_settings(&sources.root.join(SYSTEM_SETTINGS)) {
            return other("/etc/nccl.conf", plugin);
        }
        let source = sources.beside.join(PLUGIN);
        match unpack(&source, sources.data_dir) {
            Ok(path) => Choice::Ours(path),
            Err(error) => Choice::Missing(format!(
                "{} cannot be used ({error}); build it with `cargo build -p nccl-probe` beside the executable",
                source.display()
            )),
        }
    }

    /// Returns the value of `nccl_probe_state` until ranks report.
    pub(crate) fn state(&self) -> Option<&'static str> {
        match self {
            Choice::Unasked => None,
            Choice::Ours(_) => Some("waiting"),
            Choice::Other { .. } => Some("other_plugin"),
            Choice::Missing(_) => Some("missing"),
        }
    }

    /// Returns a message for the log if nccl-probe was requested but is not used.
    pub(crate) fn complaint(&self) -> Option<String> {
        match self {
            Choice::Unasked | Choice::Ours(_) => None,
            Choice::Other { by, plugin } => Some(format!(
                "nccl-probe is not loaded: {by} sets {VARIABLE}={plugin}, and NCCL loads only one profiler; remove that setting to use nccl-probe"
            )),
            Choice::Missing(why) => Some(format!("nccl-probe is not loaded: {why}")),
        }
    }
}

/// Reads the plugin from `NAME=VALUE` lines; `#` starts a comment.
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

/// Copies the library to a folder named by the hash of its content, unless it is already there.
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

/// Returns true if the file has the expected content and no other user could have written it.
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
            Choice::make(&PluginSources {
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
    fn a_configured_plugin_is_kept_and_the_reason_is_reported() {
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
    fn a_plugin_that_was_not_built_is_missing() {
        let machine = Machine::new();
        std::fs::remove_file(machine.folder.path().join(PLUGIN)).unwrap();
        let choice = machine.choose(None);
        assert_eq!(choice.state(), Some("missing"));
        assert!(choice.complaint().unwrap().contains("cargo build -p nccl-probe"));
    }
}
