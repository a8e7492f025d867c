//! kill -9 soon after five minutes of samples, without a flush: the time until a query returns every series again, and what is missing
//! then.
//!
//! VictoriaMetrics keeps the last seconds of acknowledged samples only in memory. Killed at once, it would lose them and its start would
//! look faster than it is. So every server gets [`REST`] first.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::Scale;
use crate::bench::database::{self, Database, Retention};
use crate::bench::report::Measured;
use crate::bench::table::Row;
use crate::layout::Layout;
use crate::measure::generator::{self, CONNECTIONS, REQUEST, number, start_ms};
use crate::progress::say;

const FEED_LIMIT: Duration = Duration::from_secs(600);
const VERIFY_LIMIT: Duration = Duration::from_secs(600);
/// Twice VictoriaMetrics' flush interval.
const REST: Duration = Duration::from_secs(10);
/// A metric that every GPU has.
const METRIC: &str = "DCGM_FI_DEV_GPU_TEMP";
/// One minute before the last tick: a server that lost its last seconds still returns all series.
const BEFORE_END_S: i64 = 60;

pub(super) fn measure(layout: &Layout, scale: &Scale) -> Result<Measured> {
    let millions = (scale.fleet.series() * scale.restart_ticks) as f64 / 1e6;
    let mut measured = Measured {
        rows: vec![
            Row::new(format!(
                "kill -9 with {millions:.1} M samples in the head: s to a full answer"
            )),
            Row::new("… acknowledged samples lost"),
        ],
        notes: Vec::new(),
    };
    for database in Database::ALL {
        let (seconds, lost, note) = of(layout, scale, database)?;
        measured.rows[0].values.insert(database, seconds);
        measured.rows[1].values.insert(database, lost);
        measured.notes.extend(note);
    }
    Ok(measured)
}

fn of(layout: &Layout, scale: &Scale, database: Database) -> Result<(f64, f64, Option<String>)> {
    let mut server = database.start(layout, Retention::Default)?;
    let ticks = format!("--ticks={}", scale.restart_ticks);
    let fed = generator::run(
        layout,
        &mut server.server,
        scale.fleet,
        "remote-write",
        &[ticks.clone(), CONNECTIONS.to_owned(), REQUEST.to_owned()],
        FEED_LIMIT,
    )?;
    thread::sleep(REST);
    let start_ms = start_ms(&fed)?;
    let at_s = start_ms / 1_000 + scale.restart_ticks as i64 - BEFORE_END_S;
    let gpus = (scale.fleet.nodes * scale.fleet.gpus) as f64;
    let seconds = server.kill_and_restart(&database::instant(&format!("count({METRIC})"), at_s), gpus)?;
    let args = [ticks, format!("--start-ms={start_ms}")];
    let found = generator::run(
        layout,
        &mut server.server,
        scale.fleet,
        "verify",
        &args,
        VERIFY_LIMIT,
    )?;
    let (lost, changed) = (number(&found, "/lost")?, number(&found, "/changed")?);
    say(
        server.name(),
        &format!("answered after {seconds:.2} s; {lost} samples lost, {changed} changed"),
    );
    let note = (changed > 0.0).then(|| {
        format!(
            "{}: {changed} samples have another value than was sent; the first: {}",
            database.name(),
            found["first"]
        )
    });
    Ok((seconds, lost, note))
}
