//! The claim of a process to be a rank, read from its environment.
//!
//! ```text
//! rank        RANK of WORLD_SIZE, LOCAL_RANK (or SLURM_LOCALID); and a rendezvous: TORCHELASTIC_RUN_ID, or MASTER_ADDR and MASTER_PORT
//! run         SLURM_JOB_ID, else TORCHELASTIC_RUN_ID, else torchrun-ADDR-PORT: the same name as in the metrics of processes, so that
//!             their measurements are on the same page
//! not ours    LOCKSTEP_RUN, LOCKSTEP_ATTEMPT: managed, or watched by `lockstep exec`
//! ```
//! A script that `srun` starts directly and that derives its `RANK` from `SLURM_PROCID` itself cannot be distinguished from any other
//! program under Slurm. It is not watched.

use domain::ident::RunId;

/// Maximum world size: more ranks than the largest training has. A larger number is something else.
const WORLD_MAX: u32 = 1 << 20;
/// Maximum number of ranks on one node.
const LOCAL_MAX: u32 = 1_024;
/// Maximum length of a run's name. A longer one is cut.
const NAME_CHARS_MAX: usize = 60;

/// A rank, as its launcher's variables describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) run: RunId,
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    /// Its rendezvous, which distinguishes two jobs.
    pub(super) place: String,
}

impl Claim {
    /// Reads a claim from variables, `NAME=VALUE` each. Returns `None` if the process is not a rank, or is already watched or managed.
    pub(super) fn of(environment: &[Vec<u8>], node: &str) -> Option<Self> {
        let value = |name: &str| {
            let found = environment.iter().find_map(|variable| {
                variable
                    .strip_prefix(name.as_bytes())?
                    .strip_prefix(b"=")
                    .map(<[u8]>::to_vec)
            })?;
            String::from_utf8(found).ok().filter(|text| !text.is_empty())
        };
        if ["LOCKSTEP_RUN", "LOCKSTEP_ATTEMPT"]
            .iter()
            .any(|name| value(name).is_some())
        {
            return None;
        }
        let number = |name: &str| value(name)?.parse::<u32>().ok();
        let (rank, world) = (number("RANK")?, number("WORLD_SIZE")?);
        let local_rank = number("LOCAL_RANK").or_else(|| number("SLURM_LOCALID"))?;
        if rank >= world || world > WORLD_MAX || local_rank > rank || local_rank >= LOCAL_MAX {
            return None;
        }
        let master = value("MASTER_ADDR").zip(value("MASTER_PORT"));
        let elastic = value("TORCHELASTIC_RUN_ID");
        let named = value("SLURM_JOB_ID").or_else(|| elastic.clone().filter(|id| id != "none"));
        let meets = master.map(|(address, port)| format!("{address}-{port}"));
        let name = match (named, &meets) {
            (Some(name), _) => name,
            // All ranks are on this node: ranks of the same name on another node belong to another job.
            (None, Some(meets)) if number("LOCAL_WORLD_SIZE") == Some(world) => {
                format!("torchrun-{meets}-{node}")
            }
            (None, Some(meets)) => format!("torchrun-{meets}"),
            (None, None) => return None,
        };
        Some(Self {
            run: run_id(&name)?,
            rank,
            local_rank,
            place: elastic.into_iter().chain(meets).collect::<Vec<_>>().join(" "),
        })
    }
}

fn run_id(name: &str) -> Option<RunId> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name
        .chars()
        .take(NAME_CHARS_MAX)
        .map(|c| if allowed(c) { c } else { '-' })
        .collect();
    RunId::new(name.trim_start_matches(['.', '-'])).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn claim(text: &str) -> Option<(String, u32, u32)> {
        let environment: Vec<Vec<u8>> = text.split(' ').map(|v| v.as_bytes().to_vec()).collect();
        Claim::of(&environment, "n7").map(|claim| (claim.run.to_string(), claim.rank, claim.local_rank))
    }

    #[test]
    fn ranks_of_torchrun_and_slurm_are_recognised() {
        const TORCHRUN: &str =
            "RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";
        let with = |more: &str| claim(&format!("{TORCHRUN} {more}"));
        let is = |run: &str| Some((run.to_owned(), 5, 1));
        for (found, expected) in [
            (with("TORCHELASTIC_RUN_ID=nightly"), is("nightly")),
            (with("TORCHELASTIC_RUN_ID=none"), is("torchrun-10.0.0.1-29500")),
            (with("TORCHELASTIC_RUN_ID=a/b SLURM_JOB_ID=77"), is("77")),
            (with("TORCHELASTIC_RUN_ID=a/b"), is("a-b")),
            (with("LOCKSTEP_RUN=mine"), None),
            (with("LOCKSTEP_ATTEMPT=1"), None),
            (claim("RANK=5 LOCAL_RANK=1 WORLD_SIZE=8"), None),
            (
                claim("RANK=8 LOCAL_RANK=1 WORLD_SIZE=8 TORCHELASTIC_RUN_ID=x"),
                None,
            ),
            (claim("SLURM_PROCID=1 SLURM_JOB_ID=77 WORLD_SIZE=2"), None),
            (claim(""), None),
            (
                claim("RANK=5 SLURM_LOCALID=1 WORLD_SIZE=8 SLURM_JOB_ID=77"),
                is("77"),
            ),
        ] {
            assert_eq!(found, expected);
        }
        assert_eq!(
            claim(
                "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
            ),
            Some(("torchrun-127.0.0.1-29500-n7".into(), 0, 0)),
            "a world of its own on each node"
        );
    }
}
