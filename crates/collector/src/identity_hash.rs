//! Hash tables whose keys are already hashes.

use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type IdentityHash = BuildHasherDefault<IdentityHasher>;

/// A hasher that returns a value that is already a hash.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are u64");
    }
}
