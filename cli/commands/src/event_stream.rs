//! Reads server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>) as Cueline's servers send
//! them: lines end with LF. Pure.

/// The longest message, in bytes. A server of Cueline sends far shorter ones.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its kind.
    pub(crate) event: String,
    /// Its data.
    pub(crate) data: String,
}

/// The stream is not one of a Cueline server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to read an event: it has more than {MAX_MESSAGE_BYTES} bytes")]
pub(crate) struct MessageTooLong;

/// What was received of a stream.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    received: Vec<u8>,
    /// How much of it was searched for the end of a message.
    searched: usize,
    last_id: Option<String>,
}

impl EventStream {
    /// Adds what has arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The id of the last event. A stream continues after it.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Forgets the beginning of a message whose stream has ended.
    pub(crate) fn restart(&mut self) {
        self.received.clear();
        self.searched = 0;
    }

    /// The next complete message.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, MessageTooLong> {
        loop {
            let unsearched = &self.received[self.searched..];
            let Some(end) = unsearched.windows(2).position(|two| two == b"\n\n") else {
                if self.received.len() > MAX_MESSAGE_BYTES {
                    return Err(MessageTooLong);
                }
                // The last byte may be the first one of the end.
                self.searched = self.received.len().saturating_sub(1);
                return Ok(None);
            };
            let end = self.searched + end + 2;
            let block: Vec<u8> = self.received.drain(..end).collect();
            self.searched = 0;
            if let Some(message) = self.read(&String::from_utf8_lossy(&block)) {
                return Ok(Some(message));
            }
        }
    }

    /// `None` for a block without data, such as a heartbeat.
    fn read(&mut self, block: &str) -> Option<Message> {
        let (mut event, mut data) = (String::new(), Vec::new());
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut event),
                "data" => data.push(value),
                "id" => self.last_id = Some(value.to_owned()),
                _ => {}
            }
        }
        let data = data.join("\n");
        (!data.is_empty()).then_some(Message { event, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: &str, data: &str) -> Message {
        Message {
            event: event.to_owned(),
            data: data.to_owned(),
        }
    }

    const TEXT: &str =
        "event: ready\ndata: {}\nid: 7-0\n\n: \nid: 7-5\n\nevent:run\ndata: é\ndata: b\n\nevent: r";

    #[test]
    fn messages_are_read_in_whatever_pieces_they_arrive() {
        for size in 1..TEXT.len() {
            let (mut stream, mut read) = (EventStream::default(), Vec::new());
            for piece in TEXT.as_bytes().chunks(size) {
                stream.push(piece);
                while let Some(message) = stream.next().expect("short") {
                    read.push(message);
                }
            }
            let expected = [message("ready", "{}"), message("run", "é\nb")];
            assert_eq!(read, expected, "in pieces of {size} bytes");
            assert_eq!(stream.last_id(), Some("7-5"));
        }
    }

    #[test]
    fn a_message_that_never_ends_is_given_up() {
        let mut stream = EventStream::default();
        stream.push(&vec![b'x'; MAX_MESSAGE_BYTES]);
        assert_eq!(stream.next(), Ok(None));
        stream.push(b"x");
        assert_eq!(stream.next(), Err(MessageTooLong));
    }

    #[test]
    fn what_follows_an_interrupted_message_is_read_alone() {
        let mut stream = EventStream::default();
        stream.push(b"event: run\ndata: {\"id\"");
        assert_eq!(stream.next(), Ok(None));
        stream.restart();
        stream.push(b"event: job\ndata: {}\n\n");
        assert_eq!(stream.next(), Ok(Some(message("job", "{}"))));
    }
}
