//! The scripts of `examples/`, as users write them: started by torchrun alone, as managed runs, and under `lockstep exec`. The scripts are
//! not changed for this, and being watched does not change a digit of their output.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::cluster::{Cluster, python};
use crate::exec::exec;

struct Example {
    script: &'static str,
    args: &'static [&'static str],
    /// Optimizer steps: two of the scripts read them from STEPS; for the third, they follow from its arguments.
    steps: u32,
    /// Mean loss of its backward passes as a fraction of the loss that it prints: with two accumulated passes, each is half.
    seen_of_printed: f64,
}

#[test]
fn a_plain_loop_trains_the_same_by_torchrun_managed_and_under_exec() {
    check(&Example {
        script: "train_loop.py",
        args: &[],
        steps: 20,
        seen_of_printed: 1.0,
    });
}

#[test]
fn a_trainer_class_trains_the_same_by_torchrun_managed_and_under_exec() {
    check(&Example {
        script: "train_trainer.py",
        args: &[],
        steps: 20,
        seen_of_printed: 0.5,
    });
}

#[test]
fn a_script_with_arguments_trains_the_same_by_torchrun_managed_and_under_exec() {
    // Two epochs. 48 pictures for two ranks are three batches of eight per rank.
    check(&Example {
        script: "train_args.py",
        args: &["--epochs=2", "--pictures=48", "--batch-size=8"],
        steps: 6,
        seen_of_printed: 1.0,
    });
}

/// Runs all three at the same time, because most of the time is Python's start and waiting for peers.
fn check(example: &Example) {
    let cluster = Cluster::start_without_gpus();
    let torchrun = example.torchrun();
    let torchrun: Vec<&str> = torchrun.iter().map(String::as_str).collect();
    let mut alone = Command::new(torchrun[0]);
    alone.args(&torchrun[1..]);
    let spec = cluster.data_dir().join("managed.json");
    std::fs::write(
        &spec,
        example
            .spec(&cluster.data_dir().join("saved-managed"))
            .to_string(),
    )
    .unwrap();
    let watched = exec(&cluster.data_dir().join("agent"), &torchrun);
    let managed = cluster.command(&["run", "submit", spec.to_str().unwrap(), "--wait"]);
    let started = [
        (
            "torchrun",
            example.surround(alone, &cluster.data_dir().join("saved-alone")),
        ),
        (
            "exec",
            example.surround(watched, &cluster.data_dir().join("saved-watched")),
        ),
        ("managed", managed),
    ]
    .map(|(what, mut command)| {
        let piped = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        (what, piped.spawn().unwrap())
    });
    let [alone, watched, managed] = started.map(|(what, child)| {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{} by {what}: {}\n{}",
            example.script,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        text(&output)
    });

    let printed = losses(&alone);
    assert!(
        printed.len() >= example.steps as usize,
        "it says a loss at each step: {alone}"
    );
    assert_eq!(losses(&watched), printed, "under exec");
    let managed = managed.trim();
    assert_eq!(
        losses(&text(&cluster.lockstep(&["run", "logs", managed]))),
        printed,
        "managed"
    );

    let runs = cluster.get("/api/runs").as_array().cloned().unwrap_or_default();
    assert_eq!(
        runs.len(),
        2,
        "the one by torchrun alone is not watched: {runs:?}"
    );
    for run in &runs {
        let id = run["id"].as_str().unwrap();
        let view = cluster.wait_for_state(id, "succeeded");
        assert_eq!(view["watched"] == true, id != managed, "{view}");
        example.check_series(&cluster, id, &printed);
    }
}

impl Example {
    fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../examples")
            .join(self.script)
            .canonicalize()
            .unwrap()
    }

    /// The command in the first lines of the script.
    fn torchrun(&self) -> Vec<String> {
        let mut words = vec![python().display().to_string()];
        words.extend(
            [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
            ]
            .map(str::to_owned),
        );
        words.push(self.path().display().to_string());
        words.extend(self.args.iter().map(|&word| word.to_owned()));
        words
    }

    fn variables(&self, saved: &Path) -> [(&'static str, String); 3] {
        [
            ("STEPS", self.steps.to_string()),
            ("OUTPUT_DIR", saved.display().to_string()),
            ("OMP_NUM_THREADS", "1".to_owned()),
        ]
    }

    fn surround(&self, mut command: Command, saved: &Path) -> Command {
        command
            .envs(self.variables(saved))
            .env("CUDA_VISIBLE_DEVICES", "");
        command
    }

    fn spec(&self, saved: &Path) -> Value {
        json!({
            "script": self.path(),
            "args": self.args,
            "nodes": 1,
            "nproc_per_node": 2,
            "backend": "gloo",
            "env": serde_json::Map::from_iter(self.variables(saved).map(|(name, value)| (name.to_owned(), value.into()))),
        })
    }

    /// Checks that there is every step of both ranks, and for rank 0, which prints, exactly the printed losses.
    fn check_series(&self, cluster: &Cluster, run: &str, printed: &[(String, f64)]) {
        for rank in ["0", "1"] {
            let steps = cluster.wait_for_last_step(run, rank, self.steps.into());
            let steps: Vec<f64> = steps.iter().map(|(_, step)| *step).collect();
            assert_eq!(
                steps,
                (1..=self.steps).map(f64::from).collect::<Vec<_>>(),
                "{run}, rank {rank}"
            );
        }
        let seen = cluster.samples(&format!("train_loss{{run={run:?},rank=\"0\"}}[10m]"));
        let expected = printed.iter().map(|(_, loss)| loss * self.seen_of_printed);
        assert_eq!(seen.len(), self.steps as usize, "{run}: {seen:?}");
        for ((_, seen), expected) in seen.iter().zip(expected) {
            // Six digits after the decimal point are printed.
            assert!((seen - expected).abs() < 1e-6, "{run}: {seen} is not {expected}");
        }
    }
}

/// Returns each line that prints a training loss, and the loss.
fn losses(printed: &str) -> Vec<(String, f64)> {
    let lines = printed.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" loss ")?;
        let loss = rest.split_whitespace().next()?.parse().ok()?;
        Some((line.to_owned(), loss))
    });
    lines.collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
