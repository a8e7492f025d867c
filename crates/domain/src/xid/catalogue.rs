//! NVIDIA's catalogue of Xid errors as rows: `data/xid.tsv`.

use std::sync::LazyLock;

use super::Action;

/// Highest Xid in the table.
pub const CATALOGUE_XID_MAX: u32 = 172;

const TABLE: &str = include_str!("../../data/xid.tsv");

/// Family of an Xid: the part of the system that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A program did something that is not allowed.
    Application,
    /// Memory of the GPU.
    Memory,
    /// NVLink and chip-to-chip links.
    Nvlink,
    /// PCIe, and the coherent link to the processor.
    Bus,
    /// Controllers of the GPU.
    Firmware,
    /// A copy engine.
    CopyEngine,
    /// Video, JPEG and optical flow engines.
    Video,
    /// Power supply.
    Power,
    /// A bug in the driver.
    Driver,
    /// Confidential computing and protection.
    Security,
    /// Information, not an error.
    Information,
    /// Not used by current drivers.
    Unused,
}

const FAMILIES: [(Family, &str); 12] = [
    (Family::Application, "application"),
    (Family::Memory, "memory"),
    (Family::Nvlink, "nvlink"),
    (Family::Bus, "bus"),
    (Family::Firmware, "firmware"),
    (Family::CopyEngine, "copy_engine"),
    (Family::Video, "video"),
    (Family::Power, "power"),
    (Family::Driver, "driver"),
    (Family::Security, "security"),
    (Family::Information, "information"),
    (Family::Unused, "unused"),
];

impl Family {
    /// Returns the stable identifier for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        FAMILIES
            .iter()
            .find(|(family, _)| *family == self)
            .map_or("", |(_, word)| word)
    }
}

/// One row of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Number of the Xid.
    pub number: u32,
    /// Family of the Xid.
    pub family: Family,
    /// Action to take now.
    pub immediate: Action,
    /// Action to find the cause, as NVIDIA's word; empty if NVIDIA names none.
    pub investigatory: &'static str,
    /// Meaning of the Xid, in Lockstep's words.
    pub meaning: &'static str,
}

/// Returns all rows, ordered by number.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| TABLE.lines().filter_map(row).collect());
    &ENTRIES
}

/// Returns the row of an Xid; `None` if it is not in the catalogue.
#[must_use]
pub fn find(xid: u32) -> Option<&'static Entry> {
    let entries = entries();
    let at = entries.binary_search_by_key(&xid, |entry| entry.number).ok()?;
    entries.get(at)
}

fn row(line: &'static str) -> Option<Entry> {
    let mut columns = line.split('\t');
    let number = columns.next()?.parse().ok()?;
    let family = columns.next()?;
    let family = FAMILIES.iter().find(|(_, word)| *word == family)?.0;
    let immediate = Action::from_word(columns.next()?)?;
    let investigatory = columns.next()?;
    Some(Entry {
        number,
        family,
        immediate,
        investigatory: if investigatory == "-" { "" } else { investigatory },
        meaning: columns.next()?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// NVIDIA's actions as published, by action instead of by row: an error in one of the two tables fails the comparison.
    const PUBLISHED: [(&str, &str); 15] = [
        (
            "CONTACT_SUPPORT",
            "1-7 9-10 12 15-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90-91 111-118 122-125 138 142",
        ),
        (
            "RESTART_APP",
            "8 11 13 25 31-32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139",
        ),
        (
            "IGNORE",
            "14 37-38 43-44 63 66-67 92-93 106-108 121 137 141 152-153 157 160-161",
        ),
        ("RESET_GPU", "46 62 64 95 109-110 119-120 136 140 143 155-156 158"),
        ("WORKFLOW_NVLINK5_ERR", "144-150"),
        ("WORKFLOW_XID_45", "45"),
        ("WORKFLOW_XID_48", "48"),
        ("CHECK_MECHANICALS", "54"),
        ("WORKFLOW_NVLINK_ERR", "74"),
        ("UPDATE_SWFW", "78"),
        ("RESTART_BM", "79"),
        ("RESTART_VM", "151"),
        ("XID_154", "154"),
        ("CHECK_UVM", "159"),
        ("UNPUBLISHED", "162-172"),
    ];

    fn numbers(ranges: &'static str) -> impl Iterator<Item = u32> {
        ranges.split(' ').flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse::<u32>().expect("a number")..=last.parse::<u32>().expect("a number")
        })
    }

    #[test]
    fn every_row_maps_to_its_published_action_bucket() {
        let mut published = BTreeMap::new();
        for (bucket, ranges) in PUBLISHED {
            for number in numbers(ranges) {
                assert!(published.insert(number, bucket).is_none(), "{number} twice");
            }
        }
        assert!(published.keys().copied().eq(1..=CATALOGUE_XID_MAX));
        let ours: BTreeMap<u32, &str> = entries()
            .iter()
            .map(|entry| (entry.number, entry.immediate.word()))
            .collect();
        assert_eq!(ours, published);
    }

    #[test]
    fn every_line_of_the_table_is_a_row_that_says_something() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(entries().len(), lines);
        assert!(entries().is_sorted_by_key(|entry| entry.number));
        let unused = entries()
            .iter()
            .filter(|entry| entry.family == Family::Unused)
            .count();
        assert_eq!((unused, lines), (63, 172));
        for entry in entries() {
            assert!(entry.meaning.len() > 5, "{entry:?}");
        }
        assert!(find(0).is_none() && find(CATALOGUE_XID_MAX + 1).is_none());
    }

    #[test]
    fn programs_are_at_fault_for_what_nvidia_s_device_plugin_ignores() {
        for xid in [13, 31, 43, 45, 68, 109] {
            assert_eq!(
                find(xid).map(|entry| entry.family),
                Some(Family::Application),
                "{xid}"
            );
        }
    }
}
