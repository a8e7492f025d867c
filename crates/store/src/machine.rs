//! The machine that this process runs on.

/// Returns the memory of the machine, or the memory limit of the container if that is lower.
#[must_use]
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok());
    memory.min(limit.unwrap_or(u64::MAX))
}
