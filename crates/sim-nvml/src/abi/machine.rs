//! The simulated machine and its clock, the only one in the simulator.

use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::engine::node::Node;
use crate::engine::spec::{Spec, SpecError};

/// The maximum size of a scenario file. It is written by hand; a larger file is something else.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// The machine and its clock.
pub(crate) struct Machine {
    pub node: Node,
    started: Instant,
    started_unix_us: u64,
}

impl Machine {
    pub(crate) fn start(spec: &Spec) -> Machine {
        // If the clock is before 1970, use 0 instead of failing.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Machine {
            node: Node::new(spec),
            started: Instant::now(),
            started_unix_us: unix.as_micros() as u64,
        }
    }

    /// Returns the seconds since the simulation started.
    pub(crate) fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Converts a time to microseconds since 1970. It is based on the monotonic clock, so it never jumps.
    pub(crate) fn unix_us(&self, t: f64) -> u64 {
        self.started_unix_us.saturating_add_signed((t * 1e6) as i64)
    }

    /// Converts a time stamp of `unix_us` back to a time.
    pub(crate) fn moment(&self, unix_us: u64) -> f64 {
        (unix_us as f64 - self.started_unix_us as f64) / 1e6
    }
}

/// Parses a specification, and reads the scenario file that it may name.
pub(crate) fn read_spec(text: &str) -> Result<Spec, SpecError> {
    Spec::parse(text, read_scenario)
}

fn read_scenario(path: &str) -> Result<String, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > SCENARIO_BYTES_MAX {
        return Err(format!(
            "it has {size} bytes; a scenario has at most {SCENARIO_BYTES_MAX}"
        ));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}
