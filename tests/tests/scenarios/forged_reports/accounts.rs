//! Accounts on a broker, with exactly the rights that the documentation gives them.

use anyhow::{Context as _, Result, anyhow};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::rabbitmq::Rabbit;

const NATS_PAGE: &str = include_str!("../../../../docs/nats.md");
const RABBITMQ_PAGE: &str = include_str!("../../../../docs/rabbitmq.md");

/// The addresses of one broker for three users.
pub(super) struct Accounts {
    pub(super) scheduler: String,
    /// Of the worker that is attacked.
    pub(super) one: String,
    /// Of the attacker.
    pub(super) two: String,
    /// The attacker's group and name as they are in subjects and in names of queues.
    pub(super) place: &'static str,
}

/// The namespace of the attacker.
#[derive(Debug, Clone, Copy)]
pub(super) enum Home {
    /// That of the attacked worker.
    SameNamespace,
    /// Another one: the group is `other/default`.
    OtherNamespace,
}

impl Home {
    const fn place(self) -> &'static str {
        match self {
            Self::SameNamespace => "default.two",
            Self::OtherNamespace => "other%2Fdefault.two",
        }
    }

    /// The virtual host of the test on the shared RabbitMQ server.
    const fn vhost(self) -> &'static str {
        match self {
            Self::SameNamespace => "forged-reports",
            Self::OtherNamespace => "forged-reports-of-another-namespace",
        }
    }
}

/// A NATS server with the users of `docs/nats.md`.
pub(super) fn on_nats(home: Home) -> Result<(Nats, Accounts)> {
    let users = nats_users(home)?;
    let server = Nats::start_with(Version::V2_12, |_| Ok(users))?;
    let url = |user: &str, password: &str| format!("nats://{user}:{password}@{}", server.addr());
    let accounts = Accounts {
        scheduler: url("scheduler", "scheduler"),
        one: url("default-one", "worker"),
        two: url("default-two", "worker"),
        place: home.place(),
    };
    Ok((server, accounts))
}

/// The documented configuration, with the block of the worker once for each worker of this test.
fn nats_users(home: Home) -> Result<String> {
    const WORKER: &str = "    {\n      user: \"billing-one\"";
    const SCHEDULER: &str = "    {\n      user: \"scheduler\"";
    let block = NATS_PAGE.split_once("```nats\n").and_then(|(_, rest)| {
        let (block, _) = rest.split_once("```")?;
        let (head, rest) = block.split_once(WORKER)?;
        let (worker, scheduler) = rest.split_once(SCHEDULER)?;
        let places = [("one", "default.one"), ("two", home.place())];
        let workers = places.map(|(name, place)| {
            format!("{WORKER}{worker}")
                .replace("billing-one", &format!("default-{name}"))
                .replace("billing~one", &place.replace('.', "~"))
                .replace("billing.one", place)
        });
        Some(format!("{head}{}{SCHEDULER}{scheduler}", workers.concat()))
    });
    block.context("docs/nats.md has no configuration with a worker and a scheduler")
}

/// The user of `docs/rabbitmq.md` for the attacker. The others have all rights.
pub(super) fn on_rabbitmq(home: Home) -> Result<Accounts> {
    let server = Rabbit::shared()?;
    let vhost = home.vhost();
    server.add_vhost(vhost)?;
    // Users are not part of a virtual host.
    let user = match home {
        Home::SameNamespace => "worker-two",
        Home::OtherNamespace => "other-two",
    };
    let [configure, write, read, live @ .., starts_write, starts_read] =
        &rabbitmq_rights(home, user)?;
    server.add_user(user, "secret", vhost, [configure, write, read])?;
    let [live_write, live_read] = live;
    for (exchange, write, read) in [
        ("cueline.live", live_write, live_read),
        ("cueline.starts", starts_write, starts_read),
    ] {
        let call = ["set_topic_permissions", "-p", vhost, user];
        server.ctl(&[&call[..], &[exchange, write.as_str(), read.as_str()]].concat())?;
    }
    Ok(Accounts {
        scheduler: server.url(vhost),
        one: server.url(vhost),
        two: server.url_as(user, "secret", vhost),
        place: home.place(),
    })
}

/// The documented patterns: three of permissions, and two for each of two exchanges.
fn rabbitmq_rights(home: Home, user: &str) -> Result<[String; 7]> {
    let commands = RABBITMQ_PAGE
        .split_once("## Give each worker its own user")
        .and_then(|(_, rest)| rest.split_once("```console\n")?.1.split_once("```"))
        .map(|(commands, _)| commands)
        .context("docs/rabbitmq.md has no commands for a worker's user")?;
    // The answers of the commands contain apostrophes.
    let typed = commands
        .lines()
        .filter(|line| line.starts_with("$ ") || line.starts_with("    '"));
    let patterns: Vec<String> = typed
        .flat_map(|line| line.split('\'').skip(1).step_by(2))
        .map(|pattern| {
            pattern
                .replace("worker-one", user)
                .replace(r"billing\.one", &home.place().replace('.', r"\."))
        })
        .collect();
    patterns
        .try_into()
        .map_err(|found| anyhow!("docs/rabbitmq.md has other patterns than expected: {found:?}"))
}
