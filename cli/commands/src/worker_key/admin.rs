//! Enrolment tokens and the keys of workers on the server.

use cueline_api::view::{CreatedToken, KeyState, TokenView, Tokens, WorkerKeyPage, WorkerKeyRef};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Timestamp;
use cueline_protocol::origin::EnrolmentToken;
use serde_json::{Map, Value, json};

use super::args::{DeleteTokenArg, EnrolTokenArgs, KeyArgs, KeyListArgs, TokenListArgs};
use crate::client::{Api, read};
use crate::human;
use crate::keys;
use crate::lists::{List, print_next, values};

/// Creates a token on the server.
pub(super) async fn create_token(
    api: &Api,
    out: Out,
    args: &EnrolTokenArgs,
) -> Result<(), Failure> {
    let answer = api.create(&["enrolment-tokens"], &request(args)).await?;
    let created: CreatedToken = read(answer.clone())?;
    let Some(path) = &args.out else {
        if out.is_json() {
            return out.json(&answer);
        }
        return out.line(&created.token);
    };
    if let Err(failure) = keys::write_secret(path, &created.token) {
        // A token whose secret is lost can only be misused.
        let _ = api.delete(&["enrolment-tokens", &created.id]).await;
        return Err(failure);
    }
    print_written(out, args, &created.id)
}

fn request(args: &EnrolTokenArgs) -> Value {
    let mut fields = Map::new();
    let given = [
        ("group", args.group.as_ref().map(|group| json!(group))),
        ("executor", args.executor.as_ref().map(|name| json!(name))),
        ("uses", args.uses.map(|uses| json!(uses))),
        ("valid", args.valid.as_ref().map(|valid| json!(valid))),
    ];
    for (name, value) in given {
        fields.extend(value.map(|value| (name.to_owned(), value)));
    }
    Value::Object(fields)
}

/// Writes a token that no server knows yet. A scheduler stores it when it starts with the file.
pub(super) fn new_token_file(out: Out, args: &EnrolTokenArgs) -> Result<(), Failure> {
    let Some(path) = &args.out else {
        return Err(Failure::bad_input("--offline: give --out FILE too"));
    };
    let token = EnrolmentToken::new(keys::random()?, keys::random()?);
    keys::write_secret(path, &token.to_text())?;
    print_written(out, args, token.id())
}

fn print_written(out: Out, args: &EnrolTokenArgs, id: &str) -> Result<(), Failure> {
    let Some(path) = &args.out else { return Ok(()) };
    if out.is_json() {
        return out.json(&json!({ "id": id, "file": path }));
    }
    out.line(&format!(
        "{} has the enrolment token {id}; only its owner can read it",
        path.display()
    ))
}

/// Lists tokens.
pub(super) async fn tokens(api: &Api, out: Out, args: &TokenListArgs) -> Result<(), Failure> {
    let mut query = args.groups.query();
    query.extend(values("state", &args.states));
    let list = List {
        path: &["enrolment-tokens"],
        key: "tokens",
        most: None,
    };
    let answer = list.read(api, &query, args.all, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let found: Tokens = read(answer)?;
    let mut table = out.table(&["ID", "FOR", "USES LEFT", "EXPIRES", "CREATED", "BY"]);
    for token in &found.tokens {
        let (expires, paint) = expiry(token, found.now);
        table.add_row(vec![
            cell(token.id.clone(), None),
            cell(scope(token), None),
            cell(
                token.uses_left.to_string(),
                (token.uses_left == 0).then_some(Paint::Dim),
            ),
            cell(expires, paint),
            cell(human::relative(token.created_at, found.now), None),
            cell(human::one_line(&token.by, 40), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no such enrolment tokens; `cueline worker-key token` creates one",
    )?;
    print_next(out, found.next.as_deref())
}

/// The workers that a token enrols.
fn scope(token: &TokenView) -> String {
    match (&token.group, &token.executor) {
        (Some(group), Some(executor)) => format!("{group}/{executor}"),
        (Some(group), None) => format!("group {group}"),
        (None, _) => match &token.namespace {
            None => "all groups of all namespaces".to_owned(),
            Some(namespace) if namespace.is_default() => "all groups".to_owned(),
            Some(namespace) => format!("all groups of {namespace}"),
        },
    }
}

fn expiry(token: &TokenView, now: Timestamp) -> (String, Option<Paint>) {
    match token.expires_at {
        None => ("never".to_owned(), None),
        Some(at) if at <= now => ("expired".to_owned(), Some(Paint::Dim)),
        Some(at) => (human::relative(at, now), None),
    }
}

/// Deletes a token.
pub(super) async fn delete_token(
    api: &Api,
    out: Out,
    args: &DeleteTokenArg,
) -> Result<(), Failure> {
    let path = ["enrolment-tokens", &args.id];
    let answer = api.delete_listed(&path, args.all).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    out.line(&format!(
        "enrolment token {} is deleted; the keys that it has enrolled stay",
        args.id
    ))
}

/// Lists the keys of workers, sorted by executor.
pub(super) async fn list(api: &Api, out: Out, args: &KeyListArgs) -> Result<(), Failure> {
    let page = keys_of(api, args).await?;
    if out.is_json() {
        return out.json(&json!(page));
    }
    let WorkerKeyPage { keys, next, now } = page;
    let mut table = out.table(&[
        "EXECUTOR", "KEY", "STATE", "ENROLLED", "BY", "CHANGED", "BY",
    ]);
    for key in &keys {
        let (state, paint) = match key.state {
            KeyState::Allowed => ("allowed", Paint::Good),
            KeyState::Revoked => ("revoked", Paint::Dim),
        };
        table.add_row(vec![
            cell(format!("{}/{}", key.group, key.executor), None),
            cell(key.id.clone(), None),
            cell(state, Some(paint)),
            cell(human::relative(key.enrolled_at, now), None),
            cell(human::one_line(&key.enrolled_by, 40), None),
            cell(human::relative(key.changed_at, now), None),
            cell(human::one_line(&key.changed_by, 40), None),
        ]);
    }
    out.print_table(
        &table,
        "there are no such keys; `cueline worker-key token` creates a token with which workers enrol theirs",
    )?;
    print_next(out, next.as_deref())
}

/// Reads the keys. One that changes meanwhile may be in two pages; the later one counts.
async fn keys_of(api: &Api, args: &KeyListArgs) -> Result<WorkerKeyPage, Failure> {
    let mut query = args.groups.query();
    query.extend(values("executor", &args.executors));
    query.extend(values("state", &args.states));
    let list = List {
        path: &["worker-keys"],
        key: "keys",
        most: None,
    };
    let mut page: WorkerKeyPage = read(list.read(api, &query, args.all, &args.page).await?)?;
    page.keys.reverse();
    page.keys
        .sort_by(|a, b| (&a.group, &a.executor, &a.id).cmp(&(&b.group, &b.executor, &b.id)));
    page.keys
        .dedup_by(|a, b| (&a.group, &a.executor, &a.id) == (&b.group, &b.executor, &b.id));
    Ok(page)
}

/// Revokes a key, or allows it again.
pub(super) async fn set(api: &Api, out: Out, args: &KeyArgs, what: &str) -> Result<(), Failure> {
    let path = [
        "worker-keys",
        args.group.as_str(),
        args.executor.as_str(),
        args.key.as_str(),
        what,
    ];
    let answer = api.post(&path, &json!({})).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let key: WorkerKeyRef = read(answer)?;
    let state = match key.state {
        KeyState::Allowed => "allowed",
        KeyState::Revoked => "revoked; schedulers notice it within a few seconds",
    };
    out.line(&format!(
        "key {} of {}/{} is {state}",
        key.id, key.group, key.executor
    ))
}
