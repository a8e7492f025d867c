//! When the collector received the parts of a log: a file of marks beside each segment.
//!
//! ```text
//! 00000000000008388608.times    offset since the mark before it, time since the mark before it, …   each a LEB128 number
//! ```
//! The first mark counts from the segment's start and from 1970. The bytes from the offset of a mark on arrived at its time, up to the next
//! mark. Times are in microseconds. Each write of a run has its own time, and times never decrease within a log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const ENDING: &str = ".times";
/// Maximum length of a number and of a mark, in bytes.
const NUMBER_BYTES_MAX: usize = 10;
const MARK_BYTES_MAX: u64 = 2 * NUMBER_BYTES_MAX as u64;

/// The bytes from `offset` on arrived at `time_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) offset: u64,
    pub(super) time_us: u64,
}

/// Returns the file of the marks of the segment that starts at `start`.
pub(super) fn path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("{start:020}{ENDING}"))
}

/// Returns the start of the segment whose marks are in a file of this name.
pub(super) fn segment_of(name: &str) -> Option<u64> {
    name.strip_suffix(ENDING)?.parse().ok()
}

/// Appends a mark. Returns by how many bytes the file has grown.
pub(super) fn append(path: &Path, mark: Mark, before: Mark) -> io::Result<u64> {
    let mut bytes = Vec::new();
    encode(&mut bytes, mark, before);
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(&bytes)?;
    Ok(bytes.len() as u64)
}

/// Returns all marks of a segment. A segment of an earlier version has none.
pub(super) fn read(path: &Path, start: u64) -> io::Result<Vec<Mark>> {
    let bytes = read_bytes(path, u64::MAX)?;
    Ok(decode(&bytes, origin(start), u64::MAX).0)
}

/// Returns the first mark of a segment.
pub(super) fn read_first(path: &Path, start: u64) -> io::Result<Option<Mark>> {
    let bytes = read_bytes(path, MARK_BYTES_MAX)?;
    Ok(decode(&bytes, origin(start), u64::MAX).0.first().copied())
}

/// Removes what a crash has left: half a mark, and marks of bytes that were lost. Returns the mark to which the next one is relative, and
/// the size of the file in bytes.
pub(super) fn repair(path: &Path, start: u64, end: u64) -> io::Result<(Mark, u64)> {
    let bytes = read_bytes(path, u64::MAX)?;
    let (marks, used) = decode(&bytes, origin(start), end);
    if used < bytes.len() {
        // The marks before are not written again: that could fail on a full disk.
        OpenOptions::new().write(true).open(path)?.set_len(used as u64)?;
    }
    Ok((marks.last().copied().unwrap_or(origin(start)), used as u64))
}

/// Removes the marks of a segment.
pub(super) fn remove(folder: &Path, start: u64) -> io::Result<()> {
    match fs::remove_file(path(folder, start)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn origin(start: u64) -> Mark {
    Mark {
        offset: start,
        time_us: 0,
    }
}

fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        file => _ = file?.take(limit).read_to_end(&mut bytes)?,
    }
    Ok(bytes)
}

fn encode(out: &mut Vec<u8>, mark: Mark, before: Mark) {
    put(out, mark.offset.saturating_sub(before.offset));
    put(out, mark.time_us.saturating_sub(before.time_us));
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns the complete marks up to an offset, and how many bytes they have.
fn decode(bytes: &[u8], mut before: Mark, until: u64) -> (Vec<Mark>, usize) {
    let (mut marks, mut used) = (Vec::new(), 0);
    while let Some((mark, length)) = decode_one(&bytes[used..], before)
        && mark.offset <= until
    {
        marks.push(mark);
        before = mark;
        used += length;
    }
    (marks, used)
}

fn decode_one(bytes: &[u8], before: Mark) -> Option<(Mark, usize)> {
    let (offset, first) = number(bytes)?;
    let (time_us, second) = number(&bytes[first..])?;
    let mark = Mark {
        offset: before.offset.checked_add(offset)?,
        time_us: before.time_us.checked_add(time_us)?,
    };
    // A crash may leave zeros in the file. No bytes arrived in 1970, or after the last time that can be returned.
    let is_time = mark.time_us > 0 && i64::try_from(mark.time_us).is_ok();
    is_time.then_some((mark, first + second))
}

fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    let (mut value, mut shift) = (0_u64, 0_u32);
    for (at, byte) in bytes.iter().enumerate().take(NUMBER_BYTES_MAX) {
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(offset: u64, time_us: u64) -> Mark {
        Mark { offset, time_us }
    }

    #[test]
    fn marks_are_read_back_and_what_a_crash_has_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = 5 << 20;
        let path = path(folder.path(), start);
        assert!(
            read(&path, start).expect("reads").is_empty(),
            "an earlier version"
        );
        let marks = [
            mark(start, 1_764_375_441_000_000),
            mark(start + 100, 1_764_375_441_000_001),
            mark(start + 70_000, 1_764_375_999_000_000),
        ];
        let mut before = origin(start);
        let mut size = 0;
        for mark in marks {
            size += append(&path, mark, before).expect("appends");
            before = mark;
        }
        assert_eq!(read(&path, start).expect("reads"), marks);
        assert_eq!(read_first(&path, start).expect("reads"), Some(marks[0]));
        assert_eq!(
            repair(&path, start, start + 80_000).expect("reads"),
            (marks[2], size)
        );
        // Half a mark.
        let mut file = OpenOptions::new().append(true).open(&path).expect("opens");
        file.write_all(&[5, 0x80]).expect("writes");
        assert_eq!(read(&path, start).expect("reads"), marks);
        assert_eq!(
            repair(&path, start, start + 80_000).expect("repairs"),
            (marks[2], size)
        );
        assert_eq!(fs::metadata(&path).expect("exists").len(), size);
        // The bytes after the second mark were lost.
        let (last, _) = repair(&path, start, start + 200).expect("repairs");
        assert_eq!(last, marks[1]);
        assert_eq!(read(&path, start).expect("reads"), &marks[..2]);
    }

    #[test]
    fn zeros_and_impossible_times_are_no_marks() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = path(folder.path(), 0);
        for bytes in [vec![0_u8; 64], [vec![0_u8], vec![0xff; 9], vec![1]].concat()] {
            fs::write(&path, &bytes).expect("writes");
            assert!(read(&path, 0).expect("reads").is_empty(), "{bytes:?}");
            assert_eq!(read_first(&path, 0).expect("reads"), None);
            assert_eq!(repair(&path, 0, 10).expect("repairs"), (origin(0), 0));
            assert_eq!(fs::metadata(&path).expect("exists").len(), 0);
        }
    }

    #[test]
    fn the_file_of_a_segment_has_its_name() {
        assert_eq!(segment_of("00000000000008388608.times"), Some(8 << 20));
        for name in ["00000000000008388608", "00000000000000000000-17.zst", "packing"] {
            assert_eq!(segment_of(name), None, "{name}");
        }
    }
}
