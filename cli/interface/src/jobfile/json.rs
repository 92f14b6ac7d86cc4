//! JSON with line numbers.
//!
//! `serde_json` validates the text and reports where it is not JSON. A walk over the same text then finds the lines.
//! The YAML reader cannot replace it: it refuses escaped surrogate pairs (`\ud83d\ude00`), which Python's `json.dumps`
//! writes.

use cueline_model::decode::{Node, Value};
use serde::de::IgnoredAny;

use super::{Lines, MAX_DEPTH, SyntaxError};

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let what = message.strip_suffix(&place).unwrap_or(&message);
        return Err(SyntaxError {
            line: u32::try_from(error.line()).unwrap_or(u32::MAX).max(1),
            message: format!("is not JSON: {what}"),
        });
    }
    let mut walk = Walk {
        text,
        at: 0,
        lines: Lines::of(text),
    };
    walk.value(0)
}

/// A position in a text that is valid JSON.
struct Walk<'t> {
    text: &'t str,
    at: usize,
    lines: Lines,
}

impl Walk<'_> {
    fn value(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        self.skip_space();
        let line = self.line();
        if depth > MAX_DEPTH {
            return Err(self.error(&format!("is nested more than {MAX_DEPTH} levels deep")));
        }
        let value = match self.peek() {
            Some(b'{') => self.map(depth)?,
            Some(b'[') => self.list(depth)?,
            _ => {
                let token = self.token();
                let json: serde_json::Value =
                    serde_json::from_str(token).map_err(|_| self.error("is not JSON"))?;
                Node::from(json).value
            }
        };
        Ok(Node {
            line: Some(line),
            value,
        })
    }

    fn map(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut entries = Vec::new();
        self.at += 1;
        while self.more(b'}') {
            let line = self.line();
            let token = self.token();
            let key: String = serde_json::from_str(token).map_err(|_| self.error("is not JSON"))?;
            self.skip_space();
            self.at += 1; // the colon
            let mut node = self.value(depth + 1)?;
            node.line = Some(line);
            entries.push((key, node));
        }
        Ok(Value::Map(entries))
    }

    fn list(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        self.at += 1;
        while self.more(b']') {
            items.push(self.value(depth + 1)?);
        }
        Ok(Value::List(items))
    }

    /// Goes to the next entry. If there is none, goes past the end and returns `false`.
    fn more(&mut self, end: u8) -> bool {
        self.skip_space();
        if self.peek() == Some(b',') {
            self.at += 1;
            self.skip_space();
        }
        match self.peek() {
            None => false,
            Some(byte) if byte == end => {
                self.at += 1;
                false
            }
            Some(_) => true,
        }
    }

    /// Reads a whole string, number or word.
    fn token(&mut self) -> &str {
        let start = self.at;
        let bytes = self.text.as_bytes();
        if self.peek() == Some(b'"') {
            self.at += 1;
            while let Some(byte) = self.peek() {
                self.at += if byte == b'\\' { 2 } else { 1 };
                if byte == b'"' {
                    break;
                }
            }
        } else {
            while self
                .peek()
                .is_some_and(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
            {
                self.at += 1;
            }
        }
        self.at = self.at.min(bytes.len());
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn line(&self) -> u32 {
        self.lines.at(self.at)
    }

    fn error(&self, message: &str) -> SyntaxError {
        SyntaxError {
            line: self.line(),
            message: message.to_owned(),
        }
    }
}
