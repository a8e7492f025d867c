//! The choices of the user. The address contains all of them.

use leptos::prelude::*;

use super::arrange::{Arrangement, Column, Grouping, Sort};
use crate::route::Route;

/// The parameters of the address. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Choices {
    route: Route,
    pub(super) words: Memo<Option<String>>,
    pub(super) state: Memo<Option<String>>,
    pub(super) owner: Memo<Option<String>>,
    pub(super) label: Memo<Option<String>>,
    pub(super) group: Memo<Option<String>>,
    sort: Memo<Option<String>>,
    /// The runs chosen for the comparison, in the order of the choice.
    pub(super) chosen: [Memo<Option<String>>; 2],
}

/// The names of the parameters with the chosen runs.
const CHOSEN: [&str; 2] = ["a", "b"];

impl Choices {
    /// Reads the address.
    pub(super) fn of() -> Self {
        let route = expect_context::<Route>();
        Self {
            route,
            words: route.param("q"),
            state: route.param("state"),
            owner: route.param("owner"),
            label: route.param("label"),
            group: route.param("group"),
            sort: route.param("sort"),
            chosen: CHOSEN.map(|name| route.param(name)),
        }
    }

    /// Returns filter, order and grouping; tracked.
    pub(super) fn arrangement(self) -> Arrangement {
        let of = |param: Memo<Option<String>>| param.get().unwrap_or_default();
        Arrangement {
            words: of(self.words),
            state: of(self.state),
            owner: of(self.owner),
            label: of(self.label),
            sort: self.sort(),
            grouping: Grouping::read(&of(self.group)),
        }
    }

    /// Returns the order; tracked.
    pub(super) fn sort(self) -> Sort {
        Sort::read(&self.sort.get().unwrap_or_default())
    }

    /// Sets a parameter; an empty value removes it.
    pub(super) fn set(self, name: &str, value: &str) {
        self.route
            .set_param(name, Some(value).filter(|value| !value.is_empty()));
    }

    /// Handles a click on a column.
    pub(super) fn sort_by(self, column: Column) {
        let sort = untrack(|| self.sort()).clicked(column);
        let written = Some(sort.written()).filter(|_| sort != Sort::default());
        self.set("sort", &written.unwrap_or_default());
    }

    /// Returns the ids of the runs chosen for the comparison; tracked.
    pub(super) fn chosen(self) -> Vec<String> {
        self.chosen.iter().filter_map(|param| param.get()).collect()
    }

    /// Chooses a run for the comparison, or takes the choice back.
    pub(super) fn toggle(self, id: &str) {
        let chosen = toggled(untrack(|| self.chosen()), id);
        for (place, name) in CHOSEN.into_iter().enumerate() {
            self.set(name, chosen.get(place).map_or("", String::as_str));
        }
    }
}

/// Returns the chosen runs after a click on one: without it, or with it if there is room.
fn toggled(mut chosen: Vec<String>, id: &str) -> Vec<String> {
    if chosen.iter().any(|one| one == id) {
        chosen.retain(|one| one != id);
    } else if chosen.len() < CHOSEN.len() {
        chosen.push(id.to_owned());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::toggled;

    #[test]
    fn two_runs_are_chosen_and_each_can_be_taken_back() {
        let one = toggled(vec![], "a");
        let two = toggled(one, "b");
        assert_eq!(two, ["a", "b"]);
        assert_eq!(toggled(two.clone(), "c"), ["a", "b"], "there is no room");
        assert_eq!(toggled(two, "a"), ["b"]);
    }
}
