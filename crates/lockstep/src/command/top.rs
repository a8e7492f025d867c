//! `lockstep top`: one line per GPU, refreshed, like `nvidia-smi dmon`. Shows this machine's GPUs from its agent, or the cluster's.
//!
//! ```text
//! agent's /metrics ──┐
//!                    ├──▶ samples (metric, labels, value) ──▶ rows ──▶ sorted ──▶ screen, plain text or JSON
//! collector's API ───┘
//! ```

mod row;
mod screen;
mod source;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use self::row::{Row, SortBy, rows};
use self::screen::Screen;
use self::source::Source;
use crate::client::Target;
use crate::failure::Failure;

/// Show what each GPU does, one line per GPU, refreshed.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep top                                   this machine, from its agent
  lockstep top --cluster --sort power            all GPUs of the cluster, highest power first
  lockstep top --cluster --node gpu-7 --once     one node, once
  lockstep top --once --json                     as JSON

A `~` before SM% means that the GPU has no such counter, and coarse utilization is shown. THROTTLE shows why clocks are lowered.")]
pub(crate) struct Top {
    /// Show all GPUs that the collector has, instead of this machine's GPUs from its agent.
    #[arg(long)]
    cluster: bool,
    /// Show only these nodes.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node: Vec<String>,
    /// URL of this machine's agent metrics.
    #[arg(
        long,
        env = "LOCKSTEP_METRICS_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:9470/metrics"
    )]
    metrics: String,
    /// File with the token for these metrics.
    #[arg(long, env = "LOCKSTEP_METRICS_TOKEN_FILE", value_name = "FILE")]
    metrics_token_file: Option<PathBuf>,
    /// Sort order: highest value first; place sorts by node and GPU.
    #[arg(long, value_enum, default_value_t = SortBy::Place)]
    sort: SortBy,
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
    /// Print once, and exit.
    #[arg(long)]
    once: bool,
    /// Print one JSON array of GPUs per update, each on one line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Top {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let source = self.source()?;
        let mut screen = Screen::new(std::io::stdout().is_terminal() && !self.once && !self.json);
        // The first request must succeed: a wrong address is reported once, not at every update.
        let mut latest = source.read().await.map(Some)?;
        loop {
            if let Some(snapshot) = latest.take() {
                let mut rows = rows(&snapshot);
                self.sort.sort(&mut rows);
                self.show(&mut screen, &rows, snapshot.simulated.as_deref())?;
            }
            if self.once {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(self.every)).await;
            match source.read().await {
                Ok(snapshot) => latest = Some(snapshot),
                Err(failure) => screen.show_error(&failure),
            }
        }
    }

    fn source(&self) -> Result<Source, Failure> {
        if self.cluster {
            return Ok(Source::collector(self.target.client()?, &self.node));
        }
        Source::agent(&self.metrics, self.metrics_token_file.as_deref(), &self.target)
    }

    fn show(&self, screen: &mut Screen, rows: &[Row], simulated: Option<&str>) -> Result<(), Failure> {
        if self.json {
            let text = serde_json::to_string(rows).map_err(|error| Failure::Failed(error.into()))?;
            say!("{text}");
        } else {
            screen.show(rows, simulated);
        }
        Ok(())
    }
}
