//! The watches of one tab, and when each is due. Pure: time arrives as a value.

use std::collections::{BTreeMap, BTreeSet};

use domain::api::frames::Encoder;
use domain::api::runs::LogSource;
use domain::api::stream::WATCHES_MAX;
use domain::ident::RunId;
use domain::time::TimestampMs;
use query::{LOOKBACK_DEFAULT_MS, Params, STEPS_MAX};

use super::coalesce::WantedExtremes;

/// How long samples of a step may take to arrive before the step is evaluated. Agents send every second.
pub(super) const SETTLE_MS: i64 = 300;
/// How often a range is evaluated from its start again, so that late samples appear, for example of a node that was disconnected.
const REFRESH_MS: i64 = 60_000;
/// Minimum time between the first two evaluations of a whole range that fails. It doubles with each further failure, up to [`REFRESH_MS`],
/// because such a query is often expensive.
const RETRY_MS: i64 = 5_000;
/// Minimum time between two views of a run, in milliseconds: at most four per second. During a start each rank changes the view several
/// times, and the view of a large run is hundreds of kilobytes.
const VIEW_EVERY_MS: i64 = 250;
/// How old the values of a range may be. Slow readers report once per minute. A line whose series stopped, for example that of a lost node,
/// would otherwise be drawn on for five minutes.
const LOOKBACK_MS: i64 = 90_000;
/// Steps of a range within which a value is shown at least once, if they are longer than [`LOOKBACK_MS`].
const LOOKBACK_STEPS: i64 = 2;
/// Minimum resolution of a query, in milliseconds.
pub(super) const STEP_MS_MIN: i64 = 1_000;
/// Maximum step, length and end of a range, about 70,000 years, so that sums of times never overflow.
const TIME_MS_MAX: i64 = i64::MAX / 4_096;

/// The watches of a tab, by the ids that the tab chose.
#[derive(Default)]
pub(super) struct Watches {
    by_id: BTreeMap<u32, Watch>,
    serial: u64,
}

/// One watch. `serial` distinguishes it from an earlier watch with the same id.
pub(super) struct Watch {
    pub(super) serial: u64,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Query(QueryWatch),
    Log {
        run: RunId,
        source: LogSource,
        offset: u64,
    },
    Run(RunWatch),
}

/// The view of a run, sent when the run has changed.
pub(super) struct RunWatch {
    pub(super) run: RunId,
    /// When the view was last sent.
    sent_ms: Option<TimestampMs>,
    /// The run has changed since.
    is_due: bool,
}

/// A query that is evaluated periodically.
pub(super) struct QueryWatch {
    pub(super) text: String,
    /// Length of the range; `None` for an instant query.
    range_ms: Option<i64>,
    step_ms: i64,
    /// Whether the tab requested the extremes within each step.
    extremes: bool,
    /// Whether the last frame with `reset` had them. The frames after it have them only then: a chart that shows spikes only in its newest
    /// part would be misleading.
    has_extremes: bool,
    /// End of a past range; `None` for a range that moves with the clock.
    end_ms: Option<TimestampMs>,
    /// The last step that was evaluated, with or without success.
    evaluated_ms: Option<TimestampMs>,
    /// The last step that was sent. `None` if the next frame must have the whole range.
    sent_ms: Option<TimestampMs>,
    /// When the last evaluation of the whole range began.
    refreshed_ms: TimestampMs,
    /// The failure of that evaluation.
    failure: Option<Failure>,
    busy: bool,
    /// What a tab with binary frames knows of the series.
    pub(super) encoder: Encoder,
}

/// Why the whole range could not be sent.
struct Failure {
    message: String,
    /// Number of failures since the whole range was last sent.
    count: u32,
}

/// A query to evaluate now.
pub(super) struct Due {
    pub(super) id: u32,
    pub(super) serial: u64,
    pub(super) text: String,
    pub(super) when: Params,
    pub(super) extremes: WantedExtremes,
    /// Whether the result replaces what was sent.
    pub(super) reset: bool,
}

impl Watches {
    /// Adds a watch, or replaces the one with this id.
    pub(super) fn add(&mut self, id: u32, mut kind: Kind) -> Result<(), String> {
        if self.by_id.len() >= WATCHES_MAX && !self.by_id.contains_key(&id) {
            return Err(format!(
                "a tab may have at most {WATCHES_MAX} watches; remove some first"
            ));
        }
        if let (Kind::Run(new), Some(Kind::Run(old))) =
            (&mut kind, self.by_id.get(&id).map(|watch| &watch.kind))
            && new.run == old.run
        {
            // A repeated request does not get views more often.
            new.sent_ms = old.sent_ms;
        }
        self.serial += 1;
        self.by_id.insert(
            id,
            Watch {
                serial: self.serial,
                kind,
            },
        );
        Ok(())
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.by_id.remove(&id);
    }

    /// Returns a watch, unless it was replaced meanwhile.
    pub(super) fn same(&mut self, id: u32, serial: u64) -> Option<&mut Watch> {
        self.by_id.get_mut(&id).filter(|watch| watch.serial == serial)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Watch)> {
        self.by_id.iter_mut().map(|(id, watch)| (*id, watch))
    }

    /// Records that a run has changed.
    pub(super) fn run_changed(&mut self, run: &RunId) {
        for (_, watch) in self.iter_mut() {
            if let Kind::Run(watched) = &mut watch.kind
                && watched.run == *run
            {
                watched.is_due = true;
            }
        }
    }

    /// Records that any run may have changed.
    pub(super) fn all_runs_changed(&mut self) {
        for (_, watch) in self.iter_mut() {
            if let Kind::Run(watched) = &mut watch.kind {
                watched.is_due = true;
            }
        }
    }

    /// Returns the runs whose view must be sent now, with the ids of the watches.
    pub(super) fn due_views(&mut self, now_ms: TimestampMs) -> Vec<(u32, RunId)> {
        let due = |(id, watch): (u32, &mut Watch)| {
            let Kind::Run(watched) = &mut watch.kind else {
                return None;
            };
            watched.begin(now_ms).then(|| (id, watched.run.clone()))
        };
        self.iter_mut().filter_map(due).collect()
    }

    /// Returns the runs whose logs are watched.
    pub(super) fn runs_with_logs(&self) -> BTreeSet<RunId> {
        let kinds = self.by_id.values().map(|watch| &watch.kind);
        let runs = kinds.filter_map(|kind| match kind {
            Kind::Log { run, .. } => Some(run.clone()),
            Kind::Run(_) | Kind::Query(_) => None,
        });
        runs.collect()
    }

    /// Returns the queries to evaluate now.
    pub(super) fn due(&mut self, now_ms: TimestampMs) -> Vec<Due> {
        let due = |(id, watch): (u32, &mut Watch)| {
            let Kind::Query(query) = &mut watch.kind else {
                return None;
            };
            let (when, reset) = query.begin(now_ms)?;
            Some(Due {
                id,
                serial: watch.serial,
                text: query.text.clone(),
                when,
                extremes: query.wanted_extremes(reset),
                reset,
            })
        };
        self.iter_mut().filter_map(due).collect()
    }

    /// Returns the messages of the failed queries that are evaluated again later, with the ids of the watches. They are repeated with each
    /// step, because a tab that gets nothing assumes that the connection is lost.
    pub(super) fn failures_to_repeat(&mut self, now_ms: TimestampMs) -> Vec<(u32, String)> {
        let failed = |(id, watch): (u32, &mut Watch)| {
            let Kind::Query(query) = &mut watch.kind else {
                return None;
            };
            Some((id, query.failure_to_repeat(now_ms)?))
        };
        self.iter_mut().filter_map(failed).collect()
    }
}

impl RunWatch {
    /// Creates a watch, which is due at once.
    pub(super) fn new(run: RunId) -> Self {
        Self {
            run,
            sent_ms: None,
            is_due: true,
        }
    }

    /// Returns true if the view must be sent now, and records it as sent.
    fn begin(&mut self, now_ms: TimestampMs) -> bool {
        // If the clock was set back, the view is due, so that it is not delayed for long.
        let waits = self
            .sent_ms
            .is_some_and(|sent_ms| (0..VIEW_EVERY_MS).contains(&(now_ms - sent_ms)));
        if !self.is_due || waits {
            return false;
        }
        (self.is_due, self.sent_ms) = (false, Some(now_ms));
        true
    }
}

impl QueryWatch {
    pub(super) fn instant(text: String) -> Self {
        Self {
            text,
            range_ms: None,
            step_ms: STEP_MS_MIN,
            extremes: false,
            has_extremes: false,
            end_ms: None,
            evaluated_ms: None,
            sent_ms: None,
            refreshed_ms: 0,
            failure: None,
            busy: false,
            encoder: Encoder::default(),
        }
    }

    pub(super) fn range(
        text: String,
        range_ms: i64,
        step_ms: i64,
        extremes: bool,
        end_ms: Option<TimestampMs>,
    ) -> Result<Self, String> {
        if step_ms < STEP_MS_MIN {
            return Err(format!("the step must be at least {STEP_MS_MIN} ms"));
        }
        if range_ms <= 0 || range_ms / step_ms >= STEPS_MAX {
            return Err(format!("the range must have 1 to {STEPS_MAX} steps"));
        }
        if range_ms.max(step_ms) > TIME_MS_MAX
            || end_ms.is_some_and(|end_ms| end_ms.unsigned_abs() > TIME_MS_MAX as u64)
        {
            return Err("the step, the range or its end is out of range".to_owned());
        }
        Ok(Self {
            range_ms: Some(range_ms),
            step_ms,
            // A step of a second has one sample.
            extremes: extremes && step_ms > STEP_MS_MIN,
            end_ms,
            ..Self::instant(text)
        })
    }

    /// Returns the next evaluation, if one is due and none is in progress. Times are multiples of the step, so that tabs use the same
    /// times. Those of a past range begin with its start.
    fn begin(&mut self, now_ms: TimestampMs) -> Option<(Params, bool)> {
        if let (Some(end_ms), Some(range_ms)) = (self.end_ms, self.range_ms) {
            if self.busy || self.evaluated_ms.is_some() {
                return None;
            }
            self.busy = true;
            return Some((self.params(end_ms - range_ms, end_ms), true));
        }
        let last_ms = self.due_step(now_ms)?;
        let Some(range_ms) = self.range_ms else {
            self.busy = true;
            return Some((Params::instant(last_ms), true));
        };
        let first_ms = last_ms - range_ms.div_euclid(self.step_ms) * self.step_ms;
        // A tab that slept longer than its range starts from the beginning.
        self.sent_ms = self.sent_ms.filter(|sent_ms| sent_ms + self.step_ms >= first_ms);
        if self.is_waiting(now_ms) {
            return None;
        }
        let is_old = now_ms - self.refreshed_ms >= REFRESH_MS;
        // A step that could not be evaluated is sent with the next one.
        let next_ms = self
            .sent_ms
            .filter(|_| !is_old)
            .map(|sent_ms| sent_ms + self.step_ms);
        let reset = next_ms.is_none();
        if reset {
            self.refreshed_ms = now_ms;
        }
        self.busy = true;
        Some((self.params(next_ms.unwrap_or(first_ms), last_ms), reset))
    }

    /// Returns the newest step whose samples have arrived, unless an evaluation is in progress, or this step was evaluated. A whole range
    /// that has failed does not wait for the next step, which may be an hour away.
    fn due_step(&self, now_ms: TimestampMs) -> Option<TimestampMs> {
        let last_ms = (now_ms - SETTLE_MS).div_euclid(self.step_ms) * self.step_ms;
        let is_evaluated = self
            .evaluated_ms
            .is_some_and(|evaluated_ms| evaluated_ms >= last_ms);
        let is_retry = self.range_ms.is_some() && self.needs_retry() && !self.is_waiting(now_ms);
        (!self.busy && (!is_evaluated || is_retry)).then_some(last_ms)
    }

    /// Returns true if the whole range must be sent, but could not be evaluated. Frames of single steps would continue nothing.
    fn needs_retry(&self) -> bool {
        self.failure.is_some() && self.sent_ms.is_none()
    }

    /// Returns true if the whole range is evaluated again, but not yet.
    fn is_waiting(&self, now_ms: TimestampMs) -> bool {
        let Some(Failure { count, .. }) = &self.failure else {
            return false;
        };
        let doublings = count.saturating_sub(1).min(8);
        let pause_ms = (RETRY_MS << doublings).min(REFRESH_MS);
        // If the clock was set back, it does not wait, so that it is not delayed for long.
        self.needs_retry() && (0..pause_ms).contains(&(now_ms - self.refreshed_ms))
    }

    /// Returns the message of a query that waits after a failure, once per step.
    fn failure_to_repeat(&mut self, now_ms: TimestampMs) -> Option<String> {
        if !self.is_waiting(now_ms) {
            return None;
        }
        self.evaluated_ms = Some(self.due_step(now_ms)?);
        self.failure.as_ref().map(|failure| failure.message.clone())
    }

    /// Returns the parameters of a range.
    fn params(&self, start_ms: TimestampMs, end_ms: TimestampMs) -> Params {
        let steps_ms = self.step_ms.saturating_mul(LOOKBACK_STEPS);
        Params {
            lookback_ms: steps_ms.clamp(LOOKBACK_MS, LOOKBACK_DEFAULT_MS),
            ..Params::range(start_ms, end_ms, self.step_ms)
        }
    }

    /// Returns whether the next frame should have extremes.
    fn wanted_extremes(&self, reset: bool) -> WantedExtremes {
        match (self.extremes, reset, self.has_extremes) {
            (true, true, _) => WantedExtremes::IfAffordable,
            (true, false, true) => WantedExtremes::Continued,
            (true, false, false) | (false, ..) => WantedExtremes::No,
        }
    }

    /// Records that the result of an evaluation is sent. One with `reset` decides whether the frames after it have extremes.
    pub(super) fn sent(&mut self, when: &Params, reset: bool, has_extremes: bool) {
        self.finished(when);
        self.sent_ms = Some(when.end_ms);
        if reset {
            self.has_extremes = has_extremes;
            self.failure = None;
        }
    }

    /// Records that an evaluation has no result that can be sent.
    pub(super) fn failed(&mut self, when: &Params, reset: bool, message: &str) {
        self.finished(when);
        if reset {
            let before = self.failure.as_ref().map_or(0, |failure| failure.count);
            self.failure = Some(Failure {
                message: message.to_owned(),
                count: before.saturating_add(1),
            });
        }
    }

    fn finished(&mut self, when: &Params) {
        self.busy = false;
        self.evaluated_ms = Some(when.end_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: i64 = 1_000_000;

    fn begin(watch: &mut QueryWatch, now_ms: i64) -> Option<(i64, i64, bool)> {
        let (when, reset) = watch.begin(now_ms)?;
        watch.sent(&when, reset, false);
        Some((when.start_ms, when.end_ms, reset))
    }

    #[test]
    fn a_range_is_sent_whole_and_then_step_by_step() {
        let mut watch = QueryWatch::range("up".into(), 10_000, 2_000, false, None).expect("a good range");
        let now = T + SETTLE_MS;
        assert_eq!(begin(&mut watch, now), Some((T - 10_000, T, true)));
        assert_eq!(begin(&mut watch, now + 1_999), None);
        assert_eq!(
            begin(&mut watch, now + 2_000),
            Some((T + 2_000, T + 2_000, false))
        );
        // Two steps were missed while the query was slow.
        assert_eq!(
            begin(&mut watch, now + 6_000),
            Some((T + 4_000, T + 6_000, false))
        );
        assert_eq!(
            begin(&mut watch, now + REFRESH_MS),
            Some((T + REFRESH_MS - 10_000, T + REFRESH_MS, true))
        );
    }

    #[test]
    fn a_value_of_a_range_is_not_shown_for_five_minutes() {
        for (step_ms, lookback_ms) in [
            (1_000, LOOKBACK_MS),
            (60_000, 120_000),
            (3_600_000, LOOKBACK_DEFAULT_MS),
        ] {
            for end_ms in [None, Some(T)] {
                let range = QueryWatch::range("up".into(), 10 * step_ms, step_ms, false, end_ms);
                let mut watch = range.expect("a good range");
                let (when, _) = watch.begin(T).expect("it is due");
                assert_eq!(when.lookback_ms, lookback_ms, "{step_ms}");
            }
        }
        let (when, _) = QueryWatch::instant("up".into()).begin(T).expect("it is due");
        assert_eq!(when.lookback_ms, LOOKBACK_DEFAULT_MS);
    }

    #[test]
    fn a_past_range_is_sent_once() {
        let mut watch =
            QueryWatch::range("up".into(), 10_000, 2_000, true, Some(T - 1)).expect("a good range");
        assert_eq!(begin(&mut watch, T), Some((T - 10_001, T - 1, true)));
        assert_eq!(begin(&mut watch, T + REFRESH_MS), None);
    }

    /// Begins an evaluation that fails, and returns what it would have evaluated.
    fn fail(watch: &mut QueryWatch, now_ms: i64) -> Option<(i64, i64, bool)> {
        let (when, reset) = watch.begin(now_ms)?;
        watch.failed(&when, reset, "too expensive");
        Some((when.start_ms, when.end_ms, reset))
    }

    /// Regression: a chart whose first frame failed showed only the steps after it, for up to a minute.
    #[test]
    fn a_range_that_fails_is_evaluated_whole_again_less_and_less_often() {
        let mut watch = QueryWatch::range("up".into(), 10_000, 2_000, false, None).expect("a good range");
        let now = T + SETTLE_MS;
        let (mut evaluated_at, mut repeated) = (Vec::new(), 0);
        for second in 0..=180 {
            let now_ms = now + second * 1_000;
            if let Some((start_ms, end_ms, reset)) = fail(&mut watch, now_ms) {
                assert!(reset && end_ms - start_ms == 10_000, "{second}");
                evaluated_at.push(second);
            }
            if let Some(message) = watch.failure_to_repeat(now_ms) {
                assert_eq!(message, "too expensive");
                repeated += 1;
            }
        }
        assert_eq!(evaluated_at, [0, 5, 15, 35, 75, 135]);
        assert_eq!(repeated, 90, "each step");
        let now = now + 196_000;
        assert_eq!(begin(&mut watch, now), Some((T + 186_000, T + 196_000, true)));
        assert_eq!(watch.failure_to_repeat(now + 2_000), None);
        assert_eq!(
            begin(&mut watch, now + 2_000),
            Some((T + 198_000, T + 198_000, false))
        );
    }

    #[test]
    fn a_range_of_long_steps_that_fails_does_not_wait_for_the_next_step() {
        const HOUR_MS: i64 = 3_600_000;
        let range = QueryWatch::range("up".into(), 10 * HOUR_MS, HOUR_MS, false, None);
        let mut watch = range.expect("a good range");
        let whole = Some((-10 * HOUR_MS, 0, true));
        assert_eq!(fail(&mut watch, T), whole);
        assert_eq!(begin(&mut watch, T + RETRY_MS - 1), None);
        assert_eq!(begin(&mut watch, T + RETRY_MS), whole);
        assert_eq!(begin(&mut watch, T + 2 * RETRY_MS), None);
        // A past range is evaluated once, and an instant query once per step.
        let past = QueryWatch::range("up".into(), 10_000, 2_000, false, Some(T));
        for mut watch in [past.expect("a good range"), QueryWatch::instant("up".into())] {
            let now = T + SETTLE_MS;
            assert!(fail(&mut watch, now).is_some());
            assert_eq!(begin(&mut watch, now + 999), None);
            assert_eq!(watch.failure_to_repeat(now + 999), None);
        }
    }

    /// Regression: a chart had a gap of one step, for up to a minute, after a query had failed once.
    #[test]
    fn a_step_that_fails_is_sent_with_the_next_one() {
        let mut watch = QueryWatch::range("up".into(), 10_000, 2_000, false, None).expect("a good range");
        let now = T + SETTLE_MS;
        assert_eq!(begin(&mut watch, now), Some((T - 10_000, T, true)));
        assert_eq!(fail(&mut watch, now + 2_000), Some((T + 2_000, T + 2_000, false)));
        assert_eq!(begin(&mut watch, now + 3_000), None, "it waits for the next step");
        assert_eq!(
            begin(&mut watch, now + 4_000),
            Some((T + 2_000, T + 4_000, false))
        );
        // The values that the tab has stay valid.
        let refreshed = now + REFRESH_MS;
        for second in (6..60).step_by(2) {
            assert!(begin(&mut watch, now + second * 1_000).is_some());
        }
        assert_eq!(
            fail(&mut watch, refreshed),
            Some((T + REFRESH_MS - 10_000, T + REFRESH_MS, true))
        );
        assert_eq!(watch.failure_to_repeat(refreshed + 2_000), None);
        assert_eq!(
            begin(&mut watch, refreshed + 2_000),
            Some((T + REFRESH_MS, T + REFRESH_MS + 2_000, false))
        );
    }

    /// Regression: a chart of many lines showed spikes only in its newest minute, because few steps of them had room for their extremes.
    #[test]
    fn the_last_reset_decides_whether_frames_have_extremes() {
        let now = T + SETTLE_MS;
        for (requested, has_extremes, of_reset, of_next) in [
            (
                true,
                true,
                WantedExtremes::IfAffordable,
                WantedExtremes::Continued,
            ),
            (true, false, WantedExtremes::IfAffordable, WantedExtremes::No),
            (false, false, WantedExtremes::No, WantedExtremes::No),
        ] {
            let watch = QueryWatch::range("up".into(), 10_000, 2_000, requested, None);
            let mut watches = Watches::default();
            watches
                .add(1, Kind::Query(watch.expect("a good range")))
                .expect("there is room");
            let mut next = |at_ms| {
                let due = watches.due(at_ms).remove(0);
                let watch = watches.same(1, due.serial).expect("it is still there");
                let Kind::Query(query) = &mut watch.kind else {
                    panic!("it is a query");
                };
                query.sent(&due.when, due.reset, has_extremes);
                (due.reset, due.extremes)
            };
            assert_eq!(next(now), (true, of_reset));
            assert_eq!(next(now + 2_000), (false, of_next));
            assert_eq!(next(now + 4_000), (false, of_next), "until the next reset");
            assert_eq!(next(now + REFRESH_MS), (true, of_reset));
        }
    }

    #[test]
    fn a_runs_view_is_due_after_a_change_and_four_times_per_second_at_most() {
        let run = |name: &str| RunId::new(name).expect("a run's id");
        let mut watches = Watches::default();
        for (id, name) in [(1, "a"), (2, "a"), (3, "b")] {
            watches
                .add(id, Kind::Run(RunWatch::new(run(name))))
                .expect("there is room");
        }
        let due = |watches: &mut Watches, now_ms| -> Vec<u32> {
            watches.due_views(now_ms).into_iter().map(|(id, _)| id).collect()
        };
        assert_eq!(due(&mut watches, T), [1, 2, 3], "new ones");
        assert_eq!(due(&mut watches, T + 1_000), [0; 0], "nothing has changed");
        watches.run_changed(&run("a"));
        assert_eq!(due(&mut watches, T + 1_001), [1, 2]);
        let mut sent = 0;
        for ms in 0..2_000 {
            watches.run_changed(&run("a"));
            sent += due(&mut watches, T + 1_002 + ms).len();
        }
        assert_eq!(sent, 2 * 8, "for two watches, in two seconds");
        watches.all_runs_changed();
        assert_eq!(due(&mut watches, T - 1), [1, 2, 3], "a clock that went back");
        watches
            .add(1, Kind::Run(RunWatch::new(run("a"))))
            .expect("it replaces");
        assert_eq!(due(&mut watches, T + 248), [0; 0], "asked for again");
        assert_eq!(due(&mut watches, T + 249), [1]);
    }

    #[test]
    fn a_query_that_runs_is_not_started_again() {
        let mut watch = QueryWatch::instant("up".into());
        assert!(watch.begin(T).is_some());
        assert!(watch.begin(T + 5_000).is_none());
    }

    #[test]
    fn an_instant_query_is_due_each_second() {
        let mut watch = QueryWatch::instant("up".into());
        let now = T + SETTLE_MS;
        assert_eq!(begin(&mut watch, now), Some((T, T, true)));
        assert_eq!(begin(&mut watch, now + 250), None);
        assert_eq!(begin(&mut watch, now + 1_000), Some((T + 1_000, T + 1_000, true)));
    }

    #[test]
    fn watches_have_a_bound_and_are_distinguished() {
        let mut watches = Watches::default();
        for id in 0..WATCHES_MAX as u32 {
            watches
                .add(id, Kind::Query(QueryWatch::instant("up".into())))
                .expect("there is room");
        }
        assert!(
            watches
                .add(1_000, Kind::Query(QueryWatch::instant("up".into())))
                .is_err()
        );
        let serial = watches.due(T).remove(0).serial;
        watches
            .add(0, Kind::Query(QueryWatch::instant("down".into())))
            .expect("it replaces");
        assert!(watches.same(0, serial).is_none());
        assert!(
            QueryWatch::range("up".into(), 1_000, 10, false, None).is_err()
                && QueryWatch::range("up".into(), i64::MAX, 1_000, false, None).is_err()
                && QueryWatch::range("up".into(), i64::MAX, i64::MAX, false, None).is_err()
                && QueryWatch::range("up".into(), 1_000, 1_000, false, Some(i64::MIN)).is_err()
        );
    }
}
