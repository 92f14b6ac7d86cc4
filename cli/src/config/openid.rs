//! The settings of login by OpenID Connect: their parsers and the file of grants.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{ArgAction, Args};
use cueline_api::openid::{GrantMapping, GrantRule, OpenId, OpenIdSettings};
use cueline_interface::jobfile::read_text;
use cueline_interface::secret_file;
use cueline_model::{DurationMs, Grant, GroupName, Namespace};
use serde_json::{Map, Value};
use toml_edit::{Document, Item, Table};

use super::values;

/// Anything shorter is a mistake: people do not log in more often.
const SHORTEST_TOKENS: DurationMs = DurationMs::secs(3_600);
/// As long as the longest validity of a token that has an end.
const LONGEST_TOKENS: DurationMs = DurationMs::secs(3_650 * 24 * 3_600);

/// Of each role with an API.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "a field's name is the key")]
#[expect(clippy::doc_markdown, reason = "these are help texts")]
pub(crate) struct OpenIdOptions {
    /// Issuer of the OpenID Connect provider by which users log in, exactly as the provider writes it; none by default
    #[arg(value_name = "URL", value_parser = issuer)]
    pub(crate) oidc_issuer: Option<String>,
    /// Id of this client at the provider
    #[arg(value_name = "ID", value_parser = text)]
    pub(crate) oidc_client_id: Option<String>,
    /// File with the client's secret; without it, the client is a public one and proves itself by PKCE only
    #[arg(value_name = "FILE", value_parser = client_secret)]
    pub(crate) oidc_client_secret_file: Option<ClientSecret>,
    /// Public URL of this server, followed by /api/v1/login/oidc/callback; the provider has to know it
    #[arg(value_name = "URL", value_parser = redirect_url)]
    pub(crate) oidc_redirect_url: Option<String>,
    /// Scopes that are requested
    #[arg(value_name = "SCOPES", default_values = ["openid", "profile", "email"], value_parser = scope)]
    pub(crate) oidc_scopes: Vec<String>,
    /// Claim with the groups of a user: a name, or a path such as realm_access.roles
    #[arg(value_name = "NAME", default_value = "groups", value_parser = text)]
    pub(crate) oidc_groups_claim: String,
    /// File (TOML) that says which grants follow from which groups; without it, administrators give the grants
    #[arg(value_name = "FILE", value_parser = grant_mapping)]
    pub(crate) oidc_grants: Option<GrantMapping>,
    /// Create the user at the first login
    #[arg(value_name = "BOOL", default_value = "false", action = ArgAction::Set, value_parser = values::switch)]
    pub(crate) oidc_create_users: bool,
    /// How long the API tokens of a user count after the user's last login by the provider, 1h to 3650d
    #[arg(value_name = "DURATION", default_value = "30d", value_parser = tokens_valid)]
    pub(crate) oidc_tokens_valid: DurationMs,
}

/// The client's secret.
#[derive(Clone)]
pub(crate) struct ClientSecret(String);

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(…)")
    }
}

pub(super) fn issuer(text: &str) -> Result<String, String> {
    OpenIdSettings::check_issuer(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn redirect_url(text: &str) -> Result<String, String> {
    OpenIdSettings::check_redirect_url(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn text(text: &str) -> Result<String, String> {
    let fits = |c: char| !c.is_control();
    if text.is_empty() || text.len() > 256 || !text.chars().all(fits) {
        return Err(format!(
            "{text:?} given; 1 to 256 bytes without control characters are expected"
        ));
    }
    Ok(text.to_owned())
}

/// RFC 6749 defines the characters of a scope.
pub(super) fn scope(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
    if text.is_empty() || text.len() > 256 || !text.chars().all(fits) {
        return Err(format!(
            "{text:?} given; a scope such as profile is expected, and a comma between two of them"
        ));
    }
    Ok(text.to_owned())
}

pub(super) fn tokens_valid(text: &str) -> Result<DurationMs, String> {
    let valid = values::duration_ms(text)?;
    if (SHORTEST_TOKENS..=LONGEST_TOKENS).contains(&valid) {
        return Ok(valid);
    }
    Err(format!(
        "{text:?} given; a duration from {SHORTEST_TOKENS} to {LONGEST_TOKENS} is expected"
    ))
}

pub(super) fn client_secret(path: &str) -> Result<ClientSecret, String> {
    secret_file::read(Path::new(path)).map(ClientSecret)
}

/// The rules in the file of grants.
pub(super) fn grant_mapping(path: &str) -> Result<GrantMapping, String> {
    let text = read_text(Path::new(path))?;
    parsed(&text).map_err(|problem| format!("{path}: {problem}"))
}

fn parsed(text: &str) -> Result<GrantMapping, String> {
    let document = Document::parse(text).map_err(|error| {
        let message: Vec<&str> = error.message().split_whitespace().collect();
        format!("is not TOML: {}", message.join(" "))
    })?;
    let mut rules = Vec::new();
    for (key, item) in document.as_table() {
        let tables = item.as_array_of_tables().filter(|_| key == "grant");
        let Some(tables) = tables else {
            return Err(format!(
                "{key:?} given; only tables [[grant]] are expected, with group_claim and role"
            ));
        };
        for (i, table) in tables.iter().enumerate() {
            let rule = rule(table).map_err(|problem| format!("[[grant]] {}: {problem}", i + 1))?;
            rules.push(rule);
        }
    }
    GrantMapping::new(rules).map_err(|error| error.to_string())
}

fn rule(table: &Table) -> Result<GrantRule, String> {
    let mut fields = Map::new();
    for (key, item) in table {
        fields.insert(key.to_owned(), value(key, item)?);
    }
    let group_claim = match fields.remove("group_claim") {
        Some(Value::String(text)) => text,
        Some(other) => return Err(format!("group_claim: {other} given; a text is expected")),
        None => {
            return Err("group_claim: missing; a group of the provider is expected".to_owned());
        }
    };
    qualify_group(&mut fields)?;
    let grant: Grant =
        serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?;
    Ok(GrantRule { group_claim, grant })
}

/// Puts a local name of a group into the namespace beside it, as in a definition of a job. A qualified one stays.
fn qualify_group(fields: &mut Map<String, Value>) -> Result<(), String> {
    let (Some(Value::String(namespace)), Some(Value::String(group))) =
        (fields.get("namespace"), fields.get("group"))
    else {
        return Ok(());
    };
    if group.contains('/') {
        return Ok(());
    }
    let parsed = namespace.parse::<Namespace>();
    let parsed = parsed.map_err(|error| format!("namespace: {namespace:?} given: {error}"))?;
    let qualified = GroupName::in_namespace(&parsed, group);
    let qualified = qualified.map_err(|error| format!("group: {group:?} given: {error}"))?;
    fields.insert("group".to_owned(), Value::String(qualified.to_string()));
    Ok(())
}

fn value(key: &str, item: &Item) -> Result<Value, String> {
    let text = item.as_str().map(|text| Value::String(text.to_owned()));
    let value = text.or_else(|| item.as_bool().map(Value::Bool));
    value.ok_or_else(|| format!("{key}: a text is expected, or true or false for scripts"))
}

impl OpenIdOptions {
    /// The provider by which users log in. `None` without one. It asks the provider nothing.
    pub(crate) fn provider(&self) -> Result<Option<Arc<OpenId>>> {
        let Some(settings) = self.settings() else {
            return Ok(None);
        };
        let openid = OpenId::new(settings).context("failed to set up login by OpenID Connect")?;
        Ok(Some(Arc::new(openid)))
    }

    fn settings(&self) -> Option<OpenIdSettings> {
        let secret = self.oidc_client_secret_file.clone();
        Some(OpenIdSettings {
            issuer: self.oidc_issuer.clone()?,
            client_id: self.oidc_client_id.clone()?,
            client_secret: secret.map(|ClientSecret(text)| text),
            redirect_url: self.oidc_redirect_url.clone()?,
            scopes: self.oidc_scopes.clone(),
            groups_claim: self.oidc_groups_claim.clone(),
            grants: self.oidc_grants.clone(),
            create_users: self.oidc_create_users,
            tokens_valid: self.oidc_tokens_valid,
        })
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Role;

    use super::*;

    #[test]
    fn the_file_has_a_table_for_each_rule() {
        let text = "[[grant]]\ngroup_claim = \"admins\"\nrole = \"admin\"\nscripts = true\n\n\
                    [[grant]]\ngroup_claim = \"billing\"\nrole = \"operator\"\ngroup = \"billing\"\n";
        let expected = GrantMapping::new(vec![
            GrantRule {
                group_claim: "admins".to_owned(),
                grant: Grant::everything(),
            },
            GrantRule {
                group_claim: "billing".to_owned(),
                grant: Grant {
                    namespace: None,
                    group: Some("billing".parse().expect("a name")),
                    role: Role::Operator,
                    scripts: false,
                },
            },
        ]);
        assert_eq!(parsed(text), Ok(expected.expect("a mapping")));
    }

    #[test]
    fn a_group_beside_a_namespace_is_local_to_it() {
        let mapping = |place: &str| {
            let rule = "[[grant]]\ngroup_claim = \"x\"\nrole = \"viewer\"\n";
            parsed(&format!("{rule}{place}"))
        };
        let expected = |group: &str| {
            let grant = Grant {
                namespace: None,
                group: Some(group.parse().expect("a name")),
                role: Role::Viewer,
                scripts: false,
            };
            let group_claim = "x".to_owned();
            GrantMapping::new(vec![GrantRule { group_claim, grant }]).expect("a mapping")
        };
        for (place, group) in [
            (
                "namespace = \"team-b\"\ngroup = \"billing\"",
                "team-b/billing",
            ),
            (
                "namespace = \"team-b\"\ngroup = \"team-b/billing\"",
                "team-b/billing",
            ),
            ("group = \"team-b/billing\"", "team-b/billing"),
            ("namespace = \"default\"\ngroup = \"billing\"", "billing"),
            ("group = \"billing\"", "billing"),
        ] {
            assert_eq!(mapping(place), Ok(expected(group)), "{place}");
        }
        for (place, words) in [
            (
                "namespace = \"team-b\"\ngroup = \"team-c/billing\"",
                "has the namespace team-b",
            ),
            (
                "namespace = \"team-b\"\ngroup = \"a b\"",
                "group: \"a b\" given",
            ),
            (
                "namespace = \"a/b\"\ngroup = \"billing\"",
                "namespace: \"a/b\" given",
            ),
        ] {
            let problem = mapping(place).expect_err(place);
            assert!(problem.contains(words), "{place}: {problem}");
        }
    }

    #[test]
    fn a_mistake_in_the_file_is_named() {
        let after_first = |rest: &str| format!("[[grant]]\ngroup_claim = \"a\"\n{rest}");
        for (text, expected) in [
            (String::new(), "at least one"),
            ("x = [".to_owned(), "is not TOML"),
            ("grants = 1".to_owned(), "\"grants\" given"),
            ("grant = 1".to_owned(), "only tables [[grant]]"),
            (
                "[[grant]]\nrole = \"admin\"".to_owned(),
                "[[grant]] 1: group_claim: missing",
            ),
            (after_first(""), "missing field `role`"),
            (after_first("role = \"root\""), "unknown variant `root`"),
            (
                after_first("role = \"admin\"\nnamspace = \"x\""),
                "unknown field `namspace`",
            ),
            (after_first("role = 1"), "role: a text is expected"),
            (
                after_first("role = \"admin\"\n[[grant]]\n"),
                "[[grant]] 2: ",
            ),
        ] {
            let problem = parsed(&text).expect_err(&text);
            assert!(problem.contains(expected), "{text:?}: {problem}");
        }
    }

    #[test]
    fn the_validity_of_tokens_has_bounds() {
        assert_eq!(tokens_valid("30d"), Ok(cueline_api::openid::TOKENS_VALID));
        for good in ["1h", "3650d"] {
            assert!(tokens_valid(good).is_ok(), "{good}");
        }
        for bad in ["59m", "3651d", "never", ""] {
            assert!(tokens_valid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_scope_has_no_white_space() {
        assert!(scope("profile").is_ok());
        for bad in ["", "openid profile", "a\"b", "é"] {
            let problem = scope(bad).expect_err(bad);
            assert!(problem.contains("comma"), "{problem}");
        }
    }
}
