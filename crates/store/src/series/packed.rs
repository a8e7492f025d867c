//! Numbers in memory in their narrowest form: the differences to the smallest number, in as few bytes as the largest difference
//! needs. A constant gauge takes no bytes, a temperature one byte per value, a counter of bytes seven.

use std::cell::Cell;
use std::thread::LocalKey;

use super::ticks::Ticks;

/// A number type whose values map one-to-one to 64 bits.
pub(crate) trait Word: Copy + Default + 'static {
    fn word(self) -> u64;

    /// Returns the thread's buffer for numbers that are copied from a chunk to memory.
    fn unpacked() -> &'static LocalKey<Cell<Vec<Self>>>;
}

/// The size up to which a thread keeps its buffer: more than a row of a full chunk.
const UNPACKED_KEPT_MAX: usize = 1 << 15;

/// Calls `use_it` with a buffer of `count` numbers. It is the same buffer each time: a new one would often be fresh memory,
/// which the kernel clears page by page.
pub(crate) fn with_unpacked<T: Word, R>(count: usize, use_it: impl FnOnce(&mut [T]) -> R) -> R {
    let mut numbers = T::unpacked().take();
    if numbers.len() < count {
        numbers.resize(count, T::default());
    }
    let used = use_it(&mut numbers[..count]);
    if numbers.len() <= UNPACKED_KEPT_MAX {
        T::unpacked().set(numbers);
    }
    used
}

macro_rules! word {
    ($number:ty, $word:expr) => {
        impl Word for $number {
            fn word(self) -> u64 {
                $word(self)
            }

            fn unpacked() -> &'static LocalKey<Cell<Vec<Self>>> {
                thread_local!(static UNPACKED: Cell<Vec<$number>> = const { Cell::new(Vec::new()) });
                &UNPACKED
            }
        }
    };
}

word!(u16, u64::from);
word!(u32, u64::from);
word!(u64, u64::from);
word!(f64, f64::to_bits);

#[derive(Debug)]
pub(crate) struct Packed {
    least: u64,
    /// Bytes per number: 0 to 8.
    width: usize,
    bytes: Box<[u8]>,
}

impl Packed {
    pub(crate) fn of<T: Word>(numbers: &[T]) -> Self {
        let (mut least, mut most) = (u64::MAX, 0);
        for number in numbers {
            least = least.min(number.word());
            most = most.max(number.word());
        }
        let bits = u64::BITS - most.saturating_sub(least).leading_zeros();
        let width = bits.div_ceil(u8::BITS) as usize;
        let bytes = match width {
            0 => Box::default(),
            1 => pack::<1, T>(numbers, least),
            2 => pack::<2, T>(numbers, least),
            3 => pack::<3, T>(numbers, least),
            4 => pack::<4, T>(numbers, least),
            5 => pack::<5, T>(numbers, least),
            6 => pack::<6, T>(numbers, least),
            7 => pack::<7, T>(numbers, least),
            _ => pack::<8, T>(numbers, least),
        };
        Self { least, width, bytes }
    }

    pub(crate) fn least(&self) -> u64 {
        self.least
    }

    /// Returns true if the differences to the smallest number fit into 32 bits.
    pub(crate) fn is_narrow(&self) -> bool {
        self.width <= size_of::<u32>()
    }

    /// Returns the bytes of memory of its numbers.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the difference of a number to the smallest one.
    pub(crate) fn get(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word[..self.width].copy_from_slice(&self.bytes[at * self.width..][..self.width]);
        u64::from_le_bytes(word)
    }

    /// Applies `value` to the differences at some ticks of the row that begins at `first`, and writes the results to `out`.
    pub(crate) fn put(&self, first: usize, ticks: &Ticks, out: &mut [f64], value: impl Fn(u64) -> f64) {
        match self.width {
            0 => out.fill(value(0)),
            1 => self.put_of::<1>(first, ticks, out, value),
            2 => self.put_of::<2>(first, ticks, out, value),
            3 => self.put_of::<3>(first, ticks, out, value),
            4 => self.put_of::<4>(first, ticks, out, value),
            5 => self.put_of::<5>(first, ticks, out, value),
            6 => self.put_of::<6>(first, ticks, out, value),
            7 => self.put_of::<7>(first, ticks, out, value),
            _ => self.put_of::<8>(first, ticks, out, value),
        }
    }

    fn put_of<const WIDTH: usize>(
        &self,
        first: usize,
        ticks: &Ticks,
        out: &mut [f64],
        value: impl Fn(u64) -> f64,
    ) {
        let (words, _) = self.bytes.as_chunks::<WIDTH>();
        ticks.put(&words[first..], out, |word| value(unpacked(word)));
    }
}

fn pack<const WIDTH: usize, T: Word>(numbers: &[T], least: u64) -> Box<[u8]> {
    let mut bytes = vec![0; numbers.len() * WIDTH].into_boxed_slice();
    let (places, _) = bytes.as_chunks_mut::<WIDTH>();
    for (place, number) in places.iter_mut().zip(numbers) {
        let word = (number.word() - least).to_le_bytes();
        place.copy_from_slice(&word[..WIDTH]);
    }
    bytes
}

fn unpacked<const WIDTH: usize>(bytes: [u8; WIDTH]) -> u64 {
    let mut word = [0; 8];
    word[..WIDTH].copy_from_slice(&bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width_come_back() {
        for width in 0..=8 {
            let most = if width == 0 {
                0
            } else {
                u64::MAX >> (64 - 8 * width)
            };
            for least in [0, 1, u64::MAX - most] {
                let numbers: Vec<u64> = [0, most, most / 3, most / 2, most]
                    .iter()
                    .map(|above| above + least.min(u64::MAX - most))
                    .collect();
                let packed = Packed::of(&numbers);
                assert_eq!(packed.bytes(), width * numbers.len());
                assert_eq!(packed.is_narrow(), width <= 4);
                let all = |at: usize| packed.least() + packed.get(at);
                assert!((0..numbers.len()).map(all).eq(numbers.iter().copied()));
                for (first, ticks, expected) in [
                    (0, Ticks::All(1..4), &numbers[1..4]),
                    (2, Ticks::All(0..3), &numbers[2..5]),
                    (1, Ticks::Some(vec![0, 2]), &[numbers[1], numbers[3]][..]),
                ] {
                    let mut out = vec![0.0; ticks.len()];
                    packed.put(first, &ticks, &mut out, |above| {
                        f64::from_bits(packed.least() + above)
                    });
                    assert!(
                        out.iter()
                            .map(|value| value.to_bits())
                            .eq(expected.iter().copied())
                    );
                }
            }
        }
        assert_eq!(Packed::of::<u16>(&[]).bytes(), 0);
        assert_eq!(Packed::of(&[1.5, 1.5]).bytes(), 0);
        assert_eq!(Packed::of(&[-0.0, 0.0]).bytes(), 16);
    }
}
