//! Watches the free disk space. When it becomes too low and when it recovers, an event is logged and the rules see it in a series. The
//! store itself decides when it refuses samples.

use std::sync::Arc;
use std::time::Duration;

use domain::api::store::{Blocked, DiskSpace};
use domain::bytes::DisplayBytes;
use domain::event::{Event, Severity};
use domain::time::TimestampMs;
use store::SeriesStore;

use crate::clock;
use crate::event_log::EventLog;
use crate::own_series::OwnSeries;

/// How often the disk is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Watches the disk until the collector stops.
pub(crate) async fn watch(series: SeriesStore, own: Arc<OwnSeries>, events: EventLog) {
    let mut ticks = tokio::time::interval(CHECK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut before = None;
    loop {
        ticks.tick().await;
        let (now_ms, space) = (clock::now_ms(), series.disk_space());
        own.note(now_ms, space);
        if let Some(event) = transition(before, &space, now_ms) {
            events.append(event).await;
        }
        before = space.blocked;
    }
}

/// Returns the event to log: one when the store begins to refuse samples, one when it accepts them again.
fn transition(before: Option<Blocked>, space: &DiskSpace, at_ms: TimestampMs) -> Option<Event> {
    let (severity, kind, message) = match (before, space.blocked) {
        (None, Some(_)) => (Severity::Critical, "storage_full", blocked(space)),
        (Some(_), None) => {
            let free = DisplayBytes(space.free_bytes);
            let message = format!("the collector takes samples again: {free} are free on its disk");
            (Severity::Info, "storage_ok", message)
        }
        _ => return None,
    };
    Some(Event::new(at_ms, severity, kind, message))
}

/// Describes the state in a sentence, for people and for `/-/ready`.
pub(crate) fn blocked(space: &DiskSpace) -> String {
    let (free, floor) = (DisplayBytes(space.free_bytes), DisplayBytes(space.floor_bytes));
    let why = match space.blocked {
        Some(Blocked::WriteFailed) => format!("a write failed for lack of space, although {free} are free"),
        _ => format!("{free} are free on the disk, {floor} are needed"),
    };
    format!(
        "the collector accepts no samples: {why}; agents keep their samples, queries and runs continue. Free some \
         space, shorten --retention, or lower --min-free-space"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_logged_once() {
        let space = |blocked| DiskSpace {
            blocked,
            ..DiskSpace::default()
        };
        let full = Some(Blocked::DiskFull);
        let kind = |before, now| transition(before, &space(now), 0).map(|event| event.kind);
        assert_eq!(kind(None, full).as_deref(), Some("storage_full"));
        assert_eq!(kind(full, full), None);
        assert_eq!(kind(full, Some(Blocked::WriteFailed)), None);
        assert_eq!(kind(full, None).as_deref(), Some("storage_ok"));
        assert_eq!(kind(None, None), None);
    }
}
