//! Aggregations that combine the values of a group: `sum`, `avg`, `min`, …

use std::collections::HashMap;

use domain::series::{ABSENT, Labels, METRIC_NAME, is_absent};

use super::column::{Column, absent_values};
use super::numeric::{Mean, Sum, Variance, quantile};
use super::value_label::value_label;
use super::{Evaluator, Result};
use crate::error::EvalError;
use crate::expr::{Aggregate, AggregateOp, Expr, Grouping};

use crate::plan::Grid;

/// Series that are aggregated together.
pub(super) struct Group {
    pub(super) labels: Labels,
    pub(super) drop_name: bool,
    /// Indexes of columns.
    pub(super) members: Vec<usize>,
}

impl Evaluator<'_> {
    pub(super) fn aggregate(&self, aggregate: &Aggregate, grid: Grid) -> Result<Vec<Column>> {
        // The parameter is evaluated first, because its errors do not depend on the data.
        let param = aggregate.param.as_ref();
        let columns = match aggregate.op {
            AggregateOp::Topk | AggregateOp::Bottomk | AggregateOp::Limitk => {
                return self.ranked(aggregate, param, grid);
            }
            AggregateOp::LimitRatio => return self.limit_ratio(aggregate, param, grid),
            AggregateOp::CountValues => return self.count_values(aggregate, param, grid),
            _ => self.vector(&aggregate.expr, grid)?,
        };
        let groups = grouped(&columns, &aggregate.grouping);
        Ok(match aggregate.op {
            AggregateOp::Sum => aggregated::<Total>(&columns, groups, grid),
            AggregateOp::Avg => aggregated::<Mean>(&columns, groups, grid),
            AggregateOp::Min => aggregated::<Extreme<false>>(&columns, groups, grid),
            AggregateOp::Max => aggregated::<Extreme<true>>(&columns, groups, grid),
            AggregateOp::Count => aggregated::<Count>(&columns, groups, grid),
            AggregateOp::Group => aggregated::<One>(&columns, groups, grid),
            AggregateOp::Stdvar => aggregated::<Variance>(&columns, groups, grid),
            AggregateOp::Stddev => {
                let mut columns = aggregated::<Variance>(&columns, groups, grid);
                let values = columns.iter_mut().flat_map(|column| &mut column.values);
                values
                    .filter(|value| !is_absent(**value))
                    .for_each(|value| *value = value.sqrt());
                columns
            }
            _ => self.quantiles(&columns, groups, param, grid)?,
        })
    }

    fn quantiles(
        &self,
        columns: &[Column],
        groups: Vec<Group>,
        param: Option<&Expr>,
        grid: Grid,
    ) -> Result<Vec<Column>> {
        let param = param.ok_or_else(|| EvalError::execution("quantile needs a parameter"))?;
        let quantiles = self.scalar(param, grid)?;
        self.warn_of_quantiles(&quantiles);
        let mut present = Vec::new();
        let mut of_group = |group: Group| {
            let mut value_at = |step: usize| {
                present.clear();
                let values = group.members.iter().map(|member| columns[*member].values[step]);
                present.extend(values.filter(|value| !is_absent(*value)));
                if present.is_empty() {
                    ABSENT
                } else {
                    quantile(quantiles[step], &mut present)
                }
            };
            let values = (0..grid.count).map(&mut value_at).collect();
            Column {
                labels: group.labels,
                drop_name: group.drop_name,
                values,
            }
        };
        Ok(groups.into_iter().map(&mut of_group).collect())
    }

    /// `count_values("label", v)`: the number of series with each value.
    fn count_values(&self, aggregate: &Aggregate, param: Option<&Expr>, grid: Grid) -> Result<Vec<Column>> {
        let param = param.ok_or_else(|| EvalError::execution("count_values needs a label name"))?;
        let name = self.text(param, grid)?;
        if name.is_empty() {
            return Err(EvalError::execution(format!("invalid label name {name:?}")));
        }
        let columns = self.vector(&aggregate.expr, grid)?;
        let mut places: HashMap<Labels, usize> = HashMap::new();
        let mut counts: Vec<Column> = Vec::new();
        for group in grouped(&columns, &aggregate.grouping) {
            for column in group.members.iter().map(|member| &columns[*member]) {
                for (step, value) in column
                    .values
                    .iter()
                    .enumerate()
                    .filter(|(_, value)| !is_absent(**value))
                {
                    let labels = group.labels.with(&name, &value_label(*value));
                    let place = match places.get(&labels) {
                        Some(place) => *place,
                        None => {
                            // Each distinct value makes a series. This is the only aggregation that can have more results than inputs.
                            self.take_cells_from_budget(1, grid)?;
                            places.insert(labels.clone(), counts.len());
                            counts.push(Column {
                                labels,
                                drop_name: group.drop_name,
                                values: absent_values(grid.count),
                            });
                            counts.len() - 1
                        }
                    };
                    let count = &mut counts[place].values[step];
                    *count = if is_absent(*count) { 1.0 } else { *count + 1.0 };
                }
            }
        }
        Ok(counts)
    }
}

/// Returns the groups in the order of their first series.
pub(super) fn grouped(columns: &[Column], grouping: &Grouping) -> Vec<Group> {
    let mut places: HashMap<Labels, usize> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let labels = match grouping {
            Grouping::By(names) if names.is_empty() => Labels::empty(),
            Grouping::By(names) => column.labels.filtered(|name| names.iter().any(|by| by == name)),
            Grouping::Without(names) => column
                .labels
                .filtered(|name| name != METRIC_NAME && !names.iter().any(|without| without == name)),
        };
        let place = *places.entry(labels.clone()).or_insert_with(|| {
            groups.push(Group {
                labels,
                drop_name: false,
                members: Vec::new(),
            });
            groups.len() - 1
        });
        groups[place].drop_name |= column.drop_name;
        groups[place].members.push(at);
    }
    groups
}

/// State of an aggregation at one step.
trait Fold: Clone + Default {
    fn add(&mut self, value: f64);
    fn finish(self) -> f64;
}

/// Processes one column after another, so that memory is read in order. `seen` marks the steps with a value.
fn aggregated<F: Fold>(columns: &[Column], groups: Vec<Group>, grid: Grid) -> Vec<Column> {
    let fold_group = |group: Group| {
        let (mut seen, mut folds) = (vec![false; grid.count], vec![F::default(); grid.count]);
        for column in group.members.iter().map(|member| &columns[*member]) {
            for ((seen, fold), value) in seen.iter_mut().zip(&mut folds).zip(&column.values) {
                if !is_absent(*value) {
                    *seen = true;
                    fold.add(*value);
                }
            }
        }
        let values = folds
            .into_iter()
            .zip(seen)
            .map(|(fold, seen)| if seen { fold.finish() } else { ABSENT })
            .collect();
        Column {
            labels: group.labels,
            drop_name: group.drop_name,
            values,
        }
    };
    groups.into_iter().map(fold_group).collect()
}

#[derive(Clone, Default)]
struct Total(Sum);
/// The greatest or the least value. NaN at first, and replaced by any value.
#[derive(Clone)]
struct Extreme<const IS_GREATEST: bool>(f64);
#[derive(Clone, Default)]
struct Count(f64);
#[derive(Clone, Default)]
struct One;

impl Fold for Total {
    fn add(&mut self, value: f64) {
        self.0.add(value);
    }

    fn finish(self) -> f64 {
        self.0.total()
    }
}

impl Fold for Mean {
    fn add(&mut self, value: f64) {
        Mean::add(self, value);
    }

    fn finish(self) -> f64 {
        self.value()
    }
}

impl Fold for Variance {
    fn add(&mut self, value: f64) {
        Variance::add(self, value);
    }

    fn finish(self) -> f64 {
        self.value()
    }
}

impl<const IS_GREATEST: bool> Default for Extreme<IS_GREATEST> {
    fn default() -> Self {
        Self(f64::NAN)
    }
}

impl<const IS_GREATEST: bool> Fold for Extreme<IS_GREATEST> {
    /// NaN is replaced by any number.
    fn add(&mut self, value: f64) {
        let is_better = if IS_GREATEST {
            value > self.0
        } else {
            value < self.0
        };
        if is_better || self.0.is_nan() {
            self.0 = value;
        }
    }

    fn finish(self) -> f64 {
        self.0
    }
}

impl Fold for Count {
    fn add(&mut self, _: f64) {
        self.0 += 1.0;
    }

    fn finish(self) -> f64 {
        self.0
    }
}

impl Fold for One {
    fn add(&mut self, _: f64) {}

    fn finish(self) -> f64 {
        1.0
    }
}
