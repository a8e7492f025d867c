//! Compressed columns of numbers: the times and values of a chunk.
//!
//! ```text
//! values   01  8 bytes, varint count                         all with the same bits
//!          04  byte digits, exceptions, signed base,         integers: value = (base + step * number) / 10^digits,
//!              varint step, byte width, pages                the numbers of 2, 4 or 8 bytes in pages.rs
//!          05  pages                                         the f64s: numbers that are not short decimals
//!          "pco!" …                                          the f64s in one piece: more than fit pages
//! times    "pco!" …                                          the i64s, compressed by pco
//!          03  signed first, varint step, varint count       a regular axis
//!          06  varint runs, each like 03                     an axis with gaps or occasional changes of step
//! exceptions   varint runs, each: varint gap since the end of the last one, varint length, 8 bytes
//! ```
//! The values are those of several rows, one row after another. Any row can be read alone.
//!
//! Nearly all measured values began as a decimal (watts, degrees, ratios) or an integer. As integers they take half the time
//! and 10 % less space than with pco's own search for a float's base; without their base and step most fit into two bytes. A
//! value that does not fit the digits (a hole, a staleness marker, an unusual NaN) is an exception, so that it does not spoil
//! the column. Everything is bit-exact: a value is stored as an integer only if the division gives back exactly its bits.

mod opened;

use pco::standalone::{simple_compress, simple_decompress};
use pco::{ChunkConfig, DeltaSpec, ModeSpec};

pub(crate) use self::opened::{Axis, Column, first_after};
use super::codec::{Corrupt, Reader, put_bytes, put_signed, put_varint};
use super::pages;

const SAME: u8 = 1;
const REGULAR: u8 = 3;
const DECIMAL: u8 = 4;
const FLOATS: u8 = 5;
const RUNS: u8 = 6;
/// The first byte of pco's own format.
const PCO: u8 = b'p';

/// 10^digits. Six digits are microseconds; no reader measures more.
const POWERS: [f64; 7] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6];
/// From this value on, not every integer is representable as an f64.
const INTEGER_MAX: i64 = 1 << 53;
/// The number of values inspected to choose the digits, the order of differences and the common divisor.
const SAMPLES: usize = 128;
/// The maximum number of numbers in a column. It keeps a damaged count from allocating all memory.
const COLUMN_MAX: usize = 1 << 25;

/// How much time to spend on a smaller encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// For the first write. The chunk is written again, within one hour if samples arrive every second.
    Seal,
    /// For the last write.
    Merge,
}

impl Effort {
    /// Returns pco's compression level. On GPU series of 8 × 300, level 5 takes 16 ns per sample; level 8 takes 23 ns and saves
    /// 1.5 %. At 8 × 3,600, level 8 takes 24 ns and saves 2.5 %.
    fn level(self) -> usize {
        match self {
            Self::Seal => 5,
            Self::Merge => 8,
        }
    }
}

/// Writes the values of `rows` rows of equal length.
pub(crate) fn put_values(out: &mut Vec<u8>, values: &[f64], rows: usize, effort: Effort) {
    let mut column = Vec::new();
    let first = values.first().copied().unwrap_or_default();
    if values.iter().all(|value| value.to_bits() == first.to_bits()) {
        column.push(SAME);
        column.extend_from_slice(&first.to_le_bytes());
        put_varint(&mut column, values.len() as u64);
    } else if values.len() > pages::NUMBERS_MAX {
        column = compressed(values, &config(effort));
    } else if let Some(decimals) = Decimals::of(values) {
        column.push(DECIMAL);
        decimals.put(&mut column, rows, effort);
    } else {
        column.push(FLOATS);
        pages::put(&mut column, values, rows, config(effort));
    }
    put_bytes(out, &column);
}

/// Reads some rows, ascending, with all their ticks. `bytes` is what [`put_values`] wrote after its length.
pub(crate) fn values(
    bytes: &[u8],
    (rows, ticks): (usize, usize),
    wanted: &[usize],
) -> Result<Vec<f64>, Corrupt> {
    let column = Column::open(bytes, rows, ticks)?;
    column.load(bytes, wanted)?;
    Ok(column.rows(wanted))
}

const OTHER_LENGTH: Corrupt = Corrupt("the length of a column does not match its frame");

pub(crate) fn put_times(out: &mut Vec<u8>, times_ms: &[i64]) {
    let mut column = Vec::new();
    let put = |column: &mut Vec<u8>, run: &[i64]| {
        put_signed(column, run[0]);
        put_varint(column, step_of(run));
        put_varint(column, run.len() as u64);
    };
    match runs(times_ms).as_deref() {
        Some([run]) => {
            column.push(REGULAR);
            put(&mut column, run);
        }
        Some(runs) => {
            column.push(RUNS);
            put_varint(&mut column, runs.len() as u64);
            runs.iter().for_each(|run| put(&mut column, run));
        }
        None => column = times_by_pco(times_ms),
    }
    put_bytes(out, &column);
}

fn count(reader: &mut Reader<'_>) -> Result<usize, Corrupt> {
    let count = reader.varint()?;
    usize::try_from(count)
        .ok()
        .filter(|count| *count <= COLUMN_MAX)
        .ok_or(Corrupt("a count is too large"))
}

/// The minimum average number of ticks per run for which runs are worth it.
const RUN_MIN: usize = 32;

/// Splits an axis into runs of equal steps. Returns `None` if the runs are too short or the times are not ascending.
fn runs(times_ms: &[i64]) -> Option<Vec<&[i64]>> {
    let runs_max = times_ms.len().div_ceil(RUN_MIN);
    let (mut runs, mut rest) = (Vec::new(), times_ms);
    while !rest.is_empty() {
        let step = step_of(rest);
        let steps = rest.windows(2);
        let same = steps.take_while(|pair| pair[1] > pair[0] && step_of(pair) == step);
        let (run, behind) = rest.split_at(same.count() + 1);
        if runs.len() == runs_max || behind.first().is_some_and(|next| *next <= run[run.len() - 1]) {
            return None;
        }
        runs.push(run);
        rest = behind;
    }
    (!runs.is_empty()).then_some(runs)
}

/// Returns the difference of the first two times, or 0 for a single time.
fn step_of(times_ms: &[i64]) -> u64 {
    match times_ms {
        [first, second, ..] => second.wrapping_sub(*first).cast_unsigned(),
        _ => 0,
    }
}

// === decimals ===

/// Values as integers of a power of ten, with exceptions.
struct Decimals {
    digits: u8,
    integers: Vec<i64>,
    exceptions: Vec<Run>,
}

/// Neighbouring values with the same bits.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: usize,
    length: usize,
    bits: u64,
}

impl Decimals {
    /// Returns `None` if too many values fit no number of digits.
    fn of(values: &[f64]) -> Option<Self> {
        let fewest = digits_of_sample(values)?;
        (fewest..POWERS.len()).find_map(|digits| Self::with_digits(values, digits))
    }

    fn with_digits(values: &[f64], digits: usize) -> Option<Self> {
        let exceptions_max = values.len() / 64 + 2;
        let mut exceptions: Vec<Run> = Vec::new();
        let mut integers = Vec::with_capacity(values.len());
        let mut last = values.iter().find_map(|value| integer(*value, digits))?;
        for (at, &value) in values.iter().enumerate() {
            if let Some(integer) = integer(value, digits) {
                last = integer;
            } else {
                let bits = value.to_bits();
                let fits = |run: &&mut Run| run.bits == bits && run.start + run.length == at;
                if let Some(run) = exceptions.last_mut().filter(fits) {
                    run.length += 1;
                } else if exceptions.len() == exceptions_max {
                    return None;
                } else {
                    exceptions.push(Run {
                        start: at,
                        length: 1,
                        bits,
                    });
                }
            }
            // An exception repeats its neighbour, which costs almost nothing.
            integers.push(last);
        }
        Some(Self {
            digits: digits as u8,
            integers,
            exceptions,
        })
    }

    fn put(&self, out: &mut Vec<u8>, rows: usize, effort: Effort) {
        out.push(self.digits);
        put_varint(out, self.exceptions.len() as u64);
        let mut end = 0;
        for run in &self.exceptions {
            put_varint(out, (run.start - end) as u64);
            put_varint(out, run.length as u64);
            out.extend_from_slice(&run.bits.to_le_bytes());
            end = run.start + run.length;
        }
        put_integers(out, &self.integers, rows, effort);
    }
}

/// Returns the integer that, divided by 10^digits, gives exactly the bits of the value.
fn integer(value: f64, digits: usize) -> Option<i64> {
    let scaled = value * POWERS[digits];
    let integer = (scaled + 0.5_f64.copysign(scaled)) as i64;
    let fits = integer.unsigned_abs() < INTEGER_MAX.unsigned_abs()
        && (integer as f64 / POWERS[digits]).to_bits() == value.to_bits();
    fits.then_some(integer)
}

/// Returns the number of digits that most sampled values need, or `None` if more than one in eight needs more than the maximum.
fn digits_of_sample(values: &[f64]) -> Option<usize> {
    let step = values.len().div_ceil(SAMPLES);
    let finite = values.iter().step_by(step).filter(|value| value.is_finite());
    let (mut most, mut seen, mut without) = (0, 0, 0);
    for &value in finite {
        seen += 1;
        match (most..POWERS.len()).find(|digits| integer(value, *digits).is_some()) {
            Some(digits) => most = digits,
            None => without += 1,
        }
    }
    (without * 8 <= seen).then_some(most)
}

/// Returns the power of ten that makes all finite values integers, if there is one.
pub(crate) fn power_of(values: &[f64]) -> Option<f64> {
    let digits = digits_of_sample(values)?;
    let fits = |digits: &usize| {
        let mut finite = values.iter().filter(|value| value.is_finite());
        finite.all(|value| integer(*value, *digits).is_some())
    };
    (digits..POWERS.len()).find(fits).map(|digits| POWERS[digits])
}

// === pco ===

/// Writes integers without their common base and step, so that they are short. It does not use pco's own search for mode and
/// differences, which costs as much as the compression: about a hundred integers of a metric show its shape.
fn put_integers(out: &mut Vec<u8>, integers: &[i64], rows: usize, effort: Effort) {
    let (divisor, order) = shape(integers);
    let base = integers.iter().copied().min().unwrap_or_default();
    let above = || {
        integers
            .iter()
            .map(|integer| integer.wrapping_sub(base).cast_unsigned())
    };
    let divides = divisor > 1 && above().all(|number| number % divisor == 0);
    let step = if divides { divisor } else { 1 };
    let mode = if divisor > 1 && !divides {
        ModeSpec::TryIntMult(divisor)
    } else {
        ModeSpec::Classic
    };
    let config = config(effort)
        .with_mode_spec(mode)
        .with_delta_spec(DeltaSpec::TryConsecutive(order));
    let largest = above().max().unwrap_or_default() / step;
    put_signed(out, base);
    put_varint(out, step);
    let numbers = || above().map(|number| number / step);
    if u16::try_from(largest).is_ok() {
        out.push(2);
        pages::put(
            out,
            &numbers().map(|number| number as u16).collect::<Vec<_>>(),
            rows,
            config,
        );
    } else if u32::try_from(largest).is_ok() {
        out.push(4);
        pages::put(
            out,
            &numbers().map(|number| number as u32).collect::<Vec<_>>(),
            rows,
            config,
        );
    } else {
        out.push(8);
        pages::put(out, &numbers().collect::<Vec<_>>(), rows, config);
    }
}

fn times_by_pco(times_ms: &[i64]) -> Vec<u8> {
    let (divisor, order) = shape(times_ms);
    let mode = if divisor > 1 {
        ModeSpec::TryIntMult(divisor)
    } else {
        ModeSpec::Classic
    };
    let config = config(Effort::Seal)
        .with_mode_spec(mode)
        .with_delta_spec(DeltaSpec::TryConsecutive(order));
    compressed(times_ms, &config)
}

fn config(effort: Effort) -> ChunkConfig {
    ChunkConfig::default().with_compression_level(effort.level())
}

fn compressed<T: pco::data_types::Number>(numbers: &[T], config: &ChunkConfig) -> Vec<u8> {
    simple_compress(numbers, config).expect("the configuration is valid and memory is the only sink")
}

fn decompressed<T: pco::data_types::Number>(bytes: &[u8]) -> Result<Vec<T>, Corrupt> {
    simple_decompress(bytes).map_err(|_| Corrupt("a column cannot be decompressed"))
}

/// Returns the common divisor of all differences, and how often to take differences. It chooses the order with the least
/// spread, measured as the distance between members of the column at arbitrary positions.
fn shape(integers: &[i64]) -> (u64, usize) {
    let Some(places) = integers.len().checked_sub(2).filter(|places| *places > 4) else {
        return (1, 0);
    };
    let differences = |place: usize| {
        let [a, b, c] = [integers[place + 2], integers[place + 1], integers[place]];
        let first = a.wrapping_sub(b);
        [a, first, first.wrapping_sub(b.wrapping_sub(c))]
    };
    let (mut divisor, mut bits) = (0_u64, [0_u32; 3]);
    let samples = SAMPLES.min(places);
    for n in 0..samples {
        // The second position advances by a large prime, so that it does not always meet the same phase of another series.
        let (here, there) = (
            differences(n * places / samples),
            differences((n * 7_919 + 31) % places),
        );
        for (bits, (a, b)) in bits.iter_mut().zip(here.iter().zip(there)) {
            *bits += u64::BITS - a.abs_diff(b).leading_zeros();
        }
        divisor = greatest_common_divisor(divisor, here[0].abs_diff(there[0]));
    }
    let order = (0..bits.len()).min_by_key(|order| bits[*order]).unwrap_or(0);
    (divisor, order)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::{ABSENT, STALE};
    use domain::time::TimeRange;

    use super::*;
    use crate::series::ticks::Ticks;

    fn written(values: &[f64], rows: usize) -> Vec<u8> {
        let mut out = Vec::new();
        put_values(&mut out, values, rows, Effort::Seal);
        Reader(&out).bytes().unwrap().to_vec()
    }

    fn read(column: &[u8], count: usize, rows: usize, wanted: &[usize]) -> Result<Vec<f64>, Corrupt> {
        values(column, (rows, count / rows), wanted)
    }

    /// Checks that values in the expected form read back bit by bit, as a whole and by rows.
    fn check(numbers: &[f64], form: u8) {
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for effort in [Effort::Seal, Effort::Merge] {
            for rows in (1..=10).filter(|rows| numbers.len().is_multiple_of(*rows)) {
                let mut out = Vec::new();
                put_values(&mut out, numbers, rows, effort);
                let column = Reader(&out).bytes().unwrap();
                assert_eq!(column[0], form, "{numbers:?}");
                let all: Vec<usize> = (0..rows).collect();
                assert_eq!(
                    bits(&read(column, numbers.len(), rows, &all).unwrap()),
                    bits(numbers)
                );
                for row in all {
                    let expected = &numbers[row * numbers.len() / rows..][..numbers.len() / rows];
                    assert_eq!(
                        bits(&read(column, numbers.len(), rows, &[row]).unwrap()),
                        bits(expected)
                    );
                }
            }
        }
    }

    #[test]
    fn every_form_reads_back_bit_by_bit() {
        check(&[7.5; 3], SAME);
        check(&[ABSENT; 9], SAME);
        check(&[-0.0; 2], SAME);
        let watts: Vec<f64> = (0..500)
            .map(|n| f64::from(40_000 + n * 7 % 311) / 100.0)
            .collect();
        check(&watts, DECIMAL);
        let counter: Vec<f64> = (0..500).map(|n| 9e14 + f64::from(n) * 1e6).collect();
        check(&counter, DECIMAL);
        let mut marked = watts.clone();
        (marked[0], marked[7], marked[499]) = (ABSENT, -0.0, STALE);
        marked[100..200].fill(f64::NAN);
        marked[200] = f64::from_bits(0xfff8_dead_beef_0001);
        check(&marked, DECIMAL);
        let noise: Vec<f64> = (1..500).map(|n| f64::from(n).ln()).collect();
        check(&noise, FLOATS);
        check(&[f64::INFINITY, ABSENT, 5e-324, f64::NAN], FLOATS);
        check(&[f64::MAX, 1.0, f64::MIN_POSITIVE, -1e300], FLOATS);
    }

    #[test]
    fn times_read_back_regular_or_not() {
        for axis in [
            vec![5],
            vec![i64::MIN, i64::MAX],
            (0..100).map(|n| 1_790_000_000_000 + n * 1_000).collect(),
            (0..100).map(|n| 1_790_000_000_000 + n * 1_000 + n % 3).collect(),
            // Every fifteen seconds, a gap, every second, one late tick, every second.
            (0..40)
                .map(|n| n * 15_000)
                .chain((900..1_000).map(|n| n * 1_000))
                .chain([1_000_500])
                .chain((1_002..1_100).map(|n| n * 1_000))
                .collect(),
            vec![1, 2, i64::MAX - 1, i64::MAX],
        ] {
            let mut out = Vec::new();
            put_times(&mut out, &axis);
            let read = Axis::open(Reader(&out).bytes().unwrap()).unwrap();
            let (length, third) = (axis.len(), (0..axis.len()).step_by(3).collect());
            let within = [(0, length), (length / 3, length / 2), (length, length)];
            for ticks in within
                .map(|(from, to)| Ticks::All(from..to))
                .into_iter()
                .chain([Ticks::Some(third)])
            {
                let times = read.times(&ticks);
                assert_eq!(times, ticks.of(&axis));
                assert!(read.is(&ticks, &times) && !read.is(&ticks, &[0; 7]));
            }
            assert!(read.is_ascending());
            assert_eq!(read.range(TimeRange::new(axis[0], axis[0])), 0..1);
            assert_eq!(
                read.range(TimeRange::new(axis[axis.len() - 1], i64::MAX)),
                axis.len() - 1..axis.len()
            );
        }
    }

    #[test]
    fn a_constant_and_a_regular_axis_cost_next_to_nothing() {
        assert!(written(&[81_920_000_000.0; 28_800], 8).len() < 16);
        let mut out = Vec::new();
        put_times(&mut out, &(0..3_600).map(|n| n * 1_000).collect::<Vec<_>>());
        assert!(out.len() < 16);
    }

    #[test]
    fn numbers_that_share_a_divisor_or_grow_evenly_are_seen_through() {
        let clocks: Vec<i64> = (0..999).map(|n| (n * n * 31 % 57 + 100) * 15_000_000).collect();
        assert_eq!(shape(&clocks).0, 15_000_000);
        let counter: Vec<i64> = (0..999_i64)
            .map(|n| n * 400_000 + n.wrapping_mul(0x9e37_79b9_7f4a).rotate_left(17).rem_euclid(1_009))
            .collect();
        assert_eq!(shape(&counter), (1, 1));
        let ramp: Vec<i64> = (0..999).map(|n| n * n).collect();
        assert_eq!(shape(&ramp).1, 2);
        let mut state = 1_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 57).cast_signed()
        };
        let noise: Vec<i64> = (0..999).map(|_| random()).collect();
        assert_eq!(shape(&noise).1, 0);
    }

    #[test]
    fn damaged_columns_are_errors() {
        let mut huge = vec![SAME];
        huge.extend_from_slice(&[0; 8]);
        put_varint(&mut huge, u64::MAX);
        let mut wide = vec![DECIMAL, 0];
        put_varint(&mut wide, 1);
        put_varint(&mut wide, 1 << 24);
        put_varint(&mut wide, 1);
        wide.extend_from_slice(&[0; 8]);
        put_integers(&mut wide, &[1, 2, 3], 1, Effort::Seal);
        for bad in [&[][..], &[9], &[DECIMAL, 99, 0], &huge, &wide] {
            assert!(read(bad, 3, 1, &[0]).is_err(), "{bad:?}");
        }
        for bad in [
            &[REGULAR, 0][..],
            &[RUNS, 0],
            &[RUNS, 1, 0, 1, 0],
            &[RUNS, 200, 1, 0, 1, 1],
        ] {
            assert!(Axis::open(bad).is_err(), "{bad:?}");
        }
        let falls = Axis::open(&[RUNS, 2, 10, 1, 5, 14, 1, 5]).unwrap();
        assert!(!falls.is_ascending(), "the second run begins within the first");
    }

    #[test]
    fn the_first_tick_behind_a_time_is_found() {
        let times: Vec<i64> = (0..50).map(|n| n * 10).collect();
        let regular = |count| Axis::Regular {
            first: 0,
            step: 10,
            count,
        };
        for (start, end) in [(0, 50), (7, 8), (7, 40), (3, 3)] {
            for time_ms in (-5..505).chain([i64::MIN, i64::MAX]) {
                let expected = (start..end).find(|tick| times[*tick] > time_ms).unwrap_or(end);
                let run = |tick, first, step, count| opened::Run {
                    tick,
                    first,
                    step,
                    count,
                };
                let runs = Axis::Runs([run(0, 0, 10, 1), run(1, 10, 10, 30), run(31, 310, 10, 19)].into());
                for axis in [regular(50), runs, Axis::Listed(times.clone())] {
                    let found = axis.first_after(time_ms, start..end);
                    assert_eq!(found, expected, "{time_ms} in {start}..{end} of {axis:?}");
                }
            }
        }
        assert_eq!(regular(50).range(TimeRange::new(i64::MIN, i64::MAX)), 0..50);
        assert_eq!(regular(50).range(TimeRange::new(10, 20)), 1..3);
        assert_eq!(regular(50).range(TimeRange::new(11, 19)), 2..2);
        let single = Axis::Regular {
            first: 7,
            step: 0,
            count: 1,
        };
        assert_eq!(
            (
                single.range(TimeRange::new(7, 7)),
                single.range(TimeRange::new(8, 9))
            ),
            (0..1, 1..1)
        );
    }
}
