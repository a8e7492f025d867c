#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fmt::Write as _;
use std::path::PathBuf;

use domain::event::{Event, Severity};
use domain::topology::Gpu;
use domain::xid::{Family, entries};

use super::*;

const SETTLED: Tick = Tick {
    at_ms: 0,
    slow: true,
    topology: true,
};

/// A node with GPU 0 at 0000:05:00, GPU 1 at 0000:06:00, and its own log.
struct Node {
    root: tempfile::TempDir,
    reader: XidReader,
    sightings: Sightings,
    samples: Samples,
    events: Events,
    sequence: u64,
}

impl Node {
    fn new(stopping_runs: &'static [&'static str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/kmsg"), "").unwrap();
        let gpu = |index, bus_id: &str| Gpu {
            index,
            pci_bus_id: bus_id.into(),
            ..Gpu::default()
        };
        let inventory = Inventory {
            gpus: vec![gpu(0, "00000000:05:00.0"), gpu(1, "00000000:06:00.0")],
            ..Inventory::default()
        };
        let (samples, events) = (Samples::new(), Events::default());
        let (reader, sightings) = XidReader::new(Setting {
            root: root.path(),
            position_file: None,
            inventory: watch::Sender::new(Arc::new(inventory)).subscribe(),
            settled: watch::Sender::new(true).subscribe(),
            is_stopping: Arc::new(|run| stopping_runs.contains(&run)),
            samples: samples.clone(),
            events: events.clone(),
        });
        Self {
            root,
            reader,
            sightings,
            samples,
            events,
            sequence: 0,
        }
    }

    /// Writes lines to the log with the current time, as the driver does.
    fn log(&mut self, lines: &str) {
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let mut text = String::new();
        for line in lines.lines() {
            self.sequence += 1;
            writeln!(
                text,
                "4,{},{},-;{line}",
                self.sequence,
                up.tv_sec as u64 * 1_000_000
            )
            .unwrap();
        }
        let path = self.root.path().join("dev/kmsg");
        let before = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, before + &text).unwrap();
    }

    /// Adds a process to `/proc`.
    fn process(&self, pid: u32, environ: &str) {
        let folder = self.root.path().join("proc").join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(
            folder.join("stat"),
            format!("{pid} (python) S {} 500 0", ["1"; 18].join(" ")),
        )
        .unwrap();
        std::fs::write(folder.join("comm"), "python\n").unwrap();
        std::fs::write(folder.join("environ"), environ).unwrap();
    }

    /// Reads, and lets the two seconds pass.
    fn events(&mut self) -> Vec<Event> {
        self.reader.read(&SETTLED);
        for settled in self.reader.ledger.settle(now_ms() + 5_000) {
            self.reader.report(&settled);
        }
        let mut events = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            while let Ok(event) =
                tokio::time::timeout(std::time::Duration::from_millis(1), self.events.next()).await
            {
                events.push(event);
            }
        });
        events
    }

    fn errors(&self, gpu: &str, xid: u32) -> Vec<f64> {
        let of = |sample: &crate::sample::sink::Sample| {
            let labels = &sample.series;
            labels.metric_name() == Some("gpu_xid_errors_total")
                && labels.get("gpu") == Some(gpu)
                && labels.get("xid") == Some(xid.to_string().as_str())
        };
        self.samples
            .latest()
            .iter()
            .filter(|sample| of(sample))
            .map(|sample| sample.value)
            .collect()
    }
}

#[test]
fn an_error_seen_by_both_witnesses_counts_once_with_the_text_of_the_log() {
    let mut node = Node::new(&[]);
    node.process(4_711, "SECRET=x\0LOCKSTEP_RUN=ddp-1\0RANK=3\0");
    node.sightings.record_xid(1, 31, None);
    node.log("NVRM: Xid (PCI:0000:06:00): 31, pid=4711, name=python, Ch 00000008, MMU Fault");
    let events = node.events();
    assert_eq!((events.len(), node.errors("1", 31)), (1, vec![1.0]));
    let event = &events[0];
    assert_eq!(
        (event.gpu, event.severity, event.run.as_deref()),
        (Some(1), Severity::Warning, Some("ddp-1"))
    );
    for words in [
        "GPU 1 reports Xid 31",
        "python (pid 4711) of run ddp-1",
        "RESTART_APP",
        "MMU Fault",
    ] {
        assert!(event.message.contains(words), "{words}: {}", event.message);
    }
    assert!(!event.message.contains("SECRET"));
    // NVML reports late.
    node.sightings.record_xid(1, 31, None);
    assert_eq!(
        (node.events().len(), node.errors("1", 31)),
        (0, vec![2.0]),
        "a second one of NVML's is a second one"
    );
}

#[test]
fn a_late_witness_adds_no_error() {
    let mut node = Node::new(&[]);
    node.log("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.");
    assert_eq!(node.events().len(), 1);
    node.sightings.record_xid(0, 79, None);
    assert_eq!((node.events().len(), node.errors("0", 79)), (0, vec![1.0]));
}

#[test]
fn companions_within_the_wait_decide() {
    let mut node = Node::new(&[]);
    node.log("NVRM: Xid (PCI:0000:05:00): 48, pid=1, name=a, DBE\nNVRM: Xid (PCI:0000:05:00): 94, pid=1, name=a, Contained\nNVRM: Xid (PCI:0000:06:00): 48, pid=1, name=a, DBE");
    let mut reported: Vec<_> = node
        .events()
        .iter()
        .map(|event| (event.gpu, event.message.contains("Xid 48:"), event.severity))
        .collect();
    reported.sort_by_key(|(gpu, is_48, _)| (*gpu, *is_48));
    assert_eq!(
        reported,
        [
            (Some(0), false, Severity::Warning),
            (Some(0), true, Severity::Warning),
            (Some(1), true, Severity::Critical)
        ]
    );
}

#[test]
fn errors_of_a_run_that_is_being_stopped_are_info() {
    let mut node = Node::new(&["ddp-1"]);
    node.process(4_711, "LOCKSTEP_RUN=ddp-1\0RANK=0\0");
    node.process(4_712, "LOCKSTEP_RUN=ddp-2\0RANK=0\0");
    node.log("NVRM: Xid (PCI:0000:05:00): 43, pid=4711, name=python, Ch 00000008\nNVRM: Xid (PCI:0000:06:00): 43, pid=4712, name=python, Ch 00000008");
    let severities: Vec<_> = node
        .events()
        .iter()
        .map(|event| (event.gpu, event.severity))
        .collect();
    assert_eq!(
        severities,
        [(Some(0), Severity::Info), (Some(1), Severity::Info)],
        "43 is NVIDIA's to ignore"
    );
    node.log("NVRM: Xid (PCI:0000:05:00): 13, pid=4711, name=python, x\nNVRM: Xid (PCI:0000:06:00): 13, pid=4712, name=python, x");
    let severities: Vec<_> = node
        .events()
        .iter()
        .map(|event| (event.gpu, event.severity))
        .collect();
    assert_eq!(
        severities,
        [(Some(0), Severity::Info), (Some(1), Severity::Warning)]
    );
}

#[test]
fn a_process_of_another_name_is_another_process() {
    let mut node = Node::new(&[]);
    node.process(4_711, "LOCKSTEP_RUN=ddp-1\0RANK=0\0");
    node.log("NVRM: Xid (PCI:0000:05:00): 31, pid=4711, name=blender, Ch 00000008");
    let events = node.events();
    assert_eq!((events.len(), events[0].run.as_deref()), (1, None));
}

#[test]
fn a_storm_is_counted_completely_and_reported_once() {
    let mut node = Node::new(&[]);
    let storm = "NVRM: Xid (PCI:0000:05:00): 45, pid=1, name=a, Ch 1\n".repeat(3_000);
    node.log(storm.trim_end());
    let events = node.events();
    assert_eq!((events.len(), node.errors("0", 45)), (1, vec![3_000.0]));
    assert!(events[0].message.contains("3000 times"), "{}", events[0].message);
}

#[test]
fn a_gpu_unknown_to_nvml_is_named_by_its_address() {
    let mut node = Node::new(&[]);
    node.log("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.");
    let events = node.events();
    assert_eq!((events[0].gpu, events[0].severity), (None, Severity::Critical));
    assert!(events[0].message.contains("0000:18:00"), "{}", events[0].message);
    assert_eq!(node.errors("0000:18:00", 79), [1.0]);
}

/// `testdata/kmsg/FAMILY.log`: what the driver writes, and after `#` the expected result.
fn fixture(family: Family) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/kmsg");
    std::fs::read_to_string(path.join(format!("{}.log", family.word()))).unwrap()
}

#[test]
fn the_fixture_of_each_family_gives_its_expected_judgement() {
    let mut families: Vec<Family> = Vec::new();
    for entry in entries() {
        if !families.contains(&entry.family) {
            families.push(entry.family);
        }
    }
    for family in families {
        let text = fixture(family);
        let expected: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# ")).collect();
        let records: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let mut node = Node::new(&[]);
        node.log(&records.join("\n"));
        node.events();
        let mut judged: Vec<String> = node
            .samples
            .latest()
            .iter()
            .filter(|sample| sample.series.metric_name() == Some("gpu_xid_judged_total"))
            .map(|sample| {
                let label = |name| sample.series.get(name).unwrap_or_default().to_owned();
                format!(
                    "{} {} {} {} {}",
                    label("gpu"),
                    label("xid"),
                    label("severity"),
                    label("action"),
                    label("cause")
                )
            })
            .collect();
        judged.sort();
        assert_eq!(judged, expected, "{family:?}");
    }
}

/// Returns the switch, SXid, severity and action of each counter of the switches.
fn switch_counters(node: &Node) -> Vec<(String, f64)> {
    let latest = node.samples.latest();
    let of_switches = latest
        .iter()
        .filter(|sample| sample.series.metric_name() == Some("nvswitch_sxid_errors_total"));
    let mut counters: Vec<(String, f64)> = of_switches
        .map(|sample| {
            let label = |name| sample.series.get(name).unwrap_or_default();
            let labels = ["nvswitch", "sxid", "severity", "action"].map(label);
            (labels.join(" "), sample.value)
        })
        .collect();
    counters.sort_by(|one, other| one.0.cmp(&other.0));
    counters
}

#[test]
fn the_fixture_of_switches_gives_its_expected_judgement() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/kmsg/nvswitch.log");
    let text = std::fs::read_to_string(path).unwrap();
    let expected = text.lines().filter_map(|line| line.strip_prefix("# "));
    let expected: Vec<(String, f64)> = expected.map(|line| (line.to_owned(), 1.0)).collect();
    let records: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut node = Node::new(&[]);
    node.log(&records.join("\n"));
    let events = node.events();
    assert_eq!(switch_counters(&node), expected);
    assert_eq!(
        node.errors("0", 74),
        [1.0],
        "what the GPU says of it stands beside it"
    );
    let of_switches: Vec<&Event> = events.iter().filter(|event| event.kind == "sxid").collect();
    assert_eq!(of_switches.len(), expected.len(), "{events:?}");
    let (severity, message) = (of_switches[0].severity, &of_switches[0].message);
    assert_eq!(severity, Severity::Critical);
    for words in [
        "NVSwitch 0 at 0000:c1:00 reports SXid 20034: a link went down",
        "on its port 28",
        "check_cables: ",
        "The driver says: Link 28 LTSSM Fault Up",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[test]
fn a_storm_of_a_switch_is_reported_once_and_again_when_it_gets_worse() {
    let mut node = Node::new(&[]);
    let line = |word: &str| format!("nvidia-nvswitch4: SXid (PCI:0000:c1:00.0): 24007, {word}, Link 03 x\n");
    node.log(line("Non-fatal").repeat(2_000).trim_end());
    assert_eq!(node.events().len(), 1);
    assert_eq!(
        switch_counters(&node),
        [("4 24007 warning reset".to_owned(), 2_000.0)]
    );
    node.log(&line("Fatal"));
    let events = node.events();
    assert_eq!((events.len(), events[0].severity), (1, Severity::Critical));
    assert!(events[0].message.contains("2000 times"), "{}", events[0].message);
}
