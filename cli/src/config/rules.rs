//! Rules across settings: defaults that follow from the machine or from other settings, and combinations that are
//! refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cueline_handlers::SecretSources;
use cueline_handlers::http::AddressPolicy;
use cueline_http::TlsFiles;
use cueline_interface::BadInput;
use cueline_model::{DurationMs, ExecutorName};
use cueline_protocol::{SigningKeys, VerifyingKeys};
use cueline_worker::KeyFile;

use super::openid_rules::check_openid;
use super::roles::{
    BrokerOptions, HttpOptions, Role, SchedulerConfig, SecretOptions, StandaloneConfig, TlsOptions,
    WorkerConfig,
};
use super::settings::Settings;
use super::tls::check_tls;
use super::values;
use crate::adapters::{BrokerSettings, BrokerUrl};

/// The rules of one role.
pub(crate) trait Rules: Role {
    /// Fills in computed defaults, and reports settings that contradict each other.
    fn complete(settings: &mut Settings);
}

impl Rules for StandaloneConfig {
    fn complete(settings: &mut Settings) {
        let data = PathBuf::from(settings.text("data").unwrap_or_default());
        for (key, kind, file) in [
            ("store", "sqlite", "store.db"),
            ("broker", "embedded", "queue.db"),
        ] {
            settings.read_secret_file(key);
            if settings.text(key).is_none() {
                settings.show_default(key, format!("{kind}:{}", data.join(file).display()));
            }
        }
        let secrets = [
            "store_file",
            "broker_file",
            "tls_key",
            "oidc_client_secret_file",
        ];
        check_files(settings, &secrets);
        check_users(settings);
        check_broker(settings);
        check_tls(settings);
        check_openid(settings);
    }
}

impl Rules for SchedulerConfig {
    fn complete(settings: &mut Settings) {
        for key in ["store", "broker", "token"] {
            settings.read_secret_file(key);
        }
        settings.set_default("name", machine_name());
        check_files(
            settings,
            &[
                "store_file",
                "broker_file",
                "token_file",
                "enrol_token_file",
                "tls_key",
                "oidc_client_secret_file",
            ],
        );
        check_signing_keys(settings);
        check_broker(settings);
        check_tls(settings);
        check_openid(settings);
    }
}

impl Rules for WorkerConfig {
    fn complete(settings: &mut Settings) {
        settings.read_secret_file("broker");
        settings.set_default("name", machine_name());
        // With '/', the directory of one group could be inside that of another. No name has a per cent sign.
        let group = settings
            .text("group")
            .map(|group| group.replace('/', "%2F"));
        let own = [group, settings.text("name").map(str::to_owned)];
        let own: PathBuf = own.into_iter().flatten().collect();
        let state_dir = state_dir().map(|base| base.join(own).display().to_string());
        settings.set_default("state_dir", state_dir);
        // Without a state directory, the error names that setting alone.
        let state_dir = PathBuf::from(settings.text("state_dir").unwrap_or_default());
        let worker_key = KeyFile::in_state_dir(&state_dir);
        let worker_key = worker_key.path().display().to_string();
        settings.set_default("worker_key", Ok(worker_key));
        check_fence(settings);
        check_users(settings);
        check_files(settings, &["broker_file", "worker_key", "enrol_token_file"]);
        check_broker(settings);
    }
}

impl StandaloneConfig {
    /// The names of its executors.
    pub(crate) fn executors(&self) -> Result<Vec<ExecutorName>, BadInput> {
        (1..=self.workers)
            .map(|i| format!("{}-{i}", self.name).parse())
            .collect::<Result<_, _>>()
            .map_err(|error| BadInput(format!("name: {error}")))
    }

    pub(crate) fn broker_settings(&self) -> BrokerSettings {
        self.broker_options.settings()
    }
}

impl SchedulerConfig {
    pub(crate) fn broker_settings(&self) -> BrokerSettings {
        with_timings(self.failover.failover_after, self.broker_options.settings())
    }

    /// The keys of all `signing_key` entries.
    ///
    /// # Panics
    ///
    /// Without an entry for all groups, which [`Rules::complete`] refuses.
    pub(crate) fn signing_keys(&self) -> SigningKeys {
        let default = self.signing_key.iter().find(|entry| entry.group.is_none());
        let default = default.expect("the rules require a key for all groups");
        let keys = SigningKeys::from(default.key.clone());
        self.signing_key
            .iter()
            .fold(keys, |keys, entry| match &entry.group {
                Some(group) => keys.with_group(group.clone(), entry.key.clone()),
                None => keys,
            })
    }
}

impl WorkerConfig {
    pub(crate) fn broker_settings(&self) -> BrokerSettings {
        with_timings(self.failover.failover_after, self.broker_options.settings())
    }

    /// The keys of all `trust` entries.
    pub(crate) fn verifying_keys(&self) -> Result<VerifyingKeys, BadInput> {
        let keys = self.trust.iter().flat_map(|keys| &keys.0);
        VerifyingKeys::from_base64(keys.map(String::as_str))
            .map_err(|error| BadInput(format!("trust: {error}")))
    }
}

impl BrokerOptions {
    fn settings(&self) -> BrokerSettings {
        BrokerSettings {
            prefix: self.broker_prefix.clone(),
            ca: self.broker_ca.clone(),
            certificate: self.broker_certificate.clone().zip(self.broker_key.clone()),
            credentials: self.broker_credentials.clone(),
            replicas: self.broker_replicas.and_then(|n| u16::try_from(n).ok()),
            longest_wait: None,
            heartbeat: None,
            seal_dead_letters: None,
        }
    }
}

impl TlsOptions {
    /// The files of an API with TLS. `None` for one without.
    pub(crate) fn files(&self) -> Option<TlsFiles> {
        let (certificate, key) = self.tls_cert.clone().zip(self.tls_key.clone())?;
        Some(TlsFiles {
            certificate,
            key,
            client_ca: self.tls_client_ca.clone(),
        })
    }
}

impl HttpOptions {
    /// The addresses that HTTP jobs may reach.
    pub(crate) fn policy(&self) -> AddressPolicy {
        AddressPolicy::new(self.http_allow.clone(), self.http_deny.clone())
    }
}

impl SecretOptions {
    /// Where the values of secrets are.
    pub(crate) fn sources(&self) -> SecretSources {
        let mut sources = SecretSources::default();
        if let Some(dir) = &self.secrets_dir {
            sources = sources.dir(dir);
        }
        if let Some(program) = &self.secrets_command {
            sources = sources.command(program);
        }
        sources
    }
}

/// Derives connection times from `failover_after`. A client must reconnect long before its failover. The broker must
/// redeliver the messages of a dead client before its work fails over.
fn with_timings(failover_after: DurationMs, settings: BrokerSettings) -> BrokerSettings {
    let failover_after = Duration::from_millis(failover_after.as_millis());
    BrokerSettings {
        longest_wait: Some(failover_after / 6),
        heartbeat: Some(failover_after / 3),
        ..settings
    }
}

fn check_files(settings: &mut Settings, keys: &[&str]) {
    for key in keys {
        settings.check_permissions(key);
    }
}

/// Each group has one key, and the groups without an entry have one.
fn check_signing_keys(settings: &mut Settings) {
    let entries: Vec<String> = settings.texts("signing_key").to_vec();
    let mut groups = BTreeSet::new();
    for entry in &entries {
        let (group, path) = values::signing_key_parts(entry);
        settings.warn_permissions(Path::new(path));
        let whose = group.as_ref().map_or_else(
            || "all groups without an entry of their own".to_owned(),
            |group| format!("the group {group}"),
        );
        if !groups.insert(group) {
            let problem = format!("{entry:?} given; there is another key for {whose}");
            settings.refuse("signing_key", &problem);
        }
    }
    if !entries.is_empty() && !groups.contains(&None) {
        let given = entries.join(",");
        settings.refuse(
            "signing_key",
            &format!(
                "{given:?} given; a FILE without GROUP= is expected as well, for all other groups"
            ),
        );
    }
}

fn check_broker(settings: &mut Settings) {
    for (given, missing) in [
        ("broker_certificate", "broker_key"),
        ("broker_key", "broker_certificate"),
    ] {
        if settings.is_given(given) && !settings.is_given(missing) {
            settings.require(missing, &format!("{given} needs it"));
        }
    }
    let is_other = match settings.text("broker") {
        Some(broker) => BrokerUrl::parse(broker).is_ok_and(|broker| !broker.is_nats()),
        None => settings.role == StandaloneConfig::NAME,
    };
    if is_other && settings.is_given("broker_credentials") {
        settings.refuse(
            "broker_credentials",
            "is for NATS only; put the user and password in the broker's URL",
        );
    }
}

/// Warns where no job could run as another user. `config check` may run as another user than the server.
fn check_users(settings: &mut Settings) {
    if settings.is_given("allow_run_as") && !nix::unistd::geteuid().is_root() {
        settings.warnings.push(
            "allow_run_as: only a server that runs as root can run jobs as other users".to_owned(),
        );
    }
}

fn check_fence(settings: &mut Settings) {
    let parsed = |text: Option<&str>| text?.parse::<DurationMs>().ok();
    let Some(failover) = parsed(settings.text("failover_after")) else {
        return;
    };
    let usual = DurationMs::millis(failover.as_millis() * 2 / 3);
    settings.set_default("fence_after", Ok(usual.to_string()));
    if let Some(fence) = parsed(settings.text("fence_after"))
        && fence.as_millis().saturating_mul(6) > failover.as_millis().saturating_mul(5)
    {
        let most = DurationMs::millis(failover.as_millis() / 6 * 5);
        settings.problems.push(format!(
            "fence_after: {fence} given, with a failover_after of {failover}; at most {most} is expected, because attempts need the rest to end"
        ));
    }
}

fn machine_name() -> Result<String, String> {
    let name = nix::unistd::gethostname()
        .map_err(|e| format!("failed to find the machine's name: {e}; give --name"))?;
    Ok(name.to_string_lossy().into_owned())
}

/// The default directory of journals. It is never the current directory, because that depends on who starts the worker.
fn state_dir() -> Result<PathBuf, String> {
    let absolute = |variable: &str| {
        std::env::var_os(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    if let Some(systemd) = absolute("STATE_DIRECTORY") {
        return Ok(systemd);
    }
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/cueline/workers"));
    }
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .ok_or("missing; this user has no home to put the journal into: give --state-dir DIR")?;
    Ok(state.join("cueline/workers"))
}
