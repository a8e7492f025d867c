//! `web/public/zh.json`: one Chinese text for each English text in the sources of the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const TABLE: &str = "web/public/zh.json";

/// A translated text is the first argument of one of these.
const CALLS: [&str; 5] = ["tr(", "tr_with(", "tr_parts(", "marked(", "lockstepText("];
/// The text is cut at its placeholders, so a translation must keep their order.
const ORDERED: &str = "tr_parts(";

/// Texts of views that are the same in each language.
const VERBATIM: [&str; 11] = [
    "Ctrl K",
    "Lockstep",
    "TOML",
    "UTC",
    "admin.token",
    "g",
    "https://…",
    "lockstep run submit --recipe ddp",
    "lockstep token create",
    "p",
    "⌘ K",
];
/// What a text of a view follows.
const PLACES: [&str; 9] = [
    ">",
    " aria-label=",
    " empty=",
    " hint=",
    " label=",
    " leave=",
    " placeholder=",
    " text=",
    " title=",
];

#[test]
fn each_text_of_the_dashboard_has_a_translation() {
    let sources = sources();
    let used: BTreeSet<String> = CALLS
        .iter()
        .flat_map(|call| {
            sources
                .iter()
                .flat_map(move |source| first_arguments(source, call))
        })
        .collect();
    let table = table();
    let missing: Vec<_> = used.iter().filter(|text| !table.contains_key(*text)).collect();
    assert!(missing.is_empty(), "not in {TABLE}: {missing:#?}");
    let unused: Vec<_> = table.keys().filter(|text| !used.contains(*text)).collect();
    assert!(
        unused.is_empty(),
        "in {TABLE}, but not in the dashboard: {unused:#?}"
    );
}

#[test]
fn translations_have_the_placeholders_of_their_texts() {
    let sources = sources();
    let ordered: BTreeSet<String> = sources
        .iter()
        .flat_map(|source| first_arguments(source, ORDERED))
        .collect();
    for (english, chinese) in table() {
        assert!(!chinese.trim().is_empty(), "no translation of {english:?}");
        let (mut expected, mut found) = (placeholders(&english), placeholders(&chinese));
        if !ordered.contains(&english) {
            expected.sort_unstable();
            found.sort_unstable();
        }
        assert_eq!(found, expected, "{english:?} is {chinese:?}");
    }
}

#[test]
fn views_have_no_text_in_one_language() {
    let mut found = Vec::new();
    for source in sources() {
        for place in PLACES {
            let texts = first_arguments(&source, place).into_iter();
            found.extend(
                texts.filter(|text| {
                    text.chars().any(char::is_alphabetic) && !VERBATIM.contains(&text.as_str())
                }),
            );
        }
    }
    assert!(found.is_empty(), "without tr(): {found:#?}");
}

fn table() -> BTreeMap<String, String> {
    serde_json::from_str(&super::read(TABLE)).unwrap()
}

/// Returns the sources of the dashboard without their tests.
fn sources() -> Vec<String> {
    let mut sources = Vec::new();
    add_sources(&super::path("web/src"), &mut sources);
    add_sources(&super::path("web/public"), &mut sources);
    sources
}

fn add_sources(folder: &Path, sources: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            add_sources(&path, sources);
        } else if matches!(ending, Some("rs" | "js")) {
            let source = fs::read_to_string(&path).unwrap();
            let (source, _tests) = source.split_once("#[cfg(test)]").unwrap_or((&source, ""));
            sources.push(source.to_owned());
        }
    }
}

/// Returns the string literals that follow `call`, which is not the end of a longer name or of the arrow of a match.
fn first_arguments(source: &str, call: &str) -> Vec<String> {
    let is_name = call.starts_with(char::is_alphabetic);
    let follows_name =
        |at: usize| source[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let calls = source.match_indices(call);
    calls
        .filter(|(at, _)| !is_name || !follows_name(*at))
        .filter(|(at, _)| !(call == ">" && source[..*at].ends_with('=')))
        .filter_map(|(at, _)| source[at + call.len()..].trim_start().strip_prefix('"'))
        .map(literal)
        .collect()
}

/// Returns the text of a string literal up to its closing quote.
fn literal(source: &str) -> String {
    let mut text = String::new();
    let mut letters = source.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return text,
            '\\' => match letters.next() {
                Some(quoted @ ('"' | '\\')) => text.push(quoted),
                other => panic!("{text:?} has the unknown escape {other:?}"),
            },
            _ => text.push(letter),
        }
    }
    panic!("{text:?} does not end")
}

/// Returns the names between braces, in their order.
fn placeholders(text: &str) -> Vec<&str> {
    let parts = text.split('{').skip(1);
    parts.map(|part| part.split_once('}').unwrap().0).collect()
}

#[test]
fn texts_are_found_where_they_are_used() {
    let source = r#"view! { <p title=tr("a \"b\"")>{tr_with(
        "{n} of c", &[])}</p> <b>"d"</b> } str("e") tr(name) m => "f","#;
    assert_eq!(first_arguments(source, "tr("), ["a \"b\""]);
    assert_eq!(first_arguments(source, "tr_with("), ["{n} of c"]);
    assert_eq!(first_arguments(source, ">"), ["d"]);
    assert_eq!(placeholders("{n} of c"), ["n"]);
}
