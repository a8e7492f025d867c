//! SXid errors: what the NVSwitches of a node report. NVIDIA's published list as data, and how bad one is.
//!
//! ```text
//! data/sxid.tsv   number ─▶ class, action, meaning      ┐
//! the line's own word, Fatal or Non-fatal               ┴─▶ Verdict
//! ```
//! An error that is always fatal stops the whole fabric; a fatal one stops the traffic of a port, and the GPU behind it reports Xid 74;
//! of what is not fatal most is corrected.

use std::sync::LazyLock;

use crate::event::Severity;

const TABLE: &str = include_str!("../data/sxid.tsv");

/// How NVIDIA sorts the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The switch has put it right itself.
    Corrected,
    /// Traffic may be slower or stall, and others may follow.
    NonFatal,
    /// The traffic of the port stops.
    Fatal,
    /// The traffic of the whole fabric stops.
    AlwaysFatal,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Ignore,
    /// See whether it comes back.
    Watch,
    /// See that the machine is cooled.
    CheckCooling,
    /// See that nothing is loose, unless the other end was shut down.
    CheckCables,
    /// Reset all GPUs and switches of the node.
    Reset,
    /// Reboot the node.
    Reboot,
}

/// The driver's own word in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// `Fatal`.
    Fatal,
    /// `Non-fatal`.
    NonFatal,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The SXid.
    pub number: u32,
    /// How NVIDIA sorts it.
    pub class: Class,
    /// What to do.
    pub action: Action,
    /// What it means.
    pub meaning: &'static str,
}

/// How bad one is, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How bad.
    pub severity: Severity,
    /// What to do.
    pub action: Action,
}

const CLASSES: [(Class, &str); 4] = [
    (Class::Corrected, "corrected"),
    (Class::NonFatal, "non_fatal"),
    (Class::Fatal, "fatal"),
    (Class::AlwaysFatal, "always_fatal"),
];

const ACTIONS: [(Action, &str, &str); 6] = [
    (Action::Ignore, "ignore", "nothing needs to be done"),
    (Action::Watch, "watch", "see whether it comes back to this switch"),
    (
        Action::CheckCooling,
        "check_cooling",
        "check fans and cooling of the node",
    ),
    (
        Action::CheckCables,
        "check_cables",
        "unless a GPU or the other machine was just reset or shut down, check that boards and cables sit firmly, and reset all GPUs and switches of the node",
    ),
    (
        Action::Reset,
        "reset",
        "drain the node, then reset all of its GPUs and switches at once",
    ),
    (
        Action::Reboot,
        "reboot",
        "drain the node and reboot it; no GPU of it reaches another before",
    ),
];

impl Action {
    /// A stable word for programs; the label `action`.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.row().1
    }

    /// The same for people.
    #[must_use]
    pub fn advice(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> &'static (Action, &'static str, &'static str) {
        let row = ACTIONS.iter().find(|(action, ..)| *action == self);
        row.unwrap_or(&ACTIONS[0])
    }
}

/// All rows, by number.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| TABLE.lines().filter_map(row).collect());
    &ENTRIES
}

/// The row of a number.
#[must_use]
pub fn find(sxid: u32) -> Option<&'static Entry> {
    let entries = entries();
    let at = entries.binary_search_by_key(&sxid, |entry| entry.number).ok()?;
    entries.get(at)
}

/// How bad an error is: by its class where that leaves no doubt, else by the driver's word, which knows the port and the moment.
#[must_use]
pub fn judge(sxid: u32, said: Option<Said>) -> Verdict {
    let entry = find(sxid);
    let severity = match (entry.map(|entry| entry.class), said) {
        (Some(Class::AlwaysFatal), _) | (_, Some(Said::Fatal)) | (Some(Class::Fatal), None) => {
            Severity::Critical
        }
        (Some(Class::Corrected), _) => Severity::Info,
        _ => Severity::Warning,
    };
    let mild = |action| matches!(action, Action::Ignore | Action::Watch);
    let action = match entry.map(|entry| entry.action) {
        Some(action) if severity < Severity::Critical || !mild(action) => action,
        _ if severity == Severity::Critical => Action::Reset,
        _ => Action::Watch,
    };
    Verdict { severity, action }
}

fn row(line: &'static str) -> Option<Entry> {
    let mut columns = line.split('\t');
    let number = columns.next()?.parse().ok()?;
    let class = columns.next()?;
    let action = columns.next()?;
    Some(Entry {
        number,
        class: CLASSES.iter().find(|(_, word)| *word == class)?.0,
        action: ACTIONS.iter().find(|(_, word, _)| *word == action)?.0,
        meaning: columns.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVIDIA's list as published, class by class instead of row by row, so that a slip in one shows against the other.
    const PUBLISHED: [(Class, &[u32]); 4] = [
        (
            Class::Corrected,
            &[
                11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062,
                19065, 19068, 19071, 22013, 24001, 24002, 24003,
            ],
        ),
        (
            Class::NonFatal,
            &[
                10001, 10002, 10004, 10005, 11004, 12028, 19084, 20001, 20009, 20012,
            ],
        ),
        (
            Class::Fatal,
            &[
                11001, 11009, 11013, 11018, 11019, 11020, 12001, 12002, 12022, 12024, 12025, 12026, 12027,
                12030, 12031, 12032, 14017, 15001, 15006, 15009, 15010, 15012, 15013, 19047, 19048, 19054,
                19056, 19058, 19060, 19061, 19063, 19064, 19066, 19067, 19069, 19070, 20034, 22012, 24004,
                24005, 24006, 24007,
            ],
        ),
        (
            Class::AlwaysFatal,
            &[
                10003, 12020, 22003, 22011, 23001, 23002, 23003, 23004, 23005, 23006, 23007, 23008, 23009,
                23010, 23011, 23012, 23013, 23014, 23015, 23016, 23017,
            ],
        ),
    ];

    #[test]
    fn every_row_is_read_and_in_its_published_class() {
        let rows = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(entries().len(), rows, "a row that is not understood");
        assert!(entries().is_sorted_by(|one, other| one.number < other.number));
        for (class, numbers) in PUBLISHED {
            let of_class = entries().iter().filter(|entry| entry.class == class);
            let found: Vec<u32> = of_class.map(|entry| entry.number).collect();
            assert_eq!(found, numbers, "{class:?}");
        }
    }

    #[test]
    fn class_and_word_decide_how_bad_it_is() {
        let cases = [
            (11012, Some(Said::NonFatal), Severity::Info, Action::Ignore),
            (11012, None, Severity::Info, Action::Ignore),
            // The driver may know better than the list, either way.
            (11012, Some(Said::Fatal), Severity::Critical, Action::Reset),
            (24007, Some(Said::NonFatal), Severity::Warning, Action::Reset),
            (12028, Some(Said::NonFatal), Severity::Warning, Action::Reset),
            (20001, None, Severity::Warning, Action::Watch),
            (20034, Some(Said::Fatal), Severity::Critical, Action::CheckCables),
            (24007, None, Severity::Critical, Action::Reset),
            (23001, Some(Said::NonFatal), Severity::Critical, Action::Reboot),
            // Not in the list.
            (28006, Some(Said::NonFatal), Severity::Warning, Action::Watch),
            (28006, Some(Said::Fatal), Severity::Critical, Action::Reset),
            (28006, None, Severity::Warning, Action::Watch),
        ];
        for (sxid, said, severity, action) in cases {
            assert_eq!(judge(sxid, said), Verdict { severity, action }, "{sxid} {said:?}");
        }
    }
}
