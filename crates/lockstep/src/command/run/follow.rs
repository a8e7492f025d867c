//! Waiting for a run's end, saying what happens on the way.

use std::time::Duration;

use domain::api::runs::RunView;
use domain::run::state::RunState;

use super::{run_path, show};
use crate::client::Client;
use crate::failure::Failure;

/// How often the run is looked at.
const PERIOD: Duration = Duration::from_millis(500);
/// A collector that restarts is waited for this long; the run does not need it meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

/// Follows a run to its end; progress goes to stderr.
pub(super) async fn until_ended(client: &Client, run: &str) -> Result<RunView, Failure> {
    until(client, run, |view| {
        view.summary.state.is_final().then(|| view.clone())
    })
    .await
}

/// Follows a run until it shows what is looked for; progress goes to stderr.
pub(super) async fn until<T>(
    client: &Client,
    run: &str,
    mut look: impl FnMut(&RunView) -> Option<T>,
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
                if let Some(found) = look(&view) {
                    return Ok(found);
                }
            }
            Err(Failure::Unreachable(message)) => {
                let since = *unreachable_since.get_or_insert_with(tokio::time::Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(Failure::Unreachable(message));
                }
            }
            Err(other) => return Err(other),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Follows a run to its end; one that does not succeed is shown, and a failure.
pub(super) async fn to_success(client: &Client, run: &str) -> Result<(), Failure> {
    let ended = until_ended(client, run).await?;
    if ended.summary.state == RunState::Succeeded {
        return Ok(());
    }
    show::run(&ended);
    let why = ended
        .summary
        .outcome
        .map_or_else(|| "no reason is known".to_owned(), |o| o.message.to_string());
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
