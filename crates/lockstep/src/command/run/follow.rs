//! Waits for the end of a run and prints its progress.

use std::time::Duration;

use domain::api::runs::{AttemptView, RunView};
use domain::ident::AttemptNo;
use domain::run::state::RunState;

use super::{run_path, show};
use crate::client::Client;
use crate::failure::Failure;

/// Time between two requests for the run.
const PERIOD: Duration = Duration::from_millis(500);
/// How long to wait for a collector that restarts. The run does not need the collector during this time.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until a run has ended. Prints progress to stderr.
pub(super) async fn until_ended(client: &Client, run: &str) -> Result<RunView, Failure> {
    until(client, run, |view| {
        view.summary.state.is_final().then(|| view.clone())
    })
    .await
}

/// Waits until a rank of this attempt, or of a later one, has started. Returns false if the run ends before. Prints progress to stderr.
pub(super) async fn until_attempt_runs(
    client: &Client,
    run: &str,
    attempt: AttemptNo,
) -> Result<bool, Failure> {
    let has_started = |made: &AttemptView| {
        let mut ranks = made.nodes.iter().flat_map(|node| &node.ranks);
        made.attempt >= attempt && ranks.any(|rank| rank.pid.is_some())
    };
    until(client, run, |view| {
        let runs = view.attempts.iter().any(has_started);
        (runs || view.summary.state.is_final()).then_some(runs)
    })
    .await
}

/// Waits until `find` returns a value for the run. Prints progress to stderr.
pub(super) async fn until<T>(
    client: &Client,
    run: &str,
    mut find: impl FnMut(&RunView) -> Option<T>,
) -> Result<T, Failure> {
    let path = run_path(run)?;
    let mut last_line = String::new();
    let mut unreachable_since = None;
    loop {
        match client.get::<RunView>(&path, &[]).await {
            Ok(view) => {
                unreachable_since = None;
                let line = progress(&view);
                if line != last_line {
                    eprintln!("{line}");
                    last_line = line;
                }
                if let Some(found) = find(&view) {
                    return Ok(found);
                }
            }
            Err(Failure::Unreachable(message)) => {
                let since = *unreachable_since.get_or_insert_with(tokio::time::Instant::now);
                if since.elapsed() > RECONNECT_TIMEOUT {
                    return Err(Failure::Unreachable(message));
                }
            }
            Err(other) => return Err(other),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Waits until a run has ended. If it did not succeed, prints it and returns an error.
pub(super) async fn to_success(client: &Client, run: &str) -> Result<(), Failure> {
    let ended = until_ended(client, run).await?;
    if ended.summary.state == RunState::Succeeded {
        return Ok(());
    }
    show::run(&ended);
    let why = ended
        .summary
        .outcome
        .map_or_else(|| "unknown cause".to_owned(), |o| o.message.to_string());
    Err(Failure::Failed(anyhow::anyhow!(
        "{} {}: {why}",
        ended.summary.id,
        ended.summary.state.as_str()
    )))
}

fn progress(view: &RunView) -> String {
    let steps = view
        .attempts
        .last()
        .into_iter()
        .flat_map(|attempt| &attempt.nodes)
        .flat_map(|node| &node.ranks);
    let step = steps.filter_map(|rank| rank.step).min();
    let at = step.map_or(String::new(), |step| format!(", step {step}"));
    format!("{} {}{at}", view.summary.id, view.summary.state.as_str())
}
