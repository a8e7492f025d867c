#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use super::*;

const FULL: &[u8] = include_bytes!("../../../../testdata/checkpoint/full.pt");
const MODEL: &[u8] = include_bytes!("../../../../testdata/checkpoint/model.pt");
/// The metadata of a model with its optimizer, from one process: it names `__0_0.distcp` with this many bytes.
const METADATA: &[u8] = include_bytes!("../../../../testdata/checkpoint/step-7/.metadata");
const SHARD_BYTES: u64 = 27_940;

fn put(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn dcp(folder: &Path, name: &str) -> PathBuf {
    put(
        &folder.join(name).join("__0_0.distcp"),
        &[1; SHARD_BYTES as usize],
    );
    put(&folder.join(name).join(".metadata"), METADATA);
    folder.join(name)
}

fn input(folder: &Path) -> ScanInput<'_> {
    ScanInput {
        node: "n0",
        folder: Some(folder),
        named: &[],
        records: None,
        over: true,
        limits: Limits::for_nodes(1),
    }
}

fn seen(folder: &Path) -> Vec<Checkpoint> {
    scan(&input(folder), &mut ScanCache::default()).report.checkpoints
}

/// Returns the checkpoint in the folder with this name.
fn one(folder: &Path, name: &str) -> Checkpoint {
    let path = folder.join(name).display().to_string();
    let all = seen(folder);
    let found = all.iter().find(|checkpoint| checkpoint.path == path);
    found.unwrap_or_else(|| panic!("no {name} in {all:?}")).clone()
}

fn problem(folder: &Path, name: &str) -> String {
    let checkpoint = one(folder, name);
    assert!(!checkpoint.complete && !checkpoint.writing);
    checkpoint.problem.unwrap()
}

#[test]
fn a_shard_that_was_cut_short_after_its_save_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let shard = dcp(dir.path(), "step-7").join("__0_0.distcp");
    let file = std::fs::File::options().write(true).open(shard).unwrap();
    file.set_len(SHARD_BYTES + 5).unwrap();
    assert!(
        one(dir.path(), "step-7").complete,
        "more than is needed is no harm"
    );
    file.set_len(SHARD_BYTES - 1).unwrap();
    assert_eq!(
        problem(dir.path(), "step-7"),
        "shard __0_0.distcp is cut off: 27939 of its 27940 bytes are there"
    );
}

#[test]
fn whole_ones_of_each_kind() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    dcp(folder, "step-7");
    put(&folder.join("ckpt_8.pth"), FULL);
    put(&folder.join("deep/er/epoch=1-step=9.ckpt"), MODEL);
    put(&folder.join("checkpoint-10/model.pt"), MODEL);
    put(&folder.join("checkpoint-10/optimizer.pt"), FULL);
    put(&folder.join("checkpoint-10/trainer_state.json"), b"{}");
    put(
        &folder.join("global_step11/rank0/mp_rank_00_model_states.pt"),
        FULL,
    );
    let short = |one: &Checkpoint| {
        (
            one.step.unwrap(),
            one.format.clone(),
            one.model_only,
            one.complete,
        )
    };
    assert_eq!(
        seen(folder).iter().map(short).collect::<Vec<_>>(),
        [
            (11, Format::Folder, false, true),
            (10, Format::Folder, false, true),
            (9, Format::TorchSave, true, true),
            (8, Format::TorchSave, false, true),
            (7, Format::Dcp, false, true),
        ]
    );
    let dcp = one(folder, "step-7");
    assert_eq!(dcp.bytes, SHARD_BYTES + METADATA.len() as u64);
    assert_eq!(dcp.own_bytes, dcp.bytes);
    assert!(dcp.finished_ms.is_some() && dcp.problem.is_none());
}

/// A folder `0/` with a CSV file was treated as an incomplete checkpoint, and a prune would have removed it.
#[test]
fn a_numbered_folder_without_tensors_is_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    put(&dir.path().join("0/metrics.csv"), b"step,loss\n");
    put(&dir.path().join("120/model.pt"), FULL);
    std::fs::create_dir(dir.path().join("140")).unwrap();
    let steps: Vec<_> = seen(dir.path()).iter().map(|one| one.step).collect();
    assert_eq!(steps, [Some(140), Some(120)]);
}

#[test]
fn missing_parts_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let without = dcp(folder, "step-1");
    std::fs::remove_file(without.join(".metadata")).unwrap();
    assert_eq!(
        problem(folder, "step-1"),
        ".metadata is missing: the save did not finish"
    );
    let shard = dcp(folder, "step-2");
    std::fs::remove_file(shard.join("__0_0.distcp")).unwrap();
    assert_eq!(problem(folder, "step-2"), "shard __0_0.distcp is missing");
    put(&shard.join("__0_0.distcp"), b"");
    assert_eq!(problem(folder, "step-2"), "shard __0_0.distcp is 0 bytes");
    // A rank that had nothing to save: .metadata does not contain its shard.
    let idle = dcp(folder, "step-6");
    put(&idle.join("__3_0.distcp"), b"");
    assert!(one(folder, "step-6").complete);
    let cut = dcp(folder, "step-3");
    put(&cut.join(".metadata"), &METADATA[..METADATA.len() - 1]);
    assert_eq!(problem(folder, "step-3"), ".metadata is cut off");
    put(&cut.join(".metadata"), b"");
    assert_eq!(problem(folder, "step-3"), ".metadata is 0 bytes");
    std::fs::create_dir(folder.join("step-4")).unwrap();
    assert_eq!(problem(folder, "step-4"), "it is empty: the save did not finish");
    put(&folder.join("step-5.pt"), &FULL[..500]);
    assert_eq!(
        problem(folder, "step-5.pt"),
        "the file is cut off: the end of the archive is missing"
    );
    put(&folder.join("step-6.pt.tmp"), FULL);
    assert!(problem(folder, "step-6.pt.tmp").contains("temporary name"));
    let ranks = folder.join("step-7");
    put(&ranks.join("__0_0.distcp"), b"1");
    put(&ranks.join("__1_0.distcp"), b"1");
    put(&ranks.join("__0.metadata"), METADATA);
    assert!(problem(folder, "step-7").contains("rank 1 did not finish"));
    put(&ranks.join("__1.metadata"), METADATA);
    assert!(one(folder, "step-7").complete);
}

#[test]
fn the_sidecar_tells_step_content_and_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let path = dcp(folder, "step-000100.2");
    let sidecar = |bytes: u64| {
        let text = format!(
            r#"{{"version":1,"step":101,"content":"model","val_loss":0.5,"world_size":1,"files":{{"__0_0.distcp":{bytes}}},"shared":{{}}}}"#
        );
        put(&path.join("lockstep.json"), text.as_bytes());
    };
    sidecar(SHARD_BYTES);
    let read = one(folder, "step-000100.2");
    assert_eq!(
        (read.step, read.model_only, read.val_loss, read.complete),
        (Some(101), true, Some(0.5), true)
    );
    sidecar(SHARD_BYTES + 1);
    assert_eq!(
        problem(folder, "step-000100.2"),
        "__0_0.distcp has 27940 bytes instead of 27941"
    );
    put(&path.join("lockstep.json"), b"{\"step\":");
    assert!(problem(folder, "step-000100.2").contains("is incomplete"));
}

#[test]
fn one_in_writing_is_not_torn_until_it_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    put(&dir.path().join("step-1.pt"), &FULL[..500]);
    let mut cache = ScanCache::default();
    let mut writing = |over| {
        let input = ScanInput {
            over,
            ..input(dir.path())
        };
        scan(&input, &mut cache).report.checkpoints[0].writing
    };
    assert!(writing(false) && writing(false));
    assert!(!writing(true), "the ranks have ended");
    for (_, since) in cache.changing.values_mut() {
        *since = Instant::now().checked_sub(QUIET).unwrap();
    }
    let again = |cache: &mut ScanCache| {
        let input = ScanInput {
            over: false,
            ..input(dir.path())
        };
        scan(&input, cache).report.checkpoints[0].writing
    };
    assert!(!again(&mut cache));
    put(&dir.path().join("step-1.pt"), &FULL[..501]);
    assert!(again(&mut cache), "it changes again");
}

#[test]
fn files_shared_by_links_are_counted_once_and_links_into_others_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let first = dcp(folder, "step-1");
    std::fs::create_dir(folder.join("step-2")).unwrap();
    std::fs::hard_link(first.join("__0_0.distcp"), folder.join("step-2/__0_0.distcp")).unwrap();
    put(&folder.join("step-2/.metadata"), METADATA);
    std::fs::create_dir(folder.join("step-3")).unwrap();
    symlink("../step-1/__0_0.distcp", folder.join("step-3/__0_0.distcp")).unwrap();
    put(&folder.join("step-3/.metadata"), METADATA);
    let metadata = METADATA.len() as u64;
    for name in ["step-1", "step-2", "step-3"] {
        let found = one(folder, name);
        assert_eq!(
            (found.complete, found.bytes, found.own_bytes),
            (true, SHARD_BYTES + metadata, metadata),
            "{name}"
        );
    }
    assert_eq!(
        one(folder, "step-3").needs,
        BTreeSet::from([first.display().to_string()])
    );
    std::fs::remove_dir_all(&first).unwrap();
    assert_eq!(problem(folder, "step-3"), "shard __0_0.distcp is 0 bytes");
    assert_eq!(
        one(folder, "step-2").own_bytes,
        SHARD_BYTES + metadata,
        "now it is its own"
    );
}

#[test]
fn pointers_are_reported_and_hostile_ones_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("c");
    let outside = dcp(dir.path(), "step-99");
    dcp(&folder, "step-1");
    symlink("step-1", folder.join("latest")).unwrap();
    symlink(&outside, folder.join("step-99")).unwrap();
    symlink(".", folder.join("loop")).unwrap();
    symlink("nowhere", folder.join("step-98.pt")).unwrap();
    put(&folder.join("step-5\n.pt"), FULL);
    put(&folder.join(std::ffi::OsStr::from_bytes(b"step-\xff6.pt")), FULL);
    let found = scan(&input(&folder), &mut ScanCache::default());
    let steps: Vec<_> = found.report.checkpoints.iter().map(|one| one.step).collect();
    assert_eq!(steps, [Some(1)]);
    assert_eq!(
        found.report.latest,
        Some(folder.join("step-1").display().to_string())
    );
    assert_eq!(
        found.report.problem.as_deref(),
        Some("2 names are not valid text and are skipped")
    );
    std::fs::remove_file(folder.join("latest")).unwrap();
    put(&folder.join("latest"), b"step-1\n");
    assert_eq!(
        scan(&input(&folder), &mut ScanCache::default()).report.latest,
        Some(folder.join("step-1").display().to_string())
    );
}

#[test]
fn a_scan_is_bounded_and_its_report_is_partial() {
    let dir = tempfile::tempdir().unwrap();
    for step in 0..300 {
        put(&dir.path().join(format!("step-{step}.pt")), &FULL[..100]);
    }
    put(&dir.path().join("step-5.pth"), FULL);
    let found = scan(&input(dir.path()), &mut ScanCache::default()).report;
    assert_eq!((found.checkpoints.len(), found.partial), (200, true));
    assert!(
        found.checkpoints.iter().any(Checkpoint::is_usable),
        "the one to go on from is always reported"
    );
    let tight = ScanInput {
        limits: Limits {
            entries: 50,
            ..Limits::for_nodes(1)
        },
        ..input(dir.path())
    };
    let found = scan(&tight, &mut ScanCache::default()).report;
    assert!(found.partial && found.checkpoints.len() <= 50);
}

#[test]
fn a_missing_folder_is_no_problem_and_a_named_path_is_scanned() {
    let dir = tempfile::tempdir().unwrap();
    let found = scan(&input(&dir.path().join("later")), &mut ScanCache::default()).report;
    assert_eq!((found.problem, found.checkpoints.len()), (None, 0));
    assert!(found.free_bytes.is_some());
    put(&dir.path().join("elsewhere/model.pt"), MODEL);
    let named = [
        dir.path().join("elsewhere/model.pt"),
        PathBuf::from("/nowhere/x.pt"),
    ];
    let input = ScanInput {
        folder: None,
        named: &named,
        ..input(dir.path())
    };
    let found = scan(&input, &mut ScanCache::default()).report;
    assert_eq!(found.checkpoints.len(), 1);
    assert!(found.checkpoints[0].complete && found.checkpoints[0].model_only);
}
