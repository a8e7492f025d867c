//! The syntax tree of a template.

use super::function::Function;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// Prints the value of the pipeline, unless it declares variables.
    Write(Pipeline),
    If {
        condition: Pipeline,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    /// Like `if`, with the dot set to the value of the condition.
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

/// A chain of commands. Each gets the value of the one before as its last argument.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Pipeline {
    /// Variables that the value is assigned to; two in `range`, for index and element.
    pub(super) names: Vec<String>,
    /// True if the variables are declared here (`:=`), false if they exist (`=`).
    pub(super) declares: bool,
    pub(super) commands: Vec<Command>,
}

/// A function or a value, then its arguments.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Command {
    pub(super) operands: Vec<Operand>,
}

/// A term and the fields after it: `$labels.node`.
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
