//! The cell selected with mouse or keyboard, the text about it, and what it opens.

use domain::metric::Unit;
use domain::time::TimestampMs;
use leptos::ev::KeyboardEvent;
use leptos::prelude::*;

use super::RankMapState;
use super::layout::{Cell, Layout};
use super::matrix::Matrix;
use crate::language::{tr, tr_with};
use crate::route::Route;
use crate::ui::{clock, fixed, show, text};

/// The selection. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Pointer {
    map: RankMapState,
    route: Route,
    /// The time and the row, so that the selection stays on its value while the period moves on.
    pointed: RwSignal<Option<(TimestampMs, usize)>>,
    /// The text about the cell; empty if no cell is selected.
    pub(super) words: Signal<String>,
}

impl Pointer {
    /// Selects nothing.
    pub(super) fn new(map: RankMapState) -> Self {
        let pointed = RwSignal::new(None::<(TimestampMs, usize)>);
        let words = text(move || {
            map.version.track();
            if !map.answered.get() {
                return String::new();
            }
            let said = |(at_ms, row)| {
                map.matrix.with_value(|matrix| {
                    let cell = cell_at(matrix, at_ms, row)?;
                    map.means
                        .with_value(|means| sentence(matrix, means, cell, &clock(at_ms)))
                })
            };
            pointed.get().and_then(said).unwrap_or_default()
        });
        Self {
            map,
            route: expect_context::<Route>(),
            pointed,
            words,
        }
    }

    /// Returns the selected cell; tracked.
    pub(super) fn cell(self) -> Option<Cell> {
        let (at_ms, row) = self.pointed.get()?;
        self.map.matrix.with_value(|matrix| cell_at(matrix, at_ms, row))
    }

    /// Handles a mouse move.
    pub(super) fn over(self, x: i32, y: i32, width: i32) {
        let pointed = self.map.matrix.with_value(|matrix| {
            let cell = layout(matrix).at(x, y, width)?;
            Some((matrix.moments().get(cell.column)?.at_ms, cell.row))
        });
        self.select(pointed);
    }

    /// Handles that the mouse left the canvas.
    pub(super) fn leave(self) {
        self.pointed.set(None);
    }

    /// Handles a click or touch: selects the cell; opens the log of its rank if the cell was already selected.
    pub(super) fn pressed(self, x: i32, y: i32, width: i32) {
        let before = self.pointed.get_untracked();
        self.over(x, y, width);
        if before.is_some() && before == self.pointed.get_untracked() {
            self.open();
        }
    }

    /// Handles keys: arrow keys select the next cell, Enter opens the log of its rank.
    pub(super) fn key(self, event: &KeyboardEvent) {
        let (right, down) = match event.key().as_str() {
            "ArrowLeft" => (-1, 0),
            "ArrowRight" => (1, 0),
            "ArrowUp" => (0, -1),
            "ArrowDown" => (0, 1),
            "Enter" => return self.open(),
            _ => return,
        };
        event.prevent_default();
        let from = untrack(|| self.cell());
        let next = self.map.matrix.with_value(|matrix| {
            let cell = step(layout(matrix), from, right, down)?;
            Some((matrix.moments().get(cell.column)?.at_ms, cell.row))
        });
        self.select(next);
    }

    fn select(self, pointed: Option<(TimestampMs, usize)>) {
        if pointed.is_some() && !self.map.needs_means.get_untracked() {
            self.map.needs_means.set(true);
        }
        if pointed != self.pointed.get_untracked() {
            self.pointed.set(pointed);
        }
    }

    fn open(self) {
        let Some(cell) = untrack(|| self.cell()) else {
            return;
        };
        let found = self.map.matrix.with_value(|matrix| {
            let (rank, _) = matrix.shown(cell.column, layout(matrix).ranks_of(cell.row))?;
            Some((rank, matrix.moments().get(cell.column)?.at_ms))
        });
        if let Some((rank, at_ms)) = found {
            self.route.go(&self.map.log_of(rank, at_ms));
        }
    }
}

fn layout(matrix: &Matrix) -> Layout {
    Layout::of(matrix.ranks(), matrix.moments().len())
}

fn cell_at(matrix: &Matrix, at_ms: TimestampMs, row: usize) -> Option<Cell> {
    let column = matrix.column(at_ms)?;
    (row < layout(matrix).rows).then_some(Cell { column, row })
}

/// Returns the neighbour of a cell. Without a cell, the newest value of the first rank.
fn step(layout: Layout, from: Option<Cell>, right: isize, down: isize) -> Option<Cell> {
    let (last_column, last_row) = (layout.columns.checked_sub(1)?, layout.rows.checked_sub(1)?);
    let next = |at: usize, by: isize, last: usize| at.saturating_add_signed(by).min(last);
    Some(match from {
        Some(cell) => Cell {
            column: next(cell.column, right, last_column),
            row: next(cell.row, down, last_row),
        },
        None => Cell {
            column: last_column,
            row: 0,
        },
    })
}

/// Returns `rank 17 · 03:12:40 · step 12400 · worst 512.0 ms · mean 430.0 ms · 101.0 ms above the median of the ranks`, without the mean if it
/// is unknown.
fn sentence(matrix: &Matrix, means: &Matrix, cell: Cell, time: &str) -> Option<String> {
    let ranks = layout(matrix).ranks_of(cell.row);
    let (rank, value) = matrix.shown(cell.column, ranks.clone())?;
    let moment = matrix.moments().get(cell.column)?;
    let mut parts = Vec::new();
    match matrix.row(ranks)? {
        (first, last) if first != last => parts.push(tr_with(
            "ranks {first} to {last}, most different: rank {rank}",
            &[("first", &first), ("last", &last), ("rank", &rank)],
        )),
        _ => parts.push(tr_with("rank {rank}", &[("rank", &rank)])),
    }
    parts.push(time.to_owned());
    if !moment.step.is_nan() {
        let step = fixed(moment.step, 0);
        parts.push(tr_with("step {step}", &[("step", &step)]));
    }
    if value.is_nan() {
        parts.push(tr("not measured").to_owned());
    } else {
        parts.push(tr_with(
            "worst {value}",
            &[("value", &show(value, Unit::Seconds))],
        ));
        if let Some(mean) = means.value(rank, moment.at_ms) {
            parts.push(tr_with("mean {value}", &[("value", &show(mean, Unit::Seconds))]));
        }
        parts.extend(compared(value - moment.median));
    }
    Some(parts.join(" · "))
}

/// Returns the difference to the median as text; nothing if there is no median.
fn compared(difference: f64) -> Option<String> {
    let size = show(difference.abs(), Unit::Seconds);
    let words = if difference < 0.0 {
        tr_with("{size} below the median of the ranks", &[("size", &size)])
    } else {
        tr_with("{size} above the median of the ranks", &[("size", &size)])
    };
    (!difference.is_nan()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::super::matrix::tests::{of_run, rank};
    use super::super::measure::{STEP, TYPICAL};
    use super::*;

    #[test]
    fn a_cell_is_described_with_its_step_and_its_peers() {
        let mut matrix = Matrix::default();
        let values = [Some(0.4), Some(0.4), Some(0.5)];
        let ranks = (0..).zip(values).map(|(n, value)| rank(n, "a", &[None, value]));
        let of_run = [
            of_run(TYPICAL, &[None, Some(0.4)]),
            of_run(STEP, &[None, Some(1_200.0)]),
        ];
        let frame: Vec<_> = ranks.chain(of_run).collect();
        matrix.take(true, &[1_000, 2_000], &frame);
        let mut means = Matrix::default();
        means.take(true, &[1_000, 2_000], &[rank(2, "a", &[None, Some(0.45)])]);
        let said =
            |column, row| sentence(&matrix, &means, Cell { column, row }, "03:12:40").unwrap_or_default();
        assert_eq!(
            said(1, 2),
            "rank 2 · 03:12:40 · step 1200 · worst 500.0 ms · mean 450.0 ms · 100.0 ms above the median of the ranks"
        );
        assert_eq!(
            said(1, 0),
            "rank 0 · 03:12:40 · step 1200 · worst 400.0 ms · 0.0 ms above the median of the ranks",
            "its mean is not known"
        );
        assert_eq!(said(0, 0), "rank 0 · 03:12:40 · not measured");
        assert_eq!(said(9, 0), "");
        assert_eq!(cell_at(&matrix, 2_000, 2), Some(Cell { column: 1, row: 2 }));
        assert_eq!(cell_at(&matrix, 2_000, 3), None);
        assert_eq!(cell_at(&matrix, 9_000, 0), None);
    }

    #[test]
    fn arrows_lead_to_neighbours_and_begin_at_the_newest_value() {
        let layout = Layout::of(4, 10);
        let cell = |column, row| Cell { column, row };
        for (from, right, down, to) in [
            (None, 1, 0, cell(9, 0)),
            (Some(cell(9, 0)), 1, 0, cell(9, 0)),
            (Some(cell(9, 0)), -1, 0, cell(8, 0)),
            (Some(cell(0, 0)), -1, -1, cell(0, 0)),
            (Some(cell(5, 2)), 0, 1, cell(5, 3)),
            (Some(cell(5, 3)), 0, 1, cell(5, 3)),
        ] {
            assert_eq!(step(layout, from, right, down), Some(to), "{from:?}");
        }
        assert_eq!(step(Layout::of(0, 0), None, 0, 1), None);
    }
}
