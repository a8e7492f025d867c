//! One scan of a folder: finds its checkpoints and checks which of them are complete.
//!
//! ```text
//! FOLDER/step-120/.metadata, __R_N.distcp     a folder of torch.distributed.checkpoint
//! FOLDER/step-120.pt, .pth, .ckpt             a file of torch.save; with the suffix .tmp, a save that did not finish
//! FOLDER/checkpoint-120/model.safetensors …   a folder of files: its name contains a step, the names of the files do not
//! FOLDER/…/…                                  the same, up to three folders down
//! FOLDER/.trash-lockstep-…                    left by an interrupted removal of an older version; reported, not changed
//! FOLDER/latest                               a pointer; reported, not followed
//! ```
//! A scan is limited by [`Limits`]. If it cannot examine everything, its report is partial.

mod folder;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use domain::run::checkpoint::{
    Checkpoint, CheckpointOnNode, CheckpointReport, Format, Origin, UNPROVEN_MAX, resume_point, step_of_name,
};

use super::archive::{FileCheck, check_file, read_small};
use super::identity::{Identity, Kind};
use super::records::Records;
use super::sidecar;

/// The prefix of the names that older versions gave to files that they were deleting.
pub(super) const TRASH: &str = ".trash-lockstep-";
/// If an incomplete checkpoint did not change for this long, its save has been abandoned: a rank that hangs has been stopped by then.
pub(super) const QUIET: Duration = Duration::from_secs(30);
/// Maximum size of a pointer, which contains only a name.
const POINTER_BYTES_MAX: u64 = 4_096;

/// The limits of one scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum number of names to examine.
    pub(super) entries: usize,
    /// Maximum duration.
    pub(super) within: Duration,
    /// Maximum number of checkpoints in a report, those with the highest steps first.
    pub(super) checkpoints: usize,
}

impl Limits {
    /// Returns the limits for a run on this many nodes: together they report at most 4,096 checkpoints, and each node at most 200.
    pub(super) fn for_nodes(nodes: u32) -> Self {
        Self {
            entries: 100_000,
            within: Duration::from_secs(5),
            checkpoints: (4_096 / usize::try_from(nodes.max(1)).unwrap_or(usize::MAX)).clamp(16, 200),
        }
    }
}

/// How many levels below the folder checkpoints are searched, and files below a checkpoint.
pub(super) const DEPTH_MAX: usize = 3;

/// The results of earlier scans, so that an unchanged file is not read again.
#[derive(Debug, Default)]
pub(super) struct ScanCache {
    files: HashMap<PathBuf, (ContentStamp, FileCheck)>,
    changing: HashMap<PathBuf, (ContentStamp, Instant)>,
}

/// A value that changes whenever the content changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ContentStamp {
    inode: u64,
    bytes: u64,
    changed_ns: i128,
    files: usize,
}

/// The input of a scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanInput<'a> {
    /// The name of this node.
    pub(super) node: &'a str,
    /// The run's checkpoint folder.
    pub(super) folder: Option<&'a Path>,
    /// Single checkpoints that the probe named.
    pub(super) named: &'a [PathBuf],
    /// The records of the files that the run wrote. Without them the origin of a checkpoint is unknown.
    pub(super) records: Option<&'a Records>,
    /// The ranks have ended, so nothing is being written any more.
    pub(super) over: bool,
    /// The limits of the scan.
    pub(super) limits: Limits,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// The report for the collector.
    pub(super) report: CheckpointReport,
    /// The files of all checkpoints that were found.
    pub(super) files: Vec<(PathBuf, Identity)>,
    /// Something was not examined.
    pub(super) incomplete: bool,
}

/// Scans the folder and the named checkpoints.
pub(super) fn scan(input: &ScanInput<'_>, cache: &mut ScanCache) -> ScanResult {
    let mut scan = Scan::new(input, cache);
    let mut result = ScanResult::default();
    if let Some(folder) = input.folder {
        result.report.folder = folder.to_str().map(str::to_owned);
        result.report.free_bytes = free_bytes(folder);
        if let Err(error) = scan.search(folder, 0)
            && error.kind() != io::ErrorKind::NotFound
        {
            result.report.problem = Some(format!("{} cannot be read: {error}", folder.display()));
        }
    }
    for path in input.named {
        scan.candidate(path);
    }
    result.report.partial = scan.partial;
    result.report.latest = scan.latest.take();
    if scan.unnamed > 0 {
        let problem = format!("{} names are not valid text and are skipped", scan.unnamed);
        result.report.problem.get_or_insert(problem);
    }
    if let Some(first) = scan.trash.first() {
        let problem = format!(
            "{} of {} are left from a removal by an older version; it is unknown whether this run wrote them, so they are kept: remove them by hand",
            first.display(),
            scan.trash.len()
        );
        result.report.problem.get_or_insert(problem);
    }
    let earlier = input.records.and_then(|records| records.earlier.as_ref());
    if let Some(why) = earlier.and_then(super::first_start::EarlierFiles::why_not_declared) {
        let problem = format!("checkpoint_dir_is_mine has no effect on this node: {why}");
        result.report.problem.get_or_insert(problem);
    }
    result.report.proves = input.records.is_some();
    result.incomplete = scan.partial;
    result.files = scan.files();
    result.report.checkpoints = scan.checkpoints();
    result.report.partial |= bound(&mut result.report.checkpoints, input.limits.checkpoints);
    cache.forget();
    result
}

/// Scans a single checkpoint, without remembered results and without records.
pub(super) fn scan_one(path: &Path, node: &str) -> Option<Checkpoint> {
    let mut cache = ScanCache::default();
    let named = [path.to_owned()];
    let input = ScanInput {
        node,
        folder: None,
        named: &named,
        records: None,
        over: true,
        limits: Limits::for_nodes(1),
    };
    scan(&input, &mut cache).report.checkpoints.pop()
}

/// Returns the bytes that an unprivileged user may still write.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = folder
        .ancestors()
        .find_map(|there| rustix::fs::statvfs(there).ok())?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Limits the number of reported checkpoints to those with the highest steps. The one from which training would resume is always included.
fn bound(checkpoints: &mut Vec<Checkpoint>, max: usize) -> bool {
    checkpoints.sort_by(|a, b| b.progress().cmp(&a.progress()).then_with(|| a.path.cmp(&b.path)));
    if checkpoints.len() <= max {
        return false;
    }
    let anchor = resume_point(checkpoints).map(|at| at.path);
    let at = anchor.and_then(|path| checkpoints.iter().position(|one| one.path == path));
    if let Some(at) = at.filter(|at| *at >= max) {
        checkpoints.swap(at, max - 1);
    }
    checkpoints.truncate(max);
    true
}

struct Scan<'a> {
    input: ScanInput<'a>,
    cache: &'a mut ScanCache,
    entries_left: usize,
    deadline: Instant,
    partial: bool,
    unnamed: usize,
    latest: Option<String>,
    trash: Vec<PathBuf>,
    found: BTreeMap<PathBuf, Found>,
}

/// A checkpoint, before its relations to other checkpoints are known.
struct Found {
    checkpoint: Checkpoint,
    sight: CheckpointOnNode,
    contents: Contents,
}

/// The contents of a checkpoint.
#[derive(Debug, Default)]
struct Contents {
    files: Vec<CheckpointFile>,
    /// Folders below it that are empty or too deep to be examined, with a trailing `/`.
    folders: Vec<(String, PathBuf)>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone)]
struct CheckpointFile {
    /// The path below the checkpoint, with `/`. Empty for a checkpoint that is a single file.
    name: String,
    path: PathBuf,
    bytes: u64,
    inode: (u64, u64),
    links: u64,
    changed_ns: i128,
    /// The target of a symbolic link. The sizes are those of the target.
    leads_to: Option<PathBuf>,
    /// The identity of the path itself, without following a link; `None` if it no longer exists.
    identity: Option<Identity>,
}

struct Item {
    name: String,
    path: PathBuf,
    kind: std::fs::FileType,
}

// === finding ===

impl<'a> Scan<'a> {
    fn new(input: &ScanInput<'a>, cache: &'a mut ScanCache) -> Self {
        Self {
            input: *input,
            cache,
            entries_left: input.limits.entries,
            deadline: Instant::now() + input.limits.within,
            partial: false,
            unnamed: 0,
            latest: None,
            trash: Vec::new(),
            found: BTreeMap::new(),
        }
    }

    /// Lists the names in a folder, within the limits. Links are not followed.
    fn list(&mut self, folder: &Path) -> io::Result<Vec<Item>> {
        let mut items = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            if self.entries_left == 0 || Instant::now() > self.deadline {
                self.partial = true;
                break;
            }
            self.entries_left -= 1;
            let entry = entry?;
            let Ok(kind) = entry.file_type() else { continue };
            match entry.file_name().into_string() {
                Ok(name) if !name.chars().any(char::is_control) => items.push(Item {
                    name,
                    path: entry.path(),
                    kind,
                }),
                _ => self.unnamed += 1,
            }
        }
        Ok(items)
    }

    fn search(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        for item in self.list(folder)? {
            if item.name.starts_with(TRASH) {
                self.trash.push(item.path);
            } else if is_pointer(&item) {
                self.point(folder, &item);
            } else if item.kind.is_file() && is_weights(&item.name) {
                self.take_file(&item.path, &item.name);
            } else if item.kind.is_dir() {
                self.search_below(&item, depth);
            }
        }
        Ok(())
    }

    fn search_below(&mut self, item: &Item, depth: usize) {
        let Ok(items) = self.list(&item.path) else {
            return self.take_unreadable(&item.path, &item.name);
        };
        if is_checkpoint(&item.name, &items) {
            self.take_folder(&item.path, &item.name, items);
        } else if depth < DEPTH_MAX && self.search(&item.path, depth + 1).is_err() {
            self.partial = true;
        }
    }

    /// Examines a path that the probe named.
    fn candidate(&mut self, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let (Some(name), Ok(meta)) = (name, std::fs::symlink_metadata(path)) else {
            return;
        };
        if self.found.contains_key(path) || path.to_str().is_none() {
            return;
        }
        if meta.is_file() {
            self.take_file(path, &name);
        } else if meta.is_dir() {
            match self.list(path) {
                Ok(items) => self.take_folder(path, &name, items),
                Err(_) => self.take_unreadable(path, &name),
            }
        }
    }

    fn point(&mut self, folder: &Path, item: &Item) {
        let target = if item.kind.is_symlink() {
            std::fs::read_link(&item.path).ok()
        } else {
            let text = read_small(&item.path, POINTER_BYTES_MAX).ok().flatten();
            let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
            text.map(|text| PathBuf::from(text.trim()))
                .filter(|path| path.components().count() > 0)
        };
        let target = target.and_then(|target| folder.join(target).to_str().map(str::to_owned));
        self.latest = self.latest.take().or(target);
    }
}

fn is_pointer(item: &Item) -> bool {
    let stem = item.name.split('.').next().unwrap_or_default();
    let named = matches!(
        stem,
        "latest" | "last" | "latest_checkpoint" | "latest_checkpointed_iteration"
    );
    named && (item.kind.is_symlink() || item.kind.is_file() && !is_weights(&item.name))
}

/// Returns true for the name of a file with tensors. With a suffix such as `.tmp`, it is a save whose file has not been renamed.
fn is_weights(name: &str) -> bool {
    let name = unfinished(name).unwrap_or(name);
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    matches!(extension, Some("pt" | "pth" | "ckpt" | "safetensors"))
}

/// Returns the final name of a file with a temporary suffix.
fn unfinished(name: &str) -> Option<&str> {
    [".tmp", ".part", ".incomplete"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
}

/// Returns true if a folder contains files that only a checkpoint has, or if its name contains a step and the names of its files do not.
fn is_checkpoint(name: &str, items: &[Item]) -> bool {
    let of_dcp = |item: &Item| {
        item.name == ".metadata"
            || item.name == sidecar::NAME
            || item.name.ends_with(".distcp")
            || item.name == ".metadata.tmp"
    };
    if items.iter().any(of_dcp) {
        return true;
    }
    let own_step = |item: &Item| is_weights(&item.name) && step_of_name(&item.name).is_some();
    step_of_name(name).is_some() && may_be_numbered(name, items) && !items.iter().any(own_step)
}

/// Folders of all kinds have a number as their name. One that contains files, but none with tensors, is not a checkpoint.
fn may_be_numbered(name: &str, items: &[Item]) -> bool {
    let bare = name.chars().all(|c| c.is_ascii_digit());
    let tensors = |item: &Item| item.kind.is_dir() || is_weights(&item.name);
    !bare || items.is_empty() || items.iter().any(tensors)
}

// === examining ===

impl Scan<'_> {
    fn take_file(&mut self, path: &Path, name: &str) {
        let Ok(meta) = std::fs::symlink_metadata(path) else {
            return;
        };
        let file = CheckpointFile::of(String::new(), path, &meta);
        let check = match unfinished(name) {
            Some(_) => {
                FileCheck::Incomplete("the save did not finish: the file still has its temporary name".into())
            }
            None => self.check_file(&file),
        };
        let (mut sight, mut checkpoint) = (CheckpointOnNode::default(), Checkpoint::default());
        match check {
            FileCheck::Complete { model_only } => {
                (sight.complete, checkpoint.model_only) = (true, model_only)
            }
            FileCheck::Incomplete(why) => sight.problem = Some(format!("the file {why}")),
            FileCheck::Uncertain(why) => {
                checkpoint.uncertain = true;
                sight.problem = Some(format!("the file {why}"));
            }
        }
        let beside = path.with_file_name(format!("{name}{}", sidecar::ENDING));
        if let Ok(Some(sidecar)) = sidecar::read(&beside) {
            apply(&sidecar, &mut checkpoint);
        }
        checkpoint.step = checkpoint.step.or_else(|| step_of_name(name));
        let contents = Contents {
            files: vec![file],
            ..Contents::default()
        };
        self.add(path, checkpoint, sight, contents);
    }

    fn take_unreadable(&mut self, path: &Path, name: &str) {
        let checkpoint = Checkpoint {
            step: step_of_name(name),
            uncertain: true,
            format: Format::Folder,
            ..Checkpoint::default()
        };
        // A folder that only may be a checkpoint is not reported.
        if checkpoint.step.is_some() {
            let sight = CheckpointOnNode {
                problem: Some("the folder cannot be read".into()),
                ..CheckpointOnNode::default()
            };
            self.add(path, checkpoint, sight, Contents::default());
        }
    }

    fn take_folder(&mut self, path: &Path, name: &str, items: Vec<Item>) {
        let mut contents = Contents::default();
        let whole = self.gather(&mut contents, items, "", 0);
        if !whole {
            // With only a part of its files, it would look incomplete.
            self.partial = true;
            return;
        }
        let (mut checkpoint, sight) = folder::check(self, path, &contents.files);
        checkpoint.step = checkpoint.step.or_else(|| step_of_name(name));
        self.add(path, checkpoint, sight, contents);
    }

    fn gather(&mut self, contents: &mut Contents, items: Vec<Item>, below: &str, depth: usize) -> bool {
        for item in items {
            let name = format!("{below}{}", item.name);
            if item.kind.is_dir() {
                if depth >= DEPTH_MAX {
                    contents.folders.push((format!("{name}/"), item.path));
                    continue;
                }
                let Ok(items) = self.list(&item.path) else {
                    return false;
                };
                if items.is_empty() {
                    contents.folders.push((format!("{name}/"), item.path.clone()));
                }
                if !self.gather(contents, items, &format!("{name}/"), depth + 1) {
                    return false;
                }
            } else if item.kind.is_symlink() {
                contents.files.push(CheckpointFile::of_link(name, &item.path));
            } else if let Ok(meta) = std::fs::symlink_metadata(&item.path) {
                contents.files.push(CheckpointFile::of(name, &item.path, &meta));
            }
        }
        !self.partial
    }

    /// Validates a file. The remembered result is used if the file did not change.
    fn check_file(&mut self, file: &CheckpointFile) -> FileCheck {
        let stamp = file.stamp();
        if let Some((before, check)) = self.cache.files.get(&file.path)
            && *before == stamp
        {
            return check.clone();
        }
        let check = check_file(&file.path);
        self.cache.files.insert(file.path.clone(), (stamp, check.clone()));
        check
    }

    fn add(
        &mut self,
        path: &Path,
        mut checkpoint: Checkpoint,
        mut sight: CheckpointOnNode,
        contents: Contents,
    ) {
        let Some(text) = path.to_str() else { return };
        let Ok(meta) = std::fs::symlink_metadata(path) else {
            return;
        };
        let files = &contents.files;
        let newest_ns = files
            .iter()
            .map(|file| file.changed_ns)
            .max()
            .unwrap_or_else(|| changed_ns(&meta));
        checkpoint.path = text.to_owned();
        checkpoint.changed_ms = i64::try_from(newest_ns / 1_000_000).ok();
        checkpoint.finished_ms = checkpoint
            .finished_ms
            .or(checkpoint.changed_ms)
            .filter(|_| sight.complete);
        sight.mark = mark(meta.ino(), changed_ns(&meta));
        sight.bytes = files.iter().map(|file| file.bytes).sum();
        let stamp = ContentStamp {
            inode: meta.ino(),
            bytes: sight.bytes,
            changed_ns: newest_ns,
            files: files.len(),
        };
        sight.writing = !sight.complete && !self.input.over && self.changes(path, stamp);
        let found = Found {
            checkpoint,
            sight,
            contents,
        };
        self.found.insert(path.to_owned(), found);
    }

    /// Returns true if the content changed recently, measured from the first scan that saw it in this state: file servers' clocks differ.
    fn changes(&mut self, path: &Path, stamp: ContentStamp) -> bool {
        let now = Instant::now();
        let (before, since) = self.cache.changing.entry(path.to_owned()).or_insert((stamp, now));
        if *before != stamp {
            (*before, *since) = (stamp, now);
        }
        now.duration_since(*since) < QUIET
    }
}

/// Returns the mark of a checkpoint: the inode of its folder or file, and when that changed.
pub(super) fn mark(inode: u64, changed_ns: i128) -> String {
    format!("{inode:x}.{changed_ns:x}")
}

fn apply(sidecar: &sidecar::Sidecar, checkpoint: &mut Checkpoint) {
    checkpoint.step = sidecar.step.or(checkpoint.step);
    checkpoint.val_loss = sidecar.val_loss.filter(|loss| loss.is_finite());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a duration"
    )]
    let duration_ms = sidecar.seconds.map(|seconds| (seconds * 1_000.0) as u64);
    checkpoint.duration_ms = duration_ms;
    match sidecar.content.as_deref() {
        Some("model") => checkpoint.model_only = true,
        Some("full") => checkpoint.model_only = false,
        _ => {}
    }
}

impl ScanCache {
    /// Limits the cache: files come and go for months.
    fn forget(&mut self) {
        const REMEMBERED_MAX: usize = 100_000;
        if self.files.len() > REMEMBERED_MAX {
            self.files.clear();
        }
        if self.changing.len() > REMEMBERED_MAX {
            self.changing.clear();
        }
    }
}

impl CheckpointFile {
    fn of(name: String, path: &Path, meta: &std::fs::Metadata) -> Self {
        Self {
            name,
            path: path.to_owned(),
            bytes: meta.len(),
            inode: (meta.dev(), meta.ino()),
            links: meta.nlink(),
            changed_ns: changed_ns(meta),
            leads_to: None,
            identity: Some(Identity::from_metadata(meta)),
        }
    }

    /// A link without a target has 0 bytes, so it is recognised as missing.
    fn of_link(name: String, path: &Path) -> Self {
        let there = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        let own = there.as_ref().map(|meta| Self::of(name.clone(), path, meta));
        Self {
            leads_to: std::fs::canonicalize(path).ok().or_else(|| Some(path.to_owned())),
            identity: Identity::of(path).ok(),
            ..own.unwrap_or_else(|| Self {
                name,
                path: path.to_owned(),
                bytes: 0,
                inode: (0, 0),
                links: 1,
                changed_ns: 0,
                leads_to: None,
                identity: None,
            })
        }
    }

    fn stamp(&self) -> ContentStamp {
        ContentStamp {
            inode: self.inode.1,
            bytes: self.bytes,
            changed_ns: self.changed_ns,
            files: 1,
        }
    }
}

fn changed_ns(meta: &std::fs::Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

// === relations between checkpoints ===

impl Scan<'_> {
    /// Returns all checkpoints, each with the bytes that it uses alone and the other checkpoints that it needs.
    fn checkpoints(&mut self) -> Vec<Checkpoint> {
        let found = std::mem::take(&mut self.found);
        let real: Vec<(PathBuf, String)> = found
            .iter()
            .filter_map(|(path, found)| {
                Some((std::fs::canonicalize(path).ok()?, found.checkpoint.path.clone()))
            })
            .collect();
        let node = self.input.node.to_owned();
        let records = self.input.records;
        let finish = |(path, mut found): (PathBuf, Found)| {
            found.sight.own_bytes = own_bytes(&found.contents.files);
            if let Some(records) = records {
                let (origin, unproven) = origin(records, &path, &found.contents);
                (found.sight.origin, found.sight.unproven) = (Some(origin), unproven);
                found.checkpoint.foreign = origin == Origin::BeforeStart;
            }
            found.checkpoint.needs = needs(&found, &real);
            let sight = found.sight;
            Checkpoint {
                complete: sight.complete,
                writing: sight.writing,
                problem: sight.problem.clone(),
                bytes: sight.bytes,
                own_bytes: sight.own_bytes,
                seen: [(node.clone(), sight)].into(),
                ..found.checkpoint
            }
        };
        found.into_iter().map(finish).collect()
    }

    fn files(&self) -> Vec<(PathBuf, Identity)> {
        let files = self.found.values().flat_map(|found| &found.contents.files);
        files
            .filter_map(|file| Some((file.path.clone(), file.identity?)))
            .filter(|(_, identity)| identity.kind == Kind::File)
            .collect()
    }
}

/// Returns who wrote a checkpoint, and some of the files without proof.
fn origin(records: &Records, path: &Path, contents: &Contents) -> (Origin, Vec<String>) {
    let without = |file: &CheckpointFile| {
        file.identity
            .is_some_and(|found| records.prove(&file.path, &found, None))
    };
    // The sidecar is read only if it is needed: it may list thousands of files.
    let sidecar = if contents.files.iter().all(without) {
        None
    } else if contents.files.iter().any(|file| file.name.is_empty()) {
        sidecar::Proof::beside(path, records.run())
    } else {
        sidecar::Proof::in_folder(path, records.run())
    };
    let proves = |path: &Path, found: &Identity| records.prove(path, found, sidecar.as_ref());
    let is_proven = |file: &CheckpointFile| file.identity.is_some_and(|found| proves(&file.path, &found));
    let (proven, unproven): (Vec<&CheckpointFile>, Vec<&CheckpointFile>) =
        contents.files.iter().partition(|file| is_proven(file));
    let folders = contents.folders.iter().filter(|(_, path)| {
        let found = Identity::of(path);
        found.is_ok_and(|found| !proves(path, &found))
    });
    let names = unproven.iter().map(|file| &file.name);
    let names = names.chain(folders.map(|(name, _)| name));
    let names: Vec<String> = names.take(UNPROVEN_MAX).cloned().collect();
    if names.is_empty() && !proven.is_empty() {
        return (Origin::Proven, names);
    }
    let earlier = records.earlier.as_ref();
    let was_there = |file: &&CheckpointFile| {
        let found = file.identity.zip(earlier);
        found.is_some_and(|(found, earlier)| earlier.was_there(&found))
    };
    // With `.metadata`, a save of the run is complete, whatever other files are in the folder.
    let origin = if proven.iter().any(|file| file.name == ".metadata") {
        Origin::SinceStart
    } else if unproven.iter().any(was_there) {
        Origin::BeforeStart
    } else if !proven.is_empty() {
        Origin::SinceStart
    } else {
        match earlier.filter(|earlier| earlier.is_complete()) {
            Some(earlier) if contents.files.is_empty() && earlier.had(path) => Origin::BeforeStart,
            Some(_) => Origin::SinceStart,
            None => Origin::Unknown,
        }
    };
    (origin, names)
}

/// Returns the bytes that a removal frees. A file counts only if all its hard links are in this checkpoint.
fn own_bytes(files: &[CheckpointFile]) -> u64 {
    let mut links: HashMap<(u64, u64), (u64, u64, u64)> = HashMap::new();
    for file in files.iter().filter(|file| file.leads_to.is_none()) {
        let seen = links.entry(file.inode).or_insert((0, file.links, file.bytes));
        seen.0 += 1;
    }
    links
        .values()
        .filter(|(seen, links, _)| seen >= links)
        .map(|(_, _, bytes)| bytes)
        .sum()
}

fn needs(found: &Found, all: &[(PathBuf, String)]) -> BTreeSet<String> {
    let targets = found
        .contents
        .files
        .iter()
        .filter_map(|file| file.leads_to.as_ref());
    targets
        .filter_map(|target| all.iter().find(|(real, _)| target.starts_with(real)))
        .map(|(_, path)| path.clone())
        .filter(|path| *path != found.checkpoint.path)
        .collect()
}

/// Returns the names that lead from a folder to a path. `None` if the path is not below the folder, or contains parts such as `..`.
pub(super) fn names_below<'p>(path: &'p Path, folder: &Path) -> Option<Vec<&'p std::ffi::OsStr>> {
    let below = path.strip_prefix(folder).ok()?;
    let names: Option<Vec<_>> = below
        .components()
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    names.filter(|names| !names.is_empty())
}

#[cfg(test)]
mod tests;
