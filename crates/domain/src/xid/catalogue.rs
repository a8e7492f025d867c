//! The catalogue, row by row: `data/xid.tsv`.

use std::sync::LazyLock;

use super::Action;

/// The highest number in the table.
pub const CATALOGUE_XID_MAX: u32 = 172;

const TABLE: &str = include_str!("../../data/xid.tsv");

/// What kind of trouble a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A program did something it must not.
    Application,
    /// Device memory.
    Memory,
    /// NVLink and chip-to-chip links.
    Nvlink,
    /// PCIe and the coherent link to the processor.
    Bus,
    /// The GPU's own controllers.
    Firmware,
    /// A copy engine.
    CopyEngine,
    /// Video, JPEG and optical flow.
    Video,
    /// Power supply.
    Power,
    /// The driver's own mistakes.
    Driver,
    /// Confidential computing and protection.
    Security,
    /// No error at all.
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
    /// A stable word for programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        FAMILIES
            .iter()
            .find(|(family, _)| *family == self)
            .map_or("", |(_, word)| word)
    }
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The Xid.
    pub number: u32,
    /// What kind of trouble.
    pub family: Family,
    /// What to do now.
    pub immediate: Action,
    /// What to do to find the cause, in NVIDIA's words; empty where it names nothing.
    pub investigatory: &'static str,
    /// What it means, in ours.
    pub meaning: &'static str,
}

/// All rows, by number.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| TABLE.lines().filter_map(row).collect());
    &ENTRIES
}

/// The row of a number.
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

    /// NVIDIA's buckets as published, bucket by bucket instead of row by row, so that a slip in one table shows against the other.
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
