//! Templates in labels and annotations: the part of Go's template language, with Prometheus' functions, that rule files use.
//!
//! ```text
//! text ─ lex ─▶ texts and actions ─ parse ─▶ Template ─ run(Data) ─▶ text
//!                                   └ unknown variables and functions are rejected here, when the file is read
//! ```
//! This module is pure: the caller evaluates `query`. Input, work and output are limited, so that no rule file can block the process or use
//! up its memory. Not supported: `define`, `template` and `block`, and methods except some of times.

mod lex;
mod parse;
mod tree;

mod run;
mod value;

mod function;
mod number;
mod print;
mod text;
mod time;

use crate::rule::instance::ExpansionContext;
use crate::series::Labels;

/// Maximum size of a template and of its result in bytes: a few pages, more than a notification contains.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// Maximum nesting depth of blocks and brackets.
const DEPTH_MAX: usize = 32;
/// Maximum number of steps of one expansion, including loops.
const STEPS_MAX: usize = 100_000;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    nodes: Vec<tree::Node>,
}

/// Data with which a template is expanded.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    /// Labels of the sample: `$labels`.
    pub labels: &'a Labels,
    /// Value of the sample: `$value`.
    pub value: f64,
    /// Data other than the sample.
    pub context: ExpansionContext<'a>,
}

/// Why a template cannot be parsed or expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is longer than [`TEXT_BYTES_MAX`].
    #[error("the template has {0} bytes, more than the {TEXT_BYTES_MAX} allowed")]
    TooLong(usize),
    /// A syntax error.
    #[error("{0}")]
    Syntax(String),
    /// A variable that is not declared.
    #[error("undefined variable {0:?}")]
    UndefinedVariable(String),
    /// A function that does not exist.
    #[error("function {0:?} not defined")]
    UndefinedFunction(String),
    /// A part of Go's template language that is not supported here.
    #[error("{0:?} is not supported")]
    Unsupported(String),
    /// A function call failed.
    #[error("error calling {function}: {message}")]
    Calling {
        /// Name of the function.
        function: &'static str,
        /// Why it failed.
        message: String,
    },
    /// A value has the wrong type.
    #[error("{0}")]
    Execution(String),
    /// Too many steps, or the result is too long.
    #[error("the template {0}")]
    TooMuch(&'static str),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns what is wrong with the template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TemplateError::TooLong(text.len()));
        }
        let nodes = parse::nodes(lex::pieces(text)?)?;
        Ok(Self { nodes })
    }

    /// Expands the template.
    ///
    /// # Errors
    /// Returns what failed.
    pub fn expand(&self, data: &Data<'_>) -> Result<String, TemplateError> {
        // Most templates contain only text.
        match &self.nodes[..] {
            [] => Ok(String::new()),
            [tree::Node::Text(text)] => Ok(text.clone()),
            nodes => run::run(nodes, data),
        }
    }
}

#[cfg(test)]
mod tests;
