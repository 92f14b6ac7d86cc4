//! The broker in a file, for one process.

use std::path::Path;
use std::sync::Arc;

use cueline_broker::{BrokerError, ErrorKind};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};

use super::OpenBroker;
use crate::adapters::private_file::keep_private;

pub(super) async fn open(path: &str) -> Result<OpenBroker, BrokerError> {
    let path = Path::new(path);
    let private = keep_private(path);
    private.map_err(|message| BrokerError::new(ErrorKind::Permanent, message))?;
    let driver = Arc::new(EmbeddedDriver::open(path, EmbeddedOptions::default()).await?);
    let closed = driver.clone();
    let close = move || {
        let driver = closed.clone();
        Box::pin(async move { driver.close().await }) as _
    };
    Ok(OpenBroker::new(driver, Box::new(close)))
}
