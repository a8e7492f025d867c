//! The CPU time of processes, from /proc.

use std::fs;

/// Clock ticks per second in `/proc/PID/stat`: USER_HZ is 100 on all our architectures.
const USER_HZ: f64 = 100.0;

/// Returns the CPU seconds of this process.
#[must_use]
pub fn own_cpu_s() -> f64 {
    cpu_s_of("self").unwrap_or_default()
}

/// Returns the CPU seconds of another process and of its ended children, or `None` if it does not exist.
#[must_use]
pub fn cpu_s(pid: u32) -> Option<f64> {
    cpu_s_of(&pid.to_string())
}

fn cpu_s_of(pid: &str) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything. After it: state is field 3; utime, stime, cutime, cstime are 14 to
    // 17.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(ticks / USER_HZ)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn work_costs_cpu_and_a_process_that_is_gone_has_none() {
        let (before, deadline) = (own_cpu_s(), Instant::now() + Duration::from_secs(20));
        let mut sum = 0_u64;
        while own_cpu_s() < before + 0.05 {
            assert!(Instant::now() < deadline, "{sum}");
            sum = (0..1_000_000).fold(sum, |sum, n| sum.wrapping_mul(31).wrapping_add(n));
        }
        assert_eq!(cpu_s(u32::MAX), None);
    }
}
