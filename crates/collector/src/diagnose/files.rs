//! Rule files on disk: found by path or glob pattern, and checked including every expression.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use domain::rule::definition::duplicates;
use domain::rule::{FILE_BYTES_MAX, Group, RuleFile, shipped};

/// Maximum number of rule files of all patterns together.
const FILES_MAX: usize = 1_000;
/// Maximum number of groups of all files. Each group is a task.
const GROUPS_MAX: usize = 2_000;
/// Maximum number of rules of all groups. The largest public collections have a tenth of this.
const RULES_MAX: usize = 20_000;
/// Maximum number of mistakes shown at once.
const MISTAKES_SHOWN: usize = 20;
/// The folder name shown for built-in rule files.
const SHIPPED: &str = "lockstep";

/// Where rules are read from.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    /// Paths and glob patterns of the user's files.
    pub(super) patterns: Vec<String>,
    /// Whether the built-in rules are active.
    pub(super) shipped: bool,
}

/// The result of reading all files.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Each group with its file.
    pub(super) groups: Vec<(String, Group)>,
    /// Warnings, which do not prevent the start.
    pub(super) warnings: Vec<String>,
}

/// Rule files that cannot be used, with one line per mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rules cannot be used:\n{}", shown(.0))]
pub struct RulesError(pub Vec<String>);

fn shown(mistakes: &[String]) -> String {
    let mut lines: Vec<String> = mistakes
        .iter()
        .take(MISTAKES_SHOWN)
        .map(|line| format!("  {line}"))
        .collect();
    if mistakes.len() > MISTAKES_SHOWN {
        lines.push(format!("  and {} more", mistakes.len() - MISTAKES_SHOWN));
    }
    lines.join("\n")
}

impl Sources {
    /// Reads and checks all files. It reads the disk, so it must not run on a thread of the async runtime.
    pub(super) fn load(&self) -> Result<Loaded, RulesError> {
        let (mut loaded, mut mistakes) = (Loaded::default(), Vec::new());
        if self.shipped {
            for (name, text) in shipped::FILES {
                loaded.take(&format!("{SHIPPED}/{name}"), check(text), &mut mistakes);
            }
        }
        for path in self.paths(&mut loaded, &mut mistakes) {
            loaded.take(&path.display().to_string(), read(&path), &mut mistakes);
        }
        loaded.check_size(&mut mistakes);
        let rules = loaded.groups.iter().flat_map(|(_, group)| &group.rules);
        let twice = duplicates(rules).into_iter().map(|(rule, count)| {
            format!(
                "{count} rules have the name {:?} and the same labels; their results cannot be distinguished",
                rule.name
            )
        });
        loaded.warnings.extend(twice.collect::<Vec<_>>());
        if mistakes.is_empty() {
            Ok(loaded)
        } else {
            Err(RulesError(mistakes))
        }
    }

    /// Returns each file once, even if several patterns match it.
    fn paths(&self, loaded: &mut Loaded, mistakes: &mut Vec<String>) -> BTreeSet<PathBuf> {
        let mut paths = BTreeSet::new();
        for pattern in &self.patterns {
            match matching(pattern) {
                Ok(found) if found.is_empty() => {
                    loaded.warnings.push(format!("no rule file matches {pattern}"));
                }
                Ok(found) => paths.extend(found),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if paths.len() > FILES_MAX {
            mistakes.push(format!(
                "there are {} rule files, more than the {FILES_MAX} allowed",
                paths.len()
            ));
            paths.clear();
        }
        paths
    }
}

impl Loaded {
    fn take(&mut self, name: &str, file: Result<RuleFile, Vec<String>>, mistakes: &mut Vec<String>) {
        match file {
            Ok(file) => self
                .groups
                .extend(file.groups.into_iter().map(|group| (name.to_owned(), group))),
            Err(found) => mistakes.extend(found.into_iter().map(|mistake| format!("{name}: {mistake}"))),
        }
    }

    fn check_size(&self, mistakes: &mut Vec<String>) {
        let rules: usize = self.groups.iter().map(|(_, group)| group.rules.len()).sum();
        for (count, max, what) in [
            (self.groups.len(), GROUPS_MAX, "groups"),
            (rules, RULES_MAX, "rules"),
        ] {
            if count > max {
                mistakes.push(format!("there are {count} {what}, more than the {max} allowed"));
            }
        }
    }
}

/// Returns the files that a path or pattern names, sorted. A path without `*`, `?` or `[` must exist; a pattern may match nothing.
///
/// # Errors
/// Returns a sentence about a path that is not a file, or an invalid pattern.
pub fn matching(pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = Path::new(pattern);
    if !pattern.contains(['*', '?', '[']) || path.is_file() {
        return match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(format!(
                "{pattern} is a folder; write {pattern}/*.yaml for the files in it"
            )),
            Ok(_) => Ok(vec![path.to_owned()]),
            Err(error) => Err(format!("{pattern} cannot be read: {error}")),
        };
    }
    let found =
        glob::glob(pattern).map_err(|error| format!("{pattern} is not a valid glob pattern: {error}"))?;
    let mut paths = Vec::new();
    for path in found {
        let path = path.map_err(|error| format!("{pattern}: {error}"))?;
        if path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Reads a file and checks it with [`check`].
///
/// # Errors
/// Returns all mistakes.
pub fn read(path: &Path) -> Result<RuleFile, Vec<String>> {
    let one = |message: String| vec![message];
    let length = std::fs::metadata(path)
        .map_err(|error| one(error.to_string()))?
        .len();
    if length > FILE_BYTES_MAX as u64 {
        return Err(one(format!(
            "the file has {length} bytes, more than the {FILE_BYTES_MAX} allowed; split it"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| one(error.to_string()))?;
    check(&text)
}

/// Parses a rule file and every expression in it, including evidence queries.
///
/// # Errors
/// Returns all mistakes, with their group and rule.
pub fn check(text: &str) -> Result<RuleFile, Vec<String>> {
    let file = RuleFile::parse(text).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => vec![format!("{error}: {source}")],
        None => error.to_string().lines().map(str::to_owned).collect(),
    })?;
    let mut mistakes = Vec::new();
    for group in &file.groups {
        for (place, rule) in (1..).zip(&group.rules) {
            for (what, text) in rule.queries() {
                if let Err(error) = query::parse(&text) {
                    mistakes.push(format!(
                        "group {:?}, rule {place}, {:?}: could not parse {what}: {error}",
                        group.name, rule.name
                    ));
                }
            }
        }
    }
    if mistakes.is_empty() {
        Ok(file)
    } else {
        Err(mistakes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const GOOD: &str = "groups: [{ name: g, rules: [{ record: a, expr: b }] }]";

    fn sources(folder: &Path, patterns: &[&str]) -> Sources {
        let pattern = |pattern: &&str| folder.join(pattern).display().to_string();
        Sources {
            patterns: patterns.iter().map(pattern).collect(),
            shipped: false,
        }
    }

    #[test]
    fn files_are_found_by_path_and_pattern_each_once() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yaml", "c.yml"] {
            std::fs::write(
                folder.path().join(name),
                GOOD.replace("record: a", &format!("record: {}", &name[..1])),
            )
            .unwrap();
        }
        let load = |patterns: &[&str]| sources(folder.path(), patterns).load();
        let loaded = load(&["*.yaml", "a.yaml"]).unwrap();
        assert_eq!(loaded.groups.len(), 2);
        assert_eq!(loaded.warnings, Vec::<String>::new());
        assert_eq!(load(&["*.rules"]).unwrap().warnings.len(), 1);
        let missing = load(&["missing.yaml"]).unwrap_err().to_string();
        assert!(missing.contains("missing.yaml cannot be read"), "{missing}");
        let folder_itself = load(&["."]).unwrap_err().to_string();
        assert!(folder_itself.contains("is a folder"), "{folder_itself}");
    }

    #[test]
    fn mistakes_of_all_files_are_reported_with_their_positions() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("a.yaml"),
            GOOD.replace("expr: b", "expr: 'sum('"),
        )
        .unwrap();
        std::fs::write(folder.path().join("b.yaml"), "groups: 1").unwrap();
        let said = sources(folder.path(), &["*.yaml"])
            .load()
            .unwrap_err()
            .to_string();
        for part in [
            "a.yaml: group \"g\", rule 1, \"a\": could not parse expr",
            "b.yaml: the file is not",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn indistinguishable_rules_get_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yaml"] {
            std::fs::write(folder.path().join(name), GOOD).unwrap();
        }
        let warnings = sources(folder.path(), &["*.yaml"]).load().unwrap().warnings;
        assert!(
            warnings[0].contains("2 rules have the name \"a\""),
            "{warnings:?}"
        );
    }
}
