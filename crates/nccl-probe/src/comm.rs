//! The communicators of this process. Each has a slot with exact totals by function. `init` opens a slot, `finalize` closes it, and it is
//! free again when its last totals were sent.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::descriptor::Operation;
use crate::function::{FUNCTIONS, Function};
use crate::probe::CommInfo;

/// The maximum number of communicators watched at once. A rank of a job with tensor, pipeline, data and expert parallelism has a few dozen.
/// Further communicators are not watched, and are counted as refused.
pub(crate) const COMMS_MAX: usize = 256;
const PLACE_BITS: u32 = COMMS_MAX.trailing_zeros();
/// The maximum length of a name. Longer names are shortened.
const NAME_BYTES_MAX: usize = 64;

/// All slots.
#[derive(Debug)]
pub(crate) struct Comms {
    slots: Box<[Comm]>,
    generation: AtomicU64,
    live: AtomicU32,
    pub(crate) refused: AtomicU64,
}

/// The slot of one communicator.
#[derive(Debug, Default)]
pub(crate) struct Comm {
    /// 0 if the slot is free, otherwise a number that is unique among all communicators of this process.
    generation: AtomicU64,
    closed: AtomicBool,
    pub(crate) hash: AtomicU64,
    pub(crate) rank: AtomicU32,
    pub(crate) ranks: AtomicU32,
    pub(crate) nodes: AtomicU32,
    name: [AtomicU64; NAME_BYTES_MAX / 8],
    totals: [Total; FUNCTIONS],
}

/// The totals of one function in one communicator.
#[derive(Debug, Default)]
pub(crate) struct Total {
    pub(crate) count: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// The last sequence number plus one; 0 if there was none.
    pub(crate) next_sequence: AtomicU64,
    /// When the last operation was put into a stream, by the monotonic clock.
    pub(crate) enqueued_ns: AtomicU64,
}

impl Comms {
    /// Creates free slots. `generation` continues the count after a fork, so that contexts of the parent are invalid here.
    pub(crate) fn new(generation: u64) -> Self {
        Self {
            slots: (0..COMMS_MAX).map(|_| Comm::default()).collect(),
            generation: AtomicU64::new(generation),
            live: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Takes a slot. Returns the context that NCCL passes with every event of the communicator, or 0 if all slots are taken.
    pub(crate) fn open(&self, info: &CommInfo<'_>) -> usize {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let free = |comm: &&Comm| {
            let taken = comm
                .generation
                .compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        };
        let place = self.slots.iter().position(|comm| free(&comm));
        let Some(place) = place else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return 0;
        };
        self.slots[place].set_info(info);
        self.slots[place].generation.store(generation, Ordering::Release);
        self.live.fetch_add(1, Ordering::Relaxed);
        (generation as usize) << PLACE_BITS | place
    }

    /// Returns the communicator of a context, if it exists and is open.
    #[inline]
    pub(crate) fn of(&self, context: usize) -> Option<(usize, u64, &Comm)> {
        let place = context & (COMMS_MAX - 1);
        let generation = (context >> PLACE_BITS) as u64;
        let comm = &self.slots[place];
        (generation != 0 && comm.generation.load(Ordering::Relaxed) == generation)
            .then_some((place, generation, comm))
    }

    /// Closes the communicator of a context. Returns true if it was the last one.
    pub(crate) fn close(&self, context: usize) -> bool {
        let Some((_, _, comm)) = self.of(context) else {
            return false;
        };
        !comm.closed.swap(true, Ordering::AcqRel) && self.live.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns the number of ranks of the communicator in a slot; 0 if it is not known.
    pub(crate) fn ranks_of(&self, place: usize) -> u32 {
        self.slots
            .get(place)
            .map_or(0, |comm| comm.ranks.load(Ordering::Relaxed))
    }

    pub(crate) fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns the slots in use with their indexes and generations.
    pub(crate) fn used(&self) -> impl Iterator<Item = (usize, u64, &Comm)> {
        self.slots.iter().enumerate().filter_map(|(place, comm)| {
            let generation = comm.generation.load(Ordering::Acquire);
            (generation != 0 && generation != u64::MAX).then_some((place, generation, comm))
        })
    }
}

impl Comm {
    /// Counts an operation.
    #[inline]
    pub(crate) fn count(&self, operation: &Operation, at_ns: u64) {
        if let Some(hash) = operation.hash {
            // Versions 1 to 3 pass this data here instead of in `init`.
            self.hash.store(hash, Ordering::Relaxed);
            self.rank.store(operation.rank.unsigned_abs(), Ordering::Relaxed);
        }
        let total = &self.totals[operation.function as usize];
        total.count.fetch_add(1, Ordering::Relaxed);
        total.bytes.fetch_add(operation.bytes, Ordering::Relaxed);
        if let Some(sequence) = operation.sequence {
            total.next_sequence.store(sequence + 1, Ordering::Relaxed);
        }
        total.enqueued_ns.store(at_ns, Ordering::Relaxed);
    }

    /// Returns the functions that were used, with their totals.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (Function, &Total)> {
        let totals = self.totals.iter().enumerate();
        totals
            .filter(|(_, total)| total.count.load(Ordering::Relaxed) > 0)
            .map(|(place, total)| (Function::at(place), total))
    }

    /// Returns the number of all operations counted.
    pub(crate) fn operations(&self) -> u64 {
        self.totals
            .iter()
            .map(|total| total.count.load(Ordering::Relaxed))
            .sum()
    }

    pub(crate) fn name(&self) -> String {
        let words = self
            .name
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes: Vec<u8> = words.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Frees the slot after its last totals were sent.
    pub(crate) fn free(&self) {
        self.generation.store(0, Ordering::Release);
    }

    fn set_info(&self, info: &CommInfo<'_>) {
        self.closed.store(false, Ordering::Relaxed);
        self.hash.store(info.hash, Ordering::Relaxed);
        self.rank.store(info.rank, Ordering::Relaxed);
        self.ranks.store(info.ranks, Ordering::Relaxed);
        self.nodes.store(info.nodes, Ordering::Relaxed);
        for (place, word) in self.name.iter().enumerate() {
            let byte = |n: usize| info.name.get(place * 8 + n).copied().unwrap_or(0);
            word.store(u64::from_le_bytes(std::array::from_fn(byte)), Ordering::Relaxed);
        }
        for total in &self.totals {
            for figure in [
                &total.count,
                &total.bytes,
                &total.next_sequence,
                &total.enqueued_ns,
            ] {
                figure.store(0, Ordering::Relaxed);
            }
        }
    }
}
