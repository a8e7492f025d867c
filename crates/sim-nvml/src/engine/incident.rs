//! One incident: what happens, when, and to which GPUs. A one-line specification has one incident; a scenario file has many.

use std::time::Duration;

use super::driver::Driver;
use super::fault::{FaultKind, MemoryKind, Slowdown, Window};
use super::mig::{self, Layout};
use super::options::Options;
use super::profile::Profile;
use super::spec::SpecError;

/// The names of scenarios with an incident, in the order of the documentation.
pub(crate) const NAMES: &str = "idle, throttle, memory-pressure, ecc, xid, link-down, link-errors, pcie-degraded, lost, slow-call, hang, driver-reload, driver-mismatch, mig";
const DEFAULT_DELAY: Duration = Duration::from_millis(250);
/// The default of errors per second of a link with errors.
const DEFAULT_RATE: u32 = 20;
const RATE_MAX: u32 = 1_000_000;

/// Something that happens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Incident {
    pub kind: IncidentKind,
    pub window: Window,
    /// The affected GPUs, in order. All GPUs of the node if the incident affects the node.
    pub gpus: Vec<u32>,
    /// The only affected node; `None`: every node.
    pub node: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum IncidentKind {
    /// A fault occurs.
    Fault(FaultKind),
    /// The job is not running.
    Pause,
    /// The driver is unloaded, and loaded again at the end, possibly in another version.
    DriverReload(Option<Driver>),
    /// The library was upgraded while the old driver runs.
    DriverMismatch,
    /// The GPU is partitioned.
    Mig(Layout),
}

impl Incident {
    /// Parses an incident on a node with `count` GPUs of this model. It begins `start` after the start of the simulation and does not end,
    /// unless the options contain a duration.
    pub(crate) fn parse(
        name: &str,
        start: Duration,
        profile: &'static Profile,
        count: u32,
        options: &mut Options<'_>,
    ) -> Result<Incident, SpecError> {
        let kind = parse_kind(name, profile, options)?;
        let every = || (0..count).collect();
        let gpus = match &kind {
            IncidentKind::Fault(fault) if fault.is_for_all() => options.gpus(count)?.unwrap_or_else(every),
            IncidentKind::Fault(_) | IncidentKind::Mig(_) => options.gpus(count)?.unwrap_or_else(|| vec![0]),
            IncidentKind::Pause | IncidentKind::DriverReload(_) | IncidentKind::DriverMismatch => every(),
        };
        let start = start.as_secs_f64();
        let end = options
            .duration("for")?
            .map_or(f64::INFINITY, |lasting| start + lasting.as_secs_f64());
        Ok(Incident {
            kind,
            window: Window { start, end },
            gpus,
            node: None,
        })
    }

    /// Returns true if the incident happens on this node.
    pub(crate) fn is_on(&self, node: u32) -> bool {
        self.node.is_none_or(|only| only == node)
    }

    /// Returns true if both cannot happen: the same thing would happen to the same GPU at the same time.
    pub(crate) fn clashes_with(&self, other: &Incident) -> bool {
        let same = match (&self.kind, &other.kind) {
            (IncidentKind::Fault(one), IncidentKind::Fault(other)) => one.excludes(*other),
            (IncidentKind::Mig(_), IncidentKind::Mig(_)) | (IncidentKind::Pause, IncidentKind::Pause) => true,
            (
                IncidentKind::DriverReload(_) | IncidentKind::DriverMismatch,
                IncidentKind::DriverReload(_) | IncidentKind::DriverMismatch,
            ) => true,
            _ => false,
        };
        let one_node = self.node.is_none() || other.node.is_none() || self.node == other.node;
        let one_gpu = self.gpus.iter().any(|gpu| other.gpus.contains(gpu));
        same && one_node && one_gpu && self.window.overlaps(other.window)
    }
}

fn parse_kind(
    name: &str,
    profile: &'static Profile,
    options: &mut Options<'_>,
) -> Result<IncidentKind, SpecError> {
    let fault = match name {
        "idle" => return Ok(IncidentKind::Pause),
        "driver-reload" => return Ok(IncidentKind::DriverReload(options.driver("to")?)),
        "driver-mismatch" => return Ok(IncidentKind::DriverMismatch),
        "mig" => return parse_mig(profile, options).map(IncidentKind::Mig),
        "throttle" => FaultKind::Throttle(parse_brake(options)?),
        "memory-pressure" => FaultKind::MemoryPressure,
        "ecc" => FaultKind::Ecc(parse_memory_kind(profile, options)?),
        "xid" => FaultKind::Xid(
            options
                .number("code", 1, 999)?
                .map_or(FaultKind::XID_OFF_THE_BUS, u64::from),
        ),
        "link-down" => FaultKind::LinkDown(parse_link(name, profile, options)?),
        "link-errors" => FaultKind::LinkErrors {
            link: parse_link(name, profile, options)?,
            per_second: options.number("rate", 1, RATE_MAX)?.unwrap_or(DEFAULT_RATE),
        },
        "pcie-degraded" => FaultKind::PcieDegraded {
            width: options
                .choice("width", &[("1", 1), ("2", 2), ("4", 4), ("8", 8), ("16", 16)])?
                .unwrap_or(8),
            generation: options
                .number("generation", 1, profile.pcie_generation)?
                .unwrap_or(profile.pcie_generation),
        },
        "lost" => FaultKind::Lost,
        "slow-call" => FaultKind::SlowCall(options.duration("delay")?.unwrap_or(DEFAULT_DELAY)),
        "hang" => FaultKind::Hang,
        other => return Err(SpecError::Scenario(other.to_owned())),
    };
    Ok(IncidentKind::Fault(fault))
}

fn parse_brake(options: &mut Options<'_>) -> Result<Slowdown, SpecError> {
    let words = [
        ("thermal", Slowdown::Thermal),
        ("power", Slowdown::Power),
        ("power-brake", Slowdown::PowerBrake),
    ];
    Ok(options.choice("reason", &words)?.unwrap_or(Slowdown::Thermal))
}

fn parse_memory_kind(profile: &Profile, options: &mut Options<'_>) -> Result<MemoryKind, SpecError> {
    if !profile.ecc {
        return Err(lacking("ecc", profile, "ECC memory"));
    }
    let words = [("dram", MemoryKind::Dram), ("sram", MemoryKind::Sram)];
    Ok(options.choice("where", &words)?.unwrap_or(MemoryKind::Dram))
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
