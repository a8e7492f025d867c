//! Nodes, as their agents last described them.

use domain::ident::NodeName;
use domain::time::TimestampMs;
use domain::topology::Inventory;

use super::{StateError, StateStore, from_json, from_word, to_json};

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRecord {
    /// The name of the node; the key.
    pub name: NodeName,
    /// The version of the agent.
    pub agent_version: String,
    /// The agent's clock minus the collector's, measured when the agent connected.
    pub clock_offset_ms: i64,
    /// The hardware and software.
    pub inventory: Inventory,
    /// When the agent last sent something.
    pub seen_ms: TimestampMs,
}

impl StateStore {
    /// Adds or replaces a node.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn upsert_node(&self, node: &NodeRecord) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO nodes (name, agent_version, clock_offset_ms, inventory, seen_ms) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (name) DO UPDATE SET agent_version = excluded.agent_version,
                 clock_offset_ms = excluded.clock_offset_ms, inventory = excluded.inventory, seen_ms = excluded.seen_ms",
        )
        .bind(node.name.as_str())
        .bind(&node.agent_version)
        .bind(node.clock_offset_ms)
        .bind(to_json("inventory", &node.inventory)?)
        .bind(node.seen_ms)
        .execute(self.database.writer())
        .await?;
        Ok(())
    }

    /// Records that an agent sent something. Call this rarely: once per minute and node is enough.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn touch_node(&self, name: &NodeName, seen_ms: TimestampMs) -> Result<(), StateError> {
        sqlx::query("UPDATE nodes SET seen_ms = max(seen_ms, ?) WHERE name = ?")
            .bind(seen_ms)
            .bind(name.as_str())
            .execute(self.database.writer())
            .await?;
        Ok(())
    }

    /// Returns all nodes, by name.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StateError> {
        type Row = (String, String, i64, String, i64);
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT name, agent_version, clock_offset_ms, inventory, seen_ms FROM nodes ORDER BY name",
        )
        .fetch_all(&self.database.readers)
        .await?;
        rows.into_iter()
            .map(|(name, agent_version, clock_offset_ms, inventory, seen_ms)| {
                let (name, inventory) = (
                    from_word("node name", &name)?,
                    from_json("inventory", &inventory)?,
                );
                Ok(NodeRecord {
                    name,
                    agent_version,
                    clock_offset_ms,
                    inventory,
                    seen_ms,
                })
            })
            .collect()
    }

    /// Removes a node. Returns true if it existed.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub async fn delete_node(&self, name: &NodeName) -> Result<bool, StateError> {
        let done = sqlx::query("DELETE FROM nodes WHERE name = ?")
            .bind(name.as_str())
            .execute(self.database.writer())
            .await?;
        Ok(done.rows_affected() > 0)
    }
}
