//! Which versions of the protocol this build speaks, and how two builds agree.

use crate::proto::Hello;

/// The oldest version this build understands.
pub const PROTOCOL_MIN: u32 = 1;
/// The newest version this build speaks.
pub const PROTOCOL_MAX: u32 = 1;

/// The largest message either side sends or takes: a minute of a large node's samples with room to spare.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The largest hello, on either stream: the inventory in it is at most 256 KiB.
pub const HELLO_BYTES_MAX: usize = 512 << 10;

/// Two builds that share no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "agent {agent_version} speaks protocol {min} to {max}, this collector {PROTOCOL_MIN} to {PROTOCOL_MAX}; upgrade the older of the two"
)]
pub struct NoCommonVersion {
    /// The agent's version.
    pub agent_version: String,
    /// The oldest it speaks.
    pub min: u32,
    /// The newest it speaks.
    pub max: u32,
}

/// The newest version both sides speak.
///
/// # Errors
/// When there is none.
pub fn agree(hello: &Hello) -> Result<u32, NoCommonVersion> {
    let newest = hello.protocol_max.min(PROTOCOL_MAX);
    if newest >= hello.protocol_min.max(PROTOCOL_MIN) {
        Ok(newest)
    } else {
        Err(NoCommonVersion {
            agent_version: hello.agent_version.chars().take(40).collect(),
            min: hello.protocol_min,
            max: hello.protocol_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_used() {
        let hello = |min, max| Hello {
            protocol_min: min,
            protocol_max: max,
            ..Hello::default()
        };
        assert_eq!(agree(&hello(1, 7)), Ok(1));
        assert!(agree(&hello(2, 7)).is_err());
        assert!(agree(&hello(0, 0)).is_err());
    }
}
