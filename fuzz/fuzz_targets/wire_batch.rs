//! Decodes batches of samples from agents.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    wire::fuzzing::decode_batch(bytes);
});
