//! Detects whether the kernel has killed a process because of memory, from the available counter that is nearest to the ranks.
//!
//! ```text
//! v2  memory.events of the ranks' group, otherwise of the shim's group or its nearest ancestor that has a count
//! v1  memory.oom_control of the memory group that contains the shim and the ranks
//! else /proc/vmstat: of the whole machine, so it includes other jobs
//! ```
//! A count is compared with the count of a short while ago, not with the count at the start: a kill one hour ago has nothing to do with the
//! end of this rank. But a large process takes seconds to die.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cgroup::Hierarchies;

/// A kill counts for rank ends during the next one to two windows.
const WINDOW: Duration = Duration::from_secs(10);

/// Follows one kill counter.
#[derive(Debug)]
pub struct MemoryKills {
    counter: Counter,
    /// `older` is the count at least one window ago, `newer` the count at the last change of windows.
    older: u64,
    newer: u64,
    turned: Instant,
}

/// A file with a line `oom_kill N`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter(PathBuf);

impl MemoryKills {
    /// Follows the counter that is nearest to this process, or to a group below it.
    #[must_use]
    pub fn watch(own: &Hierarchies, group: Option<&Path>, now: Instant) -> Self {
        let counter = Counter::nearest(own, group);
        let count = counter.read().unwrap_or(0);
        Self {
            counter,
            older: count,
            newer: count,
            turned: now,
        }
    }

    /// Updates the windows. Called about once per second.
    pub fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.turned) >= WINDOW {
            self.older = self.newer;
            self.newer = self.counter.read().unwrap_or(self.newer);
            self.turned = now;
        }
    }

    /// Returns true if there was a kill within the last 10 to 20 seconds.
    pub fn has_recent_kill(&self) -> bool {
        self.counter.read().is_some_and(|count| count > self.older)
    }
}

/// The path of the counter.
impl fmt::Display for MemoryKills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counter.0.display().fmt(f)
    }
}

impl Counter {
    fn nearest(own: &Hierarchies, group: Option<&Path>) -> Self {
        // The real root of v2 has no count.
        let above = group
            .into_iter()
            .chain(own.unified.iter().flat_map(|own| own.ancestors()));
        let unified = above.map(|folder| folder.join("memory.events"));
        let v1 = own.memory.iter().map(|own| own.join("memory.oom_control"));
        let counters = unified.chain(v1).map(Self);
        counters
            .into_iter()
            .find(|counter| counter.read().is_some())
            .unwrap_or_else(|| Self(PathBuf::from("/proc/vmstat")))
    }

    fn read(&self) -> Option<u64> {
        let text = fs::read_to_string(&self.0).ok()?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        count.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn the_nearest_counter_is_taken_and_only_late_kills_count() {
        let root = tempfile::tempdir().unwrap();
        let service = root.path().join("system.slice/lockstep.service");
        let group = service.join("lockstep-x.1");
        fs::create_dir_all(&group).unwrap();
        let own = Hierarchies {
            unified: Some(service.clone()),
            ..Hierarchies::default()
        };
        let nearest = || Counter::nearest(&own, Some(&group)).0;
        assert_eq!(nearest(), Path::new("/proc/vmstat"));
        for folder in [root.path(), &service, &group] {
            let counter = folder.join("memory.events");
            fs::write(&counter, "low 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n").unwrap();
            assert_eq!(nearest(), counter);
        }
        let begin = Instant::now();
        let mut kills = MemoryKills::watch(&own, Some(&group), begin);
        assert!(!kills.has_recent_kill(), "those before the run do not count");
        fs::write(group.join("memory.events"), "oom_kill 3\n").unwrap();
        for (second, expected) in [(1, true), (9, true), (11, true), (19, true), (22, false)] {
            kills.tick(begin + Duration::from_secs(second));
            assert_eq!(kills.has_recent_kill(), expected, "{second} s");
        }
    }

    #[test]
    fn v1_counts_in_its_control_file() {
        let memory = tempfile::tempdir().unwrap();
        let control = memory.path().join("memory.oom_control");
        fs::write(&control, "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n").unwrap();
        let own = Hierarchies {
            memory: Some(memory.path().to_owned()),
            ..Hierarchies::default()
        };
        assert_eq!(Counter::nearest(&own, None), Counter(control));
    }
}
