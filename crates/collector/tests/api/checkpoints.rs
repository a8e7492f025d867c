//! Checkpoints over HTTP and the control stream: pins of other runs, commands to remove, commands from before an upgrade.

use std::collections::BTreeSet;

use domain::ident::AttemptNo;
use domain::run::checkpoint::{
    Checkpoint, CheckpointOnNode, CheckpointReport, Origin, PruneOrder, RemovalOrder,
};
use domain::run::state::{NodeCommand, NodeReport, RunState, Task};
use reqwest::StatusCode;
use serde_json::{Value, json};
use store::state::runs::RunAction;
use store::{Store, StoreConfig};

use crate::harness::{Server, until};
use crate::runs::{Control, credential, run_is, submit_failing};

pub(crate) fn report(steps: &[u64], origin: Option<Origin>) -> NodeReport {
    let checkpoint = |step: &u64| Checkpoint {
        path: format!("/c/step-{step}"),
        step: Some(*step),
        // Later than the start of the run, for a node that cannot prove the origin.
        finished_ms: Some(4_000_000_000_000 + i64::try_from(*step).unwrap()),
        seen: [(
            "n1".to_owned(),
            CheckpointOnNode {
                mark: format!("inode-{step}"),
                complete: true,
                origin,
                ..CheckpointOnNode::default()
            },
        )]
        .into(),
        ..Checkpoint::default()
    };
    NodeReport::Checkpoints(CheckpointReport {
        folder: Some("/c".into()),
        proves: origin.is_some(),
        checkpoints: steps.iter().map(checkpoint).collect(),
        ..CheckpointReport::default()
    })
}

/// An ended run on the node, whose checkpoints the node has reported.
pub(crate) async fn run_with(server: &Server, agent: &mut Control, report: NodeReport) -> String {
    let run = submit_failing(server, agent).await;
    agent.say(&run, 3, report).await;
    run
}

async fn pin(server: &Server, run: &str, path: &str, pinned: bool) {
    let pin = format!("/api/runs/{run}/checkpoints/pin");
    let (status, said) = server.post(&pin, json!({ "path": path, "pinned": pinned })).await;
    assert_eq!(status, StatusCode::OK, "{said}");
}

/// A dry run, and then the removal of what it lists.
async fn prune(server: &Server, run: &str, dry_run: bool) -> Value {
    let (status, listed) = ask_prune(server, run, json!({ "dry_run": true, "keep_last": 1 })).await;
    assert_eq!(status, StatusCode::OK, "{listed}");
    if dry_run {
        return listed;
    }
    let request = json!({ "keep_last": 1, "removes": paths(&listed["removed"]) });
    let (status, said) = ask_prune(server, run, request).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    said
}

async fn ask_prune(server: &Server, run: &str, request: Value) -> (StatusCode, Value) {
    let path = format!("/api/runs/{run}/checkpoints/prune");
    server.post(&path, request).await
}

/// Returns the paths on the lines of a list, sorted.
pub(crate) fn paths(list: &Value) -> Vec<&str> {
    let lines = list.as_array().unwrap().iter();
    let mut paths: Vec<&str> = lines.map(|line| line["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    paths
}

/// Returns the checkpoints that were not removed although that was requested, each with the reason.
async fn not_removed(server: &Server, run: &str) -> Vec<(String, String)> {
    let (_, list) = server.get(&format!("/api/runs/{run}/checkpoints")).await;
    let checkpoints = list["checkpoints"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let reasons = checkpoints.filter_map(|one| Some((text(&one["path"])?, text(&one["not_removed"])?)));
    reasons.collect()
}

/// Returns a stored command of the run's first attempt that the node has not accepted.
fn stored_command(command: NodeCommand) -> RunAction {
    let node = domain::ident::NodeName::new("n1").unwrap();
    RunAction {
        attempt: AttemptNo(1),
        n: 77,
        action: serde_json::to_value(Task::Command { node, command }).unwrap(),
    }
}

async fn first_removal_line(server: &Server, run: &str) -> String {
    until("a line about a checkpoint that was not removed", async || {
        removal_lines(server, run).await.into_iter().next()
    })
    .await
}

/// Returns the lines of the audit log about prunes, newest first.
async fn prunes_audited(server: &Server) -> Vec<String> {
    let (_, lines) = server.get("/api/audit").await;
    let lines = lines.as_array().unwrap().iter();
    let of_prunes = lines.filter(|line| line["what"] == "checkpoint_prune");
    let target = |line: &Value| line["target"].as_str().unwrap().to_owned();
    of_prunes.map(target).collect()
}

/// Returns the lines of the event log about them.
async fn removal_lines(server: &Server, run: &str) -> Vec<String> {
    let path = format!("/api/events?run={run}&kind=checkpoint_not_removed");
    let (_, lines) = server.get(&path).await;
    let message = |line: &Value| line["message"].as_str().unwrap().to_owned();
    lines.as_array().unwrap().iter().map(message).collect()
}

fn kind_of<'a>(list: &'a Value, path: &str) -> &'a str {
    let mut lines = list.as_array().unwrap().iter();
    let line = lines.find(|line| line["path"] == path);
    line.and_then(|line| line["kind"].as_str()).unwrap_or_default()
}

#[tokio::test]
async fn a_pin_of_one_run_holds_for_every_run_that_uses_the_folder() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let proven = || report(&[1, 2, 3], Some(Origin::Proven));
    let one = run_with(&server, &mut agent, proven()).await;
    let other = run_with(&server, &mut agent, proven()).await;
    pin(&server, &one, "/c/step-1", true).await;

    let dry = prune(&server, &other, true).await;
    assert_eq!(
        kind_of(&dry["kept"], "/c/step-1"),
        "pinned_by_another_run",
        "{dry}"
    );
    let (_, list) = server.get(&format!("/api/runs/{other}/checkpoints")).await;
    assert_eq!(
        kind_of(&list["retention"]["kept"], "/c/step-1"),
        "pinned_by_another_run"
    );
    let (_, list) = server.get(&format!("/api/runs/{one}/checkpoints")).await;
    assert_eq!(kind_of(&list["retention"]["kept"], "/c/step-1"), "pinned");

    // A command that is on its way when the pin is set is withdrawn.
    prune(&server, &other, false).await;
    let (_, NodeCommand::Remove(order)) = agent.command().await else {
        panic!("an order to remove was expected")
    };
    assert_eq!(order.remove, ["/c/step-2"]);
    pin(&server, &one, "/c/step-2", true).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    pin(&server, &one, "/c/step-1", false).await;
    prune(&server, &other, false).await;
    let (_, NodeCommand::Remove(order)) = agent.command().await else {
        panic!("an order to remove was expected")
    };
    assert_eq!(order.remove, ["/c/step-1"], "the one of before is not sent again");
    let dropped = first_removal_line(&server, &other).await;
    assert!(
        dropped.starts_with("/c/step-2 was not removed: it must be kept now: pinned by another run"),
        "{dropped}"
    );
}

/// Otherwise a node that is offline for days would remove checkpoints when it reconnects, long after the request.
#[tokio::test]
async fn an_order_that_its_node_has_not_accepted_in_time_is_dropped_with_a_reason() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], Some(Origin::Proven))).await;
    drop(agent);
    let order = RemovalOrder {
        folder: "/c".into(),
        remove: vec!["/c/step-1".into()],
        ordered_ms: Some(collector::clock::now_ms() - RemovalOrder::VALID_MS),
        ..RemovalOrder::default()
    };
    let action = stored_command(NodeCommand::Remove(order));
    let server = server.restarted_with(&run, &[action], |_| {}).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let line = first_removal_line(&server, &run).await;
    assert!(
        line.starts_with("/c/step-1 was not removed: the order to remove it has expired"),
        "{line}"
    );
    // An order would arrive before the acknowledgement.
    agent.say(&run, 4, report(&[1, 2], Some(Origin::Proven))).await;
    assert!(agent.has_no_command());
    assert_eq!(not_removed(&server, &run).await.len(), 1);
    prune(&server, &run, false).await;
    let (_, NodeCommand::Remove(order)) = agent.command().await else {
        panic!("an order to remove was expected")
    };
    let is_valid = |left: u64| (1..=RemovalOrder::VALID_MS.unsigned_abs()).contains(&left);
    assert!(order.valid_ms.is_some_and(is_valid), "{order:?}");
    assert_eq!(not_removed(&server, &run).await, []);
}

/// While a file server did not answer, orders to remove the same checkpoints piled up.
#[tokio::test]
async fn of_orders_that_repeat_each_other_only_the_last_is_sent_again() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2, 3], Some(Origin::Proven))).await;
    prune(&server, &run, false).await;
    prune(&server, &run, false).await;
    let (first, _) = agent.command().await;
    let (last, _) = agent.command().await;
    assert!(first.id < last.id, "{first:?} {last:?}");
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let (again, _) = agent.command().await;
    assert_eq!(again.id, last.id);
}

/// A person looks at the list of a dry run. Meanwhile the run saves another checkpoint, so the rule would remove one more.
#[tokio::test]
async fn a_prune_that_would_remove_others_than_the_dry_run_listed_is_refused() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], Some(Origin::Proven))).await;
    let dry = prune(&server, &run, true).await;
    assert_eq!(paths(&dry["removed"]), ["/c/step-1"]);
    agent.say(&run, 4, report(&[1, 2, 3], Some(Origin::Proven))).await;
    let seen = json!({ "keep_last": 1, "removes": ["/c/step-1"] });
    for request in [seen, json!({ "keep_last": 1 })] {
        let (status, refused) = ask_prune(&server, &run, request).await;
        assert_eq!(status, StatusCode::CONFLICT, "{refused}");
        assert_eq!(
            paths(&refused["removes"]),
            ["/c/step-1", "/c/step-2"],
            "{refused}"
        );
        assert!(
            refused["detail"]
                .as_str()
                .unwrap()
                .contains("nothing was removed"),
            "{refused}"
        );
    }
    let refused = format!("{run} keep_last=1 refused: the list of the checkpoints to remove has changed");
    assert_eq!(prunes_audited(&server).await, [refused.as_str(); 2]);
    prune(&server, &run, false).await;
    let ordered = format!("{run} keep_last=1 ordered 2: /c/step-1, /c/step-2");
    assert_eq!(prunes_audited(&server).await[0], ordered);
    let (_, NodeCommand::Remove(order)) = agent.command().await else {
        panic!("an order to remove was expected")
    };
    let mut ordered = order.remove;
    ordered.sort_unstable();
    assert_eq!(
        ordered,
        ["/c/step-1", "/c/step-2"],
        "the refused ones gave no order"
    );
}

#[tokio::test]
async fn why_a_checkpoint_was_not_removed_is_in_its_list_and_in_the_event_log_once() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], Some(Origin::Proven))).await;
    prune(&server, &run, false).await;
    let mut kept = report(&[1, 2], Some(Origin::Proven));
    if let NodeReport::Checkpoints(report) = &mut kept {
        let view = report.checkpoints[0].seen.get_mut("n1").unwrap();
        view.not_removed = Some("a run resumes from it".to_owned());
    }
    agent.say(&run, 4, kept).await;
    // This report is of an agent that does not know the reason.
    agent.say(&run, 5, report(&[1, 2, 3], Some(Origin::Proven))).await;
    let reasons = not_removed(&server, &run).await;
    assert_eq!(
        reasons,
        [("/c/step-1".to_owned(), "a run resumes from it (on n1)".to_owned())]
    );
    first_removal_line(&server, &run).await;
    assert_eq!(
        removal_lines(&server, &run).await,
        ["/c/step-1 was not removed: a run resumes from it (on n1)"]
    );
    prune(&server, &run, false).await;
    assert_eq!(not_removed(&server, &run).await, [], "it is requested again");
}

/// The run has ended, so nothing but the request for the list notices that the time is over.
#[tokio::test]
async fn an_order_that_its_node_never_answered_is_listed_with_a_reason() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], Some(Origin::Proven))).await;
    drop(agent);
    let ordered_long_ago = |machine: &mut Value| {
        let mut all = machine["checkpoints"].as_array_mut().unwrap().iter_mut();
        let first = all.find(|one| one["path"] == "/c/step-1").unwrap();
        first["seen"]["n1"]["requested_removal"] = json!({ "at_ms": 1, "remain": { "path": "/c/step-2" } });
    };
    let server = server.restarted_with(&run, &[], ordered_long_ago).await;
    let reasons = not_removed(&server, &run).await;
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(
        reasons[0]
            .1
            .starts_with("the node did not report within 30 minutes"),
        "{reasons:?}"
    );
    first_removal_line(&server, &run).await;
}

/// The node n2 has a disk of its own with a part of step 1, and does not see step 2.
#[tokio::test]
async fn a_prune_is_audited_with_what_it_cannot_remove() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], Some(Origin::Proven))).await;
    drop(agent);
    let with_second_disk = |machine: &mut Value| {
        let mut all = machine["checkpoints"].as_array_mut().unwrap().iter_mut();
        let first = all.find(|one| one["path"] == "/c/step-1").unwrap();
        first["seen"]["n2"] = json!({ "mark": "disk-2", "complete": true, "origin": "proven" });
        machine["storage"]["nodes"]["n2"] = json!({ "folder": "/c", "proves": true });
    };
    let server = server.restarted_with(&run, &[], with_second_disk).await;
    prune(&server, &run, false).await;
    let audited = prunes_audited(&server).await;
    assert_eq!(audited[1], format!("{run} keep_last=1 ordered 1: /c/step-1"));
    let kept = format!("{run} keep_last=1 not removed: /c/step-1: no node that has it");
    assert!(
        audited[0].starts_with(&kept) && audited[0].ends_with("(on n2)"),
        "{audited:?}"
    );
}

/// On shared storage, the node that removes a checkpoint may be another one than that of the run that resumed from it.
#[tokio::test]
async fn a_checkpoint_from_which_another_run_resumed_is_kept_until_that_run_ends() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let proven = || report(&[1, 2, 3], Some(Origin::Proven));
    let one = run_with(&server, &mut agent, proven()).await;
    let other = run_with(&server, &mut agent, proven()).await;
    let dry = prune(&server, &other, true).await;
    assert_eq!(kind_of(&dry["removed"], "/c/step-1"), "older_than_last", "{dry}");
    let resume = format!("/api/runs/{one}/resume");
    let (status, said) = server.post(&resume, json!({ "checkpoint": "/c/step-1" })).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    let dry = prune(&server, &other, true).await;
    assert_eq!(
        kind_of(&dry["kept"], "/c/step-1"),
        "pinned_by_another_run",
        "{dry}"
    );
    assert_eq!(kind_of(&dry["removed"], "/c/step-2"), "older_than_last", "{dry}");
    agent.attempt = 2;
    let (prepare, _) = agent.command().await;
    assert_eq!(prepare.run, one);
    agent
        .say(&one, 1, NodeReport::Accepted { command: prepare.id })
        .await;
    let message = "no torch".to_owned();
    agent.say(&one, 2, NodeReport::PrepareFailed { message }).await;
    run_is(&server, &one, RunState::Failed).await;
    let dry = prune(&server, &other, true).await;
    assert_eq!(kind_of(&dry["removed"], "/c/step-1"), "older_than_last", "{dry}");
}

#[tokio::test]
async fn a_node_with_an_older_agent_gets_no_order() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], None)).await;
    let answer = prune(&server, &run, false).await;
    assert_eq!(answer["removed"], json!([]));
    assert_eq!(kind_of(&answer["kept"], "/c/step-1"), "not_proven", "{answer}");
    agent.say(&run, 4, report(&[1, 2], Some(Origin::Proven))).await;
    prune(&server, &run, false).await;
    let (first, asked) = agent.command().await;
    assert!(
        matches!(asked, NodeCommand::Remove(_)),
        "the first order: {asked:?}"
    );
    assert_eq!(first.run, run);
}

/// They were created by a version that did not check who wrote the checkpoints that it removes.
#[tokio::test]
async fn orders_that_were_stored_before_the_upgrade_are_dropped() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let run = run_with(&server, &mut agent, report(&[1, 2], Some(Origin::Proven))).await;
    drop(agent);
    let order = PruneOrder {
        folder: "/c".into(),
        remove: vec!["/c/step-1".into()],
        ..PruneOrder::default()
    };
    let action = stored_command(NodeCommand::Checkpoints(order));
    let server = server.restarted_with(&run, &[action], |_| {}).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    prune(&server, &run, false).await;
    let (_, asked) = agent.command().await;
    assert!(
        matches!(asked, NodeCommand::Remove(_)),
        "the first order: {asked:?}"
    );
    drop(agent);
    let Server { running, folder, .. } = server;
    running.shutdown().await;
    let store = Store::open(StoreConfig::new(folder.path())).await.unwrap();
    let pending = store.state.pending_actions().await.unwrap();
    let waiting: BTreeSet<u32> = pending.iter().map(|(_, action)| action.n).collect();
    assert!(!waiting.contains(&77), "{pending:?}");
    store.close().await;
}
