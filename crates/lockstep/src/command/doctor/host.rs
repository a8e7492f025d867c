//! Checks of the host: the sources that an agent reads, as the agent reports them, cgroups, and free disk space.

use std::path::Path;

use domain::topology::Source;
use listener::OpenFiles;

use super::check::Check;

/// Below this the spool cannot hold one day of samples, for which it is designed.
const DISK_BYTES_LOW: u64 = 1 << 30;
/// A collector with a thousand agents has two connections per agent, and one or two per user's browser.
const OPEN_FILES_LOW: u64 = 4_096;
/// Below this nothing can be stored.
const DISK_BYTES_MIN: u64 = 64 << 20;

pub(super) fn checks(root: &Path, data: &Path) -> Vec<Check> {
    let mut checks: Vec<Check> = agent::sources(root).into_iter().map(check).collect();
    checks.extend([cgroups(root), disk(data)]);
    checks
}

/// Splits the source's detail: the part before `; ` is what was found, the rest the next step.
fn check(source: Source) -> Check {
    if source.available {
        return Check::works(source.name, source.detail);
    }
    let (found, next) = source.detail.split_once("; ").unwrap_or((&source.detail, ""));
    Check::absent(source.name, found, next)
}

fn cgroups(root: &Path) -> Check {
    let folder = root.join("sys/fs/cgroup");
    if folder.join("cgroup.controllers").is_file() {
        return Check::works("cgroups", "version 2");
    }
    if folder.join("memory").is_dir() || folder.join("unified").is_dir() {
        return Check::works("cgroups", "version 1");
    }
    Check::absent(
        "cgroups",
        "not mounted",
        "needed only for containers and memory limits of runs: mount /sys/fs/cgroup",
    )
}

/// Checks the free space of the file system that contains, or will contain, the data folder.
fn disk(data: &Path) -> Check {
    let there = data
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("/"));
    let free = match rustix::fs::statvfs(there) {
        Ok(stat) => stat.f_bavail * stat.f_frsize,
        Err(error) => {
            return Check::fails(
                "disk",
                format!("{}: {error}", there.display()),
                "choose another folder with --data",
            );
        }
    };
    let found = format!(
        "{:.1} GiB free for {}",
        free as f64 / f64::from(1 << 30),
        data.display()
    );
    if free < DISK_BYTES_MIN {
        Check::fails("disk", found, "free some space, or set another --data folder")
    } else if free < DISK_BYTES_LOW {
        let next = "free some space: one day without a collector needs up to 0.5 GiB";
        Check::absent("disk", found, next)
    } else {
        Check::works("disk", found)
    }
}

/// Checks the limit of open files. Each connection, each file of a run and each chunk that is being read needs one.
pub(super) fn open_files(limits: OpenFiles) -> Check {
    let raised = limits.raised();
    let found = if limits.soft.is_none_or(|soft| soft >= raised) {
        limits.to_string()
    } else {
        format!("{limits}; services raise the soft limit to {raised} at their start")
    };
    if raised < OPEN_FILES_LOW {
        let next = "raise the hard limit: LimitNOFILE=65536 in the systemd unit, or nofile in /etc/security/limits.conf";
        Check::absent("open_files", found, next)
    } else {
        Check::works("open_files", found)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use std::fs;

    use super::*;
    use crate::command::doctor::check::State;

    fn states(root: &Path) -> Vec<State> {
        checks(root, root).iter().map(|check| check.state).collect()
    }

    #[test]
    fn an_empty_root_lacks_all_but_the_disk_and_says_what_would_help() {
        let root = tempfile::tempdir().unwrap();
        let mut expected = [State::Absent; 6];
        expected[5] = State::Works;
        assert_eq!(states(root.path()), expected);
        let checks = checks(root.path(), root.path());
        let helped = checks.iter().filter(|check| check.next.is_some());
        let helped: Vec<&str> = helped.map(|check| &*check.name).collect();
        assert_eq!(helped, ["kernel_log", "ethernet", "cgroups"], "{checks:?}");
    }

    #[test]
    fn few_open_files_are_a_note_with_the_next_step() {
        for (soft, hard, state, words) in [
            (
                1_024,
                1_048_576,
                State::Works,
                "services raise the soft limit to 1048576",
            ),
            (65_536, 65_536, State::Works, "soft limit 65536, hard limit 65536"),
            (
                1_024,
                2_048,
                State::Absent,
                "services raise the soft limit to 2048",
            ),
        ] {
            let check = open_files(OpenFiles {
                soft: Some(soft),
                hard: Some(hard),
            });
            assert_eq!(check.state, state, "{check:?}");
            assert!(check.found.contains(words), "{check:?}");
            assert_eq!(check.next.is_some(), state == State::Absent, "{check:?}");
        }
    }

    #[test]
    fn a_host_with_everything_works() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "dev/kmsg",
            "sys/class/infiniband/mlx5_0/rate",
            "sys/class/net/eth0/device/vendor",
            "proc/1/environ",
            "proc/2/comm",
            "sys/fs/cgroup/cgroup.controllers",
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "kthreadd").unwrap();
        }
        assert!(
            states(root.path()).iter().all(|state| *state == State::Works),
            "{:?}",
            checks(root.path(), root.path())
        );
    }
}
