//! `absent` and `absent_over_time`: 1 where there is no sample, with the labels of the selector.

use std::sync::Arc;

use domain::series::{ABSENT, Labels, METRIC_NAME, MatchOp, Matcher, is_absent};

use super::column::Column;
use super::{Evaluator, Result};
use crate::expr::Expr;
use crate::function::Function;
use crate::plan::Grid;

impl Evaluator<'_> {
    pub(super) fn absent(&self, arg: &Expr, grid: Grid) -> Result<Vec<Column>> {
        let columns = self.vector(arg, grid)?;
        Ok(absent_where(&columns, arg, grid))
    }

    pub(super) fn absent_over_time(&self, arg: &Expr, grid: Grid) -> Result<Vec<Column>> {
        let ranges = self.ranges(arg, grid, Some(Function::AbsentOverTime))?;
        let columns = self.over_windows(ranges, grid, true, |_, _| Some(1.0))?;
        Ok(absent_where(&columns, arg, grid))
    }
}

fn absent_where(columns: &[Column], arg: &Expr, grid: Grid) -> Vec<Column> {
    let mut values = vec![1.0; grid.count];
    for column in columns {
        for (value, _) in values
            .iter_mut()
            .zip(&column.values)
            .filter(|(_, there)| !is_absent(**there))
        {
            *value = ABSENT;
        }
    }
    let column = Column {
        labels: labels_asked_for(arg),
        drop_name: false,
        values,
    };
    if column.is_empty() {
        Vec::new()
    } else {
        vec![column]
    }
}

/// Returns the labels that a selector sets with `=`, unless it has other matchers for the same label.
fn labels_asked_for(arg: &Expr) -> Labels {
    let matchers: &[Matcher] = match arg {
        Expr::Select(selector) | Expr::Window { selector, .. } => &selector.matchers,
        _ => &[],
    };
    let is_alone =
        |matcher: &&Matcher| matchers.iter().filter(|other| other.name == matcher.name).count() == 1;
    let fixed = matchers
        .iter()
        .filter(|matcher| matcher.op == MatchOp::Equal && matcher.name != METRIC_NAME);
    let pairs = fixed
        .filter(is_alone)
        .map(|matcher| (Arc::from(&*matcher.name), Arc::from(&*matcher.value)));
    Labels::from_trusted(pairs)
}
