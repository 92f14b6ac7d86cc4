//! A cluster of `RabbitMQ` nodes on this machine. A test may kill or freeze one of them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_test_support::eventually_blocking;

use crate::rabbitmq::{Rabbit, START_WITHIN};

/// A node that answers nothing for this time, more or less a quarter, counts as down for the others. The server's own
/// default is 60 s. With this one, a freeze of some seconds is noticed sometimes, and then ends in a partition.
const NET_TICK: Duration = Duration::from_secs(8);

/// Nodes in one cluster, numbered from 0. Dropping it kills them.
#[derive(Debug)]
pub struct RabbitCluster {
    nodes: Vec<Rabbit>,
}

impl RabbitCluster {
    /// Starts this many nodes with the user `guest` and the virtual host `/`, one after another, and waits until each
    /// knows all others. A start takes 5 to 10 s for each node.
    pub fn start(count: usize) -> Result<Self> {
        let mut cluster = Self {
            nodes: Vec::with_capacity(count),
        };
        for number in 0..count {
            let first = cluster.nodes.first();
            // The first node looks for no others, because it would wait for them.
            let joins = if first.is_some() {
                discovery(count)
            } else {
                String::new()
            };
            let more = format!(
                "cluster_partition_handling = pause_minority\nnet_ticktime = {}\n{joins}",
                NET_TICK.as_secs()
            );
            let node = Rabbit::start_node(&node_name(number), first, &more, "")?;
            cluster.nodes.push(node);
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// The address of the virtual host `/` on node `i`, for the user `guest`.
    pub fn url(&self, i: usize) -> String {
        self.nodes[i].url("/")
    }

    /// SIGKILL for node `i`.
    pub fn kill(&self, i: usize) -> Result<()> {
        self.nodes[i].kill()
    }

    /// Starts node `i` on its data after a [`kill`](Self::kill), and waits until it accepts AMQP.
    pub fn restart(&self, i: usize) -> Result<()> {
        self.nodes[i].start_again()
    }

    /// SIGSTOP for node `i`.
    pub fn freeze(&self, i: usize) -> Result<()> {
        self.nodes[i].pause()
    }

    /// SIGCONT after a [`freeze`](Self::freeze).
    pub fn thaw(&self, i: usize) -> Result<()> {
        self.nodes[i].resume()
    }

    /// Waits until each node runs and counts all nodes as running. After a partition, a node of the minority pauses and
    /// joins again.
    pub fn wait_until_whole(&self) -> Result<()> {
        let all = self.nodes.len();
        (0..all).try_for_each(|i| self.wait_for_running(i, all))
    }

    /// Waits until node `i` counts this many nodes as running.
    fn wait_for_running(&self, i: usize, count: usize) -> Result<()> {
        let node = &self.nodes[i];
        let running = "length(rabbit_mnesia:cluster_nodes(running)).";
        let expected = format!("node {i} counts {count} running nodes");
        let counted = eventually_blocking(expected, START_WITHIN, || {
            match node.ctl(&["eval", running]) {
                Ok(found) if found.trim() == count.to_string() => Ok(()),
                Ok(found) => Err(format!("it counts {found}")),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        counted.with_context(|| node.log())
    }
}

fn node_name(number: usize) -> String {
    format!("cueline-{}@localhost", number + 1)
}

/// The lines of `rabbitmq.conf` with which a new node joins the nodes that run.
fn discovery(count: usize) -> String {
    let nodes = (0..count).map(|number| {
        let name = node_name(number);
        format!(
            "cluster_formation.classic_config.nodes.{} = {name}\n",
            number + 1
        )
    });
    let backend = "cluster_formation.peer_discovery_backend = classic_config\n".to_owned();
    backend + &nodes.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "starts three nodes, which takes a minute: cargo test -p cueline-test-servers -- --ignored"]
    fn a_node_is_killed_and_frozen_and_joins_again() {
        let cluster = RabbitCluster::start(3).unwrap();
        assert_ne!(cluster.url(0), cluster.url(1));
        cluster.kill(0).unwrap();
        cluster.wait_for_running(1, 2).unwrap();
        cluster.restart(0).unwrap();
        cluster.wait_until_whole().unwrap();
        cluster.freeze(2).unwrap();
        // The others notice it after the tick time.
        cluster.wait_for_running(0, 2).unwrap();
        cluster.thaw(2).unwrap();
        cluster.wait_until_whole().unwrap();
    }
}
