//! The mesh in which a script arranges its ranks: named axes, and for each rank its coordinates. The places of all ranks together are the
//! topology that a page draws.
//!
//! ```text
//!            tensor 0  tensor 1                              a group along `tensor`: a row, 0 and 1
//!  data 0    rank 0    rank 1        two axes, one plane     a group along `data`: a column, 0 and 2
//!  data 1    rank 2    rank 3        more axes, more planes
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ident::Rank;

/// Maximum number of axes; no training uses more.
const AXES_MAX: usize = 8;
/// Maximum length of an axis name, as it is shown.
const NAME_CHARS_MAX: usize = 32;
/// Maximum number of ranks of a mesh; Lockstep runs fewer.
const RANKS_MAX: u64 = 65_536;

/// A rank's position in its mesh, as its probe reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankMesh {
    /// The rank.
    pub rank: Rank,
    /// Names of the axes, outermost first.
    pub axes: Vec<String>,
    /// Number of ranks along each axis.
    pub sizes: Vec<u32>,
    /// The rank's coordinate on each axis.
    pub coordinates: Vec<u32>,
}

impl RankMesh {
    /// Validates what a training process reported. Returns `None` if the numbers do not fit each other; makes the names safe to show.
    #[must_use]
    pub fn checked(mut self) -> Option<Self> {
        let axes = self.sizes.len();
        let ranks = self
            .sizes
            .iter()
            .try_fold(1_u64, |ranks, size| ranks.checked_mul(u64::from(*size)));
        let sound = (1..=AXES_MAX).contains(&axes)
            && self.coordinates.len() == axes
            && ranks.is_some_and(|ranks| (1..=RANKS_MAX).contains(&ranks))
            && self
                .coordinates
                .iter()
                .zip(&self.sizes)
                .all(|(at, size)| at < size);
        let given = std::mem::take(&mut self.axes);
        self.axes = (0..axes).map(|axis| axis_name(given.get(axis), axis)).collect();
        sound.then_some(self)
    }
}

/// Returns the name of an axis without characters that cannot be shown; `axis N` if the script did not name it.
fn axis_name(given: Option<&String>, axis: usize) -> String {
    let shown = |c: &char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let name: String = given.map_or_else(String::new, |name| {
        name.chars().filter(shown).take(NAME_CHARS_MAX).collect()
    });
    if name.trim().is_empty() {
        format!("axis {axis}")
    } else {
        name
    }
}

/// The mesh of an attempt, as far as its ranks have reported it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Mesh {
    /// Names of the axes, outermost first.
    pub axes: Vec<String>,
    /// Number of ranks along each axis.
    pub sizes: Vec<u32>,
    /// The position of each rank, in order of rank.
    pub ranks: Vec<MeshPosition>,
}

/// The position of one rank in the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MeshPosition {
    /// The rank.
    pub rank: Rank,
    /// The rank's coordinate on each axis.
    pub coordinates: Vec<u32>,
}

/// One drawn plane: one row for each position on the first axis, one column for each position on the second. A mesh with one axis is one
/// row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plane {
    /// The positions on the axes beyond the second, as text; empty if there are none.
    pub title: String,
    /// Titles of the rows.
    pub rows: Vec<String>,
    /// Titles of the columns.
    pub columns: Vec<String>,
    /// The ranks, row by row; `None` for a position that no rank has reported.
    pub cells: Vec<Option<Rank>>,
}

impl Mesh {
    /// Adds what a rank reports. If the reported mesh differs from the known one, it replaces the known one, unless it has fewer axes.
    pub fn take(&mut self, told: &RankMesh) {
        let Some(told) = told.clone().checked() else {
            return;
        };
        if (&self.axes, &self.sizes) != (&told.axes, &told.sizes) {
            if told.axes.len() < self.axes.len() {
                return;
            }
            *self = Self {
                axes: told.axes,
                sizes: told.sizes,
                ranks: Vec::new(),
            };
        }
        let position = MeshPosition {
            rank: told.rank,
            coordinates: told.coordinates,
        };
        let at = self.ranks.partition_point(|known| known.rank < position.rank);
        match self.ranks.get_mut(at) {
            Some(known) if known.rank == position.rank => *known = position,
            _ => self.ranks.insert(at, position),
        }
    }

    /// Returns the mesh as text: `data 2 × tensor 4`.
    #[must_use]
    pub fn words(&self) -> String {
        let axes = self.axes.iter().zip(&self.sizes);
        let parts: Vec<String> = axes.map(|(axis, size)| format!("{axis} {size}")).collect();
        parts.join(" × ")
    }

    /// Returns the position of a rank; `None` if the rank has not reported it.
    #[must_use]
    pub fn position(&self, rank: Rank) -> Option<&MeshPosition> {
        let at = self
            .ranks
            .binary_search_by_key(&rank, |position| position.rank)
            .ok()?;
        self.ranks.get(at)
    }

    /// Returns a position as text: `data 1, tensor 3`.
    #[must_use]
    pub fn position_words(&self, position: &MeshPosition) -> String {
        let axes = self.axes.iter().zip(&position.coordinates);
        let parts: Vec<String> = axes.map(|(axis, at)| format!("{axis} {at}")).collect();
        parts.join(", ")
    }

    /// Returns the ranks that differ from a rank only in their position along an axis, including the rank itself, in the order of that
    /// axis. They run the collectives of that axis together.
    #[must_use]
    pub fn group(&self, rank: Rank, axis: usize) -> Vec<Rank> {
        let Some(own) = self.position(rank) else {
            return Vec::new();
        };
        let elsewhere = |position: &&MeshPosition| {
            let both = position.coordinates.iter().zip(&own.coordinates).enumerate();
            both.filter(|(at, _)| *at != axis)
                .all(|(_, (other, own))| other == own)
        };
        let mut group: Vec<&MeshPosition> = self.ranks.iter().filter(elsewhere).collect();
        group.sort_by_key(|position| position.coordinates.get(axis).copied());
        group.into_iter().map(|position| position.rank).collect()
    }

    /// Returns the planes to draw.
    #[must_use]
    pub fn planes(&self) -> Vec<Plane> {
        let size = |axis: usize| self.sizes.get(axis).copied().unwrap_or(1) as usize;
        let names = |axis: usize| match self.axes.get(axis) {
            Some(name) => (0..size(axis)).map(|at| format!("{name} {at}")).collect(),
            None => vec![String::new()],
        };
        // A mesh with one axis is drawn as one row.
        let (down, across) = if self.axes.len() == 1 { (1, 0) } else { (0, 1) };
        let beyond = self.sizes.len().max(2);
        let count: usize = (2..beyond).map(size).product();
        let mut planes: Vec<Plane> = (0..count)
            .map(|n| Plane {
                title: self.title(n),
                rows: names(down),
                columns: names(across),
                cells: vec![None; size(down) * size(across)],
            })
            .collect();
        for position in &self.ranks {
            let at = |axis: usize| position.coordinates.get(axis).copied().unwrap_or(0) as usize;
            let plane = (2..beyond).fold(0, |plane, axis| plane * size(axis) + at(axis));
            let cell = at(down) * size(across) + at(across);
            if let Some(cell) = planes.get_mut(plane).and_then(|plane| plane.cells.get_mut(cell)) {
                *cell = Some(position.rank);
            }
        }
        planes
    }

    /// Returns the positions of a plane on the axes beyond the second, as text.
    fn title(&self, plane: usize) -> String {
        let mut rest = plane;
        let mut parts: Vec<String> = Vec::new();
        for (axis, size) in self.axes.iter().zip(&self.sizes).skip(2).rev() {
            let size = *size as usize;
            parts.push(format!("{axis} {}", rest % size));
            rest /= size;
        }
        parts.reverse();
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rank: u32, axes: &[(&str, u32)], coordinates: &[u32]) -> RankMesh {
        RankMesh {
            rank: Rank(rank),
            axes: axes.iter().map(|(name, _)| (*name).to_owned()).collect(),
            sizes: axes.iter().map(|(_, size)| *size).collect(),
            coordinates: coordinates.to_vec(),
        }
    }

    /// Reports the ranks in reverse order.
    fn whole(axes: &[(&str, u32)]) -> Mesh {
        let mut mesh = Mesh::default();
        let ranks: u32 = axes.iter().map(|(_, size)| size).product();
        for rank in (0..ranks).rev() {
            let mut rest = rank;
            let mut coordinates: Vec<u32> = axes
                .iter()
                .rev()
                .map(|(_, size)| {
                    let at = rest % size;
                    rest /= size;
                    at
                })
                .collect();
            coordinates.reverse();
            mesh.take(&told(rank, axes, &coordinates));
        }
        mesh
    }

    fn drawn(mesh: &Mesh) -> Vec<String> {
        let cell = |cell: &Option<Rank>| cell.map_or("-".to_owned(), |rank| rank.to_string());
        let line = |plane: &Plane| {
            let cells: Vec<String> = plane
                .cells
                .chunks(plane.columns.len())
                .map(|row| row.iter().map(cell).collect::<Vec<_>>().join(" "))
                .collect();
            format!("{}[{}]", plane.title, cells.join(" | "))
        };
        mesh.planes().iter().map(line).collect()
    }

    #[test]
    fn one_two_and_more_axes_are_planes_of_rows_and_columns() {
        let line = whole(&[("shard", 3)]);
        assert_eq!(drawn(&line), ["[0 1 2]"]);
        assert_eq!(line.planes()[0].columns, ["shard 0", "shard 1", "shard 2"]);
        assert_eq!(line.planes()[0].rows, [""]);
        let grid = whole(&[("data", 2), ("tensor", 3)]);
        assert_eq!(drawn(&grid), ["[0 1 2 | 3 4 5]"]);
        assert_eq!(grid.words(), "data 2 × tensor 3");
        let cube = whole(&[("pp", 2), ("dp", 2), ("tp", 2)]);
        assert_eq!(drawn(&cube), ["tp 0[0 2 | 4 6]", "tp 1[1 3 | 5 7]"]);
        let more = whole(&[("a", 1), ("b", 1), ("c", 2), ("d", 2)]);
        assert_eq!(
            drawn(&more),
            ["c 0, d 0[0]", "c 0, d 1[1]", "c 1, d 0[2]", "c 1, d 1[3]"]
        );
    }

    #[test]
    fn a_group_along_an_axis_is_a_line_in_the_order_of_that_axis() {
        let cube = whole(&[("pp", 2), ("dp", 2), ("tp", 2)]);
        let group = |rank, axis| {
            cube.group(Rank(rank), axis)
                .iter()
                .map(|rank| rank.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(group(5, 0), [1, 5]);
        assert_eq!(group(5, 1), [5, 7]);
        assert_eq!(group(5, 2), [4, 5]);
        assert_eq!(group(8, 0), [0; 0], "there is no such rank");
        assert_eq!(
            cube.position_words(cube.position(Rank(5)).expect("its position")),
            "pp 1, dp 0, tp 1"
        );
    }

    #[test]
    fn unreported_places_stay_open_and_another_mesh_replaces_the_first() {
        let mut mesh = Mesh::default();
        let axes = [("data", 2), ("tensor", 2)];
        mesh.take(&told(3, &axes, &[1, 1]));
        assert_eq!(drawn(&mesh), ["[- - | - 3]"]);
        mesh.take(&told(3, &[("world", 4)], &[3]));
        assert_eq!(drawn(&mesh), ["[- - | - 3]"], "with fewer axes it says less");
        mesh.take(&told(3, &axes, &[1, 0]));
        assert_eq!(drawn(&mesh), ["[- - | 3 -]"], "its last word counts");
        mesh.take(&told(0, &[("replicate", 2), ("shard", 2)], &[0, 0]));
        assert_eq!(
            (drawn(&mesh), mesh.words()),
            (vec!["[0 - | - -]".to_owned()], "replicate 2 × shard 2".into())
        );
    }

    #[test]
    fn what_a_process_says_is_checked() {
        let axes = [("data", 2), ("tensor", 2)];
        for (wrong, why) in [
            (told(0, &[], &[]), "no axis"),
            (told(0, &axes, &[0]), "a coordinate is missing"),
            (told(0, &axes, &[0, 2]), "outside"),
            (told(0, &[("a", 0)], &[0]), "an empty axis"),
            (
                told(0, &[("a", 65_536), ("b", 65_536)], &[0, 0]),
                "more ranks than there are",
            ),
            (told(0, &[("a", 1); 9], &[0; 9]), "too many axes"),
        ] {
            assert_eq!(wrong.checked(), None, "{why}");
        }
        let unnamed = RankMesh {
            axes: vec!["\u{202e}da\nta".into(), " ".into()],
            sizes: vec![2, 2, 2],
            coordinates: vec![0, 1, 0],
            ..RankMesh::default()
        };
        assert_eq!(
            unnamed.checked().expect("sound").axes,
            ["data", "axis 1", "axis 2"]
        );
    }
}
