//! `lockstep exec`: the command is watched, and behaves as without it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::cluster::{Cluster, python};

pub(crate) fn exec(agent_data: &Path, command: &[&str]) -> Command {
    let mut exec = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    exec.args(["exec", "--agent-data"])
        .arg(agent_data)
        .arg("--")
        .args(command);
    exec.env("CUDA_VISIBLE_DEVICES", "").env_remove("SLURM_JOB_ID");
    exec
}

fn fed(mut command: Command, input: &[u8]) -> Output {
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn without_an_agent_the_command_runs_all_the_same() {
    let nowhere = Path::new("/nonexistent/lockstep");
    let output = fed(exec(nowhere, &["sh", "-c", "cat; echo err >&2; exit 7"]), b"in");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(7), b"in".as_slice())
    );
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("runs unwatched") && stderr.ends_with("err\n") && stderr.lines().count() == 2,
        "{stderr}"
    );
    let missing = exec(nowhere, &["/nonexistent/program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn a_torchrun_of_the_users_own_has_the_page_of_a_run() {
    let cluster = Cluster::start();
    let agent = cluster.data_dir().join("agent");
    let output = fed(exec(&agent, &["sh", "-c", "cat; kill -9 $$"]), b"in");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(137), b"in".as_slice())
    );
    assert!(output.stderr.is_empty(), "{output:?}");

    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch-probe/recipes/ddp/main.py");
    let (python, recipe) = (python().display().to_string(), recipe.display().to_string());
    let words = [
        python.as_str(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        &recipe,
        "--steps=40",
        "--layers=1",
        "--width=64",
        "--batch-size=8",
        "--step-delay-ms=20",
    ];
    let output = exec(&agent, &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("step 40 "),
        "its output is its own"
    );

    let runs = cluster.wait_for("both runs", || {
        let runs = cluster.get("/api/runs").as_array().cloned().unwrap_or_default();
        (runs.len() == 2).then_some(runs)
    });
    let id = |name: &str| {
        let run = runs.iter().find(|run| run["name"] == name);
        run.unwrap_or_else(|| panic!("no {name} in {runs:?}"))["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let killed = cluster.wait_for_state(&id("sh"), "failed");
    assert_eq!(killed["outcome"]["cause"], "signal", "{killed}");
    let run = id("main");
    let view = cluster.wait_for_state(&run, "succeeded");
    assert_eq!(view["watched"], true, "{view}");
    let ranks = view["attempts"][0]["nodes"][0]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "{view}");
    assert!(ranks.iter().all(|rank| rank["exit"]["code"] == 0), "{view}");
    for rank in ["0", "1"] {
        assert_eq!(
            cluster.wait_for_last_step(&run, rank, 40.0).last().unwrap().1,
            40.0
        );
    }
    let stop = cluster.lockstep(&["run", "stop", &run]);
    assert!(
        String::from_utf8_lossy(&stop.stderr).contains("only watched"),
        "{stop:?}"
    );
}
