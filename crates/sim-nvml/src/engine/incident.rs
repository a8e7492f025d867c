//! One thing that happens: what, when, and to which GPUs. A one-line spec has one; a scenario file has many.

use std::time::Duration;

use super::driver::Driver;
use super::fault::{Place, Slowdown, Trouble, Window};
use super::mig::{self, Layout};
use super::options::Options;
use super::profile::Profile;
use super::spec::SpecError;

/// The names of scenarios that bring an incident, in the order in which people read about them.
pub(crate) const NAMES: &str = "idle, throttle, memory-pressure, ecc, xid, link-down, link-errors, pcie-degraded, lost, slow-call, hang, driver-reload, driver-mismatch, mig";
const DEFAULT_DELAY: Duration = Duration::from_millis(250);
/// Errors a second of a link that makes some.
const DEFAULT_RATE: u32 = 20;
const RATE_MAX: u32 = 1_000_000;

/// Something that happens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Incident {
    pub what: What,
    pub window: Window,
    /// The GPUs it happens to, in order; all of the node for what happens to the node.
    pub gpus: Vec<u32>,
    /// The only node it happens on; `None`: on every node.
    pub node: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    /// Something breaks.
    Trouble(Trouble),
    /// The job is away.
    Pause,
    /// The driver is unloaded, and loaded again at the end, perhaps as another version.
    DriverReload(Option<Driver>),
    /// The library was upgraded under a driver that still runs.
    DriverMismatch,
    /// The GPU is partitioned.
    Mig(Layout),
}

impl Incident {
    /// Reads an incident of a node of `count` GPUs of this model. What begins `start` seconds into the simulation lasts
    /// for ever, unless the options say for how long.
    pub(crate) fn parse(
        name: &str,
        start: Duration,
        profile: &'static Profile,
        count: u32,
        options: &mut Options<'_>,
    ) -> Result<Incident, SpecError> {
        let what = parse_what(name, profile, options)?;
        let every = || (0..count).collect();
        let gpus = match &what {
            What::Trouble(trouble) if trouble.is_for_all() => options.gpus(count)?.unwrap_or_else(every),
            What::Trouble(_) | What::Mig(_) => options.gpus(count)?.unwrap_or_else(|| vec![0]),
            What::Pause | What::DriverReload(_) | What::DriverMismatch => every(),
        };
        let start = start.as_secs_f64();
        let end = options
            .duration("for")?
            .map_or(f64::INFINITY, |lasting| start + lasting.as_secs_f64());
        Ok(Incident {
            what,
            window: Window { start, end },
            gpus,
            node: None,
        })
    }

    /// Whether it happens on this node.
    pub(crate) fn is_on(&self, node: u32) -> bool {
        self.node.is_none_or(|only| only == node)
    }

    /// Whether both cannot be: the same thing would happen to the same GPU while it is still happening.
    pub(crate) fn clashes_with(&self, other: &Incident) -> bool {
        let same = match (&self.what, &other.what) {
            (What::Trouble(one), What::Trouble(other)) => one.excludes(*other),
            (What::Mig(_), What::Mig(_)) | (What::Pause, What::Pause) => true,
            (What::DriverReload(_) | What::DriverMismatch, What::DriverReload(_) | What::DriverMismatch) => {
                true
            }
            _ => false,
        };
        let one_node = self.node.is_none() || other.node.is_none() || self.node == other.node;
        let one_gpu = self.gpus.iter().any(|gpu| other.gpus.contains(gpu));
        same && one_node && one_gpu && self.window.overlaps(other.window)
    }
}

fn parse_what(name: &str, profile: &'static Profile, options: &mut Options<'_>) -> Result<What, SpecError> {
    let trouble = match name {
        "idle" => return Ok(What::Pause),
        "driver-reload" => return Ok(What::DriverReload(options.driver("to")?)),
        "driver-mismatch" => return Ok(What::DriverMismatch),
        "mig" => return parse_mig(profile, options).map(What::Mig),
        "throttle" => Trouble::Throttle(parse_brake(options)?),
        "memory-pressure" => Trouble::MemoryPressure,
        "ecc" => Trouble::Ecc(parse_place(profile, options)?),
        "xid" => Trouble::Xid(
            options
                .number("code", 1, 999)?
                .map_or(Trouble::XID_OFF_THE_BUS, u64::from),
        ),
        "link-down" => Trouble::LinkDown(parse_link(name, profile, options)?),
        "link-errors" => Trouble::LinkErrors {
            link: parse_link(name, profile, options)?,
            per_second: options.number("rate", 1, RATE_MAX)?.unwrap_or(DEFAULT_RATE),
        },
        "pcie-degraded" => Trouble::PcieDegraded {
            width: options
                .choice("width", &[("1", 1), ("2", 2), ("4", 4), ("8", 8), ("16", 16)])?
                .unwrap_or(8),
            generation: options
                .number("generation", 1, profile.pcie_generation)?
                .unwrap_or(profile.pcie_generation),
        },
        "lost" => Trouble::Lost,
        "slow-call" => Trouble::SlowCall(options.duration("delay")?.unwrap_or(DEFAULT_DELAY)),
        "hang" => Trouble::Hang,
        other => return Err(SpecError::Scenario(other.to_owned())),
    };
    Ok(What::Trouble(trouble))
}

fn parse_brake(options: &mut Options<'_>) -> Result<Slowdown, SpecError> {
    let words = [
        ("thermal", Slowdown::Thermal),
        ("power", Slowdown::Power),
        ("power-brake", Slowdown::PowerBrake),
    ];
    Ok(options.choice("reason", &words)?.unwrap_or(Slowdown::Thermal))
}

fn parse_place(profile: &Profile, options: &mut Options<'_>) -> Result<Place, SpecError> {
    if !profile.ecc {
        return Err(lacking("ecc", profile, "ECC memory"));
    }
    let words = [("dram", Place::Dram), ("sram", Place::Sram)];
    Ok(options.choice("where", &words)?.unwrap_or(Place::Dram))
}

fn parse_link(name: &str, profile: &Profile, options: &mut Options<'_>) -> Result<u32, SpecError> {
    match &profile.nvlink {
        Some(nvlink) => Ok(options.number("link", 0, nvlink.links - 1)?.unwrap_or(0)),
        None => Err(lacking(name, profile, "NVLink")),
    }
}

fn parse_mig(profile: &'static Profile, options: &mut Options<'_>) -> Result<Layout, SpecError> {
    let slices = profile.mig;
    let Some(smallest) = slices.first() else {
        return Err(lacking("mig", profile, "MIG"));
    };
    let expected = || mig::expectation(slices);
    let all_small = || Layout::filled_with(smallest);
    let chosen = options.take("instances", expected, |text| Layout::parse(text, slices))?;
    Ok(chosen.unwrap_or_else(all_small))
}

fn lacking(scenario: &str, profile: &Profile, what: &'static str) -> SpecError {
    SpecError::Lacking {
        scenario: scenario.to_owned(),
        profile: profile.key,
        what,
    }
}
