//! Parses bodies of Prometheus remote write, versions 1 and 2.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    collector::ingest::remote_write::parse_for_fuzzing(bytes);
    collector::ingest::remote_write::walk_for_fuzzing(bytes);
});
