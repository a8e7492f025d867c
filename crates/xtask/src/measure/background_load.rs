//! The load of other processes during a measurement: latencies count only if it is low.

use std::time::Instant;

use super::{machine, process};

/// The CPU time of all processes except one server, this program, and its children that ended (the generator is one of them).
pub(crate) struct BackgroundLoad {
    server: u32,
    begin: Instant,
    used_s: Option<f64>,
}

impl BackgroundLoad {
    /// Starts the measurement.
    pub(crate) fn begin(server: u32) -> Self {
        Self {
            server,
            begin: Instant::now(),
            used_s: used_s(server),
        }
    }

    /// Returns their share of all cores' time since the start.
    pub(crate) fn share(&self) -> Option<f64> {
        let used_s = used_s(self.server)? - self.used_s?;
        Some(used_s / (self.begin.elapsed().as_secs_f64() * machine::cores() as f64))
    }
}

fn used_s(server: u32) -> Option<f64> {
    let own = process::cpu_s(server).ok()? + process::cpu_s(std::process::id()).ok()?;
    Some(machine::cpu_s()? - own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_share_is_a_part() {
        let load = BackgroundLoad::begin(1);
        std::thread::sleep(Duration::from_millis(200));
        assert!(load.share().is_none_or(|share| (-0.2..1.2).contains(&share)));
    }
}
