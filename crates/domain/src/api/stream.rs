//! `GET /api/stream`: one WebSocket per browser tab, with JSON text messages in both directions. A client may request frames of queries as
//! binary messages instead: see [`frames`](crate::api::frames).
//!
//! The client watches queries and logs under ids that it chooses; the server sends what changed. The server sends the lists that every page
//! shows (runs, diagnoses, nodes) without a request: whole at the start, and after each change either whole again or, with the parameter
//! `lists=changes`, only what has changed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::alerts::Diagnosis;
use crate::api::lists::ListChanges;
use crate::api::nodes::NodeView;
use crate::api::runs::{LogPiece, LogSource, RunSummary};
use crate::series::Labels;
use crate::time::TimestampMs;

/// Maximum number of watches of one tab. A client that needs more has a bug or is hostile.
pub const WATCHES_MAX: usize = 64;
/// Maximum number of runs in [`Push::Runs`].
pub const RUNS_MAX: u32 = 200;

/// How the collector sends the frames of queries: the parameter `frames` of the URL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameEncoding {
    /// As [`Push::Frame`] in JSON.
    #[default]
    Json,
    /// As [binary messages](crate::api::frames).
    Binary,
}

/// Message from the browser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Evaluate a range query now, then send each new step. Answered by [`Push::Frame`].
    WatchRange {
        /// Id chosen by the client. A second watch with the same id replaces the first.
        id: u32,
        /// PromQL expression.
        query: String,
        /// Length of the range before now.
        range_ms: i64,
        /// Step between values, at least 1,000 ms.
        step_ms: i64,
        /// Whether columns have the least and the greatest value within each step, if the step is longer than a second. Columns of a result
        /// that is too large or too expensive for it have none.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        extremes: bool,
        /// End of a past range, which is sent once. If missing, the range ends now and moves on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end_ms: Option<TimestampMs>,
    },
    /// Evaluate an instant query every second. Answered by [`Push::Frame`] with one time.
    WatchInstant {
        /// Id chosen by the client.
        id: u32,
        /// PromQL expression.
        query: String,
    },
    /// Follow one log file, starting `tail_bytes` before its end. Answered by [`Push::Log`].
    WatchLog {
        /// Id chosen by the client.
        id: u32,
        /// Id of the run.
        run: String,
        /// Log file to follow.
        source: LogSource,
        /// Number of bytes before the current end to send first.
        tail_bytes: u64,
    },
    /// Follow the details of one run. Answered by [`Push::Run`] now and after each change.
    WatchRun {
        /// Id chosen by the client.
        id: u32,
        /// Id of the run.
        run: String,
    },
    /// Stop a watch.
    Unwatch {
        /// Id of the watch.
        id: u32,
    },
}

/// Message from the collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Push {
    /// First message of the connection.
    Welcome {
        /// Time of the collector's clock.
        now_ms: TimestampMs,
        /// Version of the collector. A page of another version reloads itself.
        version: String,
    },
    /// Values of a watched query.
    Frame {
        /// Id of the watch.
        id: u32,
        /// True if this replaces the values sent before; false if it is appended to them.
        reset: bool,
        /// Time axis.
        times_ms: Vec<TimestampMs>,
        /// One column per series.
        series: Vec<Column>,
    },
    /// A part of a watched log.
    Log {
        /// Id of the watch.
        id: u32,
        /// The part. Its offset continues the part before.
        piece: LogPiece,
    },
    /// A watched run.
    Run {
        /// Id of the watch.
        id: u32,
        /// All information about the run.
        run: Box<crate::api::runs::RunView>,
    },
    /// The newest runs, at most [`RUNS_MAX`], newest first.
    Runs {
        /// The runs.
        runs: Vec<RunSummary>,
    },
    /// All firing diagnoses, the most severe first.
    Diagnoses {
        /// The diagnoses.
        diagnoses: Vec<Diagnosis>,
    },
    /// All nodes.
    Nodes {
        /// The nodes.
        nodes: Vec<NodeView>,
    },
    /// What has changed in the list of [`Push::Runs`]. The key of a run is its `id`.
    RunsChanged(ListChanges<RunSummary>),
    /// What has changed in the list of [`Push::Diagnoses`]. The key of a diagnosis is its `id`.
    DiagnosesChanged(ListChanges<Diagnosis>),
    /// What has changed in the list of [`Push::Nodes`]. The key of a node is its `name`.
    NodesChanged(ListChanges<NodeView>),
    /// A watch that failed.
    Failed {
        /// Id of the watch.
        id: u32,
        /// Why it failed.
        message: String,
    },
}

/// One series of a frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Column {
    /// Labels of the series.
    pub labels: Labels,
    /// One value per time; `null` where there is none (JSON has no NaN).
    pub values: Vec<Option<f64>>,
    /// Indexes in `values` where the value is NaN or infinite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_finite: Vec<u32>,
    /// The least value within the step that ends at each time; `null` if it is infinite. Empty if it was not requested or is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub min: Vec<Option<f64>>,
    /// The greatest value within the step that ends at each time; `null` if it is infinite. Empty if `min` is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max: Vec<Option<f64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_shape() {
        let request = Request::WatchRange {
            id: 1,
            query: "up".into(),
            range_ms: 60_000,
            step_ms: 1_000,
            extremes: false,
            end_ms: None,
        };
        let text = serde_json::to_string(&request).expect("serialises");
        assert_eq!(
            text,
            r#"{"op":"watch_range","id":1,"query":"up","range_ms":60000,"step_ms":1000}"#
        );
        let push = Push::Frame {
            id: 1,
            reset: true,
            times_ms: vec![0],
            series: vec![Column {
                labels: Labels::empty(),
                values: vec![None],
                not_finite: vec![],
                min: vec![],
                max: vec![],
            }],
        };
        let text = serde_json::to_string(&push).expect("serialises");
        assert_eq!(
            text,
            r#"{"type":"frame","id":1,"reset":true,"times_ms":[0],"series":[{"labels":{},"values":[null]}]}"#
        );
        assert_eq!(serde_json::from_str::<Push>(&text).expect("reads back"), push);
        let changes = ListChanges {
            removed: vec!["n1".into()],
            items: vec![],
        };
        let push = Push::NodesChanged(changes);
        let text = serde_json::to_string(&push).expect("serialises");
        assert_eq!(text, r#"{"type":"nodes_changed","removed":["n1"],"items":[]}"#);
        assert_eq!(serde_json::from_str::<Push>(&text).expect("reads back"), push);
    }
}
