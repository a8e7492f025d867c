//! One server: fed, merged, and asked every kind of query in its turn.

use std::time::Duration;

use anyhow::{Result, bail};

use super::answers::{Answered, Answers};
use super::kind::{CLIENTS, Kind};
use super::{ROUNDS, Scale};
use crate::bench::peer::{Keep, Peer, Running};
use crate::layout::Layout;
use crate::measure::generator::{self, CONNECTIONS, REQUEST, number};
use crate::measure::others::Others;
use crate::measure::process;
use crate::progress::say;

/// Prometheus takes five CPU seconds a million samples, on a busy machine several times as long.
const FEED_LIMIT: Duration = Duration::from_secs(1_800);
/// Two thousand answers, each slower than any seen.
const ASK_LIMIT: Duration = Duration::from_secs(900);
/// A machine on which others use less than this part of all cores is quiet.
const QUIET_SHARE: f64 = 0.05;

/// A server with the history, stopped until it is asked.
pub(super) struct Fed {
    server: Running,
    /// The largest part of the machine that others used while it was asked.
    others: f64,
    /// Kinds it gave no figures for.
    failed: Vec<String>,
}

impl Fed {
    /// Starts a server, feeds it, waits until it has merged, and stops it.
    pub(super) fn start(layout: &Layout, scale: &Scale, peer: Peer, answers: &mut Answers) -> Result<Self> {
        let mut server = peer.start(layout, Keep::Month)?;
        feed(layout, scale, &mut server, answers)?;
        process::forget_peak(server.server.pid()?)?;
        server.server.pause()?;
        Ok(Self {
            server,
            others: 0.0,
            failed: Vec::new(),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.server.name()
    }

    /// Lets it run, asks a round of one kind, and stops it again; a kind that failed while the server lived on is noted, and asked no
    /// more.
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
        let others = Others::begin(self.server.server.pid()?);
        match ask(layout, scale, &mut self.server, kind, answers) {
            Ok(answered) => answers.add(kind, self.server.peer, answered),
            Err(error) => {
                self.server.server.check()?;
                let text = format!("{}: {error:#}", kind.words());
                say(self.name(), &text);
                answers.note(format!("{}, {text}", self.name()));
                answers.forget(kind, self.server.peer);
                self.failed.push(kind.name());
            }
        }
        self.others = others.share().unwrap_or(0.0).max(self.others);
        self.server.server.pause()
    }

    /// Takes down what it needed at most; fails when a kind did.
    pub(super) fn end(self, answers: &mut Answers) -> Result<()> {
        answers.peak(self.server.peer, process::peak_mib(self.server.server.pid()?)?);
        if self.others > QUIET_SHARE {
            answers.note(format!(
                "{}: while it was asked, others used up to {:.0} % of the machine: read CPU times, not latencies.",
                self.name(),
                self.others * 100.0
            ));
        }
        if !self.failed.is_empty() {
            bail!("no figures for {}", self.failed.join(", "));
        }
        Ok(())
    }
}

fn feed(layout: &Layout, scale: &Scale, server: &mut Running, answers: &mut Answers) -> Result<()> {
    let (pid, fleet) = (server.server.pid()?, scale.fleet);
    say(server.name(), &format!("is fed a history: {}", scale.about()));
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
        "{}: {:.1} M samples taken in {:.0} s; merge = {merge}; {:.0} MiB resident then.",
        server.name(),
        samples / 1e6,
        number(&fed, "/seconds")?,
        process::resident_mib(pid)?
    );
    say(server.name(), &note);
    answers.note(note);
    Ok(())
}

/// A snapshot, which is what Prometheus has on demand, changes nothing of what it reads: it merges by itself as it is fed.
fn merge(server: &mut Running) -> Result<&'static str> {
    match server.peer {
        Peer::Prometheus => Ok("its own, into blocks of 2 to 18 h; the last hours in its head, as ever"),
        _ => server.merge(),
    }
}

fn ask(
    layout: &Layout,
    scale: &Scale,
    server: &mut Running,
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
    args.extend(answers.round(kind, server.peer));
    let outcome = generator::run(layout, &mut server.server, scale.fleet, "query", &args, ASK_LIMIT)?;
    let answered = Answered::read(&outcome)?;
    say(
        server.name(),
        &format!("{}: {repeats} answers, {answered}", kind.words()),
    );
    Ok(answered)
}
