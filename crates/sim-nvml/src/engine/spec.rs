//! The specification of what to simulate, as one line of text.
//!
//! ```text
//! PROFILExCOUNT[:SCENARIO][,KEY=VALUE…]
//!
//! h100x8                               eight H100 that train
//! h100x8:throttle,gpu=3,after=30s      GPU 3 overheats after half a minute
//! a100x4:xid,code=48,gpu=1             GPU 1 reports Xid 48
//! h100x8:mig,instances=3g.40gb+3g.40gb GPU 0 is partitioned into two instances
//! h100x8:healthy,nodes=16,node=5       the sixth of sixteen such nodes
//! h100x8:file=bad-day.scenario         a scenario file, see `scenario_file.rs`; its path is relative to the working directory
//!
//! SCENARIO  healthy (default)  idle  throttle  memory-pressure  ecc  xid  link-down  link-errors  pcie-degraded
//!           lost  slow-call  hang  driver-reload  driver-mismatch  mig  file=PATH
//!
//! gpu=N     the affected GPUs: 3, 0-3, 1+4 or all; default 0, but every GPU for memory-pressure and slow-call
//! after=D   start; default 10s                   for=D    duration; default without end
//! code=N    of xid: the number; default 79       link=N   of link-down and link-errors: the link; default 0
//! rate=N    of link-errors: errors per second    delay=D  of slow-call: the delay; default 250ms
//! reason=R  of throttle: thermal (default), power, power-brake
//! where=W   of ecc: dram (default), sram         width=N  generation=N   of pcie-degraded; default 8 lanes
//! to=V      of driver-reload: the driver's version afterwards
//! instances=A+B  of mig; default as many of the smallest as fit, none for no instances
//! nodes=N   nodes in the cluster; default 1      node=K   the number of this node, from 0
//! seed=S    another seed, other noise and UUIDs  driver=V the driver's version; default 580.95.05
//! without=F+G  fields that the GPUs do not support, in the numbering of NVML 12: 138+139
//! D         500ms, 30s, 2m, 1h
//! ```

use std::time::Duration;

use super::driver::Driver;
use super::incident::{Incident, NAMES};
use super::options::Options;
use super::profile::Profile;
use super::scenario_file;

/// A parsed specification.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub profile: &'static Profile,
    pub count: u32,
    /// True if no job runs on the node.
    pub idle: bool,
    /// All incidents, in the order in which they were written.
    pub incidents: Vec<Incident>,
    pub node: u32,
    pub nodes: u32,
    pub seed: u64,
    pub driver: Driver,
    /// Fields that are not supported, in the numbering of NVML 12.
    pub without: Vec<u32>,
}

/// The maximum number of GPUs of a node: 16, as in an HGX-2.
const GPUS_MAX: u32 = 16;
/// The maximum number of nodes, more than a lab simulates with processes. A larger number is a typing error.
pub(crate) const NODES_MAX: u32 = 65_536;
const DEFAULT_AFTER: Duration = Duration::from_secs(10);

const KEYS: [&str; 18] = [
    "gpu",
    "after",
    "for",
    "code",
    "link",
    "rate",
    "delay",
    "reason",
    "where",
    "width",
    "generation",
    "to",
    "instances",
    "nodes",
    "node",
    "seed",
    "driver",
    "without",
];

/// Why a specification was refused, and what is allowed instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("cannot simulate {0:?}: expected PROFILExCOUNT such as h100x8, with COUNT from 1 to {max} and one of the profiles {profiles}", max = GPUS_MAX, profiles = Profile::keys())]
    Shape(String),
    #[error("there is no profile {0:?}; use one of {profiles}", profiles = Profile::keys())]
    Profile(String),
    #[error("there is no scenario {0:?}; use one of healthy, {NAMES}, or file=PATH")]
    Scenario(String),
    #[error("{text:?} is not KEY=VALUE; the keys are {known}")]
    NotAPair { text: String, known: String },
    #[error("there is no key {key:?}; the keys are {known}")]
    Key { key: String, known: String },
    #[error("key {0:?} is given twice; remove one")]
    Twice(String),
    #[error("{key}={value:?} is not valid: expected {expected}")]
    Value {
        key: &'static str,
        value: String,
        expected: String,
    },
    #[error("key {key:?} means nothing for scenario {scenario:?}; leave it out")]
    Useless { key: String, scenario: String },
    #[error("scenario {scenario:?} is not possible for {profile}, a GPU without {what}; use another profile")]
    Lacking {
        scenario: String,
        profile: &'static str,
        what: &'static str,
    },
    #[error("cannot read the scenario file {path:?}: {why}")]
    File { path: String, why: String },
    #[error("{path}, line {line}: {why}")]
    Line { path: String, line: usize, why: String },
}

impl Spec {
    /// Parses a specification. Every key must be known, valid, given only once, and used by the scenario. `read` returns the text of a
    /// scenario file, or the reason why it cannot be read.
    pub(crate) fn parse(
        text: &str,
        read: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Spec, SpecError> {
        let mut parts = text.trim().split(',');
        let head = parts.next().unwrap_or_default();
        let (machine, scenario) = head.split_once(':').unwrap_or((head, "healthy"));
        let (profile, count) = parse_machine(machine)?;
        let mut options = Options::collect(parts, &KEYS)?;

        let nodes = options.number("nodes", 1, NODES_MAX)?.unwrap_or(1);
        let node = options
            .number("node", 0, if nodes > 1 { nodes - 1 } else { NODES_MAX })?
            .unwrap_or(0);
        let seed = options.number_u64("seed")?.unwrap_or(0);
        let driver = options.driver("driver")?.unwrap_or_default();
        let without = options.numbers("without")?.unwrap_or_default();
        let idle = scenario == "idle";
        let incidents = if idle || scenario == "healthy" {
            Vec::new()
        } else if let Some(path) = scenario.strip_prefix("file=") {
            let text = read(path).map_err(|why| SpecError::File {
                path: path.to_owned(),
                why,
            })?;
            scenario_file::parse(path, &text, profile, count)?
        } else {
            let after = options.duration("after")?.unwrap_or(DEFAULT_AFTER);
            vec![Incident::parse(scenario, after, profile, count, &mut options)?]
        };
        options.must_be_empty(scenario)?;
        Ok(Spec {
            profile,
            count,
            idle,
            incidents,
            node,
            nodes,
            seed,
            driver,
            without,
        })
    }
}

fn parse_machine(text: &str) -> Result<(&'static Profile, u32), SpecError> {
    let shape = || SpecError::Shape(text.to_owned());
    let (profile, count) = text.rsplit_once('x').ok_or_else(shape)?;
    let count: u32 = count.parse().map_err(|_| shape())?;
    if !(1..=GPUS_MAX).contains(&count) {
        return Err(shape());
    }
    let profile = Profile::named(profile).ok_or_else(|| SpecError::Profile(profile.to_owned()))?;
    Ok((profile, count))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    use crate::engine::fault::{FaultKind, MemoryKind, Slowdown, Window};
    use crate::engine::incident::IncidentKind;

    fn parse(text: &str) -> Result<Spec, SpecError> {
        let read = |path: &str| match path {
            "one-line" => Ok("# a comment\n\n5s lost gpu=1\n".to_owned()),
            "bad-line" => Ok("5s lost\n\n6s burn gpu=1".to_owned()),
            _ => Err("there is no such file".to_owned()),
        };
        Spec::parse(text, read)
    }

    fn fault(kind: FaultKind, start: f64, end: f64, gpus: impl IntoIterator<Item = u32>) -> Incident {
        Incident {
            kind: IncidentKind::Fault(kind),
            window: Window { start, end },
            gpus: gpus.into_iter().collect(),
            node: None,
        }
    }

    #[test]
    fn specs_mean_what_they_say() {
        const EVER: f64 = f64::INFINITY;
        let delay = Duration::from_millis(250);
        let cases = [
            ("h100x8", "h100", 8, None),
            ("h100x8:healthy", "h100", 8, None),
            ("  h200x1:idle\n", "h200", 1, None),
            ("rtx4090x2", "rtx4090", 2, None),
            ("b200x16:idle,nodes=3", "b200", 16, None),
            (
                "h100x8:throttle,gpu=3,after=30s",
                "h100",
                8,
                Some(fault(FaultKind::Throttle(Slowdown::Thermal), 30.0, EVER, [3])),
            ),
            (
                "h100x8:throttle,for=2m,reason=power",
                "h100",
                8,
                Some(fault(FaultKind::Throttle(Slowdown::Power), 10.0, 130.0, [0])),
            ),
            (
                "a100x4:memory-pressure",
                "a100",
                4,
                Some(fault(FaultKind::MemoryPressure, 10.0, EVER, 0..4)),
            ),
            (
                "a100x4:memory-pressure,gpu=1-2",
                "a100",
                4,
                Some(fault(FaultKind::MemoryPressure, 10.0, EVER, [1, 2])),
            ),
            (
                "a100x4:ecc,after=0s",
                "a100",
                4,
                Some(fault(FaultKind::Ecc(MemoryKind::Dram), 0.0, EVER, [0])),
            ),
            (
                "h100x4:ecc,where=sram",
                "h100",
                4,
                Some(fault(FaultKind::Ecc(MemoryKind::Sram), 10.0, EVER, [0])),
            ),
            (
                "h100x8:xid",
                "h100",
                8,
                Some(fault(FaultKind::Xid(79), 10.0, EVER, [0])),
            ),
            (
                "h100x8:xid,code=48,gpu=7",
                "h100",
                8,
                Some(fault(FaultKind::Xid(48), 10.0, EVER, [7])),
            ),
            (
                "h100x8:link-down,link=17",
                "h100",
                8,
                Some(fault(FaultKind::LinkDown(17), 10.0, EVER, [0])),
            ),
            (
                "h100x8:link-errors,link=2,rate=7",
                "h100",
                8,
                Some(fault(
                    FaultKind::LinkErrors {
                        link: 2,
                        per_second: 7,
                    },
                    10.0,
                    EVER,
                    [0],
                )),
            ),
            (
                "rtx4090x1:pcie-degraded,width=4,generation=3",
                "rtx4090",
                1,
                Some(fault(
                    FaultKind::PcieDegraded {
                        width: 4,
                        generation: 3,
                    },
                    10.0,
                    EVER,
                    [0],
                )),
            ),
            (
                "h100x8:lost,after=500ms",
                "h100",
                8,
                Some(fault(FaultKind::Lost, 0.5, EVER, [0])),
            ),
            (
                "h100x8:slow-call",
                "h100",
                8,
                Some(fault(FaultKind::SlowCall(delay), 10.0, EVER, 0..8)),
            ),
            (
                "h100x8:hang,after=1h,for=5s",
                "h100",
                8,
                Some(fault(FaultKind::Hang, 3_600.0, 3_605.0, [0])),
            ),
            (
                "h100x8:file=one-line,nodes=2",
                "h100",
                8,
                Some(fault(FaultKind::Lost, 5.0, EVER, [1])),
            ),
        ];
        for (text, profile, count, incident) in cases {
            let spec = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!((spec.profile.key, spec.count), (profile, count), "{text:?}");
            assert_eq!(spec.incidents, Vec::from_iter(incident), "{text:?}");
            assert_eq!(spec.idle, text.contains("idle"), "{text:?}");
        }
    }

    #[test]
    fn what_happens_to_the_node_happens_to_every_gpu() {
        let reload = parse("h100x2:driver-reload,after=1s,for=2s,to=590.48.01").unwrap();
        let to = Driver::parse("590.48.01");
        assert_eq!(
            (&reload.incidents[0].kind, reload.incidents[0].gpus.as_slice()),
            (&IncidentKind::DriverReload(to), [0, 1].as_slice())
        );
        let mig = parse("a100x2:mig,gpu=all,instances=3g.40gb+4g.40gb").unwrap();
        let IncidentKind::Mig(layout) = &mig.incidents[0].kind else {
            panic!("not partitioned")
        };
        assert_eq!((layout.0.len(), mig.incidents[0].gpus.len()), (2, 2));
    }

    #[test]
    fn node_keys_apply_to_every_scenario() {
        let spec = parse("h100x8:xid,nodes=16,node=15,seed=7,driver=570.172.08").unwrap();
        assert_eq!((spec.nodes, spec.node, spec.seed), (16, 15, 7));
        assert_eq!(spec.driver.to_string(), "570.172.08");
        assert_eq!(parse("h100x8,node=40").unwrap().node, 40);
        assert_eq!(parse("h100x8:idle,without=138+139").unwrap().without, [138, 139]);
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        let cases = [
            ("", "PROFILExCOUNT"),
            ("h100", "PROFILExCOUNT such as h100x8"),
            ("h100x", "COUNT from 1 to 16"),
            ("h100x0", "COUNT from 1 to 16"),
            ("h100x17", "COUNT from 1 to 16"),
            ("v100x8", "use one of h100, h200, b200, a100, rtx4090"),
            ("h100x8:", "no scenario \"\"; use one of healthy, idle, throttle"),
            (
                "h100x8:file=nowhere",
                "cannot read the scenario file \"nowhere\": there is no such file",
            ),
            (
                "h100x8:file=bad-line",
                "bad-line, line 3: there is no scenario \"burn\"",
            ),
            ("h100x8:file=one-line,gpu=1", "\"gpu\" means nothing"),
            (
                "h100x8:throttle,reason=boredom",
                "one of thermal, power, power-brake",
            ),
            ("h100x8:pcie-degraded,width=3", "one of 1, 2, 4, 8, 16"),
            ("a100x8:pcie-degraded,generation=5", "a number from 1 to 4"),
            ("h100x8:idle,gpu=3", "\"gpu\" means nothing for scenario \"idle\""),
            ("h100x8:driver-reload,gpu=3", "\"gpu\" means nothing"),
            (
                "h100x8:mig,instances=7g.80gb+1g.10gb",
                "instances that fit together, such as 1g.10gb+1g.10gb, of",
            ),
            ("rtx4090x2:mig", "without MIG"),
            ("rtx4090x2:ecc", "without ECC memory"),
            (
                "h100x8:burn",
                "use one of healthy, idle, throttle, memory-pressure, ecc, xid, link-down, link-errors, pcie-degraded, lost, slow-call, hang, driver-reload, driver-mismatch, mig, or file=PATH",
            ),
            ("h100x8,fast", "the keys are gpu, after, for"),
            ("h100x8,", "not KEY=VALUE"),
            ("h100x8,speed=3", "no key \"speed\"; the keys are gpu"),
            ("h100x8:throttle,gpu=1,gpu=2", "given twice"),
            ("h100x8:throttle,gpu=8", "a number from 0 to 7"),
            ("h100x8:throttle,after=30", "a duration such as 500ms"),
            ("h100x8:throttle,after=-3s", "a duration such as 500ms"),
            ("h100x8:throttle,for=99999999999999999999h", "a duration"),
            (
                "h100x8:throttle,code=79",
                "\"code\" means nothing for scenario \"throttle\"",
            ),
            ("h100x8:xid,code=zero", "a number from 1 to 999"),
            ("h100x8,gpu=1", "\"gpu\" means nothing for scenario \"healthy\""),
            ("h100x8:xid,delay=1s", "means nothing"),
            ("h100x8:link-down,link=18", "a number from 0 to 17"),
            ("rtx4090x2:link-down", "without NVLink"),
            ("h100x8,nodes=4,node=4", "a number from 0 to 3"),
            ("h100x8,seed=-1", "a whole number"),
            ("h100x8,driver=newest", "a driver version such as 580.95.05"),
            ("h100x8,without=138+", "numbers such as 138 or 138+139"),
        ];
        for (text, expected) in cases {
            let message = parse(text).expect_err(text).to_string();
            assert!(
                message.contains(expected),
                "{text:?} gave {message:?}, without {expected:?}"
            );
        }
    }
}
