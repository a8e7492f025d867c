//! Plans of faults: which calls on which files fail, how, and how often.

/// Random numbers from a seed, so that a failure can be repeated (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Returns true with a probability of `per_mille` in 1,000.
    pub(crate) fn hits(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

/// A call of SQLite on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Read,
    Write,
    Truncate,
    Sync,
    Delete,
}

/// The files that a plan is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    All,
    /// `wal-NNNNNN.db` and its journals.
    WriteAhead,
    /// `wal-NNNNNN.db` without its journals.
    WriteAheadDatabases,
    /// `lockstep.db` and its journals.
    Series,
    /// The write-ahead journals that SQLite keeps beside its databases.
    Journals,
}

impl Files {
    pub(crate) fn has(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::WriteAhead => name.starts_with("wal-"),
            Self::WriteAheadDatabases => name.starts_with("wal-") && name.ends_with(".db"),
            Self::Series => name.starts_with("lockstep.db"),
            Self::Journals => name.ends_with("-wal"),
        }
    }
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// EIO. A failed write has no effect.
    Io,
    /// ENOSPC.
    Full,
    /// Half of the bytes are written, then the disk is full.
    Short,
    /// EIO on fsync, and the pending pages are never written, because Linux marks them clean. Until they leave the cache, they
    /// are read as written.
    Lost,
    /// Like `Lost`, but the pages have left the cache at once.
    LostAndEvicted,
}

/// A planned fault.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) call: Call,
    pub(crate) files: Files,
    pub(crate) fault: Fault,
    /// The number of calls that pass before the first failure.
    pub(crate) skip: u32,
    /// The number of calls that fail; `u32::MAX` for all while the plan exists.
    pub(crate) times: u32,
    /// The probability in 1,000 that a call that could fail does fail.
    pub(crate) per_mille: u64,
}

impl Plan {
    /// Creates a plan in which every such call fails.
    pub(crate) fn always(call: Call, files: Files, fault: Fault) -> Self {
        Self {
            call,
            files,
            fault,
            skip: 0,
            times: u32::MAX,
            per_mille: 1_000,
        }
    }

    /// Returns the fault of this call, if it must fail.
    pub(crate) fn strikes(&mut self, call: Call, name: &str, rng: &mut Rng) -> Option<Fault> {
        if self.call != call || !self.files.has(name) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        if self.times == 0 || !rng.hits(self.per_mille) {
            return None;
        }
        if self.times != u32::MAX {
            self.times -= 1;
        }
        Some(self.fault)
    }
}
