//! The names of the files in an attempt's folder. Agent and shim never talk to each other: these files are their only interface.
//!
//! ```text
//! DATA/runs/RUN.ATTEMPT/          0700
//!   prepare.json     agent           the spec that preflight checks
//!   asked.json       agent           the rest of the preflight request, beside the spec
//!   look.json        agent           a path of another node that this node searches for
//!   measure.json     agent           the pair of nodes of a running bandwidth check, with its secret; removed with the result
//!   start.json       agent           the launch, without secrets
//!   launch.json      agent → shim    what to start
//!   secrets.json     agent → shim    0600: secret variables for the ranks; removed when the collector has all reports
//!   code/            agent           the checkout, if the run names a git revision; code.PID during the checkout
//!   nccl.json        agent           the decision whether to record collectives
//!   watch.json       exec → agent    marks a watched command: `lockstep exec` is its shim, and Lockstep cannot stop it
//!   gang.json        agent           the ranks of an unmanaged job that the agent found and watches itself
//!   stop             agent → shim    the request to stop; contains the grace period in ms
//!   stop.after       agent → ranks, shim   the stop point: the step after which every rank exits
//!   knobs.live       agent → ranks   knobs that each rank applies while it trains; the newest order
//!   lock             locked (flock) by the running shim only
//!   owner.json       shim → agent    the processes that the shim owns, for the agent to end if the shim is killed
//!   shim.reports     shim → agent    one line per report, append only, synced
//!   agent.reports    agent → shim    the agent's own reports, in the same form; no shim starts after an end report
//!   checkpoints.report  agent        the newest checkpoint report; each report replaces the previous one
//!   removal.json     agent           a pending order to remove checkpoints
//!   prune.json       an older agent  such an order in the form before removals needed a proof; it is ignored
//!   saves/N.jsonl    each rank → agent   which files its saves wrote; the agent removes them
//!   status.json      shim            the state of the shim, for people
//!   probe.sock       ranks → shim    datagrams
//!   probe/N.jsonl    shim → agent    the datagrams, one per line, in segments
//!   probe.cursor     agent           the position up to which the agent has read
//!   heard.json       agent           the ranks whose probe has sent a record
//!   ranks/…          torchrun → agent   each rank's output
//!   rank-N.sock      each rank       PyTorch's worker server, queried by the agent
//!   rank-N.groups    each rank → agent   the members of its process groups, JSON
//!   page-N           each rank → agent   the rank's current position: 4 KiB, created by the shim; page.rs draws the format
//!   traces/          ranks → agent   Kineto traces, recorded on request
//!   launcher.stdout  torchrun → agent   torchrun's standard output
//!   launcher.stderr  torchrun → shim, agent   torchrun's standard error; it names the ranks that failed
//!   shim.log         shim → agent    the shim's stderr
//!   container.json   agent           the runtime of the run's container, as preflight found it
//!   container.check  agent           written and removed inside the container by the preflight check
//!   container.check.env   agent → runtime   0600, during that check: its variables
//!   container.env    shim → runtime  0600, while the container starts: variables that the runtime's command would use for itself
//!   container.pid    container → shim   the process id of torchrun
//!   done             agent           the collector has all reports; the folder may be removed
//! ```
//! A file that must be written completely is written beside its place, as `NAME.new`, and then renamed.
#![expect(missing_docs, reason = "the drawing says what each file is for")]

/// The name of one of these files, or of a folder with some of them. Only this module creates values of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileName(&'static str);

impl FileName {
    /// The name in the file system.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

pub const AGENT_REPORTS: FileName = FileName("agent.reports");
pub const CHECKPOINTS: FileName = FileName("checkpoints.report");
pub const CODE: FileName = FileName("code");
pub const CONTAINER: FileName = FileName("container.json");
pub const CONTAINER_CHECK: FileName = FileName("container.check");
pub const CONTAINER_CHECK_ENV: FileName = FileName("container.check.env");
pub const CONTAINER_ENV: FileName = FileName("container.env");
pub const CONTAINER_PID: FileName = FileName("container.pid");
pub const DONE: FileName = FileName("done");
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
pub const PREPARE_REQUEST: FileName = FileName("asked.json");
pub const PROBE: FileName = FileName("probe");
pub const PROBE_CURSOR: FileName = FileName("probe.cursor");
pub const PROBE_SOCKET: FileName = FileName("probe.sock");
pub const PRUNE: FileName = FileName("prune.json");
pub const RANKS: FileName = FileName("ranks");
pub const RANKS_SEEN: FileName = FileName("heard.json");
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
pub const UNMANAGED_JOB: FileName = FileName("gang.json");
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
