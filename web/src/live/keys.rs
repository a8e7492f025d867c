//! The keys of the items in lists of the stream and the API.

use domain::api::alerts::{AlertView, Diagnosis, RuleView, WebhookView};
use domain::api::checkpoints::CheckpointView;
use domain::api::lists::ListItem;
use domain::api::nodes::NodeView;
use domain::api::runs::{AttemptView, NodeTaskView, RankView, RunSummary};
use domain::api::silences::SilenceView;

use super::list::Keyed;

impl Keyed for RunSummary {
    fn key(&self) -> String {
        ListItem::key(self)
    }
}

impl Keyed for Diagnosis {
    fn key(&self) -> String {
        ListItem::key(self)
    }
}

impl Keyed for AlertView {
    /// The history contains one entry for each time that an alert fired.
    fn key(&self) -> String {
        format!("{}@{}", self.fingerprint, self.active_ms)
    }
}

impl Keyed for RuleView {
    fn key(&self) -> String {
        format!("{}/{}/{}{}", self.file, self.group, self.name, self.labels)
    }
}

impl Keyed for WebhookView {
    fn key(&self) -> String {
        self.id.clone()
    }
}

impl Keyed for SilenceView {
    fn key(&self) -> String {
        self.id.clone()
    }
}

impl Keyed for NodeView {
    fn key(&self) -> String {
        ListItem::key(self)
    }
}

impl Keyed for CheckpointView {
    fn key(&self) -> String {
        self.path.clone()
    }
}

impl Keyed for AttemptView {
    fn key(&self) -> String {
        self.attempt.to_string()
    }
}

impl Keyed for NodeTaskView {
    fn key(&self) -> String {
        self.node.clone()
    }
}

impl Keyed for RankView {
    fn key(&self) -> String {
        self.rank.to_string()
    }
}
