//! Reads the rows of XXL-JOB's tables from the SQL text that `mysqldump` writes.
//!
//! It knows the statements that matter, `CREATE TABLE` and `INSERT`, and goes over all others. Values are texts, and no
//! expression is computed.

use std::collections::HashMap;

/// The tables that are read.
pub(super) const TABLES: [&str; 3] = ["xxl_job_group", "xxl_job_info", "xxl_job_logglue"];

/// The most rows of one table.
pub const MAX_ROWS: usize = 100_000;

/// A row: the values by the name of their column. `None` is NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The line at which its statement begins.
    pub line: usize,
    values: HashMap<String, Option<String>>,
}

impl Row {
    /// The value of the first of these columns that the table has. Versions of XXL-JOB name some in another way.
    pub(super) fn text(&self, columns: &[&str]) -> Option<&str> {
        let value = columns.iter().find_map(|column| self.values.get(*column))?;
        value.as_deref().filter(|text| !text.is_empty())
    }

    /// A number; 0 for none.
    pub(super) fn number(&self, columns: &[&str]) -> Result<i64, String> {
        match self.text(columns) {
            None => Ok(0),
            Some(text) => text.parse().map_err(|_| {
                let column = columns.first().unwrap_or(&"");
                format!("{column} {text:?}: a whole number is expected")
            }),
        }
    }
}

/// The rows of the tables, by table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump(HashMap<String, Vec<Row>>);

impl Dump {
    /// The rows of a table, in the order of the text.
    pub(super) fn rows(&self, table: &str) -> &[Row] {
        self.0.get(table).map_or(&[], Vec::as_slice)
    }
}

/// Reads a dump.
///
/// # Errors
///
/// The line and what was expected there.
pub fn read(text: &str) -> Result<Dump, String> {
    let mut reader = Reader {
        text,
        at: 0,
        counted: (0, 0),
        columns: HashMap::new(),
        dump: Dump::default(),
    };
    match reader.statements() {
        Ok(()) => Ok(reader.dump),
        Err(message) => {
            let before = &text[..reader.at];
            let line = before.matches('\n').count() + 1;
            Err(format!("line {line}: {message}"))
        }
    }
}

/// A part of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A name, a keyword or a number, or a name in backticks.
    Word(String),
    /// A text in quotes.
    Text(String),
    /// Any other character.
    Sign(char),
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// A place in the text, and the line ends before it.
    counted: (usize, usize),
    /// The columns of the tables, from `CREATE TABLE`.
    columns: HashMap<String, Vec<String>>,
    dump: Dump,
}

impl Reader<'_> {
    fn statements(&mut self) -> Result<(), String> {
        while let Some(token) = self.token()? {
            match word_of(&token).as_str() {
                "create" => self.create()?,
                "insert" | "replace" => self.insert()?,
                _ if token == Token::Sign(';') => {}
                _ => self.skip_statement()?,
            }
        }
        Ok(())
    }

    fn skip_statement(&mut self) -> Result<(), String> {
        while let Some(token) = self.token()? {
            if token == Token::Sign(';') {
                break;
            }
        }
        Ok(())
    }

    /// `CREATE TABLE [IF NOT EXISTS] name (column …, …)`.
    fn create(&mut self) -> Result<(), String> {
        if self.word()? != "table" {
            return self.skip_statement();
        }
        let mut name = self.word()?;
        if name == "if" {
            for _ in ["not", "exists"] {
                self.word()?;
            }
            name = self.word()?;
        }
        let name = self.local(name)?;
        if !TABLES.contains(&name.as_str()) {
            return self.skip_statement();
        }
        self.expect('(')?;
        let mut columns = Vec::new();
        let mut depth = 1_usize;
        let mut is_first = true;
        while let Some(token) = self.token()? {
            match token {
                Token::Sign('(') => depth += 1,
                Token::Sign(')') => depth -= 1,
                Token::Sign(',') if depth == 1 => {
                    is_first = true;
                    continue;
                }
                Token::Word(word) if is_first && depth == 1 && !is_index(&word) => {
                    columns.push(word.to_ascii_lowercase());
                }
                _ => {}
            }
            is_first = false;
            if depth == 0 {
                break;
            }
        }
        if depth > 0 {
            return Err(format!("{name} does not end; the dump is cut off"));
        }
        self.columns.insert(name, columns);
        self.skip_statement()
    }

    /// `INSERT [IGNORE] INTO name [(column, …)] VALUES (value, …), …;`.
    fn insert(&mut self) -> Result<(), String> {
        let line = self.present_line();
        let mut word = self.word()?;
        while matches!(
            word.as_str(),
            "ignore" | "into" | "delayed" | "low_priority" | "high_priority"
        ) {
            word = self.word()?;
        }
        let table = self.local(word)?;
        if !TABLES.contains(&table.as_str()) {
            return self.skip_statement();
        }
        let columns = self.inserted_columns(&table)?;
        loop {
            self.expect('(')?;
            let values = self.values()?;
            if values.len() != columns.len() {
                return Err(format!(
                    "{} values for the {} columns of {table}",
                    values.len(),
                    columns.len()
                ));
            }
            let values = columns.iter().cloned().zip(values).collect();
            let rows = self.dump.0.entry(table.clone()).or_default();
            if rows.len() >= MAX_ROWS {
                return Err(format!("{table} has more than {MAX_ROWS} rows"));
            }
            rows.push(Row { line, values });
            match self.token()? {
                Some(Token::Sign(',')) => {}
                Some(Token::Sign(';')) | None => return Ok(()),
                Some(other) => return Err(format!("{other:?} given; ',' or ';' is expected")),
            }
        }
    }

    /// The columns that the statement names, or all of the table. Goes behind `VALUES`.
    fn inserted_columns(&mut self, table: &str) -> Result<Vec<String>, String> {
        let mut token = self.token()?;
        let mut columns = self.columns.get(table).cloned();
        if token == Some(Token::Sign('(')) {
            let mut named = Vec::new();
            loop {
                named.push(self.word()?);
                match self.token()? {
                    Some(Token::Sign(',')) => {}
                    Some(Token::Sign(')')) => break,
                    other => return Err(format!("{other:?} given; ',' or ')' is expected")),
                }
            }
            columns = Some(named);
            token = self.token()?;
        }
        let is_values = token
            .as_ref()
            .is_some_and(|token| matches!(word_of(token).as_str(), "values" | "value"));
        if !is_values {
            return Err(format!(
                "{token:?} given; VALUES is expected in an INSERT of {table}"
            ));
        }
        columns.ok_or_else(|| {
            format!(
                "the columns of {table} are not known: dump it with its CREATE TABLE, or with --complete-insert"
            )
        })
    }

    /// The values up to the closing parenthesis.
    fn values(&mut self) -> Result<Vec<Option<String>>, String> {
        let mut values = Vec::new();
        loop {
            values.push(self.value()?);
            match self.token()? {
                Some(Token::Sign(',')) => {}
                Some(Token::Sign(')')) => return Ok(values),
                other => return Err(format!("{other:?} given; ',' or ')' is expected")),
            }
        }
    }

    fn value(&mut self) -> Result<Option<String>, String> {
        match self.token()? {
            Some(Token::Text(text)) => Ok(Some(text)),
            Some(Token::Sign(sign @ ('-' | '+'))) => {
                let number = self.word()?;
                Ok(Some(
                    format!("{sign}{number}").trim_start_matches('+').to_owned(),
                ))
            }
            Some(Token::Word(word)) => {
                let lower = word.to_ascii_lowercase();
                match lower.as_str() {
                    "null" => Ok(None),
                    // The character set of the text that follows.
                    "_binary" | "_utf8" | "_utf8mb3" | "_utf8mb4" | "_latin1" => self.value(),
                    "true" => Ok(Some("1".to_owned())),
                    "false" => Ok(Some("0".to_owned())),
                    _ if lower.starts_with("0x") => hex_text(&lower[2..]).map(Some),
                    _ if word.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                        Ok(Some(word))
                    }
                    _ => Err(format!(
                        "{word:?} given; a value is expected, not an expression"
                    )),
                }
            }
            other => Err(format!("{other:?} given; a value is expected")),
        }
    }

    /// A name without the database before it: `xxl_job.xxl_job_info`.
    fn local(&mut self, name: String) -> Result<String, String> {
        let before = self.at;
        if self.token()? == Some(Token::Sign('.')) {
            return self.word();
        }
        self.at = before;
        Ok(name)
    }

    /// A name or keyword in lower case.
    fn word(&mut self) -> Result<String, String> {
        match self.token()? {
            Some(Token::Word(word)) => Ok(word.to_ascii_lowercase()),
            other => Err(format!("{other:?} given; a name is expected")),
        }
    }

    fn expect(&mut self, sign: char) -> Result<(), String> {
        match self.token()? {
            Some(Token::Sign(found)) if found == sign => Ok(()),
            other => Err(format!("{other:?} given; {sign:?} is expected")),
        }
    }

    /// The next token. Blanks and comments are skipped.
    fn token(&mut self) -> Result<Option<Token>, String> {
        self.skip_blanks()?;
        let Some(first) = self.peek() else {
            return Ok(None);
        };
        Ok(Some(match first {
            '\'' | '"' => Token::Text(self.quoted(first)?),
            '`' => Token::Word(self.quoted('`')?),
            c if is_word(c) => {
                let rest = &self.text[self.at..];
                let end = rest.find(|c| !is_word_or_point(c)).unwrap_or(rest.len());
                // A point belongs to numbers only; in names it stands between two of them.
                let end = match rest[..end].find('.') {
                    Some(point) if !c.is_ascii_digit() => point,
                    _ => end,
                };
                self.at += end;
                Token::Word(rest[..end].to_owned())
            }
            other => {
                self.at += other.len_utf8();
                Token::Sign(other)
            }
        }))
    }

    /// A text in quotes, with the escapes of `MySQL`. The quote itself is doubled or escaped.
    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let start = self.at;
        self.at += quote.len_utf8();
        let mut found = String::new();
        while let Some(c) = self.next() {
            if c == quote {
                if self.peek() == Some(quote) {
                    self.next();
                    found.push(quote);
                    continue;
                }
                return Ok(found);
            }
            if c == '\\' && quote != '`' {
                match self.next() {
                    Some('0') => found.push('\0'),
                    Some('n') => found.push('\n'),
                    Some('r') => found.push('\r'),
                    Some('t') => found.push('\t'),
                    Some('b') => found.push('\u{8}'),
                    Some('Z') => found.push('\u{1a}'),
                    // In these the backslash stays.
                    Some(kept @ ('%' | '_')) => found.extend(['\\', kept]),
                    Some(other) => found.push(other),
                    None => break,
                }
                continue;
            }
            found.push(c);
        }
        self.at = start;
        Err("a text that begins here does not end; the dump is cut off".to_owned())
    }

    /// `/*!40101 … */` is a comment too: what it says to some servers does not matter here.
    fn skip_blanks(&mut self) -> Result<(), String> {
        loop {
            let rest = &self.text[self.at..];
            let blanks = rest.len() - rest.trim_start().len();
            self.at += blanks;
            let rest = &self.text[self.at..];
            if rest.starts_with("/*") {
                let Some(end) = rest.find("*/") else {
                    return Err("a comment that begins here does not end".to_owned());
                };
                self.at += end + 2;
            } else if rest.starts_with('#') || rest.starts_with("-- ") || rest.starts_with("--\n") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if blanks == 0 {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// The line, from 1. It counts on from where it was asked last.
    fn present_line(&mut self) -> usize {
        let (counted, ends) = self.counted;
        let since = self.text.get(counted..self.at).unwrap_or_default();
        self.counted = (self.at, ends + since.matches('\n').count());
        self.counted.1 + 1
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '@')
}

fn is_word_or_point(c: char) -> bool {
    is_word(c) || c == '.'
}

/// A keyword in lower case; empty for what is no word.
fn word_of(token: &Token) -> String {
    match token {
        Token::Word(word) => word.to_ascii_lowercase(),
        _ => String::new(),
    }
}

/// Whether an entry of `CREATE TABLE` that begins with this word is no column.
fn is_index(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    matches!(
        word.as_str(),
        "primary" | "key" | "unique" | "index" | "constraint" | "fulltext" | "foreign" | "check"
    )
}

/// The text that these hexadecimal digits stand for (`--hex-blob`).
fn hex_text(digits: &str) -> Result<String, String> {
    let wrong = || "a hexadecimal value that is no text in UTF-8".to_owned();
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong());
    let bytes: Result<Vec<u8>, String> = (0..digits.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(text: &str) -> Vec<Row> {
        read(text).expect("is read").rows("xxl_job_info").to_vec()
    }

    const TABLE: &str = "CREATE TABLE `xxl_job_info` (
      `id` int(11) NOT NULL AUTO_INCREMENT COMMENT 'a, (b)', `job_desc` varchar(255) NOT NULL DEFAULT '',
      glue_source mediumtext, PRIMARY KEY (`id`), KEY `i` (`job_desc`, `id`)
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;\n";

    #[test]
    fn rows_have_the_columns_of_their_table() {
        let text = format!(
            "-- MySQL dump\n/*!40101 SET NAMES utf8 */;\nDROP TABLE IF EXISTS `xxl_job_info`;\n{TABLE}\
             LOCK TABLES `xxl_job_info` WRITE;\nINSERT INTO `xxl_job_info` VALUES (1,'a',NULL),(2,'b','x');\n# end\n"
        );
        let found = rows(&text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].number(&["id"]), Ok(1));
        assert_eq!(found[0].text(&["none", "job_desc"]), Some("a"));
        assert_eq!(found[0].text(&["glue_source"]), None);
        assert_eq!(found[1].text(&["glue_source"]), Some("x"));
        assert_eq!(found[1].line, 9);
    }

    #[test]
    fn a_statement_may_name_its_columns_and_its_database() {
        let found = rows(
            "insert ignore into xxl_job.xxl_job_info (job_desc, ID) values ('a; b', -3), (0xe4bda0, +4)",
        );
        assert_eq!(found[0].text(&["job_desc"]), Some("a; b"));
        assert_eq!(found[0].number(&["id"]), Ok(-3));
        assert_eq!(found[1].text(&["job_desc"]), Some("你"));
        assert_eq!(found[1].number(&["id"]), Ok(4));
    }

    #[test]
    fn escapes_are_those_of_mysql() {
        let found = rows(
            r#"INSERT INTO xxl_job_info (job_desc) VALUES ('a\'b''c\\\n\t\"\%\_\q'), ("x""y"), (_binary 'z')"#,
        );
        let texts: Vec<Option<&str>> = found.iter().map(|row| row.text(&["job_desc"])).collect();
        assert_eq!(
            texts,
            [Some("a'b'c\\\n\t\"\\%\\_q"), Some("x\"y"), Some("z")]
        );
    }

    #[test]
    fn other_tables_and_statements_are_skipped() {
        let text = "INSERT INTO `xxl_job_log` VALUES (1, now(), 'a;b');\nSELECT 'x;y';\nSET @a = 'INSERT INTO xxl_job_info';\n";
        assert_eq!(read(text), Ok(Dump::default()));
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        for (text, line, says) in [
            ("INSERT INTO xxl_job_info VALUES (1)", 1, "are not known"),
            (
                "\nINSERT INTO xxl_job_info (id, job_desc) VALUES (1)",
                2,
                "1 values for the 2 columns",
            ),
            (
                "INSERT INTO xxl_job_info (id) VALUES (now())",
                1,
                "not an expression",
            ),
            (
                "INSERT INTO xxl_job_info (id)\nSELECT 1",
                2,
                "VALUES is expected",
            ),
            (
                "\n\nINSERT INTO xxl_job_info (job_desc) VALUES ('abc",
                3,
                "the dump is cut off",
            ),
            (
                "INSERT INTO xxl_job_info (job_desc) VALUES (0xff)",
                1,
                "hexadecimal",
            ),
            ("/* a", 1, "does not end"),
            (
                "INSERT INTO xxl_job_info (id) VALUES (1) ON DUPLICATE KEY",
                1,
                "',' or ';'",
            ),
        ] {
            let error = read(text).expect_err(text);
            assert!(
                error.starts_with(&format!("line {line}: ")),
                "{text}: {error}"
            );
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    fn quoted(text: &str) -> String {
        let mut quoted = String::from("'");
        for c in text.chars() {
            match c {
                '\'' => quoted.push_str("\\'"),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\0' => quoted.push_str("\\0"),
                other => quoted.push(other),
            }
        }
        quoted.push('\'');
        quoted
    }

    proptest! {
        #[test]
        fn any_text_is_read_back(texts in prop::collection::vec(prop::option::of(".{1,20}|[;'\"\\\\\n,()*/#-]{1,12}"), 1..8)) {
            let values: Vec<String> = texts
                .iter()
                .map(|text| format!("({})", text.as_deref().map_or("NULL".to_owned(), quoted)))
                .collect();
            let dump = format!("INSERT INTO `xxl_job_info` (`job_desc`) VALUES {};\n", values.join(","));
            let found = rows(&dump);
            let read: Vec<Option<&str>> = found.iter().map(|row| row.text(&["job_desc"])).collect();
            let expected: Vec<Option<&str>> = texts.iter().map(Option::as_deref).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "(INSERT INTO|CREATE TABLE|xxl_job_info|VALUES|[(),;'`\"\\\\ \n#*/-]|\\PC){0,40}") {
            let _ = read(&text);
        }
    }
}
