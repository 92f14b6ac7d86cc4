//! What the core does when contact with the broker is lost, and when it is back.

use super::Core;
use super::batch::Batch;
use crate::contact::Obeyed;
use crate::lanes::Unstarted;

impl Core {
    /// Brings the lanes in line with the fence. It is lifted only here, in a later turn than the one that came to know of it: by then what ran is told to
    /// stop, and everything that waited is given back on disk where others may have it.
    pub(super) fn heed_contact(&mut self, batch: &mut Batch) {
        match self.obeyed {
            Obeyed::Not if !self.contact.is_fenced() => return,
            Obeyed::Not => self.fence(),
            Obeyed::Stopped if self.contact.is_forfeited() => {}
            Obeyed::Stopped | Obeyed::GivenBack => {
                if self.contact.lift(self.obeyed) {
                    self.lift();
                }
                return;
            }
        }
        if self.contact.is_forfeited() {
            self.give_back(batch);
        }
    }

    /// Whether nothing is taken and nothing is started.
    pub(super) fn is_fenced(&self) -> bool {
        self.obeyed != Obeyed::Not
    }

    fn fence(&mut self) {
        self.obeyed = Obeyed::Stopped;
        for running in self.running.values().filter(|running| !running.keep) {
            running.cx.stop_fenced(&self.contact);
        }
    }

    fn give_back(&mut self, batch: &mut Batch) {
        self.obeyed = Obeyed::GivenBack;
        if !self.waiting.is_empty() {
            tracing::warn!(
                waiting = self.waiting.len(),
                "no contact with the broker for too long: what waits is given back"
            );
        }
        let mut steps = Vec::new();
        self.lanes.close(Unstarted::Fenced, &mut steps);
        self.follow(steps, batch);
    }

    fn lift(&mut self) {
        self.obeyed = Obeyed::Not;
        if !self.draining {
            self.lanes.reopen();
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
