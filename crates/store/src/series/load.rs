//! Fills the index at start with every group and series in the tables.
//!
//! Series are read in blocks of one text each, with one line `id group labels` per series. Reading one row for each of a
//! million series from SQLite would take longer than everything else.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use sqlx::SqlitePool;
use tokio::sync::mpsc;

use super::SeriesId;
use super::group_id::GroupId;
use super::head::Group;
use super::index::Index;
use crate::sqlite::Database;

/// The number of series in a block: about half a megabyte of text.
const SERIES_PER_BLOCK: i64 = 4_096;
/// The number of blocks read ahead while one is added to the index. More would only take memory.
const BLOCKS_AHEAD: usize = 2;

/// Returns the index as stored in the tables, and the highest batch that is contained in chunks.
pub(crate) async fn index(database: &Database, series_max: usize) -> Result<(Index, u64), sqlx::Error> {
    let mut index = Index::new(series_max);
    let sealed_batch = add_groups(&database.readers, &mut index).await?;
    add_series(&database.readers, &mut index).await?;
    index.all_durable();
    Ok((index, sealed_batch))
}

async fn add_groups(readers: &SqlitePool, index: &mut Index) -> Result<u64, sqlx::Error> {
    let mut sealed_batch = 0;
    let groups: Vec<(i64, String, String, i64, Option<i64>)> =
        sqlx::query_as("SELECT id, node, metric, sealed_batch, sealed_max_ms FROM groups ORDER BY id")
            .fetch_all(readers)
            .await?;
    for (id, node, metric, batch, max_ms) in groups {
        let (node, metric) = (index.group_text(&node), index.group_text(&metric));
        let group = Group::new(GroupId(id), node, metric);
        group.lock().restore(batch as u64, max_ms);
        sealed_batch = sealed_batch.max(batch as u64);
        index.add_group(Arc::new(group));
    }
    Ok(sealed_batch)
}

async fn add_series(readers: &SqlitePool, index: &mut Index) -> Result<(), sqlx::Error> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM series")
        .fetch_one(readers)
        .await?;
    index.reserve(usize::try_from(count).unwrap_or(0));
    let (sender, mut blocks) = mpsc::channel(BLOCKS_AHEAD);
    let reading = tokio::spawn(read_blocks(readers.clone(), sender));
    while let Some(block) = blocks.recv().await {
        for line in block.lines() {
            add_line(index, line).map_err(|error| sqlx::Error::Decode(error.into()))?;
        }
    }
    reading.await.map_err(std::io::Error::other)?
}

async fn read_blocks(readers: SqlitePool, blocks: mpsc::Sender<String>) -> Result<(), sqlx::Error> {
    let mut after = 0_i64;
    loop {
        // JSON contains no line breaks here, so each line is one series.
        let (block, last): (Option<String>, Option<i64>) = sqlx::query_as(
            "SELECT group_concat(id || ' ' || group_id || ' ' || labels, char(10)), max(id)
             FROM (SELECT id, group_id, labels FROM series WHERE id > ? ORDER BY id LIMIT ?)",
        )
        .bind(after)
        .bind(SERIES_PER_BLOCK)
        .fetch_one(&readers)
        .await?;
        let (Some(block), Some(last)) = (block, last) else {
            return Ok(());
        };
        after = last;
        // The receiver is gone if an earlier block was damaged.
        if blocks.send(block).await.is_err() {
            return Ok(());
        }
    }
}

/// The reason why a row of the table cannot be used.
#[derive(Debug, thiserror::Error)]
enum BadRow {
    #[error("a series in the table has no valid id")]
    Number(#[from] std::num::ParseIntError),
    #[error("the labels of a series in the table cannot be decoded")]
    Labels(#[from] serde_json::Error),
    #[error("a row of the series table is incomplete")]
    Cut,
    #[error("the labels of a series in the table are not sorted")]
    Order,
}

fn add_line(index: &mut Index, line: &str) -> Result<(), BadRow> {
    let mut parts = line.splitn(3, ' ');
    let mut part = || parts.next().ok_or(BadRow::Cut);
    let (id, group, labels) = (part()?.parse::<u32>()?, part()?.parse::<i64>()?, part()?);
    let Pairs(pairs) = serde_json::from_str(labels)?;
    let labels: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (&*name.0, &*value.0)).collect();
    if labels.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(BadRow::Order);
    }
    if let Some(group) = index.group(GroupId(group)).cloned() {
        let row = group.lock().restore_row(SeriesId(id));
        index.restore(SeriesId(id), (group, row), &labels);
    }
    Ok(())
}

/// A JSON object of strings, in its order. Strings without escapes are borrowed.
struct Pairs<'a>(Vec<(Word<'a>, Word<'a>)>);

#[derive(Deserialize)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs<'de>, M::Error> {
        let mut pairs = Vec::with_capacity(8);
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_line_is_a_series_and_a_damaged_one_is_an_error() {
        let mut index = Index::new(10);
        index.add_group(Arc::new(Group::new(GroupId(7), "n".into(), "m".into())));
        add_line(&mut index, r#"3 7 {"__name__":"m","a":"x y\n\"z\""}"#).unwrap();
        add_line(&mut index, r#"4 7 {"__name__":"m","a":"x","b":"c"}"#).unwrap();
        add_line(&mut index, r#"5 8 {"__name__":"of a group that is gone"}"#).unwrap();
        let labels = |id| index.entry(SeriesId(id)).map(|entry| entry.labels().to_string());
        assert_eq!(labels(3).unwrap(), r#"m{a="x y\n\"z\""}"#);
        assert_eq!(labels(4).unwrap(), r#"m{a="x", b="c"}"#);
        assert_eq!((index.len(), labels(5)), (2, None));
        for bad in ["", "3", "x 7 {}", "3 7", r#"3 7 {"b":"1","a":"2"}"#, "3 7 [1]"] {
            assert!(add_line(&mut index, bad).is_err(), "{bad}");
        }
    }
}
