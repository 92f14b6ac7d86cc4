//! Command lines of `systemd.service(5)`: prefixes, quotes, escapes, specifiers and variables.

use std::collections::BTreeMap;

/// A command of `ExecStart=` and the like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) argv: Vec<String>,
    /// `-`: a failure counts as success.
    pub(super) may_fail: bool,
    /// `+`, `!` or `!!`: the command runs with more privileges than `User=`.
    pub(super) is_privileged: bool,
    /// `@`: the name that the program was to see as its own.
    pub(super) argv0: Option<String>,
}

/// What the specifiers of a unit stand for.
pub(super) struct Specifiers {
    /// The name of the service, `backup@home.service`.
    pub(super) unit: String,
}

impl Specifiers {
    /// Replaces `%n` and the like. The manager is that of the system, not of a user.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let stem = self
            .unit
            .rsplit_once('.')
            .map_or(self.unit.as_str(), |(stem, _)| stem);
        let (prefix, instance) = stem.split_once('@').unwrap_or((stem, ""));
        let mut expanded = String::with_capacity(text.len());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                expanded.push(c);
                continue;
            }
            match chars.next() {
                Some('%') => expanded.push('%'),
                Some('n') => expanded.push_str(&self.unit),
                Some('N') => expanded.push_str(stem),
                Some('p') => expanded.push_str(prefix),
                Some('P') => expanded.push_str(&unescaped(prefix)),
                Some('i') => expanded.push_str(instance),
                Some('I') => expanded.push_str(&unescaped(instance)),
                Some('j') => expanded.push_str(prefix.rsplit('-').next().unwrap_or(prefix)),
                Some('t') => expanded.push_str("/run"),
                Some('S') => expanded.push_str("/var/lib"),
                Some('C') => expanded.push_str("/var/cache"),
                Some('L') => expanded.push_str("/var/log"),
                Some('E') => expanded.push_str("/etc"),
                Some('T') => expanded.push_str("/tmp"),
                Some('V') => expanded.push_str("/var/tmp"),
                Some('h') => expanded.push_str("/root"),
                Some('u' | 'g') => expanded.push_str("root"),
                Some('U' | 'G') => expanded.push('0'),
                Some(other) => {
                    return Err(format!(
                        "the specifier %{other} depends on the machine; write its value"
                    ));
                }
                None => return Err("'%' at the end; write %% for a percent sign".to_owned()),
            }
        }
        Ok(expanded)
    }
}

/// A name of a unit with its escapes resolved: `-` is `/`, and `\x2d` a character.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let code = rest
            .strip_prefix('x')
            .and_then(|hex| hex.get(..2))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (c, code) {
            ('\\', Some(byte)) if byte.is_ascii() => {
                plain.push(char::from(byte));
                rest = &rest[3..];
            }
            ('-', _) => plain.push('/'),
            _ => plain.push(c),
        }
    }
    plain
}

/// A word of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// Whether it was written exactly as `;`, without quotes and backslash.
    is_separator: bool,
}

/// Splits a text into words, and resolves quotes and escapes.
pub(super) fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(found);
        }
        let mut word = String::new();
        let mut quote = None;
        let mut is_plain = true;
        while let Some(c) = chars.next_if(|c| quote.is_some() || !c.is_whitespace()) {
            match c {
                '\\' => {
                    is_plain = false;
                    word.push(escape(&mut chars)?);
                }
                c if quote == Some(c) => quote = None,
                '"' | '\'' if quote.is_none() => {
                    is_plain = false;
                    quote = Some(c);
                }
                c => word.push(c),
            }
        }
        if let Some(quote) = quote {
            return Err(format!("the quote {quote} is never closed"));
        }
        let is_separator = is_plain && word == ";";
        found.push(Word {
            text: word,
            is_separator,
        });
    }
}

type Chars<'t> = std::iter::Peekable<std::str::Chars<'t>>;

/// The character that an escape after a backslash stands for.
fn escape(chars: &mut Chars<'_>) -> Result<char, String> {
    let is_octal = chars.peek().is_some_and(|c| c.is_digit(8));
    let found = if is_octal {
        numbered(chars, 3, 8).filter(char::is_ascii)
    } else {
        match chars.next() {
            Some('a') => Some('\u{7}'),
            Some('b') => Some('\u{8}'),
            Some('f') => Some('\u{c}'),
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('v') => Some('\u{b}'),
            Some('s') => Some(' '),
            Some(c @ ('\\' | '"' | '\'' | ';')) => Some(c),
            Some('x') => numbered(chars, 2, 16).filter(char::is_ascii),
            Some('u') => numbered(chars, 4, 16),
            Some('U') => numbered(chars, 8, 16),
            _ => None,
        }
    };
    found.ok_or_else(|| {
        "an escape is not understood; \\n, \\t, \\s, \\\\, \\\", \\x41 and the like are expected".to_owned()
    })
}

/// The character whose code follows in this number of digits.
fn numbered(chars: &mut Chars<'_>, digits: usize, radix: u32) -> Option<char> {
    let text: String = (0..digits)
        .map_while(|_| chars.next_if(|c| c.is_digit(radix)))
        .collect();
    let code = u32::from_str_radix(&text, radix).ok();
    code.filter(|_| text.len() == digits)
        .and_then(char::from_u32)
        .filter(|c| *c != '\0')
}

/// The commands of one setting. Lone semicolons separate several.
pub(super) fn commands(
    value: &str,
    specifiers: &Specifiers,
    variables: &Variables<'_>,
) -> Result<Vec<Command>, String> {
    let words = words(value)?;
    words
        .split(|word| word.is_separator)
        .filter(|words| !words.is_empty())
        .map(|words| command(words, specifiers, variables))
        .collect()
}

fn command(
    words: &[Word],
    specifiers: &Specifiers,
    variables: &Variables<'_>,
) -> Result<Command, String> {
    let first = words
        .first()
        .map(|word| word.text.as_str())
        .unwrap_or_default();
    let program = first.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    let prefixes = &first[..first.len() - program.len()];
    if prefixes.contains('|') {
        return Err(
            "the prefix '|' runs the command by the user's shell; write the shell and -c"
                .to_owned(),
        );
    }
    if program.is_empty() {
        return Err("a program is expected".to_owned());
    }
    let program = specifiers.expand(program)?;
    if program.contains('$') {
        return Err(format!("the program {program:?} may not be a variable"));
    }
    let mut rest = words[1..].iter();
    let argv0 = if prefixes.contains('@') {
        let word = rest
            .next()
            .ok_or("the prefix '@' needs a second word, the program's own name")?;
        Some(specifiers.expand(&word.text)?)
    } else {
        None
    };
    let mut argv = vec![program];
    for word in rest {
        let word = specifiers.expand(&word.text)?;
        if prefixes.contains(':') {
            argv.push(word);
        } else {
            variables.expand(&word, &mut argv)?;
        }
    }
    Ok(Command {
        argv,
        may_fail: prefixes.contains('-'),
        is_privileged: prefixes.contains(['+', '!']),
        argv0,
    })
}

/// The variables that a command line may use.
pub(super) struct Variables<'e> {
    pub(super) known: &'e BTreeMap<String, String>,
    /// Whether all variables are known. Otherwise a file or the manager has further ones.
    pub(super) is_complete: bool,
}

impl Variables<'_> {
    fn value(&self, name: &str) -> Result<&str, String> {
        match self.known.get(name) {
            Some(value) => Ok(value),
            // systemd takes a variable that it does not know for an empty one.
            None if self.is_complete => Ok(""),
            None => Err(format!(
                "the variable ${name} has its value from elsewhere (EnvironmentFile=, PassEnvironment= or the user); \
                 write an Environment={name}=… into the unit"
            )),
        }
    }

    /// Adds the arguments that a word becomes.
    fn expand(&self, word: &str, argv: &mut Vec<String>) -> Result<(), String> {
        // `$NAME` as a word of its own becomes any number of arguments.
        if let Some(name) = word.strip_prefix('$')
            && is_name(name)
        {
            let parts = words(self.value(name)?)?;
            argv.extend(parts.into_iter().map(|part| part.text));
            return Ok(());
        }
        let mut text = String::with_capacity(word.len());
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                text.push('$');
                rest = after;
            } else if let Some((name, after)) = after
                .strip_prefix('{')
                .and_then(|after| after.split_once('}'))
                .filter(|(name, _)| is_name(name))
            {
                text.push_str(self.value(name)?);
                rest = after;
            } else {
                text.push('$');
                rest = after;
            }
        }
        text.push_str(rest);
        argv.push(text);
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// An argument as a word of a shell script.
pub(super) fn quoted(argument: &str) -> String {
    let is_plain = !argument.is_empty()
        && argument
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c));
    if is_plain {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}
