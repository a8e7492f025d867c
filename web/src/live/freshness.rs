//! The age of the values on the page: one of five states.

use domain::time::TimestampMs;

use crate::language::tr;

/// The age from which values that arrive each second are stale. A loaded collector may skip one or two seconds.
const STALE_MS: i64 = 5_000;

/// The state of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Whether the stream is connected.
    pub(crate) connected: bool,
    /// Whether the user has paused updates.
    pub(crate) paused: bool,
    /// Whether the page shows a past period.
    pub(crate) past: bool,
    /// Whether a watch gets messages each second.
    pub(crate) expects_messages: bool,
    /// When the last message arrived.
    pub(crate) last_message_ms: TimestampMs,
}

/// The state in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// The page shows current values.
    Live,
    /// Paused by the user.
    Paused,
    /// A past period.
    Past,
    /// Connected, but no message arrived for `age_ms`.
    Stale {
        /// Age of the last message.
        age_ms: i64,
    },
    /// Not connected.
    Offline,
}

impl Freshness {
    /// Returns the state at `now_ms`. A lost connection comes first, because no choice of the user explains it.
    pub(crate) fn at(now_ms: TimestampMs, stream: Stream) -> Self {
        let age_ms = now_ms - stream.last_message_ms;
        match stream {
            Stream { connected: false, .. } => Self::Offline,
            Stream { paused: true, .. } => Self::Paused,
            Stream { past: true, .. } => Self::Past,
            Stream {
                expects_messages: true,
                ..
            } if age_ms > STALE_MS => Self::Stale { age_ms },
            _ => Self::Live,
        }
    }

    /// Returns the state as a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Live => tr("live"),
            Self::Paused => tr("paused"),
            Self::Past => tr("past"),
            Self::Stale { .. } => tr("stale"),
            Self::Offline => tr("offline"),
        }
    }

    /// Returns the CSS class for colour and shape.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Live => "state state-ok",
            Self::Paused | Self::Past => "state state-info",
            Self::Stale { .. } => "state state-stale",
            Self::Offline => "state state-critical",
        }
    }

    /// Returns what the state means and what the user can do.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Live => tr("Values change as they are measured."),
            Self::Paused => tr("Values do not change until you press Continue."),
            Self::Past => tr("This page shows a past period."),
            Self::Stale { .. } => tr("Connected, but the collector sends nothing."),
            Self::Offline => tr("No connection to the collector. Reconnecting; values are the last known."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: Stream = Stream {
        connected: true,
        paused: false,
        past: false,
        expects_messages: true,
        last_message_ms: 0,
    };

    #[test]
    fn each_state_has_its_cause() {
        for (stream, now_ms, expected) in [
            (LIVE, 1_000, Freshness::Live),
            (LIVE, 5_001, Freshness::Stale { age_ms: 5_001 }),
            // A page without watches gets no messages.
            (
                Stream {
                    expects_messages: false,
                    ..LIVE
                },
                60_000,
                Freshness::Live,
            ),
            (Stream { past: true, ..LIVE }, 60_000, Freshness::Past),
            (
                Stream {
                    paused: true,
                    past: true,
                    ..LIVE
                },
                60_000,
                Freshness::Paused,
            ),
            (
                Stream {
                    connected: false,
                    paused: true,
                    ..LIVE
                },
                1_000,
                Freshness::Offline,
            ),
        ] {
            assert_eq!(Freshness::at(now_ms, stream), expected, "{stream:?}");
        }
    }
}
