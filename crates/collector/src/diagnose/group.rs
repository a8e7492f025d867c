//! An active group of rules, evaluated one after the other at the times of the group.
//!
//! ```text
//! sleep ─▶ the latest time of the schedule ─▶ rule 1 ─▶ rule 2 ─▶ … ─▶ samples to the store ─▶ sleep
//!            └ times in between are skipped and counted: evaluations never pile up
//! ```
//! A rule that reads what an earlier rule of its group writes is evaluated after that is stored and readable. Otherwise the samples of all
//! rules are stored together.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::rule::Group;
use domain::rule::schedule::Schedule;
use domain::time::TimestampMs;
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::metrics::RuleMetrics;
use super::rule::RuleState;
use super::write::Writes;
use crate::clock;

/// An active group.
pub(super) struct GroupState {
    pub(super) file: String,
    pub(super) definition: Group,
    pub(super) schedule: Schedule,
    pub(super) rules: Vec<RuleState>,
    pub(super) metrics: RuleMetrics,
    /// The label of its metrics.
    pub(super) label: String,
    /// Whether its last samples could not be stored, or were partly refused. This is logged once, not every second.
    pub(super) write_failed: AtomicBool,
    pub(super) write_refused: AtomicBool,
    timing: Mutex<Timing>,
    stop: CancellationToken,
    ended: CancellationToken,
}

/// The last evaluation.
#[derive(Clone, Copy, Default)]
pub(super) struct Timing {
    pub(super) evaluated_ms: TimestampMs,
    pub(super) duration_s: f64,
}

impl GroupState {
    /// Creates a group that is not evaluated yet.
    pub(super) fn new(
        file: String,
        definition: Group,
        interval_ms: i64,
        metrics: RuleMetrics,
    ) -> Result<Self, query::ParseError> {
        let rules = definition
            .rules
            .iter()
            .map(|rule| RuleState::new(&file, &definition, rule.clone()));
        let rules = rules.collect::<Result<_, _>>()?;
        Ok(Self {
            schedule: Schedule::new(
                definition.interval_ms.unwrap_or(interval_ms),
                &file,
                &definition.name,
            ),
            label: format!("{file};{}", definition.name),
            rules,
            metrics,
            file,
            definition,
            write_failed: AtomicBool::default(),
            write_refused: AtomicBool::default(),
            timing: Mutex::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        })
    }

    /// Returns true if another group has the same definition, so that this one can continue in its place.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.file, &self.definition, self.schedule) == (&other.file, &other.definition, other.schedule)
    }

    pub(super) fn timing(&self) -> Timing {
        *self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the evaluation, which continues until the group or the collector is stopped.
    pub(super) fn start(self: &Arc<Self>, engine: &Arc<Engine>) {
        let by = &[self.label.as_str()];
        let count = i64::try_from(self.rules.len()).unwrap_or(i64::MAX);
        self.metrics.rules.with_label_values(by).set(count);
        let interval_s = self.schedule.interval_ms() as f64 / 1_000.0;
        self.metrics.interval.with_label_values(by).set(interval_s);
        let (group, used) = (Arc::clone(self), Arc::clone(engine));
        let ended = self.ended.clone().drop_guard();
        engine.tasks.spawn(async move {
            let _says_so_however_it_ends = ended;
            group.evaluate_for_ever(&used).await;
        });
    }

    /// Stops the group, and waits until the current rule is done.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }

    async fn evaluate_for_ever(&self, engine: &Engine) {
        let by = &[self.label.as_str()];
        let interval_ms = self.schedule.interval_ms();
        let mut due_ms = self.schedule.after(clock::now_ms());
        loop {
            let wait_ms = due_ms - clock::now_ms();
            if wait_ms > interval_ms {
                // The clock was set back.
                due_ms = self.schedule.after(clock::now_ms());
                continue;
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(u64::try_from(wait_ms).unwrap_or_default())) => {}
            }
            let now_ms = clock::now_ms();
            if now_ms < due_ms {
                continue;
            }
            let at_ms = self.schedule.at_or_before(now_ms);
            let missed = u64::try_from((at_ms - due_ms) / interval_ms).unwrap_or_default();
            self.metrics.missed.with_label_values(by).inc_by(missed);
            self.metrics.iterations.with_label_values(by).inc_by(missed + 1);
            self.evaluate(engine, at_ms).await;
            due_ms = at_ms + interval_ms;
        }
    }

    async fn evaluate(&self, engine: &Engine, at_ms: TimestampMs) {
        let by = &[self.label.as_str()];
        let started = Instant::now();
        let mut writes = Writes::new(self, at_ms - self.definition.query_offset_ms);
        for (place, rule) in self.rules.iter().enumerate() {
            if self.stop.is_cancelled() {
                break;
            }
            if writes.may_be_read_by(rule) || writes.is_full() {
                writes.flush(engine).await;
            }
            self.metrics.evaluations.with_label_values(by).inc();
            let began = Instant::now();
            match rule.evaluate(engine, self, at_ms).await {
                Some(samples) => writes.add(place, samples),
                None => self.metrics.failures.with_label_values(by).inc(),
            }
            let seconds = self.metrics.seconds.with_label_values(by);
            seconds.observe(began.elapsed().as_secs_f64());
        }
        writes.flush(engine).await;
        let duration_s = started.elapsed().as_secs_f64();
        self.metrics.last_seconds.with_label_values(by).set(duration_s);
        self.metrics
            .last_at
            .with_label_values(by)
            .set(at_ms as f64 / 1_000.0);
        let samples = writes.samples() as f64;
        self.metrics.last_samples.with_label_values(by).set(samples);
        *self.timing.lock().unwrap_or_else(PoisonError::into_inner) = Timing {
            evaluated_ms: at_ms,
            duration_s,
        };
    }
}
