//! Parsers for the text of a single setting. An error has the given and the expected value.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use cueline_api::AdminToken;
use cueline_commands::keys;
use cueline_handlers::http::{IpNet, parse_network};
use cueline_interface::secret_file;
use cueline_interface::suggest::did_you_mean;
use cueline_model::selector::parse_label;
use cueline_model::{DurationMs, ExecutorName, GroupName, NameError, Weight};
use cueline_protocol::SigningKey;
use cueline_protocol::origin::EnrolmentToken;

use crate::adapters::{BrokerUrl, StoreUrl};
use crate::components::HandlerKind;

/// A busy machine, a slow disk or a new connection may delay heartbeats by almost this time.
const SHORTEST_FAILOVER: DurationMs = DurationMs::secs(3);

/// Shorter tokens can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// The public keys of one `trust` entry.
#[derive(Debug, Clone)]
pub(crate) struct TrustedKeys(pub(crate) Vec<String>);

/// One `signing_key` entry.
#[derive(Debug, Clone)]
pub(crate) struct SigningKeyEntry {
    /// The group whose triggers it signs; `None` for all groups without an entry.
    pub(crate) group: Option<GroupName>,
    pub(crate) key: SigningKey,
}

fn parse<T: FromStr<Err: Display>>(text: &str, expected: &str) -> Result<T, String> {
    text.parse()
        .map_err(|e| format!("{text:?} given: {e}; {expected} is expected"))
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    parse(text, "an address with a port such as 127.0.0.1:7800")
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    parse_label(text).map_err(|e| e.to_string())
}

pub(super) fn weight(text: &str) -> Result<u8, String> {
    number::<1, { Weight::MAX as u32 }>(text).map(|n| u8::try_from(n).unwrap_or(Weight::MAX))
}

pub(super) fn duration_ms(text: &str) -> Result<DurationMs, String> {
    parse(text, "a duration such as 500ms, 30s, 5m, 2h or 7d")
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    duration_ms(text).map(|duration| Duration::from_millis(duration.as_millis()))
}

pub(super) fn failover_after(text: &str) -> Result<DurationMs, String> {
    let expected = format!("a duration of at least {SHORTEST_FAILOVER}");
    match parse(text, &expected)? {
        after if after < SHORTEST_FAILOVER => {
            Err(format!("{text:?} given; {expected} is expected"))
        }
        after => Ok(after),
    }
}

pub(super) fn number<const MIN: u32, const MAX: u32>(text: &str) -> Result<u32, String> {
    let range = MIN..=MAX;
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{text:?} given; a whole number in {range:?} is expected"))
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    let parsed = text.parse();
    parsed.map_err(|_| format!("{text:?} given; true or false is expected"))
}

pub(super) fn name<T: FromStr<Err = NameError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e| format!("{text:?} given: {e}"))
}

/// Parses the base name of NAME-1 to NAME-64. The longest of these must be a valid name as well.
pub(super) fn standalone_name(text: &str) -> Result<ExecutorName, String> {
    name::<ExecutorName>(&format!("{text}-64"))?;
    name(text)
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("\"\" given; a path is expected".to_owned());
    }
    Ok(PathBuf::from(text))
}

pub(super) fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => Ok(path),
        Ok(_) => Err(format!("{text:?} given; it is not a file")),
        Err(error) => Err(format!("{text:?} given; failed to find it: {error}")),
    }
}

pub(super) fn directory(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(format!("{text:?} given; it is not a directory")),
        Err(error) => Err(format!("{text:?} given; failed to find it: {error}")),
    }
}

/// A program that can be started from any directory.
pub(super) fn program(text: &str) -> Result<PathBuf, String> {
    let path = file(text)?;
    if !path.is_absolute() {
        return Err(format!("{text:?} given; an absolute path is expected"));
    }
    Ok(path)
}

pub(super) fn kind(text: &str) -> Result<HandlerKind, String> {
    let found = HandlerKind::ALL.iter().find(|kind| kind.name() == text);
    found.copied().ok_or_else(|| {
        let names = HandlerKind::ALL.map(HandlerKind::name);
        let hint = did_you_mean(text, names, "allowed are shell, command, http");
        format!("unknown kind {text:?}{hint}")
    })
}

/// The name of a user of this machine. Whether there is such a user shows when a job names it.
pub(super) fn user(text: &str) -> Result<String, String> {
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != ':' && c != '/';
    if text.is_empty() || text.len() > 128 || !text.chars().all(fits) {
        return Err(format!("{text:?} given; the name of a user is expected"));
    }
    Ok(text.to_owned())
}

pub(super) fn network(text: &str) -> Result<IpNet, String> {
    parse_network(text)
}

pub(super) fn broker_prefix(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
        return Err(format!(
            "{text:?} given; up to 64 letters, digits, '-' and '_' are expected"
        ));
    }
    Ok(text.to_owned())
}

/// A broker that several processes use.
pub(super) fn shared_broker(text: &str) -> Result<BrokerUrl, String> {
    let url = BrokerUrl::parse(text)?;
    if url.is_embedded() {
        return Err(format!(
            "{url} given: only `cueline standalone` can use the embedded broker; {} is expected",
            BrokerUrl::expected()
        ));
    }
    Ok(url)
}

pub(super) fn token(text: &str) -> Result<AdminToken, String> {
    if text.len() < MIN_TOKEN_BYTES {
        return Err(format!(
            "the token has {} bytes; at least {MIN_TOKEN_BYTES} are expected, such as those of `cueline token new`",
            text.len()
        ));
    }
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(
            "the token has white space, control characters or letters beyond ASCII in it, which no header can carry; \
             `cueline token new` makes one"
                .to_owned(),
        );
    }
    Ok(AdminToken::new(text))
}

/// The group and the file of a `signing_key` entry. A path with `=` in it needs a `/` before that: no name of a group has
/// one.
pub(super) fn signing_key_parts(entry: &str) -> (Option<GroupName>, &str) {
    let parts = entry.split_once('=');
    let of_group = parts.and_then(|(group, path)| Some((group.parse().ok()?, path)));
    match of_group {
        Some((group, path)) => (Some(group), path),
        None => (None, entry),
    }
}

pub(super) fn signing_key(entry: &str) -> Result<SigningKeyEntry, String> {
    let (group, path) = signing_key_parts(entry);
    let text = secret_file::read(Path::new(path))?;
    let key = keys::secret_from_text(&text).map_err(|problem| format!("{path}: {problem}"))?;
    Ok(SigningKeyEntry { group, key })
}

pub(super) fn enrolment_token(path: &str) -> Result<EnrolmentToken, String> {
    let text = secret_file::read(Path::new(path))?;
    text.parse().map_err(|error| {
        format!("{path}: {error}; `cueline worker-key token --out FILE` makes one")
    })
}

pub(super) fn trusted_keys(text: &str) -> Result<TrustedKeys, String> {
    let keys = keys::public_from_argument(text)?;
    if keys.is_empty() {
        return Err(format!(
            "missing in {text}: it holds no public key; {} is expected",
            expected("trust")
        ));
    }
    Ok(TrustedKeys(keys))
}

/// The setting that the error asks for if `key` is missing.
pub(super) fn setting_to_give(key: &str) -> &str {
    if key == "token" { "token_file" } else { key }
}

/// The expected value of a required setting.
pub(super) fn expected(key: &str) -> String {
    match key {
        "store" => StoreUrl::expected(),
        "broker" => BrokerUrl::expected(),
        "token" => "a file that `cueline token new --out FILE` made; or put the token itself into CUELINE_TOKEN. There is no default".to_owned(),
        "signing_key" => "a file that `cueline key new` made; GROUP=FILE as well for groups with a key of their own".to_owned(),
        "allow" => "one or more of shell, command, http; with none this worker would run nothing".to_owned(),
        "trust" => "what `cueline key public FILE` prints of the schedulers' signing key, or a file with it; with none this worker would run nothing".to_owned(),
        _ => "a value".to_owned(),
    }
}
