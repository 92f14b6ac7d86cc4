//! The session cookie, and what all cookies share.

/// The name of the session cookie.
pub(crate) const NAME: &str = "cueline_session";

/// The value of the session cookie in `Cookie` headers. If there are several, the first one counts.
pub(crate) fn session_in<'h>(headers: impl Iterator<Item = &'h str>) -> Option<&'h str> {
    value_in(NAME, headers)
}

/// The value of the cookie `wanted` in `Cookie` headers. If there are several, the first one counts.
pub(crate) fn value_in<'h>(
    wanted: &str,
    mut headers: impl Iterator<Item = &'h str>,
) -> Option<&'h str> {
    headers.find_map(|header| {
        let mut pairs = header.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(name, value)| (name.trim() == wanted).then_some(value.trim()))
    })
}

/// The `Set-Cookie` header of a new session. Scripts cannot read the cookie, and no request from another site has it.
pub(crate) fn set(value: &str, valid_s: u64, has_tls: bool) -> String {
    let secure = if has_tls { "; Secure" } else { "" };
    format!("{NAME}={value}; Path=/; Max-Age={valid_s}; HttpOnly; SameSite=Strict{secure}")
}

/// The `Set-Cookie` header that makes a browser forget the session.
pub(crate) fn clear(has_tls: bool) -> String {
    set("", 0, has_tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let found = |headers: &[&'static str]| session_in(headers.iter().copied());
        assert_eq!(found(&["a=b; cueline_session=x; c=d"]), Some("x"));
        assert_eq!(found(&["a=b", "cueline_session=y"]), Some("y"));
        assert_eq!(
            found(&["cueline_session=1", "cueline_session=2"]),
            Some("1")
        );
        assert_eq!(found(&["xcueline_session=x", "cueline_session", ""]), None);
    }

    #[test]
    fn a_cookie_is_secure_over_tls_only() {
        let plain = set("x", 60, false);
        assert_eq!(
            plain,
            "cueline_session=x; Path=/; Max-Age=60; HttpOnly; SameSite=Strict"
        );
        assert_eq!(set("x", 60, true), format!("{plain}; Secure"));
        assert!(clear(false).starts_with("cueline_session=; Path=/; Max-Age=0;"));
    }
}
