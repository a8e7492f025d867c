#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::checkpoint::{Keep, resume_point};
use domain::run::spec::Spec;
use domain::run::state::{Event, Machine, NodeCommand, NodeReport, Task, advance};

use super::super::look::{Limits, Memory, Place, look};
use super::*;

const FULL: &[u8] = include_bytes!("../../../../testdata/checkpoint/full.pt");

/// A file system of its own where the test may mount one, so that it can really be full; else a folder.
struct Disk {
    folder: tempfile::TempDir,
    mounted: bool,
}

impl Disk {
    fn of_bytes(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "lockstep-test"])
            .arg(folder.path())
            .output();
        let mounted = mount.is_ok_and(|output| output.status.success());
        Self { folder, mounted }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills it until so many in a hundred are used.
    fn fill(&self, percent: u64) {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        let (free, all) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
        let filler = free.saturating_sub(all * (100 - percent) / 100);
        std::fs::write(
            self.path().join("filler"),
            vec![7; usize::try_from(filler).unwrap()],
        )
        .unwrap();
    }

    fn used_percent(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        100 - stat.f_bavail * 100 / stat.f_blocks
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            let _unmounted = Command::new("umount").arg(self.folder.path()).output();
        }
    }
}

fn aged(path: &Path, age: Duration) {
    let at = SystemTime::now() - age;
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(at)
        .unwrap();
}

/// A save of so many seconds ago.
fn save(folder: &Path, step: u64, bytes: &[u8], age_s: u64) -> String {
    let path = folder.join(format!("step-{step}.pt"));
    std::fs::write(&path, bytes).unwrap();
    aged(&path, Duration::from_secs(age_s));
    path.display().to_string()
}

fn order(folder: &Path, remain: &str, remove: &[&str]) -> PruneOrder {
    PruneOrder {
        folder: folder.display().to_string(),
        remove: remove.iter().map(|path| (*path).to_owned()).collect(),
        remain: Remain {
            path: remain.to_owned(),
            complete: true,
            mark: String::new(),
        },
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn nothing_goes_when_the_one_that_is_to_remain_is_not_whole_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let old = save(dir.path(), 1, FULL, 100);
    let last = save(dir.path(), 2, &FULL[..1_000], 50);
    let none = BTreeSet::new();
    let error = carry_out(&order(dir.path(), &last, &[&old]), &none, "n0").unwrap();
    assert!(error.to_string().contains("is not whole"), "{error}");
    std::fs::remove_file(&last).unwrap();
    let error = carry_out(&order(dir.path(), &last, &[&old]), &none, "n0").unwrap();
    assert!(error.to_string().contains("is not there"), "{error}");
    assert_eq!(names(dir.path()), ["step-1.pt"]);
}

#[test]
fn nothing_outside_and_nothing_behind_a_link_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("c");
    std::fs::create_dir_all(dir.path().join("other")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let remain = save(&folder, 9, FULL, 10);
    let outside = save(&dir.path().join("other"), 1, FULL, 100);
    symlink(dir.path().join("other"), folder.join("link")).unwrap();
    symlink(&outside, folder.join("step-1.pt")).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    for (remove, says) in [
        (outside.clone(), "not a path below"),
        (path("../other/step-1.pt"), "not a path below"),
        (path(""), "not a path below"),
        (path("link/step-1.pt"), "symbolic link"),
        (path("step-1.pt"), "symbolic link"),
        (remain.clone(), "lies in it"),
    ] {
        let error = carry_out(&order(&folder, &remain, &[&remove]), &BTreeSet::new(), "n0").unwrap();
        assert!(error.to_string().contains(says), "{remove}: {error}");
    }
    assert_eq!(names(&folder), ["link", "step-1.pt", "step-9.pt"]);
    assert!(Path::new(&outside).exists());
}

#[test]
fn what_is_in_use_or_in_writing_stays_and_links_in_a_checkpoint_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let remain = save(folder, 9, FULL, 10);
    let used = save(folder, 1, FULL, 100);
    let fresh = save(folder, 2, &FULL[..100], 0);
    let in_use = BTreeSet::from([used.clone()]);
    for (path, says) in [(&used, "goes on from it"), (&fresh, "changed a moment ago")] {
        let error = carry_out(&order(folder, &remain, &[path]), &in_use, "n0").unwrap();
        assert!(error.to_string().contains(says), "{error}");
    }
    let kept = folder.join("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("data"), b"precious").unwrap();
    let step = folder.join("step-3");
    std::fs::create_dir(&step).unwrap();
    symlink(&kept, step.join("link")).unwrap();
    std::fs::write(step.join("a.pt"), FULL).unwrap();
    assert!(
        carry_out(
            &order(folder, &remain, &[&step.display().to_string()]),
            &in_use,
            "n0"
        )
        .is_none()
    );
    assert!(!step.exists() && kept.join("data").exists());
}

#[test]
fn what_a_crash_left_is_deleted_by_the_next_look_and_a_second_node_finds_it_done() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let remain = save(folder, 9, FULL, 10);
    let old = save(folder, 1, FULL, 100);
    // As far as a removal had come when its agent was killed.
    std::fs::rename(&old, folder.join(format!("{TRASH}0-step-1.pt"))).unwrap();
    std::fs::create_dir(folder.join(".trash-of-somebody-else")).unwrap();
    assert!(carry_out(&order(folder, &remain, &[&old]), &BTreeSet::new(), "n0").is_none());
    let place = Place {
        node: "n0",
        folder: Some(folder),
        named: &[],
        over: true,
        limits: Limits::for_nodes(1),
    };
    let seen = look(&place, &mut Memory::default());
    assert_eq!(seen.report.checkpoints.len(), 1, "trash is no checkpoint");
    sweep(&seen.trash);
    assert_eq!(names(folder), [".trash-of-somebody-else", "step-9.pt"]);
}

/// The run's machine and the node's disk, as agent and collector bring them together.
struct Cluster<'d> {
    disk: &'d Disk,
    machine: Machine,
    now_ms: i64,
}

impl<'d> Cluster<'d> {
    fn new(disk: &'d Disk, keep: u32) -> Self {
        let spec = Spec {
            recipe: Some("ddp".into()),
            checkpoint_dir: Some(disk.path().display().to_string()),
            keep_checkpoints: Keep {
                last: Some(keep),
                ..Keep::default()
            },
            ..Spec::default()
        };
        let (machine, _) = Machine::submit(RunId::new("r").unwrap(), spec, 0);
        let mut cluster = Self {
            disk,
            machine,
            now_ms: 1,
        };
        cluster.take(&Event::Placed {
            attempt: AttemptNo(1),
            nodes: vec![NodeName::new("n0").unwrap()],
        });
        cluster
    }

    fn take(&mut self, event: &Event) -> Vec<PruneOrder> {
        self.now_ms += 1_000_000;
        let (machine, actions) = advance(&self.machine, event, self.now_ms);
        self.machine = machine;
        let order = |task| match task {
            Task::Command {
                command: NodeCommand::Checkpoints(order),
                ..
            } => Some(order),
            _ => None,
        };
        actions
            .into_iter()
            .filter_map(|action| order(action.task))
            .collect()
    }

    /// One look, and what the machine orders for it.
    fn look(&mut self) -> Vec<PruneOrder> {
        let place = Place {
            node: "n0",
            folder: Some(self.disk.path()),
            named: &[],
            over: true,
            limits: Limits::for_nodes(1),
        };
        let seen = look(&place, &mut Memory::default());
        sweep(&seen.trash);
        self.take(&Event::Reported {
            attempt: AttemptNo(1),
            node: NodeName::new("n0").unwrap(),
            report: NodeReport::Checkpoints(seen.report),
        })
    }

    /// Steps of those that are whole, by the disk and by nothing else.
    fn whole(&self) -> Vec<u64> {
        let whole = |step: &u64| {
            let path = self.disk.path().join(format!("step-{step}.pt"));
            std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(FULL) && bytes.len() == FULL.len())
        };
        (0..=40).filter(whole).collect()
    }
}

/// The issue's own case. As root it runs on a tmpfs of 1 MiB that is really 98 % full; else in a folder of the disk there is.
#[test]
fn of_forty_checkpoints_on_a_full_disk_the_last_good_one_is_never_gone() {
    let disk = Disk::of_bytes(1 << 20);
    for step in 1..=40_u64 {
        // Every third is torn, the last two among them; 38 is the last good one.
        let torn = step % 3 == 0 || step >= 39;
        let bytes = if torn { &FULL[..FULL.len() / 2] } else { FULL };
        save(disk.path(), step, bytes, (50 - step) * 60);
    }
    if disk.mounted {
        disk.fill(98);
        assert!(disk.used_percent() >= 98, "{} % used", disk.used_percent());
    }
    let mut cluster = Cluster::new(&disk, 3);
    cluster.take(&Event::CheckpointPinned {
        path: disk.path().join("step-5.pt").display().to_string(),
        pinned: true,
    });
    let orders = cluster.look();
    assert_eq!(resume_point(&cluster.machine.checkpoints).unwrap().step, Some(38));
    assert_eq!(orders.len(), 1);
    assert_eq!(
        orders[0].remove.len(),
        40 - 3 - 1 - 2,
        "the last 3, the pinned, and 39 and 40 that are newer, stay"
    );

    // The file that is to remain breaks between decision and removal, before each single one: nothing goes from then on.
    let last = disk.path().join("step-38.pt");
    let mut before = cluster.whole().len();
    for broken_before in [0, 7, 15] {
        let mut part = orders[0].clone();
        part.remove.truncate(broken_before);
        assert!(carry_out(&part, &BTreeSet::new(), "n0").is_none());
        let good = std::fs::read(&last).unwrap();
        std::fs::write(&last, &good[..good.len() - 1]).unwrap();
        let left = names(disk.path());
        assert!(matches!(
            carry_out(&orders[0], &BTreeSet::new(), "n0"),
            Some(PruneError::Remain { .. })
        ));
        assert_eq!(
            names(disk.path()),
            left,
            "nothing goes while the last good one is broken"
        );
        // The run would go on from the one before now, so that one must be protected instead.
        cluster.look();
        let next = resume_point(&cluster.machine.checkpoints).unwrap();
        assert_eq!(next.step, Some(37));
        assert!(cluster.whole().contains(&37));
        std::fs::write(&last, &good).unwrap();
        aged(&last, Duration::from_secs(12 * 60));
        let now = cluster.whole().len();
        assert!(now <= before);
        before = now;
    }
    // Undisturbed, again and again until nothing is left to do.
    for _ in 0..5 {
        for order in cluster.look() {
            assert!(carry_out(&order, &BTreeSet::new(), "n0").is_none());
        }
        assert!(cluster.whole().contains(&38), "the last good one");
    }
    assert_eq!(cluster.whole(), [5, 35, 37, 38]);
    let left: Vec<_> = names(disk.path())
        .into_iter()
        .filter(|name| name != "filler")
        .collect();
    assert_eq!(
        left,
        [
            "step-35.pt",
            "step-37.pt",
            "step-38.pt",
            "step-39.pt",
            "step-40.pt",
            "step-5.pt"
        ]
    );
}
