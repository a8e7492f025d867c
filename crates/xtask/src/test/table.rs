//! The counts of each part, and the table at the end.

use std::process::ExitCode;
use std::time::Duration;

use crate::progress::result;
use crate::test::Part;
use crate::test::slowest::{self, TestTime};

/// Numbers of tests by result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Skipped tests. The table shows them, so that they are not mistaken for passed ones.
    pub(crate) skipped: u64,
    /// A note for the reader, such as why a part could not run.
    pub(crate) note: String,
    /// The duration of each test, if the runner reports it.
    pub(crate) times: Vec<TestTime>,
}

impl Count {
    /// A check that is one passed test.
    pub(crate) fn one_passed() -> Self {
        Self {
            passed: 1,
            ..Self::default()
        }
    }

    /// A part that could not be counted, which is one failure.
    pub(crate) fn failed(note: String) -> Self {
        Self {
            failed: 1,
            note,
            ..Self::default()
        }
    }

    /// Adds two counts.
    pub(crate) fn plus(self, other: Self) -> Self {
        let note = [self.note, other.note]
            .into_iter()
            .filter(|note| !note.is_empty())
            .collect::<Vec<_>>()
            .join("; ");
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
            note,
            times: [self.times, other.times].concat(),
        }
    }

    /// Adds a failure if the process failed but no test did: it crashed, or did not compile.
    pub(crate) fn with_exit(mut self, succeeded: bool) -> Self {
        if !succeeded && self.failed == 0 {
            self.failed = 1;
            self.note = "ended badly although no test was seen to fail".to_owned();
        }
        self
    }

    /// Returns the counts as text.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// One line of the table.
pub(crate) struct Row {
    pub(crate) part: Part,
    pub(crate) count: Count,
    pub(crate) took: Duration,
}

/// Prints the table and its sum. The command fails if any test failed, or if nothing ran.
pub(crate) fn print(rows: &[Row], took: Duration) -> ExitCode {
    result(&format!(
        "\n{:<14} {:<7} {:>7} {:>7} {:>8} {:>8}",
        "part", "result", "passed", "failed", "skipped", "seconds"
    ));
    for Row { part, count, took } in rows {
        let verdict = if count.failed > 0 { "FAILED" } else { "ok" };
        let line = format!(
            "{:<14} {verdict:<7} {:>7} {:>7} {:>8} {:>8.1}  {}",
            part.name(),
            count.passed,
            count.failed,
            count.skipped,
            took.as_secs_f64(),
            count.note.lines().next().unwrap_or_default()
        );
        result(line.trim_end());
    }
    let sum = rows
        .iter()
        .fold(Count::default(), |sum, row| sum.plus(row.count.clone()));
    if !sum.times.is_empty() {
        let slowest = slowest::table(sum.times);
        result(&format!("\nthe slowest tests, in seconds\n{slowest}"));
    }
    result(&format!("\nin {:.0} s, set-up included", took.as_secs_f64()));
    result(&format!("{} passed, {} failed", sum.passed, sum.failed));
    if sum.failed == 0 && sum.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_end_is_a_failure_even_when_every_test_passed() {
        let count = Count {
            passed: 7,
            ..Count::default()
        };
        assert_eq!(count.clone().with_exit(true).failed, 0);
        assert_eq!(count.with_exit(false).failed, 1);
    }

    #[test]
    fn sums_keep_what_was_skipped() {
        let sum = Count {
            passed: 1,
            skipped: 2,
            ..Count::default()
        }
        .plus(Count::failed("why".to_owned()));
        assert_eq!(
            (sum.passed, sum.failed, sum.skipped, sum.note.as_str()),
            (1, 1, 2, "why")
        );
    }
}
