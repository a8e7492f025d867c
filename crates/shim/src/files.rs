//! The names of the files in an attempt's folder: all that agent and shim, which never talk to each other, know of each other.
//!
//! ```text
//! DATA/runs/RUN.ATTEMPT/          0700
//!   prepare.json     agent           the spec that preflight checks
//!   asked.json       agent           what preflight was asked beside the spec
//!   look.json        agent           a path of another node that is looked for here
//!   measure.json     agent           the pair whose bandwidth is being measured, with its secret; gone with the answer
//!   start.json       agent           what was started, without secrets
//!   launch.json      agent → shim    what to start
//!   secrets.json     agent → shim    0600: variables for the ranks that no one is shown; gone when the collector has everything
//!   code/            agent           the checkout, where the run names a git revision; code.PID while it is made
//!   nccl.json        agent           what was decided about watching collectives
//!   watch.json       exec → agent    this is a command that is only watched: `lockstep exec` is its shim, and no one may stop it
//!   gang.json        agent           this is a job that the agent found and watches itself: its ranks
//!   stop             agent → shim    the wish to end; holds the grace in ms
//!   stop.after       agent → ranks, shim   the step after which every rank ends by itself
//!   knobs.live       agent → ranks   knobs that each rank sets for itself while it trains; the newest order
//!   lock             held (flock) by the living shim, and by no one else
//!   owner.json       shim → agent    what the shim owns, for whoever ends it should the shim be killed
//!   shim.reports     shim → agent    one line per report, append only, synced
//!   agent.reports    agent → shim    the agent's own reports, likewise; after an end among them no shim starts
//!   checkpoints.report  agent        its newest report of checkpoints, each in the place of the one before
//!   removal.json     agent           an order to remove checkpoints that is not carried out yet
//!   prune.json       an older agent  such an order, of before removals needed a proof: it is dropped
//!   saves/N.jsonl    each rank → agent   which files its saves wrote; the agent takes them away
//!   status.json      shim            for people
//!   probe.sock       ranks → shim    datagrams
//!   probe/N.jsonl    shim → agent    the same, one per line, in segments
//!   probe.cursor     agent           how far it has read
//!   heard.json       agent           the ranks whose probe has spoken
//!   ranks/…          torchrun → agent   each rank's output
//!   rank-N.sock      each rank       PyTorch's worker server, asked by the agent
//!   rank-N.groups    each rank → agent   the members of its process groups, JSON
//!   page-N           each rank → agent   where it is right now: 4 KiB that the shim makes; page.rs draws them
//!   traces/          ranks → agent   Kineto's traces, recorded when a person asks
//!   launcher.stdout  torchrun → agent   its own output
//!   launcher.stderr  torchrun → shim, agent   likewise; it names the ranks that failed
//!   shim.log         shim → agent    the shim's stderr
//!   container.json   agent           the runtime of the run's container, as preflight found it
//!   container.check  agent           written and removed from inside while preflight tries the container
//!   container.check.env   agent → runtime   0600, meanwhile: variables for that try
//!   container.env    shim → runtime  0600, while the container starts: variables that the runtime's command would take for its own
//!   container.pid    container → shim   torchrun's id
//!   done             agent           the collector has everything; the folder may go
//! ```
//! A file that is written whole is written beside its place, as `NAME.new`, and renamed.
#![expect(missing_docs, reason = "the drawing says what each file is for")]

/// The name of one of these files, or of a folder with some of them. This module alone makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileName(&'static str);

impl FileName {
    /// As the file system knows it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

pub const AGENT_REPORTS: FileName = FileName("agent.reports");
pub const ASKED: FileName = FileName("asked.json");
pub const CHECKPOINTS: FileName = FileName("checkpoints.report");
pub const CODE: FileName = FileName("code");
pub const CONTAINER: FileName = FileName("container.json");
pub const CONTAINER_CHECK: FileName = FileName("container.check");
pub const CONTAINER_CHECK_ENV: FileName = FileName("container.check.env");
pub const CONTAINER_ENV: FileName = FileName("container.env");
pub const CONTAINER_PID: FileName = FileName("container.pid");
pub const DONE: FileName = FileName("done");
pub const GANG: FileName = FileName("gang.json");
pub const HEARD: FileName = FileName("heard.json");
pub const KNOBS_LIVE: FileName = FileName("knobs.live");
pub const LAUNCH: FileName = FileName("launch.json");
pub const LAUNCHER_STDERR: FileName = FileName("launcher.stderr");
pub const LAUNCHER_STDOUT: FileName = FileName("launcher.stdout");
pub const LOCK: FileName = FileName("lock");
pub const LOOK: FileName = FileName("look.json");
pub const MEASURE: FileName = FileName("measure.json");
pub const NCCL: FileName = FileName("nccl.json");
pub const OWNER: FileName = FileName("owner.json");
pub const PREPARE: FileName = FileName("prepare.json");
pub const PROBE: FileName = FileName("probe");
pub const PROBE_CURSOR: FileName = FileName("probe.cursor");
pub const PROBE_SOCKET: FileName = FileName("probe.sock");
pub const PRUNE: FileName = FileName("prune.json");
pub const RANKS: FileName = FileName("ranks");
pub const REMOVAL: FileName = FileName("removal.json");
pub const SAVES: FileName = FileName("saves");
pub const SECRETS: FileName = FileName("secrets.json");
pub const SHIM_LOG: FileName = FileName("shim.log");
pub const SHIM_REPORTS: FileName = FileName("shim.reports");
pub const START: FileName = FileName("start.json");
pub const STATUS: FileName = FileName("status.json");
pub const STOP: FileName = FileName("stop");
pub const STOP_AFTER: FileName = FileName("stop.after");
pub const TRACES: FileName = FileName("traces");
pub const WATCH: FileName = FileName("watch.json");

#[cfg(test)]
mod tests {
    #[test]
    fn the_drawing_shows_each_name_once() {
        let text = include_str!("files.rs");
        let drawn = text
            .lines()
            .filter_map(|line| line.strip_prefix("//!   ")?.split([' ', '/']).next());
        let drawn: Vec<&str> = drawn.collect();
        let named = text
            .lines()
            .filter_map(|line| line.strip_prefix("pub const ")?.split('"').nth(1));
        let named: Vec<&str> = named.collect();
        assert!(named.len() > 30, "where are the names?");
        for name in named {
            let times = drawn.iter().filter(|drawn| **drawn == name).count();
            assert_eq!(times, 1, "{name}");
        }
    }
}
