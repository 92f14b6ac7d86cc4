//! Checks the fields of users and API tokens before they are stored.

use cueline_model::Grant;

use super::is_all_rights;
use crate::StoreError;
use crate::accounts::{
    Login, MAX_DISPLAY_NAME_BYTES, MAX_GRANTS, MAX_IDEMPOTENCY_KEY_BYTES, MAX_ISSUER_BYTES,
    MAX_LOGIN_NAME_BYTES, MAX_PASSWORD_HASH_BYTES, MAX_SUBJECT_BYTES, MAX_TOKEN_NAME_BYTES,
    NewApiToken, NewUser, UserChange,
};

/// The number of hexadecimal digits in a token's id.
const TOKEN_ID_DIGITS: usize = 16;

/// The start of an Argon2id hash in PHC format.
const ARGON2ID: &str = "$argon2id$";

/// A field, and what is wrong with it.
type Checked = Result<(), String>;

/// Checks a new user.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a field out of its bounds. The message names the field.
pub fn check_new_user(user: &NewUser) -> Result<(), StoreError> {
    let checked = login_name(&user.name)
        .and_then(|()| display_name(&user.display_name))
        .and_then(|()| login(&user.login))
        .and_then(|()| grants(&user.grants))
        .and_then(|()| optional(user.idempotency_key.as_deref(), idempotency_key));
    invalid("create a user", checked)
}

/// Checks the first user, who has to be able to create others.
///
/// # Errors
///
/// As [`check_new_user`], and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a user who cannot log in or has not
/// all rights.
pub fn check_first_user(user: &NewUser) -> Result<(), StoreError> {
    check_new_user(user)?;
    let checked = if user.login == Login::None {
        Err("login: the first user has to log in; give a password or an OpenID subject".to_owned())
    } else if user.grants.iter().any(is_all_rights) {
        Ok(())
    } else {
        Err("grants: the first user needs the role admin with scripts, without a namespace or group".to_owned())
    };
    invalid("create the first user", checked)
}

/// Checks a change of a user.
///
/// # Errors
///
/// As [`check_new_user`].
pub fn check_user_change(change: &UserChange) -> Result<(), StoreError> {
    let checked = optional(change.display_name.as_deref(), display_name)
        .and_then(|()| optional(change.login.as_ref(), login))
        .and_then(|()| optional(change.grants.as_deref(), grants));
    invalid("change a user", checked)
}

/// Checks a new API token.
///
/// # Errors
///
/// As [`check_new_user`].
pub fn check_new_token(token: &NewApiToken) -> Result<(), StoreError> {
    let checked = token_id(&token.id)
        .and_then(|()| text("name", &token.name, (1, MAX_TOKEN_NAME_BYTES)))
        .and_then(|()| grants(&token.grants))
        .and_then(|()| optional(token.idempotency_key.as_deref(), idempotency_key));
    invalid("create an API token", checked)
}

fn invalid(what: &str, checked: Checked) -> Result<(), StoreError> {
    checked.map_err(|why| StoreError::invalid(format!("failed to {what}: {why}")))
}

fn optional<T: ?Sized>(value: Option<&T>, check: impl FnOnce(&T) -> Checked) -> Checked {
    value.map_or(Ok(()), check)
}

fn login_name(name: &str) -> Checked {
    text("name", name, (1, MAX_LOGIN_NAME_BYTES))?;
    let other = |c: &char| !(c.is_alphanumeric() || "-_.@+".contains(*c));
    if let Some(bad) = name.chars().find(other) {
        return Err(format!(
            "name: {bad:?} is not allowed; use letters and digits of any language, '-', '_', '.', '@' and '+'"
        ));
    }
    // Otherwise it could be taken for an option of a command, or for a directory in a URL.
    match name.chars().next() {
        Some(first) if !(first.is_alphanumeric() || first == '_') => Err(format!(
            "name: it starts with {first:?}; start with a letter, a digit or '_'"
        )),
        _ => Ok(()),
    }
}

fn display_name(name: &str) -> Checked {
    text("display_name", name, (0, MAX_DISPLAY_NAME_BYTES))
}

/// The message has no value, because a wrong hash may be a password.
fn login(login: &Login) -> Checked {
    match login {
        Login::Password(hash) if !hash.0.starts_with(ARGON2ID) => {
            Err("password: the hash is none of Argon2id in PHC format".to_owned())
        }
        Login::Password(hash) => text("password", &hash.0, (1, MAX_PASSWORD_HASH_BYTES)),
        Login::OpenId { issuer, subject } => text("issuer", issuer, (1, MAX_ISSUER_BYTES))
            .and_then(|()| text("subject", subject, (1, MAX_SUBJECT_BYTES))),
        Login::None => Ok(()),
    }
}

fn grants(grants: &[Grant]) -> Checked {
    if grants.len() > MAX_GRANTS {
        return Err(format!(
            "grants: {} are given; give at most {MAX_GRANTS}",
            grants.len()
        ));
    }
    for (number, grant) in grants.iter().enumerate() {
        if let (Some(namespace), Some(group)) = (&grant.namespace, &grant.group) {
            let own = group.namespace();
            if own != *namespace {
                return Err(format!(
                    "grants[{number}]: the group {:?} is in the namespace {:?}, not in {:?}; give its own namespace or none",
                    group.as_str(),
                    own.as_str(),
                    namespace.as_str()
                ));
            }
        }
    }
    Ok(())
}

fn idempotency_key(key: &str) -> Checked {
    text("idempotency_key", key, (1, MAX_IDEMPOTENCY_KEY_BYTES))
}

fn token_id(id: &str) -> Checked {
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    if id.len() == TOKEN_ID_DIGITS && id.chars().all(is_digit) {
        return Ok(());
    }
    Err("id: give 16 lower-case hexadecimal digits".to_owned())
}

/// Checks the length of a text, and that it has no control characters. The message has no value, because it may be long.
fn text(field: &str, value: &str, (least, most): (usize, usize)) -> Checked {
    if !(least..=most).contains(&value.len()) {
        return Err(format!(
            "{field}: it has {} bytes; give {least} to {most}",
            value.len()
        ));
    }
    if let Some(bad) = value.chars().find(|c| c.is_control()) {
        return Err(format!(
            "{field}: the control character {bad:?} is not allowed"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::accounts::{PasswordHash, SecretHash};

    fn user(name: &str) -> NewUser {
        NewUser {
            name: name.to_owned(),
            display_name: String::new(),
            login: Login::Password(PasswordHash(format!("{ARGON2ID}x"))),
            grants: vec![Grant::everything()],
            idempotency_key: None,
        }
    }

    fn says(checked: Result<(), StoreError>, part: &str) {
        let error = checked.expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(part), "{error} has {part}");
    }

    #[test]
    fn login_names_are_letters_digits_and_few_signs() {
        let longest = "x".repeat(MAX_LOGIN_NAME_BYTES);
        for good in [
            "a",
            "Ann.Lee+1@example.org",
            "_x-1",
            "李雷",
            "7",
            longest.as_str(),
        ] {
            assert!(check_new_user(&user(good)).is_ok(), "{good}");
        }
        let too_long = "x".repeat(MAX_LOGIN_NAME_BYTES + 1);
        for bad in [
            "",
            "a b",
            "a/b",
            "a\0",
            "a\u{202e}",
            "..",
            "-a",
            "@a",
            too_long.as_str(),
        ] {
            says(check_new_user(&user(bad)), "create a user: name: ");
        }
    }

    #[test]
    fn the_fields_of_a_login_are_bounded() {
        let open_id = |issuer: usize, subject: usize| Login::OpenId {
            issuer: "i".repeat(issuer),
            subject: "s".repeat(subject),
        };
        let password = |text: String| Login::Password(PasswordHash(text));
        let most = MAX_PASSWORD_HASH_BYTES - ARGON2ID.len();
        for (login, field) in [
            (password("secret".to_owned()), "password: "),
            (
                password(format!("{ARGON2ID}{}", "x".repeat(most + 1))),
                "password: ",
            ),
            (open_id(0, 1), "issuer: "),
            (open_id(MAX_ISSUER_BYTES + 1, 1), "issuer: "),
            (open_id(1, 0), "subject: "),
            (open_id(1, MAX_SUBJECT_BYTES + 1), "subject: "),
        ] {
            let mut new = user("ann");
            new.login = login.clone();
            says(check_new_user(&new), field);
            let change = UserChange {
                login: Some(login),
                ..UserChange::default()
            };
            says(check_user_change(&change), field);
        }
        for login in [
            password(format!("{ARGON2ID}{}", "x".repeat(most))),
            open_id(MAX_ISSUER_BYTES, MAX_SUBJECT_BYTES),
            Login::None,
        ] {
            let mut new = user("ann");
            new.login = login;
            assert!(check_new_user(&new).is_ok());
        }
        let mut plain = user("ann");
        plain.login = password("secret".to_owned());
        let error = check_new_user(&plain).expect_err("is refused").to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn grants_are_bounded_and_name_the_groups_own_namespace() {
        let mut new = user("ann");
        new.grants = vec![Grant::everything(); MAX_GRANTS];
        assert!(check_new_user(&new).is_ok());
        new.grants.push(Grant::everything());
        says(check_new_user(&new), "grants: 101");
        let group: cueline_model::GroupName = "billing".parse().expect("a name");
        let mut grant = Grant::everything();
        grant.namespace = Some(group.namespace());
        grant.group = Some(group);
        new.grants = vec![Grant::everything(), grant.clone()];
        assert!(check_new_user(&new).is_ok());
        grant.namespace = Some("elsewhere".parse().expect("a name"));
        new.grants[1] = grant;
        says(check_new_user(&new), "grants[1]: ");
        let change = UserChange {
            grants: Some(new.grants),
            ..UserChange::default()
        };
        says(check_user_change(&change), "change a user: grants[1]: ");
    }

    #[test]
    fn a_display_name_is_short_and_has_no_control_characters() {
        for bad in ["x".repeat(MAX_DISPLAY_NAME_BYTES + 1), "a\nb".to_owned()] {
            let mut new = user("ann");
            new.display_name.clone_from(&bad);
            says(check_new_user(&new), "display_name: ");
            let change = UserChange {
                display_name: Some(bad),
                ..UserChange::default()
            };
            says(check_user_change(&change), "display_name: ");
        }
        assert!(check_user_change(&UserChange::default()).is_ok());
    }

    #[test]
    fn the_first_user_logs_in_and_has_all_rights() {
        assert!(check_first_user(&user("ann")).is_ok());
        let mut silent = user("ann");
        silent.login = Login::None;
        says(check_first_user(&silent), "login: ");
        let mut without = user("ann");
        without.grants.clear();
        says(check_first_user(&without), "grants: ");
    }

    #[test]
    fn a_token_is_checked() {
        let good = NewApiToken {
            id: "0123456789abcdef".to_owned(),
            hash: SecretHash([1; 32]),
            name: "backup".to_owned(),
            owner: None,
            grants: Vec::new(),
            valid_ms: None,
            session: None,
            idempotency_key: None,
        };
        assert!(check_new_token(&good).is_ok());
        let mut wrong = vec![good.clone(); 5];
        wrong[4].idempotency_key = Some("k".repeat(MAX_IDEMPOTENCY_KEY_BYTES + 1));
        wrong[0].id = "0123456789ABCDEF".to_owned();
        wrong[1].name = String::new();
        wrong[2].name = "x".repeat(MAX_TOKEN_NAME_BYTES + 1);
        wrong[3].grants = vec![Grant::everything(); MAX_GRANTS + 1];
        let fields = ["id: ", "name: ", "name: ", "grants: ", "idempotency_key: "];
        for (token, field) in wrong.iter().zip(fields) {
            says(check_new_token(token), field);
        }
    }
}
