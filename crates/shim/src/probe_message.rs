//! The part of the probe's datagrams that the shim reads: their first fields. The agent reads the rest.

use serde::Deserialize;

use crate::rank::ErrorRecord;

/// A message of a rank, reduced to what its owner needs.
#[derive(Debug, PartialEq)]
pub enum ProbeMessage {
    /// The rank finished a step.
    Step(StepHead),
    /// The rank reached the run's stop point.
    Stop(StepHead),
    /// The rank saves a checkpoint. This is not a step, but it is not a stall either.
    Checkpoint(Head),
    /// An exception ends the rank.
    Error(ErrorRecord),
    /// The rank ends successfully.
    Bye(Head),
    /// The number of collectives that the rank has queued on a communicator's stream so far.
    Nccl(NcclHead),
}

/// The sender of a message.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Head {
    /// The rank's number in the attempt.
    pub rank: u32,
}

/// The sender of a message and its step.
#[derive(Debug, PartialEq, Deserialize)]
pub struct StepHead {
    /// The rank's number in the attempt.
    pub rank: u32,
    /// The step, in the probe's count.
    pub step: u64,
}

/// The collectives that a rank has queued on a communicator's stream.
#[derive(Debug, PartialEq, Deserialize)]
pub struct NcclHead {
    /// The rank's number in the attempt.
    pub rank: u32,
    #[serde(default)]
    pub(crate) comm: String,
    #[serde(default)]
    functions: Vec<Count>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Count {
    #[serde(default)]
    count: u64,
}

impl NcclHead {
    pub(crate) fn collectives(&self) -> u64 {
        self.functions
            .iter()
            .map(|function| function.count)
            .fold(0, u64::saturating_add)
    }
}

impl ProbeMessage {
    /// Parses a datagram. Returns `None` for invalid records and for kinds that the shim does not use.
    pub fn parse(line: &[u8]) -> Option<Self> {
        match kind(line)? {
            b"step" => serde_json::from_slice(line).ok().map(Self::Step),
            b"stop" => serde_json::from_slice(line).ok().map(Self::Stop),
            b"nccl" => serde_json::from_slice(line).ok().map(Self::Nccl),
            b"checkpoint" => serde_json::from_slice(line).ok().map(Self::Checkpoint),
            b"error" => serde_json::from_slice(line).ok().map(Self::Error),
            b"bye" => serde_json::from_slice(line).ok().map(Self::Bye),
            _ => None,
        }
    }

    pub(crate) fn rank(&self) -> u32 {
        match self {
            Self::Step(head) | Self::Stop(head) => head.rank,
            Self::Checkpoint(head) | Self::Bye(head) => head.rank,
            Self::Error(record) => record.rank,
            Self::Nccl(head) => head.rank,
        }
    }
}

/// Finds the kind without parsing the record. The probes write no blanks, and write the kind early.
fn kind(line: &[u8]) -> Option<&[u8]> {
    const KEY: &[u8] = br#""kind":""#;
    let at = line.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    line[at..].split(|byte| *byte == b'"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_understood_and_the_rest_is_passed_over() {
        let parse = |line: &str| ProbeMessage::parse(line.as_bytes());
        let step = parse(
            r#"{"v":1,"rank":3,"kind":"step","wall_ns":5,"step":7,"loss":"NaN","more":{"kind":"bye"}}"#,
        );
        assert_eq!(step, Some(ProbeMessage::Step(StepHead { rank: 3, step: 7 })));
        let nccl = parse(
            r#"{"v":1,"kind":"nccl","rank":1,"comm":"c0","functions":[{"function":"AllReduce","count":4},{"count":2}]}"#,
        );
        let Some(ProbeMessage::Nccl(nccl)) = nccl else {
            panic!("counts")
        };
        assert_eq!((nccl.rank, nccl.comm.as_str(), nccl.collectives()), (1, "c0", 6));
        let saves = parse(r#"{"kind":"checkpoint","rank":0,"phase":"begin"}"#);
        assert_eq!(saves.map(|message| message.rank()), Some(0));
        let memory = |text: &str| {
            let line = format!(r#"{{"kind":"error","rank":1,"type":"OutOfMemoryError","memory":{text}}}"#);
            let Some(ProbeMessage::Error(record)) = parse(&line) else {
                panic!("error record")
            };
            record.memory
        };
        let known = memory(r#"{"device":"cuda:0","requested_bytes":5,"top":[[1024,3]],"later":{}}"#);
        assert_eq!(
            known.map(|known| (known.requested_bytes, known.top.clone())),
            Some((Some(5), vec![(1024, 3)]))
        );
        assert_eq!((memory("null"), memory(r#"{"free_bytes":-1}"#)), (None, None));
        for nothing in [
            "",
            "{}",
            r#"{"kind":"hello","rank":0}"#,
            r#"{"kind":"step","rank":0}"#,
            r#""kind":""#,
        ] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }
}
