//! `lockstep run logs [-f] [--rank R] RUN`

use std::time::Duration;

use clap::{Args, ValueEnum};
use domain::api::runs::{LogPiece, RunView};

use super::run_path;
use crate::client::Client;
use crate::failure::Failure;

const PERIOD: Duration = Duration::from_millis(500);

/// Print a run's output.
#[derive(Args)]
pub(super) struct Logs {
    /// The run's id.
    run: String,
    /// Go on printing until the run ends.
    #[arg(short, long)]
    follow: bool,
    /// Only this rank. Default: rank 0.
    #[arg(long, default_value_t = 0, conflicts_with = "launcher")]
    rank: u32,
    /// The output of torchrun itself instead of a rank's.
    #[arg(long)]
    launcher: bool,
    /// Which attempt. Default: the last.
    #[arg(long)]
    attempt: Option<u32>,
    /// Which output.
    #[arg(long, value_enum, default_value_t = Stream::Stdout)]
    stream: Stream,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stream {
    Stdout,
    Stderr,
}

impl Logs {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let path = run_path(&self.run)?;
        let mut offset = 0;
        loop {
            let ended = client.get::<RunView>(&path, &[]).await?.summary.state.is_final();
            loop {
                let piece: LogPiece = client
                    .get(&format!("{path}/logs"), &self.parameters(offset))
                    .await?;
                crate::say::write(&disarmed(&piece.text));
                let reached = piece.next_offset;
                let at_end = reached >= piece.length || reached == offset;
                offset = reached;
                if at_end {
                    break;
                }
            }
            if ended || !self.follow {
                return Ok(());
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn parameters(&self, offset: u64) -> Vec<(&'static str, String)> {
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let mut parameters = vec![("stream", stream.to_owned()), ("offset", offset.to_string())];
        if !self.launcher {
            parameters.push(("rank", self.rank.to_string()));
        }
        parameters.extend(self.attempt.map(|attempt| ("attempt", attempt.to_string())));
        parameters
    }
}

/// A log must not steer the terminal: control characters but line ends and tabs are shown, not obeyed.
fn disarmed(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && !matches!(c, '\n' | '\t' | '\r') {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
