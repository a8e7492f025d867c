//! Writes the frames of one watch.

use std::collections::HashMap;

use super::{
    ABSENT_BITS, ABSENT_BITS_NARROW, BEGINS, CHANGED, EXTREMES, Frame, IN_ORDER, NARROW, RESET, VERSION,
};
use crate::api::stream::Column;
use crate::series::Labels;

/// Number of series that a dictionary may have beyond twice those of a frame. Above that, most of its series have ended, and it begins
/// again, so that it does not grow while series come and go.
const ENDED_MAX: usize = 256;

/// The state of one watch: the series whose labels were sent, and their last values.
#[derive(Debug, Default)]
pub struct Encoder {
    /// Counts the dictionaries; 0 before the first.
    generation: u32,
    /// The series by id.
    series: Vec<Labels>,
    ids: HashMap<Labels, u32>,
    /// The last value of each series by id.
    last: Vec<Option<f64>>,
}

impl Encoder {
    /// Returns the message for the next frame of a watch.
    pub fn encode(&mut self, watch: u32, frame: &Frame) -> Vec<u8> {
        let begins = self.generation == 0 || self.series.len() > ENDED_MAX + 2 * frame.series.len();
        if begins {
            *self = Self {
                generation: self.generation.wrapping_add(1),
                ..Self::default()
            };
        }
        let known = self.series.len();
        let mut rows = self.ids(&frame.series);
        let newest = self.newest(&rows, frame);
        let changed = self.changed(&newest);
        let times = frame.times_ms.len();
        let extremes = frame.series.iter().any(|column| !column.min.is_empty());
        let only_changed = !begins && !extremes && times == 1 && changed.len() * 3 < rows.len() * 2;
        let values: Vec<Option<f64>> = if only_changed {
            rows = changed;
            rows.iter().map(|id| newest[*id as usize]).collect()
        } else {
            let parts = if extremes { &PARTS[..] } else { &PARTS[..1] };
            let mut values = Vec::with_capacity(parts.len() * rows.len() * times);
            for part in parts {
                for column in &frame.series {
                    values.extend((0..times).map(|at| part(column, at)));
                }
            }
            values
        };
        self.last = newest;

        let in_order = rows.iter().zip(0..).all(|(id, n)| *id == n);
        let narrow = values.iter().flatten().all(|value| is_narrow(*value));
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(frame.reset, RESET)
            | flag(begins, BEGINS)
            | flag(only_changed, CHANGED)
            | flag(in_order, IN_ORDER)
            | flag(narrow, NARROW)
            | flag(extremes, EXTREMES);
        let mut message = vec![VERSION, flags];
        for number in [watch, self.generation] {
            message.extend(number.to_le_bytes());
        }
        put_count(&mut message, known);
        put_count(&mut message, times);
        for time_ms in &frame.times_ms {
            message.extend(time_ms.to_le_bytes());
        }
        put_series(&mut message, &self.series[known..]);
        put_count(&mut message, rows.len());
        for id in rows.iter().filter(|_| !in_order) {
            message.extend(id.to_le_bytes());
        }
        for value in values {
            put_value(&mut message, value, narrow);
        }
        message
    }

    /// Returns the ids of the series, and adds those that are new.
    fn ids(&mut self, columns: &[Column]) -> Vec<u32> {
        let mut rows = Vec::with_capacity(columns.len());
        // Most frames have the series of the frame before in the same order. Comparing labels is faster than hashing them.
        let mut expected = 0;
        for Column { labels, .. } in columns {
            let id = match self.series.get(expected as usize) {
                Some(known) if known == labels => expected,
                _ => self.id(labels),
            };
            rows.push(id);
            expected = id + 1;
        }
        rows
    }

    fn id(&mut self, labels: &Labels) -> u32 {
        if let Some(id) = self.ids.get(labels) {
            return *id;
        }
        let id = self.series.len() as u32;
        self.series.push(labels.clone());
        self.ids.insert(labels.clone(), id);
        id
    }

    /// Returns the values at the last time of a frame by id.
    fn newest(&self, rows: &[u32], frame: &Frame) -> Vec<Option<f64>> {
        let mut newest = vec![None; self.series.len()];
        let Some(last) = frame.times_ms.len().checked_sub(1) else {
            return newest;
        };
        for (id, column) in rows.iter().zip(&frame.series) {
            newest[*id as usize] = cell(column, last);
        }
        newest
    }

    /// Returns the series whose value differs from that of the previous frame.
    fn changed(&self, newest: &[Option<f64>]) -> Vec<u32> {
        let last = self.last.iter().copied().chain(std::iter::repeat(None));
        let differs = |(id, (new, old)): (u32, (&Option<f64>, Option<f64>))| {
            (new.map(f64::to_bits) != old.map(f64::to_bits)).then_some(id)
        };
        (0..).zip(newest.iter().zip(last)).filter_map(differs).collect()
    }
}

/// The parts of a row in their order.
static PARTS: [fn(&Column, usize) -> Option<f64>; 3] = [
    cell,
    |column, at| column.min.get(at).copied().flatten(),
    |column, at| column.max.get(at).copied().flatten(),
];

/// Returns a value of a column: NaN if it is not finite.
fn cell(column: &Column, at: usize) -> Option<f64> {
    let value = column.values.get(at).copied().flatten();
    value.or_else(|| {
        let is_not_finite = column.not_finite.binary_search(&(at as u32)).is_ok();
        is_not_finite.then_some(f64::NAN)
    })
}

/// Returns true if the value can be sent as f32: it is exact, or not finite.
fn is_narrow(value: f64) -> bool {
    !value.is_finite() || f64::from(value as f32).to_bits() == value.to_bits()
}

fn put_count(message: &mut Vec<u8>, count: usize) {
    message.extend((count as u32).to_le_bytes());
}

fn put_value(message: &mut Vec<u8>, value: Option<f64>, narrow: bool) {
    if narrow {
        let bits = value.map_or(ABSENT_BITS_NARROW, |value| (value as f32).to_bits());
        message.extend(bits.to_le_bytes());
    } else {
        let bits = value.map_or(ABSENT_BITS, f64::to_bits);
        message.extend(bits.to_le_bytes());
    }
}

/// Writes the labels of new series. Names and most values occur in many series, so each text is written once.
fn put_series(message: &mut Vec<u8>, series: &[Labels]) {
    let mut texts: Vec<&str> = Vec::new();
    let mut places: HashMap<&str, u32> = HashMap::new();
    let mut labelled = Vec::new();
    for labels in series {
        put_count(&mut labelled, labels.len());
        for label in labels.iter() {
            for text in [&*label.name, &*label.value] {
                let place = *places.entry(text).or_insert_with(|| {
                    texts.push(text);
                    texts.len() as u32 - 1
                });
                labelled.extend(place.to_le_bytes());
            }
        }
    }
    put_count(message, texts.len());
    for text in texts {
        put_count(message, text.len());
        message.extend(text.as_bytes());
    }
    put_count(message, series.len());
    message.append(&mut labelled);
}
