//! `cueline context …`: named servers, with the tokens that `cueline login` stored for them.
//!
//! [`choice`] decides which server a command asks, [`book`] knows the text of the file, and [`files`] reads and writes it.

pub(crate) mod args;
pub(crate) mod book;
mod choice;
pub(crate) mod chosen;
pub(crate) mod files;
pub(crate) mod name;
pub(crate) mod server_args;

use std::path::PathBuf;

use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Namespace;
use serde_json::{Value, json};

use self::args::{ContextArg, ContextCommand, RenameArgs, UseArgs};
use self::book::{Context, Contexts};
use self::chosen::{unknown, without_home};
use self::files::ContextFiles;
use self::name::ContextName;
use self::server_args::ServerArgs;

const NONE: &str = "there are no contexts; `cueline login URL` creates one";

/// Runs a command about contexts. It asks no server.
pub(crate) fn run(out: Out, server: &ServerArgs, command: ContextCommand) -> Result<(), Failure> {
    let files = ContextFiles::of_user().ok_or_else(without_home)?;
    match command {
        ContextCommand::List => list(out, &files),
        ContextCommand::Use(args) => choose(out, &files, args),
        ContextCommand::Show(arg) => show(out, &files, arg.name.or(server.named_context()?)),
        ContextCommand::Delete(arg) => delete(out, &files, &arg),
        ContextCommand::Rename(args) => rename(out, &files, args),
    }
}

fn list(out: Out, files: &ContextFiles) -> Result<(), Failure> {
    let contexts = files.read()?;
    if out.is_json() {
        let list = contexts.all.iter();
        let list: Vec<Value> = list
            .map(|(name, context)| view(files, &contexts, name, context))
            .collect();
        return out.json(&json!({ "contexts": list }));
    }
    let mut table = out.table(&["", "NAME", "URL", "NAMESPACE", "TOKEN"]);
    for (name, context) in &contexts.all {
        let is_current = contexts.current.as_ref() == Some(name);
        let namespace = context.namespace.as_ref();
        let (token, paint) = if files.has_token(name) {
            ("stored", None)
        } else {
            ("none", Some(Paint::Warn))
        };
        table.add_row(vec![
            cell(if is_current { "*" } else { "" }, Some(Paint::Good)),
            cell(name.as_str(), None),
            cell(context.url.as_str(), None),
            cell(namespace.map_or("–", Namespace::as_str), None),
            cell(token, paint),
        ]);
    }
    out.print_table(&table, NONE)
}

fn view(files: &ContextFiles, contexts: &Contexts, name: &ContextName, context: &Context) -> Value {
    json!({
        "name": name.as_str(),
        "current": contexts.current.as_ref() == Some(name),
        "url": context.url,
        "ca_file": context.ca_file,
        "client_cert": context.client_cert,
        "client_key": context.client_key,
        "namespace": context.namespace,
        "insecure_http": context.insecure_http,
        "has_token": files.has_token(name),
    })
}

fn choose(out: Out, files: &ContextFiles, args: UseArgs) -> Result<(), Failure> {
    files.change(|contexts| {
        if let Some(name) = &args.name {
            found(contexts, name)?;
        }
        contexts.current.clone_from(&args.name);
        Ok(())
    })?;
    if out.is_json() {
        return out.json(&json!({ "current": args.name.map(|name| name.to_string()) }));
    }
    out.line(&match args.name {
        Some(name) => format!("commands use context {name} now"),
        None => "commands use no context now".to_owned(),
    })
}

fn found<'c>(contexts: &'c Contexts, name: &ContextName) -> Result<&'c Context, Failure> {
    let context = contexts.all.get(name);
    context.ok_or_else(|| unknown(name, contexts.all.keys()))
}

fn show(out: Out, files: &ContextFiles, name: Option<ContextName>) -> Result<(), Failure> {
    let contexts = files.read()?;
    let Some(name) = name.or_else(|| contexts.current.clone()) else {
        return Err(Failure::bad_input(
            "context: commands use none now; name one, or choose one with `cueline context use NAME`",
        ));
    };
    let context = found(&contexts, &name)?;
    if out.is_json() {
        return out.json(&view(files, &contexts, &name, context));
    }
    let file = |path: Option<&PathBuf>| path.map(|path| path.display().to_string());
    let lines = [
        ("name", Some(name.to_string())),
        ("url", Some(context.url.clone())),
        ("ca file", file(context.ca_file.as_ref())),
        ("client cert", file(context.client_cert.as_ref())),
        ("client key", file(context.client_key.as_ref())),
        (
            "namespace",
            context.namespace.as_ref().map(ToString::to_string),
        ),
        (
            "http",
            context
                .insecure_http
                .then(|| "the token may be sent without TLS".to_owned()),
        ),
        (
            "token",
            Some(
                if files.has_token(&name) {
                    "stored"
                } else {
                    "none"
                }
                .to_owned(),
            ),
        ),
    ];
    for (label, text) in lines {
        if let Some(text) = text {
            let label = out.paint(&format!("{label:<12}"), Paint::Dim);
            out.line(&format!("{label} {text}"))?;
        }
    }
    Ok(())
}

fn delete(out: Out, files: &ContextFiles, arg: &ContextArg) -> Result<(), Failure> {
    let had_token = files.change(|contexts| {
        found(contexts, &arg.name)?;
        // First the token: if the rest fails, only the token is missing.
        let had_token = files.forget_token(&arg.name)?;
        contexts.all.remove(&arg.name);
        if contexts.current.as_ref() == Some(&arg.name) {
            contexts.current = None;
        }
        Ok(had_token)
    })?;
    if out.is_json() {
        return out.json(&json!({ "name": arg.name.as_str(), "had_token": had_token }));
    }
    let token = if had_token {
        "; its token is deleted here and stays valid until it expires or is revoked"
    } else {
        ""
    };
    out.line(&format!("context {} is deleted{token}", arg.name))
}

fn rename(out: Out, files: &ContextFiles, args: RenameArgs) -> Result<(), Failure> {
    let RenameArgs { from, to } = args;
    files.change(|contexts| {
        let context = found(contexts, &from)?.clone();
        if contexts.all.contains_key(&to) {
            return Err(Failure::bad_input(format!(
                "context: {:?} exists already; give another name",
                to.as_str()
            )));
        }
        files.rename_token(&from, &to)?;
        contexts.all.remove(&from);
        contexts.all.insert(to.clone(), context);
        if contexts.current.as_ref() == Some(&from) {
            contexts.current = Some(to.clone());
        }
        Ok(())
    })?;
    if out.is_json() {
        return out.json(&json!({ "name": to.as_str() }));
    }
    out.line(&format!("context {from} is now called {to}"))
}
