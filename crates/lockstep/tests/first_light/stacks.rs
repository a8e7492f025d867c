//! Requests to running ranks: a trace, their stacks, and their wait counters.

use domain::api::inspect::StacksView;
use domain::run::inspect::rank_list;
use serde_json::Value;

use crate::cluster::{Cluster, signal};

/// Trains until the file `hang` exists. Then rank 1 stalls in a named function, and the other ranks wait for it.
const TRAIN: &str = r#"import pathlib, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loads_data():
    if dist.get_rank() == 1 and pathlib.Path("hang").exists():
        time.sleep(600)
def average():
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
while True:
    loads_data()
    model(torch.randn(4, 8)).sum().backward()
    average()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"#;

#[test]
fn stacks_of_running_ranks_are_shown() {
    let cluster = Cluster::start_without_gpus();
    let folder = cluster.data_dir();
    std::fs::write(folder.join("train.py"), TRAIN).unwrap();
    let spec = format!("script = \"train.py\"\nworkdir = {folder:?}\nkineto = true\nnproc_per_node = 2\n");
    let file = folder.join("run.toml");
    std::fs::write(&file, spec).unwrap();
    let run = cluster.submit(&[file.to_str().unwrap()]);
    cluster.wait_for_step(&run, 3.0);

    // A trace that a viewer can open, of a script that has no profiler code.
    let output = folder.join("trace.json");
    let traced = cluster.lockstep(&[
        "run",
        "trace",
        &run,
        "--rank",
        "0",
        "--seconds",
        "1",
        "--lanes",
        "-o",
        output.to_str().unwrap(),
    ]);
    assert!(traced.status.success(), "{traced:?}");
    // Its steps and its collectives are recognised: all of them are exposed, because the script waits for each.
    let lanes = String::from_utf8_lossy(&traced.stdout);
    assert!(
        lanes.contains("rank 0: ranges on the CPU")
            && lanes.contains("% of ")
            && !lanes.contains("whole trace"),
        "{lanes}"
    );
    let trace: Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert!(
        named("aten::linear") > 0 && named("aten::mm") > 0,
        "{} events",
        events.len()
    );

    // One rank stalls and the other waits for it: each is shown with its line.
    std::fs::write(folder.join("hang"), "").unwrap();
    let ask = || -> StacksView {
        let answer = cluster.lockstep(&["run", "stacks", &run, "--json"]);
        assert!(answer.status.success(), "{answer:?}");
        serde_json::from_slice(&answer.stdout).unwrap()
    };
    let lines = |view: &StacksView| -> Vec<String> {
        let line = |group: &domain::run::inspect::StackGroup| {
            format!("{}: {}", rank_list(&group.ranks), group.doing)
        };
        view.groups.iter().map(line).collect()
    };
    let expected = [
        "rank 0: all_reduce at train.py:12",
        "rank 1: loads_data at train.py:9",
    ];
    let view = cluster.wait_for("both ranks to be in their places", || {
        let view = ask();
        (lines(&view) == expected).then_some(view)
    });
    let pid = view.ranks[1].pid.unwrap().try_into().unwrap();
    let text = cluster.lockstep(&["run", "stacks", &run, "--rank", "1"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.starts_with(expected[1]) && text.contains("<module> ("),
        "{text}"
    );

    // The Flight Recorder records Gloo's collectives too. The waiting rank has waited before.
    let flight = cluster.lockstep(&["run", "flight", &run, "--rank", "0"]);
    assert!(
        String::from_utf8_lossy(&flight.stdout).contains("gloo:all_reduce"),
        "{flight:?}"
    );
    let digest = cluster.lockstep(&["run", "flight", &run, "--digest"]);
    let digest = String::from_utf8(digest.stdout).unwrap();
    let (waits, late) = digest.split_once("rank 1:").unwrap();
    assert!(
        waits.contains("0-1")
            && waits.contains("gloo:all_reduce [[8,8]] Float")
            && !late.contains("all_reduce"),
        "{digest}"
    );
    let is_there = |series: &str, rank: u32, value: f64| {
        let query = format!("{series}{{run={run:?},rank=\"{rank}\"}} == {value}");
        cluster.wait_for(&query, || (!cluster.query(&query).is_empty()).then_some(()));
    };
    is_there("train_phase", 0, 10.0);
    is_there("train_phase", 1, 6.0);
    is_there("train_process_state", 1, 0.0);
    let counters = cluster.lockstep(&["run", "flight", &run, "--wait-counters"]);
    assert!(
        String::from_utf8_lossy(&counters.stdout).contains("init_process_group"),
        "{counters:?}"
    );

    // A stopped process cannot answer.
    signal(pid, "STOP");
    let view = cluster.wait_for("the stopped rank to be known", || {
        let view = ask();
        (!view.ranks[1].problem.is_empty()).then_some(view)
    });
    let stopped = &view.ranks[1];
    assert!(stopped.problem.contains("its process is stopped"), "{stopped:?}");
    assert_eq!(stopped.process.as_ref().unwrap().state, "T (stopped by a signal)");
    assert_eq!(lines(&view)[0], expected[0]);
    is_there("train_process_state", 1, 1.0);
    signal(pid, "CONT");

    let nobody = cluster.lockstep(&["run", "stacks", &run, "--rank", "7"]);
    assert!(
        String::from_utf8_lossy(&nobody.stderr).contains("its ranks are 0 to 1"),
        "{nobody:?}"
    );
    let stopped = cluster.lockstep(&["run", "stop", &run, "--grace", "0s", "--wait"]);
    let over = cluster.lockstep(&["run", "stacks", &run]);
    assert!(
        String::from_utf8_lossy(&over.stderr).contains("has no running ranks"),
        "{stopped:?} {over:?}"
    );
}
