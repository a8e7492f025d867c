//! Recorded conversations of an agent with a collector. Tests replay what a released version sent to a later one.
//!
//! ```text
//! "lockstep-recording-1\n", then each message, in the order in which they were sent:
//!   u8  stream and sender: 0 telemetry, agent   1 telemetry, collector   2 control, agent   3 control, collector
//!   u32 milliseconds since the start, little-endian
//!   u32 length, little-endian
//!   …   one TelemetryUp, TelemetryDown, ControlUp or ControlDown
//! ```
//! `cargo xtask lab upgrade --record` writes a recording; `testdata/recorded` contains those of released versions.

/// The first bytes of a recording.
const MAGIC: &[u8] = b"lockstep-recording-1\n";
/// Length of a message's header.
const HEAD_BYTES: usize = 9;

/// The stream of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The samples.
    Telemetry,
    /// Commands, reports and logs.
    Control,
}

/// The sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The agent.
    Agent,
    /// The collector.
    Collector,
}

/// One recorded message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The stream on which the message was sent.
    pub stream: Stream,
    /// The sender of the message.
    pub sender: Sender,
    /// When it was sent, in milliseconds since the start of the recording.
    pub at_ms: u32,
    /// The encoded message.
    pub bytes: Vec<u8>,
}

/// The file is not a recording, or it was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the recording cannot be read at byte {at}; record it again with `cargo xtask lab upgrade --record`")]
pub struct ReadError {
    /// The byte offset of the first message that cannot be read.
    pub at: usize,
}

/// Encodes the messages as a file.
///
/// # Panics
/// Never: no message is longer than a stream accepts.
#[must_use]
pub fn write(messages: &[Recorded]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    for message in messages {
        let stream = match message.stream {
            Stream::Telemetry => 0,
            Stream::Control => 2,
        };
        file.push(stream + u8::from(message.sender == Sender::Collector));
        file.extend(message.at_ms.to_le_bytes());
        let length = u32::try_from(message.bytes.len()).expect("a message is far below 4 GiB");
        file.extend(length.to_le_bytes());
        file.extend(&message.bytes);
    }
    file
}

/// Decodes the messages of a file.
///
/// # Errors
/// If the file is not a valid recording.
pub fn read(file: &[u8]) -> Result<Vec<Recorded>, ReadError> {
    let mut rest = file.strip_prefix(MAGIC).ok_or(ReadError { at: 0 })?;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let at = file.len() - rest.len();
        let (message, behind) = next(rest).ok_or(ReadError { at })?;
        messages.push(message);
        rest = behind;
    }
    Ok(messages)
}

fn next(bytes: &[u8]) -> Option<(Recorded, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let (message, behind) = rest.split_at_checked(usize::try_from(number(5)?).ok()?)?;
    let recorded = Recorded {
        stream: match head[0] {
            0 | 1 => Stream::Telemetry,
            2 | 3 => Stream::Control,
            _ => return None,
        },
        sender: if head[0] % 2 == 0 {
            Sender::Agent
        } else {
            Sender::Collector
        },
        at_ms: number(1)?,
        bytes: message.to_vec(),
    };
    Some((recorded, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_off_is_not() {
        let message = |stream, sender, bytes: &[u8]| Recorded {
            stream,
            sender,
            at_ms: 70_000,
            bytes: bytes.to_vec(),
        };
        let messages = [
            message(Stream::Telemetry, Sender::Agent, b"hello"),
            message(Stream::Telemetry, Sender::Collector, b""),
            message(Stream::Control, Sender::Agent, &[0; 300]),
            message(Stream::Control, Sender::Collector, b"x"),
        ];
        let file = write(&messages);
        assert_eq!(read(&file).as_deref(), Ok(&messages[..]));
        assert_eq!(read(MAGIC).as_deref(), Ok(&[][..]));
        for cut in [1, 5, 9] {
            assert!(read(&file[..file.len() - cut]).is_err(), "{cut} bytes cut off");
        }
        assert_eq!(read(b"something else"), Err(ReadError { at: 0 }));
    }
}
