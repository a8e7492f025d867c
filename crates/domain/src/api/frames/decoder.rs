//! Reads the frames of one watch. Any bytes may arrive: nothing here panics, and the memory that a message needs is proportional to its
//! size and to the size of the dictionary that was sent before.

use std::sync::Arc;

use super::{
    ABSENT_BITS, ABSENT_BITS_NARROW, BEGINS, CHANGED, EXTREMES, FLAGS, Frame, IN_ORDER, NARROW, RESET,
    VERSION,
};
use crate::api::stream::Column;
use crate::series::{Label, Labels};
use crate::time::TimestampMs;

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is shorter than its own counts.
    #[error("the frame ends too early")]
    Truncated,
    /// The message is longer than its own counts.
    #[error("bytes follow the frame")]
    TooLong,
    /// Another version of the layout, or unknown flags.
    #[error("version {0} of frames with flags {1} is unknown")]
    Version(u8, u8),
    /// The series of this message were sent in a message that did not arrive.
    #[error("the frame is of an unknown generation")]
    Generation,
    /// A series or a text that does not exist, a text that is not UTF-8, labels that are not sorted, or changes at more than one time or with
    /// extremes.
    #[error("the frame contradicts itself")]
    Invalid,
}

/// The state of one watch: the series that were sent, and their last values.
#[derive(Debug, Default)]
pub struct Decoder {
    /// `None` before the first dictionary, and after an error.
    generation: Option<u32>,
    /// The series by id.
    series: Vec<Labels>,
    /// The last value of each series by id.
    last: Vec<Option<f64>>,
}

/// Returns the watch that a message is for.
///
/// # Errors
/// See [`DecodeError`].
pub fn watch_id(message: &[u8]) -> Result<u32, DecodeError> {
    Ok(Reader(message).header()?.watch)
}

impl Decoder {
    /// Reads the next message of a watch. After an error, only a message with a new dictionary can be read.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(&mut self, message: &[u8]) -> Result<Frame, DecodeError> {
        let frame = self.read(message);
        if frame.is_err() {
            *self = Self::default();
        }
        frame
    }

    fn read(&mut self, message: &[u8]) -> Result<Frame, DecodeError> {
        let mut reader = Reader(message);
        let header = reader.header()?;
        let has = |flag: u8| header.flags & flag != 0;
        if has(BEGINS) {
            *self = Self {
                generation: Some(header.generation),
                ..Self::default()
            };
        }
        if self.generation != Some(header.generation) || self.series.len() != header.known as usize {
            return Err(DecodeError::Generation);
        }
        let times_ms = reader.times()?;
        reader.add_series(&mut self.series)?;
        let rows = reader.rows(has(IN_ORDER), self.series.len())?;
        let times = times_ms.len();
        // Then the columns are those of the dictionary: rows may have changed values only.
        let is_one_time = times == 1 && !has(EXTREMES);
        if has(CHANGED) && !is_one_time {
            return Err(DecodeError::Invalid);
        }
        if !has(CHANGED) {
            self.last.clear();
        }
        self.last.resize(self.series.len(), None);
        let parts = if has(EXTREMES) { 3 } else { 1 };
        let mut values = reader.values([parts, rows.len(), times], has(NARROW))?;
        let mut series = Vec::new();
        for id in rows {
            if is_one_time {
                self.last[id] = values.next().flatten();
                continue;
            }
            let row: Vec<Option<f64>> = values.by_ref().take(times).collect();
            self.last[id] = row.last().copied().flatten();
            series.push(column(&self.series[id], row));
        }
        if has(EXTREMES) {
            for column in &mut series {
                column.min = values.by_ref().take(times).collect();
            }
            for column in &mut series {
                column.max = values.by_ref().take(times).collect();
            }
        }
        if is_one_time {
            let measured = self
                .series
                .iter()
                .zip(&self.last)
                .filter(|(_, value)| value.is_some());
            series = measured
                .map(|(labels, value)| column(labels, vec![*value]))
                .collect();
        }
        Ok(Frame {
            reset: has(RESET),
            times_ms,
            series,
        })
    }
}

/// Returns a column of values, of which those that are not finite are listed.
fn column(labels: &Labels, mut values: Vec<Option<f64>>) -> Column {
    let mut not_finite = Vec::new();
    for (at, value) in (0..).zip(&mut values) {
        if value.is_some_and(|value| !value.is_finite()) {
            not_finite.push(at);
            *value = None;
        }
    }
    Column {
        labels: labels.clone(),
        values,
        not_finite,
        min: vec![],
        max: vec![],
    }
}

/// What a message begins with.
struct Header {
    flags: u8,
    watch: u32,
    generation: u32,
    known: u32,
}

/// The rest of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn number(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads the number of parts that follow, each of at least `bytes`. So a list is never larger than its message.
    fn count(&mut self, bytes: usize) -> Result<usize, DecodeError> {
        let count = self.number()? as usize;
        let needed = count.checked_mul(bytes).ok_or(DecodeError::Truncated)?;
        if needed > self.0.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    fn header(&mut self) -> Result<Header, DecodeError> {
        let [version, flags] = self.array::<2>()?;
        if version != VERSION || flags & !FLAGS != 0 {
            return Err(DecodeError::Version(version, flags));
        }
        Ok(Header {
            flags,
            watch: self.number()?,
            generation: self.number()?,
            known: self.number()?,
        })
    }

    fn times(&mut self) -> Result<Vec<TimestampMs>, DecodeError> {
        let count = self.count(size_of::<TimestampMs>())?;
        let time = |_| self.array().map(TimestampMs::from_le_bytes);
        (0..count).map(time).collect()
    }

    fn texts(&mut self) -> Result<Vec<Arc<str>>, DecodeError> {
        let count = self.count(size_of::<u32>())?;
        let mut texts = Vec::with_capacity(count);
        for _ in 0..count {
            let length = self.count(1)?;
            let (text, rest) = self.0.split_at(length);
            self.0 = rest;
            let text = std::str::from_utf8(text).map_err(|_| DecodeError::Invalid)?;
            texts.push(Arc::from(text));
        }
        Ok(texts)
    }

    fn add_series(&mut self, series: &mut Vec<Labels>) -> Result<(), DecodeError> {
        let texts = self.texts()?;
        for _ in 0..self.count(size_of::<u32>())? {
            let mut labels: Vec<Label> = Vec::new();
            for _ in 0..self.count(2 * size_of::<u32>())? {
                let mut text = || {
                    let place = self.number()? as usize;
                    texts.get(place).cloned().ok_or(DecodeError::Invalid)
                };
                let (name, value) = (text()?, text()?);
                // They were sent in the order of a label set.
                if value.is_empty() || labels.last().is_some_and(|last| last.name >= name) {
                    return Err(DecodeError::Invalid);
                }
                labels.push(Label { name, value });
            }
            series.push(Labels::from_sorted(labels.into_iter()));
        }
        Ok(())
    }

    /// Reads the ids of the rows; each is below `known`.
    fn rows(&mut self, in_order: bool, known: usize) -> Result<Vec<usize>, DecodeError> {
        let rows: Vec<usize> = if in_order {
            let count = self.number()? as usize;
            if count > known {
                return Err(DecodeError::Invalid);
            }
            (0..count).collect()
        } else {
            let count = self.count(size_of::<u32>())?;
            let row = |_| self.number().map(|id| id as usize);
            (0..count).map(row).collect::<Result<_, _>>()?
        };
        if rows.iter().any(|id| *id >= known) {
            return Err(DecodeError::Invalid);
        }
        Ok(rows)
    }

    /// Returns the values: the rest of the message must consist of exactly these.
    fn values(
        &self,
        [parts, rows, times]: [usize; 3],
        narrow: bool,
    ) -> Result<impl Iterator<Item = Option<f64>> + use<'a>, DecodeError> {
        let width = if narrow {
            size_of::<f32>()
        } else {
            size_of::<f64>()
        };
        let needed = [rows, times, width]
            .iter()
            .try_fold(parts, |product, factor| product.checked_mul(*factor));
        match needed.map(|needed| needed.cmp(&self.0.len())) {
            Some(std::cmp::Ordering::Equal) => {}
            Some(std::cmp::Ordering::Less) => return Err(DecodeError::TooLong),
            Some(std::cmp::Ordering::Greater) | None => return Err(DecodeError::Truncated),
        }
        Ok(self.0.chunks_exact(width).map(value))
    }
}

/// Reads an f32 of four bytes or an f64 of eight. `None` if there is no value.
fn value(bytes: &[u8]) -> Option<f64> {
    if let Ok(bytes) = bytes.try_into() {
        let bits = u32::from_le_bytes(bytes);
        return (bits != ABSENT_BITS_NARROW).then(|| f64::from(f32::from_bits(bits)));
    }
    let bits = u64::from_le_bytes(bytes.try_into().ok()?);
    (bits != ABSENT_BITS).then(|| f64::from_bits(bits))
}
