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
    /// Starts as a variable, and the quotes of its value are wrong. cron takes no such line.
    BadVariable(String),
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
    variable(text).unwrap_or(Line::Entry(text))
}

/// Parses `NAME=value`. Blanks are allowed around the `=`, and quotes around both parts. Values are never expanded.
/// `None` if the line is no variable at all.
fn variable(text: &str) -> Option<Line<'_>> {
    let (name, rest) = match quoted(text) {
        Quoted::Closed(name, rest) => (name, rest),
        Quoted::Open => {
            return Some(Line::BadVariable(
                "the quote at the start of the line is never closed".to_owned(),
            ));
        }
        Quoted::No => text.split_at(text.find(|c: char| c == '=' || c.is_whitespace())?),
    };
    let value = rest.trim_start().strip_prefix('=')?.trim();
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return None;
    }
    let value = match quoted(value) {
        Quoted::Closed(inner, "") => inner,
        Quoted::Closed(_, rest) => {
            return Some(Line::BadVariable(format!(
                "the variable {name} has the text {rest:?} after its closing quote; put all of its value into one pair of quotes"
            )));
        }
        Quoted::Open => {
            return Some(Line::BadVariable(format!(
                "the variable {name} has a quote that is never closed; close it, or remove it"
            )));
        }
        Quoted::No => value,
    };
    Some(Line::Variable {
        name: name.to_owned(),
        value: value.to_owned(),
    })
}

/// Whether a text starts with a quote.
enum Quoted<'t> {
    No,
    /// The quote is never closed.
    Open,
    /// The quoted text, and what follows it.
    Closed(&'t str, &'t str),
}

fn quoted(text: &str) -> Quoted<'_> {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return Quoted::No;
    };
    match text[1..].split_once(quote) {
        Some((inner, rest)) => Quoted::Closed(inner, rest),
        None => Quoted::Open,
    }
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
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit() || "*@~".contains(c)) => rest,
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
    let (sixth, after) = next_word(rest);
    if count == 5 && is_time_field(sixth) && !after.is_empty() {
        return Err(format!(
            "{sixth:?} after five time fields looks like a sixth one; cron has no field for seconds or years. \
             Remove one field, or write a job with a six-field schedule"
        ));
    }
    Ok((fields.join(" "), rest))
}

/// Whether a word looks like a time field rather than a user or a command: `*`, `*/5`, `1-5`, `0,30`, `?`, `MON-FRI`.
fn is_time_field(word: &str) -> bool {
    const NAMES: [&str; 19] = [
        "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "JAN", "FEB", "MAR", "APR", "MAY", "JUN",
        "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ];
    let is_value = |text: &str| {
        text == "*"
            || text == "?"
            || !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
            || NAMES.iter().any(|name| name.eq_ignore_ascii_case(text))
    };
    // A name in lower case, such as `sun`, can also be an account.
    let is_plain_name = word.bytes().all(|b| b.is_ascii_lowercase());
    !word.is_empty() && !is_plain_name && word.split([',', '-', '/', '~']).all(is_value)
}

/// A time with each step that is longer than its field cut to the field's length, and the shortened steps. cron takes
/// such steps; only the first value of the range remains.
pub(super) fn shorten_steps(time: &str) -> (String, Vec<String>) {
    /// The number of values of each field.
    const LENGTHS: [u32; 5] = [60, 24, 31, 12, 7];
    let mut shortened = Vec::new();
    if time.starts_with('@') {
        return (time.to_owned(), shortened);
    }
    let fields: Vec<String> = time
        .split(' ')
        .zip(LENGTHS)
        .map(|(field, length)| {
            let items: Vec<String> = field
                .split(',')
                .map(|item| match item.split_once('/') {
                    Some((range, step)) if is_longer(step, length) => {
                        shortened.push(item.to_owned());
                        format!("{range}/{length}")
                    }
                    _ => item.to_owned(),
                })
                .collect();
            items.join(",")
        })
        .collect();
    (fields.join(" "), shortened)
}

/// Whether a step is a number above `length`.
fn is_longer(step: &str, length: u32) -> bool {
    let is_number = !step.is_empty() && step.bytes().all(|b| b.is_ascii_digit());
    is_number && step.parse::<u32>().map_or(true, |step| step > length)
}

/// Splits off cronie's option `-n` of a command.
pub(super) fn split_option(command: &str) -> Result<(bool, &str), String> {
    if !command.starts_with('-') {
        return Ok((false, command));
    }
    let (option, rest) = next_word(command);
    if option != "-n" || rest.starts_with("-n ") {
        return Err(format!(
            "{option:?} stands where the command begins; cronie has the option \"-n\" there, once"
        ));
    }
    Ok((true, rest))
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
        UserColumn::Yes if !is_plausible_user(word) => {
            return Err(format!(
                "{word:?} stands in the user column and is not the name of an account; \
                 give --user-column no if the file has no such column"
            ));
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
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.$".contains(c))
        && !COMMANDS.contains(&word)
}

/// A command and its standard input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) script: String,
    pub(super) input: Option<String>,
}

/// Splits a command at its unescaped percent signs.
///
/// A backslash in the command escapes the character after it, so `\\%` is a pair of backslashes and the end of the
/// command. In the standard input, a backslash before `%` always escapes it. Both are as in cronie.
pub(super) fn split_input(text: &str) -> Command {
    let mut script = String::with_capacity(text.len());
    let mut input: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = c == '\\' && chars.next_if_eq(&'%').is_some();
        match &mut input {
            None if c == '%' => input = Some(String::new()),
            None => {
                script.push(if escaped { '%' } else { c });
                if c == '\\' && !escaped {
                    script.extend(chars.next_if_eq(&'\\'));
                }
            }
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
