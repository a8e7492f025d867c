//! One record of the probe: a JSON object, a line. Unknown is an absent field; JSON has no NaN, so non-finite numbers come as
//! `"NaN"`, `"+Inf"`, `"-Inf"`.

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::sample::nccl::Report;

/// What a rank said.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Record {
    /// Who it is.
    Hello(Box<Hello>),
    /// A step it finished.
    Step(Box<Step>),
    /// An exception that ends it, which the shim has read already.
    Error {},
    /// It ends well.
    Bye {},
    /// What it did on one communicator; from nccl-probe.
    Nccl(Box<Report>),
}

/// Who a rank is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) wall_ns: i64,
    pub(crate) torch: Option<String>,
    pub(crate) python: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) device: Option<String>,
    pub(crate) gpu_uuid: Option<String>,
    pub(crate) gpu_pci_bus_id: Option<String>,
}

/// A step; durations in seconds.
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
    #[serde(deserialize_with = "number")]
    pub(crate) loss: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) grad_norm: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) grad_norm_local_sq: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) samples: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) tokens: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_allocated_bytes: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) cuda_reserved_bytes: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) dropped: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) skipped_steps: Option<f64>,
}

impl Record {
    /// Reads a line; what is not a record (a newer probe's, a stray datagram) is nothing.
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
        assert!(matches!(
            Record::parse(br#"{"kind":"error","rank":0,"type":"E"}"#),
            Some(Record::Error {})
        ));
        assert_eq!(Record::parse(br#"{"kind":"later","rank":0}"#), None);
        assert_eq!(Record::parse(b"noise"), None);
    }
}
