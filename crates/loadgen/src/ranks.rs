//! Reports the ranks of the fleet over the control protocol for some time, as agents report a training that `lockstep exec`
//! started. The collector then compares the ranks by the samples of [`crate::agents`].
//!
//! ```text
//! each node:  control stream ─▶ Watched ─▶ RankStarted × GPUs ─▶ … all nodes have started, some seconds … ─▶ Ended ─▶ acknowledged
//!             ▲ any error: wait with jitter, open the stream again, send again what was not acknowledged
//! ```
//! Run, rank and node are those in the labels of the samples.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use domain::ident::Rank;
use domain::noise::{mix, unit};
use domain::run::state::{EndCause, NodeEnd, NodeReport, Watched};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use wire::control::{ControlStream, OpenError};
use wire::proto::{Held, Holding, RunEvent, control_down, control_up};

use crate::{Fleet, hello};

/// The number of nodes that open their stream at the same time, as in [`crate::agents`].
const JOINING_MAX: usize = 8;
/// The time within which all nodes must have started their ranks, and the time within which all must have ended them.
const REPORTED_WITHIN: Duration = Duration::from_secs(600);
/// The mean wait after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the ranks run.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// How long the ranks run after all have started, in seconds.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Number of the attempt. If the runs have ended before, it must be higher than that of their last attempt.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub attempt: u32,
}

/// The result.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The number of runs.
    pub runs: u32,
    /// The number of ranks of all runs.
    pub ranks: u32,
    /// Seconds until the collector had acknowledged that all ranks have started.
    pub start_s: f64,
    /// Seconds from the end of the ranks until the collector had acknowledged it.
    pub end_s: f64,
    /// Reports that were acknowledged.
    pub reports: u64,
    /// How often streams were opened again.
    pub reconnects: u64,
}

/// Reports the start of all ranks, waits, and reports their end.
///
/// # Errors
/// Fails if the collector does not acknowledge the reports of all nodes in time.
pub async fn run(url: &str, join: Option<String>, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    let join = join.context("agents need a join token; set LOCKSTEP_JOIN")?;
    let shared = Arc::new(Shared {
        url: url.to_owned(),
        join,
        fleet,
        attempt: plan.attempt,
        joining: Semaphore::new(JOINING_MAX),
        started: watch::Sender::new(0),
        ends: watch::Sender::new(false),
        reports: AtomicU64::new(0),
        reconnects: AtomicU64::new(0),
    });
    let (begin, mut nodes) = (Instant::now(), JoinSet::new());
    for index in 0..fleet.nodes {
        nodes.spawn(Node::new(shared.clone(), index).run());
    }
    let mut started = shared.started.subscribe();
    let all_started = started.wait_for(|started| *started == fleet.nodes);
    let all_started = timeout(REPORTED_WITHIN, all_started).await;
    all_started
        .context("not all ranks were started in time")?
        .context("the sender is not dropped")?;
    let start_s = begin.elapsed().as_secs_f64();
    sleep(Duration::from_secs(plan.seconds)).await;
    shared.ends.send_replace(true);
    let begin = Instant::now();
    let all_ended = timeout(REPORTED_WITHIN, async {
        while let Some(ended) = nodes.join_next().await {
            ended.context("a node's task failed")?;
        }
        Ok::<_, anyhow::Error>(())
    });
    all_ended.await.context("not all ranks were ended in time")??;
    Ok(Outcome {
        runs: fleet.runs,
        ranks: fleet.nodes * fleet.gpus,
        start_s,
        end_s: begin.elapsed().as_secs_f64(),
        reports: shared.reports.load(Ordering::Relaxed),
        reconnects: shared.reconnects.load(Ordering::Relaxed),
    })
}

/// The state that all nodes share.
struct Shared {
    url: String,
    join: String,
    fleet: Fleet,
    attempt: u32,
    joining: Semaphore,
    /// The number of nodes whose ranks have started, as the collector has acknowledged.
    started: watch::Sender<u32>,
    /// Whether the ranks end.
    ends: watch::Sender<bool>,
    reports: AtomicU64,
    reconnects: AtomicU64,
}

/// One node.
struct Node {
    shared: Arc<Shared>,
    index: u32,
    instance: String,
    run: String,
    last_id: u64,
    /// Reports that are not acknowledged yet, in order.
    pending: VecDeque<RunEvent>,
    /// Whether reports were sent, so that the collector may know the attempt.
    holds: bool,
    state: NodeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeState {
    /// Not all reports of the start are acknowledged.
    Starting,
    Running,
    /// The report of the end is not acknowledged.
    Ending,
}

impl Node {
    fn new(shared: Arc<Shared>, index: u32) -> Self {
        let mut node = Self {
            run: shared.fleet.run_id(index),
            shared,
            index,
            instance: hello::instance(index),
            last_id: 0,
            pending: VecDeque::new(),
            holds: false,
            state: NodeState::Starting,
        };
        node.report(&NodeReport::Watched(Watched {
            name: "loadgen".to_owned(),
            program: "/srv/train.py".to_owned(),
            command: "torchrun /srv/train.py".to_owned(),
            pid: 100,
            found: false,
        }));
        for local_rank in 0..node.shared.fleet.gpus {
            node.report(&NodeReport::RankStarted {
                rank: Rank(node.shared.fleet.rank(index, local_rank)),
                local_rank,
                pid: 1_000 + local_rank,
            });
        }
        node
    }

    /// Runs until the collector has acknowledged the end.
    async fn run(mut self) {
        let mut failures = 0_u64;
        while let Err(error) = self.session().await {
            failures += 1;
            self.shared.reconnects.fetch_add(1, Ordering::Relaxed);
            let jitter = unit(mix(u64::from(self.index) ^ failures << 32));
            let wait = requested_wait(&error).unwrap_or(RETRY_AFTER);
            sleep(wait.mul_f64(0.5 + jitter)).await;
        }
    }

    /// Uses one stream until the collector has acknowledged the end.
    async fn session(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let mut stream = {
            let _turn = shared
                .joining
                .acquire()
                .await
                .context("the semaphore is never closed")?;
            let hello = hello::hello(&shared.fleet.inventory(self.index), &self.instance);
            wire::control::open(&shared.url, &shared.join, hello, self.holding()).await?
        };
        self.holds = true;
        for event in self.pending.clone() {
            stream.send(control_up::Message::Event(event)).await?;
        }
        let mut ends = shared.ends.subscribe();
        loop {
            tokio::select! {
                message = stream.next() => {
                    let message = message?.context("the collector closed the stream")?;
                    if let control_down::Message::EventAck(ack) = message {
                        self.acknowledged(ack.id);
                    }
                }
                ended = ended(&mut ends), if self.state == NodeState::Running => {
                    ended?;
                    self.end(&stream).await?;
                }
            }
            if self.state == NodeState::Ending && self.pending.is_empty() {
                return Ok(());
            }
        }
    }

    async fn end(&mut self, stream: &ControlStream) -> Result<()> {
        self.state = NodeState::Ending;
        let event = self.report(&NodeReport::Ended(NodeEnd {
            cause: EndCause::Stopped,
            ..NodeEnd::default()
        }));
        stream.send(control_up::Message::Event(event)).await?;
        Ok(())
    }

    fn acknowledged(&mut self, id: u64) {
        let before = self.pending.len();
        self.pending.retain(|event| event.id != id);
        let acknowledged = before - self.pending.len();
        self.shared
            .reports
            .fetch_add(acknowledged as u64, Ordering::Relaxed);
        if self.state == NodeState::Starting && self.pending.is_empty() {
            self.state = NodeState::Running;
            self.shared.started.send_modify(|started| *started += 1);
        }
    }

    /// Adds a report to those that wait for their acknowledgement.
    fn report(&mut self, report: &NodeReport) -> RunEvent {
        self.last_id += 1;
        let event = RunEvent {
            run: self.run.clone(),
            attempt: self.shared.attempt,
            id: self.last_id,
            at_ms: crate::fleet::now_ms(),
            report_json: serde_json::to_string(report).expect("a report is plain data"),
        };
        self.pending.push_back(event.clone());
        event
    }

    fn holding(&self) -> Holding {
        let held = self.holds.then(|| Held {
            run: self.run.clone(),
            attempt: self.shared.attempt,
        });
        Holding {
            held: held.into_iter().collect(),
        }
    }
}

/// Waits until the ranks end. Cancel safe.
async fn ended(ends: &mut watch::Receiver<bool>) -> Result<()> {
    let ended = ends.wait_for(|ends| *ends).await.map(|_| ());
    ended.context("the sender is not dropped")
}

/// Returns how long a busy collector told the node to wait, if that is why there is no stream.
fn requested_wait(error: &anyhow::Error) -> Option<Duration> {
    match error.downcast_ref::<OpenError>()? {
        OpenError::Refused(status) => wire::busy::retry_after(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Names;

    fn node(index: u32) -> Node {
        let fleet = Fleet {
            nodes: 4,
            gpus: 2,
            metrics: 30,
            seed: 1,
            names: Names::Lockstep,
            runs: 2,
        };
        let shared = Shared {
            url: String::new(),
            join: String::new(),
            fleet,
            attempt: 3,
            joining: Semaphore::new(1),
            started: watch::Sender::new(0),
            ends: watch::Sender::new(false),
            reports: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
        };
        Node::new(Arc::new(shared), index)
    }

    #[test]
    fn a_node_reports_the_ranks_that_are_in_the_labels_of_its_samples() {
        let node = node(3);
        let reports: Vec<NodeReport> = node
            .pending
            .iter()
            .map(|event| serde_json::from_str(&event.report_json).expect("a report"))
            .collect();
        assert!(matches!(&reports[0], NodeReport::Watched(_)), "{reports:?}");
        let ranks: Vec<String> = reports
            .iter()
            .filter_map(|report| match report {
                NodeReport::RankStarted { rank, .. } => Some(rank.to_string()),
                _ => None,
            })
            .collect();
        let fleet = node.shared.fleet;
        let of_node = 3 * fleet.series_per_node()..4 * fleet.series_per_node();
        let mut labelled: Vec<String> = of_node
            .flat_map(|series| fleet.labels(series))
            .filter_map(|(name, value)| (name == "rank").then_some(value))
            .collect();
        labelled.dedup();
        assert_eq!(ranks, labelled);
        assert!(
            node.pending
                .iter()
                .all(|event| (event.run.as_str(), event.attempt) == ("loadgen-2", 3))
        );
    }

    #[test]
    fn a_node_has_started_when_all_its_reports_are_acknowledged() {
        let mut node = node(0);
        for id in [1, 2, 2] {
            node.acknowledged(id);
        }
        assert_eq!(
            (node.state, *node.shared.started.borrow()),
            (NodeState::Starting, 0)
        );
        node.acknowledged(3);
        assert_eq!(
            (node.state, *node.shared.started.borrow()),
            (NodeState::Running, 1)
        );
        assert_eq!(node.shared.reports.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_node_holds_the_attempt_only_after_it_has_reported_it() {
        let mut node = node(0);
        assert_eq!(node.holding().held.len(), 0);
        node.holds = true;
        assert_eq!(node.holding().held[0].attempt, 3);
    }
}
