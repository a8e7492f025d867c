//! Builds the digest of a rank's Flight Recorders, or the reason why there is none. "The rank has enqueued nothing" accuses the rank, so
//! this is reported only for a rank whose recorder would have recorded something.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use domain::run::inspect::{FlightDigest, RankAnswer, RecorderDump, digest};
use domain::run::ranks::RankSet;
use domain::run::torchrun::FLIGHT_RECORDER_VARIABLES;
use shim::{Folder, environment};

/// Maximum size of the file of group members that is read: 256 groups of a large job.
const GROUPS_BYTES_MAX: u64 = 256 << 10;

/// Adds the digest to the answer. If `answer.problem` reports an error of one recorder, the other recorder's data would be incomplete and
/// is left out.
pub(super) fn fill(answer: &mut RankAnswer, dumps: &[RecorderDump], folder: &Folder, pid: i32) {
    if dumps.is_empty() || !answer.problem.is_empty() {
        return;
    }
    let hears_all_backends = dumps.iter().any(|dump| dump.backend.is_empty());
    let members = if hears_all_backends {
        members(folder, answer.rank.0)
    } else {
        // Groups of backends other than NCCL would seem to have done nothing.
        BTreeMap::new()
    };
    let found = digest(dumps, &members);
    match why_nothing(&found, hears_all_backends, pid) {
        None => answer.digest = Some(found),
        Some(problem) => problem.clone_into(&mut answer.problem),
    }
}

/// Returns why there are no operations, if that does not mean that the rank has enqueued none.
fn why_nothing(digest: &FlightDigest, hears_all_backends: bool, pid: i32) -> Option<&'static str> {
    if has_operations(digest) {
        return None;
    }
    if !hears_all_backends {
        return Some(
            "has recorded nothing: with Gloo its PyTorch has no Flight Recorder; 2.8 or later has one",
        );
    }
    match kept(pid).as_deref() {
        Some("0") => Some("records nothing: TORCH_FR_BUFFER_SIZE is 0 in its environment"),
        Some(_) => None,
        None => Some("may record nothing: TORCH_FR_BUFFER_SIZE is not set in its environment"),
    }
}

fn has_operations(digest: &FlightDigest) -> bool {
    let mut groups = digest.groups.iter();
    groups.any(|group| group.last_enqueued.is_some() || group.oldest_unfinished.is_some())
}

/// Returns how many operations the rank's recorder keeps, according to its environment. PyTorch uses the first variable that is set.
fn kept(pid: i32) -> Option<String> {
    let environment = environment(pid);
    let value = |name: &&str| {
        environment.iter().find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).trim().to_owned())
        })
    };
    FLIGHT_RECORDER_VARIABLES.iter().find_map(value)
}

/// Returns the members of the rank's process groups, as its probe recorded them.
fn members(folder: &Folder, rank: u32) -> BTreeMap<String, RankSet> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(folder.rank_groups(rank));
    let mut bytes = Vec::new();
    let read = file.and_then(|file| file.take(GROUPS_BYTES_MAX).read_to_end(&mut bytes));
    let noted = read.ok().and_then(|_| serde_json::from_slice(&bytes).ok());
    let noted: BTreeMap<String, String> = noted.unwrap_or_default();
    let ranks = |(name, ranks)| Some((name, RankSet::try_from(ranks).ok()?));
    noted.into_iter().filter_map(ranks).collect()
}
