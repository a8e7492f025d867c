//! Nodes that are held against each other before anything starts.

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

/// What two nodes, the second with a change, come to: actions, then the warnings.
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
        let said = match &attempt.trouble {
            Some(trouble) => trouble.message.clone(),
            None => attempt.warnings.join("; "),
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
    let warnings = &story.machine.view().attempts[0].warnings;
    assert!(
        warnings[0].contains("at 127.0.0.1, which is only itself"),
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
        let said = &story.machine.current().warnings;
        assert_eq!(said.len(), warnings);
        assert!(
            said.iter()
                .all(|text| text
                    .starts_with("/ckpt is not shared: what node n0 wrote there is not seen by n1"))
        );
    }
}

#[test]
fn an_older_agent_is_not_told_to_look() {
    let mut story = Story::submit(2, 3);
    story.place();
    story.report("n0", found(|found| found.token = Some("/ckpt/x".into())));
    let actions = story.report("n1", found(|_| {}));
    assert!(actions[0].starts_with("start n0"), "{actions:?}");
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
            found.provenance = Some(crate::api::runs::Provenance {
                commit: Some("c0ffee+changes".into()),
                packages: vec!["torch==2.8.0".into()],
                ..Default::default()
            });
        }),
    );
    let provenance = story.machine.view().attempts[0].provenance.clone().unwrap();
    assert_eq!(provenance.commit.as_deref(), Some("c0ffee+changes"));
    assert_eq!(provenance.packages, ["torch==2.8.0"]);
    assert_eq!(provenance.seed.as_deref(), Some("7"));
    let env: Vec<_> = provenance.env.values().map(String::as_str).collect();
    assert_eq!(env, ["INFO", "9", "(not shown)"]);
}
