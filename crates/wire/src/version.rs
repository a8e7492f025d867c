//! The protocol versions of this build, and how two builds agree on one.
//!
//! ```text
//! 1   the first version
//! 2   the collector takes reports of up to 4 MiB, keeps reports that it does not know, and reads `listed` in a checkpoint report
//! ```
//! A version states what the other side may rely on. Within a version, fields are only added, and both sides ignore fields that they do not
//! know. docs/upgrade.md describes the order in which to upgrade.

use crate::proto::{Hello, HelloAck};

/// The oldest version that this build speaks.
pub const PROTOCOL_MIN: u32 = 1;
/// The newest version that this build speaks.
pub const PROTOCOL_MAX: u32 = 2;

/// The largest message that either side sends or accepts: one minute of a large node's samples, with a margin.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The largest hello on either stream. The inventory in it is at most 256 KiB.
pub const HELLO_BYTES_MAX: usize = 512 << 10;

/// Maximum length of an agent's version in an error message.
const VERSION_CHARS_MAX: usize = 40;

/// Two builds have no version in common, or a hello contains no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCommonVersion {
    /// The agent speaks only versions that this collector no longer supports.
    #[error(
        "agent {agent_version} speaks protocol {min} to {max}, and this collector {PROTOCOL_MIN} to {PROTOCOL_MAX}: the agent is too old. \
         Upgrade the agent; its running trainings continue in the meantime"
    )]
    AgentTooOld {
        /// The agent's version.
        agent_version: String,
        /// The oldest version that the agent speaks.
        min: u32,
        /// The newest version that the agent speaks.
        max: u32,
    },
    /// The agent speaks only versions that this collector does not know yet.
    #[error(
        "agent {agent_version} speaks protocol {min} to {max}, and this collector {PROTOCOL_MIN} to {PROTOCOL_MAX}: the collector is too \
         old. Upgrade the collector first, then the agents"
    )]
    CollectorTooOld {
        /// The agent's version.
        agent_version: String,
        /// The oldest version that the agent speaks.
        min: u32,
        /// The newest version that the agent speaks.
        max: u32,
    },
    /// The agent's versions are not a valid range.
    #[error(
        "agent {agent_version} names the protocol versions {min} to {max}, which is not a valid range; reinstall the agent"
    )]
    NoRange {
        /// The agent's version.
        agent_version: String,
        /// The agent's lower bound.
        min: u32,
        /// The agent's upper bound.
        max: u32,
    },
}

/// The collector answered with a version that the agent did not offer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "collector {collector_version} answered with protocol {protocol}, and this agent speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}; upgrade the \
     older of the two"
)]
pub struct NotOffered {
    /// The collector's version.
    pub collector_version: String,
    /// The version in the collector's answer.
    pub protocol: u32,
}

/// Returns the newest version that both the collector and the agent that sent this hello speak.
///
/// # Errors
/// See [`NoCommonVersion`].
pub fn agree(hello: &Hello) -> Result<u32, NoCommonVersion> {
    let (min, max) = (hello.protocol_min, hello.protocol_max);
    let agent_version = shortened(&hello.agent_version);
    if min > max || max == 0 {
        return Err(NoCommonVersion::NoRange {
            agent_version,
            min,
            max,
        });
    }
    if max < PROTOCOL_MIN {
        return Err(NoCommonVersion::AgentTooOld {
            agent_version,
            min,
            max,
        });
    }
    if min > PROTOCOL_MAX {
        return Err(NoCommonVersion::CollectorTooOld {
            agent_version,
            min,
            max,
        });
    }
    Ok(max.min(PROTOCOL_MAX))
}

/// Checks, on the agent's side, the version that the collector chose.
///
/// # Errors
/// If the agent does not speak that version.
pub fn accept(ack: &HelloAck) -> Result<u32, NotOffered> {
    if (PROTOCOL_MIN..=PROTOCOL_MAX).contains(&ack.protocol) {
        Ok(ack.protocol)
    } else {
        Err(NotOffered {
            collector_version: shortened(&ack.collector_version),
            protocol: ack.protocol,
        })
    }
}

fn shortened(version: &str) -> String {
    version.chars().take(VERSION_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_used_and_an_error_names_the_older_side() {
        let hello = |protocol_min, protocol_max| Hello {
            protocol_min,
            protocol_max,
            agent_version: "0.9".into(),
            ..Hello::default()
        };
        for (min, max, expected) in [
            (1, 1, Ok(1)),
            (1, 2, Ok(2)),
            (2, 2, Ok(2)),
            (1, 7, Ok(2)),
            (2, 7, Ok(2)),
            (3, 7, Err("Upgrade the collector first")),
            (0, 0, Err("which is not a valid range")),
            (2, 1, Err("which is not a valid range")),
        ] {
            let agreed = agree(&hello(min, max)).map_err(|error| error.to_string());
            match (agreed, expected) {
                (Ok(agreed), Ok(expected)) => assert_eq!(agreed, expected, "{min} to {max}"),
                (Err(error), Err(says)) => assert!(error.contains(says), "{min} to {max}: {error}"),
                (agreed, _) => panic!("{min} to {max}: {agreed:?}"),
            }
        }
        let too_old = NoCommonVersion::AgentTooOld {
            agent_version: "0.1".into(),
            min: 0,
            max: 0,
        };
        assert!(too_old.to_string().contains("Upgrade the agent"));
    }

    #[test]
    fn an_agent_accepts_only_a_version_that_it_offered() {
        let ack = |protocol| HelloAck {
            protocol,
            ..HelloAck::default()
        };
        assert_eq!(accept(&ack(PROTOCOL_MIN)), Ok(PROTOCOL_MIN));
        assert_eq!(accept(&ack(PROTOCOL_MAX)), Ok(PROTOCOL_MAX));
        for protocol in [0, PROTOCOL_MAX + 1] {
            let error = accept(&ack(protocol))
                .expect_err("it was not offered")
                .to_string();
            assert!(error.contains("upgrade"), "{error}");
        }
    }
}
