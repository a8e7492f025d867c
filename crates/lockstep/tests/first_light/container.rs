//! Runs in containers, with the real Podman. `cargo xtask test` makes the root file system with debootstrap, and PyTorch comes from the
//! host's virtual environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Cluster, python, signal};
use crate::product::process::processes;

const IMAGE: &str = "localhost/lockstep-test:latest";

/// A machine with Podman and the image. `None`, with a message, if there is none.
struct Podman {
    folder: tempfile::TempDir,
}

impl Podman {
    fn here() -> Option<Self> {
        let Some(root) = std::env::var_os("LOCKSTEP_TEST_CONTAINER_ROOT") else {
            eprintln!(
                "no root file system for containers; `cargo xtask test --only rust` makes it. Skipped."
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("containers.conf"), settings()).unwrap();
        let podman = Self { folder };
        if !podman.succeeds(&["image", "exists", IMAGE]) {
            let root = PathBuf::from(root);
            let imported = podman
                .command(&["import", "--quiet", root.to_str().unwrap(), IMAGE])
                .output()
                .unwrap();
            assert!(imported.status.success(), "{imported:?}");
        }
        Some(podman)
    }

    fn settings(&self) -> PathBuf {
        self.folder.path().join("containers.conf")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(arguments).env("CONTAINERS_CONF", self.settings());
        command
    }

    fn succeeds(&self, arguments: &[&str]) -> bool {
        self.command(arguments).output().unwrap().status.success()
    }

    fn cluster(&self) -> Cluster {
        Cluster::start_without_gpus_with(&[("CONTAINERS_CONF", &self.settings())])
    }

    /// Returns the names of all containers of this run, running or not.
    fn of_run(&self, run: &str) -> Vec<String> {
        let listed = self.command(&[
            "ps",
            "--all",
            "--filter",
            "label=lockstep=run",
            "--format",
            "{{.Names}}",
        ]);
        let listed = { listed }.output().unwrap();
        let names = String::from_utf8(listed.stdout).unwrap();
        let of_run = |name: &&str| name.starts_with(&format!("lockstep-{run}."));
        names.lines().filter(of_run).map(str::to_owned).collect()
    }
}

/// Settings for Podman. A limit above this process's own needs a privilege that a test does not have, and Podman must not ask for more
/// processes than there are process IDs. runc also runs on machines with both kinds of cgroups.
fn settings() -> String {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let hard = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let value = line.split_whitespace().nth(1).unwrap();
        value.parse().unwrap_or(i64::MAX)
    };
    let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let numbers: i64 = numbers.trim().parse().unwrap();
    let (files, processes) = (
        hard("Max open files").min(1 << 20),
        hard("Max processes").min(numbers),
    );
    format!(
        "[engine]\nruntime = \"runc\"\n[containers]\ndefault_ulimits = [\"nofile={files}:{files}\", \
         \"nproc={processes}:{processes}\"]\n"
    )
}

/// The recipe on two ranks, with the host's Python mounted into the container. It has a small model, and trains for seconds because its steps
/// wait: its processes are to be seen while it trains.
fn spec(steps: u32) -> Value {
    let python = python();
    let venv = python
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .canonicalize()
        .unwrap();
    let base = Command::new(&python)
        .args(["-c", "import sys; print(sys.base_prefix)"])
        .output()
        .unwrap();
    let base = String::from_utf8(base.stdout).unwrap().trim().to_owned();
    json!({
        "recipe": "ddp",
        "nproc_per_node": 2,
        "backend": "gloo",
        "python": venv,
        "set": {
            "steps": steps.to_string(), "step-delay-ms": "100", "layers": "1", "width": "64", "batch-size": "8",
        },
        "env": { "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": "/tmp/of-the-container" },
        "secrets": { "TEST_TOKEN": "never-on-a-command-line" },
        "container": {
            "image": IMAGE,
            "runtime": "podman",
            "mounts": [format!("{}:ro", venv.display()), format!("{base}:ro")],
            "ulimits": [],
        },
    })
}

fn submit(cluster: &Cluster, spec: &Value, more: &[&str]) -> String {
    let file = cluster.data_dir().join("run.json");
    std::fs::write(&file, spec.to_string()).unwrap();
    cluster.submit(&[&[file.to_str().unwrap()], more].concat())
}

fn all_command_lines() -> String {
    let all = processes().into_iter();
    let lines = all.filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect()
}

#[test]
fn a_recipe_trains_in_a_container_and_each_rank_leaves_its_series() {
    let Some(podman) = Podman::here() else { return };
    let cluster = podman.cluster();
    let run = submit(&cluster, &spec(40), &[]);
    cluster.wait_for_step(&run, 1.0);
    assert!(!all_command_lines().contains("never-on-a-command-line"));
    let view = cluster.wait_for_state(&run, "succeeded");
    for rank in ["0", "1"] {
        assert_eq!(
            cluster.wait_for_last_step(&run, rank, 40.0).last().unwrap().1,
            40.0
        );
        for metric in ["train_loss", "train_step_seconds"] {
            let selector = format!("{metric}{{run={run:?},rank={rank:?}}}[10m]");
            assert!(cluster.samples(&selector).len() > 2, "{selector}");
        }
    }
    let attempt = &view["attempts"][0];
    let command = attempt["nodes"][0]["command"].as_str().unwrap();
    assert!(
        command.starts_with("podman run --rm --pull=never --name lockstep-"),
        "{command}"
    );
    assert!(
        command.contains(" -e TEST_TOKEN ") && command.contains(" --env-file "),
        "{command}"
    );
    let image = attempt["provenance"]["image_digest"].as_str().unwrap_or_default();
    assert!(image.starts_with("localhost/lockstep-test"), "{view}");
    assert_eq!(podman.of_run(&run), [""; 0]);
    assert!(cluster.shims().is_empty(), "a process of the run is left");
}

#[test]
fn no_container_outlives_its_run_not_even_when_its_shim_is_killed() {
    let Some(podman) = Podman::here() else { return };
    let cluster = podman.cluster();
    let shim_of = |run: &str| {
        let owner = cluster.data_dir().join(format!("agent/runs/{run}.1/owner.json"));
        let owner: Value = serde_json::from_slice(&std::fs::read(owner).unwrap()).unwrap();
        i32::try_from(owner["shim"]["pid"].as_i64().unwrap()).unwrap()
    };
    let killed = submit(&cluster, &spec(100_000), &[]);
    cluster.wait_for_step(&killed, 2.0);
    assert_eq!(podman.of_run(&killed).len(), 1);
    signal(shim_of(&killed), "KILL");
    cluster.wait_for_state(&killed, "failed");
    assert_eq!(podman.of_run(&killed), [""; 0]);

    let stopped = submit(&cluster, &spec(100_000), &[]);
    cluster.wait_for_step(&stopped, 2.0);
    let agent = cluster.agent_pid().unwrap();
    signal(agent, "KILL");
    cluster.wait_for("another agent", || {
        cluster.agent_pid().filter(|pid| *pid != agent)
    });
    let view = cluster.get(&format!("/api/runs/{stopped}"));
    assert_eq!(view["state"], "running", "it went on without its agent: {view}");
    assert!(cluster.lockstep(&["run", "stop", &stopped]).status.success());
    cluster.wait_for_state(&stopped, "stopped");
    assert_eq!(podman.of_run(&stopped), [""; 0]);
    assert!(cluster.shims().is_empty(), "a process of a run is left");
}

#[test]
fn missing_parts_of_a_container_are_reported_before_the_start() {
    let Some(podman) = Podman::here() else { return };
    let cluster = podman.cluster();
    let outcome_with = |change: &[(&str, Value)]| {
        let mut spec = spec(1);
        for (field, value) in change {
            *spec.pointer_mut(field).unwrap() = value.clone();
        }
        let run = submit(&cluster, &spec, &[]);
        cluster.wait_for_state(&run, "failed")["outcome"].to_string()
    };
    let outcome = outcome_with(&[("/container/image", "localhost:1/none:1".into())]);
    assert!(
        outcome.contains("the image localhost:1/none:1 is not on this node"),
        "{outcome}"
    );
    let outcome = outcome_with(&[("/python", "/opt/none/bin/python".into())]);
    assert!(
        outcome.contains("there is no Python /opt/none/bin/python in the image"),
        "{outcome}"
    );
}
