//! The simulated node: its GPUs, how they are connected, and the events that they will report.

use super::driver::DriverHistory;
use super::events::{self, Event};
use super::fault::{Fault, FaultKind};
use super::gpu::Gpu;
use super::identity::{Identity, parse_bus_id};
use super::incident::{Incident, IncidentKind};
use super::job::Job;
use super::mig::Instance;
use super::noise::Noise;
use super::nvlink::Links;
use super::pace::{Drag, DragKind, Pace};
use super::partition::Partitions;
use super::spec::Spec;

/// A node, created from its specification.
#[derive(Debug)]
pub(crate) struct Node {
    pub gpus: Vec<Gpu>,
    pub driver: DriverHistory,
    /// All events of the simulation, in the order of time.
    pub events: Vec<Event>,
}

/// The distance of two GPUs, with the numbers of `nvmlGpuTopologyLevel_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum TopologyLevel {
    SameBoard = 0,
    /// At the same CPU socket.
    SameSocket = 40,
    OtherSocket = 50,
}

const CHANNEL_PHASE: u64 = 0x200;

impl Node {
    pub(crate) fn new(spec: &Spec) -> Node {
        let here = |incident: &&Incident| incident.is_on(spec.node);
        let mut incidents: Vec<&Incident> = spec.incidents.iter().filter(here).collect();
        incidents.sort_by(|one, other| one.window.start.total_cmp(&other.window.start));
        let driver = driver(spec, &incidents);
        let gpus: Vec<Gpu> = (0..spec.count)
            .map(|index| gpu(spec, &incidents, &driver, index))
            .collect();
        let mut events: Vec<Event> = gpus.iter().flat_map(events::of).collect();
        events.sort_by(|a, b| a.at.total_cmp(&b.at));
        Node { gpus, driver, events }
    }

    /// Returns the GPU at a PCI address in any usual form.
    pub(crate) fn at_bus_id(&self, text: &str) -> Option<&Gpu> {
        let bus = parse_bus_id(text)?;
        self.gpus.iter().find(|gpu| gpu.identity.pci_bus == bus)
    }

    pub(crate) fn with_uuid(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.identity.uuid == uuid)
    }

    /// Returns the instance with this UUID and its GPU, if the instance exists now.
    pub(crate) fn instance_with_uuid(&self, uuid: &str, t: f64) -> Option<(&Gpu, &Instance)> {
        let instances = |gpu| Gpu::instances(gpu, t).unwrap_or_default().iter();
        let all = self
            .gpus
            .iter()
            .flat_map(|gpu| instances(gpu).map(move |one| (gpu, one)));
        let mut named = all.filter(|(gpu, instance)| instance.uuid(gpu.noise) == uuid);
        named.next()
    }

    pub(crate) fn topology_level(&self, one: &Gpu, other: &Gpu) -> TopologyLevel {
        if one.index == other.index {
            TopologyLevel::SameBoard
        } else if self.socket(one) == self.socket(other) {
            TopologyLevel::SameSocket
        } else {
            TopologyLevel::OtherSocket
        }
    }

    /// Returns the CPU socket (and NUMA node) of a GPU: the first half is at socket 0, the rest at socket 1.
    pub(crate) fn socket(&self, gpu: &Gpu) -> u32 {
        u32::from(gpu.index as usize >= self.gpus.len().div_ceil(2))
    }
}

fn driver(spec: &Spec, incidents: &[&Incident]) -> DriverHistory {
    let reloads = incidents.iter().filter_map(|incident| match &incident.kind {
        IncidentKind::DriverReload(next) => Some((incident.window, next.clone())),
        _ => None,
    });
    let mismatches = incidents
        .iter()
        .filter(|incident| incident.kind == IncidentKind::DriverMismatch)
        .map(|incident| incident.window);
    DriverHistory::new(spec.driver.clone(), reloads.collect(), mismatches.collect())
}

fn gpu(spec: &Spec, incidents: &[&Incident], driver: &DriverHistory, index: u32) -> Gpu {
    let noise = Noise::new(spec.seed, spec.node, index);
    let mine = || incidents.iter().filter(|incident| incident.gpus.contains(&index));
    let faults: Vec<Fault> = mine().filter_map(|incident| fault(incident)).collect();
    let partitions = Partitions(
        mine()
            .filter_map(|incident| match &incident.kind {
                IncidentKind::Mig(layout) => Some((incident.window, layout.clone())),
                _ => None,
            })
            .collect(),
    );
    Gpu {
        index,
        profile: spec.profile,
        identity: Identity::new(noise, index),
        job: job(spec, incidents, noise, index),
        links: Links::new(&faults, &partitions),
        faults,
        has_peers: spec.count > 1 || spec.nodes > 1,
        noise,
        driver: driver.clone(),
        without: spec.without.clone(),
        partitions,
    }
}

fn fault(incident: &Incident) -> Option<Fault> {
    match incident.kind {
        IncidentKind::Fault(kind) => Some(Fault {
            kind,
            window: incident.window,
        }),
        _ => None,
    }
}

/// Returns the job of a GPU. One job spans the node, so a fault of one GPU slows all of them.
fn job(spec: &Spec, incidents: &[&Incident], noise: Noise, index: u32) -> Job {
    let drags: Vec<Drag> = incidents
        .iter()
        .filter_map(|incident| drag(incident, index))
        .collect();
    Job {
        exists: !spec.idle,
        pace: Pace::new(&drags),
        // Ranks are synchronised, a few milliseconds apart.
        phase: 0.01 * noise.unit(CHANNEL_PHASE),
    }
}

fn drag(incident: &Incident, index: u32) -> Option<Drag> {
    let kind = match incident.kind {
        IncidentKind::Pause | IncidentKind::DriverReload(_) => DragKind::Pause,
        IncidentKind::Fault(fault) if fault.job_pace() < 1.0 => DragKind::Slow {
            pace: fault.job_pace(),
            here: matches!(fault, FaultKind::Throttle(_)) && incident.gpus.contains(&index),
        },
        _ => return None,
    };
    Some(Drag {
        window: incident.window,
        kind,
    })
}
