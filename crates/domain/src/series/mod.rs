//! Time series: label sets, matchers, batches of samples, and the interface through which a query reads series.

pub mod batch;
pub mod labels;
pub mod matcher;
pub mod source;

pub use batch::{ABSENT, Frame, STALE, is_absent, is_stale};
pub use labels::{Label, Labels, LabelsError, METRIC_NAME};
pub use matcher::{MatchOp, Matcher};
pub use source::{Budget, BudgetExceeded, Pool, SelectError, Selection, Series, SeriesSet, SeriesSource};
