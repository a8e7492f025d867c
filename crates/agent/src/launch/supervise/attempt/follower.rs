//! The task that controls one attempt. It executes the commands, reads the files that shim and ranks write to the folder, and cleans up if
//! the shim has died.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ident::{AttemptId, Rank};
use domain::run::container::Place;
use domain::run::knob::{ANSWERS_MAX, KnobAnswer};
use domain::run::spec::Spec;
use domain::run::state::{EndCause, Measure, NodeCommand, NodeEnd, NodeReport, Start};
use domain::run::torchrun::{self as command_line, Paths};
use shim::files::{self, FileName};
use shim::{Entry, Folder, Secrets, read_from};
use tokio::sync::{mpsc, oneshot};

use super::rank_facts::RankFacts;
use super::sockets::RankSockets;
use super::usage::RankUsage;
use super::{Attempt, TRY_AGAIN};
use crate::launch::checkpoint;
use crate::launch::checkpoint::records::{self, FolderListing};
use crate::launch::container::{self, ContainerNeeds, StoredContainerCheck};
use crate::launch::inspect::kineto;
use crate::launch::output;
use crate::launch::positions::Positions;
use crate::launch::preflight::checkout::placed;
use crate::launch::preflight::disks::{is_seen, remove_token};
use crate::launch::preflight::lease::Lease;
use crate::launch::preflight::request::{NodeContext, PrepareRequest, checkpoint_folder, token_of};
use crate::launch::preflight::{bandwidth, prepare};
use crate::launch::probe::{Knob, Reader, Record, RunSeries};
use crate::launch::scope::Scope;
use crate::launch::supervise::{Supervisor, shim_cleanup};
use crate::sample::nccl;
use crate::sample::nccl::plugin::Choice;
use crate::uplink::link::now_ms;

/// Interval between reads of the files: a step is sent to the collector within 0.1 s.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// Interval for writing series with ages and for checking the shim.
const TICK: Duration = Duration::from_secs(1);
/// Interval between checks of log sizes. In this time a rank writes at most a few of the gigabytes that it may use.
const BOUND_LOGS: Duration = Duration::from_secs(5);
/// Time limit for a new shim to take its lock.
const SHIM_STARTS_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for listing the checkpoint folder before the first start. A list that takes longer proves nothing.
const LIST_WITHIN: Duration = Duration::from_secs(15);

/// Maximum number of answers of one rank to one live change: that it applied the change or cannot, and the same for the previous value.
const LIVE_ANSWERS_MAX: usize = 4;

/// Follows one attempt to its end.
pub(in crate::launch::supervise) struct Follower {
    attempt: Arc<Attempt>,
    supervisor: Arc<Supervisor>,
    commands: mpsc::Receiver<NodeCommand>,
    /// The port lease, held until the start.
    lease: Option<Lease>,
    shim: Option<Child>,
    shim_since: Option<Instant>,
    reader: Reader,
    series: RunSeries,
    positions: Positions,
    usage: RankUsage,
    sockets: RankSockets,
    facts: RankFacts,
    /// `None` until the attempt has started.
    nccl: Option<nccl::Watch>,
    /// `None` until there is something to watch.
    checkpoints: Option<checkpoint::Watch>,
    /// Sizes of the report files when `ended` was computed.
    reports_seen: Option<(u64, u64)>,
    ended: bool,
    /// When the log sizes were last checked.
    bounded: Instant,
}

impl Follower {
    pub(in crate::launch::supervise) fn new(
        attempt: Arc<Attempt>,
        supervisor: Arc<Supervisor>,
        commands: mpsc::Receiver<NodeCommand>,
    ) -> Self {
        let reader = Reader::open(&attempt.folder);
        let (run, samples) = (attempt.run.clone(), supervisor.samples.clone());
        let series = RunSeries::new(run, attempt.number, samples, reader.is_at_start());
        let positions = Positions::new(attempt.run.clone());
        let facts = RankFacts::open(&attempt.folder, &attempt.entries());
        let usage = RankUsage::new(&supervisor.setting.root, &attempt.run);
        let sockets = RankSockets::new(&supervisor.setting.root, &attempt.run);
        Self {
            attempt,
            supervisor,
            commands,
            lease: None,
            shim: None,
            shim_since: None,
            reader,
            series,
            positions,
            usage,
            sockets,
            facts,
            nccl: None,
            checkpoints: None,
            reports_seen: None,
            ended: false,
            bounded: Instant::now(),
        }
    }

    pub(in crate::launch::supervise) async fn follow(mut self) {
        self.resume_unfinished().await;
        let mut interval = tokio::time::interval(READ_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut ticked = Instant::now();
        loop {
            tokio::select! {
                Some(command) = self.commands.recv() => self.carry_out(command).await,
                _ = interval.tick() => {
                    self.take_records().await;
                    self.positions.tick(&self.attempt.folder, now_ms(), &self.supervisor.samples);
                }
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick().await;
            }
            if self.has_ended() {
                break;
            }
        }
        self.close().await;
    }

    /// Continues what a previous agent began and did not finish.
    async fn resume_unfinished(&mut self) {
        let folder = self.attempt.folder.clone();
        if self.has_ended() || folder.shim_lives() {
            return;
        }
        if folder.has(files::STOP) {
            return self.stop().await;
        }
        if folder.has(files::START) {
            // If a shim has run before, `tick` detects that it has died.
            if let Ok(start) = folder.read::<Start>(files::START) {
                self.start(&start).await;
            }
            return;
        }
        if let Ok(spec) = folder.read::<Spec>(files::PREPARE) {
            self.prepare(&spec).await;
        }
        let answered = self
            .attempt
            .entries()
            .iter()
            .any(|entry| matches!(entry.report, NodeReport::Looked { .. }));
        if !answered && let Ok(path) = folder.read::<String>(files::LOOK) {
            self.look_for(path).await;
        }
        if let Ok(request) = folder.read::<Measure>(files::MEASURE) {
            self.measure(&request).await;
        }
    }

    async fn carry_out(&mut self, command: NodeCommand) {
        match command {
            NodeCommand::Prepare { spec, .. } => self.prepare(&spec).await,
            NodeCommand::LookFor { path } => self.look_for(path).await,
            NodeCommand::Measure(request) => self.measure(&request).await,
            NodeCommand::Start(start) => self.start(&start).await,
            NodeCommand::Stop { .. } => self.stop().await,
            // The ranks read these orders themselves.
            NodeCommand::StopAfter { .. } | NodeCommand::TurnLive { .. } => {}
            // The checkpoint watch reads the order from the folder.
            NodeCommand::Remove(_) | NodeCommand::Checkpoints(_) => {}
        }
    }

    /// Runs once, although the command may be both in the folder and in the queue.
    async fn prepare(&mut self, spec: &Spec) {
        let answers = |entry: &Entry| matches!(entry.report, NodeReport::Prepared(_));
        if self.has_ended() || self.attempt.entries().iter().any(answers) {
            return;
        }
        // The collector sends commands only when the GPUs are known. But an agent that continues the preparation of a previous one may be
        // faster.
        tokio::select! {
            () = stopped(&self.attempt.folder) => return,
            () = self.supervisor.gpus_known() => {}
        }
        let node = match self.supervisor.node_context() {
            Ok(node) => node,
            Err(error) => {
                let message = explained(&error);
                return self.attempt.report(NodeReport::PrepareFailed { message }).await;
            }
        };
        let folder = self.attempt.folder.clone();
        let request = PrepareRequest {
            folder: folder.path().to_owned(),
            ..folder.read(files::PREPARE_REQUEST).unwrap_or_default()
        };
        let report = tokio::select! {
            // The stop in the queue reports the end.
            () = stopped(&folder) => return,
            prepared = prepare(spec, &request, &node) => match prepared {
                Ok((prepared, lease)) => {
                    self.lease = Some(lease);
                    NodeReport::Prepared(prepared)
                }
                Err(error) => NodeReport::PrepareFailed { message: explained(&error) },
            },
        };
        self.attempt.report(report).await;
    }

    async fn look_for(&mut self, path: String) {
        let seen = is_seen(path).await;
        self.attempt.report(NodeReport::Looked { seen }).await;
    }

    /// Runs once per round, although the command may be both in the folder and in the queue.
    async fn measure(&mut self, request: &Measure) {
        let folder = self.attempt.folder.clone();
        let answers = |entry: &Entry| matches!(&entry.report, NodeReport::Measured(measured) if measured.round == request.round);
        if self.has_ended() || self.attempt.entries().iter().any(answers) {
            return;
        }
        let measured = tokio::select! {
            // The stop in the queue reports the end.
            () = stopped(&folder) => return,
            measured = bandwidth::measure(request, &mut self.lease) => measured,
        };
        self.attempt.report(NodeReport::Measured(measured)).await;
        let _gone = folder.remove(files::MEASURE);
    }

    /// Removes the file that was written for the other nodes to find.
    fn clear_token(&self) {
        let folder = &self.attempt.folder;
        if let (Ok(spec), Ok(request)) = (
            folder.read::<Spec>(files::PREPARE),
            folder.read::<PrepareRequest>(files::PREPARE_REQUEST),
        ) && let Some(token) = token_of(&spec, &request)
        {
            remove_token(token);
        }
    }

    async fn start(&mut self, start: &Start) {
        self.clear_token();
        if self.attempt.folder.has(files::STOP) || self.has_ended() || self.has_run() {
            return;
        }
        self.list_checkpoint_folder(start).await;
        if self.attempt.folder.has(files::STOP) {
            return;
        }
        // torchrun binds the port itself.
        self.lease = None;
        let supervisor = self.supervisor.clone();
        if let Err(message) = self.start_shim(start, supervisor.scope().await) {
            self.attempt.report(NodeReport::StartFailed { message }).await;
        }
    }

    /// Lists the checkpoint folder before the run's ranks start on this node for the first time: the ranks did not write what is in it now.
    async fn list_checkpoint_folder(&self, start: &Start) {
        let place = records::RecordsFolder::of(&self.attempt.run, &self.attempt.folder);
        let Some(folder) = checkpoint_folder(&start.spec).filter(|_| !place.has_first_start()) else {
            return;
        };
        let (listed, answer) = oneshot::channel();
        let (of, by) = (folder.clone(), start.clone());
        // A separate thread: if it hangs at a dead file server, it must not delay the end of the agent.
        std::thread::spawn(move || {
            let _too_late = listed.send(records::list_before_start(&of, &by));
        });
        let listed = match tokio::time::timeout(LIST_WITHIN, answer).await {
            Ok(Ok(listed)) => listed,
            _ => FolderListing::none(&folder, start),
        };
        if let Err(error) = listed.note(&place) {
            tracing::warn!(run = %self.attempt.run, %error, "the contents of the run's checkpoint folder before its start cannot be stored");
        }
    }

    /// Returns true if a shim was started and has started processes itself, or still may.
    fn has_run(&self) -> bool {
        let folder = &self.attempt.folder;
        let has_reports =
            || read_from(&folder.file(files::SHIM_REPORTS), 0).is_ok_and(|(reports, _)| !reports.is_empty());
        self.shim.is_some() || folder.has(files::OWNER) || has_reports()
    }

    fn start_shim(&mut self, start: &Start, scope: Option<&Scope>) -> Result<(), String> {
        let node = self
            .supervisor
            .node_context()
            .map_err(|error| explained(&error))?;
        let folder = &self.attempt.folder;
        let secrets = Secrets::of(folder);
        if let Some(name) = start.spec.secrets.keys().find(|name| !secrets.has(name)) {
            return Err(format!(
                "the value of the secret {name} is no longer kept; submit the run again with --secret {name}"
            ));
        }
        let text = |path: &std::path::Path| path.display().to_string();
        let python = self
            .attempt
            .entries()
            .into_iter()
            .find_map(|entry| match entry.report {
                NodeReport::Prepared(prepared) => Some(prepared.python),
                _ => None,
            });
        let plugin = Choice::for_run(&self.attempt.run, start, &self.supervisor.setting);
        let start = &Start {
            spec: placed(&start.spec, folder),
            ..start.clone()
        };
        let plugin_file = match &plugin {
            Choice::Ours(path) => Some(path.as_path()),
            _ => None,
        };
        let meeting = start.spec.kineto.then(|| kineto::prepare(folder)).transpose()?;
        let needs = ContainerNeeds {
            resume_from: start.resume_from.as_deref(),
            plugin: plugin_file,
            kineto: meeting.as_deref(),
        };
        let paths = Paths {
            python: python.ok_or("the start command came without a successful preparation")?,
            companions: text(&node.companions),
            folder: text(folder.path()),
            log_dir: text(&folder.file(files::RANKS)),
            probe_socket: text(&folder.file(files::PROBE_SOCKET)),
            nccl_plugin: plugin_file.map(text),
            kineto: meeting.as_deref().map(text),
            container: container_place(start, folder, &node, needs)?,
        };
        let plan = nccl::Plan::make(start, &plugin);
        let failed = |error: std::io::Error| explained(&error);
        folder.write_json(files::NCCL, &plan).map_err(failed)?;
        let setting = &self.supervisor.setting;
        let launch = command_line::launch(
            &AttemptId::new(self.attempt.run.clone(), self.attempt.number),
            &setting.node,
            start,
            &paths,
        );
        folder.write_json(files::LAUNCH, &launch).map_err(failed)?;
        let log = std::fs::File::create(folder.file(files::SHIM_LOG)).map_err(failed)?;
        let mut command = setting.shim.clone();
        command.push(folder.path().into());
        if let Some(scope) = scope {
            let name = format!("{}.{}", self.attempt.run, self.attempt.number);
            command = scope.around(&name, command);
        }
        let (program, arguments) = command.split_first().ok_or("no program to start shims with")?;
        let shim = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(OwnedFd::from(log))
            .spawn()
            .map_err(|error| format!("{program:?} cannot be started: {error}"))?;
        self.shim = Some(shim);
        self.shim_since = Some(Instant::now());
        Ok(())
    }

    /// Ends an attempt without a shim. A shim reads the stop file itself.
    async fn stop(&mut self) {
        self.lease = None;
        self.clear_token();
        // The lock is held during the report: a shim that a previous agent has just started then comes too late, and sees the end.
        let folder = self.attempt.folder.clone();
        let Some(_held) = folder.lock().ok().flatten().filter(|_| self.shim.is_none()) else {
            return;
        };
        if !self.has_ended() && !folder.has(files::SHIM_REPORTS) {
            let end = NodeEnd {
                cause: EndCause::NeverStarted,
                ..NodeEnd::default()
            };
            self.attempt.report(NodeReport::Ended(end)).await;
        }
    }

    async fn take_records(&mut self) {
        match self.reader.read() {
            Ok(records) => self.note_records(records).await,
            Err(error) => {
                tracing::warn!(run = %self.attempt.run, %error, "the probe's records cannot be read")
            }
        }
    }

    async fn note_records(&mut self, records: Vec<Record>) {
        let inventory = self.supervisor.inventory.borrow().clone();
        for record in records {
            if let Some(report) = self.facts.take(&record) {
                self.attempt.report(report).await;
            }
            match &record {
                Record::Checkpoint(saving) => self.checkpoints().note(saving),
                Record::Step(step) => self.sockets.note_step(step.step_s, step.sync_s),
                Record::Knob(knob) => self.report_knob(knob).await,
                _ => {}
            }
            self.series.take(record, &inventory);
        }
    }

    /// Reports the result of a knob, once per knob and result: the other ranks send the same, and repeat it to every new agent. For a live
    /// change, each rank's answer is reported.
    async fn report_knob(&mut self, knob: &Knob) {
        let answer = KnobAnswer {
            knob: knob.name.clone(),
            value: knob.value.clone(),
            applied: knob.state == "applied",
            detail: knob.detail.clone(),
            rank: Rank(knob.rank),
            live: knob.live,
        };
        let answers: Vec<KnobAnswer> = self
            .attempt
            .entries()
            .into_iter()
            .filter_map(|entry| match entry.report {
                NodeReport::KnobAnswered(answer) => Some(answer),
                _ => None,
            })
            .collect();
        let same = |earlier: &&KnobAnswer| {
            (&earlier.knob, earlier.applied, &earlier.detail)
                == (&answer.knob, answer.applied, &answer.detail)
        };
        let known = match answer.live {
            None => {
                let mut first = answers.iter().filter(|earlier| earlier.live.is_none());
                first.clone().count() >= ANSWERS_MAX || first.any(|earlier| same(&earlier))
            }
            // A rejected change is reverted under its own number, so a rank may answer twice.
            Some(_) => {
                let of_rank =
                    |earlier: &&KnobAnswer| (earlier.rank, earlier.live) == (answer.rank, answer.live);
                let mut before = answers.iter().filter(of_rank);
                before.clone().count() >= LIVE_ANSWERS_MAX || before.any(|earlier| same(&earlier))
            }
        };
        if !known {
            self.attempt.report(NodeReport::KnobAnswered(answer)).await;
        }
    }

    /// Reports ranks without a probe.
    async fn report_silent_ranks(&mut self, ended: bool) {
        let attempt = self.attempt.clone();
        for report in self.facts.silent(now_ms(), ended, || attempt.entries()) {
            attempt.report(report).await;
        }
    }

    fn checkpoints(&mut self) -> &mut checkpoint::Watch {
        let (attempt, supervisor) = (&self.attempt, &self.supervisor);
        self.checkpoints.get_or_insert_with(|| {
            checkpoint::Watch::new(
                attempt,
                supervisor.setting.node.as_str(),
                supervisor.samples.clone(),
            )
        })
    }

    /// Runs once there is something to watch: ranks that may save, or an order to remove checkpoints.
    async fn tick_checkpoints(&mut self) {
        let folder = &self.attempt.folder;
        let ordered = folder.has(files::REMOVAL);
        if !folder.has(files::LAUNCH) && !ordered {
            return;
        }
        if ordered && !folder.has(files::PREPARE) && !folder.has(files::START) {
            // Everything else was removed before: there are no ranks to wait for.
            let end = NodeEnd {
                cause: EndCause::NeverStarted,
                ..NodeEnd::default()
            };
            return self.attempt.report(NodeReport::Ended(end)).await;
        }
        let (attempt, supervisor) = (self.attempt.clone(), self.supervisor.clone());
        self.checkpoints().tick(&attempt, || supervisor.resumed_from());
    }

    /// Reads the checkpoints a last time after the last write of the ranks. Then the follower ends.
    async fn finish_checkpoints(&mut self) {
        let attempt = self.attempt.clone();
        loop {
            let in_use = self.supervisor.resumed_from();
            let something = attempt.folder.has(files::LAUNCH) || attempt.folder.has(files::REMOVAL);
            if something {
                let watch = self.checkpoints();
                if !watch.finish(&attempt, &in_use).await {
                    watch.drop_order(&attempt);
                }
                // Otherwise the result of an order would be lost.
                while !watch.settle(&attempt) && attempt.folder.path().is_dir() {
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
            if attempt.release_if_idle() {
                return;
            }
        }
    }

    async fn tick(&mut self) {
        self.tick_checkpoints().await;
        if self.attempt.folder.has(files::LAUNCH) {
            self.series.tick(now_ms());
            self.usage.tick(now_ms(), &self.supervisor.samples);
            self.sockets
                .tick(self.usage.pids(), now_ms(), &self.supervisor.samples);
            let probe_sends = self.series.hears_nccl();
            let watch = self.nccl.get_or_insert_with(|| {
                let plan = self.attempt.folder.read(files::NCCL).unwrap_or_default();
                nccl::Watch::new(&self.attempt.run, self.supervisor.samples.clone(), plan)
            });
            watch.tick(probe_sends, now_ms()).await;
            self.report_silent_ranks(false).await;
        }
        if self.bounded.elapsed() >= BOUND_LOGS {
            self.bounded = Instant::now();
            output::bound(&self.attempt.folder);
        }
        if let Err(error) = self.reader.save(&self.supervisor.samples) {
            tracing::warn!(run = %self.attempt.run, %error, "the read position in the probe's records cannot be stored");
        }
        if self.shim_is_gone() {
            shim_cleanup::clean_up(&self.attempt, &self.supervisor.setting.node).await;
        }
    }

    /// Returns true if a shim was started, is not alive, and has not reported an end.
    fn shim_is_gone(&mut self) -> bool {
        if !self.attempt.folder.has(files::LAUNCH) {
            return false;
        }
        let child_lives = self
            .shim
            .as_mut()
            .is_some_and(|shim| matches!(shim.try_wait(), Ok(None)));
        let starting = child_lives
            && self
                .shim_since
                .is_some_and(|since| since.elapsed() < SHIM_STARTS_WITHIN);
        // The order matters: a shim writes its end report before it releases the lock.
        !starting && !self.attempt.folder.shim_lives() && !child_lives && !self.has_ended()
    }

    /// Called ten times per second: reads the reports only if there are new ones.
    fn has_ended(&mut self) -> bool {
        let size =
            |name: FileName| std::fs::metadata(self.attempt.folder.file(name)).map_or(0, |meta| meta.len());
        let sizes = (size(files::AGENT_REPORTS), size(files::SHIM_REPORTS));
        if self.reports_seen != Some(sizes) {
            self.reports_seen = Some(sizes);
            let entries = self.attempt.entries();
            self.usage.note(&entries);
            self.ended = entries.iter().any(|entry| entry.report.is_end());
        }
        self.ended
    }

    /// Reads the remaining records, ends the series and reaps the shim.
    async fn close(mut self) {
        while let Ok(records) = self.reader.read() {
            if records.is_empty() {
                break;
            }
            self.note_records(records).await;
        }
        self.report_silent_ranks(true).await;
        self.finish_checkpoints().await;
        self.series.end(now_ms());
        let _saved_or_over = self.reader.save(&self.supervisor.samples);
        if let Some(mut shim) = self.shim.take() {
            let _reaped = tokio::task::spawn_blocking(move || shim.wait()).await;
        }
        // A stop that arrives later is answered from the stored reports.
        self.commands.close();
    }
}

/// Returns the node's part of the container's settings, or `None` for a run without a container.
fn container_place(
    start: &Start,
    folder: &Folder,
    node: &NodeContext,
    needs: ContainerNeeds<'_>,
) -> Result<Option<Place>, String> {
    if start.spec.container.is_none() {
        return Ok(None);
    }
    let check: StoredContainerCheck = folder
        .read(files::CONTAINER)
        .map_err(|error| format!("the container runtime that preflight found cannot be read: {error}"))?;
    container::place(&start.spec, check, folder, node, needs).map(Some)
}

/// Returns when the attempt is requested to stop.
async fn stopped(folder: &Folder) {
    while !folder.has(files::STOP) {
        tokio::time::sleep(READ_INTERVAL).await;
    }
}

fn explained(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
