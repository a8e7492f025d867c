//! Names on disk: the series, and the metadata of metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::series::{Labels, SelectError};

use super::group_id::GroupId;
use super::head::Group;
use super::{Metadata, SeriesId, SeriesStore, Shared, read, write};

/// The maximum number of metrics whose type and help text are kept: ten times what a large site has. More indicate a faulty
/// sender.
const METADATA_MAX: usize = 100_000;

/// The maximum number of names in one statement. More would only take more memory: one megabyte per thousand.
const NAMES_PER_STATEMENT: usize = 4_096;

/// Makes the names of new series durable.
pub(crate) async fn save(shared: &Shared) -> Result<(), sqlx::Error> {
    if !read(&shared.index).has_pending() {
        return Ok(());
    }
    // Both are read at the same moment, so the group of each series is either among the groups or already durable.
    let (groups, records) = read(&shared.index).pending();
    let mut transaction = shared.database.begin().await?;
    for groups in groups.chunks(NAMES_PER_STATEMENT) {
        sqlx::query("INSERT OR IGNORE INTO groups (id, node, metric) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)")
            .bind(groups_json(groups))
            .execute(&mut *transaction)
            .await?;
    }
    for from in records.clone().step_by(NAMES_PER_STATEMENT) {
        let some = from..records.end.min(from + NAMES_PER_STATEMENT);
        let series = series_json(&read(&shared.index).named(some));
        sqlx::query("INSERT OR IGNORE INTO series (id, group_id, labels) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?)")
            .bind(series)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    write(&shared.index).made_durable(records.end, groups.len());
    Ok(())
}

fn groups_json(groups: &[Arc<Group>]) -> String {
    let groups = groups
        .iter()
        .map(|group| serde_json::json!([group.id.0, &*group.node, &*group.metric]));
    serde_json::Value::Array(groups.collect()).to_string()
}

fn series_json(series: &[(SeriesId, GroupId, Labels)]) -> String {
    let text = |labels: &Labels| serde_json::to_string(labels).expect("labels are a map of strings");
    let row =
        |(id, group, labels): &(SeriesId, GroupId, Labels)| serde_json::json!([id.0, group.0, text(labels)]);
    serde_json::Value::Array(series.iter().map(row).collect()).to_string()
}

impl SeriesStore {
    /// Returns the id of an existing series.
    #[must_use]
    pub fn id_of(&self, labels: &Labels) -> Option<SeriesId> {
        read(&self.shared.index).id(labels)
    }

    /// Returns true if a series has this id. An id becomes invalid when the series is removed.
    #[must_use]
    pub fn knows(&self, id: SeriesId) -> bool {
        read(&self.shared.index).entry(id).is_some()
    }

    /// Returns the labels of a series, or `None` if the id is invalid.
    #[must_use]
    pub fn labels_of(&self, id: SeriesId) -> Option<Labels> {
        read(&self.shared.index).entry(id).map(|entry| entry.labels())
    }

    /// Stores type and help text of metrics in one transaction; writes only new ones. Beyond [`METADATA_MAX`] names, new
    /// metrics are not stored.
    ///
    /// # Errors
    /// Fails if the database fails. Nothing is then stored.
    pub async fn set_metadata_all(&self, all: &BTreeMap<String, Metadata>) -> Result<(), SelectError> {
        let new = self.new_metadata(all);
        if new.is_empty() {
            return Ok(());
        }
        self.write_metadata(&new)
            .await
            .map_err(|error| SelectError::Store(Box::new(error)))?;
        write(&self.shared.metadata).extend(new);
        Ok(())
    }

    fn new_metadata(&self, all: &BTreeMap<String, Metadata>) -> BTreeMap<String, Metadata> {
        let known = read(&self.shared.metadata);
        let mut room = METADATA_MAX.saturating_sub(known.len());
        let mut is_new = |name: &String, metadata: &Metadata| match known.get(name) {
            Some(before) => before != metadata,
            None => {
                let fits = room > 0;
                room = room.saturating_sub(1);
                fits
            }
        };
        let new = all.iter().filter(|(name, metadata)| is_new(name, metadata));
        new.map(|(name, metadata)| (name.clone(), metadata.clone()))
            .collect()
    }

    async fn write_metadata(&self, new: &BTreeMap<String, Metadata>) -> Result<(), sqlx::Error> {
        let row =
            |(name, metadata): (&String, &Metadata)| serde_json::json!([name, metadata.kind, metadata.help]);
        let rows = serde_json::Value::Array(new.iter().map(row).collect()).to_string();
        let mut transaction = self.shared.database.begin().await?;
        // `WHERE true` keeps SQLite from reading ON as part of a join.
        sqlx::query(
            "INSERT INTO metadata (name, type, help) SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?) WHERE true
             ON CONFLICT (name) DO UPDATE SET type = excluded.type, help = excluded.help",
        )
        .bind(rows)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await
    }

    /// Returns type and help text by metric name.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, Metadata> {
        read(&self.shared.metadata).clone()
    }
}
