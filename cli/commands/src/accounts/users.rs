//! `cueline user …`

use cueline_api::view::{LoginKind, PasswordSet, SessionView, UserPage, UserRef, UserView};
use cueline_interface::{Failure, Out, Paint, cell};
use cueline_store::name_key;
use serde_json::{Map, Value, json};

use super::args::{ChangeUserArgs, CreateUserArgs, PasswordArgs, UserArg, UserListArgs};
use super::{caller, grant};
use crate::client::{Api, read};
use crate::human;
use crate::lists::{List, print_next, values};
use crate::namespaces::AllNamespaces;
use crate::prompt;

pub(super) async fn list(api: &Api, out: Out, args: &UserListArgs) -> Result<(), Failure> {
    let mut query = values("name", &args.names);
    query.extend(args.groups.query());
    query.extend(values("state", &args.states));
    let list = List {
        path: &["users"],
        key: "users",
        most: None,
    };
    let everywhere = AllNamespaces::default();
    let answer = list.read(api, &query, everywhere, &args.page).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let page: UserPage = read(answer)?;
    let mut table = out.table(&["USER", "NAME", "LOGIN", "GRANTS", "LAST LOGIN"]);
    for user in &page.users {
        let (kind, paint) = login(user);
        let at = user.last_login_at;
        let login_time = at.map_or_else(|| "–".to_owned(), |at| human::relative(at, page.now));
        table.add_row(vec![
            cell(user.name.as_str(), None),
            cell(human::one_line(&user.display_name, 40), None),
            cell(kind, paint),
            cell(grant::shown(&user.grants, user.grants_unreadable), None),
            cell(login_time, None),
        ]);
    }
    out.print_table(
        &table,
        "there are no such users; `cueline user create` creates one",
    )?;
    print_next(out, page.next.as_deref())
}

fn login(user: &UserView) -> (&'static str, Option<Paint>) {
    match (user.enabled, user.login) {
        (false, _) => ("disabled", Some(Paint::Dim)),
        (true, LoginKind::Password) => ("password", None),
        (true, LoginKind::OpenId) => ("OpenID", None),
        (true, LoginKind::None) => ("none", None),
    }
}

pub(super) async fn show(api: &Api, out: Out, arg: &UserArg) -> Result<(), Failure> {
    let answer = api.get(&["users", &arg.name], &[]).await?;
    print(out, answer)
}

fn print(out: Out, answer: Value) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&answer);
    }
    let user: UserView = read(answer)?;
    let last = user.last_login_at;
    let lines = [
        ("user", user.name.clone()),
        ("name", user.display_name.clone()),
        ("login", login(&user).0.to_owned()),
        ("grants", grant::shown(&user.grants, user.grants_unreadable)),
        (
            "created",
            format!("{} by {}", user.created_at, user.created_by),
        ),
        (
            "last login",
            last.map_or_else(|| "never".to_owned(), |at| at.to_string()),
        ),
    ];
    for (label, text) in lines {
        let label = out.paint(&format!("{label:<10}"), Paint::Dim);
        out.line(&format!("{label} {text}"))?;
    }
    Ok(())
}

pub(super) async fn create(api: &Api, out: Out, args: &CreateUserArgs) -> Result<(), Failure> {
    let mut body = Map::new();
    body.insert("name".to_owned(), json!(args.name));
    body.insert("grants".to_owned(), json!(args.grants));
    if let Some(name) = &args.display_name {
        body.insert("display_name".to_owned(), json!(name));
    }
    if !args.no_password {
        api.refuse_readable("the password")?;
        let file = args.password_file.as_deref();
        let password = prompt::new_password("--password-file", file)?;
        body.insert("password".to_owned(), json!(password));
    }
    let answer = api.create(&["users"], &Value::Object(body)).await?;
    print(out, answer)
}

pub(super) async fn change(api: &Api, out: Out, args: &ChangeUserArgs) -> Result<(), Failure> {
    let mut body = Map::new();
    if let Some(name) = &args.display_name {
        body.insert("display_name".to_owned(), json!(name));
    }
    if !args.grants.is_empty() || args.no_grants {
        body.insert("grants".to_owned(), json!(args.grants));
    }
    if args.enable || args.disable {
        body.insert("enabled".to_owned(), json!(args.enable));
    }
    if body.is_empty() {
        return Err(Failure::bad_input(
            "nothing to change; give --display-name, --grant, --no-grants, --enable or --disable",
        ));
    }
    let answer = api
        .patch(&["users", &args.name], &Value::Object(body))
        .await?;
    print(out, answer)
}

pub(super) async fn delete(api: &Api, out: Out, arg: &UserArg) -> Result<(), Failure> {
    let answer = api.delete(&["users", &arg.name]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let user: UserRef = read(answer)?;
    out.line(&format!(
        "user {} is deleted, with all sessions and tokens",
        user.name
    ))
}

pub(super) async fn password(api: &Api, out: Out, args: &PasswordArgs) -> Result<(), Failure> {
    api.refuse_readable("the password")?;
    let session: SessionView = read(api.get(&["session"], &[]).await?)?;
    // The server compares login names without regard to case.
    let own = caller::user(&session).map(name_key);
    let mut body = Map::new();
    if own == Some(name_key(&args.name)) {
        let file = args.old_password_file.as_deref();
        let old = prompt::secret("Present password: ", "--old-password-file", file)?;
        body.insert("old_password".to_owned(), json!(old));
    }
    let password = prompt::new_password("--password-file", args.password_file.as_deref())?;
    body.insert("password".to_owned(), json!(password));
    let path = ["users", args.name.as_str(), "password"];
    if args.keep_tokens {
        body.insert("keep_tokens".to_owned(), json!(true));
    }
    let answer = api.post(&path, &Value::Object(body)).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let set: PasswordSet = read(answer)?;
    out.line(&format!(
        "user {} has a new password; all sessions of the user have ended; API tokens revoked: {}",
        set.name, set.tokens_revoked
    ))
}
