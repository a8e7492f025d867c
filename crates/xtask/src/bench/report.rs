//! docs/benchmarks.md: a section a benchmark. A later run replaces its own section and leaves the others as they are.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

const INTRODUCTION: &str = "# Benchmarks

Written by `cargo xtask bench`; each run replaces its own section. Figures are of one machine and one run: read the ratios.
";

/// Puts a section in the place of the one with the same heading, or at the end.
pub(crate) fn keep(file: &Path, heading: &str, text: &str) -> Result<()> {
    let before = if file.exists() {
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
    } else {
        INTRODUCTION.to_owned()
    };
    fs::write(file, replaced(&before, heading, text))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn replaced(before: &str, heading: &str, text: &str) -> String {
    let section = format!("## {heading}\n\n{}\n", text.trim_end());
    let mut parts = split(before);
    match parts
        .iter_mut()
        .find(|part| part.lines().next() == Some(&format!("## {heading}")))
    {
        Some(part) => *part = section,
        None => parts.push(section),
    }
    let parts: Vec<_> = parts.iter().map(|part| part.trim_end()).collect();
    format!("{}\n", parts.join("\n\n"))
}

/// What stands before the first section, then each section.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.starts_with("## ") {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_replaces_its_own_section_only() {
        let before = "# Benchmarks\n\nWords.\n\n## A\n\nold\n\n### deeper\n\n## A, quick\n\nkept\n";
        let once = replaced(before, "A", "new");
        assert_eq!(
            once,
            "# Benchmarks\n\nWords.\n\n## A\n\nnew\n\n## A, quick\n\nkept\n"
        );
        assert_eq!(replaced(&once, "A", "new"), once);
        assert!(replaced(&once, "B", "more").ends_with("kept\n\n## B\n\nmore\n"));
        assert!(replaced(INTRODUCTION, "B", "more").starts_with("# Benchmarks\n"));
    }
}
