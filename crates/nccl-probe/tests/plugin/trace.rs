//! Plays traces through each version of the interface, and checks what the plugin sends.

use serde_json::Value;

use crate::harness::{driver, plugin, replay};

fn load(version: u32, abi: u32) -> String {
    format!("version {version}\nload {} {abi}\n", plugin().display())
}

/// A rank of eight: collectives with and without kernels, a transfer, a small message, and events that the plugin did not request.
pub(crate) fn one_rank(version: u32, abi: u32) -> String {
    load(version, abi)
        + "init 0 dp c0ffee 2 8 3\n\
           mask\n\
           coll 0 0 AllReduce 1048576 ncclBfloat16 4 1000000 1100000\n\
           coll 0 1 AllReduce 1048576 ncclBfloat16 4 2000000 2300000\n\
           coll 0 0 AllGather 65536 ncclFloat32 2 3000000 3050000\n\
           coll 0 2 AllReduce 16 ncclFloat32 1 4000000 4010000\n\
           p2p 0 4 Send 1048576 ncclFloat8e4m3 2 5000000 5020000\n\
           odd 0 1\n\
           odd 0 32\n\
           odd 0 200\n\
           junk\n\
           final 0\n\
           unload\n"
}

pub(crate) const RANK: [(&str, &str); 6] = [
    ("LOCKSTEP_RUN", "ddp-1"),
    ("LOCKSTEP_ATTEMPT", "2"),
    ("LOCKSTEP_NODE", "n1"),
    ("RANK", "3"),
    ("LOCAL_RANK", "3"),
    ("LOCKSTEP_NCCL_TIMING", "always"),
];

/// The last NCCL that loads each version of the interface.
pub(crate) const VERSIONS: [(u32, u32); 7] = [
    (22_304, 1),
    (22_501, 2),
    (22_602, 3),
    (22_705, 4),
    (22_809, 5),
    (23_007, 6),
    (23_102, 7),
];

fn function<'a>(record: &'a Value, name: &str) -> &'a Value {
    let functions = record["functions"].as_array().unwrap();
    functions
        .iter()
        .find(|function| function["function"] == name)
        .unwrap_or_else(|| panic!("no {name} in {record}"))
}

#[test]
fn every_version_of_the_interface_is_counted_and_from_4_on_timed() {
    let Some(driver) = driver() else { return };
    for (version, abi) in VERSIONS {
        let (printed, records) = replay(driver, &RANK, &one_rank(version, abi));
        let mask = if abi >= 4 { 2 + 4 + 64 } else { 2 + 4 };
        assert_eq!(
            printed,
            format!("loaded {abi}\nmask {mask}\nodd null\nodd null\nodd null\n"),
            "v{abi}"
        );
        let record = records.last().unwrap();
        assert_eq!(record["comm"], "0000000000c0ffee", "v{abi}");
        assert_eq!((&record["rank"], &record["comm_rank"]), (&3.into(), &3.into()));
        assert_eq!(record["abi"], abi);
        assert_eq!(record["closed"], true);
        let all_reduce = function(record, "AllReduce");
        assert_eq!(all_reduce["count"], 3, "v{abi}");
        assert_eq!(all_reduce["bytes"], 2 * 2_097_152 + 64, "v{abi}");
        assert_eq!(all_reduce["sequence"], 2, "v{abi}");
        assert_eq!(function(record, "AllGather")["bytes"], 262_144, "v{abi}");
        let send = function(record, "Send");
        // Version 1 identifies the type by a number, and this type had none.
        let bytes = if abi == 1 { 0 } else { 1_048_576 };
        assert_eq!(
            (&send["count"], &send["bytes"]),
            (&1.into(), &bytes.into()),
            "v{abi}"
        );
        assert!(send["sequence"].is_null());
        if abi >= 4 {
            // The small one is not timed.
            assert_eq!(all_reduce["timed"], 2, "v{abi}");
            assert_eq!(all_reduce["timed_ns"], 100_000 + 300_000, "v{abi}");
            assert_eq!(all_reduce["bus_bytes"], 2 * 2_097_152 * 14 / 8, "v{abi}");
            assert_eq!(function(record, "AllGather")["bus_bytes"], 262_144 * 7, "v{abi}");
            assert_eq!(send["timed_ns"], 20_000, "v{abi}");
            assert_eq!(
                (&record["comm_name"], &record["comm_ranks"]),
                (&"dp".into(), &8.into())
            );
        } else {
            assert!(
                all_reduce["timed"].is_null() && record["comm_ranks"].is_null(),
                "v{abi}"
            );
        }
    }
}

#[test]
fn the_version_is_read_from_the_library_with_the_mask() {
    let Some(driver) = driver() else { return };
    let (_, records) = replay(driver, &RANK, &one_rank(22_809, 5));
    assert_eq!(records.last().unwrap()["nccl"], "2.28.9");
    let (_, records) = replay(driver, &RANK, &one_rank(0, 5));
    assert!(records.last().unwrap()["nccl"].is_null());
}

#[test]
fn a_disabled_probe_requests_nothing_and_sends_nothing() {
    let Some(driver) = driver() else { return };
    for off in [("LOCKSTEP_NCCL_PROBE", "off"), ("LOCKSTEP_NCCL_DENY", "2.28")] {
        let (printed, records) = replay(driver, &[off], &one_rank(22_809, 5));
        assert!(printed.starts_with("loaded 5\nmask 0\n"), "{printed}");
        assert_eq!(records, [] as [Value; 0]);
    }
}

#[test]
fn kernels_are_timed_a_part_of_the_time_and_never_by_themselves_with_risky_versions() {
    let Some(driver) = driver() else { return };
    // The first 2 s of every 3.
    let trace = load(22_809, 5) + "init 0 dp 1 1 8 0\n" + &"sleep 100\nmask\n".repeat(40) + "final 0\nmask\n";
    let (printed, _) = replay(driver, &[("LOCKSTEP_NCCL_TIMING", "2/3")], &trace);
    let (on, off) = (
        printed.matches("mask 70\n").count(),
        printed.matches("mask 6\n").count(),
    );
    assert!(on >= 5 && off >= 5, "{printed}");
    for (version, abi) in [(22_705, 4), (23_102, 7)] {
        let trace = load(version, abi) + "init 0 dp 1 1 8 0\nmask\nfinal 0\n";
        let (printed, _) = replay(driver, &[("LOCKSTEP_NCCL_TIMING", "")], &trace);
        assert!(printed.ends_with("mask 6\n"), "{version}: {printed}");
    }
}

#[test]
fn a_full_ring_drops_and_counts_and_the_totals_stay_whole() {
    let Some(driver) = driver() else { return };
    let flood = 2_000_000;
    let trace = load(22_809, 5) + &format!("init 0 dp 1 1 8 0\nflood 0 {flood}\nsleep 1500\nfinal 0\n");
    let (_, records) = replay(driver, &RANK, &trace);
    let record = records.last().unwrap();
    assert_eq!(function(record, "AllReduce")["count"], flood);
    let dropped = record["dropped"].as_u64().unwrap();
    assert!(dropped > 0 && dropped < flood, "{dropped}");
}

#[test]
fn many_threads_count_everything_and_time_what_they_can() {
    let Some(driver) = driver() else { return };
    let (threads, each) = (8_u64, 30_000_u64);
    let init: String = (0..threads)
        .map(|slot| format!("init {slot} c{slot} {slot} 1 8 0\n"))
        .collect();
    let finals: String = (0..threads).map(|slot| format!("final {slot}\n")).collect();
    let trace = load(22_809, 5) + &init + &format!("crowd 0 {threads} {each}\nsleep 1200\n") + &finals;
    let (_, records) = replay(driver, &RANK, &trace);
    let mut timed_in_all = 0;
    for slot in 0..threads {
        let name = format!("c{slot}");
        let record = records
            .iter()
            .rfind(|record| record["comm_name"] == name.as_str())
            .unwrap();
        let all_reduce = function(record, "AllReduce");
        assert_eq!(all_reduce["count"], each, "{record}");
        // If the ring was full during the whole run of a thread, none of its kernels was recorded.
        let timed = all_reduce["timed"].as_u64().unwrap_or(0);
        assert!(timed <= each);
        assert_eq!(
            all_reduce["timed_ns"].as_u64().unwrap_or(0),
            timed * 4_000,
            "no kernel is mixed with another's"
        );
        timed_in_all += timed;
    }
    assert!(timed_in_all > 0);
}

#[test]
fn more_communicators_than_there_is_room_for_are_refused_and_counted() {
    let Some(driver) = driver() else { return };
    let init: String = (0..300)
        .map(|slot| format!("init {slot} c {slot:x} 1 8 0\n"))
        .collect();
    let trace = load(22_809, 5)
        + &init
        + "coll 299 0 AllReduce 1 ncclInt8 1 0 0\ncoll 0 0 AllReduce 1 ncclInt8 1 0 0\n";
    // A slot is free again when the end of its communicator was sent.
    let again = "sleep 1200\nfinal 0\nsleep 2500\ninit 299 again 12b 1 8 0\ncoll 299 0 AllReduce 1 ncclInt8 1 0 0\nsleep 2500\n";
    let (_, records) = replay(driver, &RANK, &(trace + again));
    assert!(
        records.iter().any(|record| record["refused"] == 44),
        "{:?}",
        records.last()
    );
    assert!(records.iter().any(|record| record["comm_name"] == "again"));
}

#[test]
fn a_forked_child_is_silent_until_it_begins_a_communicator_of_its_own() {
    let Some(driver) = driver() else { return };
    let trace = load(22_809, 5)
        + "init 0 parent 1 1 8 0\ncoll 0 0 AllReduce 1 ncclInt8 1 0 0\nfork\n\
           coll 0 1 AllReduce 1 ncclInt8 1 0 0\nsleep 100\n\
           init 1 child 2 1 8 0\ncoll 1 0 AllGather 8 ncclInt8 1 0 0\ncoll 0 2 AllReduce 1 ncclInt8 1 0 0\nfinal 1\n";
    let (_, records) = replay(driver, &RANK, &trace);
    let of = |name: &str| records.iter().rfind(|record| record["comm_name"] == name);
    let child = of("child").unwrap();
    assert_eq!(function(child, "AllGather")["bytes"], 8);
    assert_eq!(child["functions"].as_array().unwrap().len(), 1);
    if let Some(parent) = of("parent") {
        assert_ne!(parent["pid"], child["pid"]);
        assert_eq!(function(parent, "AllReduce")["count"], 1);
    }
}

#[test]
fn a_socket_without_a_receiver_is_no_error() {
    let Some(driver) = driver() else { return };
    let mut process =
        crate::harness::Process::start(driver, &[("LOCKSTEP_PROBE_SOCKET", "/nonexistent/probe.sock")]);
    process.play(&one_rank(22_809, 5));
    assert!(process.end().starts_with("loaded 5\n"));
}
