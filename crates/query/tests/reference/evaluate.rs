//! The reference: the value of an expression at one time, directly from PromQL's definition.

use domain::series::is_stale;

use super::data::{LOOKBACK_MS, Row};
use super::over;
use super::tree::{At, Binary, Group, Grouping, Names, Over, Selector, Shift, Source, Tree};

pub(crate) type Vector = Vec<Element>;
type Result<T> = std::result::Result<T, String>;

/// One series at one time.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    pub(crate) labels: Names,
    pub(crate) value: f64,
    /// True if the name is dropped at the end of the whole query.
    pub(crate) drops_name: bool,
}

/// The samples of one series within a window, without staleness markers.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(crate) labels: Names,
    pub(crate) drops_name: bool,
    pub(crate) samples: Vec<(i64, f64)>,
}

pub(crate) struct Reference<'a> {
    pub(crate) rows: &'a [Row],
    /// Value of `start()`.
    pub(crate) start_ms: i64,
    pub(crate) end_ms: i64,
}

impl Reference<'_> {
    /// Returns the result at one time: names dropped, each label set once.
    pub(crate) fn result(&self, tree: &Tree, time: i64) -> Result<Vector> {
        unique(self.nameless(tree, time)?)
    }

    /// The same, but label sets may occur twice.
    pub(crate) fn nameless(&self, tree: &Tree, time: i64) -> Result<Vector> {
        let mut vector = self.at(tree, time)?;
        for element in vector.iter_mut().filter(|element| element.drops_name) {
            element.labels.remove("__name__");
            element.drops_name = false;
        }
        Ok(vector)
    }

    fn at(&self, tree: &Tree, time: i64) -> Result<Vector> {
        match tree {
            Tree::Constant(number) => Ok(vec![bare(*number)]),
            Tree::Time => Ok(vec![bare(seconds(time))]),
            Tree::Only(inner) => {
                let inner = self.at(inner, time)?;
                Ok(vec![bare(if inner.len() == 1 {
                    inner[0].value
                } else {
                    f64::NAN
                })])
            }
            Tree::Select(selector) => Ok(self.instant(selector, time).map(|(element, _)| element).collect()),
            Tree::Absent(selector) => Ok(absent(selector, self.instant(selector, time).next().is_none())),
            Tree::AbsentOver(over) => match &over.of {
                Source::Samples(selector) => Ok(absent(selector, self.windows(over, time)?.is_empty())),
                Source::Subquery { .. } => Ok(self
                    .windows(over, time)?
                    .is_empty()
                    .then(|| bare(1.0))
                    .into_iter()
                    .collect()),
            },
            Tree::Over(over) => self.over(over, time),
            Tree::Each("timestamp", inner) => self.timestamp(inner, time),
            Tree::Each(function, inner) => {
                let value = |value: f64| if *function == "abs" { value.abs() } else { -value };
                Ok(self
                    .at(inner, time)?
                    .into_iter()
                    .map(|e| Element {
                        value: value(e.value),
                        drops_name: true,
                        ..e
                    })
                    .collect())
            }
            Tree::Aggregate {
                op,
                param,
                grouping,
                inner,
            } => aggregate(op, *param, grouping, self.at(inner, time)?),
            Tree::WithNumber {
                op,
                is_bool,
                left,
                right,
                is_swapped,
            } => {
                let vector = self.at(left, time)?;
                Ok(vector
                    .into_iter()
                    .filter_map(|e| with_number(op, *is_bool, e, *right, *is_swapped))
                    .collect())
            }
            Tree::Binary(binary) => {
                let (left, right) = (self.at(&binary.left, time)?, self.at(&binary.right, time)?);
                if ["and", "or", "unless"].contains(&binary.op) {
                    unique(set_operation(binary, left, right))
                } else {
                    unique(arithmetic(binary, left, right)?)
                }
            }
        }
    }

    // === selectors ===

    fn look(&self, shift: &Shift, time: i64) -> i64 {
        let time = match shift.at {
            None => time,
            Some(At::Start) => self.start_ms,
            Some(At::End) => self.end_ms,
            Some(At::Time(time)) => time,
        };
        time - shift.offset_ms
    }

    /// Returns the last sample of each series within the lookback, with its time.
    fn instant(&self, selector: &Selector, time: i64) -> impl Iterator<Item = (Element, i64)> {
        let look = self.look(&selector.shift, time);
        let rows = self.rows.iter().filter(|row| selects(selector, &row.labels));
        rows.filter_map(move |row| {
            let mut before = row
                .samples
                .iter()
                .filter(|(at, _)| look - LOOKBACK_MS < *at && *at <= look);
            let (at, value) = before.next_back()?;
            let element = Element {
                labels: row.labels.clone(),
                value: *value,
                drops_name: false,
            };
            (!is_stale(*value)).then_some((element, *at))
        })
    }

    fn timestamp(&self, inner: &Tree, time: i64) -> Result<Vector> {
        let of = |element: Element, at: i64| Element {
            value: seconds(at),
            drops_name: true,
            ..element
        };
        match inner {
            Tree::Select(selector) => Ok(self
                .instant(selector, time)
                .map(|(element, at)| of(element, at))
                .collect()),
            _ => Ok(self
                .at(inner, time)?
                .into_iter()
                .map(|element| of(element, time))
                .collect()),
        }
    }

    /// Returns the samples of each series within `(end - range, end]`. Series without samples are left out.
    fn windows(&self, over: &Over, time: i64) -> Result<Vec<Samples>> {
        let mut found = match &over.of {
            Source::Samples(selector) => {
                let end = self.look(&selector.shift, time);
                let within = |at: i64| end - over.range_ms < at && at <= end;
                let rows = self.rows.iter().filter(|row| selects(selector, &row.labels));
                rows.map(|row| Samples {
                    labels: row.labels.clone(),
                    drops_name: false,
                    samples: row
                        .samples
                        .iter()
                        .copied()
                        .filter(|(at, value)| within(*at) && !is_stale(*value))
                        .collect(),
                })
                .collect()
            }
            Source::Subquery {
                inner,
                step_ms,
                shift,
            } => {
                let end = self.look(shift, time);
                let mut all: Vec<Samples> = Vec::new();
                for at in (end - over.range_ms + 1..=end).filter(|at| at.rem_euclid(*step_ms) == 0) {
                    for element in self.at(inner, at)? {
                        add(&mut all, element, at);
                    }
                }
                all
            }
        };
        found.retain(|series| !series.samples.is_empty());
        Ok(found)
    }

    fn over(&self, over: &Over, time: i64) -> Result<Vector> {
        let end = match &over.of {
            Source::Samples(selector) => self.look(&selector.shift, time),
            Source::Subquery { shift, .. } => self.look(shift, time),
        };
        let of = |series: Samples| {
            let value = over::value(over, &series.samples, end, time)?;
            let keeps_name = ["last_over_time", "first_over_time"].contains(&over.function);
            Some(Element {
                labels: series.labels,
                value,
                drops_name: series.drops_name || !keeps_name,
            })
        };
        Ok(self.windows(over, time)?.into_iter().filter_map(of).collect())
    }
}

fn selects(selector: &Selector, labels: &Names) -> bool {
    if labels["__name__"] != selector.name {
        return false;
    }
    let Some((label, op, value)) = selector.matcher else {
        return true;
    };
    let found = labels.get(label).map_or("", String::as_str);
    match op {
        "=" => found == value,
        "!=" => found != value,
        "=~" => value.split('|').any(|word| word == found),
        _ => !value.split('|').any(|word| word == found),
    }
}

fn add(all: &mut Vec<Samples>, element: Element, at: i64) {
    let same =
        |series: &&mut Samples| series.labels == element.labels && series.drops_name == element.drops_name;
    match all.iter_mut().find(same) {
        Some(series) => series.samples.push((at, element.value)),
        None => {
            let Element {
                labels,
                value,
                drops_name,
            } = element;
            all.push(Samples {
                labels,
                drops_name,
                samples: vec![(at, value)],
            });
        }
    }
}

/// Returns 1 with the labels that the selector sets.
fn absent(selector: &Selector, is_absent: bool) -> Vector {
    let mut element = bare(1.0);
    if let Some((label, "=", value)) = selector.matcher
        && !value.is_empty()
    {
        element.labels.insert(label.to_owned(), value.to_owned());
    }
    is_absent.then_some(element).into_iter().collect()
}

fn bare(value: f64) -> Element {
    Element {
        labels: Names::new(),
        value,
        drops_name: false,
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

fn unique(vector: Vector) -> Result<Vector> {
    for (n, element) in vector.iter().enumerate() {
        if vector[..n]
            .iter()
            .any(|other| other.labels == element.labels && other.drops_name == element.drops_name)
        {
            return Err(format!("{:?} comes twice", element.labels));
        }
    }
    Ok(vector)
}

// === aggregations ===

fn aggregate(op: &str, param: Option<&str>, grouping: &Grouping, vector: Vector) -> Result<Vector> {
    let mut groups: Vec<(Names, Vector)> = Vec::new();
    for element in vector {
        let mut key = grouping.key(&element.labels);
        if op == "count_values" {
            key.insert("value".to_owned(), written(element.value));
        }
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, members)) => members.push(element),
            None => groups.push((key, vec![element])),
        }
    }
    let of = |(labels, members): (Names, Vector)| {
        let values: Vec<f64> = members.iter().map(|member| member.value).collect();
        Element {
            labels,
            value: over::statistic(op, param.and_then(|p| p.parse().ok()), &values),
            drops_name: false,
        }
    };
    Ok(groups.into_iter().map(of).collect())
}

fn written(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        _ => value.to_string(),
    }
}

// === binary operators ===

fn with_number(op: &str, is_bool: bool, element: Element, number: f64, is_swapped: bool) -> Option<Element> {
    let (left, right) = if is_swapped {
        (number, element.value)
    } else {
        (element.value, number)
    };
    match comparison(op, left, right) {
        None => Some(Element {
            value: calculated(op, left, right),
            drops_name: true,
            ..element
        }),
        Some(holds) if is_bool => Some(Element {
            value: f64::from(holds),
            drops_name: true,
            ..element
        }),
        Some(holds) => holds.then_some(element),
    }
}

fn comparison(op: &str, left: f64, right: f64) -> Option<bool> {
    Some(match op {
        "==" => left == right,
        "!=" => left != right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        ">=" => left >= right,
        _ => return None,
    })
}

fn calculated(op: &str, left: f64, right: f64) -> f64 {
    match op {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" => left / right,
        "%" => left % right,
        "^" => left.powf(right),
        "atan2" => left.atan2(right),
        other => panic!("{other} is no operator"),
    }
}

/// Returns the labels by which two elements are matched.
fn signature(binary: &Binary, labels: &Names) -> Names {
    let keeps = |name: &str| match binary.is_on {
        true => binary.labels.contains(&name),
        false => name != "__name__" && !binary.labels.contains(&name),
    };
    labels
        .iter()
        .filter(|(name, _)| keeps(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn set_operation(binary: &Binary, left: Vector, right: Vector) -> Vector {
    let is_in = |vector: &Vector, element: &Element| {
        let wanted = signature(binary, &element.labels);
        vector
            .iter()
            .any(|other| signature(binary, &other.labels) == wanted)
    };
    match binary.op {
        "and" => left
            .into_iter()
            .filter(|element| is_in(&right, element))
            .collect(),
        "unless" => left
            .into_iter()
            .filter(|element| !is_in(&right, element))
            .collect(),
        _ => {
            let added: Vector = right
                .into_iter()
                .filter(|element| !is_in(&left, element))
                .collect();
            left.into_iter().chain(added).collect()
        }
    }
}

fn arithmetic(binary: &Binary, left: Vector, right: Vector) -> Result<Vector> {
    if left.is_empty() || right.is_empty() {
        return Ok(Vec::new());
    }
    let is_swapped = matches!(binary.group, Group::Right(_));
    let (many, one) = if is_swapped { (right, left) } else { (left, right) };
    for (n, element) in one.iter().enumerate() {
        let wanted = signature(binary, &element.labels);
        if one[..n]
            .iter()
            .any(|other| signature(binary, &other.labels) == wanted)
        {
            return Err(format!("two partners for {wanted:?}"));
        }
    }
    let mut results: Vector = Vec::new();
    // Matches so far: the labels that were compared, and the labels of the result. Includes results that a comparison filters out.
    let mut matched: Vec<(Names, Names)> = Vec::new();
    for element in many {
        let wanted = signature(binary, &element.labels);
        let Some(partner) = one
            .iter()
            .find(|other| signature(binary, &other.labels) == wanted)
        else {
            continue;
        };
        let (l, r) = if is_swapped {
            (partner.value, element.value)
        } else {
            (element.value, partner.value)
        };
        let labels = result_labels(binary, &element.labels, &partner.labels);
        let is_again = match binary.group {
            Group::None => matched.iter().any(|(by, _)| *by == wanted),
            _ => matched
                .iter()
                .any(|(by, result)| *by == wanted && *result == labels),
        };
        if is_again {
            return Err(format!("{wanted:?} matches twice"));
        }
        matched.push((wanted, labels.clone()));
        match comparison(binary.op, l, r) {
            None => results.push(Element {
                labels,
                value: calculated(binary.op, l, r),
                drops_name: element.drops_name,
            }),
            Some(holds) if binary.is_bool => results.push(Element {
                labels,
                value: f64::from(holds),
                drops_name: true,
            }),
            Some(true) => results.push(Element {
                labels,
                value: l,
                drops_name: element.drops_name,
            }),
            Some(false) => {}
        }
    }
    Ok(results)
}

fn result_labels(binary: &Binary, many: &Names, one: &Names) -> Names {
    let mut labels = many.clone();
    if comparison(binary.op, 0.0, 0.0).is_none() {
        labels.remove("__name__");
    }
    let include = match binary.group {
        Group::None => {
            labels.retain(|name, _| binary.labels.contains(&name.as_str()) == binary.is_on);
            return labels;
        }
        Group::Left(include) | Group::Right(include) => include,
    };
    for name in include {
        match one.get(*name) {
            Some(value) => labels.insert((*name).to_owned(), value.clone()),
            None => labels.remove(*name),
        };
    }
    labels
}
