//! The store's sealed chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    store::series::fuzzing::decode_chunk(bytes);
});
