//! SXid errors: what the NVSwitches of a node report. NVIDIA's published list as data, and the severity of an error.
//!
//! ```text
//! data/sxid.tsv   number ─▶ class, action, meaning      ┐
//! severity in the log line, Fatal or Non-fatal          ┴─▶ Assessment
//! ```
//! An error that is always fatal stops the whole fabric. A fatal error stops the traffic of one port, and the GPU behind that port reports
//! Xid 74. Most errors that are not fatal are corrected.

use std::sync::LazyLock;

use crate::event::Severity;

const TABLE: &str = include_str!("../data/sxid.tsv");

/// NVIDIA's classes of SXid errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The switch corrected the error itself.
    Corrected,
    /// Traffic may slow down or stall, and other errors may follow.
    NonFatal,
    /// The traffic of the port stops.
    Fatal,
    /// The traffic of the whole fabric stops.
    AlwaysFatal,
}

/// The action to take for an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Do nothing.
    Ignore,
    /// Watch for more errors.
    Watch,
    /// Check the cooling of the machine.
    CheckCooling,
    /// Check for loose cables, unless the other end was shut down.
    CheckCables,
    /// Reset all GPUs and switches of the node.
    Reset,
    /// Reboot the node.
    Reboot,
}

/// Severity that the driver wrote in the log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSeverity {
    /// `Fatal`.
    Fatal,
    /// `Non-fatal`.
    NonFatal,
}

/// One row of NVIDIA's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Number of the SXid error.
    pub number: u32,
    /// Class in NVIDIA's list.
    pub class: Class,
    /// Action to take.
    pub action: Action,
    /// Meaning of the error.
    pub meaning: &'static str,
}

/// Severity of an error and the action to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assessment {
    /// Severity of the error.
    pub severity: Severity,
    /// Action to take.
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
    (Action::Watch, "watch", "watch whether it recurs on this switch"),
    (
        Action::CheckCooling,
        "check_cooling",
        "check fans and cooling of the node",
    ),
    (
        Action::CheckCables,
        "check_cables",
        "unless a GPU or the other machine was just reset or shut down, check that boards and cables are seated firmly, then reset all GPUs and switches of the node",
    ),
    (
        Action::Reset,
        "reset",
        "drain the node, then reset all of its GPUs and switches at once",
    ),
    (
        Action::Reboot,
        "reboot",
        "drain the node and reboot it; until then its GPUs cannot reach each other",
    ),
];

impl Action {
    /// Returns the stable identifier for programs, the value of the label `action`.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.row().1
    }

    /// Returns the action as a text for people.
    #[must_use]
    pub fn advice(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> &'static (Action, &'static str, &'static str) {
        let row = ACTIONS.iter().find(|(action, ..)| *action == self);
        row.unwrap_or(&ACTIONS[0])
    }
}

/// Returns all rows of the list, ordered by number.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: LazyLock<Vec<Entry>> = LazyLock::new(|| TABLE.lines().filter_map(row).collect());
    &ENTRIES
}

/// Returns the row of an SXid number; `None` if the number is not in the list.
#[must_use]
pub fn find(sxid: u32) -> Option<&'static Entry> {
    let entries = entries();
    let at = entries.binary_search_by_key(&sxid, |entry| entry.number).ok()?;
    entries.get(at)
}

/// Returns the severity and action of an error. The class decides if it is always fatal or corrected; otherwise the severity in the
/// driver's log line decides, because the driver has the state of the port at that time.
#[must_use]
pub fn assess(sxid: u32, log_severity: Option<LogSeverity>) -> Assessment {
    let entry = find(sxid);
    let severity = match (entry.map(|entry| entry.class), log_severity) {
        (Some(Class::AlwaysFatal), _) | (_, Some(LogSeverity::Fatal)) | (Some(Class::Fatal), None) => {
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
    Assessment { severity, action }
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

    /// NVIDIA's list as published, by class instead of by row: an error in one of the two lists fails the comparison.
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
            (11012, Some(LogSeverity::NonFatal), Severity::Info, Action::Ignore),
            (11012, None, Severity::Info, Action::Ignore),
            // The severity of the log line can be higher or lower than that of the list.
            (11012, Some(LogSeverity::Fatal), Severity::Critical, Action::Reset),
            (
                24007,
                Some(LogSeverity::NonFatal),
                Severity::Warning,
                Action::Reset,
            ),
            (
                12028,
                Some(LogSeverity::NonFatal),
                Severity::Warning,
                Action::Reset,
            ),
            (20001, None, Severity::Warning, Action::Watch),
            (
                20034,
                Some(LogSeverity::Fatal),
                Severity::Critical,
                Action::CheckCables,
            ),
            (24007, None, Severity::Critical, Action::Reset),
            (
                23001,
                Some(LogSeverity::NonFatal),
                Severity::Critical,
                Action::Reboot,
            ),
            // Numbers that are not in the list.
            (
                28006,
                Some(LogSeverity::NonFatal),
                Severity::Warning,
                Action::Watch,
            ),
            (28006, Some(LogSeverity::Fatal), Severity::Critical, Action::Reset),
            (28006, None, Severity::Warning, Action::Watch),
        ];
        for (sxid, log_severity, severity, action) in cases {
            assert_eq!(
                assess(sxid, log_severity),
                Assessment { severity, action },
                "{sxid} {log_severity:?}"
            );
        }
    }
}
