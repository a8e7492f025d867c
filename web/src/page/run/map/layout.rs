//! The size of the map, and the cell at a point.

/// Maximum number of columns of a period.
const COLUMNS: i64 = 300;
/// Samples arrive once per second, so a smaller step gives no more values.
const STEP_MS_MIN: i64 = 1_000;
/// The height that rows share, and their minimum and maximum height in pixels.
const HEIGHT: usize = 360;
const ROW_HEIGHTS: (usize, usize) = (1, 18);
/// Maximum number of rows. If there are more ranks, a row stands for several of them.
const ROWS_MAX: usize = 512;

/// Returns the distance of columns in milliseconds, a multiple of one second.
pub(super) fn step_ms(range_ms: i64) -> i64 {
    let seconds = (range_ms / COLUMNS + STEP_MS_MIN - 1) / STEP_MS_MIN;
    seconds.max(1) * STEP_MS_MIN
}

/// The layout of the map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Number of rows.
    pub(super) rows: usize,
    /// Number of ranks of each row; the last row may have fewer.
    pub(super) per_row: usize,
    /// Number of columns.
    pub(super) columns: usize,
    /// Height in pixels.
    pub(super) height: i32,
}

/// A cell: its column from the left and its row from the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) column: usize,
    pub(super) row: usize,
}

impl Layout {
    /// Lays out this number of ranks and columns.
    pub(super) fn of(ranks: usize, columns: usize) -> Self {
        let per_row = ranks.div_ceil(ROWS_MAX).max(1);
        let rows = ranks.div_ceil(per_row);
        let (low, high) = ROW_HEIGHTS;
        let row_height = (HEIGHT / rows.max(1)).clamp(low, high);
        Self {
            rows,
            per_row,
            columns,
            height: i32::try_from(rows * row_height).unwrap_or(i32::MAX),
        }
    }

    /// Returns the cell at a point of a map with this width.
    pub(super) fn at(self, x: i32, y: i32, width: i32) -> Option<Cell> {
        Some(Cell {
            column: place(x, width, self.columns)?,
            row: place(y, self.height, self.rows)?,
        })
    }

    /// Returns the positions of a row's ranks in the list of ranks.
    pub(super) fn ranks_of(self, row: usize) -> std::ops::Range<usize> {
        row * self.per_row..(row + 1) * self.per_row
    }
}

/// Returns which of `count` equal parts of `length` pixels contains a pixel.
fn place(at: i32, length: i32, count: usize) -> Option<usize> {
    let (at, length) = (usize::try_from(at).ok()?, usize::try_from(length).ok()?);
    (at < length && count > 0).then(|| at * count / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_some_hundred_columns_of_whole_seconds() {
        for (range_ms, expected_ms) in [
            (0, 1_000),
            (300_000, 1_000),
            (600_000, 2_000),
            (3_600_000, 12_000),
            (604_800_000, 2_016_000),
        ] {
            assert_eq!(step_ms(range_ms), expected_ms, "{range_ms}");
        }
    }

    #[test]
    fn many_ranks_share_rows_and_few_have_low_ones() {
        for (ranks, rows, per_row, height) in [
            (0, 0, 1, 0),
            (4, 4, 1, 72),
            (64, 64, 1, 320),
            (512, 512, 1, 512),
            (1_000, 500, 2, 500),
            (1_024, 512, 2, 512),
            (1_025, 342, 3, 342),
        ] {
            let layout = Layout::of(ranks, 300);
            assert_eq!(
                (layout.rows, layout.per_row, layout.height),
                (rows, per_row, height),
                "{ranks}"
            );
        }
    }

    #[test]
    fn each_point_is_in_one_cell() {
        let layout = Layout::of(64, 301);
        let cell = |column, row| Some(Cell { column, row });
        for (x, y, expected) in [
            (0, 0, cell(0, 0)),
            (899, 319, cell(300, 63)),
            (450, 4, cell(150, 0)),
            (450, 5, cell(150, 1)),
            (900, 0, None),
            (0, 320, None),
            (-1, 0, None),
        ] {
            assert_eq!(layout.at(x, y, 900), expected, "{x} {y}");
        }
        assert_eq!(Layout::of(0, 0).at(0, 0, 900), None);
        assert_eq!(Layout::of(1_024, 1).ranks_of(3), 6..8);
    }
}
