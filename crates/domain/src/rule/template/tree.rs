//! A template as a tree.

use super::function::Function;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// Its value is written, unless it declares variables.
    Write(Pipeline),
    If {
        condition: Pipeline,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    /// Like `if`, with the dot set to the condition's value.
    With {
        subject: Pipeline,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Range {
        over: Pipeline,
        each: Vec<Node>,
        otherwise: Vec<Node>,
    },
    Break,
    Continue,
}

/// Commands, each given the value of the one before as its last argument.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Pipeline {
    /// Variables that get its value; two in `range`, for index and element.
    pub(super) names: Vec<String>,
    /// Whether the variables are new (`:=`) or there already (`=`).
    pub(super) declares: bool,
    pub(super) commands: Vec<Command>,
}

/// What is called or looked up, then its arguments.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Command {
    pub(super) operands: Vec<Operand>,
}

/// A term and the fields behind it: `$labels.node`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operand {
    pub(super) term: Term,
    pub(super) fields: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Term {
    Dot,
    Variable(String),
    Function(Function),
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    Nil,
    Nested(Pipeline),
}
