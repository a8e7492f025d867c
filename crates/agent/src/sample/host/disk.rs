//! Reads `/proc/diskstats`: whole disks, without partitions and without devices that consist of other disks.

use std::collections::HashMap;
use std::path::Path;

use domain::time::TimestampMs;

use super::text;
use crate::sample::Samples;
use crate::sample::series::Family;

/// The kernel counts sectors of this size, whatever the sector size of the disk is.
const SECTOR_BYTES: f64 = 512.0;
/// Devices in memory or in files, or devices made of others (device mapper, software RAID), whose bytes would be counted twice.
const NOT_DISKS: [&str; 7] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd"];

/// The devices seen so far; `None` for devices that are not disks.
#[derive(Default)]
pub(super) struct Disks(HashMap<String, Option<Family>>);

impl Disks {
    pub(super) fn read(&mut self, root: &Path, samples: &Samples, at_ms: TimestampMs) {
        let Some(stats) = text(root, "proc/diskstats") else {
            return;
        };
        for line in stats.lines() {
            let Some((device, counters)) = parse(line) else {
                continue;
            };
            let Some(family) = self.family(root, device) else {
                continue;
            };
            let out = &mut family.at(samples, at_ms);
            out.put("node_disk_read_bytes_total", counters[2] * SECTOR_BYTES);
            out.put("node_disk_written_bytes_total", counters[6] * SECTOR_BYTES);
            out.put("node_disk_io_seconds_total", counters[9] / 1e3);
        }
    }
}

impl Disks {
    fn family(&mut self, root: &Path, device: &str) -> Option<&mut Family> {
        if !self.0.contains_key(device) {
            let family = is_disk(root, device).then(|| Family::new(vec![("device", device.to_owned())]));
            self.0.insert(device.to_owned(), family);
        }
        self.0.get_mut(device)?.as_mut()
    }
}

/// Parses `major minor name` and the first eleven counters.
fn parse(line: &str) -> Option<(&str, [f64; 11])> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let device = words.next()?;
    let mut counters = [0.0; 11];
    for counter in &mut counters {
        *counter = words.next()?.parse().ok()?;
    }
    Some((device, counters))
}

/// Returns true if the device is a whole disk. A partition has no folder directly under `/sys/block`.
fn is_disk(root: &Path, device: &str) -> bool {
    let of_kind = |prefix: &str| {
        device
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // sysfs writes `!` for the `/` in names such as cciss/c0d0.
    !NOT_DISKS.iter().any(|prefix| of_kind(prefix))
        && root.join("sys/block").join(device.replace('/', "!")).is_dir()
}
