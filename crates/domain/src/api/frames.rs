//! Frames of the event stream as binary messages, for clients that open `GET /api/stream?frames=binary`.
//!
//! The labels of a series are sent once per watch; afterwards a frame names the series by its id, the position in that dictionary. All
//! numbers are little-endian. Nothing is aligned.
//!
//! ```text
//! u8   version, 1
//! u8   flags: 1 RESET · 2 BEGINS · 4 CHANGED · 8 IN_ORDER · 16 NARROW · 32 EXTREMES
//! u32  id of the watch
//! u32  generation of the dictionary
//! u32  number of series in the dictionary before this message
//! u32  T, then T × i64: times in milliseconds
//! u32  number of texts, then each: u32 length in bytes, UTF-8
//! u32  number of new series, then each: u32 number of labels, then each: u32 name, u32 value (positions in the texts of this message)
//! u32  R, then R × u32: ids of the series of the rows; no ids with IN_ORDER: row n is series n
//!      R × T values, row after row: f64, or f32 with NARROW; with EXTREMES then R × T minima, R × T maxima
//! ```
//! - `RESET`: the frame replaces the values sent before. Without it, it is appended.
//! - `BEGINS`: a new generation. The client forgets the series of the previous one. A message of a generation that the client does not
//!   have, or whose number of series differs from the client's, cannot be read: the client watches the query again.
//! - `CHANGED`: T is 1, and only the series whose value differs from the last value of the previous frame have a row. A grid that does not
//!   change costs some 40 bytes per second.
//! - `NARROW`: set only if f32 loses no digit of any value.
//! - `EXTREMES`: the least and the greatest value within the step that ends at each time. Never together with `CHANGED`.
//!
//! A value that does not exist, as `null` in JSON, is the NaN with the bits [`ABSENT_BITS`], or [`ABSENT_BITS_NARROW`] as f32. Every other
//! NaN and the infinities stand for a value that is not finite. A series without a row in a frame has no value in it. The order of the
//! series in a frame with one time and without extremes is that of the dictionary, not that of the query.

mod decoder;
mod encoder;
#[cfg(test)]
mod tests;

pub use decoder::{DecodeError, Decoder, watch_id};
pub use encoder::Encoder;

use crate::api::stream::Column;
use crate::time::TimestampMs;

/// The version of the layout, the first byte of each message.
pub const VERSION: u8 = 1;
/// Bits of an f64 that stands for no value.
pub const ABSENT_BITS: u64 = 0x7ff8_0000_0000_0ab5;
/// Bits of an f32 that stands for no value.
pub const ABSENT_BITS_NARROW: u32 = 0x7fc0_0ab5;

const RESET: u8 = 1;
const BEGINS: u8 = 2;
const CHANGED: u8 = 4;
const IN_ORDER: u8 = 8;
const NARROW: u8 = 16;
const EXTREMES: u8 = 32;
const FLAGS: u8 = RESET | BEGINS | CHANGED | IN_ORDER | NARROW | EXTREMES;

/// The values of a watched query.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// True if this replaces the values sent before; false if it is appended to them.
    pub reset: bool,
    /// Time axis.
    pub times_ms: Vec<TimestampMs>,
    /// One column per series.
    pub series: Vec<Column>,
}
