//! docs/soak.md: a section a part, with when, from what, how and where it was run. A later run replaces its own section.

use anyhow::Result;

use crate::layout::Layout;
use crate::measure::{machine, section};

const INTRODUCTION: &str = "# Soak runs

Written by `cargo xtask soak`, which runs what takes too long for every change; each run replaces its own section.
";

/// What a part saw.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The part.
    pub(crate) name: &'static str,
    /// How it was called, without `cargo xtask soak`.
    pub(crate) command: String,
    /// What happened, in sentences with figures.
    pub(crate) lines: Vec<String>,
    /// Whether all was as it must be.
    pub(crate) well: bool,
}

impl Seen {
    /// Nothing seen yet.
    pub(crate) fn new(name: &'static str, command: String) -> Self {
        Self {
            name,
            command,
            lines: Vec::new(),
            well: true,
        }
    }

    /// A part that could not be run to its end.
    pub(crate) fn failed(name: &'static str, why: &str) -> Self {
        let mut seen = Self::new(name, name.to_owned());
        seen.must(false, why.lines().collect::<Vec<_>>().join(" "));
        seen
    }

    /// Notes something that is neither right nor wrong.
    pub(crate) fn note(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Notes something that must be.
    pub(crate) fn must(&mut self, is_so: bool, line: impl Into<String>) {
        let line = line.into();
        self.lines.push(if is_so {
            line
        } else {
            format!("**Failed:** {line}")
        });
        self.well &= is_so;
    }

    /// For the screen.
    pub(crate) fn in_words(&self) -> String {
        let verdict = if self.well { "passed" } else { "FAILED" };
        format!("{} {verdict}\n  {}", self.name, self.lines.join("\n  "))
    }

    fn section(&self, revision: &str) -> String {
        let lines: Vec<_> = self.lines.iter().map(|line| format!("- {line}\n")).collect();
        format!(
            "`cargo xtask soak {}` at {revision} on {}, {}\n\n{}",
            self.command,
            machine::today(),
            machine::describe(),
            lines.concat()
        )
    }
}

/// Puts a section in the place of the part's last one, or at the end.
pub(crate) fn keep(layout: &Layout, seen: &Seen, revision: &str) -> Result<()> {
    let verdict = if seen.well { "passed" } else { "failed" };
    section::keep(
        &layout.root.join("docs/soak.md"),
        INTRODUCTION,
        &format!("{}: {verdict}", seen.name),
        &seen.section(revision),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_that_must_be_and_is_not_fails_the_part() {
        let mut seen = Seen::new("kill", "kill".to_owned());
        seen.must(true, "a");
        assert!(seen.well);
        seen.must(false, "b");
        seen.note("c");
        assert!(!seen.well && seen.in_words().contains("**Failed:** b"));
    }
}
