//! One log on disk: segments, each named by its start offset in the log.
//!
//! ```text
//! rank-3.stdout/
//!   00000000000000000000-1048576.zst    full, packed; its length is in its name
//!   00000000000007340032-1048576.zst    the segments before it were dropped: the run's logs were too large
//!   00000000000008388608                being written
//!   00000000000008388608.times          when its parts arrived, see [`times`]; every segment has one
//! ```
//! A log that is too large loses its middle: its head shows how the run was started, its end why it ended. The names show where bytes are
//! missing, so this survives a restart, and readers see it in the text.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::READS_MAX;
use super::times::{self, Mark};

/// A segment of this size is closed and packed: small enough to be read quickly from its middle, large enough to compress well.
pub(super) const SEGMENT_BYTES: u64 = 1 << 20;
/// A single file of an earlier version may be much longer. It is not packed, because it would have to be in memory.
const PACKED_BYTES_MAX: u64 = 8 << 20;
/// A fast compression level: 300 MB/s on one core. The text of logs still shrinks to a tenth.
const PACKING_LEVEL: i32 = 1;

/// The segments of one log, in order.
#[derive(Debug)]
pub(super) struct LogFile {
    folder: PathBuf,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    start: u64,
    /// Length in bytes of log text.
    length: u64,
    /// Size on disk, in bytes.
    disk: u64,
    packed: bool,
    /// Size of its marks on disk, in bytes.
    times: u64,
    /// The last mark, once it is known.
    marked: Option<Mark>,
}

/// The content at an offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Bytes without a gap.
    Bytes(Vec<u8>),
    /// Nothing up to this offset.
    Missing { until: u64 },
}

impl LogFile {
    /// Opens a log. A log that does not exist yet has no segments.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        adopt_single_file(folder)?;
        for _ in 1..READS_MAX {
            match Self::list(folder) {
                // A segment was packed or dropped since the folder was listed. Without it, its bytes would seem to be missing.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                log => return log,
            }
        }
        Self::list(folder)
    }

    fn list(folder: &Path) -> io::Result<Self> {
        let (mut segments, mut times_bytes) = (Vec::new(), HashMap::new());
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let (start, segment) = (times::segment_of(name), Segment::from_name(name));
            if start.is_none() && segment.is_none() {
                continue;
            }
            let meta = match entry.metadata() {
                // The marks of a dropped segment.
                Err(_) if segment.is_none() => continue,
                meta => meta?,
            };
            if let Some(start) = start {
                times_bytes.insert(start, meta.len());
            }
            let Some(mut segment) = segment else { continue };
            segment.disk = meta.len();
            if !segment.packed {
                segment.length = meta.len();
            }
            segments.push(segment);
        }
        // If both forms exist, the packed one is complete: it got its name last.
        segments.sort_by_key(|segment| (segment.start, !segment.packed));
        segments.dedup_by_key(|segment| segment.start);
        for segment in &mut segments {
            segment.times = times_bytes.get(&segment.start).copied().unwrap_or(0);
        }
        Ok(Self {
            folder: folder.to_owned(),
            segments,
        })
    }

    /// Returns the length of the log, missing bytes included.
    pub(super) fn end(&self) -> u64 {
        self.segments.last().map_or(0, Segment::end)
    }

    /// Returns the size on disk, in bytes.
    pub(super) fn disk(&self) -> u64 {
        self.segments
            .iter()
            .map(|segment| segment.disk + segment.times)
            .sum()
    }

    /// Returns when the last bytes arrived; 0 if that is not known.
    pub(super) fn last_us(&mut self) -> io::Result<u64> {
        for segment in self.segments.iter_mut().rev() {
            let last_us = segment.last_mark(&self.folder)?.time_us;
            if last_us > 0 {
                return Ok(last_us);
            }
        }
        Ok(0)
    }

    /// Appends at an offset that is not before the end. If the offset is after the end, a gap of missing bytes remains. The bytes arrived
    /// at `time_us`.
    pub(super) fn append(&mut self, offset: u64, mut bytes: &[u8], time_us: u64) -> io::Result<()> {
        let fits = |last: &Segment| !last.packed && last.end() == offset && last.length < SEGMENT_BYTES;
        if !self.segments.last().is_some_and(fits) {
            self.begin(offset)?;
        }
        while let Some(last) = self.segments.last_mut() {
            let room = usize::try_from(SEGMENT_BYTES - last.length)
                .unwrap_or(0)
                .min(bytes.len());
            let (now, rest) = bytes.split_at(room);
            // Before the bytes: a reader never sees them with the time of earlier bytes.
            if !now.is_empty() {
                last.mark(&self.folder, time_us)?;
            }
            let path = self.folder.join(last.name());
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(now)?;
            last.length += now.len() as u64;
            last.disk = last.length;
            bytes = rest;
            if bytes.is_empty() {
                break;
            }
            let next = last.end();
            self.begin(next)?;
        }
        Ok(())
    }

    /// Drops the last segment, so that everything up to `end` is missing.
    pub(super) fn cut_end(&mut self, end: u64) -> io::Result<()> {
        if let Some(last) = self.segments.pop() {
            fs::remove_file(self.folder.join(last.name()))?;
            times::remove(&self.folder, last.start)?;
        }
        self.begin(end)
    }

    /// Packs the complete segments, and with `all` also the open one; later bytes then go into a new segment.
    pub(super) fn pack(&mut self, all: bool) -> io::Result<()> {
        let open = self.segments.len().saturating_sub(usize::from(!all));
        for segment in self.segments[..open].iter_mut().filter(|segment| !segment.packed) {
            segment.pack(&self.folder)?;
        }
        Ok(())
    }

    /// Drops the oldest segment that is neither the head nor the end or, with `head`, the head. Returns how many bytes that freed.
    pub(super) fn drop_one(&mut self, head: bool) -> io::Result<u64> {
        let at = usize::from(!head);
        if self.segments.len() < at + 2 {
            return Ok(0);
        }
        let segment = self.segments.remove(at);
        fs::remove_file(self.folder.join(segment.name()))?;
        times::remove(&self.folder, segment.start)?;
        Ok(segment.disk + segment.times)
    }

    /// Returns the number of segments between the head and the end.
    pub(super) fn droppable(&self) -> usize {
        self.segments.len().saturating_sub(2)
    }

    /// Returns the content at an offset before the end, at most `limit` bytes.
    pub(super) fn read(&self, offset: u64, limit: u64) -> io::Result<Found> {
        let Some(segment) = self.segments.iter().find(|segment| segment.end() > offset) else {
            return Ok(Found::Missing {
                until: self.end().max(offset),
            });
        };
        if segment.start > offset {
            return Ok(Found::Missing { until: segment.start });
        }
        let (skip, length) = (offset - segment.start, segment.length - (offset - segment.start));
        segment
            .read(&self.folder, skip, length.min(limit))
            .map(Found::Bytes)
    }

    /// Returns true if a line of the first segment may have no time, because an earlier version stored it.
    pub(super) fn is_untimed(&self) -> io::Result<bool> {
        let Some(first) = self.segments.first().filter(|first| first.length > 0) else {
            return Ok(false);
        };
        let mark = self.first_mark(0)?;
        Ok(mark.is_none_or(|mark| mark.offset > first.start))
    }

    /// Returns the index of the segment that contains the offset, or of the last one before it.
    pub(super) fn segment_at(&self, offset: u64) -> usize {
        let begun = self.segments.partition_point(|segment| segment.start <= offset);
        begun.saturating_sub(1)
    }

    /// Returns the index of the last segment with a mark whose first bytes had arrived at `time_us`, or 0.
    pub(super) fn segment_until(&self, time_us: u64) -> io::Result<usize> {
        let (mut low, mut high) = (0, self.segments.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let marked = self.last_marked(middle)?;
            if marked.is_none_or(|(_, first)| first.time_us <= time_us) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let marked = self.last_marked(low.saturating_sub(1))?;
        Ok(marked.map_or(0, |(segment, _)| segment))
    }

    /// Returns the last segment up to this one that has marks, and its first mark.
    fn last_marked(&self, segment: usize) -> io::Result<Option<(usize, Mark)>> {
        for at in (0..=segment).rev() {
            if let Some(first) = self.first_mark(at)? {
                return Ok(Some((at, first)));
            }
        }
        Ok(None)
    }

    /// Returns the start of a segment.
    pub(super) fn start_of(&self, segment: usize) -> Option<u64> {
        self.segments.get(segment).map(|segment| segment.start)
    }

    /// Returns the marks of a segment.
    pub(super) fn marks(&self, segment: usize) -> io::Result<Vec<Mark>> {
        match self.start_of(segment) {
            Some(start) => times::read(&times::path(&self.folder, start), start),
            None => Ok(Vec::new()),
        }
    }

    fn first_mark(&self, segment: usize) -> io::Result<Option<Mark>> {
        match self.start_of(segment) {
            Some(start) => times::read_first(&times::path(&self.folder, start), start),
            None => Ok(None),
        }
    }

    /// Returns where the bytes that arrived at this time begin. Their last mark is in this segment.
    pub(super) fn start_of_write(&self, segment: usize, time_us: u64) -> io::Result<Option<u64>> {
        let mut start = None;
        for at in (0..=segment).rev() {
            let marks = self.marks(at)?;
            let earlier = marks.partition_point(|mark| mark.time_us < time_us);
            let first = marks.get(earlier).filter(|mark| mark.time_us == time_us);
            start = first.map(|mark| mark.offset).or(start);
            // The write may have begun in the segment before.
            if earlier > 0 || first.is_none() {
                break;
            }
        }
        Ok(start)
    }

    /// Returns the first mark of the segments after this one.
    pub(super) fn first_mark_after(&self, segment: usize) -> io::Result<Option<Mark>> {
        for at in segment + 1..self.segments.len() {
            if let Some(first) = self.first_mark(at)? {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Returns where the missing bytes begin that end at this offset.
    pub(super) fn gap_before(&self, offset: u64) -> Option<u64> {
        let at = self.segments.iter().position(|segment| segment.start == offset)?;
        let before = at.checked_sub(1).map_or(0, |before| self.segments[before].end());
        (before < offset).then_some(before)
    }

    /// Reads across the borders of segments until there are `limit` bytes, the end, or a gap.
    pub(super) fn read_on(&self, offset: u64, limit: u64) -> io::Result<Found> {
        let mut bytes = Vec::new();
        loop {
            let (at, left) = (offset + bytes.len() as u64, limit - bytes.len() as u64);
            if left == 0 || (at >= self.end() && !bytes.is_empty()) {
                return Ok(Found::Bytes(bytes));
            }
            match self.read(at, left)? {
                Found::Bytes(more) if more.is_empty() => return Ok(Found::Bytes(bytes)),
                Found::Bytes(more) => bytes.extend(more),
                missing @ Found::Missing { .. } if bytes.is_empty() => return Ok(missing),
                Found::Missing { .. } => return Ok(Found::Bytes(bytes)),
            }
        }
    }

    fn begin(&mut self, start: u64) -> io::Result<()> {
        self.pack(true)?;
        fs::create_dir_all(&self.folder)?;
        let segment = Segment {
            start,
            length: 0,
            disk: 0,
            packed: false,
            times: 0,
            marked: None,
        };
        File::create(self.folder.join(segment.name()))?;
        self.segments.push(segment);
        Ok(())
    }
}

impl Segment {
    fn from_name(name: &str) -> Option<Self> {
        let (start, length) = match name.strip_suffix(".zst") {
            Some(name) => {
                let (start, length) = name.split_once('-')?;
                (start, Some(length.parse().ok()?))
            }
            None => (name, None),
        };
        Some(Self {
            start: start.parse().ok()?,
            length: length.unwrap_or(0),
            disk: 0,
            packed: length.is_some(),
            times: 0,
            marked: None,
        })
    }

    fn name(&self) -> String {
        if self.packed {
            format!("{:020}-{}.zst", self.start, self.length)
        } else {
            format!("{:020}", self.start)
        }
    }

    fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Records when the bytes after the end arrived.
    fn mark(&mut self, folder: &Path, time_us: u64) -> io::Result<()> {
        let before = self.last_mark(folder)?;
        let mark = Mark {
            offset: self.end(),
            time_us: time_us.max(before.time_us),
        };
        self.times += times::append(&times::path(folder, self.start), mark, before)?;
        self.marked = Some(mark);
        Ok(())
    }

    fn last_mark(&mut self, folder: &Path) -> io::Result<Mark> {
        if let Some(mark) = self.marked {
            return Ok(mark);
        }
        let path = times::path(folder, self.start);
        let (mark, size) = times::repair(&path, self.start, self.end())?;
        (self.marked, self.times) = (Some(mark), size);
        Ok(mark)
    }

    /// Packs the segment. The packed file gets its name when it is complete, and only then the other file is removed: at a crash, one of
    /// them always exists.
    fn pack(&mut self, folder: &Path) -> io::Result<()> {
        if self.length == 0 || self.length > PACKED_BYTES_MAX {
            return Ok(());
        }
        let plain = folder.join(self.name());
        let bytes = fs::read(&plain)?;
        let packed = Self {
            length: bytes.len() as u64,
            packed: true,
            ..self.clone()
        };
        let beside = folder.join("packing");
        let packed_bytes = zstd::bulk::compress(&bytes, PACKING_LEVEL)?;
        fs::write(&beside, &packed_bytes)?;
        fs::rename(&beside, folder.join(packed.name()))?;
        fs::remove_file(plain)?;
        *self = Self {
            disk: packed_bytes.len() as u64,
            ..packed
        };
        Ok(())
    }

    fn read(&self, folder: &Path, skip: u64, length: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(folder.join(self.name()))?;
        let mut bytes = Vec::new();
        if self.packed {
            let mut whole = zstd::stream::read::Decoder::new(file)?;
            io::copy(&mut (&mut whole).take(skip), &mut io::sink())?;
            whole.take(length).read_to_end(&mut bytes)?;
        } else {
            file.seek(SeekFrom::Start(skip))?;
            file.take(length).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }
}

/// In earlier versions a log was a single file. Such a file becomes the first segment of its log, however long it is.
fn adopt_single_file(folder: &Path) -> io::Result<()> {
    if !folder.is_file() {
        return Ok(());
    }
    let mut beside = folder.as_os_str().to_owned();
    beside.push(".adopted");
    fs::rename(folder, &beside)?;
    fs::create_dir_all(folder)?;
    fs::rename(&beside, folder.join(format!("{:020}", 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(from: u64, length: u64) -> Vec<u8> {
        (from..from + length).map(|n| (n % 251) as u8).collect()
    }

    #[test]
    fn full_segments_are_packed_and_read_back_at_any_offset() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("rank-0.stdout");
        let mut log = LogFile::open(&path).expect("opens");
        assert_eq!(log.end(), 0);
        let length = 3 * SEGMENT_BYTES + 17;
        let mut at = 0;
        while at < length {
            let piece = bytes(at, (length - at).min(100_000));
            log.append(at, &piece, at).expect("appends");
            at += piece.len() as u64;
        }
        assert!(log.disk() < length / 2, "{}", log.disk());
        let again = LogFile::open(&path).expect("opens");
        assert_eq!((again.end(), again.disk()), (length, log.disk()));
        for offset in [0, 5, SEGMENT_BYTES - 1, 2 * SEGMENT_BYTES, length - 3] {
            let found = again.read_on(offset, 1_000).expect("reads");
            assert_eq!(
                found,
                Found::Bytes(bytes(offset, 1_000.min(length - offset))),
                "at {offset}"
            );
        }
    }

    #[test]
    fn dropped_bytes_are_known_after_a_restart_and_head_and_end_stay() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("rank-0.stdout");
        let mut log = LogFile::open(&path).expect("opens");
        log.append(0, &bytes(0, 4 * SEGMENT_BYTES), 1).expect("appends");
        assert_eq!(log.droppable(), 2);
        assert!(log.drop_one(false).expect("drops") > 0);
        assert!(log.drop_one(false).expect("drops") > 0);
        assert_eq!(log.drop_one(false).expect("answers"), 0);
        log.append(5 * SEGMENT_BYTES, b"", 2).expect("notes");
        let again = LogFile::open(&path).expect("opens");
        assert_eq!(again.end(), 5 * SEGMENT_BYTES);
        let missing = |until| Found::Missing { until };
        assert_eq!(
            again.read_on(SEGMENT_BYTES + 3, 9).expect("reads"),
            missing(3 * SEGMENT_BYTES)
        );
        assert_eq!(
            again.read_on(4 * SEGMENT_BYTES, 9).expect("reads"),
            missing(5 * SEGMENT_BYTES)
        );
        let to_the_gap = again.read_on(SEGMENT_BYTES - 2, 9).expect("reads");
        assert_eq!(to_the_gap, Found::Bytes(bytes(SEGMENT_BYTES - 2, 2)));
    }

    #[test]
    fn a_log_that_is_opened_while_its_segments_are_packed_never_seems_shorter() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("rank-0.stdout");
        let pieces = 3 * SEGMENT_BYTES / (64 << 10);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut log = LogFile::open(&path).expect("opens");
                let piece = [b'x'; 64 << 10];
                for n in 0..pieces {
                    log.append(log.end(), &piece, n + 1).expect("appends");
                }
            });
            let mut end = 0;
            while !writer.is_finished() {
                let now = LogFile::open(&path).expect("opens").end();
                assert!(now >= end, "{now} after {end}");
                end = now;
            }
        });
        let end = LogFile::open(&path).expect("opens").end();
        assert_eq!(end, 3 * SEGMENT_BYTES);
    }

    #[test]
    fn a_log_of_an_earlier_version_is_continued() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("rank-0.stdout");
        fs::write(&path, "old ").expect("writes");
        let mut log = LogFile::open(&path).expect("opens");
        log.append(4, b"new", 1).expect("appends");
        let found = LogFile::open(&path)
            .expect("opens")
            .read_on(0, 100)
            .expect("reads");
        assert_eq!(found, Found::Bytes(b"old new".to_vec()));
    }
}
