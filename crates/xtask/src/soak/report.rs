//! docs/soak.md: a section a part, with when, from what, how and where it was run. A later run replaces its own section.

use std::fs;

use anyhow::{Context as _, Result};

use super::machine;
use crate::layout::Layout;

const INTRODUCTION: &str = "# Soak runs

Written by `cargo xtask soak`, which runs what takes too long for every change; each run replaces its own section.
";
/// Where the sections are.
pub(crate) const FILE: &str = "docs/soak.md";

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

    fn section(&self, layout: &Layout) -> String {
        let lines: Vec<_> = self.lines.iter().map(|line| format!("- {line}\n")).collect();
        format!(
            "## {}: {}\n\n`cargo xtask soak {}` at {} on {}, {}\n\n{}",
            self.name,
            if self.well { "passed" } else { "failed" },
            self.command,
            machine::revision(layout),
            machine::today(),
            machine::describe(),
            lines.concat()
        )
    }
}

/// Puts a section in the place of the part's last one, or at the end.
pub(crate) fn keep(layout: &Layout, seen: &Seen) -> Result<()> {
    let file = layout.root.join(FILE);
    let before = fs::read_to_string(&file).unwrap_or_else(|_| INTRODUCTION.to_owned());
    let text = replaced(&before, seen.name, &seen.section(layout));
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn replaced(before: &str, name: &str, section: &str) -> String {
    let heading = format!("## {name}:");
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = before;
    while let Some(next) = rest.get(1..).and_then(|text| text.find("\n## ")).map(|at| at + 2) {
        let (part, more) = rest.split_at(next);
        parts.push(part);
        rest = more;
    }
    parts.push(rest);
    match parts.iter_mut().find(|part| part.starts_with(&heading)) {
        Some(part) => *part = section,
        None => parts.push(section),
    }
    let parts: Vec<_> = parts.iter().map(|part| part.trim_end()).collect();
    format!("{}\n", parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_its_own_section() {
        let before = "# Soak\n\nWords.\n\n## kill: passed\n\n- old\n\n## power: failed\n\n- kept\n";
        let once = replaced(before, "kill", "## kill: failed\n\n- new\n");
        assert_eq!(
            once,
            "# Soak\n\nWords.\n\n## kill: failed\n\n- new\n\n## power: failed\n\n- kept\n"
        );
        assert_eq!(replaced(&once, "kill", "## kill: failed\n\n- new\n"), once);
        assert!(
            replaced(INTRODUCTION, "disk", "## disk: passed\n").ends_with("section.\n\n## disk: passed\n")
        );
    }

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
