//! Makes unique names for imported jobs from the file's name and the command. The same crontab always gives the same
//! names.

use std::collections::HashSet;

use crate::name::JobName;

const MAX_STEM_CHARS: usize = 40;
const MAX_COMMAND_CHARS: usize = 64;
/// The most words of a command in a name.
const MAX_WORDS: usize = 5;
/// Commands that only prepare for the main command of a line.
const PREPARATIONS: [&str; 7] = ["cd", "source", ".", "export", "sleep", "set", "umask"];

/// Makes names and remembers the ones in use.
pub(super) struct Names {
    stem: String,
    taken: HashSet<JobName>,
}

impl Names {
    /// Starts with the names for the file `source`.
    pub(super) fn new(source: &str) -> Self {
        let file = source.rsplit(['/', '\\']).next().unwrap_or(source);
        let stem = file.strip_suffix(".crontab").unwrap_or(file);
        let stem = slug(stem, MAX_STEM_CHARS);
        Self {
            stem: if stem.is_empty() {
                "crontab".to_owned()
            } else {
                stem
            },
            taken: HashSet::new(),
        }
    }

    /// Returns `stem.command`, with a number appended if that name is in use.
    pub(super) fn unique(&mut self, command: &str, line: u32) -> Result<JobName, String> {
        let mut command = slug(&words_of(command), MAX_COMMAND_CHARS);
        if command.is_empty() {
            command = format!("line-{line}");
        }
        let base = format!("{}.{command}", self.stem);
        // There is one more candidate than names in use, so one candidate is free.
        for number in 1..=self.taken.len() + 1 {
            let text = match number {
                1 => base.clone(),
                n => format!("{base}-{n}"),
            };
            let name: JobName = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
            if self.taken.insert(name.clone()) {
                return Ok(name);
            }
        }
        Err(format!("no free name for {base:?}"))
    }
}

/// The words that describe a command line. It takes the first command that is not a preparation, without variables,
/// options and redirections, and shortens each path to its last part.
fn words_of(command: &str) -> String {
    let mut parts = command
        .split("&&")
        .flat_map(|part| part.split(';'))
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let is_preparation = |part: &&str| {
        part.split_whitespace()
            .next()
            .is_some_and(|word| PREPARATIONS.contains(&word))
    };
    let part = parts
        .clone()
        .find(|part| !is_preparation(part))
        .or_else(|| parts.next())
        .unwrap_or_default();
    part.split_whitespace()
        .take_while(|word| !word.contains(['>', '<', '|', '`']))
        .filter(|word| !word.starts_with('-') && !is_assignment(word) && *word != "env")
        .map(|word| {
            word.trim_end_matches('/')
                .rsplit('/')
                .next()
                .unwrap_or(word)
        })
        .take(MAX_WORDS)
        .collect::<Vec<_>>()
        .join("-")
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Converts text to lower case and replaces characters that names do not allow by single dashes. The result has at most
/// `max` characters, all ASCII, so the name is short in bytes too.
fn slug(text: &str, max: usize) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        if slug.len() >= max {
            break;
        }
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if (c == '.' || c == '_') && !slug.is_empty() {
            slug.push(c);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_end_matches(['-', '.', '_']).to_owned()
}
