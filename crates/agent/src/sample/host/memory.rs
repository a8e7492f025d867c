//! Reads `/proc/meminfo`.

use std::path::Path;

use super::text;
use crate::sample::series::Writer;

/// Writes memory and swap.
pub(super) fn read(root: &Path, out: &mut Writer<'_>) {
    let Some(meminfo) = text(root, "proc/meminfo") else {
        return;
    };
    if let Some(bytes) = total_bytes(&meminfo) {
        out.put("node_memory_total_bytes", bytes);
    }
    if let Some(bytes) = bytes(&meminfo, "MemAvailable") {
        out.put("node_memory_available_bytes", bytes);
    }
    if let (Some(total), Some(free)) = (bytes(&meminfo, "SwapTotal"), bytes(&meminfo, "SwapFree")) {
        out.put("node_swap_used_bytes", total - free);
    }
}

/// Returns the host's memory, in bytes.
pub(super) fn total_bytes(meminfo: &str) -> Option<f64> {
    bytes(meminfo, "MemTotal")
}

/// Parses a line such as `MemTotal:       24503412 kB` and returns bytes. The kernel's kB are KiB.
fn bytes(meminfo: &str, name: &str) -> Option<f64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = rest.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024.0)
}
