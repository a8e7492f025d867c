//! Waits until the workspace is usable: Jupyter answers. Fails if the container ends, with the end of its log.

use std::time::{Duration, Instant};

use super::discovery::{self, ExistingWorkspace};
use crate::failure::Failure;

/// How long to wait. The first start of Jupyter from a cold disk can take this long.
const JUPYTER_TIMEOUT: Duration = Duration::from_secs(120);
const EVERY: Duration = Duration::from_millis(250);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Number of log lines in the error.
const LOG_LINES: u32 = 15;

/// Waits until Jupyter answers on this machine.
///
/// # Errors
/// If the container ends, or Jupyter does not answer in time. The error has the end of the container's log.
pub(super) async fn wait(workspace: &ExistingWorkspace) -> Result<(), Failure> {
    crate::command::install_crypto();
    let http = reqwest::Client::builder()
        .timeout(ANSWER_WITHIN)
        .no_proxy()
        .build()
        .map_err(|error| Failure::Failed(error.into()))?;
    // Jupyter's version endpoint, which needs no token.
    let url = format!("http://127.0.0.1:{}/api", workspace.settings.jupyter_port);
    let since = Instant::now();
    while since.elapsed() < JUPYTER_TIMEOUT {
        let answered = http.get(&url).send().await;
        if answered.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        let now = discovery::named(&[workspace.engine], &workspace.settings.name).await?;
        if !now.is_some_and(|now| now.runs()) {
            return Err(ended(workspace).await);
        }
        tokio::time::sleep(EVERY).await;
    }
    let (runtime, container) = (workspace.engine.runtime, &workspace.container);
    Err(Failure::Failed(anyhow::anyhow!(
        "Jupyter did not answer at {url} within {} s, although the container is running; see `{runtime} logs {container}`",
        JUPYTER_TIMEOUT.as_secs()
    )))
}

async fn ended(workspace: &ExistingWorkspace) -> Failure {
    let (engine, container) = (workspace.engine, &workspace.container);
    let lines = engine.lines(&engine.runtime.logs(container, LOG_LINES)).await;
    let tail: String = lines.iter().map(|line| format!("\n  {line}")).collect();
    Failure::Failed(anyhow::anyhow!(
        "the container {container} ended at once; fix the cause, run `lockstep workspace stop {} --remove`, and start again. Its last output:{tail}",
        workspace.settings.name
    ))
}
