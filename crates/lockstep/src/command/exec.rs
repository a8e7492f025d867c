//! `lockstep exec -- COMMAND…`: runs any command and shows it as a run, without managing it.

use std::ffi::OsString;
use std::path::PathBuf;

use agent::launch::watched::{self, Exec as Watch, program_of};
use clap::Args;
use domain::ident::{NodeName, RunId};
use rand::RngExt;

use crate::failure::Failure;
use crate::locate;

/// The characters of the random part of a run's id, the same as in the collector.
const ID_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz23456789";
const ID_LETTERS: usize = 6;
/// The most characters of the name in the id.
const NAME_CHARS_MAX: usize = 40;

/// Run any command and watch it as a run, without managing it.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep exec -- torchrun --nproc-per-node=8 train.py
  lockstep exec --nccl-probe -- torchrun --nproc-per-node=8 train.py
  srun --ntasks-per-node=1 lockstep exec --run llama -- torchrun --nnodes=$SLURM_NNODES … train.py

The command keeps its terminal, its output, its signals and its exit code (128 plus the signal's number if a signal ended it).
The page of a run shows steps, losses, collectives, exits and diagnoses of the ranks that torchrun starts below the command.
Lockstep cannot stop or restart it.

On several nodes, start it once on each node, around torchrun, with the same --run NAME. The nodes join one run if Slurm's job and
step, or torchrun's --rdzv-id, --rdzv-endpoint, or --master-addr and --master-port, are also the same.

The agent of this machine must run as the same user. Without an agent, the command runs unwatched, and a message says so.")]
pub(crate) struct Exec {
    /// Name of the run. The same name on several nodes joins the same run. Default: the name of the script.
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Make NCCL load nccl-probe in each rank, to record collectives, their sizes and times.
    #[arg(long)]
    nccl_probe: bool,
    /// Data folder of this machine's agent.
    #[arg(long, env = "LOCKSTEP_AGENT_DATA", value_name = "DIR")]
    agent_data: Option<PathBuf>,
    /// Name of this node.
    #[arg(long, env = "LOCKSTEP_NAME", value_name = "NODE", hide = true)]
    node: Option<String>,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Exec {
    /// Runs the command and exits the process with the command's exit code.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let mut say = |message: String| eprintln!("lockstep exec: {message}");
        let data_dir = self.agent_data.clone();
        let data_dir = data_dir.unwrap_or_else(|| locate::data_dir().join("agent"));
        if agent::lock_holder(&data_dir).is_none() {
            say(format!(
                "no agent of this user uses the data folder {}; the command runs unwatched. Start an agent with `lockstep up` or `lockstep agent`, or set its folder with --agent-data",
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

    /// Returns the run's name and id.
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
        let key = self
            .run
            .as_ref()
            .and_then(|_| rendezvous_key(&words, &|name| std::env::var(name).ok()));
        let letters = match key {
            Some(key) => hash_letters(&key),
            None => random_letters(),
        };
        let id = format!("{}-{letters}", id_part(&name));
        let id = RunId::new(id).map_err(|error| Failure::Usage(format!("--run: {error}")))?;
        Ok((id_part(&name), id))
    }
}

/// Returns a text that is the same on all nodes of one start and different for every other start: the place where the nodes meet.
fn rendezvous_key(words: &[String], variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
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

/// Finds the value of an option: `--rdzv-id=7`, `--rdzv-id 7` or `--rdzv_id 7`.
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

/// Derives letters from a text, the same on every machine (FNV-1a).
fn hash_letters(text: &str) -> String {
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

    fn key(line: &str, variables: &[(&str, &str)]) -> Option<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        };
        rendezvous_key(&words, &variable)
    }

    #[test]
    fn nodes_of_one_start_meet_and_those_of_another_do_not() {
        let slurm = [
            ("SLURM_JOB_ID", "42"),
            ("SLURM_STEP_ID", "0"),
            ("MASTER_ADDR", "n1"),
        ];
        assert_eq!(
            key("torchrun --rdzv-id=7 train.py", &slurm).as_deref(),
            Some("42 0")
        );
        assert_eq!(
            key("torchrun --rdzv_id 7 --rdzv-endpoint=n1:1 t.py", &[]).as_deref(),
            Some("7 n1:1")
        );
        assert_eq!(
            key("torchrun --master-addr n1 --master_port=29 t.py", &[]).as_deref(),
            Some("n1 29")
        );
        assert_eq!(
            key("python t.py", &[("MASTER_ADDR", "n1")]).as_deref(),
            Some("n1")
        );
        assert_eq!(key("torchrun t.py", &[]), None);
        assert_eq!(hash_letters("42 0"), hash_letters("42 0"));
        assert_ne!(hash_letters("42 0"), hash_letters("42 1"));
    }

    #[test]
    fn any_name_becomes_part_of_an_id() {
        assert_eq!(id_part("my run/1"), "my-run-1");
        assert_eq!(id_part("../x"), "x");
        assert_eq!((id_part(""), id_part("../..")), ("run".into(), "run".into()));
    }
}
