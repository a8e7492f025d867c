//! The collector under load: its rules are files in a folder, so that they can be loaded and unloaded while it runs.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::layout::Layout;
use crate::measure::generator::{Fleet, RunningGenerator};
use crate::measure::http::Address;
use crate::measure::server::{Plan, Server};
use crate::measure::{folder, process};
use crate::progress::say;

/// Where the shipped rules are, in the checkout.
const SHIPPED: &str = "crates/domain/rules";
/// How often server and agents are checked while nothing is measured.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often results are read while CPU time is measured. Each time costs the collector a response.
const READ_EVERY: Duration = Duration::from_secs(5);

/// A collector and the agents that send to it. Its folder is deleted when it is dropped.
pub(super) struct LoadedCollector {
    server: Server,
    agents: Option<RunningGenerator>,
    folder: PathBuf,
}

impl LoadedCollector {
    /// Starts a collector without rules, and agents that send for some time.
    pub(super) fn start(layout: &Layout, fleet: Fleet, sends_for: Duration) -> Result<Self> {
        let folder = layout.target().join("bench").join("rules");
        folder::empty(&folder)?;
        let (data, rules) = (folder.join("data"), folder.join("rules"));
        fs::create_dir_all(&rules).with_context(|| format!("cannot make {}", rules.display()))?;
        let pattern = format!("--rules={}/*.yaml", rules.display());
        let options = ["--no-shipped-rules", &pattern];
        let server = Server::start(layout, Plan::collector(layout, "bench-rules", &data, &options)?)?;
        say(
            "bench",
            &format!("{} series of {} nodes", fleet.series(), fleet.nodes),
        );
        let args = [
            format!("--ticks={}", sends_for.as_secs()),
            "--mode=live".to_owned(),
        ];
        let agents = RunningGenerator::start(layout, &server, fleet, "agents", &args)?;
        Ok(Self {
            server,
            agents: Some(agents),
            folder,
        })
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Loads the shipped rules.
    pub(super) fn load_rules(&self, layout: &Layout) -> Result<()> {
        let shipped = layout.root.join(SHIPPED);
        let files = fs::read_dir(&shipped).with_context(|| format!("cannot read {}", shipped.display()))?;
        for file in files {
            let path = file.context("cannot list the shipped rules")?.path();
            let name = path
                .file_name()
                .filter(|_| path.extension() == Some("yaml".as_ref()));
            if let Some(name) = name {
                fs::copy(&path, self.rules().join(name)).context("cannot copy a rule file")?;
            }
        }
        self.reload()
    }

    /// Unloads all rules.
    pub(super) fn unload_rules(&self) -> Result<()> {
        folder::empty(&self.rules())?;
        self.reload()
    }

    /// Waits. Returns an error if the collector or the agents end meanwhile.
    pub(super) fn wait(&mut self, time: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.check()?;
            thread::sleep(CHECK_EVERY.min(time.saturating_sub(begin.elapsed())));
        }
        Ok(())
    }

    /// Returns the share of a core that the collector uses in each of some slices of time. Calls `read` every [`READ_EVERY`].
    pub(super) fn slices(
        &mut self,
        count: u32,
        slice: Duration,
        mut read: impl FnMut(&Address) -> Result<()>,
    ) -> Result<Vec<f64>> {
        let pid = self.server.pid()?;
        let mut shares = Vec::new();
        for _ in 0..count {
            let (begin, before_s) = (Instant::now(), process::cpu_s(pid)?);
            while begin.elapsed() < slice {
                self.wait(READ_EVERY.min(slice.saturating_sub(begin.elapsed())))?;
                read(self.server.address())?;
            }
            let used_s = process::cpu_s(pid)? - before_s;
            shares.push(used_s / begin.elapsed().as_secs_f64());
        }
        Ok(shares)
    }

    /// Waits until the agents have sent everything. Returns what they printed, and the text of `/metrics`.
    pub(super) fn finish(mut self, within: Duration) -> Result<(Value, String)> {
        let agents = self.agents.take().context("the agents have ended already")?;
        let outcome = agents.finish(within)?;
        self.server.check()?;
        let metrics = self.server.address().get("/metrics")?.success("/metrics")?;
        Ok((outcome, metrics))
    }

    fn check(&mut self) -> Result<()> {
        self.server.check()?;
        self.agents.as_mut().map_or(Ok(()), RunningGenerator::check)
    }

    fn rules(&self) -> PathBuf {
        self.folder.join("rules")
    }

    fn reload(&self) -> Result<()> {
        let reloaded = self
            .server
            .address()
            .post("/-/reload", "")?
            .success("/-/reload")?;
        say("bench", reloaded.trim());
        Ok(())
    }
}

impl Drop for LoadedCollector {
    fn drop(&mut self) {
        self.agents = None;
        self.server.kill();
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            say("bench", &format!("{} stays: {error}", self.folder.display()));
        }
    }
}
