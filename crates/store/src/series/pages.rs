//! Numbers of several rows by pco: the rows share the bins, and each has a page of its own, so that one row of a node's eight
//! is read for an eighth of the work.
//!
//! ```text
//! varint  rows a page
//! varints bytes of each page but the last
//! pco's header, pco's bins, the pages
//! ```
//! A page costs some ten bytes, so short rows share one.

use pco::data_types::Number;
use pco::wrapped::{ChunkDecompressor, FileCompressor, FileDecompressor};
use pco::{ChunkConfig, PagingSpec};

use super::codec::{Corrupt, Reader, put_varint};

/// The fewest numbers of a page; ten bytes are less than a hundredth of more.
const PAGE_MIN: usize = 128;
/// The most numbers that pages are for: pco's own bound.
pub(crate) const NUMBERS_MAX: usize = 1 << 24;

/// A matrix that numbers are read out of, row after row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// How many rows it has.
    pub(crate) rows: usize,
    /// Numbers a row.
    pub(crate) ticks: usize,
    /// The rows to be read, ascending.
    pub(crate) wanted: &'a [usize],
}

/// Writes the numbers of so many rows, at most [`NUMBERS_MAX`] and not none.
pub(crate) fn put<T: Number>(out: &mut Vec<u8>, numbers: &[T], rows: usize, config: ChunkConfig) {
    let ticks = numbers.len() / rows;
    let rows_a_page = PAGE_MIN.div_ceil(ticks).min(rows);
    let lengths = numbers.chunks(rows_a_page * ticks).map(<[T]>::len);
    let config = config.with_paging_spec(PagingSpec::Exact(lengths.collect()));
    let file = FileCompressor::default();
    let mut chunk = file
        .chunk_compressor(numbers, &config)
        .expect("the configuration is valid and the count within pco's bound");
    let mut bytes = Vec::new();
    let mut ends = Vec::new();
    for page in 0..rows.div_ceil(rows_a_page) {
        chunk
            .write_page(page, &mut bytes)
            .expect("memory takes all that is written");
        ends.push(bytes.len());
    }
    put_varint(out, rows_a_page as u64);
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

/// Reads the wanted rows of what [`put`] wrote.
pub(crate) fn read<T: Number>(reader: &mut Reader<'_>, matrix: Matrix<'_>) -> Result<Vec<T>, Corrupt> {
    let Matrix { rows, ticks, wanted } = matrix;
    if ticks == 0 {
        return Err(Corrupt("a page has no numbers"));
    }
    let rows_a_page = usize::try_from(reader.varint()?)
        .ok()
        .filter(|rows_a_page| (1..=rows).contains(rows_a_page))
        .ok_or(Corrupt("a page has no rows"))?;
    let mut lengths = Vec::new();
    for _ in 1..rows.div_ceil(rows_a_page) {
        lengths.push(reader.count(1)?);
    }
    let (file, rest) = FileDecompressor::new(reader.0).map_err(damaged)?;
    let (mut chunk, mut rest) = file.chunk_decompressor::<T, _>(rest).map_err(damaged)?;
    let mut numbers = vec![T::default(); wanted.len() * ticks];
    let mut done = 0;
    let mut page_numbers = Vec::new();
    for (first, length) in (0..rows)
        .step_by(rows_a_page)
        .zip(lengths.into_iter().map(Some).chain([None]))
    {
        let length = length.unwrap_or(rest.len());
        let page;
        (page, rest) = rest
            .split_at_checked(length)
            .ok_or(Corrupt("a page ends too early"))?;
        let here = rows_a_page.min(rows - first);
        let of_page =
            wanted.partition_point(|row| *row < first)..wanted.partition_point(|row| *row < first + here);
        let to = &mut numbers[done..done + of_page.len() * ticks];
        done += to.len();
        if of_page.len() == here {
            read_page(&mut chunk, page, to)?;
        } else if !of_page.is_empty() {
            page_numbers.resize(here * ticks, T::default());
            read_page(&mut chunk, page, &mut page_numbers)?;
            for (row, to) in wanted[of_page].iter().zip(to.chunks_mut(ticks)) {
                let from = (row - first) * ticks;
                to.copy_from_slice(&page_numbers[from..from + ticks]);
            }
        }
    }
    Ok(numbers)
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

fn damaged(_: pco::errors::PcoError) -> Corrupt {
    Corrupt("a page cannot be decompressed")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Any rows of a matrix are read as they were written.
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
            assert_eq!(
                read::<u32>(&mut Reader(&out), Matrix { rows, ticks, wanted }).unwrap(),
                expected
            );
        }
        for at in 0..out.len() {
            let matrix = Matrix {
                rows,
                ticks,
                wanted: &all,
            };
            assert!(
                read::<u32>(&mut Reader(&out[..at]), matrix).is_err(),
                "cut at {at}"
            );
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
