//! Aggregations that pick series instead of folding them: `topk`, `bottomk`, `limitk`.

use domain::series::is_absent;

use super::aggregate::grouped;
use super::column::{Column, holes};
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
            let mut picked = vec![holes(grid.count); group.members.len()];
            let mut ranks: Vec<usize> = Vec::with_capacity(group.members.len());
            for (step, limit) in limits.iter().enumerate() {
                let value = |rank: &usize| columns[group.members[*rank]].values[step];
                ranks.clear();
                ranks.extend((0..group.members.len()).filter(|rank| !is_absent(value(rank))));
                if aggregate.op != AggregateOp::Limitk {
                    let is_descending = aggregate.op == AggregateOp::Topk;
                    ranks.sort_by(|a, b| by_value(value(a), value(b), is_descending));
                }
                ranks.truncate(*limit);
                ranks.iter().for_each(|rank| picked[*rank][step] = value(rank));
            }
            // At an instant the order is part of the answer; over time it is by labels.
            if !self.is_instant {
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

/// How many series to pick.
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
    // A negative cast saturates at zero.
    Ok(param as usize)
}

/// A large number as Go writes it.
fn shown(param: f64) -> String {
    if param.is_infinite() || param.abs() < 1e21 {
        return format::float(param);
    }
    format!("{param:e}").replace('e', "e+")
}
