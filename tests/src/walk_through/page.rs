//! Reads the steps of a page.

use anyhow::{Context as _, Result, bail, ensure};

const FENCE: &str = "```";

/// A page as steps, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The ports that it uses.
    pub ports: Vec<u16>,
    pub steps: Vec<Step>,
}

/// A command with its output, or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its line in the page, from 1.
    pub line: usize,
    pub action: Action,
    /// What the page shows as its output.
    pub expected: Vec<String>,
}

/// What a reader does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Types this command, which may have several lines.
    Run(String),
    /// Writes this file.
    Write { file: String, text: String },
}

/// What a comment says about the block after it.
enum Directive {
    File(String),
    Provided,
}

impl Page {
    /// Reads a page in Markdown.
    ///
    /// # Errors
    ///
    /// With the line: an unknown directive, one without a block, a block without an end, an output without a command.
    pub fn parse(text: &str) -> Result<Self> {
        let mut page = Self::default();
        let mut directive = None;
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        while let Some((number, line)) = lines.next() {
            if let Some(comment) = comment(line) {
                directive = page
                    .read_directive(comment)
                    .with_context(|| format!("line {number}: {line}"))?;
            } else if let Some(language) = line.strip_prefix(FENCE) {
                let mut block = Vec::new();
                loop {
                    let (at, line) = lines
                        .next()
                        .with_context(|| format!("line {number}: the block has no end"))?;
                    if line == FENCE {
                        break;
                    }
                    block.push((at, line));
                }
                page.add(directive.take(), language, number, &block)?;
            } else if !line.trim().is_empty() {
                ensure!(
                    directive.is_none(),
                    "line {number}: a block has to follow the directive"
                );
            }
        }
        Ok(page)
    }

    fn read_directive(&mut self, comment: &str) -> Result<Option<Directive>> {
        if let Some(ports) = comment.strip_prefix("ports:") {
            for port in ports.split_whitespace() {
                self.ports.push(port.parse::<u16>().context("not a port")?);
            }
            return Ok(None);
        }
        if let Some(file) = comment.strip_prefix("file:") {
            return Ok(Some(Directive::File(file.trim().to_owned())));
        }
        if comment == "provided" {
            return Ok(Some(Directive::Provided));
        }
        bail!("the directive is unknown; there are ports, file and provided")
    }

    fn add(
        &mut self,
        directive: Option<Directive>,
        language: &str,
        line: usize,
        block: &[(usize, &str)],
    ) -> Result<()> {
        match directive {
            Some(Directive::File(file)) => {
                let text = block.iter().flat_map(|(_, line)| [*line, "\n"]).collect();
                self.steps.push(Step {
                    line,
                    action: Action::Write { file, text },
                    expected: Vec::new(),
                });
            }
            None if language == "console" => self.steps.extend(commands(block)?),
            Some(Directive::Provided) | None => {}
        }
        Ok(())
    }
}

/// The text of a line that is a comment of HTML.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("<!--")?;
    rest.strip_suffix("-->").map(str::trim)
}

fn commands(block: &[(usize, &str)]) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for &(number, line) in block {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                line: number,
                action: Action::Run(command.to_owned()),
                expected: Vec::new(),
            });
            continue;
        }
        let Some(step) = steps.last_mut() else {
            bail!("line {number}: an output without a command");
        };
        let Action::Run(command) = &mut step.action else {
            continue;
        };
        let marked = line.strip_prefix("> ").or((line == ">").then_some(""));
        let is_continued =
            step.expected.is_empty() && (marked.is_some() || command.ends_with('\\'));
        if is_continued {
            command.push('\n');
            command.push_str(marked.unwrap_or(line));
        } else {
            step.expected.push(line.to_owned());
        }
    }
    for step in &mut steps {
        while step.expected.last().is_some_and(String::is_empty) {
            step.expected.pop();
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::{Action, Page, Step};

    const PAGE: &str = "\
# A page

<!-- ports: 7800 15432 -->

<!-- file: jobs.toml -->
```toml
[[job]]

name = \"a\"
```

Not run:

<!-- provided -->
```console
$ createdb cueline
```

```sh
rm -r /
```

```console
$ echo a
a

$ cat > b <<'TEXT'
> one
>
> TEXT
$ echo c \\
    d
c d
> not a continuation
```
";

    fn run(line: usize, command: &str, expected: &[&str]) -> Step {
        Step {
            line,
            action: Action::Run(command.to_owned()),
            expected: expected.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    #[test]
    fn a_page_is_read_as_files_and_commands() {
        let page = Page::parse(PAGE).expect("a page");
        assert_eq!(page.ports, [7800, 15432]);
        let file = Step {
            line: 6,
            action: Action::Write {
                file: "jobs.toml".to_owned(),
                text: "[[job]]\n\nname = \"a\"\n".to_owned(),
            },
            expected: Vec::new(),
        };
        assert_eq!(
            page.steps,
            [
                file,
                run(24, "echo a", &["a"]),
                run(27, "cat > b <<'TEXT'\none\n\nTEXT", &[]),
                run(31, "echo c \\\n    d", &["c d", "> not a continuation"]),
            ]
        );
    }

    #[test]
    fn a_page_that_cannot_be_run_is_refused_with_the_line() {
        for (page, words) in [
            ("<!-- terminal: a -->\n```console\n```\n", "line 1"),
            (
                "<!-- provided -->\n\ntext\n",
                "line 3: a block has to follow",
            ),
            ("a\n```console\n$ b\n", "line 2: the block has no end"),
            (
                "```console\nb\n```\n",
                "line 2: an output without a command",
            ),
            ("<!-- ports: x -->\n", "line 1"),
        ] {
            let error = format!("{:#}", Page::parse(page).expect_err("is refused"));
            assert!(error.contains(words), "{page}: {error}");
        }
    }
}
