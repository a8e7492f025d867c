//! Who a process is: its name, and the run and rank its environment tells. Only the few variables below are ever kept of an
//! environment, which may hold secrets.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// The most of an environment that is read; the variables looked for are set by launchers, near its start or end.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// The most processes remembered; more than the GPUs of a node have contexts for.
const REMEMBERED_MAX: usize = 4_096;

/// Where a run's name is found, the surest first.
const RUN_VARIABLES: [&str; 3] = ["LOCKSTEP_RUN", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"];
/// Where a rank is found, the surest first.
const RANK_VARIABLES: [&str; 2] = ["RANK", "SLURM_PROCID"];

/// What a process is to people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// As the kernel has it, at most 15 bytes; empty when it cannot be read.
    pub(crate) name: String,
    /// The run it belongs to.
    pub(crate) run: Option<String>,
    /// Its rank in the run.
    pub(crate) rank: Option<String>,
}

/// Identities by pid. A pid is reused, so each is kept with its process's start time.
#[derive(Debug)]
pub(crate) struct Identities {
    proc: PathBuf,
    known: HashMap<u32, (u64, Identity)>,
}

impl Identities {
    /// Reads under this root's `/proc`.
    pub(crate) fn new(root: &std::path::Path) -> Self {
        Self {
            proc: root.join("proc"),
            known: HashMap::new(),
        }
    }

    /// Who `pid` is; empty when it has gone or may not be looked at.
    pub(crate) fn of(&mut self, pid: u32) -> Identity {
        let Some(started) = self.started(pid) else {
            return Identity::default();
        };
        if let Some((then, identity)) = self.known.get(&pid)
            && *then == started
        {
            return identity.clone();
        }
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
        let identity = self.read(pid);
        self.known.insert(pid, (started, identity.clone()));
        identity
    }

    /// Clock ticks since boot at which the process started: field 22 of `stat`, counted behind the name in brackets.
    fn started(&self, pid: u32) -> Option<u64> {
        let stat = std::fs::read_to_string(self.proc.join(pid.to_string()).join("stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
    }

    fn read(&self, pid: u32) -> Identity {
        let folder = self.proc.join(pid.to_string());
        let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let mut environment = Vec::new();
        if let Ok(file) = File::open(folder.join("environ")) {
            // Half an environment is better than none.
            let _ = file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment);
        }
        let find = |names: &[&str]| names.iter().find_map(|name| variable(&environment, name));
        Identity {
            name: name.trim_end().to_owned(),
            run: find(&RUN_VARIABLES),
            rank: find(&RANK_VARIABLES),
        }
    }
}

fn variable(environment: &[u8], name: &str) -> Option<String> {
    let value = |entry: &[u8]| {
        entry
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b"=")
            .map(<[u8]>::to_vec)
    };
    let value = environment.split(|byte| *byte == 0).find_map(value)?;
    String::from_utf8(value)
        .ok()
        .filter(|value| !value.is_empty() && value != "none")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn a_rank_is_recognised_and_a_reused_pid_is_not_mixed_up() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/77");
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let stat = |started: u64| format!("77 (py) thon) S {} {started} 0", ["1"; 18].join(" "));
        write("stat", &stat(500));
        write("comm", "python\n");
        write(
            "environ",
            "SECRET=x\0TORCHELASTIC_RUN_ID=none\0LOCKSTEP_RUN=ddp-ab12cd\0RANK=3\0",
        );
        let mut identities = Identities::new(root.path());
        let rank = Identity {
            name: "python".into(),
            run: Some("ddp-ab12cd".into()),
            rank: Some("3".into()),
        };
        assert_eq!(identities.of(77), rank);
        write("environ", "");
        assert_eq!(identities.of(77), rank);
        write("stat", &stat(900));
        assert_eq!(
            identities.of(77),
            Identity {
                name: "python".into(),
                run: None,
                rank: None
            }
        );
        assert_eq!(identities.of(78), Identity::default());
    }
}
