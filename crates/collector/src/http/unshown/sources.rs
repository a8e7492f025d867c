//! What the sources of the dashboard read: names of fields, and paths of the API.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

/// This file copies each field of an answer by its name, so it says nothing about what a page shows.
const COPIES: &str = "live/message.rs";

/// Names and paths in the sources, without their comments and tests.
pub(super) struct Sources {
    names: BTreeSet<String>,
    /// With `{}` in place of each value.
    paths: BTreeSet<String>,
}

impl Sources {
    pub(super) fn of_folder(folder: &Path) -> Self {
        let (mut texts, mut copies) = (Vec::new(), 0);
        add(folder, &mut texts, &mut copies);
        assert_eq!(copies, 1, "where is {COPIES}?");
        Self::of_texts(&texts)
    }

    pub(super) fn of_texts(texts: &[String]) -> Self {
        let texts: Vec<String> = texts.iter().map(|text| code(text)).collect();
        Self {
            names: texts.iter().flat_map(|text| names(text)).collect(),
            paths: texts.iter().flat_map(|text| paths(text)).collect(),
        }
    }

    /// Returns true if a field with this name is read.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns true if this path is requested, with any method.
    pub(super) fn requests(&self, path: &str) -> bool {
        let path = with_empty_braces(path);
        self.paths.iter().any(|requested| {
            // Two values at the end are an id and the rest of the path.
            let begin = requested.strip_suffix("{}").filter(|begin| begin.ends_with("{}"));
            let rest = begin.and_then(|begin| path.strip_prefix(begin));
            *requested == path || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

fn add(folder: &Path, texts: &mut Vec<String>, copies: &mut u32) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add(&path, texts, copies);
        } else if path.ends_with(COPIES) {
            *copies += 1;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            texts.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the text without comments and tests.
fn code(text: &str) -> String {
    let (text, _tests) = text.split_once("#[cfg(test)]").unwrap_or((text, ""));
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the names of fields in `value.name`, in a pattern such as `Type { name, .. }`, in `read_field(value, "name")`, and in the table of
/// fields of a form: `field(Section::Program, "git.revision", …)`.
fn names(text: &str) -> Vec<String> {
    // Not `..name`, a range; not `.name(` and `.name::<`, a method.
    let access = Regex::new(r"(\.)?\.([a-z_][a-z0-9_]*)\s*(\(|::)?").unwrap();
    let accesses = access
        .captures_iter(text)
        .filter(|found| found.get(1).is_none() && found.get(3).is_none());
    let mut names: Vec<String> = accesses.map(|found| found[2].to_owned()).collect();

    let by_name = Regex::new(r#"field(?:::<[^(]*>)?\([^"()]*"([a-z_][a-z0-9_.]*)""#).unwrap();
    let paths = by_name.captures_iter(text).map(|found| found[1].to_owned());
    for path in paths {
        names.extend(path.split('.').map(str::to_owned));
    }

    // A pattern ends with `..`, or one of `=`, `=>`, `|`, `if` follows it. Anything else in braces builds a value.
    let braces = r"[A-Z]\w*\s*\{([^{}]*)\}[\s)\]]*(?:=>|=[^=]|\|[^|]|if\b)";
    let open_end = r"[A-Z]\w*\s*\{([^{}]*)\.\.\s*,?\s*\}";
    for pattern in [braces, open_end] {
        for found in Regex::new(pattern).unwrap().captures_iter(text) {
            names.extend(found[1].split(',').filter_map(name_in_pattern));
        }
    }
    names
}

/// Returns the name of a field in a pattern: `name`, or `name: pattern`.
fn name_in_pattern(field: &str) -> Option<String> {
    let name = field.split(':').next()?.trim();
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    (!name.is_empty() && name.chars().all(is_name)).then(|| name.to_owned())
}

/// Returns the paths of the API, without their queries.
fn paths(text: &str) -> Vec<String> {
    let path = Regex::new(r#""(/api/[^"?]*)"#).unwrap();
    let paths = path.captures_iter(text);
    paths.map(|found| with_empty_braces(&found[1])).collect()
}

fn with_empty_braces(path: &str) -> String {
    let braces = Regex::new(r"\{[^}]*\}").unwrap();
    braces.replace_all(path, "{}").into_owned()
}

#[test]
fn names_are_found_where_a_field_is_read() {
    let source = r#"
        // comment.commented
        let a = run.attempts[0].cause.clone();
        let View { window, marks: drawn, .. } = view;
        match message { Past { start_ms, end_ms } => (0..count), Frame { times_ms, .. } => read_field(&v, "why")?, _ => {} }
        json::read_field::<Vec<Group>>(&answer, "groups");
        rare_field(Section::Program, "git.revision", Kind::Text),
        Query { made_ms: 1, built }
        #[cfg(test)]
        mod tests { fn test() { x.tested } }
    "#;
    let sources = Sources::of_texts(&[source.to_owned()]);
    let expected = [
        "attempts", "cause", "end_ms", "git", "groups", "marks", "revision", "start_ms", "times_ms", "why",
        "window",
    ];
    let expected: BTreeSet<String> = expected.map(str::to_owned).into();
    assert_eq!(sources.names, expected);
}

#[test]
fn paths_are_compared_without_values_and_queries() {
    let source = r#"
        get("/api/runs?limit=9");
        format!("/api/runs/{id}/logs?{}&offset={offset}");
        format!("/api/diagnoses/{id}{what}")
    "#;
    let sources = Sources::of_texts(&[source.to_owned()]);
    for (path, expected) in [
        ("/api/runs", true),
        ("/api/runs/{id}", false),
        ("/api/runs/{id}/logs", true),
        ("/api/runs/{id}/logs/search", false),
        ("/api/diagnoses/{id}", true),
        ("/api/diagnoses/{id}/act", true),
        ("/api/diagnoses", false),
        ("/api/tokens", false),
    ] {
        assert_eq!(sources.requests(path), expected, "{path}");
    }
}
