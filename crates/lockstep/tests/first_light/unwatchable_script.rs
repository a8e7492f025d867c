//! A script that breaks every hook of the probe: it runs as it does without Lockstep, and the run reports what could not be seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cluster::{Cluster, python};

/// What each rank does: its argument to `breaks.py`, flags of its Python, and the beginning of the report about it.
const RANKS: [(&str, &str, &str); 5] = [
    (
        "by-hand",
        "",
        "no step was seen: no torch.optim.Optimizer stepped",
    ),
    (
        "isolated",
        "-I",
        "not watched from inside: Python ignores PYTHONPATH there (python -I",
    ),
    (
        "spawns",
        "",
        "the script starts processes with torch.multiprocessing.spawn",
    ),
    ("compiled", "", "torch.compile: the first steps hold its own time"),
    (
        "raises",
        "",
        "a backward pass raised ArithmeticError: its loss does not count",
    ),
];

#[test]
fn what_no_probe_can_follow_runs_as_without_one_and_is_said_with_the_run() {
    let cluster = Cluster::start_without_gpus();
    let script = cluster.data_dir().join("breaks_all.py");
    std::fs::write(&script, launcher()).unwrap();
    let nproc = RANKS.len();
    let spec = cluster.data_dir().join("run.toml");
    // They are five programs: if one ends while another still compiles, that is not a stall.
    let text = format!(
        "script = {:?}\nnproc_per_node = {nproc}\nstall_timeout_s = 0\n",
        script.display().to_string()
    );
    std::fs::write(&spec, text).unwrap();
    let run = cluster.submit(&[spec.to_str().unwrap()]);
    let alone: Vec<Child> = RANKS.iter().map(|(kind, flag, _)| alone(kind, flag)).collect();

    let view = cluster.wait_for_state(&run, "succeeded");
    assert_eq!(view["attempts"].as_array().map(Vec::len), Some(1), "{view}");
    for (rank, child) in alone.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "rank {rank}: {output:?}");
        let log = cluster.get(&format!("/api/runs/{run}/logs?rank={rank}&stream=stdout"));
        let expected = String::from_utf8(output.stdout).unwrap();
        assert!(expected.lines().count() >= 5, "rank {rank}: {expected}");
        assert_eq!(
            log["text"],
            expected.as_str(),
            "rank {rank} prints what it prints alone"
        );
    }

    // The last reports may arrive after the end of the run.
    let mut reports = BTreeMap::new();
    let all = cluster.poll_for(|| {
        let view = cluster.get(&format!("/api/runs/{run}"));
        let lines = view["attempts"][0]["unseen"].as_array()?;
        let of = |key: &str, line: &serde_json::Value| line[key].as_str().unwrap().to_owned();
        reports = lines
            .iter()
            .map(|line| (of("words", line), of("ranks", line)))
            .collect();
        (reports.len() == RANKS.len()).then_some(())
    });
    assert!(all.is_some(), "reports: {reports:?}");
    for (rank, (kind, _, words)) in RANKS.iter().enumerate() {
        let ranks = reports
            .iter()
            .find(|(text, _)| text.starts_with(words))
            .map(|(_, ranks)| ranks.as_str());
        // The rank with its own optimizer has no step of a torch optimizer, and neither has the rank that leaves the work to other
        // processes.
        let expected = if *kind == "by-hand" {
            "0,2".to_owned()
        } else {
            rank.to_string()
        };
        assert_eq!(ranks, Some(expected.as_str()), "{kind}: {reports:?}");
    }
    for command in ["show", "why"] {
        let shown = cluster.lockstep(&["run", command, &run]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(
            shown.contains("not seen: Rank 1: not watched from inside"),
            "{shown}"
        );
        assert!(
            shown.contains("not seen: Ranks 0, 2: no step was seen"),
            "{shown}"
        );
    }
}

fn breaks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch-probe/tests/scripts/breaks.py")
}

/// Each rank replaces itself with another program but keeps its process, as the launch wrappers of users do.
fn launcher() -> String {
    let ranks: Vec<String> = RANKS
        .iter()
        .map(|(kind, flag, _)| format!("({kind:?}, {flag:?})"))
        .collect();
    format!(
        "import os, sys\n\
         kind, flag = [{}][int(os.environ['RANK'])]\n\
         os.execv(sys.executable, [sys.executable, *filter(None, [flag]), {:?}, kind])\n",
        ranks.join(", "),
        breaks().display().to_string()
    )
}

fn alone(kind: &str, flag: &str) -> Child {
    let flags = Some(flag).filter(|flag| !flag.is_empty());
    Command::new(python())
        .args(flags)
        .arg(breaks())
        .arg(kind)
        .env("OMP_NUM_THREADS", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
