//! Reading reports: of this version, or of another one.

use serde::Deserialize;
use serde_json::Value;

use crate::run::state::protocol::{EndCause, NodeEnd, NodeReport};

/// The result of reading a report.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadReport {
    /// A report that this version knows.
    Known(Box<NodeReport>),
    /// A kind of report that this version does not have: a newer agent sent it.
    UnknownKind {
        /// The name of the report.
        kind: String,
    },
    /// This version knows the name but cannot read the rest, or there is no name.
    Unreadable {
        /// The name of the report; empty if there is none.
        kind: String,
        /// What is wrong with it.
        error: String,
    },
}

/// The names of the reports that this version knows.
const KINDS: [&str; 20] = [
    "accepted",
    "refused",
    "prepared",
    "prepare_failed",
    "looked",
    "measured",
    "shim_started",
    "start_failed",
    "watched",
    "rank_started",
    "first_step",
    "checkpoints",
    "rank_stalled",
    "rank_recovered",
    "stop_step",
    "knob_answered",
    "rank_mesh",
    "rank_unseen",
    "rank_exited",
    "ended",
];
/// Maximum length of a report's name that is kept.
const KIND_CHARS_MAX: usize = 64;

/// Reads a report. An `ended` is always readable: whatever else a newer agent adds to it, nothing of the attempt is left on its node.
#[must_use]
pub fn read_report(json: &str) -> ReadReport {
    let error = match serde_json::from_str::<NodeReport>(json) {
        Ok(report) => return ReadReport::Known(Box::new(report)),
        Err(error) => error,
    };
    let kind = report_kind(json);
    if kind == "ended"
        && let Ok(fields) = serde_json::from_str::<Value>(json)
    {
        return ReadReport::Known(Box::new(NodeReport::Ended(end_of(&fields))));
    }
    if !kind.is_empty() && !KINDS.contains(&kind.as_str()) {
        return ReadReport::UnknownKind { kind };
    }
    ReadReport::Unreadable {
        kind,
        error: error.to_string(),
    }
}

/// Returns the name of a report, shortened; empty if it has none. Reads no other field.
#[must_use]
pub fn report_kind(json: &str) -> String {
    #[derive(Deserialize)]
    struct Named {
        report: String,
    }
    let named = serde_json::from_str::<Named>(json);
    named.map_or_else(
        |_| String::new(),
        |named| named.report.chars().take(KIND_CHARS_MAX).collect(),
    )
}

/// Reads an `ended` field by field, as far as each can be read.
fn end_of(fields: &Value) -> NodeEnd {
    let number = |name: &str| {
        fields[name]
            .as_i64()
            .and_then(|number| i32::try_from(number).ok())
    };
    let cause = match &fields["cause"] {
        Value::Null => EndCause::default(),
        word @ Value::String(_) => serde_json::from_value(word.clone()).unwrap_or_default(),
        other => EndCause::Other(other.to_string()),
    };
    NodeEnd {
        code: number("code"),
        signal: number("signal"),
        cause,
        message: fields["message"].as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::checkpoint::Format;
    use crate::run::state::StallCause;

    fn known(json: &str) -> NodeReport {
        match read_report(json) {
            ReadReport::Known(report) => *report,
            other => panic!("{json} is {other:?}"),
        }
    }

    #[test]
    fn unknown_words_are_kept_byte_for_byte() {
        for json in [
            r#"{"report":"ended","code":0,"cause":"préempted by \"slurm\"","message":""}"#,
            r#"{"report":"rank_stalled","rank":3,"for_ms":9,"cause":"fabric_wait"}"#,
        ] {
            let report = known(json);
            assert_eq!(serde_json::to_string(&report).expect("plain data"), json);
        }
        let checkpoints =
            r#"{"report":"checkpoints","checkpoints":[{"path":"/c/a","format":"safetensors_v2"}]}"#;
        let NodeReport::Checkpoints(report) = known(checkpoints) else {
            panic!("a report of checkpoints")
        };
        assert_eq!(
            report.checkpoints[0].format,
            Format::Other("safetensors_v2".into())
        );
        for (word, cause) in [
            ("\"no_step\"", StallCause::NoStep),
            ("\"stopped\"", StallCause::Stopped),
        ] {
            assert_eq!(serde_json::from_str::<StallCause>(word).expect("a cause"), cause);
        }
    }

    #[test]
    fn an_end_with_unknown_words_of_a_newer_agent_is_read() {
        let expected = |code, cause: &str, message: &str| {
            NodeReport::Ended(NodeEnd {
                code,
                cause: EndCause::Other(cause.into()),
                message: message.into(),
                ..NodeEnd::default()
            })
        };
        for (json, end) in [
            (
                r#"{"report":"ended","code":7,"cause":"preempted"}"#,
                expected(Some(7), "preempted", ""),
            ),
            (
                r#"{"report":"ended","cause":{"by":"slurm"},"message":"m"}"#,
                expected(None, r#"{"by":"slurm"}"#, "m"),
            ),
            (
                r#"{"report":"ended","code":"seven","cause":"odd","message":["m"]}"#,
                expected(None, "odd", ""),
            ),
        ] {
            assert_eq!(known(json), end, "{json}");
        }
        let stopped = known(r#"{"report":"ended","code":[],"cause":"stopped"}"#);
        assert!(matches!(stopped, NodeReport::Ended(end) if end.cause == EndCause::Stopped));
    }

    #[test]
    fn unknown_reports_are_distinguished_from_wrong_ones() {
        for (json, kind) in [
            (r#"{"report":"gpu_swapped","gpu":3}"#, "gpu_swapped"),
            (r#"{"gpu":3,"report":"ENDED"}"#, "ENDED"),
        ] {
            let unknown = ReadReport::UnknownKind { kind: kind.into() };
            assert_eq!(read_report(json), unknown, "{json}");
        }
        for (json, expected) in [
            (r#"{"report":"rank_exited","rank":"x"}"#, "rank_exited"),
            (r#"{"report":7}"#, ""),
            ("[]", ""),
            ("", ""),
            ("not json", ""),
        ] {
            let ReadReport::Unreadable { kind, error } = read_report(json) else {
                panic!("{json} is read");
            };
            assert!(kind == expected && !error.is_empty(), "{json}: {kind} {error}");
        }
        let long = format!(r#"{{"report":"{}"}}"#, "x".repeat(10_000));
        assert_eq!(report_kind(&long).len(), KIND_CHARS_MAX);
    }

    /// For an unknown variant, Serde's error lists the variants that it knows.
    #[test]
    fn the_list_of_names_is_that_of_the_type() {
        let error = serde_json::from_str::<NodeReport>(r#"{"report":"no such report"}"#)
            .expect_err("there is no such report")
            .to_string();
        let (_, named) = error.split_once("expected one of ").expect("a list of names");
        let named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, KINDS, "{error}");
    }
}
