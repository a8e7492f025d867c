//! Parses the pieces into a tree. Variables and functions are resolved here, so that a misspelt name is an error when the file is read.

use super::function::Function;
use super::lex::{Piece, Token, Word};
use super::tree::{Command, Node, Operand, Pipeline, Term};
use super::{DEPTH_MAX, TemplateError};

type Result<T> = std::result::Result<T, TemplateError>;

/// Variables that are always declared, as in Prometheus.
pub(super) const DECLARED: [&str; 5] = ["$", "$labels", "$externalLabels", "$externalURL", "$value"];

/// Parses a whole template.
pub(super) fn nodes(pieces: Vec<Piece>) -> Result<Vec<Node>> {
    let mut parser = Parser {
        pieces: pieces.into_iter(),
        variables: DECLARED.map(str::to_owned).to_vec(),
        depth: 0,
        loops: 0,
    };
    let (nodes, end) = parser.block()?;
    match end {
        Closing::Template => Ok(nodes),
        Closing::End => syntax("unexpected {{end}}"),
        Closing::Else(_) => syntax("unexpected {{else}}"),
    }
}

fn syntax<T>(message: impl Into<String>) -> Result<T> {
    Err(TemplateError::Syntax(message.into()))
}

struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    variables: Vec<String>,
    depth: usize,
    loops: usize,
}

/// The keyword that ended a block.
enum Closing {
    Template,
    End,
    /// `else`, with the words after it: `else if …`.
    Else(Vec<Token>),
}

impl Parser {
    fn block(&mut self) -> Result<(Vec<Node>, Closing)> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let tokens = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Piece::Action(tokens) => tokens,
            };
            let keyword = match tokens.first().map(|token| &token.word) {
                Some(Word::Name(name)) => name.as_str(),
                _ => "",
            };
            match keyword {
                "end" if tokens.len() == 1 => return Ok((nodes, Closing::End)),
                "else" => return Ok((nodes, Closing::Else(tokens[1..].to_vec()))),
                "if" | "with" | "range" => nodes.push(self.control(keyword, &tokens[1..])?),
                "break" | "continue" if tokens.len() == 1 => {
                    if self.loops == 0 {
                        return syntax(format!("{{{{{keyword}}}}} outside {{{{range}}}}"));
                    }
                    nodes.push(if keyword == "break" {
                        Node::Break
                    } else {
                        Node::Continue
                    });
                }
                "define" | "template" | "block" => {
                    return Err(TemplateError::Unsupported(keyword.to_owned()));
                }
                _ => nodes.push(Node::Write(self.pipeline(&tokens, 1)?)),
            }
        }
        Ok((nodes, Closing::Template))
    }

    /// Parses `if`, `with` or `range` up to its `end`.
    fn control(&mut self, keyword: &str, tokens: &[Token]) -> Result<Node> {
        self.deeper()?;
        let outside = self.variables.len();
        let is_range = keyword == "range";
        let head = self.pipeline(tokens, if is_range { 2 } else { 1 })?;
        self.loops += usize::from(is_range);
        let inside = self.variables.len();
        let (body, end) = self.block()?;
        self.variables.truncate(inside);
        self.loops -= usize::from(is_range);
        let otherwise = match end {
            Closing::End => vec![],
            Closing::Template => return syntax("unexpected EOF: an {{end}} is missing"),
            Closing::Else(tokens) => self.otherwise(keyword, &tokens)?,
        };
        self.variables.truncate(outside);
        self.depth -= 1;
        Ok(match keyword {
            "if" => Node::If {
                condition: head,
                then: body,
                otherwise,
            },
            "with" => Node::With {
                subject: head,
                then: body,
                otherwise,
            },
            _ => Node::Range {
                over: head,
                each: body,
                otherwise,
            },
        })
    }

    /// Parses what follows an `else`: a block, or another `if` that shares the `end`.
    fn otherwise(&mut self, keyword: &str, tokens: &[Token]) -> Result<Vec<Node>> {
        let chained = match tokens.first().map(|token| &token.word) {
            None => None,
            Some(Word::Name(name)) if name == keyword && keyword != "range" => Some(keyword),
            Some(_) => return syntax("unexpected words after {{else}}"),
        };
        if let Some(keyword) = chained {
            return Ok(vec![self.control(keyword, &tokens[1..])?]);
        }
        match self.block()? {
            (nodes, Closing::End) => Ok(nodes),
            (_, Closing::Template) => syntax("unexpected EOF: an {{end}} is missing"),
            (_, Closing::Else(_)) => syntax("expected {{end}}; found {{else}}"),
        }
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(TemplateError::TooMuch("is nested too deeply"));
        }
        Ok(())
    }

    /// Parses all of `tokens` as a pipeline. Variables that it declares are visible after it.
    fn pipeline(&mut self, tokens: &[Token], names_max: usize) -> Result<Pipeline> {
        let (names, declares, tokens) = self.declaration(tokens, names_max)?;
        let mut words = Words { tokens, at: 0 };
        let commands = self.commands(&mut words)?;
        if words.at < tokens.len() {
            return syntax("unexpected \")\" in an action");
        }
        if declares {
            self.variables.extend(names.iter().cloned());
        }
        Ok(Pipeline {
            names,
            declares,
            commands,
        })
    }

    /// Parses `$i, $x :=` at the start, if present.
    fn declaration<'t>(
        &self,
        tokens: &'t [Token],
        names_max: usize,
    ) -> Result<(Vec<String>, bool, &'t [Token])> {
        let mark = tokens
            .iter()
            .position(|token| matches!(token.word, Word::Declare | Word::Assign));
        let Some(mark) = mark else {
            return Ok((vec![], false, tokens));
        };
        let mut names = Vec::new();
        for (n, token) in tokens[..mark].iter().enumerate() {
            match (&token.word, n % 2) {
                (Word::Variable(name), 0) => names.push(name.clone()),
                (Word::Comma, 1) => {}
                _ => return syntax("only variables are allowed before := and ="),
            }
        }
        if names.is_empty() || names.len() > names_max {
            return syntax("too many or no declarations before := or =");
        }
        let declares = tokens[mark].word == Word::Declare;
        if !declares {
            names.iter().try_for_each(|name| self.known(name))?;
        }
        Ok((names, declares, &tokens[mark + 1..]))
    }

    fn known(&self, name: &str) -> Result<()> {
        if self.variables.iter().any(|known| known == name) {
            Ok(())
        } else {
            Err(TemplateError::UndefinedVariable(name.to_owned()))
        }
    }

    /// Parses commands up to a closing bracket or the end.
    fn commands(&mut self, words: &mut Words<'_>) -> Result<Vec<Command>> {
        let mut commands = vec![self.command(words)?];
        while words.take(&Word::Pipe) {
            let command = self.command(words)?;
            let takes_value = matches!(
                &command.operands[0],
                Operand {
                    term: Term::Function(_),
                    ..
                }
            ) || !command.operands[0].fields.is_empty();
            if !takes_value {
                return syntax("a non-executable command follows a |");
            }
            commands.push(command);
        }
        Ok(commands)
    }

    fn command(&mut self, words: &mut Words<'_>) -> Result<Command> {
        let mut operands = Vec::new();
        while let Some(token) = words.peek() {
            if matches!(token.word, Word::Pipe | Word::Close) {
                break;
            }
            operands.push(self.operand(words)?);
        }
        if operands.is_empty() {
            return syntax("missing value for command");
        }
        Ok(Command { operands })
    }

    fn operand(&mut self, words: &mut Words<'_>) -> Result<Operand> {
        let Some(token) = words.next() else {
            return syntax("missing value for command");
        };
        let mut fields = Vec::new();
        let term = match &token.word {
            Word::Dot => Term::Dot,
            Word::Field(name) => {
                fields.push(name.clone());
                Term::Dot
            }
            Word::Variable(name) => {
                self.known(name)?;
                Term::Variable(name.clone())
            }
            Word::Name(name) => match name.as_str() {
                "true" => Term::Bool(true),
                "false" => Term::Bool(false),
                "nil" => Term::Nil,
                name => Term::Function(
                    Function::from_name(name)
                        .ok_or_else(|| TemplateError::UndefinedFunction(name.to_owned()))?,
                ),
            },
            Word::Text(text) => Term::Text(text.clone()),
            Word::Int(int) => Term::Int(*int),
            Word::Float(float) => Term::Float(*float),
            Word::Open => {
                self.deeper()?;
                let commands = self.commands(words)?;
                if !words.take(&Word::Close) {
                    return syntax("unclosed left paren");
                }
                self.depth -= 1;
                Term::Nested(Pipeline {
                    commands,
                    ..Pipeline::default()
                })
            }
            word => return syntax(format!("unexpected {word:?} in operand")),
        };
        while let Some(Token {
            word: Word::Field(name),
            joined: true,
        }) = words.peek()
        {
            fields.push(name.clone());
            words.at += 1;
        }
        Ok(Operand { term, fields })
    }
}

struct Words<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<&'a Token> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token)
    }

    fn take(&mut self, word: &Word) -> bool {
        let is_it = self.peek().is_some_and(|token| token.word == *word);
        self.at += usize::from(is_it);
        is_it
    }
}
