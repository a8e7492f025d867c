//! Parses `/proc/PID/cgroup`, which shows what started a process: Slurm, a container runtime or Kubernetes.
//!
//! ```text
//! 0::/kubepods.slice/…/kubepods-pod0af1…_….slice/cri-containerd-<64 hex>.scope   v2: one line
//! 4:memory:/kubepods/burstable/pod0af1…-…/<64 hex>                                v1: one line per controller
//! 0::/system.slice/docker-<64 hex>.scope            /libpod-<64 hex>.scope        /docker/<64 hex>
//! 0::/system.slice/slurmstepd.scope/job_123/step_0  /slurm/uid_1000/job_123/step_batch/task_0
//! ```

/// The number of hexadecimal digits of a container's id.
const CONTAINER_DIGITS: usize = 64;
/// The number of digits of a container's id that are shown, as users usually write it.
const CONTAINER_SHOWN: usize = 12;
/// The number of digits of a pod's uid without its dashes.
const POD_DIGITS: usize = 32;

/// The Slurm job, container and pod of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) slurm_job: Option<String>,
    pub(super) container: Option<String>,
    pub(super) pod: Option<String>,
}

impl Group {
    /// Parses the file. For each value, the first line that contains it is used.
    pub(super) fn parse(text: &str) -> Self {
        let mut group = Self::default();
        for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            group.slurm_job = group.slurm_job.or_else(|| slurm_job(path));
            group.container = group.container.or_else(|| container(path));
            group.pod = group.pod.or_else(|| pod(path));
        }
        group
    }
}

fn slurm_job(path: &str) -> Option<String> {
    if !path.contains("slurm") {
        return None;
    }
    let jobs = path.split('/').filter_map(|part| part.strip_prefix("job_"));
    jobs.filter(|job| !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit()))
        .map(ToOwned::to_owned)
        .next()
}

/// Returns the innermost container, because containers can run in containers.
fn container(path: &str) -> Option<String> {
    let mut words = path.rsplit(|c: char| !c.is_ascii_alphanumeric());
    let id = words.find(|word| word.len() == CONTAINER_DIGITS && is_hexadecimal(word))?;
    Some(id[..CONTAINER_SHOWN].to_owned())
}

/// systemd writes the dashes of a uid as underscores.
fn pod(path: &str) -> Option<String> {
    path.split("pod").skip(1).find_map(|rest| {
        let uid: String = rest
            .chars()
            .take_while(|c| c.is_ascii_hexdigit() || matches!(c, '-' | '_'))
            .map(|c| if c == '_' { '-' } else { c })
            .collect();
        let digits = uid.chars().filter(|c| *c != '-').count();
        (digits == POD_DIGITS).then_some(uid)
    })
}

fn is_hexadecimal(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_all_kinds_name_job_container_and_pod() {
        let id = "0123456789abcdef".repeat(4);
        let uid = "0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6";
        let systemd = uid.replace('-', "_");
        let cases = [
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice/cri-containerd-{id}.scope"
                ),
                (None, Some("0123456789ab"), Some(uid)),
            ),
            (
                format!(
                    "11:cpuset:/kubepods/besteffort/pod{uid}/{id}\n4:memory:/kubepods/besteffort/pod{uid}/{id}"
                ),
                (None, Some("0123456789ab"), Some(uid)),
            ),
            (
                format!("0::/../../pod{uid}/crio-{id}.scope"),
                (None, Some("0123456789ab"), Some(uid)),
            ),
            (
                format!("0::/system.slice/docker-{id}.scope"),
                (None, Some("0123456789ab"), None),
            ),
            (format!("3:cpu:/docker/{id}"), (None, Some("0123456789ab"), None)),
            (
                format!(
                    "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope/container"
                ),
                (None, Some("0123456789ab"), None),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_4242/step_0/user/task_3".to_owned(),
                (Some("4242"), None, None),
            ),
            (
                "7:devices:/slurm/uid_1000/job_77/step_batch".to_owned(),
                (Some("77"), None, None),
            ),
            ("0::/user.slice/job_12".to_owned(), (None, None, None)),
            (
                "0::/user.slice/user-1000.slice/session-3.scope".to_owned(),
                (None, None, None),
            ),
            ("0::/tripod/podium-deadbeef".to_owned(), (None, None, None)),
            (String::new(), (None, None, None)),
        ];
        for (text, (slurm_job, container, pod)) in cases {
            let expected = Group {
                slurm_job: slurm_job.map(ToOwned::to_owned),
                container: container.map(ToOwned::to_owned),
                pod: pod.map(ToOwned::to_owned),
            };
            assert_eq!(Group::parse(&text), expected, "{text}");
        }
    }
}
