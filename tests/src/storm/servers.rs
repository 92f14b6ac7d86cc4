//! The servers of a storm: a broker and PostgreSQL, each alone or with servers that take over.

use std::fmt::Debug;
use std::sync::Arc;

use anyhow::{Result, bail};
use cueline_runtime::clock_steps;
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::nats_cluster::NatsCluster;
use cueline_test_servers::postgres::Postgres;
use cueline_test_servers::postgres_pair::PostgresPair;
use cueline_test_servers::rabbitmq::Rabbit;
use cueline_test_servers::rabbitmq_cluster::RabbitCluster;

use super::connection::Connection;

/// The number of servers in a broker's cluster. Each keeps each message.
pub const BROKER_NODES: usize = 3;

/// The broker's servers, as far as faults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerKind {
    Single,
    /// [`BROKER_NODES`] servers.
    Cluster,
    /// The same, and the network between them can be cut.
    IsolableCluster,
}

/// What decides which faults a storm has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    pub broker: BrokerKind,
    /// Whether PostgreSQL has a standby.
    pub standby: bool,
    /// Whether this build can step the clocks of schedulers.
    pub clock_steps: bool,
    /// Whether one worker has a disk of its own.
    pub worker_disk: bool,
}

/// The servers of a broker's cluster, numbered from 0.
pub trait BrokerNodes: Debug {
    fn urls(&self) -> Vec<String>;

    /// Whether a client takes the addresses of all servers. Otherwise it gets the address of a load balancer.
    fn clients_know_all(&self) -> bool;

    /// Whether [`isolate`](Self::isolate) works.
    fn can_isolate(&self) -> bool {
        false
    }

    /// SIGKILL.
    fn kill(&mut self, node: usize) -> Result<()>;

    /// Starts a killed server on its data.
    fn restart(&mut self, node: usize) -> Result<()>;

    /// SIGSTOP.
    fn freeze(&mut self, node: usize) -> Result<()>;

    /// SIGCONT.
    fn thaw(&mut self, node: usize) -> Result<()>;

    /// Cuts the network between this server and the others. Its clients stay connected.
    fn isolate(&mut self, node: usize) -> Result<()> {
        bail!("server {node} cannot be isolated")
    }

    /// Ends an isolation.
    fn rejoin(&mut self, node: usize) -> Result<()> {
        bail!("server {node} cannot be isolated")
    }

    /// Waits until all servers work together again, so that the next one may fail.
    fn wait_until_whole(&mut self) -> Result<()>;
}

impl BrokerNodes for NatsCluster {
    fn urls(&self) -> Vec<String> {
        (0..BROKER_NODES).map(|node| self.url(node)).collect()
    }

    fn clients_know_all(&self) -> bool {
        true
    }

    fn can_isolate(&self) -> bool {
        true
    }

    fn kill(&mut self, node: usize) -> Result<()> {
        Self::kill(self, node)
    }

    fn restart(&mut self, node: usize) -> Result<()> {
        Self::restart(self, node)
    }

    fn freeze(&mut self, node: usize) -> Result<()> {
        Self::freeze(self, node)
    }

    fn thaw(&mut self, node: usize) -> Result<()> {
        Self::thaw(self, node)
    }

    fn isolate(&mut self, node: usize) -> Result<()> {
        Self::isolate(self, node)
    }

    fn rejoin(&mut self, _node: usize) -> Result<()> {
        self.heal();
        Ok(())
    }

    fn wait_until_whole(&mut self) -> Result<()> {
        self.wait_until_ready()?;
        // A majority of which one server is not current may elect no leader.
        (0..BROKER_NODES).try_for_each(|node| self.wait_until_current(node))
    }
}

impl BrokerNodes for RabbitCluster {
    fn urls(&self) -> Vec<String> {
        (0..BROKER_NODES).map(|node| self.url(node)).collect()
    }

    fn clients_know_all(&self) -> bool {
        false
    }

    fn kill(&mut self, node: usize) -> Result<()> {
        Self::kill(self, node)
    }

    fn restart(&mut self, node: usize) -> Result<()> {
        Self::restart(self, node)
    }

    fn freeze(&mut self, node: usize) -> Result<()> {
        Self::freeze(self, node)
    }

    fn thaw(&mut self, node: usize) -> Result<()> {
        Self::thaw(self, node)
    }

    fn wait_until_whole(&mut self) -> Result<()> {
        Self::wait_until_whole(self)
    }
}

/// The broker's server or servers.
#[derive(Debug)]
pub enum BrokerServer {
    Nats(Nats),
    Rabbit(Rabbit),
    Cluster(Box<dyn BrokerNodes>),
}

impl BrokerServer {
    /// A NATS server of the newer version.
    pub fn nats() -> Result<Self> {
        Ok(Self::Nats(Nats::start(Version::V2_12)?))
    }

    /// A RabbitMQ server.
    pub fn rabbit() -> Result<Self> {
        Ok(Self::Rabbit(Rabbit::start()?))
    }

    /// A cluster of NATS servers of the newer version.
    pub fn nats_cluster() -> Result<Self> {
        let cluster = NatsCluster::start(BROKER_NODES)?;
        Ok(Self::Cluster(Box::new(cluster)))
    }

    /// A cluster of RabbitMQ nodes.
    pub fn rabbit_cluster() -> Result<Self> {
        let cluster = RabbitCluster::start(BROKER_NODES)?;
        Ok(Self::Cluster(Box::new(cluster)))
    }

    /// The addresses of all servers.
    pub fn urls(&self) -> Vec<String> {
        match self {
            Self::Nats(nats) => vec![nats.url()],
            Self::Rabbit(rabbit) => vec![rabbit.url("/")],
            Self::Cluster(nodes) => nodes.urls(),
        }
    }

    /// The connections of one member, and the address for it.
    pub fn connect(&self, member: usize) -> Result<(Arc<Connection>, String)> {
        let urls = self.urls();
        match self {
            Self::Cluster(nodes) if !nodes.clients_know_all() => {
                Connection::with_balancer(&urls, member)
            }
            _ => Connection::with_proxies(&urls),
        }
    }

    /// The setting `broker_replicas`, if it is not the default.
    pub fn replicas(&self) -> Option<usize> {
        matches!(self, Self::Cluster(_)).then_some(BROKER_NODES)
    }

    /// SIGKILL, and a start on the same data.
    pub fn kill_and_start(&mut self) -> Result<()> {
        match self {
            Self::Nats(nats) => {
                nats.kill()?;
                nats.start_again()
            }
            Self::Rabbit(rabbit) => {
                rabbit.kill()?;
                rabbit.start_again()
            }
            Self::Cluster(_) => bail!("no fault kills all servers of a cluster"),
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        match self {
            Self::Nats(nats) => nats.pause(),
            Self::Rabbit(rabbit) => rabbit.pause(),
            Self::Cluster(_) => bail!("no fault stops all servers of a cluster"),
        }
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        match self {
            Self::Nats(nats) => nats.resume(),
            Self::Rabbit(rabbit) => rabbit.resume(),
            Self::Cluster(_) => bail!("no fault stops all servers of a cluster"),
        }
    }

    /// The servers of a cluster, one of which a fault may hit.
    pub fn nodes(&mut self) -> Result<&mut dyn BrokerNodes> {
        match self {
            Self::Cluster(nodes) => Ok(nodes.as_mut()),
            Self::Nats(_) | Self::Rabbit(_) => bail!("the broker is no cluster"),
        }
    }
}

/// PostgreSQL, with or without a standby.
#[derive(Debug)]
pub enum StoreServer {
    Single(Postgres),
    Pair(Box<PostgresPair>),
}

impl StoreServer {
    /// A server without a standby.
    pub fn single() -> Result<Self> {
        Ok(Self::Single(Postgres::start()?))
    }

    /// A primary with a synchronous standby.
    pub fn pair() -> Result<Self> {
        Ok(Self::Pair(Box::new(PostgresPair::start()?)))
    }

    /// Creates an empty database. Returns its address.
    pub fn create_database(&self) -> Result<String> {
        Ok(match self {
            Self::Single(server) => server.url(&server.create_database()?),
            Self::Pair(pair) => pair.url(&pair.create_database()?),
        })
    }

    /// SIGKILL to the server that accepts writes, and a start on its data.
    pub fn kill_and_start(&self) -> Result<()> {
        match self {
            Self::Single(server) => {
                server.kill()?;
                server.start_again()
            }
            Self::Pair(pair) => pair.kill_and_start(),
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        match self {
            Self::Single(server) => server.pause(),
            Self::Pair(pair) => pair.pause(),
        }
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        match self {
            Self::Single(server) => server.resume(),
            Self::Pair(pair) => pair.resume(),
        }
    }

    /// SIGKILL to the primary, and a promotion of the standby. Possible once.
    pub fn promote(&self) -> Result<()> {
        match self {
            Self::Single(_) => bail!("there is no standby to promote"),
            Self::Pair(pair) => pair.promote(),
        }
    }
}

/// What these servers, this build and this machine allow.
pub fn setup(broker: &BrokerServer, store: &StoreServer, worker_disk: bool) -> Setup {
    Setup {
        broker: match broker {
            BrokerServer::Nats(_) | BrokerServer::Rabbit(_) => BrokerKind::Single,
            BrokerServer::Cluster(nodes) if nodes.can_isolate() => BrokerKind::IsolableCluster,
            BrokerServer::Cluster(_) => BrokerKind::Cluster,
        },
        standby: matches!(store, StoreServer::Pair(_)),
        clock_steps: clock_steps::ENABLED,
        worker_disk,
    }
}
