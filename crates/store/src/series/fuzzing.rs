//! Entry points for fuzzing: decode arbitrary bytes in the formats of the store's files.
//!
//! Everything on disk has a checksum that a fuzzer cannot forge. So each input is decoded twice: as it is, and with a correct
//! checksum in front.

use domain::series::Frame;

use super::codec::seal;
use super::shape::Shape;
use super::wal::{self, Entry, Stored};
use super::{Block, SeriesId, chunk};

/// Decodes a row of the write-ahead log. Returns true if it is valid. A valid row must be the same after encoding and decoding.
///
/// # Panics
/// Panics if it is not the same: the fuzzer has found a bug.
pub fn decode_batch(bytes: &[u8]) -> bool {
    let as_they_are = wal::decode(bytes).map(|batch| check_batch(&batch));
    let behind = wal::decode(&seal(wal::MAGIC, bytes)).map(|batch| check_batch(&batch));
    as_they_are.is_ok() || behind.is_ok()
}

fn check_batch(batch: &[Stored]) {
    let entries: Vec<Entry> = batch.iter().map(entry).collect();
    let written = wal::encode(&entries);
    let again = wal::decode(&written).expect("what was written can be read");
    assert_eq!(batch.len(), again.len());
    for (stored, again) in batch.iter().zip(&again) {
        assert_eq!(stored.source, again.source);
        assert_same(&stored.frames, &again.frames);
    }
}

fn entry(stored: &Stored) -> Entry {
    let block = |frame: &Frame<SeriesId>| Block {
        shape: Shape::detached(frame.series.as_slice().into()).into(),
        times_ms: frame.times_ms.clone(),
        values: frame.values.clone(),
    };
    Entry {
        source: stored.source.clone(),
        blocks: stored.frames.iter().map(block).collect(),
    }
}

/// Decodes a chunk. Returns true if it is valid. A valid chunk must be the same after encoding and decoding.
///
/// # Panics
/// Panics if it is not the same: the fuzzer has found a bug.
pub fn decode_chunk(bytes: &[u8]) -> bool {
    let check = |bytes: &[u8]| {
        chunk::Stored::decode(bytes)
            .map(|chunk| check_chunk(&chunk))
            .is_ok()
    };
    // Samples and roll-ups.
    let behind = [chunk::MAGIC, chunk::ROLLUP_MAGIC].map(|magic| check(&seal(magic, bytes)));
    check(bytes) || behind.contains(&true)
}

fn check_chunk(chunk: &chunk::Stored) {
    let again = chunk::Stored::decode(&chunk.encode()).expect("what was written can be read");
    assert_eq!(chunk.resolution_ms, again.resolution_ms);
    assert_eq!(chunk.sets.len(), again.sets.len());
    for (frames, again) in chunk.sets.iter().zip(&again.sets) {
        assert_same(frames, again);
    }
}

fn assert_same(frames: &[Frame<SeriesId>], again: &[Frame<SeriesId>]) {
    assert!(frames.iter().map(bits).eq(again.iter().map(bits)), "it changed");
}

fn bits(frame: &Frame<SeriesId>) -> (&[SeriesId], &[i64], Vec<u64>) {
    let values = frame.values.iter().map(|value| value.to_bits()).collect();
    (&frame.series, &frame.times_ms, values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::path::PathBuf;

    use domain::series::{ABSENT, STALE};

    use super::super::codec::put_varint;
    use super::*;

    fn corpus(target: &str) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus")).join(target)
    }

    fn check(target: &str, decode: fn(&[u8]) -> bool) {
        let files = std::fs::read_dir(corpus(target)).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let read: Vec<bool> = files.map(|file| decode(&std::fs::read(file).unwrap())).collect();
        assert!(
            read.contains(&true) && read.contains(&false),
            "of {} files",
            read.len()
        );
    }

    /// Covers the stored inputs, including all that fuzzing has found.
    #[test]
    fn the_corpus_is_read_without_harm() {
        check("wal_batch", decode_batch);
        check("chunk", decode_chunk);
    }

    fn frame(series: &[u32], times_ms: &[i64], values: &[f64]) -> Frame<SeriesId> {
        Frame {
            series: series.iter().map(|id| SeriesId(*id)).collect(),
            times_ms: times_ms.to_vec(),
            values: values.to_vec(),
        }
    }

    fn frames() -> Vec<Frame<SeriesId>> {
        let odd_nan = f64::from_bits(0xfff8_dead_beef_0001);
        let steady: Vec<i64> = (0..60).map(|n| 1_790_000_000_000 + n * 1_000).collect();
        let walk: Vec<f64> = (0..120).map(|n| 300.0 + f64::from(n * 37 % 11) * 0.5).collect();
        // A gap, then another step: this makes runs.
        let parted = |n: i64| steady[0] + if n < 40 { n * 1_000 } else { n * 15_000 };
        let parted: Vec<i64> = (0..60).map(parted).collect();
        vec![
            frame(&[5, 6], &[1_000, 2_000], &[1.0, ABSENT, STALE, odd_nan]),
            frame(&[0, 9], &steady, &walk),
            frame(&[2, 3], &parted, &walk),
            frame(&[u32::MAX], &[i64::MIN, i64::MAX], &[-0.0, f64::INFINITY]),
        ]
    }

    /// Returns a whole input and damaged variants of it.
    fn damaged(whole: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
        let mut flipped = whole.to_vec();
        flipped[whole.len() / 2] ^= 4;
        vec![
            ("whole", whole.to_vec()),
            ("truncated", whole[..whole.len() * 2 / 3].to_vec()),
            ("bit-flipped", flipped),
            ("longer", [whole, &[0; 9]].concat()),
        ]
    }

    fn huge_counts(counts: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        (0..counts).for_each(|_| put_varint(&mut bytes, 1));
        put_varint(&mut bytes, u64::MAX >> 1);
        bytes
    }

    #[test]
    #[ignore = "writes the hand-made part of the corpus; for when a format has changed"]
    fn write_the_corpus() {
        let write = |target: &str, name: &str, bytes: &[u8]| {
            std::fs::write(corpus(target).join(name), bytes).unwrap();
        };
        let stored = Stored {
            source: Some(("node-1/abc".into(), 42)),
            frames: frames(),
        };
        let entries = [entry(&stored), entry(&Stored::default())];
        let sealed = wal::encode(&entries);
        write("wal_batch", "sealed", &sealed);
        damaged(&sealed[8..])
            .iter()
            .for_each(|(name, bytes)| write("wal_batch", name, bytes));
        let sealed = chunk::encode(&frames());
        write("chunk", "sealed", &sealed);
        damaged(&sealed[8..])
            .iter()
            .for_each(|(name, bytes)| write("chunk", name, bytes));
        for target in ["wal_batch", "chunk"] {
            write(target, "empty", &[]);
            for counts in 0..4 {
                write(target, &format!("huge-count-{counts}"), &huge_counts(counts));
            }
        }
    }
}
