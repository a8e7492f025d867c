//! The keys `j` and `k`: they move the focus to the run in the next or the previous row.

use leptos::prelude::*;
use wasm_bindgen::JsCast;
use web_sys::{Element, HtmlElement};

use crate::ui::on_page_key;

/// Selector of the link to the run in each row.
const LINKS: &str = "[data-testid=run-row] > td:nth-child(3) > a";

/// Handles the keys until the current owner is cleaned up.
pub(super) fn handle_row_keys() {
    on_page_key(|key| match key {
        "j" => focus_row(true),
        "k" => focus_row(false),
        _ => false,
    });
}

/// Moves the focus to the next or the previous row. Returns false if there is none.
fn focus_row(is_next: bool) -> bool {
    let Ok(found) = document().query_selector_all(LINKS) else {
        return false;
    };
    let links: Vec<HtmlElement> = (0..found.length())
        .filter_map(|n| found.item(n)?.dyn_into::<HtmlElement>().ok())
        .collect();
    let focused = document().active_element();
    let row = focused.and_then(|focused| row_of(&focused));
    let at = row.and_then(|row| links.iter().position(|link| row_of(link).as_ref() == Some(&row)));
    let link = neighbour(at, is_next).and_then(|row| links.get(row));
    // Fails only for a removed element.
    link.is_some_and(|link| link.focus().is_ok())
}

fn row_of(element: &Element) -> Option<Element> {
    element.closest("tr").ok().flatten()
}

/// Returns the row after or before a row; the first one if no row has the focus. The row after the last one does not exist.
fn neighbour(at: Option<usize>, is_next: bool) -> Option<usize> {
    match (at, is_next) {
        (None, _) => Some(0),
        (Some(at), true) => Some(at + 1),
        (Some(at), false) => at.checked_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::neighbour;

    #[test]
    fn the_first_key_goes_to_the_first_row() {
        for (at, is_next, expected) in [
            (None, true, Some(0)),
            (None, false, Some(0)),
            (Some(0), true, Some(1)),
            (Some(2), false, Some(1)),
            (Some(0), false, None),
        ] {
            assert_eq!(neighbour(at, is_next), expected, "{at:?} {is_next}");
        }
    }
}
