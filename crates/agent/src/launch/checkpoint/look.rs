//! One look at a folder: which checkpoints are in it, and which of them are whole.
//!
//! ```text
//! FOLDER/step-120/.metadata, __R_N.distcp     a folder of torch.distributed.checkpoint
//! FOLDER/step-120.pt, .pth, .ckpt             a file of torch.save; with .tmp behind it a save that did not finish
//! FOLDER/checkpoint-120/model.safetensors …   a folder of files: the name tells a step, the files do not
//! FOLDER/…/…                                  the same, up to three folders down
//! FOLDER/.trash-lockstep-…                    left by a removal of an older version that was interrupted; told, not touched
//! FOLDER/latest                               a pointer; told, not followed
//! ```
//! A look costs at most [`Limits`]; what it did not come to makes it partial.

mod folder;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use domain::run::checkpoint::{
    Checkpoint, CheckpointReport, Format, Origin, Sight, UNPROVEN_MAX, resume_point, step_of_name,
};

use super::archive::{Judged, judge, read_small};
use super::identity::{Identity, Kind};
use super::records::Records;
use super::sidecar;

/// Begins the name that older versions gave to what they were deleting.
pub(super) const TRASH: &str = ".trash-lockstep-";
/// What nothing changed in for so long, a save has given up: a rank that hangs is stopped by then.
pub(super) const QUIET: Duration = Duration::from_secs(30);
/// A pointer is a name.
const POINTER_BYTES_MAX: u64 = 4_096;

/// What a look may cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Names that are looked at.
    pub(super) entries: usize,
    /// Time.
    pub(super) within: Duration,
    /// Checkpoints that are told, the furthest first.
    pub(super) told: usize,
}

impl Limits {
    /// For a run on so many nodes: together they tell no more than 4,096, and each at most 200.
    pub(super) fn for_nodes(nodes: u32) -> Self {
        Self {
            entries: 100_000,
            within: Duration::from_secs(5),
            told: (4_096 / usize::try_from(nodes.max(1)).unwrap_or(usize::MAX)).clamp(16, 200),
        }
    }
}

/// How deep below the folder checkpoints are looked for, and files below a checkpoint.
pub(super) const DEPTH_MAX: usize = 3;

/// What earlier looks found, so that a file that did not change is not read again.
#[derive(Debug, Default)]
pub(super) struct Memory {
    files: HashMap<PathBuf, (Stamp, Judged)>,
    changing: HashMap<PathBuf, (Stamp, Instant)>,
}

/// Changes whenever the content does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed_ns: i128,
    files: usize,
}

/// Where to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Who looks.
    pub(super) node: &'a str,
    /// The run's folder.
    pub(super) folder: Option<&'a Path>,
    /// Single checkpoints the probe named.
    pub(super) named: &'a [PathBuf],
    /// What is known of the files that the run wrote; without it nobody can tell who wrote a checkpoint.
    pub(super) records: Option<&'a Records>,
    /// Nothing here writes any more.
    pub(super) over: bool,
    /// What may be spent.
    pub(super) limits: Limits,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// For the collector.
    pub(super) report: CheckpointReport,
    /// The files of all checkpoints that were found.
    pub(super) files: Vec<(PathBuf, Identity)>,
    /// Something was not looked at.
    pub(super) incomplete: bool,
}

/// Looks.
pub(super) fn look(place: &Place<'_>, memory: &mut Memory) -> Seen {
    let mut look = Look::new(place, memory);
    let mut seen = Seen::default();
    if let Some(folder) = place.folder {
        seen.report.folder = folder.to_str().map(str::to_owned);
        seen.report.free_bytes = free_bytes(folder);
        if let Err(error) = look.search(folder, 0)
            && error.kind() != io::ErrorKind::NotFound
        {
            seen.report.problem = Some(format!("{} cannot be looked at: {error}", folder.display()));
        }
    }
    for path in place.named {
        look.candidate(path);
    }
    seen.report.partial = look.partial;
    seen.report.latest = look.latest.take();
    if look.unnamed > 0 {
        let said = format!("{} names are no text, and are passed over", look.unnamed);
        seen.report.problem.get_or_insert(said);
    }
    if let Some(first) = look.trash.first() {
        let said = format!(
            "{} of {} are left of a removal by an older version; whether this run wrote them is not known, so they are kept: remove them by hand",
            first.display(),
            look.trash.len()
        );
        seen.report.problem.get_or_insert(said);
    }
    let earlier = place.records.and_then(|records| records.earlier.as_ref());
    if let Some(why) = earlier.and_then(super::first_start::EarlierFiles::why_not_declared) {
        let said = format!("checkpoint_dir_is_mine has no effect on this node: {why}");
        seen.report.problem.get_or_insert(said);
    }
    seen.report.proves = place.records.is_some();
    seen.incomplete = look.partial;
    seen.files = look.files();
    seen.report.checkpoints = look.checkpoints();
    seen.report.partial |= bound(&mut seen.report.checkpoints, place.limits.told);
    memory.forget();
    seen
}

/// Looks at one checkpoint alone, without what was known of it.
pub(super) fn look_at(path: &Path, node: &str) -> Option<Checkpoint> {
    let mut memory = Memory::default();
    let named = [path.to_owned()];
    let place = Place {
        node,
        folder: None,
        named: &named,
        records: None,
        over: true,
        limits: Limits::for_nodes(1),
    };
    look(&place, &mut memory).report.checkpoints.pop()
}

/// Bytes that an ordinary user may still fill.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = folder
        .ancestors()
        .find_map(|there| rustix::fs::statvfs(there).ok())?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The furthest are told, and always the one that training would go on from.
fn bound(checkpoints: &mut Vec<Checkpoint>, told: usize) -> bool {
    checkpoints.sort_by(|a, b| b.progress().cmp(&a.progress()).then_with(|| a.path.cmp(&b.path)));
    if checkpoints.len() <= told {
        return false;
    }
    let anchor = resume_point(checkpoints).map(|at| at.path);
    let at = anchor.and_then(|path| checkpoints.iter().position(|one| one.path == path));
    if let Some(at) = at.filter(|at| *at >= told) {
        checkpoints.swap(at, told - 1);
    }
    checkpoints.truncate(told);
    true
}

struct Look<'a> {
    place: Place<'a>,
    memory: &'a mut Memory,
    entries_left: usize,
    deadline: Instant,
    partial: bool,
    unnamed: usize,
    latest: Option<String>,
    trash: Vec<PathBuf>,
    found: BTreeMap<PathBuf, Found>,
}

/// A checkpoint, before what it shares with others is known.
struct Found {
    checkpoint: Checkpoint,
    sight: Sight,
    contents: Contents,
}

/// What is in a checkpoint.
#[derive(Debug, Default)]
struct Contents {
    files: Vec<Piece>,
    /// Folders below it that hold nothing, or lie too deep to be looked at, with a `/` at the end.
    folders: Vec<(String, PathBuf)>,
}

/// A file of a checkpoint.
#[derive(Debug, Clone)]
struct Piece {
    /// Below the checkpoint, with `/`; empty for a checkpoint that is one file.
    name: String,
    path: PathBuf,
    bytes: u64,
    inode: (u64, u64),
    links: u64,
    changed_ns: i128,
    /// Where a symbolic link leads; the sizes are those of what is there.
    leads_to: Option<PathBuf>,
    /// What lies at the path itself; `None` when it is gone by now.
    identity: Option<Identity>,
}

struct Item {
    name: String,
    path: PathBuf,
    kind: std::fs::FileType,
}

// === finding ===

impl<'a> Look<'a> {
    fn new(place: &Place<'a>, memory: &'a mut Memory) -> Self {
        Self {
            place: *place,
            memory,
            entries_left: place.limits.entries,
            deadline: Instant::now() + place.limits.within,
            partial: false,
            unnamed: 0,
            latest: None,
            trash: Vec::new(),
            found: BTreeMap::new(),
        }
    }

    /// The names in a folder, as far as the budget goes; links are not followed.
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

    /// A path that somebody named.
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

/// Ends like something that holds tensors; `.tmp` behind it is a save that has not been renamed.
fn is_weights(name: &str) -> bool {
    let name = unfinished(name).unwrap_or(name);
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    matches!(extension, Some("pt" | "pth" | "ckpt" | "safetensors"))
}

/// The name it would have had.
fn unfinished(name: &str) -> Option<&str> {
    [".tmp", ".part", ".incomplete"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
}

/// A folder is a checkpoint if it holds what only a checkpoint holds, or if its name tells a step and its files do not.
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

/// A bare number names all kinds of folders. One that holds files, and none with tensors, is not a checkpoint.
fn may_be_numbered(name: &str, items: &[Item]) -> bool {
    let bare = name.chars().all(|c| c.is_ascii_digit());
    let tensors = |item: &Item| item.kind.is_dir() || is_weights(&item.name);
    !bare || items.is_empty() || items.iter().any(tensors)
}

// === taking ===

impl Look<'_> {
    fn take_file(&mut self, path: &Path, name: &str) {
        let Ok(meta) = std::fs::symlink_metadata(path) else {
            return;
        };
        let piece = Piece::of(String::new(), path, &meta);
        let judged = match unfinished(name) {
            Some(_) => Judged::Torn("the save did not finish: the file still has its temporary name".into()),
            None => self.judged(&piece),
        };
        let (mut sight, mut checkpoint) = (Sight::default(), Checkpoint::default());
        match judged {
            Judged::Whole { model_only } => (sight.complete, checkpoint.model_only) = (true, model_only),
            Judged::Torn(why) => sight.problem = Some(format!("the file {why}")),
            Judged::Uncertain(why) => {
                checkpoint.uncertain = true;
                sight.problem = Some(format!("the file {why}"));
            }
        }
        let beside = path.with_file_name(format!("{name}{}", sidecar::ENDING));
        if let Ok(Some(said)) = sidecar::read(&beside) {
            apply(&said, &mut checkpoint);
        }
        checkpoint.step = checkpoint.step.or_else(|| step_of_name(name));
        let contents = Contents {
            files: vec![piece],
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
        // A folder that only might be one is not worth a line.
        if checkpoint.step.is_some() {
            let sight = Sight {
                problem: Some("the folder cannot be read".into()),
                ..Sight::default()
            };
            self.add(path, checkpoint, sight, Contents::default());
        }
    }

    fn take_folder(&mut self, path: &Path, name: &str, items: Vec<Item>) {
        let mut contents = Contents::default();
        let whole = self.gather(&mut contents, items, "", 0);
        if !whole {
            // Judged by half of its files it would look torn.
            self.partial = true;
            return;
        }
        let (mut checkpoint, sight) = folder::judge(self, path, &contents.files);
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
                contents.files.push(Piece::of_link(name, &item.path));
            } else if let Ok(meta) = std::fs::symlink_metadata(&item.path) {
                contents.files.push(Piece::of(name, &item.path, &meta));
            }
        }
        !self.partial
    }

    /// By what is remembered, if the file did not change.
    fn judged(&mut self, piece: &Piece) -> Judged {
        let stamp = piece.stamp();
        if let Some((before, judged)) = self.memory.files.get(&piece.path)
            && *before == stamp
        {
            return judged.clone();
        }
        let judged = judge(&piece.path);
        self.memory
            .files
            .insert(piece.path.clone(), (stamp, judged.clone()));
        judged
    }

    fn add(&mut self, path: &Path, mut checkpoint: Checkpoint, mut sight: Sight, contents: Contents) {
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
        sight.mark = format!("{:x}.{:x}", meta.ino(), changed_ns(&meta));
        sight.bytes = files.iter().map(|file| file.bytes).sum();
        let stamp = Stamp {
            inode: meta.ino(),
            bytes: sight.bytes,
            changed_ns: newest_ns,
            files: files.len(),
        };
        sight.writing = !sight.complete && !self.place.over && self.changes(path, stamp);
        let found = Found {
            checkpoint,
            sight,
            contents,
        };
        self.found.insert(path.to_owned(), found);
    }

    /// Measured from the first look that saw it so: the clocks of file servers differ.
    fn changes(&mut self, path: &Path, stamp: Stamp) -> bool {
        let now = Instant::now();
        let (before, since) = self
            .memory
            .changing
            .entry(path.to_owned())
            .or_insert((stamp, now));
        if *before != stamp {
            (*before, *since) = (stamp, now);
        }
        now.duration_since(*since) < QUIET
    }
}

fn apply(said: &sidecar::Sidecar, checkpoint: &mut Checkpoint) {
    checkpoint.step = said.step.or(checkpoint.step);
    checkpoint.val_loss = said.val_loss.filter(|loss| loss.is_finite());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a duration"
    )]
    let duration_ms = said.seconds.map(|seconds| (seconds * 1_000.0) as u64);
    checkpoint.duration_ms = duration_ms;
    match said.content.as_deref() {
        Some("model") => checkpoint.model_only = true,
        Some("full") => checkpoint.model_only = false,
        _ => {}
    }
}

impl Memory {
    /// Files come and go for months.
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

impl Piece {
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

    /// What is not there has no bytes, which is how it is found to be missing.
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

    fn stamp(&self) -> Stamp {
        Stamp {
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

// === what is shared ===

impl Look<'_> {
    /// All that was found, with what each takes alone and which others it needs.
    fn checkpoints(&mut self) -> Vec<Checkpoint> {
        let found = std::mem::take(&mut self.found);
        let real: Vec<(PathBuf, String)> = found
            .iter()
            .filter_map(|(path, found)| {
                Some((std::fs::canonicalize(path).ok()?, found.checkpoint.path.clone()))
            })
            .collect();
        let node = self.place.node.to_owned();
        let records = self.place.records;
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
        let pieces = self.found.values().flat_map(|found| &found.contents.files);
        pieces
            .filter_map(|piece| Some((piece.path.clone(), piece.identity?)))
            .filter(|(_, identity)| identity.kind == Kind::File)
            .collect()
    }
}

/// Who wrote a checkpoint, and some of the files that are not proven.
fn origin(records: &Records, path: &Path, contents: &Contents) -> (Origin, Vec<String>) {
    let without = |file: &Piece| {
        file.identity
            .is_some_and(|found| records.prove(&file.path, &found, None))
    };
    // Read only where it is needed: it may name thousands of files.
    let sidecar = if contents.files.iter().all(without) {
        None
    } else if contents.files.iter().any(|file| file.name.is_empty()) {
        sidecar::Proof::beside(path, records.run())
    } else {
        sidecar::Proof::in_folder(path, records.run())
    };
    let proves = |path: &Path, found: &Identity| records.prove(path, found, sidecar.as_ref());
    let is_proven = |file: &Piece| file.identity.is_some_and(|found| proves(&file.path, &found));
    let (proven, unproven): (Vec<&Piece>, Vec<&Piece>) =
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
    let was_there = |file: &&Piece| {
        let found = file.identity.zip(earlier);
        found.is_some_and(|(found, earlier)| earlier.was_there(&found))
    };
    // With `.metadata` a save of the run's own is complete, whatever else lies beside it.
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

/// A file counts only if all its links are in this checkpoint: removing it frees the bytes then, and only then.
fn own_bytes(files: &[Piece]) -> u64 {
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

/// Whether a path has only names in it, below a folder.
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
