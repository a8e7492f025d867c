//! Selects rows of a table by a variable with names, separated by commas; all rows if it is empty.

/// Returns a predicate that is true for selected rows. Panics if a name is not in `names`.
pub(crate) fn selection(variable: &str, kind: &str, names: &[&str]) -> impl Fn(&str) -> bool + use<> {
    let only = std::env::var(variable).unwrap_or_default();
    let only: Vec<String> = only
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    let unknown = only.iter().find(|name| !names.contains(&name.as_str()));
    assert!(
        unknown.is_none(),
        "there is no {kind} {unknown:?}; there are: {}",
        names.join(", ")
    );
    move |name| only.is_empty() || only.iter().any(|one| one == name)
}
