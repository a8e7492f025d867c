//! Attempts that a node holds and the collector does not know.

use domain::api::runs::UnknownAttemptView;

use crate::client::Client;
use crate::failure::Failure;

/// Returns all unknown attempts. Empty if the collector is too old to have this endpoint.
pub(super) async fn all(client: &Client) -> Result<Vec<UnknownAttemptView>, Failure> {
    match client.get("/api/unknown-attempts", &[]).await {
        Err(Failure::Failed(_)) => Ok(Vec::new()),
        other => other,
    }
}

/// Returns the unknown attempts of one run.
pub(super) async fn of_run(client: &Client, run: &str) -> Result<Vec<UnknownAttemptView>, Failure> {
    let mut held = all(client).await?;
    held.retain(|held| held.run == run);
    Ok(held)
}

/// Describes an unknown attempt in one sentence.
pub(super) fn words(held: &UnknownAttemptView) -> String {
    let UnknownAttemptView {
        node,
        run,
        attempt,
        stopping,
        ..
    } = held;
    let what = if *stopping {
        "it is stopping".to_owned()
    } else {
        format!("it is not changed; stop it with `lockstep run stop {run}`, or let it end")
    };
    format!(
        "node {node} holds attempt {attempt} of {run}, which this collector does not know (was a backup restored?): {what}"
    )
}
