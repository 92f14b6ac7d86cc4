//! The parts of a crontab line. Where implementations differ, this follows cronie's reading of `crontab(5)`.

use super::UserColumn;

/// A line of a crontab.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'t> {
    /// An empty line.
    Blank,
    /// The text after the `#`.
    Comment(&'t str),
    /// `NAME = value`.
    Variable { name: String, value: String },
    /// Any other line; it should be a schedule line.
    Entry(&'t str),
}

/// Classifies a line.
pub(super) fn read(text: &str) -> Line<'_> {
    let text = text.trim_start();
    if text.is_empty() {
        return Line::Blank;
    }
    if let Some(comment) = text.strip_prefix('#') {
        return Line::Comment(comment);
    }
    match variable(text) {
        Some((name, value)) => Line::Variable { name, value },
        None => Line::Entry(text),
    }
}

/// Parses `NAME=value`. Blanks are allowed around the `=`, and quotes around both parts. Values are never expanded.
fn variable(text: &str) -> Option<(String, String)> {
    let (name, rest) = match quoted(text) {
        Some((name, rest)) => (name, rest),
        None => text.split_at(text.find(|c: char| c == '=' || c.is_whitespace())?),
    };
    let value = rest.trim_start().strip_prefix('=')?.trim();
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return None;
    }
    let value = match quoted(value) {
        Some((inner, "")) => inner,
        // Text follows the closing quote. cronie does not accept such a line as a variable.
        Some(_) => return None,
        None => value,
    };
    Some((name.to_owned(), value.to_owned()))
}

/// Splits a text that starts with a quote into the quoted text and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text[1..].split_once(quote)
}

/// What a header comment of the file says about its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// No header comment so far.
    None,
    /// The header names the columns, without a user column.
    WithoutUser,
    /// The header names the columns, including a user column.
    WithUser,
}

impl Header {
    /// The header in `comment`; this one if `comment` names no columns.
    pub(super) fn or_read(self, comment: &str) -> Self {
        let words: Vec<String> = comment
            .split_whitespace()
            .map(str::to_ascii_lowercase)
            .collect();
        let has = |names: &[&str]| words.iter().any(|word| names.contains(&word.as_str()));
        let names_columns = has(&["m", "min", "minute", "minutes", "mm"])
            && has(&["h", "hour", "hours", "hh"])
            && has(&["command", "cmd", "commands"]);
        match (
            names_columns,
            has(&["user", "who", "username", "user-name"]),
        ) {
            (false, _) => self,
            (true, false) => Self::WithoutUser,
            (true, true) => Self::WithUser,
        }
    }
}

/// Splits a schedule line into its time, with single blanks, and the rest.
pub(super) fn split_time(text: &str) -> Result<(String, &str), String> {
    // In some crons a leading '-' turns off the log entry for the start. It is not part of the time.
    let text = match text.strip_prefix('-') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit() || c == '*') => rest,
        _ => text,
    };
    let count = if text.starts_with('@') { 1 } else { 5 };
    let mut fields = Vec::with_capacity(count);
    let mut rest = text;
    for _ in 0..count {
        let (field, after) = next_word(rest);
        if field.is_empty() {
            return Err(format!(
                "{} words; five time fields (or @daily and the like) and a command are expected",
                fields.len()
            ));
        }
        fields.push(field);
        rest = after;
    }
    Ok((fields.join(" "), rest))
}

/// Splits off the first word. The rest starts without blanks.
fn next_word(text: &str) -> (&str, &str) {
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Accounts that system crontabs often name, and that are rarely names of commands.
const ACCOUNTS: [&str; 18] = [
    "root", "toor", "daemon", "nobody", "operator", "www", "_www", "www-data", "wwwrun", "apache",
    "postgres", "nagios", "zabbix", "munin", "debian", "ubuntu", "ec2-user", "vagrant",
];

/// Commands that often start a line. They matter if the header names a user column that the line lacks.
const COMMANDS: [&str; 30] = [
    "env", "cd", "php", "source", "sh", "bash", "zsh", "ksh", "dash", "python", "python2",
    "python3", "perl", "ruby", "node", "java", "test", "sleep", "nice", "ionice", "sudo", "flock",
    "timeout", "curl", "wget", "echo", "find", "rm", "exec", "export",
];

/// Splits the rest of a line into the user and the command.
pub(super) fn split_user(
    rest: &str,
    column: UserColumn,
    header: Header,
) -> Result<(Option<&str>, &str), String> {
    let (word, after) = next_word(rest);
    let has_user = match column {
        UserColumn::No => false,
        UserColumn::Yes if after.is_empty() => {
            return Err("a user and a command are expected after the time fields".to_owned());
        }
        UserColumn::Yes => true,
        UserColumn::Auto => {
            !after.is_empty()
                && (ACCOUNTS.contains(&word)
                    || header == Header::WithUser && is_plausible_user(word))
        }
    };
    Ok(if has_user {
        (Some(word), after)
    } else {
        (None, rest)
    })
}

/// Whether a word could be the name of an account rather than of a command.
fn is_plausible_user(word: &str) -> bool {
    word.len() <= 32
        && word.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && word
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.".contains(c))
        && !COMMANDS.contains(&word)
}

/// A command and its standard input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) script: String,
    pub(super) input: Option<String>,
}

/// Splits a command at its unescaped percent signs.
pub(super) fn split_input(text: &str) -> Command {
    let mut script = String::with_capacity(text.len());
    let mut input: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = c == '\\' && chars.next_if_eq(&'%').is_some();
        match &mut input {
            None if c == '%' => input = Some(String::new()),
            None => script.push(if escaped { '%' } else { c }),
            Some(input) => input.push(match c {
                _ if escaped => '%',
                '%' => '\n',
                c => c,
            }),
        }
    }
    // cron ends the last line of the input with a line break if the crontab does not.
    if let Some(input) = &mut input
        && !input.is_empty()
        && !input.ends_with('\n')
    {
        input.push('\n');
    }
    Command { script, input }
}
