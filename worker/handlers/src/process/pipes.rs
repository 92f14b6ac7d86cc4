//! Writes the input of a process and reads its outputs.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::time::timeout;

use super::lines::Lines;

/// How long output is read after the main process has ended. A background process may hold the pipes open longer.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// The size of one read. The whole output of most processes fits.
const READ_BYTES: usize = 8 * 1024;

/// Input and outputs of a process. They are one future, because several places poll it.
pub(super) struct Pipes<'a>(Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>);

impl<'a> Pipes<'a> {
    pub(super) fn new(
        child: &mut Child,
        input: Option<String>,
        out: &'a mut Lines<'_>,
        err: &'a mut Lines<'_>,
    ) -> Self {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // A process may never read its input, so the outputs may end while input is still unwritten.
        Self(Some(Box::pin(async move {
            let reading = async { tokio::join!(read(stdout, out), read(stderr, err)) };
            tokio::pin!(reading);
            tokio::select! {
                _ = &mut reading => return,
                () = write(stdin, input) => {}
            }
            reading.await;
        })))
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Returns when both outputs have ended.
    pub(super) async fn finished(&mut self) {
        if let Some(pumping) = &mut self.0 {
            pumping.await;
            self.0 = None;
        }
    }

    /// Reads the output that ended processes have left in the pipes. Later output of a background process is not read.
    pub(super) async fn drain(&mut self) {
        let _ = timeout(DRAIN_LIMIT, self.finished()).await;
    }

    /// Keeps reading and writing until `other` has returned.
    pub(super) async fn pump_until<T>(&mut self, other: impl Future<Output = T>) -> T {
        tokio::pin!(other);
        loop {
            tokio::select! {
                value = &mut other => return value,
                () = self.finished(), if self.is_open() => {}
            }
        }
    }
}

async fn read(from: Option<impl AsyncRead + Unpin>, lines: &mut Lines<'_>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match from.read(&mut buffer).await {
            // A pipe that fails counts as ended.
            Ok(0) | Err(_) => return,
            Ok(n) => lines.feed(&buffer[..n]),
        }
    }
}

/// Writes the input and closes it. A process may end or close its input before it has read all.
async fn write(to: Option<ChildStdin>, input: Option<String>) {
    if let (Some(mut to), Some(input)) = (to, input) {
        let _ = to.write_all(input.as_bytes()).await;
        let _ = to.shutdown().await;
    }
}
