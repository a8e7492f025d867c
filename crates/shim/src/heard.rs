//! What the shim understands of the probe's datagrams: their beginnings. Everything else is the agent's to read.

use serde::Deserialize;

use crate::rank::LastWords;

/// What a rank said, as far as it matters to whoever owns it.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// It finished a step.
    Step(StepHead),
    /// It came to the step after which the run is to stop.
    Stop(StepHead),
    /// It saves: no step, and yet no standstill.
    Checkpoint(Head),
    /// An exception ends it.
    Error(LastWords),
    /// It ends well.
    Bye(Head),
    /// What it has put into a communicator's stream so far.
    Nccl(NcclHead),
}

/// Who said it.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Head {
    /// Its place in the world.
    pub rank: u32,
}

/// Who said it, and of which step.
#[derive(Debug, PartialEq, Deserialize)]
pub struct StepHead {
    /// Its place in the world.
    pub rank: u32,
    /// As the probe counts.
    pub step: u64,
}

/// What a rank has put into a communicator's stream.
#[derive(Debug, PartialEq, Deserialize)]
pub struct NcclHead {
    /// Its place in the world.
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

impl Heard {
    /// Reads a datagram; what is of no matter here, or no record at all, is nothing.
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
            Self::Error(words) => words.rank,
            Self::Nccl(head) => head.rank,
        }
    }
}

/// The probes write no blanks, and the kind early.
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
        let heard = |line: &str| Heard::parse(line.as_bytes());
        let step = heard(
            r#"{"v":1,"rank":3,"kind":"step","wall_ns":5,"step":7,"loss":"NaN","more":{"kind":"bye"}}"#,
        );
        assert_eq!(step, Some(Heard::Step(StepHead { rank: 3, step: 7 })));
        let nccl = heard(
            r#"{"v":1,"kind":"nccl","rank":1,"comm":"c0","functions":[{"function":"AllReduce","count":4},{"count":2}]}"#,
        );
        let Some(Heard::Nccl(nccl)) = nccl else {
            panic!("counts")
        };
        assert_eq!((nccl.rank, nccl.comm.as_str(), nccl.collectives()), (1, "c0", 6));
        let saves = heard(r#"{"kind":"checkpoint","rank":0,"phase":"begin"}"#);
        assert_eq!(saves.map(|heard| heard.rank()), Some(0));
        let memory = |text: &str| {
            let line = format!(r#"{{"kind":"error","rank":1,"type":"OutOfMemoryError","memory":{text}}}"#);
            let Some(Heard::Error(words)) = heard(&line) else {
                panic!("last words")
            };
            words.memory
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
            assert_eq!(heard(nothing), None, "{nothing}");
        }
    }
}
