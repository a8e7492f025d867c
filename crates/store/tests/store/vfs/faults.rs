//! Which calls on which files fail, how, and for how long.

/// Chance from a seed, so that a failure can be repeated (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True in `per_mille` of a thousand throws.
    pub(crate) fn hits(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }
}

/// What SQLite asks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Read,
    Write,
    Truncate,
    Sync,
    Delete,
}

/// Which files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Files {
    All,
    /// `wal-NNNNNN.db` and its companions.
    WriteAhead,
    /// `lockstep.db` and its companions.
    Series,
    /// The write-ahead journals that SQLite keeps beside its databases.
    Journals,
}

impl Files {
    pub(crate) fn has(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::WriteAhead => name.starts_with("wal-"),
            Self::Series => name.starts_with("lockstep.db"),
            Self::Journals => name.ends_with("-wal"),
        }
    }
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// EIO. A failed write leaves nothing behind.
    Io,
    /// ENOSPC.
    Full,
    /// Half of it is written, then the disk is full.
    Short,
    /// EIO on fsync, and the pages that were to be written never will be: Linux marks them clean. Until they leave the cache
    /// they read back as written.
    Lost,
    /// The same, and they have left the cache at once.
    LostAndEvicted,
}

/// A fault to come.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) call: Call,
    pub(crate) files: Files,
    pub(crate) fault: Fault,
    /// Calls that pass before the first that fails.
    pub(crate) skip: u32,
    /// Calls that fail; `u32::MAX` for as long as the plan is there.
    pub(crate) times: u32,
    /// Of a thousand calls that could fail so many do.
    pub(crate) per_mille: u64,
}

impl Plan {
    /// Every such call fails until the plan is taken away.
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

    /// Whether this call is one to fail.
    pub(crate) fn strikes(&mut self, call: Call, name: &str, dice: &mut Dice) -> Option<Fault> {
        if self.call != call || !self.files.has(name) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        if self.times == 0 || !dice.hits(self.per_mille) {
            return None;
        }
        if self.times != u32::MAX {
            self.times -= 1;
        }
        Some(self.fault)
    }
}
