//! A TCP proxy that delays, stalls or cuts the connections to a server, or to several ones in turn.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::port::free_port;

/// How the proxy treats existing and new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Forwards everything.
    Whole,
    /// Forwards everything, but each piece (of at most 64 KiB) after this time.
    Slow(Duration),
    /// Accepts and keeps connections but forwards nothing, like a network that loses all packets. Data that is sent
    /// meanwhile arrives when the link heals.
    HalfOpen,
    /// Data from clients is lost. A connection that lost data is cut when the link heals.
    DeafServer,
    /// Data from the server is lost. A connection that lost data is cut when the link heals.
    DeafClient,
    /// Connections are cut, and new ones refused.
    Cut,
    /// The proxy ends.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Link {
    fn swallows(self, direction: Direction) -> bool {
        match self {
            Self::DeafServer => direction == Direction::ToServer,
            Self::DeafClient => direction == Direction::ToClient,
            _ => false,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Slow(_))
    }

    fn is_cut(self) -> bool {
        matches!(self, Self::Cut | Self::Gone)
    }
}

/// A proxy with its own port and thread. Dropping it ends the proxy.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    link: watch::Sender<Link>,
    upstreams: watch::Sender<Vec<SocketAddr>>,
    lost_pieces: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream` with the link whole.
    pub fn start(upstream: SocketAddr) -> Result<Self> {
        Self::balancing(vec![upstream])
    }

    /// Starts a proxy in front of several servers, which get the connections in turn. A server that refuses one is
    /// passed over.
    pub fn balancing(upstreams: Vec<SocketAddr>) -> Result<Self> {
        // No other program may take the port while the link is cut and nothing listens there.
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let (link, links) = watch::channel(Link::Whole);
        let (upstreams, targets) = watch::channel(upstreams);
        let lost_pieces = Arc::<AtomicUsize>::default();
        let links = Links {
            link: links,
            lost_pieces: Arc::clone(&lost_pieces),
        };
        let (ready, readied) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                match runtime {
                    Ok(runtime) => runtime.block_on(serve(addr, targets, links, ready)),
                    Err(e) => drop(ready.send(Err(e))),
                }
            })?;
        readied.recv().context("failed to start the proxy")??;
        Ok(Self {
            addr,
            link,
            upstreams,
            lost_pieces,
            thread: Some(thread),
        })
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the link, also for existing connections.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }

    /// The present link.
    pub fn link(&self) -> Link {
        *self.link.borrow()
    }

    /// The number of pieces of data that one-way links have lost so far.
    pub fn lost_pieces(&self) -> usize {
        self.lost_pieces.load(Ordering::Relaxed)
    }

    /// Makes the link whole again.
    pub fn heal(&self) {
        self.set(Link::Whole);
    }

    /// Sends new connections to this server only. Existing ones stay with theirs.
    pub fn retarget(&self, upstream: SocketAddr) {
        self.upstreams.send_replace(vec![upstream]);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Link::Gone);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

/// What a connection needs to know of its proxy.
#[derive(Debug, Clone)]
struct Links {
    link: watch::Receiver<Link>,
    lost_pieces: Arc<AtomicUsize>,
}

type Upstreams = watch::Receiver<Vec<SocketAddr>>;

async fn serve(
    addr: SocketAddr,
    upstreams: Upstreams,
    mut links: Links,
    ready: mpsc::SyncSender<io::Result<()>>,
) {
    let mut listener = match TcpListener::bind(addr).await {
        Ok(listener) => Some(listener),
        Err(e) => return drop(ready.send(Err(e))),
    };
    if ready.send(Ok(())).is_err() {
        return;
    }
    let mut turn = 0_usize;
    let mut connections = JoinSet::new();
    loop {
        let link = *links.link.borrow_and_update();
        if link == Link::Gone {
            return;
        }
        if link.is_cut() {
            // Without a listener the operating system refuses connections.
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(addr).await.ok();
        }
        tokio::select! {
            client = accept(listener.as_ref()) => {
                if let Ok((client, _)) = client {
                    let server = connect(upstreams.clone(), turn);
                    connections.spawn(connection(client, server, links.clone()));
                    turn = turn.wrapping_add(1);
                }
            }
            changed = links.link.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Connects to the server whose turn it is, or to the next one that accepts.
async fn connect(upstreams: Upstreams, turn: usize) -> Option<TcpStream> {
    let upstreams = upstreams.borrow().clone();
    let first = turn.checked_rem(upstreams.len())?;
    let in_turn = upstreams.iter().cycle().skip(first);
    for upstream in in_turn.take(upstreams.len()) {
        if let Ok(server) = TcpStream::connect(upstream).await {
            return Some(server);
        }
    }
    None
}

/// Serves one connection until either side or the link ends it.
async fn connection(
    client: TcpStream,
    server: impl Future<Output = Option<TcpStream>>,
    links: Links,
) {
    let lost = AtomicBool::new(false);
    let carried = async {
        let mut link = links.link.clone();
        if link.wait_for(|l| *l != Link::HalfOpen).await.is_err() {
            return;
        }
        let Some(server) = server.await else {
            return;
        };
        // The proxy must not delay small pieces.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            _ = pump(Direction::ToServer, from_client, to_server, links.clone(), &lost) => {}
            _ = pump(Direction::ToClient, from_server, to_client, links.clone(), &lost) => {}
        }
    };
    let mut ends = links.link.clone();
    let ended = ends.wait_for(|l| l.is_cut() || (l.is_whole() && lost.load(Ordering::Relaxed)));
    tokio::select! {
        () = carried => {}
        _ = ended => {}
    }
}

async fn pump(
    direction: Direction,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut links: Links,
    lost: &AtomicBool,
) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        let Ok(link) = links
            .link
            .wait_for(|l| *l != Link::HalfOpen)
            .await
            .map(|l| *l)
        else {
            return Ok(());
        };
        if link.swallows(direction) {
            lost.store(true, Ordering::Relaxed);
            links.lost_pieces.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if let Link::Slow(delay) = link {
            tokio::time::sleep(delay).await;
        }
        to.write_all(&piece[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener as Listener, TcpStream as Stream};

    use cueline_test_support::{SOON, eventually_blocking};

    use super::*;

    const NOT_YET: Duration = Duration::from_millis(200);

    /// A server that returns what it receives.
    fn echo() -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut piece = [0; 1_024];
                    while let Ok(count @ 1..) = stream.read(&mut piece) {
                        if stream.write_all(&piece[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        addr
    }

    /// A server that sends its greeting.
    fn greets(greeting: &'static [u8]) -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                stream.unwrap().write_all(greeting).unwrap();
            }
        });
        addr
    }

    fn connect(proxy: &Proxy) -> Stream {
        let stream = Stream::connect(proxy.addr()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    fn expect(stream: &mut Stream, expected: &[u8]) {
        let mut received = vec![0; expected.len()];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, expected);
    }

    fn assert_silent(stream: &mut Stream) {
        stream.set_read_timeout(Some(NOT_YET)).unwrap();
        let kind = stream.read(&mut [0; 16]).unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "{kind}"
        );
        stream.set_read_timeout(Some(SOON)).unwrap();
    }

    fn assert_ended(stream: &mut Stream) {
        let read = stream.read(&mut [0; 16]);
        let cut = |e: &io::Error| e.kind() == ErrorKind::ConnectionReset;
        assert!(
            matches!(read, Ok(0)) || read.as_ref().is_err_and(cut),
            "{read:?}"
        );
    }

    #[test]
    fn a_whole_link_forwards_everything_and_a_slow_one_later() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = connect(&proxy);
        stream.write_all(b"one").unwrap();
        expect(&mut stream, b"one");
        proxy.set(Link::Slow(NOT_YET));
        let start = tokio::time::Instant::now();
        stream.write_all(b"two").unwrap();
        expect(&mut stream, b"two");
        assert!(start.elapsed() >= 2 * NOT_YET, "each way is delayed");
    }

    #[test]
    fn a_half_open_link_keeps_what_is_sent_until_it_heals() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut old = connect(&proxy);
        old.write_all(b"before").unwrap();
        expect(&mut old, b"before");
        proxy.set(Link::HalfOpen);
        old.write_all(b"meanwhile").unwrap();
        let mut new = connect(&proxy);
        new.write_all(b"new").unwrap();
        assert_silent(&mut old);
        assert_silent(&mut new);
        proxy.heal();
        expect(&mut old, b"meanwhile");
        expect(&mut new, b"new");
    }

    #[test]
    fn a_one_way_link_loses_data_and_cuts_the_connection_when_it_heals() {
        for one_way in [Link::DeafServer, Link::DeafClient] {
            let proxy = Proxy::start(echo()).unwrap();
            let mut stream = connect(&proxy);
            stream.write_all(b"before").unwrap();
            expect(&mut stream, b"before");
            proxy.set(one_way);
            stream.write_all(b"lost").unwrap();
            // Data that reaches the proxy after the link has healed is not lost.
            eventually_blocking("a piece is lost", SOON, || {
                let lost = proxy.lost_pieces();
                if lost > 0 { Ok(()) } else { Err(lost) }
            })
            .unwrap();
            assert_silent(&mut stream);
            proxy.heal();
            assert_ended(&mut stream);
            let mut new = connect(&proxy);
            new.write_all(b"after").unwrap();
            expect(&mut new, b"after");
        }
    }

    #[test]
    fn servers_get_connections_in_turn_and_one_that_refuses_gets_none() {
        let refuses = ([127, 0, 0, 1], free_port().unwrap()).into();
        let (one, two) = (greets(b"one"), greets(b"two"));
        let proxy = Proxy::balancing(vec![one, two, refuses]).unwrap();
        for greeting in [b"one", b"two", b"one", b"one", b"two"] {
            expect(&mut connect(&proxy), greeting);
        }
    }

    #[test]
    fn after_a_change_of_server_only_new_connections_reach_the_new_one() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut old = connect(&proxy);
        old.write_all(b"before").unwrap();
        expect(&mut old, b"before");
        proxy.retarget(greets(b"new"));
        expect(&mut connect(&proxy), b"new");
        old.write_all(b"old").unwrap();
        expect(&mut old, b"old");
    }

    #[test]
    fn a_cut_link_ends_connections_and_refuses_new_ones_until_it_heals() {
        let proxy = Proxy::start(echo()).unwrap();
        let mut stream = connect(&proxy);
        stream.write_all(b"before").unwrap();
        expect(&mut stream, b"before");
        proxy.set(Link::Cut);
        assert_ended(&mut stream);
        // A handshake while the listener is being closed ends with a reset, a later one is refused.
        let refused =
            eventually_blocking("a connection is refused", SOON, || {
                match Stream::connect(proxy.addr()) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        refused.unwrap();
        proxy.heal();
        let again = || Stream::connect(proxy.addr());
        let mut again = eventually_blocking("a connection", SOON, again).unwrap();
        again.write_all(b"again").unwrap();
        expect(&mut again, b"again");
    }
}
