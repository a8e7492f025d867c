//! The entries of the palette.

use super::fuzzy::score;
use crate::app::keys::PAGES;
use crate::language::{marked, tr};
use crate::ui::{Density, highest_first};

/// Maximum number of entries shown.
const SHOWN_MAX: usize = 12;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) action: EntryAction,
}

/// What an entry does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryAction {
    /// Opens a page.
    Open(String),
    /// Presses the button of the page that has the entry's name.
    Act,
    /// Changes the height of rows.
    Set(Density),
}

/// Returns all entries: pages, then runs (newest first), nodes, rules, actions of the page, and the `other` density.
pub(super) fn all(
    runs: &[String],
    nodes: &[String],
    rules: &[String],
    actions: &[String],
    other: Density,
) -> Vec<Entry> {
    let entry = |kind, name: &str, href| Entry {
        kind,
        name: name.to_owned(),
        action: EntryAction::Open(href),
    };
    let pages = PAGES
        .iter()
        .map(|(_, path, name)| entry(marked("page"), tr(name), (*path).to_owned()));
    let runs = runs
        .iter()
        .map(|run| entry(marked("run"), run, format!("/runs/{run}")));
    let nodes = nodes
        .iter()
        .map(|node| entry(marked("node"), node, format!("/?sel={node}")));
    let rules = rules
        .iter()
        .map(|rule| entry(marked("rule"), rule, format!("/rules?q={rule}")));
    let actions = actions.iter().map(|name| Entry {
        kind: marked("action"),
        name: name.clone(),
        action: EntryAction::Act,
    });
    let density = Entry {
        kind: marked("density"),
        name: tr(other.name()).to_owned(),
        action: EntryAction::Set(other),
    };
    pages
        .chain(runs)
        .chain(nodes)
        .chain(rules)
        .chain(actions)
        .chain([density])
        .collect()
}

/// Returns the best matches for the typed text; matches with the same score keep their order.
pub(super) fn found(entries: &[Entry], typed: &str) -> Vec<Entry> {
    let (mut scores, mut matching) = (Vec::new(), Vec::new());
    for entry in entries {
        let by_name = score(typed, &entry.name);
        let score = by_name.or_else(|| score(typed, &format!("{} {}", entry.kind, entry.name)));
        if let Some(score) = score {
            scores.push(f64::from(score));
            matching.push(entry);
        }
    }
    let best = highest_first(&scores);
    best.into_iter()
        .take(SHOWN_MAX)
        .map(|place| matching[place].clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_found_by_name_or_by_kind() {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let entries = all(
            &texts(&["llama-70b", "vit-l"]),
            &texts(&["node-07"]),
            &texts(&["StragglerRank"]),
            &texts(&["Prune…"]),
            Density::Comfortable,
        );
        let first = |typed: &str| found(&entries, typed).first().map(|entry| entry.action.clone());
        let opens = |href: &str| Some(EntryAction::Open(href.to_owned()));
        assert_eq!(first("llama"), opens("/runs/llama-70b"));
        assert_eq!(first("node 07"), opens("/?sel=node-07"));
        assert_eq!(first("rule stra"), opens("/rules?q=StragglerRank"));
        assert_eq!(first("over"), opens("/"));
        assert_eq!(first("prune"), Some(EntryAction::Act));
        assert_eq!(first("action"), Some(EntryAction::Act));
        assert_eq!(first("comf"), Some(EntryAction::Set(Density::Comfortable)));
        assert_eq!(first("density"), Some(EntryAction::Set(Density::Comfortable)));
        assert_eq!(found(&entries, "").len(), PAGES.len() + 6);
    }
}
