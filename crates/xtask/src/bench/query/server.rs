//! One server: fed, merged, and asked every kind of query.

use std::time::Duration;

use anyhow::{Result, bail};

use super::Scale;
use super::answers::{Answered, Answers};
use super::kind::{CLIENTS, Kind};
use crate::bench::peer::{Keep, Peer, Running};
use crate::layout::Layout;
use crate::measure::generator::{self, number};
use crate::measure::process;
use crate::progress::say;

/// The slowest took four minutes for the full history on two quiet cores.
const FEED_LIMIT: Duration = Duration::from_secs(1_800);
/// The slowest kind of the slowest server took a minute.
const ASK_LIMIT: Duration = Duration::from_secs(900);
/// As vmagent sends on two cores: see `bench store`.
const SENDING: [&str; 2] = ["--connections=4", "--samples-per-request=10000"];

/// Feeds and merges it, then asks; what was measured until something failed is kept.
pub(super) fn measure(layout: &Layout, scale: &Scale, peer: Peer, answers: &mut Answers) -> Result<()> {
    let mut server = peer.start(layout, Keep::Month)?;
    feed(layout, scale, &mut server, answers)?;
    let pid = server.server.pid()?;
    process::forget_peak(pid)?;
    for kind in &scale.kinds {
        match ask(layout, scale, &mut server, *kind, answers) {
            Ok(answered) => answers.add(*kind, peer, answered),
            Err(error) => {
                server.server.check()?;
                answers.note(format!("{}, {}: {error:#}", peer.name(), kind.words()));
                say(peer.name(), &format!("{} failed: {error:#}", kind.name()));
            }
        }
    }
    answers.peak(peer, process::peak_mib(pid)?);
    Ok(())
}

fn feed(layout: &Layout, scale: &Scale, server: &mut Running, answers: &mut Answers) -> Result<()> {
    let (pid, fleet) = (server.server.pid()?, scale.fleet);
    say(server.name(), &format!("is fed a history: {}", scale.about()));
    let mut args = scale.history.arguments();
    args.extend(SENDING.map(str::to_owned));
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
    answers: &mut Answers,
) -> Result<Answered> {
    let pid = server.server.pid()?;
    let repeats = kind.repeats(scale.repeats);
    let mut args = scale.history.arguments();
    args.extend([
        format!("--kind={}", kind.name()),
        format!("--repeats={repeats}"),
        format!("--clients={CLIENTS}"),
        format!("--server-pid={pid}"),
    ]);
    args.extend(answers.comparing(kind, server.peer));
    let outcome = generator::run(layout, &mut server.server, scale.fleet, "query", &args, ASK_LIMIT)?;
    let answered = Answered::read(&outcome)?;
    say(
        server.name(),
        &format!("{}: {repeats} answers, {answered}", kind.words()),
    );
    Ok(answered)
}
