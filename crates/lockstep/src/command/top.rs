//! `lockstep top`: a line a GPU, refreshed, like `nvidia-smi dmon`; of this machine from its agent, or of the cluster.
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

/// Show what every GPU does, a line each, refreshed.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep top                                   this machine, from its agent
  lockstep top --cluster --sort power            all GPUs the collector knows, the hungriest first
  lockstep top --cluster --node gpu-7 --once     one node, once
  lockstep top --once --json                     for programs

A `~` before SM% says that the GPU has no such counter, and coarse utilization is shown. THROTTLE names what holds the clocks down.")]
pub(crate) struct Top {
    /// All GPUs, through the collector, instead of this machine's, from its agent.
    #[arg(long)]
    cluster: bool,
    /// Only these nodes.
    #[arg(long, value_name = "NAME", requires = "cluster")]
    node: Vec<String>,
    /// Where this machine's agent serves its metrics.
    #[arg(
        long,
        env = "LOCKSTEP_METRICS_URL",
        value_name = "URL",
        default_value = "http://127.0.0.1:9470/metrics"
    )]
    metrics: String,
    /// The token those metrics ask for.
    #[arg(long, env = "LOCKSTEP_METRICS_TOKEN_FILE", value_name = "FILE")]
    metrics_token_file: Option<PathBuf>,
    /// What comes first: the highest, but for the place.
    #[arg(long, value_enum, default_value_t = SortBy::Place)]
    sort: SortBy,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
    /// Look once, and end.
    #[arg(long)]
    once: bool,
    /// A JSON array of GPUs a look, on a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Top {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let source = self.source()?;
        let mut screen = Screen::new(std::io::stdout().is_terminal() && !self.once && !self.json);
        // The first look must succeed: a wrong address is not shown again and again.
        let mut looked = source.look().await.map(Some)?;
        loop {
            if let Some(seen) = looked.take() {
                let mut rows = rows(&seen);
                self.sort.sort(&mut rows);
                self.show(&mut screen, &rows, seen.simulated.as_deref())?;
            }
            if self.once {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(self.every)).await;
            match source.look().await {
                Ok(seen) => looked = Some(seen),
                Err(failure) => screen.trouble(&failure),
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
