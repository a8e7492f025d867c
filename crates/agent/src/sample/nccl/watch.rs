//! Follows the collectives of one attempt: reports the state of nccl-probe, and queries NCCL RAS if the run requests it.

use std::net::SocketAddr;
use std::time::Instant;

use domain::ident::RunId;
use domain::run::state::Start;
use domain::series::Labels;
use domain::time::TimestampMs;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::sample::Samples;
use crate::sample::nccl::plugin::Choice;
use crate::sample::nccl::ras::{self, RasError, Status};
use crate::sample::series::series;

/// The environment variable with the address of NCCL RAS.
const RAS_ADDRESS_VARIABLE: &str = "NCCL_RAS_ADDR";

/// What was decided when the attempt started. It is stored in the attempt's folder, for an agent that adopts the attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Plan {
    /// The state of nccl-probe at the start.
    pub(crate) probe: Option<String>,
    /// The address of NCCL RAS, if this node queries it.
    pub(crate) ras: Option<SocketAddr>,
}

impl Plan {
    pub(crate) fn make(start: &Start, choice: &Choice) -> Self {
        // One node queries the status of the whole job.
        let asks = start.spec.nccl_ras && start.node_rank == 0;
        let named = start.spec.env.get(RAS_ADDRESS_VARIABLE);
        Self {
            probe: choice.state().map(str::to_owned),
            ras: asks
                .then(|| ras_address(named.map_or(ras::ADDRESS_DEFAULT, String::as_str)))
                .flatten(),
        }
    }
}

/// Parses the address, which must be of this machine: a run must not make the agent connect to other machines.
fn ras_address(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.replace("localhost", "127.0.0.1").parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

/// Follows the collectives of one attempt.
#[derive(Debug)]
pub(crate) struct Watch {
    run: String,
    samples: Samples,
    plan: Plan,
    state: Option<Labels>,
    queried_at: Option<Instant>,
    query: Option<JoinHandle<Result<Status, RasError>>>,
    /// The last message, to log it only once.
    last_message: String,
}

impl Watch {
    pub(crate) fn new(run: &RunId, samples: Samples, plan: Plan) -> Self {
        Self {
            run: run.to_string(),
            samples,
            plan,
            state: None,
            // The first query waits as long as the others, because communicators need time to start.
            queried_at: Some(Instant::now()),
            query: None,
            last_message: String::new(),
        }
    }

    /// Updates the state. Called once per second. `heard` is true if a rank's probe has reported.
    pub(crate) async fn tick(&mut self, heard: bool, now_ms: TimestampMs) {
        self.show_state(heard, now_ms);
        if let Some(address) = self.plan.ras {
            self.query_when_due(address);
            self.take_answer(now_ms).await;
        }
    }

    fn show_state(&mut self, heard: bool, now_ms: TimestampMs) {
        let Some(planned) = &self.plan.probe else { return };
        let state = if heard { "reporting" } else { planned };
        let name = series("nccl_probe_state", &[("run", &self.run), ("state", state)]);
        if let Some(old) = self.state.replace(name.clone())
            && old != name
        {
            self.samples.end(&old, now_ms);
        }
        self.samples.push(&name, now_ms, 1.0);
    }

    fn query_when_due(&mut self, address: SocketAddr) {
        if self.query.is_none()
            && self
                .queried_at
                .is_none_or(|at| at.elapsed() >= ras::QUERY_INTERVAL)
        {
            self.queried_at = Some(Instant::now());
            self.query = Some(tokio::task::spawn_blocking(move || ras::query(address)));
        }
    }

    async fn take_answer(&mut self, now_ms: TimestampMs) {
        let Some(query) = self.query.take_if(|query| query.is_finished()) else {
            return;
        };
        let Ok(answer) = query.await else { return };
        let message = match answer {
            Ok(status) => {
                status.write(&self.run, now_ms, &self.samples);
                status.complaints().join("; ")
            }
            Err(error) => {
                // Values that are no longer confirmed end.
                let run = self.run.as_str();
                let own = |name: &Labels| ras::is_ras(name) && name.get("run") == Some(run);
                self.samples.end_where(now_ms, own);
                error.to_string()
            }
        };
        if !message.is_empty() && message != self.last_message {
            tracing::warn!(run = self.run, "NCCL RAS: {message}");
        }
        self.last_message = message;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::run::spec::Spec;

    use super::*;

    fn start(node_rank: u32, address: Option<&str>) -> Start {
        let env = address.map(|address| (RAS_ADDRESS_VARIABLE.to_owned(), address.to_owned()));
        Start {
            spec: Spec {
                nccl_ras: true,
                env: env.into_iter().collect(),
                ..Spec::default()
            },
            node_rank,
            ..Start::default()
        }
    }

    #[test]
    fn only_the_first_node_asks_and_only_itself() {
        let ras = |node_rank, address| Plan::make(&start(node_rank, address), &Choice::Unasked).ras;
        assert_eq!(ras(0, None), Some("127.0.0.1:28028".parse().unwrap()));
        assert_eq!(ras(1, None), None);
        assert_eq!(
            ras(0, Some("localhost:3000")),
            Some("127.0.0.1:3000".parse().unwrap())
        );
        assert_eq!(ras(0, Some("10.0.0.1:22")), None);
    }

    #[tokio::test]
    async fn the_state_is_one_series_that_changes_when_ranks_report() {
        let samples = Samples::new();
        let plan = Plan {
            probe: Some("waiting".into()),
            ras: None,
        };
        let mut watch = Watch::new(&RunId::new("ddp-1").unwrap(), samples.clone(), plan);
        let states = || {
            let latest = samples.latest().into_iter();
            latest
                .map(|sample| sample.series.get("state").unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        watch.tick(false, 1_000).await;
        assert_eq!(states(), ["waiting"]);
        watch.tick(true, 2_000).await;
        assert_eq!(states(), ["reporting"]);
    }

    #[tokio::test]
    async fn a_silent_ras_is_queried_again_only_after_one_minute() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let plan = Plan {
            probe: None,
            ras: Some(address),
        };
        let mut watch = Watch::new(&RunId::new("ddp-1").unwrap(), Samples::new(), plan);
        watch.tick(false, 1_000).await;
        assert!(watch.query.is_none(), "the first query waits");
        watch.queried_at = None;
        let deadline = Instant::now() + std::time::Duration::from_secs(20);
        while watch.last_message.is_empty() && Instant::now() < deadline {
            watch.tick(false, 2_000).await;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(
            watch.last_message.contains("does not answer"),
            "{}",
            watch.last_message
        );
        watch.tick(false, 3_000).await;
        assert!(watch.query.is_none());
    }
}
