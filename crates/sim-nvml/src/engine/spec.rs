//! What to simulate, as one line of text.
//!
//! ```text
//! PROFILExCOUNT[:SCENARIO][,KEY=VALUE…]
//!
//! h100x8                               eight H100 that train
//! h100x8:throttle,gpu=3,after=30s      GPU 3 overheats after half a minute
//! a100x4:xid,code=48,gpu=1             GPU 1 reports Xid 48
//! h100x8:healthy,nodes=16,node=5       the sixth of sixteen such nodes
//!
//! SCENARIO  healthy (default)  idle  throttle  memory-pressure  ecc  xid  link-down  lost  slow-call  hang
//! gpu=N     the GPU in trouble; default 0, but every GPU for memory-pressure and slow-call
//! after=D   trouble begins; default 10s          for=D    trouble ends this much later; default never
//! code=N    xid's number; default 79             link=N   link-down's link; default 0
//! delay=D   slow-call's delay; default 250ms     D        500ms, 30s, 2m, 1h
//! nodes=N   nodes in the cluster; default 1      node=K   which of them this is, from 0
//! seed=S    another seed, other noise and UUIDs  driver=V the driver's version; default 580.95.05
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use super::driver::Driver;
use super::fault::{Fault, Trouble, Window};
use super::profile::Profile;

/// A parsed spec.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub profile: &'static Profile,
    pub count: u32,
    pub scenario: Scenario,
    /// The GPU in trouble; `None`: all of them.
    pub gpu: Option<u32>,
    pub node: u32,
    pub nodes: u32,
    pub seed: u64,
    pub driver: Driver,
}

/// What the node's GPUs do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scenario {
    Healthy,
    Idle,
    Faulty(Fault),
}

/// The most GPUs one node has: sixteen, as in an HGX-2.
const GPUS_MAX: u32 = 16;
/// More nodes than any lab simulates by processes; a typing error beyond.
const NODES_MAX: u32 = 65_536;
const DEFAULT_AFTER: Duration = Duration::from_secs(10);
const DEFAULT_DELAY: Duration = Duration::from_millis(250);

const SCENARIOS: &str =
    "healthy, idle, throttle, memory-pressure, ecc, xid, link-down, lost, slow-call, hang";
const KEYS: &str = "gpu, after, for, code, link, delay, nodes, node, seed, driver";

/// Why a spec was refused, and what it may say instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("cannot simulate {0:?}: expected PROFILExCOUNT such as h100x8, with COUNT from 1 to {max} and one of the profiles {profiles}", max = GPUS_MAX, profiles = Profile::keys())]
    Shape(String),
    #[error("there is no profile {0:?}; use one of {profiles}", profiles = Profile::keys())]
    Profile(String),
    #[error("there is no scenario {0:?}; use one of {SCENARIOS}")]
    Scenario(String),
    #[error("{0:?} is not KEY=VALUE; the keys are {KEYS}")]
    NotAPair(String),
    #[error("there is no key {0:?}; the keys are {KEYS}")]
    Key(String),
    #[error("key {0:?} is given twice; leave one out")]
    Twice(String),
    #[error("{key}={value:?} is not valid: expected {expected}")]
    Value {
        key: &'static str,
        value: String,
        expected: String,
    },
    #[error("key {key:?} means nothing for scenario {scenario:?}; leave it out")]
    Useless { key: String, scenario: String },
}

impl Spec {
    /// Reads a spec; every key must be known, valid, given once and of use for the scenario.
    pub(crate) fn parse(text: &str) -> Result<Spec, SpecError> {
        let mut parts = text.trim().split(',');
        let head = parts.next().unwrap_or_default();
        let (machine, scenario) = head.split_once(':').unwrap_or((head, "healthy"));
        let (profile, count) = parse_machine(machine)?;
        let mut options = Options::collect(parts)?;

        let nodes = options.number("nodes", 1, NODES_MAX)?.unwrap_or(1);
        let node = options
            .number("node", 0, if nodes > 1 { nodes - 1 } else { NODES_MAX })?
            .unwrap_or(0);
        let seed = options.number_u64("seed")?.unwrap_or(0);
        let driver = options.driver()?.unwrap_or_default();
        let (scenario, gpu) = parse_scenario(scenario, profile, count, &mut options)?;
        options.must_be_empty(head.split_once(':').map_or("healthy", |(_, name)| name))?;
        Ok(Spec {
            profile,
            count,
            scenario,
            gpu,
            node,
            nodes,
            seed,
            driver,
        })
    }

    /// The fault of one GPU, if the scenario has one for it.
    pub(crate) fn fault_of(&self, gpu: u32) -> Option<Fault> {
        match self.scenario {
            Scenario::Faulty(fault) if self.gpu.is_none_or(|chosen| chosen == gpu) => Some(fault),
            _ => None,
        }
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

fn parse_scenario(
    name: &str,
    profile: &Profile,
    count: u32,
    options: &mut Options<'_>,
) -> Result<(Scenario, Option<u32>), SpecError> {
    let trouble = match name {
        "healthy" => return Ok((Scenario::Healthy, None)),
        "idle" => return Ok((Scenario::Idle, None)),
        "throttle" => Trouble::Throttle,
        "memory-pressure" => Trouble::MemoryPressure,
        "ecc" => Trouble::Ecc,
        "xid" => Trouble::Xid(
            options
                .number("code", 1, 999)?
                .map_or(Trouble::XID_OFF_THE_BUS, u64::from),
        ),
        "link-down" => Trouble::LinkDown(options.link(profile)?),
        "lost" => Trouble::Lost,
        "slow-call" => Trouble::SlowCall(options.duration("delay")?.unwrap_or(DEFAULT_DELAY)),
        "hang" => Trouble::Hang,
        other => return Err(SpecError::Scenario(other.to_owned())),
    };
    let chosen = options.number("gpu", 0, count - 1)?;
    let gpu = if trouble.is_for_all() {
        chosen
    } else {
        Some(chosen.unwrap_or(0))
    };
    let start = options.duration("after")?.unwrap_or(DEFAULT_AFTER).as_secs_f64();
    let end = options
        .duration("for")?
        .map_or(f64::INFINITY, |lasting| start + lasting.as_secs_f64());
    Ok((
        Scenario::Faulty(Fault {
            trouble,
            window: Window { start, end },
        }),
        gpu,
    ))
}

/// The `KEY=VALUE`s not yet used.
struct Options<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Options<'a> {
    fn collect(parts: impl Iterator<Item = &'a str>) -> Result<Options<'a>, SpecError> {
        let mut found = BTreeMap::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| SpecError::NotAPair(part.to_owned()))?;
            if !KEYS.split(", ").any(|known| known == key) {
                return Err(SpecError::Key(key.to_owned()));
            }
            if found.insert(key, value).is_some() {
                return Err(SpecError::Twice(key.to_owned()));
            }
        }
        Ok(Options(found))
    }

    fn number(&mut self, key: &'static str, min: u32, max: u32) -> Result<Option<u32>, SpecError> {
        let expected = || format!("a number from {min} to {max}");
        self.take(key, expected, |value| {
            value.parse().ok().filter(|n| (min..=max).contains(n))
        })
    }

    fn number_u64(&mut self, key: &'static str) -> Result<Option<u64>, SpecError> {
        self.take(key, || "a whole number".to_owned(), |value| value.parse().ok())
    }

    fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, SpecError> {
        self.take(
            key,
            || "a duration such as 500ms, 30s, 2m or 1h".to_owned(),
            parse_duration,
        )
    }

    fn driver(&mut self) -> Result<Option<Driver>, SpecError> {
        self.take(
            "driver",
            || "a driver version such as 580.95.05".to_owned(),
            Driver::parse,
        )
    }

    fn link(&mut self, profile: &Profile) -> Result<u32, SpecError> {
        match &profile.nvlink {
            Some(nvlink) => Ok(self.number("link", 0, nvlink.links - 1)?.unwrap_or(0)),
            None => Err(SpecError::Useless {
                key: "link-down".to_owned(),
                scenario: format!("{} without NVLink", profile.key),
            }),
        }
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        expected: impl Fn() -> String,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.0.remove(key) else {
            return Ok(None);
        };
        let refused = || SpecError::Value {
            key,
            value: value.to_owned(),
            expected: expected(),
        };
        read(value).map(Some).ok_or_else(refused)
    }

    fn must_be_empty(&self, scenario: &str) -> Result<(), SpecError> {
        match self.0.keys().next() {
            Some(key) => Err(SpecError::Useless {
                key: (*key).to_owned(),
                scenario: scenario.to_owned(),
            }),
            None => Ok(()),
        }
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok()?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(milliseconds).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn faulty(trouble: Trouble, start: f64, end: f64) -> Scenario {
        Scenario::Faulty(Fault {
            trouble,
            window: Window { start, end },
        })
    }

    #[test]
    fn specs_mean_what_they_say() {
        const EVER: f64 = f64::INFINITY;
        let all = None;
        let cases = [
            ("h100x8", "h100", 8, Scenario::Healthy, all),
            ("h100x8:healthy", "h100", 8, Scenario::Healthy, all),
            ("  h200x1:idle\n", "h200", 1, Scenario::Idle, all),
            ("rtx4090x2", "rtx4090", 2, Scenario::Healthy, all),
            ("b200x16:idle,nodes=3", "b200", 16, Scenario::Idle, all),
            (
                "h100x8:throttle,gpu=3,after=30s",
                "h100",
                8,
                faulty(Trouble::Throttle, 30.0, EVER),
                Some(3),
            ),
            (
                "h100x8:throttle,for=2m",
                "h100",
                8,
                faulty(Trouble::Throttle, 10.0, 130.0),
                Some(0),
            ),
            (
                "a100x4:memory-pressure",
                "a100",
                4,
                faulty(Trouble::MemoryPressure, 10.0, EVER),
                all,
            ),
            (
                "a100x4:memory-pressure,gpu=2",
                "a100",
                4,
                faulty(Trouble::MemoryPressure, 10.0, EVER),
                Some(2),
            ),
            (
                "a100x4:ecc,after=0s",
                "a100",
                4,
                faulty(Trouble::Ecc, 0.0, EVER),
                Some(0),
            ),
            (
                "h100x8:xid",
                "h100",
                8,
                faulty(Trouble::Xid(79), 10.0, EVER),
                Some(0),
            ),
            (
                "h100x8:xid,code=48,gpu=7",
                "h100",
                8,
                faulty(Trouble::Xid(48), 10.0, EVER),
                Some(7),
            ),
            (
                "h100x8:link-down,link=17",
                "h100",
                8,
                faulty(Trouble::LinkDown(17), 10.0, EVER),
                Some(0),
            ),
            (
                "h100x8:lost,after=500ms",
                "h100",
                8,
                faulty(Trouble::Lost, 0.5, EVER),
                Some(0),
            ),
            (
                "h100x8:slow-call",
                "h100",
                8,
                faulty(Trouble::SlowCall(DEFAULT_DELAY), 10.0, EVER),
                all,
            ),
            (
                "h100x8:hang,after=1h,for=5s",
                "h100",
                8,
                faulty(Trouble::Hang, 3_600.0, 3_605.0),
                Some(0),
            ),
        ];
        for (text, profile, count, scenario, gpu) in cases {
            let spec = Spec::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(
                (spec.profile.key, spec.count, spec.scenario, spec.gpu),
                (profile, count, scenario, gpu),
                "{text:?}"
            );
        }
    }

    #[test]
    fn node_keys_apply_to_every_scenario() {
        let spec = Spec::parse("h100x8:xid,nodes=16,node=15,seed=7,driver=570.172.08").unwrap();
        assert_eq!((spec.nodes, spec.node, spec.seed), (16, 15, 7));
        assert_eq!(spec.driver.to_string(), "570.172.08");
        assert_eq!(Spec::parse("h100x8,node=40").unwrap().node, 40);
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
                "h100x8:burn",
                "use one of healthy, idle, throttle, memory-pressure, ecc, xid, link-down, lost, slow-call, hang",
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
        ];
        for (text, expected) in cases {
            let message = Spec::parse(text).expect_err(text).to_string();
            assert!(
                message.contains(expected),
                "{text:?} gave {message:?}, without {expected:?}"
            );
        }
    }

    #[test]
    fn fault_goes_to_the_chosen_gpu() {
        let one = Spec::parse("h100x8:throttle,gpu=3").unwrap();
        assert!(one.fault_of(3).is_some() && one.fault_of(2).is_none());
        let every = Spec::parse("h100x8:memory-pressure").unwrap();
        assert!((0..8).all(|gpu| every.fault_of(gpu).is_some()));
    }
}
