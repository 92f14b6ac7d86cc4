//! Grants as text: `ROLE[@NAMESPACE[/GROUP]][+scripts]`. Pure.

use cueline_model::{Grant, GroupName, Namespace, Right, Role};

/// Parses a grant.
///
/// # Errors
///
/// One sentence that says which part is wrong and what would be right.
pub(crate) fn parse(text: &str) -> Result<Grant, String> {
    let (rest, scripts) = match text.split_once('+') {
        None => (text, false),
        Some((rest, "scripts")) => (rest, true),
        Some((_, other)) => {
            return Err(format!(
                "{other:?} after '+' is unknown; only +scripts may follow"
            ));
        }
    };
    let (role, place) = match rest.split_once('@') {
        None => (rest, None),
        Some((role, place)) => (role, Some(place)),
    };
    let role: Role = role.parse().map_err(|error| format!("{error}"))?;
    if scripts && !role.includes(Right::EditJobs) {
        return Err(format!(
            "+scripts has no effect with {role}; use author or admin"
        ));
    }
    let (namespace, group) = match place {
        None => (None, None),
        Some(place) => parse_place(place)?,
    };
    Ok(Grant {
        namespace,
        group,
        role,
        scripts,
    })
}

fn parse_place(text: &str) -> Result<(Option<Namespace>, Option<GroupName>), String> {
    let (namespace, group) = match text.split_once('/') {
        None => (text, None),
        Some((namespace, group)) => (namespace, Some(group)),
    };
    let namespace = namespace
        .parse::<Namespace>()
        .map_err(|error| format!("namespace {namespace:?}: {error}"))?;
    let group = group
        .map(|name| parse_group(&namespace, name))
        .transpose()?;
    Ok((Some(namespace), group))
}

fn parse_group(namespace: &Namespace, name: &str) -> Result<GroupName, String> {
    if name.contains('/') {
        return Err(format!(
            "group {name:?}: it has a second '/'; write ROLE@NAMESPACE/GROUP"
        ));
    }
    GroupName::in_namespace(namespace, name).map_err(|error| format!("group {name:?}: {error}"))
}

/// The text of a grant, which [`parse`] reads.
pub(crate) fn to_text(grant: &Grant) -> String {
    let place = match (&grant.namespace, &grant.group) {
        (None, None) => String::new(),
        (Some(namespace), None) => format!("@{namespace}"),
        (_, Some(group)) => format!("@{}/{}", group.namespace(), group.local()),
    };
    let scripts = if grant.scripts { "+scripts" } else { "" };
    format!("{}{place}{scripts}", grant.role)
}

/// Grants in one cell of a table.
pub(crate) fn list(grants: &[Grant]) -> String {
    let texts: Vec<String> = grants.iter().map(to_text).collect();
    if texts.is_empty() {
        "none".to_owned()
    } else {
        texts.join(" ")
    }
}

/// As [`list`], of a user or a token whose grants the server may not be able to read.
pub(crate) fn shown(grants: &[Grant], unreadable: bool) -> String {
    if unreadable {
        "unreadable".to_owned()
    } else {
        list(grants)
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{Grant, Role};

    use super::{list, parse, shown, to_text};

    #[test]
    fn a_grant_has_a_role_a_place_and_scripts() {
        let everywhere = parse("admin+scripts").expect("a grant");
        assert_eq!(everywhere, Grant::everything());
        let namespace = parse("viewer@billing").expect("a grant");
        assert_eq!(namespace.role, Role::Viewer);
        let name = namespace.namespace.map(|name| name.to_string());
        assert_eq!(name.as_deref(), Some("billing"));
        assert_eq!((namespace.group, namespace.scripts), (None, false));
        let group = parse("author@default/batch+scripts").expect("a grant");
        let name = group.group.map(|name| name.to_string());
        assert_eq!(name.as_deref(), Some("batch"));
        assert!(group.scripts);
    }

    #[test]
    fn a_group_of_another_namespace_than_default_has_its_full_name() {
        let grant = parse("author@billing/batch").expect("a grant");
        let namespace = grant.namespace.as_ref().map(ToString::to_string);
        assert_eq!(namespace.as_deref(), Some("billing"));
        let group = grant.group.as_ref().map(ToString::to_string);
        assert_eq!(group.as_deref(), Some("billing/batch"));
        let sent = serde_json::to_value(&grant).expect("JSON");
        assert_eq!(
            sent,
            serde_json::json!({ "namespace": "billing", "group": "billing/batch", "role": "author" })
        );
        // A server may leave out the namespace, which the group says itself.
        let stored = Grant {
            namespace: None,
            ..grant
        };
        assert_eq!(to_text(&stored), "author@billing/batch");
    }

    #[test]
    fn the_text_of_a_grant_is_read_back() {
        for text in [
            "viewer",
            "admin+scripts",
            "operator@billing",
            "author@default/batch",
            "author@billing/batch",
            "author@default+scripts",
        ] {
            let grant = parse(text).expect("a grant");
            assert_eq!(to_text(&grant), text);
        }
        assert_eq!(list(&[]), "none");
    }

    #[test]
    fn a_wrong_grant_is_refused_with_what_is_wrong() {
        for (text, words) in [
            ("", "unknown role \"\""),
            ("viewr", "did you mean \"viewer\"?"),
            ("admin+script", "\"script\" after '+'"),
            ("admin+scripts+scripts", "after '+'"),
            ("viewer+scripts", "no effect with viewer"),
            ("operator@a+scripts", "no effect with operator"),
            ("viewer@", "namespace \"\""),
            ("viewer@a b", "namespace \"a b\""),
            ("viewer@default/", "group \"\""),
            ("viewer@default/a/b", "second '/'"),
            ("viewer@billing/", "group \"\""),
            ("viewer@billing/a b", "group \"a b\""),
        ] {
            let error = parse(text).expect_err("is refused");
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn unreadable_grants_are_not_shown_as_none() {
        assert_eq!(shown(&[], true), "unreadable");
        assert_eq!(shown(&[], false), "none");
    }
}
