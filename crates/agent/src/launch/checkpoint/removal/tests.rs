#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod property;

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use domain::ident::{AttemptNo, NodeName, RunId};
use domain::run::checkpoint::{Keep, resume_point};
use domain::run::spec::Spec;
use domain::run::state::{Event, Machine, NodeCommand, NodeReport, Task, advance};

use super::super::testing::{Disk, FULL, NODE, Run, aged, names_in};
use super::*;

/// A separate file system that can be really full, if the test may mount one; otherwise a folder.
struct Volume {
    folder: tempfile::TempDir,
    mounted: bool,
}

impl Volume {
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

    /// Fills it up to this percentage.
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

impl Drop for Volume {
    fn drop(&mut self) {
        if self.mounted {
            let _unmounted = Command::new("umount").arg(self.folder.path()).output();
        }
    }
}

/// A folder at a second place, if the test may mount one.
struct BindMount(PathBuf);

impl BindMount {
    fn new(from: &Path, to: &Path) -> Option<Self> {
        std::fs::create_dir(to).unwrap();
        let mount = Command::new("mount").arg("--bind").args([from, to]).output();
        let is_mounted = mount.is_ok_and(|output| output.status.success());
        is_mounted.then(|| Self(to.to_owned()))
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn nothing_is_removed_if_the_remaining_checkpoint_is_no_longer_complete() {
    let disk = Disk::new();
    let run = disk.run("r");
    let old = run.save("step-1.pt", FULL, 100);
    let last = run.save("step-2.pt", &FULL[..1_000], 50);
    let error = run.carry_out(&run.order(&last, &[&old])).unwrap();
    assert!(error.to_string().contains("is incomplete"), "{error}");
    std::fs::remove_file(&last).unwrap();
    let error = run.carry_out(&run.order(&last, &[&old])).unwrap();
    assert!(error.to_string().contains("does not exist"), "{error}");
    assert_eq!(disk.names(), ["step-1.pt"]);
}

#[test]
fn nothing_outside_and_nothing_behind_a_link_is_touched() {
    let disk = Disk::new();
    let other = disk.folder().with_file_name("other");
    std::fs::create_dir(&other).unwrap();
    let run = disk.run("r");
    let outside = disk.run_in("r", other.clone()).save("step-1.pt", FULL, 100);
    let remain = run.save("step-9.pt", FULL, 10);
    symlink(&other, disk.path("link")).unwrap();
    symlink(&outside, disk.path("step-1.pt")).unwrap();
    let path = |name: &str| disk.path(name).display().to_string();
    for (remove, says) in [
        (outside.clone(), "not a path below"),
        (path("../other/step-1.pt"), "not a path below"),
        (path(""), "not a path below"),
        (path("link/step-1.pt"), "symbolic link"),
        (path("step-1.pt"), "symbolic link"),
        (remain.clone(), "contains the checkpoint to keep"),
    ] {
        let error = run.carry_out(&run.order(&remain, &[&remove])).unwrap();
        assert!(error.to_string().contains(says), "{remove}: {error}");
    }
    assert_eq!(disk.names(), ["link", "step-1.pt", "step-9.pt"]);
    assert!(Path::new(&outside).exists());
}

#[test]
fn what_is_in_use_or_in_writing_stays() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let used = run.save("step-1.pt", FULL, 100);
    let fresh = run.save("step-2.pt", &FULL[..100], 0);
    let in_use = BTreeSet::from([used.clone()]);
    for (path, says) in [(&used, "resumes from it"), (&fresh, "changed a moment ago")] {
        let order = run.order(&remain, &[path]);
        let kept = carry_out(&order, &|| true, &in_use, NODE, &mut run.records());
        let (_, error) = &kept[0];
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(disk.names(), ["step-1.pt", "step-2.pt", "step-9.pt"]);
}

/// The run resumed from an older checkpoint, and saved this step again before its node carried out the order.
#[test]
fn a_checkpoint_that_was_saved_again_after_the_order_stays() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let old = run.save("step-1.pt", FULL, 100);
    let order = || {
        let report = run.scan();
        let seen = report.checkpoints.iter().find(|one| one.path == old).unwrap();
        RemovalOrder {
            marks: [(old.clone(), seen.seen[NODE].mark.clone())].into(),
            ..run.order(&remain, &[&old])
        }
    };
    let earlier = order();
    run.save("step-1.pt", FULL, 50);
    let error = run.carry_out(&earlier).unwrap();
    assert!(
        error.to_string().contains("has changed since the order"),
        "{error}"
    );
    assert_eq!(disk.names(), ["step-1.pt", "step-9.pt"]);
    assert!(run.carry_out(&order()).is_none());
    assert_eq!(disk.names(), ["step-9.pt"]);
}

/// The list of the earlier files was read, and then a person pointed the link to another folder.
#[test]
fn a_declared_folder_that_leads_elsewhere_during_an_order_is_not_touched() {
    let disk = Disk::new();
    let [first, other] = ["first", "other"].map(|name| disk.folder().with_file_name(name));
    for folder in [&first, &other] {
        std::fs::create_dir(folder).unwrap();
    }
    let link = disk.path("link");
    symlink(&first, &link).unwrap();
    let run = disk.run_in("r", link.clone());
    run.first_start(true, true);
    for folder in [&first, &other] {
        for name in ["step-1.pt", "step-9.pt"] {
            std::fs::write(folder.join(name), FULL).unwrap();
        }
    }
    let [old, remain] = ["step-1.pt", "step-9.pt"].map(|name| link.join(name).display().to_string());
    let order = run.order(&remain, &[&old]);
    let mut records = run.records();
    std::fs::remove_file(&link).unwrap();
    symlink(&other, &link).unwrap();
    let kept = carry_out(&order, &|| true, &BTreeSet::new(), NODE, &mut records);
    assert!(matches!(kept[0].1, RemovalError::Elsewhere), "{kept:?}");
    assert_eq!(names_in(&other), ["step-1.pt", "step-9.pt"]);
    std::fs::remove_file(&link).unwrap();
    symlink(&first, &link).unwrap();
    let kept = carry_out(&order, &|| true, &BTreeSet::new(), NODE, &mut records);
    assert!(kept.is_empty(), "{kept:?}");
    assert_eq!(names_in(&first), ["step-9.pt"]);
}

/// A bind mount has the device number of its source. As a user who may not mount, this test does nothing.
#[test]
fn a_folder_that_is_mounted_in_a_checkpoint_is_not_touched() {
    let disk = Disk::new();
    let precious = disk.folder().with_file_name("precious");
    std::fs::create_dir(&precious).unwrap();
    let run = disk.run("r");
    run.first_start(true, true);
    let remain = run.save("step-9.pt", FULL, 10);
    let old = disk.put("step-1/a.pt", FULL);
    let step = old.parent().unwrap();
    let Some(_mounted) = BindMount::new(&precious, &step.join("x")) else {
        return;
    };
    std::fs::write(precious.join("data"), b"data").unwrap();
    for path in [&old, &precious.join("data")] {
        aged(path, Duration::from_secs(100));
    }
    let step = step.display().to_string();
    let error = run.carry_out(&run.order(&remain, &[&step])).unwrap();
    assert!(matches!(error, RemovalError::Mounted), "{error}");
    assert_eq!(names_in(&precious), ["data"]);
    assert!(old.exists());

    let Some(_below) = BindMount::new(&precious, &disk.path("below")) else {
        return;
    };
    std::fs::write(precious.join("step-2.pt"), FULL).unwrap();
    let path = disk.path("below/step-2.pt").display().to_string();
    let error = run.carry_out(&run.order(&remain, &[&path])).unwrap();
    assert!(matches!(error, RemovalError::Elsewhere), "{error}");
    assert_eq!(names_in(&precious), ["data", "step-2.pt"]);
}

/// Kernels before 5.6 have no `openat2`. As a user who may not mount, this test does nothing.
#[test]
fn a_mounted_folder_is_noticed_without_openat2() {
    let disk = Disk::new();
    let source = disk.path("source");
    std::fs::create_dir(&source).unwrap();
    let Some(_mounted) = BindMount::new(&source, &disk.path("mounted")) else {
        return;
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, disk.folder(), flags, Mode::empty()).unwrap();
    let open = |name: &str| open_and_compare_mounts(folder.as_fd(), OsStr::new(name), flags);
    assert!(open("source").is_ok());
    assert!(matches!(open("mounted"), Err(rustix::io::Errno::XDEV)));
}

/// Another run uses the folder at a second place. As a user who may not mount, this test does nothing.
#[test]
fn a_checkpoint_that_is_in_use_by_another_path_stays() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let folder = run.save("step-1/a.pt", FULL, 100);
    let step = Path::new(&folder).parent().unwrap().display().to_string();
    let file = run.save("step-2.pt", FULL, 100);
    let alias = disk.folder().with_file_name("alias");
    let Some(_mounted) = BindMount::new(&disk.folder(), &alias) else {
        return;
    };
    for (path, used) in [(&step, "step-1"), (&step, "step-1/a.pt"), (&file, "step-2.pt")] {
        let in_use = BTreeSet::from([alias.join(used).display().to_string()]);
        let order = run.order(&remain, &[path]);
        let kept = carry_out(&order, &|| true, &in_use, NODE, &mut run.records());
        assert!(matches!(kept[0].1, RemovalError::InUse), "{used}: {kept:?}");
    }
}

/// The file server did not answer after the order, and meanwhile a person pinned the checkpoint.
#[test]
fn an_old_order_removes_nothing() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let old = run.save("step-1.pt", FULL, 100);
    let order = run.order(&remain, &[&old]);
    let kept = carry_out(&order, &|| false, &BTreeSet::new(), NODE, &mut run.records());
    let (_, error) = &kept[0];
    assert!(error.to_string().contains("too old"), "{error}");
    assert_eq!(disk.names(), ["step-1.pt", "step-9.pt"]);
    assert!(run.carry_out(&order).is_none());
    assert_eq!(disk.names(), ["step-9.pt"]);
}

/// Only the first reason of an order was known.
#[test]
fn each_checkpoint_that_stays_has_a_reason() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let [first, second] = ["step-1.pt", "step-2.pt"].map(|name| run.save(name, FULL, 100));
    let foreign = disk.put("step-3.pt", FULL).display().to_string();
    let kept = |remove: &[&str]| {
        let order = run.order(&remain, remove);
        let kept = carry_out(&order, &|| true, &BTreeSet::new(), NODE, &mut run.records());
        let words = |(path, error): (String, RemovalError)| format!("{path} {error}");
        kept.into_iter().map(words).collect::<Vec<_>>()
    };
    let reasons = kept(&[&foreign, "/etc/passwd", &first]);
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[0].starts_with(&format!("{foreign} not proven")),
        "{reasons:?}"
    );
    assert!(
        reasons[1].starts_with("/etc/passwd it is not a path below"),
        "{reasons:?}"
    );
    assert_eq!(disk.names(), ["step-2.pt", "step-3.pt", "step-9.pt"]);
    // Without the checkpoint that must remain, the order ends at the first one.
    std::fs::remove_file(&remain).unwrap();
    let reasons = kept(&[&second, &foreign]);
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons[1].contains("stopped before it") && reasons[1].contains("does not exist"),
        "{reasons:?}"
    );
    assert!(Path::new(&second).exists());
}

#[test]
fn a_folder_is_removed_only_if_every_file_in_it_is_proven() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let outside = disk.folder().with_file_name("precious");
    std::fs::write(&outside, b"data").unwrap();
    type Change<'c> = &'c dyn Fn(&Path);
    let cases: [(&str, Change<'_>, &str); 7] = [
        ("", &|_| {}, ""),
        (
            "a note",
            &|step| std::fs::write(step.join("notes.txt"), b"mine").unwrap(),
            "notes.txt",
        ),
        (
            "a file deeper down",
            &|step| {
                std::fs::create_dir_all(step.join("a/b")).unwrap();
                std::fs::write(step.join("a/b/c.csv"), b"mine").unwrap();
            },
            "a/b/c.csv",
        ),
        (
            "an empty folder",
            &|step| std::fs::create_dir(step.join("empty")).unwrap(),
            "empty",
        ),
        (
            "a link",
            &|step| symlink(&outside, step.join("link")).unwrap(),
            "link",
        ),
        (
            "another's file in place of the save's",
            &|step| {
                std::fs::remove_file(step.join("a.pt")).unwrap();
                std::fs::write(step.join("a.pt"), FULL).unwrap();
            },
            "a.pt",
        ),
        (
            "what a person wrote to the save's file",
            &|step| {
                std::fs::write(step.join("a.pt"), FULL).unwrap();
                aged(&step.join("a.pt"), Duration::from_secs(60));
            },
            "a.pt",
        ),
    ];
    for (what, change, names) in cases {
        let step = disk.path("step-3");
        std::fs::create_dir_all(step.join("sub")).unwrap();
        for name in ["a.pt", "sub/b.pt"] {
            std::fs::write(step.join(name), FULL).unwrap();
        }
        run.note(&step, &["a.pt", "sub/b.pt"]);
        change(&step);
        let before = names_in(&step);
        let error = run.carry_out(&run.order(&remain, &[&step.display().to_string()]));
        if names.is_empty() {
            assert!(error.is_none() && !step.exists(), "{what}: {error:?}");
            continue;
        }
        let says = format!("not proven to be this run's: {names}");
        let error = error.map_or_else(|| "it is removed".to_owned(), |error| error.to_string());
        assert!(error.ends_with(&says), "{what}: {error}");
        assert_eq!(names_in(&step), before, "{what}");
        std::fs::remove_dir_all(&step).unwrap();
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"data");
}

#[test]
fn a_folder_that_somebody_made_for_the_run_stays_empty() {
    let disk = Disk::new();
    let run = disk.run("r");
    std::fs::create_dir(disk.path("step-1")).unwrap();
    run.first_start(true, false);
    run.save("step-1/a.pt", FULL, 100);
    let remain = run.save("step-9.pt", FULL, 10);
    let path = disk.path("step-1").display().to_string();
    assert!(run.carry_out(&run.order(&remain, &[&path])).is_none());
    assert_eq!(disk.names(), ["step-1/", "step-9.pt"]);
}

#[test]
fn what_a_crash_left_is_removed_by_the_next_order_and_a_second_node_finds_it_done() {
    let disk = Disk::new();
    let run = disk.run("r");
    let remain = run.save("step-9.pt", FULL, 10);
    let step = disk.path("step-1");
    std::fs::create_dir(&step).unwrap();
    for name in [".metadata", "__0_0.distcp"] {
        std::fs::write(step.join(name), FULL).unwrap();
        aged(&step.join(name), Duration::from_secs(100));
    }
    run.note(&step, &[".metadata", "__0_0.distcp"]);
    // The state after an agent was killed during a removal: the index is removed first.
    std::fs::remove_file(step.join(".metadata")).unwrap();
    let order = run.order(&remain, &[&step.display().to_string()]);
    assert!(run.carry_out(&order).is_none());
    assert_eq!(disk.names(), ["step-9.pt"]);
    assert!(run.carry_out(&order).is_none());
}

/// A version that did not check who wrote the files had chosen their contents.
#[test]
fn leftovers_of_an_older_versions_removal_are_reported_and_kept() {
    let disk = Disk::new();
    let run = disk.run("r");
    run.save("step-9.pt", FULL, 10);
    disk.put(".trash-lockstep-0-step-1/best_model.pt", FULL);
    let report = run.scan();
    assert_eq!(report.checkpoints.len(), 1);
    let problem = report.problem.unwrap();
    assert!(
        problem.contains(".trash-lockstep-0-step-1 of 1 are left"),
        "{problem}"
    );
    assert!(disk.path(".trash-lockstep-0-step-1/best_model.pt").exists());
}

/// The run's state machine and the node's disk, connected as by agent and collector.
struct Cluster<'d> {
    folder: &'d Path,
    run: &'d Run,
    machine: Machine,
    now_ms: i64,
}

impl<'d> Cluster<'d> {
    fn new(folder: &'d Path, run: &'d Run, keep: u32) -> Self {
        let spec = Spec {
            recipe: Some("ddp".into()),
            checkpoint_dir: Some(folder.display().to_string()),
            keep_checkpoints: Keep {
                last: Some(keep),
                ..Keep::default()
            },
            ..Spec::default()
        };
        let (machine, _) = Machine::submit(RunId::new("r").unwrap(), spec, 0);
        let mut cluster = Self {
            folder,
            run,
            machine,
            now_ms: 1,
        };
        cluster.take(&Event::Placed {
            attempt: AttemptNo(1),
            nodes: vec![NodeName::new(NODE).unwrap()],
        });
        cluster
    }

    fn take(&mut self, event: &Event) -> Vec<RemovalOrder> {
        self.now_ms += 1_000_000;
        let (machine, actions) = advance(&self.machine, event, self.now_ms);
        self.machine = machine;
        let order = |task| match task {
            Task::Command {
                command: NodeCommand::Remove(order),
                ..
            } => Some(order),
            _ => None,
        };
        actions
            .into_iter()
            .filter_map(|action| order(action.task))
            .collect()
    }

    /// One scan, and the orders that the state machine makes from it.
    fn scan(&mut self) -> Vec<RemovalOrder> {
        let report = self.run.scan();
        self.take(&Event::Reported {
            attempt: AttemptNo(1),
            node: NodeName::new(NODE).unwrap(),
            report: NodeReport::Checkpoints(report),
        })
    }

    /// Returns the steps of the complete checkpoints, from the disk only.
    fn whole(&self) -> Vec<u64> {
        let whole = |step: &u64| {
            let path = self.folder.join(format!("step-{step}.pt"));
            std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(FULL) && bytes.len() == FULL.len())
        };
        (0..=40).filter(whole).collect()
    }
}

/// A `checkpoint_dir` contained `best_model.pt` and `pretrained/base.pt`, two days older than the run. Both were removed when the run kept
/// only its last checkpoint.
#[test]
fn what_was_there_before_the_run_survives_its_retention() {
    let disk = Disk::new();
    for name in ["best_model.pt", "pretrained/base.pt", "0/metrics.csv"] {
        let path = disk.put(name, FULL);
        aged(&path, Duration::from_secs(2 * 86_400));
    }
    let run = disk.run("r");
    run.first_start(true, false);
    for step in 1..=4_u64 {
        run.save(&format!("step-{step}.pt"), FULL, (5 - step) * 60);
    }
    let folder = disk.folder();
    let mut cluster = Cluster::new(&folder, &run, 1);
    for _ in 0..2 {
        for order in cluster.scan() {
            assert!(run.carry_out(&order).is_none());
        }
    }
    let left = [
        "0/",
        "0/metrics.csv",
        "best_model.pt",
        "pretrained/",
        "pretrained/base.pt",
        "step-4.pt",
    ];
    assert_eq!(disk.names(), left);
    let answer = cluster.machine.prune_answer(None);
    assert_eq!(answer.removed, []);
    let mut kept: Vec<_> = answer
        .kept
        .iter()
        .map(|line| (line.kind.as_str(), line.path.as_str()))
        .collect();
    kept.sort_unstable();
    let path = |name: &str| disk.path(name).display().to_string();
    assert_eq!(
        kept,
        [
            ("last_complete", path("step-4.pt").as_str()),
            ("not_proven", path("best_model.pt").as_str()),
            ("not_proven", path("pretrained/base.pt").as_str()),
        ]
    );
}

/// As root, this test uses a tmpfs of 1 MiB that is really 98 % full; otherwise a folder of the existing disk.
#[test]
fn of_forty_checkpoints_on_a_full_disk_the_last_complete_one_is_never_removed() {
    let (disk, node) = (Volume::of_bytes(1 << 20), Disk::new());
    let run = node.run_in("r", disk.path().to_owned());
    for step in 1..=40_u64 {
        // Every third checkpoint is incomplete, and so are the last two; 38 is the last complete one.
        let incomplete = step % 3 == 0 || step >= 39;
        let bytes = if incomplete { &FULL[..FULL.len() / 2] } else { FULL };
        run.save(&format!("step-{step}.pt"), bytes, (50 - step) * 60);
    }
    if disk.mounted {
        disk.fill(98);
        assert!(disk.used_percent() >= 98, "{} % used", disk.used_percent());
    }
    let mut cluster = Cluster::new(disk.path(), &run, 3);
    cluster.take(&Event::CheckpointPinned {
        path: disk.path().join("step-5.pt").display().to_string(),
        pinned: true,
    });
    let orders = cluster.scan();
    assert_eq!(resume_point(&cluster.machine.checkpoints).unwrap().step, Some(38));
    assert_eq!(orders.len(), 1);
    assert_eq!(
        orders[0].remove.len(),
        40 - 3 - 1 - 2,
        "the last 3, the pinned, and 39 and 40 that are newer, stay"
    );

    // The file that must remain breaks between decision and removal, before each single removal: nothing is removed from then on.
    let last = disk.path().join("step-38.pt");
    let mut before = cluster.whole().len();
    for broken_before in [0, 7, 15] {
        let mut part = orders[0].clone();
        part.remove.truncate(broken_before);
        assert!(run.carry_out(&part).is_none());
        let good = std::fs::read(&last).unwrap();
        std::fs::write(&last, &good[..good.len() - 1]).unwrap();
        let left = names_in(disk.path());
        assert!(matches!(
            run.carry_out(&orders[0]),
            Some(RemovalError::Remain { .. })
        ));
        assert_eq!(
            names_in(disk.path()),
            left,
            "nothing goes while the last good one is broken"
        );
        // The run would now resume from the previous one, so that one must be protected instead.
        cluster.scan();
        let next = resume_point(&cluster.machine.checkpoints).unwrap();
        assert_eq!(next.step, Some(37));
        assert!(cluster.whole().contains(&37));
        std::fs::write(&last, &good).unwrap();
        aged(&last, Duration::from_secs(12 * 60));
        run.note(&last, &[""]);
        let now = cluster.whole().len();
        assert!(now <= before);
        before = now;
    }
    // Without interference, repeated until nothing is left to do.
    for _ in 0..5 {
        for order in cluster.scan() {
            assert!(run.carry_out(&order).is_none());
        }
        assert!(cluster.whole().contains(&38), "the last good one");
    }
    assert_eq!(cluster.whole(), [5, 35, 37, 38]);
    let left: Vec<_> = names_in(disk.path())
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
