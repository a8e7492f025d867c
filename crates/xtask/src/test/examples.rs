//! Finds examples in doc comments that rustdoc would run.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Tags of code fences that rustdoc treats as Rust, as it does the empty tag.
const RUST: [&str; 5] = ["rust", "no_run", "should_panic", "compile_fail", "edition"];

/// Returns true if a Rust source below the folder has an example.
pub(super) fn any_below(folder: &Path) -> Result<bool> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let found = if path.is_dir() {
            any_below(&path)?
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            any_in(&text)
        } else {
            false
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn any_in(source: &str) -> bool {
    let mut inside = false;
    for line in source.lines().map(str::trim_start) {
        let Some(comment) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            inside = false;
            continue;
        };
        let Some(tag) = comment.trim().strip_prefix("```") else {
            continue;
        };
        if !inside && (tag.is_empty() || RUST.iter().any(|rust| tag.starts_with(rust))) {
            return true;
        }
        inside = !inside;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_are_no_examples() {
        for (source, expected) in [
            ("//! ```text\n//! a ─▶ b\n//! ```\nfn a() {}\n", false),
            (
                "/// Words.\n/// ```\n/// assert!(true);\n/// ```\nfn a() {}\n",
                true,
            ),
            ("    /// ```no_run\n    /// a();\n    /// ```\n", true),
            ("/// ```text\n/// ```\n/// ```\n/// a();\n/// ```\n", true),
            ("// ```\n// ```\nlet text = \"\n```\n\";\n", false),
        ] {
            assert_eq!(any_in(source), expected, "{source}");
        }
    }
}
