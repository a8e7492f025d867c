//! The position of each cell of the grid, in CSS pixels.

use super::fleet::{Fleet, Group};

/// Maximum number of GPUs of one node per row.
const COLUMNS: usize = 8;
/// Maximum number of blocks that show the names of their nodes.
const NAMED_MAX: usize = 48;
/// Height of a node's name and of a group's heading.
const NAME: i32 = 16;
const HEADING: i32 = 24;
/// Margin for rings at the edges.
const MARGIN: i32 = 4;

/// Cell size and gap by the number of cells: 10,000 cells fit a screen of 1440 pixels.
const SIZES: [(usize, Size); 5] = [
    (
        64,
        Size {
            width: 52,
            height: 24,
            gap: 2,
        },
    ),
    (
        256,
        Size {
            width: 22,
            height: 18,
            gap: 2,
        },
    ),
    (
        1_024,
        Size {
            width: 14,
            height: 12,
            gap: 1,
        },
    ),
    (
        4_096,
        Size {
            width: 10,
            height: 9,
            gap: 1,
        },
    ),
    (
        usize::MAX,
        Size {
            width: 7,
            height: 7,
            gap: 1,
        },
    ),
];

/// The size of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size {
    pub(super) width: i32,
    pub(super) height: i32,
    pub(super) gap: i32,
}

/// A text in the picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) x: i32,
    pub(super) y: i32,
    /// Whether the text is the heading of a group.
    pub(super) heads: bool,
}

/// The layout of the whole picture.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) size: Size,
    pub(super) width: i32,
    pub(super) height: i32,
    /// Left and upper edge of each cell.
    pub(super) places: Vec<(i32, i32)>,
    pub(super) names: Vec<Name>,
}

/// Direction of an arrow key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Left,
    Right,
    Up,
    Down,
}

impl Layout {
    /// Lays out a fleet for this width in pixels.
    pub(super) fn of(fleet: &Fleet, width: i32) -> Self {
        let cells = fleet.cells.len();
        let sizes = SIZES.iter().find(|(up_to, _)| cells <= *up_to);
        let size = sizes.map_or(SIZES[4].1, |(_, size)| *size);
        let blocks: usize = fleet.groups.iter().map(|group| group.blocks.len()).sum();
        let mut layout = Self {
            size,
            width,
            height: MARGIN,
            places: Vec::with_capacity(cells),
            names: vec![],
        };
        for group in &fleet.groups {
            layout.add(group, blocks <= NAMED_MAX);
        }
        layout.height += MARGIN;
        layout
    }

    /// Returns true if cells are large enough for text.
    pub(super) fn has_texts(&self) -> bool {
        self.size == SIZES[0].1
    }

    fn add(&mut self, group: &Group, named: bool) {
        if !group.title.is_empty() {
            let y = self.height + HEADING / 2;
            self.names.push(Name {
                text: group.title.clone(),
                x: MARGIN,
                y,
                heads: true,
            });
            self.height += HEADING;
        }
        let Size { width, height, gap } = self.size;
        let fitting = ((self.width - 2 * MARGIN + gap) / (width + gap)).max(1);
        let fitting = usize::try_from(fitting).unwrap_or(1).min(COLUMNS);
        let between = if named { 3 * MARGIN } else { MARGIN };
        let (mut x, mut deepest) = (MARGIN, 0);
        for block in &group.blocks {
            let columns = block.cells.len().min(fitting);
            let block_width = pixels(columns) * (width + gap) - gap;
            if x > MARGIN && x + block_width > self.width - MARGIN {
                self.height += deepest;
                (x, deepest) = (MARGIN, 0);
            }
            let mut y = self.height;
            if named {
                self.names.push(Name {
                    text: block.node.clone(),
                    x,
                    y: y + NAME / 2,
                    heads: false,
                });
                y += NAME;
            }
            for n in 0..block.cells.len() {
                let (row, column) = (pixels(n / columns), pixels(n % columns));
                self.places
                    .push((x + column * (width + gap), y + row * (height + gap)));
            }
            let rows = pixels(block.cells.len().div_ceil(columns));
            let below = if named { 2 * MARGIN } else { 0 };
            deepest = deepest.max(y - self.height + rows * (height + gap) + below);
            x += block_width + between;
        }
        self.height += deepest;
    }

    /// Returns the cell at a point.
    pub(super) fn at(&self, x: i32, y: i32) -> Option<usize> {
        let Size { width, height, gap } = self.size;
        let hit = |(left, top): &(i32, i32)| {
            (*left..left + width + gap).contains(&x) && (*top..top + height + gap).contains(&y)
        };
        self.places.iter().position(hit)
    }

    /// Returns the cell that an arrow key selects: the nearest cell of the next row, or the next cell of the same row.
    pub(super) fn step(&self, from: usize, direction: Direction) -> usize {
        let Some((x, y)) = self.places.get(from).copied() else {
            return 0;
        };
        let last = self.places.len().saturating_sub(1);
        let ahead = |top: i32| match direction {
            Direction::Up => top < y,
            _ => top > y,
        };
        match direction {
            Direction::Left => from.saturating_sub(1),
            Direction::Right => (from + 1).min(last),
            Direction::Up | Direction::Down => {
                let places = self.places.iter().enumerate();
                let nearest = places
                    .filter(|(_, (_, top))| ahead(*top))
                    .min_by_key(|(_, (left, top))| ((top - y).abs(), (left - x).abs()));
                nearest.map_or(from, |(cell, _)| cell)
            }
        }
    }
}

/// Converts a count to a number of pixels.
fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::fleet::Grouping;
    use super::super::fleet::tests::nodes;
    use super::*;

    fn layout(count: usize, gpus: u32, width: i32) -> Layout {
        Layout::of(
            &Fleet::of(&nodes(count, gpus), &BTreeMap::new(), Grouping::Node),
            width,
        )
    }

    #[test]
    fn ten_thousand_gpus_fit_a_screen() {
        let layout = layout(1_250, 8, 1_408);
        assert_eq!(layout.places.len(), 10_000);
        assert!(layout.height <= 640, "{} pixels high", layout.height);
        assert!(layout.names.is_empty());
        let right = layout.places.iter().map(|(x, _)| x + layout.size.width).max();
        assert!(right <= Some(1_408));
    }

    #[test]
    fn no_two_cells_overlap() {
        for (count, gpus, width) in [(1, 8, 358), (8, 8, 1_248), (30, 16, 358), (100, 4, 1_000)] {
            let layout = layout(count, gpus, width);
            for (cell, (x, y)) in layout.places.iter().enumerate() {
                let right_bottom = (x + layout.size.width - 1, y + layout.size.height - 1);
                assert_eq!(layout.at(*x, *y), Some(cell));
                assert_eq!(layout.at(right_bottom.0, right_bottom.1), Some(cell));
                assert!(x + layout.size.width <= width, "{count} nodes in {width} pixels");
                assert!(y + layout.size.height <= layout.height);
            }
        }
    }

    #[test]
    fn arrows_lead_to_neighbours() {
        let layout = layout(4, 8, 500);
        // One node per row of 8 cells.
        for (from, direction, to) in [
            (0, Direction::Left, 0),
            (0, Direction::Right, 1),
            (3, Direction::Down, 11),
            (11, Direction::Up, 3),
            (31, Direction::Right, 31),
            (31, Direction::Down, 31),
            (99, Direction::Down, 0),
        ] {
            assert_eq!(layout.step(from, direction), to, "{direction:?} from {from}");
        }
    }

    #[test]
    fn few_gpus_have_texts_and_names() {
        let few = layout(8, 8, 1_248);
        assert!(few.has_texts());
        assert_eq!(few.names.len(), 8);
        assert!(!layout(100, 8, 1_248).has_texts());
    }
}
