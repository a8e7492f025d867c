//! Attempts that nodes hold and that the collector does not know.

use domain::api::runs::UnknownAttemptView;

use crate::client::Client;
use crate::failure::Failure;

/// All of them. None of a collector that is older than they are.
pub(super) async fn all(client: &Client) -> Result<Vec<UnknownAttemptView>, Failure> {
    match client.get("/api/unknown-attempts", &[]).await {
        Err(Failure::Failed(_)) => Ok(Vec::new()),
        other => other,
    }
}

/// Those of one run.
pub(super) async fn of_run(client: &Client, run: &str) -> Result<Vec<UnknownAttemptView>, Failure> {
    let mut held = all(client).await?;
    held.retain(|held| held.run == run);
    Ok(held)
}

/// One of them in words.
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
        format!("it is left alone; stop it with `lockstep run stop {run}`, or let it end")
    };
    format!(
        "node {node} holds attempt {attempt} of {run}, which this collector does not know (a backup was restored?): {what}"
    )
}
