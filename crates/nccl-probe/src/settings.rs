//! The settings from the environment, read once when the first communicator is created.
//!
//! ```text
//! LOCKSTEP_PROBE_SOCKET       the socket for datagrams; without it the probe does nothing
//! LOCKSTEP_NCCL_PROBE         off: the probe does nothing
//! LOCKSTEP_NCCL_DENY          NCCL versions with which the probe does nothing, as prefixes: 2.27,2.31.2
//! LOCKSTEP_NCCL_TIMING        off, always, or ON/PERIOD in seconds such as 2/60; unset: 2/60, and off with the versions below
//! LOCKSTEP_NCCL_MIN_BYTES     smaller messages are not timed; 65536
//! LOCKSTEP_{RUN,ATTEMPT,NODE}, RANK, LOCAL_RANK   the identity of the process
//! ```

use std::ffi::OsString;

use crate::version::Version;

/// The versions with which kernels are not timed by default: 2.27 adds proxy operations that can run out of bounds, and with 2.31 timing
/// costs 4 to 13 % of a step (NVIDIA/nccl issues 2039 and 2355).
const NO_TIMING_WITH: [(u32, u32); 2] = [(2, 27), (2, 31)];
const TIMING_DEFAULT: Timing = Timing::Part {
    on_s: 2,
    period_s: 60,
};
/// The default minimum size of timed messages. Timing smaller ones costs more than it is worth.
const TIMED_BYTES_MIN: u64 = 64 << 10;

/// The settings from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) socket: OsString,
    pub(crate) timing: Timing,
    pub(crate) timed_bytes_min: u64,
    pub(crate) run: Option<String>,
    pub(crate) attempt: Option<u32>,
    pub(crate) node: Option<String>,
    pub(crate) rank: Option<u32>,
    pub(crate) local_rank: Option<u32>,
}

/// When kernels are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    Off,
    Always,
    /// The first seconds of each period of the wall clock, so that all ranks of a run time the same collectives.
    Part {
        on_s: u64,
        period_s: u64,
    },
}

impl Settings {
    /// Reads the settings. Returns `None` if the probe must do nothing in this process.
    pub(crate) fn read(
        version: Option<Version>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Option<Self> {
        let text = |name: &str| variable(name)?.into_string().ok().filter(|text| !text.is_empty());
        let number = |name: &str| text(name)?.parse().ok();
        let socket = variable("LOCKSTEP_PROBE_SOCKET").filter(|path| !path.is_empty())?;
        if text("LOCKSTEP_NCCL_PROBE").is_some_and(|word| word.eq_ignore_ascii_case("off")) {
            return None;
        }
        let denied = text("LOCKSTEP_NCCL_DENY").unwrap_or_default();
        if version.is_some_and(|version| denied.split(',').any(|prefix| version.matches(prefix.trim()))) {
            return None;
        }
        let timing = text("LOCKSTEP_NCCL_TIMING").and_then(|word| Timing::parse(&word));
        Some(Self {
            socket,
            timing: timing.unwrap_or_else(|| Timing::usual(version)),
            timed_bytes_min: text("LOCKSTEP_NCCL_MIN_BYTES")
                .and_then(|word| word.parse().ok())
                .unwrap_or(TIMED_BYTES_MIN),
            run: text("LOCKSTEP_RUN"),
            attempt: number("LOCKSTEP_ATTEMPT"),
            node: text("LOCKSTEP_NODE"),
            rank: number("RANK"),
            local_rank: number("LOCAL_RANK"),
        })
    }
}

impl Timing {
    /// Returns true if kernels are timed at this time of the wall clock.
    pub(crate) fn is_on(self, wall_ns: u64) -> bool {
        match self {
            Timing::Off => false,
            Timing::Always => true,
            Timing::Part { on_s, period_s } => wall_ns / 1_000_000_000 % period_s < on_s,
        }
    }

    fn usual(version: Option<Version>) -> Self {
        let risky = version.is_some_and(|version| NO_TIMING_WITH.contains(&(version.major, version.minor)));
        if risky { Timing::Off } else { TIMING_DEFAULT }
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "off" => Some(Timing::Off),
            "always" => Some(Timing::Always),
            part => {
                let (on, period) = part.split_once('/')?;
                let (on_s, period_s) = (on.parse().ok()?, period.parse().ok()?);
                (period_s > 0).then_some(Timing::Part { on_s, period_s })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn read(version: (u32, u32, u32), variables: &[(&str, &str)]) -> Option<Settings> {
        let version = Version {
            major: version.0,
            minor: version.1,
            patch: version.2,
        };
        Settings::read(Some(version), |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        })
    }

    const SOCKET: (&str, &str) = ("LOCKSTEP_PROBE_SOCKET", "/s");

    #[test]
    fn without_a_socket_switched_off_or_denied_it_does_nothing() {
        assert_eq!(read((2, 28, 9), &[]), None);
        assert_eq!(read((2, 28, 9), &[SOCKET, ("LOCKSTEP_NCCL_PROBE", "off")]), None);
        let denied = |version| read(version, &[SOCKET, ("LOCKSTEP_NCCL_DENY", "2.27, 2.31.2")]);
        assert_eq!(denied((2, 27, 5)), None);
        assert_eq!(denied((2, 31, 2)), None);
        assert!(denied((2, 31, 1)).is_some() && denied((2, 2, 7)).is_some());
    }

    #[test]
    fn kernels_are_not_timed_by_themselves_where_that_costs_or_breaks() {
        let timing = |version, variables: &[_]| read(version, variables).unwrap().timing;
        assert_eq!(timing((2, 28, 9), &[SOCKET]), TIMING_DEFAULT);
        assert_eq!(timing((2, 27, 5), &[SOCKET]), Timing::Off);
        assert_eq!(timing((2, 31, 2), &[SOCKET]), Timing::Off);
        let asked = [SOCKET, ("LOCKSTEP_NCCL_TIMING", "1/10")];
        assert_eq!(
            timing((2, 27, 5), &asked),
            Timing::Part {
                on_s: 1,
                period_s: 10
            }
        );
        assert_eq!(
            timing((2, 28, 9), &[SOCKET, ("LOCKSTEP_NCCL_TIMING", "1/0")]),
            TIMING_DEFAULT
        );
    }

    #[test]
    fn all_ranks_time_at_the_same_time() {
        let on: Vec<u64> = (0..130)
            .filter(|s| TIMING_DEFAULT.is_on(s * 1_000_000_000))
            .collect();
        assert_eq!(on, [0, 1, 60, 61, 120, 121]);
    }
}
