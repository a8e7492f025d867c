//! Time series: what names them, what selects them, how samples travel, and how a query reads them.

pub mod batch;
pub mod labels;
pub mod matcher;
pub mod source;

pub use batch::{ABSENT, Frame, STALE, is_absent, is_stale};
pub use labels::{Label, Labels, LabelsError, METRIC_NAME};
pub use matcher::{MatchOp, Matcher};
pub use source::{Budget, BudgetExceeded, Pool, SelectError, Selection, Series, SeriesSet, SeriesSource};
