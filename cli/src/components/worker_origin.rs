//! The key of a worker process: read from its file, given to the worker and to the driver of its broker.

use cueline_broker::DeadLetterSeal;
use cueline_model::ExecutorId;
use cueline_protocol::origin::{EnrolmentToken, Sealer};
use cueline_worker::{Builder, DeadLetterSealer, KeyFile, KeyFileError, KeyRotation};

/// The key of a worker process, and what it asks schedulers for.
#[derive(Debug)]
pub(crate) struct WorkerOrigin {
    sealer: Sealer,
    letters: DeadLetterSealer,
    enrolment: Option<EnrolmentToken>,
    rotation: Option<KeyRotation>,
}

impl WorkerOrigin {
    /// Reads the key of `executor`, or makes one. If its next key is there, schedulers will be asked to accept that.
    pub(crate) fn open(
        file: &KeyFile,
        executor: ExecutorId,
        enrolment: Option<EnrolmentToken>,
    ) -> Result<Self, KeyFileError> {
        let sealer = Sealer::new(executor.clone(), file.read_or_create()?);
        let letters = DeadLetterSealer::new(sealer.clone());
        let rotation = file.read_next()?.map(|key| {
            let (file, letters) = (file.clone(), letters.clone());
            let next = Sealer::new(executor, key.clone());
            KeyRotation::new(key, move || {
                letters.replace(next.clone());
                if let Err(error) = file.adopt_next() {
                    tracing::error!(%error, "failed to store that the worker's next key replaced its key; rename the file with the next key before the next start");
                }
            })
        });
        Ok(Self {
            sealer,
            letters,
            enrolment,
            rotation,
        })
    }

    pub(crate) fn executor(&self) -> &ExecutorId {
        self.sealer.executor()
    }

    /// What seals the dead letters of the process.
    pub(crate) fn dead_letter_seal(&self) -> DeadLetterSeal {
        self.letters.seal()
    }

    /// Gives the key to the worker.
    pub(crate) fn add_to(self, builder: Builder) -> Builder {
        builder
            .sealer(Some(self.sealer))
            .enrolment(self.enrolment)
            .rotation(self.rotation)
    }
}
