//! `lockstep alert show ID`: summary, culprit, start, confidence, evidence, advice, and what changed before.

use domain::api::diagnoses::{ChangeBefore, DiagnosisView, SimilarDiagnosis, TimelineEntry};
use domain::incident::action::Action;
use domain::incident::{Basis, Confidence, ConfidenceLevel};

use super::list::time;
use crate::table::printable;

/// Most lines of each list.
const LINES_MAX: usize = 10;

pub(super) fn diagnosis(view: &DiagnosisView) {
    let diagnosis = &view.diagnosis;
    let alert = &diagnosis.alert;
    say!("{}", printable(&diagnosis.summary));
    line(
        "rule",
        &format!("{} ({:?})", alert.rule, alert.severity).to_lowercase(),
    );
    line("culprit", &diagnosis.culprit);
    line("since", &time(alert.fired_ms.unwrap_or(alert.active_ms)));
    if let Some(ended) = alert.resolved_ms {
        line("ended", &time(ended));
    }
    line("confidence", &confidence(&diagnosis.confidence));
    for sentence in &view.why {
        line("reason", sentence);
    }
    line("advice", &diagnosis.advice);
    if let Some(mark) = &diagnosis.handling.acknowledged {
        line(
            "acknowledged",
            &format!("by {} since {}", mark.who, time(mark.at_ms)),
        );
    }
    if let Some(until) = diagnosis.handling.silenced_until_ms {
        line("silenced", &format!("until {}", time(until)));
    }
    list("Actions:", view.actions.iter().map(action));
    list("Changes before:", view.changed_before.iter().map(change));
    list("Similar diagnoses:", view.similar.iter().map(similar));
    list("Timeline:", view.timeline.iter().map(entry));
}

fn line(name: &str, text: &str) {
    if !text.is_empty() {
        say!("  {name:<12} {}", printable(text));
    }
}

fn list(title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.take(LINES_MAX).peekable();
    if lines.peek().is_some() {
        say!("\n{title}");
    }
    for text in lines {
        say!("  {}", printable(&text));
    }
}

fn confidence(confidence: &Confidence) -> String {
    let level = match confidence.level {
        ConfidenceLevel::Low => "low",
        ConfidenceLevel::Medium => "medium",
        ConfidenceLevel::High => "high",
    };
    let basis = match confidence.basis {
        Basis::Analysis => "compared with its peers",
        Basis::Threshold => "beyond a threshold",
    };
    match confidence.witnesses {
        0 => format!("{level}: {basis}"),
        1 => format!("{level}: {basis}, one source"),
        many => format!("{level}: {basis}, {many} sources"),
    }
}

fn action(action: &Action) -> String {
    format!("{}  {}", action.title, action.cost)
}

fn change(change: &ChangeBefore) -> String {
    let who = change.who.as_deref().unwrap_or("-");
    format!("{}  {who}  {}", time(change.at_ms), change.text)
}

fn similar(similar: &SimilarDiagnosis) -> String {
    let ended = similar.resolved_ms.map_or("still firing".to_owned(), time);
    let helped = similar.helped.as_deref().map(|helped| format!(": {helped}"));
    format!(
        "{}  {}  {ended}{}",
        similar.id,
        similar.summary,
        helped.unwrap_or_default()
    )
}

fn entry(entry: &TimelineEntry) -> String {
    let until = entry.until_ms.map(|until| format!(" until {}", time(until)));
    format!(
        "{}  {}  {}{}  {}",
        time(entry.at_ms),
        entry.who,
        entry.kind.replace('_', " "),
        until.unwrap_or_default(),
        entry.note
    ) + &entry.verdict.as_ref().map_or_else(String::new, |verdict| {
        format!(": {}, {}", verdict.decision.words(), verdict.summary)
    })
}
