//! A document of sections, one per benchmark or part of a soak. A later run replaces its own section and keeps the others.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Replaces the section with the same heading, or appends it; a new file starts with the introduction. Headings are compared up to a colon:
/// the rest describes the result of this run.
pub(crate) fn keep(file: &Path, introduction: &str, heading: &str, text: &str) -> Result<()> {
    let before = if file.exists() {
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
    } else {
        introduction.to_owned()
    };
    fs::write(file, replaced(&before, heading, text))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn replaced(before: &str, heading: &str, text: &str) -> String {
    let section = format!("## {heading}\n\n{}\n", text.trim_end());
    let mut parts = split(before);
    match parts.iter_mut().find(|part| name(part) == name(&section)) {
        Some(part) => *part = section,
        None => parts.push(section),
    }
    let parts: Vec<_> = parts.iter().map(|part| part.trim_end()).collect();
    format!("{}\n", parts.join("\n\n"))
}

/// Returns the first line, up to a colon.
fn name(section: &str) -> &str {
    let heading = section.lines().next().unwrap_or_default();
    heading.split(':').next().unwrap_or_default()
}

/// Returns the text before the first section, then each section.
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
        assert_eq!(
            replaced("# Benchmarks\n", "B", "more"),
            "# Benchmarks\n\n## B\n\nmore\n"
        );
    }

    #[test]
    fn how_a_run_ended_is_no_part_of_its_name() {
        let before = "# Soak\n\n## kill: passed\n\n- old\n\n## power: failed\n\n- kept\n";
        assert_eq!(
            replaced(before, "kill: failed", "- new"),
            "# Soak\n\n## kill: failed\n\n- new\n\n## power: failed\n\n- kept\n"
        );
    }
}
