//! Runs: the specification, the state machine, and the actions that its transitions request.
//!
//! ```text
//! machine N + event  --advance-->  machine N+1 + actions        one transaction: update_run
//!                                  actions are executed after it, then action_done
//! ```
//! The store treats the machine and its actions as opaque JSON. `domain` interprets them.

use std::collections::BTreeSet;

use domain::api::runs::RunSummary;
use domain::ident::{AttemptNo, RunId};
use domain::time::TimestampMs;
use serde_json::Value;
use sqlx::{Sqlite, Transaction};

use super::{StateError, StateStore, bounded, from_json, from_word, is_taken, to_json};

/// A run as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// The id of the run.
    pub id: RunId,
    /// The number of its last transition, from 0.
    pub version: i64,
    /// The specification, a `run::spec::Spec`.
    pub spec: Value,
    /// The state machine, including the attempts.
    pub machine: Value,
    /// The summary for the list of runs.
    pub summary: RunSummary,
}

/// One transition. It is stored completely or not at all.
#[derive(Debug, Clone)]
pub struct RunUpdate<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The version before the transition.
    pub expected_version: i64,
    /// The state machine after the transition, as JSON.
    pub machine: &'a str,
    /// The summary after the transition.
    pub summary: &'a RunSummary,
    /// The actions that the transition requests.
    pub actions: &'a [RunAction],
    /// The ids of the events that caused it, as far as their senders may repeat them.
    pub event_ids: &'a [&'a str],
    /// The actions that it completes: attempt and number.
    pub done: &'a [(AttemptNo, u32)],
    /// The checkpoints that the run has pinned, if the transition changed them.
    pub pins: Option<&'a BTreeSet<String>>,
}

/// An action of a run, with its key.
#[derive(Debug, Clone, PartialEq)]
pub struct RunAction {
    /// The attempt that it belongs to.
    pub attempt: AttemptNo,
    /// The number of the action within the attempt.
    pub n: u32,
    /// The action, as JSON.
    pub action: Value,
}

impl StateStore {
    /// Stores a new run at version 0, with the actions that its first state requests.
    ///
    /// # Errors
    /// [`StateError::Exists`] if the id is taken.
    pub async fn insert_run(
        &self,
        run: &RunRecord,
        actions: &[RunAction],
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        let mut transaction = self.database.begin().await?;
        let inserted = sqlx::query(
            "INSERT INTO runs (id, submitted_ms, state, version, spec, machine, summary) VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(run.id.as_str())
        .bind(run.summary.submitted_ms)
        .bind(run.summary.state.as_str())
        .bind(run.version)
        .bind(run.spec.to_string())
        .bind(run.machine.to_string())
        .bind(to_json("run summary", &run.summary)?)
        .execute(&mut *transaction)
        .await;
        match inserted {
            Err(error) if is_taken(&error) => {
                return Err(StateError::Exists {
                    what: format!("run {}", run.id),
                });
            }
            other => other?,
        };
        insert_actions(&mut transaction, &run.id, actions, now_ms).await?;
        Ok(transaction.commit().await?)
    }

    /// Stores a transition N → N+1 with its actions and the events that caused it. Returns the new version.
    ///
    /// # Errors
    /// [`StateError::Conflict`] if the run is not at the expected version or does not exist. [`StateError::Exists`] if one of
    /// the events was already applied to the run: read the run again and decide again.
    pub async fn update_run(&self, update: RunUpdate<'_>, now_ms: TimestampMs) -> Result<i64, StateError> {
        let mut transaction = self.database.begin().await?;
        let done = sqlx::query("UPDATE runs SET version = version + 1, state = ?, machine = ?, summary = ? WHERE id = ? AND version = ?")
            .bind(update.summary.state.as_str())
            .bind(update.machine)
            .bind(to_json("run summary", update.summary)?)
            .bind(update.run.as_str())
            .bind(update.expected_version)
            .execute(&mut *transaction)
            .await?;
        if done.rows_affected() == 0 {
            return Err(StateError::Conflict {
                what: format!("run {}", update.run),
                expected: update.expected_version,
            });
        }
        if !update.event_ids.is_empty() {
            let insert = sqlx::query("INSERT INTO run_events (run, event) SELECT ?, value FROM json_each(?)");
            let inserted = insert
                .bind(update.run.as_str())
                .bind(to_json("event ids", &update.event_ids)?)
                .execute(&mut *transaction)
                .await;
            match inserted {
                Err(error) if is_taken(&error) => {
                    return Err(StateError::Exists {
                        what: format!("an event of run {}", update.run),
                    });
                }
                other => other?,
            };
        }
        for (attempt, n) in update.done {
            mark_done(update.run, *attempt, *n, now_ms)
                .execute(&mut *transaction)
                .await?;
        }
        insert_actions(&mut transaction, update.run, update.actions, now_ms).await?;
        if let Some(pins) = update.pins {
            replace_pins(&mut transaction, update.run, pins).await?;
        }
        transaction.commit().await?;
        Ok(update.expected_version + 1)
    }

    /// Returns which of these checkpoints other runs have pinned.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn pinned_by_others(
        &self,
        run: &RunId,
        paths: &BTreeSet<&str>,
    ) -> Result<BTreeSet<String>, StateError> {
        if paths.is_empty() {
            return Ok(BTreeSet::new());
        }
        let query = sqlx::query_scalar(
            "SELECT DISTINCT path FROM checkpoint_pins WHERE path IN (SELECT value FROM json_each(?)) AND run != ?",
        );
        let pinned: Vec<String> = query
            .bind(to_json("paths of checkpoints", paths)?)
            .bind(run.as_str())
            .fetch_all(&self.database.readers)
            .await?;
        Ok(pinned.into_iter().collect())
    }

    /// Returns which of these events were already applied to the run.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn run_events_seen(
        &self,
        run: &RunId,
        event_ids: &[&str],
    ) -> Result<BTreeSet<String>, StateError> {
        if event_ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let query = sqlx::query_scalar(
            "SELECT event FROM run_events WHERE run = ? AND event IN (SELECT value FROM json_each(?))",
        );
        let seen: Vec<String> = query
            .bind(run.as_str())
            .bind(to_json("event ids", &event_ids)?)
            .fetch_all(&self.database.readers)
            .await?;
        Ok(seen.into_iter().collect())
    }

    /// Returns one run, or `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, StateError> {
        let row: Option<RunRow> =
            sqlx::query_as("SELECT id, version, spec, machine, summary FROM runs WHERE id = ?")
                .bind(id.as_str())
                .fetch_optional(&self.database.readers)
                .await?;
        row.map(record).transpose()
    }

    /// Returns runs, newest first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn runs(&self, limit: u32) -> Result<Vec<RunRecord>, StateError> {
        let rows: Vec<RunRow> =
            sqlx::query_as("SELECT id, version, spec, machine, summary FROM runs ORDER BY submitted_ms DESC, rowid DESC LIMIT ?")
                .bind(bounded(limit))
                .fetch_all(&self.database.readers)
                .await?;
        rows.into_iter().map(record).collect()
    }

    /// Returns runs that may still change, oldest first. A restarted collector continues with them.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn unfinished_runs(&self) -> Result<Vec<RunRecord>, StateError> {
        let rows: Vec<RunRow> = sqlx::query_as(
            "SELECT id, version, spec, machine, summary FROM runs
             WHERE state NOT IN ('stopped', 'succeeded', 'failed') ORDER BY submitted_ms, rowid",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.into_iter().map(record).collect()
    }

    /// Returns actions that are not done yet, in the order in which they were requested.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn pending_actions(&self) -> Result<Vec<(RunId, RunAction)>, StateError> {
        let rows: Vec<(String, u32, u32, String)> = sqlx::query_as(
            "SELECT run, attempt, n, action FROM run_actions WHERE done_ms IS NULL ORDER BY created_ms, rowid",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.into_iter()
            .map(|(run, attempt, n, action)| {
                let action = RunAction {
                    attempt: AttemptNo(attempt),
                    n,
                    action: from_json("run action", &action)?,
                };
                Ok((from_word("run id", &run)?, action))
            })
            .collect()
    }

    /// Returns one action, done or not.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn action(
        &self,
        run: &RunId,
        attempt: AttemptNo,
        n: u32,
    ) -> Result<Option<RunAction>, StateError> {
        let action: Option<String> =
            sqlx::query_scalar("SELECT action FROM run_actions WHERE run = ? AND attempt = ? AND n = ?")
                .bind(run.as_str())
                .bind(attempt.0)
                .bind(n)
                .fetch_optional(&self.database.readers)
                .await?;
        let read = |action: String| {
            Ok(RunAction {
                attempt,
                n,
                action: from_json("run action", &action)?,
            })
        };
        action.map(read).transpose()
    }

    /// Records that an action was done.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn action_done(
        &self,
        run: &RunId,
        attempt: AttemptNo,
        n: u32,
        now_ms: TimestampMs,
    ) -> Result<(), StateError> {
        mark_done(run, attempt, n, now_ms)
            .execute(self.database.writer())
            .await?;
        Ok(())
    }
}

fn mark_done(
    run: &RunId,
    attempt: AttemptNo,
    n: u32,
    now_ms: TimestampMs,
) -> sqlx::query::Query<'_, Sqlite, sqlx::sqlite::SqliteArguments> {
    sqlx::query(
        "UPDATE run_actions SET done_ms = ? WHERE run = ? AND attempt = ? AND n = ? AND done_ms IS NULL",
    )
    .bind(now_ms)
    .bind(run.as_str())
    .bind(attempt.0)
    .bind(n)
}

type RunRow = (String, i64, String, String, String);

fn record((id, version, spec, machine, summary): RunRow) -> Result<RunRecord, StateError> {
    Ok(RunRecord {
        id: from_word("run id", &id)?,
        version,
        spec: from_json("run spec", &spec)?,
        machine: from_json("run state", &machine)?,
        summary: from_json("run summary", &summary)?,
    })
}

async fn replace_pins(
    transaction: &mut Transaction<'static, Sqlite>,
    run: &RunId,
    pins: &BTreeSet<String>,
) -> Result<(), StateError> {
    sqlx::query("DELETE FROM checkpoint_pins WHERE run = ?")
        .bind(run.as_str())
        .execute(&mut **transaction)
        .await?;
    sqlx::query("INSERT INTO checkpoint_pins (path, run) SELECT value, ? FROM json_each(?)")
        .bind(run.as_str())
        .bind(to_json("paths of checkpoints", pins)?)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

async fn insert_actions(
    transaction: &mut Transaction<'static, Sqlite>,
    run: &RunId,
    actions: &[RunAction],
    now_ms: TimestampMs,
) -> Result<(), StateError> {
    for action in actions {
        sqlx::query("INSERT INTO run_actions (run, attempt, n, action, created_ms) VALUES (?, ?, ?, ?, ?)")
            .bind(run.as_str())
            .bind(action.attempt.0)
            .bind(action.n)
            .bind(action.action.to_string())
            .bind(now_ms)
            .execute(&mut **transaction)
            .await?;
    }
    Ok(())
}
