//! Decodes rows of the store's write-ahead log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    store::series::fuzzing::decode_batch(bytes);
});
