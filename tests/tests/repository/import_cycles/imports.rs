//! Reads which modules of a crate import which, from the text of its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module's path below the crate's root.
pub(super) type ModulePath = Vec<String>;

/// One module names another one, or something in it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) from: ModulePath,
    pub(super) to: ModulePath,
}

/// The imports of a crate.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) imports: BTreeSet<Import>,
}

impl Crate {
    /// Reads the crate whose `lib.rs` is in this folder.
    pub(super) fn read(source: &Path) -> Self {
        let mut files = BTreeMap::new();
        collect(source, &[], &mut files);
        Self::parse(&files)
    }

    pub(super) fn parse(files: &BTreeMap<ModulePath, String>) -> Self {
        let modules: BTreeSet<ModulePath> = files.keys().cloned().collect();
        let tokens: BTreeMap<&ModulePath, Vec<String>> = files
            .iter()
            .map(|(module, text)| (module, without_tests(&tokens(text))))
            .collect();
        let mut exports = BTreeMap::new();
        for (module, tokens) in &tokens {
            for path in exported(tokens) {
                let name = path.last().cloned().unwrap_or_default();
                let full = absolute(module, path);
                exports.insert([&module[..], &[name]].concat(), full);
            }
        }
        let mut imports = BTreeSet::new();
        for (module, tokens) in &tokens {
            for path in named(tokens) {
                let to = resolve(absolute(module, path), &modules, &exports);
                imports.insert(Import {
                    from: (*module).clone(),
                    to,
                });
            }
        }
        Self { imports }
    }
}

/// All modules below a folder, with their text.
fn collect(folder: &Path, module: &[String], files: &mut BTreeMap<ModulePath, String>) {
    for entry in std::fs::read_dir(folder).expect("lists") {
        let path = entry.expect("lists").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.expect("a name").to_owned();
        if path.is_dir() {
            if name != "bin" {
                collect(&path, &[module, &[name]].concat(), files);
            }
            continue;
        }
        let is_test = name == "tests" || name.ends_with("_tests");
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        if is_test || !is_source || (name == "main" && module.is_empty()) {
            continue;
        }
        let own = match name.as_str() {
            "lib" if module.is_empty() => Vec::new(),
            "mod" => module.to_vec(),
            _ => [module, &[name]].concat(),
        };
        files.insert(own, std::fs::read_to_string(&path).expect("reads"));
    }
}

/// Words, `::` and single characters, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else if word(first) {
            let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of the literal with which this text begins.
fn literal(text: &str) -> Option<usize> {
    if let Some(raw) = text.strip_prefix("br").or_else(|| text.strip_prefix('r')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let start = text.len() - raw.len() + hashes + 1;
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(start + text[start..].find(&end)? + end.len());
        }
    }
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            // A lifetime.
            _ if quote == '\'' && at > 1 && !text[1..].starts_with('\\') => return None,
            _ => {}
        }
    }
    None
}

/// Removes the items after `#[cfg(test)]` and `#[cfg(all(test, …))]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let Some(token) = rest.first() {
        let attribute: Vec<&str> = rest.iter().take(7).map(String::as_str).collect();
        let is_test = attribute.starts_with(&["#", "[", "cfg", "(", "test"])
            || attribute.starts_with(&["#", "[", "cfg", "(", "all", "(", "test"]);
        if is_test {
            rest = after_item(rest);
        } else {
            kept.push(token.clone());
            rest = &rest[1..];
        }
    }
    kept
}

/// What follows the item, which ends with `;` or a block.
fn after_item(tokens: &[String]) -> &[String] {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 && (token == ";" || token == "}") {
            return &tokens[at + 1..];
        }
    }
    &[]
}

/// The paths that begin with `crate`, `super` or `self`.
fn named(tokens: &[String]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let begins = matches!(token.as_str(), "crate" | "super" | "self")
            && tokens.get(at + 1).is_some_and(|next| next == "::")
            && (at == 0 || tokens[at - 1] != "::");
        if begins {
            paths.extend(tree(&mut &tokens[at..]));
        }
    }
    paths
}

/// The paths of `pub use …;` and `pub(…) use …;`.
fn exported(tokens: &[String]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
        if token == "use" && is_public {
            paths.extend(tree(&mut &tokens[at + 1..]));
        }
    }
    paths
}

/// Reads `a::b`, `a::{b, c::d}` and the like: one path for each leaf.
fn tree(rest: &mut &[String]) -> Vec<Vec<String>> {
    let mut path = Vec::new();
    while let Some((token, after)) = rest.split_first() {
        if token == "{" {
            *rest = after;
            let mut paths = Vec::new();
            while let Some((token, after)) = rest.split_first() {
                match token.as_str() {
                    "}" => {
                        *rest = after;
                        break;
                    }
                    "," => *rest = after,
                    // `as name`
                    "as" => *rest = after.get(1..).unwrap_or_default(),
                    _ => {
                        let before = rest.len();
                        for leaf in tree(rest) {
                            paths.push([&path[..], &leaf].concat());
                        }
                        if rest.len() == before {
                            *rest = after;
                        }
                    }
                }
            }
            return paths;
        }
        if !token.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            break;
        }
        path.push(token.clone());
        *rest = after;
        match rest.split_first() {
            Some((token, after)) if token == "::" => *rest = after,
            _ => break,
        }
    }
    if path.is_empty() {
        Vec::new()
    } else {
        vec![path]
    }
}

/// Resolves a path that `module` names to a path below the crate's root. A path without `crate`, `super` or `self`
/// begins with the name of a submodule or of another crate. No module has the name of another crate.
fn absolute(module: &ModulePath, path: Vec<String>) -> Vec<String> {
    let mut base = module.clone();
    let mut names = path.into_iter().peekable();
    while let Some(name) = names.peek() {
        match name.as_str() {
            "crate" => base.clear(),
            "super" => {
                base.pop();
            }
            "self" => {}
            _ => break,
        }
        names.next();
    }
    base.into_iter().chain(names).collect()
}

/// The module that this path is in, by the names that modules export.
fn resolve(
    mut path: Vec<String>,
    modules: &BTreeSet<ModulePath>,
    exports: &BTreeMap<Vec<String>, Vec<String>>,
) -> ModulePath {
    // Follows exports of exports. The limit replaces a search for cycles.
    const MOST_EXPORTS: usize = 8;
    for _ in 0..MOST_EXPORTS {
        let mut found = false;
        for length in (1..=path.len()).rev() {
            if modules.contains(&path[..length]) {
                break;
            }
            if let Some(target) = exports.get(&path[..length]) {
                path = [&target[..], &path[length..]].concat();
                found = true;
                break;
            }
        }
        if !found {
            break;
        }
    }
    while !modules.contains(&path) {
        path.pop();
    }
    path
}
