//! The limit of open files (`RLIMIT_NOFILE`). Each connection is an open file; the usual soft limit of 1,024 exists only for
//! `select`.

use std::fmt;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The maximum soft limit. Containers often have a hard limit of one billion, and some programs close every possible descriptor
/// before they start: as child processes they would take minutes.
const SOFT_MAX: u64 = 1 << 20;

/// The limits of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit in force; `None` for no limit.
    pub soft: Option<u64>,
    /// The value up to which the process may raise it; `None` for no limit.
    pub hard: Option<u64>,
}

impl OpenFiles {
    /// Returns the limits of this process.
    #[must_use]
    pub fn current() -> Self {
        let limits = getrlimit(Resource::Nofile);
        Self {
            soft: limits.current,
            hard: limits.maximum,
        }
    }

    /// Returns the soft limit of a service after its start: the hard limit, at most 1,048,576, and never less than before.
    #[must_use]
    pub fn raised(self) -> u64 {
        let attainable = self.hard.unwrap_or(SOFT_MAX).min(SOFT_MAX);
        attainable.max(self.soft.unwrap_or(u64::MAX))
    }

    /// Raises the soft limit of this process and of its future child processes. Returns the limits before.
    ///
    /// # Errors
    /// Fails if the system refuses. The limit is then unchanged.
    pub fn raise() -> io::Result<Self> {
        let before = Self::current();
        let raised = before.raised();
        if before.soft.is_some_and(|soft| soft < raised) {
            let limits = Rlimit {
                current: Some(raised),
                maximum: before.hard,
            };
            setrlimit(Resource::Nofile, limits)?;
        }
        Ok(Self::current())
    }
}

impl fmt::Display for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        write!(
            f,
            "soft limit {}, hard limit {}",
            show(self.soft),
            show(self.hard)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one_within_reason() {
        for (soft, hard, raised) in [
            (Some(1_024), Some(4_096), 4_096),
            (Some(1_024), Some(1_073_741_816), SOFT_MAX),
            (Some(1_024), None, SOFT_MAX),
            (Some(8 * SOFT_MAX), Some(8 * SOFT_MAX), 8 * SOFT_MAX),
            (None, None, u64::MAX),
        ] {
            assert_eq!(OpenFiles { soft, hard }.raised(), raised, "{soft:?} {hard:?}");
        }
    }
}
