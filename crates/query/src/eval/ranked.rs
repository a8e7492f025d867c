//! Aggregations that select series instead of combining them: `topk`, `bottomk`, `limitk`.

use domain::series::is_absent;

use super::aggregate::grouped;
use super::column::{Column, absent_values};
use super::labels::by_value;
use super::{Evaluator, Result};
use crate::error::EvalError;
use crate::expr::{Aggregate, AggregateOp, Expr};
use crate::format;
use crate::plan::Grid;

impl Evaluator<'_> {
    pub(super) fn ranked(
        &self,
        aggregate: &Aggregate,
        param: Option<&Expr>,
        grid: Grid,
    ) -> Result<Vec<Column>> {
        let param = param.ok_or_else(|| EvalError::execution("the aggregation needs a parameter"))?;
        let limits = self
            .scalar(param, grid)?
            .into_iter()
            .map(limit)
            .collect::<Result<Vec<_>>>()?;
        let mut columns = self.vector(&aggregate.expr, grid)?;
        let mut order = Vec::with_capacity(columns.len());
        for group in grouped(&columns, &aggregate.grouping) {
            self.budget.check_cancelled()?;
            let mut picked = vec![Vec::new(); group.members.len()];
            let mut ranked: Vec<(f64, usize)> = Vec::with_capacity(group.members.len());
            for (step, limit) in limits.iter().enumerate() {
                let values = group.members.iter().map(|member| columns[*member].values[step]);
                ranked.clear();
                ranked.extend(values.zip(0..).filter(|(value, _)| !is_absent(*value)));
                if aggregate.op != AggregateOp::Limitk {
                    best_first(&mut ranked, *limit, aggregate.op == AggregateOp::Topk);
                }
                ranked.truncate(*limit);
                for (value, rank) in &ranked {
                    if picked[*rank].is_empty() {
                        picked[*rank] = absent_values(grid.count);
                    }
                    picked[*rank][step] = *value;
                }
            }
            let mut ranks: Vec<usize> = ranked.iter().map(|(_, rank)| *rank).collect();
            // In an instant query the order is part of the result. In a range query or sub-query the order is by labels.
            if !self.is_instant || grid.count > 1 {
                ranks = (0..group.members.len()).collect();
            }
            order.extend(ranks.iter().map(|rank| group.members[*rank]));
            for (member, values) in group.members.iter().zip(picked) {
                columns[*member].values = values;
            }
        }
        let mut columns: Vec<Option<Column>> = columns.into_iter().map(Some).collect();
        let mut chosen: Vec<Column> = order.into_iter().filter_map(|at| columns[at].take()).collect();
        chosen.retain(|column| !column.is_empty());
        Ok(chosen)
    }
}

/// Moves the best `limit` values to the front and sorts them. Of equal values, the one that came first is before the other. The order of
/// the rest is undefined.
fn best_first(ranked: &mut [(f64, usize)], limit: usize, is_descending: bool) {
    let order = |a: &(f64, usize), b: &(f64, usize)| by_value(a.0, b.0, is_descending).then(a.1.cmp(&b.1));
    if limit == 0 {
        return;
    }
    let best = if limit < ranked.len() {
        ranked.select_nth_unstable_by(limit - 1, order);
        &mut ranked[..limit]
    } else {
        ranked
    };
    best.sort_unstable_by(order);
}

/// Returns the number of series to select.
fn limit(param: f64) -> Result<usize> {
    if param.is_nan() {
        return Err(EvalError::execution("Parameter value is NaN"));
    }
    if param >= i64::MAX as f64 {
        return Err(EvalError::execution(format!(
            "Scalar value {} overflows int64",
            shown(param)
        )));
    }
    if param <= i64::MIN as f64 {
        return Err(EvalError::execution(format!(
            "Scalar value {} underflows int64",
            shown(param)
        )));
    }
    // The cast of a negative number saturates at zero.
    Ok(param as usize)
}

/// Prints a large number as Go does.
fn shown(param: f64) -> String {
    if param.is_infinite() || param.abs() < 1e21 {
        return format::float(param);
    }
    format!("{param:e}").replace('e', "e+")
}
