//! What an agent reads of the host, and what it needs there: kernel log, InfiniBand, cgroups, room on the disk.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::check::Check;

/// Below this the spool cannot hold the day that it is made for.
const DISK_BYTES_LOW: u64 = 1 << 30;
/// Below this nothing can be kept at all.
const DISK_BYTES_MIN: u64 = 64 << 20;

pub(super) fn checks(root: &Path, data: &Path) -> Vec<Check> {
    vec![
        kernel_log(root),
        infiniband(root),
        processes(root),
        cgroups(root),
        disk(data),
    ]
}

/// Some Xid errors are only there: NVML cannot tell of a GPU that is gone.
fn kernel_log(root: &Path) -> Check {
    // Opened as it is read: some systems let everybody open it and nobody read it, and reading must not wait for a new line.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc_nonblock());
    let read = options.open(root.join("dev/kmsg")).and_then(|mut log| {
        let mut line = [0; 8_192];
        match std::io::Read::read(&mut log, &mut line) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            read => read,
        }
    });
    match read {
        Ok(_) => Check::works(
            "kernel_log",
            "/dev/kmsg can be read: Xid errors come with their details",
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Check::absent(
            "kernel_log",
            "there is no /dev/kmsg here",
            "in a container, hand the device in; without it Xid errors come from NVML alone",
        ),
        Err(error) => Check::absent(
            "kernel_log",
            format!("/dev/kmsg cannot be read ({error})"),
            "run the agent as root or with CAP_SYSLOG; without it Xid errors come from NVML alone",
        ),
    }
}

fn libc_nonblock() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0)
}

fn infiniband(root: &Path) -> Check {
    let devices = names(&root.join("sys/class/infiniband"));
    if devices.is_empty() {
        let next = "nothing, if there is no such card; else load its driver, and in a container mount the host's /sys";
        return Check::absent("infiniband", "no RDMA device", next);
    }
    Check::works("infiniband", devices.join(", "))
}

/// Which run a GPU works for is read from the environment of its processes.
fn processes(root: &Path) -> Check {
    match fs::read(root.join("proc/1/environ")) {
        Ok(_) => Check::works(
            "processes",
            "environments can be read: GPUs are attributed to runs and ranks",
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Check::absent(
            "processes",
            "environments of other users' processes cannot be read",
            "run the agent as root or with CAP_SYS_PTRACE, or GPUs used by others' programs stay without a run",
        ),
        Err(error) => Check::fails(
            "processes",
            format!("{} cannot be read ({error})", root.join("proc").display()),
            "mount the host's /proc, and name its place with --root",
        ),
    }
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
        "none is mounted",
        "only for containers and memory limits of runs: mount /sys/fs/cgroup",
    )
}

/// Of the file system that the data folder is on, or will be.
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
        Check::fails("disk", found, "make room, or choose another folder with --data")
    } else if free < DISK_BYTES_LOW {
        let next = "make room: a day without a collector takes up to half a GiB";
        Check::absent("disk", found, next)
    } else {
        Check::works("disk", found)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::command::doctor::check::State;

    fn states(root: &Path) -> Vec<State> {
        checks(root, root).iter().map(|check| check.state).collect()
    }

    #[test]
    fn an_empty_root_lacks_all_but_the_disk_and_says_what_would_help() {
        let root = tempfile::tempdir().unwrap();
        let (absent, fails) = (State::Absent, State::Fails);
        assert_eq!(states(root.path()), [absent, absent, fails, absent, State::Works]);
        let missing = checks(root.path(), root.path());
        assert!(
            missing[..4].iter().all(|check| check.next.is_some()),
            "{missing:?}"
        );
    }

    #[test]
    fn a_host_with_everything_works() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "dev/kmsg",
            "sys/class/infiniband/mlx5_0/rate",
            "proc/1/environ",
            "sys/fs/cgroup/cgroup.controllers",
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        assert!(
            states(root.path()).iter().all(|state| *state == State::Works),
            "{:?}",
            checks(root.path(), root.path())
        );
    }
}
