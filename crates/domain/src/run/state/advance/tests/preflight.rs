//! Comparison of nodes before the ranks start.

use super::*;

fn found(change: impl FnOnce(&mut Prepared)) -> NodeReport {
    let mut prepared = Prepared {
        address: "10.0.0.1".into(),
        port: 29_500,
        nproc_default: 2,
        torch_version: "2.8.0".into(),
        cuda: "12.8".into(),
        nccl: "2.27.3".into(),
        driver: "570.1".into(),
        python_version: "3.11.2".into(),
        script_sha256: "abc".into(),
        ..Prepared::default()
    };
    change(&mut prepared);
    NodeReport::Prepared(prepared)
}

/// The actions and warnings for two nodes, the second with a change.
fn two(change: impl FnOnce(&mut Prepared)) -> (Story, Vec<String>) {
    let mut story = Story::submit(2, 3);
    story.place();
    story.report("n0", found(|_| {}));
    let actions = story.report("n1", found(change));
    (story, actions)
}

#[test]
fn what_breaks_a_run_is_refused_with_a_table_and_not_tried_again() {
    let (mut story, actions) = two(|found| {
        found.torch_version = "2.9.1".into();
        found.driver = "580.1".into();
    });
    assert_eq!(actions, ["stop n0 10000", "stop n1 10000"]);
    story.report("n0", ended(0));
    story.report("n1", ended(0));
    assert_eq!(story.outcome(), (RunState::Failed, "mismatch", None, None));
    assert_eq!(
        story.message(),
        "the nodes do not agree. PyTorch differs: n0 → 2.8.0, n1 → 2.9.1. Make them the same, or exclude the node that is different"
    );
}

#[test]
fn each_difference_is_judged_by_what_it_does() {
    type Change = fn(&mut Prepared);
    let cases: [(Change, bool, &str); 8] = [
        (
            |found| found.cuda = "12.6".into(),
            true,
            "the CUDA version of PyTorch differs",
        ),
        (|found| found.nccl = "2.20".into(), true, "NCCL differs"),
        (
            |found| found.script_sha256 = "def".into(),
            true,
            "the script differs",
        ),
        (
            |found| found.driver = "580".into(),
            false,
            "the NVIDIA driver differs",
        ),
        (
            |found| found.python_version = "3.12".into(),
            false,
            "Python differs",
        ),
        (|found| found.driver.clear(), false, ""),
        (
            |found| found.doubtful_imports = vec!["mylib".into()],
            false,
            "the script imports mylib",
        ),
        (|found| found.gpus = 4, false, ""),
    ];
    for (change, breaks, text) in cases {
        let (story, actions) = two(change);
        let attempt = story.machine.current();
        let said = match &attempt.progress.first_failure {
            Some(trouble) => trouble.message.to_string(),
            None => attempt.findings.warnings.join("; "),
        };
        assert_eq!(actions[0].starts_with("stop"), breaks, "{text}");
        assert!(
            said.contains(text) && said.is_empty() == text.is_empty(),
            "{said:?} for {text:?}"
        );
    }
}

#[test]
fn a_first_node_that_only_reaches_itself_is_pointed_out() {
    let mut story = Story::submit(2, 3);
    story.place();
    story.report("n0", found(|found| found.address = "127.0.0.1".into()));
    story.report("n1", found(|_| {}));
    let warnings = &RunView::from(&story.machine).attempts[0].warnings;
    assert!(
        warnings[0].contains("at 127.0.0.1, which is a loopback address"),
        "{warnings:?}"
    );
}

#[test]
fn the_others_look_for_what_the_first_node_wrote_before_anything_starts() {
    for (seen, warnings) in [(true, 0), (false, 1)] {
        let mut story = Story::submit(2, 3);
        story.machine.spec.checkpoint_dir = Some("/ckpt".into());
        story.place();
        let token = |name: &str| {
            let token = format!("/ckpt/.lockstep-{name}");
            found(|found| found.token = Some(token))
        };
        story.report("n0", token("n0"));
        assert_eq!(story.report("n1", token("n1")), ["look n1 /ckpt/.lockstep-n0"]);
        assert_eq!(story.report("n0", token("n0")), [""; 0], "said again");
        assert_eq!(story.machine.state, RunState::Preparing);
        assert_eq!(story.report("n1", NodeReport::Looked { seen }).len(), 2);
        let said = &story.machine.current().findings.warnings;
        assert_eq!(said.len(), warnings);
        assert!(
            said.iter().all(
                |text| text.starts_with("/ckpt is not shared: what node n0 wrote there is missing on n1")
            )
        );
    }
}

#[test]
fn an_older_agent_is_not_told_to_search_for_tokens() {
    let mut story = Story::submit(2, 3);
    story.place();
    story.report("n0", found(|found| found.token = Some("/ckpt/x".into())));
    let actions = story.report("n1", found(|_| {}));
    assert!(actions[0].starts_with("start n0"), "{actions:?}");
}

fn measured(round: u32, mib_s: impl Into<Option<f64>>) -> NodeReport {
    NodeReport::Measured(Measured {
        round,
        mib_s: mib_s.into(),
        ..Measured::default()
    })
}

/// A run whose nodes are prepared, each at its own address; and the actions after the last.
fn measuring(nodes: u32, setting: &str) -> (Story, Vec<String>) {
    let mut story = Story::submit(nodes, 1);
    story.machine.spec.preflight_bandwidth = serde_json::from_str(setting).unwrap();
    story.place();
    let mut actions = Vec::new();
    for n in 0..nodes {
        let address = format!("10.0.0.{n}");
        actions = story.report(
            &format!("n{n}"),
            found(|found| {
                found.address = address;
                found.door = crate::run::secret::SecretValue::new("open sesame");
            }),
        );
    }
    (story, actions)
}

/// All nodes answer until the run starts or ends; `mib_s` is the bandwidth from one node to another.
fn all_measured(story: &mut Story, mib_s: impl Fn(u32, u32) -> f64) -> Vec<String> {
    loop {
        let check = story.machine.current().findings.bandwidth.clone().unwrap();
        assert!(!check.waiting.is_empty());
        let mut actions = Vec::new();
        for (node, from) in check.waiting {
            actions = story.report(&format!("n{node}"), measured(check.round, mib_s(from, node)));
        }
        if !actions.iter().any(|action| action.starts_with("measure")) {
            return actions;
        }
    }
}

#[test]
fn pairs_are_measured_in_rounds_each_begun_when_all_have_answered() {
    let (mut story, actions) = measuring(3, "true");
    assert_eq!(
        actions,
        [
            "measure 0 n1 listens 10.0.0.1:29500 for n2",
            "measure 0 n2 comes 10.0.0.1:29500 for n1"
        ]
    );
    assert_eq!(story.report("n1", measured(0, 900.0)), [""; 0]);
    assert_eq!(story.report("n1", measured(0, 900.0)), [""; 0], "said again");
    assert_eq!(story.report("n0", measured(0, 1.0)), [""; 0], "it was not asked");
    assert_eq!(story.machine.state, RunState::Preparing);
    let actions = story.report("n2", measured(0, 800.0));
    assert!(actions[0].starts_with("measure 1 n0 listens"), "{actions:?}");
    assert_eq!(
        story.report("n2", measured(0, 5.0)),
        [""; 0],
        "of the round before"
    );
    let actions = all_measured(&mut story, |_, _| 850.0);
    assert!(actions[0].starts_with("start n0"), "{actions:?}");
    let view = RunView::from(&story.machine).attempts[0]
        .bandwidth
        .clone()
        .unwrap();
    assert_eq!((view.rounds, view.rounds_done, view.figures.len()), (3, 3, 6));
    assert_eq!(view.figures[0].to, "n1");
    assert_eq!(story.machine.current().findings.warnings, [""; 0]);
    let secrets = story.machine.current().nodes.iter();
    assert!(
        secrets
            .map(|task| task.prepared.clone().unwrap())
            .all(|found| found.door.is_empty()),
        "secrets go when they have done their work"
    );
    assert!(
        Story::running(1, 0)
            .machine
            .current()
            .findings
            .bandwidth
            .is_none()
    );
}

#[test]
fn a_slow_node_is_warned_about_or_refused_and_left_out_by_name() {
    let slow = |from: u32, to: u32| if from == 1 || to == 1 { 10.0 } else { 1_000.0 };
    let text = "node n1 is slow with all others: at most 10 MiB/s, while nodes here reach 1000";
    let (mut story, _) = measuring(3, "true");
    let actions = all_measured(&mut story, slow);
    assert!(actions[0].starts_with("start"), "{actions:?}");
    assert!(story.machine.current().findings.warnings[0].starts_with(text));

    let (mut story, _) = measuring(3, r#"{"refuse": true}"#);
    let actions = all_measured(&mut story, slow);
    assert_eq!(actions, ["stop n0 10000", "stop n1 10000", "stop n2 10000"]);
    for name in ["n0", "n1", "n2"] {
        story.report(name, ended(0));
    }
    assert_eq!(
        story.outcome(),
        (RunState::Restarting, "prepare_failed", Some("n1"), None)
    );
    assert!(story.message().contains(text), "{}", story.message());
    story.wait(2_000);
    let excluded = &story.machine.current().placement.excluded;
    assert_eq!((excluded.len(), excluded[0].node.as_str()), (1, "n1"));
}

#[test]
fn a_slow_pair_blames_no_node_and_missing_measurements_are_noted() {
    let (mut story, _) = measuring(2, r#"{"refuse": true, "min_mib_s": 100}"#);
    story.report("n0", measured(0, None));
    story.report("n1", measured(0, 50.0));
    for name in ["n0", "n1"] {
        story.report(name, ended(0));
    }
    assert_eq!(story.outcome(), (RunState::Failed, "mismatch", None, None));
    let said = RunView::from(&story.machine).attempts[0].warnings.join("; ");
    assert!(said.contains("from node n0 to node n1 is 50 MiB/s"), "{said}");
    assert!(
        said.contains("from node n1 to node n0 was not measured"),
        "{said}"
    );
}

#[test]
fn a_node_that_never_answers_is_given_up_and_a_restarted_collector_waits_again() {
    let (mut story, _) = measuring(3, "true");
    story.report("n1", measured(0, 900.0));
    story.wait(30_000);
    assert_eq!(story.machine.state, RunState::Preparing);
    story.event(&Event::CollectorStarted);
    story.event(&Event::NodeBack {
        node: node("n2"),
        holds: true,
    });
    story.wait(30_000);
    assert_eq!(story.machine.current().progress.failing_since_ms, None);
    let actions = story.wait(20_000);
    assert_eq!(actions.len(), 3, "{actions:?}");
    let task = &story.machine.current().nodes[2];
    assert_eq!(task.fault.as_ref().map(|fault| fault.kind), Some(FaultKind::Away));
}

#[test]
fn interfaces_are_compared_and_the_one_that_differs_is_named() {
    use crate::run::state::Nic;
    let nic = |name: &str, rdma, speed: u64, mtu: u32, up| Nic {
        name: name.into(),
        rdma,
        speed_mbit: Some(speed),
        mtu: Some(mtu),
        up: Some(up),
    };
    let eth = |speed, mtu, up| nic("eth0", false, speed, mtu, up);
    let port = |name: &str, speed, up| nic(name, true, speed, 4_096, up);
    type Nics = Vec<Nic>;
    let good = || vec![eth(100_000, 9_000, true), port("mlx5_0:1", 400_000, true)];
    let cases: [(Nics, &str); 7] = [
        (good(), ""),
        (vec![], ""),
        (
            vec![eth(1_000, 9_000, true), port("mlx5_0:1", 400_000, true)],
            "eth0 on node n2 runs at 1 Gbit/s, where others run at 100 Gbit/s",
        ),
        (
            vec![eth(100_000, 1_500, true), port("mlx5_0:1", 400_000, true)],
            "eth0 on node n2 has an MTU of 1500, the others have 9000: large packets between them may be dropped",
        ),
        (
            vec![eth(100_000, 9_000, false), port("mlx5_0:1", 400_000, true)],
            "eth0 on node n2 has no link",
        ),
        (
            vec![eth(100_000, 9_000, true), port("mlx5_0:1", 10_000, false)],
            "the RDMA port mlx5_0:1 on node n2 is not active",
        ),
        (
            vec![eth(100_000, 9_000, true)],
            "node n2 has 0 RDMA port(s), where others have 1",
        ),
    ];
    for (nics, text) in cases {
        let mut story = Story::submit(3, 0);
        story.place();
        story.report("n0", found(|found| found.nics = good()));
        story.report("n1", found(|found| found.nics = good()));
        story.report("n2", found(|found| found.nics = nics));
        assert_eq!(story.machine.current().findings.warnings.join("; "), text);
    }
}

#[test]
fn a_node_with_far_less_room_than_the_others_is_named() {
    const GIB: u64 = 1 << 30;
    for (free, text) in [
        (3 * GIB, "/ckpt on node n1 has 3 GiB free, where another has 900"),
        (200 * GIB, ""),
        (GIB / 2, "/ckpt on node n1 has only 512 MiB free"),
    ] {
        let mut story = Story::submit(2, 0);
        story.machine.spec.checkpoint_dir = Some("/ckpt".into());
        story.place();
        story.report("n0", found(|found| found.checkpoint_free_bytes = Some(900 * GIB)));
        story.report("n1", found(|found| found.checkpoint_free_bytes = Some(free)));
        assert_eq!(story.machine.current().findings.warnings.join("; "), text);
    }
}

#[test]
fn an_attempt_keeps_what_it_ran_without_its_secrets() {
    let mut story = Story::submit(1, 0);
    let spec = &mut story.machine.spec;
    spec.env = [("NCCL_DEBUG", "INFO"), ("WANDB_API_KEY", "x"), ("SEED", "9")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    spec.args = vec!["--seed=7".into()];
    story.place();
    story.report(
        "n0",
        found(|found| {
            found.provenance = Some(crate::run::provenance::Provenance {
                commit: Some("c0ffee+changes".into()),
                packages: vec!["torch==2.8.0".into()],
                ..Default::default()
            });
        }),
    );
    let provenance = RunView::from(&story.machine).attempts[0]
        .provenance
        .clone()
        .unwrap();
    assert_eq!(provenance.commit.as_deref(), Some("c0ffee+changes"));
    assert_eq!(provenance.packages, ["torch==2.8.0"]);
    assert_eq!(provenance.seed.as_deref(), Some("7"));
    let env: Vec<_> = provenance.env.values().map(String::as_str).collect();
    assert_eq!(env, ["INFO", "9", "(not shown)"]);
}
