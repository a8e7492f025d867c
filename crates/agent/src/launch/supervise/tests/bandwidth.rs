//! Tests in which the agents of two nodes measure the bandwidth between them, as the collector orders.

use domain::run::bandwidth::BandwidthOptions;
use domain::run::state::{Measure, Measured, Prepared};

use super::*;

impl Agent {
    async fn prepared_to_measure(&self) -> Prepared {
        let spec = Spec {
            preflight_bandwidth: BandwidthOptions {
                seconds: 0.2,
                ..BandwidthOptions::default()
            },
            ..self.spec()
        };
        let prepare = NodeCommand::Prepare {
            spec: Box::new(spec),
            node_rank: 0,
            nnodes: 2,
            resume_from: None,
        };
        self.command(2, prepare).unwrap();
        match self
            .report(|report| matches!(report, NodeReport::Prepared(_)))
            .await
        {
            NodeReport::Prepared(prepared) => prepared,
            other => panic!("{other:?}"),
        }
    }

    async fn measured(&self, round: u32) -> Measured {
        let of_round =
            |report: &NodeReport| matches!(report, NodeReport::Measured(measured) if measured.round == round);
        match self.report(of_round).await {
            NodeReport::Measured(measured) => measured,
            other => panic!("{other:?}"),
        }
    }
}

fn measure(host: &Prepared, round: u32, listens: bool) -> NodeCommand {
    NodeCommand::Measure(Measure {
        round,
        peer: "the other".into(),
        listens,
        address: "127.0.0.1".into(),
        port: host.port,
        secret: host.door.clone(),
        one_way_ms: 100,
        within_ms: 10_000,
    })
}

#[tokio::test]
async fn two_agents_measure_each_other_once_for_each_command() {
    let (first, second) = (Agent::new(), Agent::new());
    let host = first.prepared_to_measure().await;
    let other = second.prepared_to_measure().await;
    assert!(
        !host.door.is_empty() && host.door != other.door,
        "each has its own"
    );
    for round in [0, 1] {
        let id = 3 + u64::from(round);
        second.command(id, measure(&host, round, false)).unwrap();
        first.command(id, measure(&host, round, true)).unwrap();
        for agent in [&first, &second] {
            let measured = agent.measured(round).await;
            assert!(measured.mib_s > Some(1.0), "{measured:?}");
        }
    }
    first.command(3, measure(&host, 0, true)).unwrap();
    let measured = |report: &NodeReport| matches!(report, NodeReport::Measured(_));
    assert_eq!(first.reports().into_iter().filter(measured).count(), 2);
    let folder = Folder::of(first.data.path(), &first.run, AttemptNo(1));
    assert!(!folder.has(files::MEASURE), "its secret goes with the answer");
}

#[tokio::test]
async fn an_agent_that_was_replaced_measures_on_and_a_stop_ends_the_waiting() {
    let agent = Agent::new();
    let host = agent.prepared_to_measure().await;
    agent.command(3, measure(&host, 0, true)).unwrap();
    let agent = agent.restarted().await;
    let visitor = Agent::new();
    visitor.prepared_to_measure().await;
    visitor.command(3, measure(&host, 0, false)).unwrap();
    assert!(visitor.measured(0).await.mib_s > Some(1.0));
    assert!(
        agent.measured(0).await.mib_s > Some(1.0),
        "at the port it had leased before"
    );

    let began = Instant::now();
    agent.command(4, measure(&host, 1, true)).unwrap();
    agent.command(5, NodeCommand::Stop { grace_ms: 0 }).unwrap();
    assert_eq!(agent.end().await.cause, EndCause::NeverStarted);
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "it did not wait for the other node"
    );
}
