//! A systemd scope for a shim and all its processes, if the machine uses systemd and the agent may create scopes.
//!
//! ```text
//! lockstep-agent.service      the agent
//! lockstep-RUN.ATTEMPT-….scope      the shim, and below it the cgroup of torchrun and ranks (cgroup.rs): Delegate=yes
//! ```
//! The shim is in its scope from its first instruction. So a restart of the agent's service, a stop without `KillMode=process`, or the end
//! of the session that started it does not affect the training. `systemd-run --scope` registers itself and then executes the command with
//! the same process id: no other process remains in between, and the agent needs no D-Bus library. The agent checks once whether it may
//! create scopes, with a scope for a command that does nothing. If it may not, shims start as they do without systemd.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use shim::CgroupKinds;
use tokio::process::Command;

/// A busy manager needs about one second. One that waits for a person's password cannot be used.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The path by which the running program names itself. systemd-run would resolve it to its own executable.
const SELF: &str = "/proc/self/exe";

/// How scopes are created on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    systemd_run: PathBuf,
    /// Use the user's own manager instead of the machine's.
    user: bool,
}

/// What the choice depends on: the machine, and the agent's user and variables.
#[derive(Debug)]
struct Environment<'a> {
    root: &'a Path,
    /// The value of `PATH`.
    path: OsString,
    is_root: bool,
    /// The value of `XDG_RUNTIME_DIR`.
    runtime_dir: Option<PathBuf>,
    kinds: CgroupKinds,
}

impl Scope {
    /// Returns how this machine creates scopes, after a test. Returns `None` if it cannot.
    pub(crate) async fn of_this_machine() -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name);
        let kinds = variable("LOCKSTEP_CGROUPS").unwrap_or_default();
        let scope = Self::choose(&Environment {
            root: Path::new("/"),
            path: variable("PATH").unwrap_or_default(),
            is_root: rustix::process::geteuid().is_root(),
            runtime_dir: variable("XDG_RUNTIME_DIR").map(PathBuf::from),
            kinds: CgroupKinds::parse(&kinds.to_string_lossy()),
        })?;
        match scope.try_out().await {
            Ok(()) => Some(scope),
            Err(reason) => {
                tracing::info!(
                    reason,
                    "systemd does not create scopes for this agent; shims start without them"
                );
                None
            }
        }
    }

    /// Checks that the machine runs systemd, that `systemd-run` exists, and that there is a manager that this user may use.
    fn choose(environment: &Environment<'_>) -> Option<Self> {
        let booted = environment.root.join("run/systemd/system").is_dir();
        if !booted || environment.kinds != CgroupKinds::Any {
            return None;
        }
        let systemd_run = std::env::split_paths(&environment.path)
            .map(|folder| folder.join("systemd-run"))
            .find(|program| program.is_file())?;
        let user = !environment.is_root;
        let runtime_dir = environment.runtime_dir.as_ref();
        let has_own_manager = runtime_dir.is_some_and(|folder| folder.join("systemd/private").exists());
        (!user || has_own_manager).then_some(Self { systemd_run, user })
    }

    async fn try_out(&self) -> Result<(), String> {
        let command = self.around("try", vec!["true".into()]);
        let mut trial = Command::new(&command[0]);
        trial
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let tried = tokio::time::timeout(ANSWERS_WITHIN, trial.output()).await;
        match tried {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer within 10 s".to_owned()),
        }
    }

    /// Returns the command that runs `command` in a scope of its own.
    pub(crate) fn around(&self, name: &str, command: Vec<OsString>) -> Vec<OsString> {
        self.with_suffix(name, &hex::encode(rand::random::<[u8; 4]>()), command)
    }

    /// Adds a random suffix, so that an old scope that systemd has not removed yet does not conflict.
    fn with_suffix(&self, name: &str, suffix: &str, command: Vec<OsString>) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.systemd_run.clone().into()];
        if self.user {
            words.push("--user".into());
        }
        // Delegated, so that the shim controls the groups below, and the out-of-memory kill of one rank does not end the scope.
        words.extend(
            [
                "--scope",
                "--quiet",
                "--collect",
                "--no-ask-password",
                "--property=Delegate=yes",
            ]
            .map(OsString::from),
        );
        words.push(format!("--unit=lockstep-{name}-{suffix}").into());
        words.push("--".into());
        let own = |word: OsString| {
            if word == SELF {
                format!("/proc/{}/exe", std::process::id()).into()
            } else {
                word
            }
        };
        words.extend(command.into_iter().map(own));
        words
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A machine with these files, and a `systemd-run` that runs this script.
    fn machine(parts: &[&str], script: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for part in parts {
            std::fs::create_dir_all(root.path().join(part)).unwrap();
        }
        let program = root.path().join("systemd-run");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        root
    }

    fn environment(root: &Path, is_root: bool, kinds: CgroupKinds) -> Environment<'_> {
        Environment {
            root,
            path: root.as_os_str().to_owned(),
            is_root,
            runtime_dir: Some(root.join("user")),
            kinds,
        }
    }

    #[test]
    fn the_machines_manager_for_root_the_users_own_for_others_and_none_without() {
        const BOOTED: &str = "run/systemd/system";
        const OWN: &str = "user/systemd/private";
        type Case<'a> = (&'a [&'a str], bool, CgroupKinds, Option<bool>);
        let cases: [Case<'_>; 7] = [
            (&[], true, CgroupKinds::Any, None),
            (&[OWN], false, CgroupKinds::Any, None),
            (&[BOOTED], true, CgroupKinds::Any, Some(false)),
            (&[BOOTED], false, CgroupKinds::Any, None),
            (&[BOOTED, OWN], false, CgroupKinds::Any, Some(true)),
            (&[BOOTED], true, CgroupKinds::Off, None),
            (&[BOOTED], true, CgroupKinds::V1, None),
        ];
        for (parts, is_root, kinds, expected) in cases {
            let root = machine(parts, "");
            let chosen = Scope::choose(&environment(root.path(), is_root, kinds));
            assert_eq!(chosen.map(|scope| scope.user), expected, "{parts:?}");
        }
        let without = machine(&[BOOTED], "");
        std::fs::remove_file(without.path().join("systemd-run")).unwrap();
        assert_eq!(
            Scope::choose(&environment(without.path(), true, CgroupKinds::Any)),
            None
        );
    }

    #[test]
    fn the_command_is_wrapped_and_still_means_this_program() {
        let scope = |user| Scope {
            systemd_run: "/usr/bin/systemd-run".into(),
            user,
        };
        let command = || {
            [SELF, "shim", "--dir", "/data/runs/a.1"]
                .map(OsString::from)
                .into()
        };
        let line = |words: Vec<OsString>| {
            let words: Vec<_> = words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            words.join(" ")
        };
        assert_eq!(
            line(scope(false).with_suffix("a.1", "0f", command())),
            format!(
                "/usr/bin/systemd-run --scope --quiet --collect --no-ask-password --property=Delegate=yes \
                 --unit=lockstep-a.1-0f -- /proc/{}/exe shim --dir /data/runs/a.1",
                std::process::id()
            )
        );
        assert!(
            line(scope(true).with_suffix("a.1", "0f", command()))
                .starts_with("/usr/bin/systemd-run --user --scope")
        );
    }

    #[tokio::test]
    async fn a_manager_that_refuses_or_is_not_there_is_not_used() {
        let passes = r#"while [ "$1" != "--" ]; do shift; done; shift; exec "$@""#;
        let fails = "echo 'Access denied' >&2; exit 1";
        for (script, expected) in [(passes, Ok(())), (fails, Err("Access denied".to_owned()))] {
            let root = machine(&["run/systemd/system"], script);
            let scope = Scope::choose(&environment(root.path(), true, CgroupKinds::Any)).unwrap();
            assert_eq!(scope.try_out().await, expected);
        }
        let missing = Scope {
            systemd_run: "/nowhere/systemd-run".into(),
            user: false,
        };
        assert!(missing.try_out().await.is_err());
    }
}
