//! Tests of knobs that ranks apply while they train: the order to the ranks, and each rank's answer.

use std::collections::BTreeMap;

use domain::run::knob::KnobAnswer;
use shim::LiveOrder;

use super::*;

/// Applies every order, answers twice, and answers again when the same order is repeated.
const OBEDIENT: &str = r#"
seen, path = None, os.path.join(os.path.dirname(os.environ["LOCKSTEP_PROBE_SOCKET"]), "knobs.live")
while True:
    time.sleep(0.02)
    try:
        order = json.load(open(path))
    except OSError:
        continue
    if order == seen:
        continue
    seen = order
    for name, value in order["set"].items():
        state = "failed" if value == "13" else "applied"
        for _ in range(2):
            say(kind="knob", name=name, value=value or "", state=state, detail="in 1 group", live=order["live"])
"#;

fn set(value: Option<&str>) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([("process_group_timeout_s".to_owned(), value.map(Into::into))])
}

async fn obedient() -> Agent {
    let agent = Agent::new();
    let (steps, _) = TRAIN.split_once("time.sleep(600)").unwrap();
    std::fs::write(agent.data.path().join("train.py"), format!("{steps}{OBEDIENT}")).unwrap();
    agent.train().await;
    agent
}

fn answers(agent: &Agent) -> Vec<KnobAnswer> {
    let answer = |report| match report {
        NodeReport::KnobAnswered(answer) => Some(answer),
        _ => None,
    };
    agent.reports().into_iter().filter_map(answer).collect()
}

async fn answered(agent: &Agent, live: u32) -> Vec<(u32, String, bool)> {
    for rank in [0, 1] {
        let of_rank = |answer: &KnobAnswer| answer.live == Some(live) && answer.rank == Rank(rank);
        agent
            .report(|report| matches!(report, NodeReport::KnobAnswered(answer) if of_rank(answer)))
            .await;
    }
    let mut told: Vec<_> = answers(agent)
        .into_iter()
        .filter(|answer| answer.live == Some(live))
        .map(|answer| (answer.rank.0, answer.value, answer.applied))
        .collect();
    told.sort();
    told
}

#[tokio::test]
async fn an_order_reaches_each_rank_once_and_each_answer_is_reported_once() {
    let agent = obedient().await;
    let turn = |agent: &Agent, id, live, value| {
        let set = set(value);
        agent.command(id, NodeCommand::TurnLive { live, set }).unwrap()
    };
    let accepted = turn(&agent, 5, 1, Some("600"));
    assert_eq!(accepted.report, NodeReport::Accepted { command: 5 });
    let both = |value: &str, applied| vec![(0, value.to_owned(), applied), (1, value.to_owned(), applied)];
    assert_eq!(answered(&agent, 1).await, both("600", true));
    assert_eq!(turn(&agent, 5, 1, Some("600")), accepted, "sent again");

    // The agent is killed and restarted. Its ranks continue, and take the next order from it.
    let agent = agent.restarted().await;
    turn(&agent, 7, 2, None);
    assert_eq!(answered(&agent, 2).await, both("", true));
    // An older order that arrives later is ignored.
    turn(&agent, 6, 1, Some("900"));
    let folder = Folder::of(agent.data.path(), &agent.run, AttemptNo(1));
    let order: LiveOrder = folder.read(files::KNOBS_LIVE).unwrap();
    assert_eq!((order.order, order.live, order.set), (7, 2, set(None)));

    turn(&agent, 8, 3, Some("13"));
    assert_eq!(answered(&agent, 3).await, both("13", false));
    agent.command(9, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::Stopped);
    assert_eq!(answers(&agent).len(), 6, "once a rank and change");
    let late = turn(&agent, 10, 4, Some("600"));
    assert_eq!(late.report, NodeReport::Accepted { command: 10 }, "it is over");
}

#[tokio::test]
async fn an_agent_that_accepts_no_new_runs_still_delivers_orders_to_its_runs() {
    let mut agent = obedient().await;
    agent.set_up(|setting| setting.accepts_runs = false).await;
    let set = set(Some("600"));
    let accepted = agent.command(5, NodeCommand::TurnLive { live: 1, set }).unwrap();
    assert_eq!(accepted.report, NodeReport::Accepted { command: 5 });
    assert_eq!(answered(&agent, 1).await.len(), 2);
    agent.command(6, NodeCommand::Stop { grace_ms: 1_000 }).unwrap();
    agent.end().await;
}
