//! What each role's settings mean.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cueline_model::{DurationMs, ExecutorName, GroupName};
use cueline_protocol::{SigningKey, VerifyingKeys};

use super::broker::{BrokerSettings, broker_settings, shared_broker};
use super::nearest::did_you_mean;
use super::reader::{Outcome, Reader};
use crate::adapters::{BrokerUrl, StoreUrl};
use crate::keys;

/// A built-in kind of handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Scripts.
    Shell,
    /// Programs.
    Command,
    /// Requests.
    Http,
}

impl Kind {
    const ALL: [(&'static str, Self); 3] = [
        ("shell", Self::Shell),
        ("command", Self::Command),
        ("http", Self::Http),
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Command => "command",
            Self::Http => "http",
        }
    }
}

/// `cueline standalone`.
#[derive(Debug)]
pub struct StandaloneConfig {
    /// Directory for all data.
    pub data: PathBuf,
    /// Where the API listens.
    pub listen: SocketAddr,
    /// Job files to apply.
    pub jobs: Vec<PathBuf>,
    /// The executors.
    pub executors: Vec<ExecutorName>,
    /// Their group.
    pub group: GroupName,
    /// What they may run.
    pub allow: Vec<Kind>,
    /// How much at once.
    pub concurrency: u32,
    /// How long running handlers may take to end.
    pub drain_timeout: Duration,
    /// How long ended runs are kept.
    pub keep: DurationMs,
    /// The store, if it is not the one in `data`.
    pub store: Option<StoreUrl>,
    /// The store may not be migrated.
    pub no_migrate: bool,
    /// The broker, if it is not the one in `data`.
    pub broker: Option<BrokerUrl>,
    /// How it is used.
    pub broker_settings: BrokerSettings,
    /// How long to try to reach store and broker.
    pub start_timeout: Option<Duration>,
    /// Logs as JSON.
    pub log_json: bool,
}

/// `cueline scheduler`.
#[derive(Debug)]
pub struct SchedulerConfig {
    /// The store.
    pub store: StoreUrl,
    /// It may not be migrated.
    pub no_migrate: bool,
    /// The broker.
    pub broker: BrokerUrl,
    /// How it is used.
    pub broker_settings: BrokerSettings,
    /// Where the API listens.
    pub listen: SocketAddr,
    /// The node's name.
    pub name: String,
    /// The admin token.
    pub token: cueline_api::AdminToken,
    /// What triggers are signed with.
    pub key: SigningKey,
    /// How long a worker may be silent.
    pub failover_after: DurationMs,
    /// How long ended runs are kept.
    pub keep: DurationMs,
    /// How long to try to reach store and broker.
    pub start_timeout: Option<Duration>,
    /// Logs as JSON.
    pub log_json: bool,
}

/// `cueline worker`.
#[derive(Debug)]
pub struct WorkerConfig {
    /// The broker.
    pub broker: BrokerUrl,
    /// How it is used.
    pub broker_settings: BrokerSettings,
    /// The executor's group.
    pub group: GroupName,
    /// Its name.
    pub name: ExecutorName,
    /// What it may run; not empty.
    pub allow: Vec<Kind>,
    /// Whose triggers it runs.
    pub trust: VerifyingKeys,
    /// How much at once.
    pub concurrency: u32,
    /// How long running handlers may take to end.
    pub drain_timeout: Duration,
    /// After how long without contact it stops what it runs.
    pub fence_after: Duration,
    /// After how long its work is given to others.
    pub failover_after: Duration,
    /// Directory of the journal.
    pub state_dir: PathBuf,
    /// Where it says how it is.
    pub health: Option<SocketAddr>,
    /// How long to try to reach the broker.
    pub start_timeout: Option<Duration>,
    /// Logs as JSON.
    pub log_json: bool,
}

const ADDRESS: &str = "an address with a port such as 127.0.0.1:7800";

impl StandaloneConfig {
    /// Reads it.
    pub fn read(mut r: Reader) -> Outcome<Self> {
        let data = r.path("data");
        let listen = r.from_str("listen", ADDRESS);
        let jobs = r.list("jobs", |text| Ok(PathBuf::from(text)));
        let (names, workers) = (
            r.from_str::<ExecutorName>("name", "a name"),
            r.number("workers", 1..=64),
        );
        let executors = names.zip(workers).and_then(|(name, workers)| {
            (1..=workers)
                .map(|i| format!("{name}-{i}").parse().ok())
                .collect::<Option<Vec<ExecutorName>>>()
        });
        let group = r.from_str("group", "a name");
        let allow = r.list("allow", kind);
        let (concurrency, drain_timeout) = running(&mut r);
        let keep = r.duration("keep");
        let dir = data.clone().unwrap_or_default();
        let beside = |name: &str| dir.join(name).display().to_string();
        let own_store = !r.is_given("store") && !r.is_given("store_file");
        let store = if own_store {
            r.pass_over("store_file");
            r.read_or(
                "store",
                || Ok(format!("sqlite:{}", beside("store.db"))),
                StoreUrl::parse,
            )
        } else {
            r.secret(("store", "store_file"), StoreUrl::parse)
        };
        let no_migrate = r.switch("no_migrate");
        let own_broker = !r.is_given("broker") && !r.is_given("broker_file");
        let broker = if own_broker {
            r.pass_over("broker_file");
            r.read_or(
                "broker",
                || Ok(format!("embedded:{}", beside("queue.db"))),
                BrokerUrl::parse,
            )
        } else {
            r.secret(("broker", "broker_file"), BrokerUrl::parse)
        };
        let broker_settings = broker_settings(&mut r, broker.as_ref());
        let start_timeout = r.duration("start_timeout").map(duration);
        let log_json = r.switch("log_json");
        r.finish(|| {
            Some(Self {
                data: data?,
                listen: listen?,
                jobs: jobs?,
                executors: executors?,
                group: group?,
                allow: allow?,
                concurrency: concurrency?,
                drain_timeout: drain_timeout?,
                keep: keep?,
                store: if own_store { None } else { store },
                no_migrate: no_migrate?,
                broker: if own_broker { None } else { broker },
                broker_settings,
                start_timeout,
                log_json: log_json?,
            })
        })
    }
}

impl SchedulerConfig {
    /// Reads it.
    pub fn read(mut r: Reader) -> Outcome<Self> {
        let store = store(&mut r);
        let no_migrate = r.switch("no_migrate");
        let broker = shared_broker(&mut r);
        let broker_settings = broker_settings(&mut r, broker.as_ref());
        let listen = r.from_str("listen", ADDRESS);
        let name = r.read_or("name", machine_name, |text| {
            name::<ExecutorName>(text).map(|name| name.to_string())
        });
        let token = token(&mut r);
        let key = r.secret_file("signing_key", keys::secret_from_text);
        if !r.is_given("signing_key") {
            r.require("signing_key", "a file that `cueline key new` made");
        }
        let failover_after = failover_after(&mut r);
        let broker_settings = broker_settings.in_step_with(failover_after);
        let keep = r.duration("keep");
        let start_timeout = r.duration("start_timeout").map(duration);
        let log_json = r.switch("log_json");
        r.finish(|| {
            Some(Self {
                store: store?,
                no_migrate: no_migrate?,
                broker: broker?,
                broker_settings,
                listen: listen?,
                name: name?,
                token: token?,
                key: key?,
                failover_after: failover_after?,
                keep: keep?,
                start_timeout,
                log_json: log_json?,
            })
        })
    }
}

impl WorkerConfig {
    /// Reads it.
    pub fn read(mut r: Reader) -> Outcome<Self> {
        let broker = shared_broker(&mut r);
        let broker_settings = broker_settings(&mut r, broker.as_ref());
        let group: Option<GroupName> = r.from_str("group", "a name");
        let name = r.read_or("name", machine_name, name::<ExecutorName>);
        let allow = r.list("allow", kind);
        if allow.as_ref().is_some_and(Vec::is_empty) {
            r.require(
                "allow",
                "one or more of shell, command, http; with none this worker would run nothing",
            );
        }
        let trust = trust(&mut r);
        let (concurrency, drain_timeout) = running(&mut r);
        let failover_after = failover_after(&mut r);
        let broker_settings = broker_settings.in_step_with(failover_after);
        let failover_after = failover_after.map(duration);
        let fence_after = fence_after(&mut r, failover_after);
        if let (Some(fence), Some(failover)) = (fence_after, failover_after)
            && fence >= failover
        {
            r.note_problem(format!(
                "fence_after: {fence:?} given, with a failover_after of {failover:?}; less is expected, or its attempts would still run when others have its work"
            ));
        }
        let of_whom = (group.clone(), name.clone());
        let state_dir = r.read_or(
            "state_dir",
            || state_dir(of_whom.0.as_ref(), of_whom.1.as_ref()),
            |text| Ok(PathBuf::from(text)),
        );
        let health = r.from_str("health", ADDRESS);
        let start_timeout = r.duration("start_timeout").map(duration);
        let log_json = r.switch("log_json");
        r.finish(|| {
            Some(Self {
                broker: broker?,
                broker_settings,
                group: group?,
                name: name?,
                allow: allow?,
                trust: trust?,
                concurrency: concurrency?,
                drain_timeout: drain_timeout?,
                fence_after: fence_after?,
                failover_after: failover_after?,
                state_dir: state_dir?,
                health,
                start_timeout,
                log_json: log_json?,
            })
        })
    }
}

fn running(r: &mut Reader) -> (Option<u32>, Option<Duration>) {
    let concurrency = r.number("concurrency", 1..=10_000);
    (concurrency, r.duration("drain_timeout").map(duration))
}

/// Shorter ones are no longer than what a busy machine, a slow disk or a new connection may take.
const SHORTEST_FAILOVER: DurationMs = DurationMs::secs(3);

/// Two thirds of `failover_after` when nothing is said.
fn fence_after(r: &mut Reader, failover_after: Option<Duration>) -> Option<Duration> {
    if r.is_given("fence_after") {
        return r.duration("fence_after").map(duration);
    }
    // What is wrong with that one has been said.
    let usual = failover_after.unwrap_or(duration(SHORTEST_FAILOVER)) * 2 / 3;
    let text = || {
        let ms = u64::try_from(usual.as_millis()).unwrap_or(u64::MAX);
        Ok(DurationMs::millis(ms).to_string())
    };
    r.read_or("fence_after", text, |_| Ok(usual))
}

fn failover_after(r: &mut Reader) -> Option<DurationMs> {
    r.read("failover_after", |text| {
        let expected = format!("a duration of at least {SHORTEST_FAILOVER} is expected");
        match text.parse() {
            Ok(after) if after >= SHORTEST_FAILOVER => Ok(after),
            Ok(_) => Err(format!("{text:?} given; {expected}")),
            Err(e) => Err(format!("{text:?} given: {e}; {expected}")),
        }
    })
}

fn store(r: &mut Reader) -> Option<StoreUrl> {
    if !r.is_given("store") && !r.is_given("store_file") {
        r.require("store", &StoreUrl::expected());
    }
    r.secret(("store", "store_file"), StoreUrl::parse)
}

/// The shortest admin token: what is shorter can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

fn token(r: &mut Reader) -> Option<cueline_api::AdminToken> {
    if !r.is_given("token") && !r.is_given("token_file") {
        r.require(
            "token_file",
            "a file that `cueline token new --out FILE` made; or put the token itself into CUELINE_TOKEN. There is no default",
        );
    }
    r.secret(("token", "token_file"), |text| {
        let text = text.trim();
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
        Ok(cueline_api::AdminToken::new(text))
    })
}

fn trust(r: &mut Reader) -> Option<VerifyingKeys> {
    let given = r.is_given("trust");
    let keys = r.list("trust", keys::public_from_argument)?;
    let keys: Vec<String> = keys.into_iter().flatten().collect();
    if keys.is_empty() {
        if !given || r.is_good() {
            r.require(
                "trust",
                "what `cueline key public FILE` says of the schedulers' signing key, or a file with it; with none this worker would run nothing",
            );
        }
        return None;
    }
    VerifyingKeys::from_base64(keys.iter().map(String::as_str)).ok()
}

fn kind(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, kind)| kind).ok_or_else(|| {
        let hint = did_you_mean(
            text,
            Kind::ALL.map(|(name, _)| name),
            "allowed are shell, command, http",
        );
        format!("unknown kind {text:?}{hint}")
    })
}

fn name<T: std::str::FromStr<Err = cueline_model::NameError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e| format!("{text:?} given: {e}"))
}

fn machine_name() -> Result<String, String> {
    let name = nix::unistd::gethostname()
        .map_err(|e| format!("failed to find the machine's name: {e}; give --name"))?;
    Ok(name.to_string_lossy().into_owned())
}

/// Where a worker's journal is when nothing is said: a place that stays, never the present folder, which depends on who starts it.
fn state_dir(group: Option<&GroupName>, name: Option<&ExecutorName>) -> Result<String, String> {
    let (Some(group), Some(name)) = (group, name) else {
        return Ok(String::new());
    };
    let absolute = |variable: &str| {
        std::env::var_os(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = if let Some(systemd) = absolute("STATE_DIRECTORY") {
        systemd
    } else if nix::unistd::geteuid().is_root() {
        PathBuf::from("/var/lib/cueline/workers")
    } else {
        absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
            .ok_or("missing; this user has no home to put the journal into: give --state-dir DIR")?
            .join("cueline/workers")
    };
    Ok(base
        .join(group.as_str())
        .join(name.as_str())
        .display()
        .to_string())
}

fn duration(duration: DurationMs) -> Duration {
    Duration::from_millis(duration.as_millis())
}
