//! Checks whether a checkpoint that is a folder is complete.
//!
//! DCP writes its shards, then `.metadata` under another name, and renames it at the end. So if `.metadata` exists, all shards were
//! written. It contains the name and the length of every shard, which shows what a crash or a copy has cut off since. Without collectives,
//! each rank writes its own `__R.metadata` instead. Our helper also records sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use domain::run::checkpoint::{Checkpoint, CheckpointOnNode, Format};

use super::super::archive::{FileCheck, read_small};
use super::super::extents::extents;
use super::super::{pickle, sidecar};
use super::{CheckpointFile, Scan, apply, is_weights};

/// Maximum size of a `.metadata` that is searched for names of shards. A larger one is accepted as it is.
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of shards that are reported by name. With more, the shards on several nodes cannot be combined.
const SHARDS_REPORTED_MAX: usize = 1_024;
const METADATA: &str = ".metadata";

type Files<'a> = BTreeMap<&'a str, &'a CheckpointFile>;

/// Checks every file that must exist.
pub(super) fn check(
    scan: &mut Scan<'_>,
    path: &Path,
    files: &[CheckpointFile],
) -> (Checkpoint, CheckpointOnNode) {
    let by_name: Files<'_> = files.iter().map(|file| (file.name.as_str(), file)).collect();
    let (mut checkpoint, mut sight) = (Checkpoint::default(), CheckpointOnNode::default());
    let of_dcp = dcp_folders(&by_name);
    let weights: Vec<&CheckpointFile> = files.iter().filter(|file| is_weights(&file.name)).collect();
    checkpoint.format = if of_dcp.contains("") || of_dcp.is_empty() && weights.is_empty() {
        Format::Dcp
    } else {
        Format::Folder
    };
    checkpoint.model_only = true;
    let mut problem = None;
    for below in &of_dcp {
        let found = dcp(below, &by_name, &mut sight);
        checkpoint.model_only &= !found.training;
        problem = problem.or(found.problem);
    }
    for file in &weights {
        if file.name.contains("optim") || file.name.contains("training_state") {
            checkpoint.model_only = false;
        }
        match scan.check_file(file) {
            FileCheck::Complete { model_only } => checkpoint.model_only &= model_only,
            FileCheck::Incomplete(why) => problem = problem.or_else(|| Some(format!("{} {why}", file.name))),
            FileCheck::Uncertain(why) => {
                checkpoint.uncertain = true;
                problem = problem.or_else(|| Some(format!("{} {why}", file.name)));
            }
        }
    }
    if files.is_empty() {
        problem = Some("it is empty: the save did not finish".into());
    } else if of_dcp.is_empty() && weights.is_empty() {
        problem =
            problem.or_else(|| Some("it contains no file with tensors: the save did not finish".into()));
    }
    match sidecar::read(&path.join(sidecar::NAME)) {
        Ok(Some(sidecar)) => {
            apply(&sidecar, &mut checkpoint);
            problem = problem.or_else(|| wrong_size(&sidecar, &by_name));
        }
        Ok(None) => {}
        Err(wrong) => problem = problem.or(Some(wrong)),
    }
    checkpoint.finished_ms = by_name
        .get(METADATA)
        .and_then(|file| i64::try_from(file.changed_ns / 1_000_000).ok());
    sight.complete = problem.is_none();
    sight.problem = problem;
    (checkpoint, sight)
}

/// Returns the folders that contain shards or `.metadata`; `""` is the checkpoint itself.
fn dcp_folders(files: &Files<'_>) -> BTreeSet<String> {
    let of_dcp = |name: &str| name == METADATA || name == ".metadata.tmp" || pickle::is_shard(name);
    files
        .keys()
        .filter_map(|path| {
            let (below, name) = split(path);
            of_dcp(name).then(|| below.to_owned())
        })
        .collect()
}

fn split(path: &str) -> (&str, &str) {
    path.rfind('/').map_or(("", path), |at| path.split_at(at + 1))
}

#[derive(Default)]
struct Dcp {
    training: bool,
    problem: Option<String>,
}

fn dcp(below: &str, files: &Files<'_>, sight: &mut CheckpointOnNode) -> Dcp {
    let here: BTreeMap<&str, &CheckpointFile> = files
        .iter()
        .filter_map(|(path, file)| {
            path.strip_prefix(below)
                .filter(|name| !name.contains('/'))
                .map(|name| (name, *file))
        })
        .collect();
    let shards: BTreeMap<&str, u64> = here
        .iter()
        .filter(|(name, _)| pickle::is_shard(name))
        .map(|(name, file)| (*name, file.bytes))
        .collect();
    match here.get(METADATA) {
        // A rank without data to save leaves a shard of 0 bytes that is not listed in .metadata.
        Some(metadata) if metadata.bytes > 0 => with_metadata(metadata, &here, &shards, sight),
        Some(_) => problem(".metadata is 0 bytes"),
        None => {
            let mut found = without_metadata(&here, &shards, sight);
            let empty = shards.iter().find(|(_, bytes)| **bytes == 0);
            if let (None, Some((name, _))) = (&found.problem, empty) {
                found.problem = Some(format!("shard {name} is 0 bytes"));
            }
            found
        }
    }
}

fn problem(what: &str) -> Dcp {
    Dcp {
        problem: Some(what.to_owned()),
        ..Dcp::default()
    }
}

fn with_metadata(
    metadata: &CheckpointFile,
    here: &BTreeMap<&str, &CheckpointFile>,
    shards: &BTreeMap<&str, u64>,
    sight: &mut CheckpointOnNode,
) -> Dcp {
    let bytes = match read_small(&metadata.path, METADATA_BYTES_MAX) {
        Ok(Some(bytes)) => bytes,
        // Too large to search: its existence is sufficient, as for DCP itself.
        Ok(None) => {
            return Dcp {
                training: true,
                problem: None,
            };
        }
        Err(error) => return problem(&format!(".metadata cannot be read: {error}")),
    };
    // A pickle ends with a full stop.
    if bytes.last() != Some(&b'.') {
        return problem(".metadata is cut off");
    }
    let named: BTreeSet<&str> = pickle::shards(&bytes).collect();
    let missing: Vec<&str> = named
        .into_iter()
        .filter(|name| shards.get(name).is_none_or(|bytes| *bytes == 0))
        .collect();
    let zero = missing.iter().find(|name| shards.contains_key(**name));
    let problem = match (zero, missing.first()) {
        (Some(zero), _) => Some(format!("shard {zero} is 0 bytes")),
        (None, Some(first)) if missing.len() == 1 => Some(format!("shard {first} is missing")),
        (None, Some(first)) => Some(format!(
            "shard {first} and {} more are missing",
            missing.len() - 1
        )),
        (None, None) => None,
    };
    if zero.is_none() && missing.len() <= SHARDS_REPORTED_MAX {
        sight.missing.extend(missing.into_iter().map(str::to_owned));
    }
    Dcp {
        training: pickle::names_training(&bytes),
        problem: problem.or_else(|| cut_off(&bytes, here)),
    }
}

/// Finds a shard that is shorter than `.metadata` requires.
fn cut_off(metadata: &[u8], here: &BTreeMap<&str, &CheckpointFile>) -> Option<String> {
    extents(metadata).into_iter().find_map(|(name, end)| {
        let bytes = here.get(name)?.bytes;
        (bytes < end).then(|| format!("shard {name} is cut off: {bytes} of its {end} bytes are there"))
    })
}

fn without_metadata(
    here: &BTreeMap<&str, &CheckpointFile>,
    shards: &BTreeMap<&str, u64>,
    sight: &mut CheckpointOnNode,
) -> Dcp {
    let own = |name: &&str| {
        name.strip_prefix("__")?
            .strip_suffix(METADATA)?
            .parse::<u32>()
            .ok()
    };
    let of_ranks: BTreeSet<u32> = here
        .iter()
        .filter(|(_, file)| file.bytes > 0)
        .filter_map(|(name, _)| own(name))
        .collect();
    if of_ranks.is_empty() {
        if shards.len() <= SHARDS_REPORTED_MAX {
            let whole = shards.iter().filter(|(_, bytes)| **bytes > 0);
            sight.parts.extend(whole.map(|(name, _)| (*name).to_owned()));
        }
        return problem(".metadata is missing: the save did not finish");
    }
    let rank = |name: &&str| {
        name.strip_prefix("__")?
            .split(['_', '.'])
            .next()?
            .parse::<u32>()
            .ok()
    };
    let ranks: BTreeSet<u32> = shards.keys().filter_map(rank).collect();
    let last = ranks.last().max(of_ranks.last()).copied().unwrap_or(0);
    let absent = (0..=last).find(|rank| !of_ranks.contains(rank));
    Dcp {
        training: true,
        problem: absent
            .map(|rank| format!("__{rank}.metadata is missing: rank {rank} did not finish its save")),
    }
}

fn wrong_size(sidecar: &sidecar::Sidecar, files: &Files<'_>) -> Option<String> {
    sidecar
        .files
        .iter()
        .find_map(|(name, bytes)| match files.get(name.as_str()) {
            None => Some(format!("{name} is missing")),
            Some(file) if file.bytes != *bytes => {
                Some(format!("{name} has {} bytes instead of {bytes}", file.bytes))
            }
            Some(_) => None,
        })
}
