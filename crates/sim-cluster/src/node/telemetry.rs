//! The samples of a node as one segment: each series is defined once, and then referred to by its number.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use domain::series::{Frame, STALE};
use wire::proto::telemetry_up::Message as Up;
use wire::proto::{Definitions, NodeEvent, Series};

use crate::reading::Snapshot;
use crate::world::NodeOutput;

/// A segment.
pub(super) struct Segment {
    id: String,
    /// The number of each series, by its labels.
    known: HashMap<Vec<String>, u32>,
    /// The series of each run.
    of_runs: BTreeMap<String, Vec<u32>>,
    seq: u64,
}

impl Segment {
    pub(super) fn new(id: String) -> Self {
        Self {
            id,
            known: HashMap::new(),
            of_runs: BTreeMap::new(),
            seq: 0,
        }
    }

    /// Returns the messages to send, in order.
    pub(super) fn messages(&mut self, output: &NodeOutput) -> Result<Vec<Up>> {
        let first = self.count();
        let mut new = Vec::new();
        let mut frames: Vec<Frame> = Vec::new();
        for snapshot in &output.snapshots {
            frames.push(self.frame(snapshot, &mut new));
        }
        frames.extend(self.end_markers(output));
        let mut messages = Vec::new();
        if !new.is_empty() {
            messages.push(Up::Definitions(Definitions {
                segment: self.id.clone(),
                first,
                series: new,
            }));
        }
        if !frames.is_empty() {
            self.seq += 1;
            messages.push(Up::Batch(wire::frame::encode(&self.id, self.seq, &frames)));
        }
        for event in &output.events {
            messages.push(Up::Event(NodeEvent {
                event_json: serde_json::to_string(event)?,
            }));
        }
        Ok(messages)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.known.len()).unwrap_or(u32::MAX)
    }

    fn frame(&mut self, snapshot: &Snapshot, new: &mut Vec<Series>) -> Frame {
        let (mut series, mut values) = (Vec::new(), Vec::new());
        for reading in &snapshot.readings {
            let labels = reading.series();
            let next = self.count();
            let id = *self.known.entry(labels).or_insert_with_key(|labels| {
                new.push(Series {
                    labels: labels.clone(),
                });
                let run = reading.labels.iter().find(|(name, _)| *name == "run");
                if let Some((_, run)) = run {
                    self.of_runs.entry(run.clone()).or_default().push(next);
                }
                next
            });
            series.push(id);
            values.push(reading.value);
        }
        Frame {
            series,
            times_ms: vec![snapshot.at_ms],
            values,
        }
    }

    /// Returns a frame of staleness markers for the series of ended runs.
    fn end_markers(&mut self, output: &NodeOutput) -> Option<Frame> {
        let runs = output.over.iter().filter_map(|run| self.of_runs.get(run));
        let mut series: Vec<u32> = runs.flatten().copied().collect();
        series.sort_unstable();
        series.dedup();
        (!series.is_empty()).then(|| Frame {
            values: vec![STALE; series.len()],
            times_ms: vec![crate::cluster::now_ms()],
            series,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Reading;

    fn output(values: &[(&str, f64)]) -> NodeOutput {
        let reading = |(run, value): &(&str, f64)| Reading {
            metric: "train_step",
            labels: vec![("run", (*run).to_owned()), ("rank", "0".to_owned())],
            value: *value,
        };
        NodeOutput {
            snapshots: vec![Snapshot {
                at_ms: 1_000,
                readings: values.iter().map(reading).collect(),
            }],
            ..NodeOutput::default()
        }
    }

    #[test]
    fn a_series_is_defined_once_and_ends_with_its_run() {
        let mut segment = Segment::new("s".to_owned());
        let first = segment.messages(&output(&[("a", 1.0)])).expect("well-formed");
        assert!(matches!(&first[..], [Up::Definitions(defined), Up::Batch(_)] if defined.series.len() == 1));
        let second = segment
            .messages(&output(&[("a", 2.0), ("b", 1.0)]))
            .expect("well-formed");
        assert!(matches!(&second[..], [Up::Definitions(defined), Up::Batch(_)] if defined.first == 1));
        let over = NodeOutput {
            over: vec!["b".to_owned()],
            ..NodeOutput::default()
        };
        let last = segment.messages(&over).expect("well-formed");
        let [Up::Batch(batch)] = &last[..] else {
            panic!("one batch: {last:?}");
        };
        let frames = wire::frame::decode(batch).expect("a whole batch");
        assert_eq!(frames[0].series, [1]);
        assert!(domain::series::is_stale(frames[0].values[0]));
    }
}
