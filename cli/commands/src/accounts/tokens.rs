//! `cueline token …`: API tokens.

use cueline_api::view::{ApiTokenPage, ApiTokenRef, ApiTokenView, CreatedApiToken};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_model::Timestamp;
use serde_json::{Value, json};

use super::args::{CreateTokenArgs, TokenArg, TokenListArgs};
use super::grant;
use crate::client::{Api, read};
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::{human, keys};

pub(super) async fn list(api: &Api, out: Out, args: &TokenListArgs) -> Result<(), Failure> {
    let mut query = values("name", &args.names);
    query.extend(values("owner", &args.owners));
    query.extend(args.groups.query());
    query.extend(values("state", &args.states));
    let list = List {
        path: &["tokens"],
        key: "tokens",
        most: None,
    };
    let everywhere = AllNamespaces::default();
    let answer = list.read(api, &query, everywhere, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: ApiTokenPage = read(answer)?;
    let mut table = out.table(&["ID", "NAME", "OWNER", "GRANTS", "EXPIRES", "LAST USED"]);
    for token in &page.tokens {
        let (expires, paint) = expiry(token, page.now);
        let used = token.last_used_at;
        let used = used.map_or_else(|| "–".to_owned(), |at| human::relative(at, page.now));
        table.add_row(vec![
            cell(token.id.as_str(), None),
            cell(human::one_line(&token.name, 40), None),
            cell(token.owner.as_deref().unwrap_or("–"), None),
            cell(grant::shown(&token.grants, token.grants_unreadable), None),
            cell(expires, paint),
            cell(used, None),
        ]);
    }
    out.print_table(
        &table,
        "there are no such API tokens; `cueline token create` creates one",
    )?;
    print_next(out, page.next.as_deref())
}

fn expiry(token: &ApiTokenView, now: Timestamp) -> (String, Option<Paint>) {
    match (token.revoked_at, token.expires_at) {
        (Some(_), _) => ("revoked".to_owned(), Some(Paint::Dim)),
        (None, None) => ("never".to_owned(), None),
        (None, Some(at)) if at <= now => ("expired".to_owned(), Some(Paint::Dim)),
        (None, Some(at)) => (human::relative(at, now), None),
    }
}

pub(super) async fn create(api: &Api, out: Out, args: &CreateTokenArgs) -> Result<(), Failure> {
    let mut body = json!({ "name": args.name, "grants": args.grants, "program": args.program });
    if let Some(valid) = &args.valid {
        body["valid"] = json!(valid);
    }
    let answer: Value = api.create(&["tokens"], &body).await?;
    let created: CreatedApiToken = read(answer.clone())?;
    let Some(path) = &args.out else {
        if out.is_json() {
            return out.json(&answer);
        }
        return out.line(&created.token);
    };
    if let Err(failure) = keys::write_secret(path, &created.token) {
        // A token whose secret is lost can only be misused.
        let _ = api.delete(&["tokens", &created.id]).await;
        return Err(failure);
    }
    if out.is_json() {
        return out.json(&json!({ "id": created.id, "file": path }));
    }
    out.line(&format!(
        "{} has the API token {}; only its owner can read it",
        path.display(),
        created.id
    ))
}

pub(super) async fn revoke(api: &Api, out: Out, arg: &TokenArg) -> Result<(), Failure> {
    let answer = api.delete(&["tokens", &arg.id]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let token: ApiTokenRef = read(answer)?;
    out.line(&format!("API token {} is revoked", token.id))
}
