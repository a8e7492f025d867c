//! The simulated node: its GPUs, how they are joined, and what they will report.

use super::driver::Driver;
use super::events::{self, Event};
use super::fault::{Trouble, Window};
use super::gpu::Gpu;
use super::identity::{Identity, parse_bus_id};
use super::job::Job;
use super::noise::Noise;
use super::spec::{Scenario, Spec};

/// A node as its spec describes it.
#[derive(Debug)]
pub(crate) struct Node {
    pub gpus: Vec<Gpu>,
    pub driver: Driver,
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
        let gpus: Vec<Gpu> = (0..spec.count).map(|index| gpu(spec, index)).collect();
        let mut events: Vec<Event> = gpus.iter().flat_map(events::of).collect();
        events.sort_by(|a, b| a.at.total_cmp(&b.at));
        Node {
            gpus,
            driver: spec.driver.clone(),
            events,
        }
    }

    /// The GPU at a PCI address, however it is written.
    pub(crate) fn at_bus_id(&self, text: &str) -> Option<&Gpu> {
        let bus = parse_bus_id(text)?;
        self.gpus.iter().find(|gpu| gpu.identity.pci_bus == bus)
    }

    pub(crate) fn with_uuid(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.identity.uuid == uuid)
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

fn gpu(spec: &Spec, index: u32) -> Gpu {
    let noise = Noise::new(spec.seed, spec.node, index);
    let fault = spec.fault_of(index);
    Gpu {
        index,
        profile: spec.profile,
        identity: Identity::new(noise, index),
        job: job(
            spec,
            noise,
            fault.is_some_and(|fault| fault.trouble == Trouble::Throttle),
        ),
        fault,
        has_peers: spec.count > 1 || spec.nodes > 1,
        noise,
        driver: spec.driver.clone(),
    }
}

/// One job spans the node, so one GPU's trouble slows them all.
fn job(spec: &Spec, noise: Noise, slowest: bool) -> Job {
    let (pace, slowed) = match spec.scenario {
        Scenario::Faulty(fault) => (fault.trouble.job_pace(), fault.window),
        Scenario::Healthy | Scenario::Idle => (1.0, Window::NEVER),
    };
    // Ranks are in step, a few milliseconds apart.
    let phase = 0.01 * noise.unit(CHANNEL_PHASE);
    Job {
        training: spec.scenario != Scenario::Idle,
        pace,
        slowed,
        slowest,
        phase,
    }
}
