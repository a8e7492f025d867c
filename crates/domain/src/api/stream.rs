//! `GET /api/stream`: one WebSocket a browser tab, JSON text messages in both directions.
//!
//! The client watches queries and logs by an id of its choosing; the server pushes what changed. Lists that every page
//! shows (runs, diagnoses, nodes) come unasked: whole at the start, whole again when they change.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::alerts::Diagnosis;
use crate::api::nodes::NodeView;
use crate::api::runs::{LogPiece, LogSource, RunSummary};
use crate::series::Labels;
use crate::time::TimestampMs;

/// Watches one tab may hold; more is a bug or an attack.
pub const WATCHES_MAX: usize = 64;

/// From the browser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Evaluate a range now, then push each new step. Answered by [`Push::Frame`].
    WatchRange {
        /// The client's name for it; a second watch of the same id replaces the first.
        id: u32,
        /// PromQL.
        query: String,
        /// How far back to begin.
        range_ms: i64,
        /// Distance of points, at least 1,000.
        step_ms: i64,
    },
    /// Evaluate an instant query every second. Answered by [`Push::Frame`] with one time.
    WatchInstant {
        /// The client's name for it.
        id: u32,
        /// PromQL.
        query: String,
    },
    /// Follow one log file from its last `tail_bytes`. Answered by [`Push::Log`].
    WatchLog {
        /// The client's name for it.
        id: u32,
        /// The run.
        run: String,
        /// Which of its logs.
        source: LogSource,
        /// How much of the past to send first.
        tail_bytes: u64,
    },
    /// Follow one run's details. Answered by [`Push::Run`] now and whenever it changes.
    WatchRun {
        /// The client's name for it.
        id: u32,
        /// The run.
        run: String,
    },
    /// Stop a watch.
    Unwatch {
        /// Its id.
        id: u32,
    },
}

/// From the collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Push {
    /// First message: the collector's clock.
    Welcome {
        /// Now.
        now_ms: TimestampMs,
        /// Its version; a page of another version reloads itself.
        version: String,
    },
    /// Columns of a watched query.
    Frame {
        /// The watch.
        id: u32,
        /// Whether this replaces what was sent before, or goes behind it.
        reset: bool,
        /// The time axis.
        times_ms: Vec<TimestampMs>,
        /// One column a series.
        series: Vec<Column>,
    },
    /// A piece of a watched log.
    Log {
        /// The watch.
        id: u32,
        /// The piece; offsets go on from the one before.
        piece: LogPiece,
    },
    /// A watched run.
    Run {
        /// The watch.
        id: u32,
        /// Everything about it.
        run: Box<crate::api::runs::RunView>,
    },
    /// All runs, newest first (at most 200).
    Runs {
        /// The list.
        runs: Vec<RunSummary>,
    },
    /// All active diagnoses, worst first.
    Diagnoses {
        /// The list.
        diagnoses: Vec<Diagnosis>,
    },
    /// All nodes.
    Nodes {
        /// The list.
        nodes: Vec<NodeView>,
    },
    /// A watch that cannot be served.
    Failed {
        /// The watch.
        id: u32,
        /// Why.
        message: String,
    },
}

/// One series of a frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Column {
    /// Its labels.
    pub labels: Labels,
    /// One value a time; `null` where there is none (JSON has no NaN).
    pub values: Vec<Option<f64>>,
    /// Places in `values` whose value is NaN or infinite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_finite: Vec<u32>,
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
            }],
        };
        let text = serde_json::to_string(&push).expect("serialises");
        assert_eq!(
            text,
            r#"{"type":"frame","id":1,"reset":true,"times_ms":[0],"series":[{"labels":{},"values":[null]}]}"#
        );
        assert_eq!(serde_json::from_str::<Push>(&text).expect("reads back"), push);
    }
}
