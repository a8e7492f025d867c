//! The lists on the event stream: whole after each change, or only what has changed.

use domain::api::lists::PlacedItem;
use domain::api::stream::Push;
use domain::run::state::RunState;
use reqwest::{Method, StatusCode};

use crate::harness::{ADMIN, Agent, Server, answer, is_problem};
use crate::runs::{Control, credential, submit_failing};
use crate::stream::Tab;

/// The stream as the dashboard opens it.
const CHANGES: &str = "/api/stream?lists=changes";

/// Returns the names in the next whole list of nodes.
async fn whole_nodes(tab: &mut Tab) -> Vec<String> {
    let nodes = tab.find(|push| match push {
        Push::Nodes { nodes } => Some(nodes),
        Push::NodesChanged(changes) => panic!("only changes: {changes:?}"),
        _ => None,
    });
    nodes.await.into_iter().map(|node| node.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_is_the_only_item_that_is_sent() {
    let server = Server::start().await;
    let _first = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    let mut tab = Tab::as_admin_at(&server, CHANGES).await;
    assert_eq!(whole_nodes(&mut tab).await, ["n1"]);
    let _second = Agent::connect(&server, ADMIN, "n0").await.unwrap();
    let changes = tab.find(|push| match push {
        Push::NodesChanged(changes) => Some(changes),
        Push::Nodes { nodes } => panic!("the whole list again: {nodes:?}"),
        _ => None,
    });
    let changes = changes.await;
    let [PlacedItem { at: 0, item }] = changes.items.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!((item.name.as_str(), changes.removed.len()), ("n0", 0));
    let mut new = Tab::as_admin_at(&server, CHANGES).await;
    assert_eq!(whole_nodes(&mut new).await, ["n0", "n1"], "a new tab");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_is_the_only_item_that_is_sent() {
    let server = Server::start().await;
    let credential = credential(&server).await;
    let mut agent = Control::connect(&server, &credential, &[]).await;
    let old = submit_failing(&server, &mut agent).await;
    let mut tab = Tab::as_admin_at(&server, CHANGES).await;
    let whole = tab.find(|push| match push {
        Push::Runs { runs } => Some(runs),
        _ => None,
    });
    let ids: Vec<String> = whole.await.into_iter().map(|run| run.id).collect();
    assert_eq!(ids, [old]);

    let new = submit_failing(&server, &mut agent).await;
    let mut state = RunState::Queued;
    while state != RunState::Failed {
        let changes = tab.find(|push| match push {
            Push::RunsChanged(changes) => Some(changes),
            Push::Runs { runs } => panic!("the whole list again: {runs:?}"),
            _ => None,
        });
        let changes = changes.await;
        let [PlacedItem { at: 0, item }] = changes.items.as_slice() else {
            panic!("{changes:?}")
        };
        assert_eq!((&item.id, changes.removed.len()), (&new, 0));
        state = item.state;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_that_does_not_ask_for_changes_gets_whole_lists() {
    let server = Server::start().await;
    let _first = Agent::connect(&server, ADMIN, "n1").await.unwrap();
    for path in ["/api/stream", "/api/stream?lists=whole"] {
        let mut tab = Tab::as_admin_at(&server, path).await;
        let nodes = whole_nodes(&mut tab).await;
        let joins = format!("n{}", nodes.len() + 1);
        let _next = Agent::connect(&server, ADMIN, &joins).await.unwrap();
        let expected = [nodes, vec![joins]].concat();
        assert_eq!(whole_nodes(&mut tab).await, expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_form_of_lists_is_an_error() {
    let server = Server::start().await;
    let path = "/api/stream?lists=all";
    let refused = Tab::open_at(&server, path, &[("authorization", &format!("Bearer {ADMIN}"))]).await;
    assert_eq!(refused.err(), Some(StatusCode::BAD_REQUEST));
    let (status, body) = answer(server.request(Method::GET, path)).await;
    assert!(is_problem(&body, status), "{body}");
    let detail = body["detail"].as_str().unwrap();
    assert!(
        detail.contains("lists") && detail.contains("`changes`"),
        "{detail}"
    );
}
