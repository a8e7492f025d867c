//! `docs/diagnoses`: each alert that ships with Lockstep has a page, and `README.md` lists it.

use std::collections::BTreeMap;

use domain::rule::shipped;

const FOLDER: &str = "docs/diagnoses";
const SECTIONS: [&str; 3] = [
    "## How Lockstep detects it",
    "## Why healthy work does not trigger it",
    "## What to do",
];

/// Returns the shipped alerts with their severities.
fn alerts() -> BTreeMap<String, String> {
    shipped::alerts()
        .map(|rule| {
            let severity = rule.labels.get("severity").cloned().unwrap_or_default();
            (rule.name, severity)
        })
        .collect()
}

/// Returns the texts between pairs of backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the rows of the table of all diagnoses: file of the page, its rules, and their severities.
fn rows(readme: &str) -> Vec<(&str, Vec<&str>, Vec<&str>)> {
    let table = readme.split("## All diagnoses").nth(1).unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ["));
    rows.map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let page = cells[1].split_once("](").unwrap().1.trim_end_matches(')');
        (page, quoted(cells[2]), cells[3].split(", ").collect())
    })
    .collect()
}

#[test]
fn each_alert_has_a_page_with_its_severity() {
    let readme = super::read(&format!("{FOLDER}/README.md"));
    let mut documented = BTreeMap::new();
    for (page, rules, severities) in rows(&readme) {
        for (n, rule) in rules.iter().enumerate() {
            let severity = severities.get(n).or(severities.first()).unwrap();
            let before = documented.insert((*rule).to_owned(), (*severity).to_owned());
            assert!(before.is_none(), "{rule} has two pages");
        }
        let text = super::read(&format!("{FOLDER}/{page}"));
        let head = text
            .lines()
            .find(|line| line.starts_with("Rules: "))
            .unwrap_or_default();
        assert_eq!(quoted(head), rules, "{page}: the line `Rules:`");
        for section in SECTIONS {
            assert!(text.contains(section), "{page}: no section {section:?}");
        }
    }
    assert_eq!(documented, alerts());
}

#[test]
fn the_tables_name_rules_that_exist_on_the_page_they_link() {
    let readme = super::read(&format!("{FOLDER}/README.md"));
    let pages: BTreeMap<_, _> = rows(&readme)
        .into_iter()
        .map(|(page, rules, _)| (page, rules))
        .collect();
    let tables = readme.split("## All diagnoses").next().unwrap();
    let mut links = 0;
    for link in tables.split("[`").skip(1) {
        let Some((rule, rest)) = link.split_once("`](") else {
            continue;
        };
        let page = rest.split(')').next().unwrap();
        if let Some(rules) = pages.get(page) {
            assert!(rules.contains(&rule), "{rule} is not on {page}");
            links += 1;
        }
    }
    assert!(links > 20, "the tables have only {links} links to rules");
}
