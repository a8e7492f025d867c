//! Random folder trees, changed by people and other programs beside two runs. In every case, nothing is removed that the run did not
//! provably write, and everything that the policy selects and the run wrote is removed.
//!
//! The model tracks each file by the events that affected it. It uses the code under test only to list the checkpoints for the policy.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::MetadataExt;

use domain::run::checkpoint::retention::{Reason, Situation, decide};
use domain::run::checkpoint::{Checkpoint, Origin};
use proptest::prelude::*;

use super::*;

/// The metadata of a model with its optimizer, from one process: it names `__0_0.distcp` with this many bytes.
const METADATA: &[u8] = include_bytes!("../../../../../testdata/checkpoint/step-7/.metadata");
const SHARD_BYTES: usize = 27_940;

/// The shared names: files and folders of checkpoints, files in them, files beside them. There are few, so that they collide.
const NAMES: [&str; 16] = [
    "step-1.pt",
    "step-2.pt",
    "step-3.pt",
    "step-4.pt",
    "dcp/step-11",
    "dcp/step-12",
    "dcp/step-13",
    "best_model.pt",
    "pretrained/base.pt",
    "dcp/step-11/notes.txt",
    "dcp/step-12/__0_0.distcp",
    "dcp/step-12/sub/a.pt",
    "dcp/step-13/.metadata",
    "dcp/step-13/__0_30.distcp",
    "0/metrics.csv",
    "latest.pt",
];
/// The name to which a save writes before it renames the file.
const BESIDE: &str = "beside.tmp";
/// An unchanged shard: a link into the previous checkpoint.
const FROZEN: &str = "__0_30.distcp";

/// One event.
#[derive(Debug, Clone)]
enum Step {
    /// A run saves to one file.
    Save {
        run: usize,
        name: &'static str,
        how: How,
    },
    /// A run saves with DCP; a frozen shard is a link into another checkpoint, whoever wrote that one.
    SaveFolder {
        run: usize,
        name: &'static str,
        frozen: Option<&'static str>,
    },
    /// Another program writes a file, in place or by rename.
    Write { name: &'static str, in_place: bool },
    /// A person links a file to another name.
    Link { from: &'static str, to: &'static str },
    /// A person creates a symbolic link.
    Symlink { to: &'static str, name: &'static str },
    /// A person renames a file or a folder.
    Rename { from: &'static str, to: &'static str },
    /// A person deletes a file; its inode number may be reused.
    Delete { name: &'static str },
    /// The agent scans the folder.
    Scan { run: usize },
    /// The agent scans, the run's state machine decides, the agent removes.
    Retain { run: usize, keep: u32 },
}

#[derive(Debug, Clone, Copy)]
enum How {
    /// `torch.save` to a temporary name, then a rename.
    Renamed,
    /// The same, to an open file.
    Open,
    /// `torch.save` to a path that may exist.
    InPlace,
    /// By a library that the probe does not see.
    Unseen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let how = prop_oneof![
        Just(How::Renamed),
        Just(How::Open),
        Just(How::InPlace),
        Just(How::Unseen)
    ];
    let run = 0..2_usize;
    let name = prop::sample::select(&NAMES[..]);
    let file = prop::sample::select(&NAMES[..4]);
    let folder = prop::sample::select(&NAMES[4..7]);
    let step = prop_oneof![
        5 => (run.clone(), file, how).prop_map(|(run, name, how)| Step::Save { run, name, how }),
        4 => (run.clone(), folder.clone(), prop::option::of(folder))
            .prop_map(|(run, name, frozen)| Step::SaveFolder { run, name, frozen }),
        2 => (name.clone(), any::<bool>()).prop_map(|(name, in_place)| Step::Write { name, in_place }),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Link { from, to }),
        1 => (name.clone(), name.clone()).prop_map(|(to, name)| Step::Symlink { to, name }),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => name.prop_map(|name| Step::Delete { name }),
        1 => run.clone().prop_map(|run| Step::Scan { run }),
        4 => (run, 0..3_u32).prop_map(|(run, keep)| Step::Retain { run, keep }),
    ];
    prop::collection::vec(step, 10..40)
}

/// One file with all its names: how the saves of each run affected it.
#[derive(Debug, Clone, Default)]
struct File {
    saved: BTreeMap<usize, Saved>,
}

#[derive(Debug, Clone, Default)]
struct Saved {
    names: BTreeSet<String>,
    /// It was seen under several names, so only the names from saves count.
    linked: bool,
    /// A scan found it under a name that is never searched: its proof may be dropped.
    out_of_sight: bool,
}

struct World {
    disk: Disk,
    runs: [Run; 2],
    machines: [Machine; 2],
    /// The first run's spec contains `checkpoint_dir_is_mine`.
    mine: bool,
    /// Names and inodes of everything that existed at the first start.
    first: (HashSet<String>, HashSet<u64>),
    /// The file under each name.
    names: BTreeMap<String, usize>,
    files: Vec<File>,
    written: usize,
    now_ms: i64,
    removed: usize,
}

impl World {
    fn new(before: &[&'static str], mine: bool) -> Self {
        let disk = Disk::new();
        let runs = [disk.run("a"), disk.run("b")];
        let machine = |id: &str| {
            let spec = Spec {
                recipe: Some("ddp".into()),
                checkpoint_dir: Some(disk.folder().display().to_string()),
                ..Spec::default()
            };
            let (machine, _) = Machine::submit(RunId::new(id).unwrap(), spec, 0);
            let placed = Event::Placed {
                attempt: AttemptNo(1),
                nodes: vec![NodeName::new(NODE).unwrap()],
            };
            advance(&machine, &placed, 1).0
        };
        let machines = [machine("a"), machine("b")];
        let mut world = Self {
            disk,
            runs,
            machines,
            mine,
            first: (HashSet::new(), HashSet::new()),
            names: BTreeMap::new(),
            files: Vec::new(),
            written: 0,
            now_ms: 1,
            removed: 0,
        };
        for name in before {
            world.take(&Step::Write { name, in_place: true });
        }
        world.runs[0].first_start(true, mine);
        world.runs[1].first_start(true, false);
        for name in world.disk.names() {
            let name = name.trim_end_matches('/').to_owned();
            world.first.1.insert(world.inode(&name));
            world.first.0.insert(name);
        }
        world
    }

    fn inode(&self, name: &str) -> u64 {
        std::fs::symlink_metadata(self.disk.path(name)).unwrap().ino()
    }

    /// Returns a unique complete checkpoint: no two have the same length.
    fn bytes(&mut self) -> Vec<u8> {
        self.written += 1;
        let mut bytes = FULL.to_vec();
        // The length of the archive's comment, and the comment.
        let at = bytes.len() - 2;
        bytes[at..].copy_from_slice(&u16::try_from(self.written).unwrap().to_le_bytes());
        bytes.extend(vec![7; self.written]);
        bytes
    }

    fn shard(&mut self) -> Vec<u8> {
        self.written += 1;
        vec![3; SHARD_BYTES + self.written]
    }

    fn new_file(&mut self, name: &str) {
        self.files.push(File::default());
        self.names.insert(name.to_owned(), self.files.len() - 1);
    }

    /// Creates the folders of a file. Returns false if the name is, or is inside, something else.
    fn can_be_file(&self, name: &str) -> bool {
        let path = self.disk.path(name);
        let kind = |path: &Path| std::fs::symlink_metadata(path).map(|meta| meta.file_type());
        let is_file_or_none = kind(&path).is_ok_and(|kind| kind.is_file()) || kind(&path).is_err();
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        let ours = above
            .into_iter()
            .filter(|above| above.starts_with(self.disk.folder()));
        is_file_or_none
            && ours.into_iter().all(|folder| {
                let _there = std::fs::create_dir(folder);
                kind(folder).is_ok_and(|kind| kind.is_dir())
            })
    }

    /// Writes a file as another program; for a run, `saved` is called afterwards.
    fn write(&mut self, name: &str, bytes: &[u8], in_place: bool) -> bool {
        if !self.can_be_file(name) {
            return false;
        }
        let path = self.disk.path(name);
        if in_place {
            std::fs::write(&path, bytes).unwrap();
            match self.names.get(name) {
                Some(file) => self.files[*file].saved.clear(),
                None => self.new_file(name),
            }
        } else {
            std::fs::write(self.disk.path(BESIDE), bytes).unwrap();
            std::fs::rename(self.disk.path(BESIDE), &path).unwrap();
            self.new_file(name);
        }
        true
    }

    fn is_linked(&self, file: usize) -> bool {
        self.names.values().filter(|other| **other == file).count() > 1
    }

    /// Records that a save of a run ended; `noted` is the file's name at that time.
    fn saved(&mut self, run: usize, name: &str, noted: &str) {
        let file = self.names[name];
        let linked = self.is_linked(file);
        let saved = self.files[file].saved.entry(run).or_default();
        saved.names.insert(noted.to_owned());
        saved.linked |= linked;
        saved.out_of_sight = false;
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Save { run, name, how } => self.save(run, name, how),
            Step::SaveFolder { run, name, frozen } => self.save_folder(run, name, frozen),
            Step::Write { name, in_place } => {
                let bytes = self.bytes();
                self.write(name, &bytes, in_place);
            }
            Step::Link { from, to } => {
                if let Some(file) = self.names.get(from).copied()
                    && !self.names.contains_key(to)
                    && self.can_be_file(to)
                {
                    std::fs::hard_link(self.disk.path(from), self.disk.path(to)).unwrap();
                    self.names.insert(to.to_owned(), file);
                }
            }
            Step::Symlink { to, name } => {
                if self.can_be_file(name) && !self.names.contains_key(name) {
                    symlink(self.disk.path(to), self.disk.path(name)).unwrap();
                }
            }
            Step::Rename { from, to } => self.rename(from, to),
            Step::Delete { name } => {
                if self.names.remove(name).is_some() {
                    std::fs::remove_file(self.disk.path(name)).unwrap();
                }
            }
            Step::Scan { run } => {
                self.runs[run].scan();
                self.looked(run);
            }
            Step::Retain { run, keep } => self.retain(run, keep),
        }
    }

    fn save(&mut self, run: usize, name: &str, how: How) {
        let bytes = self.bytes();
        let (path, beside) = (self.disk.path(name), self.disk.path(BESIDE));
        match how {
            How::Unseen => {
                self.write(name, &bytes, false);
            }
            How::InPlace => {
                if self.write(name, &bytes, true) {
                    self.runs[run].note(&path, &[""]);
                    self.saved(run, name, name);
                }
            }
            How::Renamed | How::Open => {
                if self.can_be_file(name) {
                    std::fs::write(&beside, &bytes).unwrap();
                    self.runs[run].note_as(&beside, &[""], matches!(how, How::Renamed));
                    std::fs::rename(&beside, &path).unwrap();
                    self.new_file(name);
                    self.saved(run, name, BESIDE);
                }
            }
        }
    }

    fn save_folder(&mut self, run: usize, folder: &str, frozen: Option<&str>) {
        let inside = |name: &str| format!("{folder}/{name}");
        let names = ["__0_0.distcp", ".metadata", FROZEN];
        if !names.iter().all(|name| self.can_be_file(&inside(name))) {
            return;
        }
        let shard = self.shard();
        self.write(&inside(names[0]), &shard, true);
        self.write(&inside(names[1]), METADATA, false);
        let here = inside(FROZEN);
        let source = frozen.map(|frozen| format!("{frozen}/{FROZEN}"));
        match source.and_then(|source| Some((self.names.get(&source).copied()?, source))) {
            Some((file, source)) if !self.names.contains_key(&here) => {
                std::fs::hard_link(self.disk.path(&source), self.disk.path(&here)).unwrap();
                self.names.insert(here, file);
            }
            _ => {
                let shard = self.shard();
                self.write(&here, &shard, false);
            }
        }
        self.runs[run].note(&self.disk.path(folder), &names);
        for name in names {
            self.saved(run, &inside(name), &inside(name));
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let inside = |one: &str, other: &str| one.starts_with(&format!("{other}/"));
        let (source, target) = (self.disk.path(from), self.disk.path(to));
        let there = std::fs::symlink_metadata(&source).is_ok_and(|meta| !meta.is_symlink());
        let free = std::fs::symlink_metadata(&target).is_err();
        if from == to || inside(from, to) || inside(to, from) || !there || !free || !self.can_be_file(to) {
            return;
        }
        std::fs::rename(&source, &target).unwrap();
        let moved: Vec<String> = self
            .names
            .keys()
            .filter(|name| *name == from || inside(name, from))
            .cloned()
            .collect();
        for name in moved {
            let file = self.names.remove(&name).unwrap();
            self.names.insert(format!("{to}{}", &name[from.len()..]), file);
        }
    }

    /// Updates the model after a scan of a run's agent.
    fn looked(&mut self, run: usize) {
        for file in 0..self.files.len() {
            let names: BTreeSet<String> = self
                .names
                .iter()
                .filter(|(_, of)| **of == file)
                .map(|(name, _)| name.clone())
                .collect();
            let Some(saved) = self.files[file].saved.get_mut(&run) else {
                continue;
            };
            let in_sight = |name: &String| {
                name.ends_with(".pt") || name.ends_with(".distcp") || name.ends_with(".metadata")
            };
            saved.linked |= names.len() > 1;
            if !names.iter().any(in_sight) {
                saved.out_of_sight = true;
            } else if !saved.linked {
                saved.names = names;
            }
        }
    }

    /// Returns whether a run wrote or declares what is under a name, and whether its agent must still know that.
    fn proven(&self, run: usize, name: &str) -> (bool, bool) {
        let declared = run == 0
            && self.mine
            && !self.first.0.contains(name)
            && !self.first.1.contains(&self.inode(name));
        let saved = self.names.get(name).and_then(|file| {
            let saved = self.files[*file].saved.get(&run)?;
            let one_name = !saved.linked && !self.is_linked(*file);
            (one_name || saved.names.contains(name)).then_some(!saved.out_of_sight)
        });
        (declared || saved.is_some(), declared || saved == Some(true))
    }

    /// Returns everything in the folder that is not a folder, with its content.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.disk.names().into_iter().filter(|name| !name.ends_with('/'));
        let content = |name: &String| {
            let path = self.disk.path(name);
            let target = std::fs::read_link(&path).map(|target| target.into_os_string().into_encoded_bytes());
            target.or_else(|_| std::fs::read(&path)).unwrap()
        };
        names.map(|name| (name.clone(), content(&name))).collect()
    }

    fn retain(&mut self, run: usize, keep: u32) {
        let keep = Keep {
            last: Some(keep),
            ..Keep::default()
        };
        let report = self.runs[run].scan();
        self.looked(run);
        self.now_ms += 1_000_000;
        self.machines[run].spec.keep_checkpoints = keep;
        let event = Event::Reported {
            attempt: AttemptNo(1),
            node: NodeName::new(NODE).unwrap(),
            report: NodeReport::Checkpoints(report),
        };
        let (machine, actions) = advance(&self.machines[run], &event, self.now_ms);
        self.machines[run] = machine;
        let before = self.contents();
        let folders: Vec<String> = self
            .disk
            .names()
            .into_iter()
            .filter(|name| name.ends_with('/'))
            .collect();
        let proofs: BTreeMap<String, (bool, bool)> = before
            .keys()
            .map(|name| (name.clone(), self.proven(run, name)))
            .collect();
        let named = self.named(run, keep);
        for action in actions {
            if let Task::Command {
                command: NodeCommand::Remove(order),
                ..
            } = action.task
            {
                let _why_something_stays = self.runs[run].carry_out(&order);
            }
        }
        let after = self.contents();
        for (name, content) in &after {
            assert_eq!(before.get(name), Some(content), "{name} has changed");
        }
        let gone: Vec<&String> = before.keys().filter(|name| !after.contains_key(*name)).collect();
        let is_in =
            |name: &str, checkpoint: &str| name == checkpoint || name.starts_with(&format!("{checkpoint}/"));
        for name in &gone {
            assert!(
                proofs[*name].0,
                "{name} was removed, and is not proven to be of run {run}"
            );
            let is_named = |(checkpoint, _): &(String, bool)| is_in(name, checkpoint);
            assert!(
                named.iter().any(is_named),
                "{name} was removed, and the policy names {named:?}"
            );
        }
        for (checkpoint, complete) in &named {
            let inside: Vec<&String> = before.keys().filter(|name| is_in(name, checkpoint)).collect();
            // An empty folder in it does not belong to a save.
            let hollow = |folder: &String| {
                is_in(folder, checkpoint) && !before.keys().any(|name| name.starts_with(folder))
            };
            let all_proven = inside.iter().all(|name| proofs[*name].0);
            if folders.iter().any(hollow) {
                let all_stay = inside.iter().all(|name| after.contains_key(*name));
                assert!(
                    all_stay || run == 0 && self.mine && all_proven,
                    "{checkpoint} is torn"
                );
            } else if inside.iter().all(|name| proofs[*name].1) {
                // An incomplete checkpoint may still be in writing.
                let stays: Vec<_> = inside.iter().filter(|name| after.contains_key(**name)).collect();
                assert!(
                    stays.is_empty() || !complete,
                    "{stays:?} of {checkpoint} stay, and are proven to be of run {run}"
                );
            } else if !all_proven {
                assert!(
                    inside.iter().all(|name| after.contains_key(*name)),
                    "{checkpoint} is torn"
                );
            }
        }
        self.removed += gone.len();
        for name in gone.into_iter().cloned().collect::<Vec<_>>() {
            let Some(file) = self.names.get(&name).copied() else {
                continue;
            };
            let linked = self.is_linked(file);
            self.names.remove(&name);
            if let Some(saved) = self.files[file].saved.get_mut(&run) {
                saved.names.remove(&name);
                saved.linked |= linked;
            }
        }
    }

    /// Returns the checkpoints that the policy alone would remove if this run had written all of them, each with whether it is complete.
    /// Excludes those into which a checkpoint has links that is kept because it is not proven.
    fn named(&self, run: usize, keep: Keep) -> Vec<(String, bool)> {
        let (none, folder) = (BTreeSet::new(), self.disk.folder().display().to_string());
        let folders = BTreeSet::from([folder.clone()]);
        let able_nodes = BTreeSet::from([NODE.to_owned()]);
        let decided = |checkpoints: &[Checkpoint]| {
            decide(&Situation {
                checkpoints,
                pinned: &none,
                pinned_by_others: &none,
                in_use: &none,
                folders: &folders,
                able_nodes: &able_nodes,
                keep,
                by_hand: false,
            })
        };
        let known = &self.machines[run].checkpoints;
        let mut all_proven = known.clone();
        for sight in all_proven.iter_mut().flat_map(|one| one.seen.values_mut()) {
            sight.origin = Some(Origin::Proven);
        }
        let verdicts = decided(&all_proven).into_iter().zip(decided(known)).zip(known);
        let removed =
            verdicts.filter(|((alone, real), _)| alone.is_removed() && real.reason != Reason::Needed);
        removed
            .map(|((verdict, _), one)| (verdict.path[folder.len() + 1..].to_owned(), one.complete))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn only_what_the_run_provably_wrote_is_removed_and_all_of_it(
        before in prop::collection::vec(prop::sample::select(&NAMES[..]), 0..6),
        mine in prop::bool::weighted(0.3),
        steps in steps(),
    ) {
        let mut world = World::new(&before, mine);
        for step in &steps {
            world.take(step);
        }
        world.take(&Step::Retain { run: 0, keep: 1 });
        world.take(&Step::Retain { run: 1, keep: 0 });
    }
}

/// Waits for a later file time: two checkpoints that finished in the same millisecond both count as the last one.
fn until_files_get_a_later_time() {
    let time_ms = || {
        let modified = tempfile::tempfile()
            .unwrap()
            .metadata()
            .unwrap()
            .modified()
            .unwrap();
        modified
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    let first_ms = time_ms();
    while time_ms() == first_ms {
        std::thread::yield_now();
    }
}

/// Without removals, the property above would also hold for a program that does nothing.
#[test]
fn the_random_worlds_do_remove_something() {
    let mut world = World::new(&["best_model.pt"], false);
    for name in ["step-1.pt", "step-2.pt", "step-3.pt"] {
        until_files_get_a_later_time();
        world.take(&Step::Save {
            run: 0,
            name,
            how: How::Renamed,
        });
    }
    for name in ["dcp/step-11", "dcp/step-12", "dcp/step-13"] {
        until_files_get_a_later_time();
        let frozen = Some("dcp/step-11");
        world.take(&Step::SaveFolder { run: 0, name, frozen });
    }
    world.take(&Step::Retain { run: 0, keep: 1 });
    assert_eq!(
        world.disk.names(),
        [
            "best_model.pt",
            "dcp/",
            "dcp/step-13/",
            "dcp/step-13/.metadata",
            "dcp/step-13/__0_0.distcp",
            "dcp/step-13/__0_30.distcp"
        ]
    );
    assert_eq!(world.removed, 9);
}
