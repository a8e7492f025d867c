//! Decodes sealed chunks of the store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    store::series::fuzzing::decode_chunk(bytes);
});
