//! The messages of the stream. Each is read by its `type`, its parts by their own types.
//!
//! Written by hand, because serde would copy a tagged message into a buffer: see [`crate::json`].

use domain::api::alerts::Diagnosis;
use domain::api::lists::{ListChanges, PlacedItem};
use domain::api::nodes::NodeView;
use domain::api::runs::{AttemptView, LogPiece, RunSummary, StopView, UnknownAttemptView, UnreadReport};
use domain::api::stream::Column;
use domain::run::knob::Change;
use domain::time::TimestampMs;
use serde::Deserialize;
use wasm_bindgen::JsValue;

use crate::json::{Unreadable, field, list, parse, read, read_field};

/// A message of the stream: the part of [`Push`](domain::api::stream::Push) that a page shows.
pub(crate) enum StreamMessage {
    Welcome {
        now_ms: TimestampMs,
        version: String,
    },
    Frame {
        id: u32,
        reset: bool,
        times_ms: Vec<TimestampMs>,
        series: Vec<Column>,
    },
    Log {
        id: u32,
        piece: LogPiece,
    },
    /// Read by [`Run::read`], which only the run's page needs.
    Run {
        id: u32,
        run: JsValue,
    },
    Runs(Vec<RunSummary>),
    Diagnoses(Vec<Diagnosis>),
    Nodes(Vec<NodeView>),
    RunsChanged(ListChanges<RunSummary>),
    DiagnosesChanged(ListChanges<Diagnosis>),
    NodesChanged(ListChanges<NodeView>),
    Failed {
        id: u32,
        message: String,
    },
    /// A message type of a newer collector; a version change follows soon.
    Unknown,
}

/// The content of a run's page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Run {
    /// The run's entry in the list.
    pub(crate) summary: RunSummary,
    /// The remaining content.
    pub(crate) more: More,
}

/// The content of a run's page beyond its entry in the list.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct More {
    /// Attempts, oldest first.
    pub(crate) attempts: Vec<AttemptView>,
    /// When the run entered its state, if known.
    pub(crate) state_since_ms: Option<TimestampMs>,
    /// The last step of the run, if known.
    pub(crate) total_steps: Option<u32>,
    /// The requested stop.
    pub(crate) stop: Option<StopView>,
    /// Whether the run is watched: it cannot be stopped or restarted here.
    pub(crate) watched: bool,
    /// Steps that a stop would lose now, if known.
    pub(crate) steps_since_checkpoint: Option<u64>,
    /// Reports that the collector could not read.
    pub(crate) unread_reports: Vec<UnreadReport>,
    /// Unknown attempts of the run on nodes.
    pub(crate) unknown_attempts: Vec<UnknownAttemptView>,
    /// The change of knobs that waits for the end of the current attempt.
    pub(crate) pending: Option<Change>,
    /// The specification.
    pub(crate) spec: SpecFields,
}

/// The fields of a specification that a page shows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct SpecFields {
    /// Whether the ranks are ready to record a trace.
    pub(crate) kineto: bool,
}

impl StreamMessage {
    /// Returns the watch that the message is for.
    pub(super) fn watch(&self) -> Option<u32> {
        match self {
            Self::Frame { id, .. }
            | Self::Log { id, .. }
            | Self::Run { id, .. }
            | Self::Failed { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Reads a message from its text.
    pub(super) fn read(text: &str) -> Result<Self, Unreadable> {
        let message = parse(text)?;
        let kind: String = read_field(&message, "type")?;
        Ok(match kind.as_str() {
            "welcome" => Self::Welcome {
                now_ms: read_field(&message, "now_ms")?,
                version: read_field(&message, "version")?,
            },
            "frame" => Self::Frame {
                id: read_field(&message, "id")?,
                reset: read_field(&message, "reset")?,
                times_ms: read_field(&message, "times_ms")?,
                series: read_field(&message, "series")?,
            },
            "log" => Self::Log {
                id: read_field(&message, "id")?,
                piece: read_field(&message, "piece")?,
            },
            "run" => Self::Run {
                id: read_field(&message, "id")?,
                run: field(&message, "run")?,
            },
            "runs" => Self::Runs(read_field(&message, "runs")?),
            "diagnoses" => Self::Diagnoses(read_diagnoses(&field(&message, "diagnoses")?)?),
            "nodes" => Self::Nodes(read_field(&message, "nodes")?),
            "runs_changed" => Self::RunsChanged(read_changes(&message, read)?),
            "diagnoses_changed" => Self::DiagnosesChanged(read_changes(&message, read_diagnosis)?),
            "nodes_changed" => Self::NodesChanged(read_changes(&message, read)?),
            "failed" => Self::Failed {
                id: read_field(&message, "id")?,
                message: read_field(&message, "message")?,
            },
            _ => Self::Unknown,
        })
    }
}

impl Run {
    /// Reads a run; the fields of the summary are at the same level as the others.
    pub(crate) fn read(run: &JsValue) -> Result<Self, Unreadable> {
        Ok(Self {
            summary: read(run)?,
            more: read(run)?,
        })
    }
}

/// Reads what has changed in a list.
fn read_changes<T>(
    message: &JsValue,
    read_item: fn(&JsValue) -> Result<T, Unreadable>,
) -> Result<ListChanges<T>, Unreadable> {
    let read_placed = |placed: JsValue| -> Result<PlacedItem<T>, Unreadable> {
        Ok(PlacedItem {
            at: read_field(&placed, "at")?,
            item: read_item(&field(&placed, "item")?)?,
        })
    };
    let items = list(field(message, "items")?)?;
    Ok(ListChanges {
        removed: read_field(message, "removed")?,
        items: items.iter().map(read_placed).collect::<Result<_, _>>()?,
    })
}

/// Reads a list of diagnoses.
pub(crate) fn read_diagnoses(all: &JsValue) -> Result<Vec<Diagnosis>, Unreadable> {
    let all = list(all.clone())?;
    all.iter().map(|one| read_diagnosis(&one)).collect()
}

/// Reads a diagnosis; the fields of its alert are at the same level as its own.
pub(crate) fn read_diagnosis(diagnosis: &JsValue) -> Result<Diagnosis, Unreadable> {
    Ok(Diagnosis {
        summary: read_field(diagnosis, "summary")?,
        cause: without_backticks(read_field(diagnosis, "cause")?),
        advice: without_backticks(read_field(diagnosis, "advice")?),
        culprit: read_field(diagnosis, "culprit")?,
        id: read_field(diagnosis, "id")?,
        who: read_field(diagnosis, "who")?,
        run: read_field(diagnosis, "run")?,
        attempt: read_field(diagnosis, "attempt")?,
        confidence: read_field(diagnosis, "confidence")?,
        handling: read_field(diagnosis, "handling")?,
        alert: read(diagnosis)?,
    })
}

/// Removes the backticks around commands: pages show plain text, not Markdown.
pub(crate) fn without_backticks(mut sentence: String) -> String {
    sentence.retain(|letter| letter != '`');
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_without_backticks() {
        let advice = "`lockstep run why r` shows the evidence.".to_owned();
        assert_eq!(
            without_backticks(advice),
            "lockstep run why r shows the evidence."
        );
    }
}
