//! Waiting until one can work: Jupyter answers, or the container has ended and says why.

use std::time::{Duration, Instant};

use super::found::{self, Found};
use crate::failure::Failure;

/// Jupyter's first start on a cold disk takes this long, and more.
const PATIENCE: Duration = Duration::from_secs(120);
const EVERY: Duration = Duration::from_millis(250);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What a container said last.
const LOG_LINES: u32 = 15;

/// Waits until Jupyter answers on this machine.
///
/// # Errors
/// When the container ends, or nothing answers in time: with the end of its log.
pub(super) async fn wait(workspace: &Found) -> Result<(), Failure> {
    crate::command::install_crypto();
    let http = reqwest::Client::builder()
        .timeout(ANSWER_WITHIN)
        .no_proxy()
        .build()
        .map_err(|error| Failure::Failed(error.into()))?;
    // Jupyter's own version: needs no token.
    let url = format!("http://127.0.0.1:{}/api", workspace.settings.jupyter_port);
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let answered = http.get(&url).send().await;
        if answered.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        let now = found::named(&[workspace.engine], &workspace.settings.name).await?;
        if !now.is_some_and(|now| now.runs()) {
            return Err(ended(workspace).await);
        }
        tokio::time::sleep(EVERY).await;
    }
    let (runtime, container) = (workspace.engine.runtime, &workspace.container);
    Err(Failure::Failed(anyhow::anyhow!(
        "Jupyter did not answer at {url} within {} s, though the container runs; `{runtime} logs {container}` says what it does",
        PATIENCE.as_secs()
    )))
}

async fn ended(workspace: &Found) -> Failure {
    let (engine, container) = (workspace.engine, &workspace.container);
    let said = engine.lines(&engine.runtime.logs(container, LOG_LINES)).await;
    let said: String = said.iter().map(|line| format!("\n  {line}")).collect();
    Failure::Failed(anyhow::anyhow!(
        "the container {container} ended at once; when that is mended, `lockstep workspace stop {} --remove` and start again. It said last:{said}",
        workspace.settings.name
    ))
}
