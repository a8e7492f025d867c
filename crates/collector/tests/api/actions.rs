//! The actions that a diagnosis lists: their cost, carrying them out, and what is recorded.

use domain::run::checkpoint::Origin;
use domain::run::state::{NodeCommand, NodeEnd, NodeReport};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::checkpoints::{paths, report, run_with};
use crate::harness::{Server, until};
use crate::remote_write::{push, series};
use crate::rules::started;
use crate::runs::{Control, credential, credential_of, start_ranks, submit};

const RULES: &str = "
groups:
  - name: slow
    interval: 100ms
    rules:
      - alert: Slow
        expr: slowness > 1
        labels: { severity: warning }
        annotations: { summary: slow, actions: 'exclude_node, lr_scale, restart' }
";

/// Makes the rule fire for a run, and returns the path of the diagnosis.
async fn diagnosed(server: &Server, run: &str) -> String {
    let labels = [
        ("__name__", "slowness"),
        ("run", run),
        ("node", "n1"),
        ("rank", "0"),
    ];
    let now_ms = collector::clock::now_ms();
    let pushed = push(server, &[series(&labels, &[(now_ms, 2.0)])]).await;
    assert_eq!(pushed.0, StatusCode::NO_CONTENT);
    until("the diagnosis", async || {
        let (_, all) = server.get("/api/diagnoses").await;
        let id = all[0]["id"].as_str()?.to_owned();
        Some(format!("/api/diagnoses/{id}"))
    })
    .await
}

async fn listed(server: &Server, path: &str) -> Vec<String> {
    let (_, view) = server.get(path).await;
    let actions = view["actions"].as_array().cloned().unwrap_or_default();
    let id = |action: Value| action["id"].as_str().unwrap().to_owned();
    actions.into_iter().map(id).collect()
}

async fn act(server: &Server, path: &str, body: Value) -> (StatusCode, Value) {
    server.post(&format!("{path}/act"), body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_is_shown_first_and_carried_out_once() {
    let server = started(RULES).await;
    let run = submit(&server).await;
    let path = diagnosed(&server, &run).await;
    assert_eq!(listed(&server, &path).await, ["apply_knob:lr_scale=0.5"]);

    let action = "apply_knob:lr_scale=0.5";
    let (status, would) = act(&server, &path, json!({"action": action, "dry_run": true})).await;
    assert_eq!(
        (status, &would["done"]),
        (StatusCode::OK, &json!(false)),
        "{would}"
    );
    let (_, view) = server.get(&format!("/api/runs/{run}")).await;
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1, "nothing was done");

    let (status, done) = act(&server, &path, json!({ "action": action })).await;
    assert_eq!(status, StatusCode::OK, "{done}");
    assert_eq!((&done["done"], &done["attempt"]), (&json!(true), &json!(2)));
    let (status, _) = act(&server, &path, json!({ "action": action })).await;
    assert_eq!(status, StatusCode::CONFLICT, "it is so already");
    let (_, view) = server.get(&format!("/api/runs/{run}")).await;
    assert_eq!(view["attempts"][1]["knobs"], json!({"lr_scale": "0.5"}));
    assert_eq!(view["attempts"][1]["change"]["auto_revert"], true);

    let (_, shown) = server.get(&path).await;
    let entry = &shown["timeline"][0];
    assert_eq!(
        (&entry["kind"], &entry["attempt"]),
        (&json!("acted"), &json!(2)),
        "{entry}"
    );
    assert_eq!(entry["note"], "Set lr_scale=0.5");
    let (_, audit) = server.get("/api/audit").await;
    assert_eq!(audit[0]["what"], "diagnosis_act");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_excluded_and_the_run_continues_on_another_node() {
    let server = started(RULES).await;
    let first = credential(&server).await;
    let run = submit(&server).await;
    let mut n1 = Control::connect(&server, &first, &[]).await;
    start_ranks(&server, &mut n1, &run).await;
    let path = diagnosed(&server, &run).await;
    assert!(
        !listed(&server, &path)
            .await
            .contains(&"exclude_node:n1".to_owned()),
        "there is no other node"
    );

    let second = credential_of(&server, "n2").await;
    let mut n2 = Control::connect_as(&server, "n2", &second, &[]).await;
    let action = until("the node to be spare", async || {
        let found = listed(&server, &path).await;
        found.into_iter().find(|id| id == "exclude_node:n1")
    })
    .await;
    let (status, done) = act(&server, &path, json!({ "action": action })).await;
    assert_eq!(status, StatusCode::OK, "{done}");
    let (stop, asked) = n1.command().await;
    assert!(matches!(asked, NodeCommand::Stop { .. }), "{asked:?}");
    assert_eq!(listed(&server, &path).await, [""; 0], "one change at a time");
    n1.say(&run, 80, NodeReport::Accepted { command: stop.id }).await;
    let end = NodeEnd {
        code: Some(1),
        ..NodeEnd::default()
    };
    n1.say(&run, 81, NodeReport::Ended(end)).await;
    let (prepare, asked) = n2.command().await;
    assert!(matches!(asked, NodeCommand::Prepare { .. }), "{asked:?}");
    assert_eq!((prepare.run.as_str(), prepare.attempt), (run.as_str(), 2));
    let (_, view) = server.get(&format!("/api/runs/{run}")).await;
    assert_eq!(view["attempts"][1]["cause"], "node excluded by a person");
    assert_eq!(view["attempts"][1]["excluded"][0]["node"], "n1");
    assert!(n1.has_no_command());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_removes_only_the_checkpoints_that_it_listed() {
    let server = started(&RULES.replace("exclude_node, lr_scale, restart", "prune_checkpoints")).await;
    let mut agent = Control::connect(&server, &credential(&server).await, &[]).await;
    let proven = |steps: &[u64]| report(steps, Some(Origin::Proven));
    let run = run_with(&server, &mut agent, proven(&[1, 2, 3, 4, 5])).await;
    let path = diagnosed(&server, &run).await;
    let action = "prune_checkpoints:keep_last=3";
    let (status, would) = act(&server, &path, json!({"action": action, "dry_run": true})).await;
    assert_eq!(status, StatusCode::OK, "{would}");
    let listed = paths(&would["action"]["removes"]);
    assert_eq!(listed, ["/c/step-1", "/c/step-2"]);

    agent.say(&run, 4, proven(&[1, 2, 3, 4, 5, 6])).await;
    for removes in [listed, Vec::new()] {
        let (status, refused) = act(&server, &path, json!({"action": action, "removes": removes})).await;
        assert_eq!(status, StatusCode::CONFLICT, "{refused}");
        assert_eq!(
            paths(&refused["removes"]),
            ["/c/step-1", "/c/step-2", "/c/step-3"],
            "{refused}"
        );
    }
    let (_, audit) = server.get("/api/audit").await;
    let target = audit[0]["target"].as_str().unwrap();
    assert!(
        target.ends_with("refused: the list of the checkpoints to remove has changed"),
        "{audit}"
    );
    // An order would arrive before the acknowledgement.
    agent.say(&run, 5, proven(&[1, 2, 3, 4, 5, 6])).await;
    assert!(agent.has_no_command(), "nothing is removed");

    let removes = ["/c/step-1", "/c/step-2", "/c/step-3"];
    let (status, done) = act(&server, &path, json!({"action": action, "removes": removes})).await;
    assert_eq!((status, &done["done"]), (StatusCode::OK, &json!(true)), "{done}");
    let (_, NodeCommand::Remove(order)) = agent.command().await else {
        panic!("an order to remove was expected")
    };
    assert_eq!(order.remove.len(), removes.len());
    let (_, audit) = server.get("/api/audit").await;
    let ordered = format!("{run} keep_last=3 ordered 3: {}", removes.join(", "));
    assert_eq!(
        (&audit[0]["what"], &audit[0]["target"]),
        (&json!("checkpoint_prune"), &json!(ordered)),
        "{audit}"
    );
    assert_eq!(audit[1]["what"], "diagnosis_act", "{audit}");
}
