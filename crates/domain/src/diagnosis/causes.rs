//! Causes of a slow rank: values of its kernel, GPU and node that differ from those of its peers.

use crate::diagnosis::draft_finding::witness;
use crate::diagnosis::finding::{Cause, Evidence, Source, Witness};
use crate::diagnosis::input::{GpuCondition, Phase};
use crate::diagnosis::members::Members;
use crate::diagnosis::resources::Usage;
use crate::diagnosis::statistics::median;
use crate::diagnosis::window::{BACKWARD, DATA, FORWARD, OPTIMIZER, SAVE};
use crate::ident::Rank;

/// Maximum number of peers with which a rank is compared.
const PEERS_MAX: usize = 64;
/// A rate stands out if it is this many times the rate of the peers.
const TIMES: f64 = 3.0;
/// Minimum values: shares of time for `RUN_DELAY_MIN` (waiting for a processor) and `STEAL_MIN` (taken by the hypervisor), and a rate for
/// major faults. Smaller values do not slow a rank down.
const RUN_DELAY_MIN: f64 = 0.05;
const STEAL_MIN: f64 = 0.05;
const MAJOR_FAULTS_MIN: f64 = 20.0;

/// Data that can corroborate a cause.
pub(super) struct Context<'a> {
    pub(super) members: &'a Members,
    pub(super) usage: &'a Usage,
}

/// One rank and its peers.
struct Compared<'a> {
    context: &'a Context<'a>,
    peers: Vec<usize>,
    place: usize,
}

/// Returns the first cause, in order of importance, that a source other than the training process shows.
pub(super) fn corroborated(
    phase: usize,
    places: &[usize],
    place: usize,
    context: &Context<'_>,
) -> Option<(Cause, Witness)> {
    let peers = places.iter().copied().filter(|peer| *peer != place);
    let compared = Compared {
        context,
        peers: peers.take(PEERS_MAX).collect(),
        place,
    };
    let computes = matches!(phase, FORWARD | BACKWARD | OPTIMIZER);
    let by_gpu = || compared.throttled().or_else(|| compared.narrow_link());
    let gpu = computes.then(by_gpu).flatten();
    gpu.or_else(|| compared.run_delay())
        .or_else(|| compared.steal())
        .or_else(|| compared.major_faults())
        .or_else(|| (phase == DATA).then(|| compared.narrow_link()).flatten())
}

impl Compared<'_> {
    fn usual(&self, value: impl Fn(usize) -> Option<f64>) -> f64 {
        let mut values: Vec<f64> = self.peers.iter().filter_map(|peer| value(*peer)).collect();
        median(&mut values)
    }

    fn rank(&self) -> Rank {
        self.context.members.rank(self.place)
    }

    fn node(&self) -> String {
        self.context.members.node(self.place).to_string()
    }

    fn kernel(&self, what: Evidence, value: f64, peers: f64) -> Witness {
        let source = Source::Kernel { node: self.node() };
        witness(source, what, value)
            .against(peers)
            .detail(format!("rank {}", self.rank()))
    }

    fn driver(&self, what: Evidence, value: f64, peers: f64) -> Witness {
        witness(Source::Driver { node: self.node() }, what, value).against(peers)
    }

    fn gpu_value(&self, value: impl Fn(&GpuCondition) -> Option<f64>) -> Option<(f64, f64)> {
        let usage = self.context.usage;
        let own = usage.gpu(self.place).and_then(&value)?;
        Some((own, self.usual(|peer| usage.gpu(peer).and_then(&value))))
    }

    fn throttled(&self) -> Option<(Cause, Witness)> {
        let throttles = |gpu: &GpuCondition| Some(f64::from(u8::from(!gpu.throttle_reasons.is_empty())));
        let (own, peers) = self.gpu_value(throttles)?;
        if own == 0.0 || peers > 0.5 {
            return None;
        }
        let reasons = self.context.usage.gpu(self.place)?.throttle_reasons.join(", ");
        let witness = self.driver(Evidence::Throttled, own, peers).detail(reasons);
        Some((Cause::Throttled, witness))
    }

    fn narrow_link(&self) -> Option<(Cause, Witness)> {
        let (own, peers) = self.gpu_value(|gpu| gpu.pcie_width_ratio)?;
        let witness = self.driver(Evidence::PcieWidthRatio, own, peers).in_ratio();
        (own < 1.0 && (peers.is_nan() || peers > own)).then_some((Cause::PcieWidth, witness))
    }

    fn run_delay(&self) -> Option<(Cause, Witness)> {
        let usage = self.context.usage;
        let own = usage.run_delay(self.place)?;
        let peers = self.usual(|peer| usage.run_delay(peer));
        let witness = self.kernel(Evidence::RunDelay, own, peers).in_ratio();
        stands_out(own, peers, RUN_DELAY_MIN).then_some((Cause::RunDelay, witness))
    }

    fn steal(&self) -> Option<(Cause, Witness)> {
        let (usage, members) = (self.context.usage, self.context.members);
        let own = usage.steal(members.node_place(self.place))?;
        let peers = self.usual(|peer| usage.steal(members.node_place(peer)));
        let witness = self.kernel(Evidence::Steal, own, peers).in_ratio();
        stands_out(own, peers, STEAL_MIN).then_some((Cause::Steal, witness))
    }

    fn major_faults(&self) -> Option<(Cause, Witness)> {
        let usage = self.context.usage;
        let own = usage.major_faults(self.place)?;
        let peers = self.usual(|peer| usage.major_faults(peer));
        let witness = self.kernel(Evidence::MajorFaults, own, peers);
        stands_out(own, peers, MAJOR_FAULTS_MIN).then_some((Cause::MajorFaults, witness))
    }
}

/// Returns true if its wait for processors explains the whole lead of a rank, and its peers wait for processors about as long. If a node
/// has more work than processors, some rank is always the last, and none of them is at fault.
pub(super) fn is_contended(
    places: &[usize],
    place: usize,
    context: &Context<'_>,
    (lead_s, step_s): (f64, f64),
) -> bool {
    let Some(own) = context.usage.run_delay(place) else {
        return false;
    };
    let peers = places.iter().filter(|peer| **peer != place).take(PEERS_MAX);
    let mut peers: Vec<f64> = peers.filter_map(|peer| context.usage.run_delay(*peer)).collect();
    let peers = median(&mut peers);
    own >= RUN_DELAY_MIN && own < TIMES * peers && own * step_s >= lead_s
}

fn stands_out(own: f64, peers: f64, least: f64) -> bool {
    own >= least && (peers.is_nan() || own >= TIMES * peers)
}

/// Returns the phase to which a part of the step belongs.
pub(super) fn phase_of(part: usize) -> Phase {
    match part {
        DATA => Phase::Data,
        FORWARD => Phase::Forward,
        BACKWARD => Phase::Backward,
        OPTIMIZER => Phase::Optimizer,
        SAVE => Phase::Save,
        _ => Phase::Host,
    }
}

/// Returns the cause that follows from the phase alone.
pub(super) fn of_phase(part: usize) -> Cause {
    match part {
        DATA => Cause::Data,
        FORWARD | BACKWARD | OPTIMIZER => Cause::Computing,
        SAVE => Cause::Saving,
        _ => Cause::HostCode,
    }
}

/// Returns true if the cause contains no more information than the phase.
pub(super) fn is_plain(cause: &Cause) -> bool {
    matches!(
        cause,
        Cause::Data | Cause::HostCode | Cause::Saving | Cause::Computing | Cause::Unknown
    )
}
