//! A collector and agents in a separate folder. Each is a process that can be killed and started again; all of them end when this is
//! dropped.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tempfile::TempDir;

use crate::network::Link;
use crate::product::api::Api;
use crate::product::environment::{program, python};
use crate::product::process::{is_ours, processes, signal, spawn_collector};

/// The nodes of a run, by node rank.
pub(crate) const NODES: [&str; 2] = ["a", "b"];
/// The spare node.
pub(crate) const SPARE: &str = "spare";
/// The longest wait for a process to start, or to end after SIGTERM. It only ends a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);

/// A collector and its agents.
pub(crate) struct Fleet {
    pub(crate) api: Api,
    program: PathBuf,
    collector: Child,
    agents: BTreeMap<&'static str, Agent>,
    link: Option<Link>,
    // Last, because the processes above use it.
    folder: TempDir,
}

/// The agent of one node.
pub(crate) struct Agent {
    program: PathBuf,
    process: Child,
}

impl Fleet {
    /// Starts two nodes on this machine. With `separate_machine`, the second is behind a separate link, and there is a third, spare node.
    pub(crate) fn start(separate_machine: bool) -> Result<Self> {
        Self::start_program(program(), separate_machine)
    }

    /// Starts the same with another program, such as an earlier revision.
    pub(crate) fn start_program(program: PathBuf, separate_machine: bool) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let link = separate_machine.then(Link::make).transpose()?;
        let address = link.as_ref().map_or("127.0.0.1", Link::near_address);
        let (collector, url) = spawn_collector(collector(&program, folder.path(), &format!("{address}:0")));
        let api = Api::new(url, &folder.path().join("collector"));
        let mut fleet = Self {
            api,
            program,
            collector,
            agents: BTreeMap::new(),
            link,
            folder,
        };
        for node in NODES.into_iter().chain(separate_machine.then_some(SPARE)) {
            fleet.start_agent(node)?;
        }
        fleet.wait_for_nodes()?;
        Ok(fleet)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The link to the second node, if it is a separate machine.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Returns the folder of an attempt on a node.
    pub(crate) fn attempt_folder(&self, node: &str, run: &str, attempt: u64) -> PathBuf {
        self.folder()
            .join(node)
            .join("runs")
            .join(format!("{run}.{attempt}"))
    }

    pub(crate) fn agent(&mut self, node: &str) -> Result<&mut Agent> {
        self.agents
            .get_mut(node)
            .with_context(|| format!("there is no agent {node}"))
    }

    /// Starts a node's agent, as its service manager would after its end.
    pub(crate) fn start_agent(&mut self, node: &'static str) -> Result<()> {
        let program = match self.agents.get(node) {
            Some(agent) => agent.program.clone(),
            None => self.version(node, 1)?,
        };
        let join = self.api.post("/api/tokens/join", &json!({}));
        let join = join["token"].as_str().context("the collector gives no token")?;
        let process = self
            .agent_command(node, &program)
            .env("LOCKSTEP_JOIN", join)
            .spawn()?;
        self.agents.insert(node, Agent { program, process });
        Ok(())
    }

    /// Sets a newer file at another path for the node's next agent, and deletes the old file.
    pub(crate) fn replace_program(&mut self, node: &'static str) -> Result<()> {
        let newer = self.version(node, 2)?;
        let agent = self.agent(node)?;
        std::fs::remove_file(&agent.program)?;
        agent.program = newer;
        Ok(())
    }

    /// Waits until every agent is connected.
    pub(crate) fn wait_for_nodes(&self) -> Result<()> {
        let wanted = self.agents.len();
        let up = || {
            let nodes = self.api.get("/api/nodes");
            let nodes = nodes.as_array().cloned().unwrap_or_default();
            nodes.iter().filter(|node| node["state"] == "up").count() >= wanted
        };
        wait("every agent to be connected", TIMEOUT, up)
    }

    pub(crate) fn kill_collector(&mut self) -> Result<()> {
        self.collector.kill()?;
        self.collector.wait()?;
        Ok(())
    }

    /// Starts the collector again at the same address.
    pub(crate) fn start_collector(&mut self) -> Result<()> {
        let address = self.api.url.strip_prefix("http://").context("an address")?;
        (self.collector, _) = spawn_collector(collector(&self.program, self.folder.path(), address));
        Ok(())
    }

    /// Takes the link to the second node down.
    pub(crate) fn cut_off(&mut self) -> Result<()> {
        self.link
            .as_mut()
            .context("the second node is not a separate machine")?
            .set(false)
    }

    /// Brings the link to the second node up again.
    pub(crate) fn reconnect(&mut self) -> Result<()> {
        self.link
            .as_mut()
            .context("the second node is not a separate machine")?
            .set(true)
    }

    /// Sends SIGKILL to everything that runs on any node: agents, shims, torchrun, ranks. Kills the agents first, because they could start
    /// other processes, and repeats until no process is left.
    pub(crate) fn kill_everything_on_nodes(&mut self) -> Result<()> {
        for agent in self.agents.values_mut() {
            agent.process.kill()?;
            agent.process.wait()?;
        }
        let nodes: Vec<_> = self
            .agents
            .keys()
            .map(|node| self.folder.path().join(node))
            .collect();
        wait("every process of the nodes to be gone", TIMEOUT, || {
            let mut left = processes();
            left.retain(|pid| nodes.iter().any(|node| is_ours(*pid, node)));
            left.iter().for_each(|pid| signal(*pid, "KILL"));
            left.is_empty()
        })
    }

    /// Makes a copy of the program under test that only this fleet's agents use.
    fn version(&self, node: &str, number: u32) -> Result<PathBuf> {
        let folder = self.folder().join(format!("{node}-version-{number}"));
        std::fs::create_dir_all(&folder)?;
        let copy = folder.join("lockstep");
        if std::fs::hard_link(&self.program, &copy).is_err() {
            std::fs::copy(&self.program, &copy)?;
        }
        Ok(copy)
    }

    fn agent_command(&self, node: &str, program: &Path) -> Command {
        let far = self.link.as_ref().filter(|_| node == NODES[1]);
        let mut command = match far {
            Some(link) => link.command(program),
            None => Command::new(program),
        };
        let url = far.and_then(|link| link.far_url(&self.api.url));
        let data = self.folder().join(node);
        std::fs::create_dir_all(&data).unwrap();
        let log = File::options()
            .create(true)
            .append(true)
            .open(data.join("agent.log"))
            .unwrap();
        command
            .args(["agent", "--name", node, "--metrics-listen", "off", "--collector"])
            .arg(url.as_deref().unwrap_or(&self.api.url))
            .arg("--data")
            .arg(&data)
            .env("LOCKSTEP_PYTHON", python())
            .env("LOCKSTEP_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
            .env_remove("LOCKSTEP_SIMULATE")
            .env_remove("LOCKSTEP_TOKEN")
            .env_remove("LOCKSTEP_ADMIN_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command
    }
}

impl Agent {
    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Sends SIGTERM, as a service manager does.
    pub(crate) fn end(&mut self) -> Result<()> {
        signal(i32::try_from(self.process.id())?, "TERM");
        wait("an agent to end", TIMEOUT, || {
            self.process.try_wait().is_ok_and(|ended| ended.is_some())
        })
    }
}

impl Drop for Fleet {
    /// Kills everything that was started for the folder. The agents come first, because they could start other processes.
    fn drop(&mut self) {
        for process in self.agents.values_mut().map(|agent| &mut agent.process) {
            let _gone_already = process.kill();
            let _gone_already = process.wait();
        }
        let _gone_already = self.collector.kill();
        let _gone_already = self.collector.wait();
        let folder = self.folder.path();
        let _reported_by_the_test = wait("what was started to be gone", TIMEOUT, || {
            let mut left = processes();
            left.retain(|pid| is_ours(*pid, folder));
            left.iter().for_each(|pid| signal(*pid, "KILL"));
            left.is_empty()
        });
    }
}

/// Returns the command of a collector whose data folder is `collector` in this folder.
pub(crate) fn collector(program: &Path, folder: &Path, listen: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(["collector", "--listen", listen, "--insecure-public", "--data"])
        .arg(folder.join("collector"))
        .env_remove("LOCKSTEP_TOKEN")
        .env_remove("LOCKSTEP_ADMIN_TOKEN");
    command
}

/// Waits until a condition is true. The error says which condition did not become true.
pub(crate) fn wait(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + within;
    while !is_so() {
        if Instant::now() > deadline {
            bail!("waited {} s in vain for {what}", within.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
