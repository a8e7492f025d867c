//! What each part counted, and the table at the end.

use std::process::ExitCode;
use std::time::Duration;

use crate::progress::result;
use crate::test::Part;
use crate::test::slowest::{self, TestTime};

/// How many tests did what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that excused themselves; the table shows them, so that nobody takes them for passed.
    pub(crate) skipped: u64,
    /// What a reader should know, such as why a part could not run.
    pub(crate) note: String,
    /// How long each test took, where the runner says it.
    pub(crate) times: Vec<TestTime>,
}

impl Count {
    /// A check that is one test by itself.
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

    /// Both together.
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

    /// A part whose process failed although no test was seen to fail did fail: it crashed, or did not compile.
    pub(crate) fn with_exit(mut self, succeeded: bool) -> Self {
        if !succeeded && self.failed == 0 {
            self.failed = 1;
            self.note = "ended badly although no test was seen to fail".to_owned();
        }
        self
    }

    /// In words.
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

/// Prints the table and its sum; any failure fails the command, and so does having run nothing.
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
