//! The data of the canvas, in plain lists.

use std::collections::BTreeMap;

use domain::api::stream::Column;
use domain::series::Labels;
use js_sys::{Array, Int32Array, Uint8Array, Uint32Array};
use wasm_bindgen::prelude::*;

use super::fleet::{Culprit, Fleet, GpuKey, Grouping, Node, RankKey};
use super::layout::Layout;
use super::measure::{DOWN, Measure, Shows};
use super::peers::differences;
use super::samples::{Samples, gpu};
use crate::ui::{map_of, show};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = lockstepGrid)]
    fn create(element: &web_sys::HtmlElement) -> JsValue;
    #[wasm_bindgen(js_namespace = lockstepGrid)]
    #[expect(
        clippy::too_many_arguments,
        reason = "numbers that go to JavaScript one by one"
    )]
    fn layout(
        grid: &JsValue,
        width: i32,
        height: i32,
        cell_width: i32,
        cell_height: i32,
        xs: Int32Array,
        ys: Int32Array,
        names: Array,
    );
    #[wasm_bindgen(js_namespace = lockstepGrid)]
    fn paint(grid: &JsValue, colours: Uint8Array, diverging: bool, texts: JsValue);
    #[wasm_bindgen(js_namespace = lockstepGrid)]
    fn mark(grid: &JsValue, rings: Uint32Array, pointed: i32);
    #[wasm_bindgen(js_namespace = lockstepGrid)]
    fn destroy(grid: &JsValue);
}

/// GPUs, values and marks: one list of each, in the order of the fleet's cells.
#[derive(Default)]
pub(super) struct Picture {
    pub(super) fleet: Fleet,
    pub(super) layout: Layout,
    pub(super) values: Vec<f64>,
    pub(super) differences: Vec<f64>,
    nodes: Vec<Node>,
    /// The labels of the series from which `ranks` was made.
    assigned: Vec<Labels>,
    ranks: BTreeMap<GpuKey, RankKey>,
    grouping: Option<Grouping>,
    newest: Samples,
    culprits: Vec<Culprit>,
    rings: Vec<u32>,
    /// Counts the arrangements, so that the canvas can detect an outdated layout.
    arranged: u32,
}

impl Picture {
    /// Sets the values of a frame.
    pub(super) fn take(&mut self, frame: Vec<Column>) {
        self.newest.take(frame, &self.fleet);
        self.fill();
    }

    /// Removes all values: those of another measure have another scale.
    pub(super) fn forget_values(&mut self) {
        self.take(vec![]);
    }

    /// Sets the nodes, in the order in which they are shown.
    pub(super) fn arrange(&mut self, nodes: Vec<Node>, grouping: Grouping) {
        if self.nodes != nodes || self.grouping != Some(grouping) {
            (self.nodes, self.grouping) = (nodes, Some(grouping));
            self.rearrange();
        }
    }

    /// Sets which rank uses which GPU, by the labels of the assignments that hold now. Reads labels only if one of them is new.
    pub(super) fn assign_by(&mut self, assigned: Vec<Labels>) {
        let is_same = self.assigned == assigned;
        // Equal labels of a new connection have other pointers.
        self.assigned = assigned;
        if !is_same {
            self.assign(map_of(self.assigned.iter().filter_map(assignment)));
        }
    }

    /// Sets which rank uses which GPU.
    pub(super) fn assign(&mut self, ranks: BTreeMap<GpuKey, RankKey>) {
        if self.ranks != ranks {
            self.ranks = ranks;
            self.rearrange();
        }
    }

    fn rearrange(&mut self) {
        let grouping = self.grouping.unwrap_or(Grouping::Node);
        self.fleet = Fleet::of(&self.nodes, &self.ranks, grouping);
        self.arranged = self.arranged.wrapping_add(1);
        self.newest.locate(&self.fleet);
        self.fill();
        self.ring();
    }

    /// Sets the culprits of diagnoses.
    pub(super) fn mark(&mut self, culprits: Vec<Culprit>) {
        self.culprits = culprits;
        self.ring();
    }

    /// Changes when the cells change, and when the first values of a measure arrive.
    pub(super) fn generation(&self) -> (u32, bool) {
        (self.arranged, self.newest.is_empty())
    }

    /// Returns true if a diagnosis names this cell.
    pub(super) fn is_culprit(&self, cell: usize) -> bool {
        self.rings.iter().any(|ring| *ring as usize == cell)
    }

    fn fill(&mut self) {
        self.values = self.newest.values(self.fleet.cells.len());
        self.differences = differences(&self.values, &self.fleet.peers());
    }

    fn ring(&mut self) {
        let named = self.culprits.iter().flat_map(|culprit| self.named(culprit));
        self.rings = named.filter_map(|cell| u32::try_from(cell).ok()).collect();
    }

    /// Returns the cells of a culprit: one GPU, or those of the node. If it is known which of them its rank uses, only those.
    fn named(&self, culprit: &Culprit) -> Vec<usize> {
        let mut named = self.fleet.named(&culprit.node, culprit.gpu);
        let is_of_rank = |place: &usize| {
            let cell = &self.fleet.cells[*place];
            self.ranks.get(&(cell.node.clone(), cell.gpu)) == culprit.rank.as_ref()
        };
        if culprit.rank.is_some() && named.iter().any(is_of_rank) {
            named.retain(is_of_rank);
        }
        named
    }

    fn colours(&self, shows: Shows, measure: &Measure) -> Vec<u8> {
        let cells = self.fleet.cells.iter().enumerate();
        let colour = |(n, cell): (usize, &super::fleet::Cell)| match (cell.down, shows) {
            (true, _) => DOWN,
            (false, Shows::Value) => measure.shade(self.values[n]),
            (false, Shows::Difference) => measure.shade_difference(self.differences[n]),
        };
        cells.map(colour).collect()
    }

    /// Returns the values as text for each cell, if there is enough space.
    fn texts(&self, measure: &Measure) -> Option<Vec<String>> {
        let text = |value: &f64| {
            if value.is_nan() {
                return "–".to_owned();
            }
            show(*value, measure.unit)
        };
        self.layout
            .has_texts()
            .then(|| self.values.iter().map(text).collect())
    }
}

/// Returns the GPU and the rank that the labels of an assignment name.
fn assignment(labels: &Labels) -> Option<(GpuKey, RankKey)> {
    let text = |name| labels.get(name).map(str::to_owned);
    Some((gpu(labels)?, (text("run")?, text("rank").unwrap_or_default())))
}

/// The canvas of `grid.js`; removed on drop.
pub(super) struct Canvas {
    grid: JsValue,
    /// The arrangement and the width of the current layout.
    laid_out: Option<(u32, i32)>,
}

impl Canvas {
    /// Creates a canvas in this element.
    pub(super) fn on(element: &web_sys::HtmlElement) -> Self {
        Self {
            grid: create(element),
            laid_out: None,
        }
    }

    /// Draws the picture with this width in pixels.
    pub(super) fn show(
        &mut self,
        picture: &mut Picture,
        width: i32,
        shows: Shows,
        measure: &Measure,
        pointed: Option<usize>,
    ) {
        if self.laid_out != Some((picture.arranged, width)) {
            picture.layout = Layout::of(&picture.fleet, width);
            self.lay_out(&picture.layout);
            self.laid_out = Some((picture.arranged, width));
        }
        let colours = picture.colours(shows, measure);
        let texts = picture.texts(measure).map_or(JsValue::NULL, |texts| {
            let texts: Array = texts.iter().map(|text| JsValue::from_str(text)).collect();
            texts.into()
        });
        let pointed = pointed.and_then(|cell| i32::try_from(cell).ok()).unwrap_or(-1);
        mark(&self.grid, Uint32Array::from(picture.rings.as_slice()), pointed);
        paint(
            &self.grid,
            Uint8Array::from(colours.as_slice()),
            shows == Shows::Difference,
            texts,
        );
    }

    fn lay_out(&self, picture: &Layout) {
        let xs: Vec<i32> = picture.places.iter().map(|(x, _)| *x).collect();
        let ys: Vec<i32> = picture.places.iter().map(|(_, y)| *y).collect();
        let names = picture.names.iter().map(|name| {
            let parts: [JsValue; 4] = [
                JsValue::from_str(&name.text),
                name.x.into(),
                name.y.into(),
                name.heads.into(),
            ];
            parts.into_iter().collect::<Array>()
        });
        layout(
            &self.grid,
            picture.width,
            picture.height,
            picture.size.width,
            picture.size.height,
            Int32Array::from(xs.as_slice()),
            Int32Array::from(ys.as_slice()),
            names.collect(),
        );
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        destroy(&self.grid);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fleet::tests::{culprit, nodes, rank};
    use super::super::measure::measure;
    use super::super::samples::tests::frame;
    use super::*;
    use crate::ui::UNMEASURED;

    #[test]
    fn a_rank_has_a_ring_around_its_own_gpus_or_around_its_node_if_they_are_unknown() {
        let mut picture = Picture::default();
        picture.arrange(nodes(2, 4), Grouping::Node);
        picture.mark(vec![Culprit {
            gpu: None,
            rank: Some(rank("llama", 2)),
            ..culprit(0)
        }]);
        assert_eq!(picture.rings, [0, 1, 2, 3]);
        let key = |node: &str, gpu| (node.to_owned(), gpu);
        picture.assign(BTreeMap::from([
            (key("node-0000", 1), rank("llama", 1)),
            (key("node-0000", 2), rank("other", 2)),
            (key("node-0000", 3), rank("llama", 2)),
            (key("node-0001", 3), rank("llama", 2)),
        ]));
        assert_eq!(picture.rings, [3]);
        picture.mark(vec![Culprit {
            rank: Some(rank("llama", 2)),
            ..culprit(1)
        }]);
        assert_eq!(picture.rings, [1]);
    }

    #[test]
    fn values_follow_their_gpus_when_a_run_gets_them() {
        let mut picture = Picture::default();
        picture.arrange(nodes(1, 3), Grouping::Run);
        picture.take(frame(&[(0, 0.1), (1, 0.2), (2, 0.3)]));
        let assigned = |gpu: &str, run: &str| {
            let pairs = [("node", "node-0000"), ("gpu", gpu), ("run", run), ("rank", "0")];
            Labels::new(pairs).expect("valid labels")
        };
        for (assignments, expected) in [
            (vec![assigned("2", "llama")], [0.3, 0.1, 0.2]),
            (vec![assigned("2", "llama")], [0.3, 0.1, 0.2]),
            (vec![assigned("1", "llama")], [0.2, 0.1, 0.3]),
            (vec![assigned("1", "")], [0.1, 0.2, 0.3]),
        ] {
            picture.assign_by(assignments);
            assert_eq!(picture.values, expected);
        }
        assert_eq!(
            picture.generation().0,
            4,
            "three changes after the first arrangement"
        );
    }

    #[test]
    fn the_odd_one_out_has_another_colour_and_the_culprit_a_ring() {
        let mut picture = Picture::default();
        let mut nodes = nodes(2, 4);
        nodes[1].down = true;
        picture.mark(vec![culprit(2)]);
        picture.arrange(nodes, Grouping::Node);
        picture.take(frame(&[(0, 0.9), (1, 0.9), (2, 0.3)]));
        let compute = measure(None);
        let colours = picture.colours(Shows::Difference, compute);
        assert_eq!(colours, [128, 128, 1, UNMEASURED, DOWN, DOWN, DOWN, DOWN]);
        assert!(picture.is_culprit(2) && !picture.is_culprit(1));
        picture.forget_values();
        assert_eq!(picture.colours(Shows::Value, compute)[..4], [UNMEASURED; 4]);
    }
}
