//! Expands a template by walking over its tree.

use super::function;
use super::print;
use super::time;
use super::tree::{Command, Node, Operand, Pipeline, Term};
use super::value::Value;
use super::{Data, STEPS_MAX, TEXT_BYTES_MAX, TemplateError};

/// Bytes of a function's arguments and result that count as one step.
const BYTES_PER_STEP: usize = 64;
/// Bytes counted per sample, for a clone and some comparisons.
const SAMPLE_BYTES: usize = 8;

type Result<T> = std::result::Result<T, TemplateError>;

/// Expands the nodes. The dot is the template's data.
pub(super) fn run(nodes: &[Node], data: &Data<'_>) -> Result<String> {
    let variables = [
        ("$", Value::Data),
        ("$labels", Value::Labels(data.labels.clone())),
        (
            "$externalLabels",
            Value::Labels(data.context.external_labels.clone()),
        ),
        ("$externalURL", Value::text(data.context.external_url)),
        ("$value", Value::Float(data.value)),
    ];
    let mut run = Run {
        data,
        variables: variables.to_vec(),
        out: String::new(),
        steps: 0,
    };
    run.nodes(nodes, &Value::Data)?;
    Ok(run.out)
}

struct Run<'a> {
    data: &'a Data<'a>,
    variables: Vec<(&'a str, Value)>,
    out: String,
    steps: usize,
}

/// Where the expansion continues after a node.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

fn failed<T>(message: impl Into<String>) -> Result<T> {
    Err(TemplateError::Execution(message.into()))
}

impl<'a> Run<'a> {
    fn nodes(&mut self, nodes: &'a [Node], dot: &Value) -> Result<Flow> {
        for node in nodes {
            let flow = self.node(node, dot)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    /// Expands a block. The variables declared in it end with it.
    fn block(&mut self, nodes: &'a [Node], dot: &Value) -> Result<Flow> {
        let outside = self.variables.len();
        let flow = self.nodes(nodes, dot);
        self.variables.truncate(outside);
        flow
    }

    fn node(&mut self, node: &'a Node, dot: &Value) -> Result<Flow> {
        self.step()?;
        match node {
            Node::Text(text) => self.write(text)?,
            Node::Write(pipeline) => {
                let value = self.pipeline(pipeline, dot)?;
                if pipeline.names.is_empty() {
                    self.write(&print::plain(&value))?;
                }
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
            Node::If {
                condition: head,
                then,
                otherwise,
            }
            | Node::With {
                subject: head,
                then,
                otherwise,
            } => {
                let outside = self.variables.len();
                let value = self.pipeline(head, dot)?;
                let flow = match (value.is_true(), node) {
                    (false, _) => self.block(otherwise, dot),
                    (true, Node::With { .. }) => self.block(then, &value),
                    (true, _) => self.block(then, dot),
                };
                self.variables.truncate(outside);
                return flow;
            }
            Node::Range {
                over,
                each,
                otherwise,
            } => return self.range(over, each, otherwise, dot),
        }
        Ok(Flow::On)
    }

    fn range(
        &mut self,
        over: &'a Pipeline,
        each: &'a [Node],
        otherwise: &'a [Node],
        dot: &Value,
    ) -> Result<Flow> {
        let outside = self.variables.len();
        let value = self.commands(over, dot)?;
        let elements = elements(&value)?;
        if elements.is_empty() {
            return self.block(otherwise, dot);
        }
        for (key, element) in elements {
            self.step()?;
            self.take_element(over, key, &element)?;
            let flow = self.block(each, &element)?;
            self.variables.truncate(outside);
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    /// Sets the variables of a `range`: index and element, or the element alone.
    fn take_element(&mut self, over: &'a Pipeline, key: Value, element: &Value) -> Result<()> {
        let values = match over.names.len() {
            2 => vec![key, element.clone()],
            _ => vec![element.clone()],
        };
        for (name, value) in over.names.iter().zip(values) {
            self.set(name, value, over.declares)?;
        }
        Ok(())
    }

    fn set(&mut self, name: &'a str, value: Value, declares: bool) -> Result<()> {
        if declares {
            self.variables.push((name, value));
            return Ok(());
        }
        match self.variables.iter_mut().rev().find(|(known, _)| *known == name) {
            Some((_, slot)) => *slot = value,
            None => return Err(TemplateError::UndefinedVariable(name.to_owned())),
        }
        Ok(())
    }

    fn pipeline(&mut self, pipeline: &'a Pipeline, dot: &Value) -> Result<Value> {
        let value = self.commands(pipeline, dot)?;
        for name in &pipeline.names {
            self.set(name, value.clone(), pipeline.declares)?;
        }
        Ok(value)
    }

    fn commands(&mut self, pipeline: &'a Pipeline, dot: &Value) -> Result<Value> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(self.command(command, dot, last)?);
        }
        Ok(last.unwrap_or(Value::Nil))
    }

    fn command(&mut self, command: &'a Command, dot: &Value, last: Option<Value>) -> Result<Value> {
        self.step()?;
        let (first, rest) = command
            .operands
            .split_first()
            .expect("a command has an operand, or is not parsed");
        let Term::Function(function) = first.term else {
            let mut arguments = self.arguments(rest, dot)?;
            arguments.extend(last);
            return self.look_up(first, dot, &arguments);
        };
        if let Some(chosen) = self.short_cut(function, rest, dot, last.as_ref())? {
            return Ok(chosen);
        }
        let mut arguments = self.arguments(rest, dot)?;
        arguments.extend(last);
        let value = self.call(function, &arguments)?;
        self.fields(value, &first.fields, &[])
    }

    /// Evaluates `and` and `or`, which evaluate only as many arguments as needed. Returns `None` for other functions.
    fn short_cut(
        &mut self,
        function: function::Function,
        rest: &'a [Operand],
        dot: &Value,
        last: Option<&Value>,
    ) -> Result<Option<Value>> {
        let stops_at = match function {
            function::Function::And => false,
            function::Function::Or => true,
            _ => return Ok(None),
        };
        let mut value = None;
        for operand in rest {
            let found = self.operand(operand, dot)?;
            let stops = found.is_true() == stops_at;
            value = Some(found);
            if stops {
                return Ok(value);
            }
        }
        match last.cloned().or(value) {
            Some(value) => Ok(Some(value)),
            None => failed("wrong number of args for and/or: want at least 1 got 0"),
        }
    }

    fn arguments(&mut self, operands: &'a [Operand], dot: &Value) -> Result<Vec<Value>> {
        operands
            .iter()
            .map(|operand| self.operand(operand, dot))
            .collect()
    }

    fn operand(&mut self, operand: &'a Operand, dot: &Value) -> Result<Value> {
        if let Term::Function(function) = operand.term {
            let value = self.call(function, &[])?;
            return self.fields(value, &operand.fields, &[]);
        }
        self.look_up(operand, dot, &[])
    }

    fn call(&mut self, function: function::Function, arguments: &[Value]) -> Result<Value> {
        let work: usize = arguments.iter().map(size).sum();
        self.work(work / BYTES_PER_STEP + function.extra_steps())?;
        let value =
            function::call(function, arguments, self.data).map_err(|message| TemplateError::Calling {
                function: function.name(),
                message,
            })?;
        self.work(size(&value) / BYTES_PER_STEP)?;
        match &value {
            Value::Text(text) if text.len() > TEXT_BYTES_MAX => {
                Err(TemplateError::TooMuch("has a result longer than allowed"))
            }
            _ => Ok(value),
        }
    }

    /// Returns the value of a term that is not a function, with its fields resolved.
    fn look_up(&mut self, operand: &'a Operand, dot: &Value, arguments: &[Value]) -> Result<Value> {
        let value = match &operand.term {
            Term::Dot => dot.clone(),
            Term::Variable(name) => self.variable(name)?,
            Term::Text(text) => Value::text(text.as_str()),
            Term::Int(int) => Value::Int(*int),
            Term::Float(float) => Value::Float(*float),
            Term::Bool(is) => Value::Bool(*is),
            Term::Nil => return failed("nil is not a command"),
            Term::Nested(pipeline) => self.commands(pipeline, dot)?,
            Term::Function(_) => return failed("a function is used where a value is required"),
        };
        if operand.fields.is_empty() && !arguments.is_empty() {
            return failed("can't give argument to non-function");
        }
        self.fields(value, &operand.fields, arguments)
    }

    fn variable(&self, name: &str) -> Result<Value> {
        let found = self.variables.iter().rev().find(|(known, _)| *known == name);
        found
            .map(|(_, value)| value.clone())
            .ok_or_else(|| TemplateError::UndefinedVariable(name.to_owned()))
    }

    fn fields(&self, value: Value, fields: &[String], arguments: &[Value]) -> Result<Value> {
        let mut value = value;
        for (n, name) in fields.iter().enumerate() {
            let arguments = if n + 1 == fields.len() { arguments } else { &[] };
            value = self.field(&value, name, arguments)?;
        }
        Ok(value)
    }

    fn field(&self, value: &Value, name: &str, arguments: &[Value]) -> Result<Value> {
        if let Value::Time(ms) = value {
            return time::method(*ms, name, arguments).map_err(TemplateError::Execution);
        }
        if !arguments.is_empty() {
            return failed(format!("{name} has arguments but cannot be invoked as function"));
        }
        let context = &self.data.context;
        match (value, name) {
            (Value::Labels(labels), name) => Ok(Value::text(labels.get(name).unwrap_or_default())),
            (Value::Sample(labels, _), "Labels") => Ok(Value::Labels(labels.clone())),
            (Value::Sample(_, value), "Value") => Ok(Value::Float(*value)),
            (Value::Data, "Labels") => Ok(Value::Labels(self.data.labels.clone())),
            (Value::Data, "Value") => Ok(Value::Float(self.data.value)),
            (Value::Data, "ExternalLabels") => Ok(Value::Labels(context.external_labels.clone())),
            (Value::Data, "ExternalURL") => Ok(Value::text(context.external_url)),
            (Value::Args(args), name) => {
                let found = name.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
                Ok(found.and_then(|n| args.get(n).cloned()).unwrap_or(Value::Nil))
            }
            (Value::Nil, name) => failed(format!("nil pointer evaluating interface {{}}.{name}")),
            (other, name) => failed(format!(
                "can't evaluate field {name} in type {}",
                other.type_name()
            )),
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        if self.out.len() + text.len() > TEXT_BYTES_MAX {
            return Err(TemplateError::TooMuch("has a result longer than allowed"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        self.work(1)
    }

    fn work(&mut self, steps: usize) -> Result<()> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > STEPS_MAX {
            return Err(TemplateError::TooMuch(
                "takes more steps than allowed; a loop in it is too long",
            ));
        }
        Ok(())
    }
}

/// Returns about how many bytes a function reads of a value.
fn size(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Samples(samples) => samples.len() * SAMPLE_BYTES,
        _ => 1,
    }
}

/// Returns the elements that `range` iterates over, each with its index or key.
fn elements(value: &Value) -> Result<Vec<(Value, Value)>> {
    match value {
        Value::Nil => Ok(vec![]),
        Value::Samples(samples) => Ok((0..)
            .zip(samples.iter())
            .map(|(n, (labels, value))| (Value::Int(n), Value::Sample(labels.clone(), *value)))
            .collect()),
        Value::Labels(labels) => Ok(labels
            .iter()
            .map(|label| (Value::Text(label.name.clone()), Value::Text(label.value.clone())))
            .collect()),
        Value::Args(args) => Ok(args
            .iter()
            .enumerate()
            .map(|(n, value)| (Value::text(format!("arg{n}")), value.clone()))
            .collect()),
        Value::Int(count) => Ok((0..(*count).min(STEPS_MAX as i64))
            .map(|n| (Value::Int(n), Value::Int(n)))
            .collect()),
        other => failed(format!("range can't iterate over {}", print::plain(other))),
    }
}
