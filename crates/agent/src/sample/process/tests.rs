#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

struct Proc(tempfile::TempDir);

impl Proc {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, pid: u32, file: &str, text: &str) {
        let folder = self.0.path().join("proc").join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file), text).unwrap();
    }

    fn process(&self, pid: u32, parent: u32, environ: &str) {
        self.write(pid, "stat", &stat(pid, parent, 500));
        self.write(pid, "comm", "python\n");
        self.write(pid, "environ", environ);
    }

    fn identities(&self) -> Identities {
        Identities::new(self.0.path())
    }
}

fn stat(pid: u32, parent: u32, started: u64) -> String {
    format!("{pid} (py) thon) S {parent} {} {started} 0", ["1"; 17].join(" "))
}

fn rank(run: &str, rank: &str) -> Identity {
    Identity {
        name: "python".into(),
        run: Some(run.into()),
        rank: Some(rank.into()),
        ..Identity::default()
    }
}

#[test]
fn a_rank_is_recognised_and_a_reused_pid_is_not_mixed_up() {
    let proc = Proc::new();
    proc.process(
        77,
        1,
        "SECRET=x\0TORCHELASTIC_RUN_ID=none\0LOCKSTEP_RUN=ddp-ab12cd\0RANK=3\0",
    );
    let mut identities = proc.identities();
    assert_eq!(identities.of(77), rank("ddp-ab12cd", "3"));
    proc.write(77, "environ", "");
    assert_eq!(identities.of(77), rank("ddp-ab12cd", "3"), "read once");
    proc.write(77, "stat", &stat(77, 1, 900));
    assert_eq!(identities.of(77).run, None);
    assert_eq!(identities.of(78), Identity::default());
}

#[test]
fn jobs_that_lockstep_did_not_start_are_recognised_too() {
    let elastic = "LOCAL_RANK=1\0RANK=9\0WORLD_SIZE=16\0MASTER_ADDR=node-1\0MASTER_PORT=29500\0";
    let cases = [
        (
            format!("{elastic}TORCHELASTIC_RUN_ID=nightly-7\0"),
            Some("nightly-7"),
            Some("9"),
            None,
        ),
        (
            format!("{elastic}TORCHELASTIC_RUN_ID=none\0"),
            Some("torchrun-node-1-29500"),
            Some("9"),
            None,
        ),
        (
            format!("{elastic}SLURM_JOB_ID=4242\0SLURM_PROCID=5\0"),
            Some("4242"),
            Some("9"),
            Some("4242"),
        ),
        (
            "SLURM_JOB_ID=4242\0SLURM_PROCID=5\0".to_owned(),
            Some("4242"),
            Some("5"),
            Some("4242"),
        ),
        // A shell with the variables of a rendezvous is not a rank.
        (
            "MASTER_ADDR=node-1\0MASTER_PORT=29500\0".to_owned(),
            None,
            None,
            None,
        ),
        ("RANK=a\nb\0LOCKSTEP_RUN=\0".to_owned(), None, None, None),
        (
            format!("TORCHELASTIC_RUN_ID={}\0", "x".repeat(500)),
            None,
            None,
            None,
        ),
    ];
    for (environ, run, rank, slurm_job) in cases {
        let proc = Proc::new();
        proc.process(77, 1, &environ);
        let found = proc.identities().of(77);
        assert_eq!(
            (
                found.run.as_deref(),
                found.rank.as_deref(),
                found.slurm_job.as_deref()
            ),
            (run, rank, slurm_job),
            "{environ}"
        );
    }
}

#[test]
fn what_a_rank_spawned_belongs_to_its_run_but_is_no_rank() {
    let proc = Proc::new();
    proc.process(10, 1, "LOCKSTEP_RUN=ddp-1\0RANK=0\0");
    proc.process(11, 10, "PATH=/bin\0");
    proc.process(12, 11, "PATH=/bin\0");
    proc.process(20, 1, "PATH=/bin\0");
    let mut identities = proc.identities();
    let found = identities.of(12);
    assert_eq!((found.run.as_deref(), found.rank), (Some("ddp-1"), None));
    assert_eq!(identities.of(20).run, None);
}

#[test]
fn control_groups_name_what_environments_do_not() {
    let proc = Proc::new();
    let id = "0123456789abcdef".repeat(4);
    proc.process(77, 1, "PATH=/bin\0");
    proc.write(
        77,
        "cgroup",
        &format!("0::/system.slice/slurmstepd.scope/job_31/step_0/docker-{id}.scope\n"),
    );
    let found = proc.identities().of(77);
    let expected = Identity {
        name: "python".into(),
        run: Some("31".into()),
        slurm_job: Some("31".into()),
        container: Some("0123456789ab".into()),
        ..Identity::default()
    };
    assert_eq!(found, expected);
}

#[test]
fn a_pod_has_its_name_if_the_kubelets_logs_contain_it() {
    let proc = Proc::new();
    let (id, uid) = (
        "0123456789abcdef".repeat(4),
        "0af1c9de-1b2c-4d5e-8f90-a1b2c3d4e5f6",
    );
    let group = format!(
        "0::/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{id}.scope\n",
        uid.replace('-', "_")
    );
    for pid in [77, 78] {
        proc.process(pid, 1, "PATH=/bin\0");
        proc.write(pid, "cgroup", &group);
    }
    let mut identities = proc.identities();
    let names = |identity: Identity| (identity.pod, identity.namespace, identity.pod_name);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(names(identities.of(77)), (some(uid), None, None));
    let logs = proc.0.path().join("var/log/pods");
    std::fs::create_dir_all(logs.join(format!("ml_trainer-0_{uid}"))).unwrap();
    assert_eq!(
        names(identities.of(78)),
        (some(uid), some("ml"), some("trainer-0"))
    );
}

/// A child process that is killed when the test ends, also when it fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_process_of_a_real_launcher_is_recognised_and_its_secrets_are_not_kept() {
    let child = Command::new("sleep")
        .arg("60")
        .env_clear()
        .envs([
            ("PATH", "/usr/bin:/bin"),
            ("WANDB_API_KEY", "hush-hush"),
            ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
            ("RANK", "2"),
            ("LOCAL_RANK", "2"),
            ("WORLD_SIZE", "8"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29400"),
            ("TORCHELASTIC_RUN_ID", "nightly"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
        ])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let child = Running(child);
    let mut identities = Identities::new(Path::new("/"));
    let found = identities.of(child.0.id());
    assert_eq!(
        (found.run.as_deref(), found.rank.as_deref()),
        (Some("nightly"), Some("2"))
    );
    assert_eq!(found.name, "sleep");
    let kept = format!("{identities:?}");
    assert!(kept.contains("nightly") && !kept.contains("hush"), "{kept}");
}
