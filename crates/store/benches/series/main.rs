//! Measures the label index and reads: `cargo bench -p store --bench series -- [index] [reads]`. Runs both if none is given.
//!
//! The results are of one process on a machine that others may use as well: compare ratios, and the best of several runs.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails shows where")]

mod feed;
mod index;
mod reads;

use std::time::{Duration, Instant};

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    if wanted("index") {
        runtime.block_on(index::run());
    }
    if wanted("reads") {
        runtime.block_on(reads::run());
    }
}

/// Returns the median duration of some runs, and the last result.
fn median<R>(runs: usize, mut thing: impl FnMut() -> R) -> (Duration, R) {
    let mut took = Vec::new();
    let mut last = None;
    for _ in 0..runs {
        let began = Instant::now();
        last = Some(thing());
        took.push(began.elapsed());
    }
    took.sort_unstable();
    (took[runs / 2], last.unwrap())
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// Returns the resident memory of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}
