//! The mesh that a script has put its ranks into: axes with names, and for each rank its coordinates. Of all ranks together it is the
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

/// More dimensions than anybody trains with.
const AXES_MAX: usize = 8;
/// Of a name, as it is shown.
const NAME_CHARS_MAX: usize = 32;
/// More ranks than Lockstep runs.
const RANKS_MAX: u64 = 65_536;

/// A rank's place in its mesh, as its probe tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankMesh {
    /// The rank.
    pub rank: Rank,
    /// The axes' names, outermost first.
    pub axes: Vec<String>,
    /// Ranks along each axis.
    pub sizes: Vec<u32>,
    /// Where on each axis the rank is.
    pub coordinates: Vec<u32>,
}

impl RankMesh {
    /// What a training process says, as far as it can be one: with names that can be shown, and numbers that fit each other.
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

/// Scripts need not name their axes.
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

/// The mesh of an attempt, as far as its ranks have told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Mesh {
    /// The axes' names, outermost first.
    pub axes: Vec<String>,
    /// Ranks along each axis.
    pub sizes: Vec<u32>,
    /// Each rank's place, by rank.
    pub ranks: Vec<MeshPlace>,
}

/// Where a rank is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MeshPlace {
    /// The rank.
    pub rank: Rank,
    /// Its place on each axis.
    pub coordinates: Vec<u32>,
}

/// What is drawn on one plane: a row for each place on the first axis, a column for each on the second. A mesh of one axis is one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plane {
    /// The places on the axes beyond the second, in words; empty where there are none.
    pub title: String,
    /// What the rows are called.
    pub rows: Vec<String>,
    /// What the columns are called.
    pub columns: Vec<String>,
    /// Row by row; none for a place of which no rank has told.
    pub cells: Vec<Option<Rank>>,
}

impl Mesh {
    /// Takes in what a rank tells. Another mesh than the one so far replaces it, unless it has fewer axes.
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
        let place = MeshPlace {
            rank: told.rank,
            coordinates: told.coordinates,
        };
        let at = self.ranks.partition_point(|known| known.rank < place.rank);
        match self.ranks.get_mut(at) {
            Some(known) if known.rank == place.rank => *known = place,
            _ => self.ranks.insert(at, place),
        }
    }

    /// `data 2 × tensor 4`.
    #[must_use]
    pub fn words(&self) -> String {
        let axes = self.axes.iter().zip(&self.sizes);
        let parts: Vec<String> = axes.map(|(axis, size)| format!("{axis} {size}")).collect();
        parts.join(" × ")
    }

    /// A rank's place.
    #[must_use]
    pub fn place(&self, rank: Rank) -> Option<&MeshPlace> {
        let at = self.ranks.binary_search_by_key(&rank, |place| place.rank).ok()?;
        self.ranks.get(at)
    }

    /// `data 1, tensor 3`.
    #[must_use]
    pub fn place_words(&self, place: &MeshPlace) -> String {
        let axes = self.axes.iter().zip(&place.coordinates);
        let parts: Vec<String> = axes.map(|(axis, at)| format!("{axis} {at}")).collect();
        parts.join(", ")
    }

    /// The ranks that a rank stands in a line with along an axis, itself among them, in the order of that axis: they hold the collectives of
    /// that axis together.
    #[must_use]
    pub fn group(&self, rank: Rank, axis: usize) -> Vec<Rank> {
        let Some(own) = self.place(rank) else {
            return Vec::new();
        };
        let elsewhere = |place: &&MeshPlace| {
            let both = place.coordinates.iter().zip(&own.coordinates).enumerate();
            both.filter(|(at, _)| *at != axis)
                .all(|(_, (other, own))| other == own)
        };
        let mut group: Vec<&MeshPlace> = self.ranks.iter().filter(elsewhere).collect();
        group.sort_by_key(|place| place.coordinates.get(axis).copied());
        group.into_iter().map(|place| place.rank).collect()
    }

    /// What there is to draw.
    #[must_use]
    pub fn planes(&self) -> Vec<Plane> {
        let size = |axis: usize| self.sizes.get(axis).copied().unwrap_or(1) as usize;
        let names = |axis: usize| match self.axes.get(axis) {
            Some(name) => (0..size(axis)).map(|at| format!("{name} {at}")).collect(),
            None => vec![String::new()],
        };
        // One axis is a row: its places stand beside each other.
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
        for place in &self.ranks {
            let at = |axis: usize| place.coordinates.get(axis).copied().unwrap_or(0) as usize;
            let plane = (2..beyond).fold(0, |plane, axis| plane * size(axis) + at(axis));
            let cell = at(down) * size(across) + at(across);
            if let Some(cell) = planes.get_mut(plane).and_then(|plane| plane.cells.get_mut(cell)) {
                *cell = Some(place.rank);
            }
        }
        planes
    }

    /// The places of a plane on the axes beyond the second.
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

    /// Ranks in the order of their coordinates, the last axis first.
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
            cube.place_words(cube.place(Rank(5)).expect("its place")),
            "pp 1, dp 0, tp 1"
        );
    }

    #[test]
    fn what_no_rank_has_told_of_is_left_open_and_another_mesh_replaces_the_first() {
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
