//! Follows the collectives of one attempt: says what became of the probe, and asks NCCL RAS where that was wished for.

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

/// Where a user moves RAS to.
const RAS_ADDRESS_VARIABLE: &str = "NCCL_RAS_ADDR";

/// What was decided at the start; kept in the attempt's folder for an agent that adopts it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Plan {
    /// What became of the wish for the probe.
    pub(crate) probe: Option<String>,
    /// Where to ask NCCL RAS.
    pub(crate) ras: Option<SocketAddr>,
}

impl Plan {
    pub(crate) fn make(start: &Start, choice: &Choice) -> Self {
        // One node asks for the whole job.
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

/// An address of this machine; a run cannot have the agent talk to others.
fn ras_address(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.replace("localhost", "127.0.0.1").parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

/// The follower.
#[derive(Debug)]
pub(crate) struct Watch {
    run: String,
    samples: Samples,
    plan: Plan,
    state: Option<Labels>,
    asked: Option<Instant>,
    asking: Option<JoinHandle<Result<Status, RasError>>>,
    /// What was said last, so that it is said once.
    said: String,
}

impl Watch {
    pub(crate) fn new(run: &RunId, samples: Samples, plan: Plan) -> Self {
        Self {
            run: run.to_string(),
            samples,
            plan,
            state: None,
            // The first question waits as long as the others: communicators take their time to come up.
            asked: Some(Instant::now()),
            asking: None,
            said: String::new(),
        }
    }

    /// A second has passed; `heard` when a rank's probe has reported.
    pub(crate) async fn tick(&mut self, heard: bool, now_ms: TimestampMs) {
        self.show_state(heard, now_ms);
        if let Some(address) = self.plan.ras {
            self.ask_when_due(address);
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

    fn ask_when_due(&mut self, address: SocketAddr) {
        if self.asking.is_none() && self.asked.is_none_or(|asked| asked.elapsed() >= ras::ASK_EVERY) {
            self.asked = Some(Instant::now());
            self.asking = Some(tokio::task::spawn_blocking(move || ras::ask(address)));
        }
    }

    async fn take_answer(&mut self, now_ms: TimestampMs) {
        let Some(asking) = self.asking.take_if(|asking| asking.is_finished()) else {
            return;
        };
        let Ok(answer) = asking.await else { return };
        let says = match answer {
            Ok(status) => {
                status.write(&self.run, now_ms, &self.samples);
                status.complaints().join("; ")
            }
            Err(error) => {
                // Figures that nobody confirms any more are none.
                let run = self.run.as_str();
                let own = |name: &Labels| ras::is_ras(name) && name.get("run") == Some(run);
                self.samples.end_where(now_ms, own);
                error.to_string()
            }
        };
        if !says.is_empty() && says != self.said {
            tracing::warn!(run = self.run, "NCCL RAS: {says}");
        }
        self.said = says;
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
    async fn a_silent_ras_is_asked_again_only_after_a_minute() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let plan = Plan {
            probe: None,
            ras: Some(address),
        };
        let mut watch = Watch::new(&RunId::new("ddp-1").unwrap(), Samples::new(), plan);
        watch.tick(false, 1_000).await;
        assert!(watch.asking.is_none(), "the first question waits");
        watch.asked = None;
        let deadline = Instant::now() + std::time::Duration::from_secs(20);
        while watch.said.is_empty() && Instant::now() < deadline {
            watch.tick(false, 2_000).await;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(watch.said.contains("does not answer"), "{}", watch.said);
        watch.tick(false, 3_000).await;
        assert!(watch.asking.is_none());
    }
}
