//! The entry point for fuzzing: batches of samples as bytes.

use domain::series::Frame;
use prost::Message;

use crate::frame;
use crate::proto::Batch;

/// Decodes bytes as a batch. Returns true if they are one. A batch must be unchanged after encoding and decoding it again.
///
/// # Panics
/// If the batch changed: the fuzzer has found a bug.
pub fn decode_batch(bytes: &[u8]) -> bool {
    let Ok(batch) = Batch::decode(bytes) else {
        return false;
    };
    let Ok(frames) = frame::decode(&batch) else {
        return false;
    };
    let written = frame::encode(&batch.segment, batch.seq, &frames).encode_to_vec();
    let again = Batch::decode(written.as_slice()).expect("what was written can be read");
    assert_eq!((&again.segment, again.seq), (&batch.segment, batch.seq));
    let again = frame::decode(&again).expect("what was written can be read");
    assert!(frames.iter().map(bits).eq(again.iter().map(bits)), "it changed");
    true
}

fn bits(frame: &Frame) -> (&[u32], &[i64], Vec<u64>) {
    let values = frame.values.iter().map(|value| value.to_bits()).collect();
    (&frame.series, &frame.times_ms, values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Decodes the seed corpus and every input for which fuzzing found a bug.
    #[test]
    fn the_corpus_is_read_without_harm() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/wire_batch");
        let files = std::fs::read_dir(corpus)
            .unwrap()
            .map(|file| file.unwrap().path());
        let read: Vec<bool> = files
            .map(|file| decode_batch(&std::fs::read(file).unwrap()))
            .collect();
        assert!(
            read.contains(&true) && read.contains(&false),
            "of {} files",
            read.len()
        );
    }
}
