//! How old what the page shows is: one of five named states.

use domain::time::TimestampMs;

/// Without news for this long, values that come each second are old. A loaded collector may skip a second or two.
const STALE_MS: i64 = 5_000;

/// What is known about the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    /// The connection is up.
    pub(crate) connected: bool,
    /// The viewer has stopped the changes.
    pub(crate) paused: bool,
    /// The page shows a time that is over.
    pub(crate) past: bool,
    /// Something is watched that brings news each second.
    pub(crate) expects_news: bool,
    /// When the last message came.
    pub(crate) heard_ms: TimestampMs,
}

/// The state in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// What one sees is what is.
    Live,
    /// Stopped by the viewer.
    Paused,
    /// A time that is over.
    Past,
    /// Connected, and nothing came for so long.
    Stale {
        /// Age of the last message.
        age_ms: i64,
    },
    /// Not connected.
    Offline,
}

impl Freshness {
    /// The state at `now_ms`. A lost connection is said first: nothing the viewer chose explains it.
    pub(crate) fn at(now_ms: TimestampMs, stream: Stream) -> Self {
        let age_ms = now_ms - stream.heard_ms;
        match stream {
            Stream { connected: false, .. } => Self::Offline,
            Stream { paused: true, .. } => Self::Paused,
            Stream { past: true, .. } => Self::Past,
            Stream {
                expects_news: true, ..
            } if age_ms > STALE_MS => Self::Stale { age_ms },
            _ => Self::Live,
        }
    }

    /// The word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Paused => "paused",
            Self::Past => "past",
            Self::Stale { .. } => "stale",
            Self::Offline => "offline",
        }
    }

    /// Colour and shape.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Live => "state state-ok",
            Self::Paused | Self::Past => "state state-info",
            Self::Stale { .. } => "state state-stale",
            Self::Offline => "state state-critical",
        }
    }

    /// What it means, and what one can do.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Live => "Values change as they are measured.",
            Self::Paused => "Values stand still until you press Continue.",
            Self::Past => "This page shows a time that is over.",
            Self::Stale { .. } => "The collector is connected and sends nothing.",
            Self::Offline => {
                "No connection to the collector. The page tries again by itself; values are the last known."
            }
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
        expects_news: true,
        heard_ms: 0,
    };

    #[test]
    fn each_state_has_its_cause() {
        for (stream, now_ms, expected) in [
            (LIVE, 1_000, Freshness::Live),
            (LIVE, 5_001, Freshness::Stale { age_ms: 5_001 }),
            // A page that watches nothing hears nothing.
            (
                Stream {
                    expects_news: false,
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
