//! Reads `/proc/stat` and `/proc/loadavg`.

use std::path::Path;

use super::text;
use crate::sample::series::Writer;

/// The columns of the `cpu` line. Guest time is part of user time and stays there.
const MODES: [&str; 8] = [
    "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal",
];
/// Linux shows times to user space in hundredths of a second on every supported architecture (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Writes the processor time by mode, the number of processors, the load and the boot time.
pub(super) fn read(root: &Path, out: &mut Writer<'_>) {
    if let Some(stat) = text(root, "proc/stat") {
        read_stat(&stat, out);
    }
    let load = text(root, "proc/loadavg").and_then(|load| load.split(' ').next()?.parse::<f64>().ok());
    if let Some(load) = load {
        out.put("node_load1", load);
    }
}

fn read_stat(stat: &str, out: &mut Writer<'_>) {
    let mut cpus = 0_u32;
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("cpu") => {
                for (mode, ticks) in MODES
                    .into_iter()
                    .zip(words.map_while(|word| word.parse::<f64>().ok()))
                {
                    out.put_by("node_cpu_seconds_total", ("mode", mode), ticks / TICKS_PER_SECOND);
                }
            }
            Some("btime") => {
                if let Some(seconds) = words.next().and_then(|word| word.parse::<f64>().ok()) {
                    out.put("node_boot_time_seconds", seconds);
                }
            }
            Some(word) if word.starts_with("cpu") => cpus += 1,
            _ => {}
        }
    }
    if cpus > 0 {
        out.put("node_cpus", cpus);
    }
}
