//! Templates in labels and annotations: the part of Go's template language, with Prometheus' functions, that rule files use.
//!
//! ```text
//! text ─ lex ─▶ texts and actions ─ parse ─▶ Template ─ run(Data) ─▶ text
//!                                   └ unknown variables and functions are refused here, when the file is read
//! ```
//! Pure: what `query` answers is the caller's part. Bounded in what is read, done and written, so that no rule file can hold up
//! or fill the process. Not there: `define`, `template` and `block`, and methods but a few of times.

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

use crate::rule::instance::Surroundings;
use crate::series::Labels;

/// The longest template, and the longest text one may give: some pages, more than a message takes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// How deep blocks and brackets may nest.
const DEPTH_MAX: usize = 32;
/// Actions one expansion may carry out, loops included.
const STEPS_MAX: usize = 100_000;

/// A template that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    nodes: Vec<tree::Node>,
}

/// What a template is filled in with.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    /// The sample's labels: `$labels`.
    pub labels: &'a Labels,
    /// The sample's value: `$value`.
    pub value: f64,
    /// The rest.
    pub surroundings: Surroundings<'a>,
}

/// A template that cannot be read, or not be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Longer than [`TEXT_BYTES_MAX`].
    #[error("the template has {0} bytes, more than the {TEXT_BYTES_MAX} allowed")]
    TooLong(usize),
    /// Not the template language.
    #[error("{0}")]
    Syntax(String),
    /// A variable that is not declared.
    #[error("undefined variable {0:?}")]
    UndefinedVariable(String),
    /// A function that is not there.
    #[error("function {0:?} not defined")]
    UndefinedFunction(String),
    /// Part of Go's language, but not of this one.
    #[error("{0:?} is not supported")]
    Unsupported(String),
    /// A function that cannot do what it was asked to.
    #[error("error calling {function}: {message}")]
    Calling {
        /// Its name.
        function: &'static str,
        /// Why.
        message: String,
    },
    /// Values that do not fit.
    #[error("{0}")]
    Execution(String),
    /// Too much work or text.
    #[error("the template {0}")]
    TooMuch(&'static str),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TemplateError::TooLong(text.len()));
        }
        let nodes = parse::nodes(lex::pieces(text)?)?;
        Ok(Self { nodes })
    }

    /// Fills it in.
    ///
    /// # Errors
    /// What could not be done.
    pub fn expand(&self, data: &Data<'_>) -> Result<String, TemplateError> {
        // Most texts are just that.
        match &self.nodes[..] {
            [] => Ok(String::new()),
            [tree::Node::Text(text)] => Ok(text.clone()),
            nodes => run::run(nodes, data),
        }
    }
}

#[cfg(test)]
mod tests;
