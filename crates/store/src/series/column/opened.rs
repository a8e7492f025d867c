//! Opened columns. Rows are decompressed when they are first needed and stay in their narrowest form, mostly a quarter of their
//! values' size or less. Values are computed only at the ticks that a query needs: far fewer than all if its steps are wide.

use std::ops::Range;

use domain::series::is_absent;
use domain::time::{TimeRange, TimestampMs};

use super::{
    COLUMN_MAX, DECIMAL, FLOATS, INTEGER_MAX, OTHER_LENGTH, PCO, POWERS, REGULAR, RUNS, SAME, count,
    decompressed,
};
use crate::series::codec::{Corrupt, Reader};
use crate::series::packed::Packed;
use crate::series::pages::Pages;
use crate::series::ticks::Ticks;

/// Multiplied with any 32-bit number, this is less than half of what an f64 represents exactly.
const STEP_MAX: u64 = 1 << 20;

/// The times of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Axis {
    Regular {
        first: i64,
        step: u64,
        count: usize,
    },
    /// At least one run; each run has ticks.
    Runs(Box<[Run]>),
    Listed(Vec<TimestampMs>),
}

/// Ticks at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The index of the first tick.
    pub(crate) tick: usize,
    pub(crate) first: TimestampMs,
    pub(crate) step: u64,
    pub(crate) count: usize,
}

/// The values of several rows of equal length. Callers pass the bytes of the column for each read, because they belong to the
/// chunk.
#[derive(Debug)]
pub(crate) struct Column {
    form: Form,
    ticks: usize,
    /// Cells that differ from what the form says, ascending.
    exceptions: Vec<(Range<usize>, f64)>,
}

#[derive(Debug)]
enum Form {
    Same(f64),
    Whole(Vec<f64>),
    Floats(Pages),
    Integers(Pages, Width, Scale),
}

/// The bytes per integer before compression.
#[derive(Debug, Clone, Copy)]
enum Width {
    Two,
    Four,
    Eight,
}

/// The conversion of a number to a value: `(base + step * number) / power`.
#[derive(Debug, Clone, Copy)]
struct Scale {
    base: i64,
    step: u64,
    power: f64,
}

impl Column {
    /// Reads everything except the rows.
    pub(crate) fn open(bytes: &[u8], rows: usize, ticks: usize) -> Result<Self, Corrupt> {
        let cells = rows.saturating_mul(ticks);
        if cells > COLUMN_MAX {
            return Err(Corrupt("a column is too long"));
        }
        let mut reader = Reader(bytes);
        let mut exceptions = Vec::new();
        let form = match reader.peek()? {
            PCO => {
                let values = decompressed(bytes)?;
                if values.len() != cells {
                    return Err(OTHER_LENGTH);
                }
                Form::Whole(values)
            }
            SAME => {
                reader.take(1)?;
                let value = f64::from_le_bytes(reader.array()?);
                if count(&mut reader)? != cells {
                    return Err(OTHER_LENGTH);
                }
                Form::Same(value)
            }
            FLOATS => {
                reader.take(1)?;
                Form::Floats(Pages::open(bytes, reader, rows, ticks)?)
            }
            DECIMAL => {
                reader.take(1)?;
                let [digits] = reader.array()?;
                let power = *POWERS
                    .get(usize::from(digits))
                    .ok_or(Corrupt("a column has too many digits"))?;
                exceptions = exceptions_of(&mut reader, cells)?;
                let scale = Scale {
                    base: reader.signed()?,
                    step: reader.varint()?,
                    power,
                };
                let width = match reader.array()? {
                    [2] => Width::Two,
                    [4] => Width::Four,
                    [8] => Width::Eight,
                    _ => return Err(Corrupt("a column's integers have an unknown width")),
                };
                Form::Integers(Pages::open(bytes, reader, rows, ticks)?, width, scale)
            }
            _ => return Err(Corrupt("a column of values has an unknown form")),
        };
        Ok(Self {
            form,
            ticks,
            exceptions,
        })
    }

    /// Decompresses rows from the bytes that the column was opened with. `rows` is ascending and contains only rows that are
    /// not loaded. Returns the bytes of memory that they take.
    pub(crate) fn load(&self, bytes: &[u8], rows: &[usize]) -> Result<usize, Corrupt> {
        match &self.form {
            Form::Same(_) | Form::Whole(_) => Ok(0),
            Form::Floats(pages) => pages.load::<f64>(bytes, rows),
            Form::Integers(pages, Width::Two, _) => pages.load::<u16>(bytes, rows),
            Form::Integers(pages, Width::Four, _) => pages.load::<u32>(bytes, rows),
            Form::Integers(pages, Width::Eight, _) => pages.load::<u64>(bytes, rows),
        }
    }

    /// Returns true if all rows are loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        match &self.form {
            Form::Same(_) | Form::Whole(_) => true,
            Form::Floats(pages) | Form::Integers(pages, ..) => pages.is_loaded(),
        }
    }

    /// Returns the memory in bytes, without loaded rows.
    pub(crate) fn bytes(&self) -> usize {
        let form = match &self.form {
            Form::Same(_) => 0,
            Form::Whole(values) => size_of_val(values.as_slice()),
            Form::Floats(pages) | Form::Integers(pages, ..) => pages.bytes(),
        };
        size_of::<Self>() + form + size_of_val(self.exceptions.as_slice())
    }

    /// Returns the values of loaded rows at all ticks.
    pub(crate) fn rows(&self, rows: &[usize]) -> Vec<f64> {
        let mut values = vec![0.0; rows.len() * self.ticks];
        // A column without ticks has no values.
        for (row, out) in rows.iter().zip(values.chunks_exact_mut(self.ticks.max(1))) {
            self.put(*row, &Ticks::All(0..self.ticks), out);
        }
        values
    }

    /// Writes the values of a loaded row at some ticks to `out`, which has one place per tick.
    pub(crate) fn put(&self, row: usize, ticks: &Ticks, out: &mut [f64]) {
        match &self.form {
            Form::Same(value) => out.fill(*value),
            Form::Whole(values) => {
                ticks.put(&values[row * self.ticks..][..self.ticks], out, |value| value);
            }
            Form::Floats(pages) => {
                let (numbers, first) = pages.row(row);
                let least = numbers.least();
                numbers.put(first, ticks, out, |above| f64::from_bits(least + above));
            }
            Form::Integers(pages, _, scale) => scale.put(pages.row(row), ticks, out),
        }
        for (run, value) in self.exceptions_of(row) {
            ticks.fill(run, *value, out);
        }
    }

    /// Returns true if some cell may be a hole.
    pub(crate) fn may_have_holes(&self) -> bool {
        let is_hole = |(_, value): &(_, f64)| is_absent(*value);
        match &self.form {
            Form::Same(value) => is_absent(*value),
            Form::Whole(_) | Form::Floats(_) => true,
            // Integers themselves are never holes.
            _ => self.exceptions.iter().any(is_hole),
        }
    }

    /// Returns true if a loaded row has a hole at a tick.
    pub(crate) fn is_absent(&self, row: usize, tick: usize) -> bool {
        let exception = self.exceptions_of(row).find(|(run, _)| run.contains(&tick));
        match (&self.form, exception) {
            (_, Some((_, value))) => is_absent(*value),
            (Form::Same(value), _) => is_absent(*value),
            (Form::Whole(values), _) => is_absent(values[row * self.ticks + tick]),
            (Form::Floats(pages), _) => {
                let (numbers, first) = pages.row(row);
                is_absent(f64::from_bits(numbers.least() + numbers.get(first + tick)))
            }
            _ => false,
        }
    }

    /// Returns the exceptions of a row, by their ticks within the row.
    fn exceptions_of(&self, row: usize) -> impl Iterator<Item = (Range<usize>, &f64)> {
        let (first, end) = (row * self.ticks, (row + 1) * self.ticks);
        let from = self.exceptions.partition_point(|(run, _)| run.end <= first);
        self.exceptions[from..]
            .iter()
            .take_while(move |(run, _)| run.start < end)
            .map(move |(run, value)| (run.start.max(first) - first..run.end.min(end) - first, value))
    }
}

fn exceptions_of(reader: &mut Reader<'_>, cells: usize) -> Result<Vec<(Range<usize>, f64)>, Corrupt> {
    let mut exceptions = Vec::new();
    let mut end = 0;
    for _ in 0..reader.count(10)? {
        let (gap, length) = (count(reader)?, count(reader)?);
        let start = end + gap;
        end = start + length;
        exceptions.push((start..end, f64::from_le_bytes(reader.array()?)));
    }
    if end > cells {
        return Err(Corrupt("an exception is after the end of its column"));
    }
    Ok(exceptions)
}

impl Scale {
    fn put(&self, (numbers, first): (&Packed, usize), ticks: &Ticks, out: &mut [f64]) {
        let least = numbers.least();
        let low = self.integer(least);
        // Below 2^53 an f64 multiplies and adds integers exactly, and the CPU processes several at once.
        if numbers.is_narrow() && self.step < STEP_MAX && low.unsigned_abs() < INTEGER_MAX.unsigned_abs() >> 1
        {
            let (low, step, power) = (low as f64, self.step as f64, self.power);
            let integer = |above: u64| low + step * f64::from(above as u32);
            // Divisions take the most time here, and most counters are whole numbers.
            if power == 1.0 {
                numbers.put(first, ticks, out, integer);
            } else {
                numbers.put(first, ticks, out, |above| integer(above) / power);
            }
        } else {
            let value = |above| self.integer(least + above) as f64 / self.power;
            numbers.put(first, ticks, out, value);
        }
    }

    fn integer(&self, number: u64) -> i64 {
        self.base
            .wrapping_add(number.wrapping_mul(self.step).cast_signed())
    }
}

impl Axis {
    /// Reads what [`super::put_times`] wrote after its length.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Corrupt> {
        let mut reader = Reader(bytes);
        match reader.peek()? {
            PCO => decompressed(bytes).map(Self::Listed),
            REGULAR => {
                reader.take(1)?;
                let Run {
                    first, step, count, ..
                } = Run::read(&mut reader, 0)?;
                Ok(Self::Regular { first, step, count })
            }
            RUNS => {
                reader.take(1)?;
                let mut end = 0;
                let mut runs = Vec::new();
                for _ in 0..reader.count(3)? {
                    let run = Run::read(&mut reader, end)?;
                    end += run.count;
                    if run.count == 0 || end > COLUMN_MAX {
                        return Err(Corrupt("a run of times is empty or too long"));
                    }
                    runs.push(run);
                }
                if runs.is_empty() {
                    return Err(Corrupt("an axis has no runs"));
                }
                Ok(Self::Runs(runs.into()))
            }
            _ => Err(Corrupt("a column of times has an unknown form")),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Regular { count, .. } => *count,
            Self::Runs(runs) => runs.last().map_or(0, |run| run.tick + run.count),
            Self::Listed(times_ms) => times_ms.len(),
        }
    }

    pub(crate) fn time(&self, tick: usize) -> TimestampMs {
        match self {
            Self::Regular { first, step, .. } => at(*first, *step, tick),
            Self::Runs(runs) => runs[run_of(runs, tick)].time(tick),
            Self::Listed(times_ms) => times_ms[tick],
        }
    }

    /// Returns the ticks within a range of times.
    pub(crate) fn range(&self, TimeRange { start_ms, end_ms }: TimeRange) -> Range<usize> {
        let from = start_ms
            .checked_sub(1)
            .map_or(0, |before_ms| self.first_after(before_ms, 0..self.len()));
        from..self.first_after(end_ms, 0..self.len()).max(from)
    }

    /// Returns the first tick of a range that is later than a time, or the end of the range if there is none.
    pub(crate) fn first_after(&self, time_ms: TimestampMs, range: Range<usize>) -> usize {
        match self {
            Self::Regular { first, step, .. } => {
                ticks_until(time_ms, *first, *step).clamp(range.start, range.end)
            }
            Self::Runs(runs) => {
                let begun = runs.partition_point(|run| run.first <= time_ms);
                let Some(run) = begun.checked_sub(1).map(|last| runs[last]) else {
                    return range.start;
                };
                let within = ticks_until(time_ms, run.first, run.step).min(run.count);
                (run.tick + within).clamp(range.start, range.end)
            }
            Self::Listed(times_ms) => first_after(time_ms, range, |tick| times_ms[tick]),
        }
    }

    /// Returns true if each time is later than the one before.
    pub(crate) fn is_ascending(&self) -> bool {
        match self {
            Self::Regular { first, step, count } => rises(*first, *step, *count),
            Self::Runs(runs) => {
                let mut pairs = runs.windows(2);
                let last = |run: &Run| run.time(run.tick + run.count - 1);
                runs.iter().all(|run| rises(run.first, run.step, run.count))
                    && pairs.all(|pair| last(&pair[0]) < pair[1].first)
            }
            Self::Listed(times_ms) => times_ms.is_sorted_by(|a, b| a < b),
        }
    }

    /// Writes the times of some ticks to `out`, which has one place per tick.
    pub(crate) fn put(&self, ticks: &Ticks, out: &mut [TimestampMs]) {
        match (self, ticks) {
            (Self::Listed(times_ms), ticks) => ticks.put(times_ms, out, |time_ms| time_ms),
            (_, Ticks::All(range)) => put_each(out, self.all(range.clone())),
            (_, Ticks::Some(ticks)) => put_each(out, ticks.iter().map(|tick| self.time(*tick))),
        }
    }

    /// Returns the times of some ticks.
    pub(crate) fn times(&self, ticks: &Ticks) -> Vec<TimestampMs> {
        let mut times_ms = vec![0; ticks.len()];
        self.put(ticks, &mut times_ms);
        times_ms
    }

    /// Returns true if the times of some ticks equal `times_ms`.
    pub(crate) fn is(&self, ticks: &Ticks, times_ms: &[TimestampMs]) -> bool {
        ticks.len() == times_ms.len()
            && match ticks {
                Ticks::All(range) => self.all(range.clone()).eq(times_ms.iter().copied()),
                Ticks::Some(ticks) => {
                    let own = ticks.iter().map(|tick| self.time(*tick));
                    own.eq(times_ms.iter().copied())
                }
            }
    }

    /// Returns the times of a range of ticks.
    fn all(&self, range: Range<usize>) -> impl Iterator<Item = TimestampMs> {
        let (runs, first) = match self {
            Self::Runs(runs) => (&runs[..], run_of(runs, range.start)),
            _ => (&[][..], 0),
        };
        let mut run = first;
        range.map(move |tick| {
            if let Some(next) = runs.get(run + 1)
                && next.tick == tick
            {
                run += 1;
            }
            runs.get(run)
                .map_or_else(|| self.time(tick), |run| run.time(tick))
        })
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Regular { .. } => 0,
            Self::Runs(runs) => size_of_val(&**runs),
            Self::Listed(times_ms) => size_of_val(times_ms.as_slice()),
        }
    }
}

impl Run {
    fn read(reader: &mut Reader<'_>, tick: usize) -> Result<Self, Corrupt> {
        Ok(Self {
            tick,
            first: reader.signed()?,
            step: reader.varint()?,
            count: count(reader)?,
        })
    }

    /// Returns the time of one of its ticks.
    fn time(&self, tick: usize) -> TimestampMs {
        at(self.first, self.step, tick - self.tick)
    }
}

/// Returns the run that contains a tick.
fn run_of(runs: &[Run], tick: usize) -> usize {
    runs.partition_point(|run| run.tick <= tick).saturating_sub(1)
}

fn at(first: TimestampMs, step: u64, tick: usize) -> TimestampMs {
    first.wrapping_add((tick as u64).wrapping_mul(step).cast_signed())
}

/// Returns how many ticks at distance `step` are not later than a time.
fn ticks_until(time_ms: TimestampMs, first: TimestampMs, step: u64) -> usize {
    if time_ms < first {
        return 0;
    }
    let since = time_ms.wrapping_sub(first).cast_unsigned();
    // A step of 0 means a single tick at the first time.
    let ticks = since.checked_div(step).unwrap_or_default().saturating_add(1);
    usize::try_from(ticks).unwrap_or(usize::MAX)
}

/// Returns true if each of `count` ticks is later than the one before.
fn rises(first: TimestampMs, step: u64, count: usize) -> bool {
    let steps = count.saturating_sub(1) as i128;
    let last = i128::from(first) + i128::from(step) * steps;
    (step > 0 || steps == 0) && last <= i128::from(TimestampMs::MAX)
}

fn put_each(out: &mut [TimestampMs], times_ms: impl Iterator<Item = TimestampMs>) {
    for (place, time_ms) in out.iter_mut().zip(times_ms) {
        *place = time_ms;
    }
}

/// Returns the first tick of a range that is later than a time, or the end of the range if there is none. The search starts at
/// the end, because the tick is usually near it.
pub(crate) fn first_after(
    time_ms: TimestampMs,
    range: Range<usize>,
    time: impl Fn(usize) -> TimestampMs,
) -> usize {
    let (mut low, mut high, mut step) = (range.start, range.end, 1);
    while let Some(probe) = high.checked_sub(step).filter(|probe| *probe >= range.start) {
        if time(probe) <= time_ms {
            low = probe + 1;
            break;
        }
        high = probe;
        step *= 2;
    }
    first_not(low..high, |tick| time(tick) <= time_ms)
}

/// Returns the first index of a range for which `is_before` is false, or the end of the range if there is none.
fn first_not(range: Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low.midpoint(high);
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_however_they_are_reckoned() {
        let exact = INTEGER_MAX;
        let bases = [
            0,
            7,
            -7,
            exact / 2 - 1,
            exact / 2,
            1 - exact / 2,
            -exact,
            exact - 1,
        ];
        for base in bases {
            for step in [1, 2, 999, STEP_MAX - 1, STEP_MAX] {
                for most in [0_u64, 1, 255, 70_000, u64::from(u32::MAX), 1 << 33] {
                    for power in [1.0, 1_000.0] {
                        let scale = Scale { base, step, power };
                        let numbers = [3, 3 + most / 3, 3 + most];
                        let mut values = [0.0; 3];
                        scale.put((&Packed::of(&numbers), 0), &Ticks::All(0..3), &mut values);
                        let expected = numbers.map(|number| scale.integer(number) as f64 / power);
                        assert_eq!(
                            values.map(f64::to_bits),
                            expected.map(f64::to_bits),
                            "{scale:?} {most}"
                        );
                    }
                }
            }
        }
    }
}
