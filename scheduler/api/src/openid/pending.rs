//! A login between its begin and the answer of the provider.
//!
//! The server remembers nothing. The browser keeps one random secret in a cookie, and state, nonce and PKCE verifier are
//! codes of this secret. So the callback may reach another scheduler than the begin, logins fill no memory and no table, and
//! schedulers need no shared key. The cookie needs no signature: it proves only that the same browser has begun the login.
//!
//! Pure: the time is an argument.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cueline_model::Timestamp;
use hmac::Mac as _;

use crate::access::Secret;
use crate::problem::Problem;

/// For how long a login may take, in seconds.
pub(crate) const VALID_S: u64 = 600;

const STATE: &[u8] = b"cueline openid state 1";
const NONCE: &[u8] = b"cueline openid nonce 1";
const VERIFIER: &[u8] = b"cueline openid verifier 1";

/// A login that a browser has begun.
#[derive(Debug, Clone)]
pub(crate) struct Pending(Secret);

/// Why a state does not belong to a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateError {
    /// It is that of another login, or of another browser.
    Other,
    /// The login was begun too long ago.
    Expired,
}

impl Pending {
    pub(crate) fn begin() -> Result<Self, Problem> {
        Secret::random().map(Self)
    }

    /// The login whose cookie has this value.
    pub(crate) fn of_cookie(value: &str) -> Option<Self> {
        Secret::parse(value).map(Self)
    }

    pub(crate) fn to_cookie(&self) -> String {
        self.0.to_text()
    }

    /// What the provider sends back with the browser. It contains the time of the begin.
    pub(crate) fn state(&self, begun_at: Timestamp) -> String {
        let code = self.state_mac(begun_at).finalize().into_bytes();
        format!("{}.{}", begun_at.as_millis(), encoded(code.into()))
    }

    /// Checks what came back. It compares in constant time.
    pub(crate) fn check_state(&self, state: &str, now: Timestamp) -> Result<(), StateError> {
        let (begun_at, code) = state.split_once('.').ok_or(StateError::Other)?;
        let begun_at = begun_at.parse().map_err(|_| StateError::Other)?;
        let begun_at = Timestamp::from_millis(begun_at);
        let code = URL_SAFE_NO_PAD.decode(code);
        let code = code.map_err(|_| StateError::Other)?;
        let mac = self.state_mac(begun_at);
        mac.verify_slice(&code).map_err(|_| StateError::Other)?;
        let age_ms = now.since_ms(begun_at);
        if u64::try_from(age_ms).is_ok_and(|age_ms| age_ms > VALID_S * 1_000) {
            return Err(StateError::Expired);
        }
        Ok(())
    }

    /// What the ID token has to contain.
    pub(crate) fn nonce(&self) -> String {
        encoded(self.0.mac(NONCE).finalize().into_bytes().into())
    }

    /// The PKCE verifier: 43 characters, as RFC 7636 recommends.
    pub(crate) fn verifier(&self) -> String {
        encoded(self.0.mac(VERIFIER).finalize().into_bytes().into())
    }

    fn state_mac(&self, begun_at: Timestamp) -> hmac::Hmac<sha2::Sha256> {
        let at = begun_at.as_millis().to_be_bytes();
        self.0.mac(STATE).chain_update(at)
    }
}

fn encoded(code: [u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_900_000_000_000);

    fn pending() -> Pending {
        Pending::begin().expect("random bytes")
    }

    #[test]
    fn the_browser_that_began_a_login_ends_it_at_any_scheduler() {
        let begun = pending();
        let ended = Pending::of_cookie(&begun.to_cookie()).expect("a cookie");
        let state = begun.state(NOW);
        assert_eq!(ended.check_state(&state, NOW.plus_ms(1_000)), Ok(()));
        assert_eq!(ended.nonce(), begun.nonce());
        assert_eq!(ended.verifier(), begun.verifier());
    }

    #[test]
    fn another_browser_and_another_login_do_not() {
        let (one, other) = (pending(), pending());
        let state = one.state(NOW);
        assert_eq!(other.check_state(&state, NOW), Err(StateError::Other));
        assert_ne!(one.nonce(), other.nonce());
        assert_ne!(one.verifier(), other.verifier());
        let (at, code) = state.split_once('.').expect("a time");
        for changed in [
            String::new(),
            code.to_owned(),
            format!("{at}."),
            format!("{at}.%"),
            format!("{}.{code}", NOW.plus_ms(1).as_millis()),
            format!("{at}.{}", one.nonce()),
        ] {
            let checked = one.check_state(&changed, NOW);
            assert_eq!(checked, Err(StateError::Other), "{changed:?}");
        }
    }

    #[test]
    fn a_login_may_take_ten_minutes() {
        let begun = pending();
        let state = begun.state(NOW);
        let last = NOW.plus_ms(VALID_S * 1_000);
        assert_eq!(begun.check_state(&state, last), Ok(()));
        let after = begun.check_state(&state, last.plus_ms(1));
        assert_eq!(after, Err(StateError::Expired));
        // The clock of the database was set back.
        assert_eq!(begun.check_state(&state, NOW.minus_ms(60_000)), Ok(()));
    }

    #[test]
    fn state_nonce_verifier_and_cookie_say_nothing_about_each_other() {
        let begun = pending();
        let state = begun.state(NOW);
        let code = state.split_once('.').expect("a time").1.to_owned();
        let all = [code, begun.nonce(), begun.verifier(), begun.to_cookie()];
        for (i, one) in all.iter().enumerate() {
            assert_eq!(one.len(), 43, "{one}");
            assert!(!all[..i].contains(one), "{one} is there twice");
        }
        assert!(!format!("{begun:?}").contains(&begun.to_cookie()));
    }
}
