//! Printing answers: tables and colours on a terminal, JSON for programs. This module knows no command.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, ContentArrangement, Table};
use cueline_model::RunState;
use cueline_runtime::terminal::{Style, harmless};
use serde_json::Value;

use crate::failure::Failure;

/// The format of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// Text for people
    #[default]
    Table,
    /// The server's JSON, for programs
    Json,
}

/// Standard output.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    format: OutputFormat,
    terminal: bool,
    colours: bool,
}

impl Out {
    /// Prints in `format`, with colours if the output is a terminal and `NO_COLOR` is not set.
    pub fn new(format: OutputFormat) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let terminal = std::io::stdout().is_terminal();
        Self {
            format,
            terminal,
            colours: terminal && !unwanted,
        }
    }

    /// Prints as into a file.
    pub fn to_file(format: OutputFormat) -> Self {
        Self {
            format,
            terminal: false,
            colours: false,
        }
    }

    /// Whether the answer is for programs.
    pub fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Whether people see the answer at once.
    pub fn is_terminal(self) -> bool {
        self.terminal
    }

    /// Moves to the first line of the terminal, and erases everything from there on. What is printed next replaces it.
    pub fn clear_screen(self) -> Result<(), Failure> {
        if self.terminal {
            self.write("\x1b[H\x1b[J")
        } else {
            Ok(())
        }
    }

    /// Prints a line.
    pub fn line(self, text: &str) -> Result<(), Failure> {
        self.text(&format!("{text}\n"))
    }

    /// Prints a text and flushes it. On a terminal, control characters are escaped. A file or a pipe gets the text
    /// unchanged.
    pub fn text(self, text: &str) -> Result<(), Failure> {
        self.write(&self.shown(text))
    }

    fn shown(self, text: &str) -> Cow<'_, str> {
        match (self.terminal, self.colours) {
            (false, _) => Cow::Borrowed(text),
            (true, true) => harmless(text, Style::Coloured),
            (true, false) => harmless(text, Style::Text),
        }
    }

    #[expect(clippy::unused_self, reason = "commands print through an `Out`")]
    fn write(self, text: &str) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| match error.kind() {
                ErrorKind::BrokenPipe => Failure::PipeClosed,
                _ => Failure::failed(format!("failed to print: {error}")),
            })
    }

    /// Prints a value as JSON, over several lines.
    pub fn json(self, value: &Value) -> Result<(), Failure> {
        self.line(&harmless(&format!("{value:#}"), Style::Json))
    }

    /// Prints a value as one line of JSON.
    pub fn json_line(self, value: &Value) -> Result<(), Failure> {
        self.line(&harmless(&value.to_string(), Style::Json))
    }

    /// An empty table with these headings.
    pub fn table(self, headings: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(NOTHING);
        // Long cells are not wrapped, because wrapped text can neither be copied nor searched.
        table.set_content_arrangement(ContentArrangement::Disabled);
        if self.colours {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(
            headings
                .iter()
                .map(|text| Cell::new(text).fg(Color::DarkGrey)),
        );
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table
    }

    /// Prints a table, or `empty` if it has no rows.
    pub fn print_table(self, table: &Table, empty: &str) -> Result<(), Failure> {
        if table.is_empty() {
            return self.line(empty);
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        // The cells are harmless already, and the table has its own sequences for colours.
        self.write(&text)
    }

    /// `text` in `colour` if there are colours.
    pub fn paint(self, text: &str, colour: Paint) -> String {
        if self.colours {
            format!("\x1b[{}m{text}\x1b[0m", colour.code())
        } else {
            text.to_owned()
        }
    }
}

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// All is well.
    Good,
    /// Something needs attention.
    Warn,
    /// This is wrong.
    Bad,
    /// Less important.
    Dim,
}

impl Paint {
    const fn code(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Warn => 33,
            Self::Bad => 31,
            Self::Dim => 90,
        }
    }

    const fn colour(self) -> Color {
        match self {
            Self::Good => Color::Green,
            Self::Warn => Color::Yellow,
            Self::Bad => Color::Red,
            Self::Dim => Color::DarkGrey,
        }
    }

    /// The colour of a state; most have none.
    pub fn of_state(state: RunState) -> Option<Self> {
        match state {
            RunState::Succeeded => Some(Self::Good),
            state if state.is_failure() => Some(Self::Bad),
            state if state.is_terminal() => Some(Self::Warn),
            _ => None,
        }
    }
}

/// A table's cell, in a colour if there is one. Control characters are escaped, also in a file or a pipe, so that a row
/// is always one line.
pub fn cell(text: impl Into<String>, paint: Option<Paint>) -> Cell {
    let text: String = text.into();
    let cell = Cell::new(harmless(&text, Style::Inline));
    match paint {
        Some(paint) => cell.fg(paint.colour()),
        None => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(terminal: bool, colours: bool) -> Out {
        Out {
            format: OutputFormat::Table,
            terminal,
            colours,
        }
    }

    #[test]
    fn a_terminal_gets_no_control_characters_and_a_file_gets_the_exact_text() {
        let log = "\x1b[2J\x1b]0;title\x07 \u{202e}x\r\n";
        let safe = "\\x1b[2J\\x1b]0;title\\x07 \\u{202e}x\\x0d\n";
        assert_eq!(out(true, true).shown(log), safe);
        assert_eq!(out(true, false).shown(log), safe);
        assert_eq!(out(false, false).shown(log), log);
        let painted = out(true, true).paint(log.trim_end(), Paint::Warn);
        let shown = out(true, true).shown(&painted).into_owned();
        assert_eq!(shown, format!("\x1b[33m{}\x1b[0m", &safe[..safe.len() - 5]));
        assert_eq!(out(true, false).shown("\x1b[31mred"), "\\x1b[31mred");
    }

    #[test]
    fn a_table_has_no_control_characters_wherever_it_goes() {
        for terminal in [true, false] {
            let mut table = out(terminal, false).table(&["NAME"]);
            table.add_row(vec![cell("a\x1b[2J\nb\u{9b}", None)]);
            let text: Vec<String> = table.lines().collect();
            assert_eq!(text.len(), 2, "{text:?}");
            assert_eq!(text[1].trim_end(), "a\\x1b[2J\\nb\\x9b");
        }
    }
}
