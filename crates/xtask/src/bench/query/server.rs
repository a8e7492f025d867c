//! One server: fed, merged, and queried with every kind of query in its turn.

use std::time::Duration;

use anyhow::{Result, bail};

use super::answers::{Answered, Answers};
use super::kind::{CLIENTS, Kind};
use super::{ROUNDS, Scale};
use crate::bench::database::{Database, Retention, RunningDatabase};
use crate::layout::Layout;
use crate::measure::background_load::BackgroundLoad;
use crate::measure::generator::{self, CONNECTIONS, REQUEST, number};
use crate::measure::process;
use crate::progress::say;

/// Prometheus takes five CPU seconds per million samples, and several times as long on a busy machine.
const FEED_LIMIT: Duration = Duration::from_secs(1_800);
/// Two thousand answers, each slower than any measured one.
const ASK_LIMIT: Duration = Duration::from_secs(900);
/// A machine is quiet if others use less than this share of all cores.
const QUIET_SHARE: f64 = 0.05;

/// A server with the history, paused until it is queried.
pub(super) struct LoadedServer {
    server: RunningDatabase,
    /// The largest share of the machine that others used while it was queried.
    background_share: f64,
    /// Kinds without results for this server.
    failed: Vec<String>,
}

impl LoadedServer {
    /// Starts a server, feeds it, waits until it has merged, and pauses it.
    pub(super) fn start(
        layout: &Layout,
        scale: &Scale,
        database: Database,
        answers: &mut Answers,
    ) -> Result<Self> {
        let mut server = database.start(layout, Retention::Month)?;
        feed(layout, scale, &mut server, answers)?;
        process::reset_peak(server.server.pid()?)?;
        server.server.pause()?;
        Ok(Self {
            server,
            background_share: 0.0,
            failed: Vec::new(),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.server.name()
    }

    /// Resumes the server, runs a round of one kind, and pauses it again. If a kind fails while the server survives, it is noted and not
    /// run again.
    pub(super) fn ask(
        &mut self,
        layout: &Layout,
        scale: &Scale,
        kind: Kind,
        answers: &mut Answers,
    ) -> Result<()> {
        if self.failed.contains(&kind.name()) {
            return Ok(());
        }
        self.server.server.resume()?;
        let load = BackgroundLoad::begin(self.server.server.pid()?);
        match ask(layout, scale, &mut self.server, kind, answers) {
            Ok(answered) => answers.add(kind, self.server.database, answered),
            Err(error) => {
                self.server.server.check()?;
                let text = format!("{}: {error:#}", kind.words());
                say(self.name(), &text);
                answers.note(format!("{}, {text}", self.name()));
                answers.forget(kind, self.server.database);
                self.failed.push(kind.name());
            }
        }
        self.background_share = load.share().unwrap_or(0.0).max(self.background_share);
        self.server.server.pause()
    }

    /// Records the peak memory. Fails if a kind failed.
    pub(super) fn end(self, answers: &mut Answers) -> Result<()> {
        answers.peak(
            self.server.database,
            process::peak_mib(self.server.server.pid()?)?,
        );
        if self.background_share > QUIET_SHARE {
            answers.note(format!(
                "{}: during its queries, other processes used up to {:.0} % of the machine: compare CPU times, not latencies.",
                self.name(),
                self.background_share * 100.0
            ));
        }
        if !self.failed.is_empty() {
            bail!("no results for {}", self.failed.join(", "));
        }
        Ok(())
    }
}

fn feed(layout: &Layout, scale: &Scale, server: &mut RunningDatabase, answers: &mut Answers) -> Result<()> {
    let (pid, fleet) = (server.server.pid()?, scale.fleet);
    say(server.name(), &format!("loading the history: {}", scale.about()));
    let mut args = scale.history.arguments();
    args.extend([CONNECTIONS, REQUEST].map(str::to_owned));
    args.push(format!("--server-pid={pid}"));
    let fed = generator::run(layout, &mut server.server, fleet, "history", &args, FEED_LIMIT)?;
    let (samples, refused) = (number(&fed, "/samples")?, number(&fed, "/refused")?);
    if refused > 0.0 {
        bail!(
            "{} refused {refused} requests: {}",
            server.name(),
            fed["first_refusal"]
        );
    }
    process::quiet(pid, server.name())?;
    let merge = merge(server)?;
    process::quiet(pid, server.name())?;
    server.server.check()?;
    let note = format!(
        "{}: {:.1} M samples stored in {:.0} s; merge = {merge}; {:.0} MiB resident after it.",
        server.name(),
        samples / 1e6,
        number(&fed, "/seconds")?,
        process::resident_mib(pid)?
    );
    say(server.name(), &note);
    answers.note(note);
    Ok(())
}

/// Merges nothing: a snapshot, Prometheus' only operation on demand, does not change what it reads. It merges by itself while it is fed.
fn merge(server: &mut RunningDatabase) -> Result<&'static str> {
    match server.database {
        Database::Prometheus => Ok("its own, into blocks of 2 to 18 h; the last hours stay in its head"),
        _ => server.merge(),
    }
}

fn ask(
    layout: &Layout,
    scale: &Scale,
    server: &mut RunningDatabase,
    kind: Kind,
    answers: &Answers,
) -> Result<Answered> {
    let pid = server.server.pid()?;
    let repeats = kind.repeats(scale.repeats).div_ceil(ROUNDS);
    let mut args = scale.history.arguments();
    args.extend([
        format!("--kind={}", kind.name()),
        format!("--repeats={repeats}"),
        format!("--clients={CLIENTS}"),
        "--latencies".to_owned(),
        format!("--server-pid={pid}"),
    ]);
    args.extend(answers.round(kind, server.database));
    let outcome = generator::run(layout, &mut server.server, scale.fleet, "query", &args, ASK_LIMIT)?;
    let answered = Answered::read(&outcome)?;
    say(
        server.name(),
        &format!("{}: {repeats} answers, {answered}", kind.words()),
    );
    Ok(answered)
}
