//! Bodies of Prometheus remote write, of both versions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    collector::ingest::remote_write::parse_for_fuzzing(bytes);
    collector::ingest::remote_write::walk_for_fuzzing(bytes);
});
