//! The canvas of `map.js`.

use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;

use super::layout::{Cell, Layout};
use super::matrix::Matrix;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = lockstepMap)]
    fn create(element: &web_sys::HtmlElement) -> JsValue;
    #[wasm_bindgen(js_namespace = lockstepMap)]
    fn fill(map: &JsValue, rows: u32, width: i32, height: i32, cells: Uint8Array);
    #[wasm_bindgen(js_namespace = lockstepMap)]
    fn append(map: &JsValue, cells: Uint8Array);
    #[wasm_bindgen(js_namespace = lockstepMap)]
    fn point(map: &JsValue, column: i32, row: i32);
    #[wasm_bindgen(js_namespace = lockstepMap)]
    fn destroy(map: &JsValue);
}

/// The canvas; removed on drop.
pub(super) struct Canvas {
    map: JsValue,
    drawn: Option<Drawn>,
}

/// What the canvas shows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Drawn {
    epoch: u32,
    added: usize,
    layout: Layout,
    width: i32,
}

impl Canvas {
    /// Creates a canvas in this element.
    pub(super) fn on(element: &web_sys::HtmlElement) -> Self {
        Self {
            map: create(element),
            drawn: None,
        }
    }

    /// Draws what has changed since the last call: nothing, new columns, or everything.
    pub(super) fn show(&mut self, matrix: &Matrix, width: i32, pointed: Option<Cell>) {
        let moments = matrix.moments().len();
        let layout = Layout::of(matrix.ranks(), moments);
        let (epoch, added) = matrix.version();
        let now = Drawn {
            epoch,
            added,
            layout,
            width,
        };
        let before = self.drawn.replace(now);
        let new = before
            .filter(|before| Drawn { added, ..*before } == now)
            .map(|before| added - before.added);
        match new {
            Some(0) => {}
            Some(new) if new < moments => append(&self.map, bytes(&matrix.colours(layout, new))),
            _ => fill(
                &self.map,
                u32::try_from(layout.rows).unwrap_or(u32::MAX),
                width,
                layout.height,
                bytes(&matrix.colours(layout, moments)),
            ),
        }
        let place = |at: usize| i32::try_from(at).unwrap_or(-1);
        let (column, row) = pointed.map_or((-1, -1), |cell| (place(cell.column), place(cell.row)));
        point(&self.map, column, row);
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        destroy(&self.map);
    }
}

fn bytes(colours: &[u8]) -> Uint8Array {
    Uint8Array::from(colours)
}
