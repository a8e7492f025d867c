//! The limit of open files (`RLIMIT_NOFILE`): each connection is one, and the usual soft limit of 1,024 is a relic of `select`.

use std::fmt;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest soft limit that is set. Containers often have a hard limit of a thousand millions, and there are programs that close
/// every descriptor there could be before they start: as a child of ours they would take minutes.
const SOFT_MAX: u64 = 1 << 20;

/// The limits of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit that counts; `None` for no limit.
    pub soft: Option<u64>,
    /// How far the process may raise it; `None` for no limit.
    pub hard: Option<u64>,
}

impl OpenFiles {
    /// The limits of this process.
    #[must_use]
    pub fn current() -> Self {
        let limits = getrlimit(Resource::Nofile);
        Self {
            soft: limits.current,
            hard: limits.maximum,
        }
    }

    /// The soft limit that a service has after its start: the hard limit, at most 1,048,576, and never less than it had.
    #[must_use]
    pub fn raised(self) -> u64 {
        let attainable = self.hard.unwrap_or(SOFT_MAX).min(SOFT_MAX);
        attainable.max(self.soft.unwrap_or(u64::MAX))
    }

    /// Raises the soft limit of this process, and of those that it starts.
    ///
    /// # Errors
    /// When the system refuses. The limit is then what it was.
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
