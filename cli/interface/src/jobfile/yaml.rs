//! YAML with line numbers, built from the parser's events. The depth and the size of expanded aliases are bounded here.

use std::borrow::Cow;
use std::collections::HashMap;

use cueline_model::decode::{Node, Value};
use saphyr::Scalar;
use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::{MAX_DEPTH, SyntaxError};

/// The most values in a file. Each use of an alias counts all values again.
const MAX_NODES: usize = 1_000_000;

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.take(event, span)?,
            Err(error) => {
                return Err(SyntaxError {
                    line: line(error.marker().line()),
                    message: format!("is not YAML: {}", error.info()),
                });
            }
        }
    }
    Ok(builder.root.unwrap_or(Node {
        line: Some(1),
        value: Value::Null,
    }))
}

fn line(line: usize) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX).max(1)
}

fn too_many(line: u32) -> SyntaxError {
    SyntaxError {
        line,
        message: format!("has more than {MAX_NODES} values"),
    }
}

/// A list or map that is not complete yet.
struct Open {
    line: u32,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map {
        entries: Vec<(String, Node)>,
        key: Option<(String, u32)>,
    },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), SyntaxError> {
        let line = line(span.start.line());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(text, style, tag.as_ref()).ok_or_else(|| SyntaxError {
                    line,
                    message: "is not YAML: the value does not fit its tag".to_owned(),
                })?;
                self.add(line, anchor, value, span)
            }
            Event::SequenceStart(anchor, _) => self.enter(line, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => {
                let (entries, key) = (Vec::new(), None);
                self.enter(line, anchor, Content::Map { entries, key })
            }
            Event::SequenceEnd | Event::MappingEnd => self.leave(span),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(SyntaxError {
                        line,
                        message: "an alias refers to a value that contains it".to_owned(),
                    });
                };
                self.nodes = self.nodes.saturating_add(size(node));
                // Checked before the copy, because the limit must prevent a huge copy.
                if self.nodes > MAX_NODES {
                    return Err(too_many(line));
                }
                let value = node.value.clone();
                self.add(line, 0, value, span)
            }
            Event::DocumentStart(_) if self.root.is_some() => Err(SyntaxError {
                line,
                message: "a second document starts here; a job file has one".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn enter(&mut self, line: u32, anchor: usize, content: Content) -> Result<(), SyntaxError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(SyntaxError {
                line,
                message: format!("is nested more than {MAX_DEPTH} levels deep"),
            });
        }
        if let Some(Open {
            content: Content::Map { key: None, .. },
            ..
        }) = self.open.last()
        {
            return Err(SyntaxError {
                line,
                message: "a list or map is a key here; keys are texts".to_owned(),
            });
        }
        self.open.push(Open {
            line,
            anchor,
            content,
        });
        Ok(())
    }

    fn leave(&mut self, span: Span) -> Result<(), SyntaxError> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = match open.content {
            Content::List(items) => Value::List(items),
            Content::Map { entries, .. } => Value::Map(entries),
        };
        self.add(open.line, open.anchor, value, span)
    }

    /// Adds a complete value to the list or map around it.
    fn add(&mut self, at: u32, anchor: usize, value: Value, span: Span) -> Result<(), SyntaxError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(too_many(line(span.start.line())));
        }
        let node = Node {
            line: Some(at),
            value,
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, key }) => match key.take() {
                None => *key = Some((key_text(node)?, at)),
                Some((key, key_line)) => entries.push((
                    key,
                    Node {
                        line: Some(key_line),
                        ..node
                    },
                )),
            },
        }
        Ok(())
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Cow<'_, Tag>>) -> Option<Value> {
    Some(
        match Scalar::parse_from_cow_and_metadata(text, style, tag)? {
            Scalar::Null => Value::Null,
            Scalar::Boolean(flag) => Value::Bool(flag),
            Scalar::Integer(number) => Value::Int(number),
            Scalar::FloatingPoint(number) => Value::Float(number.into_inner()),
            Scalar::String(text) => Value::Text(text.into_owned()),
        },
    )
}

/// Keys are texts. Any other scalar (`2024: yes`) becomes its text.
fn key_text(node: Node) -> Result<String, SyntaxError> {
    let line = node.line.unwrap_or(1);
    Ok(match node.value {
        Value::Text(text) => text,
        Value::Int(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Float(number) => number.to_string(),
        _ => {
            return Err(SyntaxError {
                line,
                message: "this key is not a text".to_owned(),
            });
        }
    })
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => items.iter().map(size).sum::<usize>().saturating_add(1),
        Value::Map(entries) => entries
            .iter()
            .map(|(_, node)| size(node))
            .sum::<usize>()
            .saturating_add(1),
        _ => 1,
    }
}
