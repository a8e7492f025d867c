//! The link to the comparison of the chosen runs, or of the last two attempts of the chosen run.

use leptos::prelude::*;

use super::all::AllRuns;
use super::choices::Choices;
use crate::language::tr;
use crate::ui::dynamic_view;

/// The link, or a disabled button that says what to choose.
#[component]
pub(super) fn CompareButton(all: AllRuns, choices: Choices) -> impl IntoView {
    let target = Memo::new(move |_| {
        let chosen = choices.chosen();
        let attempts = match chosen.as_slice() {
            [only] => {
                let rows = all.list.rows();
                let row = rows.into_iter().find(|row| row.key == *only);
                row.map_or(0, |row| row.get().attempt.0)
            }
            _ => 0,
        };
        target(&chosen, attempts)
    });
    dynamic_view(move || {
        match target.get() {
        Some((href, name)) => {
            view! { <a class="btn btn-sm btn-primary" href=href data-testid="compare">{name}</a> }.into_any()
        }
        None => view! {
            <button class="btn btn-sm" disabled title=tr("Choose two runs, or one run with two attempts")>{tr("Compare")}</button>
        }
        .into_any(),
    }
    })
}

/// Returns address and name of the link. `attempts`: the number of the last attempt if one run is chosen.
fn target(chosen: &[String], attempts: u32) -> Option<(String, &'static str)> {
    match chosen {
        // Ids contain no character that would have to be encoded.
        [a, b] => Some((format!("/runs/compare?a={a}&b={b}"), tr("Compare"))),
        [run] if attempts >= 2 => Some((
            format!("/runs/compare?a={run}@{}&b={run}@{attempts}", attempts - 1),
            tr("Compare attempts"),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::target;

    #[test]
    fn two_runs_or_two_attempts_of_one_run_are_compared() {
        let href = |chosen: &[&str], attempts| {
            let chosen: Vec<String> = chosen.iter().map(|id| (*id).to_owned()).collect();
            target(&chosen, attempts).map(|(href, _)| href)
        };
        assert_eq!(href(&[], 0), None);
        assert_eq!(href(&["x"], 1), None);
        assert_eq!(href(&["x"], 3).as_deref(), Some("/runs/compare?a=x@2&b=x@3"));
        assert_eq!(href(&["x", "y"], 0).as_deref(), Some("/runs/compare?a=x&b=y"));
    }
}
