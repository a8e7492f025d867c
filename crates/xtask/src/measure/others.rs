//! What the rest of the machine does while a server is measured: latencies count only when it is little.

use std::time::Instant;

use super::{machine, process};

/// The CPU time of all processes but one server, this program, and its children that ended (the generator among them).
pub(crate) struct Others {
    server: u32,
    begin: Instant,
    used_s: Option<f64>,
}

impl Others {
    /// From now on.
    pub(crate) fn begin(server: u32) -> Self {
        Self {
            server,
            begin: Instant::now(),
            used_s: used_s(server),
        }
    }

    /// Their part of all cores' time since then.
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
        let others = Others::begin(1);
        std::thread::sleep(Duration::from_millis(200));
        assert!(others.share().is_none_or(|share| (-0.2..1.2).contains(&share)));
    }
}
