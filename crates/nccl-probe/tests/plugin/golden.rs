//! The datagrams that the agent's tests read. The plugin creates them here, and they are stored under testdata/. `LOCKSTEP_BLESS=1` writes
//! them again; without it they are compared, so that the two sides stay consistent.

use std::path::Path;
use std::{env, fs};

use serde_json::{Map, Value, json};

use crate::harness::{Collector, Process, driver, plugin, replay};
use crate::trace::{RANK, VERSIONS, one_rank};

/// Replaces the times in the files, which depend on when the test runs.
const WALL_NS: u64 = 1_767_225_600_000_000_000;
const RANKS: u64 = 64;
/// The rank that is late in every collective.
const LATE: u64 = 37;
const COLLECTIVES: u64 = 8;

#[test]
fn the_datagrams_of_each_version_are_those_in_the_file() {
    let Some(driver) = driver() else { return };
    let records = VERSIONS.into_iter().map(|(version, abi)| {
        let (_, records) = replay(driver, &RANK, &one_rank(version, abi));
        merged(records)
    });
    compare("versions.jsonl", records.collect());
}

#[test]
fn sixty_four_ranks_and_the_late_one_waits_least() {
    let Some(driver) = driver() else { return };
    let collector = Collector::start();
    let socket = collector.path().display().to_string();
    // Eight at a time, as on eight nodes one after another: the kernel's queue of datagrams is short.
    let ranks: Vec<u64> = (0..RANKS).collect();
    for node in ranks.chunks(8) {
        let processes: Vec<Process> = node.iter().map(|rank| begin(driver, &socket, *rank)).collect();
        processes.into_iter().for_each(|process| {
            process.end();
        });
    }
    let records = collector.finish();
    let of_rank = |rank: u64| {
        merged(
            records
                .iter()
                .filter(|record| record["rank"] == rank)
                .cloned()
                .collect(),
        )
    };
    let records: Vec<Value> = (0..RANKS).map(of_rank).collect();
    for sequence in 0..COLLECTIVES {
        let least = (0..RANKS).min_by_key(|rank| duration_ns(&records[*rank as usize], sequence));
        assert_eq!(least, Some(LATE), "collective {sequence}");
    }
    compare("late-rank.jsonl", records);
}

/// Starts the process of one rank. Each kernel starts when its own rank arrives, and stops when the late rank has arrived and the data has
/// been transferred.
fn begin(driver: &Path, socket: &str, rank: u64) -> Process {
    let (text, node, local) = (rank.to_string(), format!("n{}", rank / 8), (rank % 8).to_string());
    let variables = [
        ("LOCKSTEP_PROBE_SOCKET", socket),
        ("LOCKSTEP_RUN", "big-1"),
        ("LOCKSTEP_ATTEMPT", "0"),
        ("LOCKSTEP_NODE", &node),
        ("RANK", &text),
        ("LOCAL_RANK", &local),
        ("LOCKSTEP_NCCL_TIMING", "always"),
    ];
    let mut process = Process::start(driver, &variables);
    let mut trace = format!(
        "version 22809\nload {} 5\ninit 0 world beef 8 {RANKS} {rank}\n",
        plugin().display()
    );
    for sequence in 0..COLLECTIVES {
        let begun = 1_000_000_000 + sequence * 50_000_000;
        // Up to 0.3 ms of variation, the same in every run of this test.
        let scatter = (rank * 7_919 + sequence * 104_729) % 300 * 1_000;
        let start = begun + if rank == LATE { 3_000_000 } else { scatter };
        let stop = begun + 3_000_000 + 2_000_000;
        trace += &format!("coll 0 {sequence} AllReduce 67108864 ncclBfloat16 2 {start} {stop}\n");
    }
    process.play(&(trace + "final 0\nunload\n"));
    process
}

fn duration_ns(record: &Value, sequence: u64) -> u64 {
    let arrivals = record["arrivals"].as_array().unwrap();
    let found = arrivals.iter().find(|arrival| arrival[1] == sequence);
    found
        .and_then(|arrival| arrival[3].as_u64())
        .unwrap_or_else(|| panic!("collective {sequence} is missing in {record}"))
}

/// Merges the records of one process, as if they had been sent at once: a second may end anywhere in a trace.
fn merged(records: Vec<Value>) -> Value {
    let arrivals = records
        .iter()
        .flat_map(|record| record["arrivals"].as_array().cloned().unwrap_or_default());
    let mut by_sequence = Map::new();
    for arrival in arrivals {
        let key = format!("{} {:06}", arrival[0], arrival[1].as_u64().unwrap());
        let known = by_sequence
            .get(&key)
            .map_or(0, |known: &Value| known[3].as_u64().unwrap());
        if arrival[3].as_u64().unwrap() >= known {
            by_sequence.insert(key, arrival);
        }
    }
    let mut last = records.into_iter().next_back().expect("a datagram");
    last["arrivals"] = by_sequence
        .into_iter()
        .map(|(_, arrival)| settled_arrival(arrival))
        .collect();
    settled(last)
}

fn settled(mut record: Value) -> Value {
    record["pid"] = json!(42);
    record["wall_ns"] = json!(WALL_NS);
    record["mono_ns"] = json!(1_000_000_000);
    for function in record["functions"].as_array_mut().unwrap() {
        function["enqueued_ns"] = json!(WALL_NS);
    }
    record
}

fn settled_arrival(mut arrival: Value) -> Value {
    arrival[2] = json!(WALL_NS + arrival[1].as_u64().unwrap() * 50_000_000);
    arrival
}

fn compare(name: &str, records: Vec<Value>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let text: String = records.iter().map(|record| format!("{record}\n")).collect();
    if env::var_os("LOCKSTEP_BLESS").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let kept = fs::read_to_string(&path).unwrap();
    for (kept, now) in kept.lines().zip(text.lines()) {
        let [kept, now] = [kept, now].map(|line| serde_json::from_str::<Value>(line).unwrap());
        assert_eq!(kept, now, "{name}; LOCKSTEP_BLESS=1 writes it anew");
    }
    assert_eq!(kept.lines().count(), text.lines().count(), "{name}");
}
