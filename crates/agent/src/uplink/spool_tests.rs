//! Tests of the spool: restarts, damaged files, the size limit, refusals, a disk that cannot be written.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::OpenOptions;
use std::io::Write;

use domain::series::Labels;
use tempfile::TempDir;

use super::*;

const ROOMY: u64 = 64 << 20;

fn sample(name: &str, at_ms: i64) -> Sample {
    Sample {
        series: Labels::new([("__name__", name)]).unwrap(),
        at_ms,
        value: at_ms as f64,
    }
}

/// Appends one batch per time, each with one sample of `up`.
fn append(spool: &Spool, times: impl IntoIterator<Item = i64>) {
    times
        .into_iter()
        .for_each(|at_ms| spool.append(&[sample("up", at_ms)]));
}

/// Returns what a collector would receive of a segment: the definitions, and (seq, time) of each batch.
fn contents(spool: &Spool, segment: &str) -> (Vec<String>, Vec<(u64, i64)>) {
    let (mut names, mut batches, mut offset) = (Vec::new(), Vec::new(), 0);
    while let Some((record, next)) = spool.next(segment, offset) {
        offset = next;
        match record {
            Record::Definitions(definitions) => {
                assert_eq!(definitions.first as usize, names.len());
                names.extend(definitions.series.iter().map(|series| series.labels.join("=")));
            }
            Record::Batch(batch) => {
                let frames = wire::frame::decode(&batch).unwrap();
                batches.push((batch.seq, frames[0].times_ms[0]));
            }
        }
    }
    (names, batches)
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

#[test]
fn batches_are_read_in_order_and_acknowledged_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), ROOMY).unwrap();
    append(&spool, [10, 20]);
    spool.append(&[sample("up", 30), sample("down", 30)]);
    let (live, last) = spool.live();
    assert_eq!(last, 3);
    let names = vec!["__name__=up".to_owned(), "__name__=down".to_owned()];
    assert_eq!(
        contents(&spool, &live),
        (names.clone(), vec![(1, 10), (2, 20), (3, 30)])
    );
    spool.acknowledge(&live, 2);
    assert_eq!(contents(&spool, &live), (names, vec![(3, 30)]));
    assert!(spool.waiting_bytes() > 0);
    spool.acknowledge(&live, 3);
    assert_eq!((spool.waiting_bytes(), spool.backlog().len()), (0, 0));
}

#[test]
fn a_restart_offers_what_was_not_acknowledged_as_backfill() {
    let folder = tempfile::tempdir().unwrap();
    let before = Spool::open(folder.path(), ROOMY).unwrap();
    append(&before, [10, 20, 30]);
    let (old, _) = before.live();
    before.acknowledge(&old, 1);
    // As after `kill -9`: nothing is flushed or closed first.
    std::mem::forget(before);

    let after = Spool::open(folder.path(), ROOMY).unwrap();
    assert!(after.backlog().iter().eq([&old]));
    assert_ne!(after.live().0, old);
    assert_eq!(contents(&after, &old).1, [(2, 20), (3, 30)]);
    append(&after, [40]);
    after.acknowledge(&old, 3);
    assert!(after.backlog().is_empty());
    assert_eq!(files(&folder).len(), 1, "only the live segment is left");
}

#[test]
fn a_torn_tail_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let before = Spool::open(folder.path(), ROOMY).unwrap();
    append(&before, [10, 20, 30]);
    let (old, _) = before.live();
    let whole = std::fs::read(&files(&folder)[0]).unwrap();
    drop(before);
    for cut in 1..40 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("0000000000001-{old}.seg"));
        std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let after = Spool::open(folder.path(), ROOMY).unwrap();
        assert_eq!(contents(&after, &old).1, [(1, 10), (2, 20)], "{cut} bytes cut");
    }
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(format!("0000000000001-{old}.seg")), flipped).unwrap();
    assert_eq!(
        contents(&Spool::open(folder.path(), ROOMY).unwrap(), &old).1,
        [(1, 10), (2, 20)]
    );
}

#[test]
fn files_that_are_no_segments_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("0-a.seg", &b""[..]),
        ("1-b.seg", b"lockspl1"),
        ("x.seg", b"?"),
        ("notes.txt", b"keep"),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let spool = Spool::open(folder.path(), ROOMY).unwrap();
    append(&spool, [10]);
    assert_eq!(contents(&spool, &spool.live().0).1, [(1, 10)]);
    assert!(folder.path().join("notes.txt").exists());
}

#[test]
fn the_oldest_goes_first_at_the_bound_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), 2_000).unwrap();
    for segment in 0..20_i64 {
        append(&spool, segment * 10..segment * 10 + 5);
        spool.rotate_if_waiting_more_than(0);
    }
    let kept: Vec<i64> = spool
        .backlog()
        .iter()
        .flat_map(|segment| contents(&spool, segment).1)
        .map(|(_, at)| at)
        .collect();
    let on_disk: u64 = files(&folder)
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    assert!(on_disk <= 2_000 + 1_000, "{on_disk} bytes on disk");
    assert_eq!(kept.last(), Some(&194), "the newest is kept");
    assert!(kept.is_sorted() && kept.len().is_multiple_of(5));
    assert_eq!(spool.dropped_samples() as usize + kept.len(), 100);
}

#[test]
fn a_refused_batch_is_dropped_once_and_delays_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), ROOMY).unwrap();
    append(&spool, [10, 20, 30]);
    let (segment, _) = spool.live();
    spool.rotate_if_waiting_more_than(0);
    spool.refuse(&segment, 3);
    spool.refuse(&segment, 3);
    spool.refuse(&segment, 99);
    assert_eq!(spool.dropped_samples(), 1);
    assert_eq!(contents(&spool, &segment).1, [(1, 10), (2, 20)]);
    // The third batch needs no acknowledgement of its own.
    spool.acknowledge(&segment, 2);
    assert!(spool.backlog().is_empty());
    assert_eq!(spool.waiting_bytes(), 0);
}

#[test]
fn batches_stay_in_memory_while_the_disk_fails() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("spool");
    let spool = Spool::open(&place, ROOMY).unwrap();
    append(&spool, [10]);
    // The folder is removed and cannot be created again, because a file has its name.
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::write(&place, "in the way").unwrap();
    spool.rotate_if_waiting_more_than(0);
    append(&spool, [20, 30]);
    let (live, _) = spool.live();
    assert_eq!(
        contents(&spool, &live).1,
        [(1, 20), (2, 30)],
        "in one segment, not one each second"
    );
    std::fs::remove_file(&place).unwrap();
    std::fs::create_dir(&place).unwrap();
    append(&spool, [40]);
    let (back, _) = spool.live();
    assert_ne!(back, live);
    assert_eq!(contents(&spool, &back).1, [(1, 40)]);
    assert!(spool.backlog().contains(&live));
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
}

#[test]
fn a_half_written_record_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), ROOMY).unwrap();
    append(&spool, [10]);
    // What a full disk leaves of a record before the write fails.
    OpenOptions::new()
        .append(true)
        .open(&files(&folder)[0])
        .unwrap()
        .write_all(&[7; 30])
        .unwrap();
    append(&spool, [20, 30]);
    let (live, _) = spool.live();
    drop(spool);
    let after = Spool::open(folder.path(), ROOMY).unwrap();
    assert_eq!(contents(&after, &live).1, [(1, 10), (2, 20), (3, 30)]);
}

#[test]
fn a_long_outage_holds_no_files_open() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), ROOMY).unwrap();
    for at in 0..40 {
        append(&spool, [at]);
        spool.rotate_if_waiting_more_than(0);
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let held = open.filter(|path| path.starts_with(folder.path())).count();
    assert_eq!((spool.backlog().len(), held), (40, 1));
    let first = spool.backlog()[0].clone();
    assert_eq!(contents(&spool, &first).1, [(1, 0)]);
    spool.acknowledge(&first, 1);
    assert_eq!((spool.backlog().len(), files(&folder).len()), (39, 40));
}
