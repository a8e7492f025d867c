//! Numbers of several rows, compressed by pco. The rows share pco's bins, and each has its own page, so that reading one row of
//! eight takes an eighth of the work.
//!
//! ```text
//! varint  rows per page
//! varints bytes of each page except the last
//! pco's header, pco's bins, the pages
//! ```
//! A page costs about ten bytes, so short rows share one.

use std::sync::OnceLock;

use pco::data_types::Number;
use pco::wrapped::{ChunkDecompressor, FileCompressor, FileDecompressor};
use pco::{ChunkConfig, PagingSpec};

use super::codec::{Corrupt, Reader, put_varint};
use super::packed::{Packed, Word, with_unpacked};

/// The minimum number of numbers in a page. With more, the ten bytes are less than one percent.
const PAGE_MIN: usize = 128;
/// The maximum number of numbers in pages. This is pco's own limit.
pub(crate) const NUMBERS_MAX: usize = 1 << 24;

/// Rows of numbers. Each row is decompressed when it is first needed.
#[derive(Debug)]
pub(crate) struct Pages {
    rows: usize,
    /// Numbers per row.
    ticks: usize,
    rows_per_page: usize,
    /// The position of pco's header in the column.
    header: usize,
    pages: Box<[Page]>,
}

#[derive(Debug)]
struct Page {
    /// The start and end after pco's bins. `None` for the last page, which ends with the column.
    start: usize,
    end: Option<usize>,
    numbers: OnceLock<Packed>,
}

/// Writes the numbers of `rows` rows: at least one, at most [`NUMBERS_MAX`].
pub(crate) fn put<T: Number>(out: &mut Vec<u8>, numbers: &[T], rows: usize, config: ChunkConfig) {
    let ticks = numbers.len() / rows;
    let rows_per_page = PAGE_MIN.div_ceil(ticks).min(rows);
    let lengths = numbers.chunks(rows_per_page * ticks).map(<[T]>::len);
    let config = config.with_paging_spec(PagingSpec::Exact(lengths.collect()));
    let file = FileCompressor::default();
    let mut chunk = file
        .chunk_compressor(numbers, &config)
        .expect("the configuration is valid and the count within pco's bound");
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    for page in 0..rows.div_ceil(rows_per_page) {
        chunk
            .write_page(page, &mut bytes)
            .expect("memory takes all that is written");
        ends.push(bytes.len());
    }
    put_varint(out, rows_per_page as u64);
    let mut start = 0;
    for end in &ends[..ends.len() - 1] {
        put_varint(out, (end - start) as u64);
        start = *end;
    }
    file.write_header(&mut *out)
        .expect("memory takes all that is written");
    chunk
        .write_meta(&mut *out)
        .expect("memory takes all that is written");
    out.extend_from_slice(&bytes);
}

impl Pages {
    /// Reads the positions of the pages that [`put`] wrote, from the reader's position to the end of the column.
    pub(crate) fn open(
        column: &[u8],
        mut reader: Reader<'_>,
        rows: usize,
        ticks: usize,
    ) -> Result<Self, Corrupt> {
        if ticks == 0 {
            return Err(Corrupt("a page has no numbers"));
        }
        let rows_per_page = usize::try_from(reader.varint()?)
            .ok()
            .filter(|rows_per_page| (1..=rows).contains(rows_per_page))
            .ok_or(Corrupt("a page has no rows"))?;
        let (mut pages, mut start) = (Vec::new(), 0);
        let page = |start, end| Page {
            start,
            end,
            numbers: OnceLock::new(),
        };
        for _ in 1..rows.div_ceil(rows_per_page) {
            let end = start + reader.count(1)?;
            pages.push(page(start, Some(end)));
            start = end;
        }
        pages.push(page(start, None));
        Ok(Self {
            rows,
            ticks,
            rows_per_page,
            header: column.len() - reader.0.len(),
            pages: pages.into(),
        })
    }

    /// Decompresses the pages of these rows that are not loaded. `column` is the one it was opened with, `rows` is ascending,
    /// and `T` is the type of the numbers. Returns the bytes of memory that they take.
    pub(crate) fn load<T: Number + Word>(&self, column: &[u8], rows: &[usize]) -> Result<usize, Corrupt> {
        if rows.iter().all(|row| self.page(*row).numbers.get().is_some()) {
            return Ok(0);
        }
        let header = column.get(self.header..).ok_or(TOO_EARLY)?;
        let (file, rest) = FileDecompressor::new(header).map_err(damaged)?;
        let (mut chunk, rest) = file.chunk_decompressor::<T, _>(rest).map_err(damaged)?;
        let mut bytes = 0;
        for row in rows {
            let (at, page) = (row / self.rows_per_page, self.page(*row));
            if page.numbers.get().is_some() {
                continue;
            }
            let rows_here = self.rows_per_page.min(self.rows - at * self.rows_per_page);
            let of_page = rest.get(page.start..page.end.unwrap_or(rest.len()));
            let of_page = of_page.ok_or(TOO_EARLY)?;
            let packed = with_unpacked(rows_here * self.ticks, |numbers: &mut [T]| {
                read_page(&mut chunk, of_page, numbers).map(|()| Packed::of(numbers))
            })?;
            let new = packed.bytes();
            // Another query may have set them first.
            if page.numbers.set(packed).is_ok() {
                bytes += new;
            }
        }
        Ok(bytes)
    }

    /// Returns true if all rows are loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.pages.iter().all(|page| page.numbers.get().is_some())
    }

    /// Returns the numbers of the page of a loaded row, and the start of the row in them.
    ///
    /// # Panics
    /// Panics if the row is not loaded.
    pub(crate) fn row(&self, row: usize) -> (&Packed, usize) {
        let numbers = self.page(row).numbers.get().expect("the row was loaded");
        (numbers, row % self.rows_per_page * self.ticks)
    }

    fn page(&self, row: usize) -> &Page {
        &self.pages[row / self.rows_per_page]
    }

    /// Returns the memory in bytes, without loaded rows.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.pages)
    }
}

fn read_page<T: Number>(
    chunk: &mut ChunkDecompressor<T>,
    page: &[u8],
    numbers: &mut [T],
) -> Result<(), Corrupt> {
    let mut page = chunk.page_decompressor(page, numbers.len()).map_err(damaged)?;
    let progress = page.read(numbers).map_err(damaged)?;
    if progress.finished && progress.n_processed == numbers.len() {
        Ok(())
    } else {
        Err(Corrupt("a page has too few numbers"))
    }
}

const TOO_EARLY: Corrupt = Corrupt("a page ends too early");

fn damaged(_: pco::errors::PcoError) -> Corrupt {
    Corrupt("a page cannot be decompressed")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn read(column: &[u8], rows: usize, ticks: usize, wanted: &[usize]) -> Result<Vec<u32>, Corrupt> {
        let pages = Pages::open(column, Reader(column), rows, ticks)?;
        let bytes = pages.load::<u32>(column, wanted)?;
        assert!(bytes >= wanted.len() * (ticks - 1), "two numbers differ");
        assert_eq!(pages.load::<u32>(&[], wanted), Ok(0), "they are there");
        if wanted.len() == rows {
            assert!(pages.is_loaded());
        }
        let mut numbers = Vec::new();
        for row in wanted {
            let (packed, first) = pages.row(*row);
            let number = |tick| (packed.least() + packed.get(first + tick)) as u32;
            numbers.extend((0..ticks).map(number));
        }
        Ok(numbers)
    }

    /// Checks that any rows of a matrix are read as they were written.
    fn check(rows: usize, ticks: usize, pages: u64) {
        let numbers: Vec<u32> = (0..rows * ticks)
            .map(|n| (n * 37 % 101 + n / ticks * 1_000) as u32)
            .collect();
        let mut out = Vec::new();
        put(&mut out, &numbers, rows, ChunkConfig::default());
        assert_eq!(
            rows.div_ceil(Reader(&out).varint().unwrap() as usize) as u64,
            pages
        );
        let all: Vec<usize> = (0..rows).collect();
        let some: [&[usize]; 5] = [&all, &[], &[0], &[rows - 1], &all[rows / 2..]];
        for wanted in some {
            let expected: Vec<u32> = wanted
                .iter()
                .flat_map(|row| &numbers[row * ticks..][..ticks])
                .copied()
                .collect();
            assert_eq!(read(&out, rows, ticks, wanted).unwrap(), expected);
        }
        for at in 0..out.len() {
            assert!(read(&out[..at], rows, ticks, &all).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn rows_are_read_alone() {
        check(8, 300, 8);
        check(8, 256, 8);
        check(1, 1_000, 1);
        check(64, 5, 3);
        check(3, 1, 1);
        check(7, 60, 3);
    }
}
