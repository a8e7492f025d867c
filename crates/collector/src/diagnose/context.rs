//! The context of a firing alert: the attempt of its run, the finding that caused it, and its confidence.

use domain::api::alerts::AlertView;
use domain::ident::{AttemptNo, RunId};
use domain::incident::{Confidence, Context, finding_of};

use super::engine::Engine;
use super::rule::Status;

/// Collects the context of an alert when it begins to fire.
pub(super) async fn gather(engine: &Engine, alert: &AlertView, metrics: &[String]) -> Context {
    let run = alert.labels.get("run").and_then(|run| RunId::new(run).ok());
    let attempt = match &run {
        // A run that is unknown or cannot be read has no attempt.
        Some(run) => attempt(engine, run).await,
        None => None,
    };
    let mut context = Context {
        attempt,
        confidence: Confidence::of_metrics(metrics.iter().map(String::as_str)),
        finding: None,
    };
    find(engine, alert, metrics, &mut context);
    context
}

/// Updates the contexts. Findings continue to change while an alert fires; the last one is kept.
pub(super) fn renew(engine: &Engine, status: &mut Status, metrics: &[String]) {
    for (fingerprint, context) in &mut status.contexts {
        if let Some(alert) = status.views.get(fingerprint) {
            find(engine, alert, metrics, context);
        }
    }
}

fn find(engine: &Engine, alert: &AlertView, metrics: &[String], context: &mut Context) {
    let Some(run) = alert.labels.get("run").and_then(|run| RunId::new(run).ok()) else {
        return;
    };
    let found = engine.findings.with(&run, |found| {
        let all = found.findings.iter().map(|view| &view.finding);
        finding_of(all, &alert.labels, metrics).cloned()
    });
    if let Some(finding) = found {
        context.confidence = Confidence::of_finding(&finding);
        context.finding = Some(finding);
    }
}

async fn attempt(engine: &Engine, run: &RunId) -> Option<AttemptNo> {
    let view = engine.runs.stored_view(run).await.ok()?;
    Some(view.summary.attempt)
}
