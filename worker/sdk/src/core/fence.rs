//! What the core does when contact with the broker is lost, and when it is back.

use super::Core;
use super::batch::Batch;
use crate::attempt::stop_fenced;
use crate::lanes::Unstarted;

impl Core {
    /// Brings the lanes in line with the fence. It is lifted only here, in a later turn than the one that came to know of it: by then everything that
    /// waited is given back on disk, and what ran is told to stop.
    pub(super) fn heed_contact(&mut self, batch: &mut Batch) {
        match (self.contact.is_fenced(), self.fenced) {
            (true, false) => self.fence(batch),
            (true, true) if self.contact.lift() => {
                self.fenced = false;
                if !self.draining {
                    self.lanes.reopen();
                }
            }
            _ => {}
        }
    }

    fn fence(&mut self, batch: &mut Batch) {
        self.fenced = true;
        let mut steps = Vec::new();
        self.lanes.close(Unstarted::Fenced, &mut steps);
        self.follow(steps, batch);
        for running in self.running.values().filter(|running| !running.keep) {
            stop_fenced(&running.cx, &self.contact);
        }
    }

    /// Has the journal told of the newest contact, where a restart would depend on it: with what is written anyway, or while something waits.
    pub(super) fn record_contact(&mut self, batch: &Batch, tick: bool) {
        let wanted = !batch.rows.is_empty() || (tick && !self.waiting.is_empty());
        if wanted && let Some(last) = self.contact.unrecorded() {
            self.journal.note_contact(last);
        }
    }
}
