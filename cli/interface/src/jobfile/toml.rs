//! TOML with line numbers.

use cueline_model::decode::{Node, Value};
use toml_edit::{Document, Item, Table, TableLike};

use super::{Lines, SyntaxError};

pub(super) fn parse(text: &str) -> Result<Node, SyntaxError> {
    let lines = Lines::of(text);
    // toml_edit limits the depth itself.
    let document = Document::parse(text).map_err(|error| SyntaxError {
        line: lines.at(error.span().map_or(0, |span| span.start)),
        message: format!("is not TOML: {}", one_line(error.message())),
    })?;
    Ok(table(document.as_table(), Some(1), &lines))
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn line_of(
    span: Option<std::ops::Range<usize>>,
    otherwise: Option<u32>,
    lines: &Lines,
) -> Option<u32> {
    span.map(|span| lines.at(span.start)).or(otherwise)
}

fn table(table: &Table, around: Option<u32>, lines: &Lines) -> Node {
    // A table that dotted keys create (`retry.max = 3`) has no span.
    map(table, line_of(table.span(), around, lines), lines)
}

fn map(table: &dyn TableLike, line: Option<u32>, lines: &Lines) -> Node {
    let entries = table
        .iter()
        .map(|(key, entry)| {
            let key_line = table.key(key).and_then(toml_edit::Key::span);
            let mut node = item(entry, line, lines);
            // A value is reported at the line of its key, and a table at its header.
            if !entry.is_table() && !entry.is_array_of_tables() {
                node.line = line_of(key_line, node.line, lines);
            }
            (key.to_owned(), node)
        })
        .collect();
    Node {
        line,
        value: Value::Map(entries),
    }
}

fn item(item: &Item, around: Option<u32>, lines: &Lines) -> Node {
    match item {
        Item::None => Node {
            line: around,
            value: Value::Null,
        },
        Item::Value(entry) => value(entry, around, lines),
        Item::Table(entry) => table(entry, around, lines),
        Item::ArrayOfTables(tables) => Node {
            line: line_of(tables.span(), around, lines),
            value: Value::List(tables.iter().map(|t| table(t, around, lines)).collect()),
        },
    }
}

fn value(value: &toml_edit::Value, around: Option<u32>, lines: &Lines) -> Node {
    use toml_edit::Value as Toml;
    let line = line_of(value.span(), around, lines);
    let value = match value {
        Toml::String(text) => Value::Text(text.value().clone()),
        Toml::Integer(number) => Value::Int(*number.value()),
        Toml::Float(number) => Value::Float(*number.value()),
        Toml::Boolean(flag) => Value::Bool(*flag.value()),
        Toml::Datetime(instant) => Value::Text(instant.value().to_string()),
        Toml::Array(items) => {
            Value::List(items.iter().map(|i| self::value(i, line, lines)).collect())
        }
        Toml::InlineTable(table) => return map(table, line, lines),
    };
    Node { line, value }
}
