//! The simulated node: its GPUs, how they are joined, and what they will report.

use super::driver::DriverHistory;
use super::events::{self, Event};
use super::fault::{Fault, Trouble};
use super::gpu::Gpu;
use super::identity::{Identity, parse_bus_id};
use super::incident::{Incident, What};
use super::job::Job;
use super::mig::Instance;
use super::noise::Noise;
use super::nvlink::Links;
use super::pace::{Drag, DragKind, Pace};
use super::partition::Partitions;
use super::spec::Spec;

/// A node as its spec describes it.
#[derive(Debug)]
pub(crate) struct Node {
    pub gpus: Vec<Gpu>,
    pub driver: DriverHistory,
    /// All events there will ever be, in time's order.
    pub events: Vec<Event>,
}

/// How near two GPUs are, as `nvmlGpuTopologyLevel_t` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Nearness {
    SameBoard = 0,
    /// Under one CPU socket.
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

    /// The GPU at a PCI address, however it is written.
    pub(crate) fn at_bus_id(&self, text: &str) -> Option<&Gpu> {
        let bus = parse_bus_id(text)?;
        self.gpus.iter().find(|gpu| gpu.identity.pci_bus == bus)
    }

    pub(crate) fn with_uuid(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.identity.uuid == uuid)
    }

    /// The instance of that UUID and its GPU, if it exists now.
    pub(crate) fn instance_with_uuid(&self, uuid: &str, t: f64) -> Option<(&Gpu, &Instance)> {
        let instances = |gpu| Gpu::instances(gpu, t).unwrap_or_default().iter();
        let all = self
            .gpus
            .iter()
            .flat_map(|gpu| instances(gpu).map(move |one| (gpu, one)));
        let mut named = all.filter(|(gpu, instance)| instance.uuid(gpu.noise) == uuid);
        named.next()
    }

    pub(crate) fn nearness(&self, one: &Gpu, other: &Gpu) -> Nearness {
        if one.index == other.index {
            Nearness::SameBoard
        } else if self.socket(one) == self.socket(other) {
            Nearness::SameSocket
        } else {
            Nearness::OtherSocket
        }
    }

    /// The CPU socket (and NUMA node) of a GPU: the first half at socket 0, the rest at socket 1.
    pub(crate) fn socket(&self, gpu: &Gpu) -> u32 {
        u32::from(gpu.index as usize >= self.gpus.len().div_ceil(2))
    }
}

fn driver(spec: &Spec, incidents: &[&Incident]) -> DriverHistory {
    let reloads = incidents.iter().filter_map(|incident| match &incident.what {
        What::DriverReload(next) => Some((incident.window, next.clone())),
        _ => None,
    });
    let mismatches = incidents
        .iter()
        .filter(|incident| incident.what == What::DriverMismatch)
        .map(|incident| incident.window);
    DriverHistory::new(spec.driver.clone(), reloads.collect(), mismatches.collect())
}

fn gpu(spec: &Spec, incidents: &[&Incident], driver: &DriverHistory, index: u32) -> Gpu {
    let noise = Noise::new(spec.seed, spec.node, index);
    let mine = || incidents.iter().filter(|incident| incident.gpus.contains(&index));
    let faults: Vec<Fault> = mine().filter_map(|incident| fault(incident)).collect();
    let partitions = Partitions(
        mine()
            .filter_map(|incident| match &incident.what {
                What::Mig(layout) => Some((incident.window, layout.clone())),
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
    match incident.what {
        What::Trouble(trouble) => Some(Fault {
            trouble,
            window: incident.window,
        }),
        _ => None,
    }
}

/// One job spans the node, so one GPU's trouble slows them all.
fn job(spec: &Spec, incidents: &[&Incident], noise: Noise, index: u32) -> Job {
    let drags: Vec<Drag> = incidents
        .iter()
        .filter_map(|incident| drag(incident, index))
        .collect();
    Job {
        exists: !spec.idle,
        pace: Pace::new(&drags),
        // Ranks are in step, a few milliseconds apart.
        phase: 0.01 * noise.unit(CHANNEL_PHASE),
    }
}

fn drag(incident: &Incident, index: u32) -> Option<Drag> {
    let kind = match incident.what {
        What::Pause | What::DriverReload(_) => DragKind::Pause,
        What::Trouble(trouble) if trouble.job_pace() < 1.0 => DragKind::Slow {
            pace: trouble.job_pace(),
            here: matches!(trouble, Trouble::Throttle(_)) && incident.gpus.contains(&index),
        },
        _ => return None,
    };
    Some(Drag {
        window: incident.window,
        kind,
    })
}
