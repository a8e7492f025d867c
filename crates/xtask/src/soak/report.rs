//! docs/soak.md: one section per part, with date, revision, command and machine. A later run replaces its own section.

use anyhow::Result;

use crate::layout::Layout;
use crate::measure::{machine, section};

const INTRODUCTION: &str = "# Soak runs

Written by `cargo xtask soak`, which runs tests that take too long for each change. Each run replaces its own section.
";

/// The results of a part.
#[derive(Debug)]
pub(crate) struct PartReport {
    /// The part.
    pub(crate) name: &'static str,
    /// Its command, without `cargo xtask soak`.
    pub(crate) command: String,
    /// The results, in sentences with numbers.
    pub(crate) lines: Vec<String>,
    /// Whether all checks passed.
    pub(crate) passed: bool,
}

impl PartReport {
    /// Creates empty results.
    pub(crate) fn new(name: &'static str, command: String) -> Self {
        Self {
            name,
            command,
            lines: Vec::new(),
            passed: true,
        }
    }

    /// Creates the results of a part that could not run to its end.
    pub(crate) fn failed(name: &'static str, why: &str) -> Self {
        let mut report = Self::new(name, name.to_owned());
        report.check(false, why.lines().collect::<Vec<_>>().join(" "));
        report
    }

    /// Adds a line that is not a check.
    pub(crate) fn note(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Adds the result of a check.
    pub(crate) fn check(&mut self, passed: bool, line: impl Into<String>) {
        let line = line.into();
        self.lines.push(if passed {
            line
        } else {
            format!("**Failed:** {line}")
        });
        self.passed &= passed;
    }

    /// Returns the results as text for the terminal.
    pub(crate) fn to_text(&self) -> String {
        let verdict = if self.passed { "passed" } else { "FAILED" };
        format!("{} {verdict}\n  {}", self.name, self.lines.join("\n  "))
    }

    fn section(&self, revision: &str) -> String {
        let lines: Vec<_> = self.lines.iter().map(|line| format!("- {line}\n")).collect();
        let command = format!("cargo xtask soak {}", self.command);
        format!("{}\n\n{}", machine::origin(&command, revision), lines.concat())
    }
}

/// Replaces the section of the part, or appends it.
pub(crate) fn keep(layout: &Layout, report: &PartReport, revision: &str) -> Result<()> {
    let verdict = if report.passed { "passed" } else { "failed" };
    section::keep(
        &layout.root.join("docs/soak.md"),
        INTRODUCTION,
        &format!("{}: {verdict}", report.name),
        &report.section(revision),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_check_fails_the_part() {
        let mut report = PartReport::new("kill", "kill".to_owned());
        report.check(true, "a");
        assert!(report.passed);
        report.check(false, "b");
        report.note("c");
        assert!(!report.passed && report.to_text().contains("**Failed:** b"));
    }
}
