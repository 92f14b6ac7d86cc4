//! The text of `contexts.toml`. Pure: this module reads no file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cueline_model::Namespace;
use toml_edit::{DocumentMut, Item, Table, TableLike, value};

use super::name::ContextName;

/// The most contexts in a file. A further one is refused.
pub(crate) const MAX_CONTEXTS: usize = 100;

/// A server, and how commands reach it. Its token is in another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) url: String,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    pub(crate) namespace: Option<Namespace>,
    /// Whether its token may be sent over http to another machine.
    pub(crate) insecure_http: bool,
}

/// All contexts of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Contexts {
    /// The one that commands use by default. It is always one of `all`.
    pub(crate) current: Option<ContextName>,
    pub(crate) all: BTreeMap<ContextName, Context>,
}

impl Contexts {
    /// Parses the text of the file.
    ///
    /// # Errors
    ///
    /// One sentence that names the wrong key.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let document = text
            .parse::<DocumentMut>()
            .map_err(|error| format!("is not TOML: {}", error.message()))?;
        let mut contexts = Self::default();
        for (key, item) in document.as_table() {
            match key {
                "current" => contexts.current = Some(parsed("current", item)?),
                "context" => contexts.all = all(item)?,
                _ => return Err(unknown(key, "current and context")),
            }
        }
        match &contexts.current {
            Some(name) if !contexts.all.contains_key(name) => {
                Err(format!("current: there is no context {:?}", name.as_str()))
            }
            _ => Ok(contexts),
        }
    }

    /// The text of the file.
    pub(crate) fn to_text(&self) -> String {
        let mut document = DocumentMut::new();
        if let Some(current) = &self.current {
            document.insert("current", value(current.as_str()));
        }
        let mut all = Table::new();
        all.set_implicit(true);
        for (name, context) in &self.all {
            all.insert(name.as_str(), Item::Table(context.to_table()));
        }
        document.insert("context", Item::Table(all));
        document.to_string()
    }
}

impl Context {
    fn to_table(&self) -> Table {
        let mut table = Table::new();
        table.insert("url", value(self.url.as_str()));
        let files = [
            ("ca_file", &self.ca_file),
            ("client_cert", &self.client_cert),
            ("client_key", &self.client_key),
        ];
        for (key, path) in files {
            if let Some(path) = path {
                table.insert(key, value(path.to_string_lossy().into_owned()));
            }
        }
        if let Some(namespace) = &self.namespace {
            table.insert("namespace", value(namespace.as_str()));
        }
        if self.insecure_http {
            table.insert("insecure_http", value(true));
        }
        table
    }
}

fn all(item: &Item) -> Result<BTreeMap<ContextName, Context>, String> {
    let tables = item
        .as_table_like()
        .ok_or("context: a table for each context is expected, such as [context.prod]")?;
    let mut all = BTreeMap::new();
    for (name, item) in tables.iter() {
        let place = format!("context.{name}");
        let parsed = name
            .parse::<ContextName>()
            .map_err(|error| format!("{place}: {error}"))?;
        let table = item
            .as_table_like()
            .ok_or_else(|| format!("{place}: a table is expected"))?;
        all.insert(parsed, context(&place, table)?);
    }
    if all.len() > MAX_CONTEXTS {
        return Err(format!(
            "context: {} contexts are given; the most are {MAX_CONTEXTS}",
            all.len()
        ));
    }
    Ok(all)
}

fn context(place: &str, table: &dyn TableLike) -> Result<Context, String> {
    let mut url = None;
    let mut context = Context {
        url: String::new(),
        ca_file: None,
        client_cert: None,
        client_key: None,
        namespace: None,
        insecure_http: false,
    };
    for (key, item) in table.iter() {
        let place = format!("{place}.{key}");
        match key {
            "url" => url = Some(text(&place, item)?.to_owned()),
            "ca_file" => context.ca_file = Some(text(&place, item)?.into()),
            "client_cert" => context.client_cert = Some(text(&place, item)?.into()),
            "client_key" => context.client_key = Some(text(&place, item)?.into()),
            "namespace" => context.namespace = Some(parsed(&place, item)?),
            "insecure_http" => {
                let flag = item.as_bool();
                context.insecure_http =
                    flag.ok_or_else(|| format!("{place}: true or false is expected"))?;
            }
            _ => {
                let known = "url, ca_file, client_cert, client_key, namespace and insecure_http";
                return Err(unknown(&place, known));
            }
        }
    }
    context.url = url.ok_or_else(|| format!("{place}.url: missing"))?;
    Ok(context)
}

fn text<'i>(place: &str, item: &'i Item) -> Result<&'i str, String> {
    item.as_str()
        .ok_or_else(|| format!("{place}: a text is expected"))
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    place: &str,
    item: &Item,
) -> Result<T, String> {
    text(place, item)?
        .parse::<T>()
        .map_err(|error| format!("{place}: {error}"))
}

fn unknown(place: &str, known: &str) -> String {
    format!("{place}: unknown key; {known} are known")
}

#[cfg(test)]
mod tests {
    use super::{Context, Contexts, MAX_CONTEXTS};

    fn context(url: &str) -> Context {
        Context {
            url: url.to_owned(),
            ca_file: Some("/etc/ca.pem".into()),
            client_cert: None,
            client_key: None,
            namespace: Some("billing".parse().expect("a name")),
            insecure_http: true,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let name = |text: &str| text.parse().expect("a name");
        let mut contexts = Contexts::default();
        assert_eq!(Contexts::parse(&contexts.to_text()), Ok(contexts.clone()));
        contexts.current = Some(name("a.example"));
        contexts
            .all
            .insert(name("a.example"), context("https://a.example/"));
        let mut other = context("http://127.0.0.1:7800/");
        (other.ca_file, other.namespace, other.insecure_http) = (None, None, false);
        contexts.all.insert(name("local"), other);
        assert_eq!(Contexts::parse(&contexts.to_text()), Ok(contexts));
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_key() {
        for (text, words) in [
            ("current = ", "is not TOML"),
            ("current = \"a\"", "there is no context \"a\""),
            ("curent = \"a\"", "curent: unknown key"),
            ("context = 1", "context: a table"),
            ("[context.a]\n", "context.a.url: missing"),
            ("[context.a]\nurl = 1\n", "context.a.url: a text"),
            (
                "[context.a]\nurl = \"u\"\ntoken = \"t\"\n",
                "context.a.token: unknown",
            ),
            (
                "[context.a]\nurl = \"u\"\nnamespace = \"a b\"\n",
                "context.a.namespace",
            ),
            (
                "[context.a]\nurl = \"u\"\ninsecure_http = 1\n",
                "true or false",
            ),
            (
                "[context.\"a/b\"]\nurl = \"u\"\n",
                "context.a/b: '/' is not allowed",
            ),
        ] {
            let error = Contexts::parse(text).expect_err("is refused");
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_has_a_bound() {
        let many: Vec<String> = (0..=MAX_CONTEXTS)
            .map(|n| format!("[context.c{n}]\nurl = \"u\"\n"))
            .collect();
        let error = Contexts::parse(&many.concat()).expect_err("is refused");
        assert!(error.contains("101 contexts"), "{error}");
    }
}
