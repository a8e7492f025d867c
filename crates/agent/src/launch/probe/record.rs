//! One record of the probe: one JSON object per line. An unknown value is an absent field. JSON has no NaN, so non-finite numbers are
//! encoded as `"NaN"`, `"+Inf"`, `"-Inf"`.

use std::collections::BTreeMap;

use domain::run::mesh::RankMesh;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::sample::nccl::Report;

/// A record of a rank.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Record {
    /// The rank introduces itself.
    Hello(Box<Hello>),
    /// The rank finished a step.
    Step(Box<Step>),
    /// An exception ends the rank. The shim has already read this record.
    Error {
        #[serde(default)]
        rank: u32,
    },
    /// The rank's last record, however it ends.
    Bye(Bye),
    /// The rank's position in the mesh that the script has created.
    Mesh(RankMesh),
    /// The rank begins or has ended a save.
    Checkpoint(Box<Checkpoint>),
    /// The result of applying a knob.
    Knob(Box<Knob>),
    /// The rank exits after the stop point. The shim has already read this record.
    Stop {},
    /// Values that the script logs itself.
    Logged(Box<Logged>),
    /// A gradient scaler skips one step after another, so that no step ends.
    Skips(Skips),
    /// The rank's collectives on one communicator, from nccl-probe.
    Nccl(Box<Report>),
}

/// The description of a rank.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    pub(crate) torch: Option<String>,
    pub(crate) python: Option<String>,
    pub(crate) world_size: Option<u32>,
    pub(crate) backend: Option<String>,
    pub(crate) device: Option<String>,
    pub(crate) gpu_uuid: Option<String>,
    pub(crate) gpu_pci_bus_id: Option<String>,
    /// Number of parameters that its optimizers train, including shards of other ranks. Absent if they do not determine the work of a step.
    #[serde(deserialize_with = "number")]
    pub(crate) parameters: Option<f64>,
    /// What the probe cannot see, as sentences.
    pub(crate) notes: Vec<String>,
}

/// The last record of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Bye {
    pub(crate) rank: u32,
    /// The last step that the rank finished.
    pub(crate) step: Option<u64>,
    /// What the probe could not see, as sentences.
    pub(crate) notes: Vec<String>,
}

/// One step. Durations are in seconds.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Step {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    #[serde(deserialize_with = "number")]
    pub(crate) step: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) step_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) data_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) forward_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) backward_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) optimizer_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) sync_s: Option<f64>,
    /// Time that the rank waited for its neighbours in a pipeline.
    #[serde(deserialize_with = "number")]
    pub(crate) bubble_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) save_s: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) loss: Option<f64>,
    /// `logged` if the loss is a value that the script logs.
    pub(crate) loss_source: Option<String>,
    /// The loss on which `backward` was called, if `loss` is a logged value.
    #[serde(deserialize_with = "number")]
    pub(crate) loss_backward: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) grad_norm: Option<f64>,
    /// The square of this rank's part. The parts of all ranks add up.
    #[serde(deserialize_with = "number")]
    pub(crate) grad_norm_local_sq: Option<f64>,
    /// The norm over a few parameters of this rank's own gradients, before they are combined with those of other ranks; in sampled steps.
    #[serde(deserialize_with = "number")]
    pub(crate) grad_norm_own: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) samples: Option<f64>,
    /// Samples of one forward pass; the largest if there are several sizes.
    #[serde(deserialize_with = "number")]
    pub(crate) micro_batch: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) tokens: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_allocated_bytes: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_reserved_bytes: Option<f64>,
    /// Memory in use at the end of the step.
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_current_bytes: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_split_bytes: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_alloc_retries: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) dropped: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) skipped_steps: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) saved_tensor_bytes: Option<f64>,
    /// The lowest and the highest learning rate of the optimizer's parameter groups.
    #[serde(deserialize_with = "number")]
    pub(crate) lr_min: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) lr_max: Option<f64>,
    // Statistics of the batches: of the first tensor (input), and of the labels or the last tensor (label).
    #[serde(deserialize_with = "number")]
    pub(crate) input_mean: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) input_deviation: Option<f64>,
    /// Share of elements that are NaN or infinite.
    #[serde(deserialize_with = "number")]
    pub(crate) input_nonfinite: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) label_mean: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) label_deviation: Option<f64>,
    /// Share of the most frequent class among the labels.
    #[serde(deserialize_with = "number")]
    pub(crate) label_top_ratio: Option<f64>,
    /// Share of the tokens that are padding.
    #[serde(deserialize_with = "number")]
    pub(crate) padding_ratio: Option<f64>,
    /// Checksum of the parameters that the rank shares with other ranks, a whole number below 2^52, in the steps that are checked.
    #[serde(deserialize_with = "number")]
    pub(crate) parameters_checksum: Option<f64>,
    /// Lowest of the ranks that hold the same parameters.
    pub(crate) replica_group: Option<u32>,
    /// The factor by which the gradient scaler multiplied the loss.
    #[serde(deserialize_with = "number")]
    pub(crate) loss_scale: Option<f64>,
    // Values that the script itself reported, under the names of the metrics.
    #[serde(rename = "train_rpc_seconds", deserialize_with = "number")]
    pub(crate) rpc_s: Option<f64>,
    #[serde(rename = "train_rpc_seconds_max", deserialize_with = "number")]
    pub(crate) rpc_s_max: Option<f64>,
    #[serde(rename = "train_rpc_buffer_depth", deserialize_with = "number")]
    pub(crate) rpc_buffer_depth: Option<f64>,
    #[serde(rename = "train_gradient_staleness_steps", deserialize_with = "number")]
    pub(crate) staleness_steps: Option<f64>,
    #[serde(rename = "train_pipeline_bubble_ratio", deserialize_with = "number")]
    pub(crate) bubble_ratio: Option<f64>,
}

/// Steps that a gradient scaler skipped.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Skips {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    /// In total so far.
    #[serde(deserialize_with = "number")]
    pub(crate) skipped_steps: Option<f64>,
    /// Since the last step that ended.
    #[serde(deserialize_with = "number")]
    pub(crate) in_a_row: Option<f64>,
}

/// A knob of `LOCKSTEP_KNOBS`, and the result of applying it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Knob {
    pub(crate) rank: u32,
    pub(crate) name: String,
    pub(crate) value: String,
    /// `applied` or `failed`.
    pub(crate) state: String,
    /// What was changed, or why it was not.
    pub(crate) detail: String,
    /// The number of the live change to which this is the answer.
    pub(crate) live: Option<u32>,
}

/// Values under the script's own names.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Logged {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    pub(crate) values: BTreeMap<String, Value>,
}

/// A single number.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Value(#[serde(deserialize_with = "number")] pub(crate) Option<f64>);

/// The phase of a save.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// The save has begun.
    #[default]
    Begin,
    /// The save is complete.
    End,
    /// The save failed.
    Failure,
}

/// A save as its rank reports it, at its start and at its end.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Checkpoint {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    pub(crate) phase: Phase,
    /// An absolute path, or an address like `s3://…` for other storage.
    pub(crate) path: String,
    /// `dcp` or `torch_save`.
    pub(crate) format: String,
    /// The optimizer step that it contains, in the probe's count.
    pub(crate) step: Option<u64>,
    /// The training continues while the checkpoint is written.
    pub(crate) background: bool,
    /// Size of the file, or of the whole distributed checkpoint if this rank knows it.
    #[serde(deserialize_with = "number")]
    pub(crate) bytes: Option<f64>,
    /// Duration from the start to the end of the save, in seconds.
    #[serde(deserialize_with = "number")]
    pub(crate) seconds: Option<f64>,
    /// The part of `seconds` during which the training was blocked.
    #[serde(deserialize_with = "number")]
    pub(crate) blocked_s: Option<f64>,
    /// Type and message of the error.
    pub(crate) error: Option<String>,
    /// The error name of the system, such as `ENOSPC`, if there was one.
    pub(crate) errno: Option<String>,
    /// Free bytes on the file system when the save failed.
    pub(crate) free_bytes: Option<u64>,
}

impl Step {
    /// The loss on which `backward` was called: the loss of this rank, before any averaging over ranks.
    pub(crate) fn own_loss(&self) -> Option<f64> {
        match self.loss_source.as_deref() {
            Some("logged") => self.loss_backward,
            _ => self.loss,
        }
    }
}

impl Record {
    /// Parses a line. Returns `None` if it is not a known record, such as a newer probe's record or a stray datagram.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    struct Number;
    impl Visitor<'_> for Number {
        type Value = Option<f64>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number, \"NaN\", \"+Inf\" or \"-Inf\"")
        }

        fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
            Ok(Some(value))
        }

        #[expect(
            clippy::cast_precision_loss,
            reason = "byte and step counts stay far below 2^53"
        )]
        fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
            Ok(Some(value as f64))
        }

        #[expect(
            clippy::cast_precision_loss,
            reason = "byte and step counts stay far below 2^53"
        )]
        fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
            Ok(Some(value as f64))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            match text {
                "NaN" => Ok(Some(f64::NAN)),
                "+Inf" | "Inf" => Ok(Some(f64::INFINITY)),
                "-Inf" => Ok(Some(f64::NEG_INFINITY)),
                _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
            }
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_all_their_forms() {
        let line = br#"{"v":1,"kind":"step","rank":1,"wall_ns":5,"step":7,"loss":"NaN","grad_norm":"+Inf","step_s":0.5,"sync_source":"ddp"}"#;
        let Some(Record::Step(step)) = Record::parse(line) else {
            panic!("a step")
        };
        assert_eq!(
            (step.rank, step.step, step.step_s, step.grad_norm),
            (1, Some(7.0), Some(0.5), Some(f64::INFINITY))
        );
        assert!(step.loss.is_some_and(f64::is_nan) && step.tokens.is_none());
        let line = br#"{"kind":"step","step":256,"parameters_checksum":4503599627370495,"replica_group":1}"#;
        let Some(Record::Step(step)) = Record::parse(line) else {
            panic!("a step")
        };
        assert_eq!(
            (step.parameters_checksum, step.replica_group),
            (Some(4_503_599_627_370_495.0), Some(1)),
            "exact"
        );
        let line = br#"{"kind":"step","grad_norm_own":"+Inf","label_top_ratio":0.25,"padding_ratio":0}"#;
        let Some(Record::Step(step)) = Record::parse(line) else {
            panic!("a step")
        };
        assert_eq!(
            (step.grad_norm_own, step.label_top_ratio, step.padding_ratio),
            (Some(f64::INFINITY), Some(0.25), Some(0.0))
        );
        let line = br#"{"kind":"step","train_rpc_seconds":0.25,"train_rpc_seconds_max":2,"train_pipeline_bubble_ratio":"NaN"}"#;
        let Some(Record::Step(step)) = Record::parse(line) else {
            panic!("a step")
        };
        assert_eq!((step.rpc_s, step.rpc_s_max), (Some(0.25), Some(2.0)));
        assert!(step.bubble_ratio.is_some_and(f64::is_nan) && step.staleness_steps.is_none());
        assert!(matches!(
            Record::parse(br#"{"kind":"error","rank":0,"type":"E"}"#),
            Some(Record::Error { rank: 0 })
        ));
        let line = br#"{"v":1,"run":"r","rank":3,"kind":"checkpoint","wall_ns":5,"phase":"failure","path":"/c/1","format":"dcp","step":40,"error":"OSError: full","errno":"ENOSPC","free_bytes":7,"seconds":1.5,"blocked_s":0.0,"background":true}"#;
        let Some(Record::Checkpoint(save)) = Record::parse(line) else {
            panic!("a save")
        };
        assert_eq!(
            (save.rank, save.phase, save.step, save.seconds, save.background),
            (3, Phase::Failure, Some(40), Some(1.5), true)
        );
        let line = br#"{"v":1,"rank":2,"kind":"knob","name":"amp","value":"bf16","state":"failed","detail":"it has its own"}"#;
        let Some(Record::Knob(knob)) = Record::parse(line) else {
            panic!("a knob")
        };
        assert_eq!(
            (knob.rank, knob.name.as_str(), knob.state.as_str()),
            (2, "amp", "failed")
        );
        assert_eq!(
            Record::parse(br#"{"kind":"stop","rank":0,"step":9,"how":"exit"}"#),
            Some(Record::Stop {})
        );
        let line = br#"{"kind":"logged","rank":1,"wall_ns":5,"step":9,"values":{"val/acc":0.5,"lr":"NaN"}}"#;
        let Some(Record::Logged(logged)) = Record::parse(line) else {
            panic!("values")
        };
        assert_eq!((logged.rank, logged.values["val/acc"]), (1, Value(Some(0.5))));
        assert!(logged.values["lr"].0.is_some_and(f64::is_nan));
        let line = br#"{"kind":"skips","rank":2,"wall_ns":5,"skipped_steps":31,"in_a_row":30}"#;
        let Some(Record::Skips(skips)) = Record::parse(line) else {
            panic!("skipped steps")
        };
        assert_eq!((skips.rank, skips.in_a_row), (2, Some(30.0)));
        assert_eq!(Record::parse(br#"{"kind":"later","rank":0}"#), None);
        assert_eq!(Record::parse(b"noise"), None);
    }
}
