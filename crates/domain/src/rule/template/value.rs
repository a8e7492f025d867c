//! Values of templates.

use std::sync::Arc;

use crate::series::Labels;

/// A value of a template, with Go's types.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    Labels(Labels),
    /// One sample of a query result.
    Sample(Labels, f64),
    /// All samples of a query result.
    Samples(Arc<[(Labels, f64)]>),
    /// Arguments, named `arg0`, `arg1`, …
    Args(Arc<[Value]>),
    /// Milliseconds since the epoch.
    Time(i64),
    /// Seconds.
    Duration(f64),
    /// The data with which the template is expanded.
    Data,
}

impl Value {
    pub(super) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// Returns true if `if`, `and`, `or` and `not` treat the value as true: it is not zero and not empty.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(is) => *is,
            Self::Int(int) => *int != 0,
            Self::Float(float) => *float != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::Labels(labels) => !labels.is_empty(),
            Self::Samples(samples) => !samples.is_empty(),
            Self::Args(args) => !args.is_empty(),
            Self::Duration(seconds) => *seconds != 0.0,
            Self::Sample(..) | Self::Time(_) | Self::Data => true,
        }
    }

    /// Returns Go's name of the type, for error messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::Labels(_) => "map[string]string",
            Self::Sample(..) => "*template.sample",
            Self::Samples(_) => "template.queryResult",
            Self::Args(_) => "map[string]interface {}",
            Self::Time(_) => "*time.Time",
            Self::Duration(_) => "*time.Duration",
            Self::Data => "struct",
        }
    }

    /// Returns the value as a number. A text is parsed.
    pub(super) fn number(&self) -> Result<f64, String> {
        match self {
            Self::Float(float) => Ok(*float),
            Self::Int(int) => Ok(*int as f64),
            Self::Duration(seconds) => Ok(*seconds),
            Self::Text(text) => match text.as_ref() {
                "+Inf" | "Inf" => Ok(f64::INFINITY),
                text => text
                    .parse()
                    .map_err(|_| format!("strconv.ParseFloat: parsing {text:?}: invalid syntax")),
            },
            other => Err(format!("can't convert {} to float", other.type_name())),
        }
    }
}
