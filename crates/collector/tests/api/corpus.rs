//! Parses all stored fuzzing inputs of remote write, including everything that fuzzing has ever found.

use collector::http::remote_write::{parse_for_fuzzing, walk_for_fuzzing};

#[test]
fn kept_bodies_are_read_without_harm() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/remote_write");
    let files = std::fs::read_dir(corpus).unwrap();
    let bodies: Vec<_> = files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .collect();
    assert!(bodies.len() > 10, "only {} bodies are kept", bodies.len());
    for body in bodies {
        parse_for_fuzzing(&body);
        walk_for_fuzzing(&body);
    }
}
