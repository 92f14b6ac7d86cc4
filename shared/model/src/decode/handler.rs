//! Reads handlers.

use super::fields::{MAX_TEXT_BYTES, local, optional, required, secret_map, text_or_secret};
use super::reader::{Fields, Reader, given, shorten};
use super::{Node, Value};
use crate::handler::{CommandSpec, HandlerSpec, HttpSpec, Interpreter, ProcessSpec, ShellSpec};
use crate::name::{Namespace, ScriptName};
use crate::script::{LoadedScript, MAX_SCRIPT_BYTES, ScriptUse};
use crate::secret::TextOrSecret;

const KINDS: [&str; 5] = ["shell", "command", "http", "native", "script"];
/// The keys of a handler: the kinds, and the version of `{ script = "name", version = 7 }`.
const KEYS: [&str; 6] = ["shell", "command", "http", "native", "script", "version"];
const MAX_PATH_BYTES: usize = 4_096;
const MAX_URL_BYTES: usize = 8_192;
const MAX_ARGUMENTS: usize = 4_096;
const MAX_NAME_BYTES: usize = 128;

/// Reads a handler: a table with exactly one of the kinds.
pub(super) fn read(
    r: &mut Reader,
    node: &Node,
    path: &str,
    namespace: &Namespace,
) -> Option<HandlerSpec> {
    let f = r.fields(node, path, &KEYS, &[])?;
    let kinds = f.present(&KINDS);
    let [kind] = kinds[..] else {
        let shown = if kinds.is_empty() {
            given(node)
        } else {
            format!("{} together", kinds.join(" and "))
        };
        r.refuse(
            node.line,
            path,
            format!(
                "{shown} given; exactly one of {} is expected",
                KINDS.join(", ")
            ),
        );
        return None;
    };
    if kind != "script"
        && let Some((version, path)) = f.get("version")
    {
        let message = format!("given beside {kind}; only a script has versions");
        r.refuse(version.line, &path, message);
        return None;
    }
    let (value, path) = f.get(kind)?;
    match kind {
        "script" => script_use(r, &f, (value, &path), namespace).map(HandlerSpec::from),
        "shell" => shell(r, value, &path).map(HandlerSpec::from),
        "command" => command(r, value, &path).map(HandlerSpec::from),
        "http" => http(r, value, &path).map(HandlerSpec::from),
        _ => native(r, value, &path).map(HandlerSpec::Native),
    }
}

fn native(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    let name = r.filled(
        node,
        path,
        MAX_NAME_BYTES,
        "the name of a registered handler",
    )?;
    if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        r.refuse(
            node.line,
            path,
            format!("{:?} has a blank or control character; the name of a registered handler is expected", shorten(name)),
        );
        return None;
    }
    Some(name.to_owned())
}

fn script(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    r.filled(node, path, MAX_SCRIPT_BYTES, "a script")
        .map(str::to_owned)
}

fn file(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    r.filled(node, path, MAX_PATH_BYTES, "a path")
        .map(str::to_owned)
}

const PROCESS_KEYS: [&str; 5] = ["env", "clear_env", "cwd", "stdin", "run_as"];

fn process(r: &mut Reader, f: &Fields<'_>) -> ProcessSpec {
    ProcessSpec {
        env: optional(r, f, "env", |r, n, p| secret_map(r, n, p, "a variable")).unwrap_or_default(),
        clear_env: optional(r, f, "clear_env", Reader::boolean).unwrap_or_default(),
        cwd: optional(r, f, "cwd", file),
        stdin: optional(r, f, "stdin", text_or_secret),
        run_as: optional(r, f, "run_as", |r, n, p| {
            r.filled(n, p, MAX_NAME_BYTES, "a user name")
                .map(str::to_owned)
        }),
    }
}

fn shell(r: &mut Reader, node: &Node, path: &str) -> Option<ShellSpec> {
    if let Value::Text(_) = node.value {
        return script(r, node, path).map(|script| ShellSpec {
            script,
            ..ShellSpec::default()
        });
    }
    let keys: Vec<&str> = ["script", "interpreter", "shell"]
        .into_iter()
        .chain(PROCESS_KEYS)
        .collect();
    let f = r.fields(node, path, &keys, &[])?;
    let script = required(r, &f, node, "script", "the script's text", script);
    let interpreter = optional(r, &f, "interpreter", |r, n, p| {
        r.word(n, p, "interpreter", &Interpreter::ALL, &[])
    });
    let shell = optional(r, &f, "shell", file);
    let process = process(r, &f);
    Some(ShellSpec {
        script: script?,
        interpreter: interpreter.unwrap_or_default(),
        shell,
        process,
    })
}

/// Reads `{ script = "name" }`, `{ script = "name", version = 7 }` and `{ script = { name = "name", … } }`.
fn script_use(
    r: &mut Reader,
    handler: &Fields<'_>,
    (node, path): (&Node, &str),
    namespace: &Namespace,
) -> Option<ScriptUse> {
    let name = |r: &mut Reader, node: &Node, path: &str| {
        let name = local(r, node, path, |text| {
            ScriptName::in_namespace(namespace, text)
        })?;
        Some(name.local().to_owned())
    };
    let version =
        |r: &mut Reader, node: &Node, path: &str| r.integer(node, path, 1..=i64::from(u32::MAX));
    if let Value::Text(_) = node.value {
        let name = name(r, node, path);
        let version = optional(r, handler, "version", version);
        return Some(ScriptUse {
            name: name?,
            version,
            process: ProcessSpec::default(),
            loaded: LoadedScript::default(),
        });
    }
    if let Some((outer, path)) = handler.get("version") {
        let message = "given beside a table; `version` is expected in that table";
        r.refuse(outer.line, &path, message);
        return None;
    }
    let keys: Vec<&str> = ["name", "version"]
        .into_iter()
        .chain(PROCESS_KEYS)
        .collect();
    let f = r.fields(node, path, &keys, &[])?;
    let name = required(r, &f, node, "name", "the name of a script", name);
    let version = optional(r, &f, "version", version);
    let process = process(r, &f);
    Some(ScriptUse {
        name: name?,
        version,
        process,
        loaded: LoadedScript::default(),
    })
}

fn command(r: &mut Reader, node: &Node, path: &str) -> Option<CommandSpec> {
    if !matches!(node.value, Value::Map(_)) {
        return argv(r, node, path).map(|argv| CommandSpec {
            argv,
            process: ProcessSpec::default(),
        });
    }
    let keys: Vec<&str> = ["argv"].into_iter().chain(PROCESS_KEYS).collect();
    let f = r.fields(node, path, &keys, &[])?;
    let argv = required(
        r,
        &f,
        node,
        "argv",
        "a list of the program and its arguments",
        argv,
    );
    let process = process(r, &f);
    Some(CommandSpec {
        argv: argv?,
        process,
    })
}

fn argv(r: &mut Reader, node: &Node, path: &str) -> Option<Vec<String>> {
    let Value::List(items) = &node.value else {
        r.mismatch(
            node,
            path,
            "a list of the program and its arguments, such as [\"pg_dump\", \"app\"],",
        );
        return None;
    };
    if items.is_empty() || items.len() > MAX_ARGUMENTS {
        r.mismatch(
            node,
            path,
            &format!("a program and its arguments, at most {MAX_ARGUMENTS},"),
        );
        return None;
    }
    let mut argv = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let field = format!("{path}[{index}]");
        let argument = if index == 0 {
            file(r, item, &field)
        } else {
            r.text(item, &field, MAX_TEXT_BYTES).map(str::to_owned)
        };
        argv.push(argument?);
    }
    Some(argv)
}

fn http(r: &mut Reader, node: &Node, path: &str) -> Option<HttpSpec> {
    if let Value::Text(_) = node.value {
        return url(r, node, path).map(|url| HttpSpec {
            url,
            method: "GET".to_owned(),
            headers: std::collections::BTreeMap::new(),
            body: None,
            expect: Vec::new(),
            redirects: 0,
        });
    }
    let keys = ["url", "method", "headers", "body", "expect", "redirects"];
    let f = r.fields(node, path, &keys, &[])?;
    let url = required(r, &f, node, "url", "an absolute http or https URL", url);
    let method = optional(r, &f, "method", method);
    let headers = optional(r, &f, "headers", headers);
    let body = optional(r, &f, "body", text_or_secret);
    let expect = optional(r, &f, "expect", statuses);
    let redirects = optional(r, &f, "redirects", |r, n, p| {
        r.integer(n, p, 0..=i64::from(HttpSpec::MAX_REDIRECTS))
    });
    Some(HttpSpec {
        url: url?,
        method: method.unwrap_or_else(|| "GET".to_owned()),
        headers: headers.unwrap_or_default(),
        body,
        expect: expect.unwrap_or_default(),
        redirects: redirects.unwrap_or_default(),
    })
}

/// Reads an absolute URL with a host. It checks the mistakes that users make in job files; the HTTP client checks the
/// whole grammar.
pub(super) fn url(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    let text = r.filled(node, path, MAX_URL_BYTES, "an absolute http or https URL")?;
    let good = text
        .split_once("://")
        .filter(|(scheme, _)| {
            scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
        })
        .is_some_and(|(_, rest)| {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = authority
                .rsplit_once('@')
                .map_or(authority, |(_, host)| host);
            !host.is_empty() && !host.starts_with(':')
        });
    if !good || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        r.mismatch(
            node,
            path,
            "an absolute http or https URL with a host, such as \"https://example.com/hook\",",
        );
        return None;
    }
    Some(text.to_owned())
}

/// Reads a method in upper case. RFC 9110 allows any token.
fn method(r: &mut Reader, node: &Node, path: &str) -> Option<String> {
    let text = r.filled(node, path, 32, "a request method such as \"POST\"")?;
    if text.chars().all(is_token) {
        return Some(text.to_ascii_uppercase());
    }
    r.mismatch(node, path, "a request method such as \"POST\"");
    None
}

/// Whether an HTTP token may contain the character (RFC 9110, 5.6.2).
fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

fn headers(
    r: &mut Reader,
    node: &Node,
    path: &str,
) -> Option<std::collections::BTreeMap<String, TextOrSecret>> {
    let headers = secret_map(r, node, path, "a header")?;
    let is_one_line = |value: &TextOrSecret| match value {
        TextOrSecret::Text(text) => !text.chars().any(|c| c.is_control() && c != '\t'),
        // The worker checks the value.
        TextOrSecret::Secret(_) => true,
    };
    for (name, value) in &headers {
        if !name.chars().all(is_token) || !is_one_line(value) {
            r.refuse(
                node.line,
                &format!("{path}.{}", shorten(name)),
                "not a header: a name of letters, digits and '-' and a value of one line are expected",
            );
        }
    }
    Some(headers)
}

fn statuses(r: &mut Reader, node: &Node, path: &str) -> Option<Vec<u16>> {
    let Value::List(items) = &node.value else {
        if let Value::Int(_) = node.value {
            return r.integer(node, path, 100..=599).map(|status| vec![status]);
        }
        r.mismatch(node, path, "a list of statuses 100–599");
        return None;
    };
    if items.len() > 500 {
        r.mismatch(node, path, "a list of at most 500 statuses");
        return None;
    }
    items
        .iter()
        .enumerate()
        .map(|(index, item)| r.integer(item, &format!("{path}[{index}]"), 100..=599))
        .collect()
}
