//! What templates calculate with.

use std::sync::Arc;

use crate::series::Labels;

/// A value, as Go would hold it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    Labels(Labels),
    /// One of a query's answers.
    Sample(Labels, f64),
    /// A query's answers.
    Samples(Arc<[(Labels, f64)]>),
    /// Named `arg0`, `arg1`, …
    Args(Arc<[Value]>),
    /// Milliseconds of the epoch.
    Time(i64),
    /// Seconds.
    Duration(f64),
    /// What the template is filled in with.
    Data,
}

impl Value {
    pub(super) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// What `if`, `and`, `or` and `not` take for true: what is not zero or empty.
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

    /// Go's name of its type, for messages.
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

    /// A number, or a text that is one.
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
