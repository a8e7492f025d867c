//! Alerts with what is needed to show them as diagnoses: the alerts of a rule or run, their context, and what people did about
//! them.

use std::collections::BTreeMap;

use domain::api::alerts::AlertView;
use domain::incident::{Context, DiagnosisId, Entry};
use domain::time::TimestampMs;
use sqlx::{QueryBuilder, Sqlite, Transaction};

use super::{StateError, StateStore, bounded, from_json, to_json};

/// The maximum number of entries of one diagnosis: more than anyone reads. It bounds what a script in a loop can write.
pub const ENTRIES_MAX: usize = 1_000;

/// An alert that has fired, with what is stored about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Incident {
    /// The alert.
    pub alert: AlertView,
    /// The context of the alert. Empty for an alert that an earlier version stored.
    pub context: Context,
    /// What people did about it, oldest first.
    pub entries: Vec<Entry>,
}

type Row = (String, Option<String>);

const INCIDENT: &str =
    "SELECT alert, context FROM alerts LEFT JOIN alert_contexts USING (fingerprint, active_ms)";

impl StateStore {
    /// Returns resolved alerts that have fired, the latest first; of one run if `run` is set.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn resolved_incidents(
        &self,
        run: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Incident>, StateError> {
        let mut query = QueryBuilder::<Sqlite>::new(INCIDENT);
        query.push(" WHERE state = 'resolved'");
        if let Some(run) = run {
            query.push(" AND alert ->> '$.labels.run' = ").push_bind(run);
        }
        query
            .push(" ORDER BY updated_ms DESC, alerts.rowid DESC LIMIT ")
            .push_bind(bounded(limit));
        self.incidents(query).await
    }

    /// Returns the alerts of a rule that began at or after `since_ms` and have fired, newest first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn incidents_of_rule(
        &self,
        rule: &str,
        since_ms: TimestampMs,
        limit: u32,
    ) -> Result<Vec<Incident>, StateError> {
        let mut query = QueryBuilder::<Sqlite>::new(INCIDENT);
        query
            .push(" WHERE alert ->> '$.rule' = ")
            .push_bind(rule)
            .push(" AND active_ms >= ")
            .push_bind(since_ms)
            .push(" AND state IN ('firing', 'resolved') ORDER BY active_ms DESC LIMIT ")
            .push_bind(bounded(limit));
        self.incidents(query).await
    }

    /// Returns one alert that has fired, or `None` if it is not stored.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn incident(&self, id: &DiagnosisId) -> Result<Option<Incident>, StateError> {
        let mut query = QueryBuilder::<Sqlite>::new(INCIDENT);
        query
            .push(" WHERE fingerprint = ")
            .push_bind(&id.fingerprint)
            .push(" AND active_ms = ")
            .push_bind(id.active_ms)
            .push(" AND state IN ('firing', 'resolved')");
        Ok(self.incidents(query).await?.pop())
    }

    async fn incidents(&self, mut query: QueryBuilder<Sqlite>) -> Result<Vec<Incident>, StateError> {
        let rows: Vec<Row> = query.build_query_as().fetch_all(&self.database.readers).await?;
        let mut incidents = Vec::with_capacity(rows.len());
        for (alert, context) in rows {
            let context = context.map(|text| from_json("context of an alert", &text));
            incidents.push(Incident {
                alert: from_json("alert", &alert)?,
                context: context.transpose()?.unwrap_or_default(),
                entries: Vec::new(),
            });
        }
        let ids: Vec<DiagnosisId> = incidents.iter().map(|one| DiagnosisId::of(&one.alert)).collect();
        let mut entries = self.entries_of(&ids).await?;
        for (incident, id) in incidents.iter_mut().zip(&ids) {
            incident.entries = entries.remove(id).unwrap_or_default();
        }
        Ok(incidents)
    }

    /// Returns the context of each alert that is pending or firing.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn active_contexts(&self) -> Result<BTreeMap<DiagnosisId, Context>, StateError> {
        let rows: Vec<(String, i64, String)> = sqlx::query_as(
            "SELECT fingerprint, active_ms, context FROM alerts JOIN alert_contexts USING (fingerprint, active_ms)
             WHERE state IN ('pending', 'firing')",
        )
        .fetch_all(&self.database.readers)
        .await?;
        let context = |(fingerprint, active_ms, text): (String, i64, String)| {
            let id = DiagnosisId {
                fingerprint,
                active_ms,
            };
            Ok((id, from_json("context of an alert", &text)?))
        };
        rows.into_iter().map(context).collect()
    }

    /// Returns what people did about alerts that are pending or firing.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn active_entries(&self) -> Result<BTreeMap<DiagnosisId, Vec<Entry>>, StateError> {
        let rows: Vec<EntryRow> = sqlx::query_as(
            "SELECT fingerprint, active_ms, at_ms, who, entry FROM alert_entries JOIN alerts USING (fingerprint, active_ms)
             WHERE state IN ('pending', 'firing') ORDER BY id",
        )
        .fetch_all(&self.database.readers)
        .await?;
        by_id(rows)
    }

    async fn entries_of(&self, ids: &[DiagnosisId]) -> Result<BTreeMap<DiagnosisId, Vec<Entry>>, StateError> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let keys: Vec<(&str, i64)> = ids
            .iter()
            .map(|id| (id.fingerprint.as_str(), id.active_ms))
            .collect();
        let rows: Vec<EntryRow> = sqlx::query_as(
            "SELECT fingerprint, active_ms, at_ms, who, entry FROM alert_entries WHERE (fingerprint, active_ms) IN
             (SELECT value ->> 0, value ->> 1 FROM json_each(?)) ORDER BY id",
        )
        .bind(to_json("list of diagnoses", &keys)?)
        .fetch_all(&self.database.readers)
        .await?;
        by_id(rows)
    }

    /// Appends an entry about an alert that has fired. Returns false if there is no such alert.
    ///
    /// # Errors
    /// Fails if the database fails, or if there are already [`ENTRIES_MAX`] entries.
    pub async fn append_entry(&self, id: &DiagnosisId, entry: &Entry) -> Result<bool, StateError> {
        let mut transaction = self.database.begin().await?;
        let (has_fired, entries): (bool, i64) = sqlx::query_as(
            "SELECT EXISTS (SELECT 1 FROM alerts WHERE fingerprint = ?1 AND active_ms = ?2 AND state IN ('firing', 'resolved')),
                    (SELECT count(*) FROM alert_entries WHERE fingerprint = ?1 AND active_ms = ?2)",
        )
        .bind(&id.fingerprint)
        .bind(id.active_ms)
        .fetch_one(&mut *transaction)
        .await?;
        if !has_fired {
            return Ok(false);
        }
        if usize::try_from(entries).is_ok_and(|entries| entries >= ENTRIES_MAX) {
            return Err(StateError::Full {
                what: "entries of this diagnosis",
                max: ENTRIES_MAX,
            });
        }
        sqlx::query(
            "INSERT INTO alert_entries (fingerprint, active_ms, at_ms, who, entry) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(&id.fingerprint)
        .bind(id.active_ms)
        .bind(entry.at_ms)
        .bind(&entry.who)
        .bind(to_json("entry of a diagnosis", &entry.what)?)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(true)
    }
}

#[derive(sqlx::FromRow)]
struct EntryRow {
    fingerprint: String,
    active_ms: i64,
    at_ms: i64,
    who: String,
    entry: String,
}

fn by_id(rows: Vec<EntryRow>) -> Result<BTreeMap<DiagnosisId, Vec<Entry>>, StateError> {
    let mut all: BTreeMap<DiagnosisId, Vec<Entry>> = BTreeMap::new();
    for row in rows {
        let id = DiagnosisId {
            fingerprint: row.fingerprint,
            active_ms: row.active_ms,
        };
        all.entry(id).or_default().push(Entry {
            at_ms: row.at_ms,
            who: row.who,
            what: from_json("entry of a diagnosis", &row.entry)?,
        });
    }
    Ok(all)
}

/// Stores the contexts of alerts that are already stored.
pub(super) async fn store_contexts(
    transaction: &mut Transaction<'static, Sqlite>,
    contexts: &[(DiagnosisId, Context)],
) -> Result<(), StateError> {
    for (id, context) in contexts {
        sqlx::query(
            "INSERT INTO alert_contexts (fingerprint, active_ms, context) VALUES (?, ?, ?)
             ON CONFLICT (fingerprint, active_ms) DO UPDATE SET context = excluded.context",
        )
        .bind(&id.fingerprint)
        .bind(id.active_ms)
        .bind(to_json("context of an alert", context)?)
        .execute(&mut **transaction)
        .await?;
    }
    Ok(())
}
