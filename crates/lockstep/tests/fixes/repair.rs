//! The common steps of a repair: the run, its diagnosis, the actions on the command line, and the verdict.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::Cluster;

/// A run with a fault that is to be repaired.
pub(crate) struct Repair<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) run: String,
}

/// Returns the specification of a run of a script in this folder, on one node with one rank. It saves to `checkpoints`.
pub(crate) fn spec(script: &str, checkpoints: &Path, args: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixes")
        .join(script);
    json!({
        "name": "repair",
        "script": text(&script),
        "args": args,
        "nodes": 1,
        "nproc_per_node": 1,
        "backend": "gloo",
        "checkpoint_dir": text(checkpoints),
        "env": { "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" },
    })
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Creates a folder for the run's checkpoints.
pub(crate) fn checkpoints(cluster: &Cluster) -> PathBuf {
    let folder = cluster.data_dir().join("checkpoints");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

impl<'a> Repair<'a> {
    /// Submits the run.
    pub(crate) fn submit(cluster: &'a Cluster, spec: &Value) -> Self {
        let answer = cluster.post("/api/runs", spec);
        let run = answer["id"].as_str();
        let run = run
            .unwrap_or_else(|| panic!("not submitted: {answer}"))
            .to_owned();
        Self { cluster, run }
    }

    pub(crate) fn view(&self) -> Value {
        self.cluster.get(&format!("/api/runs/{}", self.run))
    }

    pub(crate) fn attempt(&self, index: usize) -> Value {
        self.view()["attempts"][index].clone()
    }

    /// Waits until rank 0 has finished a step.
    pub(crate) fn wait_for_step(&self, step: u64) {
        self.cluster.wait_for(&format!("step {step}"), || {
            (self.last_step()? >= step).then_some(())
        });
    }

    /// Returns the last step of rank 0 that is stored.
    pub(crate) fn last_step(&self) -> Option<u64> {
        let found = self
            .cluster
            .query(&format!("max(train_step{{run={:?}}})", self.run));
        let value: f64 = found.first()?["value"][1].as_str()?.parse().ok()?;
        Some(value as u64)
    }

    /// Returns the checkpoints that the run could resume from, by step.
    pub(crate) fn complete_checkpoints(&self) -> Vec<u64> {
        let all = self.checkpoint_list();
        let complete = all.iter().filter(|checkpoint| checkpoint["complete"] == true);
        let mut steps: Vec<u64> = complete
            .filter_map(|checkpoint| checkpoint["step"].as_u64())
            .collect();
        steps.sort_unstable();
        steps
    }

    pub(crate) fn checkpoint_list(&self) -> Vec<Value> {
        let list = self.cluster.get(&format!("/api/runs/{}/checkpoints", self.run));
        list["checkpoints"].as_array().cloned().unwrap_or_default()
    }

    /// Waits for a diagnosis of the run by this rule.
    pub(crate) fn wait_for_diagnosis(&self, rule: &str) {
        self.cluster.wait_for(&format!("{rule} to fire"), || {
            let firing = self.cluster.get("/api/diagnoses");
            let mut firing = firing.as_array()?.iter();
            firing
                .any(|diagnosis| self.is_about(diagnosis) && diagnosis["rule"] == rule)
                .then_some(())
        });
    }

    /// Waits until `lockstep run fix` lists an action whose ID begins like this. Returns its number and its ID.
    pub(crate) fn wait_for_action(&self, begin: &str) -> (String, String) {
        let listed = |line: &str| {
            let (head, id) = line.trim_end().strip_suffix(']')?.rsplit_once('[')?;
            let number = head.split_whitespace().next()?;
            number.parse::<usize>().ok()?;
            id.starts_with(begin).then(|| (number.to_owned(), id.to_owned()))
        };
        self.cluster.wait_for(&format!("{begin} to be listed"), || {
            let output = self.cluster.lockstep(&["run", "fix", &self.run]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().find_map(listed)
        })
    }

    /// Carries out an action, by number or ID.
    pub(crate) fn fix(&self, action: &str) {
        let output = self
            .cluster
            .lockstep(&["run", "fix", &self.run, "--action", action, "--yes"]);
        assert!(output.status.success(), "{action}: {output:?}");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.contains("  cost ") && shown.contains("  undo "), "{shown}");
    }

    /// Waits until the verdict on the action is this decision, and checks that `lockstep alert show` prints it.
    pub(crate) fn wait_for_verdict(&self, decision: &str) -> Value {
        let (diagnosis, verdict) = self.cluster.wait_for(&format!("the verdict {decision}"), || {
            let (diagnosis, verdict) = self.judged()?;
            let found = verdict["decision"].as_str().unwrap_or_default();
            let waits = ["not_yet", "undecided"].contains(&found);
            assert!(waits || found == decision, "not {decision}: {verdict}");
            (found == decision).then_some((diagnosis, verdict))
        });
        let output = self.cluster.lockstep(&["alert", "show", &diagnosis]);
        let shown = String::from_utf8_lossy(&output.stdout);
        // The numbers change while the run goes on.
        let begin = format!(": {}, ", decision.replace('_', " "));
        assert!(shown.contains(&begin), "no {begin:?} in {shown}");
        verdict
    }

    /// Returns the diagnosis with the action, and the verdict on it.
    fn judged(&self) -> Option<(String, Value)> {
        let all = self.cluster.get("/api/diagnoses?state=all");
        let mut ours = all
            .as_array()?
            .iter()
            .filter(|diagnosis| self.is_about(diagnosis));
        ours.find_map(|diagnosis| {
            let id = diagnosis["id"].as_str()?;
            let view = self.cluster.get(&format!("/api/diagnoses/{id}"));
            let mut timeline = view["timeline"].as_array()?.iter();
            let acted = timeline.find(|entry| entry["kind"] == "acted")?;
            acted["verdict"]
                .is_object()
                .then(|| (id.to_owned(), acted["verdict"].clone()))
        })
    }

    fn is_about(&self, diagnosis: &Value) -> bool {
        diagnosis["run"] == self.run.as_str()
    }
}
