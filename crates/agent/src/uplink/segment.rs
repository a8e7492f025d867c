//! A segment of the spool: consecutive batches with their own dictionary of series, in a file (or in memory, while the disk cannot be
//! written).
//!
//! ```text
//! file name   CREATED_MS-SEGMENT.seg       SEGMENT: 16 random hex digits, the name in messages
//! 0   magic   "lockspl1"
//! 8   acked   u64 LE        batches up to this one are stored by the collector; overwritten in place
//! 16  record* each          u32 LE length of kind + payload
//!                           u32 LE crc32c of kind + payload
//!                           u8     kind: 1 wire::Definitions, 2 wire::Batch
//!                           …      payload, as it is sent
//! ```
//! Records are appended before they are sent, and never changed. The agent does not call fsync. A kill of the agent leaves all records
//! whole. After a power failure the segment ends before the first record whose checksum is wrong.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use domain::series::Labels;
use domain::time::TimestampMs;
use foldhash::fast::RandomState;
use prost::Message;
use wire::proto::{Batch, Definitions, Series};
use wire::version::MESSAGE_BYTES_MAX;

use super::batch;
use crate::sample::sink::Sample;

const MAGIC: &[u8; 8] = b"lockspl1";
const HEADER_BYTES: u64 = 16;
const RECORD_HEADER_BYTES: usize = 8;
const DEFINITIONS: u8 = 1;
const BATCH: u8 = 2;
/// The maximum number of series in one record of definitions. More would come close to the size limit of a message.
const DEFINITIONS_MAX: usize = 4_096;

/// A record of a segment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    /// The labels of series.
    Definitions(Definitions),
    /// Samples.
    Batch(Batch),
}

/// A segment of the spool.
#[derive(Debug)]
pub(crate) struct Segment {
    name: String,
    body: Body,
    length: u64,
    started: Instant,
    dictionary: HashMap<Labels, u32, RandomState>,
    last_seq: u64,
    acked: u64,
    /// The batches after `acked`, in order.
    waiting: VecDeque<PendingBatch>,
    /// Batches that the collector refused while earlier batches are not acknowledged.
    refused: BTreeSet<u64>,
}

/// A batch that is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct PendingBatch {
    samples: u64,
    bytes: u64,
}

#[derive(Debug)]
enum Body {
    /// The file is open only while the segment grows: after a long outage there are more segments than a process may open files.
    File(Option<File>, PathBuf),
    Memory(Vec<u8>),
}

impl Segment {
    /// Starts a segment in a folder.
    pub(crate) fn create(folder: &Path, now_ms: TimestampMs) -> io::Result<Self> {
        let name = random_name();
        let path = folder.join(format!("{now_ms:013}-{name}.seg"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let written = file
            .write_all_at(MAGIC, 0)
            .and_then(|()| file.write_all_at(&0_u64.to_le_bytes(), 8));
        if let Err(error) = written {
            // Remove the empty segment file: it has no use, least of all on a full disk.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self::new(name, Body::File(Some(file), path)))
    }

    /// Starts a segment in memory. It is lost when the agent restarts.
    pub(crate) fn in_memory() -> Self {
        Self::new(random_name(), Body::Memory(vec![0; HEADER_BYTES as usize]))
    }

    /// Opens a segment that an earlier agent wrote. Returns `None` if the file is not a segment.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        let Some((_, name)) = stem.split_once('-') else {
            return Ok(None);
        };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut header = [0; HEADER_BYTES as usize];
        if file.read_exact_at(&mut header, 0).is_err() || header[..8] != *MAGIC {
            return Ok(None);
        }
        let mut segment = Self::new(name.to_owned(), Body::File(Some(file), path.to_owned()));
        let acked = u64::from_le_bytes(header[8..].try_into().expect("eight of sixteen bytes"));
        segment.scan(acked)?;
        segment.close();
        Ok(Some(segment))
    }

    fn new(name: String, body: Body) -> Self {
        Self {
            name,
            body,
            length: HEADER_BYTES,
            started: Instant::now(),
            dictionary: HashMap::default(),
            last_seq: 0,
            acked: 0,
            waiting: VecDeque::new(),
            refused: BTreeSet::new(),
        }
    }

    /// Finds the end of the last whole record, and the batches that are not acknowledged.
    fn scan(&mut self, acked: u64) -> io::Result<()> {
        let size = self.body.size()?;
        self.length = size;
        let mut offset = HEADER_BYTES;
        while let Some((record, next)) = self.read(offset)? {
            if let Record::Batch(batch) = record {
                self.last_seq = batch.seq;
                if batch.seq > acked {
                    self.waiting.push_back(PendingBatch {
                        samples: samples(&batch),
                        bytes: next - offset,
                    });
                }
            }
            offset = next;
        }
        self.length = offset;
        self.acked = acked.min(self.last_seq);
        Ok(())
    }

    // === Properties ===

    /// Returns the name of the segment in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns when the segment was started or opened.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Returns the number of the last batch.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Returns true if the segment is on disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.body, Body::File(..))
    }

    /// Returns true if the collector has acknowledged (or refused) all batches.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of bytes of batches that are not acknowledged.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting.iter().map(|batch| batch.bytes).sum()
    }

    /// Returns the number of samples that are not acknowledged.
    pub(crate) fn waiting_samples(&self) -> u64 {
        self.waiting.iter().map(|batch| batch.samples).sum()
    }

    /// Returns the number of batches that are not acknowledged.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    // === Writing ===

    /// Appends a batch, and the definitions of series that are new in it. After an error the segment is unchanged.
    pub(crate) fn append(&mut self, samples: &[Sample]) -> io::Result<()> {
        let mut fresh: Vec<&Labels> = Vec::new();
        let known = self.dictionary.len() as u32;
        let mut added: HashMap<&Labels, u32> = HashMap::new();
        let indexed: Vec<batch::Indexed> = samples
            .iter()
            .map(|sample| {
                let series = self.dictionary.get(&sample.series).copied().unwrap_or_else(|| {
                    *added.entry(&sample.series).or_insert_with(|| {
                        fresh.push(&sample.series);
                        known + fresh.len() as u32 - 1
                    })
                });
                (series, sample.at_ms, sample.value)
            })
            .collect();
        let mut bytes = Vec::new();
        for (n, names) in fresh.chunks(DEFINITIONS_MAX).enumerate() {
            let first = known + (n * DEFINITIONS_MAX) as u32;
            let series: Vec<Series> = names.iter().map(|labels| wire::labels::encode(labels)).collect();
            put_record(
                &mut bytes,
                DEFINITIONS,
                &Definitions {
                    segment: self.name.clone(),
                    first,
                    series,
                },
            );
        }
        let start = bytes.len();
        let batch = wire::frame::encode(&self.name, self.last_seq + 1, &batch::frames(indexed));
        put_record(&mut bytes, BATCH, &batch);
        self.body.write(self.length, &bytes)?;
        self.waiting.push_back(PendingBatch {
            samples: crate::uplink::segment::samples(&batch),
            bytes: (bytes.len() - start) as u64,
        });
        self.length += bytes.len() as u64;
        self.last_seq += 1;
        let added: Vec<(Labels, u32)> = added
            .into_iter()
            .map(|(labels, index)| (labels.clone(), index))
            .collect();
        self.dictionary.extend(added);
        Ok(())
    }

    /// Records that the collector has stored all batches up to `seq`.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        let mut seq = seq.min(self.last_seq).max(self.acked);
        while self.refused.remove(&(seq + 1)) {
            seq += 1;
        }
        self.refused.retain(|refused| *refused > seq);
        self.waiting.drain(
            ..usize::try_from(seq - self.acked).map_or(self.waiting.len(), |n| n.min(self.waiting.len())),
        );
        if seq > self.acked {
            self.acked = seq;
            self.body.note_acked(seq);
        }
    }

    /// Records that the collector refused `seq`. Returns how many samples are lost, and 0 if it was refused before.
    pub(crate) fn refuse(&mut self, seq: u64) -> u64 {
        let Some(place) = seq
            .checked_sub(self.acked + 1)
            .and_then(|n| usize::try_from(n).ok())
        else {
            return 0;
        };
        let Some(batch) = self.waiting.get(place).copied() else {
            return 0;
        };
        if !self.refused.insert(seq) {
            return 0;
        }
        self.acknowledge(self.acked);
        batch.samples
    }

    /// Closes the file. No more batches are appended.
    pub(crate) fn close(&mut self) {
        if let Body::File(file, _) = &mut self.body {
            *file = None;
        }
    }

    /// Deletes the file of the segment.
    pub(crate) fn delete(self) {
        if let Body::File(_, path) = self.body
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(?path, %error, "cannot delete a spool segment that is no longer needed");
        }
    }

    // === Reading ===

    /// Returns the next record after `offset` that the collector needs, and the offset after it: all definitions, and the batches that are
    /// not acknowledged. Returns `None` at the end.
    pub(crate) fn next(&self, offset: u64) -> io::Result<Option<(Record, u64)>> {
        let mut offset = offset.max(HEADER_BYTES);
        while let Some((record, next)) = self.read(offset)? {
            let needed = match &record {
                Record::Definitions(_) => true,
                Record::Batch(batch) => batch.seq > self.acked && !self.refused.contains(&batch.seq),
            };
            if needed {
                return Ok(Some((record, next)));
            }
            offset = next;
        }
        Ok(None)
    }

    /// Returns the record at `offset`, or `None` if no whole record follows.
    fn read(&self, offset: u64) -> io::Result<Option<(Record, u64)>> {
        let left = self.length.saturating_sub(offset);
        if left < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let header = self.body.read(offset, RECORD_HEADER_BYTES)?;
        let word =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four of eight bytes"));
        let (length, checksum) = (word(0) as usize, word(4));
        let whole =
            (1..=MESSAGE_BYTES_MAX).contains(&length) && (RECORD_HEADER_BYTES + length) as u64 <= left;
        if !whole {
            return Ok(None);
        }
        let content = self.body.read(offset + RECORD_HEADER_BYTES as u64, length)?;
        if crc32c::crc32c(&content) != checksum {
            return Ok(None);
        }
        let record = match content[0] {
            DEFINITIONS => Definitions::decode(&content[1..]).ok().map(Record::Definitions),
            BATCH => Batch::decode(&content[1..]).ok().map(Record::Batch),
            _ => None,
        };
        Ok(record.map(|record| (record, offset + (RECORD_HEADER_BYTES + length) as u64)))
    }
}

fn random_name() -> String {
    hex::encode(rand::random::<[u8; 8]>())
}

fn samples(batch: &Batch) -> u64 {
    batch
        .frames
        .iter()
        .map(|frame| frame.values.len() as u64 / 8)
        .sum()
}

fn put_record(bytes: &mut Vec<u8>, kind: u8, message: &impl Message) {
    let content = [&[kind][..], &message.encode_to_vec()].concat();
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(crc32c::crc32c(&content).to_le_bytes());
    bytes.extend(content);
}

impl Body {
    fn size(&self) -> io::Result<u64> {
        match self {
            Body::File(..) => self.with_file(|file| Ok(file.metadata()?.len())),
            Body::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Writes at the end. A partial write is overwritten by the next write, or ends the segment because its checksum is wrong.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Body::File(..) => self.with_file(|file| file.write_all_at(bytes, offset)),
            Body::Memory(memory) => {
                memory.truncate(offset as usize);
                memory.extend(bytes);
                Ok(())
            }
        }
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        match self {
            Body::File(..) => self.with_file(|file| {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }),
            Body::Memory(memory) => {
                let range = memory.get(offset as usize..).and_then(|rest| rest.get(..length));
                Ok(range.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec())
            }
        }
    }

    /// Stores the acknowledgement. If this is lost, some batches are sent again.
    fn note_acked(&self, seq: u64) {
        if let Err(error) = self.with_file(|file| file.write_all_at(&seq.to_le_bytes(), 8)) {
            tracing::debug!(%error, "cannot store an acknowledgement in the spool");
        }
    }

    /// Calls `using` with the file. A closed file is opened for the call. For a segment in memory, returns the default value.
    fn with_file<T: Default>(&self, using: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match self {
            Body::File(Some(file), _) => using(file),
            Body::File(None, path) => using(&OpenOptions::new().read(true).write(true).open(path)?),
            Body::Memory(_) => Ok(T::default()),
        }
    }
}
