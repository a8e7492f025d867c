//! `lockstep agent release`: makes this machine's agent close the GPUs, for a driver change or a reset.

use std::path::PathBuf;
use std::time::Duration;

use agent::release::{self, RELEASE_MAX};
use clap::Args;
use domain::time::parse_duration_ms;

use crate::failure::Failure;
use crate::locate;

/// Make the agent close the GPUs for a while, so that the driver can be unloaded or a GPU reset.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep agent release --for 30m && nvidia-smi --gpu-reset -i 3
  lockstep agent release --end                   end the release early")]
pub(crate) struct Release {
    /// How long the agent keeps the GPUs closed; at most one day.
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = duration)]
    lasting: Duration,
    /// End a release early.
    #[arg(long, conflicts_with = "lasting")]
    end: bool,
    /// Data folder of the agent.
    #[arg(long, env = "LOCKSTEP_AGENT_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Release {
    pub(super) async fn execute(self) -> Result<(), Failure> {
        let data = self
            .data
            .unwrap_or_else(|| locate::default_data_dir().join("agent"));
        if self.end {
            release::end_release(&data).map_err(|error| Failure::Failed(error.into()))?;
            say!("The agent opens the GPUs again within a few seconds.");
            return Ok(());
        }
        release::release(&data, self.lasting)
            .await
            .map_err(|error| Failure::Failed(error.into()))?;
        say!(
            "The agent has closed the GPUs for {} min; `lockstep agent release --end` ends this earlier.",
            self.lasting.as_secs().div_ceil(60)
        );
        Ok(())
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    match parse_duration_ms(text).map(u64::try_from) {
        Ok(Ok(ms)) if ms > 0 && Duration::from_millis(ms) <= RELEASE_MAX => Ok(Duration::from_millis(ms)),
        Ok(_) => Err("must be longer than zero and at most one day".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
