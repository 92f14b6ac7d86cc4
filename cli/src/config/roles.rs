//! The settings of each role: names, types, defaults and meanings.
//!
//! Flags, environment variables, the file's keys, `--help` and `docs/configuration.md` all follow from these structs.
//! A field's name is its key, and its doc comment is its meaning. The value's name also gives its format: `N` is a
//! number, `BOOL` a switch, and the password of a `URL` is never shown.

#![expect(
    clippy::doc_markdown,
    reason = "doc comments are help texts, shown as they are"
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use cueline_api::AdminToken;
use cueline_handlers::http::IpNet;
use cueline_model::{DurationMs, ExecutorName, GroupName};
use cueline_protocol::origin::EnrolmentToken;

use super::openid::OpenIdOptions;
use super::values::{self, SigningKeyEntry, TrustedKeys};
use crate::adapters::{BrokerUrl, StoreUrl};
use crate::components::HandlerKind;

/// A process that runs until it is told to stop.
pub(crate) trait Role: Args {
    /// The name of its command, and of its section in the file.
    const NAME: &'static str;
    /// Settings whose default is computed, with the default in words.
    const COMPUTED: &'static [(&'static str, &'static str)];
}

const MACHINE_NAME: (&str, &str) = ("name", "the machine's name");

impl Role for StandaloneConfig {
    const NAME: &'static str = "standalone";
    const COMPUTED: &'static [(&'static str, &'static str)] = &[
        ("store", "sqlite:DATA/store.db"),
        ("broker", "embedded:DATA/queue.db"),
    ];
}

impl Role for SchedulerConfig {
    const NAME: &'static str = "scheduler";
    const COMPUTED: &'static [(&'static str, &'static str)] = &[MACHINE_NAME];
}

impl Role for WorkerConfig {
    const NAME: &'static str = "worker";
    const COMPUTED: &'static [(&'static str, &'static str)] = &[
        MACHINE_NAME,
        ("fence_after", "two thirds of failover_after, 20s"),
        (
            "state_dir",
            "$STATE_DIRECTORY, else /var/lib/cueline/workers for root, else ~/.local/state/cueline/workers; in it GROUP/NAME",
        ),
        ("worker_key", "worker.key in state_dir"),
    ];
}

/// `cueline standalone`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StandaloneConfig {
    /// Directory for all data; created if it does not exist
    #[arg(value_name = "DIR", default_value = "./data", value_parser = values::path)]
    pub(crate) data: PathBuf,
    /// Address and port of the API, of /livez, /readyz and /metrics
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:7800", value_parser = values::address)]
    pub(crate) listen: SocketAddr,
    /// Most open connections of the API; fewer if the limit of descriptors does not leave as many
    #[arg(value_name = "N", default_value = "1000", value_parser = values::number::<16, 10_000>)]
    pub(crate) max_connections: u32,
    /// Serve /metrics without the admin token
    #[arg(value_name = "BOOL", default_value = "false", action = ArgAction::Set, value_parser = values::switch)]
    pub(crate) metrics_public: bool,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    #[command(flatten)]
    pub(crate) openid: OpenIdOptions,
    /// Job files to apply at the start (TOML, YAML or JSON)
    #[arg(value_name = "FILE")]
    pub(crate) jobs: Vec<PathBuf>,
    /// Name of the executors: NAME-1, NAME-2, …
    #[arg(value_name = "NAME", default_value = "worker", value_parser = values::standalone_name)]
    pub(crate) name: ExecutorName,
    /// Executors in this process
    #[arg(value_name = "N", default_value = "1", value_parser = values::number::<1, 64>)]
    pub(crate) workers: u32,
    /// Executor group: the executors that can run the same jobs
    #[arg(value_name = "GROUP", default_value = "default", value_parser = values::name::<GroupName>)]
    pub(crate) group: GroupName,
    /// Kinds of handlers that may run here: shell, command, http
    #[arg(value_name = "KINDS", default_values = ["shell", "command", "http"], value_parser = values::kind)]
    pub(crate) allow: Vec<HandlerKind>,
    /// Users that jobs may run as, by run_as; needs root, and then a job runs as root only if root is one of them
    #[arg(value_name = "USERS", value_parser = values::user)]
    pub(crate) allow_run_as: Vec<String>,
    #[command(flatten)]
    pub(crate) http: HttpOptions,
    #[command(flatten)]
    pub(crate) secrets: SecretOptions,
    /// Most handlers that each executor runs at once
    #[arg(value_name = "N", default_value = "64", value_parser = values::number::<1, 10_000>)]
    pub(crate) concurrency: u32,
    #[command(flatten)]
    pub(crate) routing: RoutingOptions,
    /// How long running handlers may take to end after SIGTERM
    #[arg(value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    pub(crate) drain_timeout: Duration,
    /// Ended runs are deleted after this time, unless their job or its group has a retention of its own
    #[arg(value_name = "DURATION", default_value = "7d", value_parser = values::duration_ms)]
    pub(crate) keep: DurationMs,
    /// Entries of the audit log are deleted after this time
    #[arg(value_name = "DURATION", default_value = "400d", value_parser = values::duration_ms)]
    pub(crate) audit_retention: DurationMs,
    /// Dead letters are deleted after this time
    #[arg(value_name = "DURATION", default_value = "90d", value_parser = values::duration_ms)]
    pub(crate) dead_letter_retention: DurationMs,
    /// Alarms and their deliveries are deleted after this time
    #[arg(value_name = "DURATION", default_value = "90d", value_parser = values::duration_ms)]
    pub(crate) alarm_retention: DurationMs,
    /// Where jobs and runs are kept: postgres://user:password@host:5432/database, or sqlite:PATH
    #[arg(value_name = "URL", value_parser = StoreUrl::parse)]
    pub(crate) store: Option<StoreUrl>,
    #[command(flatten)]
    pub(crate) store_options: StoreOptions,
    /// Broker of triggers and results: nats://user:password@host:4222 (or tls://), amqp://user:password@host:5672/vhost (or amqps://)
    #[arg(value_name = "URL", value_parser = BrokerUrl::parse)]
    pub(crate) broker: Option<BrokerUrl>,
    #[command(flatten)]
    pub(crate) broker_options: BrokerOptions,
    #[command(flatten)]
    pub(crate) process: ProcessOptions,
}

/// `cueline scheduler`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SchedulerConfig {
    /// Where jobs and runs are kept: postgres://user:password@host:5432/database, or sqlite:PATH
    #[arg(value_name = "URL", value_parser = StoreUrl::parse)]
    pub(crate) store: StoreUrl,
    #[command(flatten)]
    pub(crate) store_options: StoreOptions,
    /// Broker of triggers and results: nats://user:password@host:4222 (or tls://), amqp://user:password@host:5672/vhost (or amqps://)
    #[arg(value_name = "URL", value_parser = values::shared_broker)]
    pub(crate) broker: BrokerUrl,
    #[command(flatten)]
    pub(crate) broker_options: BrokerOptions,
    /// Address and port of the API, of /livez, /readyz and /metrics
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:7800", value_parser = values::address)]
    pub(crate) listen: SocketAddr,
    /// Most open connections of the API; fewer if the limit of descriptors does not leave as many
    #[arg(value_name = "N", default_value = "1000", value_parser = values::number::<16, 10_000>)]
    pub(crate) max_connections: u32,
    /// Serve /metrics without the admin token
    #[arg(value_name = "BOOL", default_value = "false", action = ArgAction::Set, value_parser = values::switch)]
    pub(crate) metrics_public: bool,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    #[command(flatten)]
    pub(crate) openid: OpenIdOptions,
    /// Name of this node, different from that of every other node on the store, and the same after a restart
    #[arg(value_name = "NAME", value_parser = values::name::<ExecutorName>)]
    pub(crate) name: ExecutorName,
    /// The admin token, which permits everything; this or token_file is required, the same for all nodes
    #[arg(value_name = "TOKEN", value_parser = values::token)]
    pub(crate) token: AdminToken,
    /// File that holds the admin token; `cueline token new` makes one
    #[arg(value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Files with the keys that sign triggers, the same for all nodes: one FILE, and GROUP=FILE for each group that has a key of its own; `cueline key new` makes one
    #[arg(value_name = "FILE|GROUP=FILE", required = true, value_parser = values::signing_key)]
    pub(crate) signing_key: Vec<SigningKeyEntry>,
    /// File with a token that enrols workers of every group, the same for all nodes; stored at the start, unless the store has a token of its id. `cueline worker-key token --offline` makes one
    #[arg(value_name = "FILE", value_parser = values::enrolment_token)]
    pub(crate) enrol_token_file: Option<EnrolmentToken>,
    #[command(flatten)]
    pub(crate) failover: FailoverOptions,
    /// Ended runs are deleted after this time, unless their job or its group has a retention of its own
    #[arg(value_name = "DURATION", default_value = "7d", value_parser = values::duration_ms)]
    pub(crate) keep: DurationMs,
    /// Entries of the audit log are deleted after this time
    #[arg(value_name = "DURATION", default_value = "400d", value_parser = values::duration_ms)]
    pub(crate) audit_retention: DurationMs,
    /// Dead letters are deleted after this time
    #[arg(value_name = "DURATION", default_value = "90d", value_parser = values::duration_ms)]
    pub(crate) dead_letter_retention: DurationMs,
    /// Alarms and their deliveries are deleted after this time
    #[arg(value_name = "DURATION", default_value = "90d", value_parser = values::duration_ms)]
    pub(crate) alarm_retention: DurationMs,
    #[command(flatten)]
    pub(crate) http: HttpOptions,
    /// Directory with the values of the secrets of alarm channels, one file for each, which other users must not be able to use
    #[arg(value_name = "DIR", value_parser = values::directory)]
    pub(crate) secrets_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) process: ProcessOptions,
}

/// `cueline worker`.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerConfig {
    /// Broker of triggers and results: nats://user:password@host:4222 (or tls://), amqp://user:password@host:5672/vhost (or amqps://)
    #[arg(value_name = "URL", value_parser = values::shared_broker)]
    pub(crate) broker: BrokerUrl,
    #[command(flatten)]
    pub(crate) broker_options: BrokerOptions,
    /// Executor group: the executors that can run the same jobs
    #[arg(value_name = "GROUP", default_value = "default", value_parser = values::name::<GroupName>)]
    pub(crate) group: GroupName,
    /// Name of this executor, different from that of every other one in the group, and the same after a restart
    #[arg(value_name = "NAME", value_parser = values::name::<ExecutorName>)]
    pub(crate) name: ExecutorName,
    /// Kinds of handlers that may run here: shell, command, http; at least one
    #[arg(value_name = "KINDS", required = true, value_parser = values::kind)]
    pub(crate) allow: Vec<HandlerKind>,
    /// Users that jobs may run as, by run_as; needs root, and then a job runs as root only if root is one of them
    #[arg(value_name = "USERS", value_parser = values::user)]
    pub(crate) allow_run_as: Vec<String>,
    /// Public keys of the schedulers, or files with them; several while the key is being changed; at least one
    #[arg(value_name = "FILE|KEY", required = true, value_parser = values::trusted_keys)]
    pub(crate) trust: Vec<TrustedKeys>,
    #[command(flatten)]
    pub(crate) http: HttpOptions,
    #[command(flatten)]
    pub(crate) secrets: SecretOptions,
    /// Most handlers that each executor runs at once
    #[arg(value_name = "N", default_value = "64", value_parser = values::number::<1, 10_000>)]
    pub(crate) concurrency: u32,
    #[command(flatten)]
    pub(crate) routing: RoutingOptions,
    /// How long running handlers may take to end after SIGTERM
    #[arg(value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    pub(crate) drain_timeout: Duration,
    /// After this time without the broker it stops its own attempts, unless the job says fence = "keep"; at most five sixths of failover_after
    #[arg(value_name = "DURATION", value_parser = values::duration)]
    pub(crate) fence_after: Duration,
    #[command(flatten)]
    pub(crate) failover: FailoverOptions,
    /// Directory of the journal, which one worker at a time uses; on a local disk
    #[arg(value_name = "DIR", value_parser = values::path)]
    pub(crate) state_dir: PathBuf,
    /// File with the key that seals results and heartbeats; made at the first start if it does not exist
    #[arg(value_name = "FILE", value_parser = values::path)]
    pub(crate) worker_key: PathBuf,
    /// File with the token by which schedulers accept the key; `cueline worker-key token` makes one. Not needed once they have
    #[arg(value_name = "FILE", value_parser = values::enrolment_token)]
    pub(crate) enrol_token_file: Option<EnrolmentToken>,
    /// Address and port of /livez, /readyz and /metrics; none by default
    #[arg(value_name = "ADDR", value_parser = values::address)]
    pub(crate) health: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) process: ProcessOptions,
}

/// What jobs may choose executors by.
#[derive(Debug, Clone, Args)]
pub(crate) struct RoutingOptions {
    /// Labels of the executors, by which jobs may select them (selector)
    #[arg(value_name = "KEY=VALUE", value_parser = values::label)]
    pub(crate) label: Vec<(String, String)>,
    /// Share of the runs of jobs with route = "weighted" that each executor gets, beside the weights of the others
    #[arg(value_name = "N", default_value = "1", value_parser = values::weight)]
    pub(crate) weight: u8,
}

/// Of each role with a store.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreOptions {
    /// File that holds the store's URL, instead of the URL itself
    #[arg(value_name = "FILE")]
    pub(crate) store_file: Option<PathBuf>,
    /// Refuse a store whose schema is not up to date, instead of migrating it
    #[arg(value_name = "BOOL", default_value = "false", action = ArgAction::Set, value_parser = values::switch)]
    pub(crate) no_migrate: bool,
}

/// Of each role.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "a field's name is the key")]
pub(crate) struct BrokerOptions {
    /// File that holds the broker's URL, instead of the URL itself
    #[arg(value_name = "FILE")]
    pub(crate) broker_file: Option<PathBuf>,
    /// Prefix of all names on the broker; the same for all nodes and workers that belong together
    #[arg(value_name = "NAME", default_value = "cueline", value_parser = values::broker_prefix)]
    pub(crate) broker_prefix: String,
    /// Certificates (PEM) of the authorities that the broker's is checked against, instead of the system's
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) broker_ca: Option<PathBuf>,
    /// Certificate (PEM) that identifies this process to the broker
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) broker_certificate: Option<PathBuf>,
    /// Private key (PEM) of broker_certificate
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) broker_key: Option<PathBuf>,
    /// Credentials file (.creds) for NATS
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) broker_credentials: Option<PathBuf>,
    /// Servers of the broker's cluster that keep each message; set when streams and queues are created. By default 1 on NATS, and RabbitMQ's own choice there
    #[arg(value_name = "N", value_parser = values::number::<1, 9>)]
    pub(crate) broker_replicas: Option<u32>,
}

/// Of each role with an API.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "a field's name is the key")]
pub(crate) struct TlsOptions {
    /// Certificate (PEM) of the API, followed by those that signed it; with it, the API is https only. A changed file is taken over within 30s
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key (PEM) of tls_cert, not encrypted
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that sign those of clients; with it, clients without such a certificate are refused
    #[arg(value_name = "FILE", value_parser = values::file)]
    pub(crate) tls_client_ca: Option<PathBuf>,
}

/// Of each role.
#[derive(Debug, Clone, Args)]
pub(crate) struct HttpOptions {
    /// Networks that HTTP jobs and messages of alarms may reach, such as 10.0.0.0/8. By default all but link-local and cloud metadata addresses, which must be named themselves
    #[arg(value_name = "NETWORKS", value_parser = values::network)]
    pub(crate) http_allow: Vec<IpNet>,
    /// Networks that HTTP jobs and messages of alarms may not reach, also if http_allow has them
    #[arg(value_name = "NETWORKS", value_parser = values::network)]
    pub(crate) http_deny: Vec<IpNet>,
}

/// Of each role with executors.
#[derive(Debug, Clone, Args)]
pub(crate) struct SecretOptions {
    /// Directory with the values of secrets of jobs and alarm channels, one file for each, which other users must not be able to use
    #[arg(value_name = "DIR", value_parser = values::directory)]
    pub(crate) secrets_dir: Option<PathBuf>,
    /// Program that prints the value of a job's secret, whose name is its argument; an absolute path
    #[arg(value_name = "FILE", value_parser = values::program)]
    pub(crate) secrets_command: Option<PathBuf>,
}

/// Of each role that can be without its broker for a while.
#[derive(Debug, Clone, Args)]
pub(crate) struct FailoverOptions {
    /// After this time without heartbeats the work of a worker is given to others; the same for all schedulers and workers, at least 3s.
    #[arg(value_name = "DURATION", default_value = "30s", value_parser = values::failover_after)]
    pub(crate) failover_after: DurationMs,
}

/// Of each role.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProcessOptions {
    /// Give up when store and broker cannot be reached for this long at the start; never by default
    #[arg(value_name = "DURATION", value_parser = values::duration)]
    pub(crate) start_timeout: Option<Duration>,
    /// Logs as JSON lines
    #[arg(value_name = "BOOL", default_value = "false", action = ArgAction::Set, value_parser = values::switch)]
    pub(crate) log_json: bool,
}
