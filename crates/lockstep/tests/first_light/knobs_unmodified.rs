//! Five knobs on scripts as users write them, through the probe alone. Each knob is found in every rank, is judged with values of both
//! sides, leaves the losses unchanged if it computes the same, and is reverted to the command with which the run began.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::Cluster;

const DECIDED: [&str; 4] = ["better", "worse", "mixed", "no_difference"];
/// The verdict depends on `torch.utils.checkpoint` and on the load of this machine. The tests of `domain` test the rule.
const BY_THE_RULE: [&str; 2] = ["kept", "rejected"];

/// The lines before and after the table.
const BEGIN: &str = "=== table of knobs ===";
const END: &str = "=== end of the table ===";

#[test]
fn a_time_out_is_taken_over_in_an_unmodified_script_that_trains_on() {
    let cluster = Cluster::start_without_gpus();
    let _row = timed_out_in_place(&Scripted::start(&cluster, "train_loop.py"));
}

/// Five knobs on two scripts, and a table of their verdicts, which `cargo xtask lab knobs` writes into docs/knobs.md.
#[test]
#[ignore = "takes minutes: cargo xtask lab knobs"]
fn all() {
    let cluster = Cluster::start_without_gpus();
    let rows = [plain_loop(&cluster), fully_sharded(&cluster)].concat();
    println!(
        "{BEGIN}\n| script | change | step time, ms | memory kept for backward, MiB | samples per second of a rank | losses of the same steps | verdict |\n\
         |---|---|---|---|---|---|---|\n{}{END}",
        rows.concat()
    );
}

/// Applies three changes on top of each other, then reverts them.
fn plain_loop(cluster: &Cluster) -> Vec<String> {
    let run = Scripted::start(cluster, "train_loop.py");
    let mut rows = vec![checkpointed(&run)];

    let loaded = run.apply("num_workers=1");
    rows.push(run.is_judged(&loaded["change"], &DECIDED));
    run.is_in_the_script(&loaded, "has 1 workers; the first one had 0 in the script");
    same_losses(&loaded);

    let clipped = run.apply("grad_clip_norm=0.01");
    rows.push(run.is_judged(&clipped["change"], &DECIDED));
    run.is_in_the_script(
        &clipped,
        "gradients of AdamW are clipped to a norm of 0.01 before each step",
    );
    let losses = &clipped["change"]["verdict"]["losses"];
    assert!(
        losses["largest_difference"].as_f64().unwrap() > 0.0,
        "so small a norm is seen in them: {losses}"
    );

    for left in [2, 1, 0] {
        run.succeeds(&["run", "revert", &run.id]);
        run.waits_for_start();
        let attempt = run.attempt();
        assert_eq!(attempt["cause"], "knob reverted");
        assert_eq!(
            attempt["knobs"].as_object().map_or(0, serde_json::Map::len),
            left,
            "{attempt}"
        );
    }
    run.is_as_it_was();
    run.ends();
    rows
}

/// Changes an argument of FSDP2 in a new attempt, and the timeout of the process groups in place.
fn fully_sharded(cluster: &Cluster) -> Vec<String> {
    let run = Scripted::start(cluster, "train_trainer.py");
    let resharded = run.apply("reshard_after_forward=false");
    let row = run.is_judged(&resharded["change"], &DECIDED);
    run.is_in_the_script(
        &resharded,
        "fully_shard: gathered parameters are kept from the forward to the backward pass",
    );
    same_losses(&resharded);
    run.succeeds(&["run", "revert", &run.id, "--wait"]);
    run.is_as_it_was();
    let rows = vec![row, timed_out_in_place(&run)];
    run.ends();
    rows
}

fn checkpointed(run: &Scripted<'_>) -> String {
    let checkpointed = run.apply("activation_checkpointing=block");
    let row = run.is_judged(&checkpointed["change"], &BY_THE_RULE);
    run.is_in_the_script(&checkpointed, "8 of 8 blocks (Block: blocks.0, ");
    same_losses(&checkpointed);
    let memory = &checkpointed["change"]["verdict"];
    let bytes = |side: &str| memory[side]["memory"]["bytes"].as_f64().unwrap();
    assert_eq!(memory["before"]["memory"]["kind"], "saved_tensors");
    assert!(bytes("after") < 0.5 * bytes("before"), "{memory}");
    row
}

fn timed_out_in_place(run: &Scripted<'_>) -> String {
    run.has_steps();
    let before = run.attempt();
    run.apply("process_group_timeout_s=1200");
    let after = run.attempt();
    assert_eq!(
        (&after["attempt"], pids(&after)),
        (&before["attempt"], pids(&before)),
        "nothing was started anew"
    );
    let live = &after["live"][0];
    is_taken(live, "may take 1200 s, in ");
    let row = run.is_judged(&live["change"], &DECIDED);
    assert_eq!(after["knobs"], json!({ "process_group_timeout_s": "1200" }));

    run.succeeds(&["run", "revert", &run.id]);
    let back = run.cluster.wait_for("the change to be taken back", || {
        Some(run.attempt()).filter(|attempt| attempt["live"][1]["state"] == "taken")
    });
    assert_eq!((pids(&back), &back["knobs"]), (pids(&before), &Value::Null));
    is_taken(&back["live"][1], "(1800 s)");
    let shown = run.succeeds(&["run", "show", &run.id]);
    let reverted = format!(
        "reverts the change of attempt {} in place, its change 1",
        back["attempt"]
    );
    assert!(shown.contains(&reverted), "{shown}");
    row
}

fn is_taken(live: &Value, message: &str) {
    assert_eq!(
        (&live["state"], &live["ranks"]),
        (&json!("taken"), &json!([0, 1])),
        "{live}"
    );
    let detail = live["answers"][0]["detail"].as_str().unwrap();
    assert!(detail.contains(message), "{live}");
}

/// A script of `examples/`, run unchanged by two ranks until it is stopped.
struct Scripted<'a> {
    cluster: &'a Cluster,
    script: &'static str,
    id: String,
    first: String,
}

impl<'a> Scripted<'a> {
    fn start(cluster: &'a Cluster, script: &'static str) -> Self {
        let spec = BTreeMap::from([
            (
                "script",
                Value::from(examples().join(script).display().to_string()),
            ),
            ("nproc_per_node", 2.into()),
            ("backend", "gloo".into()),
            ("env", json!({ "STEPS": "1000000", "OMP_NUM_THREADS": "1" })),
        ]);
        let file = cluster.data_dir().join(format!("{script}.json"));
        std::fs::write(&file, serde_json::to_vec(&spec).unwrap()).unwrap();
        let id = cluster.submit(&[file.to_str().unwrap()]);
        let mut run = Self {
            cluster,
            script,
            id,
            first: String::new(),
        };
        run.has_steps();
        run.first = command(&run.attempt());
        run
    }

    fn attempt(&self) -> Value {
        let view = self.cluster.get(&format!("/api/runs/{}", self.id));
        view["attempts"].as_array().unwrap().last().unwrap().clone()
    }

    /// Waits for as many steps as a verdict needs on each side.
    fn has_steps(&self) {
        self.waits_for_start();
        let from = self.attempt()["started_ms"].as_i64().unwrap();
        self.cluster.wait_for("enough steps to compare with", || {
            let samples = self.cluster.samples(&format!(
                "train_step_seconds{{run={:?},rank=\"0\"}}[10m]",
                self.id
            ));
            (samples.iter().filter(|(at_ms, _)| *at_ms > from).count() > 26).then_some(())
        });
    }

    fn waits_for_start(&self) {
        self.cluster.wait_for("the next attempt's command", || {
            let view = self.cluster.get(&format!("/api/runs/{}", self.id));
            let started = !command(view["attempts"].as_array()?.last()?).is_empty();
            (started && view["pending"].is_null()).then_some(())
        });
    }

    /// Applies a change. Returns the attempt that has it, with the verdict.
    fn apply(&self, change: &str) -> Value {
        let arguments = ["run", "apply", &self.id, change, "--wait", "--no-auto-revert"];
        // Whether the verdict is for the change depends on the load of the machine, and so does the exit code.
        let output = self.cluster.lockstep(&arguments);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("verdict: "), "{change}: {output:?}");
        self.attempt()
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.cluster.lockstep(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Checks a verdict, and returns it as a row of the table.
    fn is_judged(&self, change: &Value, decisions: &[&str]) -> String {
        let verdict = &change["verdict"];
        let decision = verdict["decision"].as_str().unwrap_or_default();
        assert!(decisions.contains(&decision), "{verdict}");
        let set = &change["set"][0];
        // A change in place has no samples from the first steps of an attempt, and no step is done twice.
        let is_whole = set["knob"] != "process_group_timeout_s";
        let both = |part: &str, key: &str, scale: f64| {
            let sides = ["before", "after"].map(|side| verdict[side][part][key].as_f64());
            if let [Some(before), Some(after)] = sides {
                assert!(before > 0.0 && after > 0.0, "{verdict}");
                return format!("{:.1} → {:.1}", before * scale, after * scale);
            }
            assert!(part == "memory" && !is_whole, "no {part}: {verdict}");
            "–".to_owned()
        };
        let steps = verdict["losses"]["steps"].as_u64().unwrap_or_default();
        assert!(steps >= 20 || !is_whole, "{verdict}");
        let losses = match verdict["losses"]["largest_difference"].as_f64() {
            Some(0.0) => "the same bits".to_owned(),
            Some(difference) => format!("up to {difference:.1e} apart"),
            None => "other steps".to_owned(),
        };
        format!(
            "| {} | {}={} | {} | {} | {} | {losses} | {decision} |\n",
            self.script,
            set["knob"].as_str().unwrap(),
            set["new"].as_str().unwrap(),
            both("step_seconds", "value", 1e3),
            both("memory", "bytes", 1.0 / 1_048_576.0),
            both("samples_per_second", "value", 1.0),
        )
    }

    fn ends(&self) {
        self.succeeds(&["run", "stop", &self.id, "--grace", "0s", "--wait"]);
    }

    /// Checks that each rank's probe found what it was to change. The agent keeps the records in the run's folder.
    fn is_in_the_script(&self, attempt: &Value, detail: &str) {
        let knob = attempt["change"]["set"][0]["knob"].as_str().unwrap();
        assert_eq!(attempt["change"]["set"][0]["how"], json!({ "way": "injected" }));
        let records = self.records(attempt, knob);
        for rank in 0..2 {
            let last = records.iter().rfind(|record| record["rank"] == rank);
            let last = last.unwrap_or_else(|| panic!("rank {rank} says nothing of {knob}: {records:?}"));
            assert_eq!(last["state"], "applied", "{last}");
            assert!(last["detail"].as_str().unwrap().contains(detail), "{last}");
        }
    }

    fn records(&self, attempt: &Value, knob: &str) -> Vec<Value> {
        let folder = format!("agent/runs/{}.{}/probe", self.id, attempt["attempt"]);
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.cluster.data_dir().join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let text: String = files
            .iter()
            .map(|file| std::fs::read_to_string(file).unwrap())
            .collect();
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records
            .filter(|record| record["kind"] == "knob" && record["name"] == knob)
            .collect()
    }

    fn is_as_it_was(&self) {
        let attempt = self.attempt();
        assert_eq!(command(&attempt), self.first);
        assert_eq!(attempt["knobs"], Value::Null);
    }
}

/// Checks that the losses are equal to the last bit.
fn same_losses(attempt: &Value) {
    let losses = &attempt["change"]["verdict"]["losses"];
    assert_eq!(
        (&losses["equal"], &losses["largest_difference"]),
        (&json!(true), &json!(0.0)),
        "{losses}"
    );
}

/// Returns the command of the node, without the parts that belong to one attempt.
fn command(attempt: &Value) -> String {
    let command = attempt["nodes"][0]["command"].as_str().unwrap_or_default();
    let (_, script) = command.split_once("examples/").unwrap_or_default();
    script.to_owned()
}

fn pids(attempt: &Value) -> Vec<u64> {
    let ranks = attempt["nodes"][0]["ranks"].as_array().unwrap();
    ranks
        .iter()
        .map(|rank| rank["pid"].as_u64().unwrap_or_default())
        .collect()
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .canonicalize()
        .unwrap()
}
