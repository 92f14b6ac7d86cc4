//! The one schema: every key that a role takes, with its type, its default and what it means.
//!
//! Flags, environment variables, the file's keys and `docs/configuration.md` all follow from these tables. How a text becomes a value is
//! the reader's business.

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything in one process.
    Standalone,
    /// A scheduler node with its API.
    Scheduler,
    /// An executor.
    Worker,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Standalone, Self::Scheduler, Self::Worker];

    /// Its name: of the command, and of its section in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
        }
    }

    /// What the command is for.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Standalone => "Scheduler, store, broker and executor in one process",
            Self::Scheduler => "A scheduler node with its API; any number of them share one store",
            Self::Worker => "An executor: takes triggers from the broker and runs them",
        }
    }

    /// What it takes, in the order in which it is shown.
    pub const fn settings(self) -> &'static [Setting] {
        match self {
            Self::Standalone => STANDALONE,
            Self::Scheduler => SCHEDULER,
            Self::Worker => WORKER,
        }
    }

    /// One of its settings.
    pub fn setting(self, key: &str) -> Option<&'static Setting> {
        self.settings().iter().find(|setting| setting.key == key)
    }
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// True or false; as a flag, its name alone.
    Switch,
    /// Several texts; separated by commas in flags and variables.
    List,
}

impl Shape {
    /// What is expected, in words.
    pub const fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text in quotes",
            Self::Number => "a whole number",
            Self::Switch => "true or false",
            Self::List => "a list of texts such as [\"a\", \"b\"]",
        }
    }
}

/// What holds when nothing is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// It has to be given.
    Required,
    /// Nothing.
    None,
    /// This, written as in a variable.
    Is(&'static str),
    /// What is found out at the start, in words.
    Found(&'static str),
}

/// What of a value must not be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// It may be shown.
    No,
    /// The password in it.
    Password,
    /// All of it; it is no flag, because others can see command lines.
    Whole,
}

/// One thing that can be set.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its key in the file. The flag is the same with `-`, the variable in capitals with `CUELINE_` before it.
    pub key: &'static str,
    /// How it is written.
    pub shape: Shape,
    /// What stands for the value in help texts.
    pub value: &'static str,
    /// What holds when it is not given.
    pub preset: Preset,
    /// What of it must not be shown.
    pub secret: Secret,
    /// What it means.
    pub meaning: &'static str,
}

impl Setting {
    /// Its flag without the dashes; `None` where a command line is no place for it.
    pub fn flag(&self) -> Option<String> {
        (self.secret != Secret::Whole).then(|| self.key.replace('_', "-"))
    }

    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("CUELINE_{}", self.key.to_uppercase())
    }
}

const fn text(
    key: &'static str,
    value: &'static str,
    preset: Preset,
    meaning: &'static str,
) -> Setting {
    Setting {
        key,
        shape: Shape::Text,
        value,
        preset,
        secret: Secret::No,
        meaning,
    }
}

const fn number(key: &'static str, preset: Preset, meaning: &'static str) -> Setting {
    Setting {
        shape: Shape::Number,
        ..text(key, "N", preset, meaning)
    }
}

const fn switch(key: &'static str, meaning: &'static str) -> Setting {
    Setting {
        shape: Shape::Switch,
        ..text(key, "", Preset::Is("false"), meaning)
    }
}

const fn list(
    key: &'static str,
    value: &'static str,
    preset: Preset,
    meaning: &'static str,
) -> Setting {
    Setting {
        shape: Shape::List,
        ..text(key, value, preset, meaning)
    }
}

const fn url(key: &'static str, preset: Preset, meaning: &'static str) -> Setting {
    Setting {
        secret: Secret::Password,
        ..text(key, "URL", preset, meaning)
    }
}

const STORE: &str =
    "Where jobs and runs are kept: postgres://user:password@host:5432/database, or sqlite:PATH";
const STORE_FILE: Setting = text(
    "store_file",
    "FILE",
    Preset::None,
    "File that holds the store's URL, instead of the URL itself",
);
const BROKER: &str = "What carries triggers and results: nats://user:password@host:4222 (or tls://), amqp://user:password@host:5672/vhost (or amqps://)";
const BROKER_FILE: Setting = text(
    "broker_file",
    "FILE",
    Preset::None,
    "File that holds the broker's URL, instead of the URL itself",
);
const BROKER_PREFIX: Setting = text(
    "broker_prefix",
    "NAME",
    Preset::Is("cueline"),
    "What the names of everything on the broker start with; the same for all nodes and workers that belong together",
);
const BROKER_CA: Setting = text(
    "broker_ca",
    "FILE",
    Preset::None,
    "Certificates (PEM) of the authorities that the broker's is checked against, instead of the system's",
);
const BROKER_CERTIFICATE: Setting = text(
    "broker_certificate",
    "FILE",
    Preset::None,
    "Certificate (PEM) with which this process shows the broker who it is",
);
const BROKER_KEY: Setting = text(
    "broker_key",
    "FILE",
    Preset::None,
    "Private key (PEM) of broker_certificate",
);
const BROKER_CREDENTIALS: Setting = text(
    "broker_credentials",
    "FILE",
    Preset::None,
    "Credentials file (.creds) for NATS",
);
const BROKER_REPLICAS: Setting = number(
    "broker_replicas",
    Preset::None,
    "How many servers of the broker's cluster keep each message; set when streams and queues are made. NATS keeps 1 by itself, RabbitMQ as many as it chooses",
);
const START_TIMEOUT: Setting = text(
    "start_timeout",
    "DURATION",
    Preset::None,
    "Give up when store and broker cannot be reached for this long at the start; for ever by default",
);
const LOG_JSON: Setting = switch("log_json", "Logs as JSON lines");
const KEEP: Setting = text(
    "keep",
    "DURATION",
    Preset::Is("7d"),
    "Ended runs are deleted after this time",
);
const LISTEN: Setting = text(
    "listen",
    "ADDR",
    Preset::Is("127.0.0.1:7800"),
    "Address and port of the API, of /livez and /readyz",
);
const NO_MIGRATE: Setting = switch(
    "no_migrate",
    "Refuse a store whose schema is not up to date, instead of migrating it",
);
const GROUP: Setting = text(
    "group",
    "GROUP",
    Preset::Is("default"),
    "Executor group: who can run the same jobs",
);
const DRAIN_TIMEOUT: Setting = text(
    "drain_timeout",
    "DURATION",
    Preset::Is("30s"),
    "How long running handlers may take to end after SIGTERM",
);
const FAILOVER_AFTER: Setting = text(
    "failover_after",
    "DURATION",
    Preset::Is("30s"),
    "After how long a silence a worker's work is given to others; the same for all schedulers and workers, at least 3s. Other times follow from it: see below",
);
const CONCURRENCY: Setting = number(
    "concurrency",
    Preset::Is("64"),
    "Handlers that each executor runs at once at the most",
);

const STANDALONE: &[Setting] = &[
    text(
        "data",
        "DIR",
        Preset::Is("./data"),
        "Directory for all data; made if it does not exist",
    ),
    LISTEN,
    list(
        "jobs",
        "FILE",
        Preset::None,
        "Job files to apply at the start (TOML, YAML or JSON); may be repeated",
    ),
    text(
        "name",
        "NAME",
        Preset::Is("worker"),
        "Name of the executors: NAME-1, NAME-2, …",
    ),
    number("workers", Preset::Is("1"), "Executors in this process"),
    GROUP,
    list(
        "allow",
        "KINDS",
        Preset::Is("shell,command,http"),
        "Kinds of handlers that may run here: shell, command, http",
    ),
    CONCURRENCY,
    DRAIN_TIMEOUT,
    KEEP,
    url("store", Preset::Found("sqlite:DATA/store.db"), STORE),
    STORE_FILE,
    NO_MIGRATE,
    url("broker", Preset::Found("embedded:DATA/queue.db"), BROKER),
    BROKER_FILE,
    BROKER_PREFIX,
    BROKER_CA,
    BROKER_CERTIFICATE,
    BROKER_KEY,
    BROKER_CREDENTIALS,
    BROKER_REPLICAS,
    START_TIMEOUT,
    LOG_JSON,
];

const SCHEDULER: &[Setting] = &[
    url("store", Preset::Required, STORE),
    STORE_FILE,
    NO_MIGRATE,
    url("broker", Preset::Required, BROKER),
    BROKER_FILE,
    BROKER_PREFIX,
    BROKER_CA,
    BROKER_CERTIFICATE,
    BROKER_KEY,
    BROKER_CREDENTIALS,
    BROKER_REPLICAS,
    LISTEN,
    text(
        "name",
        "NAME",
        Preset::Found("the machine's name"),
        "Name of this node, different from that of every other node on the store, and the same after a restart",
    ),
    Setting {
        secret: Secret::Whole,
        ..text(
            "token",
            "TOKEN",
            Preset::None,
            "The admin token; whoever has it may do everything. Either this or token_file is required, and all nodes have the same",
        )
    },
    text(
        "token_file",
        "FILE",
        Preset::None,
        "File that holds the admin token; `cueline token new` makes one",
    ),
    text(
        "signing_key",
        "FILE",
        Preset::Required,
        "File with the key that signs triggers; `cueline key new` makes one. All nodes have the same",
    ),
    FAILOVER_AFTER,
    KEEP,
    START_TIMEOUT,
    LOG_JSON,
];

const WORKER: &[Setting] = &[
    url("broker", Preset::Required, BROKER),
    BROKER_FILE,
    BROKER_PREFIX,
    BROKER_CA,
    BROKER_CERTIFICATE,
    BROKER_KEY,
    BROKER_CREDENTIALS,
    BROKER_REPLICAS,
    GROUP,
    text(
        "name",
        "NAME",
        Preset::Found("the machine's name"),
        "Name of this executor, different from that of every other one in the group, and the same after a restart",
    ),
    list(
        "allow",
        "KINDS",
        Preset::None,
        "Kinds of handlers that may run here: shell, command, http; at least one",
    ),
    list(
        "trust",
        "FILE|KEY",
        Preset::None,
        "Public keys of the schedulers, or files with them; several while the key is being changed; at least one",
    ),
    CONCURRENCY,
    DRAIN_TIMEOUT,
    text(
        "fence_after",
        "DURATION",
        Preset::Found("two thirds of failover_after, 20s"),
        "After how long without contact to the broker it stops its own attempts, unless the job says fence = \"keep\"; less than failover_after",
    ),
    FAILOVER_AFTER,
    text(
        "state_dir",
        "DIR",
        Preset::Found(
            "$STATE_DIRECTORY, else /var/lib/cueline/workers for root, else ~/.local/state/cueline/workers; in it GROUP/NAME",
        ),
        "Directory of the journal, which one worker at a time uses; on a local disk",
    ),
    text(
        "health",
        "ADDR",
        Preset::None,
        "Address and port of /livez and /readyz; none by default",
    ),
    START_TIMEOUT,
    LOG_JSON,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_there_once_and_written_the_same_everywhere() {
        for role in Role::ALL {
            for setting in role.settings() {
                let same = |other: &&Setting| other.key == setting.key;
                assert_eq!(role.settings().iter().filter(same).count(), 1);
                for other in Role::ALL.into_iter().filter_map(|r| r.setting(setting.key)) {
                    let written = |s: &Setting| (s.shape, s.secret);
                    assert_eq!(written(setting), written(other), "{}", setting.key);
                }
            }
        }
    }
}
