//! How many messages the server sends ahead for one queue.
//!
//! The prefetch starts with the size of the first fetch. It grows while fetches return as much as they ask for. A fast
//! consumer then never waits for the server, and a slow one takes nothing from others. A quorum queue cannot change the
//! prefetch of a consumer (`global`).

/// The most messages that the server sends ahead for one queue.
const MAX_PREFETCH: u16 = 2_000;

/// About how many bytes the server sends ahead for one queue. Larger messages lower the prefetch.
const MAX_PREFETCH_BYTES: usize = 64 << 20;

/// The prefetch grows after this many full fetches in a row.
const FULL_FETCHES: u32 = 3;

/// The prefetch grows up to this many fetches, so that the next messages are already here when a fetch is settled.
const FETCHES_AHEAD: usize = 4;

/// Statistics of the messages and fetches of one queue.
#[derive(Debug, Default)]
pub(super) struct PrefetchSizer {
    full_fetches: u32,
    /// Moving average of recent payloads, in bytes.
    usual_bytes: usize,
}

impl PrefetchSizer {
    pub(super) fn note_message(&mut self, bytes: usize) {
        self.usual_bytes = (self.usual_bytes * 7 + bytes) / 8;
    }

    /// Notes a fetch that asked for `max` and returned `got` messages. Returns whether a prefetch larger than `current`
    /// would help.
    pub(super) fn note_fetch(&mut self, max: usize, got: usize, current: u16) -> bool {
        if got < max {
            self.full_fetches = 0;
            return false;
        }
        self.full_fetches = self.full_fetches.saturating_add(1);
        let useful = max.saturating_mul(FETCHES_AHEAD).min(self.largest().into());
        usize::from(current) < useful && self.full_fetches >= FULL_FETCHES
    }

    /// The next prefetch after `current`, for fetches of `max` messages.
    pub(super) fn next(&self, current: u16, max: usize) -> u16 {
        let wanted = max.max(usize::from(current) * 2);
        let largest = self.largest();
        u16::try_from(wanted).map_or(largest, |wanted| wanted.clamp(1, largest))
    }

    fn largest(&self) -> u16 {
        let by_bytes = MAX_PREFETCH_BYTES / self.usual_bytes.max(1);
        u16::try_from(by_bytes).map_or(MAX_PREFETCH, |by_bytes| by_bytes.clamp(1, MAX_PREFETCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_after_full_fetches_up_to_four_of_them() {
        let mut sizer = PrefetchSizer::default();
        assert_eq!(sizer.next(0, 100), 100);
        assert!(!sizer.note_fetch(100, 100, 100));
        assert!(!sizer.note_fetch(100, 100, 100));
        assert!(sizer.note_fetch(100, 100, 100));
        assert_eq!(sizer.next(100, 100), 200);
        assert!(!sizer.note_fetch(100, 100, 400));
        assert!(!sizer.note_fetch(100, 99, 100), "not a full fetch");
        assert!(!sizer.note_fetch(100, 100, 100), "counted from there");
    }

    #[test]
    fn it_is_limited_in_messages_and_in_bytes() {
        let mut sizer = PrefetchSizer::default();
        assert_eq!(sizer.next(0, 1_000_000), MAX_PREFETCH);
        assert_eq!(sizer.next(u16::MAX, 1), MAX_PREFETCH);
        for _ in 0..200 {
            sizer.note_message(MAX_PREFETCH_BYTES / 10);
        }
        assert_eq!(sizer.next(0, 1_000), 10);
        sizer.note_message(usize::MAX / 8);
        assert_eq!(sizer.next(0, 1_000), 1, "always one");
    }
}
