//! Prints runs as text.

use domain::api::goodput::Goodput;
use domain::api::runs::{AttemptView, RankView, RunSummary, RunView};
use domain::run::knob::{Change, InPlaceChange, KnobAnswer, KnobDiff};

use super::{apply, bandwidth, stop, unknown};
use crate::client::Client;
use crate::table::{self, printable};

/// Prints the list of runs.
pub(super) fn list(runs: &[RunSummary]) {
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            let why = run
                .outcome
                .as_ref()
                .map_or(String::new(), |outcome| outcome.message.to_string());
            vec![
                run.id.clone(),
                run.state.as_str().to_owned(),
                run.program.clone(),
                run.owner.clone().unwrap_or_else(|| "-".to_owned()),
                labels(run),
                run.nodes.join(","),
                run.world_size.to_string(),
                time(run.submitted_ms),
                why,
            ]
        })
        .collect();
    table::print(
        &[
            "RUN",
            "STATE",
            "PROGRAM",
            "OWNER",
            "LABELS",
            "NODES",
            "RANKS",
            "SUBMITTED",
            "CAUSE",
        ],
        &rows,
    );
}

/// Returns the labels as `KEY=VALUE,…`.
fn labels(run: &RunSummary) -> String {
    let pairs = run.labels.iter().map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// Prints one run.
pub(super) fn run(view: &RunView) {
    let summary = &view.summary;
    say!("{}  {}  {}", summary.id, summary.state.as_str(), summary.program);
    if let Some(owner) = &summary.owner {
        say!("owner {}", printable(owner));
    }
    if !summary.labels.is_empty() {
        say!("labels {}", printable(&labels(summary)));
    }
    if view.stop.is_some() {
        say!("{}", stop::stop_summary(view));
    }
    for held in &view.unknown_attempts {
        say!("{}", unknown::words(held));
    }
    if let Some(waiting) = &view.pending {
        say!("then continues as attempt {}:", apply::next_attempt(view));
        change(waiting);
    }
    for report in &view.unread_reports {
        say!("not read: {}", printable(&report.sentence()));
    }
    view.attempts.iter().for_each(attempt);
}

/// Prints the productive share of a run's time and the largest causes of lost time. A collector that is too old reports none.
pub(super) async fn goodput(client: &Client, run: &str) {
    let query = [("run", run.to_owned())];
    let answer = client.get::<Goodput>("/api/goodput", &query).await;
    if let Some(sentence) = answer.ok().and_then(|goodput| goodput.sentence) {
        say!("goodput {}", printable(&sentence));
    }
}

fn attempt(attempt: &AttemptView) {
    let outcome = attempt.outcome.as_ref().map_or("running".to_owned(), |o| {
        format!("{}: {}", o.cause, printable(&o.message.to_string()))
    });
    say!(
        "attempt {} ({}), started {}: {outcome}",
        attempt.attempt,
        attempt.cause,
        time(attempt.started_ms)
    );
    if let Some(from) = &attempt.resumed_from {
        let step = from.step.map_or(String::new(), |step| format!(", step {step}"));
        say!("  resumed from {}{step}", printable(&from.path));
    }
    if let Some(step) = attempt.last_step {
        say!("  last step {step}");
    }
    if let Some(step) = attempt.last_good_step {
        say!("  the loss diverged after step {step}: its later checkpoints are not resumed from");
    }
    if let Some(made) = &attempt.change {
        change(made);
    }
    attempt.answers.iter().for_each(answered);
    if let Some(verdict) = attempt.change.as_ref().and_then(|made| made.verdict.as_ref()) {
        say!("  {}", apply::words(verdict));
    }
    for live in &attempt.live {
        in_place(live);
    }
    for excluded in &attempt.excluded {
        say!("  excluded {}: {}", excluded.node, printable(&excluded.reason));
    }
    for warning in &attempt.warnings {
        say!("  warning: {}", printable(warning));
    }
    if let Some(mesh) = &attempt.mesh {
        say!("  mesh {}", printable(&mesh.words()));
    }
    for line in &attempt.unseen {
        say!("  not seen: {}", printable(&line.sentence()));
    }
    if let Some(measured) = &attempt.bandwidth {
        crate::say::write(&bandwidth::shown(measured));
    }
    if let Some(commit) = attempt.provenance.as_ref().and_then(|ran| ran.commit.as_ref()) {
        say!("  commit {}", printable(commit));
    }
    let image = attempt
        .provenance
        .as_ref()
        .and_then(|ran| ran.image_digest.as_ref());
    if let Some(image) = image {
        say!("  image {}", printable(image));
    }
    for node in &attempt.nodes {
        say!("  {}: {}", node.node, printable(&node.command));
        let rows: Vec<_> = node.ranks.iter().map(rank_row).collect();
        table::print(&["  RANK", "PID", "STEP", "END"], &rows);
    }
}

/// Prints a change that was made while the attempt ran.
fn in_place(live: &InPlaceChange) {
    let at = live
        .step
        .map_or(String::new(), |step| format!(", after step {step}"));
    say!("  change {} in place{at}: {}", live.no, printable(&live.words()));
    change(&live.change);
    live.answers.iter().for_each(answered);
    if let Some(verdict) = &live.change.verdict {
        say!("  {}", apply::words(verdict));
    }
}

fn answered(answer: &KnobAnswer) {
    let state = if answer.applied { "applied" } else { "not applied" };
    say!(
        "  {}={} {state}: {}",
        answer.knob,
        answer.value,
        printable(&answer.detail)
    );
}

/// Prints what a change sets, and how.
pub(super) fn change(change: &Change) {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "the script's own value".into());
    let line = |diff: &KnobDiff| {
        format!(
            "  {}: {} → {}  [{}]",
            diff.knob,
            printable(&value(&diff.old)),
            printable(&value(&diff.new)),
            diff.how.words()
        )
    };
    change.set.iter().map(line).for_each(|line| say!("{line}"));
    if let Some(reverted) = change.reverted_change() {
        say!("  reverts the change of {reverted}");
    }
    if let Some(attempt) = change.follows {
        say!("  a larger batch, tried automatically because attempt {attempt} was kept");
    }
    if let Some(why) = &change.no_larger_batch {
        say!("  no larger micro_batch: {}", printable(why));
    }
    if let Some(reason) = &change.reason {
        say!("  automatic: {}", printable(reason));
    }
    for warning in &change.warnings {
        say!("  warning: {}", printable(warning));
    }
}

fn rank_row(rank: &RankView) -> Vec<String> {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    let end = rank.exit.as_ref().map_or("-".to_owned(), |exit| {
        if rank.cascade {
            format!("{exit} (caused by another rank)")
        } else {
            exit.to_string()
        }
    });
    vec![
        format!("  {}", rank.rank),
        number(rank.pid.map(u64::from)),
        number(rank.step),
        end,
    ]
}

pub(super) fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| t.to_string())
}
