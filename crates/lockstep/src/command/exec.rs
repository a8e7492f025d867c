//! `lockstep exec -- COMMAND…`: any command watched with the page of a run, without being managed.

use std::ffi::OsString;
use std::path::PathBuf;

use agent::launch::watched::{self, Exec as Watch, program_of};
use clap::Args;
use domain::ident::{NodeName, RunId};
use rand::RngExt;

use crate::failure::Failure;
use crate::locate;

/// Letters behind a run's name, as the collector makes them.
const ID_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz23456789";
const ID_LETTERS: usize = 6;
/// The most of a name that becomes part of the id.
const NAME_CHARS_MAX: usize = 40;

/// Run any command and watch it as a run, without managing it.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep exec -- torchrun --nproc-per-node=8 train.py
  lockstep exec --nccl-probe -- torchrun --nproc-per-node=8 train.py
  srun --ntasks-per-node=1 lockstep exec --run llama -- torchrun --nnodes=$SLURM_NNODES … train.py

The command keeps its terminal, its signals and its exit code (128 and the signal's number where one ended it); what it prints
stays where it is printed. Steps, losses, collectives, exits and diagnoses of the ranks that torchrun starts below it are on the
page of a run. Lockstep cannot stop or restart it.

On several nodes start it on each with the same --run NAME: they are one run when Slurm's job and step, or torchrun's --rdzv-id,
--rdzv-endpoint or --master-addr and --master-port, are the same too. Start it once on each node, around torchrun.

The agent of this machine must run as the same user. Without one the command runs all the same, unwatched, and says so.")]
pub(crate) struct Exec {
    /// A name for people; on several nodes the same name joins the same run. Default: the script's.
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Have NCCL load nccl-probe into each rank: collectives, their sizes and times.
    #[arg(long)]
    nccl_probe: bool,
    /// The data folder of this machine's agent.
    #[arg(long, env = "LOCKSTEP_AGENT_DATA", value_name = "DIR")]
    agent_data: Option<PathBuf>,
    /// The name of this node.
    #[arg(long, env = "LOCKSTEP_NAME", value_name = "NODE", hide = true)]
    node: Option<String>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Exec {
    /// Ends the process as the command ended.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let mut say = |message: String| eprintln!("lockstep exec: {message}");
        let data_dir = self.agent_data.clone().unwrap_or_else(agent_data_dir);
        if agent::lock_holder(&data_dir).is_none() {
            say(format!(
                "no agent of this user runs with the data folder {}; the command runs unwatched. Start one with `lockstep up` or `lockstep agent`, or name its folder with --agent-data",
                data_dir.display()
            ));
            std::process::exit(watched::unwatched(&self.command, &mut say).into());
        }
        let node = self.node.clone().unwrap_or_else(super::agent::host_name);
        let node = NodeName::new(node).map_err(|error| Failure::Usage(format!("--node: {error}")))?;
        let (name, run) = self.identity()?;
        let code = watched::exec(
            &Watch {
                data_dir,
                run,
                name,
                node,
                nccl_probe: self.nccl_probe,
                command: self.command,
            },
            &mut say,
        );
        std::process::exit(code.into());
    }

    /// The run's name and id.
    fn identity(&self) -> Result<(String, RunId), Failure> {
        let name = match &self.run {
            Some(name) => name.clone(),
            None => {
                let program = program_of(&self.command);
                let file = program.rsplit('/').next().unwrap_or_default();
                file.trim_end_matches(".py").to_owned()
            }
        };
        let words: Vec<String> = self
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let meeting = self
            .run
            .as_ref()
            .and_then(|_| meeting(&words, &|name| std::env::var(name).ok()));
        let letters = match meeting {
            Some(meeting) => letters_of(&meeting),
            None => random_letters(),
        };
        let id = format!("{}-{letters}", id_part(&name));
        let id = RunId::new(id).map_err(|error| Failure::Usage(format!("--run: {error}")))?;
        Ok((id_part(&name), id))
    }
}

/// Where `up` and `agent` keep their data when they are told nothing, or what all of them are told.
fn agent_data_dir() -> PathBuf {
    let data = std::env::var_os("LOCKSTEP_DATA").map_or_else(locate::default_data_dir, PathBuf::from);
    data.join("agent")
}

/// What is the same on all nodes of one start, and on no other start: where the nodes meet.
fn meeting(words: &[String], variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let named = |names: &[&str], value: &dyn Fn(&str) -> Option<String>| {
        let found: Vec<String> = names.iter().filter_map(|name| value(name)).collect();
        (!found.is_empty()).then(|| found.join(" "))
    };
    let slurm = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"];
    let by_slurm = variable("SLURM_JOB_ID").and_then(|_| named(&slurm, variable));
    let by_torchrun = || {
        let options = ["rdzv-id", "rdzv-endpoint", "master-addr", "master-port"];
        named(&options, &|name| option(words, name))
    };
    let by_variables = || named(&["MASTER_ADDR", "MASTER_PORT"], variable);
    by_slurm.or_else(by_torchrun).or_else(by_variables)
}

/// `--rdzv-id=7`, `--rdzv-id 7`, `--rdzv_id 7`.
fn option(words: &[String], name: &str) -> Option<String> {
    let is_name = |word: &str| {
        word.strip_prefix("--")
            .is_some_and(|word| word.replace('_', "-") == name)
    };
    words
        .iter()
        .enumerate()
        .find_map(|(at, word)| match word.split_once('=') {
            Some((option, value)) if is_name(option) => Some(value.to_owned()),
            None if is_name(word) => words.get(at + 1).cloned(),
            _ => None,
        })
}

fn id_part(name: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
            c
        } else {
            '-'
        }
    };
    let name: String = name.chars().take(NAME_CHARS_MAX).map(allowed).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() {
        "run".to_owned()
    } else {
        name.to_owned()
    }
}

fn random_letters() -> String {
    let mut random = rand::rng();
    (0..ID_LETTERS)
        .map(|_| char::from(ID_ALPHABET[random.random_range(0..ID_ALPHABET.len())]))
        .collect()
}

/// The same letters on every machine (FNV-1a).
fn letters_of(text: &str) -> String {
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let base = ID_ALPHABET.len() as u64;
    let mut letter = || {
        let at = usize::try_from(hash % base).unwrap_or(0);
        hash /= base;
        char::from(ID_ALPHABET[at])
    };
    (0..ID_LETTERS).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(line: &str, variables: &[(&str, &str)]) -> Option<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        };
        meeting(&words, &variable)
    }

    #[test]
    fn nodes_of_one_start_meet_and_those_of_another_do_not() {
        let slurm = [
            ("SLURM_JOB_ID", "42"),
            ("SLURM_STEP_ID", "0"),
            ("MASTER_ADDR", "n1"),
        ];
        assert_eq!(
            met("torchrun --rdzv-id=7 train.py", &slurm).as_deref(),
            Some("42 0")
        );
        assert_eq!(
            met("torchrun --rdzv_id 7 --rdzv-endpoint=n1:1 t.py", &[]).as_deref(),
            Some("7 n1:1")
        );
        assert_eq!(
            met("torchrun --master-addr n1 --master_port=29 t.py", &[]).as_deref(),
            Some("n1 29")
        );
        assert_eq!(
            met("python t.py", &[("MASTER_ADDR", "n1")]).as_deref(),
            Some("n1")
        );
        assert_eq!(met("torchrun t.py", &[]), None);
        assert_eq!(letters_of("42 0"), letters_of("42 0"));
        assert_ne!(letters_of("42 0"), letters_of("42 1"));
    }

    #[test]
    fn any_name_becomes_part_of_an_id() {
        assert_eq!(id_part("my run/1"), "my-run-1");
        assert_eq!(id_part("../x"), "x");
        assert_eq!((id_part(""), id_part("../..")), ("run".into(), "run".into()));
    }
}
