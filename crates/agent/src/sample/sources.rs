//! Reports which sources of a host can be read, and why the others cannot: for the hello, and for users who wonder why something is
//! missing.
//!
//! Each source is tried in the same way as its reader does, and without side effects: files are opened and closed.

use std::io;
use std::path::Path;

use domain::topology::Source;

use super::kernel_log::Kmsg;

/// Returns the state of the kernel log, InfiniBand, Ethernet and processes under `root`. The state of the GPUs' library is in the
/// inventory's `gpus_missing`.
#[must_use]
pub fn sources(root: &Path) -> Vec<Source> {
    vec![
        kernel_log(root),
        infiniband(root),
        ethernet(root),
        processes(root),
    ]
}

fn source(name: &str, answer: Result<String, String>) -> Source {
    let available = answer.is_ok();
    Source {
        name: name.to_owned(),
        available,
        detail: answer.unwrap_or_else(|why| why),
    }
}

fn kernel_log(root: &Path) -> Source {
    let readable = Kmsg::open(root).and_then(|mut kmsg| kmsg.fill());
    let answer = match readable {
        Ok(_) => Ok("/dev/kmsg is readable: Xid errors include process, link and sub-code".to_owned()),
        Err(error) => Err(format!(
            "{}; Xid errors come only from NVML, which does not report those of a GPU that is gone",
            why_not(&error)
        )),
    };
    source("kernel_log", answer)
}

/// Explains an error of `/dev/kmsg`, and what the user can do about it.
fn why_not(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "/dev/kmsg does not exist; in a container, mount the device".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "no permission to read /dev/kmsg; run the agent as root or with CAP_SYSLOG, and in a container allow character device 1:11 in the device cgroup".to_owned()
        }
        _ => format!("cannot read /dev/kmsg: {error}"),
    }
}

fn infiniband(root: &Path) -> Source {
    let devices = names(&root.join("sys/class/infiniband"));
    let answer = match devices.as_slice() {
        [] => Err("no RDMA device: /sys/class/infiniband is empty or missing (no such card, its driver is not loaded, or this is the /sys of a container)".to_owned()),
        some => Ok(format!("RDMA devices: {}", some.join(", "))),
    };
    source("infiniband", answer)
}

fn ethernet(root: &Path) -> Source {
    let folder = root.join("sys/class/net");
    let mut physical = names(&folder);
    physical.retain(|name| folder.join(name).join("device").exists());
    let answer = match physical.as_slice() {
        [] => Err("no physical network interface: the interfaces of a container or of a bridge for virtual machines have no device; run the agent in the host's network".to_owned()),
        some => Ok(format!("physical interfaces: {}", some.join(", "))),
    };
    source("ethernet", answer)
}

/// Process 1 represents all processes of other users: if its environment cannot be read, the environment of a user's training cannot be
/// read either.
fn processes(root: &Path) -> Source {
    let own_pids_only = "only this container's processes are visible; run the container with the host's process ids (hostPID, --pid=host)";
    let answer = match std::fs::read(root.join("proc/1/environ")) {
        Ok(_) if is_in_pid_namespace(root) => Err(own_pids_only.to_owned()),
        Ok(_) => Ok("processes are identified by run, rank, Slurm job, container and pod".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(
            "no permission to read the environments of other users' processes, so their runs and ranks are unknown; run the agent as root or with CAP_SYS_PTRACE".to_owned(),
        ),
        Err(error) => Err(format!("cannot read /proc: {error}")),
    };
    source("processes", answer)
}

/// Where the host's processes are visible, process 2 is the kernel's thread daemon.
fn is_in_pid_namespace(root: &Path) -> bool {
    let comm = std::fs::read_to_string(root.join("proc/2/comm")).unwrap_or_default();
    comm.trim() != "kthreadd"
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
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

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_bare_container_lists_missing_permissions_and_their_remedies() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proc/1/environ", "");
        let found = sources(root.path());
        let words: Vec<&str> = found.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(words, ["kernel_log", "infiniband", "ethernet", "processes"]);
        assert!(found.iter().all(|source| !source.available), "{found:?}");
        assert!(found[0].detail.contains("/dev/kmsg"), "{found:?}");
        assert!(found[3].detail.contains("hostPID"), "{found:?}");
    }

    #[test]
    fn a_host_with_everything_names_it() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("dev/kmsg", "6,1,0,-;booted\n"),
            ("sys/class/infiniband/efa_0/node_type", "4: unspecified\n"),
            ("sys/class/net/eth0/device/vendor", "0x15b3\n"),
            ("sys/class/net/veth1/speed", "10000\n"),
            ("proc/1/environ", ""),
            ("proc/2/comm", "kthreadd\n"),
        ] {
            write(root.path(), path, text);
        }
        let found = sources(root.path());
        assert!(found.iter().all(|source| source.available), "{found:?}");
        assert!(found[1].detail.contains("efa_0"), "{found:?}");
        assert_eq!(found[2].detail, "physical interfaces: eth0");
    }
}
