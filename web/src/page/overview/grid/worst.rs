//! The grid as a table: the GPUs that differ most from their peers.

use leptos::prelude::*;

use super::Grid;
use super::measure::{Measure, Shows};
use super::picture::Picture;
use crate::language::tr;
use crate::ui::{dynamic_view, highest_first, show, text};

/// Maximum number of rows.
const ROWS_MAX: usize = 50;

/// The table. Values change in place; rows keep their order until the user sorts again.
#[component]
pub(super) fn Worst(grid: Grid) -> impl IntoView {
    let sorted = RwSignal::new(0_u32);
    // True when the first values arrive after a choice or after GPUs were added or removed.
    let ready = Memo::new(move |_| {
        grid.version.track();
        grid.picture.with_value(Picture::generation)
    });
    let order = Memo::new(move |_| {
        sorted.track();
        ready.track();
        let shows = grid.choices.shows();
        let mut order = grid.picture.with_value(|picture| order(picture, shows));
        order.truncate(ROWS_MAX);
        order
    });
    let rows = dynamic_view(move || {
        let _generation = ready.get();
        let rows: Vec<AnyView> = order.get().into_iter().map(|cell| row(grid, cell)).collect();
        rows.into_any()
    });
    view! {
        <div class="overflow-x-auto">
            <table class="rows narrow" data-testid="gpu-table">
                <thead>
                    <tr><th>{tr("GPU")}</th><th class="number">{tr("Value")}</th><th>{tr("Compared with run median")}</th><th>{tr("Run")}</th></tr>
                </thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
        <button class="off-wall btn btn-sm mt-1" on:click=move |_| sorted.update(|times| *times += 1)>{tr("Sort again")}</button>
    }
}

fn row(grid: Grid, cell: usize) -> AnyView {
    let follow = move |say: fn(&Picture, &Measure, usize) -> String| {
        text(move || {
            grid.version.track();
            let measure = grid.choices.measure();
            grid.picture.with_value(|picture| say(picture, measure, cell))
        })
    };
    let name = follow(|picture, _, cell| {
        let gpu = picture.fleet.cells.get(cell);
        gpu.map_or_else(String::new, |gpu| format!("{} GPU {}", gpu.node, gpu.gpu))
    });
    let class = follow(|picture, _, cell| {
        let class = if picture.is_culprit(cell) {
            "state state-critical"
        } else {
            ""
        };
        class.to_owned()
    });
    let run = grid
        .picture
        .with_value(|picture| picture.fleet.cells.get(cell).and_then(|gpu| gpu.run.clone()));
    view! {
        <tr>
            <td><span class=class>{name}</span></td>
            <td class="number">{follow(value)}</td>
            <td>{follow(difference)}</td>
            <td>{run.map(|run| view! { <a class="link" href=format!("/runs/{run}")>{run.clone()}</a> })}</td>
        </tr>
    }
    .into_any()
}

fn value(picture: &Picture, measure: &Measure, cell: usize) -> String {
    let is_down = picture.fleet.cells.get(cell).is_some_and(|gpu| gpu.down);
    match picture.values.get(cell) {
        _ if is_down => tr("node down").to_owned(),
        Some(value) if !value.is_nan() => show(*value, measure.unit),
        _ => tr("not measured").to_owned(),
    }
}

fn difference(picture: &Picture, measure: &Measure, cell: usize) -> String {
    match picture.differences.get(cell) {
        Some(difference) if !difference.is_nan() => measure.difference(*difference),
        _ => "–".to_owned(),
    }
}

/// Returns the order of all cells: first those that a diagnosis names, then by difference, or by value if values are shown.
fn order(picture: &Picture, shows: Shows) -> Vec<usize> {
    let score = |cell: usize| match (picture.is_culprit(cell), shows) {
        (true, _) => f64::INFINITY,
        (false, Shows::Difference) => picture.differences[cell].abs(),
        (false, Shows::Value) => picture.values[cell],
    };
    let scores: Vec<f64> = (0..picture.fleet.cells.len()).map(score).collect();
    highest_first(&scores)
}

#[cfg(test)]
mod tests {
    use super::super::fleet::Grouping;
    use super::super::fleet::tests::{culprit, nodes};
    use super::super::samples::tests::frame;
    use super::*;

    #[test]
    fn the_named_come_first_then_the_most_different_and_the_unmeasured_last() {
        let mut picture = Picture::default();
        picture.arrange(nodes(1, 5), Grouping::Node);
        picture.mark(vec![culprit(0)]);
        picture.take(frame(&[(0, 0.9), (1, 0.85), (3, 0.2), (4, 0.92)]));
        assert_eq!(order(&picture, Shows::Difference), [0, 3, 4, 1, 2]);
        assert_eq!(order(&picture, Shows::Value), [0, 4, 1, 3, 2]);
    }
}
