//! Names on disk: what series there are, and what metrics mean.

use std::collections::BTreeMap;

use domain::series::{Labels, SelectError};

use super::head::GroupId;
use super::index::Pending;
use super::{Metadata, SeriesId, SeriesStore, Shared, read, write};

/// Makes the names of new series durable.
pub(crate) async fn save(shared: &Shared) -> Result<(), sqlx::Error> {
    if !read(&shared.index).has_pending() {
        return Ok(());
    }
    let (pending, mark) = read(&shared.index).pending();
    let mut transaction = shared.database.begin().await?;
    // One statement for all: a thousand agents that connect at once bring a quarter of a million names.
    sqlx::query("INSERT OR IGNORE INTO groups (id, node, metric) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)")
        .bind(groups_json(&pending))
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT OR IGNORE INTO series (id, group_id, labels) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)")
        .bind(series_json(&pending))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    write(&shared.index).made_durable(mark, pending.groups.len());
    Ok(())
}

fn groups_json(pending: &Pending) -> String {
    let groups = pending
        .groups
        .iter()
        .map(|group| serde_json::json!([group.id.0, &*group.node, &*group.metric]));
    serde_json::Value::Array(groups.collect()).to_string()
}

fn series_json(pending: &Pending) -> String {
    let text = |labels: &Labels| serde_json::to_string(labels).expect("labels are a map of strings");
    let row =
        |(id, group, labels): &(SeriesId, GroupId, Labels)| serde_json::json!([id.0, group.0, text(labels)]);
    serde_json::Value::Array(pending.series.iter().map(row).collect()).to_string()
}

impl SeriesStore {
    /// Notes TYPE and HELP of a metric; writes only what is new.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn set_metadata(&self, name: &str, kind: &str, help: &str) -> Result<(), SelectError> {
        let metadata = Metadata {
            kind: kind.to_owned(),
            help: help.to_owned(),
        };
        if read(&self.shared.metadata).get(name) == Some(&metadata) {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO metadata (name, type, help) VALUES (?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET type = excluded.type, help = excluded.help",
        )
        .bind(name)
        .bind(kind)
        .bind(help)
        .execute(self.shared.database.writer())
        .await
        .map_err(|error| SelectError::Store(Box::new(error)))?;
        write(&self.shared.metadata).insert(name.to_owned(), metadata);
        Ok(())
    }

    /// TYPE and HELP by metric name.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, Metadata> {
        read(&self.shared.metadata).clone()
    }
}
