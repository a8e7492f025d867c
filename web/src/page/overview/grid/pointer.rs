//! The cell selected with mouse or keyboard, and the text about it.

use leptos::ev::KeyboardEvent;
use leptos::prelude::*;

use super::Grid;
use super::layout::Direction;
use super::measure::Measure;
use super::picture::Picture;
use crate::language::{tr, tr_with};
use crate::route::Route;
use crate::ui::{effect, show, text};

/// The selection. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Pointer {
    grid: Grid,
    route: Route,
    pub(super) pointed: RwSignal<Option<usize>>,
    /// The text about the cell; a hint if no cell is selected.
    pub(super) words: Signal<String>,
}

impl Pointer {
    /// Selects the first GPU of the node that the address names (`sel`), else nothing.
    pub(super) fn new(grid: Grid) -> Self {
        let pointed = RwSignal::new(None);
        let selected = expect_context::<Route>().param("sel");
        effect(move || {
            if let Some(node) = selected.get() {
                grid.gpus.track();
                pointed.set(
                    grid.picture
                        .with_value(|picture| picture.fleet.named(&node, None).first().copied()),
                );
            }
        });
        let words = text(move || {
            grid.version.track();
            let measure = grid.choices.measure();
            let said = |cell| {
                grid.picture
                    .with_value(|picture| sentence(picture, measure, cell))
            };
            pointed.get().and_then(said).unwrap_or_default()
        });
        Self {
            grid,
            route: expect_context::<Route>(),
            pointed,
            words,
        }
    }

    /// Handles a mouse move.
    pub(super) fn over(self, x: i32, y: i32) {
        let cell = self.grid.picture.with_value(|picture| picture.layout.at(x, y));
        if cell != self.pointed.get_untracked() {
            self.pointed.set(cell);
        }
    }

    /// Handles that the mouse left the canvas.
    pub(super) fn leave(self) {
        self.pointed.set(None);
    }

    /// Handles a click or touch: selects the cell; opens its run if the cell was already selected.
    pub(super) fn pressed(self, x: i32, y: i32) {
        let before = self.pointed.get_untracked();
        self.over(x, y);
        if before.is_some() && before == self.pointed.get_untracked() {
            self.open();
        }
    }

    /// Handles keys: arrow keys select the next cell, Enter opens its run.
    pub(super) fn key(self, event: &KeyboardEvent) {
        let direction = match event.key().as_str() {
            "ArrowLeft" => Direction::Left,
            "ArrowRight" => Direction::Right,
            "ArrowUp" => Direction::Up,
            "ArrowDown" => Direction::Down,
            "Enter" => return self.open(),
            _ => return,
        };
        event.prevent_default();
        let next = match self.pointed.get_untracked() {
            Some(cell) => self
                .grid
                .picture
                .with_value(|picture| picture.layout.step(cell, direction)),
            None => 0,
        };
        self.pointed.set(Some(next));
    }

    fn open(self) {
        let Some(cell) = self.pointed.get_untracked() else {
            return;
        };
        let run = self
            .grid
            .picture
            .with_value(|picture| picture.fleet.cells.get(cell)?.run.clone());
        if let Some(run) = run {
            self.route.go(&format!("/runs/{run}"));
        }
    }
}

/// Returns `node-07 GPU 3 · 41.0 % · 38.0 points below its run llama · rack R01`.
fn sentence(picture: &Picture, measure: &Measure, cell: usize) -> Option<String> {
    let gpu = picture.fleet.cells.get(cell)?;
    let mut parts = vec![format!("{} GPU {}", gpu.node, gpu.gpu)];
    let (value, difference) = (*picture.values.get(cell)?, *picture.differences.get(cell)?);
    if gpu.down {
        parts.push(tr("its node is down").to_owned());
    } else if value.is_nan() {
        parts.push(tr("not measured").to_owned());
    } else {
        parts.push(show(value, measure.unit));
    }
    let compared = (!difference.is_nan() && !gpu.down).then(|| measure.difference(difference));
    match (compared, &gpu.run) {
        (Some(difference), Some(run)) => parts.push(tr_with(
            "{difference} the median of its run {run}",
            &[("difference", &difference), ("run", run)],
        )),
        (Some(difference), None) => parts.push(tr_with(
            "{difference} the median of GPUs without a run",
            &[("difference", &difference)],
        )),
        (None, Some(run)) => parts.push(tr_with("its run {run}", &[("run", run)])),
        (None, None) => {}
    }
    if picture.is_culprit(cell) {
        parts.push(tr("named by a diagnosis").to_owned());
    }
    if let Some(rack) = &gpu.rack {
        parts.push(tr_with("rack {rack}", &[("rack", rack)]));
    }
    Some(parts.join(" · "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::fleet::Grouping;
    use super::super::fleet::tests::{culprit, nodes, rank};
    use super::super::measure::measure;
    use super::super::samples::tests::frame;
    use super::*;

    #[test]
    fn a_cell_is_described_with_its_peers() {
        let mut picture = Picture::default();
        let key = |gpu| ("node-0000".to_owned(), gpu);
        let ranks: BTreeMap<_, _> = (0..3).map(|gpu| (key(gpu), rank("llama", gpu))).collect();
        let mut nodes = nodes(1, 5);
        picture.arrange(nodes.clone(), Grouping::Node);
        picture.assign(ranks);
        picture.mark(vec![culprit(1)]);
        picture.take(frame(&[(0, 0.8), (1, 0.41), (2, 0.79), (3, 0.1)]));
        let said = |cell| sentence(&picture, measure(None), cell).unwrap_or_default();
        assert_eq!(
            said(1),
            "node-0000 GPU 1 · 41.0 % · 38.0 points below the median of its run llama · named by a diagnosis"
        );
        assert_eq!(said(3), "node-0000 GPU 3 · 10.0 %");
        assert_eq!(said(4), "node-0000 GPU 4 · not measured");
        assert_eq!(said(9), "");
        nodes[0].rack = Some("R01".to_owned());
        picture.arrange(nodes, Grouping::Rack);
        assert_eq!(
            sentence(&picture, measure(None), 4).as_deref(),
            Some("node-0000 GPU 4 · not measured · rack R01")
        );
    }
}
